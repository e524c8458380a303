//! One epoch of a simulated group: who runs when, what goes wrong, and whether the invariants hold.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fabric::sim::{Fault, LateFrame, Rng, SimSettings, World};
use fabric::{Layout, Region, Topology};

use super::Broken;
use super::net::{ControlNet, Parcel};
use super::plan::{DRAIN_WAITS_ARE_TOLD, GIVE_UP_AFTER, Mishap, SimPlan, Trouble};
use super::program::Stop;
use super::rank::{Common, SimRank};
use super::seat::Seat;
use super::steps::Book;
use super::story::Story;
use crate::control::{Output, SupervisorNote};
use crate::verdict::Verdict;

/// Longest virtual time of an epoch.
const EPOCH_MAX: Duration = Duration::from_secs(30);
/// Most events of an epoch.
const EVENTS_MAX: u64 = 5_000_000;
/// How much longer than patience a wait may last, and how far apart ranks may adopt a verdict.
const GRACE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(50);
const PULSE: Duration = Duration::from_millis(100);
/// Frames of the epoch before arrive within this time.
const LATE_WITHIN: Duration = Duration::from_millis(1);

/// What an epoch starts from.
pub(super) struct EpochSetup<'a> {
    pub(super) seed: u64,
    pub(super) epoch: u32,
    pub(super) plan: &'a SimPlan,
    pub(super) topology: Arc<Topology>,
    pub(super) regions: Vec<Arc<Region>>,
    pub(super) book: Rc<Book>,
    pub(super) clock: Rc<Cell<Duration>>,
    /// Steps that each rank has done.
    pub(super) completed: Vec<usize>,
    pub(super) late: Vec<LateFrame>,
    pub(super) mishap: Option<Mishap>,
}

/// How an epoch ended.
pub(super) struct EpochEnd {
    pub(super) hash: u64,
    pub(super) verdict: Option<Arc<Verdict>>,
    pub(super) completed: Vec<usize>,
    pub(super) frames: Vec<LateFrame>,
    pub(super) late_refused: u64,
    pub(super) overrun: Duration,
    pub(super) rails_back: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Do {
    Run(usize),
    Pump(usize),
    Tick(usize),
    Pulse(usize),
    Arrive { from: usize, to: usize, number: u64 },
    Mishap,
    Note { by: usize, rank: usize },
    Thaw(usize),
}

pub(super) struct Epoch<'a> {
    pub(super) plan: &'a SimPlan,
    pub(super) world: World,
    pub(super) layout: Arc<Layout>,
    topology: Arc<Topology>,
    pub(super) regions: Vec<Arc<Region>>,
    pub(super) ranks: Vec<SimRank>,
    net: ControlNet,
    pub(super) rng: Rng,
    clock: Rc<Cell<Duration>>,
    start: Duration,
    agenda: BinaryHeap<Reverse<(Duration, u64, Do)>>,
    pub(super) mishap: Option<Mishap>,
    armed: bool,
    pub(super) fault_at: Option<Duration>,
    pub(super) late_count: u64,
    verdict: Option<(Duration, Arc<Verdict>)>,
    adopted: u32,
    thawed_at: Duration,
    overrun: Duration,
    hash: u64,
    story: &'a mut Story,
    out: Vec<Output>,
}

