//! Marking in software: egress filters that change the EtherType of a packet as it leaves the netdev that sends it.
//!
//! Where an RDMA device is software, its packets pass the kernel's traffic control, which a real NIC's never do. So no
//! program is needed: one filter for each far address does what a NIC's rule does. It always matches that address, with
//! tags by source port the port as well: a filter for the port alone would send packets round a full ring for ever.

use std::collections::BTreeSet;

use super::change::Change;
use super::compare::Work;
use super::marker::MarkerRules;
use super::refusal::Refusal;
use super::spec::MarkSpec;
use super::{PREFERENCE_BASE, PREFERENCES, TAG_BASE};
use crate::inventory::host_state::EgressFilter;

/// Whether an egress filter carries Railweave's mark: a preference of its own, the handle that goes with it, and it
/// writes a tag.
pub(crate) fn is_own(filter: &EgressFilter) -> bool {
    PREFERENCES.contains(&filter.preference)
        && filter.handle == filter.preference - PREFERENCE_BASE
        && filter.set_ether_type.is_some_and(|tag| (TAG_BASE + 1..=TAG_BASE + 9).contains(&tag))
}

/// The filters that a netdev needs, in the order of their addresses.
pub(crate) fn specs(netdev: &str, rules: &MarkerRules, serves: &str) -> Vec<MarkSpec> {
    let MarkerRules::Filters(marks) = rules else { return Vec::new() };
    (PREFERENCE_BASE + 1..)
        .zip(marks)
        .map(|(preference, (to, mark))| MarkSpec {
            netdev: netdev.to_owned(),
            preference,
            to: *to,
            source_port: mark.source_port,
            ether_type: mark.ether_type,
            serves: serves.to_owned(),
        })
        .collect()
}

/// Egress filters that have to go or come. `software`: the plan wants some.
pub(super) fn compare(work: &mut Work<'_>, software: bool) {
    let mut wanted = Vec::new();
    if software {
        for marker in &work.desired.markers {
            let Some(netdev) = work.netdev(marker.function) else { continue };
            wanted.extend(specs(&netdev.name, &marker.rules, &marker.serves));
        }
    }
    let host = work.host;
    let Some(seen) = host.egress.known() else {
        if !wanted.is_empty() {
            let why = host.egress.reason().unwrap_or("not read");
            work.not_measured("egress filters", why, true);
        }
        return;
    };
    let mut kept = BTreeSet::new();
    for filter in seen {
        let place = (filter.netdev.clone(), filter.preference);
        if !is_own(filter) {
            if PREFERENCES.contains(&filter.preference) && software {
                work.refusals.push(Refusal::ForeignMark {
                    netdev: filter.netdev.clone(),
                    preference: filter.preference,
                    handle: filter.handle,
                });
            }
        } else if !(wanted.iter().any(|spec| spec.done_by(filter)) && kept.insert(place)) {
            work.phases.stop.push(Change::RemoveMark { filter: filter.clone() });
        }
    }
    // A netdev that has a filter, or is about to get one, takes them.
    let ingress = host.filters.known().into_iter().flatten().map(|filter| &filter.netdev);
    let mut ready: BTreeSet<String> =
        seen.iter().map(|filter| &filter.netdev).chain(ingress).cloned().collect();
    ready.extend(work.phases.filters.iter().filter_map(|change| match change {
        Change::AddQdisc { netdev } => Some(netdev.clone()),
        _ => None,
    }));
    for spec in wanted {
        if kept.contains(&(spec.netdev.clone(), spec.preference)) {
            continue;
        }
        if work.desired.options.marker.is_none() {
            let (netdev, serves) = (&spec.netdev, &spec.serves);
            work.notes.push(format!(
                "{netdev} has to mark {} as {:#06x} ({serves}); that is left to you",
                spec.to, spec.ether_type
            ));
            continue;
        }
        if ready.insert(spec.netdev.clone()) {
            work.phases.start.push(Change::AddQdisc { netdev: spec.netdev.clone() });
        }
        work.phases.start.push(Change::AddMark(spec));
    }
}
