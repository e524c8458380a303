//! A model file on disk: its header, read and checked, and its weights, read in rows.

use super::ModelConfig;
use super::header::{self, HeaderError};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, TensorInfo, Value};
use candle_core::{Device, Shape};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A GGUF file whose header was read and checked; [`Model::load`](super::Model::load) reads the weights.
pub struct ModelFile {
    path: PathBuf,
    content: Content,
    config: ModelConfig,
    fingerprint: String,
}

/// Why a file is not a usable model.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// The file cannot be read.
    #[error("{}: cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is no GGUF file, or a damaged one.
    #[error("{}: not a usable GGUF file; fetch it again or name another", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: HeaderError,
    },
    /// A key is missing or has a value that cannot be served.
    #[error("{}: key {key}: expected {expected}, found {found}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key of the header.
        key: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A tensor is missing, unknown, or not as it must be.
    #[error("{}: tensor {tensor}: expected {expected}, found {found}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The values of a tensor cannot be read.
    #[error("{}: tensor {tensor}: its values cannot be read", path.display())]
    Values {
        /// The file.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// What the reader said.
        #[source]
        source: Box<candle_core::Error>,
    },
}

impl ModelFile {
    /// Opens `path`, reads and checks its header, and takes its fingerprint, which reads the file once.
    ///
    /// # Errors
    /// [`ModelFileError`] names the file, the key or tensor, what was expected and what was found.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelFileError> {
        let path = path.as_ref().to_path_buf();
        let io = |source| ModelFileError::Io { path: path.clone(), source };
        let mut file = File::open(&path).map_err(io)?;
        let mut head = Vec::new();
        (&mut file).take(header::LIMIT_BYTES as u64).read_to_end(&mut head).map_err(io)?;
        let content = header::parse(&head)
            .map_err(|source| ModelFileError::Header { path: path.clone(), source })?;
        let mut hash = Sha256::new();
        hash.update(&head);
        let mut bytes = head.len() as u64;
        head.resize(1 << 20, 0);
        loop {
            match file.read(&mut head) {
                Ok(0) => break,
                Ok(read) => {
                    hash.update(&head[..read]);
                    bytes += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io(error)),
            }
        }
        let fingerprint = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let config = Keys { path: &path, content: &content }.config()?;
        let file = Self { path, content, config, fingerprint };
        file.check_tensors(bytes)?;
        Ok(file)
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The shape of the model.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The SHA-256 of the file in hexadecimal: equal on two ranks exactly when their files are.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The name the file gives its model (`general.name`).
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self.value("general.name") {
            Some(Value::String(name)) => Some(name),
            _ => None,
        }
    }

    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.content.metadata.get(key)
    }

    pub(super) fn reader(&self) -> Result<TensorReader<'_>, ModelFileError> {
        let source = File::open(&self.path)
            .map_err(|source| ModelFileError::Io { path: self.path.clone(), source })?;
        Ok(TensorReader { file: self, source })
    }

    /// Every tensor the model needs is there, has its shape, a known type, and lies inside the file; no other is.
    fn check_tensors(&self, file_bytes: u64) -> Result<(), ModelFileError> {
        let needed = self.config.tensors();
        for (name, shape) in &needed {
            let fault = |expected: String, found: String| ModelFileError::Tensor {
                path: self.path.clone(),
                tensor: name.clone(),
                expected,
                found,
            };
            let Some(info) = self.content.tensor_infos.get(name) else {
                return Err(fault(format!("shape {shape:?}"), "no such tensor".into()));
            };
            if info.shape.dims() != shape.as_slice() {
                return Err(fault(format!("shape {shape:?}"), format!("{:?}", info.shape.dims())));
            }
            if !is_readable(info.ggml_dtype) {
                let expected = "one of F32, F16, BF16, Q4_0 to Q8_0, Q2_K to Q6_K";
                return Err(fault(expected.into(), format!("{:?}", info.ggml_dtype)));
            }
            // A shape that was just found equal to an expected one has bounded dimensions and at least one of them.
            let row = shape[shape.len() - 1];
            let block = info.ggml_dtype.block_size();
            if !row.is_multiple_of(block) {
                let found = format!("{row} values ({:?})", info.ggml_dtype);
                return Err(fault(format!("rows of a multiple of {block} values"), found));
            }
            let bytes = row_bytes(info, row) * (info.shape.elem_count() / row) as u64;
            let end = self
                .content
                .tensor_data_offset
                .checked_add(info.offset)
                .and_then(|start| start.checked_add(bytes));
            if end.is_none_or(|end| end > file_bytes) {
                let found = format!("a file of {file_bytes} bytes");
                let expected = format!("{bytes} bytes at offset {} of the data", info.offset);
                return Err(fault(expected, found));
            }
        }
        let known = |name: &String| needed.iter().any(|(needed, _)| needed == name);
        if self.content.tensor_infos.len() > needed.len()
            && let Some(name) = self.content.tensor_infos.keys().filter(|name| !known(name)).min()
        {
            return Err(ModelFileError::Tensor {
                path: self.path.clone(),
                tensor: name.clone(),
                expected: "only tensors of a plain llama model".into(),
                found: "a tensor this model does not use".into(),
            });
        }
        Ok(())
    }
}

