//! Routes, neighbours and filters in words, and the commands that mend them.

use crate::address::Mac;
use crate::inventory::host_state::{EgressFilter, Filter, Neighbour, Route};
use crate::rules::{Change, RouteSpec};
use crate::text::quoted;

pub(super) fn same_way(route: &Route, spec: &RouteSpec) -> bool {
    route.netdev == spec.netdev && route.via.is_none() && route.source == Some(spec.from)
}

pub(super) fn same_work(filter: &Filter, planned: &Filter) -> bool {
    let filter = Filter {
        in_hardware: planned.in_hardware.clone(),
        packets: planned.packets.clone(),
        ..filter.clone()
    };
    filter == *planned
}

pub(super) fn route_text(route: &Route) -> String {
    let via = route.via.map(|via| format!(" via {via}")).unwrap_or_default();
    let source = route.source.map(|source| format!(" src {source}")).unwrap_or_default();
    format!("{}{via} dev {}{source}", route.to, route.netdev)
}

pub(super) fn neighbour_text(entry: &Neighbour) -> String {
    let mac = entry.mac.map_or("no hardware address".to_owned(), |mac| mac.to_string());
    format!("{} dev {} {mac} {}", entry.ip, entry.netdev, entry.states.join(","))
}

pub(super) fn filter_text(filter: &Filter) -> String {
    let ether_type =
        |value: Option<u16>| value.map_or("any".to_owned(), |value| format!("{value:#06x}"));
    let from = filter.source_mac.map(|mac| format!(" from {mac}")).unwrap_or_default();
    let mac = |value: Option<Mac>| value.map_or("any".to_owned(), |mac| mac.to_string());
    format!(
        "{} pref {}: EtherType {}{from} to {} becomes {} to {} out of {}{}",
        filter.netdev,
        filter.preference,
        ether_type(filter.ether_type),
        mac(filter.destination_mac),
        ether_type(filter.set_ether_type),
        mac(filter.set_destination_mac),
        filter.redirect_to.as_deref().unwrap_or("nothing"),
        if filter.skip_software { "" } else { " (in software too)" },
    )
}

/// An egress filter of ours, in a few words.
pub(super) fn mark_text(filter: &EgressFilter) -> String {
    let to = filter.destination_ip.map(|to| format!(" to {}", to.ip)).unwrap_or_default();
    let tag = filter.set_ether_type.map_or("?".to_owned(), |tag| format!("{tag:#06x}"));
    format!("mark of {} egress pref {}:{to} as {tag}", filter.netdev, filter.preference)
}

/// The commands of changes, a line each, to copy.
pub(super) fn fix(changes: &[Change]) -> Option<String> {
    let command = |change: &Change| {
        let words: Vec<String> = change.argv().iter().map(|word| quoted(word)).collect();
        format!("sudo {}", words.join(" "))
    };
    (!changes.is_empty()).then(|| changes.iter().map(command).collect::<Vec<_>>().join("\n"))
}
