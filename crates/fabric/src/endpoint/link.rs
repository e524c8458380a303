//! The rails to one peer, and what is outstanding on them.

use std::collections::VecDeque;

use crate::device::{Device, PostError, Posted, RailFault, Write};
use crate::inbox::FIRST_NUMBER;

use super::FabricError;

/// Who is told when a write is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Nobody waits: a relay's credit, a beacon, a proof.
    Nobody,
    /// A put of this rank.
    Put,
    /// The relay with this index.
    Relay(usize),
}

#[derive(Debug, Default)]
struct Rail {
    /// Whether there is such a queue pair.
    exists: bool,
    fault: Option<RailFault>,
    /// It failed, was made anew and is connected: only proofs go over it.
    on_trial: bool,
    outstanding: VecDeque<(Write, Owner)>,
}

impl Rail {
    fn works(&self) -> bool {
        self.exists && self.fault.is_none()
    }
}

/// What a link did with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitted {
    /// It landed.
    Done,
    /// It is on its way; its owner is told.
    Pending,
    /// It was not taken: try again later.
    Full,
    /// No rail is left.
    Down,
}

#[derive(Debug)]
pub(super) struct Link {
    rails: Vec<Rail>,
    next_number: u32,
    /// The rail that goes back into service once nothing is outstanding.
    returning: Option<usize>,
    /// Writes of failed rails, in order, to be sent before anything new, each with its rail.
    reposts: VecDeque<(usize, Write, Owner)>,
}

impl Link {
    /// A link with queue pairs on these rails.
    pub(super) fn new(rails: &[usize]) -> Self {
        let count = rails.iter().max().map_or(0, |highest| highest + 1);
        let rail = |rail| Rail { exists: rails.contains(&rail), ..Rail::default() };
        let rails = (0..count).map(rail).collect();
        Self { rails, next_number: FIRST_NUMBER, returning: None, reposts: VecDeque::new() }
    }

    /// The preferred rail, or the next working one after it.
    pub(super) fn working_rail(&self, preferred: usize) -> Option<usize> {
        let count = self.rails.len();
        (0..count).map(|step| (preferred + step) % count).find(|&rail| self.rails[rail].works())
    }

    pub(super) fn submit(
        &mut self,
        device: &mut dyn Device,
        peer: usize,
        preferred: usize,
        write: Write,
        owner: Owner,
    ) -> (Submitted, usize) {
        let Some(rail) = self.working_rail(preferred) else { return (Submitted::Down, preferred) };
        if !self.reposts.is_empty() || self.returning.is_some() {
            return (Submitted::Full, rail);
        }
        (self.post(device, peer, rail, write, owner), rail)
    }

    /// Posts on this rail and no other, if it works or is on trial.
    pub(super) fn submit_on(
        &mut self,
        device: &mut dyn Device,
        peer: usize,
        rail: usize,
        write: Write,
        owner: Owner,
    ) -> Submitted {
        if self.rails.get(rail).is_some_and(|rail| rail.works() || rail.on_trial) {
            self.post(device, peer, rail, write, owner)
        } else {
            Submitted::Down
        }
    }

    fn post(
        &mut self,
        device: &mut dyn Device,
        peer: usize,
        rail: usize,
        mut write: Write,
        owner: Owner,
    ) -> Submitted {
        write.number = self.next_number;
        write.unnumbered = self.rails[rail].on_trial;
        let submitted = match device.post(peer, rail, &write) {
            Ok(Posted::Done) => Submitted::Done,
            Ok(Posted::Pending) => {
                self.rails[rail].outstanding.push_back((write, owner));
                Submitted::Pending
            }
            // A rail that is down without a word yet: its event comes first.
            Err(PostError::Full | PostError::Down) => return Submitted::Full,
        };
        if !self.rails[rail].on_trial {
            self.next_number = self.next_number.wrapping_add(1);
        }
        submitted
    }

    /// A rail that failed is connected again: proofs may cross it.
    pub(super) fn try_again(&mut self, rail: usize) {
        if let Some(rail) = self.rails.get_mut(rail) {
            rail.on_trial = rail.exists && rail.fault.is_some();
        }
    }

