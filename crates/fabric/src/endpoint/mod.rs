//! What decides: which rail carries which bytes, what is sent again, what is passed on.
//!
//! An endpoint does no I/O and knows no time: it is told to [`put`](Endpoint::put) and to make
//! [`progress`](Endpoint::progress), and calls its [`Device`]. All of its memory is bounded: puts
//! wait as descriptors, at most [`PUTS_MAX`] of them, and relayed chunks only in mailboxes.

mod lane;
mod link;
mod relay;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::chunk::ChunkError;
use crate::device::{Device, Event, FlagWrite, RailFault, Span, Write};
use crate::layout::{BEACON_BYTES, Channel, FIRST_VALUE, Flow, Layout};
use crate::region::{OutOfRegion, Region};
use crate::topology::{MAX_RAILS, Topology};

use lane::{Lane, Transfer};
use link::{Link, Owner};
use relay::Relay;

/// Most puts that may wait to be sent at one time.
pub const PUTS_MAX: usize = 1024;

/// A put: bytes of the own region into a peer's, then the flags of their fragments.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// The rank written to.
    pub dst: usize,
    /// The bytes. They must not change until [`Endpoint::is_drained`].
    pub src: Span,
    /// Where they go in the peer's region.
    pub to: u64,
    /// Which flags announce them.
    pub channel: Channel,
    /// What the flags are set to: one more than at the last put of this channel. It wraps.
    pub value: u32,
}

/// Sizes and limits of an endpoint that all ranks share.
#[derive(Clone, Copy, Debug)]
pub struct EndpointSettings {
    /// A put of fewer bytes goes as one fragment over one lane.
    pub stripe_bytes_min: u64,
    /// Most bytes of one write; a device may want fewer.
    pub write_bytes_max: u64,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        Self { stripe_bytes_min: 8 << 10, write_bytes_max: 256 << 10 }
    }
}

/// Why bytes cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// A relay found a chunk it cannot pass on.
    #[error("rank {rank} cannot pass on a chunk from rank {} to rank {}: {fault}", flow.src, flow.dst)]
    BadChunk {
        /// The relay.
        rank: usize,
        /// The flow of the chunk.
        flow: Flow,
        /// What is wrong with it.
        #[source]
        fault: ChunkError,
    },
    /// More puts at once than there is room for.
    #[error("rank {rank} has {PUTS_MAX} puts waiting already; wait for some before more")]
    Capacity {
        /// The rank that put.
        rank: usize,
    },
    /// No rail to a neighbour is left.
    #[error("rank {rank} has no working rail to rank {peer}: {faults}")]
    LinkDown {
        /// The rank that sends.
        rank: usize,
        /// The neighbour.
        peer: usize,
        /// Each rail and what happened to it.
        faults: String,
    },
    /// A put from or to what is not in a region.
    #[error(transparent)]
    Region(#[from] OutOfRegion),
}

/// What an endpoint wants known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A rail went down; the others carry on.
    RailDown {
        /// The neighbour at its other end.
        peer: usize,
        /// The rail.
        rail: usize,
        /// Why.
        fault: RailFault,
    },
    /// A rail that was down is back in service.
    RailUp {
        /// The rank at its other end.
        peer: usize,
        /// The rail.
        rail: usize,
    },
    /// The last rail to a neighbour went down.
    LinkDown(FabricError),
    /// A relayed chunk was damaged.
    BadChunk(FabricError),
}

/// How bytes travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// To a neighbour.
    Direct,
    /// To a distant rank, past the NICs of those between.
    Forwarded,
    /// Through other ranks, or for other ranks.
    Relayed,
}

/// Counts that only grow; read by metrics while the endpoint works.
#[derive(Debug, Default)]
pub struct Counters {
    bytes: [[AtomicU64; MAX_RAILS]; 3],
    relayed_chunks: AtomicU64,
    reposted_writes: AtomicU64,
}

