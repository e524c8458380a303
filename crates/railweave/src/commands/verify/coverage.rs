//! What covers one queue pair on its way: the marker at each end, the rules of the hosts between, and what they took.

use std::net::Ipv4Addr;

use cluster::inventory::Seen;
use cluster::inventory::host_state::{EgressFilter, Marker};
use cluster::plan::{FunctionRef, Plan, Rail};
use cluster::rules::{MarkerRules, RuleOptions, desired};
use serde::{Deserialize, Serialize};

use super::judge::Counts;
use crate::rule_hits::{RuleSeen, RulesState, describe, look_at, rule_of};

/// A packet carries at most so many bytes, as RoCE has it.
const PATH_MTU_BYTES_MAX: u64 = 4096;
const PATH_MTU_BYTES_MIN: u64 = 256;

/// What carried the bytes of a rail's proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Over {
    /// A reliable queue pair of RDMA devices.
    Verbs,
    /// A TCP stream between the same addresses.
    Tcp,
}

/// What carried the bytes, and what covered them on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Coverage {
    /// The transport.
    pub(super) transport: Over,
    /// Why it was not the other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    /// The queue pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) queue_pair: Option<PairProof>,
}

impl Coverage {
    /// Over TCP.
    pub(super) fn tcp(why: &str) -> Self {
        Self { transport: Over::Tcp, why: Some(why.to_owned()), queue_pair: None }
    }
}

/// What is known of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PairProof {
    /// The end that sends first.
    pub(super) near: EndProof,
    /// The other one.
    pub(super) far: EndProof,
    /// Most bytes of one packet that the netdevs of both ends allow.
    pub(super) path_mtu_bytes: u64,
    /// Packets that the bytes need at least, each way.
    pub(super) packets_needed: u64,
    /// The hosts between, from the near end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) between: Vec<BetweenProof>,
}

/// One end of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndProof {
    /// The host.
    pub(super) host: String,
    /// The function.
    pub(super) function: String,
    /// The RDMA device: as its host names it, or as the plan does.
    pub(super) device: String,
    /// Where its packets go.
    pub(super) destination: Option<Ipv4Addr>,
    /// The UDP source port that they leave from, where the tag goes by it.
    pub(super) source_port: Option<u16>,
    /// What marks them, on a forwarded rail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) marker: Option<MarkerProof>,
    /// Bytes that left by its function meanwhile; none was not measured.
    pub(super) sent_bytes: Option<u64>,
    /// The status of the work completion that ended it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) work_completion: Option<u32>,
}

/// What marks the packets of one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MarkerProof {
    /// `tc`, or `nic` for a program that has the NIC do it.
    pub(super) kind: String,
    /// It is there; none was not measured.
    pub(super) running: Option<bool>,
    /// What it has to mark.
    pub(super) marks: String,
    /// Packets it took meanwhile, where it counts.
    pub(super) packets: Option<u64>,
    /// Why it was not measured, or what there is instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

/// A host that passes the packets on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BetweenProof {
    /// The host.
    pub(super) host: String,
    /// The rule for packets from the near end.
    pub(super) there: RuleProof,
    /// The rule for packets to it.
    pub(super) back: RuleProof,
    /// Datagrams that its kernel forwarded meanwhile; none was not measured.
    pub(super) forwarded_datagrams: Option<u64>,
}

/// A rule on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RuleProof {
    /// Which one.
    pub(super) rule: String,
    /// It is there; none was not measured.
    pub(super) present: Option<bool>,
    /// Packets it took meanwhile, by hardware and software; none was not measured.
    pub(super) packets: Option<u64>,
    /// Why it was not measured, or what there is instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

/// The state of a rail's hosts at one time, by rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// Byte counters.
    pub(super) counts: Counts,
    /// Rules and markers, where they were asked for.
    pub(super) rules: std::collections::BTreeMap<usize, Result<RulesState, String>>,
}

impl Look {
    fn rules(&self, rank: usize) -> Result<&RulesState, String> {
        match self.rules.get(&rank) {
            Some(Ok(state)) => Ok(state),
            Some(Err(why)) => Err(why.clone()),
            None => Err("not asked".to_owned()),
        }
    }
}