impl<'a> Epoch<'a> {
    pub(super) fn new(setup: EpochSetup<'a>, story: &'a mut Story) -> Result<Self, Broken> {
        let EpochSetup { plan, topology, regions, book, clock, .. } = setup;
        let mut rng = Rng::new(setup.seed);
        let layout = Arc::new(Layout::new(&topology, plan.sizes));
        let start = clock.get();
        let settings = SimSettings {
            seed: rng.bits(),
            epoch: setup.epoch,
            crc: true,
            outstanding_max: plan.outstanding_max,
            give_up_after: GIVE_UP_AFTER,
            start,
            bug: plan.bug,
            ..SimSettings::default()
        };
        let world = World::over((*topology).clone(), settings, regions.clone())
            .map_err(|error| ("PLAN", error.to_string()))?;
        let resume = setup.completed.iter().copied().min().unwrap_or(0);
        let mishap = setup.mishap.filter(|mishap| {
            mishap.trouble.cable().is_none_or(|(a, b)| topology.are_neighbours(a, b))
        });
        let mishap = mishap.map(|mishap| Mishap {
            step: mishap.step.max(resume).min(plan.steps.len().saturating_sub(1)),
            ..mishap
        });
        let common = Common {
            plan,
            book: &book,
            world: &world,
            topology: &topology,
            layout: &layout,
            epoch: setup.epoch,
            now: start,
        };
        let ranks = (0..plan.ranks)
            .map(|rank| {
                let mut computes: Vec<_> =
                    plan.steps.iter().map(|_| rng.up_to(plan.compute)).collect();
                if let Some(Mishap { trouble: Trouble::SlowCompute { rank: slow }, step, .. }) =
                    &mishap
                    && *slow == rank
                {
                    let patience = plan.patience.get(crate::patience::PatienceKey::Compute);
                    computes[*step] = patience + Duration::from_millis(1500);
                }
                let (clock, done) = (Rc::clone(&clock), setup.completed[rank]);
                let seat = Rc::new(Seat::new(clock, setup.epoch, plan.first, done));
                SimRank::new(&common, rank, &regions[rank], seat, computes)
            })
            .collect();
        let late_count = setup.late.len() as u64;
        story.tell(start, || {
            format!(
                "epoch {} begins at step {resume}; {late_count} late frames; {mishap:?}",
                setup.epoch
            )
        });
        world.deliver_late(setup.late, LATE_WITHIN);
        let mut epoch = Self {
            plan,
            world,
            layout,
            topology,
            regions,
            ranks,
            net: ControlNet::new(rng.bits()),
            rng,
            clock,
            start,
            agenda: BinaryHeap::new(),
            mishap,
            armed: false,
            fault_at: None,
            late_count,
            verdict: None,
            adopted: 0,
            thawed_at: start,
            overrun: Duration::ZERO,
            hash: 0,
            story,
            out: Vec::new(),
        };
        epoch.paint()?;
        for rank in 0..plan.ranks {
            let at = start + epoch.rng.up_to(Duration::from_micros(200));
            epoch.run_soon(rank, at);
            let at = start + epoch.rng.up_to(TICK);
            epoch.schedule(at, Do::Tick(rank));
            let at = start + epoch.rng.up_to(PULSE);
            epoch.schedule(at, Do::Pulse(rank));
        }
        Ok(epoch)
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.get()
    }

    fn schedule(&mut self, at: Duration, what: Do) {
        // Among what is due at one moment, chance decides.
        let tie = self.rng.bits();
        self.agenda.push(Reverse((at, tie, what)));
    }

    fn run_soon(&mut self, rank: usize, at: Duration) {
        if self.ranks[rank].run_at.is_none_or(|known| at < known) {
            self.ranks[rank].run_at = Some(at);
            self.schedule(at, Do::Run(rank));
        }
    }

    /// How long a thread takes to notice: mostly no time, sometimes as long as it takes to get a core.
    fn lag(&mut self) -> Duration {
        match self.rng.below(64) {
            0 => self.rng.up_to(Duration::from_millis(1)),
            1..16 => self.rng.up_to(Duration::from_micros(20)),
            _ => Duration::ZERO,
        }
    }

    /// Runs until all ranks have done their steps or have stopped with one verdict.
    pub(super) fn run(mut self) -> Result<EpochEnd, Broken> {
        for _ in 0..EVENTS_MAX {
            self.next_event()?;
            if self.now() > self.start + EPOCH_MAX {
                return Err(("BOUNDED", format!("no end after {EPOCH_MAX:?}: {}", self.places())));
            }
            if let Some(end) = self.end()? {
                return Ok(end);
            }
        }
        Err(("BOUNDED", format!("no end after {EVENTS_MAX} events: {}", self.places())))
    }

