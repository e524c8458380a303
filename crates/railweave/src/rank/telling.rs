//! What the serving side reports, as metrics, health and events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use engine::serving::{Load, Observer, Outcome};
use group::verdict::{Cause, Verdict};
use observe::{Health, Metrics, State};

use crate::events::{Event, EventSink, VerdictKind};

/// Tells metrics, health and the supervisor.
pub(super) struct Telling {
    pub(super) metrics: Metrics,
    pub(super) health: Health,
    pub(super) events: EventSink,
    pub(super) epoch: Arc<AtomicU32>,
    /// Whether this rank serves requests.
    pub(super) leads: bool,
    /// Bytes of one token in the key-value cache, and the limit.
    pub(super) kv_token_bytes: u64,
    pub(super) kv_limit_bytes: u64,
    pub(super) announced: AtomicBool,
}

impl Observer for Telling {
    fn ready(&self, ready: bool) {
        if !ready {
            return;
        }
        self.health.token_crossed();
        self.health.progressed(Instant::now());
        self.health.set_state(State::Ready);
        if !self.announced.swap(true, Ordering::Relaxed) {
            self.events.send(&Event::Ready { epoch: self.epoch.load(Ordering::Relaxed).into() });
        }
    }

    fn load(&self, load: Load) {
        self.metrics.requests(load.running as u64, load.waiting as u64);
        let used = (load.kv_tokens as u64).saturating_mul(self.kv_token_bytes);
        self.metrics.kv_cache(used, self.kv_limit_bytes);
        self.health.set_running(load.running as u64);
        self.health.set_state(if load.running > 0 { State::Running } else { State::Idle });
    }

    fn step(&self, _took: Duration, _tokens: usize) {
        self.health.progressed(Instant::now());
        if !self.leads {
            self.health.set_state(State::Running);
        }
    }

    fn prefilled(&self, tokens: usize) {
        self.metrics.prefill_tokens(tokens as u64);
    }

    fn first_token(&self, after: Duration) {
        self.metrics.time_to_first_token(after);
        self.metrics.generated_tokens(1);
    }

    fn next_token(&self, after: Duration) {
        self.metrics.time_per_token(after);
        self.metrics.generated_tokens(1);
    }

    fn finished(&self, outcome: Outcome) {
        self.metrics.request_ended(match outcome {
            Outcome::Stop | Outcome::Length => observe::Outcome::Finished,
            Outcome::Cancelled => observe::Outcome::Cancelled,
            Outcome::Failed => observe::Outcome::Failed,
        });
    }

    fn refused(&self) {
        self.metrics.request_ended(observe::Outcome::Rejected);
    }

    fn failed(&self, summary: &str) {
        tracing::warn!(summary, "the step failed; forming the group again");
    }

    fn reformed(&self, took: Duration) {
        tracing::info!(?took, "the group works again");
    }
}

/// A verdict as the supervisor hears it.
pub(super) fn verdict_event(verdict: &Verdict) -> Event {
    Event::Verdict {
        epoch: verdict.epoch.into(),
        kind: match verdict.cause {
            Cause::PeerDead => VerdictKind::Dead,
            Cause::PeerSilent => VerdictKind::Silent,
            Cause::PeerStalled { .. } => VerdictKind::Stalled,
            Cause::PathBroken { .. } => VerdictKind::PathBroken,
            Cause::ConfigurationDiffers { .. } => VerdictKind::ConfigurationDiffers,
            Cause::RanksDisagree { .. } => VerdictKind::RanksDisagree,
            Cause::OutOfCapacity => VerdictKind::OutOfCapacity,
            Cause::Requested { .. } => VerdictKind::Requested,
            Cause::Unknown => VerdictKind::Unknown,
        },
        rank: verdict.rank.map(u32::from),
        text: verdict.to_string(),
    }
}
