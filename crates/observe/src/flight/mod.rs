//! The flight recorder of a rank: the last few thousand events in fixed memory, written as JSON
//! lines when a verdict is adopted.

mod dump;
mod event;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::identity::Identity;
use crate::verdict::VerdictRecord;
pub use dump::{DumpError, Dumped};
pub(crate) use dump::{FILE_PREFIX, FILE_SUFFIX, Header, SCHEMA};
pub use event::Event;

/// The sizes of a recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecorderConfig {
    /// Events kept; older ones are overwritten. 1 to 65536.
    pub events: usize,
    /// Dumps of this rank kept in a directory; older ones are deleted. At least 1.
    pub files: usize,
}

impl RecorderConfig {
    /// The most events a recorder keeps, and a reader of dumps accepts from one file.
    pub const MAX_EVENTS: usize = 65_536;
}

impl Default for RecorderConfig {
    fn default() -> Self {
        Self { events: 4096, files: 16 }
    }
}

/// A flight recorder. A clone shares the events.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    identity: Identity,
    config: RecorderConfig,
    /// The two clocks, read together when the recorder was made.
    base: Instant,
    base_wall_ns: u64,
    ring: Mutex<Ring>,
}

/// An event with nanoseconds since the recorder's base.
type Stamped = (u64, Event);

#[derive(Clone)]
struct Ring {
    slots: Vec<Stamped>,
    /// Events ever recorded.
    recorded: u64,
    capacity: usize,
    /// Where the next event goes once all slots are taken: over the oldest.
    next: usize,
    epoch: u64,
    ranks: Option<u32>,
}

impl Ring {
    #[inline]
    fn push(&mut self, nanos: u64, event: &Event) {
        if let Event::EpochFormed { epoch, ranks } = *event {
            self.epoch = epoch;
            self.ranks = Some(ranks);
        }
        if self.slots.len() < self.capacity {
            self.slots.push((nanos, *event));
        } else {
            self.slots[self.next] = (nanos, *event);
            self.next = if self.next + 1 == self.capacity { 0 } else { self.next + 1 };
        }
        self.recorded += 1;
    }

    /// Oldest first.
    fn in_order(&self) -> impl Iterator<Item = &Stamped> {
        self.slots[self.next..].iter().chain(&self.slots[..self.next])
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("identity", &self.shared.identity).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder for `identity`. All of its memory is reserved here.
    pub fn new(identity: Identity, config: RecorderConfig) -> Self {
        let config = RecorderConfig {
            events: config.events.clamp(1, RecorderConfig::MAX_EVENTS),
            files: config.files.max(1),
        };
        let ring = Ring {
            slots: Vec::with_capacity(config.events),
            recorded: 0,
            capacity: config.events,
            next: 0,
            epoch: 0,
            ranks: None,
        };
        let base = Instant::now();
        let base_wall_ns = wall_ns();
        let shared = Shared { identity, config, base, base_wall_ns, ring: Mutex::new(ring) };
        Self { shared: Arc::new(shared) }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records `event` now. Most of the cost is reading the clock.
    #[inline]
    pub fn record(&self, event: Event) {
        self.record_at(Instant::now(), event);
    }

    /// Records `event` that happened `at`, for callers that have read the clock already.
    #[inline]
    pub fn record_at(&self, at: Instant, event: Event) {
        let since = at.saturating_duration_since(self.shared.base);
        let nanos = since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos());
        self.ring().push(nanos, &event);
    }

    /// Writes the events to a new file in `dir` (made if absent), under its final name only when
    /// complete. Recording goes on meanwhile. Deletes this rank's oldest files beyond the limit.
    pub fn dump(&self, dir: &Path, verdict: Option<&VerdictRecord>) -> Result<Dumped, DumpError> {
        // A copy, so that no recorder waits for a disk.
        let ring = self.ring().clone();
        let now_mono_ns = self.shared.base.elapsed().as_nanos() as u64;
        dump::write(&self.shared, &ring, dir, verdict, now_mono_ns, wall_ns())
    }
}

/// Nanoseconds since 1970; 0 for a clock set before that.
fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_keeps_the_newest_in_order() {
        let config = RecorderConfig { events: 4, ..RecorderConfig::default() };
        let recorder = Recorder::new(Identity::new(0, "h"), config);
        let steps = |recorder: &Recorder| {
            let ring = recorder.ring();
            ring.in_order()
                .map(|(_, event)| match event {
                    Event::StepEnd { step } => *step,
                    other => panic!("unexpected {other:?}"),
                })
                .collect::<Vec<_>>()
        };
        let mut kept = Vec::new();
        for step in 0..11 {
            recorder.record(Event::StepEnd { step });
            kept.push(step);
            kept.drain(..kept.len().saturating_sub(4));
            assert_eq!(steps(&recorder), kept);
        }
        assert_eq!(recorder.ring().recorded, 11);
        assert_eq!(recorder.ring().slots.capacity(), 4, "memory is fixed");
    }

    #[test]
    fn many_threads_lose_nothing() {
        let recorder = Recorder::new(Identity::new(0, "h"), RecorderConfig::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|step| recorder.record(Event::StepEnd { step })));
            }
        });
        assert_eq!(recorder.ring().recorded, 2000);
    }

    #[test]
    fn an_event_stays_small() {
        assert!(size_of::<Stamped>() <= 48, "{}", size_of::<Stamped>());
    }
}
