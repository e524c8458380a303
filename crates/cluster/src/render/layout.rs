//! Where hosts, ports and cables are on the drawing. Lengths are in the units of the SVG's view box.

use std::f64::consts::PI;

use super::order;
use super::table::device;
use crate::plan::{Plan, Shape};

/// Most hosts that stand side by side.
const MOST_ACROSS: usize = 4;
/// Space between hosts side by side, and between hosts one above the other.
const GAP: (f64, f64) = (190.0, 110.0);
/// Half of a switch's width and height.
pub(super) const SWITCH: (f64, f64) = (80.0, 26.0);
/// Height of the head of a host's box, and of each line for a function.
pub(super) const HEAD: f64 = 52.0;
pub(super) const ROW: f64 = 17.0;
/// Width of a character of the small, evenly spaced type, and of the large one.
pub(super) const SMALL: f64 = 6.7;
const LARGE: f64 = 9.2;
/// Space around everything, and above it for the title.
const MARGIN: f64 = 36.0;
const TITLE: f64 = 74.0;
/// Distance of two cables that join the same hosts.
const APART: f64 = 44.0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
}

impl Point {
    pub(super) fn plus(self, by: Self, times: f64) -> Self {
        Self { x: self.x + by.x * times, y: self.y + by.y * times }
    }

    /// The direction to another point, of length 1; to the right if both are one.
    pub(super) fn towards(self, other: Self) -> Self {
        let (x, y) = (other.x - self.x, other.y - self.y);
        let length = x.hypot(y);
        if length > 0.0 { Self { x: x / length, y: y / length } } else { Self { x: 1.0, y: 0.0 } }
    }

    /// Turned to the left by a quarter.
    pub(super) fn normal(self) -> Self {
        Self { x: -self.y, y: self.x }
    }
}

/// A cable from port to port, or from a port to a switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) a: Point,
    pub(super) b: Point,
}

#[derive(Debug)]
pub(super) struct Layout {
    pub(super) width: f64,
    pub(super) height: f64,
    /// Half of the width and height of a host's box.
    pub(super) half: (f64, f64),
    /// Centres of the hosts, by rank.
    pub(super) hosts: Vec<Point>,
    /// Names and centres of the switches.
    pub(super) switches: Vec<(String, Point)>,
    /// By number of the cable.
    pub(super) lines: Vec<Line>,
    /// Width of the column of devices in a host's box, in characters.
    pub(super) device_width: usize,
}

/// Computes all places.
pub(super) fn layout(plan: &Plan) -> Layout {
    let functions = || plan.ranks.iter().flat_map(|rank| &rank.functions);
    let device_width =
        functions().map(|function| device(function).chars().count()).max().unwrap_or(0);
    let rows = plan.ranks.iter().map(|rank| rank.functions.len()).max().unwrap_or(0);
    let names = plan.ranks.iter().map(|rank| rank.host.chars().count()).max().unwrap_or(0);
    let (names, devices, rows) = (count(names), count(device_width), count(rows));
    // Six characters for port and number, eighteen for an address.
    let width = (SMALL * (devices + 26.0) + 28.0).max(names * LARGE + 96.0);
    let half = (width / 2.0, (HEAD + ROW * rows + 10.0) / 2.0);
    let mut hosts = places(plan, half);
    let mut names: Vec<String> =
        plan.cables.iter().filter_map(|cable| cable.switch.clone()).collect();
    names.sort();
    names.dedup();
    let middle = (count(names.len()) - 1.0) / 2.0;
    let mut switches: Vec<(String, Point)> = names
        .into_iter()
        .enumerate()
        .map(|(number, name)| {
            (name, Point { x: 0.0, y: (count(number) - middle) * (SWITCH.1 * 2.0 + 20.0) })
        })
        .collect();
    let (mut low, mut high) =
        (Point { x: f64::MAX, y: f64::MAX }, Point { x: f64::MIN, y: f64::MIN });
    let boxes = hosts.iter().map(|centre| (*centre, half));
    for (centre, half) in boxes.chain(switches.iter().map(|(_, centre)| (*centre, SWITCH))) {
        low = Point { x: low.x.min(centre.x - half.0), y: low.y.min(centre.y - half.1) };
        high = Point { x: high.x.max(centre.x + half.0), y: high.y.max(centre.y + half.1) };
    }
    if low.x > high.x {
        (low, high) = (Point::default(), Point::default());
    }
    // Few hosts must not make the drawing too narrow for its title and legend.
    let wide = (high.x - low.x).max(560.0);
    let shift =
        Point { x: MARGIN - low.x + (wide - (high.x - low.x)) / 2.0, y: TITLE + MARGIN - low.y };
    for centre in hosts.iter_mut().chain(switches.iter_mut().map(|(_, centre)| centre)) {
        *centre = centre.plus(shift, 1.0);
    }
    let lines = lines(plan, &hosts, &switches, half);
    Layout {
        width: wide + 2.0 * MARGIN,
        height: high.y - low.y + TITLE + 2.0 * MARGIN,
        half,
        hosts,
        switches,
        lines,
        device_width,
    }
}

