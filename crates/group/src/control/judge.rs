//! From evidence to one verdict. The rules stand in the order in which they are tried; the first that the evidence
//! supports decides, and if none does the verdict is `unknown`: a wrong cause is worse than none.

use std::time::Duration;

use crate::beacon::{Phase, RankSet, operation};
use crate::control::trace::{Root, RootKind, Waiter, trace, waiter_of};
use crate::control::view::{ClusterView, ControlState, LinkReport};
use crate::patience::PatienceValues;
use crate::verdict::{Cause, Position, Proposal, Reason, Verdict};

/// A rank that was heard this long after a connection to it was lost is alive: what came earlier may have been under way.
const ALIVE_AFTER_LOSS: Duration = Duration::from_millis(250);
/// A rank to which links are down and that was not heard for this long, twenty heartbeats, is gone with them. Before that
/// a busy machine may just be late.
const UNHEARD: Duration = Duration::from_secs(2);
/// The judge's clock and its newest beacons differ from the proposer's by network and heartbeat; so much may be missing.
const SLACK: Duration = Duration::from_millis(500);

/// Everything a judge goes by.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// What the judging rank knows of all ranks.
    pub view: &'a ClusterView,
    /// Who asked for a verdict, and why, in the order of their coming.
    pub proposals: &'a [Proposal],
    /// The patience in force.
    pub patience: &'a PatienceValues,
    /// The time of judging.
    pub now: Duration,
}

/// What a rule found.
struct Finding {
    cause: Cause,
    rank: Option<usize>,
    peer: Option<usize>,
    lasted: Duration,
    evidence: Vec<String>,
    next_step: String,
}

/// The verdict the evidence supports.
pub fn judge(evidence: &Evidence<'_>) -> Verdict {
    let case = Case::new(evidence);
    let finding = case
        .dead()
        .or_else(|| case.refused())
        .or_else(|| case.requested())
        .or_else(|| case.silent())
        .or_else(|| case.left())
        .or_else(|| case.link())
        .or_else(|| case.root())
        .unwrap_or_else(|| case.unknown());
    let finding = case.quiet_path(&finding).unwrap_or(finding);
    case.verdict(finding)
}

struct Case<'a> {
    evidence: &'a Evidence<'a>,
    view: &'a ClusterView,
    waiters: Vec<Waiter>,
    roots: Vec<Root>,
}

impl<'a> Case<'a> {
    fn new(evidence: &'a Evidence<'a>) -> Self {
        let view = evidence.view;
        let mut waiters: Vec<Waiter> = Vec::new();
        for proposal in evidence.proposals {
            let rank = usize::from(proposal.from);
            if rank >= view.size() || proposal.waits_for.is_empty() {
                continue;
            }
            let inside = proposal.operation != operation::NONE;
            let waiter = Waiter {
                rank,
                position: inside.then_some((proposal.operation, proposal.sequence)),
                waits_for: proposal.waits_for.without(rank),
                via: proposal.waits_via,
                since: evidence.now.saturating_sub(Duration::from_millis(proposal.waited_ms)),
            };
            match waiters.iter_mut().find(|known| known.rank == rank) {
                Some(known) => *known = waiter,
                None => waiters.push(waiter),
            }
        }
        // The newest beacon of a proposer tells its wait better than its proposal, which may be older.
        for waiter in &mut waiters {
            if let Some(beacon) = view.ranks[waiter.rank].beacon
                && !beacon.waits_for.is_empty()
                && waiter.position == Some((beacon.operation, beacon.sequence))
            {
                let newer = waiter_of(view, waiter.rank, &beacon);
                *waiter = Waiter { since: waiter.since.min(newer.since), ..newer };
            }
        }
        let roots = trace(view, evidence.patience, &waiters, evidence.now);
        Self { evidence, view, waiters, roots }
    }