    fn next_event(&mut self) -> Result<(), Broken> {
        let planned = self.agenda.peek().map(|Reverse((at, ..))| *at);
        let moved = self.world.next_event();
        let world_first = match (planned, moved) {
            (Some(planned), Some(moved)) if planned == moved => self.rng.once_in(2),
            (Some(planned), Some(moved)) => moved < planned,
            (planned, _) => planned.is_none(),
        };
        if world_first {
            self.world.step();
            self.clock.set(self.world.now());
            self.notice_stirred();
            return Ok(());
        }
        let Some(Reverse((at, _, what))) = self.agenda.pop() else { return Ok(()) };
        self.world.advance_to(at);
        self.clock.set(at.max(self.now()));
        self.hash = self.hash.rotate_left(9) ^ (at.as_nanos() as u64).wrapping_mul(0x9e37_79b9);
        self.carry_out(what)?;
        self.notice_stirred();
        Ok(())
    }

    fn notice_stirred(&mut self) {
        let stirred = self.world.take_stirred();
        if stirred == 0 {
            return;
        }
        let now = self.now();
        for rank in (0..self.ranks.len()).filter(|rank| stirred & 1 << rank != 0) {
            if self.ranks[rank].is_still() {
                continue;
            }
            let waits = self.ranks[rank].seat.waits_since.get().is_some();
            if waits {
                let at = now + self.lag();
                self.run_soon(rank, at);
            }
            if (!waits || self.rng.once_in(8)) && self.ranks[rank].pump_at.is_none() {
                let at = now + self.lag();
                self.ranks[rank].pump_at = Some(at);
                self.schedule(at, Do::Pump(rank));
            }
        }
    }

    fn carry_out(&mut self, what: Do) -> Result<(), Broken> {
        let now = self.now();
        match what {
            Do::Run(rank) => {
                if self.ranks[rank].run_at.is_some_and(|at| at <= now) {
                    self.ranks[rank].run_at = None;
                }
                if !self.ranks[rank].is_still() {
                    self.ranks[rank].work();
                    self.after_work(rank)?;
                }
            }
            Do::Pump(rank) => {
                self.ranks[rank].pump_at = None;
                if !self.ranks[rank].is_still() && self.ranks[rank].pump() {
                    self.run_soon(rank, now);
                }
            }
            Do::Tick(rank) => {
                if self.ranks[rank].dead {
                    return Ok(());
                }
                let jitter = self.rng.up_to(Duration::from_millis(2));
                self.schedule(now + TICK + jitter, Do::Tick(rank));
                if !self.ranks[rank].frozen {
                    let mut out = std::mem::take(&mut self.out);
                    self.ranks[rank].tick(now, &mut out);
                    self.dispatch(rank, out)?;
                    self.check_wait(rank)?;
                    // The longest sleep of a worker that nothing wakes.
                    let at = now + self.rng.up_to(TICK);
                    self.run_soon(rank, at);
                }
            }
            Do::Pulse(rank) => {
                if self.ranks[rank].dead {
                    return Ok(());
                }
                self.schedule(now + PULSE, Do::Pulse(rank));
                if !self.ranks[rank].frozen {
                    let mut out = std::mem::take(&mut self.out);
                    self.ranks[rank].pulse(now, &mut out);
                    self.dispatch(rank, out)?;
                    self.run_soon(rank, now);
                }
            }
            Do::Arrive { from, to, number } => {
                let Some(parcel) = self.net.take(number) else { return Ok(()) };
                if self.ranks[to].frozen {
                    self.ranks[to].inbox.push_back((from, parcel));
                } else if !self.ranks[to].dead {
                    self.hear(from, to, &parcel)?;
                }
            }
            Do::Mishap => self.go_wrong()?,
            Do::Note { by, rank } => {
                let note = SupervisorNote {
                    rank: rank as u8,
                    ended: true,
                    text: "killed by signal 9".to_owned(),
                };
                let mut out = std::mem::take(&mut self.out);
                self.ranks[by].core.note(now, note, &mut out);
                self.dispatch(by, out)?;
            }
            Do::Thaw(rank) => self.thaw(rank)?,
        }
        Ok(())
    }

