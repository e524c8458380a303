//! What can be set: limits for the life of the server, and values that change while it serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::model::{KV_BLOCK_TOKENS, MAX_ENTRIES, MAX_TOKENS, Model};

/// Limits of the key/value cache, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The number of sequences the model has slots for.
    pub slots: usize,
    /// The most tokens of one sequence, prompt and generated.
    pub context_tokens: usize,
    /// The most tokens of all sequences together: the byte limit of the cache divided by the bytes of one token, on
    /// the rank where a token takes most.
    pub kv_tokens: usize,
    /// Tokens of one block: a sequence takes whole blocks of the cache. At least 1.
    pub kv_block_tokens: usize,
}

impl Limits {
    /// The limits of `model`, which are the same on every rank.
    pub fn of(model: &Model) -> Self {
        let (_, blocks) = model.kv_blocks();
        let limits = model.kv_limits();
        Self {
            slots: limits.slots,
            context_tokens: limits.max_tokens_per_slot.min(model.config().context),
            kv_tokens: blocks.saturating_mul(KV_BLOCK_TOKENS),
            kv_block_tokens: KV_BLOCK_TOKENS,
        }
    }

    /// The most tokens one request may reach, prompt and generated.
    pub fn request_tokens(&self) -> usize {
        self.context_tokens.min(self.whole_blocks(self.kv_tokens))
    }

    /// The tokens of the blocks that a sequence of `tokens` tokens takes.
    pub(super) fn taken(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(self.kv_block_tokens.max(1))
    }

    /// The longest sequence that fits into `room` tokens.
    pub(super) fn whole_blocks(&self, room: usize) -> usize {
        room - room % self.kv_block_tokens.max(1)
    }
}

/// Values that change while serving. Clones share them.
#[derive(Debug, Clone)]
pub struct Settings {
    values: Arc<Values>,
    faults: Option<FaultHook>,
}

#[derive(Debug)]
struct Values {
    prefill_chunk: AtomicUsize,
    max_concurrency: AtomicUsize,
}

impl Settings {
    /// Settings with these starting values and no fault hook.
    pub fn new(prefill_chunk: usize, max_concurrency: usize) -> Self {
        let values = Values { prefill_chunk: 1.into(), max_concurrency: 1.into() };
        let settings = Self { values: Arc::new(values), faults: None };
        settings.set_prefill_chunk(prefill_chunk);
        settings.set_max_concurrency(max_concurrency);
        settings
    }

    /// The same settings, honouring `faults`.
    #[must_use]
    pub fn with_faults(self, faults: FaultHook) -> Self {
        Self { faults: Some(faults), ..self }
    }

    /// The most prompt tokens one step feeds, over all requests.
    pub fn prefill_chunk(&self) -> usize {
        self.values.prefill_chunk.load(Ordering::Relaxed)
    }

    /// Sets the most prompt tokens of one step, from the next step on; brought into 1 to 61,440.
    pub fn set_prefill_chunk(&self, tokens: usize) {
        // Room is left for one decode token of every entry a plan can have.
        let tokens = tokens.clamp(1, MAX_TOKENS - MAX_ENTRIES);
        self.values.prefill_chunk.store(tokens, Ordering::Relaxed);
    }

    /// The most requests that run at once.
    pub fn max_concurrency(&self) -> usize {
        self.values.max_concurrency.load(Ordering::Relaxed)
    }

    /// Sets how many requests run at once, from the next step on; at least 1, and never more than the model has slots.
    /// Running requests above a lowered value go on to their end.
    pub fn set_max_concurrency(&self, requests: usize) {
        self.values.max_concurrency.store(requests.clamp(1, MAX_ENTRIES), Ordering::Relaxed);
    }

    /// Lasts as long as a planted fault says, if there is one.
    pub(super) fn suffer_faults(&self) {
        if let Some(delay) = self.faults.as_ref().and_then(FaultHook::take_compute_delay) {
            std::thread::sleep(delay);
        }
    }
}

/// Plants faults in a step loop whose [`Settings`] were made to honour them. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FaultHook {
    compute_delay_ms: Arc<AtomicU64>,
}

impl FaultHook {
    /// Delays the computation of the next step, once. Counted in milliseconds.
    pub fn delay_compute(&self, delay: Duration) {
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.compute_delay_ms.store(delay_ms, Ordering::Relaxed);
    }

    fn take_compute_delay(&self) -> Option<Duration> {
        let delay_ms = self.compute_delay_ms.swap(0, Ordering::Relaxed);
        (delay_ms > 0).then(|| Duration::from_millis(delay_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_values_and_values_are_kept_in_range() {
        let settings = Settings::new(0, 0);
        let other = settings.clone();
        assert_eq!((other.prefill_chunk(), other.max_concurrency()), (1, 1));
        settings.set_prefill_chunk(usize::MAX);
        settings.set_max_concurrency(7);
        assert_eq!((other.prefill_chunk(), other.max_concurrency()), (MAX_TOKENS - MAX_ENTRIES, 7));
    }

    #[test]
    fn a_planted_delay_counts_once() {
        let hook = FaultHook::default();
        hook.clone().delay_compute(Duration::from_millis(5));
        assert_eq!(hook.take_compute_delay(), Some(Duration::from_millis(5)));
        assert_eq!(hook.take_compute_delay(), None);
    }
}
