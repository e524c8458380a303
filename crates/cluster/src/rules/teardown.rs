//! Taking away what is Railweave's, and nothing else.

use super::change::Change;
use super::compare::{Comparison, Unmeasured};
use super::filters::is_own;
use super::{is_own_protocol, mark};
use crate::inventory::{HostState, Seen};

/// What takes away everything on a host that carries Railweave's mark: markers, filters, neighbours, routes. Settings
/// of NICs stay as they are: putting them back would reload functions, and a boot does it anyway.
pub fn down(host: &HostState) -> Comparison {
    let mut changes = Vec::new();
    let mut unmeasured = Vec::new();
    match &host.markers {
        Seen::Known(markers) if markers.is_empty() => {}
        Seen::Known(_) | Seen::NotMeasured(_) => changes.push(Change::StopAllMarkers),
    }
    let egress = host.egress.known().into_iter().flatten();
    let marks = egress.filter(|filter| mark::is_own(filter));
    changes.extend(marks.map(|filter| Change::RemoveMark { filter: filter.clone() }));
    let mut each = |what: &str, why: Option<&str>, needed: bool| {
        if let Some(why) = why {
            unmeasured.push(Unmeasured { what: what.to_owned(), why: why.to_owned(), needed });
        }
    };
    each("ingress filters", host.filters.reason(), true);
    // Recordings of older builds do not have them.
    each("egress filters", host.egress.reason(), false);
    each("neighbours", host.neighbours.reason(), true);
    each("routes", host.routes.reason(), true);
    let filters = host.filters.known().into_iter().flatten().filter(|filter| is_own(filter));
    changes.extend(filters.map(|filter| Change::RemoveFilter { filter: filter.clone() }));
    let neighbours = host
        .neighbours
        .known()
        .into_iter()
        .flatten()
        .filter(|neighbour| neighbour.protocol.as_deref().is_some_and(is_own_protocol));
    changes.extend(
        neighbours.map(|neighbour| Change::RemoveNeighbour { neighbour: neighbour.clone() }),
    );
    let routes = host.routes.known().into_iter().flatten();
    let routes = routes.filter(|route| is_own_protocol(&route.protocol));
    changes.extend(routes.map(|route| Change::RemoveRoute { route: route.clone() }));
    Comparison {
        needs_quiet: changes.iter().any(Change::disturbs),
        changes,
        unmeasured,
        ..Comparison::default()
    }
}

/// The changes of [`down`]. What could not be looked at is not among them; [`down`] says what that is.
pub fn teardown(host: &HostState) -> Vec<Change> {
    down(host).changes
}
