//! GIDs: each function has an entry for its planned address, found by content. Indexes are only told: they differ
//! between devices and move, and nothing here depends on them; engines that pin one do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::super::view;
use super::super::{Code, Findings, Level, Room, Section};
use super::{addressed, has_planned};
use crate::gid::gid_for;
use crate::inventory::Seen;
use crate::inventory::host_state::{HostState, Netdev, RdmaDevice, RdmaPort};
use crate::plan::FunctionRef;

pub(super) const DIFFERS_ON_HOST: Code = Code {
    id: "RW-GID-01",
    level: Level::Note,
    section: Section::Addresses,
    title: "the GID index differs between the devices of a host",
};
pub(super) const DIFFERS_IN_ROOM: Code = Code {
    id: "RW-GID-02",
    level: Level::Note,
    section: Section::Addresses,
    title: "no GID index fits all hosts",
};
pub(super) const PIN_WRONG: Code = Code {
    id: "RW-GID-03",
    level: Level::Error,
    section: Section::Addresses,
    title: "a pinned GID index is wrong",
};
pub(super) const MOVED: Code = Code {
    id: "RW-GID-04",
    level: Level::Warning,
    section: Section::Addresses,
    title: "a GID moved to another index",
};
pub(super) const EMPTY: Code = Code {
    id: "RW-GID-05",
    level: Level::Error,
    section: Section::Addresses,
    title: "a device has no GIDs",
};
pub(super) const NO_ENTRY: Code = Code {
    id: "RW-GID-06",
    level: Level::Error,
    section: Section::Addresses,
    title: "a device has no RoCE v2 GID for its address",
};

/// Where a function's GID is today.
struct At<'a> {
    function: &'a FunctionRef,
    device: &'a RdmaDevice,
    port: &'a RdmaPort,
    index: u32,
}

/// What looking for one GID gave.
enum Sought {
    At(u32),
    None,
    Unknown(String),
}

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    let mut all: Vec<At<'_>> = Vec::new();
    for (function, state, netdev) in addressed(room) {
        let Some(device) = state.rdma_of(netdev) else { continue };
        // The kernel takes a GID from an address; a missing address is a finding already.
        let ip = function.ip.or_else(|| netdev.addresses.first().map(|address| address.ip));
        let Some(ip) = ip.filter(|_| has_planned(function, netdev)) else { continue };
        for port in device
            .ports
            .iter()
            .filter(|port| port.netdev.as_ref().is_none_or(|name| *name == netdev.name))
        {
            match seek(state, port, netdev, ip) {
                Sought::At(index) => {
                    to.looked(
                        Section::Addresses,
                        1,
                        "RDMA ports: have a RoCE v2 GID for their address",
                    );
                    all.push(At { function, device, port, index });
                }
                Sought::None => missing(function, netdev, device, port, ip, to),
                Sought::Unknown(why) => {
                    to.undecided(
                        Section::Addresses,
                        Some(&function.host),
                        format!("GIDs of {}", device.name),
                        why,
                    );
                }
            }
        }
    }
    tell_differences(room, &all, to);
    tell_pins(room, &all, to);
    tell_moves(room, &all, to);
}

/// Where the GID for an address of a netdev is; an entry of which the kernel did not say what it is may be the one.
fn seek(state: &HostState, port: &RdmaPort, netdev: &Netdev, ip: Ipv4Addr) -> Sought {
    if let Ok(choice) = gid_for(state, netdev, ip) {
        return Sought::At(choice.index);
    }
    let mapped = ip.to_ipv6_mapped();
    let entries = port.gids.iter().filter(|gid| gid.value.parse() == Ok(mapped));
    let why = entries.flat_map(|gid| [gid.kind.reason(), gid.netdev.reason()]).flatten().next();
    why.map_or(Sought::None, |why| Sought::Unknown(why.to_owned()))
}

fn missing(
    function: &FunctionRef,
    netdev: &Netdev,
    device: &RdmaDevice,
    port: &RdmaPort,
    ip: Ipv4Addr,
    to: &mut Findings,
) {
    let (host, place) = (Some(function.host.as_str()), Some(function.port.as_str()));
    let again = format!(
        "ip address del {ip}/{0} dev {1}; ip address add {ip}/{0} dev {1}",
        prefix(netdev, ip),
        netdev.name
    );
    if port.gids.is_empty() {
        let evidence = vec![
            format!("{} port {}: all GID slots are empty", device.name, port.number),
            format!("{} has {ip}", netdev.name),
        ];
        let message =
            format!("{} has no GID at all; a queue pair there fails with errno 61", device.name);
        to.find(&EMPTY, host, place, message, evidence, Some(again));
        return;
    }
    let text = |seen: &Seen<String>| match seen {
        Seen::Known(text) => text.clone(),
        Seen::NotMeasured(_) => "not measured".to_owned(),
    };
    let entries = port.gids.iter().map(|gid| {
        format!(
            "{} index {}: {} {} {}",
            device.name,
            gid.index,
            gid.value,
            text(&gid.kind),
            text(&gid.netdev)
        )
    });
    let message = format!("{} has no RoCE v2 GID for {ip}", device.name);
    to.find(&NO_ENTRY, host, place, message, entries.collect(), Some(again));
}

