//! The cluster file of what was found.

use std::collections::{BTreeMap, BTreeSet};

use super::Observed;
use super::evidence::{Evidence, is_own};
use super::ports::{self, FoundCable, FoundPort};
use super::select::{Candidate, Selected};
use crate::address::Interface;
use crate::file::{
    CableEntry, ClusterFile, Forward, Function, Host, MarkerKind, Port, SCHEMA, Switch, TagKind,
    default_mtu_bytes,
};

/// The least MTU with which RoCE's largest, 4096 bytes, fits with its headers.
const LEAST_MTU_BYTES: u32 = 4200;

pub(super) fn file(
    hosts: &[Observed],
    names: &[String],
    selected: &Selected<'_>,
    evidence: &Evidence,
    mut found: Vec<FoundPort>,
    notes: &mut Vec<String>,
) -> ClusterFile {
    let candidates = &selected.candidates;
    let cables = ports::cables(names, candidates, evidence, &found, notes);
    for cable in &cables {
        if let FoundCable::Ports(a, b) = cable {
            align(candidates, evidence, &mut found, *a, *b);
        }
    }
    let mut file = ClusterFile {
        schema: SCHEMA.to_owned(),
        forward: Forward::default(),
        tag: TagKind::default(),
        marker: MarkerKind::default(),
        mtu_bytes: mtu(names, candidates, &found, notes),
        hosts: Vec::new(),
        switches: Vec::new(),
        cables: Vec::new(),
        routes: Vec::new(),
    };
    let addresses = addresses(names, candidates, &found, &cables, notes);
    for (index, (host, name)) in hosts.iter().zip(names).enumerate() {
        let mut ports = Vec::new();
        for port in found.iter().filter(|port| port.host == index) {
            let functions = port.functions.iter().filter_map(|function| {
                let candidate = candidates.get(*function)?;
                Some(Function {
                    mac: candidate.mac,
                    address: addresses.get(function).copied(),
                    netdev: candidate.netdev.name.clone(),
                    rdma: candidate.rdma.map(str::to_owned),
                    pci: candidate.netdev.pci,
                })
            });
            ports.push(Port { name: port.name.clone(), functions: functions.collect() });
        }
        file.hosts.push(Host {
            name: name.clone(),
            reach: host.reach.clone(),
            control: selected.controls.get(index).cloned().flatten(),
            ports,
        });
    }
    let label = |port: usize| {
        found.get(port).map_or_else(String::new, |port| {
            format!(
                "{}.{}",
                names.get(port.host).map(String::as_str).unwrap_or_default(),
                port.name
            )
        })
    };
    let mut switches = BTreeSet::new();
    for cable in &cables {
        let (a, b) = match cable {
            FoundCable::Ports(a, b) => (label(*a), label(*b)),
            FoundCable::Switch(a, name) => {
                switches.insert(name.clone());
                (label(*a), name.clone())
            }
        };
        file.cables.push(CableEntry { a, b });
    }
    file.switches = switches.into_iter().map(|name| Switch { name }).collect();
    tell_what_is_missing(&file, notes);
    file
}

