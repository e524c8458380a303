//! The step loop of rank 0: it decides every step and tells the other ranks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::{ServingError, Stop};
use super::observer::Observer;
use super::queue::{RequestQueue, Sender, Woken};
use super::recovery::Recovery;
use super::request::{Event, Outcome, Output, RequestId, Timing};
use super::scheduler::{Planned, Scheduler};
use super::seams::{Stepper, Vocabulary};
use super::settings::{Limits, Settings};
use crate::communicator::{Activity, Communicator};
use crate::model::StepPlan;

/// How often an idle rank 0 sends an empty step, which proves that the paths still carry bytes.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What rank 0 serves with.
pub struct Lead<'a> {
    /// Where requests come from. Closed when [`run`](Self::run) returns.
    pub queue: &'a RequestQueue,
    /// Turns tokens into text.
    pub vocabulary: Arc<dyn Vocabulary>,
    /// Limits of the key/value cache, the same on every rank.
    pub limits: Limits,
    /// What changes while serving.
    pub settings: &'a Settings,
    /// Told what happens.
    pub observer: &'a dyn Observer,
}

impl Lead<'_> {
    /// Serves requests until the queue or the group is closed, then returns. A failed collective re-forms the group,
    /// and running requests go on; the other ranks run [`follow`](super::follow) meanwhile.
    ///
    /// # Errors
    /// [`ServingError`] when this rank cannot go on.
    pub fn run(
        self,
        model: &mut dyn Stepper,
        comm: &mut dyn Communicator,
    ) -> Result<(), ServingError> {
        let _closing = CloseOnDrop(self.queue);
        let scheduler = Scheduler::new(self.limits, Arc::clone(&self.vocabulary));
        let mut turns =
            Turns { lead: self, scheduler, senders: HashMap::new(), model, comm, warm: false };
        let mut recovery = Recovery::default();
        loop {
            let turn = if turns.warm { turns.turn() } else { turns.warm_up() };
            let stop = match turn {
                Ok(()) => {
                    recovery.worked();
                    continue;
                }
                Err(Stop::Failed(summary)) => {
                    turns.warm = false;
                    let observer = turns.lead.observer;
                    match recovery.recover(summary, turns.model, turns.comm, observer) {
                        Ok(()) => {
                            turns.scheduler.on_reform();
                            continue;
                        }
                        Err(stop) => stop,
                    }
                }
                Err(stop) => stop,
            };
            turns.lead.observer.ready(false);
            return match stop {
                Stop::Fatal(error) => Err(error),
                Stop::Failed(_) | Stop::Closed => Ok(()),
            };
        }
    }
}

/// Clients learn at once that the loop is gone, even if it panicked.
struct CloseOnDrop<'a>(&'a RequestQueue);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Turns<'a, 'b> {
    lead: Lead<'a>,
    scheduler: Scheduler,
    /// Of the requests that the scheduler has.
    senders: HashMap<RequestId, Sender>,
    model: &'b mut dyn Stepper,
    comm: &'b mut dyn Communicator,
    /// A token crossed every rank since the group was formed.
    warm: bool,
}

impl Turns<'_, '_> {
    fn warm_up(&mut self) -> Result<(), Stop> {
        let plan = self.scheduler.warm_up();
        self.step(&plan)?;
        self.warm = true;
        self.lead.observer.ready(true);
        Ok(())
    }

    fn turn(&mut self) -> Result<(), Stop> {
        if self.lead.queue.is_closed() {
            return Err(Stop::Closed);
        }
        self.drop_cancelled();
        let (scheduler, settings) = (&mut self.scheduler, self.lead.settings);
        let admitted = self.lead.queue.admit(|admission| {
            let mut planned = scheduler.plan(admission, settings);
            let admitted = std::mem::take(&mut planned.admitted);
            let load = scheduler.load(admission.len());
            ((planned, load), admitted)
        });
        let (planned, load) = admitted.value;
        self.senders.extend(admitted.senders);
        (0..admitted.left).for_each(|_| self.lead.observer.finished(Outcome::Cancelled));
        self.lead.observer.load(load);
        if planned.plan.entries.is_empty() && planned.plan.release.is_empty() {
            return self.idle();
        }
        self.serve(&planned)
    }

    fn serve(&mut self, planned: &Planned) -> Result<(), Stop> {
        let start = Instant::now();
        let logits = self.step(&planned.plan)?;
        let now = Instant::now();
        let observer = self.lead.observer;
        let fed = planned.plan.tokens();
        if fed > 0 {
            observer.step(now - start, fed);
        }
        if planned.prefill_tokens > 0 {
            observer.prefilled(planned.prefill_tokens);
        }
        let outputs = self.scheduler.consume(&logits, now).map_err(|source| {
            Stop::Fatal(ServingError::Logits { rank: self.comm.rank(), source })
        })?;
        for output in outputs {
            self.deliver(output);
        }
        Ok(())
    }

    fn step(&mut self, plan: &StepPlan) -> Result<Vec<Vec<f32>>, Stop> {
        self.comm.enter(Activity::Compute);
        self.broadcast(plan)?;
        self.lead.settings.suffer_faults();
        let rank = self.comm.rank();
        self.model.forward(plan, self.comm).map_err(|error| Stop::from_model(error, rank))
    }

    fn broadcast(&mut self, plan: &StepPlan) -> Result<(), Stop> {
        let rank = self.comm.rank();
        let mut bytes =
            plan.encode().map_err(|source| Stop::Fatal(ServingError::Plan { rank, source }))?;
        self.comm.broadcast(&mut bytes, 0).map_err(|error| Stop::from_group(error, rank))
    }

    fn idle(&mut self) -> Result<(), Stop> {
        self.comm.enter(Activity::Idle);
        match self.lead.queue.wait(HEARTBEAT) {
            Woken::Request => Ok(()),
            Woken::Timeout => self.broadcast(&StepPlan::default()),
            Woken::Closed => Err(Stop::Closed),
        }
    }

    fn deliver(&mut self, output: Output) {
        let observer = self.lead.observer;
        match output.timing {
            Timing::First(after) => observer.first_token(after),
            Timing::Next(after) => observer.next_token(after),
        }
        if let Some(sender) = self.senders.get(&output.id) {
            // The channel has room for every event of its request, so sending fails only if the client left, which
            // the next turn sees.
            if !output.text.is_empty() {
                let _ = sender.try_send(Event::Text(output.text));
            }
            if let Some(end) = &output.end {
                let _ = sender.try_send(Event::End(end.clone()));
            }
        }
        if let Some(end) = output.end {
            self.senders.remove(&output.id);
            observer.finished(end.outcome());
        }
    }

    fn drop_cancelled(&mut self) {
        let (scheduler, observer) = (&mut self.scheduler, self.lead.observer);
        self.senders.retain(|&id, sender| {
            let wanted = !sender.is_closed();
            if !wanted {
                scheduler.cancel(id);
                observer.finished(Outcome::Cancelled);
            }
            wanted
        });
    }
}
