//! Serves texts: batches requests, decides steps, and keeps going when the group fails.
//!
//! Clients hand requests to a [`RequestQueue`]. On rank 0 [`Lead::run`] asks the [`Scheduler`] for each step, sends it
//! to the ranks that [`follow`], and carries the text back. The scheduler is pure; the loops are thin.

mod admission;
mod error;
mod follow;
mod lead;
mod observer;
mod queue;
mod recovery;
mod request;
mod sampler;
mod scheduler;
mod seams;
mod settings;
mod share;
mod stop;

pub use admission::{Admission, Waiting};
pub use error::ServingError;
pub use follow::follow;
pub use lead::Lead;
pub use observer::{Load, Observer, Unobserved};
pub use queue::{RequestQueue, SubmitError, Ticket};
pub use request::{End, Event, FinishReason, Outcome, Output, Request, RequestId, Timing, Usage};
pub use sampler::{NoToken, Sampling, choose};
pub use scheduler::{LogitsMismatch, Planned, Scheduler};
pub use seams::{Stepper, TextError, TokenDecoder, Vocabulary};
pub use settings::{FaultHook, Limits, Settings};
