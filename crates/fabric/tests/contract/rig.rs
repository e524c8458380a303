//! Drives the devices of a bed and holds every event against the contract.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabric::{
    Device, Event, INBOX_WINDOW, PostError, Posted, RailFault, Region, Shape, Topology, Write,
};

use crate::bed::{Bed, Setup};

/// No case takes longer than this on a machine that is not stuck.
const DEADLINE: Duration = Duration::from_secs(30);

/// Makes rigs of one transport and variant.
pub(crate) struct Maker {
    pub(crate) variant: u64,
    pub(crate) build: fn(Setup) -> Box<dyn Bed>,
}

impl Maker {
    pub(crate) fn full(&self, ranks: usize) -> Rig {
        self.rig(Shape::Full, ranks, 1 << 20, 0)
    }

    pub(crate) fn rig(&self, shape: Shape, ranks: usize, region_bytes: u64, first: u32) -> Rig {
        let topology = Topology::new(shape, ranks, 2).unwrap();
        let setup = Setup { topology, region_bytes, first_number: first, variant: self.variant };
        let mut bed = (self.build)(setup);
        let (devices, regions) = bed.parts();
        Rig {
            bed,
            devices,
            regions,
            next_number: vec![vec![first; ranks]; ranks],
            outstanding: BTreeMap::new(),
            lost: BTreeMap::new(),
            down: BTreeMap::new(),
            asleep: vec![false; ranks],
            moved_at: Instant::now(),
        }
    }
}

/// One end of a queue pair: the own rank, the peer, the rail.
type End = (usize, usize, usize);

pub(crate) struct Rig {
    bed: Box<dyn Bed>,
    pub(crate) devices: Vec<Box<dyn Device>>,
    pub(crate) regions: Vec<Arc<Region>>,
    next_number: Vec<Vec<u32>>,
    /// Numbers of the writes that answered `Pending`, oldest first.
    outstanding: BTreeMap<End, VecDeque<u32>>,
    /// Numbers that were outstanding when their rail went down.
    pub(crate) lost: BTreeMap<End, Vec<u32>>,
    pub(crate) down: BTreeMap<End, RailFault>,
    asleep: Vec<bool>,
    moved_at: Instant,
}

impl Rig {
    /// Posts as it is, and keeps the account.
    pub(crate) fn post(
        &mut self,
        (from, to, rail): End,
        write: &Write,
    ) -> Result<Posted, PostError> {
        let posted = self.devices[from].post(to, rail, write);
        if posted == Ok(Posted::Pending) {
            self.outstanding.entry((from, to, rail)).or_default().push_back(write.number);
        }
        posted
    }

    /// Posts with the next number, if it is taken.
    pub(crate) fn post_next(&mut self, end: End, write: Write) -> Result<Posted, PostError> {
        let number = self.next_number[end.0][end.1];
        let posted = self.post(end, &Write { number, ..write });
        if posted.is_ok() {
            self.next_number[end.0][end.1] = number.wrapping_add(1);
        }
        posted
    }

    /// Posts with the next number as soon as there is room. Answers the number.
    pub(crate) fn send(&mut self, end: End, write: Write) -> u32 {
        let number = self.next_number[end.0][end.1];
        self.until("the window to have room", |rig| {
            (0..2)
                .filter_map(|rail| rig.outstanding.get(&(end.0, end.1, rail))?.front())
                .all(|&oldest| number.wrapping_sub(oldest) < INBOX_WINDOW / 2)
        });
        let start = Instant::now();
        loop {
            match self.post_next(end, write.clone()) {
                Ok(_) => return number,
                Err(PostError::Full) => {
                    self.tick();
                }
                Err(PostError::Down) => panic!("{end:?} is down: {:?}", self.down.get(&end)),
            }
            assert!(start.elapsed() < DEADLINE, "{end:?} stays full");
        }
    }

    /// Polls everybody once and lets a little time go by. Answers whether more may happen.
    pub(crate) fn tick(&mut self) -> bool {
        let mut moved = false;
        for rank in 0..self.devices.len() {
            moved |= self.poll(rank);
        }
        let more = self.bed.pass();
        if moved {
            self.moved_at = Instant::now();
        }
        moved || more
    }

