//! What the rules of this host pass on: read from the live system, and held against the plan.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cluster::address::Mac;
use cluster::inventory::host_state::{EgressFilter, Filter, Marker};
use cluster::inventory::{HostState, Seen, capture};
use cluster::plan::{PathKind, Plan, Rail};
use cluster::reach::{Reach, Way};
use cluster::rules::{DesiredFilter, PREFERENCES, RuleOptions, TAG_BASE, desired};
use group::{ForwardWitness, RuleHits};
use serde::{Deserialize, Serialize};

/// How long reading the rules may take: a few commands, on a machine that may be busy.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Filters of each kind that are looked at; a host of the largest plan has fewer than 100.
const FILTERS_MAX: usize = 512;

/// A netdev, by what the plan knows it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RuleNetdev {
    /// Its hardware address.
    pub(crate) mac: Mac,
    /// Its name of today.
    pub(crate) name: String,
    /// Its MTU in bytes.
    pub(crate) mtu_bytes: u32,
}

/// What passes packets on at a host and what marks them, with their counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RulesState {
    /// Netdevs.
    pub(crate) netdevs: Vec<RuleNetdev>,
    /// Ingress filters.
    pub(crate) filters: Seen<Vec<Filter>>,
    /// Egress filters.
    pub(crate) egress: Seen<Vec<EgressFilter>>,
    /// Programs that mark packets.
    pub(crate) markers: Seen<Vec<Marker>>,
    /// Datagrams that the kernel forwarded since boot.
    pub(crate) forwarded_datagrams: Seen<u64>,
}

impl RulesState {
    /// Of a host's whole state.
    pub(crate) fn of(host: HostState) -> Self {
        let tag = |ether_type: Option<u16>| {
            ether_type.is_some_and(|tag| (TAG_BASE + 1..=TAG_BASE + 9).contains(&tag))
        };
        let netdevs = host
            .netdevs
            .iter()
            .filter(|netdev| netdev.kind != cluster::inventory::host_state::NetdevKind::Other)
            .filter_map(|netdev| {
                let (mac, name) = (netdev.mac?, netdev.name.clone());
                Some(RuleNetdev { mac, name, mtu_bytes: netdev.mtu_bytes })
            })
            .collect();
        // Other people's filters are no business of a plan's, and may be many.
        let own = |preference: &u32, read: Option<u16>, written: Option<u16>| {
            PREFERENCES.contains(preference) || tag(read) || tag(written)
        };
        Self {
            netdevs,
            filters: map(host.filters, |one: &Filter| {
                own(&one.preference, one.ether_type, one.set_ether_type)
            }),
            egress: map(host.egress, |one: &EgressFilter| {
                own(&one.preference, one.ether_type, one.set_ether_type)
            }),
            markers: host.markers,
            forwarded_datagrams: host.system.forwarded_datagrams,
        }
    }

    /// Of this host, now.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) fn read() -> Result<Self, String> {
        let here = Reach { host: "this host".to_owned(), way: Way::Local };
        let script = capture::rules_script();
        let output = here
            .run(&["sh", "-s"], script.as_bytes(), READ_LIMIT)
            .map_err(|error| error.to_string())?;
        let recording = capture::parse(&output.stdout).map_err(|error| error.to_string())?;
        Ok(Self::of(HostState::of(&recording)))
    }

    /// The same, with all text in it made fit to be shown.
    pub(crate) fn clean(&mut self, show: impl Fn(&str) -> String) {
        let reason = |why: &mut String| *why = show(why);
        for netdev in &mut self.netdevs {
            netdev.name = show(&netdev.name);
        }
        match &mut self.filters {
            Seen::Known(filters) => filters.iter_mut().for_each(|filter| {
                filter.netdev = show(&filter.netdev);
                filter.redirect_to = filter.redirect_to.as_deref().map(&show);
            }),
            Seen::NotMeasured(why) => reason(why),
        }
        match &mut self.egress {
            Seen::Known(filters) => {
                filters.iter_mut().for_each(|filter| filter.netdev = show(&filter.netdev));
            }
            Seen::NotMeasured(why) => reason(why),
        }
        match &mut self.markers {
            Seen::Known(markers) => {
                markers.iter_mut().for_each(|marker| marker.rdma = show(&marker.rdma));
            }
            Seen::NotMeasured(why) => reason(why),
        }
        if let Seen::NotMeasured(why) = &mut self.forwarded_datagrams {
            reason(why);
        }
    }

    /// The name of the netdev with this hardware address.
    pub(crate) fn netdev(&self, mac: Mac) -> Option<&RuleNetdev> {
        self.netdevs.iter().find(|netdev| netdev.mac == mac)
    }
}

fn map<T>(seen: Seen<Vec<T>>, keep: impl Fn(&T) -> bool) -> Seen<Vec<T>> {
    match seen {
        Seen::Known(all) => {
            Seen::Known(all.into_iter().filter(|one| keep(one)).take(FILTERS_MAX).collect())
        }
        Seen::NotMeasured(why) => Seen::NotMeasured(why),
    }
}

/// What is seen of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuleSeen {
    /// It is there, and took so many packets since it was made.
    Took(u64),
    /// It is not there; what is there instead.
    Missing(String),
    /// Nobody knows.
    NotMeasured(String),
}

