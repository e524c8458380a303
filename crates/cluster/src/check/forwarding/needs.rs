//! What the plan's forwarded rails need of one rank's devices: [`rules::desired`], with the paths each part is for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use crate::address::Mac;
use crate::plan::{FunctionRef, PathKind, Plan};
use crate::rules::{self, Desired, MarkerRules, Nic, RuleOptions};

/// What a host has to have for the plan's forwarded rails.
pub(super) fn desired(plan: &Plan, rank: usize) -> Desired {
    rules::desired(plan, rank, &RuleOptions::default())
}

/// The functions of a rank that forwarded rails use, in the order of the file, with what each has to do.
pub(super) fn functions(plan: &Plan, rank: usize) -> Vec<(FunctionRef, Nic)> {
    desired(plan, rank)
        .functions
        .into_iter()
        .filter(|wanted| wanted.nic.marks || wanted.nic.relays)
        .map(|wanted| (wanted.function, wanted.nic))
        .collect()
}

/// The ways through a rank: by which function packets arrive, by which they leave, each once.
pub(super) fn ways(plan: &Plan, rank: usize) -> Vec<(&FunctionRef, &FunctionRef)> {
    let mut ways = Vec::new();
    for filter in desired(plan, rank).filters {
        let way = function(plan, rank, filter.into).zip(function(plan, rank, filter.out));
        if let Some(way) = way.filter(|way| !ways.contains(way)) {
            ways.push(way);
        }
    }
    ways
}

fn function(plan: &Plan, rank: usize, mac: Mac) -> Option<&FunctionRef> {
    plan.ranks.get(rank)?.functions.iter().find(|function| function.mac == mac)
}

/// What a marker looks for, and the EtherType it sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// Packets to this address.
    Destination(Ipv4Addr, u16),
    /// Packets from this UDP port.
    SourcePort(u16, u16),
    /// Packets to this address from this UDP port.
    Both(Ipv4Addr, u16, u16),
}

impl Mark {
    /// What an egress filter for this address does.
    pub(super) fn of(ip: Ipv4Addr, source_port: Option<u16>, ether_type: u16) -> Self {
        match source_port {
            Some(port) => Self::Both(ip, port, ether_type),
            None => Self::Destination(ip, ether_type),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Destination(ip, ether_type) => write!(f, "to {ip}: EtherType {ether_type:#06x}"),
            Self::SourcePort(port, ether_type) => {
                write!(f, "from UDP port {port}: EtherType {ether_type:#06x}")
            }
            Self::Both(ip, port, ether_type) => {
                write!(f, "to {ip} from UDP port {port}: EtherType {ether_type:#06x}")
            }
        }
    }
}

/// A rail of a pair of ranks, lower rank first. Its queue pair sends both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PairRail {
    low: usize,
    high: usize,
    rail: usize,
}

impl fmt::Display for PairRail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, high, rail } = self;
        write!(f, "paths {low}→{high} and {high}→{low} over rail {rail}")
    }
}

/// What one device has to mark, and for which rails.
pub(super) struct Marking<'a> {
    pub(super) function: &'a FunctionRef,
    pub(super) marks: BTreeMap<Mark, BTreeSet<PairRail>>,
}

/// What the devices of one rank have to mark, in the order of the file.
pub(super) fn markings(plan: &Plan, rank: usize) -> Vec<Marking<'_>> {
    let mut markings: Vec<Marking<'_>> = desired(plan, rank)
        .markers
        .iter()
        .filter_map(|marker| {
            let function = function(plan, rank, marker.function)?;
            let marks = match &marker.rules {
                MarkerRules::SourcePort { port, ether_type } => {
                    vec![Mark::SourcePort(*port, *ether_type)]
                }
                MarkerRules::Destinations(wanted) => wanted
                    .iter()
                    .map(|(ip, ether_type)| Mark::Destination(*ip, *ether_type))
                    .collect(),
                MarkerRules::Filters(wanted) => wanted
                    .iter()
                    .map(|(ip, mark)| Mark::of(*ip, mark.source_port, mark.ether_type))
                    .collect(),
            };
            let marks =
                marks.into_iter().map(|mark| (mark, rails(plan, function, &mark))).collect();
            Some(Marking { function, marks })
        })
        .collect();
    markings.sort_by_key(|marking| marking.function.device_number);
    markings
}

/// The forwarded rails that leave by a function and need this mark.
fn rails(plan: &Plan, function: &FunctionRef, mark: &Mark) -> BTreeSet<PairRail> {
    let mut found = BTreeSet::new();
    let forwarded = |kind: PathKind| kind == PathKind::Forwarded;
    for path in plan.paths.iter().filter(|path| forwarded(path.kind) && path.from == function.rank)
    {
        for (number, rail) in path.rails.iter().enumerate() {
            let leaves = rail.crossings.first().is_some_and(|first| first.out.mac == function.mac);
            let meant = match mark {
                Mark::Destination(ip, _) | Mark::Both(ip, _, _) => {
                    rail.crossings.last().is_some_and(|last| last.into.ip == Some(*ip))
                }
                Mark::SourcePort(..) => true,
            };
            if leaves && meant {
                let (low, high) = (path.from.min(path.to), path.from.max(path.to));
                found.insert(PairRail { low, high, rail: number });
            }
        }
    }
    found
}
