//! The requests that wait for a slot: first come, first served, up to a limit.

use std::collections::VecDeque;
use std::time::Instant;

use super::request::{Request, RequestId};

/// A request that waits for a slot.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// Its name.
    pub id: RequestId,
    /// What it asks for.
    pub request: Request,
    /// When it came.
    pub arrived: Instant,
}

/// Requests in the order they came, at most `limit` of them.
#[derive(Debug)]
pub struct Admission {
    waiting: VecDeque<Waiting>,
    limit: usize,
}

impl Admission {
    /// An empty queue for at most `limit` requests.
    pub fn new(limit: usize) -> Self {
        Self { waiting: VecDeque::new(), limit }
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many may wait.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Adds a request at the end. Returns whether there was room.
    #[must_use]
    pub fn push(&mut self, waiting: Waiting) -> bool {
        let room = self.waiting.len() < self.limit;
        if room {
            self.waiting.push_back(waiting);
        }
        room
    }

    /// Removes a request. Returns whether it waited.
    pub fn remove(&mut self, id: RequestId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.id != id);
        self.waiting.len() < before
    }

    /// Takes the first request if its prompt has at most `tokens` tokens. A first one that is too long is not
    /// overtaken, or it might wait for ever.
    pub(super) fn take_fitting(&mut self, tokens: usize) -> Option<Waiting> {
        self.waiting.pop_front_if(|first| first.request.prompt.len() <= tokens)
    }
}
