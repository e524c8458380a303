//! What both step loops do when a collective failed: re-form the group, as often as it takes.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::error::Stop;
use super::observer::Observer;
use super::seams::Stepper;
use crate::communicator::{Activity, Communicator};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Re-forms the group after failures, with growing pauses while it keeps failing.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Failures since the last step that worked.
    failures: u32,
}

impl Recovery {
    /// A step worked.
    pub(super) fn worked(&mut self) {
        self.failures = 0;
    }

    /// Returns when the group works again and `model` is reset.
    pub(super) fn recover(
        &mut self,
        mut summary: String,
        model: &mut dyn Stepper,
        comm: &mut dyn Communicator,
        observer: &dyn Observer,
    ) -> Result<(), Stop> {
        observer.ready(false);
        let start = Instant::now();
        loop {
            observer.failed(&summary);
            self.pause(comm);
            match comm.reform().map_err(|error| Stop::from_group(error, comm.rank())) {
                Ok(()) => break,
                Err(Stop::Failed(again)) => summary = again,
                Err(stop) => return Err(stop),
            }
        }
        model.reset();
        observer.reformed(start.elapsed());
        Ok(())
    }

    /// The first failure is healed at once.
    fn pause(&mut self, comm: &mut dyn Communicator) {
        if let Some(doublings) = self.failures.checked_sub(1) {
            comm.enter(Activity::Idle);
            sleep((FIRST_PAUSE * 2u32.pow(doublings.min(8))).min(LONGEST_PAUSE));
        }
        self.failures = self.failures.saturating_add(1);
    }
}
