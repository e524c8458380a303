//! The machine room: which hosts there are, how they are cabled, which paths follow from that, what has to be set on
//! each host for them, and whether it is.
//!
//! Two things come in: a [`file::ClusterFile`] (what should be) and the [`inventory::HostState`] of each host (what
//! is). Everything else is a pure function of these: [`plan`] makes the paths, [`rules`] what each host needs for
//! them, [`check`] compares. Only [`reach`] touches a machine.

pub mod address;
pub mod check;
pub mod discover;
pub mod engines;
pub mod file;
pub mod gid;
pub mod inventory;
pub mod plan;
pub mod reach;
pub mod render;
pub mod rules;
pub mod source_port;
pub mod text;
