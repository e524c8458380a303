//! The step loop of the ranks that follow rank 0.

use super::error::{ServingError, Stop};
use super::observer::Observer;
use super::recovery::Recovery;
use super::seams::Stepper;
use super::settings::Settings;
use crate::communicator::{Activity, Communicator};
use crate::model::StepPlan;
use std::time::Instant;

/// Runs the steps that rank 0 sends until the group is closed, then returns. A failed collective re-forms the group.
///
/// Of `settings` only planted faults count here: rank 0 decides everything else.
///
/// # Errors
/// [`ServingError`] when this rank cannot go on.
pub fn follow(
    model: &mut dyn Stepper,
    comm: &mut dyn Communicator,
    settings: &Settings,
    observer: &dyn Observer,
) -> Result<(), ServingError> {
    let mut recovery = Recovery::default();
    let mut ready = false;
    loop {
        let stop = match turn(model, comm, settings, observer) {
            Ok(fed) => {
                recovery.worked();
                if fed && !ready {
                    ready = true;
                    observer.ready(true);
                }
                continue;
            }
            Err(Stop::Failed(summary)) => {
                ready = false;
                match recovery.recover(summary, model, comm, observer) {
                    Ok(()) => continue,
                    Err(stop) => stop,
                }
            }
            Err(stop) => stop,
        };
        observer.ready(false);
        return match stop {
            Stop::Fatal(error) => Err(error),
            Stop::Failed(_) | Stop::Closed => Ok(()),
        };
    }
}

/// One step. Returns whether a token was fed.
fn turn(
    model: &mut dyn Stepper,
    comm: &mut dyn Communicator,
    settings: &Settings,
    observer: &dyn Observer,
) -> Result<bool, Stop> {
    let rank = comm.rank();
    let mut bytes = Vec::new();
    comm.broadcast(&mut bytes, 0).map_err(|error| Stop::from_group(error, rank))?;
    let plan = StepPlan::decode(&bytes)
        .map_err(|source| Stop::Fatal(ServingError::Plan { rank, source }))?;
    if plan == StepPlan::default() {
        comm.enter(Activity::Idle);
        return Ok(false);
    }
    comm.enter(Activity::Compute);
    let start = Instant::now();
    settings.suffer_faults();
    model.forward(&plan, comm).map_err(|error| Stop::from_model(error, rank))?;
    let fed = plan.tokens();
    if fed > 0 {
        observer.step(start.elapsed(), fed);
    }
    Ok(fed > 0)
}
