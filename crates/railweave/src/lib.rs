//! The parts of the `railweave` binary: settings, commands, the supervisor of local ranks, and the model store.

pub mod cli;
pub mod commands;
pub mod events;
mod http;
pub mod launcher;
mod local;
pub mod model_store;
pub mod placement;
pub mod process;
pub mod rank;
pub mod rule_hits;
pub mod settings;
pub mod supervisor;