    fn hear(&mut self, from: usize, to: usize, parcel: &Parcel) -> Result<(), Broken> {
        let mut out = std::mem::take(&mut self.out);
        let now = self.now();
        self.ranks[to]
            .hear(now, from, parcel, &mut out)
            .map_err(|what| ("EXACT", format!("rank {to} cannot read rank {from}: {what}")))?;
        self.dispatch(to, out)
    }

    fn dispatch(&mut self, from: usize, mut out: Vec<Output>) -> Result<(), Broken> {
        let now = self.now();
        for output in out.drain(..) {
            match output {
                Output::Send { to, message } => {
                    let bytes =
                        self.ranks[from].encode(&message).map_err(|what| ("EXACT", what))?;
                    let (at, number) = self.net.send(now, from, to, Parcel::Frame(bytes));
                    self.schedule(at, Do::Arrive { from, to, number });
                }
                Output::Adopted(verdict) => self.adopt(from, verdict)?,
                Output::Rail { from: sender, message } => {
                    self.ranks[from].rail_messages.push((sender, message));
                }
            }
        }
        self.out = out;
        Ok(())
    }

    fn adopt(&mut self, rank: usize, verdict: Arc<Verdict>) -> Result<(), Broken> {
        let now = self.now();
        self.story.tell(now, || {
            format!(
                "rank {rank} adopts: {verdict} (by rank {}) {:#?}",
                verdict.judged_by, verdict.evidence
            )
        });
        let fired = self.mishap.as_ref().filter(|_| self.fault_at.is_some());
        let Some(mishap) = fired.filter(|mishap| self.plan.may_stop(mishap)) else {
            return Err((
                "CAUSE",
                format!(
                    "a verdict where nothing went wrong for longer than patience: {verdict}; {:?}",
                    verdict.evidence
                ),
            ));
        };
        if !mishap.trouble.explains(&verdict) {
            return Err((
                "CAUSE",
                format!("{:?} was explained as: {verdict}; {:?}", mishap.trouble, verdict.evidence),
            ));
        }
        if let Some(named) = verdict.rank
            && verdict.host != format!("host-{named}")
        {
            return Err(("CAUSE", format!("rank {named} is not on host {}", verdict.host)));
        }
        match &self.verdict {
            Some((_, known)) if *known != verdict => {
                return Err((
                    "AGREE",
                    format!("rank {rank} adopted {verdict:?} and another rank {known:?}"),
                ));
            }
            Some(_) => {}
            None => self.verdict = Some((now, Arc::clone(&verdict))),
        }
        if let Some(limit) = self.wait_limit(rank) {
            let overrun = (now + GRACE).saturating_sub(limit);
            self.overrun = self.overrun.max(overrun);
        }
        self.adopted |= 1 << rank;
        *self.ranks[rank].seat.verdict.borrow_mut() = Some(verdict);
        self.run_soon(rank, now);
        Ok(())
    }

    /// By when the present wait of a rank must be over.
    fn wait_limit(&self, rank: usize) -> Option<Duration> {
        let since = self.ranks[rank].seat.waits_since.get()?;
        let allowed = match (&self.mishap, self.fault_at) {
            (Some(mishap), Some(_)) => self.plan.allowed(mishap),
            _ => self.plan.patience.get(crate::patience::PatienceKey::Wire),
        };
        let since = since.max(self.fault_at.unwrap_or(since));
        let own = match &self.mishap {
            // A rank that was stopped itself starts to count when it goes on.
            Some(Mishap { trouble: Trouble::Freeze { rank: stopped, .. }, .. })
                if *stopped == rank =>
            {
                since.max(self.thawed_at)
            }
            _ => since,
        };
        Some(own + allowed + GRACE)
    }