/// Brings the functions of a virtual port into the order of those at the other end, where each sees one of them.
/// Functions with a place on the PCI bus keep the order of their places.
fn align(
    candidates: &[Candidate<'_>],
    evidence: &Evidence,
    found: &mut [FoundPort],
    a: usize,
    b: usize,
) {
    let (Some(near), Some(there)) = (found.get(a), found.get(b)) else { return };
    let virtual_ones = there
        .functions
        .iter()
        .all(|one| candidates.get(*one).is_some_and(|one| one.netdev.pci.is_none()));
    let mut aligned: Vec<usize> = Vec::new();
    for function in &near.functions {
        let seen: Vec<usize> = evidence
            .far
            .get(*function)
            .into_iter()
            .flatten()
            .filter(|one| there.functions.contains(one))
            .copied()
            .collect();
        if let [only] = seen.as_slice()
            && !aligned.contains(only)
        {
            aligned.push(*only);
        }
    }
    if virtual_ones
        && aligned.len() == there.functions.len()
        && let Some(there) = found.get_mut(b)
    {
        there.functions = aligned;
    }
}

fn mtu(
    names: &[String],
    candidates: &[Candidate<'_>],
    found: &[FoundPort],
    notes: &mut Vec<String>,
) -> u32 {
    let mut by_mtu: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for candidate in
        found.iter().flat_map(|port| &port.functions).filter_map(|index| candidates.get(*index))
    {
        let name = names.get(candidate.host).map(String::as_str).unwrap_or_default();
        by_mtu
            .entry(candidate.netdev.mtu_bytes)
            .or_default()
            .push(format!("{name}.{}", candidate.netdev.name));
    }
    let mut all = by_mtu.iter();
    if let (Some((mtu_bytes, _)), None) = (all.next(), all.next())
        && (LEAST_MTU_BYTES..=default_mtu_bytes()).contains(mtu_bytes)
    {
        return *mtu_bytes;
    }
    for (mtu_bytes, netdevs) in
        by_mtu.iter().filter(|(mtu_bytes, _)| **mtu_bytes != default_mtu_bytes())
    {
        notes.push(format!(
            "MTU is {mtu_bytes} bytes at {}; the file asks for {} everywhere",
            netdevs.join(", "),
            default_mtu_bytes()
        ));
    }
    default_mtu_bytes()
}

/// The address of each function that has one of use: on a cable, one whose network is at both ends and nowhere else;
/// at a switch, the first.
fn addresses(
    names: &[String],
    candidates: &[Candidate<'_>],
    found: &[FoundPort],
    cables: &[FoundCable],
    notes: &mut Vec<String>,
) -> BTreeMap<usize, Interface> {
    let network = |address: Interface| Interface { ip: address.network(), prefix: address.prefix };
    let of = |function: usize| {
        let netdev = candidates.get(function).map(|candidate| candidate.netdev);
        netdev
            .into_iter()
            .flat_map(|netdev| netdev.addresses.iter().copied())
            .filter(|address| !is_own(*address))
    };
    let mut members: BTreeMap<Interface, BTreeSet<usize>> = BTreeMap::new();
    for function in found.iter().flat_map(|port| port.functions.iter().copied()) {
        for address in of(function) {
            members.entry(network(address)).or_default().insert(function);
        }
    }
    let functions =
        |port: usize| found.get(port).map(|port| port.functions.as_slice()).unwrap_or_default();
    let mut chosen: BTreeMap<usize, Interface> = BTreeMap::new();
    for cable in cables {
        let (FoundCable::Ports(a, _) | FoundCable::Switch(a, _)) = cable;
        for &near in functions(*a) {
            for address in of(near) {
                if chosen.contains_key(&near) {
                    continue;
                }
                let FoundCable::Ports(_, b) = cable else {
                    chosen.insert(near, address);
                    continue;
                };
                let all = members.get(&network(address));
                let mut others = all.into_iter().flatten().copied().filter(|other| *other != near);
                let (Some(other), None) = (others.next(), others.next()) else { continue };
                let there = of(other).find(|there| there.meets(address) && there.ip != address.ip);
                if let Some(there) = there
                    && functions(*b).contains(&other)
                    && !chosen.contains_key(&other)
                {
                    chosen.insert(near, address);
                    chosen.insert(other, there);
                }
            }
        }
    }
    for function in found.iter().flat_map(|port| port.functions.iter().copied()) {
        let unused: Vec<String> = of(function)
            .filter(|address| {
                !chosen.contains_key(&function) && !chosen.values().any(|used| used == address)
            })
            .map(|address| address.to_string())
            .collect();
        if let (Some(candidate), false) = (candidates.get(function), unused.is_empty()) {
            notes.push(format!(
                "{}.{}: left out its address {}: its network is not at exactly the two ends of its cable",
                names.get(candidate.host).map(String::as_str).unwrap_or_default(),
                candidate.netdev.name,
                unused.join(", ")
            ));
        }
    }
    chosen
}

fn tell_what_is_missing(file: &ClusterFile, notes: &mut Vec<String>) {
    if file.hosts.len() > 1 {
        for host in file.hosts.iter().filter(|host| host.ports.is_empty()) {
            notes.push(format!("{}: no cable was found", host.name));
        }
    }
    let functions =
        || file.hosts.iter().flat_map(|host| &host.ports).flat_map(|port| &port.functions);
    let without = functions().filter(|function| function.address.is_none()).count();
    if without > 0 {
        notes.push(format!(
            "{without} of {} functions have no address of use; `railweave discover --assign-addresses 10.10.0.0/16` writes \
             some into the file, and `railweave apply --set-addresses` sets them",
            functions().count()
        ));
    }
    if let Err(error) = file.validate() {
        notes.push(format!("the file is not valid as it is: {error}"));
    }
}
