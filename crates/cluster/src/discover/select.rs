//! Names of hosts, and which of their netdevs may be ends of cables.

use std::collections::{BTreeMap, BTreeSet};

use super::{DiscoverError, Observed};
use crate::address::Mac;
use crate::inventory::host_state::{Netdev, NetdevKind};

/// A netdev from this speed on, in Mb/s, counts as one for data even without an RDMA device.
pub(super) const FAST_MBPS: u64 = 25_000;

/// A netdev that may be the end of a cable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// The number of its host.
    pub(super) host: usize,
    /// It.
    pub(super) netdev: &'a Netdev,
    /// Its hardware address.
    pub(super) mac: Mac,
    /// Its RDMA device.
    pub(super) rdma: Option<&'a str>,
}

impl Candidate<'_> {
    /// Whether it is made for data, not for management.
    pub(super) fn is_for_data(&self) -> bool {
        self.rdma.is_some()
            || self.netdev.speed_mbps.known().is_some_and(|speed| *speed >= FAST_MBPS)
    }
}

/// What may be part of the cluster's data paths, and what is for control.
pub(super) struct Selected<'a> {
    pub(super) candidates: Vec<Candidate<'a>>,
    /// The control address of each host.
    pub(super) controls: Vec<Option<String>>,
}

/// Refuses one machine given twice. Hosts of one kernel (network namespaces) differ in their hardware addresses.
pub(super) fn refuse_twins(hosts: &[Observed]) -> Result<(), DiscoverError> {
    let macs = |host: &Observed| -> BTreeSet<Mac> {
        host.state
            .netdevs
            .iter()
            .filter(|netdev| has_cable(netdev))
            .filter_map(|netdev| netdev.mac)
            .collect()
    };
    for (i, host) in hosts.iter().enumerate() {
        let own = macs(host);
        for earlier in hosts.iter().take(i) {
            let theirs = macs(earlier);
            if let Some(mac) = own.iter().next()
                && own == theirs
            {
                return Err(DiscoverError::SameMachine {
                    first: earlier.reach.clone(),
                    second: host.reach.clone(),
                    mac: mac.to_string(),
                });
            }
        }
    }
    Ok(())
}

/// A netdev with a cable, real or virtual.
pub(super) fn has_cable(netdev: &Netdev) -> bool {
    matches!(netdev.kind, NetdevKind::Physical | NetdevKind::Veth) && !netdev.wireless
}

/// A name for each host that a cluster file takes, each once.
pub(super) fn names(hosts: &[Observed], notes: &mut Vec<String>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (rank, host) in hosts.iter().enumerate() {
        let wanted = host.name.as_deref().unwrap_or(&host.state.name);
        // The first part of a name with a domain is enough to tell hosts apart, and easier to read.
        let first = wanted.split('.').next().unwrap_or_default();
        let mut name: String = first
            .chars()
            .take(48)
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' })
            .collect();
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            name = format!("host{rank}");
            notes.push(format!(
                "{}: its name {wanted:?} cannot stand in a file; it is called {name}",
                host.reach
            ));
        }
        if names.contains(&name) {
            let free = (2..).map(|n| format!("{name}-{n}")).find(|other| !names.contains(other));
            let free = free.unwrap_or_else(|| format!("host{rank}"));
            notes.push(format!(
                "{}: another host is called {name} too; this one is called {free}",
                host.reach
            ));
            name = free;
        }
        names.push(name);
    }
    names
}

/// Netdevs that may be ends of cables. Left out, with the reason in a note: what has no live cable, Wi-Fi, the netdev
/// of the default route or of the control address, and, on a host with RDMA devices, what has none.
pub(super) fn candidates<'a>(
    hosts: &'a [Observed],
    names: &[String],
    notes: &mut Vec<String>,
) -> Selected<'a> {
    let mut selected = Selected { candidates: Vec::new(), controls: Vec::new() };
    for (index, (host, name)) in hosts.iter().zip(names).enumerate() {
        let state = &host.state;
        let default: BTreeSet<&str> = match state.routes.known() {
            Some(routes) => routes
                .iter()
                .filter(|route| route.to.prefix == 0)
                .map(|route| route.netdev.as_str())
                .collect(),
            None => {
                let why = state.routes.reason().unwrap_or("no reason given");
                notes.push(format!(
                    "{name}: routes not measured ({why}), so the default route is not known"
                ));
                BTreeSet::new()
            }
        };
        if let Some(why) = state.addresses.reason() {
            notes.push(format!("{name}: addresses not measured ({why}), so none is in the file"));
        }
        let is_control = |netdev: &Netdev| {
            host.control.as_deref().is_some_and(|control| {
                netdev.addresses.iter().any(|own| own.ip.to_string() == control)
                    || netdev.ipv6.iter().any(|own| own.split('/').next() == Some(control))
            })
        };
        let mut left_out: BTreeMap<&str, &str> = BTreeMap::new();
        let mut found = Vec::new();
        for netdev in &state.netdevs {
            let why = if !matches!(netdev.kind, NetdevKind::Physical | NetdevKind::Veth) {
                continue;
            } else if netdev.wireless {
                "Wi-Fi"
            } else if is_control(netdev) {
                "control address"
            } else if default.contains(netdev.name.as_str()) {
                "default route"
            } else if !netdev.carrier {
                "no carrier"
            } else if let Some(mac) = netdev.mac {
                let rdma = state.rdma_of(netdev).map(|device| device.name.as_str());
                found.push(Candidate { host: index, netdev, mac, rdma });
                continue;
            } else {
                "no hardware address"
            };
            left_out.insert(&netdev.name, why);
        }
        if found.iter().any(|candidate| candidate.rdma.is_some()) {
            found.retain(|candidate| {
                if candidate.rdma.is_none() {
                    left_out.insert(
                        &candidate.netdev.name,
                        "no RDMA device, while others here have one",
                    );
                }
                candidate.rdma.is_some()
            });
        }
        if !left_out.is_empty() {
            let list: Vec<String> =
                left_out.iter().map(|(netdev, why)| format!("{netdev} ({why})")).collect();
            notes.push(format!("{name}: left out {}", list.join(", ")));
        }
        let control = host.control.clone().or_else(|| {
            let own = |netdev: &&Netdev| {
                default.contains(netdev.name.as_str()) && !netdev.addresses.is_empty()
            };
            let netdev = state.netdevs.iter().find(own)?;
            netdev.addresses.first().map(|address| address.ip.to_string())
        });
        selected.controls.push(control);
        selected.candidates.extend(found);
    }
    selected
}