    /// A rail on trial has been proven: it goes back into service as soon as nothing is
    /// outstanding on the others. Its lanes use other rails until then, and what they have sent
    /// must land before what they send next.
    pub(super) fn take_back(&mut self, rail: usize) -> bool {
        let proven = self.returning.is_none()
            && self.rails.get(rail).is_some_and(|rail| rail.on_trial && rail.fault.is_some());
        if proven {
            self.returning = Some(rail);
        }
        proven
    }

    /// Finishes what [`take_back`](Self::take_back) began, when it is time; answers the rail.
    pub(super) fn settle_return(&mut self) -> Option<usize> {
        let quiet =
            self.reposts.is_empty() && self.rails.iter().all(|rail| rail.outstanding.is_empty());
        let rail = self.returning.filter(|_| quiet)?;
        self.returning = None;
        let back = &mut self.rails[rail];
        back.on_trial = false;
        back.fault = None;
        Some(rail)
    }

    /// The owner of the oldest outstanding write of a rail, which is over.
    pub(super) fn done(&mut self, rail: usize) -> Option<Owner> {
        self.rails.get_mut(rail)?.outstanding.pop_front().map(|(_, owner)| owner)
    }

    /// Marks a rail as failed; false if it was already.
    pub(super) fn fail(&mut self, rail: usize, fault: RailFault) -> bool {
        let Some(failed) = self.rails.get_mut(rail) else { return false };
        if self.returning == Some(rail) {
            self.returning = None;
        }
        if failed.fault.is_some() && !failed.on_trial {
            return false;
        }
        let was_in_service = failed.fault.is_none();
        failed.on_trial = false;
        failed.fault = Some(fault);
        if !was_in_service {
            // Nothing but proofs was on it, which have no numbers and are made anew.
            failed.outstanding.clear();
            return false;
        }
        let outstanding = failed.outstanding.drain(..);
        self.reposts.extend(outstanding.map(|(write, owner)| (rail, write, owner)));
        true
    }

    /// True while puts of this rank are on their way.
    pub(super) fn has_puts(&self) -> bool {
        let outstanding = self.rails.iter().flat_map(|rail| &rail.outstanding);
        let reposts = self.reposts.iter().map(|(_, _, owner)| owner);
        outstanding.map(|(_, owner)| owner).chain(reposts).any(|owner| *owner == Owner::Put)
    }

    pub(super) fn has_reposts(&self) -> bool {
        !self.reposts.is_empty()
    }

    /// True when something waits that only progress moves.
    pub(super) fn has_work(&self) -> bool {
        self.has_reposts() || self.returning.is_some()
    }

    pub(super) fn is_on_trial(&self, rail: usize) -> bool {
        self.rails.get(rail).is_some_and(|rail| rail.on_trial)
    }

    /// Sends writes of failed rails again, with their old numbers. The owners of those that
    /// landed at once are appended to `done`; answers how many were posted.
    pub(super) fn repost(
        &mut self,
        device: &mut dyn Device,
        peer: usize,
        done: &mut Vec<Owner>,
    ) -> u64 {
        let mut count = 0;
        while let Some((failed, write, owner)) = self.reposts.front() {
            // The rail that later writes of the same lane take too: they must not overtake.
            let Some(rail) = self.working_rail(*failed) else { break };
            match device.post(peer, rail, write) {
                Ok(Posted::Done) => done.push(*owner),
                Ok(Posted::Pending) => {
                    self.rails[rail].outstanding.push_back((write.clone(), *owner));
                }
                Err(PostError::Full | PostError::Down) => break,
            }
            self.reposts.pop_front();
            count += 1;
        }
        count
    }

    pub(super) fn working_rails(&self) -> usize {
        self.rails.iter().filter(|rail| rail.works()).count()
    }

    pub(super) fn fault(&self, rail: usize) -> Option<&RailFault> {
        self.rails.get(rail)?.fault.as_ref()
    }

    pub(super) fn is_down(&self) -> bool {
        !self.rails.iter().any(Rail::works)
    }

    pub(super) fn down_error(&self, rank: usize, peer: usize) -> FabricError {
        let faults = self
            .rails
            .iter()
            .enumerate()
            .filter_map(|(index, rail)| Some(format!("rail {index}: {}", rail.fault.as_ref()?)))
            .collect::<Vec<_>>()
            .join("; ");
        FabricError::LinkDown { rank, peer, faults }
    }
}
