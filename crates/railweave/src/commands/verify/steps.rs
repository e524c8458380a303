//! What is proven, in which order, and what need not be tried: a pure function of the plan.

use std::collections::BTreeSet;

use cluster::address::Mac;
use cluster::plan::{FunctionRef, PathKind, PathPlan, Plan, Rail};

/// One rail of one path: what is proven at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    /// The path.
    pub(super) path: &'a PathPlan,
    /// The rail's number on it.
    pub(super) number: usize,
    /// The rail.
    pub(super) rail: &'a Rail,
}

/// Two functions that meet over a cable, in the direction of a caller.
type Crossed = (Mac, Mac);

/// What is known of crossings from rails that were proven before.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    failed: BTreeSet<Crossed>,
}

impl Known {
    /// Notes that bytes do not cross there.
    pub(super) fn note_failed(&mut self, item: Item<'_>, crossing: usize) {
        if let Some(crossing) = item.rail.crossings.get(crossing) {
            self.failed.insert((crossing.out.mac, crossing.into.mac));
        }
    }
}

/// Why a rail is not tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// What is here cannot show it, or the file does not say enough.
    NotProven(String),
    /// A crossing of its, by number, has failed already.
    Broken(usize),
}

/// The rails to prove, of all paths or of those between the pairs of ranks named: direct ones first, since what is
/// relayed crosses the same cables, then by length.
pub(super) fn items<'a>(plan: &'a Plan, only: &[(usize, usize)]) -> Vec<Item<'a>> {
    let mut items: Vec<_> = plan
        .paths
        .iter()
        .filter(|path| only.is_empty() || only.contains(&(path.from, path.to)))
        .flat_map(|path| {
            path.rails.iter().enumerate().map(move |(number, rail)| Item { path, number, rail })
        })
        .collect();
    // Stable: within one kind and length the plan's order stays.
    items.sort_by_key(|item| (item.path.kind != PathKind::Direct, item.rail.hops.len()));
    items
}

/// Paths of the plan that have no rail at all, so that nothing can be proven about them.
pub(super) fn without_rails<'a>(plan: &'a Plan, only: &[(usize, usize)]) -> Vec<&'a PathPlan> {
    plan.paths
        .iter()
        .filter(|path| {
            path.rails.is_empty() && (only.is_empty() || only.contains(&(path.from, path.to)))
        })
        .collect()
}

/// Why a rail is not tried; none if it is.
pub(super) fn obstacle(item: Item<'_>, known: &Known) -> Option<Obstacle> {
    if item.path.kind == PathKind::Forwarded {
        return Some(Obstacle::NotProven(
            "needs verbs: NICs pass on RDMA packets only, which TCP cannot show".to_owned(),
        ));
    }
    flaw(item, known)
}

/// Why a rail is not tried, whatever would carry its bytes; none if it is.
pub(super) fn flaw(item: Item<'_>, known: &Known) -> Option<Obstacle> {
    let crossings = &item.rail.crossings;
    if crossings.is_empty() || crossings.len() + 1 != item.rail.hops.len() {
        return Some(Obstacle::NotProven("the plan gives this rail no cables".to_owned()));
    }
    let nameless = |function: &&FunctionRef| function.ip.is_none();
    let functions = crossings.iter().flat_map(|crossing| [&crossing.out, &crossing.into]);
    if let Some(function) = functions.clone().find(nameless) {
        return Some(Obstacle::NotProven(format!(
            "the cluster file gives {} no address; add `address` to it",
            function.label()
        )));
    }
    crossings
        .iter()
        .position(|crossing| known.failed.contains(&(crossing.out.mac, crossing.into.mac)))
        .map(Obstacle::Broken)
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
