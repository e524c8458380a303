//! Whether the sources mark what has to be passed on.

use std::collections::{BTreeMap, BTreeSet};

use super::needs::{Mark, Marking, markings};
use super::{ENDING, HASHED_PORTS, MISMARKED, OVERMARKED, SECTION, UNMARKED};
use crate::check::{Findings, Room, view};
use crate::file::{MarkerKind, TagKind};
use crate::inventory::host_state::{EgressFilter, Marker};
use crate::inventory::{HostState, Seen};
use crate::plan::{Coverage, FunctionRef, Plan, RankPlan};
use crate::rules::{self, IPV4, ROCE_PORT, TAG_BASE};

/// The devices known to mark all that the plan's forwarded rails need of them, by rank and by the name that the plan
/// has for them. None if the plan forwards nothing, or if no host's markers could be read. A rank whose markers could
/// not be read is left out: nothing is known to mark there.
pub fn coverage(hosts: &[Result<HostState, String>], plan: &Plan) -> Option<Coverage> {
    let mut covered = BTreeMap::new();
    for rank in &plan.ranks {
        let needed = markings(plan, rank.rank);
        let Some(Ok(state)) = hosts.get(rank.rank) else { continue };
        let Ok(there) = There::of(plan.marker, state) else { continue };
        if needed.is_empty() {
            continue;
        }
        let devices: BTreeSet<String> = needed
            .iter()
            .filter(|marking| {
                let marked = there.marked(state, marking.function);
                marking.marks.keys().all(|mark| marked.contains(mark))
            })
            .filter_map(|marking| marking.function.rdma.clone())
            .collect();
        covered.insert(rank.rank, devices);
    }
    (!covered.is_empty()).then_some(Coverage(covered))
}

/// Today's name of a function's RDMA device; the file's where it is not found.
fn device<'a>(state: &'a HostState, function: &'a FunctionRef) -> &'a str {
    state
        .netdev_by_mac(function.mac)
        .and_then(|netdev| state.rdma_of(netdev))
        .map(|device| device.name.as_str())
        .or(function.rdma.as_deref())
        .unwrap_or(&function.netdev)
}

/// What marks packets on a host.
#[derive(Clone, Copy)]
enum There<'a> {
    /// Programs, in NICs.
    Programs(&'a [Marker]),
    /// Egress filters of the kernel.
    Filters(&'a [EgressFilter]),
}

impl<'a> There<'a> {
    /// What the plan's kind of marker is on a host; or why that is not known.
    fn of(kind: MarkerKind, state: &'a HostState) -> Result<Self, (&'static str, &'a str)> {
        match kind {
            MarkerKind::Nic => match &state.markers {
                Seen::Known(markers) => Ok(Self::Programs(markers)),
                Seen::NotMeasured(why) => Err(("markers", why)),
            },
            MarkerKind::Tc => match &state.egress {
                Seen::Known(filters) => Ok(Self::Filters(filters)),
                Seen::NotMeasured(why) => Err(("egress filters", why)),
            },
        }
    }

    /// What is marked of the packets that a function sends, by all markers together.
    fn marked(self, state: &HostState, function: &FunctionRef) -> BTreeSet<Mark> {
        match self {
            Self::Programs(markers) => {
                let device = device(state, function);
                markers.iter().filter(|marker| marker.rdma == device).flat_map(marks).collect()
            }
            Self::Filters(filters) => {
                let netdev = state.netdev_by_mac(function.mac);
                let here = |filter: &&EgressFilter| {
                    netdev.is_some_and(|netdev| netdev.name == filter.netdev)
                };
                filters.iter().filter(here).filter_map(filter_mark).collect()
            }
        }
    }
}

/// What an egress filter marks; none if it marks no RoCE packets to one address.
fn filter_mark(filter: &EgressFilter) -> Option<Mark> {
    let to = filter.destination_ip.filter(|to| to.prefix == 32)?.ip;
    let roce = filter.ether_type == Some(IPV4) && filter.destination_port == Some(ROCE_PORT);
    roce.then(|| Some(Mark::of(to, filter.source_port, filter.set_ether_type?))).flatten()
}

fn marks(marker: &Marker) -> Vec<Mark> {
    let destinations =
        marker.destinations.iter().map(|(ip, ether_type)| Mark::Destination(*ip, *ether_type));
    let port = match (marker.source_port, marker.ether_type) {
        (Some(port), Some(ether_type)) => Some(Mark::SourcePort(port, ether_type)),
        _ => None,
    };
    destinations.chain(port).collect()
}

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    for rank in &room.plan.ranks {
        let Some(state) = view::host(room, rank.rank) else { continue };
        let needed = markings(room.plan, rank.rank);
        match There::of(room.plan.marker, state) {
            Ok(there) => {
                look_at(rank, state, &needed, there, to);
                match there {
                    There::Programs(markers) => programs(rank, state, &needed, markers, to),
                    There::Filters(filters) => extra_filters(rank, state, &needed, filters, to),
                }
            }
            Err((what, why)) if !needed.is_empty() => {
                to.undecided(SECTION, Some(&rank.host), what, why);
            }
            Err(_) => {}
        }
    }
    hashed_ports(room.plan, to);
}