impl fmt::Debug for ModelFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ModelFile")
            .field("path", &self.path)
            .field("config", &self.config)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

fn is_readable(dtype: GgmlDType) -> bool {
    use GgmlDType as D;
    matches!(
        dtype,
        D::F32
            | D::F16
            | D::BF16
            | D::Q4_0
            | D::Q4_1
            | D::Q5_0
            | D::Q5_1
            | D::Q8_0
            | D::Q2K
            | D::Q3K
            | D::Q4K
            | D::Q5K
            | D::Q6K
    )
}

fn row_bytes(info: &TensorInfo, row: usize) -> u64 {
    (row / info.ggml_dtype.block_size() * info.ggml_dtype.type_size()) as u64
}

/// Reads the values of checked tensors.
pub(super) struct TensorReader<'a> {
    file: &'a ModelFile,
    source: File,
}

impl TensorReader<'_> {
    /// Rows `rows` of a matrix, or the whole of a vector (row 0), as f32 values one row after the other.
    pub(super) fn rows(
        &mut self,
        name: &str,
        rows: Range<usize>,
    ) -> Result<Vec<f32>, ModelFileError> {
        self.quantised(name, rows)
            .and_then(|rows| rows.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1())
            .map_err(|source| self.fault(name, source))
    }

    /// The whole of a matrix as it is stored: its bytes, and their type.
    pub(super) fn raw(&mut self, name: &str) -> Result<(Vec<u8>, GgmlDType), ModelFileError> {
        let read = |this: &mut Self| -> candle_core::Result<_> {
            let info = this.info(name)?;
            let (count, row) = matrix(info);
            let mut bytes = vec![0; count * row_bytes(info, row) as usize];
            let start = this.file.content.tensor_data_offset + info.offset;
            let dtype = info.ggml_dtype;
            this.source.seek(SeekFrom::Start(start))?;
            this.source.read_exact(&mut bytes)?;
            Ok((bytes, dtype))
        };
        read(self).map_err(|source| self.fault(name, source))
    }

    fn quantised(
        &mut self,
        name: &str,
        rows: Range<usize>,
    ) -> candle_core::Result<candle_core::quantized::QTensor> {
        let info = self.info(name)?;
        let (_, row) = matrix(info);
        let part = TensorInfo {
            ggml_dtype: info.ggml_dtype,
            shape: Shape::from((rows.len(), row)),
            offset: info.offset + rows.start as u64 * row_bytes(info, row),
        };
        part.read(&mut self.source, self.file.content.tensor_data_offset, &Device::Cpu)
    }

    fn info(&self, name: &str) -> candle_core::Result<&TensorInfo> {
        let info = self.file.content.tensor_infos.get(name);
        info.ok_or_else(|| candle_core::Error::Msg("there is no such tensor".into()))
    }

    fn fault(&self, name: &str, source: candle_core::Error) -> ModelFileError {
        let source = Box::new(source);
        ModelFileError::Values { path: self.file.path.clone(), tensor: name.into(), source }
    }
}

fn matrix(info: &TensorInfo) -> (usize, usize) {
    match info.shape.dims() {
        [rows, row] => (*rows, *row),
        _ => (1, info.shape.elem_count()),
    }
}

/// Reads the shape of the model from the keys of the header.
struct Keys<'a> {
    path: &'a Path,
    content: &'a Content,
}