fn prefix(netdev: &Netdev, ip: Ipv4Addr) -> u8 {
    netdev.addresses.iter().find(|address| address.ip == ip).map_or(24, |address| address.prefix)
}

fn today(at: &At<'_>) -> String {
    format!("{} {}: index {}", at.function.host, at.device.name, at.index)
}

/// Worth knowing for engines that pin one index for a host or for all.
fn tell_differences(room: &Room<'_>, all: &[At<'_>], to: &mut Findings) {
    let mut on_one_host = false;
    for rank in &room.plan.ranks {
        let here: Vec<_> = all.iter().filter(|at| at.function.rank == rank.rank).collect();
        let indexes: BTreeSet<u32> = here.iter().map(|at| at.index).collect();
        if indexes.len() > 1 {
            on_one_host = true;
            let message =
                "GID indexes differ between devices; an engine that pins one index fails here";
            let evidence = here.into_iter().map(today).collect();
            to.find(&DIFFERS_ON_HOST, Some(&rank.host), None, message, evidence, None);
        }
    }
    let indexes: BTreeSet<u32> = all.iter().map(|at| at.index).collect();
    if indexes.len() > 1 && !on_one_host {
        let message =
            "GID indexes differ between hosts; an engine needs its index set for each host";
        to.find(&DIFFERS_IN_ROOM, None, None, message, all.iter().map(today).collect(), None);
    }
}

/// Variables of the environment that pin an index, against where the GIDs are today.
fn tell_pins(room: &Room<'_>, all: &[At<'_>], to: &mut Findings) {
    for rank in &room.plan.ranks {
        let Some(environment) =
            view::host(room, rank.rank).and_then(|state| state.system.environment.known())
        else {
            continue;
        };
        for (variable, value) in environment.iter().filter(|(name, _)| name.ends_with("GID_INDEX"))
        {
            let Ok(pinned) = value.trim().parse::<u32>() else { continue };
            let wrong: Vec<_> = all
                .iter()
                .filter(|at| at.function.rank == rank.rank && at.index != pinned)
                .collect();
            if wrong.is_empty() {
                continue;
            }
            let mut evidence = vec![format!("{variable}={value}")];
            evidence.extend(wrong.iter().map(|at| {
                let slot = at.port.gids.iter().find(|gid| gid.index == pinned);
                let holds = slot
                    .map_or_else(|| "is empty".to_owned(), |gid| format!("holds {}", gid.value));
                format!("{}, and index {pinned} {holds}", today(at))
            }));
            let right: BTreeSet<u32> =
                all.iter().filter(|at| at.function.rank == rank.rank).map(|at| at.index).collect();
            let message = format!(
                "{variable} pins index {pinned}, which is wrong for {} of its devices",
                wrong.len()
            );
            let fix = match right.iter().next() {
                Some(index) if right.len() == 1 => format!("export {variable}={index}"),
                _ => format!("unset {variable}"),
            };
            to.find(&PIN_WRONG, Some(&rank.host), None, message, evidence, Some(fix));
        }
    }
}

/// Against an earlier state of the same hosts: what was set up with the old index no longer works.
fn tell_moves(room: &Room<'_>, all: &[At<'_>], to: &mut Findings) {
    let Some(before) = room.before else { return };
    let mut moves: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for at in all {
        let Some(index) =
            before.get(at.function.rank).and_then(|state| index_in(state, at.function))
        else {
            continue;
        };
        if index != at.index {
            moves
                .entry(at.function.rank)
                .or_default()
                .push(format!("{}, before {index}", today(at)));
        }
    }
    for (rank, evidence) in moves {
        let host = room.plan.ranks.get(rank).map(|rank| rank.host.as_str());
        let message = "GIDs moved to other indexes since the last look; what pinned the old ones has to start again";
        to.find(
            &MOVED,
            host,
            None,
            message,
            evidence,
            Some("railweave env --engine nccl".to_owned()),
        );
    }
}

fn index_in(state: &HostState, function: &FunctionRef) -> Option<u32> {
    let netdev = state.netdev_by_mac(function.mac)?;
    let ip = function.ip.or_else(|| netdev.addresses.first().map(|address| address.ip))?;
    state.rdma_of(netdev)?.ports.iter().find_map(|port| match seek(state, port, netdev, ip) {
        Sought::At(index) => Some(index),
        Sought::None | Sought::Unknown(_) => None,
    })
}
