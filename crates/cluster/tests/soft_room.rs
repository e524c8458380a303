//! The room that the lab's four hosts recorded of themselves once `railweave apply` had made their rules: devices that
//! are software, marked and passed on by the kernel.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::{Path, PathBuf};

use cluster::check::{self, Report, Room, Scope};
use cluster::file::ClusterFile;
use cluster::inventory::recording::ToolOutput;
use cluster::inventory::{HostState, Recording};
use cluster::plan::{Plan, PlanOptions};
use cluster::rules::{Change, RuleOptions, compare, desired, down};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/soft-ring4")
}

struct Soft {
    file: ClusterFile,
    plan: Plan,
    recordings: Vec<Recording>,
}

impl Soft {
    fn load() -> Self {
        let text = std::fs::read_to_string(folder().join("cluster.toml")).unwrap();
        let file = ClusterFile::parse(&text).unwrap();
        let plan = Plan::of(&file, &PlanOptions::default()).unwrap();
        let load =
            |host: &cluster::file::Host| Recording::load(&folder().join(&host.name)).unwrap();
        let recordings = file.hosts.iter().map(load).collect();
        Self { file, plan, recordings }
    }

    fn states(&self) -> Vec<HostState> {
        self.recordings.iter().map(HostState::of).collect()
    }

    fn look(&self) -> Report {
        let hosts: Vec<_> = self.states().into_iter().map(Ok).collect();
        let room = Room {
            file: &self.file,
            plan: &self.plan,
            hosts: &hosts,
            before: None,
            rates: &[],
            reads_per_second: None,
        };
        check::run(&room, Scope::default())
    }

    /// Findings about routes and forwarding, as `code host port`.
    fn found(&self) -> Vec<String> {
        let report = self.look();
        let ours = report
            .findings
            .iter()
            .filter(|found| found.code.starts_with("RW-RTE") || found.code.starts_with("RW-FWD"));
        ours.map(|found| {
            let part = |text: &Option<String>| text.clone().unwrap_or("-".to_owned());
            format!("{} {} {}", found.code, part(&found.host), part(&found.port))
        })
        .collect()
    }

    fn changes(&self, rank: usize) -> Vec<Change> {
        let desired = desired(&self.plan, rank, &RuleOptions::default());
        let comparison = compare(&desired, &self.states()[rank]);
        assert_eq!(comparison.refusals, []);
        comparison.ready().unwrap().to_vec()
    }
}

fn printed(recording: &Recording, tool: &str) -> String {
    match &recording.tools[tool] {
        ToolOutput::Printed(text) => text.clone(),
        other => panic!("{tool}: {other:?}"),
    }
}

#[test]
fn what_apply_made_is_as_planned() {
    let room = Soft::load();
    assert_eq!(room.found(), Vec::<String>::new());
    let looked: Vec<_> = room.look().looked_at.iter().map(|one| format!("{one:?}")).collect();
    for what in ["filters: as planned, in software", "devices: marked as planned"] {
        assert!(looked.iter().any(|one| one.contains(what)), "{what}: {looked:#?}");
    }
    for rank in 0..4 {
        assert_eq!(room.changes(rank), [], "rank {rank}");
        let taken = down(&room.states()[rank]).changes;
        // Two marks, two filters, two neighbours and two routes, and marks go first.
        assert_eq!(taken.len(), 8, "{taken:?}");
        assert!(matches!(taken[..2], [Change::RemoveMark { .. }, Change::RemoveMark { .. }]));
    }
}

#[test]
fn a_lost_mark_is_named_with_its_paths_and_made_again() {
    let mut room = Soft::load();
    let tool = "tc-egress.h0p0f0".to_owned();
    assert!(room.recordings[0].tools.contains_key(&tool));
    room.recordings[0].tools.insert(tool, ToolOutput::Printed("[]".to_owned()));
    assert_eq!(room.found(), ["RW-FWD-04 h0 roce_h0p0f0"]);
    let report = room.look();
    let finding = report.findings.iter().find(|found| found.code == "RW-FWD-04").unwrap();
    let evidence = finding.evidence.join("\n");
    let suffers = "paths 0→2 and 2→0 over rail 0 not tagged on host h0, device roce_h0p0f0";
    assert!(evidence.contains(suffers), "{evidence}");
    assert!(matches!(room.changes(0)[..], [Change::AddMark(_)]), "{:?}", room.changes(0));
}

#[test]
fn a_lost_filter_and_one_too_many_are_named() {
    let mut room = Soft::load();
    let ours = printed(&room.recordings[1], "tc-filter.h1p0f0");
    let egress = printed(&room.recordings[0], "tc-egress.h0p0f0");
    room.recordings[1]
        .tools
        .insert("tc-filter.h1p0f0".to_owned(), ToolOutput::Printed("[]".to_owned()));
    assert_eq!(room.found(), ["RW-RTE-07 h1 h1p0f0"]);
    room.recordings[1].tools.insert("tc-filter.h1p0f0".to_owned(), ToolOutput::Printed(ours));
    // A mark with Railweave's look that no path of this plan needs.
    let odd = egress
        .replace("\"pref\":18801", "\"pref\":18805")
        .replace("\"handle\":1,", "\"handle\":5,");
    room.recordings[0].tools.insert("tc-egress.h0p0f0".to_owned(), ToolOutput::Printed(odd));
    let found = room.found();
    assert!(found.contains(&"RW-RTE-11 h0 -".to_owned()), "{found:?}");
}