    fn check_wait(&mut self, rank: usize) -> Result<(), Broken> {
        let now = self.now();
        if self.wait_limit(rank).is_some_and(|limit| now > limit) {
            let waits_for = self.ranks[rank].seat.beacon.snapshot(now).waits_for;
            if !DRAIN_WAITS_ARE_TOLD && waits_for.is_empty() && self.fault_at.is_some() {
                self.world.inject(Fault::Release);
                return Ok(());
            }
            return Err((
                "BOUNDED",
                format!("rank {rank} waits beyond patience and a second: {}", self.places()),
            ));
        }
        if let Some((at, verdict)) = &self.verdict {
            let told = self.adopted & 1 << rank != 0;
            if !told && now > (*at).max(self.thawed_at) + GRACE {
                return Err((
                    "AGREE",
                    format!("rank {rank} has not adopted what others did a second ago: {verdict}"),
                ));
            }
        }
        Ok(())
    }

    fn after_work(&mut self, rank: usize) -> Result<(), Broken> {
        let now = self.now();
        if let Some(Err(Stop::Wrong { invariant, what })) = &self.ranks[rank].ended {
            return Err((invariant, what.clone()));
        }
        if let Some(at) = self.ranks[rank].seat.wake_at.get() {
            self.run_soon(rank, at.max(now));
        }
        let Some(mishap) = &self.mishap else { return Ok(()) };
        if self.armed {
            return Ok(());
        }
        let step = mishap.step;
        if let Trouble::SlowCompute { rank: slow } = mishap.trouble {
            let seat = &self.ranks[slow].seat;
            if seat.completed.get() == step && seat.wake_at.get().is_some() {
                self.armed = true;
                self.fault_at = Some(now);
            }
        } else if self.ranks.iter().any(|rank| rank.seat.started.get() > step) {
            self.armed = true;
            let at = now + mishap.after;
            self.schedule(at, Do::Mishap);
        }
        Ok(())
    }

    fn go_wrong(&mut self) -> Result<(), Broken> {
        let now = self.now();
        let Some(mishap) = self.mishap.clone() else { return Ok(()) };
        self.fault_at = Some(now);
        if self.story.is_kept() {
            let places = self.places();
            self.story.tell(now, || format!("{:?}; {places}", mishap.trouble));
        }
        let rails = 0..self.plan.rails;
        match mishap.trouble {
            Trouble::Cut { a, b, rail } => self.world.inject(Fault::Cut { a, b, rail }),
            Trouble::CutAll { a, b } => {
                rails.for_each(|rail| self.world.inject(Fault::Cut { a, b, rail }));
            }
            Trouble::Silence { a, b, rail } => rails
                .filter(|each| rail.is_none_or(|rail| rail == *each))
                .for_each(|rail| self.world.inject(Fault::Silence { a, b, rail })),
            Trouble::Damage { from, to, truncated: true } => {
                self.world.inject(Fault::Truncate { from, to });
            }
            Trouble::Damage { from, to, truncated: false } => {
                self.world.inject(Fault::FlipBit { from, to });
            }
            Trouble::Freeze { rank, lasts } => {
                self.world.inject(Fault::Freeze { rank });
                self.ranks[rank].frozen = true;
                if let Some(lasts) = lasts {
                    self.schedule(now + lasts, Do::Thaw(rank));
                }
            }
            Trouble::HoldRelay { rank } => {
                self.ranks[rank].fabric.with_endpoint(|endpoint| endpoint.hold_relays(true));
            }
            Trouble::HoldWorld => self.world.inject(Fault::Hold),
            Trouble::Kill { rank } => self.kill(rank),
            Trouble::PowerLoss { rank } => {
                self.ranks[rank].dead = true;
                self.world.inject(Fault::Kill { rank, notice: None });
            }
            Trouble::Slow { extra, jitter } => {
                for cable in self.topology.cables().to_vec() {
                    let (a, b) = cable.ends();
                    for rail in rails.clone() {
                        if self.rng.once_in(2) {
                            self.world.inject(Fault::Slow { a, b, rail, extra, jitter });
                        }
                    }
                }
            }
            Trouble::SlowCompute { .. } => {}
        }
        Ok(())
    }

