//! From the wiring to the plan: which kind of path each pair gets, and why.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{ForwardFailure, PlanError};
use super::routes::{self, Asked};
use super::ways::{Carrier, Chain, Search, chains, choose, reversed, sorted};
use super::wiring::Wiring;
use super::{
    Coverage, Crossing, Load, PathKind, PathPlan, Plan, PlanOptions, Rail, RankPlan, SCHEMA, Tag,
    cabling, shape,
};
use crate::file::{ClusterFile, Forward, TagKind};
use crate::source_port;

/// Most hosts that pass a packet on by its destination's tag: EtherTypes 0x88b5 to 0x88b7.
pub const MAX_RELAYS: usize = 3;
/// A packet with this many relays left has EtherType `ETHER_TYPE_BASE` plus as many.
pub const ETHER_TYPE_BASE: u16 = 0x88b4;

/// The path of a pair, from the lower rank to the higher.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) lo: usize,
    pub(super) hi: usize,
    pub(super) kind: PathKind,
    pub(super) rails: Vec<Chain>,
    pub(super) instead: Option<String>,
    /// The route that set it.
    pub(super) chosen: Option<String>,
}

/// What decides besides the wiring.
pub(super) struct Terms<'a> {
    pub(super) wiring: &'a Wiring,
    pub(super) forward: Forward,
    pub(super) tag: TagKind,
    pub(super) coverage: Option<&'a Coverage>,
}

impl Plan {
    /// The plan that follows from a cluster file.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if the file is not valid, hosts are not joined, forwarding is required where it is not possible
    /// (all such pairs are named), or a route contradicts the cabling.
    pub fn of(file: &ClusterFile, options: &PlanOptions) -> Result<Self, PlanError> {
        file.validate()?;
        let wiring = Wiring::of(file)?;
        cabling::check_joined(&wiring)?;
        let terms = Terms {
            wiring: &wiring,
            forward: options.forward.unwrap_or(file.forward),
            tag: options.tag.unwrap_or(file.tag),
            coverage: options.coverage.as_ref(),
        };
        let mut asked = routes::by_pair(file, options)?;
        let mut pairs = Vec::new();
        let count = file.hosts.len();
        for (lo, hi) in (0..count).flat_map(|lo| (lo + 1..count).map(move |hi| (lo, hi))) {
            pairs.push(match asked.remove(&(lo, hi)) {
                Some(routes) => terms.chosen(lo, hi, &routes)?,
                None => terms.derived(lo, hi),
            });
        }
        terms.separate(&mut pairs)?;
        terms.refuse_lesser(&pairs)?;
        terms.write(file, &pairs)
    }
}

