//! How much may be under way on a forwarded rail, so that no hairpin queue overflows.

use super::{PathKind, Plan, Rail};
use crate::rules::HAIRPIN_ENTRIES;

/// Bytes of one entry of a hairpin queue: with 8192 entries, published measurements found room for 512 KiB per leaving
/// function and direction.
const HAIRPIN_ENTRY_BYTES: u64 = 64;
/// A quarter of the queue is left for packets that are sent again.
const SHARE: (u64, u64) = (3, 4);

impl Plan {
    /// Most bytes that may be sent on a forwarded rail and not be acknowledged: three quarters of the hairpin queue it
    /// shares with most other rails, divided by how many those are. It cannot pause its senders, so what does not fit
    /// is lost.
    pub fn forward_window_bytes(&self, rail: &Rail) -> u64 {
        let load = rail.crossings.iter().skip(1).map(|crossing| {
            let forwarded = self.paths.iter().filter(|path| path.kind == PathKind::Forwarded);
            let transits = forwarded
                .flat_map(|path| &path.rails)
                .flat_map(|other| other.crossings.iter().skip(1));
            transits.filter(|other| other.out.mac == crossing.out.mac).count() as u64
        });
        let queue_bytes = u64::from(HAIRPIN_ENTRIES) * HAIRPIN_ENTRY_BYTES;
        queue_bytes * SHARE.0 / SHARE.1 / load.max().unwrap_or(1).max(1)
    }
}
