//! The state machine of the control plane of one rank: messages, closings, ticks in; messages and one verdict out.
//! Time comes in with every call; the same inputs give the same outputs.
//!
//! **One verdict.** The lowest rank that is connected and heard collects for at most half a second from the first
//! proposal, judges, and sends its verdict to all; every rank passes a verdict on once, so that a judge that dies half-way
//! leaves nobody out. A rank that already has a verdict of another judge does not judge. Should two have judged at the
//! same time, the verdict of the lower judge wins: a verdict of rank 0 is adopted at once, any other [`SETTLE`] after it
//! was first seen, which is enough while messages take less than half of that.

use std::sync::Arc;
use std::time::Duration;

use crate::beacon::{Beacon, Phase, RankSet, operation};
use crate::control::judge::{Evidence, judge};
use crate::control::view::{CableNames, ClusterView, ControlState, LinkReport, SupervisorNote};
use crate::control::wire::{Message, RailMessage};
use crate::patience::{PatienceKey, PatienceValues, overdue};
use crate::verdict::{Cause, Proposal, Reason, Verdict, shorten};

/// Time between two heartbeats.
pub const HEARTBEAT: Duration = Duration::from_millis(100);
/// Longest time the collector waits for the evidence of others.
pub const COLLECT: Duration = Duration::from_millis(500);
/// Time it waits all the same where everybody has said the same already: a supervisor may have a word to add.
const COLLECT_UNANIMOUS: Duration = Duration::from_millis(100);
/// Time between first seeing a verdict of a judge other than rank 0 and adopting it.
pub const SETTLE: Duration = Duration::from_millis(200);
/// A lower rank unheard for longer leaves collecting to the next.
const COLLECTOR_STALE: Duration = Duration::from_millis(700);
/// A rank whose own ticks were further apart was stopped itself; it reads what came meanwhile before it decides.
const OWN_GAP: Duration = Duration::from_millis(600);
/// Time between two proposals of one rank for one reason.
const REPEAT: Duration = Duration::from_millis(500);
const MAX_PROPOSALS: usize = 64;
const MAX_LINK_REPORTS: usize = 256;

/// What the state machine wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send `message` to rank `to`.
    Send {
        /// Receiver.
        to: usize,
        /// What to send.
        message: Message,
    },
    /// This rank has adopted the verdict of its epoch. Comes at most once.
    Adopted(Arc<Verdict>),
    /// Hand this to whoever makes rails again.
    Rail {
        /// Sender.
        from: usize,
        /// What it sent.
        message: RailMessage,
    },
}

/// The control plane of one rank in one epoch.
#[derive(Debug)]
pub struct ControlCore {
    view: ClusterView,
    proposals: Vec<Proposal>,
    opened_at: Option<Duration>,
    candidate: Option<(Verdict, Duration)>,
    adopted: Option<Arc<Verdict>>,
    next_heartbeat: Duration,
    next_proposal: Duration,
    next_quiet_report: Duration,
    last_tick: Duration,
    quiet_until: Duration,
}

impl ControlCore {
    /// The control plane of rank `me` of `hosts.len()` ranks, every one of them connected at `now`.
    pub fn new(epoch: u32, me: usize, hosts: Vec<String>, now: Duration) -> Self {
        Self {
            view: ClusterView::new(epoch, me, hosts, now),
            proposals: Vec::new(),
            opened_at: None,
            candidate: None,
            adopted: None,
            next_heartbeat: now,
            next_proposal: now,
            next_quiet_report: now,
            last_tick: now,
            quiet_until: now,
        }
    }

    /// The same, with what people call the cables.
    #[must_use]
    pub fn with_cables(mut self, cables: CableNames) -> Self {
        self.view.cables = cables;
        self
    }

    /// What this rank knows.
    pub fn view(&self) -> &ClusterView {
        &self.view
    }

    /// Whether somebody has asked for a verdict that is not there yet.
    pub fn is_open(&self) -> bool {
        self.opened_at.is_some() && self.adopted.is_none()
    }

    /// The verdict of this epoch, once adopted.
    pub fn verdict(&self) -> Option<&Arc<Verdict>> {
        self.adopted.as_ref()
    }