fn look_at(
    rank: &RankPlan,
    state: &HostState,
    needed: &[Marking<'_>],
    there: There<'_>,
    to: &mut Findings,
) {
    let full = |marking: &Marking<'_>| {
        let marked = there.marked(state, marking.function);
        marking.marks.keys().all(|mark| marked.contains(mark))
    };
    let (covered, uncovered): (Vec<_>, Vec<_>) = needed.iter().partition(|marking| full(marking));
    let names = |markings: &[&Marking<'_>]| match markings {
        [] => "none".to_owned(),
        some => some
            .iter()
            .map(|marking| device(state, marking.function))
            .collect::<Vec<_>>()
            .join(", "),
    };
    to.looked(SECTION, covered.len(), "devices: marked as planned");
    for marking in &uncovered {
        let device = device(state, marking.function);
        let marked = there.marked(state, marking.function);
        let missing: Vec<_> =
            marking.marks.iter().filter(|(mark, _)| !marked.contains(mark)).collect();
        let mut evidence = vec![
            format!("covered on {}: {}", rank.host, names(&covered)),
            format!("not covered on {}: {}", rank.host, names(&uncovered)),
        ];
        evidence.extend(missing.iter().map(|(mark, _)| format!("{device}: needed: {mark}")));
        evidence.extend(marked.iter().map(|mark| format!("{device}: there: {mark}")));
        let pairs: BTreeSet<_> = missing.iter().flat_map(|(_, pairs)| pairs.iter()).collect();
        evidence.extend(
            pairs
                .iter()
                .map(|pair| format!("{pair} not tagged on host {}, device {device}", rank.host)),
        );
        let fix = Some(apply(&rank.host));
        let (code, message) = if marked.is_empty() {
            (&UNMARKED, "nothing marks its packets: those for distant ranks stop at the neighbour")
        } else {
            (&MISMARKED, "its marker does not set what the plan needs")
        };
        to.find(code, Some(&rank.host), Some(device), message, evidence, fix);
    }
}

