//! Queue pairs, the clock and the list of what happens when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use super::faults::Fault;
use super::landing::{Damage, LateFrame};
use super::rng::{Rng, Trace, nanos};
use super::settings::{Counters, SimSettings};
use crate::device::{Event, PostError, Posted, RailFault, Write};
use crate::inbox::Inbox;
use crate::region::Region;
use crate::topology::Topology;

/// Why an end goes down later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    Cut,
    PeerClosed,
    GaveUp,
}

/// What is due at some time. Numbers are indices into the state's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// The oldest frame of a half arrives, if it is still of that round.
    Land(usize, u32),
    /// The oldest acknowledgement of a half arrives, if it is still of that round.
    Ack(usize, u32),
    /// An end learns that its queue pair is over, if it is still of that round.
    Close(usize, u32, Cause),
    /// A frame of an earlier epoch arrives.
    Late(usize),
    /// Bytes whose flag was raised too early.
    Straggler(usize),
    /// A fault that was scheduled.
    Fault(usize),
}

/// A write on its way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) write: Write,
    pub(super) due: u64,
    pub(super) damage: Option<Damage>,
    /// The frame as it was when the sender was told that it may reuse the body.
    pub(super) frame: Option<Vec<u8>>,
}

/// One direction of a queue pair, with the end it starts from.
///
/// Exactly one [`Due::Land`] exists while `flights` has any, and one [`Due::Ack`] while `acks` has.
#[derive(Debug, Default)]
pub(super) struct Half {
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) rail: usize,
    pub(super) exists: bool,
    /// The end at `src` takes nothing more.
    pub(super) down: bool,
    pub(super) silent: bool,
    pub(super) gives_up: bool,
    pub(super) flights: VecDeque<Flight>,
    pub(super) acks: VecDeque<u64>,
    /// Completions that wait to be polled.
    pub(super) unpolled: usize,
    /// Writes that nobody will acknowledge.
    pub(super) lost: usize,
    /// When the direction has sent all it holds.
    pub(super) free_at: u64,
    pub(super) last_due: u64,
    /// How often the end at `src` was made again and connected.
    pub(super) round: u32,
    /// The round of the other end that it is connected to.
    pub(super) joined: u32,
    /// The last round that was made, and whether it waits to be connected.
    pub(super) made: u32,
    pub(super) offered: bool,
    pub(super) extra: u64,
    pub(super) jitter: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rank {
    pub(super) dead: bool,
    pub(super) frozen: bool,
    moved: bool,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) settings: SimSettings,
    pub(super) regions: Vec<Arc<Region>>,
    pub(super) now: u64,
    pub(super) stirred: u32,
    pub(super) trace: Trace,
    pub(super) counters: Counters,
    pub(super) last_reject: Option<String>,
    pub(super) halves: Vec<Half>,
    /// `inboxes[dst * ranks + src]`.
    pub(super) inboxes: Vec<Inbox>,
    pub(super) rng: Rng,
    /// A frame under construction; kept for its memory.
    pub(super) scratch: Vec<u8>,
    pub(super) stragglers: Vec<(usize, u64, Vec<u8>)>,
    rails: usize,
    pub(super) ranks: Vec<Rank>,
    pub(super) events: Vec<VecDeque<Event>>,
    /// Damage waiting for the next frame: `[src * ranks + dst]`.
    damage_next: Vec<Option<Damage>>,
    pub(super) faults: Vec<Fault>,
    pub(super) late: Vec<Option<LateFrame>>,
    pub(super) due: BinaryHeap<Reverse<(u64, u64, Due)>>,
    /// What was due while a rank was frozen or the world was on hold.
    pub(super) parked: Vec<Due>,
    pub(super) hold: bool,
    pub(super) ended: bool,
}

