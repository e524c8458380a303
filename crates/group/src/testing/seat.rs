//! A rank's own record while its program runs, and the watch that keeps it under virtual time.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::beacon::{BeaconCell, Phase, operation};
use crate::collective::{Operation, Waits, Watch};
use crate::verdict::Verdict;

/// A wait of this length is told to the others, as the watch of a real rank does.
const TOLD_AFTER: Duration = Duration::from_micros(500);
const TOLD_EVERY: Duration = Duration::from_millis(5);

/// What the scheduler and a rank's program share.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) clock: Rc<Cell<Duration>>,
    pub(super) beacon: BeaconCell,
    pub(super) verdict: RefCell<Option<Arc<Verdict>>>,
    /// When the program goes on by itself.
    pub(super) wake_at: Cell<Option<Duration>>,
    /// Steps begun and steps done, counted over all epochs.
    pub(super) started: Cell<usize>,
    pub(super) completed: Cell<usize>,
    /// Since when the worker is inside one wait.
    pub(super) waits_since: Cell<Option<Duration>>,
    /// When the wait was last told to the others.
    told: Cell<Option<Duration>>,
}

impl Seat {
    pub(super) fn new(clock: Rc<Cell<Duration>>, epoch: u32, first: u32, completed: usize) -> Self {
        let beacon = BeaconCell::new(epoch);
        // Whoever compares must not take a rank that has begun nothing for one that is ahead.
        beacon.begin_operation(operation::NONE, first);
        beacon.set_phase(Phase::Start);
        Self {
            clock,
            beacon,
            verdict: RefCell::new(None),
            wake_at: Cell::new(None),
            started: Cell::new(completed),
            completed: Cell::new(completed),
            waits_since: Cell::new(None),
            told: Cell::new(None),
        }
    }

    pub(super) fn verdict(&self) -> Option<Arc<Verdict>> {
        self.verdict.borrow().clone()
    }

    /// Computes for a time.
    pub(super) async fn compute(&self, lasts: Duration) {
        self.beacon.set_phase(Phase::Compute);
        if lasts.is_zero() {
            return;
        }
        let until = self.clock.get().saturating_add(lasts);
        self.wake_at.set(Some(until));
        poll_fn(|_| if self.clock.get() >= until { Poll::Ready(()) } else { Poll::Pending }).await;
        self.wake_at.set(None);
    }

    /// Waits for the verdict that follows an error of this rank.
    pub(super) async fn until_verdict(&self) -> Arc<Verdict> {
        self.waits_since.set(Some(self.clock.get()));
        let verdict = poll_fn(|_| self.verdict().map_or(Poll::Pending, Poll::Ready)).await;
        self.waits_since.set(None);
        verdict
    }
}

#[derive(Clone, Debug)]
pub(super) struct SimWatch(pub(super) Rc<Seat>);

impl Watch for SimWatch {
    fn begin(&self, operation: Operation, sequence: u32) -> Result<(), Arc<Verdict>> {
        if let Some(verdict) = self.0.verdict() {
            return Err(verdict);
        }
        self.0.beacon.begin_operation(operation.code(), sequence);
        Ok(())
    }

    fn waits(&self, waits: &mut dyn FnMut() -> Waits) -> Result<(), Arc<Verdict>> {
        let seat = &*self.0;
        if let Some(verdict) = seat.verdict() {
            return Err(verdict);
        }
        let now = seat.clock.get();
        let since = seat.waits_since.get().unwrap_or(now);
        seat.waits_since.set(Some(since));
        let told = seat.told.get().is_some_and(|told| now.saturating_sub(told) < TOLD_EVERY);
        if now.saturating_sub(since) >= TOLD_AFTER && !told {
            seat.told.set(Some(now));
            let Waits { ranks, via } = waits();
            seat.beacon.set_waiting(ranks, via);
        }
        Ok(())
    }

    fn goes_on(&self) {
        self.0.waits_since.set(None);
        if self.0.told.take().is_some() {
            self.0.beacon.clear_waiting();
        }
    }

    fn end(&self) {
        self.goes_on();
        self.0.beacon.end_operation(Phase::Compute);
    }
}
