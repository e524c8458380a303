//! Paths the owner chose.

use std::collections::BTreeMap;

use super::derive::{Pair, Terms};
use super::error::PlanError;
use super::ways::{Carrier, Chain, Search, chains, choose, disjoint, reversed, sorted};
use super::{PathKind, PlanOptions};
use crate::file::{ClusterFile, Forward, RouteEntry};

/// A route, seen from the lower rank of its pair.
pub(super) struct Asked {
    /// As its owner wrote it.
    pub(super) text: String,
    kind: Option<PathKind>,
    via: Vec<usize>,
    rails: Vec<usize>,
    /// Whether it was written from the higher rank: its numbers are those of functions there.
    from_hi: bool,
}

impl Asked {
    fn wrong(&self, why: String) -> PlanError {
        PlanError::Route { route: self.text.clone(), why }
    }
}

/// Routes by pair, the lower rank first. Those of the options replace those of the file for the same pair.
pub(super) fn by_pair(
    file: &ClusterFile,
    options: &PlanOptions,
) -> Result<BTreeMap<(usize, usize), Vec<Asked>>, PlanError> {
    let mut asked = BTreeMap::new();
    for routes in [&file.routes, &options.routes] {
        let mut of_source: BTreeMap<(usize, usize), Vec<Asked>> = BTreeMap::new();
        for route in routes {
            file.check_route(route)?;
            let (pair, route) = from_lower(file, route)?;
            of_source.entry(pair).or_default().push(route);
        }
        asked.extend(of_source);
    }
    Ok(asked)
}

fn from_lower(
    file: &ClusterFile,
    route: &RouteEntry,
) -> Result<((usize, usize), Asked), PlanError> {
    let text = route.to_string();
    let rank = |name: &String| {
        let found = file.hosts.iter().position(|host| host.name == *name);
        found.ok_or_else(|| PlanError::Route {
            route: text.clone(),
            why: format!("there is no host {name}"),
        })
    };
    let (from, to) = (rank(&route.from)?, rank(&route.to)?);
    let mut via = route.via.iter().map(rank).collect::<Result<Vec<_>, _>>()?;
    let from_hi = from > to;
    if from_hi {
        via.reverse();
    }
    let kind = match route.kind.as_deref() {
        Some("direct") => Some(PathKind::Direct),
        Some("forwarded") => Some(PathKind::Forwarded),
        Some("relayed") => Some(PathKind::Relayed),
        _ => None,
    };
    Ok((
        (from.min(to), from.max(to)),
        Asked { kind, via, rails: route.rails.clone(), from_hi, text },
    ))
}

/// The path of a pair as its routes say. Several routes of one pair each add rails.
pub(super) fn resolve(
    terms: &Terms<'_>,
    lo: usize,
    hi: usize,
    asked: &[Asked],
) -> Result<Pair, PlanError> {
    let mut path: Option<Pair> = None;
    for route in asked {
        let pair = one(terms, lo, hi, route)?;
        let Some(merged) = &mut path else {
            path = Some(pair);
            continue;
        };
        let other = merged.chosen.clone().unwrap_or_default();
        if merged.kind != pair.kind {
            return Err(route.wrong(format!(
                "route {other:?} makes the same path {}, this one {}; a path has one kind",
                word(merged.kind),
                word(pair.kind)
            )));
        }
        for rail in pair.rails {
            if merged.rails.contains(&rail) {
                continue;
            }
            if let Some(taken) = merged.rails.iter().find(|taken| !disjoint(taken, &rail)) {
                let shared = rail
                    .iter()
                    .flat_map(|link| [link.out, link.into])
                    .find(|id| taken.iter().any(|link| link.out == *id || link.into == *id));
                let shared = shared.map(|id| terms.wiring.label(id)).unwrap_or_default();
                return Err(route.wrong(format!(
                    "route {other:?} already has a rail over {shared}; rails of one path \
                                                are disjoint: take another rail number"
                )));
            }
            merged.rails.push(rail);
        }
        merged.instead = merged.instead.take().or(pair.instead);
    }
    let Some(mut path) = path else { return Ok(terms.derived(lo, hi)) };
    path.rails = sorted(terms.wiring, path.rails);
    Ok(path)
}

