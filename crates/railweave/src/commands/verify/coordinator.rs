//! Proving one rail after the other with the agents of its hosts.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use cluster::plan::{Crossing, Plan};

use super::crew::{Agent, AgentError};
use super::judge::{Blame, Counts, Doubt, Moved, Report, blame, crossed};
use super::lost::Lost;
use super::proof::{Outcome, Way};
use super::steps::{Item, Known, Obstacle, obstacle};
use super::track::Track;
use super::wire::{Call, Fault, Order, Said, Secret, Terms};

/// How long an agent may take for what needs no other host.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long the others are waited for once one has failed: what they saw explains it.
const REST_LIMIT: Duration = Duration::from_millis(500);
/// How often the agents are asked whether they are still there, while one of them is waited for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long an agent may take to show that it is still there: it reads its counters, on a machine that may be busy.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(3);
/// Counters of some NICs come late.
pub(super) const COUNTERS_LIMIT: Duration = Duration::from_secs(2);
pub(super) const COUNTERS_PAUSE: Duration = Duration::from_millis(50);

/// A host's agent, or why there is none any more.
pub(super) type Seat = Result<Agent, Lost>;

/// Proves rails of a plan. Hosts are known by rank.
pub(super) struct Coordinator<'a> {
    pub(super) plan: &'a Plan,
    pub(super) agents: BTreeMap<usize, Seat>,
    pub(super) bytes: u64,
    pub(super) limit: Duration,
    pub(super) known: Known,
    next_id: u64,
    /// Fills secrets and seeds.
    random: fn(&mut [u8]) -> std::io::Result<()>,
}

impl<'a> Coordinator<'a> {
    /// One for these agents; `limit` is for one rail.
    pub(super) fn new(
        plan: &'a Plan,
        agents: BTreeMap<usize, Seat>,
        bytes: u64,
        limit: Duration,
        random: fn(&mut [u8]) -> std::io::Result<()>,
    ) -> Self {
        Self { plan, agents, bytes, limit, known: Known::default(), next_id: 1, random }
    }

    /// The boot id of each host that has an agent, or why it has none.
    pub(super) fn boots(&self) -> BTreeMap<usize, Result<Option<String>, String>> {
        let boot = |seat: &Seat| match seat {
            Ok(agent) => Ok(agent.boot_id().map(str::to_owned)),
            Err(lost) => Err(lost.what.clone()),
        };
        self.agents.iter().map(|(rank, seat)| (*rank, boot(seat))).collect()
    }

    /// The hosts over which nothing more can be proven.
    pub(super) fn lost(&self) -> BTreeMap<usize, Lost> {
        let lost = |(rank, seat): (&usize, &Seat)| Some((*rank, seat.as_ref().err()?.clone()));
        self.agents.iter().filter_map(lost).collect()
    }