    /// Dead beats everything. A lost connection to a rank that is heard all the same is a broken path.
    fn dead(&self) -> Option<Finding> {
        let mut lost: Vec<(Duration, usize)> = (0..self.view.size())
            .filter_map(|rank| {
                let view = &self.view.ranks[rank];
                let ended = view.note.as_ref().is_some_and(|note| note.ended);
                let at = view.lost_since.or(ended.then_some(self.evidence.now))?;
                (view.control != ControlState::Goodbye || ended).then_some((at, rank))
            })
            .collect();
        lost.sort_unstable();
        // A death explains the connections a rank lost on its way out, so deaths are looked for first.
        lost.iter()
            .find(|(at, rank)| !self.alive(*rank, *at))
            .map(|(at, rank)| self.death(*rank, *at))
            .or_else(|| lost.first().map(|(at, rank)| self.control_path(*rank, *at)))
    }

    fn alive(&self, rank: usize, lost_at: Duration) -> bool {
        let view = &self.view.ranks[rank];
        if view.note.as_ref().is_some_and(|note| note.ended) {
            return false;
        }
        let late = lost_at + ALIVE_AFTER_LOSS;
        if rank == self.view.me || view.heard_at > late {
            return true;
        }
        // A third rank that is well, and does not say it lost its connection, still has it.
        (0..self.view.size()).any(|third| {
            let other = &self.view.ranks[third];
            third != rank
                && third != self.view.me
                && other.control == ControlState::Connected
                && other.heard_at > late
                && !view.lost_by.contains(third)
        })
    }

    fn death(&self, rank: usize, at: Duration) -> Finding {
        let view = &self.view.ranks[rank];
        let mut evidence = Vec::new();
        if let Some(note) = &view.note {
            evidence.push(format!("its supervisor: {}", note.text));
        }
        if let ControlState::Lost { why, .. } = &view.control {
            evidence.push(format!("its control connection ended without goodbye: {why}"));
        }
        if !view.lost_by.is_empty() {
            evidence.push(format!("connection lost without goodbye by ranks {}", view.lost_by));
        }
        Finding {
            cause: Cause::PeerDead,
            rank: Some(rank),
            peer: None,
            lasted: self.evidence.now.saturating_sub(at),
            evidence,
            next_step: format!(
                "look at the log and exit status of {} (out of memory? killed?); a supervised rank is started again by itself",
                self.view.name(rank)
            ),
        }
    }

    fn control_path(&self, rank: usize, at: Duration) -> Finding {
        let view = &self.view.ranks[rank];
        let from = view.lost_by.iter().find(|by| *by != rank).unwrap_or(self.view.me);
        let why = match &view.control {
            ControlState::Lost { why, .. } => why.clone(),
            _ => self
                .evidence
                .proposals
                .iter()
                .find_map(|proposal| match &proposal.reason {
                    Reason::PeerClosed { rank: closed, why } if usize::from(*closed) == rank => {
                        Some(why.clone())
                    }
                    _ => None,
                })
                .unwrap_or_else(|| "no reason was reported".to_owned()),
        };
        Finding {
            cause: path(from, rank),
            rank: Some(from),
            peer: Some(rank),
            lasted: self.evidence.now.saturating_sub(at),
            evidence: vec![
                format!("the control connection ended: {why}"),
                format!("rank {rank} is heard by other ways, so it is alive"),
            ],
            next_step: format!(
                "check the network between {} and {}: firewall, address, cable",
                self.view.name(from),
                self.view.name(rank)
            ),
        }
    }

    /// Configuration and capacity: the proposing rank knows the cause itself.
    fn refused(&self) -> Option<Finding> {
        self.evidence.proposals.iter().find_map(|proposal| {
            let from = usize::from(proposal.from);
            match &proposal.reason {
                Reason::ConfigurationDiffers { key, values } => Some(Finding {
                    cause: Cause::ConfigurationDiffers { key: key.clone(), values: values.clone() },
                    rank: values.last().map(|value| usize::from(value.rank)),
                    peer: values.first().map(|value| usize::from(value.rank)),
                    lasted: Duration::ZERO,
                    evidence: values.iter().map(ToString::to_string).collect(),
                    next_step: format!("give {key} one value on all ranks and start them again"),
                }),
                Reason::OutOfCapacity { what } => Some(Finding {
                    cause: Cause::OutOfCapacity,
                    rank: Some(from),
                    peer: None,
                    lasted: Duration::ZERO,
                    evidence: vec![what.clone()],
                    next_step: "raise the limit named, or ask for less at a time".to_owned(),
                }),
                _ => None,
            }
        })
    }

