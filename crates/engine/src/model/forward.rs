//! One step of one rank's part of the model.

use super::attention::Attend;
use super::kv::Kv;
use super::linear::Threads;
use super::load::Weights;
use super::{KvError, KvLimits, LoadError, ModelConfig, ModelFile, PlanError, Split, StepPlan};
use crate::communicator::{Communicator, CommunicatorError};

/// One rank's part of a model, with its key/value cache.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    split: Split,
    weights: Weights,
    kv: Kv,
    threads: Threads,
    /// For each position the cosine and sine of every pair of a head, side by side.
    angles: Vec<(f32, f32)>,
    scratch: Scratch,
}

/// Memory reused from step to step.
#[derive(Debug, Default)]
struct Scratch {
    normed: Vec<f32>,
    wide: Vec<f32>,
    narrow: Vec<f32>,
    projected: Vec<f32>,
    transposed: Vec<f32>,
}

/// Why a step gave no logits.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A collective failed. The cache holds what it held before the step, its releases aside.
    #[error("a collective of the step failed")]
    Communicator(#[from] CommunicatorError),
    /// The plan is malformed; nothing was changed.
    #[error("the step plan is malformed")]
    Plan(#[from] PlanError),
    /// The plan does not fit the cache; nothing was changed.
    #[error("the step plan does not fit the key/value cache")]
    Kv(#[from] KvError),
    /// A token the model does not know; nothing was changed.
    #[error("slot {slot} is fed token {token}, the vocabulary has {vocabulary}")]
    Token {
        /// The slot of the entry.
        slot: u32,
        /// The token.
        token: u32,
        /// The number of tokens the model knows.
        vocabulary: usize,
    },
    /// The group is not the one the model was cut for; nothing was changed.
    #[error(
        "the model was loaded for rank {} of {}, the group says rank {} of {}",
        loaded.0, loaded.1, group.0, group.1
    )]
    Group {
        /// Rank and size the weights were cut for.
        loaded: (usize, usize),
        /// Rank and size of the communicator.
        group: (usize, usize),
    },
    /// A row of the embedding table cannot be decoded.
    #[error("the embedding table cannot be decoded")]
    Embedding(#[source] Box<candle_core::Error>),
}

/// Where one token of a step belongs.
#[derive(Debug, Clone, Copy)]
struct Place {
    slot: u32,
    position: usize,
}

impl Model {
    /// Loads the part of `file` that `split` names, to compute with `threads` threads (at least 1). `progress` is
    /// called with the number of tensors loaded and their total. The tokens of a slot are limited to the model's
    /// context as well.
    ///
    /// # Errors
    /// When the file cannot be read, the split was made for another model, or threads cannot be started.
    pub fn load(
        file: &ModelFile,
        split: Split,
        limits: KvLimits,
        threads: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, LoadError> {
        let config = file.config().clone();
        let threads = Threads::new(threads)
            .map_err(|source| LoadError::Threads { source: Box::new(source) })?;
        let weights = Weights::load(file, &split, progress)?;
        let most = limits.max_tokens_per_slot.min(config.context);
        let limits = KvLimits { max_tokens_per_slot: most, ..limits };
        let kv = Kv::new(&config, &split, limits);
        let angles = angles(&config, most);
        Ok(Self { config, split, weights, kv, threads, angles, scratch: Scratch::default() })
    }

    /// Runs one step and returns the logits (over the whole vocabulary) of the entries that want them, in the order of
    /// the plan; every rank gets the same bits. The beacon is the caller's to set.
    ///
    /// # Errors
    /// Refused plans change nothing. After a failed collective the same plan may be run again once the group works,
    /// provided that every rank still holds its cache; else [`reset`](Self::reset) every rank and feed the sequences
    /// from their start.
    pub fn forward(
        &mut self,
        plan: &StepPlan,
        comm: &mut dyn Communicator,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        self.check(plan, comm)?;
        let places: Vec<Place> = plan
            .entries
            .iter()
            .flat_map(|entry| {
                (entry.position as usize..)
                    .take(entry.tokens.len())
                    .map(|position| Place { slot: entry.slot, position })
            })
            .collect();
        self.kv.prepare(plan)?;
        let mut step = Step {
            config: &self.config,
            split: &self.split,
            weights: &self.weights,
            kv: &mut self.kv,
            threads: &self.threads,
            angles: &self.angles,
            scratch: &mut self.scratch,
            places: &places,
        };
        let threads = &self.threads;
        let logits = threads.enter(|| step.run(plan, comm))?;
        self.kv.commit(plan);
        Ok(logits)
    }

    /// Empties all slots.
    pub fn reset(&mut self) {
        self.kv.reset();
    }

    /// The shape of the model.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The part this rank holds.
    #[must_use]
    pub fn split(&self) -> &Split {
        &self.split
    }

    /// The limits of the key/value cache in force.
    #[must_use]
    pub fn kv_limits(&self) -> KvLimits {
        self.kv.limits()
    }

    /// Blocks of [`KV_BLOCK_TOKENS`](super::KV_BLOCK_TOKENS) tokens in use and in all; a slot uses whole blocks. Equal
    /// on every rank.
    #[must_use]
    pub fn kv_blocks(&self) -> (usize, usize) {
        self.kv.blocks()
    }

    /// Bytes the key/value cache has allocated on this rank.
    #[must_use]
    pub fn kv_bytes(&self) -> u64 {
        self.kv.bytes()
    }

    /// Bytes of weights on this rank.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    fn check(&self, plan: &StepPlan, comm: &dyn Communicator) -> Result<(), ModelError> {
        plan.check()?;
        let loaded = (self.split.rank(), self.split.size());
        let group = (comm.rank(), comm.size());
        if loaded != group {
            return Err(ModelError::Group { loaded, group });
        }
        let vocabulary = self.config.vocabulary;
        for entry in &plan.entries {
            if let Some(&token) = entry.tokens.iter().find(|&&token| token as usize >= vocabulary) {
                return Err(ModelError::Token { slot: entry.slot, token, vocabulary });
            }
        }
        Ok(())
    }
}

/// What one step works with.
struct Step<'a> {
    config: &'a ModelConfig,
    split: &'a Split,
    weights: &'a Weights,
    kv: &'a mut Kv,
    threads: &'a Threads,
    angles: &'a [(f32, f32)],
    scratch: &'a mut Scratch,
    places: &'a [Place],
}

