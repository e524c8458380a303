//! Addresses: the planned ones are there, each network is at the two ends of one cable, and ranks can meet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use super::view;
use super::{Code, Findings, Level, Room, Section};
use crate::address::Interface;
use crate::inventory::HostState;
use crate::inventory::host_state::{Netdev, NetdevKind};
use crate::plan::FunctionRef;

#[path = "addresses_gid.rs"]
mod gid;
#[path = "addresses_meeting.rs"]
mod meeting;

const MISSING: Code = Code {
    id: "RW-ADR-01",
    level: Level::Error,
    section: Section::Addresses,
    title: "a planned address is missing",
};
const ONLY_IPV6: Code = Code {
    id: "RW-ADR-02",
    level: Level::Error,
    section: Section::Addresses,
    title: "a function has IPv6 addresses only",
};
const DUPLICATE: Code = Code {
    id: "RW-ADR-03",
    level: Level::Error,
    section: Section::Addresses,
    title: "an address is at two places",
};
const SAME_HOST: Code = Code {
    id: "RW-ADR-04",
    level: Level::Error,
    section: Section::Addresses,
    title: "two ports of one host are in one network",
};
const ONE_END: Code = Code {
    id: "RW-ADR-05",
    level: Level::Error,
    section: Section::Addresses,
    title: "a network is at one end of its cable only",
};
const THREE_ENDS: Code = Code {
    id: "RW-ADR-06",
    level: Level::Error,
    section: Section::Addresses,
    title: "a network is at more than two ends",
};

pub(super) const CODES: &[Code] = &[
    MISSING,
    ONLY_IPV6,
    DUPLICATE,
    SAME_HOST,
    ONE_END,
    THREE_ENDS,
    meeting::WIRELESS,
    meeting::CONTROL,
    meeting::STALE_MEETING,
    gid::DIFFERS_ON_HOST,
    gid::DIFFERS_IN_ROOM,
    gid::PIN_WRONG,
    gid::MOVED,
    gid::EMPTY,
    gid::NO_ENTRY,
];

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    look_for_planned(room, to);
    let duplicated = look_for_duplicates(room, to);
    look_at_networks(room, &duplicated, to);
    meeting::look(room, to);
    gid::look(room, to);
}