    /// Somebody asked for another epoch.
    fn requested(&self) -> Option<Finding> {
        self.evidence.proposals.iter().find_map(|proposal| match &proposal.reason {
            Reason::Requested { what } => Some(Finding {
                cause: Cause::Requested { what: what.clone() },
                rank: Some(usize::from(proposal.from)),
                peer: None,
                lasted: Duration::ZERO,
                evidence: Vec::new(),
                next_step: "nothing: the group forms again by itself".to_owned(),
            }),
            _ => None,
        })
    }

    fn silent(&self) -> Option<Finding> {
        let limit = self.evidence.patience.get(crate::patience::PatienceKey::Silent);
        let now = self.evidence.now;
        let overdue = |rank: usize| {
            self.view.is_stale(rank, now)
                && self.view.ranks[rank].control == ControlState::Connected
                && now.saturating_sub(self.view.silent_since(rank)) >= limit
        };
        let waited_for = self
            .roots
            .iter()
            .filter(|root| root.kind == RootKind::Silent)
            .map(|root| root.rank)
            .find(|rank| overdue(*rank));
        let rank = waited_for.or_else(|| {
            (0..self.view.size())
                .filter(|rank| overdue(*rank))
                .min_by_key(|rank| (self.view.silent_since(*rank), *rank))
        })?;
        let lasted = now.saturating_sub(self.view.silent_since(rank));
        Some(Finding {
            cause: Cause::PeerSilent,
            rank: Some(rank),
            peer: None,
            lasted,
            evidence: vec![
                "its control connection is open, so its process was not ended".to_owned(),
                format!("patience.silent is {:.1} s", limit.as_secs_f64()),
            ],
            next_step: format!(
                "see whether the process of {} is stopped (state T: kill -CONT PID) or its machine hangs",
                self.view.name(rank)
            ),
        })
    }

    /// A rank that left in order while others count on it.
    fn left(&self) -> Option<Finding> {
        let awaited = self.awaited();
        let rank = awaited.iter().find(|rank| {
            *rank < self.view.size() && self.view.ranks[*rank].control == ControlState::Goodbye
        })?;
        Some(Finding {
            cause: Cause::PeerStalled { phase: Phase::Stopped },
            rank: Some(rank),
            peer: None,
            lasted: self.longest_wait(),
            evidence: vec!["it said goodbye on the control channel".to_owned()],
            next_step: format!("start {} again, or stop all ranks together", self.view.name(rank)),
        })
    }

    fn awaited(&self) -> RankSet {
        self.waiters.iter().fold(RankSet::EMPTY, |set, waiter| set.union(waiter.waits_for))
    }

    /// All rails of a pair are down, and somebody needs them.
    fn link(&self) -> Option<Finding> {
        let proposed =
            self.evidence.proposals.iter().filter_map(|proposal| match &proposal.reason {
                Reason::LinkDown { report } if usize::from(report.to) < self.view.size() => {
                    Some(report)
                }
                _ => None,
            });
        let needed = self.view.links.iter().filter(|report| {
            let (from, to) = (usize::from(report.from), usize::from(report.to));
            report.rails_left == 0
                && self.waiters.iter().any(|waiter| {
                    let awaits = waiter.waits_for.union(waiter.via);
                    (waiter.rank == from && awaits.contains(to))
                        || (waiter.rank == to && awaits.contains(from))
                })
        });
        let down: Vec<&LinkReport> = proposed.chain(needed).collect();
        if let Some(silent) = down.iter().find_map(|report| self.gone(report)) {
            return Some(silent);
        }
        // A cable that is down explains the forwarded paths over it.
        let cable = down.iter().find(|report| report.through.is_empty());
        cable.or(down.first()).map(|report| self.broken(report))
    }

