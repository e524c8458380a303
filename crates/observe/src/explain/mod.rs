//! From the dumps of a group's ranks to one time line that a person reads.

mod read;
mod render;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::flight::Header;
use crate::verdict::VerdictRecord;
use read::{EventLine, HeaderRead};

/// Dumps of one incident are written within moments; one further from the newest than this is of
/// another run that used the same epoch number.
const SAME_INCIDENT_NS: u64 = 600_000_000_000;
/// A clock that is only disciplined stays below this for long; one that is set does not.
const CLOCK_MOVED_NS: u64 = 2_000_000_000;
/// The most events one time line holds.
const MAX_TOTAL_EVENTS: usize = 1 << 20;

/// No time line could be made.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The directory could not be listed.
    #[error("cannot list {}: {source}; give the directory the ranks dump to", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No readable dump was found.
    #[error(
        "no readable dump{} in {}{}; dumps are named flight-r*.jsonl",
        epoch.map(|e| format!(" of epoch {e}")).unwrap_or_default(), dir.display(),
        problems.first().map(|p| format!(" ({} damaged, the first: {p})", problems.len()))
            .unwrap_or_default()
    )]
    Nothing {
        /// The directory.
        dir: PathBuf,
        /// The epoch asked for.
        epoch: Option<u64>,
        /// What was wrong with the files there.
        problems: Vec<Problem>,
    },
}

/// Something wrong with a dump, or between dumps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file's name.
    pub file: String,
    /// The line, counted from 1.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(line) = self.line {
            write!(f, " line {line}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// One rank's part in a time line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankPart {
    /// The rank's number.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// The dump's name.
    pub file: String,
    /// Events read.
    pub events: usize,
    /// Older events that were overwritten before the dump.
    pub overwritten: u64,
    /// Wall clock of the dump, in nanoseconds since 1970.
    pub dumped_wall_ns: u64,
    /// The collective it was inside, if it was: operation, sequence, wall clock of its begin.
    pub inside: Option<Inside>,
    /// Its last phase and the wall clock since.
    pub phase: Option<(String, u64)>,
}

/// A collective that began and did not end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inside {
    /// What it computes.
    pub operation: String,
    /// Its number.
    pub sequence: u64,
    /// When it began, in nanoseconds since 1970.
    pub since_wall_ns: u64,
}

/// An event in the merged time line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimelineEvent {
    /// The rank it happened in.
    pub rank: u32,
    /// Its wall clock, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// Its name, as [`crate::Event`] writes it.
    pub event: String,
    /// Its other fields.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// What the ranks' dumps of one incident tell together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timeline {
    /// The epoch.
    pub epoch: u64,
    /// The verdict, if any rank recorded one.
    pub verdict: Option<VerdictRecord>,
    /// The instant relative times refer to: the first adoption of a verdict, else the last dump.
    pub reference_wall_ns: u64,
    /// The ranks whose dumps were read.
    pub ranks: Vec<RankPart>,
    /// Ranks of the group without a dump.
    pub missing_ranks: Vec<u32>,
    /// What was damaged or contradicts.
    pub problems: Vec<Problem>,
    /// All events, by wall clock.
    pub events: Vec<TimelineEvent>,
}

/// Reads the dumps in `dir` that belong to the newest incident, or to the newest of `epoch`, and
/// merges them. Damaged files and lines are named in [`Timeline::problems`] and left out.
pub fn explain(dir: &Path, epoch: Option<u64>) -> Result<Timeline, ExplainError> {
    let (headers, mut problems) = read::headers(dir)
        .map_err(|source| ExplainError::Directory { dir: dir.to_path_buf(), source })?;
    let newest = headers
        .iter()
        .filter(|read| epoch.is_none_or(|epoch| read.header.epoch == epoch))
        .max_by_key(|read| read.header.wall_ns);
    let Some(newest) = newest.map(|read| read.header.clone()) else {
        return Err(ExplainError::Nothing { dir: dir.to_path_buf(), epoch, problems });
    };
    let chosen = choose(headers, &newest, &mut problems);
    problems.extend(chosen.values().filter_map(moved_clock));
    let mut parts = Vec::new();
    let mut events = Vec::new();
    for read in chosen.values() {
        let lines = read::events(read, MAX_TOTAL_EVENTS - events.len(), &mut problems);
        parts.push(part(read, &lines));
        let rank = read.header.rank;
        events.extend(lines.into_iter().map(|line| TimelineEvent {
            rank,
            wall_ns: line.wall_ns,
            event: line.event,
            fields: line.fields,
        }));
    }
    events.sort_by_key(|event| (event.wall_ns, event.rank));
    let size = chosen.values().filter_map(|read| read.header.ranks).max();
    // The bound keeps a damaged header from asking for four billion missing ranks.
    let missing_ranks =
        (0..size.unwrap_or(0).min(1024)).filter(|rank| !chosen.contains_key(rank)).collect();
    let verdict = agreed_verdict(&chosen, &mut problems);
    let adopted = events.iter().find(|event| event.event == "verdict-adopted");
    let reference_wall_ns = adopted.map_or(newest.wall_ns, |event| event.wall_ns);
    Ok(Timeline {
        epoch: newest.epoch,
        verdict,
        reference_wall_ns,
        ranks: parts,
        missing_ranks,
        problems,
        events,
    })
}

