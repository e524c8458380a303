//! Builds the tokenizer from the keys of a model file.

use super::bytes::{Texts, spelled_bytes};
use super::chat::ChatTemplate;
use super::{Inner, Special, TokenizerError};
use crate::model::{ModelFile, describe};
use aho_corasick::{AhoCorasick, MatchKind};
use candle_core::quantized::gguf_file::Value;
use std::path::Path;
use tokenizers::PreTokenizerWrapper;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
const KINDS: &str = "tokenizer.ggml.token_type";

/// A token with a meaning and no text.
const CONTROL: i64 = 3;

/// A token that is matched whole in any text.
const USER_DEFINED: i64 = 4;

/// Control tokens that end a generation in the model families at hand, whether or not the file says so.
const END_NAMES: [&str; 4] = ["<|endoftext|>", "<|im_end|>", "<|eot_id|>", "</s>"];

pub(super) fn build(file: &ModelFile) -> Result<Inner, TokenizerError> {
    let keys = Keys { file };
    keys.one_of("tokenizer.ggml.model", &["gpt2"])?;
    let pre = keys.one_of("tokenizer.ggml.pre", &["smollm", "gpt-2"])?;
    let tokens = keys.strings(TOKENS)?;
    let merges = keys.strings(MERGES)?;
    let vocabulary = file.config().vocabulary;
    if tokens.len() != vocabulary {
        return Err(keys.fault(TOKENS, format!("{vocabulary} tokens"), tokens.len().to_string()));
    }
    let kinds = keys.kinds(tokens.len())?;
    let path = file.path();
    let mut texts = Texts::default();
    let (mut always, mut control) = (Vec::new(), Vec::new());
    for (token, (spelling, kind)) in (0u32..).zip(tokens.iter().zip(&kinds)) {
        match *kind {
            CONTROL => texts.push([]),
            USER_DEFINED => texts.push(spelling.bytes()),
            _ => texts.push(spelled_bytes(spelling)),
        }
        if *kind == USER_DEFINED && !spelling.is_empty() {
            always.push((*spelling, token));
        }
        // A name of one character could not be broken inside a message, so no text stands for such a token.
        if matches!(*kind, CONTROL | USER_DEFINED) && spelling.chars().nth(1).is_some() {
            control.push((*spelling, token));
        }
    }
    let token_key = |key| keys.token(key, tokens.len());
    let start = token_key("tokenizer.ggml.bos_token_id")?;
    let mut ends = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        ends.extend(token_key(key)?);
    }
    let end_names = control.iter().filter(|(name, _)| END_NAMES.contains(name));
    let name = |token: Option<&u32>| {
        token
            .and_then(|&token| tokens.get(token as usize))
            .map_or_else(String::new, ToString::to_string)
    };
    let (start_name, end_name) = (name(start.as_ref()), name(ends.first()));
    ends.extend(end_names.map(|(_, token)| *token));
    ends.sort_unstable();
    ends.dedup();
    let add_start = matches!(file.value("tokenizer.ggml.add_bos_token"), Some(Value::Bool(true)));
    let chat = match file.value("tokenizer.chat_template") {
        Some(Value::String(source)) => {
            let template = ChatTemplate::new(source.clone(), start_name, end_name);
            Some(
                template
                    .map_err(|source| TokenizerError::Template { path: path.into(), source })?,
            )
        }
        _ => None,
    };
    Ok(Inner {
        plain: plain(path, &tokens, &merges, pre, &keys)?,
        always: Special::new(path, &always)?,
        control: Special::new(path, &control)?,
        texts,
        ends,
        start: start.filter(|_| add_start),
        chat,
        path: path.into(),
    })
}

fn plain(
    path: &Path,
    tokens: &[&str],
    merges: &[&str],
    pre: &str,
    keys: &Keys<'_>,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let vocabulary: Vocab = tokens.iter().map(ToString::to_string).zip(0u32..).collect();
    if vocabulary.len() != tokens.len() {
        let found = format!("{} different ones of {}", vocabulary.len(), tokens.len());
        return Err(keys.fault(TOKENS, "tokens that all differ".into(), found));
    }
    let merges = merges
        .iter()
        .map(|merge| match merge.split_once(' ') {
            Some((left, right)) => Ok((left.to_string(), right.to_string())),
            None => Err(keys.fault(
                MERGES,
                "two parts with a space between".into(),
                format!("{merge:?}"),
            )),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let model = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .build()
        .map_err(|source| TokenizerError::Build { path: path.into(), source })?;
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    if pre == "smollm" {
        steps.push(Digits::new(true).into());
    }
    steps.push(ByteLevel::new(false, false, true).into());
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    Ok(tokenizer)
}

impl Special {
    fn new(path: &Path, tokens: &[(&str, u32)]) -> Result<Self, TokenizerError> {
        let names = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(name, _)| name))
            .map_err(|source| TokenizerError::Build { path: path.into(), source: source.into() })?;
        Ok(Self { names, tokens: tokens.iter().map(|(_, token)| *token).collect() })
    }
}

/// Reads keys of the header, with errors that name them.
struct Keys<'a> {
    file: &'a ModelFile,
}

impl<'a> Keys<'a> {
    fn one_of(&self, key: &'static str, known: &[&str]) -> Result<&'a str, TokenizerError> {
        match self.file.value(key) {
            Some(Value::String(found)) if known.contains(&found.as_str()) => Ok(found),
            found => Err(self.fault(key, known.join(" or "), describe(found))),
        }
    }

    fn strings(&self, key: &'static str) -> Result<Vec<&'a str>, TokenizerError> {
        let found = self.file.value(key);
        let strings = match found {
            Some(Value::Array(values)) => values
                .iter()
                .map(|value| match value {
                    Value::String(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect(),
            _ => None,
        };
        strings.ok_or_else(|| self.fault(key, "an array of strings".into(), describe(found)))
    }

    fn kinds(&self, count: usize) -> Result<Vec<i64>, TokenizerError> {
        let found = self.file.value(KINDS);
        let kinds: Option<Vec<i64>> = match found {
            Some(Value::Array(values)) if values.len() == count => values
                .iter()
                .map(|value| match value {
                    Value::I32(kind) => Some(i64::from(*kind)),
                    Value::U32(kind) => Some(i64::from(*kind)),
                    _ => None,
                })
                .collect(),
            _ => None,
        };
        kinds.ok_or_else(|| {
            self.fault(KINDS, format!("an array of {count} whole numbers"), describe(found))
        })
    }

    fn token(&self, key: &'static str, count: usize) -> Result<Option<u32>, TokenizerError> {
        let Some(found) = self.file.value(key) else { return Ok(None) };
        let token = found.to_u64().ok().filter(|token| *token < count as u64);
        match token.and_then(|token| u32::try_from(token).ok()) {
            Some(token) => Ok(Some(token)),
            None => Err(self.fault(key, format!("a token below {count}"), describe(Some(found)))),
        }
    }

    fn fault(&self, key: &'static str, expected: String, found: String) -> TokenizerError {
        TokenizerError::Key { path: self.file.path().into(), key, expected, found }
    }
}
