//! The meeting point without sockets: requests in, answers out.
//!
//! Ranks gather; once all are there and agree, they are welcomed into the next epoch. A difference that no waiting can
//! mend (sizes, configuration, addresses) refuses everybody: those who are there at once, those who come later on arrival.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::beacon::RankSet;
use crate::rendezvous::message::{Join, ToHost, ToMember};
use crate::rendezvous::{Arrival, MemberInfo, Refusal};
use crate::verdict::RankValue;

/// How long ranks that come late are told of a refusal of the whole group.
const REFUSAL_LASTS: Duration = Duration::from_secs(30);
/// Longest wait a rank may ask for.
const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Number of a connection, given by the edge.
pub type ConnectionId = u64;

/// What the meeting point wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostOutput {
    /// Send.
    Send(ConnectionId, ToMember),
    /// Close, once everything sent has left.
    Close(ConnectionId),
}

#[derive(Debug)]
struct Waiting {
    connection: ConnectionId,
    join: Join,
    since: Duration,
    deadline: Duration,
}

#[derive(Debug)]
struct Member {
    connection: ConnectionId,
    instance: [u64; 2],
    host: String,
}

#[derive(Debug)]
struct Formed {
    epoch: u32,
    members: BTreeMap<u8, Member>,
    left: Option<(u8, String)>,
    round: u32,
    parts: BTreeMap<u8, Vec<u8>>,
}

#[derive(Debug)]
struct Doomed {
    refusal: Refusal,
    told: RankSet,
    until: Duration,
}

/// The meeting point of one group, for as long as rank 0 lives.
#[derive(Debug)]
pub struct HostCore {
    size: usize,
    /// Highest epoch given out.
    issued: u32,
    /// Highest epoch that all ranks confirmed.
    confirmed: u32,
    gathering: BTreeMap<u8, Waiting>,
    formed: Option<Formed>,
    doomed: Option<Doomed>,
}

