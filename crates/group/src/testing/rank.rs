//! One rank in one epoch: its fabric, its control plane and its program, without a thread.

use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fabric::sim::World;
use fabric::{Endpoint, Fabric, FabricParts, Layout, Notice, Parker, Region, Topology, Waiting};

use super::net::Parcel;
use super::plan::SimPlan;
use super::program::{Program, Stop};
use super::seat::{Seat, SimWatch};
use super::steps::Book;
use crate::beacon::{BEACON_BYTES, Beacon};
use crate::collective::Collectives;
use crate::control::wire::{CONTROL, Message, RailMessage};
use crate::control::{ControlCore, LinkReport, Output};
use crate::remaker::Remaker;
use crate::verdict::Reason;

/// Polls of one turn; a rank that always finds something to move would never let time pass.
const POLLS_MAX: usize = 10_000;

/// Nobody sleeps in a simulator.
#[derive(Debug)]
struct Awake;

impl Parker for Awake {
    fn prepare(&self) -> u32 {
        0
    }
    fn park(&self, _: u32, _: Duration) {}
    fn cancel(&self) {}
    fn wake(&self) {}
    fn worker_enters(&self) {}
    fn worker_leaves(&self) {}
    fn park_progress(&self, _: Duration) {}
    fn wake_progress(&self) {}
}

/// A program under way.
type Running = Pin<Box<dyn Future<Output = Result<(), Stop>>>>;

/// What all ranks of an epoch share.
pub(super) struct Common<'a> {
    pub(super) plan: &'a SimPlan,
    pub(super) book: &'a Rc<Book>,
    pub(super) world: &'a World,
    pub(super) topology: &'a Arc<Topology>,
    pub(super) layout: &'a Arc<Layout>,
    pub(super) epoch: u32,
    pub(super) now: Duration,
}

/// One rank.
pub(super) struct SimRank {
    pub(super) rank: usize,
    pub(super) fabric: Arc<Fabric>,
    pub(super) seat: Rc<Seat>,
    pub(super) core: ControlCore,
    pub(super) dead: bool,
    pub(super) frozen: bool,
    /// What came while it was frozen.
    pub(super) inbox: VecDeque<(usize, Parcel)>,
    /// When its worker runs next.
    pub(super) run_at: Option<Duration>,
    pub(super) pump_at: Option<Duration>,
    pub(super) ended: Option<Result<(), Stop>>,
    /// Words about rails that wait for the pulse.
    pub(super) rail_messages: Vec<(usize, RailMessage)>,
    /// How often a rail came back.
    pub(super) rails_back: usize,
    remaker: Remaker,
    program: Option<Running>,
    plan_patience: crate::patience::PatienceValues,
    epoch: u32,
}

impl SimRank {
    pub(super) fn new(
        common: &Common<'_>,
        rank: usize,
        region: &Arc<Region>,
        seat: Rc<Seat>,
        computes: Vec<Duration>,
    ) -> Self {
        let Common { plan, topology, layout, epoch, .. } = common;
        let endpoint = Endpoint::new(
            rank,
            *epoch,
            topology,
            Arc::clone(layout),
            Arc::clone(region),
            Box::new(common.world.device(rank)),
            plan.endpoint,
        );
        let mapped = (0..plan.ranks)
            .map(|peer| (plan.mapped && peer != rank).then(|| common.world.region(peer)))
            .collect();
        let parts = FabricParts {
            rank,
            topology: Arc::clone(topology),
            layout: Arc::clone(layout),
            region: Arc::clone(region),
            mapped,
            endpoint,
            stripe_bytes_min: plan.endpoint.stripe_bytes_min,
            arrivals_need_progress: true,
            waiting: Waiting::for_host(plan.ranks, 1),
        };
        let fabric = Arc::new(Fabric::new(parts, Arc::new(Awake)));
        let watch = SimWatch(Rc::clone(&seat));
        let program = Program {
            group: Collectives::new(Arc::clone(&fabric), watch, plan.table, plan.first),
            seat: Rc::clone(&seat),
            book: Rc::clone(common.book),
            computes,
            registered_bytes: plan.registered_bytes(),
        };
        let hosts = (0..plan.ranks).map(|rank| format!("host-{rank}")).collect();
        Self {
            rank,
            fabric,
            core: ControlCore::new(*epoch, rank, hosts, common.now),
            seat,
            dead: false,
            frozen: false,
            inbox: VecDeque::new(),
            run_at: None,
            pump_at: None,
            ended: None,
            rail_messages: Vec::new(),
            rails_back: 0,
            remaker: Remaker::new(rank, *epoch),
            program: Some(Box::pin(program.run())),
            plan_patience: plan.patience,
            epoch: *epoch,
        }
    }

    /// True while events of its threads have no effect.
    pub(super) fn is_still(&self) -> bool {
        self.dead || self.frozen
    }