    /// A link that is down to or past a rank of which nothing is heard any more, by the control channel or otherwise: it
    /// is the rank, not the path. A rank that is heard is alive, whatever its phase.
    fn gone(&self, report: &LinkReport) -> Option<Finding> {
        let now = self.evidence.now;
        let about = |other: &&LinkReport| {
            let ends = [other.from, other.to];
            ends.contains(&report.from) && ends.contains(&report.to)
        };
        let between = self.view.links.iter().filter(about).flat_map(|other| &other.through);
        let ranks = between.chain([&report.to, &report.from]).map(|rank| usize::from(*rank));
        let unheard = |rank: &usize| {
            *rank != self.view.me
                && *rank < self.view.size()
                && now.saturating_sub(self.view.silent_since(*rank)) >= UNHEARD
        };
        let rank = ranks.into_iter().find(unheard)?;
        let failed = self.view.links.iter().filter(|other| {
            let rank = u8::try_from(rank).unwrap_or(u8::MAX);
            other.from == rank || other.to == rank || other.through.contains(&rank)
        });
        Some(Finding {
            cause: Cause::PeerSilent,
            rank: Some(rank),
            peer: None,
            lasted: now.saturating_sub(self.view.silent_since(rank)),
            evidence: vec![
                format!("{} rails to it or past it went down meanwhile", failed.count()),
                format!("{}{}", self.view.way(report), report.why),
            ],
            next_step: format!(
                "see whether the host of {} is up: it is off, frozen, or cut off from every network",
                self.view.name(rank)
            ),
        })
    }

    /// Ranks that stand at different operations, or wait for no known reason, while nothing gets over some path: that is
    /// the reason, wherever the wait that was told first may be.
    fn quiet_path(&self, finding: &Finding) -> Option<Finding> {
        if !matches!(finding.cause, Cause::RanksDisagree { .. } | Cause::Unknown) {
            return None;
        }
        let mut quiet = self.view.links.iter().filter(|report| report.rail.is_none()).peekable();
        let first = *quiet.peek()?;
        // A quiet cable explains the forwarded paths over it.
        let cable = quiet.find(|report| !self.view.cable(report.from, report.to).is_empty());
        Some(self.broken(cable.unwrap_or(first)))
    }

    fn broken(&self, report: &LinkReport) -> Finding {
        let (from, to) = (usize::from(report.from), usize::from(report.to));
        let pair = [report.from, report.to];
        let mut evidence = vec![format!("{}{}", self.view.way(report), report.why)];
        for other in &self.view.links {
            if pair.contains(&other.from) && pair.contains(&other.to) {
                let what = match other.rail {
                    Some(rail) => {
                        let way = self.view.way(other);
                        format!("{way}rail {rail} to rank {} go down", other.to)
                    }
                    None => format!("the path to rank {} go quiet", other.to),
                };
                evidence.push(format!("rank {} saw {what}: {}", other.from, other.why));
            }
        }
        Finding {
            cause: path(from, to),
            rank: Some(from),
            peer: Some(to),
            lasted: self.longest_wait(),
            evidence,
            next_step: self.prove_again(report),
        }
    }

    fn prove_again(&self, report: &LinkReport) -> String {
        let (from, to) = (usize::from(report.from), usize::from(report.to));
        let (a, b) = (self.view.name(from), self.view.name(to));
        if report.through.is_empty() {
            return format!(
                "check cable, addresses and rules between {a} and {b}, then prove the path again"
            );
        }
        let host = |rank: usize| self.view.ranks.get(rank).map_or("", |view| view.host.as_str());
        format!(
            "its packets are relayed from now on; `railweave verify --only '{}>{}'` tells which host's marker or rule \
             is missing, and `railweave verify --again` has it used again",
            host(from),
            host(to)
        )
    }

    /// Where the waits-for edges end: a relay that holds the bytes is named rather than the far end.
    fn root(&self) -> Option<Finding> {
        let due = |root: &&Root| root.deadline <= self.evidence.now.saturating_add(SLACK);
        let relay =
            self.roots.iter().filter(due).find(|root| matches!(root.kind, RootKind::Relay { .. }));
        let root = relay.or_else(|| self.roots.iter().find(due))?;
        let lasted = self.evidence.now.saturating_sub(root.since);
        let name = self.view.name(root.rank);
        let patience = format!("patience.{} is {:.1} s", root.key, root.limit.as_secs_f64());
        match &root.kind {
            RootKind::Silent => None,
            RootKind::InPhase(phase) => Some(Finding {
                cause: Cause::PeerStalled { phase: *phase },
                rank: Some(root.rank),
                peer: None,
                lasted,
                evidence: vec![patience],
                next_step: advice(*phase, root, &name),
            }),
            RootKind::Relay { source, destination } => Some(Finding {
                cause: Cause::PeerStalled { phase: Phase::Relay },
                rank: Some(root.rank),
                peer: Some(*destination),
                lasted,
                evidence: vec![
                    format!("it holds a chunk of rank {source} for rank {destination}"),
                    patience,
                ],
                next_step: format!("look at the load and the log of {name}, which relays"),
            }),
            RootKind::Passed { waiter } => self.passed(root, *waiter, lasted),
            RootKind::Elsewhere { other } => Some(self.disagree(&[*other, root.rank], lasted)),
            RootKind::Cycle(members) => self.cycle(*members, lasted),
        }
    }

