//! Dumps written by ranks, and the time line read back from them.

// The helpers below panic as the tests they serve do.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use observe::{
    Cause, Event, ExplainError, Identity, Operation, Phase, Recorder, RecorderConfig, Schedule,
    VerdictRecord, explain,
};

/// A directory of its own for a test, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("observe-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn verdict(epoch: u64) -> VerdictRecord {
    VerdictRecord {
        cause: Cause::PeerStalled,
        rank: Some(2),
        host: Some("spark-c".into()),
        peer: None,
        phase: Some(Phase::Compute),
        seconds: Some(60.25),
        epoch,
        sequence: Some(481),
        operation: Some(Operation::AllReduce),
        summary: "rank 2 (spark-c) has been in compute for 60.3 s".into(),
        evidence: vec!["heartbeat 0.1 s old".into(), "ranks 0 and 1 wait for rank 2".into()],
        next_step: "look at rank 2's log and CPU".into(),
        judged_by: 0,
    }
}

fn recorder(rank: u32) -> Recorder {
    Recorder::new(Identity::new(rank, format!("spark-{rank}")), RecorderConfig::default())
}

/// A rank that is inside collective 481 when the verdict comes.
fn stalled_rank(rank: u32, dir: &Path) {
    let recorder = recorder(rank);
    let (operation, schedule) = (Operation::AllReduce, Schedule::OneShot);
    recorder.record(Event::EpochFormed { epoch: 3, ranks: 4 });
    for sequence in 400..481 {
        recorder.record(Event::CollectiveBegin { operation, schedule, sequence, bytes: 4096 });
        recorder.record(Event::CollectiveEnd { operation, sequence, ok: true });
    }
    recorder.record(Event::PhaseChanged { phase: Phase::Wire });
    recorder.record(Event::CollectiveBegin { operation, schedule, sequence: 481, bytes: 4096 });
    let waited = Duration::from_millis(5250);
    recorder.record(Event::WaitLong { peer: 2, phase: Phase::Compute, sequence: 481, waited });
    recorder.record(Event::Proposal { cause: Cause::PeerStalled, rank: Some(2), sequence: 481 });
    recorder.record(Event::VerdictAdopted {
        cause: Cause::PeerStalled,
        rank: Some(2),
        epoch: 3,
        judged_by: 0,
    });
    recorder.dump(dir, Some(&verdict(3))).unwrap();
}

#[test]
fn ranks_are_merged_and_the_missing_one_is_named() {
    let dir = Scratch::new("merge");
    for rank in [1, 0, 3] {
        stalled_rank(rank, &dir.0);
    }
    let timeline = explain(&dir.0, None).unwrap();
    assert_eq!(timeline.problems, []);
    assert_eq!((timeline.epoch, timeline.missing_ranks.as_slice()), (3, &[2][..]));
    assert_eq!(timeline.verdict, Some(verdict(3)));
    assert_eq!(timeline.events.len(), 3 * (1 + 162 + 5));
    assert!(timeline.events.is_sorted_by_key(|event| event.wall_ns));
    let inside = timeline.ranks[1].inside.as_ref().unwrap();
    assert_eq!((inside.operation.as_str(), inside.sequence), ("all-reduce", 481));

    let text = timeline.render();
    for line in [
        "Verdict: rank 2 (spark-c) has been in compute for 60.3 s (peer-stalled)",
        "  who    rank 2 on spark-c",
        "  where  epoch 3, all-reduce 481, phase compute",
        "  since  60.2 s before the verdict",
        "  why    heartbeat 0.1 s old",
        "         ranks 0 and 1 wait for rank 2",
        "  next   look at rank 2's log and CPU",
        "  rank 2: no dump (dead, or its dumps lie on another host)",
    ] {
        assert!(text.lines().any(|l| l == line), "missing {line:?} in\n{text}");
    }
    assert!(text.contains("rank 1 (spark-1, pid "), "{text}");
    assert!(text.contains("inside all-reduce 481 for "), "{text}");
    assert!(text.contains("wait-long peer=2 phase=compute sequence=481 waited_seconds=5.25"));
    let routine = text.lines().filter(|l| l.contains("rank 1   collective-")).count();
    assert!((1..=6).contains(&routine), "routine events do not drown the others: {routine}");

    let json = timeline.to_json();
    assert_eq!(json["verdict"]["cause"], "peer-stalled");
    assert_eq!(json["events"][0]["event"], "epoch-formed");
}

