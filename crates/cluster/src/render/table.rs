//! The plan as a table.

use std::collections::BTreeMap;

use super::{host, kind, kinds, summary, word};
use crate::file::TagKind;
use crate::plan::{FunctionRef, PathPlan, Plan, Rail, Tag};

/// Rows of cells, aligned by column.
struct Columns {
    rows: Vec<Vec<String>>,
}

impl Columns {
    fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    fn print(&self, out: &mut String) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(
                    ' ',
                    width.saturating_sub(cell.chars().count()) + 2,
                ));
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
}

/// The plan as aligned text: hosts, the path of each ordered pair of ranks with its rails, what each cable carries in
/// each direction, and notes. With names as on a GB10 it is at most 110 columns wide.
pub fn table(plan: &Plan) -> String {
    let mut out = format!(
        "{} · forward {} · tag {} · MTU {} bytes · plan {}\n\n",
        summary(plan),
        word(&plan.forward),
        word(&plan.tag),
        plan.mtu_bytes,
        plan.digest.get(..12).unwrap_or(&plan.digest)
    );
    ranks(plan, &mut out);
    if !plan.paths.is_empty() {
        paths(plan, &mut out);
    }
    if !plan.loads.is_empty() {
        loads(plan, &mut out);
    }
    notes(plan, &mut out);
    out
}

fn ranks(plan: &Plan, out: &mut String) {
    let mut rows = Columns::new(&["RANK", "HOST", "CONTROL", "NEIGHBOURS"]);
    for rank in &plan.ranks {
        let neighbours: Vec<&str> = rank.neighbours.iter().map(|rank| host(plan, *rank)).collect();
        rows.rows.push(vec![
            rank.rank.to_string(),
            rank.host.clone(),
            rank.control.clone().unwrap_or_else(|| "-".to_owned()),
            if neighbours.is_empty() { "-".to_owned() } else { neighbours.join(", ") },
        ]);
    }
    rows.print(out);
}

fn paths(plan: &Plan, out: &mut String) {
    let mut rows =
        Columns::new(&["FROM", "TO", "PATH", "VIA", "OUT OF", "", "INTO", "", "HOPS", "TAG"]);
    for path in &plan.paths {
        if path.rails.is_empty() {
            rows.rows.push(head(plan, path, true));
        }
        for (number, rail) in path.rails.iter().enumerate() {
            let mut row = head(plan, path, number == 0);
            row.extend(cells(plan, rail));
            rows.rows.push(row);
        }
    }
    out.push_str(&format!("\npaths: {}\n", kinds(plan)));
    rows.print(out);
}

fn head(plan: &Plan, path: &PathPlan, first: bool) -> Vec<String> {
    if !first {
        return vec![String::new(); 3];
    }
    let chosen = if path.chosen { "*" } else { "" };
    vec![
        host(plan, path.from).to_owned(),
        host(plan, path.to).to_owned(),
        format!("{}{chosen}", kind(path.kind)),
    ]
}

fn cells(plan: &Plan, rail: &Rail) -> Vec<String> {
    let between = rail.hops.get(1..rail.hops.len().saturating_sub(1)).unwrap_or_default();
    let via: Vec<&str> = between.iter().map(|rank| host(plan, *rank)).collect();
    let mut cells = vec![if via.is_empty() { "-".to_owned() } else { via.join(",") }];
    let ends = rail.crossings.first().zip(rail.crossings.last());
    for function in [ends.map(|(first, _)| &first.out), ends.map(|(_, last)| &last.into)] {
        cells.push(function.map_or_else(String::new, |function| device(function).to_owned()));
        cells.push(
            function
                .and_then(|function| function.ip)
                .map_or_else(|| "-".to_owned(), |ip| ip.to_string()),
        );
    }
    cells.push(rail.hops.len().saturating_sub(1).to_string());
    cells.push(rail.tag.as_ref().map_or_else(|| "-".to_owned(), tag));
    cells
}

/// The RDMA device; where there is none, the netdev.
pub(super) fn device(function: &FunctionRef) -> &str {
    function.rdma.as_deref().unwrap_or(&function.netdev)
}

fn tag(tag: &Tag) -> String {
    let types: Vec<String> =
        tag.ether_types.iter().map(|ether_type| format!("{ether_type:04x}")).collect();
    match (tag.kind, tag.source_port) {
        (TagKind::SourcePort, Some(port)) => format!("{port}/{}", types.join(">")),
        _ => types.join(">"),
    }
}

fn loads(plan: &Plan, out: &mut String) {
    let mut rows =
        Columns::new(&["CABLE", "FROM", "FUNCTION", "DIRECT", "FORWARDED", "RELAYED", "IN ALL"]);
    let mut last = None;
    for load in &plan.loads {
        let cable =
            plan.cables.get(load.cable).map_or_else(|| "?".to_owned(), |cable| cable.name.clone());
        let place = (load.cable, load.from);
        rows.rows.push(vec![
            if last.is_some_and(|(cable, _)| cable == load.cable) { String::new() } else { cable },
            if last == Some(place) { String::new() } else { host(plan, load.from).to_owned() },
            load.number.to_string(),
            load.direct.to_string(),
            load.forwarded.to_string(),
            load.relayed.to_string(),
            (load.direct + load.forwarded + load.relayed).to_string(),
        ]);
        last = Some(place);
    }
    out.push_str("\nrails over each cable, by the host they leave\n");
    rows.print(out);
}

/// Reasons, each once, with the pairs they are true of; then what the signs mean.
fn notes(plan: &Plan, out: &mut String) {
    let mut lines = Vec::new();
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for path in &plan.paths {
        if let Some(reason) = &path.instead {
            let pair = format!("{} > {}", host(plan, path.from), host(plan, path.to));
            reasons.entry(reason).or_default().push(pair);
        }
    }
    for (reason, pairs) in reasons {
        lines.push(format!("{}: {reason}", pairs.join(", ")));
    }
    if plan.paths.iter().any(|path| path.chosen) {
        lines.push("* chosen by a route of the owner's".to_owned());
    }
    if plan.paths.iter().flat_map(|path| &path.rails).any(|rail| rail.tag.is_some()) {
        lines.push(match plan.tag {
            TagKind::Destination => {
                "TAG: the EtherType on each cable before the last; markers set it by the destination's address"
            }
            TagKind::SourcePort => "TAG: UDP source port / EtherType that markers set for it",
        }
        .to_owned());
    }
    if !lines.is_empty() {
        out.push('\n');
    }
    for line in lines {
        out.push_str(&format!("note: {line}\n"));
    }
}
