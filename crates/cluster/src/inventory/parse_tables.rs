//! IPv4 routes and neighbours: `ip -4 -N -j`.

use serde_json::Value;

use super::host_state::{Neighbour, Route};
use super::of::{entries, json, text};
use super::{Recording, Seen};
use crate::address::Interface;

/// Routing protocols whose names are fixed by the kernel; all others stay numbers.
const PROTOCOLS: &[(&str, &str)] = &[
    ("1", "redirect"),
    ("2", "kernel"),
    ("3", "boot"),
    ("4", "static"),
    ("9", "ra"),
    ("16", "dhcp"),
];

/// Scopes whose names are fixed.
const SCOPES: &[(&str, &str)] =
    &[("0", "global"), ("200", "site"), ("253", "link"), ("254", "host")];

/// Types of routes that are not the kernel's answer to its own addresses: `unicast`, as number and as name.
const UNICAST: &[&str] = &["1", "unicast"];

/// The table `local`, as number and as name.
const LOCAL: &[&str] = &["255", "local"];

pub(super) fn routes(recording: &Recording) -> Seen<Vec<Route>> {
    json(recording, "ip-route").map_or_else(Seen::NotMeasured, |shown| {
        Seen::Known(entries(&shown).flat_map(route).collect())
    })
}

/// A route, or one for each of its next hops.
fn route(shown: &Value) -> Vec<Route> {
    let local = text(shown, "table").is_some_and(|table| LOCAL.contains(&table));
    let unicast = text(shown, "type").is_none_or(|kind| UNICAST.contains(&kind));
    let Some(to) = text(shown, "dst").and_then(destination).filter(|_| !local && unicast) else {
        return Vec::new();
    };
    let one = |hop: &Value| {
        Some(Route {
            to,
            via: text(hop, "gateway").and_then(|gateway| gateway.parse().ok()),
            netdev: text(hop, "dev")?.to_owned(),
            source: text(shown, "prefsrc").and_then(|source| source.parse().ok()),
            protocol: named(PROTOCOLS, text(shown, "protocol").unwrap_or("boot")),
            scope: Some(named(SCOPES, text(shown, "scope").unwrap_or("global"))),
            dead: hop
                .get("flags")
                .into_iter()
                .flat_map(entries)
                .any(|flag| matches!(flag.as_str(), Some("dead" | "linkdown"))),
        })
    };
    match shown.get("nexthops") {
        Some(hops) => entries(hops).filter_map(one).collect(),
        None => one(shown).into_iter().collect(),
    }
}

/// `default`, an address, or a network.
fn destination(text: &str) -> Option<Interface> {
    match text {
        "default" => "0.0.0.0/0".parse().ok(),
        _ if text.contains('/') => text.parse().ok(),
        _ => format!("{text}/32").parse().ok(),
    }
}

fn named(names: &[(&str, &str)], word: &str) -> String {
    names.iter().find(|(number, _)| *number == word).map_or(word, |(_, name)| name).to_owned()
}

pub(super) fn neighbours(recording: &Recording) -> Seen<Vec<Neighbour>> {
    json(recording, "ip-neigh").map_or_else(Seen::NotMeasured, |shown| {
        Seen::Known(entries(&shown).filter_map(neighbour).collect())
    })
}

fn neighbour(shown: &Value) -> Option<Neighbour> {
    Some(Neighbour {
        ip: text(shown, "dst")?.parse().ok()?,
        netdev: text(shown, "dev")?.to_owned(),
        mac: text(shown, "lladdr").and_then(|mac| mac.parse().ok()),
        states: shown
            .get("state")
            .into_iter()
            .flat_map(entries)
            .filter_map(|state| state.as_str().map(str::to_owned))
            .collect(),
        protocol: text(shown, "protocol").map(|protocol| named(PROTOCOLS, protocol)),
    })
}