    /// A message of rank `from`, whose frame named `epoch`. One of another epoch is dropped.
    pub fn on_message(
        &mut self,
        now: Duration,
        from: usize,
        epoch: u32,
        message: Message,
        out: &mut Vec<Output>,
    ) {
        if epoch != self.view.epoch || from >= self.view.size() || from == self.view.me {
            return;
        }
        self.view.hear(from, now);
        match message {
            Message::Heartbeat(beacon) => self.view.take_beacon(from, beacon, now),
            Message::Propose(mut proposal) => {
                proposal.from = narrow(from);
                if let Some(verdict) = &self.adopted {
                    let message = Message::Verdict((**verdict).clone());
                    out.push(Output::Send { to: from, message });
                }
                self.take_proposal(proposal, now);
            }
            Message::Link(mut report) => {
                report.from = narrow(from);
                self.take_link(report);
            }
            Message::Note(note) => self.take_note(note, now),
            Message::Verdict(verdict) => self.take_verdict(verdict, Some(from), now, out),
            Message::Goodbye => self.view.ranks[from].control = ControlState::Goodbye,
            // After a verdict nothing is made again.
            Message::Rail(message) if self.adopted.is_none() => {
                out.push(Output::Rail { from, message });
            }
            Message::Rail(_) => {}
        }
    }

    /// The connection to `peer` ended. After a goodbye this is in order; else it is proposed as a death at once.
    pub fn on_closed(&mut self, now: Duration, peer: usize, why: &str, out: &mut Vec<Output>) {
        let Some(view) = self.view.ranks.get_mut(peer) else { return };
        if view.control != ControlState::Connected {
            return;
        }
        let mut why = why.to_owned();
        shorten(&mut why);
        view.control = ControlState::Lost { at: now, why: why.clone() };
        let reason = Reason::PeerClosed { rank: narrow(peer), why };
        self.propose(now, reason, out);
    }

    /// A beacon of `rank` that came through the fabric.
    pub fn on_fabric_beacon(&mut self, now: Duration, rank: usize, beacon: Beacon) {
        if rank != self.view.me {
            self.view.take_fabric_beacon(rank, beacon, now);
        }
    }

    /// A rail went down at this rank. This informs; where the pair has no other path left, propose
    /// [`Reason::LinkDown`] as well.
    pub fn report_link(&mut self, mut report: LinkReport, out: &mut Vec<Output>) {
        shorten(&mut report.why);
        report.from = narrow(self.view.me);
        self.take_link(report.clone());
        self.broadcast(&Message::Link(report), None, out);
    }

    /// This rank's supervisor said something.
    pub fn note(&mut self, now: Duration, mut note: SupervisorNote, out: &mut Vec<Output>) {
        shorten(&mut note.text);
        self.take_note(note.clone(), now);
        self.broadcast(&Message::Note(note), None, out);
    }

    /// This rank asks for a verdict, with its position as the last tick's beacon had it.
    pub fn propose(&mut self, now: Duration, reason: Reason, out: &mut Vec<Output>) {
        let beacon = self.own_beacon();
        let proposal = Proposal {
            from: narrow(self.view.me),
            sequence: beacon.sequence,
            operation: beacon.operation,
            waits_for: beacon.waits_for,
            waits_via: beacon.waits_via,
            waited_ms: u64::try_from(beacon.wait_age.as_millis()).unwrap_or(u64::MAX),
            reason,
        };
        self.submit(now, proposal, out);
    }

    /// This rank asks for a verdict, with a position of its own naming.
    pub fn submit(&mut self, now: Duration, mut proposal: Proposal, out: &mut Vec<Output>) {
        proposal.from = narrow(self.view.me);
        let proposal = proposal.bounded();
        self.take_proposal(proposal.clone(), now);
        if self.adopted.is_none() {
            self.broadcast(&Message::Propose(proposal), None, out);
        }
    }

    /// Sends a word about a rail to the rank at its other end. It is lost after a verdict, or where that rank is not
    /// connected.
    pub fn send_rail(&mut self, to: usize, message: RailMessage, out: &mut Vec<Output>) {
        if self.adopted.is_none() && to != self.view.me && self.is_connected(to) {
            out.push(Output::Send { to, message: Message::Rail(message) });
        }
    }

    /// This rank leaves in order.
    pub fn goodbye(&mut self, out: &mut Vec<Output>) {
        self.broadcast(&Message::Goodbye, None, out);
        let me = self.view.me;
        if let Some(view) = self.view.ranks.get_mut(me) {
            view.control = ControlState::Goodbye;
        }
    }

