//! The group as the engine sees it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use engine::communicator::{
    Activity, BROADCAST_LIMIT_BYTES, Communicator, CommunicatorError, Misuse, check_all_gather,
};
use fabric::Reduction;
use group::beacon::Phase;
use group::collective::CollectiveError;
use group::{Carrier, FormError, Group, Informant, Member};
use observe::{Health, State};

use crate::events::{Event, EventSink};

/// What other threads of the rank reach the current group by; it changes with each epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct Current(Arc<Mutex<Option<Reach>>>);

#[derive(Debug)]
struct Reach {
    fabric: Arc<fabric::Fabric>,
    informant: Informant,
}

impl Current {
    /// Calls with the group of the present epoch, if there is one.
    pub(super) fn with<T>(&self, call: impl FnOnce(&fabric::Fabric, &Informant) -> T) -> Option<T> {
        let current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|reach| call(&reach.fabric, &reach.informant))
    }

    fn set(&self, group: Option<&Group>) {
        let now = group.map(|group| Reach {
            fabric: Arc::clone(group.fabric()),
            informant: group.informant(),
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

/// A member and its group, healed on request.
pub(super) struct GroupCommunicator {
    rank: usize,
    size: usize,
    member: Member,
    group: Option<Group>,
    /// What was told last of what carries the bytes.
    carried: Option<Carrier>,
    current: Current,
    stopping: Arc<AtomicBool>,
    events: EventSink,
    health: Health,
}

impl GroupCommunicator {
    /// Forms the first group.
    pub(super) fn form(
        member: Member,
        place: (usize, usize),
        current: Current,
        stopping: Arc<AtomicBool>,
        events: EventSink,
        health: Health,
    ) -> Result<Self, FormError> {
        let (rank, size) = place;
        let mut formed = Self {
            rank,
            size,
            member,
            group: None,
            carried: None,
            current,
            stopping,
            events,
            health,
        };
        formed.form_group()?;
        Ok(formed)
    }

    pub(super) fn epoch(&self) -> u32 {
        self.group.as_ref().map_or(0, Group::epoch)
    }

    fn form_group(&mut self) -> Result<(), FormError> {
        // The old group ends before the new one begins: its threads, connections and memory.
        self.current.set(None);
        self.group = None;
        let mut group = self.member.form()?;
        group.interrupt_on(Arc::clone(&self.stopping));
        self.current.set(Some(&group));
        let Carrier { transport, why } = group.carrier();
        if self.carried.as_ref() != Some(group.carrier()) {
            let (transport, why) = (transport.to_string(), why.clone());
            self.events.send(&Event::Carrier { transport, why });
            self.carried = Some(group.carrier().clone());
        }
        self.group = Some(group);
        Ok(())
    }

    fn group(&mut self) -> Result<&mut Group, CommunicatorError> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(CommunicatorError::Closed);
        }
        self.group.as_mut().ok_or_else(|| CommunicatorError::Failed {
            summary: "the group was not formed again yet".to_owned(),
        })
    }
}

fn failed(what: &str) -> impl FnOnce(CollectiveError) -> CommunicatorError + '_ {
    move |error| match error {
        CollectiveError::Stopped(verdict) => {
            CommunicatorError::Failed { summary: verdict.to_string() }
        }
        CollectiveError::Interrupted => CommunicatorError::Closed,
        error => CommunicatorError::Fatal { context: what.to_owned(), source: Box::new(error) },
    }
}

impl Communicator for GroupCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommunicatorError> {
        self.group()?.all_reduce(Reduction::Sum, values).map_err(failed("an all-reduce"))
    }

    fn all_gather(
        &mut self,
        mine: &[f32],
        lengths: &[usize],
        out: &mut [f32],
    ) -> Result<(), CommunicatorError> {
        check_all_gather(self.rank, self.size, mine.len(), lengths, out.len())?;
        self.group()?.all_gather(mine, lengths, out).map_err(failed("an all-gather"))
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<(), CommunicatorError> {
        if bytes.len() > BROADCAST_LIMIT_BYTES {
            return Err(Misuse::TooLong { bytes: bytes.len() }.into());
        }
        self.group()?.broadcast_any(bytes, root).map_err(failed("a broadcast"))?;
        // A step of the group is a sign of life, also one without tokens.
        self.health.progressed(Instant::now());
        Ok(())
    }

    fn enter(&mut self, activity: Activity) {
        // Rank 0 tells its state from its requests; the others from what it sends them.
        if self.rank != 0 && activity == Activity::Idle {
            self.health.set_state(State::Idle);
        }
        if let Some(group) = &self.group {
            group.enter(match activity {
                Activity::Compute => Phase::Compute,
                Activity::Idle => Phase::Idle,
            });
        }
    }

    fn reform(&mut self) -> Result<(), CommunicatorError> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(CommunicatorError::Closed);
        }
        self.health.set_state(State::Recovering);
        let after = self.group.as_ref().map(|group| group.epoch().into());
        self.events.send(&Event::Rendezvous { present: 1, after });
        match self.form_group() {
            Ok(()) => {
                let epoch = u64::from(self.epoch());
                self.health.recovered(epoch, Instant::now());
                self.events.send(&Event::Reformed { epoch });
                Ok(())
            }
            Err(_) if self.stopping.load(Ordering::Relaxed) => Err(CommunicatorError::Closed),
            Err(error) => Err(CommunicatorError::Fatal {
                context: "forming the group again".to_owned(),
                source: Box::new(error),
            }),
        }
    }
}
