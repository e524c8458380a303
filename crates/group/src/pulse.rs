//! The thread that looks after the fabric ten times a second: beacons through the fabric, rails
//! that went down and are made again, relays that are stuck, byte counters.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabric::{DistantRail, Fabric, MAX_RAILS, Notice, PathKind, RailFault};

use crate::beacon::{BEACON_BYTES, Beacon, BeaconCell};
use crate::control::mesh::Control;
use crate::control::view::LinkReport;
use crate::paths::Demotions;
use crate::rdma_metrics::RdmaMetrics;
use crate::remaker::Remaker;
use crate::telemetry::Telemetry;
use crate::verdict::Reason;

const EVERY: Duration = Duration::from_millis(100);

/// The running thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Pulse {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _rdma: RdmaMetrics,
}

impl Pulse {
    pub(crate) fn start(
        epoch: u32,
        fabric: Arc<Fabric>,
        control: Arc<Control>,
        beacon: Arc<BeaconCell>,
        telemetry: Telemetry,
        demotions: Arc<Demotions>,
    ) -> std::io::Result<Self> {
        let rdma = RdmaMetrics::start(&fabric, &telemetry)?;
        let (stop, stopped) = channel();
        let counted = [[0; MAX_RAILS]; 3];
        let remaker = Remaker::new(fabric.rank(), epoch);
        let mut beat = Beat { fabric, control, beacon, telemetry, demotions, counted, remaker };
        let thread = std::thread::Builder::new()
            .name(format!("pulse-{}", beat.fabric.rank()))
            .spawn(move || beat.run(&stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread), _rdma: rdma })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

struct Beat {
    fabric: Arc<Fabric>,
    control: Arc<Control>,
    beacon: Arc<BeaconCell>,
    telemetry: Telemetry,
    demotions: Arc<Demotions>,
    counted: [[u64; MAX_RAILS]; 3],
    remaker: Remaker,
}

impl Beat {
    fn run(&mut self, stopped: &Receiver<()>) {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(EVERY) {
            self.fabric.poll_now();
            self.tell_beacon();
            self.hear_beacons();
            self.pass_notices();
            self.make_rails_again();
            self.look_at_relays();
            self.count_bytes();
        }
    }

    /// A beacon and its checksum: shared memory may be read while it is written.
    fn tell_beacon(&self) {
        let beacon = self.beacon.heartbeat(self.control.now()).encode();
        let mut bytes = [0; BEACON_BYTES + 4];
        bytes[..BEACON_BYTES].copy_from_slice(&beacon);
        bytes[BEACON_BYTES..].copy_from_slice(&crc32c::crc32c(&beacon).to_le_bytes());
        if let Err(error) = self.fabric.look_at_endpoint(|endpoint| endpoint.send_beacon(&bytes)) {
            tracing::warn!(%error, "the beacon could not be put");
        }
    }

    fn hear_beacons(&self) {
        for peer in self.fabric.topology().linked(self.fabric.rank()) {
            let mut bytes = [0; BEACON_BYTES + 4];
            let offset = self.fabric.layout().beacon(peer);
            if self.fabric.region().read(offset, &mut bytes).is_err() {
                continue;
            }
            let (beacon, sum) = bytes.split_at(BEACON_BYTES);
            if *sum == crc32c::crc32c(beacon).to_le_bytes()
                && let Ok(beacon) = Beacon::decode(beacon)
            {
                self.control.fabric_beacon(peer, beacon);
            }
        }
    }

    fn make_rails_again(&mut self) {
        let heard = self.control.take_rail_messages();
        if self.control.failed() {
            return self.remaker.end();
        }
        let mut outbox = Vec::new();
        self.remaker.turn(self.control.now(), &self.fabric, heard, &mut outbox);
        for (peer, message) in outbox {
            self.control.send_rail(peer, message);
        }
    }

    fn pass_notices(&mut self) {
        for notice in self.fabric.take_notices() {
            match notice {
                Notice::RailDown { peer, rail, fault } => {
                    let left =
                        self.fabric.look_at_endpoint(|endpoint| endpoint.working_rails(peer));
                    self.telemetry.rail_down(peer, rail);
                    self.remaker.down(self.control.now(), peer, rail);
                    let rank = self.fabric.rank();
                    // A rail that this rank or the other end took down has not failed.
                    let failed = !matches!(fault, RailFault::PeerClosed | RailFault::Cut);
                    if failed && !self.fabric.topology().are_neighbours(rank, peer) {
                        let (low, high) = (rank.min(peer), rank.max(peer));
                        self.demotions.demote(DistantRail { low, high, rail });
                    }
                    let lanes = self.fabric.topology().lanes(rank, peer).iter();
                    let lane =
                        lanes.filter(|lane| lane.is_direct()).find(|lane| lane.rail() == rail);
                    let through = lane.map_or(Vec::new(), |lane| {
                        lane.through().iter().map(|rank| *rank as u8).collect()
                    });
                    let report = LinkReport {
                        from: self.fabric.rank() as u8,
                        to: peer as u8,
                        rail: Some(rail as u8),
                        through,
                        rails_left: left as u8,
                        why: fault.to_string(),
                    };
                    let LinkReport { why, through, .. } = &report;
                    tracing::warn!(peer, rail, left, ?through, why, "a rail went down");
                    self.control.report_link(report.clone());
                    if left == 0 {
                        self.control.propose(Reason::LinkDown { report });
                    }
                }
                Notice::RailUp { peer, rail } => {
                    let now = Instant::now();
                    self.telemetry.rail_up(now, peer, rail);
                    if let Some(back) = self.remaker.up(self.control.now(), peer, rail) {
                        let (after_s, attempt) = (back.after.as_secs_f64(), back.attempt);
                        tracing::warn!(
                            "rail {rail} to rank {peer} is back after {after_s:.1} s, attempt {attempt}"
                        );
                    }
                }
                // Told above with the last rail.
                Notice::LinkDown(_) => {}
                Notice::BadChunk(error) => {
                    self.control.propose(Reason::Failed { what: error.to_string() });
                }
            }
        }
    }

    fn look_at_relays(&self) {
        let Some(backlog) = self.fabric.backlog() else { return };
        let (src, dst) = backlog.flow.map_or((0, 0), |flow| (flow.src as u8, flow.dst as u8));
        let chunks = u16::try_from(backlog.chunks).unwrap_or(u16::MAX);
        self.beacon.set_relay_backlog(chunks, src, dst, backlog.passed as u32);
        if let Some(metrics) = &self.telemetry.metrics {
            metrics.relay_queue_depth(u64::from(backlog.chunks) + u64::from(backlog.blocked));
        }
    }

    fn count_bytes(&mut self) {
        let Some(metrics) = &self.telemetry.metrics else { return };
        let kinds = [
            (PathKind::Direct, observe::PathKind::Direct),
            (PathKind::Forwarded, observe::PathKind::Forwarded),
            (PathKind::Relayed, observe::PathKind::Relayed),
        ];
        for (row, (kind, word)) in kinds.into_iter().enumerate() {
            for rail in 0..MAX_RAILS {
                let total = self.fabric.counters().bytes(kind, rail);
                let new = total.saturating_sub(self.counted[row][rail]);
                if new > 0 {
                    metrics.path_bytes(word, rail, new);
                    self.counted[row][rail] = total;
                }
            }
        }
    }
}
