//! What the serving side reports to metrics and health.

use std::time::Duration;

use super::request::Outcome;

/// The load of rank 0 between two steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that have a slot.
    pub running: usize,
    /// Requests that have none: new ones, and ones to be fed again.
    pub waiting: usize,
    /// Room that the running requests take in the key/value cache, in tokens and in whole blocks.
    pub kv_tokens: usize,
}

/// Receives the events of the serving side. Calls come from the step loop and must return at once.
pub trait Observer: Send + Sync {
    /// A token crossed every rank (`true`), or the group stopped working (`false`).
    fn ready(&self, _ready: bool) {}
    /// The load, before every step and once a second while idle.
    fn load(&self, _load: Load) {}
    /// A step is done: how long it took and how many tokens it fed.
    fn step(&self, _took: Duration, _tokens: usize) {}
    /// Prompt tokens were fed.
    fn prefilled(&self, _tokens: usize) {}
    /// A request's first token came this long after the request.
    fn first_token(&self, _after: Duration) {}
    /// A request's next token came this long after the one before.
    fn next_token(&self, _after: Duration) {}
    /// A request ended.
    fn finished(&self, _outcome: Outcome) {}
    /// A request was refused since the queue was full.
    fn refused(&self) {}
    /// A collective failed, with the verdict in one line.
    fn failed(&self, _summary: &str) {}
    /// The group was re-formed, which took this long.
    fn reformed(&self, _took: Duration) {}
}

/// Receives everything and keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}
