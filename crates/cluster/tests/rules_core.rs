//! The rules that follow from plans: do packets arrive by them, are they safe to apply again, and what is refused.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

#[path = "rules/closure.rs"]
mod closure;
#[path = "rules/golden.rs"]
mod golden;
#[path = "rules/idempotence.rs"]
mod idempotence;
#[path = "rules/refusals.rs"]
mod refusals;
#[path = "rules/scripts.rs"]
mod scripts;
#[path = "rules/simulator.rs"]
mod simulator;
#[path = "rules/software.rs"]
mod software;