#[test]
fn the_newest_incident_is_taken_unless_an_epoch_is_asked_for() {
    let dir = Scratch::new("epochs");
    let old = recorder(0);
    old.record(Event::Note { text: "old" });
    old.dump(&dir.0, Some(&verdict(7))).unwrap();
    // The group was started anew and counts from 1 again: newer, though the number is lower.
    let new = recorder(0);
    new.record(Event::EpochFormed { epoch: 1, ranks: 1 });
    new.dump(&dir.0, None).unwrap();
    let timeline = explain(&dir.0, None).unwrap();
    assert_eq!((timeline.epoch, timeline.verdict.is_none()), (1, true));
    assert!(timeline.render().starts_with("No verdict in epoch 1"));
    assert_eq!(explain(&dir.0, Some(7)).unwrap().events[0].fields["text"], "old");
    let error = explain(&dir.0, Some(2)).unwrap_err();
    assert!(matches!(error, ExplainError::Nothing { epoch: Some(2), .. }), "{error}");
}

#[test]
fn damaged_and_contradicting_dumps_are_named_not_fatal() {
    let dir = Scratch::new("damaged");
    for rank in 0..2 {
        stalled_rank(rank, &dir.0);
    }
    let other = recorder(2);
    let blames_another = VerdictRecord { rank: Some(0), ..verdict(3) };
    other.dump(&dir.0, Some(&blames_another)).unwrap();
    fs::write(dir.0.join("flight-r00009-garbage.jsonl"), b"\xff\x00 not a dump").unwrap();
    fs::write(dir.0.join("flight-r00008-empty.jsonl"), b"").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.0.join("flight-r00007-link.jsonl")).unwrap();
    fs::create_dir(dir.0.join("flight-r00006-dir.jsonl")).unwrap();
    let timeline = explain(&dir.0, None).unwrap();
    assert_eq!(timeline.ranks.len(), 3);
    assert_eq!(timeline.verdict.as_ref().unwrap().rank, Some(2), "the most ranks' verdict");
    let named: Vec<_> = timeline.problems.iter().map(|p| p.file.as_str()).collect();
    for file in ["r00009-garbage", "r00008-empty", "r00007-link", "r00006-dir", "r00002-e"] {
        assert!(named.iter().any(|n| n.contains(file)), "{file} is not in {named:?}");
    }
    assert_eq!(named.len(), 5, "{:?}", timeline.problems);
    assert!(timeline.render().contains("rank 2 holds another verdict"));
}

#[test]
fn terminal_escapes_in_a_dump_do_not_reach_the_terminal() {
    let dir = Scratch::new("escapes");
    let mut evil = verdict(3);
    evil.summary = "\u{1b}[2Jgone\r".into();
    evil.evidence = vec!["a\nforged line".into(); 100_000];
    recorder(0).dump(&dir.0, Some(&evil)).unwrap();
    let text = explain(&dir.0, None).unwrap().render();
    assert!(!text.contains('\u{1b}') && !text.contains('\r') && text.contains("gone"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
}

#[test]
fn old_dumps_of_the_same_rank_go_and_others_stay() {
    let dir = Scratch::new("limit");
    let config = RecorderConfig { files: 3, ..RecorderConfig::default() };
    let recorder = Recorder::new(Identity::new(1, "h"), config);
    let neighbour = Recorder::new(Identity::new(10, "h"), config);
    let kept = neighbour.dump(&dir.0, None).unwrap().path;
    let mut paths: Vec<PathBuf> = Vec::new();
    for i in 0..8 {
        recorder.record(Event::Note { text: "n" });
        let dumped = recorder.dump(&dir.0, None).unwrap();
        let expected = if i < 3 { vec![] } else { vec![paths[i - 3].clone()] };
        assert_eq!(dumped.deleted, expected);
        paths.push(dumped.path);
    }
    let mut left: Vec<_> = fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().path()).collect();
    left.sort();
    let mut expected: Vec<_> = paths[5..].iter().cloned().chain([kept]).collect();
    expected.sort();
    assert_eq!(left, expected, "no unfinished file is left either");
}

#[test]
fn an_unwritable_place_is_named() {
    let dir = Scratch::new("unwritable");
    fs::write(&dir.0, b"a file").unwrap();
    let error = recorder(1).dump(&dir.0.join("x"), None).unwrap_err().to_string();
    assert!(error.starts_with("rank 1: the flight recorder could not create "), "{error}");
    fs::remove_file(&dir.0).unwrap();
    let error = explain(&dir.0, None).unwrap_err().to_string();
    assert!(error.contains("cannot list"), "{error}");
}

#[test]
fn a_clock_that_was_set_is_told() {
    let dir = Scratch::new("clock");
    let path = recorder(0).dump(&dir.0, None).unwrap().path;
    let text = fs::read_to_string(&path).unwrap();
    let mut header: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    header["base_wall_ns"] = (header["base_wall_ns"].as_u64().unwrap() - 3_600_000_000_000).into();
    fs::write(&path, format!("{header}\n")).unwrap();
    let problems = explain(&dir.0, None).unwrap().problems;
    assert_eq!(problems.len(), 1);
    assert!(problems[0].what.starts_with("its wall clock moved by 3600.0 s"), "{}", problems[0]);
}
