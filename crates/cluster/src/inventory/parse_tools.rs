//! devlink, LLDP, markers and the firewall.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde_json::Value;

use super::host_state::{Firewall, LldpNeighbour, Marker};
use super::of::{entries, json, text};
use super::recording::ToolOutput;
use super::{Recording, Seen};
use crate::address::{Mac, Pci};

/// Ways a parameter can be set, the one in force first.
const MODES: &[&str] = &["runtime", "driverinit", "permanent"];

pub(super) fn devlink(recording: &Recording) -> Seen<BTreeMap<Pci, BTreeMap<String, String>>> {
    let shown = match json(recording, "devlink-param") {
        Err(why) => return Seen::NotMeasured(why),
        Ok(shown) => shown,
    };
    let functions = shown.get("param").and_then(Value::as_object).into_iter().flatten();
    let parameters = |list: &Value| {
        entries(list)
            .filter_map(|entry| Some((text(entry, "name")?.to_owned(), value_in_force(entry)?)))
            .collect()
    };
    Seen::Known(functions.filter_map(|(name, list)| Some((pci(name)?, parameters(list)))).collect())
}

/// `pci/0000:01:00.0`.
fn pci(name: &str) -> Option<Pci> {
    name.strip_prefix("pci/")?.parse().ok()
}

fn value_in_force(parameter: &Value) -> Option<String> {
    let values = parameter.get("values")?;
    let of_mode = |mode: &&str| {
        entries(values).find(|value| text(value, "cmode") == Some(mode))?.get("value")
    };
    match MODES.iter().find_map(of_mode)? {
        Value::String(text) => Some(text.clone()),
        value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string()),
        _ => None,
    }
}

/// The mode of each function whose mode could be read.
pub(super) fn eswitch(recording: &Recording) -> Seen<BTreeMap<Pci, String>> {
    let mut modes = BTreeMap::new();
    let mut why = "devlink-eswitch: no PCI function with an RDMA device was seen".to_owned();
    for tool in recording.tools.keys().filter(|name| name.starts_with("devlink-eswitch.")) {
        match json(recording, tool) {
            Err(reason) => why = reason,
            Ok(shown) => {
                let devices = shown.get("dev").and_then(Value::as_object).into_iter().flatten();
                modes.extend(devices.filter_map(|(name, entry)| {
                    Some((pci(name)?, text(entry, "mode")?.to_owned()))
                }));
            }
        }
    }
    if modes.is_empty() { Seen::NotMeasured(why) } else { Seen::Known(modes) }
}

/// What `lldpd` and `systemd-networkd` heard. It is known as soon as one of them could be asked.
pub(super) fn lldp(recording: &Recording) -> Seen<Vec<LldpNeighbour>> {
    match (json(recording, "lldpcli"), json(recording, "networkctl-lldp")) {
        (Err(one), Err(other)) => Seen::NotMeasured(format!("{one}; {other}")),
        (daemon, networkd) => {
            let mut heard = daemon.as_ref().map(heard_by_lldpd).unwrap_or_default();
            for neighbour in networkd.as_ref().map(heard_by_networkd).unwrap_or_default() {
                if !heard.contains(&neighbour) {
                    heard.push(neighbour);
                }
            }
            Seen::Known(heard)
        }
    }
}

/// A list of one is printed as its only entry.
fn one_or_more(value: &Value) -> Vec<&Value> {
    value.as_array().map_or_else(|| vec![value], |list| list.iter().collect())
}

fn heard_by_lldpd(shown: &Value) -> Vec<LldpNeighbour> {
    let interfaces = shown.get("lldp").and_then(|lldp| lldp.get("interface"));
    let neighbour = |(netdev, entry): (&String, &Value)| {
        let chassis = entry.get("chassis").and_then(Value::as_object);
        // Keyed by the neighbour's name, if it has one; otherwise its fields follow at once.
        let system = chassis
            .and_then(|chassis| chassis.iter().find(|(name, of)| of.is_object() && *name != "id"));
        let ids =
            entry.get("port").and_then(|port| port.get("id")).map(one_or_more).unwrap_or_default();
        LldpNeighbour {
            netdev: netdev.clone(),
            system: system.map(|(name, _)| name.clone()),
            mac: ids.into_iter().find_map(|id| text(id, "value")?.parse().ok()),
        }
    };
    let all = interfaces.map(one_or_more).unwrap_or_default();
    all.into_iter().filter_map(Value::as_object).flatten().map(neighbour).collect()
}

