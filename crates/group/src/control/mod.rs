//! The control plane of a group: heartbeats, proposals and verdicts over a mesh of authenticated TCP connections, apart
//! from the data paths, so that a broken path does not hide what is wrong with it.

pub mod core;
pub(crate) mod judge;
pub mod mesh;
pub(crate) mod send_queue;
pub mod trace;
pub mod view;
pub mod wire;

pub use self::core::{ControlCore, Output};
pub use mesh::{Control, ControlEvent, ControlOptions};
pub use view::{CableNames, ClusterView, ControlState, LinkReport, RankView, SupervisorNote};
pub use wire::{RAIL_BYTES_MAX, RailMessage, RailStep};
