//! Routes, neighbours and filters: is what the plan needs there, does it what it should, and is anything in its way.
//!
//! What should be there is [`rules::desired`], what is in the way is what [`rules::compare`] refuses over. Only what
//! is wrong with each is worked out here.

use std::collections::BTreeSet;

use super::{Code, Findings, Level, Room, Section, view};
use crate::inventory::host_state::{Filter, Neighbour, Netdev, Route};
use crate::inventory::{HostState, Seen};
use crate::plan::{PathKind, PathPlan, RankPlan};
use crate::rules::{
    self, Change, Desired, DesiredRoute, FilterSpec, MarkSpec, NeighbourSpec, Refusal, RouteSpec,
    RuleOptions,
};

#[path = "routes_text.rs"]
mod text;

use text::{filter_text, fix, mark_text, neighbour_text, route_text, same_way, same_work};

const SECTION: Section = Section::Routes;

const fn code(id: &'static str, level: Level, title: &'static str) -> Code {
    Code { id, level, section: SECTION, title }
}

const NO_ROUTE: Code = code("RW-RTE-01", Level::Error, "a planned route is missing");
const FOREIGN_ROUTE: Code =
    code("RW-RTE-02", Level::Error, "another route leads to a planned address");
const DEAD_ROUTE: Code = code("RW-RTE-03", Level::Error, "a planned route is dead");
const NO_NEIGHBOUR: Code = code("RW-RTE-04", Level::Error, "a planned neighbour is missing");
const WRONG_MAC: Code = code("RW-RTE-05", Level::Error, "a neighbour has a wrong hardware address");
const NOT_PERMANENT: Code =
    code("RW-RTE-06", Level::Warning, "a planned neighbour is not permanent");
const NO_FILTER: Code = code("RW-RTE-07", Level::Error, "a planned filter is missing");
const FOREIGN_FILTER: Code =
    code("RW-RTE-08", Level::Error, "a filter of somebody else is in the way");
const NOT_IN_HARDWARE: Code = code("RW-RTE-09", Level::Error, "a filter is not in hardware");
const WRONG_FILTER: Code =
    code("RW-RTE-10", Level::Error, "a filter does something else than planned");
const LEFT_OVER: Code = code("RW-RTE-11", Level::Warning, "rules of an older plan are left");
const WRONG_ROUTE: Code = code("RW-RTE-12", Level::Error, "a planned route leads elsewhere");

pub(super) const CODES: &[Code] = &[
    NO_ROUTE,
    FOREIGN_ROUTE,
    DEAD_ROUTE,
    NO_NEIGHBOUR,
    WRONG_MAC,
    NOT_PERMANENT,
    NO_FILTER,
    FOREIGN_FILTER,
    NOT_IN_HARDWARE,
    WRONG_FILTER,
    LEFT_OVER,
    WRONG_ROUTE,
];

/// A rule that an older plan left: what it is, and what removes it.
type Left = (String, Change);

/// One host, and what it should have.
struct Here<'a> {
    room: &'a Room<'a>,
    rank: &'a RankPlan,
    state: &'a HostState,
    desired: &'a Desired,
}

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    for rank in &room.plan.ranks {
        let Some(state) = view::host(room, rank.rank) else { continue };
        let desired = rules::desired(room.plan, rank.rank, &RuleOptions::default());
        let here = Here { room, rank, state, desired: &desired };
        for refusal in &desired.refusals {
            to.undecided(
                SECTION,
                Some(&rank.host),
                "what the plan needs here",
                refusal.to_string(),
            );
        }
        let mut left = Vec::new();
        here.marks(&mut left);
        here.filters(&mut left, to);
        here.neighbours(&mut left, to);
        here.routes(&mut left, to);
        here.left_over(left, to);
        here.in_the_way(to);
    }
}

