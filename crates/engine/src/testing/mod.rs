//! A synthetic model and an in-process communicator, for tests of this and other crates.

mod threads;
mod tiny;

pub use threads::{ThreadCommunicator, communicators};
pub use tiny::{TinyModel, write_tiny_model};
