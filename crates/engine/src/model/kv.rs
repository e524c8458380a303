//! The keys and values of running sequences, in blocks of tokens taken from one bounded pool.
//!
//! Blocks are accounted for the largest share of any rank, so that every rank takes and refuses the same plans.

use super::{ModelConfig, Split, StepPlan};

/// Tokens in one block of the cache.
pub const KV_BLOCK_TOKENS: usize = 64;

/// How much the key/value cache may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLimits {
    /// Sequences at once; slots are numbered below this.
    pub slots: usize,
    /// The most tokens of one sequence.
    pub max_tokens_per_slot: usize,
    /// The most bytes over all slots, on the rank with the largest share.
    pub max_bytes: u64,
}

/// A step the cache cannot take; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// A slot outside the cache.
    #[error("slot {slot} is outside the cache of {slots} slots")]
    Slot {
        /// The slot asked for.
        slot: u32,
        /// The number of slots.
        slots: usize,
    },
    /// An entry that does not go on where its sequence ended.
    #[error("slot {slot} holds {held} tokens, the step goes on at {position}")]
    Position {
        /// The slot.
        slot: u32,
        /// Tokens in the slot.
        held: usize,
        /// Where the entry would go on.
        position: u32,
    },
    /// A sequence above the limit of a slot.
    #[error("slot {slot} would hold {tokens} tokens, at most {limit} are allowed")]
    TooLong {
        /// The slot.
        slot: u32,
        /// Tokens it would hold.
        tokens: usize,
        /// Tokens it may hold.
        limit: usize,
    },
    /// The byte limit is reached.
    #[error(
        "the step needs {needed} cache blocks of {KV_BLOCK_TOKENS} tokens, {free} of {total} are free; release a slot"
    )]
    Full {
        /// Blocks the step needs beyond those its slots have.
        needed: usize,
        /// Blocks that are free.
        free: usize,
        /// Blocks in all.
        total: usize,
    },
}

#[derive(Debug, Default)]
struct Slot {
    tokens: usize,
    blocks: Vec<Box<[f32]>>,
}

/// The cache of one rank.
#[derive(Debug)]
pub(super) struct Kv {
    limits: KvLimits,
    groups: usize,
    head_width: usize,
    block_values: usize,
    slots: Vec<Slot>,
    spare: Vec<Box<[f32]>>,
    taken: usize,
    total: usize,
}

impl Kv {
    pub(super) fn new(config: &ModelConfig, split: &Split, limits: KvLimits) -> Self {
        let groups = split.mine().kv_groups.len();
        let values =
            |groups: usize| 2 * config.layers * groups * KV_BLOCK_TOKENS * config.head_width;
        let largest = split.shares().iter().map(|share| share.kv_groups.len()).max().unwrap_or(0);
        let block_bytes = (4 * values(largest)).max(1) as u64;
        Self {
            limits,
            groups,
            head_width: config.head_width,
            block_values: values(groups),
            slots: (0..limits.slots).map(|_| Slot::default()).collect(),
            spare: Vec::new(),
            taken: 0,
            total: usize::try_from(limits.max_bytes / block_bytes).unwrap_or(usize::MAX),
        }
    }

    pub(super) fn limits(&self) -> KvLimits {
        self.limits
    }

    /// Blocks in use and in all.
    pub(super) fn blocks(&self) -> (usize, usize) {
        (self.taken, self.total)
    }

    /// Bytes allocated on this rank.
    pub(super) fn bytes(&self) -> u64 {
        4 * self.block_values as u64 * (self.taken + self.spare.len()) as u64
    }

    /// Releases the slots of `plan` and makes room for its entries, or changes nothing. The entries' tokens count only
    /// after [`commit`](Self::commit).
    pub(super) fn prepare(&mut self, plan: &StepPlan) -> Result<(), KvError> {
        let slots = self.slots.len();
        let outside = |slot: u32| KvError::Slot { slot, slots };
        let mut freed = 0;
        let mut release = plan.release.clone();
        release.sort_unstable();
        release.dedup();
        for &slot in &release {
            freed += self.slots.get(slot as usize).ok_or(outside(slot))?.blocks.len();
        }
        let mut needed = 0;
        for entry in &plan.entries {
            let slot = self.slots.get(entry.slot as usize).ok_or(outside(entry.slot))?;
            let released = release.binary_search(&entry.slot).is_ok();
            let (held, blocks) = if released { (0, 0) } else { (slot.tokens, slot.blocks.len()) };
            if held != entry.position as usize {
                let position = entry.position;
                return Err(KvError::Position { slot: entry.slot, held, position });
            }
            let (tokens, limit) = (held + entry.tokens.len(), self.limits.max_tokens_per_slot);
            if tokens > limit {
                return Err(KvError::TooLong { slot: entry.slot, tokens, limit });
            }
            needed += tokens.div_ceil(KV_BLOCK_TOKENS).saturating_sub(blocks);
        }
        let free = self.total - (self.taken - freed);
        if needed > free {
            return Err(KvError::Full { needed, free, total: self.total });
        }
        for slot in release {
            self.release(slot as usize);
        }
        for entry in &plan.entries {
            let end = entry.position as usize + entry.tokens.len();
            let slot = &mut self.slots[entry.slot as usize];
            while slot.blocks.len() < end.div_ceil(KV_BLOCK_TOKENS) {
                let block = self.spare.pop();
                slot.blocks.push(block.unwrap_or_else(|| vec![0.0; self.block_values].into()));
                self.taken += 1;
            }
        }
        Ok(())
    }

