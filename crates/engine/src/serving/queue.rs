//! The way of a request from a client's thread to the step loop, and of its text back.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::admission::{Admission, Waiting};
use super::request::{Event, Request, RequestId};

/// Where a request's events go.
pub(super) type Sender = mpsc::Sender<Event>;

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many requests wait as may.
    #[error("{limit} requests are waiting already, which is the limit; try again later")]
    Full {
        /// How many may wait.
        limit: usize,
    },
    /// The prompt leaves no room for a token.
    #[error(
        "the prompt has {prompt} tokens, but it and the text may have {limit} together; shorten the prompt"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// The most tokens of a request, prompt and generated.
        limit: usize,
    },
    /// The prompt has no token, or no token may be generated.
    #[error("a request needs at least one token of prompt and one to generate")]
    Empty,
    /// The engine stops or has stopped.
    #[error("the server is shutting down")]
    Closed,
}

/// A request that was taken. Dropping it cancels the request.
#[derive(Debug)]
pub struct Ticket {
    /// The request's name.
    pub id: RequestId,
    /// What becomes of it; see [`Event`].
    pub events: mpsc::Receiver<Event>,
}

/// Why [`RequestQueue::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    Request,
    Timeout,
    Closed,
}

/// The queue between clients and the step loop of rank 0. Shared by reference; all methods return at once but `wait`.
#[derive(Debug)]
pub struct RequestQueue {
    state: Mutex<State>,
    wake: Condvar,
    request_tokens: usize,
}

#[derive(Debug)]
struct State {
    admission: Admission,
    /// Of the requests in `admission`.
    senders: HashMap<RequestId, Sender>,
    /// Requests whose client left before they got a slot, not yet reported by [`RequestQueue::admit`].
    left: usize,
    closed: bool,
}

/// What [`RequestQueue::admit`] gives back.
pub(super) struct Admitted<T> {
    /// What `take` returned.
    pub(super) value: T,
    /// Where the events of the requests go that left the queue.
    pub(super) senders: Vec<(RequestId, Sender)>,
    /// How many requests were dropped since the last call because their client left.
    pub(super) left: usize,
}

impl RequestQueue {
    /// A queue in which at most `limit` requests wait for a slot, each of at most `request_tokens` tokens, prompt and
    /// generated (see [`Limits::request_tokens`](super::Limits::request_tokens)).
    pub fn new(limit: usize, request_tokens: usize) -> Self {
        let (admission, senders) = (Admission::new(limit), HashMap::new());
        let state = State { admission, senders, left: 0, closed: false };
        Self { state: Mutex::new(state), wake: Condvar::new(), request_tokens }
    }

    /// The most tokens of a request, prompt and generated.
    pub fn request_tokens(&self) -> usize {
        self.request_tokens
    }

    /// Hands a request to the step loop.
    ///
    /// # Errors
    /// [`SubmitError`]; then nothing was taken.
    pub fn submit(&self, request: Request) -> Result<Ticket, SubmitError> {
        let prompt = request.prompt.len();
        if prompt == 0 || request.max_tokens == 0 {
            return Err(SubmitError::Empty);
        }
        if prompt >= self.request_tokens {
            return Err(SubmitError::TooLong { prompt, limit: self.request_tokens });
        }
        // One event for each token and one for the end: the channel never fills, however slow the client is.
        let most = request.max_tokens.min(self.request_tokens - prompt) + 1;
        let (sender, events) = mpsc::channel(most);
        let id = RequestId::next();
        let mut state = self.lock();
        if state.closed {
            return Err(SubmitError::Closed);
        }
        state.forget_cancelled();
        let limit = state.admission.limit();
        if !state.admission.push(Waiting { id, request, arrived: Instant::now() }) {
            return Err(SubmitError::Full { limit });
        }
        state.senders.insert(id, sender);
        self.wake.notify_one();
        Ok(Ticket { id, events })
    }

