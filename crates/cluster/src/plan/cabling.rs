//! Which port is plugged into which, and which cable to move to make something else of it.

use std::collections::BTreeSet;

use super::error::PlanError;
use super::wiring::Wiring;
use super::{CablePlan, FunctionRef, Plan};

/// Two ranks a cable joins, the lower first.
pub(super) type Edge = (usize, usize);

/// A port: its rank and its name.
type Plug = (usize, String);

/// Cables between hosts, and ports without any.
pub(super) struct Cabling {
    hosts: Vec<String>,
    free: Vec<Vec<String>>,
    cables: Vec<(Plug, Plug)>,
}

impl Cabling {
    pub(super) fn of_plan(plan: &Plan) -> Self {
        let functions = plan.ranks.iter().map(|rank| rank.functions.as_slice());
        Self::of(plan.ranks.iter().map(|rank| rank.host.clone()).collect(), functions, &plan.cables)
    }

    fn of_wiring(wiring: &Wiring) -> Self {
        let functions = wiring
            .of_rank
            .iter()
            .map(|range| wiring.functions.get(range.clone()).unwrap_or_default());
        Self::of(wiring.hosts.clone(), functions, &wiring.cables)
    }

    fn of<'a>(
        hosts: Vec<String>,
        functions: impl Iterator<Item = &'a [FunctionRef]>,
        cables: &[CablePlan],
    ) -> Self {
        let free = functions.enumerate().map(|(rank, functions)| {
            let mut ports: Vec<String> =
                functions.iter().map(|function| function.port.clone()).collect();
            ports.dedup();
            let plugged = |port: &String| {
                let is = |plug: &Plug| plug.0 == rank && plug.1 == *port;
                cables.iter().any(|cable| is(&cable.a) || cable.b.as_ref().is_some_and(is))
            };
            ports.retain(|port| !plugged(port));
            ports
        });
        let free = free.collect();
        let cables =
            cables.iter().filter_map(|cable| Some((cable.a.clone(), cable.b.clone()?))).collect();
        Self { hosts, free, cables }
    }

    pub(super) fn name(&self, rank: usize) -> &str {
        self.hosts.get(rank).map_or("?", String::as_str)
    }

    /// `a–b–c`.
    pub(super) fn names(&self, ranks: &[usize]) -> String {
        ranks.iter().map(|&rank| self.name(rank)).collect::<Vec<_>>().join("–")
    }

    fn plug(&self, (rank, port): &Plug) -> String {
        format!("{}.{port}", self.name(*rank))
    }

    fn cable(&self, (a, b): &(Plug, Plug)) -> String {
        format!("{}–{}", self.plug(a), self.plug(b))
    }

    fn edges(&self) -> BTreeSet<Edge> {
        self.cables.iter().map(|(a, b)| (a.0.min(b.0), a.0.max(b.0))).collect()
    }

    fn next_to(&self, rank: usize) -> BTreeSet<usize> {
        let other = |&(a, b): &Edge| if a == rank { Some(b) } else { (b == rank).then_some(a) };
        self.edges().iter().filter_map(other).collect()
    }

    pub(super) fn degree(&self, rank: usize) -> usize {
        self.next_to(rank).len()
    }

    /// Hosts in the order a person would follow cables from one, always to the lowest rank not seen.
    pub(super) fn walk(&self, from: usize) -> Vec<usize> {
        let mut seen = vec![from];
        let mut at = from;
        while let Some(next) = self.next_to(at).into_iter().find(|rank| !seen.contains(rank)) {
            seen.push(next);
            at = next;
        }
        seen
    }

    /// Hosts that chains of cables join to one, itself included.
    fn joined_to(&self, from: usize) -> BTreeSet<usize> {
        let mut joined = BTreeSet::from([from]);
        let mut front = vec![from];
        while let Some(rank) = front.pop() {
            front.extend(self.next_to(rank).into_iter().filter(|&rank| joined.insert(rank)));
        }
        joined
    }

    /// The cabling after one cable is pulled, its ports free.
    fn without(&self, pulled: usize) -> Self {
        let mut free = self.free.clone();
        let mut cables = self.cables.clone();
        if pulled < cables.len() {
            let (a, b) = cables.remove(pulled);
            for (rank, port) in [a, b] {
                if let Some(ports) = free.get_mut(rank) {
                    ports.push(port);
                    ports.sort();
                }
            }
        }
        Self { hosts: self.hosts.clone(), free, cables }
    }

    /// The cabling with one cable more.
    fn with(&self, a: Plug, b: Plug) -> Self {
        let mut free = self.free.clone();
        for (rank, port) in [&a, &b] {
            if let Some(ports) = free.get_mut(*rank) {
                ports.retain(|free| free != port);
            }
        }
        let mut cables = self.cables.clone();
        cables.push((a, b));
        Self { hosts: self.hosts.clone(), free, cables }
    }

    fn free_port(&self, rank: usize) -> Option<Plug> {
        Some((rank, self.free.get(rank)?.first()?.clone()))
    }

    /// Both ends, if the cabling is a path through every host.
    fn path_ends(&self) -> Option<Edge> {
        let count = self.hosts.len();
        if count < 2 || self.cables.len() + 1 != count || self.joined_to(0).len() != count {
            return None;
        }
        let degree = |rank: &usize| self.degree(*rank);
        let ends: Vec<usize> = (0..count).filter(|rank| degree(rank) == 1).collect();
        match ends.as_slice() {
            [a, b] if (0..count).all(|rank| degree(&rank) <= 2) => Some((*a, *b)),
            _ => None,
        }
    }

    /// The cable that would make a ring of a path.
    pub(super) fn closing_cable(&self) -> Option<String> {
        let (a, b) = self.path_ends()?;
        Some(self.cable(&(self.free_port(a)?, self.free_port(b)?)))
    }

    /// The move of one cable that makes a ring of all hosts: rather of one of its ends than of both.
    pub(super) fn move_to_ring(&self) -> Option<String> {
        let moves = |index: usize| {
            let (a, b) = self.cables.get(index)?;
            let rest = self.without(index);
            let (x, y) = rest.path_ends()?;
            for (stays, end, other) in [(a, b, x), (a, b, y), (b, a, x), (b, a, y)] {
                // The end that stays is at one end of the path left; the other end goes to the other.
                if stays.0 == x + y - other && end.0 != other {
                    let to = rest.free_port(other)?;
                    let cable = self.cable(&(a.clone(), b.clone()));
                    return Some((
                        0,
                        format!(
                            "move the end {} of cable {cable} to {}",
                            self.plug(end),
                            self.plug(&to)
                        ),
                    ));
                }
            }
            let to = self.cable(&(rest.free_port(x)?, rest.free_port(y)?));
            Some((1, format!("move the cable {} to {to}", self.cable(&(a.clone(), b.clone())))))
        };
        let all = (0..self.cables.len()).filter_map(moves);
        all.min_by_key(|(ends, _)| *ends).map(|(_, step)| step)
    }

    /// A cycle with hosts hanging from it, or how many hosts and cables there are.
    pub(super) fn one_cycle_or_count(&self) -> String {
        let edges = self.edges();
        let count = self.hosts.len();
        let plain =
            format!("{count} hosts and {} cables, neither ring nor path", self.cables.len());
        if edges.len() != count || self.joined_to(0).len() != count {
            return plain;
        }
        // As many cables as hosts: one cycle. What is left after taking away hosts with one cable, again and again.
        let mut cycle: BTreeSet<usize> = (0..count).collect();
        let inside = |cycle: &BTreeSet<usize>, rank: usize| {
            self.next_to(rank).into_iter().filter(|other| cycle.contains(other)).count()
        };
        while let Some(leaf) = cycle.iter().copied().find(|&rank| inside(&cycle, rank) <= 1) {
            cycle.remove(&leaf);
        }
        let Some(&first) = cycle.first() else { return plain };
        let mut around = vec![first];
        let mut at = first;
        while let Some(next) =
            self.next_to(at).into_iter().find(|rank| cycle.contains(rank) && !around.contains(rank))
        {
            around.push(next);
            at = next;
        }
        let hanging: Vec<String> = (0..count)
            .filter(|rank| !cycle.contains(rank))
            .filter_map(|rank| {
                // Towards the cycle: the neighbour that is nearer to it.
                let towards = self.next_to(rank).into_iter().find(|&other| {
                    cycle.contains(&other)
                        || !self.without_host(rank).joined_to(other).is_disjoint(&cycle)
                })?;
                Some(format!("{} hanging from {}", self.name(rank), self.name(towards)))
            })
            .collect();
        let cycle = if around.len() == 3 {
            "triangle".to_owned()
        } else {
            format!("ring of {}", around.len())
        };
        format!("{cycle} {} with {}", self.names(&around), hanging.join(" and "))
    }

    fn without_host(&self, gone: usize) -> Self {
        let cables =
            self.cables.iter().filter(|(a, b)| a.0 != gone && b.0 != gone).cloned().collect();
        Self { hosts: self.hosts.clone(), free: self.free.clone(), cables }
    }

    /// What a part of the cabling is.
    fn part(&self, ranks: &[usize]) -> String {
        let inside = self.edges().into_iter().filter(|(a, _)| ranks.contains(a)).count();
        let end = ranks.iter().copied().find(|&rank| self.degree(rank) == 1);
        let walked = self.walk(end.or(ranks.first().copied()).unwrap_or(0));
        let plain = ranks.iter().all(|&rank| self.degree(rank) <= 2) && walked.len() == ranks.len();
        match (ranks.len(), inside) {
            (1, _) => format!("{} alone", self.names(ranks)),
            (2, _) => self.names(ranks),
            (3, 3) => format!("triangle {}", self.names(ranks)),
            (count, cables) if plain && count == cables => format!("ring {}", self.names(&walked)),
            _ if plain => format!("path {}", self.names(&walked)),
            _ => ranks.iter().map(|&rank| self.name(rank)).collect::<Vec<_>>().join(", "),
        }
    }

    /// A free port of a part, rather at a host with few cables.
    fn part_port(&self, ranks: &[usize]) -> Option<Plug> {
        let mut with_port: Vec<usize> =
            ranks.iter().copied().filter(|&rank| self.free_port(rank).is_some()).collect();
        with_port.sort_by_key(|&rank| (self.degree(rank), rank));
        self.free_port(*with_port.first()?)
    }

    /// A cable of a part that can be pulled without splitting it.
    fn spare_cable(&self, ranks: &[usize]) -> Option<usize> {
        let whole = |index: &usize| {
            ranks
                .first()
                .is_some_and(|&first| self.without(*index).joined_to(first).len() == ranks.len())
        };
        let inside =
            |index: &usize| self.cables.get(*index).is_some_and(|(a, _)| ranks.contains(&a.0));
        (0..self.cables.len()).filter(inside).find(whole)
    }

    /// Which cable would join two parts.
    fn join(&self, first: &[usize], second: &[usize]) -> String {
        let (step, joined) = match (self.part_port(first), self.part_port(second)) {
            (Some(a), Some(b)) => (
                format!("A cable {} would join them", self.cable(&(a.clone(), b.clone()))),
                self.with(a, b),
            ),
            (None, Some(to)) => match self.move_end(first, &to) {
                Some(step) => step,
                None => return self.no_port(first),
            },
            (Some(to), None) => match self.move_end(second, &to) {
                Some(step) => step,
                None => return self.no_port(second),
            },
            (None, None) => match self.exchange(first, second) {
                Some(step) => step,
                None => return self.no_port(first),
            },
        };
        let count = self.hosts.len();
        match joined.closing_cable() {
            Some(cable) if count > 2 => {
                format!("{step}; one more, {cable}, would make it a ring of {count}")
            }
            _ => step,
        }
    }

    fn no_port(&self, ranks: &[usize]) -> String {
        format!(
            "No port of {} is free",
            ranks.iter().map(|&rank| self.name(rank)).collect::<Vec<_>>().join(", ")
        )
    }

    /// Frees one end of a cable that its part can spare, and plugs it in elsewhere.
    fn move_end(&self, ranks: &[usize], to: &Plug) -> Option<(String, Self)> {
        let spare = self.spare_cable(ranks)?;
        let (a, b) = self.cables.get(spare)?;
        let step = format!(
            "{}: move the end {} of cable {} to {}",
            self.no_port(ranks),
            self.plug(b),
            self.cable(&(a.clone(), b.clone())),
            self.plug(to)
        );
        Some((step, self.without(spare).with(a.clone(), to.clone())))
    }

    /// Crosses two cables that their parts can spare.
    fn exchange(&self, first: &[usize], second: &[usize]) -> Option<(String, Self)> {
        let (one, two) = (self.spare_cable(first)?, self.spare_cable(second)?);
        let (a, b) = self.cables.get(one)?;
        let (c, d) = self.cables.get(two)?;
        let step = format!(
            "No port is free: exchange the ends {} and {} of cables {} and {}",
            self.plug(b),
            self.plug(d),
            self.cable(&(a.clone(), b.clone())),
            self.cable(&(c.clone(), d.clone()))
        );
        // The higher first, so that the lower keeps its place.
        let rest = self.without(one.max(two)).without(one.min(two));
        Some((step, rest.with(a.clone(), d.clone()).with(c.clone(), b.clone())))
    }
}

