//! A model of a few kilobytes with shapes that divide badly: 3 key/value groups, 5 FFN blocks, 263 tokens.

use crate::tokenizer::spelling_of;
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const LAYERS: usize = 2;
const WIDTH: usize = 64;
const HEADS: usize = 6;
const KV_GROUPS: usize = 3;
const HEAD_WIDTH: usize = 16;
const FFN_WIDTH: usize = 160;
const CONTEXT: u32 = 256;

const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const MERGES: [&str; 4] = ["h e", "l l", "he ll", "Ġ w"];

const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
     message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ \
     '<|im_start|>assistant\n' }}{% endif %}";

/// A tiny model in a temporary file, removed when dropped.
#[derive(Debug)]
pub struct TinyModel {
    path: PathBuf,
}

impl TinyModel {
    /// Writes the model to a new temporary file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn create() -> candle_core::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("railweave-tiny-{}-{number}.gguf", std::process::id());
        let model = Self { path: std::env::temp_dir().join(name) };
        write_tiny_model(&model.path)?;
        Ok(model)
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TinyModel {
    fn drop(&mut self) {
        // A temporary file that is already gone needs no removing.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes a tiny llama with a byte-level tokenizer and a chat template to `path`, always the same bytes.
///
/// # Errors
/// When the file cannot be written.
pub fn write_tiny_model(path: &Path) -> candle_core::Result<()> {
    let mut tokens: Vec<String> = SPECIAL.iter().map(ToString::to_string).collect();
    tokens.extend((0..=255).map(|byte| spelling_of(byte).to_string()));
    tokens.extend(MERGES.iter().map(|merge| merge.replace(' ', "")));
    let kinds = (0..tokens.len()).map(|token| Value::I32(if token < 3 { 3 } else { 1 })).collect();
    let tensors = tensors(tokens.len())?;
    let text = |text: &str| Value::String(text.into());
    let texts = |texts: &[String]| Value::Array(texts.iter().map(|part| text(part)).collect());
    let merges: Vec<String> = MERGES.iter().map(ToString::to_string).collect();
    let metadata = [
        ("general.architecture", text("llama")),
        ("general.name", text("tiny")),
        ("llama.block_count", Value::U32(LAYERS as u32)),
        ("llama.context_length", Value::U32(CONTEXT)),
        ("llama.embedding_length", Value::U32(WIDTH as u32)),
        ("llama.feed_forward_length", Value::U32(FFN_WIDTH as u32)),
        ("llama.attention.head_count", Value::U32(HEADS as u32)),
        ("llama.attention.head_count_kv", Value::U32(KV_GROUPS as u32)),
        ("llama.attention.key_length", Value::U32(HEAD_WIDTH as u32)),
        ("llama.attention.value_length", Value::U32(HEAD_WIDTH as u32)),
        ("llama.rope.dimension_count", Value::U32(HEAD_WIDTH as u32)),
        ("llama.rope.freq_base", Value::F32(10_000.0)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("smollm")),
        ("tokenizer.ggml.tokens", texts(&tokens)),
        ("tokenizer.ggml.token_type", Value::Array(kinds)),
        ("tokenizer.ggml.merges", texts(&merges)),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.chat_template", text(TEMPLATE)),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut BufWriter::new(File::create(path)?), &metadata, &tensors)
}

fn tensors(vocabulary: usize) -> candle_core::Result<Vec<(String, QTensor)>> {
    let (queries, keys) = (HEADS * HEAD_WIDTH, KV_GROUPS * HEAD_WIDTH);
    let mut noise = Noise(1);
    let mut all = vec![
        ("token_embd.weight".into(), noise.matrix(vocabulary, WIDTH, 1.0, GgmlDType::Q8_0)?),
        ("output_norm.weight".into(), noise.norm()?),
    ];
    for layer in 0..LAYERS {
        all.push((format!("blk.{layer}.attn_norm.weight"), noise.norm()?));
        all.push((format!("blk.{layer}.ffn_norm.weight"), noise.norm()?));
        for (name, rows, row) in [
            ("attn_q", queries, WIDTH),
            ("attn_k", keys, WIDTH),
            ("attn_v", keys, WIDTH),
            ("attn_output", WIDTH, queries),
            ("ffn_gate", FFN_WIDTH, WIDTH),
            ("ffn_up", FFN_WIDTH, WIDTH),
            ("ffn_down", WIDTH, FFN_WIDTH),
        ] {
            let scale = (6.0 / row as f32).sqrt();
            let tensor = noise.matrix(rows, row, scale, GgmlDType::Q4_1)?;
            all.push((format!("blk.{layer}.{name}.weight"), tensor));
        }
    }
    Ok(all)
}

/// A fixed stream of numbers that look random.
struct Noise(u32);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    fn matrix(
        &mut self,
        rows: usize,
        row: usize,
        scale: f32,
        dtype: GgmlDType,
    ) -> candle_core::Result<QTensor> {
        let values: Vec<f32> = (0..rows * row).map(|_| scale * self.next()).collect();
        QTensor::quantize(&Tensor::from_vec(values, (rows, row), &Device::Cpu)?, dtype)
    }

    fn norm(&mut self) -> candle_core::Result<QTensor> {
        let values: Vec<f32> = (0..WIDTH).map(|_| 1.0 + 0.1 * self.next()).collect();
        QTensor::quantize(&Tensor::from_vec(values, WIDTH, &Device::Cpu)?, GgmlDType::F32)
    }
}