impl Terms<'_> {
    fn chosen(&self, lo: usize, hi: usize, asked: &[Asked]) -> Result<Pair, PlanError> {
        routes::resolve(self, lo, hi, asked)
    }

    pub(super) fn derived(&self, lo: usize, hi: usize) -> Pair {
        let pair = |kind, rails, instead| Pair { lo, hi, kind, rails, instead, chosen: None };
        if self.wiring.are_neighbours(lo, hi) {
            return pair(PathKind::Direct, self.direct(lo, hi), None);
        }
        if self.forward == Forward::Off {
            return pair(PathKind::Relayed, self.relayed(lo, hi), None);
        }
        match self.forwarded(lo, hi) {
            Ok(rails) => pair(PathKind::Forwarded, rails, None),
            Err(reason) => pair(PathKind::Relayed, self.relayed(lo, hi), Some(reason)),
        }
    }

    /// Every rail between neighbours.
    pub(super) fn direct(&self, lo: usize, hi: usize) -> Vec<Chain> {
        let rails = self.wiring.between(lo, hi).into_iter().map(|link| vec![link]).collect();
        sorted(self.wiring, rails)
    }

    /// The rails of a relayed path: along the shortest ways.
    pub(super) fn relayed(&self, lo: usize, hi: usize) -> Vec<Chain> {
        let length = self.wiring.distance(lo, hi).unwrap_or(0);
        choose(self.wiring, &self.ways(lo, hi, length, Carrier::Rank))
    }

    fn ways(&self, lo: usize, hi: usize, length: usize, carrier: Carrier) -> Vec<Chain> {
        chains(self.wiring, Search { from: lo, to: hi, length, carrier, via: None })
    }

    /// Most cables a forwarded rail may cross.
    fn reach(&self) -> usize {
        match self.tag {
            TagKind::Destination => MAX_RELAYS + 1,
            // One EtherType and one rule for all: a packet is passed on once.
            TagKind::SourcePort => 2,
        }
    }

    /// The rails of a forwarded path, along the shortest ways that have any; or why there are none.
    pub(super) fn forwarded(&self, lo: usize, hi: usize) -> Result<Vec<Chain>, String> {
        let wiring = self.wiring;
        let distance = wiring.distance(lo, hi).unwrap_or(0).max(2);
        self.within_reach(lo, hi, distance)?;
        let mut nearest = None;
        for length in distance..=self.reach() {
            let ways = self.ways(lo, hi, length, Carrier::Nic);
            let usable: Vec<Chain> =
                ways.iter().filter(|chain| self.unfit_ends(chain).is_empty()).cloned().collect();
            let rails = choose(wiring, &usable);
            if !rails.is_empty() {
                return self.covered(rails);
            }
            if nearest.is_none() {
                nearest = ways.into_iter().next();
            }
        }
        match nearest {
            Some(chain) => Err(self.unfit_ends(&chain).join("; ")),
            None => Err(self.why_no_hop(lo, hi, distance)),
        }
    }

    /// The rails if the devices that send on them mark packets; else which do and which do not.
    pub(super) fn covered(&self, rails: Vec<Chain>) -> Result<Vec<Chain>, String> {
        let Some(Coverage(coverage)) = self.coverage else { return Ok(rails) };
        let mut covered = BTreeSet::new();
        let mut missing = BTreeSet::new();
        for rail in &rails {
            // Both ends send: one the bytes, the other their acknowledgements.
            for id in [rail.first().map(|link| link.out), rail.last().map(|link| link.into)]
                .into_iter()
                .flatten()
            {
                let Some(function) = self.wiring.function(id) else { continue };
                let device = function.rdma.as_deref().unwrap_or("none");
                let marks =
                    coverage.get(&function.rank).is_some_and(|devices| devices.contains(device));
                let named =
                    (function.rank, function.device_number, format!("{} {device}", function.host));
                if marks {
                    covered.insert(named)
                } else {
                    missing.insert(named)
                };
            }
        }
        if missing.is_empty() {
            return Ok(rails);
        }
        let names = |devices: &BTreeSet<(usize, usize, String)>| match devices.len() {
            0 => "none".to_owned(),
            _ => devices.iter().map(|(_, _, name)| name.as_str()).collect::<Vec<_>>().join(", "),
        };
        Err(format!(
            "not every device that sends on its rails marks packets: covered {}; not covered {}",
            names(&covered),
            names(&missing)
        ))
    }

    pub(super) fn within_reach(&self, lo: usize, hi: usize, length: usize) -> Result<(), String> {
        if length <= self.reach() {
            return Ok(());
        }
        let (a, b) = (self.wiring.host(lo), self.wiring.host(hi));
        let between = length - 1;
        Err(match self.tag {
            TagKind::Destination => {
                format!(
                    "{between} hosts are between {a} and {b}; at most {MAX_RELAYS} can pass a packet on"
                )
            }
            TagKind::SourcePort if between <= MAX_RELAYS => format!(
                "{between} hosts are between {a} and {b}; with tag = source-port one can pass a packet on, with \
                 tag = destination {MAX_RELAYS}"
            ),
            TagKind::SourcePort => {
                format!(
                    "{between} hosts are between {a} and {b}; with tag = source-port one can pass a packet on"
                )
            }
        })
    }

    /// What the functions at the ends of a forwarded rail lack.
    pub(super) fn unfit_ends(&self, chain: &Chain) -> Vec<String> {
        let ends = [chain.first().map(|link| link.out), chain.last().map(|link| link.into)];
        let mut unfit = Vec::new();
        for function in ends.into_iter().flatten().filter_map(|id| self.wiring.function(id)) {
            if function.ip.is_none() {
                unfit.push(format!(
                    "{} has no address; a forwarded packet needs one to go to",
                    function.label()
                ));
            }
            if function.rdma.is_none() {
                unfit.push(format!(
                    "{} ({}) has no RDMA device to mark its packets",
                    function.label(),
                    function.netdev
                ));
            }
        }
        unfit
    }

    /// Why no NIC between passes packets on: the first hop of the shortest way that cannot.
    fn why_no_hop(&self, lo: usize, hi: usize, length: usize) -> String {
        let relayed = self.ways(lo, hi, length, Carrier::Rank);
        relayed.first().and_then(|chain| self.broken_hop(chain)).unwrap_or_else(|| {
            format!(
                "no host between {} and {} can pass packets on",
                self.wiring.host(lo),
                self.wiring.host(hi)
            )
        })
    }

    /// The first host on a way whose functions are not of one adapter.
    pub(super) fn broken_hop(&self, chain: &Chain) -> Option<String> {
        chain.iter().zip(chain.iter().skip(1)).find_map(|(before, after)| {
            let (into, out) = (self.wiring.function(before.into)?, self.wiring.function(after.out)?);
            let virtual_one = [into, out].into_iter().find(|function| function.adapter.is_none());
            if let Some(function) = virtual_one {
                let (label, netdev) = (function.label(), &function.netdev);
                return Some(format!("{label} ({netdev}) is not known to be a PCI function, so no adapter passes packets \
                                     on at {}; for links in software, say marker = \"tc\" in the cluster file", function.host));
            }
            let place = |function: &super::FunctionRef| {
                format!("{} on {}", function.label(), function.adapter.as_deref().unwrap_or("none"))
            };
            (into.adapter != out.adapter || into.port == out.port).then(|| {
                format!("at {} no one adapter has functions on both cables: {}, {}", into.host, place(into), place(out))
            })
        })
    }

    /// Turns pairs into relayed ones where a host between could not tell their packets apart: they would come from one
    /// source, by one function, with one EtherType, and have to leave differently.
    fn separate(&self, pairs: &mut [Pair]) -> Result<(), PlanError> {
        type Key = (usize, usize, usize);
        let mut ways: BTreeMap<Key, BTreeSet<(usize, usize)>> = BTreeMap::new();
        let keys = |pair: &Pair| -> Vec<(Key, (usize, usize))> {
            let mut keys = Vec::new();
            for rail in &pair.rails {
                for rail in [rail.clone(), reversed(rail)] {
                    let Some(source) = rail.first().map(|link| link.out) else { continue };
                    for (i, (before, after)) in rail.iter().zip(rail.iter().skip(1)).enumerate() {
                        keys.push(((source, before.into, rail.len() - i), (after.out, after.into)));
                    }
                }
            }
            keys
        };
        let forwarded = |pair: &&Pair| pair.kind == PathKind::Forwarded;
        for (key, way) in pairs.iter().filter(forwarded).flat_map(keys) {
            ways.entry(key).or_default().insert(way);
        }
        for pair in pairs.iter_mut().filter(|pair| pair.kind == PathKind::Forwarded) {
            let clash = keys(pair)
                .into_iter()
                .find(|(key, _)| ways.get(key).is_some_and(|ways| ways.len() > 1));
            let Some(((source, into, _), _)) = clash else { continue };
            let reason = format!(
                "packets of {} that arrive by {} carry one tag and would have to leave by different ways",
                self.wiring.label(source),
                self.wiring.label(into)
            );
            if let Some(route) = &pair.chosen {
                return Err(PlanError::Route { route: route.clone(), why: reason });
            }
            *pair = Pair {
                kind: PathKind::Relayed,
                rails: self.relayed(pair.lo, pair.hi),
                instead: Some(reason),
                ..pair.clone()
            };
        }
        Ok(())
    }

    fn refuse_lesser(&self, pairs: &[Pair]) -> Result<(), PlanError> {
        if self.forward != Forward::Required {
            return Ok(());
        }
        let host = |rank| self.wiring.host(rank).to_owned();
        let failures: Vec<ForwardFailure> = pairs
            .iter()
            .filter_map(|pair| {
                let reason = pair.instead.clone()?;
                Some(ForwardFailure {
                    from: pair.lo,
                    to: pair.hi,
                    hosts: (host(pair.lo), host(pair.hi)),
                    reason,
                })
            })
            .collect();
        if failures.is_empty() { Ok(()) } else { Err(PlanError::Forward { failures }) }
    }

    fn write(&self, file: &ClusterFile, pairs: &[Pair]) -> Result<Plan, PlanError> {
        let wiring = self.wiring;
        let mut paths: Vec<PathPlan> = Vec::with_capacity(pairs.len() * 2);
        for pair in pairs {
            let path = |from, to, rails: Vec<Chain>| PathPlan {
                from,
                to,
                kind: pair.kind,
                rails: rails.iter().map(|rail| self.rail(rail, pair.kind)).collect(),
                instead: pair.instead.clone(),
                chosen: pair.chosen.is_some(),
            };
            paths.push(path(pair.lo, pair.hi, pair.rails.clone()));
            paths.push(path(pair.hi, pair.lo, pair.rails.iter().map(reversed).collect()));
        }
        paths.sort_by_key(|path| (path.from, path.to));
        let ranks = file.hosts.iter().enumerate().map(|(rank, host)| RankPlan {
            rank,
            host: host.name.clone(),
            control: host.control.clone(),
            functions: wiring.ids(rank).filter_map(|id| wiring.function(id).cloned()).collect(),
            neighbours: wiring.neighbours.get(rank).into_iter().flatten().copied().collect(),
        });
        let mut plan = Plan {
            schema: SCHEMA.to_owned(),
            shape: shape::of(wiring),
            forward: self.forward,
            tag: self.tag,
            marker: file.marker,
            mtu_bytes: file.mtu_bytes,
            ranks: ranks.collect(),
            cables: wiring.cables.clone(),
            loads: self.loads(pairs),
            paths,
            digest: String::new(),
        };
        plan.digest = plan.computed_digest()?;
        Ok(plan)
    }

    fn rail(&self, chain: &Chain, kind: PathKind) -> Rail {
        let wiring = self.wiring;
        let mut hops: Vec<usize> = chain.iter().map(|link| wiring.rank(link.out)).collect();
        hops.extend(chain.last().map(|link| wiring.rank(link.into)));
        let crossings = chain.iter().filter_map(|link| {
            let (out, into) =
                (wiring.function(link.out)?.clone(), wiring.function(link.into)?.clone());
            Some(Crossing { cable: link.cable, out, into })
        });
        let tag = (kind == PathKind::Forwarded).then(|| self.tag(chain.len().saturating_sub(1)));
        Rail { crossings: crossings.collect(), hops, tag }
    }

    fn tag(&self, relays: usize) -> Tag {
        // At most three relays: `within_reach` holds for every forwarded rail.
        let ether_type = |left: usize| {
            ETHER_TYPE_BASE + u16::try_from(left).unwrap_or(u16::MAX - ETHER_TYPE_BASE)
        };
        let ether_types = (1..=relays).rev().map(ether_type).collect();
        match self.tag {
            TagKind::Destination => {
                Tag { kind: self.tag, flow_label: 0, source_port: None, ether_types }
            }
            TagKind::SourcePort => Tag {
                kind: self.tag,
                flow_label: source_port::TAG_FLOW_LABEL,
                source_port: Some(source_port::TAG_SOURCE_PORT),
                ether_types,
            },
        }
    }

    /// What each cable carries in each direction.
    fn loads(&self, pairs: &[Pair]) -> Vec<Load> {
        let wiring = self.wiring;
        let mut loads: BTreeMap<(usize, usize, usize), Load> = BTreeMap::new();
        let mut at = |link: &super::wiring::Link, add: Option<PathKind>| {
            let Some(function) = wiring.function(link.out) else { return };
            let (cable, from, number) = (link.cable, function.rank, function.number);
            let none = Load { cable, from, number, direct: 0, forwarded: 0, relayed: 0 };
            let load = loads.entry((cable, from, number)).or_insert(none);
            match add {
                Some(PathKind::Direct) => load.direct += 1,
                Some(PathKind::Forwarded) => load.forwarded += 1,
                Some(PathKind::Relayed) => load.relayed += 1,
                None => {}
            }
        };
        for link in (0..wiring.functions.len()).flat_map(|id| wiring.links(id)) {
            at(link, None);
        }
        for pair in pairs {
            for link in pair.rails.iter().flatten() {
                at(link, Some(pair.kind));
                at(&link.reversed(), Some(pair.kind));
            }
        }
        loads.into_values().collect()
    }
}

impl Plan {
    /// The flow label queue pairs of a rail are to have: its tag's, or for rails to neighbours one that no rule can
    /// take for a tag. With tags by destination that is 0, since ports do not matter.
    pub fn flow_label(&self, rail: &Rail) -> u32 {
        match (&rail.tag, self.tag) {
            (Some(tag), _) => tag.flow_label,
            (None, TagKind::SourcePort) => source_port::NEIGHBOUR_FLOW_LABEL,
            (None, TagKind::Destination) => 0,
        }
    }
}
