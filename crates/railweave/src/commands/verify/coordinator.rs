//! Proving one rail after the other with the agents of its hosts.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use cluster::plan::{Crossing, Plan};

use super::crew::{Agent, AgentError};
use super::judge::{Blame, Counts, Doubt, Report, blame, crossed};
use super::proof::{Outcome, Way};
use super::steps::{Item, Known, Obstacle, obstacle};
use super::wire::{Call, Order, Said, Secret, Step, Terms};

/// How long an agent may take for what needs no other host.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long the others are waited for once one has failed: what they saw explains it.
const REST_LIMIT: Duration = Duration::from_millis(500);
/// Counters of some NICs come late.
const COUNTERS_LIMIT: Duration = Duration::from_secs(2);
const COUNTERS_PAUSE: Duration = Duration::from_millis(50);

/// A host's agent, or why there is none.
pub(super) type Seat = Result<Agent, String>;

/// Proves rails of a plan. Hosts are known by rank.
pub(super) struct Coordinator<'a> {
    plan: &'a Plan,
    agents: BTreeMap<usize, Seat>,
    bytes: u64,
    limit: Duration,
    known: Known,
    next_id: u64,
    /// Fills secrets and seeds.
    random: fn(&mut [u8]) -> std::io::Result<()>,
}

/// What a rail needs, looked up once.
struct Track<'a> {
    item: Item<'a>,
    cables: Vec<String>,
    hosts: Vec<String>,
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
            Err(why) => Err(why.clone()),
        };
        self.agents.iter().map(|(rank, seat)| (*rank, boot(seat))).collect()
    }

    /// Proves one rail. What fails here is remembered for the rails that cross the same cable later.
    pub(super) fn prove(&mut self, item: Item<'a>) -> Outcome {
        let rail = Track { item, cables: cables(self.plan, item), hosts: hosts(self.plan, item) };
        match obstacle(item, &self.known) {
            Some(Obstacle::NotProven(why)) => return Outcome::NotProven { why },
            Some(Obstacle::Broken(crossing)) => return rail.broken_before(crossing),
            None => {}
        }
        let absent = item.rail.hops.iter().find_map(|rank| match self.agents.get(rank) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(why.clone()),
            None => Some(format!("rank {rank} is not in the plan")),
        });
        if let Some(why) = absent {
            return Outcome::NotProven { why };
        }
        self.cross(&rail).unwrap_or_else(|stop| self.explain(&rail, stop))
    }

    fn cross(&mut self, rail: &Track<'a>) -> Result<Outcome, Stop> {
        let before = self.counters(rail)?;
        let terms = self.terms()?;
        let hops = &rail.item.rail.hops;
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
            return Err(Stop::Blamed(blame));
        }
        let (there, back) = match (reports.last(), reports.first()) {
            (Some(Report::Done(there, far)), Some(Report::Done(back, near)))
                if (*there, *back) == (self.bytes, self.bytes) =>
            {
                (Way::new(*there, *far), Way::new(*back, *near))
            }
            _ => {
                return Err(Stop::NotProven(
                    "the agents did not say how many bytes arrived".to_owned(),
                ));
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
                    return Err(Stop::NotProven("the plan's rail has no addresses".to_owned()));
                }
            };
            let begun = self.begin(rank, &order, own);
            match begun {
                Ok(address) => to = address,
                Err(report) => {
                    if let Some(slot) = reports.get_mut(hop) {
                        *slot = report;
                    }
                    return Ok(reports);
                }
            }
        }
        // The near end knows first; once it does, the others need no more than a moment.
        let mut until = Instant::now() + self.limit + ANSWER_LIMIT;
        for (hop, (&rank, &id)) in hops.iter().zip(&ids).enumerate() {
            let report = self.report(rank, id, until.saturating_duration_since(Instant::now()));
            if hop == 0 && !matches!(report, Report::Done(..)) {
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
    ) -> Result<Option<SocketAddrV4>, Report> {
        let agent = self.agent(rank)?;
        agent.give(order).map_err(|error| Report::Gone(error.to_string()))?;
        let Some(address) = address else { return Ok(None) };
        match agent.answer(order.id(), ANSWER_LIMIT) {
            Ok(Said::Listening { port, .. }) => Ok(Some(SocketAddrV4::new(address, port))),
            Ok(Said::Failed { fault, .. }) => Err(Report::Failed(fault)),
            Ok(other) => {
                Err(Report::Gone(format!("{}: {other:?} was not asked for", agent.host())))
            }
            Err(error) => Err(Report::Gone(error.to_string())),
        }
    }

    fn agent(&mut self, rank: usize) -> Result<&mut Agent, Report> {
        match self.agents.get_mut(&rank) {
            Some(Ok(agent)) => Ok(agent),
            Some(Err(why)) => Err(Report::Gone(why.clone())),
            None => Err(Report::Gone(format!("rank {rank} has no agent"))),
        }
    }

    fn report(&mut self, rank: usize, id: u64, limit: Duration) -> Report {
        let agent = match self.agent(rank) {
            Ok(agent) => agent,
            Err(report) => return report,
        };
        match agent.answer(id, limit) {
            Ok(Said::Done { bytes, seconds, .. }) => Report::Done(bytes, seconds),
            Ok(Said::Failed { fault, .. }) => Report::Failed(fault),
            Ok(other) => Report::Gone(format!("{}: {other:?} was not asked for", agent.host())),
            // One that still waits has not failed; its own deadline ends it.
            Err(AgentError::Late { .. }) if limit < self.limit => Report::Unasked,
            Err(error) => Report::Gone(error.to_string()),
        }
    }

    /// The counters of the rail's hosts.
    fn counters(&mut self, rail: &Track<'a>) -> Result<Counts, Stop> {
        let id = self.id();
        let gone = |hop: usize, error: &AgentError| {
            Stop::Blamed(Blame { hop, crossing: None, why: error.to_string(), step: None })
        };
        // A rail visits no rank twice. All are asked before the first is waited for.
        for (hop, &rank) in rail.item.rail.hops.iter().enumerate() {
            if let Ok(agent) = self.agent(rank) {
                agent.give(&Order::Counters { id }).map_err(|error| gone(hop, &error))?;
            }
        }
        let mut counts = Counts::new();
        for (hop, &rank) in rail.item.rail.hops.iter().enumerate() {
            let Ok(agent) = self.agent(rank) else { continue };
            let said = agent.answer(id, ANSWER_LIMIT).map_err(|error| gone(hop, &error))?;
            agent.forget(id);
            if let Said::Counters { netdevs, .. } = said {
                counts.insert(rank, netdevs);
            }
        }
        Ok(counts)
    }

    /// Waits until the counters show that the bytes crossed, or for as long as counters may come late.
    fn await_counters(
        &mut self,
        rail: &Track<'a>,
        before: &Counts,
    ) -> Result<Vec<super::judge::Moved>, Stop> {
        let until = Instant::now() + COUNTERS_LIMIT;
        loop {
            let after = self.counters(rail)?;
            match crossed(rail.item.rail, &rail.cables, self.bytes, before, &after) {
                Ok(moved) => return Ok(moved),
                Err(Doubt::Elsewhere { .. }) if Instant::now() < until => {
                    thread::sleep(COUNTERS_PAUSE);
                }
                Err(Doubt::Elsewhere { crossing, why }) => {
                    return Err(Stop::Elsewhere { crossing, why });
                }
                Err(Doubt::NotMeasured(why)) => {
                    return Err(Stop::NotProven(format!("not measured: {why}")));
                }
            }
        }
    }

    fn terms(&self) -> Result<Terms, Stop> {
        let mut random = [0; 40];
        (self.random)(&mut random)
            .map_err(|error| Stop::NotProven(format!("the system has no random bytes: {error}")))?;
        let [call, answer] = [0, 16].map(|at| {
            let mut secret = [0; 16];
            secret.iter_mut().zip(random.iter().skip(at)).for_each(|(to, from)| *to = *from);
            Secret(secret)
        });
        let seed = random.iter().skip(32).fold(0, |seed, byte| seed << 8 | u64::from(*byte));
        let limit_ms = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX);
        Ok(Terms { call, answer, seed, bytes: self.bytes, limit_ms })
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// What a stop means for a person, and for the rails to come.
    fn explain(&mut self, rail: &Track<'a>, stop: Stop) -> Outcome {
        match stop {
            Stop::NotProven(why) => Outcome::NotProven { why },
            Stop::Elsewhere { crossing, why } => {
                self.known.note_failed(rail.item, crossing);
                rail.elsewhere(crossing, why)
            }
            Stop::Blamed(blame) => {
                if let Some(crossing) = blame.crossing {
                    self.known.note_failed(rail.item, crossing);
                }
                // An agent that is gone does not come back.
                if blame.step.is_none()
                    && let Some(&rank) = rail.item.rail.hops.get(blame.hop)
                {
                    self.agents.insert(rank, Err(blame.why.clone()));
                }
                rail.blamed(blame)
            }
        }
    }
}