impl HostCore {
    /// The meeting point of a group of `size` ranks.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            issued: 0,
            confirmed: 0,
            gathering: BTreeMap::new(),
            formed: None,
            doomed: None,
        }
    }

    /// A message on `connection`, whose other end proved to be a rank of the group and named itself `rank`.
    pub fn on_message(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        rank: u8,
        message: ToHost,
        out: &mut Vec<HostOutput>,
    ) {
        match message {
            ToHost::Join(join) if join.rank == rank => self.join(now, connection, *join, out),
            ToHost::Join(join) => {
                let why = format!("it asks to be rank {} but proved to be rank {rank}", join.rank);
                refuse(connection, Refusal::Malformed { why }, out);
            }
            ToHost::Agree { round, bytes } => self.agree(connection, round, bytes, out),
        }
    }

    /// `connection` ended.
    pub fn on_closed(&mut self, connection: ConnectionId, out: &mut Vec<HostOutput>) {
        self.gathering.retain(|_, waiting| waiting.connection != connection);
        let Some(formed) = &mut self.formed else { return };
        let rank = formed.members.iter().find(|(_, m)| m.connection == connection).map(|(r, _)| *r);
        if let Some(rank) = rank
            && let Some(member) = formed.members.remove(&rank)
        {
            // Its own contribution, if any, still counts for nothing: the agreement cannot reach it.
            formed.parts.remove(&rank);
            let left = formed.left.get_or_insert((rank, member.host)).clone();
            for waiting in formed.parts.keys() {
                if let Some(member) = formed.members.get(waiting) {
                    let message = ToMember::MemberLeft { rank: left.0, host: left.1.clone() };
                    out.push(HostOutput::Send(member.connection, message));
                }
            }
            formed.parts.clear();
        }
    }

    /// Time goes on: ranks whose wait is over are told who is missing.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<HostOutput>) {
        if self.doomed.as_ref().is_some_and(|doomed| now >= doomed.until) {
            self.doomed = None;
        }
        let present: RankSet = self.gathering.keys().map(|rank| usize::from(*rank)).collect();
        let missing = RankSet::all(self.size).iter().filter(|r| !present.contains(*r)).collect();
        let arrived: Vec<Arrival> = self
            .gathering
            .iter()
            .map(|(rank, waiting)| Arrival { rank: *rank, host: waiting.join.host_name.clone() })
            .collect();
        self.gathering.retain(|_, waiting| {
            let late = now >= waiting.deadline;
            if late {
                let waited = now.saturating_sub(waiting.since);
                let refusal = Refusal::Missing {
                    missing,
                    arrived: arrived.clone(),
                    waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
                };
                refuse(waiting.connection, refusal, out);
            }
            !late
        });
    }

    /// Who is not there, and for how long the first that is has waited; `None` if nobody waits.
    pub fn missing(&self, now: Duration) -> Option<(RankSet, Duration)> {
        let first = self.gathering.values().map(|waiting| waiting.since).min()?;
        let missing = |rank: &usize| !self.gathering.keys().any(|here| usize::from(*here) == *rank);
        let missing: RankSet = RankSet::all(self.size).iter().filter(missing).collect();
        Some((missing, now.saturating_sub(first)))
    }

    /// Whether the whole group was refused and some ranks have not been told.
    pub fn owes_refusals(&self) -> bool {
        self.doomed.is_some()
    }

    /// Whether somebody waits, so that time matters.
    pub fn is_busy(&self) -> bool {
        !self.gathering.is_empty()
    }

    fn join(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        join: Join,
        out: &mut Vec<HostOutput>,
    ) {
        let rank = join.rank;
        if let Some(refusal) = self.duplicate(&join) {
            refuse(connection, refusal, out);
            return;
        }
        if let Some(doomed) = &mut self.doomed {
            if !doomed.told.contains(usize::from(rank)) {
                doomed.told = doomed.told.with(usize::from(rank));
                refuse(connection, doomed.refusal.clone(), out);
                if doomed.told.len() >= self.size {
                    self.doomed = None;
                }
                return;
            }
            // A rank that was told and comes again has been started again: a new attempt.
            self.doomed = None;
        }
        if let Some(refusal) = self.old_epoch(&join, out) {
            refuse(connection, refusal, out);
            return;
        }
        if join.size == self.size && usize::from(rank) >= self.size {
            refuse(connection, Refusal::RankOutOfRange { rank, size: self.size }, out);
            return;
        }
        self.replace(rank, out);
        let doom = self.difference(&join);
        let wait = Duration::from_millis(join.wait_ms).min(MAX_WAIT);
        let waiting = Waiting { connection, join, since: now, deadline: now + wait };
        self.gathering.insert(rank, waiting);
        if let Some(refusal) = doom {
            self.doom(now, refusal, out);
        } else if self.gathering.len() == self.size {
            self.form(out);
        }
    }

    fn duplicate(&self, join: &Join) -> Option<Refusal> {
        let waiting = self
            .gathering
            .get(&join.rank)
            .map(|waiting| (waiting.join.instance, &waiting.join.host_name));
        let member = self
            .formed
            .as_ref()
            .and_then(|formed| formed.members.get(&join.rank))
            .map(|member| (member.instance, &member.host));
        let (_, host) = [waiting, member]
            .into_iter()
            .flatten()
            .find(|(instance, _)| *instance != join.instance)?;
        Some(Refusal::DuplicateRank { rank: join.rank, host: host.clone() })
    }

    /// The same process asks again: its earlier connections count no more.
    fn replace(&mut self, rank: u8, out: &mut Vec<HostOutput>) {
        if let Some(old) = self.gathering.remove(&rank) {
            out.push(HostOutput::Close(old.connection));
        }
        let old = self.formed.as_ref().and_then(|formed| formed.members.get(&rank));
        if let Some(connection) = old.map(|member| member.connection) {
            self.on_closed(connection, out);
            out.push(HostOutput::Close(connection));
        }
    }

    /// A rank that is behind the others holds state of an epoch they have left. Whoever is found to be behind goes.
    fn old_epoch(&mut self, join: &Join, out: &mut Vec<HostOutput>) -> Option<Refusal> {
        let gathered = self.gathering.values().filter_map(|waiting| waiting.join.last_epoch).max();
        let current = self.confirmed.max(gathered.unwrap_or(0));
        let reported = join.last_epoch?;
        if reported < current {
            return Some(Refusal::OldEpoch { rank: join.rank, reported, current });
        }
        self.gathering.retain(|rank, waiting| match waiting.join.last_epoch {
            Some(old) if old < reported => {
                let refusal = Refusal::OldEpoch { rank: *rank, reported: old, current: reported };
                refuse(waiting.connection, refusal, out);
                false
            }
            _ => true,
        });
        None
    }

    /// What no waiting can mend between `join` and those who are there.
    fn difference(&self, join: &Join) -> Option<Refusal> {
        if join.size != self.size {
            return Some(Refusal::SizeDiffers {
                rank: join.rank,
                host: join.host_name.clone(),
                size: join.size,
                expected: self.size,
            });
        }
        self.gathering.values().find_map(|waiting| {
            let other = &waiting.join;
            let (a, b) = if other.rank < join.rank { (other, join) } else { (join, other) };
            configuration_differs(a, b).or_else(|| unreachable_address(a, b))
        })
    }

    fn doom(&mut self, now: Duration, refusal: Refusal, out: &mut Vec<HostOutput>) {
        let mut told = RankSet::EMPTY;
        for (rank, waiting) in std::mem::take(&mut self.gathering) {
            told = told.with(usize::from(rank));
            refuse(waiting.connection, refusal.clone(), out);
        }
        let everyone = RankSet::all(self.size).iter().all(|rank| told.contains(rank));
        self.doomed = (!everyone).then_some(Doomed { refusal, told, until: now + REFUSAL_LASTS });
    }

    fn form(&mut self, out: &mut Vec<HostOutput>) {
        let gathered = std::mem::take(&mut self.gathering);
        let last = gathered.values().filter_map(|waiting| waiting.join.last_epoch).max();
        // Never an epoch that was given out before, even where it was not confirmed: bytes of it may be under way.
        let epoch = self.issued.max(last.unwrap_or(0)).saturating_add(1);
        self.issued = epoch;
        let members: Vec<MemberInfo> = gathered
            .values()
            .map(|waiting| MemberInfo {
                rank: usize::from(waiting.join.rank),
                host_name: waiting.join.host_name.clone(),
                host_id: waiting.join.host_id.clone(),
                address: SocketAddr::new(waiting.join.ip, waiting.join.port),
                blob: waiting.join.blob.clone(),
            })
            .collect();
        let mut formed = Formed {
            epoch,
            members: BTreeMap::new(),
            left: None,
            round: 0,
            parts: BTreeMap::new(),
        };
        for (rank, waiting) in gathered {
            let welcome = ToMember::Welcome { epoch, members: members.clone() };
            out.push(HostOutput::Send(waiting.connection, welcome));
            let Join { instance, host_name: host, .. } = waiting.join;
            formed.members.insert(rank, Member { connection: waiting.connection, instance, host });
        }
        self.formed = Some(formed);
    }

    fn agree(
        &mut self,
        connection: ConnectionId,
        round: u32,
        bytes: Vec<u8>,
        out: &mut Vec<HostOutput>,
    ) {
        let member = self.formed.as_mut().and_then(|formed| {
            let rank = formed.members.iter().find(|(_, m)| m.connection == connection)?.0;
            Some((*rank, formed))
        });
        let Some((rank, formed)) = member else {
            let why = "it is not a member of the present epoch; join again".to_owned();
            refuse(connection, Refusal::Malformed { why }, out);
            return;
        };
        if let Some((left, host)) = &formed.left {
            let message = ToMember::MemberLeft { rank: *left, host: host.clone() };
            out.push(HostOutput::Send(connection, message));
            return;
        }
        if round != formed.round || formed.parts.contains_key(&rank) {
            let why = format!("agreement {round} where {} is next", formed.round);
            refuse(connection, Refusal::Malformed { why }, out);
            return;
        }
        formed.parts.insert(rank, bytes);
        if formed.parts.len() < self.size {
            return;
        }
        let parts: Vec<Vec<u8>> = std::mem::take(&mut formed.parts).into_values().collect();
        // The first agreement says whether each rank's control mesh is complete: nothing to say means that it is.
        if round == 0 && parts.iter().all(Vec::is_empty) {
            self.confirmed = self.confirmed.max(formed.epoch);
        }
        formed.round = formed.round.wrapping_add(1);
        for member in formed.members.values() {
            let message = ToMember::Agreed { round, parts: parts.clone() };
            out.push(HostOutput::Send(member.connection, message));
        }
    }
}

fn refuse(connection: ConnectionId, refusal: Refusal, out: &mut Vec<HostOutput>) {
    out.push(HostOutput::Send(connection, ToMember::Refused(refusal)));
    out.push(HostOutput::Close(connection));
}

fn configuration_differs(a: &Join, b: &Join) -> Option<Refusal> {
    let key = a
        .config
        .keys()
        .chain(b.config.keys())
        .filter(|k| a.config.get(*k) != b.config.get(*k))
        .min()?;
    let value = |join: &Join| RankValue { rank: join.rank, value: join.config.get(key).cloned() };
    Some(Refusal::ConfigurationDiffers { key: key.clone(), a: value(a), b: value(b) })
}

fn unreachable_address(a: &Join, b: &Join) -> Option<Refusal> {
    let local = |join: &Join| join.ip.is_loopback() || join.ip.is_unspecified();
    let (bad, other) = if local(a) { (a, b) } else { (b, a) };
    (local(bad) && a.host_id != b.host_id).then(|| Refusal::UnreachableAddress {
        rank: bad.rank,
        host: bad.host_name.clone(),
        address: bad.ip,
        other_rank: other.rank,
        other_host: other.host_name.clone(),
    })
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
