//! What a host has to have: what follows from the plan for one rank, before anybody looks at the host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde::Serialize;

use super::marker::{MOST_RULES, MarkerRules, TcMark};
use super::refusal::Refusal;
use super::relay::{Passing, filters};
use super::{RuleOptions, TAG_BASE};
use crate::address::{Interface, Mac};
use crate::file::{MarkerKind, TagKind};
use crate::plan::{FunctionRef, PathKind, PathPlan, Plan, Rail, Tag};

/// Most names of paths that are written beside one rule.
const MOST_NAMES: usize = 3;

/// What one rank's host has to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Desired {
    /// The rank.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// What the owner allows.
    pub options: RuleOptions,
    /// The kernel marks packets and passes them on, not a NIC.
    pub software: bool,
    /// The functions that a cable is plugged into.
    pub functions: Vec<DesiredFunction>,
    /// Routes to far addresses, with the neighbour that each needs.
    pub routes: Vec<DesiredRoute>,
    /// Filters that pass packets on.
    pub filters: Vec<DesiredFilter>,
    /// Devices that mark packets.
    pub markers: Vec<DesiredMarker>,
    /// Why the plan cannot be turned into rules.
    pub refusals: Vec<Refusal>,
}

/// A function with a cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DesiredFunction {
    /// The function.
    pub function: FunctionRef,
    /// Its address, if the file has one.
    pub address: Option<Interface>,
    /// Its netdev's MTU in bytes.
    pub mtu_bytes: u32,
    /// What its NIC has to do.
    pub nic: Nic,
}

/// What a function's NIC has to do for forwarded paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// Packets that are passed on arrive at it or leave by it.
    pub relays: bool,
    /// Its own packets are marked.
    pub marks: bool,
}

/// A route to a far address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DesiredRoute {
    /// The far address.
    pub far: Ipv4Addr,
    /// MAC of the function the packets leave by.
    pub out: Mac,
    /// That function's address.
    pub from: Ipv4Addr,
    /// Where they arrive on the carrying neighbour.
    pub next: Mac,
    /// The carrying neighbour's host.
    pub carrier: String,
    /// The path it is for.
    pub serves: String,
}

/// A filter that passes packets on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DesiredFilter {
    /// MAC of the function packets arrive at: what they are addressed to.
    pub into: Mac,
    /// Preference.
    pub preference: u32,
    /// The tag it matches.
    pub ether_type: u16,
    /// The sender's MAC, where the tag alone does not tell.
    pub source: Option<Mac>,
    /// The EtherType it writes.
    pub set_ether_type: u16,
    /// The destination MAC it writes.
    pub next: Mac,
    /// MAC of the function packets leave by.
    pub out: Mac,
    /// The paths it is for.
    pub serves: String,
}

/// A device that marks packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DesiredMarker {
    /// MAC of its function.
    pub function: Mac,
    /// What it marks.
    pub rules: MarkerRules,
    /// The paths it is for.
    pub serves: String,
}

/// A forwarded rail, its path and its tag.
#[derive(Clone, Copy)]
pub(super) struct Forwarded<'a> {
    plan: &'a Plan,
    path: &'a PathPlan,
    number: usize,
    /// The rail.
    pub(super) rail: &'a Rail,
    /// Its tag.
    pub(super) tag: &'a Tag,
}

impl Forwarded<'_> {
    /// `spark0 to spark2 rail 1`.
    pub(super) fn name(&self) -> String {
        let host = |rank: usize| self.plan.ranks.get(rank).map_or("?", |rank| rank.host.as_str());
        format!("{} to {} rail {}", host(self.path.from), host(self.path.to), self.number)
    }

    /// The same rail of the way back has the same crossings in reverse.
    fn has_way_back(&self) -> bool {
        let back = self.plan.path(self.path.to, self.path.from);
        let Some(back) = back.filter(|back| back.kind == PathKind::Forwarded) else { return false };
        let Some(back) = back.rails.get(self.number) else { return false };
        back.crossings.len() == self.rail.crossings.len()
            && back.crossings.iter().rev().zip(&self.rail.crossings).all(|(back, there)| {
                back.out.mac == there.into.mac && back.into.mac == there.out.mac
            })
    }

    /// What is wrong with it, if something is.
    fn fault(&self) -> Option<Refusal> {
        let path = self.name();
        let broken =
            |what: &str| Some(Refusal::BrokenPlan { path: path.clone(), what: what.to_owned() });
        let (hops, crossings) = (&self.rail.hops, &self.rail.crossings);
        if crossings.len() < 2 || hops.len() != crossings.len() + 1 {
            return broken("its crossings and hops do not belong together");
        }
        if self.tag.ether_types.len() + 1 != crossings.len() {
            return broken("it needs a tag for each cable but the last");
        }
        if self.tag.ether_types.iter().any(|&tag| !(TAG_BASE + 1..=TAG_BASE + 9).contains(&tag)) {
            return broken("a tag is not among those set aside");
        }
        let passed_on = crossings.windows(2).all(|pair| match pair {
            [before, after] => {
                before.into.adapter.is_some() && before.into.adapter == after.out.adapter
            }
            _ => false,
        });
        if !passed_on {
            return broken("it is passed on between functions that are not parts of one adapter");
        }
        if !self.has_way_back() {
            return Some(Refusal::OneWay { path });
        }
        None
    }
}

