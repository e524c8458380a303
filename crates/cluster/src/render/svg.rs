//! The cluster as an SVG.

use super::layout::{HEAD, Layout, Point, ROW, SMALL, SWITCH, layout};
use super::svg_parts::{STYLE, escaped, line, number, rectangle, text};
use super::table::device;
use super::{host, kind, kinds, summary, word};
use crate::address::Interface;
use crate::plan::{CablePlan, PathKind, PathPlan, Plan};

/// Height of the legend.
const LEGEND: f64 = 74.0;
/// Half of the space between the two lines of a cable.
const SPREAD: f64 = 4.0;
/// Distance of a drawn path from its cable.
const BESIDE: f64 = 13.0;

/// What to draw besides hosts and cables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SvgOptions {
    /// The pair of ranks whose path is drawn; none takes the first that is not direct, if there is one.
    pub path: Option<(usize, usize)>,
}

/// The cluster as an SVG: hosts as boxes with their functions, cables as one line for each function, wider the more
/// rails use it, and the path of the first distant pair. Follows the reader's choice of light or dark.
pub fn svg(plan: &Plan) -> String {
    svg_with(plan, &SvgOptions::default())
}

/// Like [`svg`], with the path of a chosen pair.
pub fn svg_with(plan: &Plan, options: &SvgOptions) -> String {
    let layout = layout(plan);
    let path = match options.path {
        Some((from, to)) => plan.path(from, to),
        None => plan.paths.iter().find(|path| path.kind != PathKind::Direct),
    };
    let height = layout.height + LEGEND;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"t d\">\n\
         <title id=\"t\">{}</title>\n<desc id=\"d\">{}</desc>\n<style>{STYLE}</style>\n",
        number(layout.width),
        number(height),
        escaped(&summary(plan)),
        escaped(&spoken(plan)),
    );
    out.push_str("<defs>\n");
    for rail in 0..2 {
        out.push_str(&format!(
            "<marker id=\"m{rail}\" viewBox=\"0 0 10 10\" refX=\"8\" refY=\"5\" markerWidth=\"5\" markerHeight=\"5\" \
             orient=\"auto\"><path d=\"M0 0L10 5L0 10z\" class=\"a{rail}\"/></marker>\n"
        ));
    }
    out.push_str("</defs>\n");
    let middle = Point { x: layout.width / 2.0, y: height / 2.0 };
    rectangle(&mut out, middle, (middle.x, middle.y), 14.0, "paper");
    text(&mut out, Point { x: 36.0, y: 44.0 }, "title", "start", &summary(plan));
    let settings = format!(
        "forward {} · tag {} · MTU {} bytes · paths: {}",
        word(&plan.forward),
        word(&plan.tag),
        plan.mtu_bytes,
        if plan.paths.is_empty() { "none".to_owned() } else { kinds(plan) }
    );
    text(&mut out, Point { x: 36.0, y: 66.0 }, "small quiet", "start", &settings);
    for (index, cable) in plan.cables.iter().enumerate() {
        rails(plan, &layout, index, cable, &mut out);
    }
    if let Some(path) = path {
        way(&layout, path, &mut out);
    }
    for rank in 0..plan.ranks.len() {
        host_box(plan, &layout, rank, &mut out);
    }
    for (name, centre) in &layout.switches {
        rectangle(&mut out, *centre, SWITCH, 22.0, "switch");
        text(&mut out, Point { x: centre.x, y: centre.y + 5.0 }, "host", "middle", name);
    }
    for (index, cable) in plan.cables.iter().enumerate() {
        labels(plan, &layout, index, cable, &mut out);
    }
    legend(plan, &layout, path, &mut out);
    out.push_str("</svg>\n");
    out
}

/// The drawing for those who hear it.
fn spoken(plan: &Plan) -> String {
    let cables: Vec<&str> = plan.cables.iter().map(|cable| cable.name.as_str()).collect();
    format!("Cables: {}. Paths: {}.", cables.join(", "), kinds(plan))
}

/// Functions that share the cable.
fn functions(plan: &Plan, cable: &CablePlan) -> usize {
    if cable.switch.is_none() {
        return cable.pairs.len().max(1);
    }
    let own = plan.ranks.get(cable.a.0).map_or(0, |rank| {
        rank.functions.iter().filter(|function| function.port == cable.a.1).count()
    });
    own.max(1)
}

/// Rails over one function of a cable, in both directions.
fn load(plan: &Plan, cable: usize, number: usize) -> usize {
    let loads = plan.loads.iter().filter(|load| load.cable == cable && load.number == number);
    loads.map(|load| load.direct + load.forwarded + load.relayed).sum()
}

