//! What each netdev is known to lead to, and how.

use std::collections::{BTreeMap, BTreeSet};

use super::Observed;
use super::select::{Candidate, Selected, has_cable};
use crate::address::{Interface, Mac};

/// What candidates lead to. Candidates are named by their place in [`Selected::candidates`].
pub(super) struct Evidence {
    /// Candidates of other hosts at the far end of the wire, for each candidate.
    pub(super) far: Vec<BTreeSet<usize>>,
    /// Candidates of the same host that were seen on the same wire.
    pub(super) own: Vec<BTreeSet<usize>>,
    /// The switch it is on: a name from LLDP, or one made up.
    pub(super) switch: Vec<Option<String>>,
    /// Those that lead to a management network.
    pub(super) managed: BTreeSet<usize>,
}

impl Evidence {
    /// Hosts at the far end.
    pub(super) fn far_hosts(&self, candidates: &[Candidate<'_>], of: usize) -> BTreeSet<usize> {
        let far = self.far.get(of).into_iter().flatten();
        far.filter_map(|candidate| candidates.get(*candidate))
            .map(|candidate| candidate.host)
            .collect()
    }
}

/// Addresses that say nothing about cables: each host gives them to itself.
pub(super) fn is_own(address: Interface) -> bool {
    address.ip.is_link_local()
        || address.ip.is_loopback()
        || address.ip.is_unspecified()
        || address.prefix >= 32
}

struct Seen {
    far: BTreeSet<usize>,
    own: BTreeSet<usize>,
    strangers: BTreeSet<Mac>,
}

/// Gathers all evidence.
///
/// Places of candidates index `far`, `own` and `switch` throughout: each has one entry for each candidate, and every
/// place comes from counting candidates.
pub(super) fn gather(
    hosts: &[Observed],
    names: &[String],
    selected: &mut Selected<'_>,
    notes: &mut Vec<String>,
) -> Evidence {
    let candidates = &selected.candidates;
    let label = |index: usize| {
        candidates.get(index).map_or_else(String::new, |candidate| {
            let host = names.get(candidate.host).map(String::as_str).unwrap_or_default();
            format!("{host}.{}", candidate.netdev.name)
        })
    };
    let by_mac = by_mac(candidates, &label, notes);
    let look = |own: usize, host: usize, macs: &mut dyn Iterator<Item = Mac>| {
        let mut seen =
            Seen { far: BTreeSet::new(), own: BTreeSet::new(), strangers: BTreeSet::new() };
        for mac in macs {
            match by_mac.get(&mac) {
                Some(found) if *found == own => {}
                Some(found) if candidates.get(*found).is_some_and(|there| there.host == host) => {
                    seen.own.insert(*found);
                }
                Some(found) => {
                    seen.far.insert(*found);
                }
                None => {
                    seen.strangers.insert(mac);
                }
            }
        }
        seen
    };
    let mut far: Vec<BTreeSet<usize>> = Vec::new();
    let mut own = Vec::new();
    let mut systems: Vec<Option<String>> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let Some(host) = hosts.get(candidate.host) else { continue };
        let probe = host.probes.iter().find(|probe| probe.netdev == candidate.netdev.name);
        if let Some(why) = probe.and_then(|probe| probe.macs.reason()) {
            notes.push(format!("{}: who answers there was not measured: {why}", label(index)));
        }
        let answered = probe.and_then(|probe| probe.macs.known());
        let probed = look(index, candidate.host, &mut answered.into_iter().flatten().copied());
        let told: Vec<_> = match host.state.lldp.known() {
            Some(all) => all.iter().filter(|heard| heard.netdev == candidate.netdev.name).collect(),
            None => Vec::new(),
        };
        let heard = look(index, candidate.host, &mut told.iter().filter_map(|heard| heard.mac));
        let hosts_of = |set: &BTreeSet<usize>| -> BTreeSet<usize> {
            set.iter()
                .filter_map(|index| candidates.get(*index))
                .map(|candidate| candidate.host)
                .collect()
        };
        let (by_probe, by_lldp) = (hosts_of(&probed.far), hosts_of(&heard.far));
        if !by_probe.is_empty() && !by_lldp.is_empty() && by_probe.is_disjoint(&by_lldp) {
            let list = |set: &BTreeSet<usize>| {
                set.iter().map(|index| label(*index)).collect::<Vec<_>>().join(", ")
            };
            notes.push(format!(
                "{}: LLDP tells of {}, but {} answers a probe; the answer is newer and counts",
                label(index),
                list(&heard.far),
                list(&probed.far)
            ));
            far.push(probed.far);
        } else {
            far.push(probed.far.union(&heard.far).copied().collect());
        }
        own.push(probed.own.union(&heard.own).copied().collect());
        let system = told.iter().filter_map(|heard| heard.system.clone()).find(|system| {
            !names.contains(system) && !hosts.iter().any(|host| host.state.name == *system)
        });
        let foreign = heard.far.is_empty() && !told.is_empty();
        systems.push(system.filter(|_| foreign));
    }
    tell_unmeasured_lldp(hosts, names, notes);
    tell_left_out_neighbours(hosts, names, candidates, notes);
    // A wire has two ends: what one end saw holds for the other.
    for index in 0..far.len() {
        for there in far[index].clone() {
            far[there].insert(index);
        }
    }
    by_networks(candidates, &label, &mut far, notes);
    let mut evidence =
        Evidence { far, own, switch: vec![None; candidates.len()], managed: BTreeSet::new() };
    let dropped = switches(candidates, names, &systems, &label, &mut evidence, notes);
    drop_management(selected, names, &mut evidence, &dropped, notes);
    evidence
}