fn word(kind: PathKind) -> &'static str {
    match kind {
        PathKind::Direct => "direct",
        PathKind::Forwarded => "forwarded",
        PathKind::Relayed => "relayed",
    }
}

fn one(terms: &Terms<'_>, lo: usize, hi: usize, route: &Asked) -> Result<Pair, PlanError> {
    if route.kind == Some(PathKind::Forwarded) && terms.forward == Forward::Off {
        return Err(route.wrong("forward is off, and nothing is forwarded unless that is asked for: set forward = \"auto\" \
                                (or --forward auto)".to_owned()));
    }
    if route.via.is_empty() && matches!(route.kind, None | Some(PathKind::Direct)) {
        return direct(terms, lo, hi, route);
    }
    check_cabled(terms, lo, hi, route)?;
    let pair = |kind, rails, instead| Pair {
        lo,
        hi,
        kind,
        rails,
        instead,
        chosen: Some(route.text.clone()),
    };
    let relayed = |instead| {
        Ok(pair(PathKind::Relayed, carried(terms, lo, hi, route, Carrier::Rank)?, instead))
    };
    if route.kind == Some(PathKind::Relayed)
        || (route.kind.is_none() && terms.forward == Forward::Off)
    {
        return relayed(None);
    }
    match forwarded(terms, lo, hi, route) {
        Ok(rails) => Ok(pair(PathKind::Forwarded, rails, None)),
        Err(PlanError::Route { why, .. }) if route.kind.is_none() => relayed(Some(why)),
        Err(error) => Err(error),
    }
}

fn direct(terms: &Terms<'_>, lo: usize, hi: usize, route: &Asked) -> Result<Pair, PlanError> {
    let wiring = terms.wiring;
    if !wiring.are_neighbours(lo, hi) {
        return Err(
            route.wrong(format!("{}; name the hosts between in via", no_cable(terms, lo, hi)))
        );
    }
    let all = terms.direct(lo, hi);
    let rails = if route.rails.is_empty() { all } else { numbered(terms, lo, route, &all, true)? };
    Ok(Pair {
        lo,
        hi,
        kind: PathKind::Direct,
        rails,
        instead: None,
        chosen: Some(route.text.clone()),
    })
}

/// Refuses hosts in a row that no cable joins.
fn check_cabled(terms: &Terms<'_>, lo: usize, hi: usize, route: &Asked) -> Result<(), PlanError> {
    if route.via.is_empty() {
        if terms.wiring.are_neighbours(lo, hi) {
            let (a, b) = (terms.wiring.host(lo), terms.wiring.host(hi));
            return Err(route.wrong(format!(
                "{a} and {b} are neighbours: name the hosts between in via, or take kind direct"
            )));
        }
        return Ok(());
    }
    let stops = stops(lo, hi, route);
    for (&a, &b) in stops.iter().zip(stops.iter().skip(1)) {
        if !terms.wiring.are_neighbours(a, b) {
            return Err(route.wrong(no_cable(terms, a, b)));
        }
    }
    Ok(())
}

fn stops(lo: usize, hi: usize, route: &Asked) -> Vec<usize> {
    std::iter::once(lo).chain(route.via.iter().copied()).chain(std::iter::once(hi)).collect()
}

/// That no cable joins two hosts, what is cabled instead, and which cable would do.
fn no_cable(terms: &Terms<'_>, a: usize, b: usize) -> String {
    let wiring = terms.wiring;
    let around = |rank: usize| {
        let names: Vec<&str> = wiring
            .neighbours
            .get(rank)
            .into_iter()
            .flatten()
            .map(|&other| wiring.host(other))
            .collect();
        format!(
            "{} is cabled to {}",
            wiring.host(rank),
            if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
        )
    };
    let free = |rank: usize| wiring.free_ports.get(rank).and_then(|ports| ports.first());
    let remedy = match (free(a), free(b)) {
        (Some(p), Some(q)) => {
            format!("a cable {}.{p}–{}.{q} would join them", wiring.host(a), wiring.host(b))
        }
        (None, _) => format!("{} has no free port", wiring.host(a)),
        (_, None) => format!("{} has no free port", wiring.host(b)),
    };
    format!(
        "no cable joins {} and {} ({}; {}); {remedy}",
        wiring.host(a),
        wiring.host(b),
        around(a),
        around(b)
    )
}

