//! What a client asks for, and what it is told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::sampler::Sampling;

/// Names one request of this process; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl RequestId {
    /// An id no other request of this process has.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// One text to be continued.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The tokens to continue, at least one.
    pub prompt: Vec<u32>,
    /// The most tokens to generate, at least one. The end of the context ends a request earlier.
    pub max_tokens: usize,
    /// Strings that end the text; they are not part of it.
    pub stops: Vec<String>,
    /// How tokens are chosen.
    pub sampling: Sampling,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model ended it, or a stop string was completed.
    Stop,
    /// `max_tokens` or the end of the context was reached.
    Length,
}

/// Tokens a request took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, with the one that ended the text.
    pub completion_tokens: usize,
}

/// What the client of a request is told, in order. After `End` nothing follows; a channel that closes without it means
/// that the engine stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// More text, never empty.
    Text(String),
    /// The end of the request.
    End(End),
}

/// How a request ended, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The model or a stop string ended it.
    Stop,
    /// A limit of tokens ended it.
    Length,
    /// The client went away.
    Cancelled,
    /// The engine could not go on with it.
    Failed,
}

/// One token of one request, as the scheduler reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Whose token it is.
    pub id: RequestId,
    /// The text that became certain with it, possibly none.
    pub text: String,
    /// When it came.
    pub timing: Timing,
    /// Set with the last token.
    pub end: Option<End>,
}

/// When a token came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// The first token, this long after the request arrived.
    First(Duration),
    /// A later token, this long after the one before.
    Next(Duration),
}

/// The end of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The text is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The text cannot go on.
    Failed {
        /// Who, where and why.
        message: String,
    },
}

impl End {
    /// The same for metrics.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Finished { reason: FinishReason::Stop, .. } => Outcome::Stop,
            Self::Finished { reason: FinishReason::Length, .. } => Outcome::Length,
            Self::Failed { .. } => Outcome::Failed,
        }
    }
}
