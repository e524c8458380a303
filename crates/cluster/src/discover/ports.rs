//! Which functions share a port, and which ports a cable joins.

use std::collections::{BTreeMap, BTreeSet};

use super::evidence::Evidence;
use super::select::Candidate;
use crate::address::Pci;
use crate::file::MAX_FUNCTIONS;

/// A port: the functions behind it, by their place among the candidates.
#[derive(Clone, Debug)]
pub(super) struct FoundPort {
    pub(super) host: usize,
    pub(super) name: String,
    pub(super) functions: Vec<usize>,
}

/// Groups the candidates of each host into ports, in order, and leaves out ports of which nothing is known.
pub(super) fn group(
    names: &[String],
    candidates: &[Candidate<'_>],
    evidence: &Evidence,
    notes: &mut Vec<String>,
) -> Vec<FoundPort> {
    let mut ports = Vec::new();
    for (host, name) in names.iter().enumerate() {
        let own: Vec<usize> = (0..candidates.len())
            .filter(|index| candidates.get(*index).is_some_and(|candidate| candidate.host == host))
            .collect();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for &index in &own {
            let shares = |group: &Vec<usize>| {
                group.iter().any(|other| same_port(candidates, evidence, *other, index))
                    && !group.iter().any(|other| apart(candidates, *other, index))
            };
            // A function may join two groups that nothing else joined.
            let (mut joined, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(shares);
            groups = others;
            let mut group: Vec<usize> = joined.drain(..).flatten().collect();
            group.push(index);
            groups.push(group);
        }
        let mut found = Vec::new();
        for mut group in groups {
            group.sort_by_key(|index| order(candidates, *index));
            let list = || {
                let netdevs: Vec<&str> = group
                    .iter()
                    .filter_map(|index| candidates.get(*index))
                    .map(|candidate| candidate.netdev.name.as_str())
                    .collect();
                netdevs.join(", ")
            };
            let known = |index: &usize| {
                evidence.far.get(*index).is_some_and(|far| !far.is_empty())
                    || evidence.switch.get(*index).is_some_and(Option::is_some)
            };
            if group.iter().all(|index| evidence.managed.contains(index)) {
                continue;
            }
            if !group.iter().any(known) {
                notes.push(format!(
                    "{name}: left out {} (nothing is known of the other end)",
                    list()
                ));
                continue;
            }
            if group.len() > MAX_FUNCTIONS {
                notes.push(format!(
                    "{name}: {} lead to one host, and nothing tells which share a port: taken as a port each",
                    list()
                ));
                found.extend(group.into_iter().map(|index| vec![index]));
                continue;
            }
            if group.len() > 2 {
                notes.push(format!(
                    "{name}: {} lead to one host, and nothing tells which share a port: taken as one port",
                    list()
                ));
            }
            found.push(group);
        }
        found.sort_by_key(|group| group.first().map(|index| order(candidates, *index)));
        let given: Vec<Option<String>> =
            found.iter().map(|group| given_name(candidates, group)).collect();
        let distinct: BTreeSet<&String> = given.iter().flatten().collect();
        let use_given = distinct.len() == found.len();
        for (number, (functions, given)) in found.into_iter().zip(&given).enumerate() {
            let name = given.clone().filter(|_| use_given).unwrap_or_else(|| format!("p{number}"));
            ports.push(FoundPort { host, name, functions });
        }
    }
    ports
}

/// By PCI address with the domain last, so that the functions of one port of a GB10 lie side by side; then by index.
fn order(candidates: &[Candidate<'_>], index: usize) -> (bool, (u8, u8, u8), u16, u32) {
    let Some(netdev) = candidates.get(index).map(|candidate| candidate.netdev) else {
        return (true, (0, 0, 0), 0, 0);
    };
    match netdev.pci {
        Some(Pci { domain, bus, device, function }) => {
            (false, (bus, device, function), domain, netdev.index)
        }
        None => (true, (0, 0, 0), 0, netdev.index),
    }
}

/// The hardware's name of the port, if all its functions have the same.
fn given_name(candidates: &[Candidate<'_>], group: &[usize]) -> Option<String> {
    let mut names =
        group.iter().map(|index| candidates.get(*index)?.netdev.phys_port_name.as_deref());
    let first = names.next()??;
    let fits = first.len() <= 16
        && first.starts_with(|c: char| c.is_ascii_alphanumeric())
        && first.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    (fits && names.all(|name| name == Some(first))).then(|| first.to_owned())
}

/// Whether two functions of a host are certainly of different ports.
fn apart(candidates: &[Candidate<'_>], a: usize, b: usize) -> bool {
    let (Some(a), Some(b)) = (candidates.get(a), candidates.get(b)) else { return true };
    let (a, b) = (a.netdev, b.netdev);
    if let (Some(a), Some(b)) = (&a.phys_port_id, &b.phys_port_id) {
        return a != b;
    }
    if let (Some(a), Some(b)) = (&a.phys_port_name, &b.phys_port_name)
        && a != b
    {
        return true;
    }
    // Functions of one adapter are its ports, one each.
    matches!((a.pci, b.pci), (Some(a), Some(b)) if a.adapter() == b.adapter())
}

/// Whether two functions of a host share a port.
///
/// The hardware's own word decides where there is one. Else two functions share a port if they are at the same place
/// of two PCI domains (a GB10's port has one function in each), or if each leads to one host, and both to the same.
fn same_port(candidates: &[Candidate<'_>], evidence: &Evidence, a: usize, b: usize) -> bool {
    if apart(candidates, a, b) {
        return false;
    }
    let (Some(one), Some(other)) = (candidates.get(a), candidates.get(b)) else { return false };
    let (one, other) = (one.netdev, other.netdev);
    if one.phys_port_id.is_some() && other.phys_port_id.is_some() {
        return true;
    }
    let (far_a, far_b) = (evidence.far_hosts(candidates, a), evidence.far_hosts(candidates, b));
    if !far_a.is_empty() && !far_b.is_empty() && far_a.is_disjoint(&far_b) {
        return false;
    }
    if evidence.own.get(a).is_some_and(|own| own.contains(&b))
        || evidence.own.get(b).is_some_and(|own| own.contains(&a))
    {
        return true;
    }
    let named = one.phys_port_name.is_some() && other.phys_port_name.is_some();
    if let (true, Some(one), Some(other)) = (named, one.pci, other.pci) {
        let place = |pci: Pci| (pci.bus, pci.device, pci.function);
        if place(one) == place(other) && one.domain != other.domain {
            return true;
        }
        let (Some(far_a), Some(far_b)) = (evidence.far.get(a), evidence.far.get(b)) else {
            return false;
        };
        return !far_a.is_disjoint(far_b);
    }
    let on_switch = |index: usize| evidence.switch.get(index).is_some_and(Option::is_some);
    !on_switch(a) && !on_switch(b) && far_a.len() == 1 && far_a == far_b
}

/// What a cable joins: two ports, or a port and a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FoundCable {
    Ports(usize, usize),
    Switch(usize, String),
}

/// Matches ports, by how much evidence joins them. A port is in one cable at most.
pub(super) fn cables(
    names: &[String],
    candidates: &[Candidate<'_>],
    evidence: &Evidence,
    ports: &[FoundPort],
    notes: &mut Vec<String>,
) -> Vec<FoundCable> {
    let label = |port: usize| {
        ports.get(port).map_or_else(String::new, |port| {
            format!(
                "{}.{}",
                names.get(port.host).map(String::as_str).unwrap_or_default(),
                port.name
            )
        })
    };
    let mut port_of: BTreeMap<usize, usize> = BTreeMap::new();
    for (number, port) in ports.iter().enumerate() {
        port_of.extend(port.functions.iter().map(|function| (*function, number)));
    }
    let mut cables = Vec::new();
    let mut used: BTreeSet<usize> = BTreeSet::new();
    for (number, port) in ports.iter().enumerate() {
        let switches: BTreeSet<&String> = port
            .functions
            .iter()
            .filter_map(|function| evidence.switch.get(*function)?.as_ref())
            .collect();
        let mut switches = switches.into_iter();
        if let Some(first) = switches.next() {
            for other in switches {
                notes.push(format!(
                    "{} is on {first} and on {other}: taken as on {first}",
                    label(number)
                ));
            }
            cables.push(FoundCable::Switch(number, first.clone()));
            used.insert(number);
        }
    }
    let mut weights: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (number, port) in ports.iter().enumerate() {
        for function in &port.functions {
            for there in evidence.far.get(*function).into_iter().flatten() {
                let Some(&other) = port_of.get(there) else { continue };
                if number < other
                    && candidates.get(*there).is_some_and(|there| there.host != port.host)
                {
                    *weights.entry((number, other)).or_default() += 1;
                }
            }
        }
    }
    let mut pairs: Vec<((usize, usize), usize)> = weights.into_iter().collect();
    // Stable: where the evidence is equal, ports stay in order.
    pairs.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    for ((a, b), _) in pairs {
        if used.contains(&a) || used.contains(&b) {
            notes.push(format!(
                "{} and {} see each other, but one is in a cable already",
                label(a),
                label(b)
            ));
            continue;
        }
        used.extend([a, b]);
        cables.push(FoundCable::Ports(a, b));
    }
    cables.sort_by_key(|cable| match cable {
        FoundCable::Ports(a, b) => (*a, *b),
        FoundCable::Switch(a, _) => (*a, usize::MAX),
    });
    cables
}