    fn poll(&mut self, rank: usize) -> bool {
        if self.asleep[rank] {
            return false;
        }
        let mut events = Vec::new();
        let moved = self.devices[rank].poll(&mut events);
        for event in events {
            match event {
                Event::Done { peer, rail } => {
                    let end = (rank, peer, rail);
                    assert!(!self.down.contains_key(&end), "{end:?}: done after it went down");
                    let oldest = self.outstanding.get_mut(&end).and_then(VecDeque::pop_front);
                    assert!(oldest.is_some(), "{end:?}: done and nothing was outstanding");
                }
                Event::RailDown { peer, rail, fault } => {
                    let end = (rank, peer, rail);
                    let told = self.down.insert(end, fault.clone());
                    assert!(told.is_none(), "{end:?}: down by {fault} and before by {told:?}");
                    let lost = self.outstanding.remove(&end).unwrap_or_default();
                    self.lost.entry(end).or_default().extend(lost);
                }
            }
        }
        moved
    }

    /// Ticks until something is so.
    pub(crate) fn until(&mut self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        let mut more = true;
        while !so(self) {
            assert!(more, "nothing more happens; waited for {what}");
            assert!(start.elapsed() < DEADLINE, "waited too long for {what}");
            more = self.tick();
        }
    }

    /// Ticks until nothing is outstanding between ranks that are awake, and nothing moves.
    pub(crate) fn settle(&mut self) {
        let start = Instant::now();
        loop {
            let more = self.tick();
            let idle = self.moved_at.elapsed() >= self.bed.quiet_after();
            let waiting = self.outstanding.iter().find(|((from, to, _), numbers)| {
                !numbers.is_empty() && !self.asleep[*from] && !self.asleep[*to]
            });
            match waiting {
                None if idle && (!more || !self.bed.quiet_after().is_zero()) => return,
                Some(waiting) => assert!(more, "nothing more happens; still out: {waiting:?}"),
                None => {}
            }
            assert!(start.elapsed() < DEADLINE, "does not settle; still out: {waiting:?}");
        }
    }

    /// Makes a rail between 0 and 1 anew, once it is down at both ends and both can.
    pub(crate) fn make_again(&mut self, rail: usize) {
        let ends = [(0, 1, rail), (1, 0, rail)];
        self.until("word at both ends", |rig| ends.iter().all(|end| rig.down.contains_key(end)));
        let start = Instant::now();
        let mut told = [None, None];
        while told.iter().any(Option::is_none) {
            assert!(start.elapsed() < DEADLINE, "rail {rail} is not made anew: {told:?}");
            self.tick();
            for (rank, told) in told.iter_mut().enumerate() {
                *told = told.take().or_else(|| self.devices[rank].remake(1 - rank, rail));
            }
        }
        for (rank, peer, _) in ends {
            let told = told[peer].as_deref().unwrap();
            self.devices[rank].reconnect(peer, rail, told).unwrap();
        }
        for end in ends {
            self.down.remove(&end);
        }
    }

    pub(crate) fn outstanding(&self, end: End) -> usize {
        self.outstanding.get(&end).map_or(0, VecDeque::len)
    }

    pub(crate) fn freeze(&mut self, rank: usize) {
        self.asleep[rank] = true;
        self.bed.freeze(rank);
    }

    pub(crate) fn thaw(&mut self, rank: usize) {
        self.asleep[rank] = false;
        self.bed.thaw(rank);
    }

    pub(crate) fn flag(&self, rank: usize, offset: u64) -> u32 {
        self.regions[rank].flag(offset).unwrap().load(Ordering::Acquire)
    }

    pub(crate) fn bytes(&self, rank: usize, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.regions[rank].read(offset, &mut bytes).unwrap();
        bytes
    }

    /// The whole region.
    pub(crate) fn image(&self, rank: usize) -> Vec<u8> {
        self.bytes(rank, 0, self.regions[rank].len() as usize)
    }
}

/// Bytes that differ from those of any other `of`.
pub(crate) fn pattern(of: u32, len: usize) -> Vec<u8> {
    let mut state = of.wrapping_mul(0x9e37_79b9) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 11) as u8
    };
    (0..len).map(step).collect()
}
