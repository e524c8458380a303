//! Recorded rooms: the healthy one, and others that differ from it by what lies over it.
//!
//! `fixtures/faults/<ID>/<host>/{files,links,tools}/…` lies over `fixtures/gb10-ring4/<host>/…`: a file there replaces
//! the healthy one, and a file named `X.gone` removes `X`. `<host>/unreachable` holds why a host could not be read, and
//! `cluster.toml`, if it is there, replaces the file. What lies in `before` is an earlier state, over the healthy one.
//! `expect.json` says how the room is looked at, and what is found.

// Each test takes what it needs.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cluster::check::{self, Report, Room, Scope, WireRate};
use cluster::file::ClusterFile;
use cluster::inventory::recording::ToolOutput;
use cluster::inventory::{HostState, Recording};
use cluster::plan::{Plan, PlanOptions};
use serde::Deserialize;

/// What a fixture says of itself.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    /// All warnings and errors, sorted, each once.
    pub(crate) codes: Vec<String>,
    /// Notes that are there too, perhaps among others.
    #[serde(default)]
    pub(crate) notes: Vec<String>,
    /// The exit code; without it, 1 if any code is listed, else 0.
    pub(crate) exit: Option<u8>,
    /// Only what has to be right before a plan is applied.
    #[serde(default)]
    pub(crate) pre: bool,
    /// Drives are looked at too, and have to read this fast.
    pub(crate) reads_per_second: Option<u64>,
    /// Cables were measured; if given, rates are looked at too.
    pub(crate) rates: Option<Vec<Rate>>,
}

/// One measured rate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rate {
    cable: usize,
    from: usize,
    number: usize,
    rate_mbps: u64,
}

/// Where the crate's fixtures lie.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The recordings of the healthy room, by host.
pub(crate) fn healthy() -> BTreeMap<String, Recording> {
    let root = fixtures().join("gb10-ring4");
    let hosts = fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir());
    hosts
        .map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                Recording::load(&path).unwrap(),
            )
        })
        .collect()
}

/// The healthy room's file.
pub(crate) fn healthy_file() -> String {
    fs::read_to_string(fixtures().join("gb10-ring4/cluster.toml")).unwrap()
}

/// The states of hosts in the order of the file.
pub(crate) fn states(
    file: &ClusterFile,
    recordings: &BTreeMap<String, Recording>,
) -> Vec<HostState> {
    file.hosts.iter().map(|host| HostState::of(&recordings[&host.name])).collect()
}

/// Looks at the healthy room.
pub(crate) fn look_at_healthy(scope: Scope) -> Report {
    let file = ClusterFile::parse(&healthy_file()).unwrap();
    let plan = Plan::of(&file, &PlanOptions::default()).unwrap();
    let hosts: Vec<_> = states(&file, &healthy()).into_iter().map(Ok).collect();
    check::run(
        &Room {
            file: &file,
            plan: &plan,
            hosts: &hosts,
            before: None,
            rates: &[],
            reads_per_second: None,
        },
        scope,
    )
}

/// Looks at the room of a fixture, as its `expect.json` says.
pub(crate) fn look_at(
    fixture: &Path,
    healthy_room: &BTreeMap<String, Recording>,
) -> (Report, Expect) {
    let expect: Expect =
        serde_json::from_str(&fs::read_to_string(fixture.join("expect.json")).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", fixture.display()));
    let own = fixture.join("cluster.toml");
    let text = if own.exists() { fs::read_to_string(own).unwrap() } else { healthy_file() };
    let file =
        ClusterFile::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", fixture.display()));
    let plan = Plan::of(&file, &PlanOptions::default())
        .unwrap_or_else(|error| panic!("{}: {error}", fixture.display()));
    let (recordings, unreachable) = overlaid(fixture, healthy_room);
    let hosts: Vec<Result<HostState, String>> = file
        .hosts
        .iter()
        .zip(states(&file, &recordings))
        .map(|(host, state)| unreachable.get(&host.name).map_or(Ok(state), |why| Err(why.clone())))
        .collect();
    let before = fixture.join("before");
    let before = before.exists().then(|| states(&file, &overlaid(&before, healthy_room).0));
    let rates: Vec<WireRate> = expect
        .rates
        .iter()
        .flatten()
        .map(|rate| WireRate {
            cable: rate.cable,
            from: rate.from,
            number: rate.number,
            rate_mbps: rate.rate_mbps,
        })
        .collect();
    let scope = Scope {
        pre: expect.pre,
        wire: expect.rates.is_some(),
        disk: expect.reads_per_second.is_some(),
    };
    let room = Room {
        file: &file,
        plan: &plan,
        hosts: &hosts,
        before: before.as_deref(),
        rates: &rates,
        reads_per_second: expect.reads_per_second,
    };
    (check::run(&room, scope), expect)
}

/// All folders of faults, by name.
pub(crate) fn faults() -> BTreeMap<String, PathBuf> {
    let folders =
        fs::read_dir(fixtures().join("faults")).unwrap().map(|entry| entry.unwrap().path());
    folders
        .filter(|path| path.is_dir())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect()
}

/// The healthy room with what lies in a folder laid over it, and why some hosts could not be read.
fn overlaid(
    folder: &Path,
    healthy_room: &BTreeMap<String, Recording>,
) -> (BTreeMap<String, Recording>, BTreeMap<String, String>) {
    let mut recordings = healthy_room.clone();
    let mut unreachable = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let host = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !path.is_dir() || host == "before" {
            continue;
        }
        let recording = recordings
            .get_mut(&host)
            .unwrap_or_else(|| panic!("{}: there is no such host", path.display()));
        lay_over(&path, recording);
        if let Ok(why) = fs::read_to_string(path.join("unreachable")) {
            unreachable.insert(host, why.trim().to_owned());
        }
    }
    (recordings, unreachable)
}

fn lay_over(folder: &Path, recording: &mut Recording) {
    for (path, content) in files_below(&folder.join("files")) {
        put(&mut recording.files, path, content);
    }
    for (path, content) in files_below(&folder.join("links")) {
        put(&mut recording.links, path, content.trim_end().to_owned());
    }
    for (path, content) in files_below(&folder.join("tools")) {
        let name = path.trim_start_matches('/');
        if let Some(tool) = name.strip_suffix(".gone") {
            assert!(recording.tools.remove(tool).is_some(), "{tool} is not in the healthy room");
        } else if let Some(tool) = name.strip_suffix(".out") {
            recording.tools.insert(tool.to_owned(), ToolOutput::Printed(content));
        } else if let Some(tool) = name.strip_suffix(".err") {
            recording
                .tools
                .insert(tool.to_owned(), ToolOutput::Failed(content.trim_end().to_owned()));
        } else {
            panic!("{name} in {} is neither .out nor .err nor .gone", folder.display());
        }
    }
}

fn put(into: &mut BTreeMap<String, String>, path: String, content: String) {
    if let Some(gone) = path.strip_suffix(".gone") {
        // What is gone may be one file or all of a folder.
        let below = format!("{gone}/");
        let before = into.len();
        into.retain(|path, _| path != gone && !path.starts_with(&below));
        assert!(into.len() < before, "{gone} is not in the healthy room");
    } else {
        into.insert(path, content);
    }
}

/// All files below a folder, with their paths from it, starting with `/`.
fn files_below(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let Ok(entries) = fs::read_dir(&next) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let below = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                found.push((format!("/{below}"), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}