    /// The worker looks, moves bytes and looks again until nothing moves.
    pub(super) fn work(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..POLLS_MAX {
            let Some(program) = &mut self.program else { return };
            if let Poll::Ready(result) = program.as_mut().poll(&mut context) {
                self.ended = Some(result);
                self.program = None;
                self.fabric.poll();
                return;
            }
            let waits = self.seat.waits_since.get().is_some();
            if !waits || !self.fabric.poll() {
                return;
            }
        }
    }

    /// The progress thread moves what there is to move. Answers whether anything was.
    pub(super) fn pump(&self) -> bool {
        (0..POLLS_MAX).take_while(|_| self.fabric.poll_now()).count() > 0
    }

    /// The control thread looks at the time.
    pub(super) fn tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        let own = self.seat.beacon.heartbeat(now);
        self.core.tick(now, own, &self.plan_patience, out);
    }

    /// The control thread reads what came from a peer.
    pub(super) fn hear(
        &mut self,
        now: Duration,
        from: usize,
        parcel: &Parcel,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        let Parcel::Frame(bytes) = parcel else {
            self.core.on_closed(now, from, "closed by the peer (end of stream)", out);
            return Ok(());
        };
        let frame = CONTROL.decode(bytes).map_err(|error| error.to_string())?;
        let (frame, _) = frame.ok_or("half a frame")?;
        let message = Message::decode(&frame).map_err(|error| error.to_string())?;
        self.core.on_message(now, from, frame.epoch, message, out);
        Ok(())
    }

    /// The bytes of a message to a peer it is connected to.
    pub(super) fn encode(&self, message: &Message) -> Result<Vec<u8>, String> {
        message.encode(self.epoch).map_err(|error| error.to_string())
    }

    /// What the thread that looks after the fabric does ten times a second.
    pub(super) fn pulse(&mut self, now: Duration, out: &mut Vec<Output>) {
        self.fabric.poll_now();
        self.tell_beacon(now);
        self.hear_beacons(now);
        self.pass_notices(now, out);
        self.make_rails_again(now, out);
        if let Some(backlog) = self.fabric.backlog() {
            let (src, dst) = backlog.flow.map_or((0, 0), |flow| (flow.src as u8, flow.dst as u8));
            let chunks = u16::try_from(backlog.chunks).unwrap_or(u16::MAX);
            self.seat.beacon.set_relay_backlog(chunks, src, dst, backlog.passed as u32);
        }
    }

    fn tell_beacon(&self, now: Duration) {
        let beacon = self.seat.beacon.heartbeat(now).encode();
        // A beacon fits its place.
        let _ = self.fabric.with_endpoint(|endpoint| endpoint.send_beacon(&beacon));
    }

    fn hear_beacons(&mut self, now: Duration) {
        for peer in self.fabric.topology().linked(self.rank) {
            let mut bytes = [0; BEACON_BYTES];
            let offset = self.fabric.layout().beacon(peer);
            if self.fabric.region().read(offset, &mut bytes).is_ok()
                && let Ok(beacon) = Beacon::decode(&bytes)
            {
                self.core.on_fabric_beacon(now, peer, beacon);
            }
        }
    }

    fn make_rails_again(&mut self, now: Duration, out: &mut Vec<Output>) {
        let heard = std::mem::take(&mut self.rail_messages);
        if self.core.verdict().is_some() {
            return self.remaker.end();
        }
        let mut outbox = Vec::new();
        self.remaker.turn(now, &self.fabric, heard, &mut outbox);
        for (peer, message) in outbox {
            self.core.send_rail(peer, message, out);
        }
    }

    fn pass_notices(&mut self, now: Duration, out: &mut Vec<Output>) {
        for notice in self.fabric.take_notices() {
            match notice {
                Notice::RailDown { peer, rail, fault } => {
                    self.remaker.down(now, peer, rail);
                    let left = self.fabric.with_endpoint(|endpoint| endpoint.working_rails(peer));
                    let report = LinkReport {
                        from: self.rank as u8,
                        to: peer as u8,
                        rail: Some(rail as u8),
                        through: Vec::new(),
                        rails_left: left as u8,
                        why: fault.to_string(),
                    };
                    self.core.report_link(report.clone(), out);
                    if left == 0 {
                        self.propose(now, Reason::LinkDown { report }, out);
                    }
                }
                Notice::RailUp { peer, rail } => {
                    self.rails_back += usize::from(self.remaker.up(now, peer, rail).is_some());
                }
                Notice::LinkDown(_) => {}
                Notice::BadChunk(error) => {
                    self.propose(now, Reason::Failed { what: error.to_string() }, out);
                }
            }
        }
    }

    fn propose(&mut self, now: Duration, reason: Reason, out: &mut Vec<Output>) {
        let own = self.seat.beacon.snapshot(now);
        self.core.tick(now, own, &self.plan_patience, out);
        self.core.propose(now, reason, out);
    }
}