    /// Refuses requests from now on. The step loop ends, and every request that waits or runs with it.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.senders.clear();
        let limit = state.admission.limit();
        state.admission = Admission::new(limit);
        self.wake.notify_all();
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// How many requests wait for a slot for the first time.
    pub fn waiting(&self) -> usize {
        let mut state = self.lock();
        state.forget_cancelled();
        state.admission.len()
    }

    /// Lets `take` remove requests from the queue and passes on where the events of those that it names go.
    pub(super) fn admit<T>(
        &self,
        take: impl FnOnce(&mut Admission) -> (T, Vec<RequestId>),
    ) -> Admitted<T> {
        let mut state = self.lock();
        state.forget_cancelled();
        let (value, ids) = take(&mut state.admission);
        let senders =
            ids.into_iter().filter_map(|id| Some((id, state.senders.remove(&id)?))).collect();
        Admitted { value, senders, left: std::mem::take(&mut state.left) }
    }

    /// Blocks until a request waits, the queue is closed or `timeout` passed.
    pub(super) fn wait(&self, timeout: Duration) -> Woken {
        let calm = |state: &mut State| !state.closed && state.admission.is_empty();
        let waited = self.wake.wait_timeout_while(self.lock(), timeout, calm);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match () {
            () if state.closed => Woken::Closed,
            () if state.admission.is_empty() => Woken::Timeout,
            () => Woken::Request,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every method leaves the state whole at every point that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget_cancelled(&mut self) {
        let (admission, left) = (&mut self.admission, &mut self.left);
        self.senders.retain(|&id, sender| {
            let wanted = !sender.is_closed();
            if !wanted {
                admission.remove(id);
                *left += 1;
            }
            wanted
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::Sampling;

    fn request(prompt: usize) -> Request {
        let sampling = Sampling::GREEDY;
        Request { prompt: vec![1; prompt], max_tokens: 4, stops: vec![], sampling }
    }

    #[test]
    fn the_limit_is_exact_and_a_client_that_left_makes_room() {
        let queue = RequestQueue::new(2, 10);
        let first = queue.submit(request(1)).unwrap();
        let _second = queue.submit(request(1)).unwrap();
        assert_eq!(queue.submit(request(1)).unwrap_err(), SubmitError::Full { limit: 2 });
        drop(first);
        let _third = queue.submit(request(1)).unwrap();
        assert_eq!(queue.submit(request(1)).unwrap_err(), SubmitError::Full { limit: 2 });
        assert_eq!(queue.waiting(), 2);
        assert_eq!(queue.admit(|_| ((), Vec::new())).left, 1);
        assert_eq!(queue.admit(|_| ((), Vec::new())).left, 0);
    }

    #[test]
    fn what_cannot_be_served_is_refused_at_once() {
        let queue = RequestQueue::new(2, 10);
        let error = queue.submit(request(10)).unwrap_err();
        assert_eq!(error, SubmitError::TooLong { prompt: 10, limit: 10 });
        assert_eq!(queue.submit(request(0)).unwrap_err(), SubmitError::Empty);
        assert!(queue.submit(request(9)).is_ok());
    }

    #[test]
    fn closing_ends_the_waiting_requests_and_wakes_the_loop() {
        let queue = RequestQueue::new(2, 10);
        let mut ticket = queue.submit(request(1)).unwrap();
        assert_eq!(queue.wait(Duration::from_secs(60)), Woken::Request);
        queue.close();
        assert_eq!(ticket.events.blocking_recv(), None);
        assert_eq!(queue.wait(Duration::from_secs(60)), Woken::Closed);
        assert_eq!(queue.submit(request(1)).unwrap_err(), SubmitError::Closed);
    }

    #[test]
    fn waiting_for_nothing_ends_in_time() {
        let queue = RequestQueue::new(2, 10);
        assert_eq!(queue.wait(Duration::from_millis(1)), Woken::Timeout);
    }
}
