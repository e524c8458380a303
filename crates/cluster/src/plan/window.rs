//! How much may be under way on a forwarded rail, so that no hairpin queue overflows.

use super::{PathKind, PathPlan, Plan, Rail};
use crate::rules::HAIRPIN_ENTRIES;

/// Bytes of one entry of a hairpin queue: with 8192 entries, published measurements found room for 512 KiB per leaving
/// function and direction.
const HAIRPIN_ENTRY_BYTES: u64 = 64;
/// A quarter of the queue is left for packets that are sent again.
const SHARE: (u64, u64) = (3, 4);

impl Plan {
    /// Most bytes that may be sent on a forwarded rail and not be acknowledged: three quarters of the hairpin queue it
    /// shares with most other rails, in either direction, divided by how many those are. Such a queue cannot pause its
    /// senders, so what does not fit is lost.
    pub fn forward_window_bytes(&self, path: &PathPlan, rail: usize) -> u64 {
        let back = self.path(path.to, path.from);
        let rails = [Some(path), back].into_iter().flatten();
        let load = rails.filter_map(|path| path.rails.get(rail)).map(|rail| self.load(rail)).max();
        let queue_bytes = u64::from(HAIRPIN_ENTRIES) * HAIRPIN_ENTRY_BYTES;
        queue_bytes * SHARE.0 / SHARE.1 / load.unwrap_or(1).max(1)
    }

    /// How many forwarded rails share the busiest function that passes packets of this one on.
    fn load(&self, rail: &Rail) -> u64 {
        let forwarded = self.paths.iter().filter(|path| path.kind == PathKind::Forwarded);
        let rails: Vec<_> = forwarded.flat_map(|path| &path.rails).collect();
        let leaving = rail.crossings.iter().skip(1).map(|crossing| crossing.out.mac);
        let sharing = leaving.map(|mac| {
            let passes =
                |other: &&&Rail| other.crossings.iter().skip(1).any(|at| at.out.mac == mac);
            rails.iter().filter(passes).count() as u64
        });
        sharing.max().unwrap_or(0)
    }
}
