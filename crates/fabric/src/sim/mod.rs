//! A seeded world of queue pairs in one process, under virtual time.
//!
//! Every write becomes a real frame: it is encoded from the sender's region when it lands (so a
//! body that was reused too early shows), goes through every check of a receiver, and only then
//! into the peer's region. Order is kept within a queue pair and left to chance between them.
//! Nothing happens by itself: time moves when the owner says so, and a seed replays a run exactly.
//!
//! ```
//! use std::time::Duration;
//! use fabric::sim::{SimSettings, World};
//! use fabric::{Device, Event, Shape, Span, Topology, Write};
//!
//! let topology = Topology::new(Shape::Ring, 4, 2)?;
//! let world = World::new(topology, SimSettings { seed: 7, ..SimSettings::default() })?;
//! world.region(0).write(64, b"across")?;
//! let write = Write { body: Span { offset: 64, len: 6 }, to: 128, ..Write::default() };
//! world.device(0).post(1, 0, &write).expect("the queue pair is empty");
//! while world.step() {}
//! let mut landed = [0; 6];
//! world.region(1).read(128, &mut landed)?;
//! assert_eq!(&landed, b"across");
//! let mut events = Vec::new();
//! world.device(0).poll(&mut events);
//! assert_eq!(events, [Event::Done { peer: 1, rail: 0 }]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod device;
mod ends;
mod faults;
mod landing;
mod remaking;
mod rng;
mod settings;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use device::SimDevice;
pub use faults::{Fault, survivable};
pub use rng::Rng;
pub use settings::{Bug, Counters, SimSettings};

pub use landing::LateFrame;

use crate::region::Region;
use crate::topology::Topology;
use rng::nanos;
use state::State;

/// A group's ranks, rails and regions. Clones are the same world.
#[derive(Clone, Debug)]
pub struct World {
    state: Arc<Mutex<State>>,
}

impl World {
    /// A world in which nothing has happened, with zeroed regions.
    ///
    /// # Errors
    /// What the system says when it has no room for the regions.
    pub fn new(topology: Topology, settings: SimSettings) -> io::Result<Self> {
        let regions = (0..topology.ranks())
            .map(|_| Region::private(settings.region_bytes).map(Arc::new))
            .collect::<io::Result<_>>()?;
        Self::over(topology, settings, regions)
    }

    /// A world over regions that exist already, such as those of an earlier epoch.
    ///
    /// # Errors
    /// When the regions are not one for each rank.
    pub fn over(
        topology: Topology,
        settings: SimSettings,
        regions: Vec<Arc<Region>>,
    ) -> io::Result<Self> {
        if regions.len() != topology.ranks() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} regions for {} ranks: give one each", regions.len(), topology.ranks()),
            ));
        }
        let state = State::new(topology, settings, regions);
        Ok(Self { state: Arc::new(Mutex::new(state)) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked inside may still want to look.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank's queue pairs. All devices of one rank are the same.
    pub fn device(&self, rank: usize) -> SimDevice {
        SimDevice::new(self.clone(), rank)
    }

    /// A rank's region.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn region(&self, rank: usize) -> Arc<Region> {
        Arc::clone(&self.state().regions[rank])
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.state().regions.len()
    }

    /// How the world was set up.
    pub fn settings(&self) -> SimSettings {
        self.state().settings.clone()
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.state().now)
    }

    /// When something happens next; none when nothing will without a post or a thaw.
    pub fn next_event(&self) -> Option<Duration> {
        self.state().next_due().map(Duration::from_nanos)
    }

    /// Lets everything happen that is due at `time` or before, and sets the clock there. A time in
    /// the past changes nothing.
    pub fn advance_to(&self, time: Duration) {
        self.state().advance_to(nanos(time));
    }

    /// Lets the next thing happen, at its time. Answers false when there is none.
    pub fn step(&self) -> bool {
        self.state().step()
    }

    /// The ranks, a bit each, to which something happened since this was last asked: bytes landed,
    /// or an event waits.
    pub fn take_stirred(&self) -> u32 {
        std::mem::take(&mut self.state().stirred)
    }

    /// Lets a fault happen now.
    pub fn inject(&self, fault: Fault) {
        self.state().inject(&fault);
    }

    /// Lets a fault happen at a time, or now if that is past.
    pub fn inject_at(&self, time: Duration, fault: Fault) {
        self.state().schedule_fault(nanos(time), fault);
    }

    /// A hash over everything that was delivered, refused or lost so far, with its time and bytes.
    pub fn trace_hash(&self) -> u64 {
        self.state().trace.hash()
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.state().counters
    }

    /// Why a frame was refused last.
    pub fn last_reject(&self) -> Option<String> {
        self.state().last_reject.clone()
    }

    /// Writes of `rank` on this queue pair whose end it has not polled yet.
    pub fn outstanding(&self, rank: usize, peer: usize, rail: usize) -> usize {
        self.state().outstanding(rank, peer, rail)
    }

    /// Ends the epoch: every device is dead from now on, and all frames still on their way come
    /// out as they are.
    pub fn end(&self) -> Vec<LateFrame> {
        self.state().end()
    }

    /// Lets frames of an earlier epoch arrive, each at a random time up to `within` from now. A
    /// sound receiver refuses and counts them; its rails are unharmed, since such frames come from
    /// queue pairs that are no more.
    pub fn deliver_late(&self, frames: Vec<LateFrame>, within: Duration) {
        self.state().deliver_late(frames, within);
    }
}