fn most_load(plan: &Plan) -> usize {
    let all = plan.loads.iter().map(|one| load(plan, one.cable, one.number));
    all.max().unwrap_or(0)
}

/// Loads are counts of rails: at most some hundreds.
fn fraction(part: usize, whole: usize) -> f64 {
    let number = |count: usize| u32::try_from(count).map_or(f64::from(u32::MAX), f64::from);
    if whole == 0 { 0.0 } else { number(part) / number(whole) }
}

fn rails(plan: &Plan, layout: &Layout, index: usize, cable: &CablePlan, out: &mut String) {
    let Some(ends) = layout.lines.get(index) else { return };
    let normal = ends.a.towards(ends.b).normal();
    let (count, most) = (functions(plan, cable), most_load(plan));
    for number in 0..count {
        let offset = (fraction(number, 1) * 2.0 - fraction(count - 1, 1)) * SPREAD;
        let (a, b) = (ends.a.plus(normal, offset), ends.b.plus(normal, offset));
        let used = load(plan, index, number);
        let class =
            format!("rail f{}{}", number % 4, if used == 0 && most > 0 { " idle" } else { "" });
        let mut says = vec![format!("{}, function {number}", cable.name)];
        for load in plan.loads.iter().filter(|load| load.cable == index && load.number == number) {
            says.push(format!(
                "from {}: {} direct, {} forwarded, {} relayed",
                host(plan, load.from),
                load.direct,
                load.forwarded,
                load.relayed
            ));
        }
        line(out, a, b, &class, 1.8 + 2.6 * fraction(used, most), &says.join("; "));
    }
}

/// The path of one pair beside the cables it takes; in hosts between it runs behind their boxes.
fn way(layout: &Layout, path: &PathPlan, out: &mut String) {
    for (number, rail) in path.rails.iter().enumerate().take(2) {
        let mut points: Vec<Point> = Vec::new();
        let mut backwards = None;
        for crossing in &rail.crossings {
            let Some(ends) = layout.lines.get(crossing.cable) else { continue };
            let near = layout.hosts.get(crossing.out.rank).copied().unwrap_or_default();
            let distance = |point: Point| (point.x - near.x).hypot(point.y - near.y);
            let (a, b) = if distance(ends.a) <= distance(ends.b) {
                (ends.a, ends.b)
            } else {
                (ends.b, ends.a)
            };
            let side = if number == 0 { BESIDE } else { -BESIDE };
            let normal = a.towards(b).normal();
            points.extend([a.plus(normal, side), b.plus(normal, side)]);
            backwards = Some(b.towards(a));
        }
        // The arrow's head ends before the box, so that it is not hidden behind the port.
        if let (Some(last), Some(back)) = (points.last_mut(), backwards) {
            *last = last.plus(back, 6.0);
        }
        let mut data = String::new();
        for (place, point) in points.iter().enumerate() {
            data.push_str(&format!(
                "{}{} {}",
                if place == 0 { "M" } else { "L" },
                number_pair(*point).0,
                number_pair(*point).1
            ));
        }
        if !data.is_empty() {
            out.push_str(&format!(
                "<path d=\"{data}\" class=\"way w{number}\" marker-end=\"url(#m{number})\"/>\n"
            ));
        }
    }
}

fn number_pair(point: Point) -> (String, String) {
    (number(point.x), number(point.y))
}

fn host_box(plan: &Plan, layout: &Layout, rank: usize, out: &mut String) {
    let (Some(own), Some(centre)) = (plan.ranks.get(rank), layout.hosts.get(rank).copied()) else {
        return;
    };
    let half = layout.half;
    rectangle(out, centre, half, 10.0, "box");
    let (left, right, top) =
        (centre.x - half.0 + 14.0, centre.x + half.0 - 14.0, centre.y - half.1);
    text(out, Point { x: left, y: top + 24.0 }, "host", "start", &own.host);
    text(out, Point { x: right, y: top + 24.0 }, "small quiet", "end", &format!("rank {rank}"));
    let control = own.control.as_deref().unwrap_or("no control address");
    text(out, Point { x: left, y: top + 41.0 }, "mono quiet", "start", control);
    let rule = top + HEAD - 3.0;
    out.push_str(&format!(
        "<path d=\"M{} {}H{}\" class=\"rule\"/>\n",
        number(centre.x - half.0 + 10.0),
        number(rule),
        number(centre.x + half.0 - 10.0)
    ));
    let column = |characters: usize| left + SMALL * fraction(characters, 1);
    for (row, function) in own.functions.iter().enumerate() {
        let y = top + HEAD + ROW * (fraction(row, 1) + 0.75);
        let place = format!("{}.{}", function.port, function.number);
        text(out, Point { x: left, y }, "mono quiet", "start", &place);
        text(out, Point { x: column(6), y }, "mono", "start", device(function));
        let address = match (function.ip, function.prefix) {
            (Some(ip), Some(prefix)) => Interface { ip, prefix }.to_string(),
            (Some(ip), None) => ip.to_string(),
            (None, _) => "no address".to_owned(),
        };
        text(out, Point { x: column(layout.device_width + 8), y }, "mono", "start", &address);
    }
}