/// The rule by which the host of `rank` passes a forwarded rail on, as the plan wants it.
pub(crate) fn rule_of(plan: &Plan, rank: usize, rail: &Rail) -> Option<DesiredFilter> {
    let wanted = desired(plan, rank, &RuleOptions::default());
    let first = rail.crossings.first()?;
    let (at, pair) = rail
        .crossings
        .windows(2)
        .enumerate()
        .find(|(_, pair)| pair.first().is_some_and(|before| before.into.rank == rank))?;
    let (before, after) = (pair.first()?, pair.get(1)?);
    let tag = *rail.tag.as_ref()?.ether_types.get(at)?;
    wanted.filters.into_iter().find(|filter| {
        (filter.into, filter.out, filter.next) == (before.into.mac, after.out.mac, after.into.mac)
            && filter.ether_type == tag
            && filter.source.is_none_or(|source| source == first.out.mac)
    })
}

/// A rule for people: `the rule with preference 18801 for EtherType 0x88b5 on h1p1f0`.
pub(crate) fn describe(rule: &DesiredFilter, netdev: &str) -> String {
    format!(
        "the rule with preference {} for EtherType {:#06x} on {netdev}",
        rule.preference, rule.ether_type
    )
}

/// What a host's state says of a rule. One that does the same under another preference counts too.
pub(crate) fn look_at(rule: &DesiredFilter, state: &RulesState) -> RuleSeen {
    let filters = match &state.filters {
        Seen::Known(filters) => filters,
        Seen::NotMeasured(why) => return RuleSeen::NotMeasured(why.clone()),
    };
    let (Some(into), Some(out)) = (state.netdev(rule.into), state.netdev(rule.out)) else {
        return RuleSeen::Missing("the host has no netdev with the plan's address".to_owned());
    };
    let here = |filter: &&Filter| {
        filter.netdev == into.name
            && filter.ether_type == Some(rule.ether_type)
            && filter.destination_mac.is_none_or(|mac| mac == rule.into)
            && (filter.source_mac.is_none() || filter.source_mac == rule.source)
    };
    let does = |filter: &&Filter| {
        filter.set_ether_type == Some(rule.set_ether_type)
            && filter.set_destination_mac == Some(rule.next)
            && filter.redirect_to.as_ref() == Some(&out.name)
    };
    // The kernel asks the lowest preference first.
    let first = filters.iter().filter(here).min_by_key(|filter| filter.preference);
    match first {
        Some(filter) if does(&filter) => match &filter.packets {
            Seen::Known(packets) => RuleSeen::Took(*packets),
            Seen::NotMeasured(why) => RuleSeen::NotMeasured(why.clone()),
        },
        Some(filter) => RuleSeen::Missing(format!(
            "the one with preference {} there does something else",
            filter.preference
        )),
        None => RuleSeen::Missing("no filter there takes it".to_owned()),
    }
}

/// Sees the rules of this host that forwarded rails of other ranks pass.
pub struct RuleWitness {
    plan: Arc<Plan>,
    rank: usize,
}

impl fmt::Debug for RuleWitness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleWitness").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl RuleWitness {
    /// For the rank's host; none if the plan has it pass on nothing.
    pub fn new(plan: Arc<Plan>, rank: usize) -> Option<Self> {
        let passes = passing(&plan, rank).next().is_some();
        passes.then_some(Self { plan, rank })
    }

    fn hits(&self, state: Result<RulesState, String>) -> Vec<RuleHits> {
        let hits = |(from, to, rail, planned): (usize, usize, usize, &Rail)| {
            let (packets, why) = match (&state, rule_of(&self.plan, self.rank, planned)) {
                (Err(why), _) => (None, format!("not measured: {why}")),
                (_, None) => (None, "the plan gives no rule for it".to_owned()),
                (Ok(state), Some(rule)) => {
                    let netdev = state.netdev(rule.into).map_or("?", |netdev| &netdev.name);
                    let rule_text = describe(&rule, netdev);
                    match look_at(&rule, state) {
                        RuleSeen::Took(packets) => (Some(packets), String::new()),
                        RuleSeen::Missing(why) => (None, format!("{rule_text} is missing: {why}")),
                        RuleSeen::NotMeasured(why) => {
                            (None, format!("{rule_text}: not measured: {why}"))
                        }
                    }
                }
            };
            RuleHits { from, to, rail, packets, why }
        };
        passing(&self.plan, self.rank).map(hits).collect()
    }
}

impl ForwardWitness for RuleWitness {
    fn look(&self) -> Vec<RuleHits> {
        self.hits(RulesState::read())
    }
}

/// The forwarded rails that a host passes on, as source, destination and number.
fn passing(plan: &Plan, rank: usize) -> impl Iterator<Item = (usize, usize, usize, &Rail)> {
    plan.paths.iter().filter(|path| path.kind == PathKind::Forwarded).flat_map(move |path| {
        path.rails.iter().enumerate().filter_map(move |(number, rail)| {
            let between = rail.hops.get(1..rail.hops.len().saturating_sub(1))?;
            between.contains(&rank).then_some((path.from, path.to, number, rail))
        })
    })
}

#[cfg(test)]
#[path = "rule_hits_tests.rs"]
mod tests;