fn by_mac(
    candidates: &[Candidate<'_>],
    label: &dyn Fn(usize) -> String,
    notes: &mut Vec<String>,
) -> BTreeMap<Mac, usize> {
    let mut all: BTreeMap<Mac, Vec<usize>> = BTreeMap::new();
    for (index, candidate) in candidates.iter().enumerate() {
        all.entry(candidate.mac).or_default().push(index);
    }
    let mut one = BTreeMap::new();
    for (mac, found) in all {
        match found.as_slice() {
            [only] => {
                one.insert(mac, *only);
            }
            many => {
                let list: Vec<String> = many.iter().map(|index| label(*index)).collect();
                notes.push(format!(
                    "{mac} is the hardware address of {}: it tells nothing",
                    list.join(" and ")
                ));
            }
        }
    }
    one
}

fn tell_unmeasured_lldp(hosts: &[Observed], names: &[String], notes: &mut Vec<String>) {
    for (host, name) in hosts.iter().zip(names) {
        if let Some(why) = host.state.lldp.reason()
            && host.probes.is_empty()
        {
            notes.push(format!(
                "{name}: neither LLDP ({why}) nor probes: its cables are known by addresses at most"
            ));
        }
    }
}

/// An answer from a netdev that was left out means a cable that will be missing: worth a note.
fn tell_left_out_neighbours(
    hosts: &[Observed],
    names: &[String],
    candidates: &[Candidate<'_>],
    notes: &mut Vec<String>,
) {
    let mut out: BTreeMap<Mac, String> = BTreeMap::new();
    for (index, (host, name)) in hosts.iter().zip(names).enumerate() {
        for netdev in host.state.netdevs.iter().filter(|netdev| has_cable(netdev)) {
            let candidate =
                candidates.iter().any(|one| one.host == index && one.netdev.name == netdev.name);
            if let Some(mac) = netdev.mac.filter(|_| !candidate) {
                out.insert(mac, format!("{name}.{}", netdev.name));
            }
        }
    }
    for candidate in candidates {
        let Some(host) = hosts.get(candidate.host) else { continue };
        let probe = host.probes.iter().find(|probe| probe.netdev == candidate.netdev.name);
        for mac in probe.and_then(|probe| probe.macs.known()).into_iter().flatten() {
            if let Some(there) = out.get(mac) {
                let name = names.get(candidate.host).map(String::as_str).unwrap_or_default();
                notes.push(format!(
                    "{name}.{} is answered by {there}, which was left out",
                    candidate.netdev.name
                ));
            }
        }
    }
}

/// Networks at exactly two hosts tell of a cable where nothing better does, and are compared with what does.
fn by_networks(
    candidates: &[Candidate<'_>],
    label: &dyn Fn(usize) -> String,
    far: &mut [BTreeSet<usize>],
    notes: &mut Vec<String>,
) {
    let mut networks: BTreeMap<Interface, BTreeSet<usize>> = BTreeMap::new();
    for (index, candidate) in candidates.iter().enumerate() {
        for address in candidate.netdev.addresses.iter().filter(|address| !is_own(**address)) {
            let network = Interface { ip: address.network(), prefix: address.prefix };
            networks.entry(network).or_default().insert(index);
        }
    }
    let host_of = |index: &usize| candidates.get(*index).map(|candidate| candidate.host);
    let seen: Vec<bool> = far.iter().map(|far| !far.is_empty()).collect();
    for (network, members) in &networks {
        let hosts: BTreeSet<_> = members.iter().filter_map(host_of).collect();
        for &one in members {
            let Some(found) = far.get(one) else { continue };
            let leads: BTreeSet<_> = found.iter().filter_map(host_of).collect();
            let others: BTreeSet<_> =
                hosts.iter().copied().filter(|host| Some(*host) != host_of(&one)).collect();
            if seen.get(one) == Some(&true) && !others.is_empty() && leads.is_disjoint(&others) {
                let there: Vec<String> = members
                    .iter()
                    .filter(|other| host_of(other) != host_of(&one))
                    .map(|other| label(*other))
                    .collect();
                let found: Vec<String> = found.iter().map(|other| label(*other)).collect();
                notes.push(format!(
                    "{} is on the wire with {}, but its network {network} is at {}: an address or a cable is wrong",
                    label(one),
                    found.join(", "),
                    there.join(", ")
                ));
            }
        }
        if hosts.len() < 2 || members.iter().any(|index| seen.get(*index) == Some(&true)) {
            continue;
        }
        for &one in members {
            for &other in members {
                if host_of(&one) != host_of(&other)
                    && let Some(far) = far.get_mut(one)
                {
                    far.insert(other);
                }
            }
        }
    }
}

/// Marks who is on a switch, and returns who is on a network of more than two hosts that is not for data.
fn switches(
    candidates: &[Candidate<'_>],
    names: &[String],
    systems: &[Option<String>],
    label: &dyn Fn(usize) -> String,
    evidence: &mut Evidence,
    notes: &mut Vec<String>,
) -> BTreeSet<usize> {
    let mut dropped = BTreeSet::new();
    let mut told: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, system) in systems.iter().enumerate() {
        if let Some(system) = system {
            told.entry(system).or_default().push(index);
        }
    }
    for (system, members) in told {
        let hosts: BTreeSet<_> = members
            .iter()
            .filter_map(|index| candidates.get(*index))
            .map(|candidate| candidate.host)
            .collect();
        let list: Vec<String> = members.iter().map(|index| label(*index)).collect();
        if hosts.len() < 2 && names.len() > 1 {
            notes.push(format!(
                "{} hears {system:?} by LLDP, which is none of the hosts given: a host left out, or a switch",
                list.join(", ")
            ));
            continue;
        }
        for index in members {
            if candidates.get(index).is_some_and(Candidate::is_for_data) {
                evidence.switch[index] = Some(name_of_switch(system));
            } else {
                dropped.insert(index);
            }
        }
    }
    let mut made_up = 0;
    let mut done: BTreeSet<usize> = BTreeSet::new();
    for start in 0..candidates.len() {
        let mut members = BTreeSet::from([start]);
        let mut next = vec![start];
        while let Some(index) = next.pop() {
            for &there in &evidence.far[index] {
                if members.insert(there) {
                    next.push(there);
                }
            }
        }
        let hosts: BTreeSet<_> = members
            .iter()
            .filter_map(|index| candidates.get(*index))
            .map(|candidate| candidate.host)
            .collect();
        if done.contains(&start) || hosts.len() < 3 {
            continue;
        }
        done.extend(&members);
        if !members.iter().filter_map(|index| candidates.get(*index)).all(Candidate::is_for_data) {
            dropped.extend(&members);
            continue;
        }
        let known = members.iter().find_map(|index| evidence.switch[*index].clone());
        let name = known.unwrap_or_else(|| {
            made_up += 1;
            format!("switch{}", made_up - 1)
        });
        for index in members {
            evidence.switch[index].get_or_insert_with(|| name.clone());
        }
    }
    dropped
}

fn name_of_switch(system: &str) -> String {
    let name: String = system
        .chars()
        .take(48)
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' })
        .collect();
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        name
    } else {
        format!("switch{name}")
    }
}

/// Takes netdevs of a management network out of the evidence, and takes their addresses for control.
fn drop_management(
    selected: &mut Selected<'_>,
    names: &[String],
    evidence: &mut Evidence,
    dropped: &BTreeSet<usize>,
    notes: &mut Vec<String>,
) {
    for &index in dropped {
        let Some(candidate) = selected.candidates.get(index) else { continue };
        let name = names.get(candidate.host).map(String::as_str).unwrap_or_default();
        notes.push(format!(
            "{name}: left out {} (on a network with more than two hosts, and neither fast nor RDMA)",
            candidate.netdev.name
        ));
        if let Some(control) = selected.controls.get_mut(candidate.host)
            && control.is_none()
        {
            *control = candidate.netdev.addresses.first().map(|address| address.ip.to_string());
        }
        evidence.far[index].clear();
        evidence.own[index].clear();
        evidence.managed.insert(index);
    }
    for far in evidence.far.iter_mut().chain(evidence.own.iter_mut()) {
        far.retain(|index| !dropped.contains(index));
    }
}