impl State {
    pub(super) fn new(
        topology: Topology,
        settings: SimSettings,
        regions: Vec<Arc<Region>>,
    ) -> Self {
        let count = topology.ranks();
        let highest = topology.forwarded().map(|(of, _)| of.rail + 1).max().unwrap_or(0);
        let rails = topology.rails().max(highest);
        let mut halves = Vec::with_capacity(count * count * rails);
        for src in 0..count {
            for dst in 0..count {
                let used = topology.link_rails(src, dst);
                halves.extend((0..rails).map(|rail| Half {
                    src,
                    dst,
                    rail,
                    exists: used.contains(&rail),
                    ..Half::default()
                }));
            }
        }
        Self {
            regions,
            now: nanos(settings.start),
            stirred: 0,
            trace: Trace::default(),
            counters: Counters::default(),
            last_reject: None,
            halves,
            inboxes: vec![Inbox::new(settings.first_number); count * count],
            rng: Rng::new(settings.seed),
            scratch: Vec::new(),
            stragglers: Vec::new(),
            rails,
            ranks: vec![Rank::default(); count],
            events: vec![VecDeque::new(); count],
            damage_next: vec![None; count * count],
            faults: Vec::new(),
            late: Vec::new(),
            due: BinaryHeap::new(),
            parked: Vec::new(),
            hold: false,
            ended: false,
            settings,
        }
    }

    pub(super) fn pair(&self, a: usize, b: usize) -> usize {
        a * self.ranks.len() + b
    }

    /// The half that starts at `src`, where there is such a queue pair.
    pub(super) fn half(&self, src: usize, dst: usize, rail: usize) -> Option<usize> {
        let count = self.ranks.len();
        if src >= count || dst >= count || rail >= self.rails {
            return None;
        }
        let half = (src * count + dst) * self.rails + rail;
        self.halves[half].exists.then_some(half)
    }

    /// The other direction.
    pub(super) fn back(&self, half: usize) -> usize {
        let Half { src, dst, rail, .. } = self.halves[half];
        (dst * self.ranks.len() + src) * self.rails + rail
    }

    pub(super) fn stir(&mut self, rank: usize) {
        self.stirred |= 1 << rank;
        self.ranks[rank].moved = true;
    }

    pub(super) fn post(
        &mut self,
        rank: usize,
        peer: usize,
        rail: usize,
        write: &Write,
    ) -> Result<Posted, PostError> {
        let Some(index) = self.half(rank, peer, rail) else { return Err(PostError::Down) };
        if self.ended || self.ranks[rank].dead || self.halves[index].down {
            return Err(PostError::Down);
        }
        let own = self.regions[rank].len();
        let fits = write.body.offset.checked_add(write.body.len).is_some_and(|end| end <= own);
        if !fits || u32::try_from(write.len()).is_err() {
            let what = format!(
                "a body of {} bytes at {} does not lie within the own region of {own} bytes",
                write.body.len, write.body.offset
            );
            self.close(index, RailFault::Io(what));
            return Err(PostError::Down);
        }
        if self.outstanding(rank, peer, rail) >= self.settings.outstanding_max {
            return Err(PostError::Full);
        }
        let pair = self.pair(rank, peer);
        let damage = self.damage_next[pair].take();
        let bytes = write.len() + crate::wire::HEADER_BYTES as u64;
        let per_second = u128::from(self.settings.bandwidth_bytes_per_second.max(1));
        // At most u32::MAX bytes, so the product fits; the time is cut at what 64 bits hold.
        let sending = u64::try_from(u128::from(bytes) * 1_000_000_000 / per_second);
        let travel = self.travel(index);
        let now = self.now;
        let half = &mut self.halves[index];
        half.free_at = half.free_at.max(now).saturating_add(sending.unwrap_or(u64::MAX));
        half.last_due = half.last_due.max(half.free_at.saturating_add(travel));
        let due = half.last_due;
        half.flights.push_back(Flight { write: write.clone(), due, damage, frame: None });
        if half.flights.len() == 1 {
            let round = self.halves[index].round;
            self.schedule(due, Due::Land(index, round));
        }
        self.counters.posted += 1;
        Ok(Posted::Pending)
    }