impl Counters {
    /// Bytes posted over a rail for one kind of path.
    pub fn bytes(&self, kind: PathKind, rail: usize) -> u64 {
        self.bytes[kind as usize].get(rail).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Chunks passed on for others.
    pub fn relayed_chunks(&self) -> u64 {
        self.relayed_chunks.load(Ordering::Relaxed)
    }

    /// Writes sent again after their rail failed.
    pub fn reposted_writes(&self) -> u64 {
        self.reposted_writes.load(Ordering::Relaxed)
    }

    fn add_bytes(&self, kind: PathKind, rail: usize, bytes: u64) {
        // One thread at a time changes these, so a plain load and store suffice.
        let count = &self.bytes[kind as usize][rail.min(MAX_RAILS - 1)];
        count.store(count.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }
}

/// Chunks that arrived at a relay and are still there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// How many.
    pub chunks: u32,
    /// The flow of the first of them.
    pub flow: Option<Flow>,
    /// How many more wait only because the way on is shut: this rank is not to blame for them.
    pub blocked: u32,
    /// Changes whenever one is passed on: a backlog that stays while this stays is stuck.
    pub passed: u64,
}

/// One rank's part of the fabric.
pub struct Endpoint {
    rank: usize,
    epoch: u32,
    layout: Arc<Layout>,
    region: Arc<Region>,
    device: Box<dyn Device>,
    settings: EndpointSettings,
    /// By rank; none for ranks without queue pairs.
    links: Vec<Option<Link>>,
    /// By destination, then lane.
    lanes: Vec<Vec<Lane>>,
    relays: Vec<Relay>,
    /// Puts not yet posted in full, and writes of puts not yet done.
    pending: usize,
    relays_held: bool,
    events: Vec<Event>,
    notices: Vec<Notice>,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("rank", &self.rank)
            .field("epoch", &self.epoch)
            .field("pending", &self.pending)
            .field("relays", &self.relays.len())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// The endpoint of `rank` in an epoch, over a device that is connected to the ranks linked to
    /// it. None may put before all endpoints are there: this sets the flags of the region.
    pub fn new(
        rank: usize,
        epoch: u32,
        topology: &Topology,
        layout: Arc<Layout>,
        region: Arc<Region>,
        device: Box<dyn Device>,
        settings: EndpointSettings,
    ) -> Self {
        for flag in layout.counting_flags(rank).filter_map(|offset| region.flag(offset).ok()) {
            flag.store(FIRST_VALUE, Ordering::Relaxed);
        }
        let links = (0..topology.ranks())
            .map(|peer| {
                let rails = topology.link_rails(rank, peer);
                (!rails.is_empty()).then(|| Link::new(&rails))
            })
            .collect();
        let lanes = (0..topology.ranks())
            .map(|dst| {
                let ways = topology.lanes(rank, dst).iter().enumerate();
                let most = |rail| settings.write_bytes_max.min(device.write_bytes_max(dst, rail));
                ways.map(|(lane, way)| {
                    Lane::new(&layout, way, Flow { src: rank, dst, lane }, rank, most(way.rail()))
                })
                .collect()
            })
            .collect();
        let relays = layout
            .relayed(rank)
            .iter()
            .map(|&flow| {
                Relay::new(&layout, &topology.lanes(flow.src, flow.dst)[flow.lane], flow, rank)
            })
            .collect();
        Self {
            rank,
            epoch,
            layout,
            region,
            device,
            settings,
            links,
            lanes,
            relays,
            pending: 0,
            relays_held: false,
            events: Vec::new(),
            notices: Vec::new(),
            counters: Arc::default(),
        }
    }

    /// Counts for metrics.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Starts a put. Its bytes go out as credits and queue pairs allow, here and in
    /// [`progress`](Self::progress).
    ///
    /// # Errors
    /// Bytes outside the regions, no working rail to a neighbour, or [`PUTS_MAX`] puts waiting.
    pub fn put(&mut self, put: &Put) -> Result<(), FabricError> {
        self.region.pointer(put.src.offset, put.src.len)?;
        let region = self.layout.region_bytes();
        if put.to.checked_add(put.src.len).is_none_or(|end| end > region) {
            return Err(OutOfRegion { offset: put.to, len: put.src.len, region }.into());
        }
        if self.pending >= PUTS_MAX {
            return Err(FabricError::Capacity { rank: self.rank });
        }
        let lanes = self.lanes.get(put.dst).map_or(0, Vec::len);
        for fragment in fragments(put.src.len, put.value, lanes, self.settings.stripe_bytes_min) {
            let flag = FlagWrite {
                offset: self.layout.flag(self.rank, put.channel, fragment.lane),
                value: put.value,
            };
            let src = Span { offset: put.src.offset + fragment.start, len: fragment.len };
            let to = put.to + fragment.start;
            if self.post_at_once(put.dst, fragment.lane, src, to, flag) {
                continue;
            }
            self.lanes[put.dst][fragment.lane].push(Transfer::new(src, to, flag));
            self.pending += 1;
            self.pump(put.dst, fragment.lane)?;
        }
        Ok(())
    }