/// Refuses hosts that no chain of cables joins.
pub(super) fn check_joined(wiring: &Wiring) -> Result<(), PlanError> {
    let mut parts: Vec<Vec<usize>> = Vec::new();
    for rank in 0..wiring.hosts.len() {
        let joined = |part: &&mut Vec<usize>| {
            part.first().is_some_and(|&first| wiring.distance(first, rank).is_some())
        };
        match parts.iter_mut().find(joined) {
            Some(part) => part.push(rank),
            None => parts.push(vec![rank]),
        }
    }
    let [first, second, ..] = parts.as_slice() else { return Ok(()) };
    let cabling = Cabling::of_wiring(wiring);
    let switch_of = |ranks: &[usize]| {
        let on = |cable: &&CablePlan| ranks.contains(&cable.a.0) && cable.switch.is_some();
        wiring
            .cables
            .iter()
            .filter(on)
            .filter_map(|cable| cable.switch.clone())
            .collect::<BTreeSet<_>>()
    };
    let remedy = match switch_of(first).intersection(&switch_of(second)).next() {
        Some(switch) => format!(
            "{} and {} are on switch {switch} and share no network there: give a port of each an address of one network",
            cabling.part(first),
            cabling.part(second)
        ),
        None => cabling.join(first, second),
    };
    Err(PlanError::Disconnected {
        parts: parts.iter().map(|part| cabling.part(part)).collect(),
        remedy,
    })
}
