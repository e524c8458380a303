//! What must be true of regions and transport when an epoch is over.

use fabric::Span;
use fabric::sim::Fault;

use super::Broken;
use super::epoch::Epoch;
use super::plan::Trouble;

/// What lies where nobody may write.
const PAINT: u8 = 0xa5;
/// Bytes of the heap's end that no buffer takes.
const SPARE_BYTES: u64 = 4096;

impl Epoch<'_> {
    /// Places of a rank's region that no protocol writes: its own slots and the end of its heap.
    fn forbidden(&self, rank: usize) -> [Span; 3] {
        let slot = |parity| Span {
            offset: self.layout.slot(rank, parity),
            len: self.layout.sizes().slot_bytes,
        };
        let heap = self.layout.heap();
        let spare = Span { offset: heap.offset + heap.len - SPARE_BYTES, len: SPARE_BYTES };
        [slot(0), slot(1), spare]
    }

    pub(super) fn paint(&self) -> Result<(), Broken> {
        for (rank, region) in self.regions.iter().enumerate() {
            for place in self.forbidden(rank) {
                region
                    .write(place.offset, &vec![PAINT; place.len as usize])
                    .map_err(|error| ("PLAN", error.to_string()))?;
            }
        }
        Ok(())
    }

    pub(super) fn check_paint(&self) -> Result<(), Broken> {
        for (rank, region) in self.regions.iter().enumerate() {
            for place in self.forbidden(rank) {
                let intact = region
                    .lend(place, |bytes| bytes.iter().all(|byte| *byte == PAINT))
                    .map_err(|error| ("PLAN", error.to_string()))?;
                if !intact {
                    let what = format!("bytes were written at {place:?} of rank {rank}");
                    return Err(("NO-LOSS", what));
                }
            }
        }
        Ok(())
    }

    /// Lets everything arrive that is on its way, and counts.
    pub(super) fn settle(&mut self) -> Result<(), Broken> {
        const STEPS_MAX: usize = 1_000_000;
        for rank in self.ranks.iter_mut().filter(|rank| rank.frozen) {
            rank.frozen = false;
            self.world.inject(Fault::Thaw { rank: rank.rank });
        }
        for _ in 0..STEPS_MAX {
            let stirred = self.world.take_stirred();
            for rank in self.ranks.iter().filter(|rank| !rank.is_still()) {
                if stirred & 1 << rank.rank != 0 {
                    rank.pump();
                }
            }
            if !self.world.step() {
                let moved = self.ranks.iter().filter(|rank| !rank.is_still() && rank.pump());
                if moved.count() == 0 {
                    break;
                }
            }
        }
        let counters = self.world.counters();
        if counters.late_rejected != self.late_count {
            return Err((
                "NO-LOSS",
                format!(
                    "{} of {} frames of the epoch before were refused",
                    counters.late_rejected, self.late_count
                ),
            ));
        }
        let trouble = self.mishap.as_ref().map(|mishap| &mishap.trouble);
        let whole = matches!(trouble, None | Some(Trouble::Slow { .. } | Trouble::Freeze { .. }));
        if !whole && self.fault_at.is_some() {
            return Ok(());
        }
        let refused = counters.rejected - counters.late_rejected;
        let odd = [counters.dropped, counters.duplicates, counters.torn, refused];
        if counters.posted != counters.landed
            || counters.posted != counters.completed
            || odd != [0; 4]
        {
            return Err(("NO-LOSS", format!("not every write landed once: {counters:?}")));
        }
        for rank in &self.ranks {
            let backlog = rank.fabric.backlog().unwrap_or_default();
            if !rank.fabric.is_drained() || backlog.chunks != 0 {
                return Err((
                    "NO-LOSS",
                    format!("rank {} still holds {backlog:?} when all is done", rank.rank),
                ));
            }
        }
        Ok(())
    }
}
