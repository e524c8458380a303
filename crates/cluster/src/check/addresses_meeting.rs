//! Where ranks meet: the control addresses of the file, and what the environment says.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::super::view;
use super::super::{Code, Findings, Level, Room, Section};
use super::{holder, somewhere};
use crate::inventory::Seen;
use crate::inventory::host_state::{Netdev, NetdevKind};

pub(super) const WIRELESS: Code = Code {
    id: "RW-ADR-07",
    level: Level::Warning,
    section: Section::Addresses,
    title: "the management network is Wi-Fi",
};
pub(super) const CONTROL: Code = Code {
    id: "RW-ADR-08",
    level: Level::Error,
    section: Section::Addresses,
    title: "a control address is not its host's",
};
pub(super) const STALE_MEETING: Code = Code {
    id: "RW-ADR-09",
    level: Level::Error,
    section: Section::Addresses,
    title: "the environment names a meeting place that no host has",
};

/// Variables that say at which address all ranks meet.
const MEETING: [&str; 3] = ["MASTER_ADDR", "RAILWEAVE_MEET", "RAY_ADDRESS"];

/// Variables that say under which of its addresses a host is found.
const OWN: [&str; 1] = ["VLLM_HOST_IP"];

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    for rank in &room.plan.ranks {
        let Some(state) =
            view::host(room, rank.rank).filter(|state| state.addresses.known().is_some())
        else {
            continue;
        };
        let host = Some(rank.host.as_str());
        let control: Option<IpAddr> = rank.control.as_deref().and_then(address);
        if let Some(ip) = control {
            if state.has_address(ip) {
                to.looked(Section::Addresses, 1, "control addresses: their hosts have them");
            } else {
                let mut evidence = vec![format!("in the file: control = \"{ip}\"")];
                evidence.extend(own_addresses(&state.netdevs));
                let message =
                    format!("{ip} is the file's control address, and no netdev here has it");
                to.find(
                    &CONTROL,
                    host,
                    None,
                    message,
                    evidence,
                    Some("ip -br -4 address".to_owned()),
                );
            }
        }
        // Without a control address, control connections follow the default route.
        let by_control = match control {
            Some(IpAddr::V4(ip)) => holder(room, rank.rank, ip),
            _ => None,
        };
        let by_route = || {
            let routes = state.routes.known()?;
            let route = routes.iter().find(|route| route.to.prefix == 0 && !route.dead)?;
            state.netdev(&route.netdev)
        };
        let wireless = if control.is_some() { by_control } else { by_route() }
            .filter(|netdev| netdev.wireless);
        if let Some(netdev) = wireless {
            let mut evidence = vec![format!("{} is Wi-Fi", netdev.name)];
            let wired = state.netdevs.iter().find(|other| {
                let of_cable = room
                    .plan
                    .ranks
                    .iter()
                    .flat_map(|rank| &rank.functions)
                    .any(|function| Some(function.mac) == other.mac);
                other.kind == NetdevKind::Physical && !other.wireless && other.carrier && !of_cable
            });
            evidence.extend(wired.map(|wired| format!("{} is wired and has a link", wired.name)));
            let message = format!("control connections go by Wi-Fi ({})", netdev.name);
            to.find(&WIRELESS, host, Some(&netdev.name), message, evidence, None);
        }
    }
    look_at_environment(room, to);
    look_at_own(room, to);
}

/// The addresses of a host that lead somewhere.
fn own_addresses(netdevs: &[Netdev]) -> impl Iterator<Item = String> {
    let netdevs = netdevs
        .iter()
        .filter(|netdev| matches!(netdev.kind, NetdevKind::Physical | NetdevKind::Veth));
    netdevs.flat_map(|netdev| {
        netdev.addresses.iter().map(|address| format!("{} has {address}", netdev.name))
    })
}

/// `address`, `address:port` or `scheme://address:port`; a name is none.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.split_once("://").map_or(text, |(_, rest)| rest).trim();
    text.parse::<IpAddr>()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
}

fn look_at_environment(room: &Room<'_>, to: &mut Findings) {
    for variable in MEETING {
        let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for rank in &room.plan.ranks {
            let Some(state) = view::host(room, rank.rank) else { continue };
            match &state.system.environment {
                Seen::Known(environment) => {
                    if let Some(value) = environment.get(variable).filter(|value| !value.is_empty())
                    {
                        values.entry(value).or_default().push(&rank.host);
                    }
                }
                Seen::NotMeasured(why) => {
                    to.not_measured(
                        Section::Addresses,
                        Some(&rank.host),
                        "environment",
                        why.as_str(),
                    );
                }
            }
        }
        let differ = values.len() > 1;
        let lines: Vec<String> = values
            .iter()
            .map(|(value, hosts)| format!("{variable}={value} on {}", hosts.join(", ")))
            .collect();
        let mut stale = false;
        for (value, hosts) in &values {
            let Some(ip) = address(value) else { continue };
            let (found, all_read) = somewhere(room, ip);
            let local = ip.is_loopback() && room.plan.ranks.len() > 1;
            if (!found && all_read) || local {
                let why =
                    if local { "every host is itself there" } else { "no host has this address" };
                let message =
                    format!("{variable} is {value}, and {why}: ranks would wait for nobody");
                let first = room.plan.ranks.first().and_then(|rank| rank.control.as_deref());
                let fix = first.map(|control| format!("export {variable}={control}"));
                to.find(&STALE_MEETING, hosts.first().copied(), None, message, lines.clone(), fix);
                stale = true;
            }
        }
        if differ && !stale {
            let message =
                format!("{variable} differs between hosts: ranks would wait at different places");
            to.find(&STALE_MEETING, None, None, message, lines, None);
        }
    }
}

fn look_at_own(room: &Room<'_>, to: &mut Findings) {
    for rank in &room.plan.ranks {
        let Some(state) =
            view::host(room, rank.rank).filter(|state| state.addresses.known().is_some())
        else {
            continue;
        };
        let Some(environment) = state.system.environment.known() else { continue };
        for variable in OWN {
            let Some(value) = environment.get(variable) else { continue };
            if address(value).is_some_and(|ip| !state.has_address(ip)) {
                let message = format!("{variable} is {value}, which this host does not have");
                let mut evidence = vec![format!("{variable}={value}")];
                evidence.extend(own_addresses(&state.netdevs));
                let fix =
                    rank.control.as_deref().map(|control| format!("export {variable}={control}"));
                to.find(&STALE_MEETING, Some(&rank.host), None, message, evidence, fix);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meeting_places_are_read_as_addresses() {
        let ip = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        assert_eq!(address("192.168.1.10"), ip("192.168.1.10"));
        assert_eq!(address("192.168.1.10:29500"), ip("192.168.1.10"));
        assert_eq!(address("tcp://192.168.1.10:29500"), ip("192.168.1.10"));
        assert_eq!(address("[fd00::1]:29500"), ip("fd00::1"));
        assert_eq!(address("spark0"), None);
        assert_eq!(address(""), None);
    }
}