    /// Puts a short stretch on one rail and no other, for proofs. It is lost if the rail does not
    /// take it: the proof then fails.
    pub(crate) fn put_on_rail(
        &mut self,
        peer: usize,
        rail: usize,
        body: Span,
        to: u64,
        flag: FlagWrite,
    ) {
        let Some(Some(link)) = self.links.get_mut(peer) else { return };
        let write = Write { body, to, flag: Some(flag), ..Write::default() };
        // Nobody waits for it: its bytes have a place of their own.
        link.submit_on(&mut *self.device, peer, rail, write, Owner::Nobody);
    }

    /// Makes a queue pair anew for a rail that is down; see [`Device::remake`].
    pub fn remake(&mut self, peer: usize, rail: usize) -> Option<Vec<u8>> {
        self.device.remake(peer, rail)
    }

    /// Connects a queue pair that was made anew; proofs may cross it then.
    ///
    /// # Errors
    /// As [`Device::reconnect`].
    pub fn reconnect(&mut self, peer: usize, rail: usize, told: &[u8]) -> Result<(), String> {
        self.device.reconnect(peer, rail, told)?;
        if let Some(Some(link)) = self.links.get_mut(peer) {
            link.try_again(rail);
        }
        Ok(())
    }

    /// Puts a rail that was made anew and proven back into service; a notice follows. False if it
    /// is not on trial.
    pub fn take_back(&mut self, peer: usize, rail: usize) -> bool {
        self.links.get_mut(peer).and_then(Option::as_mut).is_some_and(|link| link.take_back(rail))
    }

    /// True while a rail that was made anew and connected is neither back in service nor down.
    pub fn is_on_trial(&self, peer: usize, rail: usize) -> bool {
        self.links.get(peer).and_then(Option::as_ref).is_some_and(|link| link.is_on_trial(rail))
    }

    /// Puts the first `len` bytes of this rank's beacon place into the same place at every
    /// neighbour. They are not waited for, and lost where a rail is busy: another follows.
    ///
    /// # Errors
    /// More bytes than the place has.
    pub fn send_beacon(&mut self, bytes: &[u8]) -> Result<(), OutOfRegion> {
        let offset = self.layout.beacon(self.rank);
        let len = bytes.len() as u64;
        if len > BEACON_BYTES {
            return Err(OutOfRegion { offset, len, region: offset + BEACON_BYTES });
        }
        self.region.write(offset, bytes)?;
        for (peer, link) in self.links.iter_mut().enumerate() {
            if let Some(link) = link {
                let write = Write { body: Span { offset, len }, to: offset, ..Write::default() };
                link.submit(&mut *self.device, peer, 0, write, Owner::Nobody);
            }
        }
        Ok(())
    }

    /// Rails to a neighbour that work.
    pub fn working_rails(&self, peer: usize) -> usize {
        self.links.get(peer).and_then(Option::as_ref).map_or(0, Link::working_rails)
    }

    /// Why a rail is down; none while it works.
    pub fn rail_fault(&self, peer: usize, rail: usize) -> Option<&RailFault> {
        self.links.get(peer).and_then(Option::as_ref).and_then(|link| link.fault(rail))
    }

    /// Moves whatever can be moved, and answers whether anything was.
    pub fn progress(&mut self) -> bool {
        let mut moved = false;
        if self.device.poll(&mut self.events) {
            moved = true;
        }
        if !self.events.is_empty() {
            moved = true;
            let mut events = std::mem::take(&mut self.events);
            for event in events.drain(..) {
                self.handle(event);
            }
            self.events = events;
        }
        if self.links.iter().flatten().any(Link::has_reposts) {
            moved |= self.repost();
        }
        for (peer, link) in self.links.iter_mut().enumerate() {
            if let Some(rail) = link.as_mut().and_then(Link::settle_return) {
                self.notices.push(Notice::RailUp { peer, rail });
                moved = true;
            }
        }
        if self.pending > 0 {
            for dst in 0..self.lanes.len() {
                for lane in 0..self.lanes[dst].len() {
                    if self.lanes[dst][lane].is_waiting() {
                        // A dead link was told by a notice; its transfers stay where they are.
                        moved |= self.pump(dst, lane).unwrap_or(false);
                    }
                }
            }
        }
        if !self.relays.is_empty() && !self.relays_held {
            moved |= self.relay_all();
        }
        moved
    }

    /// Has what peers may wait for leave soon; see [`Device::hurry`].
    pub fn hurry(&mut self) {
        self.device.hurry();
    }

    /// True when every put has left: the device reads none of its bytes any more.
    pub fn is_drained(&self) -> bool {
        self.pending == 0
    }