    /// How long the next frame of a half travels.
    pub(super) fn travel(&mut self, half: usize) -> u64 {
        let (least, most) = (nanos(self.settings.latency_min), nanos(self.settings.latency_max));
        let mut time = least + self.rng.below(most.saturating_sub(least) + 1);
        let jitter = nanos(self.settings.jitter);
        if jitter > 0 && self.rng.once_in(16) {
            time += self.rng.below(jitter);
        }
        let Half { extra, jitter, .. } = self.halves[half];
        if jitter > 0 {
            time += self.rng.below(jitter);
        }
        time.saturating_add(extra)
    }

    pub(super) fn poll(&mut self, rank: usize, into: &mut Vec<Event>) -> bool {
        let Some(&Rank { dead, frozen, moved }) = self.ranks.get(rank) else { return false };
        if dead || frozen || self.ended {
            return false;
        }
        self.ranks[rank].moved = false;
        while let Some(event) = self.events[rank].pop_front() {
            if let Event::Done { peer, rail } = event
                && let Some(half) = self.half(rank, peer, rail)
            {
                // A rail that went down since has nothing outstanding.
                self.halves[half].unpolled = self.halves[half].unpolled.saturating_sub(1);
            }
            into.push(event);
        }
        moved
    }

    pub(super) fn outstanding(&self, rank: usize, peer: usize, rail: usize) -> usize {
        self.half(rank, peer, rail).map_or(0, |index| {
            let half = &self.halves[index];
            let waiting = half.flights.len() + half.acks.len() + half.unpolled + half.lost;
            if half.down { 0 } else { waiting }
        })
    }

    pub(super) fn cut_from(&mut self, rank: usize, peer: usize, rail: usize) {
        if let Some(half) = self.half(rank, peer, rail)
            && !self.ended
            && !self.ranks[rank].dead
        {
            self.close(half, RailFault::Cut);
        }
    }

    pub(super) fn flip_next(&mut self, rank: usize, peer: usize) -> bool {
        self.damage_next(rank, peer, Damage::Flip)
    }

    pub(super) fn damage_next(&mut self, from: usize, to: usize, kind: fn(u64) -> Damage) -> bool {
        let exists = self.half(from, to, 0).is_some();
        if exists {
            let (pair, bits) = (self.pair(from, to), self.rng.bits());
            self.damage_next[pair] = Some(kind(bits));
        }
        exists
    }

    /// Among what is due at one moment, chance decides the order.
    pub(super) fn schedule(&mut self, at: u64, what: Due) {
        let tie = self.rng.bits();
        self.due.push(Reverse((at, tie, what)));
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.due.peek().map(|&Reverse((at, ..))| at.max(self.now))
    }

    pub(super) fn advance_to(&mut self, time: u64) {
        while self.next_due().is_some_and(|at| at <= time) {
            self.step();
        }
        self.now = self.now.max(time);
    }

    pub(super) fn step(&mut self) -> bool {
        let Some(Reverse((at, _, what))) = self.due.pop() else { return false };
        self.now = self.now.max(at);
        if self.is_stale(what) {
            return true;
        }
        if self.must_wait(what) {
            self.parked.push(what);
            return true;
        }
        match what {
            Due::Land(half, _) => self.land_next(half),
            Due::Ack(half, _) => self.complete_next(half),
            Due::Close(half, _, cause) => {
                let fault = match cause {
                    Cause::Cut => RailFault::Cut,
                    Cause::PeerClosed => RailFault::PeerClosed,
                    Cause::GaveUp => RailFault::Timeout(self.settings.give_up_after),
                };
                self.close(half, fault);
            }
            Due::Late(index) => {
                if let Some(frame) = self.late[index].take() {
                    self.land_late(&frame);
                }
            }
            Due::Straggler(index) => {
                let (rank, to, bytes) = std::mem::take(&mut self.stragglers[index]);
                // The frame's checks have shown that it fits.
                let _ = self.regions[rank].write(to, &bytes);
                self.stir(rank);
            }
            Due::Fault(index) => {
                let fault = self.faults[index].clone();
                self.inject(&fault);
            }
        }
        true
    }