/// Counts here are of hosts, ports and characters: far below what an f64 holds exactly.
fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::from(u32::MAX), f64::from)
}

/// Centres of the hosts around 0: side by side for short lines, else round an ellipse in the order of the cables.
fn places(plan: &Plan, half: (f64, f64)) -> Vec<Point> {
    let ranks = plan.ranks.len();
    let mut places = vec![Point::default(); ranks];
    let line =
        matches!(plan.shape, Shape::Single | Shape::Pair | Shape::Path) && ranks <= MOST_ACROSS;
    let switched = plan.cables.iter().any(|cable| cable.switch.is_some());
    let step = (half.0 * 2.0 + GAP.0, half.1 * 2.0 + GAP.1);
    // Neighbours on the ellipse are as far apart as hosts in a line, across and down.
    let chord = 2.0 * (PI / count(ranks.max(3))).sin();
    let least = if switched {
        (half.0 + SWITCH.0 + 130.0, half.1 + SWITCH.1 + 90.0)
    } else {
        (0.0, half.1 + 110.0)
    };
    let radius = ((step.0 / chord).max(least.0), (step.1 / chord).max(least.1));
    for (place, rank) in order(plan).into_iter().enumerate() {
        let Some(point) = places.get_mut(rank) else { continue };
        *point = if line {
            Point { x: count(place) * step.0, y: 0.0 }
        } else if ranks <= 2 {
            Point { x: if place == 0 { -radius.0 } else { radius.0 }, y: 0.0 }
        } else {
            // The first two side by side at the top.
            let angle = -PI / 2.0 + 2.0 * PI * (count(place) - 0.5) / count(ranks);
            Point { x: radius.0 * angle.cos(), y: radius.1 * angle.sin() }
        };
    }
    places
}

fn lines(
    plan: &Plan,
    hosts: &[Point],
    switches: &[(String, Point)],
    half: (f64, f64),
) -> Vec<Line> {
    let key = |cable: &crate::plan::CablePlan| {
        let b = cable.b.as_ref().map(|(rank, _)| *rank);
        (
            b.map_or(cable.a.0, |b| b.min(cable.a.0)),
            b.map(|b| b.max(cable.a.0)),
            cable.switch.clone(),
        )
    };
    let mut lines = Vec::new();
    for (index, cable) in plan.cables.iter().enumerate() {
        let own = key(cable);
        let alike: Vec<usize> = (0..plan.cables.len())
            .filter(|other| plan.cables.get(*other).is_some_and(|other| key(other) == own))
            .collect();
        let place = alike.iter().position(|other| *other == index).unwrap_or(0);
        let offset = (count(place) - (count(alike.len()) - 1.0) / 2.0) * APART;
        let a = hosts.get(cable.a.0).copied().unwrap_or_default();
        let (b, half_b) = match (&cable.b, &cable.switch) {
            (Some((rank, _)), _) => (hosts.get(*rank).copied().unwrap_or_default(), half),
            (None, Some(name)) => {
                let found = switches.iter().find(|(switch, _)| switch == name);
                (found.map(|(_, centre)| *centre).unwrap_or_default(), SWITCH)
            }
            (None, None) => (a, half),
        };
        // From the lower rank, so that cables of one pair keep their order whichever end is named first.
        let forth = cable.b.as_ref().is_none_or(|(rank, _)| cable.a.0 <= *rank);
        let along = if forth { a.towards(b) } else { b.towards(a) };
        let shift = Point::default().plus(along.normal(), offset);
        let (a, b) = ((a, a.plus(shift, 1.0)), (b, b.plus(shift, 1.0)));
        let ab = a.1.towards(b.1);
        let ba = b.1.towards(a.1);
        lines.push(Line { a: edge(a.0, half, a.1, ab), b: edge(b.0, half_b, b.1, ba) });
    }
    lines
}

/// Where a ray from a point in a box leaves it.
fn edge(centre: Point, half: (f64, f64), from: Point, along: Point) -> Point {
    let reach = |half: f64, offset: f64, along: f64| {
        if along.abs() < 1e-9 {
            f64::MAX
        } else {
            ((half * along.signum() - offset) / along).max(0.0)
        }
    };
    let x = reach(half.0, from.x - centre.x, along.x);
    let y = reach(half.1, from.y - centre.y, along.y);
    from.plus(along, x.min(y))
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