    /// The neighbours, a bit each, that the puts which have not left wait for.
    pub fn undrained(&self) -> u32 {
        let outstanding =
            self.links.iter().enumerate().filter_map(|(peer, link)| {
                link.as_ref().is_some_and(Link::has_puts).then_some(peer)
            });
        let queued = self.lanes.iter().flatten().filter_map(Lane::waits_for);
        outstanding.chain(queued).fold(0, |mask, peer| mask | 1 << peer)
    }

    /// True when something waits that only [`progress`](Self::progress) moves, relays aside.
    pub fn has_work(&self) -> bool {
        self.pending > 0 || self.links.iter().flatten().any(Link::has_work)
    }

    /// True when this rank passes on bytes of others.
    pub fn is_relay(&self) -> bool {
        !self.relays.is_empty()
    }

    /// What arrived to be passed on and has not been.
    pub fn backlog(&self) -> Backlog {
        let mut backlog = Backlog::default();
        for relay in &self.relays {
            backlog.passed += u64::from(relay.passed());
            let waiting = relay.waiting(&self.region);
            if relay.is_blocked() {
                backlog.blocked += waiting;
            } else if waiting > 0 {
                backlog.flow = backlog.flow.or(Some(relay.flow()));
                backlog.chunks += waiting;
            }
        }
        backlog
    }

    /// Takes what should be known.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Takes a rail to a neighbour out of service, as a fault would.
    pub fn cut(&mut self, peer: usize, rail: usize) {
        if self.links.get(peer).is_some_and(Option::is_some) {
            self.device.cut(peer, rail);
        }
    }

    /// Stops or resumes passing on what is meant for others: a fault for tests.
    pub fn hold_relays(&mut self, held: bool) {
        self.relays_held = held;
    }

    /// Damages the next frame to a neighbour, where the device has frames: a fault for tests.
    pub fn corrupt_next(&mut self, peer: usize) -> bool {
        self.device.corrupt_next(peer)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Done { peer, rail } => {
                let owner = self.links[peer].as_mut().and_then(|link| link.done(rail));
                if let Some(owner) = owner {
                    self.finish(owner);
                }
            }
            Event::RailDown { peer, rail, fault } => {
                let Some(link) = &mut self.links[peer] else { return };
                if !link.fail(rail, fault.clone()) {
                    return;
                }
                self.notices.push(Notice::RailDown { peer, rail, fault });
                if link.is_down() {
                    let error = link.down_error(self.rank, peer);
                    self.notices.push(Notice::LinkDown(error));
                }
            }
        }
    }

    fn finish(&mut self, owner: Owner) {
        match owner {
            Owner::Nobody => {}
            Owner::Put => self.pending -= 1,
            Owner::Relay(index) => self.relays[index].finish_one(),
        }
    }
}

/// A part of a put and the lane it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) lane: usize,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// How a put is cut: both ends derive the same fragments from its length and value.
///
/// Each lane's flag is written by that lane alone, so that a flag never overtakes an earlier one
/// of its own. Small puts take one lane, in turn.
pub(crate) fn fragments(
    len: u64,
    value: u32,
    lanes: usize,
    stripe_bytes_min: u64,
) -> impl Iterator<Item = Fragment> {
    let striped = len >= stripe_bytes_min.max(1) && lanes > 1;
    let count = if striped { lanes as u64 } else { lanes.min(1) as u64 };
    // Whole cache lines, so that no two lanes write into one.
    let share = if striped { (len / count).next_multiple_of(64) } else { len };
    let single = value as usize % lanes.max(1);
    (0..count).map(move |index| {
        let start = (index * share).min(len);
        let end = if index + 1 == count { len } else { ((index + 1) * share).min(len) };
        Fragment { lane: if striped { index as usize } else { single }, start, len: end - start }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fragments_cover_every_byte_once(
            len in 0_u64..1 << 21, value in any::<u32>(), lanes in 1_usize..=4, least in 0_u64..1 << 16
        ) {
            let parts: Vec<_> = fragments(len, value, lanes, least).collect();
            let mut next = 0;
            for part in &parts {
                prop_assert_eq!(part.start, next);
                prop_assert!(part.lane < lanes);
                next += part.len;
            }
            prop_assert_eq!(next, len);
            prop_assert!(parts.len() == 1 || parts.len() == lanes);
        }
    }

    #[test]
    fn small_puts_take_the_lanes_in_turn() {
        let lane = |value| fragments(8, value, 2, 4096).next().unwrap().lane;
        assert_eq!((lane(4), lane(5), lane(6)), (0, 1, 0));
    }
}
