//! Ranks of one machine over shared memory.
//!
//! Each rank makes a memory file without a name and hands its descriptor to its neighbours over a
//! Unix socket in the abstract namespace: when the last process that maps it is gone, nothing is
//! left. A post is a copy into the peer's memory, a release store of the flag, and a futex call if
//! somebody sleeps there. The rails of a pair are alike here; each can still be cut.

mod handover;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

use crate::bell::Bell;
use crate::device::{Device, Event, Parker, PostError, Posted, RailFault, Wake, Write};
use crate::layout::LINE_BYTES;
use crate::region::Region;
use crate::topology::MAX_RAILS;

pub use handover::{Handover, HandoverError};

/// Where the words of the worker's bell and of the progress thread's bell lie.
const WORKER_ASLEEP: u64 = 0;
const WORKER_RUNG: u64 = 4;
/// Where peers say that they cut a rail: a bit for each rank and rail.
const CUT_BITS: [u64; 2] = [8, 12];
const PROGRESS_ASLEEP: u64 = LINE_BYTES;
const PROGRESS_RUNG: u64 = LINE_BYTES + 4;

struct Peer {
    region: Arc<Region>,
    rails: Vec<bool>,
}

/// Shared memory as a [`Device`].
pub struct ShmDevice {
    rank: usize,
    own: Arc<Region>,
    peers: Vec<Option<Peer>>,
    events: Vec<Event>,
}

impl std::fmt::Debug for ShmDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmDevice").field("peers", &self.peers.len()).finish_non_exhaustive()
    }
}

impl ShmDevice {
    /// A device over the own region and the mapped ones of the neighbours, by rank.
    pub fn new(
        rank: usize,
        own: Arc<Region>,
        neighbours: &[Option<Arc<Region>>],
        rails: usize,
    ) -> Self {
        let peer =
            |region: &Arc<Region>| Peer { region: Arc::clone(region), rails: vec![true; rails] };
        let peers = neighbours.iter().map(|region| region.as_ref().map(peer)).collect();
        Self { rank, own, peers, events: Vec::new() }
    }
}

impl Device for ShmDevice {
    fn post(&mut self, peer: usize, rail: usize, write: &Write) -> Result<Posted, PostError> {
        let Some(Some(target)) = self.peers.get(peer) else { return Err(PostError::Down) };
        if !target.rails.get(rail).is_some_and(|&works| works) {
            return Err(PostError::Down);
        }
        let head = write.head();
        let landed = (|| {
            let region = &target.region;
            // Everything is checked before the first byte is written.
            region.pointer(write.to, write.len())?;
            self.own.pointer(write.body.offset, write.body.len)?;
            if let Some(flag) = write.flag {
                region.flag(flag.offset)?;
            }
            region.write(write.to, head)?;
            self.own.copy_to(write.body, region, write.to + head.len() as u64)?;
            if let Some(flag) = write.flag {
                let (asleep, rung) = match write.wake {
                    Wake::Worker => (WORKER_ASLEEP, WORKER_RUNG),
                    Wake::Progress => (PROGRESS_ASLEEP, PROGRESS_RUNG),
                };
                let bell = Bell { asleep: region.flag(asleep)?, rung: region.flag(rung)? };
                if bell.raise(region.flag(flag.offset)?, flag.value) {
                    wake_all(bell.rung);
                }
            }
            Ok::<_, crate::OutOfRegion>(())
        })();
        match landed {
            Ok(()) => Ok(Posted::Done),
            Err(outside) => {
                self.fail(peer, rail, RailFault::BadFrame(outside.to_string()));
                Err(PostError::Down)
            }
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.notice_cuts();
        let moved = !self.events.is_empty();
        events.append(&mut self.events);
        moved
    }

    fn cut(&mut self, peer: usize, rail: usize) {
        if !self.fail(peer, rail, RailFault::Cut) {
            return;
        }
        // The other end learns it from its own region.
        let Some(Some(target)) = self.peers.get(peer) else { return };
        let (word, bit) = cut_bit(self.rank, rail);
        if let Ok(word) = target.region.flag(word) {
            word.fetch_or(bit, Ordering::Release);
        }
    }
}

impl ShmDevice {
    /// Takes a rail out of service; false if it was already.
    fn fail(&mut self, peer: usize, rail: usize, fault: RailFault) -> bool {
        let Some(Some(target)) = self.peers.get_mut(peer) else { return false };
        let Some(works) = target.rails.get_mut(rail).filter(|works| **works) else { return false };
        *works = false;
        self.events.push(Event::RailDown { peer, rail, fault });
        true
    }

