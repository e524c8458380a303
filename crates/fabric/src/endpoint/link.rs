//! The rails to one neighbour, and what is outstanding on them.

use std::collections::VecDeque;

use crate::device::{Device, PostError, Posted, RailFault, Write};
use crate::inbox::FIRST_NUMBER;

use super::FabricError;

/// Who is told when a write is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A relay's credit: nobody.
    Credit,
    /// A put of this rank.
    Put,
    /// The relay with this index.
    Relay(usize),
}

#[derive(Debug, Default)]
struct Rail {
    fault: Option<RailFault>,
    outstanding: VecDeque<(Write, Owner)>,
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
    /// Writes of failed rails, in order, to be sent before anything new, each with its rail.
    reposts: VecDeque<(usize, Write, Owner)>,
}

impl Link {
    pub(super) fn new(rails: usize) -> Self {
        let rails = (0..rails).map(|_| Rail::default()).collect();
        Self { rails, next_number: FIRST_NUMBER, reposts: VecDeque::new() }
    }

    /// The preferred rail, or the next working one after it.
    pub(super) fn working_rail(&self, preferred: usize) -> Option<usize> {
        let count = self.rails.len();
        (0..count)
            .map(|step| (preferred + step) % count)
            .find(|&rail| self.rails[rail].fault.is_none())
    }

    pub(super) fn submit(
        &mut self,
        device: &mut dyn Device,
        peer: usize,
        preferred: usize,
        mut write: Write,
        owner: Owner,
    ) -> (Submitted, usize) {
        let Some(rail) = self.working_rail(preferred) else { return (Submitted::Down, preferred) };
        if !self.reposts.is_empty() {
            return (Submitted::Full, rail);
        }
        write.number = self.next_number;
        let submitted = match device.post(peer, rail, &write) {
            Ok(Posted::Done) => Submitted::Done,
            Ok(Posted::Pending) => {
                self.rails[rail].outstanding.push_back((write, owner));
                Submitted::Pending
            }
            // A rail that is down without a word yet: its event comes first.
            Err(PostError::Full | PostError::Down) => return (Submitted::Full, rail),
        };
        self.next_number = self.next_number.wrapping_add(1);
        (submitted, rail)
    }

    /// The owner of the oldest outstanding write of a rail, which is over.
    pub(super) fn done(&mut self, rail: usize) -> Option<Owner> {
        self.rails.get_mut(rail)?.outstanding.pop_front().map(|(_, owner)| owner)
    }

    /// Marks a rail as failed; false if it was already.
    pub(super) fn fail(&mut self, rail: usize, fault: RailFault) -> bool {
        let Some(failed) = self.rails.get_mut(rail) else { return false };
        if failed.fault.is_some() {
            return false;
        }
        failed.fault = Some(fault);
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
        self.rails.iter().filter(|rail| rail.fault.is_none()).count()
    }

    pub(super) fn is_down(&self) -> bool {
        self.rails.iter().all(|rail| rail.fault.is_some())
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