impl Step<'_> {
    fn run(
        &mut self,
        plan: &StepPlan,
        comm: &mut dyn Communicator,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let tokens = plan.entries.iter().flat_map(|entry| entry.tokens.iter().copied());
        let mut stream = match self.places {
            [] => return Ok(Vec::new()),
            _ => self
                .weights
                .embedding
                .rows(tokens)
                .map_err(|source| ModelError::Embedding(Box::new(source)))?,
        };
        for layer in 0..self.config.layers {
            self.attention(layer, &stream);
            self.add_over_ranks(&mut stream, comm)?;
            self.feed_forward(layer, &stream);
            self.add_over_ranks(&mut stream, comm)?;
        }
        self.logits(plan, &stream, comm)
    }

    /// Leaves this rank's share of the attention's result in `scratch.projected`.
    fn attention(&mut self, layer: usize, stream: &[f32]) {
        let weights = &self.weights.layers[layer];
        let Scratch { normed, wide, narrow, projected, transposed } = &mut *self.scratch;
        norm(stream, &weights.attention_norm, self.config.norm_epsilon, normed);
        weights.query_key_value.apply(self.threads, normed, wide, transposed);
        let width = self.config.head_width;
        let groups = self.split.mine().kv_groups.len();
        let per_group = self.config.heads_per_group() * width;
        let (queries, keys) = (groups * per_group, groups * width);
        narrow.clear();
        narrow.resize(self.places.len() * queries, 0.0);
        if groups == 0 {
            projected.clear();
            return;
        }
        let row = queries + 2 * keys;
        for (place, row) in self.places.iter().zip(wide.chunks_exact_mut(row)) {
            let angles = &self.angles[place.position * width / 2..][..width / 2];
            row[..queries + keys].chunks_exact_mut(width).for_each(|head| rotate(head, angles));
            let (key, value) = row[queries..].split_at(keys);
            self.kv.write(place.slot, place.position, layer, key, value);
        }
        let (kv, places, wide, arch) = (&*self.kv, self.places, &*wide, self.threads.arch());
        let tasks = places.len() * groups;
        let each = tasks.div_ceil(32);
        self.threads.chunks(narrow, each * per_group, |chunk, out| {
            let mut scores = Vec::new();
            for (index, out) in out.chunks_exact_mut(per_group).enumerate() {
                let (token, group) =
                    ((chunk * each + index) / groups, (chunk * each + index) % groups);
                let place = places[token];
                arch.dispatch(Attend {
                    queries: &wide[token * row + group * per_group..][..per_group],
                    blocks: kv.read(place.slot, layer, group, place.position + 1),
                    out,
                    scores: &mut scores,
                    width,
                });
            }
        });
        weights.attention_output.apply(self.threads, narrow, projected, transposed);
    }

    /// Leaves this rank's share of the feed-forward network's result in `scratch.projected`.
    fn feed_forward(&mut self, layer: usize, stream: &[f32]) {
        let weights = &self.weights.layers[layer];
        let Scratch { normed, wide, narrow, projected, transposed } = &mut *self.scratch;
        norm(stream, &weights.ffn_norm, self.config.norm_epsilon, normed);
        weights.gate_up.apply(self.threads, normed, wide, transposed);
        let ffn = self.split.mine().ffn.len();
        narrow.clear();
        narrow.resize(self.places.len() * ffn, 0.0);
        let wide = &*wide;
        self.threads.chunks(narrow, (16 * ffn).max(1024), |chunk, out| {
            let first = chunk * (16 * ffn).max(1024);
            for (index, out) in out.iter_mut().enumerate() {
                let at = first + index;
                let gate_at = at / ffn * 2 * ffn + at % ffn;
                let (gate, up) = (wide[gate_at], wide[gate_at + ffn]);
                *out = gate / (1.0 + (-gate).exp()) * up;
            }
        });
        weights.down.apply(self.threads, narrow, projected, transposed);
    }

    /// Adds the sum of all ranks' `scratch.projected` to `stream`; a rank with nothing to add adds zeros.
    fn add_over_ranks(
        &mut self,
        stream: &mut [f32],
        comm: &mut dyn Communicator,
    ) -> Result<(), CommunicatorError> {
        let projected = &mut self.scratch.projected;
        projected.resize(stream.len(), 0.0);
        comm.all_reduce_sum(projected)?;
        for (value, add) in stream.iter_mut().zip(projected) {
            *value += *add;
        }
        Ok(())
    }

    fn logits(
        &mut self,
        plan: &StepPlan,
        stream: &[f32],
        comm: &mut dyn Communicator,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let width = self.config.width;
        let mut last = Vec::new();
        let mut end = 0;
        for entry in &plan.entries {
            end += entry.tokens.len();
            if entry.want_logits {
                last.extend_from_slice(&stream[(end - 1) * width..end * width]);
            }
        }
        let wanted = last.len() / width;
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let Scratch { normed, wide, transposed, .. } = &mut *self.scratch;
        norm(&last, &self.weights.output_norm, self.config.norm_epsilon, normed);
        self.weights.output.apply(self.threads, normed, wide, transposed);
        let shares = self.split.shares();
        let lengths: Vec<usize> =
            shares.iter().map(|share| wanted * share.vocabulary.len()).collect();
        let mut gathered = vec![0.0; wanted * self.config.vocabulary];
        comm.all_gather(wide, &lengths, &mut gathered)?;
        if shares.len() == 1 && wanted == 1 {
            return Ok(vec![gathered]);
        }
        let mut logits: Vec<Vec<f32>> =
            (0..wanted).map(|_| Vec::with_capacity(self.config.vocabulary)).collect();
        let mut rest = &*gathered;
        for (share, &length) in shares.iter().zip(&lengths) {
            let (part, after) = rest.split_at(length);
            rest = after;
            for (logits, row) in logits.iter_mut().zip(part.chunks(share.vocabulary.len().max(1))) {
                logits.extend_from_slice(row);
            }
        }
        Ok(logits)
    }
}