/// How many events a dump called `name` holds, and what is wrong with it.
pub fn check_dump(name: &str, bytes: &[u8]) -> (usize, Vec<Problem>) {
    match read::header(bytes) {
        Ok(header) => {
            let mut problems = Vec::new();
            let limit = crate::flight::RecorderConfig::MAX_EVENTS;
            let events = read::parse_events(bytes, name, &header, limit, &mut problems);
            (events.len(), problems)
        }
        Err(error) => {
            let what = format!("left out: {error}");
            (0, vec![Problem { file: name.to_owned(), line: Some(1), what }])
        }
    }
}

/// The newest dump of each rank that belongs to the incident of `newest`.
fn choose(
    headers: Vec<HeaderRead>,
    newest: &Header,
    problems: &mut Vec<Problem>,
) -> BTreeMap<u32, HeaderRead> {
    let mut chosen: BTreeMap<u32, HeaderRead> = BTreeMap::new();
    for read in headers.into_iter().filter(|read| read.header.epoch == newest.epoch) {
        if newest.wall_ns.abs_diff(read.header.wall_ns) > SAME_INCIDENT_NS {
            let minutes = newest.wall_ns.abs_diff(read.header.wall_ns) / 60_000_000_000;
            problems.push(Problem {
                file: read.name,
                line: None,
                what: format!("left out: the same epoch, {minutes} minutes from the newest dump"),
            });
            continue;
        }
        match chosen.get(&read.header.rank) {
            Some(other) if other.header.wall_ns >= read.header.wall_ns => {}
            _ => {
                chosen.insert(read.header.rank, read);
            }
        }
    }
    chosen
}

/// Tells that a rank's wall clock was set, or its host slept, so that its early events may stand
/// beside the wrong events of other ranks.
fn moved_clock(read: &HeaderRead) -> Option<Problem> {
    let header = &read.header;
    let expected = header.base_wall_ns.saturating_add(header.mono_ns);
    let moved = header.wall_ns.abs_diff(expected);
    (moved > CLOCK_MOVED_NS).then(|| Problem {
        file: read.name.clone(),
        line: None,
        what: format!(
            "its wall clock moved by {:.1} s against its monotonic one; early events may be misplaced",
            moved as f64 / 1e9
        ),
    })
}

/// The verdict of the most ranks; those that hold another one are named.
fn agreed_verdict(
    chosen: &BTreeMap<u32, HeaderRead>,
    problems: &mut Vec<Problem>,
) -> Option<VerdictRecord> {
    let verdicts: Vec<_> =
        chosen.values().filter_map(|read| Some((read, read.header.verdict.as_ref()?))).collect();
    let same = |a: &VerdictRecord, b: &VerdictRecord| {
        (a.cause, a.rank, a.peer, a.judged_by) == (b.cause, b.rank, b.peer, b.judged_by)
    };
    // Of equals the lowest rank's: `max_by_key` takes the last of them.
    let votes = |v: &VerdictRecord| verdicts.iter().filter(|(_, other)| same(v, other)).count();
    let (_, agreed) = verdicts.iter().rev().max_by_key(|(_, verdict)| votes(verdict))?;
    for (read, verdict) in &verdicts {
        if !same(verdict, agreed) {
            problems.push(Problem {
                file: read.name.clone(),
                line: None,
                what: format!(
                    "rank {} holds another verdict: {}",
                    read.header.rank, verdict.summary
                ),
            });
        }
    }
    Some((*agreed).clone())
}

fn part(read: &HeaderRead, lines: &[EventLine]) -> RankPart {
    let sequence = |line: &EventLine| line.fields.get("sequence").and_then(Value::as_u64);
    let text = |line: &EventLine, key| line.fields.get(key).and_then(Value::as_str).map(Into::into);
    let ended: BTreeSet<_> =
        lines.iter().filter(|l| l.event == "collective-end").filter_map(sequence).collect();
    let begun = lines.iter().rev().find(|line| line.event == "collective-begin");
    let inside = begun.and_then(|line| {
        let sequence = sequence(line).filter(|s| !ended.contains(s))?;
        let operation = text(line, "operation")?;
        Some(Inside { operation, sequence, since_wall_ns: line.wall_ns })
    });
    let changed = lines.iter().rev().find(|line| line.event == "phase-changed");
    RankPart {
        rank: read.header.rank,
        host: read.header.host.clone(),
        pid: read.header.pid,
        file: read.name.clone(),
        events: lines.len(),
        overwritten: read.header.overwritten,
        dumped_wall_ns: read.header.wall_ns,
        inside,
        phase: changed.and_then(|line| Some((text(line, "phase")?, line.wall_ns))),
    }
}
