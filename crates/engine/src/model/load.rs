//! Reads one rank's part of the weights.

use super::file::TensorReader;
use super::linear::Linear;
use super::{ModelConfig, ModelFile, ModelFileError, Share, Split};
use candle_core::Device;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use std::ops::Range;

/// Rows that are dequantised at once when only some of their columns are kept.
const ROWS_AT_ONCE: usize = 256;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The weights cannot be read.
    #[error("the weights cannot be read")]
    File(#[from] ModelFileError),
    /// The cut was made for another model.
    #[error(
        "the split covers {split:?} (key/value groups, FFN columns, vocabulary), the model has {model:?}"
    )]
    Split {
        /// What the split covers.
        split: [usize; 3],
        /// What the model has.
        model: [usize; 3],
    },
    /// The threads to compute with cannot be started.
    #[error("the compute threads cannot be started; lower their number")]
    Threads {
        /// What the system said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The weights of one layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attention_norm: Vec<f32>,
    /// Rows of the queries, then the keys, then the values of this rank's groups.
    pub(super) query_key_value: Linear,
    pub(super) attention_output: Linear,
    pub(super) ffn_norm: Vec<f32>,
    /// Rows of the gate, then of the up projection.
    pub(super) gate_up: Linear,
    pub(super) down: Linear,
}

/// One rank's part of the weights.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) embedding: Embedding,
    pub(super) layers: Vec<Layer>,
    pub(super) output_norm: Vec<f32>,
    pub(super) output: Linear,
}

impl Weights {
    pub(super) fn load(
        file: &ModelFile,
        split: &Split,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, LoadError> {
        let config = file.config();
        check_split(config, split)?;
        let total = config.tensors().len();
        let mut part =
            Part { reader: file.reader()?, config, share: split.mine(), done: 0, total, progress };
        (part.progress)(0, total);
        let (bytes, dtype) = part.reader.raw("token_embd.weight")?;
        let embedding = Embedding { bytes, dtype, width: config.width };
        let output = if config.tied_embeddings { "token_embd.weight" } else { "output.weight" };
        let output =
            Linear::new(part.reader.rows(output, part.share.vocabulary.clone())?, config.width);
        part.count(if config.tied_embeddings { 1 } else { 2 });
        let layers = (0..config.layers).map(|layer| part.layer(layer)).collect::<Result<_, _>>()?;
        let output_norm = part.rows("output_norm.weight", 0..1)?;
        Ok(Self { embedding, layers, output_norm, output })
    }

    pub(super) fn bytes(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| {
            let norms = layer.attention_norm.len() + layer.ffn_norm.len();
            let matrices =
                [&layer.query_key_value, &layer.attention_output, &layer.gate_up, &layer.down];
            4 * norms as u64 + matrices.iter().map(|matrix| matrix.bytes()).sum::<u64>()
        });
        let norm = 4 * self.output_norm.len() as u64;
        self.embedding.bytes.len() as u64 + layers.sum::<u64>() + norm + self.output.bytes()
    }
}

fn check_split(config: &ModelConfig, split: &Split) -> Result<(), LoadError> {
    let model = [config.kv_groups, config.ffn_width, config.vocabulary];
    let covered = split
        .shares()
        .last()
        .map_or([0; 3], |last| [last.kv_groups.end, last.ffn.end, last.vocabulary.end]);
    if covered == model { Ok(()) } else { Err(LoadError::Split { split: covered, model }) }
}

struct Part<'a> {
    reader: TensorReader<'a>,
    config: &'a ModelConfig,
    share: &'a Share,
    done: usize,
    total: usize,
    progress: &'a mut dyn FnMut(usize, usize),
}

impl Part<'_> {
    fn layer(&mut self, layer: usize) -> Result<Layer, LoadError> {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        let (config, groups, ffn) = (self.config, &self.share.kv_groups, self.share.ffn.clone());
        let keys = groups.start * config.head_width..groups.end * config.head_width;
        let per_group = config.heads_per_group();
        let queries = keys.start * per_group..keys.end * per_group;
        let attention_norm = self.rows(&name("attn_norm"), 0..1)?;
        let mut query_key_value = self.rows(&name("attn_q"), queries.clone())?;
        query_key_value.extend(self.rows(&name("attn_k"), keys.clone())?);
        query_key_value.extend(self.rows(&name("attn_v"), keys)?);
        let attention_output = self.columns(&name("attn_output"), queries)?;
        let ffn_norm = self.rows(&name("ffn_norm"), 0..1)?;
        let mut gate_up = self.rows(&name("ffn_gate"), ffn.clone())?;
        gate_up.extend(self.rows(&name("ffn_up"), ffn.clone())?);
        let down = self.columns(&name("ffn_down"), ffn)?;
        Ok(Layer {
            attention_norm,
            query_key_value: Linear::new(query_key_value, config.width),
            attention_output,
            ffn_norm,
            gate_up: Linear::new(gate_up, config.width),
            down,
        })
    }

    fn rows(&mut self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, LoadError> {
        let values = if rows.is_empty() { Vec::new() } else { self.reader.rows(name, rows)? };
        self.count(1);
        Ok(values)
    }

    /// All rows of a matrix that gives back the residual stream, but only `columns` of each.
    fn columns(&mut self, name: &str, columns: Range<usize>) -> Result<Linear, LoadError> {
        let mut kept = Vec::with_capacity(self.config.width * columns.len());
        if !columns.is_empty() {
            for start in (0..self.config.width).step_by(ROWS_AT_ONCE) {
                let rows = start..self.config.width.min(start + ROWS_AT_ONCE);
                let count = rows.len();
                let values = self.reader.rows(name, rows)?;
                for row in values.chunks_exact(values.len() / count) {
                    kept.extend_from_slice(&row[columns.clone()]);
                }
            }
        }
        self.count(1);
        Ok(Linear::new(kept, columns.len()))
    }

    fn count(&mut self, tensors: usize) {
        self.done += tensors;
        (self.progress)(self.done, self.total);
    }
}

/// The embedding table, kept as it is stored.
pub(super) struct Embedding {
    bytes: Vec<u8>,
    dtype: GgmlDType,
    width: usize,
}

impl std::fmt::Debug for Embedding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Embedding({:?}, {} bytes)", self.dtype, self.bytes.len())
    }
}

impl Embedding {
    /// The rows of `tokens`, each below the size of the vocabulary.
    pub(super) fn rows(&self, tokens: impl Iterator<Item = u32>) -> candle_core::Result<Vec<f32>> {
        let row = self.width / self.dtype.block_size() * self.dtype.type_size();
        let mut bytes = Vec::new();
        let mut count = 0;
        for token in tokens {
            let start = token as usize * row;
            bytes.extend_from_slice(&self.bytes[start..start + row]);
            count += 1;
        }
        if self.dtype == GgmlDType::F32 {
            let (values, _) = bytes.as_chunks::<4>();
            return Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect());
        }
        qtensor_from_ggml(self.dtype, &bytes, vec![count, self.width], &Device::Cpu)?
            .dequantize(&Device::Cpu)?
            .flatten_all()?
            .to_vec1()
    }
}
