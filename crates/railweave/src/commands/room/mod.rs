//! The commands of the machine room: from hosts to a cluster file, to a plan, to what is set on each host, and to
//! what is wrong there.

pub mod apply;
mod carry_out;
pub mod check;
pub mod discover;
pub mod env;
pub(crate) mod open;
pub mod plan;
mod quiet;
pub(crate) mod stop;

use serde::Serialize;

use super::CommandError;

/// A value as JSON for people and programs.
fn json(value: &impl Serialize) -> Result<String, CommandError> {
    serde_json::to_string_pretty(value)
        .map_err(|error| CommandError::Failed(format!("cannot write JSON: {error}")))
}
