//! Reads the header of a GGUF file from memory, guarding the reader against what would make it panic or hoard.

use candle_core::quantized::gguf_file::Content;
use std::io::Cursor;

/// The longest header that is read, in bytes (16 MiB).
pub(super) const LIMIT_BYTES: usize = 16 << 20;

const ALIGNMENT_KEY: &[u8] = b"\x11\0\0\0\0\0\0\0general.alignment";

/// Why bytes are no usable GGUF header.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// The first bytes are not those of a GGUF file.
    #[error("it starts with {found:02x?}, a GGUF file starts with 47 47 55 46 (\"GGUF\")")]
    Magic {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// A version of the format this reader does not know.
    #[error("it has GGUF version {found}, versions 2 and 3 can be read")]
    Version {
        /// The version found.
        found: u32,
    },
    /// A data alignment of zero.
    #[error("its key general.alignment is 0, expected a positive number of bytes")]
    Alignment,
    /// The header is cut off or damaged.
    #[error("its header (at most {LIMIT_BYTES} bytes) cannot be read: {reason}")]
    Damaged {
        /// What the reader found.
        reason: String,
    },
}

/// Reads the header at the start of `bytes`, which hold at most the first [`LIMIT_BYTES`] of a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Content, HeaderError> {
    let magic = &bytes[..bytes.len().min(4)];
    if magic != b"GGUF" {
        return Err(HeaderError::Magic { found: magic.to_vec() });
    }
    let Some(version) = bytes[4..].first_chunk::<4>() else {
        return Err(HeaderError::Damaged { reason: "it ends before the version".into() });
    };
    let version = u32::from_le_bytes(*version);
    if !(2..=3).contains(&version) {
        return Err(HeaderError::Version { found: version });
    }
    if has_zero_alignment(bytes) {
        return Err(HeaderError::Alignment);
    }
    Content::read(&mut Cursor::new(bytes))
        .map_err(|error| HeaderError::Damaged { reason: error.to_string() })
}

/// The reader divides by the alignment before its caller can look at it, so the raw bytes are searched for a zero.
fn has_zero_alignment(bytes: &[u8]) -> bool {
    memchr::memmem::find_iter(bytes, ALIGNMENT_KEY).any(|at| {
        let rest = &bytes[at + ALIGNMENT_KEY.len()..];
        let Some((kind, value)) = rest.split_first_chunk::<4>() else { return false };
        let width = match u32::from_le_bytes(*kind) {
            0 | 1 => 1,
            2 | 3 => 2,
            4 | 5 => 4,
            _ => return false,
        };
        value.get(..width).is_some_and(|value| value.iter().all(|&byte| byte == 0))
    })
}
