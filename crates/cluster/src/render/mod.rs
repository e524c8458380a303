//! The plan for people: a table, a drawing in text, and a drawing as SVG.
//!
//! All three depend on the plan alone, so that equal plans look equal.

mod canvas;
mod layout;
mod svg;
mod svg_parts;
mod table;
mod text;

use crate::plan::{CablePlan, PathKind, Plan, Shape};

pub use svg::{SvgOptions, svg, svg_with};
pub use table::table;
pub use text::text;

/// Ports at both ends of a cable, as seen from one rank, and how many pairs of functions meet over it.
struct Ends<'a> {
    near: &'a str,
    far: &'a str,
    rails: usize,
}

/// The host of a rank.
fn host(plan: &Plan, rank: usize) -> &str {
    plan.ranks.get(rank).map_or("?", |rank| rank.host.as_str())
}

/// Cables between two ranks, in the order of the file.
fn between(plan: &Plan, from: usize, to: usize) -> Vec<Ends<'_>> {
    let ends = |(index, cable): (usize, &'_ CablePlan)| -> Option<(usize, bool)> {
        let (b, _) = cable.b.as_ref()?;
        match (cable.a.0, *b) {
            (a, b) if (a, b) == (from, to) => Some((index, true)),
            (a, b) if (b, a) == (from, to) => Some((index, false)),
            _ => None,
        }
    };
    plan.cables
        .iter()
        .enumerate()
        .filter_map(ends)
        .filter_map(|(index, forth)| {
            let cable = plan.cables.get(index)?;
            let (a, b) = (cable.a.1.as_str(), cable.b.as_ref()?.1.as_str());
            let (near, far) = if forth { (a, b) } else { (b, a) };
            Some(Ends { near, far, rails: cable.pairs.len() })
        })
        .collect()
}

/// Ranks in the order in which cables join them, as far as the shape has one: from rank 0 towards its lower neighbour
/// in a ring, from the end with the lower rank in a path; else in the order of ranks.
fn order(plan: &Plan) -> Vec<usize> {
    let all: Vec<usize> = (0..plan.ranks.len()).collect();
    let neighbours = |rank: usize| {
        plan.ranks.get(rank).map(|rank| rank.neighbours.as_slice()).unwrap_or_default()
    };
    let start = match plan.shape {
        Shape::Path => all.iter().copied().find(|rank| neighbours(*rank).len() == 1),
        Shape::Ring => Some(0),
        _ => None,
    };
    let Some(mut here) = start else { return all };
    let mut found = vec![here];
    while let Some(next) =
        neighbours(here).iter().copied().filter(|next| !found.contains(next)).min()
    {
        found.push(next);
        here = next;
    }
    // A graph that is none of these shapes after all: no rank may be missing.
    if found.len() == all.len() { found } else { all }
}

/// What the cluster is, in a few words.
fn summary(plan: &Plan) -> String {
    let hosts = plan.ranks.len();
    let what = match plan.shape {
        Shape::Single => "one host".to_owned(),
        Shape::Pair => "pair".to_owned(),
        Shape::Triangle => "triangle of 3 hosts".to_owned(),
        Shape::Path => format!("path of {hosts} hosts"),
        Shape::Ring => format!("ring of {hosts} hosts"),
        Shape::Switch => format!("{hosts} hosts on a switch"),
        Shape::Full => format!("{hosts} hosts, every two joined"),
        Shape::Graph => format!("{hosts} hosts"),
    };
    let cables = match plan.cables.len() {
        1 => "1 cable".to_owned(),
        many => format!("{many} cables"),
    };
    format!("{what}, {cables}")
}

/// A word for a setting, as the cluster file spells it.
fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "?".to_owned(),
    }
}

fn kind(kind: PathKind) -> &'static str {
    match kind {
        PathKind::Direct => "direct",
        PathKind::Forwarded => "forwarded",
        PathKind::Relayed => "relayed",
    }
}

/// Paths of each kind: `8 direct, 4 forwarded`.
fn kinds(plan: &Plan) -> String {
    let counts = [PathKind::Direct, PathKind::Forwarded, PathKind::Relayed].map(|one| {
        let count = plan.paths.iter().filter(|path| path.kind == one).count();
        (count > 0).then(|| format!("{count} {}", kind(one)))
    });
    counts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