    fn notice_cuts(&mut self) {
        for word in CUT_BITS {
            let bits = self.own.flag(word).map_or(0, |word| word.load(Ordering::Acquire));
            if bits == 0 {
                continue;
            }
            for peer in 0..self.peers.len() {
                for rail in 0..MAX_RAILS {
                    if cut_bit(peer, rail).0 == word && bits & cut_bit(peer, rail).1 != 0 {
                        self.fail(peer, rail, RailFault::PeerClosed);
                    }
                }
            }
        }
    }
}

/// The word and the bit in it that say that `rank` cut its end of a rail.
fn cut_bit(rank: usize, rail: usize) -> (u64, u32) {
    let index = rank * MAX_RAILS + rail;
    (CUT_BITS[index / 32 % 2], 1 << (index % 32))
}

fn wake_all(word: &AtomicU32) {
    // Waking nobody is no error, and no other is possible for a mapped word.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

fn sleep_on(word: &AtomicU32, ticket: u32, timeout: Duration) {
    let timeout = futex::Timespec {
        // Waits of this crate are far below the range of an i64.
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // Woken, changed meanwhile, timed out or interrupted: the caller looks again in all cases.
    let _ = futex::wait(word, futex::Flags::empty(), ticket, Some(&timeout));
}

/// Sleeping on futexes in the own region, which peers wake.
pub struct ShmParker {
    region: Arc<Region>,
    driving: AtomicBool,
    /// The progress bell's word when the progress thread last looked for work.
    seen: AtomicU32,
}

impl std::fmt::Debug for ShmParker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmParker").field("driving", &self.driving).finish_non_exhaustive()
    }
}

impl ShmParker {
    /// A parker over the own region.
    pub fn new(region: Arc<Region>) -> Self {
        let parker = Self { region, driving: AtomicBool::new(false), seen: AtomicU32::new(0) };
        parker.worker_leaves();
        parker
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        static NOWHERE: AtomicU32 = AtomicU32::new(0);
        // Every region is at least a page, and the bells lie in its first lines.
        self.region.flag(offset).unwrap_or(&NOWHERE)
    }

    fn worker_bell(&self) -> Bell<'_, AtomicU32> {
        Bell { asleep: self.word(WORKER_ASLEEP), rung: self.word(WORKER_RUNG) }
    }

    fn progress_bell(&self) -> Bell<'_, AtomicU32> {
        Bell { asleep: self.word(PROGRESS_ASLEEP), rung: self.word(PROGRESS_RUNG) }
    }
}

impl Parker for ShmParker {
    fn prepare(&self) -> u32 {
        // While the worker sleeps, the progress thread passes on what is meant for others.
        self.progress_bell().prepare();
        self.worker_bell().prepare()
    }

    fn park(&self, ticket: u32, timeout: Duration) {
        sleep_on(self.word(WORKER_RUNG), ticket, timeout);
        self.cancel();
    }

    fn cancel(&self) {
        self.worker_bell().leave();
        if self.driving.load(Ordering::Relaxed) {
            self.progress_bell().leave();
        }
    }

    fn wake(&self) {
        if self.worker_bell().ring() {
            wake_all(self.word(WORKER_RUNG));
        }
    }

    fn worker_enters(&self) {
        self.driving.store(true, Ordering::Relaxed);
        self.progress_bell().leave();
    }

    fn worker_leaves(&self) {
        self.driving.store(false, Ordering::Relaxed);
        self.progress_bell().prepare();
    }

    fn park_progress(&self, timeout: Duration) {
        let rung = self.word(PROGRESS_RUNG);
        sleep_on(rung, self.seen.load(Ordering::Relaxed), timeout);
        // Noted before the caller looks for work: a ring after that ends the next sleep at once.
        self.seen.store(rung.load(Ordering::Acquire), Ordering::Relaxed);
    }

    fn wake_progress(&self) {
        self.word(PROGRESS_RUNG).fetch_add(1, Ordering::Release);
        wake_all(self.word(PROGRESS_RUNG));
    }
}