    /// Counts the tokens of a step whose keys and values are all written.
    pub(super) fn commit(&mut self, plan: &StepPlan) {
        for entry in &plan.entries {
            self.slots[entry.slot as usize].tokens += entry.tokens.len();
        }
    }

    pub(super) fn reset(&mut self) {
        for slot in 0..self.slots.len() {
            self.release(slot);
        }
    }

    fn release(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        slot.tokens = 0;
        self.taken -= slot.blocks.len();
        self.spare.append(&mut slot.blocks);
    }

    /// Stores the key and value of one token of a prepared step: for each group `head_width` values.
    pub(super) fn write(
        &mut self,
        slot: u32,
        position: usize,
        layer: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let (groups, width) = (self.groups, self.head_width);
        let block = &mut self.slots[slot as usize].blocks[position / KV_BLOCK_TOKENS];
        for group in 0..groups {
            for (which, from) in [key, value].into_iter().enumerate() {
                let part = ((layer * groups + group) * 2 + which) * KV_BLOCK_TOKENS;
                let start = (part + position % KV_BLOCK_TOKENS) * width;
                block[start..start + width].copy_from_slice(&from[group * width..][..width]);
            }
        }
    }

    /// The keys and the values of the first `tokens` tokens of a slot, block by block.
    pub(super) fn read(
        &self,
        slot: u32,
        layer: usize,
        group: usize,
        tokens: usize,
    ) -> impl Iterator<Item = (&[f32], &[f32])> + Clone {
        let (groups, width) = (self.groups, self.head_width);
        let start = (layer * groups + group) * 2 * KV_BLOCK_TOKENS * width;
        let blocks = &self.slots[slot as usize].blocks;
        blocks.iter().take(tokens.div_ceil(KV_BLOCK_TOKENS)).enumerate().map(
            move |(index, block)| {
                let length = (tokens - index * KV_BLOCK_TOKENS).min(KV_BLOCK_TOKENS) * width;
                let values = start + KV_BLOCK_TOKENS * width;
                (&block[start..start + length], &block[values..values + length])
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::StepEntry;
    use super::*;

    fn kv(blocks: u64) -> Kv {
        let config = ModelConfig {
            layers: 2,
            width: 8,
            heads: 2,
            kv_groups: 1,
            head_width: 4,
            ffn_width: 32,
            vocabulary: 4,
            context: 512,
            rope_base: 1e4,
            norm_epsilon: 1e-5,
            tied_embeddings: true,
        };
        let split = Split::of(&config, 0, 1).unwrap();
        let block = 2 * 2 * 64 * 4 * 4;
        let max_bytes = blocks * block + 1;
        Kv::new(&config, &split, KvLimits { slots: 2, max_tokens_per_slot: 200, max_bytes })
    }

    fn plan(release: &[u32], entries: &[(u32, u32, usize)]) -> StepPlan {
        StepPlan {
            release: release.to_vec(),
            entries: entries
                .iter()
                .map(|&(slot, position, tokens)| StepEntry {
                    slot,
                    position,
                    tokens: vec![1; tokens],
                    want_logits: false,
                })
                .collect(),
        }
    }

    #[test]
    fn the_byte_limit_refuses_a_step_and_changes_nothing() {
        let mut kv = kv(3);
        let first = plan(&[], &[(0, 0, 128)]);
        kv.prepare(&first).unwrap();
        kv.commit(&first);
        let error = kv.prepare(&plan(&[], &[(1, 0, 65)])).unwrap_err();
        assert_eq!(error, KvError::Full { needed: 2, free: 1, total: 3 });
        assert_eq!(kv.blocks(), (2, 3));
        kv.prepare(&plan(&[0], &[(1, 0, 65)])).unwrap();
        assert_eq!(kv.blocks(), (2, 3));
        assert_eq!(kv.bytes(), 2 * 4096);
    }

    #[test]
    fn a_step_must_go_on_where_its_sequence_ended() {
        let mut kv = kv(8);
        let first = plan(&[], &[(0, 0, 3)]);
        kv.prepare(&first).unwrap();
        kv.prepare(&first).unwrap();
        kv.commit(&first);
        let error = kv.prepare(&plan(&[], &[(0, 2, 1)])).unwrap_err();
        assert_eq!(error.to_string(), "slot 0 holds 3 tokens, the step goes on at 2");
        let error = kv.prepare(&plan(&[], &[(0, 3, 198)])).unwrap_err();
        assert_eq!(error, KvError::TooLong { slot: 0, tokens: 201, limit: 200 });
        assert_eq!(kv.prepare(&plan(&[2], &[])).unwrap_err(), KvError::Slot { slot: 2, slots: 2 });
        kv.prepare(&plan(&[0, 0], &[(0, 0, 1)])).unwrap();
    }

    #[test]
    fn what_was_written_is_read_back_across_blocks() {
        let mut kv = kv(8);
        let step = plan(&[], &[(1, 0, 70)]);
        kv.prepare(&step).unwrap();
        for position in 0..70 {
            for layer in 0..2 {
                let value = (position * 2 + layer) as f32;
                kv.write(1, position, layer, &[value; 4], &[-value; 4]);
            }
        }
        let blocks: Vec<_> = kv.read(1, 1, 0, 66).collect();
        assert_eq!((blocks.len(), blocks[0].0.len(), blocks[1].0.len()), (2, 256, 8));
        assert_eq!(blocks[1].0, [129.0, 129.0, 129.0, 129.0, 131.0, 131.0, 131.0, 131.0]);
        assert_eq!(blocks[1].1[4], -131.0);
    }
}