/// Programs that end by themselves, or mark more than is planned.
fn programs(
    rank: &RankPlan,
    state: &HostState,
    needed: &[Marking<'_>],
    markers: &[Marker],
    to: &mut Findings,
) {
    for marker in markers {
        let wanted = needed
            .iter()
            .find(|marking| device(state, marking.function) == marker.rdma)
            .map(|marking| &marking.marks);
        if !marker.lasting && wanted.is_some() {
            to.find(
                &ENDING,
                Some(&rank.host),
                Some(&marker.rdma),
                "its marker was started with a time limit: when it ends, distant ranks lose their paths",
                vec![format!("process {} marks {} and has a time limit", marker.pid, marker.rdma)],
                Some(apply(&rank.host)),
            );
        }
        // A mark for what is also planned, with another EtherType, is told above.
        let planned = |mark: &Mark| {
            wanted.is_some_and(|wanted| {
                wanted.keys().any(|planned| looks_for(planned) == looks_for(mark))
            })
        };
        let extra: Vec<_> = marks(marker).into_iter().filter(|mark| !planned(mark)).collect();
        if !extra.is_empty() {
            to.find(
                &OVERMARKED,
                Some(&rank.host),
                Some(&marker.rdma),
                "its marker marks packets that the plan sends plainly: no host passes those on",
                extra
                    .iter()
                    .map(|mark| format!("process {} on {}: {mark}", marker.pid, marker.rdma))
                    .collect(),
                Some(format!("sudo kill {}   # not while queue pairs use the device", marker.pid)),
            );
        }
    }
}

/// Somebody's egress filters that mark packets with a tag where the plan has none. Those of an older plan of
/// Railweave's are told with its other rules.
fn extra_filters(
    rank: &RankPlan,
    state: &HostState,
    needed: &[Marking<'_>],
    filters: &[EgressFilter],
    to: &mut Findings,
) {
    for filter in filters.iter().filter(|filter| !rules::is_own_mark(filter)) {
        let Some(mark) = filter_mark(filter).filter(tagged) else { continue };
        let netdev = |marking: &&Marking<'_>| {
            let netdev = state.netdev_by_mac(marking.function.mac);
            netdev.is_some_and(|netdev| netdev.name == filter.netdev)
        };
        if needed.iter().filter(netdev).any(|marking| marking.marks.contains_key(&mark)) {
            continue;
        }
        let (name, preference) = (&filter.netdev, filter.preference);
        to.find(
            &OVERMARKED,
            Some(&rank.host),
            Some(name),
            "an egress filter marks packets that the plan sends plainly: no host passes those on",
            vec![format!("{name} egress preference {preference}: {mark}")],
            Some(format!("sudo tc filter del dev {name} egress pref {preference}")),
        );
    }
}

/// Whether a mark sets one of the tags that hosts between look for.
fn tagged(mark: &Mark) -> bool {
    let (Mark::Destination(_, set) | Mark::SourcePort(_, set) | Mark::Both(_, _, set)) = mark;
    (TAG_BASE + 1..=TAG_BASE + 9).contains(set)
}

/// What a mark looks for, whatever it sets.
fn looks_for(mark: &Mark) -> Mark {
    match mark {
        Mark::Destination(ip, _) => Mark::Destination(*ip, 0),
        Mark::SourcePort(port, _) => Mark::SourcePort(*port, 0),
        Mark::Both(ip, port, _) => Mark::Both(*ip, *port, 0),
    }
}

fn apply(host: &str) -> String {
    format!("railweave apply --apply --host {host}")
}

/// A queue pair with flow label 0 gets a source port hashed from its two numbers: one in 16,384 hits the tag's, and its
/// packets are passed on past the neighbour. Railweave chooses labels that cannot; other programs do not.
fn hashed_ports(plan: &Plan, to: &mut Findings) {
    // Filters of the kernel match the far address too.
    if plan.tag != TagKind::SourcePort || plan.marker == MarkerKind::Tc {
        return;
    }
    let mut evidence = Vec::new();
    for rank in &plan.ranks {
        for marking in markings(plan, rank.rank) {
            for mark in marking.marks.keys() {
                let device = marking.function.rdma.as_deref().unwrap_or(&marking.function.netdev);
                evidence.push(format!("{} {device} marks {mark}", rank.host));
            }
        }
    }
    if evidence.is_empty() {
        return;
    }
    to.find(
        &HASHED_PORTS,
        None,
        None,
        "packets are tagged by their UDP source port: queue pairs of other programs (NCCL) leave the flow label 0 and \
         get a hashed port, which is the tag's once in 16384, and their packets then pass the neighbour by",
        evidence,
        Some("railweave plan --tag destination".to_owned()),
    );
}
