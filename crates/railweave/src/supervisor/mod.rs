//! Starts the ranks of this machine, keeps them alive and stops them.

mod child;
mod core;
mod edge;
mod screen;

pub(crate) use child::read_handover;
pub use child::{HandoverError, RankProgram};
pub use core::{Action, Core, Input, Outcome, Policy, RESTART_WINDOW, Report, STOP_PATIENCE};
pub use edge::{SupervisorError, reserve_port, supervise};
pub use screen::Screen;