/// All functions whose netdev was found, of hosts whose addresses are known.
fn addressed<'a>(
    room: &Room<'a>,
) -> impl Iterator<Item = (&'a FunctionRef, &'a HostState, &'a Netdev)> + use<'a> {
    view::found(room).filter(|(_, state, _)| state.addresses.known().is_some())
}

/// Whether a function has the address that was planned for it; without a plan for it, any address is right.
fn has_planned(function: &FunctionRef, netdev: &Netdev) -> bool {
    match planned(function) {
        Some(planned) => netdev.addresses.contains(&planned),
        None => !netdev.addresses.is_empty(),
    }
}

fn planned(function: &FunctionRef) -> Option<Interface> {
    Some(Interface { ip: function.ip?, prefix: function.prefix? })
}

fn look_for_planned(room: &Room<'_>, to: &mut Findings) {
    for rank in &room.plan.ranks {
        if let Some(why) = view::host(room, rank.rank).and_then(|state| state.addresses.reason()) {
            to.undecided(Section::Addresses, Some(&rank.host), "addresses", why);
        }
    }
    for (function, _, netdev) in addressed(room) {
        if has_planned(function, netdev) {
            to.looked(Section::Addresses, 1, "functions: have their addresses");
            continue;
        }
        let (host, port) = (Some(function.host.as_str()), Some(function.port.as_str()));
        let mut evidence: Vec<String> = netdev
            .addresses
            .iter()
            .map(|address| {
                format!("{} has {address}{}", netdev.name, whose(room, function, *address))
            })
            .chain(netdev.ipv6.iter().map(|address| format!("{} has {address}", netdev.name)))
            .collect();
        if evidence.is_empty() {
            evidence.push(format!("{} has no address", netdev.name));
        }
        let fix = planned(function)
            .map(|planned| format!("ip address add {planned} dev {}", netdev.name));
        // A link-local IPv6 address comes by itself; another one was given on purpose, instead of an IPv4 address.
        let given =
            netdev.ipv6.iter().any(|address| !address.to_ascii_lowercase().starts_with("fe80:"));
        let wanted = planned(function)
            .map_or_else(|| "an IPv4 address".to_owned(), |planned| planned.to_string());
        if netdev.addresses.is_empty() && given {
            let message = format!("{} has IPv6 addresses only; {wanted} is needed", netdev.name);
            to.find(&ONLY_IPV6, host, port, message, evidence, fix);
        } else {
            to.find(
                &MISSING,
                host,
                port,
                format!("{wanted} is missing on {}", netdev.name),
                evidence,
                fix,
            );
        }
    }
}

/// Which other function an address, or its network, was planned for.
fn whose(room: &Room<'_>, function: &FunctionRef, address: Interface) -> String {
    let others = room
        .plan
        .ranks
        .iter()
        .flat_map(|rank| &rank.functions)
        .filter(|other| other.mac != function.mac);
    let others: Vec<_> = others.filter_map(|other| Some((other, planned(other)?))).collect();
    if let Some((other, _)) = others.iter().find(|(_, planned)| planned.ip == address.ip) {
        return format!(", planned for {}", other.label());
    }
    match others
        .iter()
        .find(|(other, planned)| planned.meets(address) && !same_cable(room, function, other))
    {
        Some((other, _)) => format!(", of the network planned for {}", other.label()),
        None => String::new(),
    }
}

fn same_cable(room: &Room<'_>, a: &FunctionRef, b: &FunctionRef) -> bool {
    let cable = |function: &FunctionRef| {
        view::cable(room, function.rank, &function.port).map(|cable| &cable.name)
    };
    cable(a).is_some() && cable(a) == cable(b)
}

/// An address of a function or of the control network that is at two places. Addresses that only bridges and the like
/// have, such as Docker's, are alike on every host and lead nowhere.
fn look_for_duplicates(room: &Room<'_>, to: &mut Findings) -> BTreeSet<Ipv4Addr> {
    let mut ours: BTreeSet<Ipv4Addr> = addressed(room)
        .flat_map(|(_, _, netdev)| &netdev.addresses)
        .map(|address| address.ip)
        .collect();
    ours.extend(
        room.plan.ranks.iter().filter_map(|rank| rank.control.as_deref()?.parse::<Ipv4Addr>().ok()),
    );
    let mut places: BTreeMap<Ipv4Addr, BTreeSet<(usize, &str)>> = BTreeMap::new();
    for rank in &room.plan.ranks {
        let netdevs = view::host(room, rank.rank).map_or(&[][..], |state| &state.netdevs);
        for netdev in netdevs.iter().filter(|netdev| netdev.kind != NetdevKind::Loopback) {
            for address in netdev.addresses.iter().filter(|address| ours.contains(&address.ip)) {
                places.entry(address.ip).or_default().insert((rank.rank, &netdev.name));
            }
        }
    }
    let mut duplicated = BTreeSet::new();
    for (ip, places) in places {
        if places.len() < 2 {
            continue;
        }
        duplicated.insert(ip);
        let name = |rank: usize| room.plan.ranks.get(rank).map_or("?", |rank| rank.host.as_str());
        let planned_for =
            room.plan.ranks.iter().flat_map(|rank| &rank.functions).find(|own| own.ip == Some(ip));
        let rightful = |rank: usize, netdev: &str| {
            planned_for
                .is_some_and(|own| own.rank == rank && view::netdev_name(room, own) == netdev)
        };
        // The finding is about the place that has no right to it, where the plan tells.
        let wrong =
            places.iter().find(|(rank, netdev)| !rightful(*rank, netdev)).or(places.first());
        let Some((rank, netdev)) = wrong.copied() else { continue };
        let prefix = view::host(room, rank)
            .and_then(|state| state.netdev(netdev))
            .and_then(|netdev| netdev.addresses.iter().find(|address| address.ip == ip));
        let evidence = places
            .iter()
            .map(|(rank, netdev)| {
                let right = if rightful(*rank, netdev) { ", as planned" } else { "" };
                format!("{} {netdev} has {ip}{right}", name(*rank))
            })
            .collect();
        let fix = prefix.map(|address| format!("ip address del {address} dev {netdev}"));
        let message = format!("{ip} is at {} places", places.len());
        to.find(&DUPLICATE, Some(name(rank)), Some(netdev), message, evidence, fix);
    }
    duplicated
}

/// Each network of a cable belongs to exactly two functions: one at each end.
fn look_at_networks(room: &Room<'_>, duplicated: &BTreeSet<Ipv4Addr>, to: &mut Findings) {
    let mut networks: BTreeMap<(Ipv4Addr, u8), Vec<(&FunctionRef, Interface)>> = BTreeMap::new();
    for (function, _, netdev) in addressed(room) {
        let on_switch = view::cable(room, function.rank, &function.port)
            .is_some_and(|cable| cable.switch.is_some());
        for address in netdev.addresses.iter().filter(|address| !on_switch && address.prefix < 32) {
            networks
                .entry((address.network(), address.prefix))
                .or_default()
                .push((function, *address));
        }
    }
    for ((network, prefix), members) in &networks {
        let named = format!("{network}/{prefix}");
        let line = |(function, address): &(&FunctionRef, Interface)| {
            format!("{} {} has {address}", function.host, view::netdev_name(room, function))
        };
        let mut by_host: BTreeMap<usize, Vec<&(&FunctionRef, Interface)>> = BTreeMap::new();
        for member in members {
            by_host.entry(member.0.rank).or_default().push(member);
        }
        let mut told = false;
        for of_host in by_host.values() {
            let ports: BTreeSet<&str> =
                of_host.iter().map(|(function, _)| function.port.as_str()).collect();
            let distinct: BTreeSet<Ipv4Addr> =
                of_host.iter().map(|(_, address)| address.ip).collect();
            if ports.len() > 1 && distinct.len() > 1 {
                let Some((first, _)) = of_host.first() else { continue };
                let message = format!(
                    "{} ports are in {named}: the kernel sends by only one of them",
                    ports.len()
                );
                let evidence = of_host.iter().map(|member| line(member)).collect();
                to.find(&SAME_HOST, Some(&first.host), None, message, evidence, None);
                told = true;
            }
        }
        let ends: BTreeSet<(usize, &str)> =
            members.iter().map(|(function, _)| (function.rank, function.port.as_str())).collect();
        let explained = told || members.iter().any(|(_, address)| duplicated.contains(&address.ip));
        if ends.len() > 2 && !explained {
            let message = format!("{named} is at {} ports; a cable has two ends", ends.len());
            let odd =
                members.iter().find(|(function, address)| planned(function) != Some(*address));
            let host = odd.map(|(function, _)| function.host.as_str());
            let port = odd.map(|(function, _)| function.port.as_str());
            let fix = odd.map(|(function, address)| {
                format!("ip address del {address} dev {}", view::netdev_name(room, function))
            });
            to.find(&THREE_ENDS, host, port, message, members.iter().map(line).collect(), fix);
        }
    }
    look_for_one_end(room, &networks, to);
}

/// A cable whose functions share no network, where no planned address tells which end is wrong.
fn look_for_one_end(
    room: &Room<'_>,
    networks: &BTreeMap<(Ipv4Addr, u8), Vec<(&FunctionRef, Interface)>>,
    to: &mut Findings,
) {
    for cable in &room.plan.cables {
        for (a, b) in &cable.pairs {
            let (Some(at_a), Some(at_b)) = (view::netdev(room, a), view::netdev(room, b)) else {
                continue;
            };
            if planned(a).is_some()
                || planned(b).is_some()
                || at_a.addresses.is_empty()
                || at_b.addresses.is_empty()
            {
                continue;
            }
            let shared = at_a.addresses.iter().any(|address| {
                let members = networks.get(&(address.network(), address.prefix));
                members.is_some_and(|members| {
                    members
                        .iter()
                        .any(|(function, _)| function.rank == b.rank && function.port == b.port)
                })
            });
            if shared {
                continue;
            }
            let list = |function: &FunctionRef, netdev: &Netdev| {
                let addresses: Vec<String> =
                    netdev.addresses.iter().map(ToString::to_string).collect();
                format!("{} {} has {}", function.host, netdev.name, addresses.join(", "))
            };
            let message = format!("{} and {} share a cable but no network", a.label(), b.label());
            to.find(
                &ONE_END,
                Some(&a.host),
                Some(&a.port),
                message,
                vec![list(a, at_a), list(b, at_b)],
                None,
            );
        }
    }
}

/// The netdev that holds an address of a host.
fn holder<'a>(room: &Room<'a>, rank: usize, ip: Ipv4Addr) -> Option<&'a Netdev> {
    let state = view::host(room, rank)?;
    state.netdevs.iter().find(|netdev| netdev.addresses.iter().any(|address| address.ip == ip))
}

/// Whether any host has this address; and whether the addresses of all hosts are known.
fn somewhere(room: &Room<'_>, ip: IpAddr) -> (bool, bool) {
    let states: Vec<_> = room
        .plan
        .ranks
        .iter()
        .map(|rank| view::host(room, rank.rank).filter(|state| state.addresses.known().is_some()))
        .collect();
    (states.iter().flatten().any(|state| state.has_address(ip)), states.iter().all(Option::is_some))
}
