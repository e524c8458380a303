//! Ingress filters.

use std::collections::BTreeSet;

use super::change::Change;
use super::compare::Work;
use super::refusal::Refusal;
use super::spec::FilterSpec;
use super::{PREFERENCE_BASE, PREFERENCES, TAG_BASE};
use crate::inventory::host_state::Filter;

/// Whether a filter carries Railweave's mark: a preference of its own, the handle that goes with it, and a tag.
pub(crate) fn is_own(filter: &Filter) -> bool {
    PREFERENCES.contains(&filter.preference)
        && filter.handle == filter.preference - PREFERENCE_BASE
        && filter.ether_type.is_some_and(|tag| (TAG_BASE + 1..=TAG_BASE + 9).contains(&tag))
}

pub(super) fn compare(work: &mut Work<'_>) {
    let mut wanted = Vec::new();
    for filter in &work.desired.filters {
        let (Some(into), Some(out)) = (work.netdev(filter.into), work.netdev(filter.out)) else {
            continue;
        };
        wanted.push(FilterSpec {
            netdev: into.name.clone(),
            preference: filter.preference,
            ether_type: filter.ether_type,
            source_mac: filter.source,
            destination_mac: filter.into,
            set_ether_type: filter.set_ether_type,
            set_destination_mac: filter.next,
            redirect_to: out.name.clone(),
            software: work.desired.software,
            serves: filter.serves.clone(),
        });
    }
    let host = work.host;
    let Some(seen) = host.filters.known() else {
        let why = host.filters.reason().unwrap_or("not read");
        work.not_measured("ingress filters", why, !work.desired.filters.is_empty());
        return;
    };
    let mut kept = BTreeSet::new();
    let mut removed = Vec::new();
    for filter in seen {
        if !is_own(filter) {
            match in_the_way(filter, &wanted) {
                Some(refusal) => work.refusals.push(refusal),
                None if work.reloaded.contains(&filter.netdev) => work.also_lost(format!(
                    "the ingress filter with preference {} on {}",
                    filter.preference, filter.netdev
                )),
                None => {}
            }
            continue;
        }
        if work.reloaded.contains(&filter.netdev) {
            continue;
        }
        let taken_anew =
            |netdev: &String| work.reloaded.contains(netdev) || work.retaken.contains(netdev);
        let moved =
            taken_anew(&filter.netdev) || filter.redirect_to.as_ref().is_some_and(taken_anew);
        let place = (filter.netdev.clone(), filter.preference);
        if !moved && wanted.iter().any(|spec| spec.done_by(filter)) && kept.insert(place) {
            continue;
        }
        removed.push(Change::RemoveFilter { filter: filter.clone() });
    }
    // Filters go before the routes that lead to them.
    work.phases.remove.splice(0..0, removed);

    // A netdev that keeps some filter, whoever's, takes filters already.
    let mut ready: BTreeSet<&str> = seen
        .iter()
        .filter(|filter| !work.reloaded.contains(&filter.netdev))
        .map(|filter| filter.netdev.as_str())
        .collect();
    for spec in &wanted {
        if kept.contains(&(spec.netdev.clone(), spec.preference)) {
            continue;
        }
        if ready.insert(spec.netdev.as_str()) {
            work.phases.filters.push(Change::AddQdisc { netdev: spec.netdev.clone() });
        }
        work.phases.filters.push(Change::AddFilter(spec.clone()));
    }
}

/// Why somebody's filter cannot stay beside ours, if it cannot.
fn in_the_way(filter: &Filter, wanted: &[FilterSpec]) -> Option<Refusal> {
    let here = wanted.iter().filter(|spec| spec.netdev == filter.netdev);
    let what = if PREFERENCES.contains(&filter.preference) {
        "it has a preference of Railweave's and not the look of its filters".to_owned()
    } else {
        let same = here.into_iter().find(|spec| Some(spec.ether_type) == filter.ether_type)?;
        format!(
            "it takes packets with EtherType {:#06x}, which Railweave has to pass on",
            same.ether_type
        )
    };
    Some(Refusal::ForeignFilter {
        netdev: filter.netdev.clone(),
        preference: filter.preference,
        handle: filter.handle,
        what,
    })
}
