//! What has to change on a host, in an order in which nothing is lost on the way.
//!
//! The order: first what is not needed any more goes, markers before filters, so that nothing is marked that nobody
//! passes on. Then functions are reloaded that need other hairpin queues; that wipes their routes, neighbours and
//! filters, so whatever of these is wanted is made anew afterwards, and so is every filter of another function that
//! leads to one of them. Then settings, addresses, routes, neighbours and filters. Markers come last: from then on
//! packets are tagged, and everything behind them is there.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::change::Change;
use super::desired::{Desired, DesiredFunction};
use super::refusal::Refusal;
use super::{filters, links, mark, marker, nic, tables};
use crate::address::Mac;
use crate::inventory::HostState;
use crate::inventory::host_state::Netdev;

/// Something that could not be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unmeasured {
    /// What.
    pub what: String,
    /// Why not.
    pub why: String,
    /// The plan needs something there, so without it nothing can be changed.
    pub needed: bool,
}

/// What has to change on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// The changes, in order. See [`Comparison::ready`].
    pub changes: Vec<Change>,
    /// What is in the way.
    pub refusals: Vec<Refusal>,
    /// What could not be looked at.
    pub unmeasured: Vec<Unmeasured>,
    /// What differs and is left as it is, and what is left to the owner.
    pub notes: Vec<String>,
    /// No queue pair of the cluster may be connected while the changes are made: not on this host, and not on others,
    /// whose packets this one passes on. See [`super::live_queue_pairs`].
    pub needs_quiet: bool,
}

impl Comparison {
    /// The changes, if they may be made: nothing is in the way, and everything that matters was looked at.
    ///
    /// # Errors
    ///
    /// What keeps them from being made, a line each.
    pub fn ready(&self) -> Result<&[Change], Vec<String>> {
        let unmeasured = self.unmeasured.iter().filter(|unmeasured| unmeasured.needed);
        let lines: Vec<_> = self
            .refusals
            .iter()
            .map(Refusal::to_string)
            .chain(unmeasured.map(|one| format!("not measured: {}: {}", one.what, one.why)))
            .collect();
        if lines.is_empty() { Ok(&self.changes) } else { Err(lines) }
    }

    /// Why queue pairs have to be closed first, naming the devices; none if they need not be.
    pub fn why_quiet(&self) -> Option<String> {
        if !self.needs_quiet {
            return None;
        }
        let what: BTreeSet<&str> = self
            .changes
            .iter()
            .filter(|change| change.disturbs())
            .filter_map(Change::place)
            .collect();
        Some(format!(
            "packets that pass {} are lost while this is applied, those of other hosts too; stop what uses the cables \
             on every host first (`rdma resource show qp` lists it)",
            what.into_iter().collect::<Vec<_>>().join(", ")
        ))
    }
}

impl Change {
    /// The netdev or device it is about.
    fn place(&self) -> Option<&str> {
        match self {
            Self::StopMarker { device, .. } | Self::StartMarker { device, .. } => Some(device),
            Self::StopAllMarkers => None,
            Self::RemoveFilter { filter } => Some(&filter.netdev),
            Self::RemoveMark { filter } => Some(&filter.netdev),
            Self::RemoveNeighbour { neighbour } => Some(&neighbour.netdev),
            Self::RemoveRoute { route } => Some(&route.netdev),
            Self::SetParameter { netdev, .. }
            | Self::Reload { netdev, .. }
            | Self::WaitFor { netdev, .. }
            | Self::SetOffload { netdev }
            | Self::LinkUp { netdev }
            | Self::SetMtu { netdev, .. }
            | Self::AddAddress { netdev, .. }
            | Self::AddQdisc { netdev } => Some(netdev),
            Self::AddRoute(spec) => Some(&spec.netdev),
            Self::SetNeighbour(spec) => Some(&spec.netdev),
            Self::AddFilter(spec) => Some(&spec.netdev),
            Self::AddMark(spec) => Some(&spec.netdev),
        }
    }
}

