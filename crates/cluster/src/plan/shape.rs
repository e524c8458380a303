//! What the cabling is as a whole.

use std::collections::BTreeSet;

use super::cabling::{Cabling, Edge};
use super::wiring::Wiring;
use super::{Plan, Shape};

pub(super) fn of(wiring: &Wiring) -> Shape {
    let count = wiring.hosts.len();
    let switches: BTreeSet<&str> =
        wiring.cables.iter().filter_map(|cable| cable.switch.as_deref()).collect();
    let edges: BTreeSet<Edge> = (0..count)
        .flat_map(|a| {
            wiring.neighbours.get(a).into_iter().flatten().map(move |&b| (a.min(b), a.max(b)))
        })
        .collect();
    let every_two = edges.len() == count * (count - 1) / 2;
    if count > 1
        && every_two
        && switches.len() == 1
        && wiring.cables.iter().all(|cable| cable.switch.is_some())
    {
        return Shape::Switch;
    }
    of_graph(count, &edges)
}

/// The shape of a connected graph.
fn of_graph(count: usize, edges: &BTreeSet<Edge>) -> Shape {
    let degree = |rank| edges.iter().filter(|&&(a, b)| a == rank || b == rank).count();
    let all = |wanted: usize| (0..count).all(|rank| degree(rank) == wanted);
    match count {
        1 => Shape::Single,
        2 => Shape::Pair,
        3 if all(2) => Shape::Triangle,
        _ if all(count - 1) => Shape::Full,
        _ if all(2) => Shape::Ring,
        _ if edges.len() == count - 1 && (0..count).all(|rank| degree(rank) <= 2) => Shape::Path,
        _ => Shape::Graph,
    }
}

impl Plan {
    /// The cabling in words: the hosts in the order they are cabled, and for what is neither a ring nor another plain
    /// shape, which one cable to move to make it a ring, if one move does.
    ///
    /// `triangle spark0–spark1–spark2 with spark3 hanging from spark2: to make a ring of 4, move …`
    pub fn describe_shape(&self) -> String {
        let cabling = Cabling::of_plan(self);
        let count = self.ranks.len();
        match self.shape {
            Shape::Single => format!("one host, {}", cabling.name(0)),
            Shape::Pair => {
                let cables = self.cables.iter().filter(|cable| cable.b.is_some()).count();
                format!(
                    "pair {}–{}, {cables} cable{}",
                    cabling.name(0),
                    cabling.name(1),
                    if cables == 1 { "" } else { "s" }
                )
            }
            Shape::Triangle => format!("triangle {}", cabling.names(&[0, 1, 2])),
            Shape::Ring => {
                let mut around = cabling.walk(0);
                around.push(0);
                format!("ring of {count}: {}", cabling.names(&around))
            }
            Shape::Path => {
                let closing = cabling.closing_cable().map(|cable| {
                    format!(
                        "; a cable {cable} would make it a {}",
                        if count == 3 { "triangle" } else { "ring" }
                    )
                });
                let ends = (0..count).find(|&rank| cabling.degree(rank) == 1);
                format!(
                    "path {}{}",
                    cabling.names(&cabling.walk(ends.unwrap_or(0))),
                    closing.unwrap_or_default()
                )
            }
            Shape::Switch => {
                let switch =
                    self.cables.iter().find_map(|cable| cable.switch.as_deref()).unwrap_or("?");
                format!("{count} hosts on switch {switch}")
            }
            Shape::Full => format!("{count} hosts, every two joined"),
            Shape::Graph => match cabling.move_to_ring() {
                Some(step) => {
                    format!("{}: to make a ring of {count}, {step}", cabling.one_cycle_or_count())
                }
                None => cabling.one_cycle_or_count(),
            },
        }
    }
}