impl Keys<'_> {
    fn config(&self) -> Result<ModelConfig, ModelFileError> {
        match self.content.metadata.get("general.architecture") {
            Some(Value::String(found)) if found == "llama" => {}
            found => return Err(self.fault("general.architecture", "llama", describe(found))),
        }
        let heads = self.number("llama.attention.head_count", 1, 1024, None)?;
        let width = self.number("llama.embedding_length", 1, 1 << 16, None)?;
        let kv_groups = self.number("llama.attention.head_count_kv", 1, heads, Some(heads))?;
        let head_width =
            self.number("llama.attention.key_length", 2, 1024, Some((width / heads).max(2)))?;
        let ffn_width = self.number("llama.feed_forward_length", 1, 1 << 20, None)?;
        let layers = self.number("llama.block_count", 1, 1024, None)?;
        let context = self.number("llama.context_length", 1, 1 << 24, None)?;
        if !heads.is_multiple_of(kv_groups) {
            let expected = format!("a divisor of the {heads} query heads");
            return Err(self.fault("llama.attention.head_count_kv", expected, kv_groups));
        }
        for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
            let found = self.number(key, 1, 1024, Some(head_width))?;
            if found != head_width || !head_width.is_multiple_of(2) {
                return Err(self.fault(key, format!("the even head width {head_width}"), found));
            }
        }
        match self.content.metadata.get("llama.rope.scaling.type") {
            None => {}
            Some(Value::String(kind)) if kind == "none" => {}
            found => {
                let expected = "none (position scaling is not supported)";
                return Err(self.fault("llama.rope.scaling.type", expected, describe(found)));
            }
        }
        let Some(vocabulary) = self
            .content
            .tensor_infos
            .get("token_embd.weight")
            .and_then(|info| info.shape.dims().first().copied())
            .filter(|rows| (1..=1 << 20).contains(rows))
        else {
            return Err(ModelFileError::Tensor {
                path: self.path.into(),
                tensor: "token_embd.weight".into(),
                expected: format!("1 to {} rows", 1 << 20),
                found: match self.content.tensor_infos.get("token_embd.weight") {
                    Some(info) => format!("{:?}", info.shape.dims()),
                    None => "no such tensor".into(),
                },
            });
        };
        Ok(ModelConfig {
            layers,
            width,
            heads,
            kv_groups,
            head_width,
            ffn_width,
            vocabulary,
            context,
            rope_base: self.real("llama.rope.freq_base", Some(10_000.0))?,
            norm_epsilon: self.real("llama.attention.layer_norm_rms_epsilon", None)?,
            tied_embeddings: !self.content.tensor_infos.contains_key("output.weight"),
        })
    }

    fn number(
        &self,
        key: &str,
        least: usize,
        most: usize,
        default: Option<usize>,
    ) -> Result<usize, ModelFileError> {
        let value = self.content.metadata.get(key);
        let found = match (value, default) {
            (None, Some(default)) => Some(default),
            (Some(value), _) => value.to_u64().ok().and_then(|value| usize::try_from(value).ok()),
            (None, None) => None,
        };
        found.filter(|found| (least..=most).contains(found)).ok_or_else(|| {
            self.fault(key, format!("a whole number from {least} to {most}"), describe(value))
        })
    }

    fn real(&self, key: &str, default: Option<f32>) -> Result<f32, ModelFileError> {
        let value = self.content.metadata.get(key);
        let found = match value {
            Some(Value::F32(found)) => Some(*found),
            Some(_) => None,
            None => default,
        };
        found
            .filter(|found| found.is_finite() && *found > 0.0)
            .ok_or_else(|| self.fault(key, "a positive f32", describe(value)))
    }

    fn fault(
        &self,
        key: &str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> ModelFileError {
        ModelFileError::Key {
            path: self.path.into(),
            key: key.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

/// A value of the header, short enough for a message.
pub(crate) fn describe(value: Option<&Value>) -> String {
    match value {
        None => "no such key".into(),
        Some(Value::Array(values)) => format!("an array of {} values", values.len()),
        Some(Value::String(text)) => format!("{:?}", text.chars().take(64).collect::<String>()),
        Some(value) => format!("{value:?}"),
    }
}