/// All forwarded rails of the plan.
fn forwarded(plan: &Plan) -> impl Iterator<Item = (Forwarded<'_>, bool)> {
    plan.paths.iter().filter(|path| path.kind == PathKind::Forwarded).flat_map(move |path| {
        path.rails.iter().enumerate().filter_map(move |(number, rail)| {
            let tag = rail.tag.as_ref()?;
            let one = Forwarded { plan, path, number, rail, tag };
            Some((one, one.fault().is_none()))
        })
    })
}

/// What the host of a rank has to have for the plan's paths. It never fails: what cannot be had is a refusal.
pub fn desired(plan: &Plan, rank: usize, options: &RuleOptions) -> Desired {
    let mut wanted = Desired {
        rank,
        host: String::new(),
        options: options.clone(),
        software: plan.marker == MarkerKind::Tc,
        functions: Vec::new(),
        routes: Vec::new(),
        filters: Vec::new(),
        markers: Vec::new(),
        refusals: Vec::new(),
    };
    let Some(this) = plan.ranks.get(rank) else {
        wanted
            .refusals
            .push(Refusal::NoSuchRank { rank, last: plan.ranks.len().saturating_sub(1) });
        return wanted;
    };
    wanted.host.clone_from(&this.host);

    let mut nics = BTreeMap::<Mac, Nic>::new();
    let mut marks = BTreeMap::<Mac, Vec<Forwarded<'_>>>::new();
    let mut passings = Vec::new();
    for (one, sound) in forwarded(plan) {
        if !one.rail.hops.contains(&rank) {
            continue;
        }
        if !sound {
            wanted.refusals.extend(one.fault());
            continue;
        }
        if one.path.from == rank
            && let Some(first) = one.rail.crossings.first()
        {
            nics.entry(first.out.mac).or_default().marks = true;
            marks.entry(first.out.mac).or_default().push(one);
            route(&one, &mut wanted);
        }
        for passing in Passing::of(one, rank) {
            nics.entry(passing.into.mac).or_default().relays = true;
            nics.entry(passing.out.mac).or_default().relays = true;
            passings.push(passing);
        }
    }
    let (made, refusals) = filters(&passings);
    wanted.filters = made;
    wanted.refusals.extend(refusals);
    for (mac, rails) in marks {
        let made = match plan.marker {
            MarkerKind::Nic => marker(mac, &rails),
            MarkerKind::Tc => tc_marker(mac, &rails),
        };
        match made {
            Ok(made) => wanted.markers.push(made),
            Err(refusal) => wanted.refusals.push(refusal),
        }
    }

    let cabled: BTreeSet<&str> = plan
        .cables
        .iter()
        .flat_map(|cable| [Some(&cable.a), cable.b.as_ref()])
        .flatten()
        .filter(|(of, _)| *of == rank)
        .map(|(_, port)| port.as_str())
        .collect();
    wanted.functions = this
        .functions
        .iter()
        .filter(|function| cabled.contains(function.port.as_str()))
        .map(|function| DesiredFunction {
            address: function.ip.zip(function.prefix).map(|(ip, prefix)| Interface { ip, prefix }),
            mtu_bytes: plan.mtu_bytes,
            nic: nics.get(&function.mac).copied().unwrap_or_default(),
            function: function.clone(),
        })
        .collect();
    wanted.routes.sort_by_key(|route| route.far);
    wanted
}