/// Why a rail was not proven.
enum Stop {
    NotProven(String),
    Elsewhere { crossing: usize, why: String },
    Blamed(Blame),
}

impl Track<'_> {
    fn host(&self, hop: usize) -> String {
        self.hosts.get(hop).cloned().unwrap_or_default()
    }

    /// The cable of a crossing; all of them if nobody knows which.
    fn place(&self, crossing: Option<usize>) -> String {
        crossing
            .and_then(|number| self.cables.get(number))
            .cloned()
            .unwrap_or_else(|| self.cables.join(", "))
    }

    fn crossing(&self, number: usize) -> Option<&Crossing> {
        self.item.rail.crossings.get(number)
    }

    fn broken_before(&self, crossing: usize) -> Outcome {
        let cable = self.place(Some(crossing));
        Outcome::Failed {
            who: self.host(crossing),
            why: format!("it crosses cable {cable}, which failed just before on this rail"),
            next: format!("mend {cable}, then `railweave verify --again`"),
            r#where: cable,
        }
    }

    fn elsewhere(&self, crossing: usize, why: String) -> Outcome {
        let host = self.host(crossing);
        let route = self.crossing(crossing).and_then(|one| one.into.ip.zip(one.out.ip));
        let route = route
            .map(|(to, from)| format!(" `ip route get {to} from {from}` there,"))
            .unwrap_or_default();
        Outcome::Failed {
            who: host.clone(),
            r#where: self.place(Some(crossing)),
            why,
            next: format!(
                "see how {host} routes:{route} then `railweave check`, which finds wrong routes and addresses"
            ),
        }
    }

    fn blamed(&self, blame: Blame) -> Outcome {
        let who = self.host(blame.hop);
        let place = self.place(blame.crossing);
        let next = match blame.step {
            None => format!(
                "see whether {who} is up and runs this railweave, then `railweave verify --again`"
            ),
            Some(Step::Bind | Step::Listen) => {
                format!(
                    "give {who} the addresses of the plan: `railweave apply --diff` shows what is missing"
                )
            }
            Some(Step::Compare) => {
                format!(
                    "bytes change on the way: swap {place}, and look at error counters with `railweave check`"
                )
            }
            _ => match blame.crossing.and_then(|number| self.crossing(number)) {
                Some(one) => format!(
                    "look at {} on {} and {} on {}: `railweave check` says what is wrong with {place}",
                    one.out.netdev, one.out.host, one.into.netdev, one.into.host
                ),
                None => "`railweave check` says what is wrong on the way".to_owned(),
            },
        };
        Outcome::Failed { who, r#where: place, why: blame.why, next }
    }
}

/// The names of the cables of a rail, in order.
pub(super) fn cables(plan: &Plan, item: Item<'_>) -> Vec<String> {
    let name = |crossing: &Crossing| match plan.cables.get(crossing.cable) {
        Some(cable) => cable.name.clone(),
        None => format!("{}–{}", crossing.out.label(), crossing.into.label()),
    };
    item.rail.crossings.iter().map(name).collect()
}

/// The names of the hosts of a rail, in order.
pub(super) fn hosts(plan: &Plan, item: Item<'_>) -> Vec<String> {
    let name = |rank: &usize| match plan.ranks.get(*rank) {
        Some(rank) => rank.host.clone(),
        None => format!("rank {rank}"),
    };
    item.rail.hops.iter().map(name).collect()
}

#[cfg(test)]
#[path = "coordinator_tests.rs"]
mod tests;