    /// A rank that went on and waits for one it left behind stands elsewhere. One that simply went on has sent its part,
    /// and what became of that is not known while every link is up.
    fn passed(&self, root: &Root, waiter: usize, lasted: Duration) -> Option<Finding> {
        let beacon = self.view.ranks[root.rank].beacon?;
        let ahead = beacon.operation != operation::NONE && !beacon.waits_for.is_empty();
        if ahead {
            return Some(self.disagree(&[waiter, root.rank], lasted));
        }
        let mut finding = self.unknown();
        finding.evidence.push(format!(
            "rank {} is done with the operation rank {waiter} is in, yet its part has not reached rank {waiter}; all links are reported up",
            root.rank
        ));
        Some(finding)
    }

    fn cycle(&self, members: RankSet, lasted: Duration) -> Option<Finding> {
        let ranks: Vec<usize> = members.iter().collect();
        let positions: Vec<_> = ranks.iter().filter_map(|rank| self.position(*rank)).collect();
        let first = positions.first()?;
        let same = |p: &Position| (p.operation, p.sequence) == (first.operation, first.sequence);
        if !positions.iter().all(same) {
            return Some(self.disagree(&ranks, lasted));
        }
        let mut finding = self.unknown();
        finding.lasted = lasted;
        finding.evidence.push(format!(
            "ranks {members} are in one operation and wait for each other; all links are reported up"
        ));
        Some(finding)
    }

    fn disagree(&self, ranks: &[usize], lasted: Duration) -> Finding {
        let mut positions: Vec<_> = ranks.iter().filter_map(|rank| self.position(*rank)).collect();
        positions.sort_by_key(|position| position.rank);
        Finding {
            evidence: positions.iter().map(ToString::to_string).collect(),
            cause: Cause::RanksDisagree { positions },
            rank: None,
            peer: None,
            lasted,
            next_step: "all ranks must call the same operations in the same order: compare the flight recorders with `railweave explain`"
                .to_owned(),
        }
    }

    /// Where a rank is: as it proposed, else as its beacon says.
    fn position(&self, rank: usize) -> Option<Position> {
        let proposed =
            self.waiters.iter().find(|waiter| waiter.rank == rank).and_then(|w| w.position);
        let beacon = self.view.ranks.get(rank)?.beacon;
        let (operation, sequence) =
            proposed.or_else(|| beacon.map(|beacon| (beacon.operation, beacon.sequence)))?;
        Some(Position { rank: u8::try_from(rank).unwrap_or(u8::MAX), operation, sequence })
    }

    fn unknown(&self) -> Finding {
        let evidence = self
            .evidence
            .proposals
            .iter()
            .filter_map(|proposal| match &proposal.reason {
                Reason::Failed { what } => Some(format!("rank {} failed: {what}", proposal.from)),
                _ => None,
            })
            .collect();
        Finding {
            cause: Cause::Unknown,
            rank: None,
            peer: None,
            lasted: self.longest_wait(),
            evidence,
            next_step: "read the evidence and the flight recorders with `railweave explain`"
                .to_owned(),
        }
    }

    fn longest_wait(&self) -> Duration {
        let first = self.waiters.iter().map(|waiter| waiter.since).min();
        first.map_or(Duration::ZERO, |since| self.evidence.now.saturating_sub(since))
    }