/// The route to a rail's far end.
fn route(one: &Forwarded<'_>, wanted: &mut Desired) {
    let (Some(first), Some(last)) = (one.rail.crossings.first(), one.rail.crossings.last()) else {
        return;
    };
    let no_address = |function: &FunctionRef| Refusal::NoAddress {
        path: one.name(),
        function: function.label(),
    };
    let Some(from) = first.out.ip else {
        wanted.refusals.push(no_address(&first.out));
        return;
    };
    let Some(far) = last.into.ip else {
        wanted.refusals.push(no_address(&last.into));
        return;
    };
    if let Some(other) = wanted.routes.iter().find(|route| route.far == far) {
        let (first, second) = (other.serves.clone(), one.name());
        wanted.refusals.push(Refusal::TwoWays { ip: far, first, second });
        return;
    }
    // Queue pairs of direct rails go to the neighbours' addresses, and a route or a mark for one would divert them.
    let near = one.plan.cables.iter().flat_map(|cable| &cable.pairs).any(|(a, b)| {
        (a.rank == one.path.from && b.ip == Some(far))
            || (b.rank == one.path.from && a.ip == Some(far))
    });
    if near {
        let first = "its own cable".to_owned();
        wanted.refusals.push(Refusal::TwoWays { ip: far, first, second: one.name() });
        return;
    }
    wanted.routes.push(DesiredRoute {
        far,
        out: first.out.mac,
        from,
        next: first.into.mac,
        carrier: first.into.host.clone(),
        serves: one.name(),
    });
}

/// What one device marks for the rails that leave by it.
fn marker(function: Mac, rails: &[Forwarded<'_>]) -> Result<DesiredMarker, Refusal> {
    let serves = names(rails.iter().map(Forwarded::name));
    let mut ports = BTreeMap::<u16, (u16, String)>::new();
    let mut destinations = BTreeMap::<Ipv4Addr, u16>::new();
    for one in rails {
        let broken = |what: &str| Refusal::BrokenPlan { path: one.name(), what: what.to_owned() };
        let Some(&ether_type) = one.tag.ether_types.first() else {
            return Err(broken("it has no tag"));
        };
        match one.tag.kind {
            TagKind::Destination => {
                let far = one.rail.crossings.last().and_then(|last| last.into.ip);
                let far = far.ok_or_else(|| broken("its far end has no address"))?;
                destinations.insert(far, ether_type);
            }
            TagKind::SourcePort => {
                let port =
                    one.tag.source_port.ok_or_else(|| broken("its tag has no source port"))?;
                let (other, first) = ports.entry(port).or_insert_with(|| (ether_type, one.name()));
                if *other != ether_type {
                    return Err(broken(&format!(
                        "{first} has the same source port and another tag, so they cannot share a device"
                    )));
                }
            }
        }
    }
    let mut ports = ports.into_iter();
    let rules = match (ports.next(), destinations.is_empty()) {
        (None, false) if destinations.len() > MOST_RULES => {
            return Err(Refusal::TooMany {
                what: format!("the marker of {serves}"),
                most: MOST_RULES,
            });
        }
        (None, false) => MarkerRules::Destinations(destinations),
        (Some((port, (ether_type, _))), true) if ports.next().is_none() => {
            MarkerRules::SourcePort { port, ether_type }
        }
        _ => {
            let what = "one device would have to mark in two ways".to_owned();
            return Err(Refusal::BrokenPlan { path: serves, what });
        }
    };
    Ok(DesiredMarker { function, rules, serves })
}

/// The egress filters of one netdev for the rails that leave by it.
fn tc_marker(function: Mac, rails: &[Forwarded<'_>]) -> Result<DesiredMarker, Refusal> {
    let serves = names(rails.iter().map(Forwarded::name));
    let mut marks = BTreeMap::new();
    for one in rails {
        let broken = |what: &str| Refusal::BrokenPlan { path: one.name(), what: what.to_owned() };
        let ether_type = *one.tag.ether_types.first().ok_or_else(|| broken("it has no tag"))?;
        let far = one.rail.crossings.last().and_then(|last| last.into.ip);
        let far = far.ok_or_else(|| broken("its far end has no address"))?;
        let source_port = match one.tag.kind {
            TagKind::Destination => None,
            TagKind::SourcePort => {
                Some(one.tag.source_port.ok_or_else(|| broken("its tag has no source port"))?)
            }
        };
        marks.insert(far, TcMark { ether_type, source_port });
    }
    if marks.len() > MOST_RULES {
        return Err(Refusal::TooMany { what: format!("marking {serves}"), most: MOST_RULES });
    }
    Ok(DesiredMarker { function, rules: MarkerRules::Filters(marks), serves })
}

/// Paths by name, the first few of them.
pub(super) fn names(all: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = all.collect();
    let shown = all.iter().take(MOST_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().checked_sub(MOST_NAMES) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}