/// Ways along the route.
fn ways(terms: &Terms<'_>, lo: usize, hi: usize, route: &Asked, carrier: Carrier) -> Vec<Chain> {
    let wiring = terms.wiring;
    let (length, via) = match route.via.as_slice() {
        [] => (wiring.distance(lo, hi).unwrap_or(0), None),
        via => (via.len() + 1, Some(via)),
    };
    chains(wiring, Search { from: lo, to: hi, length, carrier, via })
}

fn carried(
    terms: &Terms<'_>,
    lo: usize,
    hi: usize,
    route: &Asked,
    carrier: Carrier,
) -> Result<Vec<Chain>, PlanError> {
    let ways = ways(terms, lo, hi, route, carrier);
    if route.rails.is_empty() {
        return Ok(choose(terms.wiring, &ways));
    }
    numbered(terms, lo, route, &ways, false)
}

fn forwarded(
    terms: &Terms<'_>,
    lo: usize,
    hi: usize,
    route: &Asked,
) -> Result<Vec<Chain>, PlanError> {
    let wiring = terms.wiring;
    let wrong = |why| route.wrong(why);
    if route.via.is_empty() && route.rails.is_empty() {
        return terms.forwarded(lo, hi).map_err(wrong);
    }
    let length = if route.via.is_empty() {
        wiring.distance(lo, hi).unwrap_or(0)
    } else {
        route.via.len() + 1
    };
    terms.within_reach(lo, hi, length).map_err(wrong)?;
    let ways_of = ways(terms, lo, hi, route, Carrier::Nic);
    if ways_of.is_empty() {
        let relayed = ways(terms, lo, hi, route, Carrier::Rank);
        let why = relayed.first().and_then(|chain| terms.broken_hop(chain));
        return Err(wrong(why.unwrap_or_else(|| "no host between can pass packets on".to_owned())));
    }
    let fit: Vec<Chain> =
        ways_of.iter().filter(|chain| terms.unfit_ends(chain).is_empty()).cloned().collect();
    if let (true, Some(chain)) = (fit.is_empty(), ways_of.first()) {
        return Err(wrong(terms.unfit_ends(chain).join("; ")));
    }
    let rails = if route.rails.is_empty() {
        choose(wiring, &fit)
    } else {
        numbered(terms, lo, route, &fit, false)?
    };
    terms.covered(rails).map_err(wrong)
}

/// The ways whose function at the route's source has one of the route's numbers: every one of them, or for each number
/// the first that shares no function with those before.
fn numbered(
    terms: &Terms<'_>,
    lo: usize,
    route: &Asked,
    ways: &[Chain],
    every: bool,
) -> Result<Vec<Chain>, PlanError> {
    let wiring = terms.wiring;
    let source = |chain: &Chain| {
        let chain = if route.from_hi { reversed(chain) } else { chain.clone() };
        chain.first().and_then(|link| wiring.function(link.out)).cloned()
    };
    let mut rails: Vec<Chain> = Vec::new();
    for &number in &route.rails {
        let of_number =
            |chain: &&Chain| source(chain).is_some_and(|function| function.number == number);
        let mut found = ways
            .iter()
            .filter(of_number)
            .filter(|chain| !rails.iter().any(|rail| !disjoint(rail, chain)));
        let picked: Vec<Chain> = if every {
            found.cloned().collect()
        } else {
            found.next().cloned().into_iter().collect()
        };
        if picked.is_empty() {
            let there: std::collections::BTreeSet<usize> =
                ways.iter().filter_map(|chain| Some(source(chain)?.number)).collect();
            let there: Vec<String> = there.iter().map(ToString::to_string).collect();
            let at = ways
                .first()
                .and_then(source)
                .map_or_else(|| wiring.host(lo).to_owned(), |function| function.host);
            return Err(route.wrong(format!(
                "{at} has no rail {number} of its own on this way; there are rails {}",
                if there.is_empty() { "none".to_owned() } else { there.join(", ") }
            )));
        }
        rails.extend(picked);
    }
    Ok(sorted(wiring, rails))
}