/// What covered a rail between two looks.
pub(super) fn of(plan: &Plan, rail: &Rail, bytes: u64, before: &Look, after: &Look) -> PairProof {
    let first = rail.crossings.first().map(|one| &one.out);
    let last = rail.crossings.last().map(|one| &one.into);
    let mtu = [first, last]
        .into_iter()
        .flatten()
        .filter_map(|function| {
            Some(after.rules(function.rank).ok()?.netdev(function.mac)?.mtu_bytes)
        })
        .chain([plan.mtu_bytes])
        .min()
        .unwrap_or(plan.mtu_bytes);
    let path_mtu_bytes = path_mtu(mtu);
    let between = rail.hops.get(1..rail.hops.len().saturating_sub(1)).unwrap_or_default();
    let back = reversed(plan, rail);
    PairProof {
        near: end(plan, rail, first, last, before, after),
        far: end(plan, back.as_ref().unwrap_or(rail), last, first, before, after),
        path_mtu_bytes,
        packets_needed: bytes.div_ceil(path_mtu_bytes),
        between: if rail.tag.is_none() {
            Vec::new()
        } else {
            let one = |&rank: &usize| BetweenProof {
                host: plan.ranks.get(rank).map_or_else(String::new, |rank| rank.host.clone()),
                there: rule(plan, rank, Some(rail), before, after),
                back: rule(plan, rank, back.as_ref(), before, after),
                forwarded_datagrams: datagrams(rank, before, after),
            };
            between.iter().map(one).collect()
        },
    }
}

/// The largest RoCE MTU within a netdev's, without what its headers take: no packet carries more.
fn path_mtu(netdev_bytes: u32) -> u64 {
    let mut mtu = PATH_MTU_BYTES_MAX;
    while mtu > PATH_MTU_BYTES_MIN && mtu > u64::from(netdev_bytes) {
        mtu /= 2;
    }
    mtu
}

/// The plan's rail of the same number the other way.
fn reversed(plan: &Plan, rail: &Rail) -> Option<Rail> {
    let (from, to) = (*rail.hops.first()?, *rail.hops.last()?);
    let leaves = rail.crossings.first()?.out.mac;
    let back = plan.path(to, from)?;
    back.rails
        .iter()
        .find(|back| back.crossings.last().is_some_and(|last| last.into.mac == leaves))
        .cloned()
}

fn end(
    plan: &Plan,
    rail: &Rail,
    own: Option<&FunctionRef>,
    other: Option<&FunctionRef>,
    before: &Look,
    after: &Look,
) -> EndProof {
    let sent = |look: &Look, own: &FunctionRef| {
        let netdevs = look.counts.get(&own.rank)?;
        let netdev = netdevs.iter().find(|netdev| netdev.mac == own.mac)?;
        Some(netdev.tx_bytes.max(netdev.rdma_bytes.map_or(0, |(_, tx)| tx)))
    };
    let sent_bytes = own.and_then(|own| sent(after, own)?.checked_sub(sent(before, own)?));
    let tag = rail.tag.as_ref();
    EndProof {
        host: own.map(|own| own.host.clone()).unwrap_or_default(),
        function: own.map(FunctionRef::label).unwrap_or_default(),
        device: own
            .map(|own| own.rdma.clone().unwrap_or_else(|| own.netdev.clone()))
            .unwrap_or_default(),
        destination: other.and_then(|other| other.ip),
        source_port: tag.and_then(|tag| tag.source_port),
        marker: tag.and(own).map(|own| marker(plan, own, other, before, after)),
        sent_bytes,
        work_completion: None,
    }
}

fn marker(
    plan: &Plan,
    own: &FunctionRef,
    other: Option<&FunctionRef>,
    before: &Look,
    after: &Look,
) -> MarkerProof {
    let wanted = desired(plan, own.rank, &RuleOptions::default());
    let rules = wanted.markers.into_iter().find(|marker| marker.function == own.mac);
    let Some((rules, far)) = rules.map(|marker| marker.rules).zip(other.and_then(|it| it.ip))
    else {
        return MarkerProof {
            kind: "unknown".to_owned(),
            running: None,
            marks: "nothing".to_owned(),
            packets: None,
            why: Some("the plan gives no marker for it".to_owned()),
        };
    };
    let mut proof = MarkerProof {
        kind: if matches!(rules, MarkerRules::Filters(_)) { "tc" } else { "nic" }.to_owned(),
        running: None,
        marks: rules.describe(),
        packets: None,
        why: None,
    };
    match after.rules(own.rank).and_then(|state| marked(state, own, &rules, far)) {
        Ok(Some(now)) => {
            proof.running = Some(true);
            let then = before.rules(own.rank).and_then(|state| marked(state, own, &rules, far));
            let then = then.ok().flatten().flatten();
            proof.packets = now.zip(then).and_then(|(now, then)| now.checked_sub(then));
        }
        Ok(None) => {
            proof.running = Some(false);
            proof.why = Some(if proof.kind == "tc" {
                format!("no egress filter of its netdev marks packets to {far}")
            } else {
                "no marker runs for it that does this".to_owned()
            });
        }
        Err(why) => proof.why = Some(why),
    }
    proof
}

