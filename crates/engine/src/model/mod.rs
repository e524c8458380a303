//! A llama-family model, split over the ranks of a group.
//!
//! [`ModelFile`] opens and checks a GGUF file, [`Split`] says which part of it a rank holds, [`Model`] holds that part
//! and runs one [`StepPlan`] at a time. Every rank runs the same plans in the same order.

mod attention;
mod config;
mod file;
mod forward;
mod header;
mod kv;
mod linear;
mod load;
mod plan;

pub use config::{ModelConfig, Share, Split, SplitError};
pub(crate) use file::describe;
pub use file::{ModelFile, ModelFileError};
pub use forward::{Model, ModelError};
pub use header::HeaderError;
pub use kv::{KV_BLOCK_TOKENS, KvError, KvLimits};
pub use load::LoadError;
pub use plan::{MAX_ENTRIES, MAX_RELEASES, MAX_TOKENS, PlanError, StepEntry, StepPlan};