    /// Proves one rail. What fails here is remembered for the rails that cross the same cable later.
    pub(super) fn prove(&mut self, item: Item<'a>) -> Outcome {
        let rail = Track::new(self.plan, item);
        match obstacle(item, &self.known) {
            Some(Obstacle::NotProven(why)) => return Outcome::NotProven { r#where: None, why },
            Some(Obstacle::Broken(crossing)) => return rail.broken_before(crossing),
            None => {}
        }
        if let Some(outcome) = self.without_agent(&rail) {
            return outcome;
        }
        self.cross(&rail).unwrap_or_else(|stop| self.explain(&rail, stop))
    }

    /// What a host without an agent leaves of a rail.
    pub(super) fn without_agent(&self, rail: &Track<'a>) -> Option<Outcome> {
        rail.item.rail.hops.iter().zip(&rail.hosts).find_map(|(rank, host)| {
            let why = match self.agents.get(rank) {
                Some(Ok(_)) => return None,
                Some(Err(lost)) => lost.what.clone(),
                None => "it is not in the cluster file".to_owned(),
            };
            Some(Outcome::NotProven { r#where: Some(host.clone()), why })
        })
    }

    fn cross(&mut self, rail: &Track<'a>) -> Result<Outcome, Stop> {
        let hops = &rail.item.rail.hops;
        let before = self.counters(hops, ANSWER_LIMIT)?;
        let terms = self.terms()?;
        let crossings = &rail.item.rail.crossings;
        let mut orders: Vec<(usize, u64)> = Vec::new();
        let reports = self.run_orders(hops, crossings, &terms, &mut orders);
        for (rank, id) in orders {
            if let Some(Ok(agent)) = self.agents.get_mut(&rank) {
                agent.forget(id);
            }
        }
        let reports = reports?;
        if let Some(blame) = blame(&reports) {
            // Whoever is gone explains it, and its connections break before its pipe does.
            self.counters(hops, LOOK_LIMIT)?;
            return Err(Stop::Blamed(blame));
        }
        let (there, back) = match (reports.last(), reports.first()) {
            (Some(Report::Done(there, far)), Some(Report::Done(back, near)))
                if (*there, *back) == (self.bytes, self.bytes) =>
            {
                (Way::new(*there, *far), Way::new(*back, *near))
            }
            _ => {
                return Err(Stop::not_proven("the agents did not say that all bytes arrived"));
            }
        };
        let counters = self.await_counters(rail, &before)?;
        Ok(Outcome::Proven { there, back, counters })
    }

    /// Puts the far end and the hosts between in their places, sends, and collects what each says, by hop.
    fn run_orders(
        &mut self,
        hops: &[usize],
        crossings: &[Crossing],
        terms: &Terms,
        orders: &mut Vec<(usize, u64)>,
    ) -> Result<Vec<Report>, Stop> {
        let last = hops.len().saturating_sub(1);
        let mut reports = vec![Report::Unasked; hops.len()];
        let mut ids = vec![0; hops.len()];
        let mut to = None;
        for hop in (0..=last).rev() {
            let Some(&rank) = hops.get(hop) else { continue };
            let id = self.id();
            if let Some(slot) = ids.get_mut(hop) {
                *slot = id;
            }
            orders.push((rank, id));
            let own = hop
                .checked_sub(1)
                .and_then(|number| crossings.get(number))
                .and_then(|one| one.into.ip);
            let from = crossings.get(hop).and_then(|one| one.out.ip);
            let call = from.zip(to).map(|(from, to)| Call { from, to });
            let order = match (own, call) {
                (Some(address), None) => Order::Listen { id, address, terms: terms.clone() },
                (Some(address), Some(next)) => {
                    Order::Relay { id, address, next, terms: terms.clone() }
                }
                (None, Some(call)) => Order::Send { id, call, terms: terms.clone() },
                (None, None) => {
                    return Err(Stop::not_proven("the plan's rail has no addresses"));
                }
            };
            match self.begin(rank, &order, own)? {
                Ok(address) => to = address,
                Err(fault) => {
                    if let Some(slot) = reports.get_mut(hop) {
                        *slot = Report::Failed(fault);
                    }
                    return Ok(reports);
                }
            }
        }
        // The near end knows first; once it does, the others need no more than a moment.
        let mut until = Instant::now() + self.limit + ANSWER_LIMIT;
        let mut has_failed = false;
        for (hop, (&rank, &id)) in hops.iter().zip(&ids).enumerate() {
            let report = match self.report(rank, id, until, hops)? {
                Some(report) => report,
                // One that still waits has not failed; its own deadline ends it.
                None if has_failed => Report::Unasked,
                None => {
                    return Err(Stop::Lost { rank, error: self.late(rank, self.limit) });
                }
            };
            if !has_failed && !matches!(report, Report::Done(..)) {
                has_failed = true;
                until = Instant::now() + REST_LIMIT;
            }
            if let Some(slot) = reports.get_mut(hop) {
                *slot = report;
            }
        }
        Ok(reports)
    }

    /// Gives an order, and for one that listens, awaits where.
    fn begin(
        &mut self,
        rank: usize,
        order: &Order,
        address: Option<Ipv4Addr>,
    ) -> Result<Result<Option<SocketAddrV4>, Fault>, Stop> {
        let lost = |error| Stop::Lost { rank, error };
        let agent = self.agent(rank)?;
        agent.give(order).map_err(lost)?;
        let Some(address) = address else { return Ok(Ok(None)) };
        match agent.answer(order.id(), ANSWER_LIMIT).map_err(lost)? {
            Said::Listening { port, .. } => Ok(Ok(Some(SocketAddrV4::new(address, port)))),
            Said::Failed { fault, .. } => Ok(Err(fault)),
            other => Err(lost(agent.nonsense(&format!("{other:?}")))),
        }
    }

    pub(super) fn agent(&mut self, rank: usize) -> Result<&mut Agent, Stop> {
        match self.agents.get_mut(&rank) {
            Some(Ok(agent)) => Ok(agent),
            _ => Err(Stop::not_proven(&format!("rank {rank} has no agent"))),
        }
    }

    /// What one of the hosts reports; none if it has not by then. All of them are looked at meanwhile: one that no
    /// longer does anything makes the others wait.
    fn report(
        &mut self,
        rank: usize,
        id: u64,
        until: Instant,
        hops: &[usize],
    ) -> Result<Option<Report>, Stop> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let agent = self.agent(rank)?;
            match agent.answer(id, left.min(LOOK_EVERY)) {
                Ok(Said::Done { bytes, seconds, .. }) => {
                    return Ok(Some(Report::Done(bytes, seconds)));
                }
                Ok(Said::Failed { fault, .. }) => return Ok(Some(Report::Failed(fault))),
                Ok(other) => {
                    return Err(Stop::Lost { rank, error: agent.nonsense(&format!("{other:?}")) });
                }
                Err(AgentError::Late { .. }) if left <= LOOK_EVERY => return Ok(None),
                Err(AgentError::Late { .. }) => drop(self.counters(hops, LOOK_LIMIT)?),
                Err(error) => return Err(Stop::Lost { rank, error }),
            }
        }
    }

    /// The counters of these hosts; that they come shows also that their agents are still there. The limit is for
    /// each of them.
    pub(super) fn counters(&mut self, hops: &[usize], limit: Duration) -> Result<Counts, Stop> {
        let id = self.id();
        let counts = self.ask_counters(id, hops, limit);
        for rank in hops {
            if let Some(Ok(agent)) = self.agents.get_mut(rank) {
                agent.forget(id);
            }
        }
        counts
    }

    fn ask_counters(&mut self, id: u64, hops: &[usize], limit: Duration) -> Result<Counts, Stop> {
        // A rail visits no rank twice. All are asked before the first is waited for.
        for &rank in hops {
            let given = self.agent(rank)?.give(&Order::Counters { id });
            given.map_err(|error| Stop::Lost { rank, error })?;
        }
        let mut counts = Counts::new();
        for &rank in hops {
            let agent = self.agent(rank)?;
            match agent.answer(id, limit).map_err(|error| Stop::Lost { rank, error })? {
                Said::Counters { netdevs, .. } => drop(counts.insert(rank, netdevs)),
                Said::Failed { fault, .. } => {
                    return Err(Stop::NotProven { rank: Some(rank), why: fault.why });
                }
                other => {
                    return Err(Stop::Lost { rank, error: agent.nonsense(&format!("{other:?}")) });
                }
            }
        }
        Ok(counts)
    }

    /// Waits until the counters show that the bytes crossed, or for as long as counters may come late.
    fn await_counters(&mut self, rail: &Track<'a>, before: &Counts) -> Result<Vec<Moved>, Stop> {
        let until = Instant::now() + COUNTERS_LIMIT;
        loop {
            let after = self.counters(&rail.item.rail.hops, ANSWER_LIMIT)?;
            match crossed(rail.item.rail, &rail.cables, self.bytes, before, &after) {
                Ok(moved) => return Ok(moved),
                Err(Doubt::Elsewhere { .. }) if Instant::now() < until => {
                    thread::sleep(COUNTERS_PAUSE);
                }
                Err(Doubt::Elsewhere { crossing, why }) => {
                    return Err(Stop::Elsewhere { crossing, why });
                }
                Err(Doubt::NotMeasured(why)) => {
                    return Err(Stop::not_proven(&format!("not measured: {why}")));
                }
            }
        }
    }

    pub(super) fn terms(&self) -> Result<Terms, Stop> {
        let mut random = [0; 40];
        (self.random)(&mut random).map_err(|error| {
            Stop::not_proven(&format!("the system has no random bytes: {error}"))
        })?;
        let [call, answer] = [0, 16].map(|at| {
            let mut secret = [0; 16];
            secret.iter_mut().zip(random.iter().skip(at)).for_each(|(to, from)| *to = *from);
            Secret(secret)
        });
        let seed = random.iter().skip(32).fold(0, |seed, byte| seed << 8 | u64::from(*byte));
        let limit_ms = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX);
        Ok(Terms { call, answer, seed, bytes: self.bytes, limit_ms })
    }

