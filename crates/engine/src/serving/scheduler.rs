//! Decides what every step feeds to the model, and turns its logits into text.
//!
//! Nothing here reads a clock or a socket: the step loop passes time in and carries plans and outputs away. A request
//! is a list of tokens and the number of them that the key/value cache holds, so a lost cache only sets that number
//! back to 0 and the request is fed again, its text unbroken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::admission::Admission;
use super::observer::Load;
use super::request::{End, FinishReason, Output, RequestId, Timing, Usage};
use super::sampler::{Sampling, choose};
use super::seams::{TokenDecoder, Vocabulary};
use super::settings::{Limits, Settings};
use super::share::share;
use super::stop::StopFilter;
use crate::model::{StepEntry, StepPlan};

/// A step to be run, and what it means.
#[derive(Debug, Default)]
pub struct Planned {
    /// What every rank runs.
    pub plan: StepPlan,
    /// Requests that left the queue.
    pub admitted: Vec<RequestId>,
    /// Tokens of prompts among those fed.
    pub prefill_tokens: usize,
}

/// Logits that do not belong to the step that was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the step should have given {expected} rows of logits, but gave {found}")]
pub struct LogitsMismatch {
    /// Entries that wanted logits.
    pub expected: usize,
    /// Rows that came.
    pub found: usize,
}

/// Batches requests step by step.
pub struct Scheduler {
    limits: Limits,
    vocabulary: Arc<dyn Vocabulary>,
    /// Requests with a slot, in the order they were first admitted.
    running: Vec<Sequence>,
    /// Admitted requests that lost their slot, in the same order: all younger than those running, since nobody is
    /// admitted before the first of them.
    resuming: VecDeque<Sequence>,
    /// Slots no request has, highest first.
    free: Vec<u32>,
    /// Slots to be emptied by the next plan.
    release: Vec<u32>,
    /// What the planned step feeds; empty between steps.
    flight: Vec<Fed>,
}

#[derive(Debug, Clone, Copy)]
struct Fed {
    id: RequestId,
    tokens: usize,
    /// Whether all its tokens are in the cache then, so that the next one is chosen.
    complete: bool,
}

struct Sequence {
    id: RequestId,
    /// The prompt and what was generated.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// How many of `tokens` the cache holds.
    cached: usize,
    slot: u32,
    max_tokens: usize,
    sampling: Sampling,
    decoder: Box<dyn TokenDecoder>,
    stops: StopFilter,
    arrived: Instant,
    last_token: Option<Instant>,
}

impl Scheduler {
    /// A scheduler without requests, for a model whose slots are empty.
    pub fn new(limits: Limits, vocabulary: Arc<dyn Vocabulary>) -> Self {
        Self {
            limits,
            vocabulary,
            running: Vec::new(),
            resuming: VecDeque::new(),
            free: all_slots(limits),
            release: Vec::new(),
            flight: Vec::new(),
        }
    }

    /// A step that takes one token through every rank, for a model whose slots are empty. The next plan clears it away.
    pub fn warm_up(&mut self) -> StepPlan {
        self.release.push(0);
        let entry = StepEntry { slot: 0, position: 0, tokens: vec![0], want_logits: true };
        StepPlan { entries: vec![entry], release: Vec::new() }
    }

    /// The next step: takes requests from `admission` while there are slots and room, then feeds every running request
    /// its last token or a share of its prompt. The plan is empty when there is nothing to do.
    pub fn plan(&mut self, admission: &mut Admission, settings: &Settings) -> Planned {
        self.make_room();
        let admitted = self.admit(admission, settings.max_concurrency());
        let needs: Vec<usize> =
            self.running.iter().map(Sequence::pending).filter(|&pending| pending > 1).collect();
        let mut shares = share(&needs, settings.prefill_chunk()).into_iter();
        let mut planned = Planned { admitted, ..Planned::default() };
        self.flight.clear();
        for sequence in &self.running {
            let pending = sequence.pending();
            let count = if pending > 1 { shares.next().unwrap_or(0) } else { pending };
            if count == 0 {
                continue;
            }
            let end = sequence.cached + count;
            planned.prefill_tokens +=
                end.min(sequence.prompt_len) - sequence.cached.min(sequence.prompt_len);
            let complete = count == pending;
            self.flight.push(Fed { id: sequence.id, tokens: count, complete });
            planned.plan.entries.push(StepEntry {
                slot: sequence.slot,
                // Positions stay below the context, which the model's limits keep in range.
                position: sequence.cached as u32,
                tokens: sequence.tokens[sequence.cached..end].to_vec(),
                want_logits: complete,
            });
        }
        planned.plan.release = std::mem::take(&mut self.release);
        planned
    }

    /// Takes the logits of the planned step, chooses the next token of each entry that wanted logits, and returns the
    /// tokens. Requests that ended are gone then.
    ///
    /// # Errors
    /// [`LogitsMismatch`] when `logits` has another number of rows than the plan asked for; then nothing changed.
    pub fn consume(
        &mut self,
        logits: &[Vec<f32>],
        now: Instant,
    ) -> Result<Vec<Output>, LogitsMismatch> {
        let expected = self.flight.iter().filter(|fed| fed.complete).count();
        if logits.len() != expected {
            return Err(LogitsMismatch { expected, found: logits.len() });
        }
        let mut rows = logits.iter();
        let mut outputs = Vec::with_capacity(expected);
        for fed in std::mem::take(&mut self.flight) {
            let row = if fed.complete { rows.next() } else { None };
            // A request cancelled since the plan was made is no longer there.
            let Some(at) = self.running.iter().position(|sequence| sequence.id == fed.id) else {
                continue;
            };
            let sequence = &mut self.running[at];
            sequence.cached += fed.tokens;
            let Some(row) = row else { continue };
            let output = sequence.extend(row, &*self.vocabulary, self.limits.request_tokens(), now);
            if output.end.is_some() {
                let sequence = self.running.remove(at);
                self.give_back(sequence.slot);
            }
            outputs.push(output);
        }
        Ok(outputs)
    }

