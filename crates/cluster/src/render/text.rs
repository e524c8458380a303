//! The cluster drawn in text.

use super::canvas::Canvas;
use super::{between, host, kinds, order, summary};
use crate::plan::{Plan, Shape};

/// Most hosts that stand side by side.
const MOST_ACROSS: usize = 4;

/// Rows between two rows of hosts.
const ROWS_BETWEEN: usize = 3;

/// The cluster as a drawing in box characters, at most 110 columns wide with names as on a GB10: a ring as a ring of
/// boxes, a path as a line, a switch above its hosts; any other cabling host by host.
pub fn text(plan: &Plan) -> String {
    let mut out = format!("{}\n\n", summary(plan));
    match plan.shape {
        Shape::Single | Shape::Pair => line(plan, &order(plan), &mut out),
        Shape::Path if plan.ranks.len() <= MOST_ACROSS => line(plan, &order(plan), &mut out),
        Shape::Path | Shape::Triangle | Shape::Ring => ring(plan, &order(plan), &mut out),
        Shape::Switch => switch(plan, &mut out),
        Shape::Full | Shape::Graph => graph(plan, &mut out),
    }
    if !plan.paths.is_empty() {
        out.push_str(&format!(
            "\n══ and ║: two functions or more · ─ and │: one · paths: {}\n",
            kinds(plan)
        ));
    }
    out
}

fn lines(plan: &Plan, rank: usize) -> Vec<String> {
    vec![host(plan, rank).to_owned(), format!("rank {rank}")]
}

/// How wide boxes of hosts are, and how wide the space between two is.
fn widths(plan: &Plan) -> (usize, usize) {
    let text = (0..plan.ranks.len())
        .flat_map(|rank| lines(plan, rank))
        .map(|line| line.chars().count())
        .max();
    let ports = plan.cables.iter().flat_map(|cable| {
        [Some(&cable.a.1), cable.b.as_ref().map(|(_, port)| port)]
            .into_iter()
            .flatten()
            .map(|port| port.chars().count())
    });
    (text.unwrap_or(0) + 4, 2 * ports.max().unwrap_or(0) + 10)
}

/// Rows a box needs for its text and for cables one above the other.
fn height(plan: &Plan, ranks: &[usize]) -> usize {
    let cables = ranks.windows(2).filter_map(|two| match two {
        [a, b] => Some(between(plan, *a, *b).len()),
        _ => None,
    });
    cables.max().unwrap_or(0).max(2) + 2
}

fn across(
    plan: &Plan,
    canvas: &mut Canvas,
    (a, from): (usize, usize),
    (b, to): (usize, usize),
    y: usize,
) {
    for (offset, ends) in between(plan, a, b).iter().enumerate() {
        canvas.across(from, to, y + 1 + offset, ends.near, ends.far, ends.rails);
    }
}

fn line(plan: &Plan, ranks: &[usize], out: &mut String) {
    let (width, gap) = widths(plan);
    let height = height(plan, ranks);
    let mut canvas = Canvas::default();
    for (place, &rank) in ranks.iter().enumerate() {
        let x = place * (width + gap);
        canvas.frame(x, 0, width, height, &lines(plan, rank));
        if let Some(&next) = ranks.get(place + 1) {
            across(plan, &mut canvas, (rank, x + width), (next, x + width + gap), 0);
        }
    }
    canvas.print(out);
}

/// Half of the hosts above, from left to right, the others below, from right to left.
fn ring(plan: &Plan, ranks: &[usize], out: &mut String) {
    let (width, gap) = widths(plan);
    let height = height(plan, ranks);
    let (above, below) = ranks.split_at(ranks.len().div_ceil(2));
    let whole = above.len() * (width + gap) - gap;
    let mut canvas = Canvas::default();
    let lower = height + ROWS_BETWEEN;
    let mut top: Vec<(usize, usize)> = Vec::new();
    for (place, &rank) in above.iter().enumerate() {
        top.push((rank, place * (width + gap)));
    }
    let mut bottom: Vec<(usize, usize)> = Vec::new();
    for (place, &rank) in below.iter().rev().enumerate() {
        let x = match below.len() {
            1 => (whole - width) / 2,
            many => place * (whole - width) / (many - 1),
        };
        bottom.push((rank, x));
    }
    for (row, y) in [(&top, 0), (&bottom, lower)] {
        for two in row.windows(2) {
            if let [(a, left), (b, right)] = two {
                across(plan, &mut canvas, (*a, left + width), (*b, *right), y);
            }
        }
        for (rank, x) in row {
            canvas.frame(*x, y, width, height, &lines(plan, *rank));
        }
    }
    if let [(only, x)] = bottom.as_slice() {
        elbows(plan, &mut canvas, &top, (*only, *x), (width, height));
    } else {
        for (up, down) in [(top.first(), bottom.first()), (top.last(), bottom.last())] {
            let (Some((a, x)), Some((b, _))) = (up, down) else { continue };
            for (offset, ends) in between(plan, *a, *b).iter().enumerate() {
                let column = x + width / 2 - 1 + offset * 6;
                canvas.down(column, height, lower, ends.near, ends.far, ends.rails);
            }
        }
    }
    canvas.print(out);
}

