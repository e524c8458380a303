//! What a world is made of, and what it counts.

use std::time::Duration;

use crate::inbox::FIRST_NUMBER;

/// How a [`World`](super::World) behaves. Ranks of one world share all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimSettings {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Bytes of each region that [`World::new`](super::World::new) makes.
    pub region_bytes: u64,
    /// The epoch that frames carry and receivers ask for.
    pub epoch: u32,
    /// Whether frames carry checksums.
    pub crc: bool,
    /// The number that the first write of every rank to every peer carries.
    pub first_number: u32,
    /// Most bytes of one write, head included.
    pub max_write_bytes: u32,
    /// Writes of one queue pair that may wait for their [`Event::Done`](crate::Event::Done) to be
    /// polled.
    pub outstanding_max: usize,
    /// The shortest time a frame or an acknowledgement travels.
    pub latency_min: Duration,
    /// The longest, hiccups apart.
    pub latency_max: Duration,
    /// One frame in sixteen takes up to this much longer.
    pub jitter: Duration,
    /// Bytes that one direction of one rail carries in a second.
    pub bandwidth_bytes_per_second: u64,
    /// After this long a device gives up a rail that swallows its frames.
    pub give_up_after: Duration,
    /// The virtual time at which the world begins.
    pub start: Duration,
    /// A fault of the transport itself, planted to see whether tests find it.
    pub bug: Option<Bug>,
}

impl Default for SimSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            region_bytes: 1 << 20,
            epoch: 1,
            crc: true,
            first_number: FIRST_NUMBER,
            max_write_bytes: 16 << 20,
            outstanding_max: 64,
            latency_min: Duration::from_micros(1),
            latency_max: Duration::from_micros(5),
            jitter: Duration::from_micros(20),
            bandwidth_bytes_per_second: 10_000_000_000,
            give_up_after: Duration::from_secs(2),
            start: Duration::ZERO,
            bug: None,
        }
    }
}

/// A defect planted in the transport, for tests of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The flag is raised when a frame arrives, and its bytes land later.
    FlagBeforeBytes,
    /// Frames of any epoch land.
    NoEpochCheck,
    /// A write that comes twice lands twice.
    NoInbox,
}

/// What happened in a world so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Writes taken.
    pub posted: u64,
    /// Writes whose bytes and flag landed.
    pub landed: u64,
    /// Bytes that landed, flags not counted.
    pub landed_bytes: u64,
    /// Completions that reached the sender.
    pub completed: u64,
    /// Frames whose number had arrived before.
    pub duplicates: u64,
    /// Frames that failed a check.
    pub rejected: u64,
    /// Frames of an earlier epoch among the rejected.
    pub late_rejected: u64,
    /// Frames lost with a rail or a rank.
    pub dropped: u64,
    /// Frames of which only a part landed before their rail went down.
    pub torn: u64,
    /// Ends of queue pairs that went down.
    pub ends_down: u64,
}
