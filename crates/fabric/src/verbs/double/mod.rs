//! A double of RDMA devices, beneath the real transport code.
//!
//! [`World`] holds the devices of all ranks, the cables between them and what passes packets on,
//! in one process under virtual time. The transport above is the one that runs over real devices;
//! only the calls into libibverbs end here. A seed decides delays, sizes and losses, so that it
//! replays a run.
//!
//! What it is strict about, where a real device may be kind:
//!
//! - Packets of one queue pair arrive in order; between queue pairs there is none.
//! - The bytes of a write are read when a packet is delivered, as late as can be, and again when
//!   it is sent again. Bytes that change before the completion are seen to change.
//! - A packet that was sent arrives, also when its queue pair is in error or gone by then.
//! - A queue that passes packets on drops what it has no room for, and the queue pair goes back to
//!   where the gap is; whoever is not answered often enough fails with status 12.

mod ends;
mod faults;
mod network;
mod queue_pair;
mod state;

#[cfg(test)]
mod program_tests;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connect::{Forwarded, VerbsEnd, VerbsEnds, VerbsSetup};
use super::error::VerbsError;
use super::provider::Plant;
use crate::topology::Topology;

pub use faults::Fault;
pub use network::{Match, Rule};
pub use state::DoubleCounters;

use ends::Host;
use state::State;

/// How the devices of a [`World`] behave. Times are virtual.
#[derive(Clone, Copy, Debug)]
pub struct DoubleSettings {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Most bytes of a packet.
    pub packet_bytes: u64,
    /// Shortest and longest time on a cable.
    pub delay: (Duration, Duration),
    /// Time to send a kilobyte.
    pub kilobyte: Duration,
    /// So many packets of a thousand are lost on every cable.
    pub lost_permille: u64,
    /// Room of each queue that passes packets on, in bytes.
    pub hairpin_bytes: u64,
    /// Devices put a label made from the numbers of both queue pairs in the place of every flow
    /// label below this. Real ones do so with 0.
    pub labels_from: u32,
    /// The number of the first queue pair; the next ones follow.
    pub first_number: u32,
    /// A fault planted into the transport, to see whether it is found.
    pub planted: Option<Planted>,
}

impl Default for DoubleSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            packet_bytes: 1024,
            delay: (Duration::from_nanos(500), Duration::from_micros(5)),
            kilobyte: Duration::from_nanos(100),
            lost_permille: 0,
            hairpin_bytes: 512 << 10,
            labels_from: 1,
            first_number: 17,
            planted: None,
        }
    }
}

/// A fault that the transport commits on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// It calls a write done when it is posted, so that its body is used again too early.
    EarlyDone,
    /// It calls a rail down while its queue pair works on.
    NoDrain,
    /// It does not look at the source port of a queue pair.
    NoPortCheck,
}

impl From<Planted> for Plant {
    fn from(planted: Planted) -> Self {
        match planted {
            Planted::EarlyDone => Self::EarlyDone,
            Planted::NoDrain => Self::NoDrain,
            Planted::NoPortCheck => Self::NoPortCheck,
        }
    }
}