fn labels(plan: &Plan, layout: &Layout, index: usize, cable: &CablePlan, out: &mut String) {
    let Some(ends) = layout.lines.get(index) else { return };
    let along = ends.a.towards(ends.b);
    // Names of ports stand beside the rails, and beside a path that is drawn next to them.
    let mut port = |at: Point, along: Point, name: &str| {
        rectangle(out, at, (6.0, 6.0), 2.5, "port");
        let beside = at.plus(along, 21.0).plus(
            if along.y.abs() > 0.7 { Point { x: 1.0, y: 0.0 } } else { Point { x: 0.0, y: -1.0 } },
            BESIDE + 13.0,
        );
        text(out, Point { x: beside.x, y: beside.y + 4.0 }, "small quiet", "middle", name);
    };
    port(ends.a, along, &cable.a.1);
    if let Some((_, name)) = &cable.b {
        port(ends.b, ends.b.towards(ends.a), name);
    }
    let networks = networks(plan, cable);
    let middle = Point { x: (ends.a.x + ends.b.x) / 2.0, y: (ends.a.y + ends.b.y) / 2.0 };
    let rows = networks.len();
    let longest = networks.iter().map(|network| network.chars().count()).max().unwrap_or(0);
    if rows > 0 {
        let half = (SMALL * fraction(longest, 1) / 2.0 + 6.0, 7.5 * fraction(rows, 1) + 2.0);
        rectangle(out, middle, half, 5.0, "label");
    }
    for (row, network) in networks.iter().enumerate() {
        let y =
            middle.y + 15.0 * (fraction(row, 1) - fraction(rows.saturating_sub(1), 1) / 2.0) + 4.0;
        text(out, Point { x: middle.x, y }, "mono quiet", "middle", network);
    }
}

/// Networks of a cable, one for each pair of functions that has one.
fn networks(plan: &Plan, cable: &CablePlan) -> Vec<String> {
    let network = |ip: Option<std::net::Ipv4Addr>, prefix: Option<u8>| {
        let (ip, prefix) = (ip?, prefix?);
        Some(Interface { ip: Interface { ip, prefix }.network(), prefix }.to_string())
    };
    if cable.switch.is_none() {
        return cable.pairs.iter().filter_map(|(a, _)| network(a.ip, a.prefix)).collect();
    }
    let functions =
        plan.ranks.get(cable.a.0).map(|rank| rank.functions.as_slice()).unwrap_or_default();
    functions
        .iter()
        .filter(|function| function.port == cable.a.1)
        .filter_map(|function| network(function.ip, function.prefix))
        .collect()
}

fn legend(plan: &Plan, layout: &Layout, path: Option<&PathPlan>, out: &mut String) {
    let mut at = Point { x: 36.0, y: layout.height + 4.0 };
    let count = plan.cables.iter().map(|cable| functions(plan, cable)).max().unwrap_or(0);
    for number in 0..count.min(4) {
        let end = Point { x: at.x + 28.0, y: at.y };
        line(out, at, end, &format!("rail f{number}"), 3.0, &format!("function {number}"));
        let says = format!("function {number}");
        text(out, Point { x: at.x + 36.0, y: at.y + 4.0 }, "small", "start", &says);
        at.x += 116.0;
    }
    let says = "a line is wider the more rails use the function";
    text(out, Point { x: at.x, y: at.y + 4.0 }, "small quiet", "start", says);
    let Some(path) = path else { return };
    let mut at = Point { x: 36.0, y: layout.height + 32.0 };
    for (number, rail) in path.rails.iter().enumerate().take(2) {
        let between = rail.hops.get(1..rail.hops.len().saturating_sub(1)).unwrap_or_default();
        let via: Vec<&str> = between.iter().map(|rank| host(plan, *rank)).collect();
        let via = if via.is_empty() { String::new() } else { format!(" via {}", via.join(", ")) };
        let says = format!(
            "{} to {}, {}, rail {number}{via}",
            host(plan, path.from),
            host(plan, path.to),
            kind(path.kind)
        );
        let end = Point { x: at.x + 28.0, y: at.y };
        line(out, at, end, &format!("way w{number}"), 2.6, &says);
        text(out, Point { x: at.x + 36.0, y: at.y + 4.0 }, "small", "start", &says);
        at.y += 20.0;
    }
}
