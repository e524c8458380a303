//! Rails that failed while others to the same peer work are made again: what each end does, when,
//! and how it ends. Time, messages and the fabric's notices come in with every call; what is done
//! goes through [`Rails`], so that the same inputs give the same actions.
//!
//! The lower rank of the two paces: it waits, makes its end and offers it. The higher one makes and
//! connects its own and answers; the lower one connects and says so; then both prove the rail, and
//! each takes it back once its own proof is complete. An attempt that fails at one end is refused
//! to the other, both take their ends down, and the next attempt has the next number. What belongs
//! to another attempt than the present one changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric::MAX_RAILS;

use crate::control::wire::{RAIL_BYTES_MAX, RailMessage, RailStep};

/// The wait before the first attempt. It doubles with each failure.
pub(crate) const WAIT_MIN: Duration = Duration::from_secs(1);
/// The longest wait between two attempts.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);
/// A rail that has been in service for so long begins with the shortest wait again.
pub(crate) const SOUND_AFTER: Duration = Duration::from_secs(60);
/// Longest time of each step of an attempt.
pub(crate) const STEP_MAX: Duration = Duration::from_secs(5);

/// How far the proof of a rail is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trial {
    /// Bytes are on their way.
    Runs,
    /// Bytes crossed both ways and were equal.
    Proven,
    /// The rail went down meanwhile, or was never connected.
    Failed,
}

/// The rails of one rank and the way to its peers.
pub(crate) trait Rails {
    /// Rails to a peer that are in service.
    fn working(&self, peer: usize) -> usize;
    /// Makes an end anew; what the peer needs to connect to it, or none if that cannot be now.
    fn remake(&mut self, peer: usize, rail: usize) -> Option<Vec<u8>>;
    /// Connects the end that was made with what the peer told.
    fn reconnect(&mut self, peer: usize, rail: usize, told: &[u8]) -> Result<(), String>;
    /// Begins the proof of a rail that is connected.
    fn probe(&mut self, peer: usize, rail: usize, attempt: u32);
    /// Takes the proof further.
    fn trial(&mut self, peer: usize, rail: usize) -> Trial;
    /// Puts a proven rail back into service, which is told by a notice; nothing happens where it
    /// is on its way back already, or another one of the same peer is.
    fn take_back(&mut self, peer: usize, rail: usize);
    /// Takes an end down, whatever it is doing.
    fn cut(&mut self, peer: usize, rail: usize);
    /// Sends a message to a peer. It may be lost.
    fn send(&mut self, peer: usize, message: RailMessage);
    /// An attempt came to nothing; another one follows after `wait`.
    fn failed(&mut self, peer: usize, rail: usize, attempt: u32, why: &str, wait: Duration);
}

/// A rail that is back in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Back {
    /// How long it was out.
    pub(crate) after: Duration,
    /// The attempt that succeeded.
    pub(crate) attempt: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    InService {
        since: Duration,
    },
    /// Down. The lower rank offers at this time; the higher one reminds the lower one of it.
    Waiting {
        until: Duration,
    },
    /// The lower rank waits for the answer.
    Offered {
        until: Duration,
    },
    /// The higher rank is connected and waits for the lower one to be.
    Answered {
        until: Duration,
    },
    Proving {
        until: Duration,
    },
    /// Proven; the notice that it is in service has not come yet.
    Returning {
        until: Duration,
    },
}

#[derive(Clone, Copy, Debug)]
struct Rail {
    step: Step,
    /// The last attempt that was begun or heard of.
    attempt: u32,
    wait: Duration,
    down_since: Duration,
}

/// All rails of one rank in one epoch. Those that never failed have no entry.
#[derive(Debug)]
pub(crate) struct Remaking {
    rank: usize,
    rails: BTreeMap<(usize, usize), Rail>,
    ended: bool,
}

impl Remaking {
    pub(crate) fn new(rank: usize) -> Self {
        Self { rank, rails: BTreeMap::new(), ended: false }
    }