fn heard_by_networkd(shown: &Value) -> Vec<LldpNeighbour> {
    let mut heard = Vec::new();
    for interface in shown.get("Neighbors").into_iter().flat_map(entries) {
        let Some(netdev) = text(interface, "InterfaceName") else { continue };
        heard.extend(interface.get("Neighbors").into_iter().flat_map(entries).map(|entry| {
            LldpNeighbour {
                netdev: netdev.to_owned(),
                system: text(entry, "SystemName").map(str::to_owned),
                mac: text(entry, "PortID").and_then(|id| id.parse::<Mac>().ok()),
            }
        }));
    }
    heard
}

/// Processes that mark packets, from `pid N` and an `arg` line for each argument.
pub(super) fn markers(recording: &Recording) -> Seen<Vec<Marker>> {
    let printed = match recording.printed("markers") {
        Err(why) => return Seen::NotMeasured(why),
        Ok(printed) => printed,
    };
    let mut found = Vec::new();
    let mut pid = None;
    let mut arguments: Vec<&str> = Vec::new();
    for line in printed.lines().chain(["pid 0"]) {
        if let Some(number) = line.strip_prefix("pid ") {
            found.extend(pid.and_then(|pid| marker(pid, &arguments)));
            pid = number.trim().parse().ok();
            arguments.clear();
        } else if let Some(argument) = line.strip_prefix("arg ") {
            arguments.push(argument);
        }
    }
    Seen::Known(found)
}

/// The options of the known markers; a program that names no device marks nothing.
fn marker(pid: u32, arguments: &[&str]) -> Option<Marker> {
    let mut marker = Marker {
        rdma: String::new(),
        pid,
        source_port: None,
        destinations: Vec::new(),
        ether_type: None,
        lasting: true,
    };
    let mut left = arguments.iter().skip(1);
    while let Some(argument) = left.next() {
        let (name, joined) =
            argument.split_once('=').map_or((*argument, None), |(name, value)| (name, Some(value)));
        if !name.starts_with("--") {
            continue;
        }
        let mut value = || joined.or_else(|| left.next().copied()).unwrap_or_default();
        match name {
            "--device" => marker.rdma = value().to_owned(),
            "--source-port" => marker.source_port = value().parse().ok(),
            "--replacement-ethertype" => marker.ether_type = hexadecimal(value()),
            "--rule" => marker.destinations.extend(rule(value())),
            "--run-seconds" => marker.lasting = false,
            _ => {}
        }
    }
    (!marker.rdma.is_empty()).then_some(marker)
}

/// `10.10.2.2=0x88b5`.
fn rule(text: &str) -> Option<(Ipv4Addr, u16)> {
    let (ip, ether_type) = text.split_once('=')?;
    Some((ip.parse().ok()?, hexadecimal(ether_type)?))
}

/// A number in hexadecimal after `0x`, or else in decimal.
fn hexadecimal(text: &str) -> Option<u16> {
    text.strip_prefix("0x")
        .map_or_else(|| text.parse().ok(), |digits| u16::from_str_radix(digits, 16).ok())
}

pub(super) fn firewall(recording: &Recording) -> Seen<Firewall> {
    let forward = match recording.printed("iptables-FORWARD") {
        Err(why) => return Seen::NotMeasured(why),
        Ok(forward) => forward,
    };
    let Some(policy) = forward.lines().find_map(|line| line.strip_prefix("-P FORWARD ")) else {
        return Seen::NotMeasured("iptables-FORWARD: has no policy".to_owned());
    };
    // A host without Docker has no such chain.
    let docker = match recording.tools.get("iptables-DOCKER-USER") {
        Some(ToolOutput::Printed(text)) => text.as_str(),
        _ => "",
    };
    Seen::Known(Firewall {
        forward_policy: policy.trim().to_owned(),
        rules: forward.lines().chain(docker.lines()).map(str::to_owned).collect(),
    })
}
