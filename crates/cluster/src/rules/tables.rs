//! Routes and neighbours.

use super::change::Change;
use super::compare::Work;
use super::is_own_protocol;
use super::refusal::{Refusal, maker};
use super::spec::{NeighbourSpec, RouteSpec};
use crate::inventory::host_state::{Neighbour, Route};

pub(super) fn compare(work: &mut Work<'_>) {
    let mut routes = Vec::new();
    let mut neighbours = Vec::new();
    for wanted in &work.desired.routes {
        let Some(netdev) = work.netdev(wanted.out) else { continue };
        routes.push(RouteSpec {
            to: wanted.far,
            netdev: netdev.name.clone(),
            from: wanted.from,
            serves: wanted.serves.clone(),
        });
        neighbours.push(NeighbourSpec {
            ip: wanted.far,
            netdev: netdev.name.clone(),
            mac: wanted.next,
            carrier: wanted.carrier.clone(),
            serves: wanted.serves.clone(),
        });
    }
    // Neighbours go before routes and come after them: without its route nothing looks for the neighbour.
    let needed = !work.desired.routes.is_empty();
    let host = work.host;
    match host.neighbours.known() {
        Some(seen) => compare_neighbours(work, seen, neighbours),
        None => {
            work.not_measured("neighbours", host.neighbours.reason().unwrap_or("not read"), needed);
        }
    }
    let learned = std::mem::take(&mut work.phases.routes);
    match host.routes.known() {
        Some(seen) => compare_routes(work, seen, routes),
        None => work.not_measured("routes", host.routes.reason().unwrap_or("not read"), needed),
    }
    work.phases.routes.extend(learned);
}

/// A route of ours that does what is wanted. Scopes are printed as names or as numbers.
fn serves(seen: &Route, wanted: &RouteSpec) -> bool {
    seen.to == wanted.destination()
        && seen.netdev == wanted.netdev
        && seen.via.is_none()
        && seen.source == Some(wanted.from)
        && matches!(seen.scope.as_deref(), Some("link" | "253"))
}

fn compare_routes(work: &mut Work<'_>, seen: &[Route], wanted: Vec<RouteSpec>) {
    let mut kept = Vec::new();
    for route in seen {
        let same = wanted.iter().find(|spec| spec.destination() == route.to);
        if !is_own_protocol(&route.protocol) {
            let made_by = maker(&route.protocol);
            let (to, netdev) = (route.to, route.netdev.clone());
            if same.is_some() {
                work.refusals.push(Refusal::ForeignRoute { to, netdev, made_by });
            } else if work.reloaded.contains(&netdev)
                && !matches!(route.protocol.as_str(), "2" | "kernel")
            {
                work.also_lost(format!("the route to {to} on {netdev} of {made_by}"));
            }
            continue;
        }
        if work.reloaded.contains(&route.netdev) {
            continue;
        }
        match same.filter(|spec| serves(route, spec) && !kept.contains(&spec.to)) {
            Some(spec) => kept.push(spec.to),
            None => work.phases.remove.push(Change::RemoveRoute { route: route.clone() }),
        }
    }
    let missing = wanted.into_iter().filter(|spec| !kept.contains(&spec.to));
    work.phases.routes.extend(missing.map(Change::AddRoute));
}

fn compare_neighbours(work: &mut Work<'_>, seen: &[Neighbour], wanted: Vec<NeighbourSpec>) {
    let mut kept = Vec::new();
    for neighbour in seen {
        let own = neighbour.protocol.as_deref().is_some_and(is_own_protocol);
        let permanent = neighbour.states.iter().any(|state| state == "PERMANENT");
        let same =
            wanted.iter().find(|spec| spec.ip == neighbour.ip && spec.netdev == neighbour.netdev);
        let right = same.is_some_and(|spec| neighbour.mac == Some(spec.mac));
        let unnamed = neighbour.protocol.is_none();
        match same {
            Some(spec) if permanent && !own && !(right && unnamed) => {
                work.refusals.push(foreign(neighbour, spec));
            }
            None if permanent && !own && work.reloaded.contains(&neighbour.netdev) => {
                work.also_lost(format!("the neighbour {} on {}", neighbour.ip, neighbour.netdev));
            }
            _ if work.reloaded.contains(&neighbour.netdev) => {}
            // An entry of the right content whose maker the kernel does not tell does the work as it is.
            Some(spec) if permanent && right => kept.push(spec.ip),
            // Replaced in place.
            Some(_) => {}
            None if own => {
                work.phases.remove.push(Change::RemoveNeighbour { neighbour: neighbour.clone() });
            }
            None => {}
        }
    }
    let missing = wanted.into_iter().filter(|spec| !kept.contains(&spec.ip));
    work.phases.routes.extend(missing.map(Change::SetNeighbour));
}

fn foreign(neighbour: &Neighbour, wanted: &NeighbourSpec) -> Refusal {
    Refusal::ForeignNeighbour {
        ip: neighbour.ip,
        netdev: neighbour.netdev.clone(),
        mac: neighbour.mac.map_or_else(|| "no MAC".to_owned(), |mac| mac.to_string()),
        wanted: wanted.mac,
        made_by: neighbour
            .protocol
            .as_deref()
            .map_or_else(|| "somebody the kernel does not name".to_owned(), maker),
    }
}
