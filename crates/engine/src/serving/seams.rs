//! What the serving side needs of a model and of a tokenizer, so that it is tested without weights.

use std::error::Error;

use crate::communicator::Communicator;
use crate::model::{Model, ModelError, StepPlan};
use crate::tokenizer::{ChatMessage, StreamDecoder, Tokenizer};

/// Runs the steps of one rank.
pub trait Stepper {
    /// Runs `plan` and returns the logits of the entries that want them, in the order of the plan. A plan without
    /// entries only releases slots and runs no collective.
    ///
    /// # Errors
    /// After a failed collective the contents of all slots are unspecified until [`reset`](Self::reset).
    fn forward(
        &mut self,
        plan: &StepPlan,
        comm: &mut dyn Communicator,
    ) -> Result<Vec<Vec<f32>>, ModelError>;

    /// Empties all slots.
    fn reset(&mut self);
}

impl Stepper for Model {
    fn forward(
        &mut self,
        plan: &StepPlan,
        comm: &mut dyn Communicator,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        Self::forward(self, plan, comm)
    }

    fn reset(&mut self) {
        Self::reset(self);
    }
}

/// Text could not be turned into tokens.
#[derive(Debug, thiserror::Error)]
#[error("the text cannot be turned into tokens: {0}")]
pub struct TextError(#[source] pub Box<dyn Error + Send + Sync>);

/// Turns text into tokens and back.
pub trait Vocabulary: Send + Sync {
    /// The tokens of a raw prompt; the names of control tokens in it are text like any other.
    ///
    /// # Errors
    /// [`TextError`] where the tokenizer refuses the text.
    fn encode(&self, text: &str) -> Result<Vec<u32>, TextError>;

    /// The tokens that ask for the next message of a chat; the names of control tokens in a message are text like any
    /// other.
    ///
    /// # Errors
    /// [`TextError`] where the model's chat template refuses the messages.
    fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, TextError>;

    /// A decoder for the tokens of one text.
    fn decoder(&self) -> Box<dyn TokenDecoder>;

    /// Whether `token` ends a text.
    fn is_end(&self, token: u32) -> bool;

    /// The number of tokens; all are below it.
    fn size(&self) -> usize;
}

/// Turns the tokens of one text into characters, as they come.
pub trait TokenDecoder: Send {
    /// The text that `token` completes, only whole characters.
    fn push(&mut self, token: u32) -> String;

    /// What is left of an incomplete character.
    fn finish(&mut self) -> String;
}

impl Vocabulary for Tokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Self::encode(self, text).map_err(|error| TextError(Box::new(error)))
    }

    fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, TextError> {
        Self::encode_chat(self, messages, true).map_err(|error| TextError(Box::new(error)))
    }

    fn decoder(&self) -> Box<dyn TokenDecoder> {
        Box::new(self.stream())
    }

    fn is_end(&self, token: u32) -> bool {
        Self::is_end(self, token)
    }

    fn size(&self) -> usize {
        self.vocabulary()
    }
}

impl TokenDecoder for StreamDecoder {
    fn push(&mut self, token: u32) -> String {
        Self::push(self, token)
    }

    fn finish(&mut self) -> String {
        Self::finish(self)
    }
}