/// Cables from the outer hosts above into the sides of the only host below.
fn elbows(
    plan: &Plan,
    canvas: &mut Canvas,
    top: &[(usize, usize)],
    (below, x): (usize, usize),
    (width, height): (usize, usize),
) {
    let y = height + ROWS_BETWEEN + 1;
    for (up, left) in [(top.first(), true), (top.last(), false)] {
        let Some((rank, start)) = up else { continue };
        let Some(ends) = between(plan, *rank, below).into_iter().next() else { continue };
        let double = ends.rails > 1;
        let column = start + width / 2 - 1;
        canvas.down(column, height, y, ends.near, "", ends.rails);
        let mark = |double_mark, single| if double { double_mark } else { single };
        let (from, to) = if left { (column, x) } else { (x + width, column + 1) };
        for place in from..to {
            canvas.put(place, y, mark('═', '─'));
        }
        canvas.put(column, y, if left { mark('╚', '└') } else { mark('╝', '┘') });
        let label = format!(" {} ", ends.far);
        let space = label.chars().count();
        canvas.write(if left { x.saturating_sub(space) } else { x + width }, y, &label);
    }
}

/// The switch above, its hosts below.
fn switch(plan: &Plan, out: &mut String) {
    let (width, _) = widths(plan);
    let ports = |rank: usize| {
        plan.cables.iter().filter(move |cable| cable.switch.is_some() && cable.a.0 == rank)
    };
    let label = plan.cables.iter().map(|cable| cable.a.1.chars().count()).max().unwrap_or(0);
    let most = (0..plan.ranks.len()).map(|rank| ports(rank).count()).max().unwrap_or(0);
    let step = width.max(most * (label + 4) + 2) + 2;
    let name = plan
        .cables
        .iter()
        .find_map(|cable| cable.switch.clone())
        .unwrap_or_else(|| "switch".to_owned());
    let whole = (plan.ranks.len() * step).saturating_sub(2).max(name.chars().count() + 13);
    let mut canvas = Canvas::default();
    canvas.frame(0, 0, whole, 3, &[format!("{name} (switch)")]);
    let lower = 3 + ROWS_BETWEEN - 1;
    for rank in 0..plan.ranks.len() {
        let x = rank * step;
        canvas.frame(x, lower, step - 2, 4, &lines(plan, rank));
        for (offset, cable) in ports(rank).enumerate() {
            // A switch's cable joins no pairs of functions; how many functions its port has says how it is drawn.
            let functions = plan.ranks.get(rank).map_or(0, |rank| {
                rank.functions.iter().filter(|function| function.port == cable.a.1).count()
            });
            canvas.down(x + 2 + offset * (label + 4), 3, lower, "", &cable.a.1, functions);
        }
    }
    canvas.print(out);
}

/// Host by host, each with its cables.
fn graph(plan: &Plan, out: &mut String) {
    let near = plan.cables.iter().map(|cable| cable.a.1.chars().count());
    let far = plan.cables.iter().filter_map(|cable| Some(cable.b.as_ref()?.1.chars().count()));
    let label = near.chain(far).max().unwrap_or(0);
    for rank in &plan.ranks {
        out.push_str(&format!("{} (rank {})\n", rank.host, rank.rank));
        let mut rows = Vec::new();
        for other in &plan.ranks {
            for ends in between(plan, rank.rank, other.rank) {
                let wire = if ends.rails > 1 { "════" } else { "────" };
                rows.push(format!(
                    "{:<label$} {wire} {:<label$} {}",
                    ends.near, ends.far, other.host
                ));
            }
        }
        for cable in plan.cables.iter().filter(|cable| cable.a.0 == rank.rank) {
            if let Some(switch) = &cable.switch {
                rows.push(format!("{:<label$} ──── {switch} (switch)", cable.a.1));
            }
        }
        let last = rows.len().saturating_sub(1);
        for (place, row) in rows.iter().enumerate() {
            out.push_str(&format!("  {} {row}\n", if place == last { '└' } else { '├' }));
        }
    }
}
