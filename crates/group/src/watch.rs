//! What keeps an eye on an operation while it runs: it tells others of a wait through the beacon,
//! and ends the wait when there is a verdict.
//!
//! Whether a wait is overdue is not decided here: the control thread reads the same beacon, and
//! does so even while this thread is stuck.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::beacon::{BeaconCell, Phase};
use crate::collective::{Operation, Waits, Watch};
use crate::control::mesh::Control;
use crate::telemetry::Telemetry;
use crate::verdict::Verdict;

/// Looks of a young wait for each reading of the clock, which costs more than a look.
const LOOKS_PER_CLOCK: u32 = 16;
/// A wait older than this reads the clock at every look: it may sleep between them.
const YOUNG: Duration = Duration::from_micros(100);
/// A wait of this length is told to the others.
const TOLD_AFTER: Duration = Duration::from_micros(500);
/// How often what is told is brought up to date.
const TOLD_EVERY: Duration = Duration::from_millis(5);

/// The watch of a group on real transports. One worker uses it.
#[derive(Debug)]
pub struct ControlWatch {
    control: Arc<Control>,
    beacon: Arc<BeaconCell>,
    telemetry: Telemetry,
    looks: Cell<u32>,
    since: Cell<Option<Instant>>,
    is_old: Cell<bool>,
    told: Cell<Option<Instant>>,
}

impl ControlWatch {
    pub(crate) fn new(
        control: Arc<Control>,
        beacon: Arc<BeaconCell>,
        telemetry: Telemetry,
    ) -> Self {
        Self {
            control,
            beacon,
            telemetry,
            looks: Cell::new(0),
            since: Cell::new(None),
            is_old: Cell::new(false),
            told: Cell::new(None),
        }
    }

    /// The rank enters a phase between operations.
    pub(crate) fn enter(&self, phase: Phase) {
        self.beacon.set_phase(phase);
        self.telemetry.phase(phase);
    }

    fn stopped(&self) -> Result<(), Arc<Verdict>> {
        if self.control.failed()
            && let Some(verdict) = self.control.verdict()
        {
            return Err(verdict);
        }
        Ok(())
    }

    fn tell(&self, waits: Waits, since: Instant) {
        self.beacon.set_waiting(waits.ranks, waits.via);
        if let Some(peer) = waits.ranks.iter().next() {
            self.telemetry.waits(peer, || peer_phase(&self.control, peer), since);
        }
    }
}

impl Watch for ControlWatch {
    fn begin(&self, operation: Operation, sequence: u32) -> Result<(), Arc<Verdict>> {
        self.stopped()?;
        self.beacon.begin_operation(operation.code(), sequence);
        Ok(())
    }

    fn waits(&self, waits: &mut dyn FnMut() -> Waits) -> Result<(), Arc<Verdict>> {
        self.stopped()?;
        let looks = self.looks.get().wrapping_add(1);
        self.looks.set(looks);
        if !self.is_old.get() && !looks.is_multiple_of(LOOKS_PER_CLOCK) {
            return Ok(());
        }
        let now = Instant::now();
        let since = self.since.get().unwrap_or(now);
        self.since.set(Some(since));
        let waited = now.saturating_duration_since(since);
        self.is_old.set(waited > YOUNG);
        let told = self.told.get();
        let is_due = told.is_none_or(|told| now.saturating_duration_since(told) >= TOLD_EVERY);
        if waited >= TOLD_AFTER && is_due {
            self.told.set(Some(now));
            self.tell(waits(), since);
        }
        Ok(())
    }

    fn goes_on(&self) {
        self.looks.set(0);
        self.since.set(None);
        self.is_old.set(false);
        if self.told.take().is_some() {
            self.beacon.clear_waiting();
            self.telemetry.waits_no_more();
        }
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