/// Devices, cables and what passes packets on. Clones are the same world.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    state: Mutex<State>,
    origin: Instant,
    planted: Option<Planted>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl World {
    /// A device at both ends of every rail of every cable.
    pub fn new(topology: &Topology, settings: DoubleSettings) -> Self {
        let mut state = State::new(settings);
        for (number, cable) in topology.cables().iter().enumerate() {
            for rail in 0..topology.rails() {
                let (a, b) = cable.ends();
                // Ranks and rails are few, so both fit a byte.
                let address = |end| IpAddr::from([10, number as u8, rail as u8, end]);
                let one = state.add_device(a, &format!("d{a}c{b}r{rail}"), address(1));
                let two = state.add_device(b, &format!("d{b}c{a}r{rail}"), address(2));
                state.join(one, two);
                state.name_end((a, b, rail), one);
                state.name_end((b, a, rail), two);
            }
        }
        let planted = settings.planted;
        let shared = Shared { state: Mutex::new(state), origin: Instant::now(), planted };
        Self { shared: Arc::new(shared) }
    }

    /// The own end of a rail between two ranks.
    ///
    /// # Panics
    /// If there is no such rail.
    pub fn end(&self, rank: usize, peer: usize, rail: usize) -> VerbsEnd {
        let address = self.shared.lock().address_of((rank, peer, rail));
        let Some(address) = address else { panic!("no rail {rail} from {rank} to {peer}") };
        VerbsEnd { rail, address, forwarded: None }
    }

    /// Makes rules at `via` that pass packets on, both ways, between two ranks that are its
    /// neighbours, and answers the ends of the rail at both.
    ///
    /// # Panics
    /// If there are no such neighbours.
    pub fn forward(
        &self,
        (one, via, two): (usize, usize, usize),
        rail: usize,
        forwarded: Forwarded,
    ) -> (VerbsEnd, VerbsEnd) {
        let mut state = self.shared.lock();
        let device = |rank, peer| state.device_of((rank, peer, rail));
        let all = [device(one, via), device(via, one), device(via, two), device(two, via)];
        let [Some(here), Some(left), Some(right), Some(there)] = all else {
            panic!("{via} has no rail {rail} to {one} and {two}")
        };
        state.name_end((one, two, rail), here);
        state.name_end((two, one, rail), there);
        for (from, at, out, to) in [(here, left, right, there), (there, right, left, here)] {
            let what = match forwarded.source_port {
                Some(port) => Match::SourcePort(port),
                None => match state.address_of_device(to) {
                    Some(address) => Match::Address(address),
                    None => panic!("the device has no address"),
                },
            };
            state.add_rule(at, Rule { from, what, out });
        }
        let end = |address| VerbsEnd { rail, address, forwarded: Some(forwarded) };
        match (state.address_of_device(here), state.address_of_device(there)) {
            (Some(here), Some(there)) => (end(here), end(there)),
            _ => panic!("a device has no address"),
        }
    }

    /// Makes this rank's queue pairs, as [`VerbsEnds::prepare`] does on real devices.
    ///
    /// # Errors
    /// As there.
    pub fn prepare(&self, setup: VerbsSetup) -> Result<VerbsEnds, VerbsError> {
        let host = Host::new(Arc::clone(&self.shared), setup.rank);
        VerbsEnds::prepare_on(setup, Arc::new(host))
    }

    /// Lets the next thing happen; false if nothing is to come.
    pub fn step(&self) -> bool {
        self.shared.lock().step()
    }

    /// Lets time go by, and all happen that falls into it.
    pub fn advance(&self, by: Duration) {
        self.shared.lock().advance(by);
    }

    /// Time since the world began.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.lock().now)
    }

    /// The number of the next queue pair that is made; the following ones count on from it.
    pub fn set_next_number(&self, number: u32) {
        self.shared.lock().next_number = number;
    }

    /// Has a fault happen at once.
    pub fn inject(&self, fault: Fault) {
        self.shared.lock().commit(fault);
    }

    /// Has a fault happen after a while.
    pub fn inject_after(&self, after: Duration, fault: Fault) {
        self.shared.lock().commit_after(after, fault);
    }

    /// What happened so far.
    pub fn counters(&self) -> DoubleCounters {
        self.shared.lock().counters
    }

    /// How many packets with bytes landed at a rank's end of a rail.
    pub fn landed(&self, rank: usize, peer: usize, rail: usize) -> u64 {
        self.shared.lock().landed((rank, peer, rail))
    }

    /// The most bytes that a rank had on their way over a rail at one time, beside a write that
    /// went alone.
    pub fn most_on_their_way(&self, rank: usize, peer: usize, rail: usize) -> u64 {
        self.shared.lock().most_on_their_way((rank, peer, rail))
    }
}