    /// Forgets a request. Returns whether it was there.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            let sequence = self.running.remove(at);
            self.give_back(sequence.slot);
            return true;
        }
        let before = self.resuming.len();
        self.resuming.retain(|sequence| sequence.id != id);
        self.resuming.len() < before
    }

    /// After the group was re-formed and the model reset: the cache is empty, so every request is to be fed again.
    pub fn on_reform(&mut self) {
        for sequence in self.running.drain(..).rev() {
            self.resuming.push_front(Sequence { cached: 0, ..sequence });
        }
        self.free = all_slots(self.limits);
        self.release.clear();
        self.flight.clear();
    }

    /// The load, with `queued` requests that were not admitted yet.
    pub fn load(&self, queued: usize) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.resuming.len() + queued,
            kv_tokens: self.taken(0),
        }
    }

    /// What the running requests take of the cache once each has `more` tokens.
    fn taken(&self, more: usize) -> usize {
        self.running.iter().map(|sequence| self.limits.taken(sequence.tokens.len() + more)).sum()
    }

    /// Takes the slots of the youngest requests until the rest fits into the cache. The oldest always fits alone.
    fn make_room(&mut self) {
        while self.running.len() > 1 && self.taken(0) > self.limits.kv_tokens {
            let Some(sequence) = self.running.pop() else { return };
            self.give_back(sequence.slot);
            self.resuming.push_front(Sequence { cached: 0, ..sequence });
        }
    }

    fn admit(&mut self, admission: &mut Admission, max_concurrency: usize) -> Vec<RequestId> {
        let mut admitted = Vec::new();
        while self.running.len() < max_concurrency {
            let Some(&slot) = self.free.last() else { break };
            // One more token for each request, so that what is admitted is not at once put back.
            let room = self.limits.kv_tokens.saturating_sub(self.taken(1));
            let room = self.limits.whole_blocks(room).saturating_sub(1);
            let sequence = match self.resuming.front() {
                Some(first) if first.tokens.len() > room => break,
                Some(_) => self.resuming.pop_front().map(|first| Sequence { slot, ..first }),
                None => admission.take_fitting(room).map(|waiting| {
                    admitted.push(waiting.id);
                    Sequence {
                        id: waiting.id,
                        prompt_len: waiting.request.prompt.len(),
                        tokens: waiting.request.prompt,
                        cached: 0,
                        slot,
                        max_tokens: waiting.request.max_tokens,
                        sampling: waiting.request.sampling,
                        decoder: self.vocabulary.decoder(),
                        stops: StopFilter::new(&waiting.request.stops),
                        arrived: waiting.arrived,
                        last_token: None,
                    }
                }),
            };
            let Some(sequence) = sequence else { break };
            self.free.pop();
            self.running.push(sequence);
        }
        admitted
    }

    fn give_back(&mut self, slot: u32) {
        self.release.push(slot);
        self.free.push(slot);
    }
}

impl Sequence {
    /// Tokens the cache does not hold; at least one, since the last token is fed to get the next.
    fn pending(&self) -> usize {
        self.tokens.len() - self.cached
    }

    fn extend(
        &mut self,
        logits: &[f32],
        vocabulary: &dyn Vocabulary,
        request_tokens: usize,
        now: Instant,
    ) -> Output {
        let timing = match self.last_token.replace(now) {
            None => Timing::First(now.saturating_duration_since(self.arrived)),
            Some(last) => Timing::Next(now.saturating_duration_since(last)),
        };
        let token = match choose(logits, &self.sampling, self.tokens.len() - self.prompt_len) {
            Ok(token) => token,
            Err(error) => {
                let end = Some(End::Failed { message: error.to_string() });
                return Output { id: self.id, text: String::new(), timing, end };
            }
        };
        self.tokens.push(token);
        let usage = Usage {
            prompt_tokens: self.prompt_len,
            completion_tokens: self.tokens.len() - self.prompt_len,
        };
        let ended = vocabulary.is_end(token);
        let mut text = String::new();
        if !ended {
            text.push_str(&self.stops.push(&self.decoder.push(token)));
        }
        let full =
            usage.completion_tokens >= self.max_tokens || self.tokens.len() >= request_tokens;
        if (ended || full) && !self.stops.stopped() {
            text.push_str(&self.stops.push(&self.decoder.finish()));
            text.push_str(&self.stops.finish());
        }
        let reason = match () {
            () if ended || self.stops.stopped() => Some(FinishReason::Stop),
            () if full => Some(FinishReason::Length),
            () => None,
        };
        let end = reason.map(|reason| End::Finished { reason, usage });
        Output { id: self.id, text, timing, end }
    }
}

fn all_slots(limits: Limits) -> Vec<u32> {
    (0..u32::try_from(limits.slots).unwrap_or(u32::MAX)).rev().collect()
}
