//! A histogram of durations for the hot path: fixed buckets, one atomic add for the bucket and
//! one for the sum.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds in nanoseconds: 1, 2, 5 in each decade from 1 µs to 100 s.
const BOUNDS: [u64; 25] = bounds();
/// One bucket a bound, and one above all of them.
const BUCKETS: usize = BOUNDS.len() + 1;
/// By bit length of a value: how many bounds are shorter than that.
const FIRST: [u8; 65] = first();

const fn bounds() -> [u64; 25] {
    let mut bounds = [0; 25];
    let mut decade = 1_000;
    let mut i = 0;
    while i < 25 {
        bounds[i] = decade * [1, 2, 5][i % 3];
        if i % 3 == 2 {
            decade *= 10;
        }
        i += 1;
    }
    bounds
}

const fn first() -> [u8; 65] {
    let mut first = [0; 65];
    let mut bits = 0;
    while bits < 65 {
        let mut i = 0;
        while i < BOUNDS.len() {
            if (64 - BOUNDS[i].leading_zeros()) < bits {
                first[bits as usize] += 1;
            }
            i += 1;
        }
        bits += 1;
    }
    first
}

/// The bucket of a value: the number of bounds below it. Neighbouring bounds differ by a factor of
/// two or more, so at most one of them has the value's own bit length.
fn bucket(nanos: u64) -> usize {
    let first = usize::from(FIRST[(64 - nanos.leading_zeros()) as usize]);
    first + usize::from(BOUNDS.get(first).is_some_and(|bound| *bound < nanos))
}

/// Durations, counted by bucket.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_nanos: AtomicU64::new(0) }
    }
}

/// What a scrape reads from a [`Histogram`].
pub(crate) struct Reading {
    /// Upper bound in seconds and count of each bucket (not cumulative).
    pub(crate) buckets: [(f64, u64); BUCKETS],
    pub(crate) sum_seconds: f64,
    pub(crate) count: u64,
}

impl Histogram {
    pub(crate) fn observe(&self, duration: Duration) {
        let nanos = duration.as_secs().saturating_mul(1_000_000_000);
        let nanos = nanos.saturating_add(u64::from(duration.subsec_nanos()));
        self.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        self.sum_nanos.fetch_add(nanos, Relaxed);
    }

    /// `None` if nothing was observed.
    pub(crate) fn read(&self) -> Option<Reading> {
        let mut buckets = [(f64::INFINITY, 0); BUCKETS];
        let mut count = 0;
        for (i, (slot, cell)) in buckets.iter_mut().zip(&self.buckets).enumerate() {
            if let Some(bound) = BOUNDS.get(i) {
                slot.0 = *bound as f64 / 1e9;
            }
            slot.1 = cell.load(Relaxed);
            count += slot.1;
        }
        let sum_seconds = self.sum_nanos.load(Relaxed) as f64 / 1e9;
        (count > 0).then_some(Reading { buckets, sum_seconds, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_agree_with_a_plain_search() {
        let plain = |nanos| BOUNDS.iter().filter(|b| **b < nanos).count();
        for bound in BOUNDS {
            for nanos in [bound - 1, bound, bound + 1] {
                assert_eq!(bucket(nanos), plain(nanos), "{nanos} ns");
            }
        }
        for bits in 0..64 {
            for nanos in [1_u64 << bits, (1 << bits) - 1, 3 << bits >> 1] {
                assert_eq!(bucket(nanos), plain(nanos), "{nanos} ns");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(BOUNDS[24], 100_000_000_000);
    }

    #[test]
    fn reading_counts_and_sums() {
        let histogram = Histogram::default();
        assert!(histogram.read().is_none());
        histogram.observe(Duration::from_micros(1));
        histogram.observe(Duration::from_micros(3));
        histogram.observe(Duration::MAX);
        let reading = histogram.read().unwrap();
        assert_eq!(reading.count, 3);
        assert_eq!(reading.buckets[0], (1e-6, 1));
        assert_eq!(reading.buckets[2], (5e-6, 1));
        assert_eq!(reading.buckets[25], (f64::INFINITY, 1));
    }
}
