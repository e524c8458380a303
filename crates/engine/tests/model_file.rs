//! Damaged model files are refused with an error that names the place, and never panic.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use engine::model::{ModelFile, ModelFileError};
use engine::testing::TinyModel;
use std::error::Error;
use std::fs;

fn refused(bytes: &[u8]) -> ModelFileError {
    let tiny = TinyModel::create().unwrap();
    fs::write(tiny.path(), bytes).unwrap();
    ModelFile::open(tiny.path()).unwrap_err()
}

fn tiny_bytes() -> Vec<u8> {
    fs::read(TinyModel::create().unwrap().path()).unwrap()
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    let mut bytes = bytes.to_vec();
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

#[test]
fn the_fingerprint_follows_the_bytes() {
    let (one, two) = (TinyModel::create().unwrap(), TinyModel::create().unwrap());
    let first = ModelFile::open(one.path()).unwrap().fingerprint().to_string();
    assert_eq!(first.len(), 64);
    assert_eq!(ModelFile::open(two.path()).unwrap().fingerprint(), first);
    let mut bytes = tiny_bytes();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(two.path(), bytes).unwrap();
    assert_ne!(ModelFile::open(two.path()).unwrap().fingerprint(), first);
}

#[test]
fn files_that_are_no_model_say_why() {
    let error = refused(b"PK\x03\x04");
    assert!(error.source().unwrap().to_string().starts_with("it starts with [50, 4b, 03, 04]"));
    assert!(matches!(refused(b""), ModelFileError::Header { .. }));
    let mut version = tiny_bytes();
    version[4] = 9;
    assert!(refused(&version).source().unwrap().to_string().contains("version 9"));
    let missing = ModelFile::open("/nonexistent/model.gguf").unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/model.gguf"), "{missing}");
}

#[test]
fn keys_and_tensors_that_do_not_fit_are_named() {
    let bytes = tiny_bytes();
    let error = refused(&replaced(&bytes, b"llama\x0c", b"lmama\x0c")).to_string();
    assert!(error.contains("general.architecture: expected llama, found \"lmama\""), "{error}");
    let error = refused(&replaced(&bytes, b"llama.block_count", b"llama.block_c0unt")).to_string();
    let expected = "llama.block_count: expected a whole number from 1 to 1024, found no such key";
    assert!(error.contains(expected), "{error}");
    let error = refused(&replaced(&bytes, b"blk.1.attn_q", b"blk.1.attn_x")).to_string();
    assert!(error.contains("blk.1.attn_q.weight: expected shape [96, 64]"), "{error}");
    let error = refused(&bytes[..bytes.len() - 4096]).to_string();
    assert!(error.contains("expected") && error.contains("found a file of"), "{error}");
}

#[test]
fn a_zero_alignment_is_refused() {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(17u64.to_le_bytes());
    bytes.extend(b"general.alignment");
    bytes.extend(4u32.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    assert!(refused(&bytes).source().unwrap().to_string().contains("general.alignment is 0"));
}

#[test]
fn cut_and_flipped_files_never_panic() {
    let bytes = tiny_bytes();
    let header =
        bytes.windows(18).rposition(|window| window == b"ffn_down.weight\x02\0\0").unwrap();
    let tiny = TinyModel::create().unwrap();
    for step in 0..200 {
        fs::write(tiny.path(), &bytes[..header * step / 200]).unwrap();
        ModelFile::open(tiny.path()).unwrap_err();
        let mut flipped = bytes.clone();
        flipped[header * step / 200] ^= 0x81;
        fs::write(tiny.path(), &flipped).unwrap();
        let _ = ModelFile::open(tiny.path());
    }
}