    /// The epoch is over: nothing is made again any more.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.rails.clear();
    }

    /// A rail went down.
    pub(crate) fn down(&mut self, now: Duration, peer: usize, rail: usize) {
        if self.ended {
            return;
        }
        let known = self.entry(now, peer, rail);
        known.wait = match known.step {
            Step::InService { since } if now.saturating_sub(since) < SOUND_AFTER => {
                // One that never failed has no attempt behind it.
                if known.attempt > 0 { (known.wait * 2).min(WAIT_MAX) } else { WAIT_MIN }
            }
            Step::InService { .. } => WAIT_MIN,
            _ => known.wait,
        };
        if matches!(known.step, Step::InService { .. }) {
            known.down_since = now;
        }
        known.step = Step::Waiting { until: now + known.wait };
    }

    /// A rail is in service again.
    pub(crate) fn up(&mut self, now: Duration, peer: usize, rail: usize) -> Option<Back> {
        let known = self.rails.get_mut(&(peer, rail))?;
        if !matches!(known.step, Step::Returning { .. }) {
            return None;
        }
        known.step = Step::InService { since: now };
        Some(Back { after: now.saturating_sub(known.down_since), attempt: known.attempt })
    }

    /// A message of a peer.
    pub(crate) fn hear(
        &mut self,
        now: Duration,
        peer: usize,
        message: &RailMessage,
        rails: &mut dyn Rails,
    ) {
        let (rail, attempt) = (usize::from(message.rail), message.attempt);
        if self.ended || rail >= MAX_RAILS || peer == self.rank {
            return;
        }
        let offers = peer < self.rank;
        match &message.step {
            RailStep::Offer(told) if offers => {
                self.hear_offer(now, (peer, rail), attempt, told, rails);
            }
            RailStep::Answer(told) if !offers => {
                let known = self.entry(now, peer, rail);
                if known.attempt != attempt || !matches!(known.step, Step::Offered { .. }) {
                    return;
                }
                match rails.reconnect(peer, rail, told) {
                    Ok(()) => {
                        let message = RailMessage::new(rail, attempt, RailStep::Ready);
                        rails.send(peer, message);
                        self.prove(now, peer, rail, rails);
                    }
                    Err(why) => self.fail(now, (peer, rail), Some(&why), rails),
                }
            }
            RailStep::Ready if offers => {
                let known = self.entry(now, peer, rail);
                if known.attempt == attempt && matches!(known.step, Step::Answered { .. }) {
                    self.prove(now, peer, rail, rails);
                }
            }
            RailStep::Refuse(why) => self.hear_refusal(now, (peer, rail), attempt, why, rails),
            _ => {}
        }
    }

    fn hear_offer(
        &mut self,
        now: Duration,
        (peer, rail): (usize, usize),
        attempt: u32,
        told: &[u8],
        rails: &mut dyn Rails,
    ) {
        let known = self.entry(now, peer, rail);
        if attempt <= known.attempt {
            return;
        }
        known.attempt = attempt;
        let refused = match known.step {
            Step::InService { .. } => {
                // The peer says that its end is down, so this one carries nothing either. The last
                // rail is left to those who find out by using it: its end is the end of the epoch.
                if rails.working(peer) > 1 {
                    rails.cut(peer, rail);
                }
                let why = "the other end was in service still".to_owned();
                rails.send(peer, RailMessage::new(rail, attempt, RailStep::refuse(&why)));
                return;
            }
            Step::Waiting { .. } if rails.working(peer) == 0 => "no rail to it works".to_owned(),
            Step::Waiting { .. } => match rails.remake(peer, rail) {
                Some(own) if own.len() <= RAIL_BYTES_MAX => {
                    match rails.reconnect(peer, rail, told) {
                        Ok(()) => {
                            known.step = Step::Answered { until: now + STEP_MAX };
                            let answer = RailMessage::new(rail, attempt, RailStep::Answer(own));
                            rails.send(peer, answer);
                            return;
                        }
                        Err(why) => why,
                    }
                }
                _ => "no queue pair could be made for it at the other end".to_owned(),
            },
            _ => "the other end was at an earlier attempt".to_owned(),
        };
        self.fail(now, (peer, rail), Some(&refused), rails);
    }

    fn hear_refusal(
        &mut self,
        now: Duration,
        (peer, rail): (usize, usize),
        attempt: u32,
        why: &str,
        rails: &mut dyn Rails,
    ) {
        let known = self.rails.get(&(peer, rail));
        if known.map_or(0, |known| known.attempt) != attempt {
            return;
        }
        match known.map(|known| known.step) {
            None | Some(Step::InService { .. }) => {
                if rails.working(peer) > 1 {
                    rails.cut(peer, rail);
                }
            }
            Some(Step::Waiting { .. }) => {}
            Some(_) => {
                let wait = self.give_up(now, peer, rail, rails);
                let why = format!("rank {peer} says: {why}");
                rails.failed(peer, rail, attempt, &why, wait);
            }
        }
    }

    /// Does what is due. To be called about ten times a second.
    pub(crate) fn poll(&mut self, now: Duration, rails: &mut dyn Rails) {
        let all: Vec<_> = self.rails.iter().map(|(&at, rail)| (at, *rail)).collect();
        for ((peer, rail), known) in all {
            let late = |until: Duration| now >= until;
            match known.step {
                Step::Waiting { until } => {
                    let offers = self.rank < peer;
                    // The lower rank's offer is due at about the same time, and makes a reminder needless.
                    let due = if offers { until } else { until + WAIT_MIN };
                    if late(due) && rails.working(peer) > 0 {
                        if offers {
                            self.offer(now, peer, rail, rails);
                        } else {
                            self.remind(now, peer, rail, rails);
                        }
                    }
                }
                Step::Offered { until } if late(until) => {
                    self.fail(now, (peer, rail), Some("no answer came"), rails);
                }
                Step::Answered { until } if late(until) => {
                    self.fail(
                        now,
                        (peer, rail),
                        Some("it was not connected at the other end"),
                        rails,
                    );
                }
                Step::Proving { until } => match rails.trial(peer, rail) {
                    Trial::Proven => {
                        self.step(peer, rail, Step::Returning { until: now + STEP_MAX });
                        rails.take_back(peer, rail);
                    }
                    Trial::Failed => {
                        self.fail(now, (peer, rail), Some("it went down again"), rails);
                    }
                    Trial::Runs if late(until) => {
                        self.fail(now, (peer, rail), Some("no bytes crossed it both ways"), rails);
                    }
                    Trial::Runs => {}
                },
                Step::Returning { until } => {
                    // Until the notice comes, it is on trial.
                    if rails.trial(peer, rail) == Trial::Failed {
                        self.fail(now, (peer, rail), Some("it went down again"), rails);
                    } else if late(until) {
                        self.fail(now, (peer, rail), Some("the others were never quiet"), rails);
                    } else {
                        rails.take_back(peer, rail);
                    }
                }
                _ => {}
            }
        }
    }

    fn offer(&mut self, now: Duration, peer: usize, rail: usize, rails: &mut dyn Rails) {
        let known = self.entry(now, peer, rail);
        // One attempt a second for 136 years.
        known.attempt = known.attempt.saturating_add(1);
        let attempt = known.attempt;
        match rails.remake(peer, rail) {
            Some(own) if own.len() <= RAIL_BYTES_MAX => {
                known.step = Step::Offered { until: now + STEP_MAX };
                rails.send(peer, RailMessage::new(rail, attempt, RailStep::Offer(own)));
            }
            _ => self.fail(now, (peer, rail), None, rails),
        }
    }

    /// The lower rank may not know that the rail is down.
    fn remind(&mut self, now: Duration, peer: usize, rail: usize, rails: &mut dyn Rails) {
        let known = self.entry(now, peer, rail);
        known.wait = (known.wait * 2).min(WAIT_MAX);
        known.step = Step::Waiting { until: now + known.wait };
        let word = RailStep::refuse("the other end is down");
        rails.send(peer, RailMessage::new(rail, known.attempt, word));
    }

    fn prove(&mut self, now: Duration, peer: usize, rail: usize, rails: &mut dyn Rails) {
        let known = self.entry(now, peer, rail);
        known.step = Step::Proving { until: now + STEP_MAX };
        rails.probe(peer, rail, known.attempt);
    }

    /// The present attempt came to nothing here. The peer is told why, if it is in it as well.
    fn fail(
        &mut self,
        now: Duration,
        (peer, rail): (usize, usize),
        why: Option<&str>,
        rails: &mut dyn Rails,
    ) {
        let attempt = self.entry(now, peer, rail).attempt;
        let wait = self.give_up(now, peer, rail, rails);
        if let Some(why) = why {
            rails.send(peer, RailMessage::new(rail, attempt, RailStep::refuse(why)));
        }
        let why = why.unwrap_or("no queue pair could be made for it here");
        rails.failed(peer, rail, attempt, why, wait);
    }

    fn give_up(
        &mut self,
        now: Duration,
        peer: usize,
        rail: usize,
        rails: &mut dyn Rails,
    ) -> Duration {
        // Whatever is connected must be down at both ends before the next attempt.
        rails.cut(peer, rail);
        let known = self.entry(now, peer, rail);
        known.wait = (known.wait * 2).min(WAIT_MAX);
        known.step = Step::Waiting { until: now + known.wait };
        known.wait
    }

    fn step(&mut self, peer: usize, rail: usize, step: Step) {
        if let Some(known) = self.rails.get_mut(&(peer, rail)) {
            known.step = step;
        }
    }

    /// What is known of a rail; one that never failed is in service.
    fn entry(&mut self, now: Duration, peer: usize, rail: usize) -> &mut Rail {
        self.rails.entry((peer, rail)).or_insert(Rail {
            step: Step::InService { since: now },
            attempt: 0,
            wait: WAIT_MIN,
            down_since: now,
        })
    }
}

#[cfg(test)]
#[path = "remake_tests.rs"]
mod tests;
