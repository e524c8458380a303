//! What was observed on one host.
//!
//! [`Recording`] is what was read, as it was read: files, links and the output of tools. [`HostState`] is what it
//! means. What could not be read is [`Seen::NotMeasured`], with the reason: never 0, never ok.

pub mod capture;
mod frames;
pub mod host_state;
mod of;
mod parse_filters;
mod parse_netdevs;
mod parse_rdma;
mod parse_system;
mod parse_tables;
mod parse_tools;
pub mod recording;
mod redact;
mod script;

pub use host_state::HostState;
pub use recording::{Recording, RecordingError};

use serde::{Deserialize, Serialize};

/// A value, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seen<T> {
    /// It was read.
    Known(T),
    /// It was not, for this reason.
    NotMeasured(String),
}

impl<T> Seen<T> {
    /// The value, if it was read.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::NotMeasured(_) => None,
        }
    }

    /// Why there is none.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Known(_) => None,
            Self::NotMeasured(reason) => Some(reason),
        }
    }
}
