//! Chance and its record: a small generator, and a hash over everything that happened.

use std::time::Duration;

/// A seeded generator (splitmix64). Equal seeds give equal numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose numbers follow from the seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// A number below `end`; zero when `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product is uniform enough for tests and needs no loop.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// An index below `end`; zero when `end` is zero.
    pub fn index(&mut self, end: usize) -> usize {
        // Below a usize, so it fits one.
        self.below(end as u64) as usize
    }

    /// True once in `times`, on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A time from zero to `most`, both included.
    pub fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.below(nanos(most).saturating_add(1)))
    }
}

/// Whole nanoseconds, as far as 64 bits reach: 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A hash that depends on every value added and on their order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trace(u64);

impl Trace {
    pub(super) fn add(&mut self, value: u64) {
        self.0 = mixed(self.0.rotate_left(5) ^ value.wrapping_add(0x9e37_79b9_7f4a_7c15));
    }

    pub(super) fn hash(self) -> u64 {
        self.0
    }
}
