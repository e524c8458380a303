//! What keeps an eye on an operation while it runs: beacon, patience, verdict, metrics.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::beacon::{BeaconCell, Phase};
use crate::collective::{Operation, Waits, Watch};
use crate::control::mesh::Control;
use crate::patience::{Patience, overdue};
use crate::telemetry::Telemetry;
use crate::verdict::{Reason, Verdict};

/// Looks of a wait that pass before the clock is read: most waits end sooner.
const LOOKS_WITHOUT_CLOCK: u32 = 256;
/// A wait of this length is told to the others.
const TOLD_AFTER: Duration = Duration::from_micros(500);
/// How often what is told is brought up to date.
const TOLD_EVERY: Duration = Duration::from_millis(5);
/// How often patience is asked.
const JUDGED_EVERY: Duration = Duration::from_millis(20);
/// How long a proposal may go unanswered before it is made again.
const PROPOSED_EVERY: Duration = Duration::from_millis(500);

/// The watch of a group on real transports. One worker uses it.
#[derive(Debug)]
pub struct ControlWatch {
    rank: usize,
    control: Arc<Control>,
    beacon: Arc<BeaconCell>,
    patience: Arc<Patience>,
    telemetry: Telemetry,
    looks: Cell<u32>,
    since: Cell<Option<Instant>>,
    told: Cell<Option<Instant>>,
    judged: Cell<Option<Instant>>,
    proposed: Cell<Option<Instant>>,
}

impl ControlWatch {
    pub(crate) fn new(
        rank: usize,
        control: Arc<Control>,
        beacon: Arc<BeaconCell>,
        patience: Arc<Patience>,
        telemetry: Telemetry,
    ) -> Self {
        Self {
            rank,
            control,
            beacon,
            patience,
            telemetry,
            looks: Cell::new(0),
            since: Cell::new(None),
            told: Cell::new(None),
            judged: Cell::new(None),
            proposed: Cell::new(None),
        }
    }

    /// The rank enters a phase between operations.
    pub(crate) fn enter(&self, phase: Phase) {
        self.beacon.set_phase(phase);
        self.telemetry.phase(phase);
    }

    fn stopped(&self) -> Result<(), Arc<Verdict>> {
        if self.control.failed() {
            if let Some(verdict) = self.control.verdict() {
                return Err(verdict);
            }
        }
        Ok(())
    }

    fn judge(&self, waits: Waits, since: Instant, now: Instant) {
        let view = self.control.view();
        let patience = self.patience.values();
        let waited = now.saturating_duration_since(since);
        let clock = self.control.now();
        if overdue(&view, &patience, self.rank, waits.ranks, waited, clock).is_some()
            && due(&self.proposed, PROPOSED_EVERY, now)
        {
            self.telemetry.proposed();
            self.control.propose(Reason::Overdue);
        }
    }
}

/// True when `every` has passed since the time in the cell, which is then set to `now`.
fn due(last: &Cell<Option<Instant>>, every: Duration, now: Instant) -> bool {
    if last.get().is_some_and(|last| now.saturating_duration_since(last) < every) {
        return false;
    }
    last.set(Some(now));
    true
}

impl Watch for ControlWatch {
    fn begin(&self, operation: Operation, sequence: u32) -> Result<(), Arc<Verdict>> {
        self.stopped()?;
        self.beacon.begin_operation(operation.code(), sequence);
        Ok(())
    }

    fn waits(&self, waits: &mut dyn FnMut() -> Waits) -> Result<(), Arc<Verdict>> {
        self.stopped()?;
        let looks = self.looks.get();
        if looks < LOOKS_WITHOUT_CLOCK {
            self.looks.set(looks + 1);
            return Ok(());
        }
        let now = Instant::now();
        let since = self.since.get().unwrap_or(now);
        self.since.set(Some(since));
        if now.saturating_duration_since(since) < TOLD_AFTER || !due(&self.told, TOLD_EVERY, now) {
            return Ok(());
        }
        let waits = waits();
        self.beacon.set_waiting(waits.ranks, waits.via);
        if let Some(peer) = waits.ranks.iter().next() {
            self.telemetry.waits(peer, || peer_phase(&self.control, peer), since);
        }
        if due(&self.judged, JUDGED_EVERY, now) {
            self.judge(waits, since, now);
        }
        Ok(())
    }

    fn goes_on(&self) {
        self.looks.set(0);
        self.since.set(None);
        if self.told.take().is_some() {
            self.beacon.clear_waiting();
            self.telemetry.waits_no_more();
        }
        self.judged.set(None);
        self.proposed.set(None);
    }

    fn end(&self) {
        self.goes_on();
        self.beacon.end_operation(Phase::Compute);
    }
}

fn peer_phase(control: &Control, peer: usize) -> Phase {
    let view = control.view();
    let beacon = view.ranks.get(peer).and_then(|rank| rank.beacon);
    beacon.map_or(Phase::Start, |beacon| beacon.phase)
}