    /// True for what belongs to a queue pair that was made again since.
    fn is_stale(&self, what: Due) -> bool {
        match what {
            Due::Land(half, round) | Due::Ack(half, round) | Due::Close(half, round, _) => {
                self.halves[half].round != round
            }
            Due::Late(_) | Due::Straggler(_) | Due::Fault(_) => false,
        }
    }

    fn must_wait(&self, what: Due) -> bool {
        let frozen = |rank: usize| self.ranks[rank].frozen;
        match what {
            Due::Land(half, _) | Due::Ack(half, _) => {
                let Half { src, dst, .. } = self.halves[half];
                self.hold || frozen(src) || frozen(dst)
            }
            Due::Close(half, ..) => frozen(self.halves[half].src),
            Due::Late(index) => self.late[index].as_ref().is_some_and(|late| frozen(late.dst)),
            Due::Straggler(_) | Due::Fault(_) => false,
        }
    }

    pub(super) fn unpark(&mut self) {
        for what in std::mem::take(&mut self.parked) {
            self.schedule(self.now, what);
        }
    }

    fn land_next(&mut self, index: usize) {
        let Some(flight) = self.halves[index].flights.pop_front() else { return };
        if let Some(next) = self.halves[index].flights.front().map(|flight| flight.due) {
            let round = self.halves[index].round;
            self.schedule(next, Due::Land(index, round));
        }
        let back = self.back(index);
        let Half { src, dst, down, silent, .. } = self.halves[index];
        if silent {
            self.drop_frame(index, &flight);
            self.give_up(index);
            return;
        }
        if self.ranks[dst].dead || self.halves[back].down || !self.is_joined(index) {
            self.drop_frame(index, &flight);
            if !self.is_joined(index) && !down {
                // The other end knows nothing of this queue pair, so no word of it will come.
                self.give_up(index);
            }
            return;
        }
        match self.land(index, &flight, None) {
            Ok(()) if !down && !self.ranks[src].dead => {
                let at = self.now.saturating_add(self.travel(back));
                let half = &mut self.halves[index];
                let at = half.acks.back().map_or(at, |&last| last.max(at));
                half.acks.push_back(at);
                let round = half.round;
                if half.acks.len() == 1 {
                    self.schedule(at, Due::Ack(index, round));
                }
            }
            Ok(()) => {}
            Err(what) => self.close(back, RailFault::BadFrame(what)),
        }
    }

    fn complete_next(&mut self, index: usize) {
        if self.halves[index].acks.pop_front().is_none() {
            return;
        }
        if let Some(&next) = self.halves[index].acks.front() {
            let round = self.halves[index].round;
            self.schedule(next, Due::Ack(index, round));
        }
        let Half { src, dst, rail, silent, .. } = self.halves[index];
        if silent {
            self.halves[index].lost += 1;
            self.give_up(index);
            return;
        }
        self.halves[index].unpolled += 1;
        self.counters.completed += 1;
        self.trace.add(self.now);
        self.trace.add(index as u64);
        self.events[src].push_back(Event::Done { peer: dst, rail });
        self.stir(src);
    }

    fn give_up(&mut self, index: usize) {
        if std::mem::replace(&mut self.halves[index].gives_up, true) {
            return;
        }
        let at = self.now.saturating_add(nanos(self.settings.give_up_after));
        let round = self.halves[index].round;
        self.schedule(at, Due::Close(index, round, Cause::GaveUp));
    }

    pub(super) fn drop_frame(&mut self, index: usize, flight: &Flight) {
        self.counters.dropped += 1;
        self.halves[index].lost += 1;
        self.trace.add(index as u64 | 1 << 40);
        self.trace.add(u64::from(flight.write.number));
    }
}