    pub(super) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn host(&self, rank: usize) -> String {
        self.plan.ranks.get(rank).map_or_else(|| format!("rank {rank}"), |rank| rank.host.clone())
    }

    fn late(&self, rank: usize, limit: Duration) -> AgentError {
        AgentError::Late { host: self.host(rank), limit }
    }

    /// What a stop means for a person, and for the rails to come.
    pub(super) fn explain(&mut self, rail: &Track<'a>, stop: Stop) -> Outcome {
        match stop {
            Stop::NotProven { rank, why } => {
                Outcome::NotProven { r#where: rank.map(|rank| self.host(rank)), why }
            }
            Stop::NoVerbs { rank, why } => {
                Outcome::NotProven { r#where: Some(self.host(rank)), why }
            }
            Stop::Lost { rank, error } => {
                let host = self.host(rank);
                let lost = Lost::of(&host, &error);
                let why = lost.what.clone();
                // An agent that is gone does not come back, and one that does not answer is not waited for again.
                if let Some(Ok(agent)) = self.agents.insert(rank, Err(lost)) {
                    agent.abandon();
                }
                Outcome::NotProven { r#where: Some(host), why }
            }
            Stop::Elsewhere { crossing, why } => {
                self.known.note_failed(rail.item, crossing);
                rail.elsewhere(crossing, why)
            }
            Stop::Blamed(blame) => {
                if let Some(crossing) = blame.crossing {
                    self.known.note_failed(rail.item, crossing);
                }
                rail.blamed(blame)
            }
        }
    }
}

/// Why a rail was not proven.
pub(super) enum Stop {
    /// It could not be decided; for one host's sake, if it is one.
    NotProven { rank: Option<usize>, why: String },
    /// A host's agent is of no use any more.
    Lost { rank: usize, error: AgentError },
    /// A host has no RDMA devices for it.
    NoVerbs { rank: usize, why: String },
    /// The bytes went another way.
    Elsewhere { crossing: usize, why: String },
    /// Hosts whose agents all answer say that it failed.
    Blamed(Blame),
}

impl Stop {
    pub(super) fn not_proven(why: &str) -> Self {
        Self::NotProven { rank: None, why: why.to_owned() }
    }
}

#[cfg(test)]
#[path = "coordinator_tests.rs"]
mod tests;