fn angles(config: &ModelConfig, positions: usize) -> Vec<(f32, f32)> {
    let pairs = config.head_width / 2;
    let step = |pair: usize| {
        f64::from(config.rope_base).powf(-2.0 * pair as f64 / config.head_width as f64)
    };
    let steps: Vec<f64> = (0..pairs).map(step).collect();
    (0..positions)
        .flat_map(|position| steps.iter().map(move |step| position as f64 * step))
        .map(|angle| (angle.cos() as f32, angle.sin() as f32))
        .collect()
}

/// Turns each pair of neighbouring values of a head by its angle.
fn rotate(head: &mut [f32], angles: &[(f32, f32)]) {
    let (pairs, _) = head.as_chunks_mut::<2>();
    for (pair, &(cosine, sine)) in pairs.iter_mut().zip(angles) {
        let [a, b] = *pair;
        *pair = [a * cosine - b * sine, a * sine + b * cosine];
    }
}

/// Writes the rows of `x`, each divided by its root mean square and multiplied by `weight`, to `out`.
fn norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut Vec<f32>) {
    out.clear();
    out.reserve(x.len());
    for row in x.chunks_exact(weight.len()) {
        let mut sums = [0.0f32; 8];
        for part in row.chunks(8) {
            for (sum, value) in sums.iter_mut().zip(part) {
                *sum += value * value;
            }
        }
        let mean = sums.iter().sum::<f32>() / row.len() as f32;
        let scale = 1.0 / (mean + epsilon).sqrt();
        out.extend(row.iter().zip(weight).map(|(value, weight)| value * scale * weight));
    }
}