    fn kill(&mut self, rank: usize) {
        let now = self.now();
        self.ranks[rank].dead = true;
        let notice = Some(self.rng.up_to(Duration::from_millis(5)));
        self.world.inject(Fault::Kill { rank, notice });
        for to in (0..self.ranks.len()).filter(|to| *to != rank) {
            let (at, number) = self.net.send(now, rank, to, Parcel::End);
            self.schedule(at, Do::Arrive { from: rank, to, number });
        }
        if self.rng.once_in(2) {
            let by = (rank + 1 + self.rng.index(self.ranks.len() - 1)) % self.ranks.len();
            let at = now + self.rng.up_to(Duration::from_millis(100));
            self.schedule(at, Do::Note { by, rank });
        }
    }

    fn thaw(&mut self, rank: usize) -> Result<(), Broken> {
        let now = self.now();
        self.story.tell(now, || format!("rank {rank} goes on"));
        self.world.inject(Fault::Thaw { rank });
        self.thawed_at = now;
        self.ranks[rank].frozen = false;
        let inbox = std::mem::take(&mut self.ranks[rank].inbox);
        // The worker may be first, or the control thread, which reads before it decides.
        if self.rng.once_in(2) {
            self.ranks[rank].work();
            self.after_work(rank)?;
        }
        for (from, parcel) in inbox {
            self.hear(from, rank, &parcel)?;
        }
        let mut out = std::mem::take(&mut self.out);
        self.ranks[rank].tick(now, &mut out);
        self.dispatch(rank, out)?;
        self.run_soon(rank, now);
        Ok(())
    }

    /// The end of the epoch, if it has come.
    fn end(&mut self) -> Result<Option<EpochEnd>, Broken> {
        let alive = |rank: &SimRank| {
            let gone = self.mishap.as_ref().and_then(|mishap| mishap.trouble.lost_rank());
            !(rank.is_still() && gone == Some(rank.rank))
        };
        if !self.ranks.iter().filter(|rank| alive(rank)).all(|rank| rank.ended.is_some()) {
            return Ok(None);
        }
        let must_stop = self.mishap.as_ref().is_some_and(|mishap| self.plan.must_stop(mishap));
        let all = self.ranks.iter().filter(|rank| alive(rank)).fold(0, |all, r| all | 1 << r.rank);
        let stopped =
            self.ranks.iter().any(|rank| matches!(rank.ended, Some(Err(Stop::Verdict(_)))));
        if (must_stop || stopped || self.verdict.is_some()) && self.adopted & all != all {
            return Ok(None);
        }
        let verdict = self.verdict.as_ref().map(|(_, verdict)| Arc::clone(verdict));
        for rank in &self.ranks {
            if let Some(Err(Stop::Verdict(own))) = &rank.ended
                && verdict.as_ref() != Some(own)
            {
                return Err(("AGREE", format!("rank {} stopped with {own}", rank.rank)));
            }
        }
        if verdict.is_none() {
            self.settle()?;
        }
        self.check_paint()?;
        let now = self.now();
        self.story.tell(now, || match &verdict {
            Some(verdict) => format!("the epoch ends: {verdict}"),
            None => "the epoch ends: all steps are done".to_owned(),
        });
        Ok(Some(EpochEnd {
            hash: self.hash ^ self.world.trace_hash(),
            verdict,
            completed: self.ranks.iter().map(|rank| rank.seat.completed.get()).collect(),
            late_refused: self.world.counters().late_rejected,
            frames: self.world.end(),
            overrun: self.overrun,
            rails_back: self.ranks.iter().map(|rank| rank.rails_back).sum(),
        }))
    }

    pub(super) fn places(&self) -> String {
        let place = |rank: &SimRank| {
            let beacon = rank.seat.beacon.snapshot(self.now());
            format!(
                "rank {} {} step {} {} waits for {{{}}} via {{{}}} since {:?}{}",
                rank.rank,
                if rank.is_still() { "(still)" } else { "" },
                rank.seat.started.get(),
                beacon.phase,
                beacon.waits_for,
                beacon.waits_via,
                rank.seat.waits_since.get(),
                if rank.ended.is_some() { " ended" } else { "" },
            )
        };
        self.ranks.iter().map(place).collect::<Vec<_>>().join("; ")
    }
}