impl<'a> Here<'a> {
    fn host(&self) -> Option<&'a str> {
        Some(&self.rank.host)
    }

    /// What was read, or that it was not: which matters only if the plan needs something there.
    fn read<'s, T>(
        &self,
        seen: &'s Seen<Vec<T>>,
        what: &str,
        needed: bool,
        to: &mut Findings,
    ) -> Option<&'s [T]> {
        match seen {
            Seen::Known(seen) => return Some(seen),
            Seen::NotMeasured(why) if needed => {
                to.undecided(SECTION, self.host(), what, why.as_str());
            }
            Seen::NotMeasured(why) => to.not_measured(SECTION, self.host(), what, why.as_str()),
        }
        None
    }

    /// The netdev by which a route leaves. That it is not there is told elsewhere.
    fn leaves(&self, wanted: &DesiredRoute) -> Option<&'a Netdev> {
        self.state.netdev_by_mac(wanted.out)
    }

    /// Whether a netdev's port has no carrier: its routes are dead for that reason, which is told elsewhere.
    fn dark(&self, netdev: &Netdev) -> bool {
        let function = self.rank.functions.iter().find(|function| Some(function.mac) == netdev.mac);
        function.is_some_and(|function| view::dark(self.room, self.rank.rank, &function.port))
    }

    fn routes(&self, left: &mut Vec<Left>, to: &mut Findings) {
        let needed = !self.desired.routes.is_empty();
        let Some(seen) = self.read(&self.state.routes, "routes", needed, to) else { return };
        let own = || seen.iter().filter(|route| rules::is_own_protocol(&route.protocol));
        let mut kept: Vec<&Route> = Vec::new();
        for wanted in &self.desired.routes {
            let Some(netdev) = self.leaves(wanted) else { continue };
            // No route can have a source that the netdev lacks, and that it lacks it is told elsewhere.
            if !netdev.addresses.iter().any(|own| own.ip == wanted.from) {
                kept.extend(own().filter(|route| route.to.ip == wanted.far));
                continue;
            }
            let spec = RouteSpec {
                to: wanted.far,
                netdev: netdev.name.clone(),
                from: wanted.from,
                serves: wanted.serves.clone(),
            };
            let add = Change::AddRoute(spec.clone());
            let there: Vec<_> = own().filter(|route| route.to == spec.as_seen().to).collect();
            let right = there.iter().find(|route| same_way(route, &spec));
            kept.extend(right);
            match (right, there.first()) {
                (Some(route), _) if route.dead => {
                    if !self.dark(netdev) {
                        to.find(
                            &DEAD_ROUTE,
                            self.host(),
                            Some(&netdev.name),
                            format!(
                                "the kernel does not use the route to {} ({})",
                                wanted.far, wanted.serves
                            ),
                            vec![format!("{} (dead or linkdown)", route_text(route))],
                            Some(format!("sudo ip link set dev {} up", netdev.name)),
                        );
                    }
                }
                (Some(_), _) => to.looked(SECTION, 1, "routes: as planned"),
                (None, Some(route)) => {
                    kept.push(route);
                    to.find(
                        &WRONG_ROUTE,
                        self.host(),
                        Some(&netdev.name),
                        format!("the route to {} leads elsewhere ({})", wanted.far, wanted.serves),
                        vec![
                            format!("there: {}", route_text(route)),
                            format!("planned: {}", route_text(&spec.as_seen())),
                        ],
                        fix(&[Change::RemoveRoute { route: (*route).clone() }, add]),
                    );
                }
                (None, None) => to.find(
                    &NO_ROUTE,
                    self.host(),
                    Some(&netdev.name),
                    format!("no route to {} ({})", wanted.far, wanted.serves),
                    vec![format!("planned: {}", route_text(&spec.as_seen()))],
                    fix(&[add]),
                ),
            }
        }
        for route in own().filter(|route| !kept.contains(route)) {
            let change = Change::RemoveRoute { route: route.clone() };
            left.push((format!("route {}", route_text(route)), change));
        }
    }

    /// Addresses at the other ends of this host's cables that somebody has tied to a hardware address for good. One that
    /// the kernel learnt is not judged: it says where a cable leads, and that is told elsewhere.
    fn fixed_peers(&self, seen: &[Neighbour], to: &mut Findings) {
        let own = |path: &&PathPlan| path.from == self.rank.rank && path.kind == PathKind::Direct;
        let paths = self.room.plan.paths.iter().filter(own);
        for crossing in paths.flat_map(|path| &path.rails).filter_map(|rail| rail.crossings.first())
        {
            let (Some(netdev), Some(ip)) =
                (self.state.netdev_by_mac(crossing.out.mac), crossing.into.ip)
            else {
                continue;
            };
            let wrong = seen.iter().find(|entry| {
                entry.ip == ip
                    && entry.netdev == netdev.name
                    && entry.states.iter().any(|state| state == "PERMANENT")
                    && entry.mac.is_some_and(|mac| mac != crossing.into.mac)
            });
            let Some(entry) = wrong else { continue };
            to.find(
                &WRONG_MAC,
                self.host(),
                Some(&netdev.name),
                format!(
                    "neighbour {ip} ({}) has a wrong hardware address, and is permanent",
                    crossing.into.label()
                ),
                vec![neighbour_text(entry), format!("its function has {}", crossing.into.mac)],
                fix(&[Change::RemoveNeighbour { neighbour: entry.clone() }]),
            );
        }
    }

    fn neighbours(&self, left: &mut Vec<Left>, to: &mut Findings) {
        let needed = !self.desired.routes.is_empty();
        let Some(seen) = self.read(&self.state.neighbours, "neighbours", needed, to) else {
            return;
        };
        let mut planned = BTreeSet::new();
        for wanted in &self.desired.routes {
            let Some(netdev) = self.leaves(wanted) else { continue };
            planned.insert((wanted.far, netdev.name.as_str()));
            let spec = NeighbourSpec {
                ip: wanted.far,
                netdev: netdev.name.clone(),
                mac: wanted.next,
                carrier: wanted.carrier.clone(),
                serves: wanted.serves.clone(),
            };
            let text = neighbour_text(&spec.as_seen());
            let there =
                seen.iter().find(|entry| entry.ip == wanted.far && entry.netdev == netdev.name);
            // An entry without an address is the kernel's note that nobody answered.
            let (code, message, seen) = match there.and_then(|entry| Some((entry, entry.mac?))) {
                None => {
                    let seen = there.map_or("there: none".to_owned(), neighbour_text);
                    (&NO_NEIGHBOUR, format!("no neighbour {}", wanted.far), seen)
                }
                Some((entry, mac)) if mac != wanted.next => {
                    let message = format!("neighbour {} has a wrong hardware address", wanted.far);
                    (&WRONG_MAC, message, neighbour_text(entry))
                }
                Some((entry, _)) if !entry.states.iter().any(|state| state == "PERMANENT") => {
                    let message = format!("neighbour {} is not permanent", wanted.far);
                    (&NOT_PERMANENT, message, neighbour_text(entry))
                }
                Some(_) => {
                    to.looked(SECTION, 1, "neighbours: as planned");
                    continue;
                }
            };
            to.find(
                code,
                self.host(),
                Some(&netdev.name),
                format!("{message} ({})", wanted.serves),
                vec![seen, format!("planned: {text} ({})", wanted.carrier)],
                fix(&[Change::SetNeighbour(spec)]),
            );
        }
        self.fixed_peers(seen, to);
        for entry in seen {
            let own = entry.protocol.as_deref().is_some_and(rules::is_own_protocol);
            if own && !planned.contains(&(entry.ip, entry.netdev.as_str())) {
                let change = Change::RemoveNeighbour { neighbour: entry.clone() };
                left.push((format!("neighbour {}", neighbour_text(entry)), change));
            }
        }
    }

    fn filters(&self, left: &mut Vec<Left>, to: &mut Findings) {
        let needed = !self.desired.filters.is_empty();
        let Some(seen) = self.read(&self.state.filters, "filters", needed, to) else { return };
        let mut planned = BTreeSet::new();
        for wanted in &self.desired.filters {
            let ends =
                self.state.netdev_by_mac(wanted.into).zip(self.state.netdev_by_mac(wanted.out));
            let Some((into, out)) = ends else { continue };
            planned.insert((into.name.as_str(), wanted.preference));
            let spec = FilterSpec {
                netdev: into.name.clone(),
                preference: wanted.preference,
                ether_type: wanted.ether_type,
                source_mac: wanted.source,
                destination_mac: wanted.into,
                set_ether_type: wanted.set_ether_type,
                set_destination_mac: wanted.next,
                redirect_to: out.name.clone(),
                software: self.desired.software,
                serves: wanted.serves.clone(),
            };
            let there = seen.iter().find(|filter| {
                rules::is_own_filter(filter)
                    && filter.netdev == into.name
                    && filter.preference == wanted.preference
            });
            self.filter(&spec, there, to);
        }
        for filter in seen.iter().filter(|filter| rules::is_own_filter(filter)) {
            if !planned.contains(&(filter.netdev.as_str(), filter.preference)) {
                let change = Change::RemoveFilter { filter: filter.clone() };
                left.push((format!("filter of {}", filter_text(filter)), change));
            }
        }
    }

    /// Egress filters of an older plan. Those of this one are looked at where marking is.
    fn marks(&self, left: &mut Vec<Left>) {
        let planned: Vec<_> = self
            .desired
            .markers
            .iter()
            .filter_map(|marker| Some((marker, self.state.netdev_by_mac(marker.function)?)))
            .flat_map(|(marker, netdev)| rules::mark_specs(&netdev.name, &marker.rules, ""))
            .collect();
        let seen = self.state.egress.known().into_iter().flatten();
        for filter in seen.filter(|filter| rules::is_own_mark(filter)) {
            let place = |spec: &MarkSpec| {
                spec.netdev == filter.netdev && spec.preference == filter.preference
            };
            if !planned.iter().any(place) {
                let change = Change::RemoveMark { filter: filter.clone() };
                left.push((mark_text(filter), change));
            }
        }
    }

    fn filter(&self, spec: &FilterSpec, there: Option<&Filter>, to: &mut Findings) {
        let planned = format!("planned: {}", filter_text(&spec.as_seen()));
        let at = Some(spec.netdev.as_str());
        let add = Change::AddFilter(spec.clone());
        let Some(filter) = there else {
            let evidence = vec![planned];
            let qdisc = Change::AddQdisc { netdev: spec.netdev.clone() };
            let message = format!("no filter passes on {}", spec.serves);
            to.find(&NO_FILTER, self.host(), at, message, evidence, fix(&[qdisc, add]));
            return;
        };
        let again = fix(&[Change::RemoveFilter { filter: filter.clone() }, add]);
        if !same_work(filter, &spec.as_seen()) {
            let message = format!("the filter for {} does something else", spec.serves);
            let evidence = vec![format!("there: {}", filter_text(filter)), planned];
            to.find(&WRONG_FILTER, self.host(), at, message, evidence, again);
            return;
        }
        if spec.software {
            to.looked(SECTION, 1, "filters: as planned, in software");
            return;
        }
        match &filter.in_hardware {
            Seen::Known(true) => to.looked(SECTION, 1, "filters: as planned, in hardware"),
            Seen::Known(false) => {
                let message = format!("the NIC does not carry out the filter for {}", spec.serves);
                let evidence =
                    vec![format!("there: {}", filter_text(filter)), "not_in_hw".to_owned()];
                to.find(&NOT_IN_HARDWARE, self.host(), at, message, evidence, again);
            }
            Seen::NotMeasured(why) => {
                let what = format!("whether the filter of {} is in hardware", spec.netdev);
                to.undecided(SECTION, self.host(), what, why.as_str());
            }
        }
    }

    /// What somebody else made and Railweave will not change.
    fn in_the_way(&self, to: &mut Findings) {
        for refusal in rules::compare(self.desired, self.state).refusals {
            let (code, netdev, message, command) = match &refusal {
                Refusal::ForeignRoute { to, netdev, .. } => (
                    &FOREIGN_ROUTE,
                    netdev,
                    "somebody else's route leads to a planned address",
                    format!("sudo ip route del {to} dev {netdev}"),
                ),
                Refusal::ForeignFilter { netdev, preference, .. } => (
                    &FOREIGN_FILTER,
                    netdev,
                    "somebody else's filter is in the way of the plan's",
                    format!("sudo tc filter del dev {netdev} ingress pref {preference}"),
                ),
                Refusal::ForeignMark { netdev, preference, .. } => (
                    &FOREIGN_FILTER,
                    netdev,
                    "somebody else's filter is in the way of the plan's",
                    format!("sudo tc filter del dev {netdev} egress pref {preference}"),
                ),
                // The rest is told where it is looked at: here, in other sections, or as undecided.
                _ => continue,
            };
            let evidence = vec![refusal.to_string()];
            to.find(code, self.host(), Some(netdev), message, evidence, Some(command));
        }
    }

    fn left_over(&self, left: Vec<Left>, to: &mut Findings) {
        if left.is_empty() {
            return;
        }
        let (evidence, changes): (Vec<_>, Vec<_>) = left.into_iter().unzip();
        to.find(
            &LEFT_OVER,
            self.host(),
            None,
            "rules with Railweave's mark are left that the plan does not have",
            evidence,
            fix(&changes),
        );
    }
}
