//! The shape of a model, and the part of it that one rank holds.

use std::ops::Range;

/// FFN columns are handed out in multiples of this, so that a slice starts and ends at a quantisation block.
const FFN_UNIT: usize = 32;

/// The shape of a llama-family model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The number of transformer layers.
    pub layers: usize,
    /// The width of the residual stream.
    pub width: usize,
    /// The number of query heads; a multiple of `kv_groups`.
    pub heads: usize,
    /// The number of key/value heads, each shared by `heads / kv_groups` query heads.
    pub kv_groups: usize,
    /// The width of one head; even.
    pub head_width: usize,
    /// The width of the feed-forward network.
    pub ffn_width: usize,
    /// The number of tokens.
    pub vocabulary: usize,
    /// The number of tokens the model was trained to look back on.
    pub context: usize,
    /// The base of the rotary position angles.
    pub rope_base: f32,
    /// Added under the square root of every RMS norm.
    pub norm_epsilon: f32,
    /// Whether the output matrix is the embedding table.
    pub tied_embeddings: bool,
}

impl ModelConfig {
    /// Query heads that share one key/value head.
    #[must_use]
    pub fn heads_per_group(&self) -> usize {
        self.heads / self.kv_groups
    }

    /// Every tensor of the model with its shape: rows, then values of a row.
    pub(super) fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (width, queries) = (self.width, self.heads * self.head_width);
        let keys = self.kv_groups * self.head_width;
        let mut tensors = vec![
            ("token_embd.weight".into(), vec![self.vocabulary, width]),
            ("output_norm.weight".into(), vec![width]),
        ];
        if !self.tied_embeddings {
            tensors.push(("output.weight".into(), vec![self.vocabulary, width]));
        }
        for layer in 0..self.layers {
            let mut push = |name: &str, shape: Vec<usize>| {
                tensors.push((format!("blk.{layer}.{name}.weight"), shape));
            };
            push("attn_norm", vec![width]);
            push("attn_q", vec![queries, width]);
            push("attn_k", vec![keys, width]);
            push("attn_v", vec![keys, width]);
            push("attn_output", vec![width, queries]);
            push("ffn_norm", vec![width]);
            push("ffn_gate", vec![self.ffn_width, width]);
            push("ffn_up", vec![self.ffn_width, width]);
            push("ffn_down", vec![width, self.ffn_width]);
        }
        tensors
    }
}

/// The part of a model one rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Key/value groups, each with its query heads; may be empty.
    pub kv_groups: Range<usize>,
    /// Columns of the feed-forward network; may be empty.
    pub ffn: Range<usize>,
    /// Rows of the output matrix; may be empty.
    pub vocabulary: Range<usize>,
}

/// How a model is cut over the ranks of a group: a pure function of shared values, so that all ranks agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    rank: usize,
    shares: Vec<Share>,
}

/// A rank that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no rank {rank} in a group of {size}")]
pub struct SplitError {
    /// The rank asked for.
    pub rank: usize,
    /// The size of the group.
    pub size: usize,
}

impl Split {
    /// The cut for `rank` of `size` ranks: whole key/value groups, FFN columns in multiples of 32 where they can be,
    /// and vocabulary rows, each as even as possible with the lower ranks holding the rest.
    ///
    /// # Errors
    /// When `rank` is not below `size`.
    pub fn of(config: &ModelConfig, rank: usize, size: usize) -> Result<Self, SplitError> {
        if rank >= size {
            return Err(SplitError { rank, size });
        }
        let shares = (0..size)
            .map(|rank| {
                let units = even(config.ffn_width.div_ceil(FFN_UNIT), rank, size);
                let column = |unit: usize| (unit * FFN_UNIT).min(config.ffn_width);
                Share {
                    kv_groups: even(config.kv_groups, rank, size),
                    ffn: column(units.start)..column(units.end),
                    vocabulary: even(config.vocabulary, rank, size),
                }
            })
            .collect();
        Ok(Self { rank, shares })
    }

    /// The rank this cut is for.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.shares.len()
    }

    /// What this rank holds.
    #[must_use]
    pub fn mine(&self) -> &Share {
        &self.shares[self.rank]
    }

    /// What every rank holds, in rank order.
    #[must_use]
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }
}

fn even(total: usize, rank: usize, size: usize) -> Range<usize> {
    let (each, rest) = (total / size, total % size);
    let start = rank * each + rank.min(rest);
    start..start + each + usize::from(rank < rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        ModelConfig {
            layers: 30,
            width: 576,
            heads: 9,
            kv_groups: 3,
            head_width: 64,
            ffn_width: 1536,
            vocabulary: 49_152,
            context: 8192,
            rope_base: 1e5,
            norm_epsilon: 1e-5,
            tied_embeddings: true,
        }
    }

    #[test]
    fn three_groups_over_four_ranks_leave_the_last_without() {
        let split = Split::of(&config(), 3, 4).unwrap();
        let groups: Vec<_> = split.shares().iter().map(|share| share.kv_groups.clone()).collect();
        assert_eq!(groups, [0..1, 1..2, 2..3, 3..3]);
        assert_eq!(split.mine().ffn, 1152..1536);
        assert_eq!(split.mine().vocabulary, 36_864..49_152);
    }

    #[test]
    fn three_groups_over_two_ranks_are_two_and_one() {
        let split = Split::of(&config(), 0, 2).unwrap();
        assert_eq!(split.mine().kv_groups, 0..2);
        assert_eq!(split.shares()[1].kv_groups, 2..3);
    }

    #[test]
    fn shares_cover_everything_once_and_start_at_blocks() {
        for (ffn_width, vocabulary) in [(1536, 49_152), (96, 259), (100, 7), (32, 2), (31, 1)] {
            let config = ModelConfig { ffn_width, vocabulary, ..config() };
            for size in 1..=8 {
                let split = Split::of(&config, size - 1, size).unwrap();
                let mut ends = (0, 0, 0);
                for share in split.shares() {
                    assert_eq!(
                        (share.kv_groups.start, share.ffn.start, share.vocabulary.start),
                        ends
                    );
                    assert!(share.ffn.is_empty() || share.ffn.start % 32 == 0);
                    ends = (share.kv_groups.end, share.ffn.end, share.vocabulary.end);
                }
                assert_eq!(ends, (config.kv_groups, ffn_width, vocabulary));
            }
        }
    }

    #[test]
    fn a_rank_outside_the_group_is_an_error() {
        let error = Split::of(&config(), 4, 4).unwrap_err();
        assert_eq!(error.to_string(), "there is no rank 4 in a group of 4");
        assert!(Split::of(&config(), 0, 0).is_err());
    }
}