/// The changes of a comparison by the part of the order they belong to.
#[derive(Default)]
pub(super) struct Phases {
    /// Markers that go.
    pub(super) stop: Vec<Change>,
    /// Filters, neighbours and routes that go.
    pub(super) remove: Vec<Change>,
    /// Hairpin queues and reloads.
    pub(super) reload: Vec<Change>,
    /// Waiting, links, addresses, MTU.
    pub(super) links: Vec<Change>,
    /// Steering and offload.
    pub(super) settings: Vec<Change>,
    /// Routes and neighbours.
    pub(super) routes: Vec<Change>,
    /// Filters.
    pub(super) filters: Vec<Change>,
    /// Markers.
    pub(super) start: Vec<Change>,
}

/// A comparison being made.
pub(super) struct Work<'a> {
    pub(super) desired: &'a Desired,
    pub(super) host: &'a HostState,
    /// The netdev of each function that has a cable and is there.
    pub(super) netdevs: BTreeMap<Mac, &'a Netdev>,
    /// Netdevs whose functions are reloaded: nothing of them survives.
    pub(super) reloaded: BTreeSet<String>,
    /// Netdevs whose filters have to be made again, because the NIC takes them in another way.
    pub(super) retaken: BTreeSet<String>,
    pub(super) phases: Phases,
    pub(super) refusals: Vec<Refusal>,
    pub(super) unmeasured: Vec<Unmeasured>,
    pub(super) notes: Vec<String>,
}

impl<'a> Work<'a> {
    /// The netdev of a function; none if the host does not have it, which is refused elsewhere.
    pub(super) fn netdev(&self, mac: Mac) -> Option<&'a Netdev> {
        self.netdevs.get(&mac).copied()
    }

    /// The functions that are there, with their netdevs.
    pub(super) fn functions(&self) -> Vec<(&'a DesiredFunction, &'a Netdev)> {
        self.desired
            .functions
            .iter()
            .filter_map(|wanted| Some((wanted, self.netdev(wanted.function.mac)?)))
            .collect()
    }

    pub(super) fn not_measured(&mut self, what: impl Into<String>, why: &str, needed: bool) {
        self.unmeasured.push(Unmeasured { what: what.into(), why: why.to_owned(), needed });
    }

    /// Something of somebody else's that a reload takes away as well.
    pub(super) fn also_lost(&mut self, what: String) {
        self.notes
            .push(format!("a reload also wipes {what}; whoever made it has to make it again"));
    }
}

/// What has to change on a host so that it has what it should. Compared again afterwards, nothing has to.
pub fn compare(desired: &Desired, host: &HostState) -> Comparison {
    let mut work = Work {
        desired,
        host,
        netdevs: BTreeMap::new(),
        reloaded: BTreeSet::new(),
        retaken: BTreeSet::new(),
        phases: Phases::default(),
        refusals: desired.refusals.clone(),
        unmeasured: Vec::new(),
        notes: Vec::new(),
    };
    for wanted in &desired.functions {
        let function = &wanted.function;
        match host.netdev_by_mac(function.mac) {
            Some(netdev) => {
                work.netdevs.insert(function.mac, netdev);
            }
            None => work.refusals.push(Refusal::NoNetdev {
                function: function.label(),
                mac: function.mac,
                netdev: function.netdev.clone(),
            }),
        }
    }
    // The kernel needs no settings of a NIC to carry filters out.
    if !desired.software {
        nic::compare(&mut work);
    }
    links::compare(&mut work);
    tables::compare(&mut work);
    filters::compare(&mut work);
    marker::compare(&mut work, desired.software);
    mark::compare(&mut work, desired.software);
    work.into_comparison()
}

impl Work<'_> {
    fn into_comparison(self) -> Comparison {
        let phases = self.phases;
        let changes: Vec<_> = [
            phases.stop,
            phases.remove,
            phases.reload,
            phases.links,
            phases.settings,
            phases.routes,
            phases.filters,
            phases.start,
        ]
        .into_iter()
        .flatten()
        .collect();
        Comparison {
            needs_quiet: changes.iter().any(Change::disturbs),
            changes,
            refusals: self.refusals,
            unmeasured: self.unmeasured,
            notes: self.notes,
        }
    }
}