    fn verdict(&self, finding: Finding) -> Verdict {
        let view = self.view;
        let culprits = RankSet::EMPTY
            .union(finding.rank.map_or(RankSet::EMPTY, RankSet::one))
            .union(finding.peer.map_or(RankSet::EMPTY, RankSet::one));
        let mut waiting: Vec<usize> = self.waiters.iter().map(|waiter| waiter.rank).collect();
        for (rank, known) in view.ranks.iter().enumerate() {
            let waits = known.beacon.is_some_and(|beacon| !beacon.waits_for.is_empty());
            if waits && !view.is_stale(rank, self.evidence.now) {
                waiting.push(rank);
            }
        }
        let waited_by = match finding.cause {
            Cause::PeerDead | Cause::PeerStalled { .. } | Cause::PeerSilent => {
                waiting.iter().copied().filter(|rank| !culprits.contains(*rank)).collect()
            }
            _ => RankSet::EMPTY,
        };
        // The operation that failed is the earliest one somebody is still inside.
        let place = waiting
            .iter()
            .filter_map(|rank| self.position(*rank))
            .reduce(|a, b| if (b.sequence.wrapping_sub(a.sequence) as i32) < 0 { b } else { a })
            .map(|position| (position.operation, position.sequence))
            .or_else(|| self.evidence.proposals.first().map(|p| (p.operation, p.sequence)))
            .unwrap_or((operation::NONE, 0));
        let mut evidence = finding.evidence;
        evidence.extend((0..view.size()).map(|rank| self.describe(rank)));
        evidence.extend(view.links.iter().filter(|report| report.rails_left > 0).map(|report| {
            format!(
                "{}rail {} between ranks {} and {} is down: {}",
                view.way(report),
                report.rail.map_or("?".to_owned(), |rail| rail.to_string()),
                report.from,
                report.to,
                report.why
            )
        }));
        let narrow = |rank: usize| u8::try_from(rank).unwrap_or(u8::MAX);
        Verdict {
            epoch: view.epoch,
            operation: place.0,
            sequence: place.1,
            cause: finding.cause,
            rank: finding.rank.map(narrow),
            host: finding
                .rank
                .and_then(|rank| view.ranks.get(rank))
                .map_or(String::new(), |r| r.host.clone()),
            peer: finding.peer.map(narrow),
            lasted_ms: u64::try_from(finding.lasted.as_millis()).unwrap_or(u64::MAX),
            waited_by,
            evidence,
            next_step: finding.next_step,
            judged_by: narrow(view.me),
        }
        .bounded()
    }

    fn describe(&self, rank: usize) -> String {
        let view = self.view;
        let name = view.name(rank);
        let known = &view.ranks[rank];
        let Some(beacon) = known.beacon else { return format!("{name}: no beacon yet") };
        let age = self.evidence.now.saturating_sub(known.beacon_at);
        let mut text = format!(
            "{name}: {} for {:.1} s at {} #{}",
            beacon.phase,
            (beacon.phase_age + age).as_secs_f64(),
            operation::name(beacon.operation),
            beacon.sequence,
        );
        if !beacon.waits_for.is_empty() {
            let via = if beacon.waits_via.is_empty() {
                String::new()
            } else {
                format!(" via {}", beacon.waits_via)
            };
            text += &format!(", waits for {}{via}", beacon.waits_for);
        }
        if beacon.relay_backlog.chunks > 0 {
            text += &format!(", holds {} chunks for others", beacon.relay_backlog.chunks);
        }
        if rank != view.me {
            let silent = self.evidence.now.saturating_sub(view.silent_since(rank));
            text += &format!(", heard {:.1} s before", silent.as_secs_f64());
        }
        text
    }
}

fn path(from: usize, to: usize) -> Cause {
    let narrow = |rank: usize| u8::try_from(rank).unwrap_or(u8::MAX);
    Cause::PathBroken { from: narrow(from), to: narrow(to) }
}

fn advice(phase: Phase, root: &Root, name: &str) -> String {
    let what = match phase {
        Phase::Start => "is loading or connecting: look at its log",
        Phase::Compute => "is computing: look at its processor, accelerator and log",
        Phase::Rows => "is reading rows: look at its drive (`rows` detail, SMART, I/O errors)",
        Phase::Relay => "is relaying: look at its load",
        Phase::Idle => "has not begun the operation: look at what its caller does",
        Phase::Wire | Phase::Stopped => {
            "is inside the operation: look at its log and flight recorder"
        }
    };
    format!("{name} {what}; if the time is needed, `railweave set patience.{}=VALUE`", root.key)
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