    /// Time goes on. `own` is this rank's beacon of now; call this at least every [`HEARTBEAT`].
    pub fn tick(
        &mut self,
        now: Duration,
        own: Beacon,
        patience: &PatienceValues,
        out: &mut Vec<Output>,
    ) {
        if now.saturating_sub(self.last_tick) > OWN_GAP {
            self.view.awake_since = now;
            self.quiet_until = now + SETTLE;
            if let Some((_, adopt_at)) = &mut self.candidate {
                *adopt_at = (*adopt_at).max(now + SETTLE);
            }
        }
        self.last_tick = now;
        let me = self.view.me;
        if let Some(view) = self.view.ranks.get_mut(me) {
            view.beacon = Some(own);
            view.beacon_at = now;
            view.heard_at = now;
        }
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + HEARTBEAT;
            self.broadcast(&Message::Heartbeat(own), None, out);
        }
        if self.adopted.is_some() {
            return;
        }
        if now >= self.quiet_until {
            self.look_for_overdue(now, &own, patience, out);
            self.report_quiet_paths(now, out);
            self.collect(now, patience, out);
        }
        self.adopt_when_settled(now, out);
    }

    /// Once somebody asks for a verdict, tells all of neighbours that are heard, but not over their path. The rank at a
    /// broken cable need not be the one whose patience ends first.
    fn report_quiet_paths(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.opened_at.is_none() || now < self.next_quiet_report {
            return;
        }
        self.next_quiet_report = now + REPEAT;
        for rank in 0..self.view.size() {
            if let Some(quiet) = self.view.path_quiet_for(rank, now) {
                let why = format!(
                    "nothing has come over it for {:.1} s, while the other end is heard by the control network",
                    quiet.as_secs_f64()
                );
                let report = LinkReport {
                    from: 0,
                    to: narrow(rank),
                    rail: None,
                    through: Vec::new(),
                    rails_left: 0,
                    why,
                };
                self.report_link(report, out);
            }
        }
    }

    fn look_for_overdue(
        &mut self,
        now: Duration,
        own: &Beacon,
        patience: &PatienceValues,
        out: &mut Vec<Output>,
    ) {
        if now < self.next_proposal {
            return;
        }
        let mut waits_for = own.waits_for;
        let mut late =
            overdue(&self.view, patience, self.view.me, waits_for, own.wait_age, now).is_some();
        let limit = patience.get(PatienceKey::Silent);
        if !late && own.phase != Phase::Stopped {
            // A stopped process is found also while nobody waits for it.
            let silent: RankSet = (0..self.view.size())
                .filter(|rank| *rank != self.view.me && self.is_connected(*rank))
                .filter(|rank| now.saturating_sub(self.view.silent_since(*rank)) >= limit)
                .collect();
            late = !silent.is_empty();
            waits_for = if own.waits_for.is_empty() { silent } else { own.waits_for };
        }
        if late {
            self.next_proposal = now + REPEAT;
            let proposal = Proposal {
                from: narrow(self.view.me),
                sequence: own.sequence,
                operation: own.operation,
                waits_for,
                waits_via: own.waits_via,
                waited_ms: u64::try_from(own.wait_age.as_millis()).unwrap_or(u64::MAX),
                reason: Reason::Overdue,
            };
            self.submit(now, proposal, out);
        }
    }

    fn collect(&mut self, now: Duration, patience: &PatienceValues, out: &mut Vec<Output>) {
        let Some(opened_at) = self.opened_at else { return };
        if self.candidate.is_some() || !self.is_collector(now) {
            return;
        }
        let waited = now.saturating_sub(opened_at);
        let certain = self.proposals.iter().any(|proposal| {
            matches!(
                proposal.reason,
                Reason::ConfigurationDiffers { .. } | Reason::OutOfCapacity { .. }
            )
        });
        let enough = if certain || self.unanimous() { COLLECT_UNANIMOUS } else { COLLECT };
        if waited < enough {
            return;
        }
        let verdict =
            judge(&Evidence { view: &self.view, proposals: &self.proposals, patience, now });
        if !self.must_hold(&verdict, opened_at, patience, now) {
            self.take_verdict(verdict, None, now, out);
        }
    }

    /// The lowest rank that is connected and heard collects.
    fn is_collector(&self, now: Duration) -> bool {
        (0..self.view.me).all(|lower| {
            !self.is_connected(lower)
                || now.saturating_sub(self.view.silent_since(lower)) > COLLECTOR_STALE
        })
    }

    fn is_connected(&self, rank: usize) -> bool {
        self.view.ranks.get(rank).is_some_and(|view| view.control == ControlState::Connected)
    }

    /// Whether everybody who could have, has said that some rank is gone.
    fn unanimous(&self) -> bool {
        self.view.ranks.iter().enumerate().any(|(rank, view)| {
            let ended = view.note.as_ref().is_some_and(|note| note.ended);
            let lost_by_all = (0..self.view.size())
                .filter(|other| *other != rank)
                .filter(|other| *other == self.view.me || self.is_connected(*other))
                .all(|other| view.lost_by.contains(other));
            ended || (rank != self.view.me && lost_by_all)
        })
    }

    /// While a rank that matters is unheard and may yet turn out silent, nothing else is said of it: a machine that lost
    /// its power looks like a broken path at first. Ends when the rank is heard, or when its silence is the verdict.
    fn must_hold(
        &self,
        verdict: &Verdict,
        opened_at: Duration,
        patience: &PatienceValues,
        now: Duration,
    ) -> bool {
        let certain = matches!(
            verdict.cause,
            Cause::PeerDead
                | Cause::PeerSilent
                | Cause::ConfigurationDiffers { .. }
                | Cause::OutOfCapacity
        );
        if certain {
            return false;
        }
        let mut matter = RankSet::EMPTY;
        for rank in [verdict.rank, verdict.peer].into_iter().flatten() {
            matter = matter.with(usize::from(rank));
        }
        for proposal in &self.proposals {
            matter = matter.union(proposal.waits_for).union(proposal.waits_via);
        }
        matter.iter().filter(|rank| *rank != self.view.me && self.is_connected(*rank)).any(|rank| {
            let heard = self.view.silent_since(rank);
            heard < opened_at && now.saturating_sub(heard) < patience.get(PatienceKey::Silent)
        })
    }

    fn take_verdict(
        &mut self,
        verdict: Verdict,
        from: Option<usize>,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let judge = usize::from(verdict.judged_by);
        let known = self.candidate.as_ref().map(|(known, _)| usize::from(known.judged_by));
        if verdict.epoch != self.view.epoch
            || judge >= self.view.size()
            || self.adopted.is_some()
            || known.is_some_and(|known| known <= judge)
        {
            return;
        }
        self.broadcast(&Message::Verdict(verdict.clone()), from, out);
        let settled = match &self.candidate {
            Some((_, at)) => *at,
            None => now + SETTLE,
        };
        self.candidate = Some((verdict, if judge == 0 { now } else { settled }));
        self.adopt_when_settled(now, out);
    }

    fn adopt_when_settled(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.candidate.as_ref().is_some_and(|(_, at)| now >= *at)
            && let Some((verdict, _)) = self.candidate.take()
        {
            let verdict = Arc::new(verdict);
            self.adopted = Some(Arc::clone(&verdict));
            self.proposals.clear();
            out.push(Output::Adopted(verdict));
        }
    }

    fn take_proposal(&mut self, proposal: Proposal, now: Duration) {
        if self.adopted.is_some() {
            return;
        }
        if let Reason::PeerClosed { rank, .. } = &proposal.reason
            && let Some(view) = self.view.ranks.get_mut(usize::from(*rank))
        {
            view.lost_by = view.lost_by.with(usize::from(proposal.from));
            view.lost_since.get_or_insert(now);
        }
        self.opened_at.get_or_insert(now);
        let same = |known: &Proposal| {
            known.from == proposal.from
                && (known.reason == proposal.reason
                    || (known.reason == Reason::Overdue && proposal.reason == Reason::Overdue))
        };
        match self.proposals.iter().position(same) {
            Some(known) => self.proposals[known] = proposal,
            None if self.proposals.len() < MAX_PROPOSALS => self.proposals.push(proposal),
            None => {}
        }
    }

    fn take_link(&mut self, report: LinkReport) {
        let known = self.view.links.iter().position(|known| {
            (known.from, known.to, known.rail) == (report.from, report.to, report.rail)
        });
        match known {
            Some(known) => self.view.links[known] = report,
            None if self.view.links.len() < MAX_LINK_REPORTS
                && usize::from(report.to) < self.view.size() =>
            {
                self.view.links.push(report);
            }
            None => {}
        }
    }

    /// A supervisor that saw a process end asks for a verdict as well: its rank cannot.
    fn take_note(&mut self, note: SupervisorNote, now: Duration) {
        let rank = usize::from(note.rank);
        if let Some(view) = self.view.ranks.get_mut(rank).filter(|_| rank != self.view.me) {
            if note.ended && view.control != ControlState::Goodbye && self.adopted.is_none() {
                self.opened_at.get_or_insert(now);
            }
            view.note = Some(note);
        }
    }

    fn own_beacon(&self) -> Beacon {
        self.view
            .ranks
            .get(self.view.me)
            .and_then(|view| view.beacon)
            .unwrap_or(Beacon { operation: operation::NONE, ..Beacon::starting(self.view.epoch) })
    }

    fn broadcast(&self, message: &Message, but: Option<usize>, out: &mut Vec<Output>) {
        for to in 0..self.view.size() {
            if to != self.view.me && Some(to) != but && self.is_connected(to) {
                out.push(Output::Send { to, message: message.clone() });
            }
        }
    }
}

fn narrow(rank: usize) -> u8 {
    u8::try_from(rank).unwrap_or(u8::MAX)
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
