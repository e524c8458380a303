//! The cells of a rank that change while it works and are read by scrapes: position, current
//! wait, phase, running requests, last progress. Each is one atomic, so a reader never sees half
//! of an update.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::words::Phase;

/// The mark of a cell that was never set.
const UNMEASURED: u64 = u64::MAX;

/// Shared by [`crate::Metrics`] and [`crate::Health`].
#[derive(Debug)]
pub(crate) struct Live {
    /// The zero of all times kept here.
    pub(crate) base: Instant,
    pub(crate) epoch: OptionalCell,
    pub(crate) sequence: OptionalCell,
    pub(crate) running: OptionalCell,
    /// When `running` last left 0, in nanoseconds since `base`.
    running_since: OptionalCell,
    progress: OptionalCell,
    pub(crate) wait: SinceCell,
    pub(crate) phase: SinceCell,
}

impl Live {
    pub(crate) fn new(base: Instant) -> Self {
        Self {
            base,
            epoch: OptionalCell::default(),
            sequence: OptionalCell::default(),
            running: OptionalCell::default(),
            running_since: OptionalCell::default(),
            progress: OptionalCell::default(),
            wait: SinceCell::default(),
            phase: SinceCell::default(),
        }
    }

    pub(crate) fn set_running(&self, running: u64, now: Instant) {
        let before = self.running.swap(running);
        if running > 0 && before.unwrap_or(0) == 0 {
            self.running_since.set(self.nanos(now));
        }
    }

    pub(crate) fn progressed(&self, now: Instant) {
        self.progress.set(self.nanos(now));
    }

    /// How long ago the last progress was, if there was any.
    pub(crate) fn progress_age(&self, now: Instant) -> Option<Duration> {
        self.progress.get().map(|at| self.age(at, now))
    }

    /// How long requests have run without progress: since the last progress or, if that is
    /// older, since there are requests at all. `None` while nothing runs.
    pub(crate) fn without_progress(&self, now: Instant) -> Option<Duration> {
        if self.running.get().unwrap_or(0) == 0 {
            return None;
        }
        let since = self.progress.get().unwrap_or(0).max(self.running_since.get().unwrap_or(0));
        Some(self.age(since, now))
    }

    fn nanos(&self, at: Instant) -> u64 {
        // 2^64 ns are 584 years: the process ends before it saturates.
        u64::try_from(at.saturating_duration_since(self.base).as_nanos()).unwrap_or(UNMEASURED - 1)
    }

    fn age(&self, at_nanos: u64, now: Instant) -> Duration {
        Duration::from_nanos(self.nanos(now).saturating_sub(at_nanos))
    }
}

/// A number that may be unmeasured.
#[derive(Debug)]
pub(crate) struct OptionalCell(AtomicU64);

impl Default for OptionalCell {
    fn default() -> Self {
        Self(AtomicU64::new(UNMEASURED))
    }
}

impl OptionalCell {
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value.min(UNMEASURED - 1), Relaxed);
    }

    pub(crate) fn swap(&self, value: u64) -> Option<u64> {
        let before = self.0.swap(value.min(UNMEASURED - 1), Relaxed);
        (before != UNMEASURED).then_some(before)
    }

    pub(crate) fn get(&self) -> Option<u64> {
        let value = self.0.load(Relaxed);
        (value != UNMEASURED).then_some(value)
    }
}

/// A phase, a rank and since when, in one word: 16 bits of rank, 3 of phase, 45 of time in units
/// of 16 µs (17 years).
#[derive(Debug)]
pub(crate) struct SinceCell(AtomicU64);

const TICK_NANOS: u64 = 16_000;
const TICK_BITS: u32 = 45;
const PHASE_BITS: u32 = 3;
/// Rank 65535 would collide with the mark of an empty cell.
const MAX_RANK: u32 = 0xfffe;

impl Default for SinceCell {
    fn default() -> Self {
        Self(AtomicU64::new(UNMEASURED))
    }
}

impl SinceCell {
    pub(crate) fn set(&self, rank: u32, phase: Phase, since: Instant, base: Instant) {
        let nanos = since.saturating_duration_since(base).as_nanos() as u64;
        let ticks = (nanos / TICK_NANOS).min((1 << TICK_BITS) - 1);
        let rank = u64::from(rank.min(MAX_RANK));
        let packed = rank << (PHASE_BITS + TICK_BITS) | (phase.index() as u64) << TICK_BITS | ticks;
        self.0.store(packed, Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.0.store(UNMEASURED, Relaxed);
    }

    /// Rank, phase and age.
    pub(crate) fn get(&self, now: Instant, base: Instant) -> Option<(u32, Phase, Duration)> {
        let packed = self.0.load(Relaxed);
        if packed == UNMEASURED {
            return None;
        }
        let ticks = packed & ((1 << TICK_BITS) - 1);
        let phase = Phase::from_index((packed >> TICK_BITS) as usize & ((1 << PHASE_BITS) - 1))?;
        let since = Duration::from_nanos(ticks * TICK_NANOS);
        let age = now.saturating_duration_since(base).saturating_sub(since);
        Some(((packed >> (PHASE_BITS + TICK_BITS)) as u32, phase, age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_keeps_rank_phase_and_age() {
        let base = Instant::now();
        let cell = SinceCell::default();
        assert_eq!(cell.get(base, base), None);
        for phase in Phase::ALL.iter().copied() {
            cell.set(65_534, phase, base + Duration::from_secs(86_400 * 365), base);
            let now = base + Duration::from_secs(86_400 * 365) + Duration::from_millis(1500);
            let (rank, got, age) = cell.get(now, base).unwrap();
            assert_eq!((rank, got), (65_534, phase));
            assert!(age >= Duration::from_millis(1500) && age < Duration::from_micros(1_500_017));
        }
        cell.set(u32::MAX, Phase::Stopped, base + Duration::from_secs(u32::MAX.into()), base);
        assert!(cell.get(base, base).is_some(), "the extreme is not the empty mark");
        cell.clear();
        assert_eq!(cell.get(base, base), None);
    }

    #[test]
    fn a_request_after_a_long_idle_time_is_not_a_stall() {
        let base = Instant::now();
        let at = |seconds| base + Duration::from_secs(seconds);
        let live = Live::new(base);
        assert_eq!(live.without_progress(at(5)), None);
        live.progressed(at(1));
        live.set_running(1, at(1000));
        assert_eq!(live.without_progress(at(1003)), Some(Duration::from_secs(3)));
        live.set_running(2, at(1010));
        assert_eq!(live.without_progress(at(1020)), Some(Duration::from_secs(20)));
        live.progressed(at(1021));
        assert_eq!(live.without_progress(at(1022)), Some(Duration::from_secs(1)));
        live.set_running(0, at(1023));
        assert_eq!(live.without_progress(at(9999)), None);
        assert_eq!(live.progress_age(at(1025)), Some(Duration::from_secs(4)));
    }
}
