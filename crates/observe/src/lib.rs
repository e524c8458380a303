//! Metrics, health, events and the flight recorder of a rank.
//!
//! Every layer above reports here and nothing here knows them. A rank makes one [`Metrics`], one
//! [`Health`] and one [`Recorder`], hands clones to whoever measures, and serves them with
//! [`http::serve`]. What was never measured is absent from every output; it is never printed as 0.

pub mod explain;
mod flight;
mod health;
pub mod http;
mod identity;
mod live;
pub mod log;
mod metrics;
mod verdict;
mod words;

pub use explain::{ExplainError, Timeline, explain};
pub use flight::{DumpError, Dumped, Event, Recorder, RecorderConfig};
pub use health::{Health, LastVerdict, Progress, State, Status, WaitView};
pub use identity::Identity;
pub use metrics::{CONTENT_TYPE, Metrics, RdmaCount, RdmaPort, SizeClass};
pub use verdict::VerdictRecord;
pub use words::{Cause, Operation, Outcome, PathKind, Phase, Schedule};
