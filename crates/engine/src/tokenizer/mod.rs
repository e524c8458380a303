//! Text to tokens and back, from the vocabulary inside the model file.

mod bytes;
mod chat;
mod vocabulary;

pub use bytes::StreamDecoder;
#[cfg(any(test, feature = "testing"))]
pub(crate) use bytes::spelling_of;
pub use chat::ChatMessage;

use crate::model::ModelFile;
use aho_corasick::AhoCorasick;
use bytes::Texts;
use chat::{ChatTemplate, unmark};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The tokenizer of a model; cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    /// Cuts and merges plain text; knows no special tokens.
    plain: tokenizers::Tokenizer,
    /// Finds tokens that are matched whole in any text.
    always: Special,
    /// The same and the control tokens.
    control: Special,
    texts: Texts,
    ends: Vec<u32>,
    start: Option<u32>,
    chat: Option<ChatTemplate>,
    path: PathBuf,
}

/// Tokens that are matched whole in a text before it is cut.
struct Special {
    names: AhoCorasick,
    tokens: Vec<u32>,
}

/// Why text could not be turned into tokens or a prompt.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A key of the model file is missing or cannot be used.
    #[error("{}: key {key}: expected {expected}, found {found}", path.display())]
    Key {
        /// The model file.
        path: PathBuf,
        /// The key of the header.
        key: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The vocabulary cannot be used.
    #[error("{}: the tokenizer cannot be built from its vocabulary", path.display())]
    Build {
        /// The model file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A text cannot be encoded.
    #[error("a text of {bytes} bytes cannot be encoded")]
    Encode {
        /// The length of the text.
        bytes: usize,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The model has no chat template.
    #[error(
        "{}: key tokenizer.chat_template is missing: this model takes plain prompts only",
        path.display()
    )]
    NoTemplate {
        /// The model file.
        path: PathBuf,
    },
    /// The chat template refuses the messages or is itself wrong.
    #[error("{}: the chat template cannot render these messages", path.display())]
    Template {
        /// The model file.
        path: PathBuf,
        /// What the template engine says.
        #[source]
        source: minijinja::Error,
    },
}

impl Tokenizer {
    /// Builds the tokenizer from the keys of `file`.
    ///
    /// # Errors
    /// When the vocabulary is damaged, of another kind than byte-level BPE, or split in a way that is not known.
    pub fn from_file(file: &ModelFile) -> Result<Self, TokenizerError> {
        vocabulary::build(file).map(|inner| Self { inner: Arc::new(inner) })
    }

    /// The tokens of `text`, after the token that starts every text if the model has one. Names of control tokens in
    /// `text` are text like any other.
    ///
    /// # Errors
    /// When the text cannot be cut.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut tokens = Vec::new();
        self.encode_into(text, &mut tokens)?;
        Ok(self.started(tokens))
    }

    /// The tokens of the prompt for `messages` by the model's own chat template. Only the template can write control
    /// tokens: their names in a message are text like any other.
    ///
    /// # Errors
    /// When the model has no template, or the template refuses the messages.
    pub fn encode_chat(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let Inner { control, chat, path, .. } = &*self.inner;
        let chat =
            chat.as_ref().ok_or_else(|| TokenizerError::NoTemplate { path: path.clone() })?;
        let prompt = chat
            .render(&control.names, messages, add_generation_prompt)
            .map_err(|source| TokenizerError::Template { path: path.clone(), source })?;
        let mut tokens = Vec::new();
        let mut from = 0;
        for found in control.names.find_iter(&prompt) {
            self.encode_into(&unmark(&prompt[from..found.start()]), &mut tokens)?;
            tokens.push(control.tokens[found.pattern().as_usize()]);
            from = found.end();
        }
        self.encode_into(&unmark(&prompt[from..]), &mut tokens)?;
        Ok(self.started(tokens))
    }

    fn started(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        if let Some(start) = self.inner.start
            && tokens.first() != Some(&start)
        {
            tokens.insert(0, start);
        }
        tokens
    }

    /// Tokens of text in which only those are special that are so in any text.
    fn encode_into(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let always = &self.inner.always;
        let mut from = 0;
        for found in always.names.find_iter(text) {
            self.encode_plain(&text[from..found.start()], tokens)?;
            tokens.push(always.tokens[found.pattern().as_usize()]);
            from = found.end();
        }
        self.encode_plain(&text[from..], tokens)
    }

    fn encode_plain(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if text.is_empty() {
            return Ok(());
        }
        let encoding = self
            .inner
            .plain
            .encode_fast(text, false)
            .map_err(|source| TokenizerError::Encode { bytes: text.len(), source })?;
        tokens.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// The text of `tokens`. Control and unknown tokens have none; bytes that are no UTF-8 become U+FFFD.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut stream = self.stream();
        let mut text: String = tokens.iter().map(|&token| stream.push(token)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// A decoder for tokens that arrive one at a time.
    #[must_use]
    pub fn stream(&self) -> StreamDecoder {
        StreamDecoder::new(self.clone())
    }

    /// Whether `token` ends a generation.
    #[must_use]
    pub fn is_end(&self, token: u32) -> bool {
        self.inner.ends.contains(&token)
    }

    /// The tokens that end a generation.
    #[must_use]
    pub fn end_tokens(&self) -> &[u32] {
        &self.inner.ends
    }

    /// The number of tokens.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.inner.texts.len()
    }

    fn bytes(&self, token: u32) -> &[u8] {
        self.inner.texts.get(token)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Tokenizer({} tokens)", self.vocabulary())
    }
}