/// Whether packets to `far` are marked as planned, and the marker's count if it has one.
fn marked(
    state: &RulesState,
    own: &FunctionRef,
    rules: &MarkerRules,
    far: Ipv4Addr,
) -> Result<Option<Option<u64>>, String> {
    match rules {
        MarkerRules::Filters(marks) => {
            let filters = known(&state.egress)?;
            let Some(netdev) = state.netdev(own.mac) else { return Ok(None) };
            let Some(mark) = marks.get(&far) else { return Ok(None) };
            let does = |filter: &&EgressFilter| {
                filter.netdev == netdev.name
                    && filter.destination_ip.is_some_and(|to| (to.ip, to.prefix) == (far, 32))
                    && filter.source_port.is_none_or(|port| Some(port) == mark.source_port)
                    && filter.set_ether_type == Some(mark.ether_type)
            };
            Ok(filters.iter().find(does).map(|filter| filter.packets.known().copied()))
        }
        MarkerRules::Destinations(marks) => {
            let running = known(&state.markers)?;
            let does = |marker: &&Marker| {
                own.rdma.as_ref() == Some(&marker.rdma)
                    && marks.get(&far).is_some_and(|tag| marker.destinations.contains(&(far, *tag)))
            };
            Ok(running.iter().find(does).map(|_| None))
        }
        MarkerRules::SourcePort { port, ether_type } => {
            let running = known(&state.markers)?;
            let does = |marker: &&Marker| {
                own.rdma.as_ref() == Some(&marker.rdma)
                    && (marker.source_port, marker.ether_type) == (Some(*port), Some(*ether_type))
            };
            Ok(running.iter().find(does).map(|_| None))
        }
    }
}

fn known<T>(seen: &Seen<T>) -> Result<&T, String> {
    match seen {
        Seen::Known(value) => Ok(value),
        Seen::NotMeasured(why) => Err(why.clone()),
    }
}

fn rule(plan: &Plan, rank: usize, rail: Option<&Rail>, before: &Look, after: &Look) -> RuleProof {
    let Some(wanted) = rail.and_then(|rail| rule_of(plan, rank, rail)) else {
        let why = Some("the plan gives no rule for it".to_owned());
        return RuleProof { rule: "no rule".to_owned(), present: None, packets: None, why };
    };
    let planned = plan.ranks.get(rank).and_then(|rank| {
        rank.functions.iter().find(|one| one.mac == wanted.into).map(|one| one.netdev.as_str())
    });
    let state = after.rules(rank);
    let netdev =
        state.as_ref().ok().and_then(|state| Some(state.netdev(wanted.into)?.name.as_str()));
    let mut proof = RuleProof {
        rule: describe(&wanted, netdev.or(planned).unwrap_or("?")),
        present: None,
        packets: None,
        why: None,
    };
    let seen = |look: &Look| match look.rules(rank) {
        Ok(state) => look_at(&wanted, state),
        Err(why) => RuleSeen::NotMeasured(why),
    };
    match seen(after) {
        RuleSeen::Took(now) => {
            proof.present = Some(true);
            match seen(before) {
                RuleSeen::Took(then) if then <= now => proof.packets = Some(now - then),
                RuleSeen::Took(_) => proof.why = Some("its count went back meanwhile".to_owned()),
                RuleSeen::Missing(_) => proof.why = Some("it came only meanwhile".to_owned()),
                RuleSeen::NotMeasured(why) => proof.why = Some(why),
            }
        }
        RuleSeen::Missing(why) => {
            proof.present = Some(false);
            proof.why = Some(why);
        }
        RuleSeen::NotMeasured(why) => proof.why = Some(why),
    }
    proof
}

fn datagrams(rank: usize, before: &Look, after: &Look) -> Option<u64> {
    let count = |look: &Look| {
        look.rules(rank).ok().and_then(|state| state.forwarded_datagrams.known().copied())
    };
    count(after)?.checked_sub(count(before)?)
}

impl PairProof {
    /// The hosts between, for people, a line each.
    pub(super) fn lines(&self) -> Vec<String> {
        let count = |count: Option<u64>| {
            count.map_or_else(|| "not measured".to_owned(), |count| count.to_string())
        };
        let side = |rule: &RuleProof| match rule.present {
            Some(false) => "rule missing".to_owned(),
            _ => format!("{} packets", count(rule.packets)),
        };
        let mut lines = Vec::new();
        for end in [&self.near, &self.far] {
            let Some(marker) = &end.marker else { continue };
            let state = match marker.running {
                Some(true) => "runs",
                Some(false) => "is missing",
                None => "not measured",
            };
            let port = end.source_port.map_or_else(
                || format!("to {}", end.destination.map_or("?".to_owned(), |to| to.to_string())),
                |port| format!("from port {port}"),
            );
            lines.push(format!(
                "{} {port}: {} marker {state}; {}",
                end.device, marker.kind, marker.marks
            ));
        }
        for host in &self.between {
            lines.push(format!(
                "{} passed on: there {}, back {} (needed {}); its kernel forwarded {}",
                host.host,
                side(&host.there),
                side(&host.back),
                self.packets_needed,
                count(host.forwarded_datagrams)
            ));
        }
        lines
    }
}
