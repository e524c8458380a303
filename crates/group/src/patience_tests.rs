use proptest::prelude::*;

use super::*;
use crate::beacon::{Beacon, Phase, RelayBacklog};
use crate::control::trace::RootKind;

const NOW: Duration = Duration::from_secs(1000);

fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Four ranks, all heard just now, all connected for long; rank 0 waits inside operation 5.
fn view() -> ClusterView {
    let hosts = (0..4).map(|rank| format!("h{rank}")).collect();
    let mut view = ClusterView::new(1, 0, hosts, Duration::ZERO);
    for rank in 0..4 {
        let beacon = Beacon { phase: Phase::Compute, sequence: 4, ..Beacon::starting(1) };
        view.ranks[rank].beacon = Some(beacon);
        view.ranks[rank].beacon_at = NOW;
        view.ranks[rank].heard_at = NOW;
    }
    inside(&mut view, 0, 5, RankSet::EMPTY, s(0.0));
    view
}

fn set(view: &mut ClusterView, rank: usize, change: impl FnOnce(&mut Beacon)) {
    change(view.ranks[rank].beacon.as_mut().unwrap());
}

fn inside(view: &mut ClusterView, rank: usize, sequence: u32, waits_for: RankSet, age: Duration) {
    set(view, rank, |beacon| {
        beacon.phase = Phase::Wire;
        beacon.operation = operation::ALL_REDUCE;
        beacon.sequence = sequence;
        beacon.waits_for = waits_for;
        beacon.wait_age = age;
        beacon.phase_age = age;
    });
}

fn ask(view: &ClusterView, waits_for: &[usize], waited: f64) -> Option<(usize, RootKind)> {
    let waits_for = waits_for.iter().copied().collect();
    overdue(view, &PatienceValues::default(), 0, waits_for, s(waited), NOW)
        .map(|late| (late.root.rank, late.root.kind))
}

#[test]
fn each_phase_has_its_patience_counted_from_the_later_start() {
    let table = [
        (Phase::Start, 600.0),
        (Phase::Compute, 60.0),
        (Phase::Rows, 60.0),
        (Phase::Wire, 5.0),
        (Phase::Relay, 5.0),
        (Phase::Idle, 60.0),
    ];
    for (phase, limit) in table {
        let mut view = view();
        let aged = |view: &mut ClusterView, age: f64| {
            set(view, 2, |beacon| (beacon.phase, beacon.phase_age) = (phase, s(age)));
        };
        aged(&mut view, limit - 0.1);
        assert_eq!(ask(&view, &[2], 700.0), None, "{phase}");
        aged(&mut view, limit);
        assert_eq!(ask(&view, &[2], limit), Some((2, RootKind::InPhase(phase))), "{phase}");
        // No wait outlasts the patience for all phases together.
        aged(&mut view, 0.0);
        assert_eq!(ask(&view, &[2], 730.0), Some((2, RootKind::InPhase(phase))), "{phase}");
        // A rank that was long in its phase before this wait began is given its patience from the wait's start.
        aged(&mut view, 10_000.0);
        assert_eq!(ask(&view, &[2], limit - 0.1), None, "{phase}");
    }
}

#[test]
fn waiting_is_followed_to_the_rank_that_waits_for_nobody() {
    let mut view = view();
    inside(&mut view, 1, 5, RankSet::one(2), s(30.0));
    inside(&mut view, 2, 5, RankSet::one(3), s(30.0));
    set(&mut view, 3, |beacon| beacon.phase_age = s(30.0));
    assert_eq!(ask(&view, &[1], 30.0), None, "rank 3 computes, and may for 60 s");
    set(&mut view, 3, |beacon| beacon.phase_age = s(60.0));
    assert_eq!(ask(&view, &[1], 60.0), Some((3, RootKind::InPhase(Phase::Compute))));
}

#[test]
fn a_stopped_process_that_goes_on_within_patience_never_fails() {
    let mut view = view();
    set(&mut view, 2, |beacon| (beacon.phase, beacon.phase_age) = (Phase::Wire, s(0.9)));
    for tenth in 11..100 {
        view.ranks[2].heard_at = NOW - s(f64::from(tenth) / 10.0);
        view.ranks[2].beacon_at = view.ranks[2].heard_at;
        assert_eq!(ask(&view, &[2], 20.0), None, "silent for {tenth} tenths");
    }
    view.ranks[2].heard_at = NOW - s(10.0);
    assert_eq!(ask(&view, &[2], 20.0), Some((2, RootKind::Silent)));
    // It goes on after five seconds: its phase is as old as before, but counts from now.
    let mut view = self::view();
    view.ranks[2].heard_at = NOW - s(5.0);
    view.ranks[2].beacon_at = NOW - s(5.0);
    let beacon = Beacon {
        beat: 9,
        phase: Phase::Wire,
        phase_age: s(5.9),
        operation: operation::ALL_REDUCE,
        sequence: 5,
        ..Beacon::starting(1)
    };
    view.take_beacon(2, beacon, NOW);
    assert_eq!(ask(&view, &[2], 20.0), None);
}

#[test]
fn this_process_having_been_stopped_says_nothing_about_others() {
    let mut view = view();
    for rank in 1..4 {
        view.ranks[rank].heard_at = NOW - s(15.0);
    }
    view.awake_since = NOW;
    assert_eq!(ask(&view, &[1, 2, 3], 20.0), None);
}

#[test]
fn a_relay_is_late_only_with_bytes_for_the_one_who_waits() {
    let mut view = view();
    set(&mut view, 0, |beacon| beacon.waits_via = RankSet::one(1));
    let held = |destination| RelayBacklog { chunks: 2, oldest_age: s(5.0), source: 2, destination };
    set(&mut view, 1, |beacon| beacon.relay_backlog = held(3));
    assert_eq!(ask(&view, &[2], 6.0), None);
    set(&mut view, 1, |beacon| beacon.relay_backlog = held(0));
    assert_eq!(ask(&view, &[2], 6.0), Some((1, RootKind::Relay { source: 2, destination: 0 })));
    // A relay that is silent is found as well.
    view.ranks[1].heard_at = NOW - s(11.0);
    assert_eq!(ask(&view, &[2], 20.0), Some((1, RootKind::Silent)));
}

#[test]
fn cycles_and_ranks_that_went_on_are_the_wires_matter() {
    let mut view = view();
    inside(&mut view, 0, 5, RankSet::one(1), s(5.0));
    inside(&mut view, 1, 5, RankSet::one(0), s(5.0));
    let both = RankSet::all(2);
    assert_eq!(ask(&view, &[1], 5.0), Some((0, RootKind::Cycle(both))));
    assert_eq!(ask(&view, &[1], 4.9), None);
    let mut view = self::view();
    set(&mut view, 2, |beacon| (beacon.sequence, beacon.phase_age) = (5, s(5.0)));
    assert_eq!(ask(&view, &[2], 5.0), Some((2, RootKind::Passed { waiter: 0 })));
    let mut view = self::view();
    inside(&mut view, 2, 5, RankSet::one(3), s(5.0));
    set(&mut view, 2, |beacon| beacon.operation = operation::BARRIER);
    assert_eq!(ask(&view, &[2], 5.0), Some((2, RootKind::Elsewhere { other: 0 })));
}

#[test]
fn durations_are_read_and_printed() {
    let table =
        [("20s", 20_000), ("500ms", 500), ("1.5s", 1500), ("2m", 120_000), ("1h", 3_600_000)];
    for (text, ms) in table {
        assert_eq!(parse_duration(text), Some(Duration::from_millis(ms)), "{text}");
    }
    for text in ["", "5", "s", "-1s", "1 parsec", "1e9s", "..s", "nans", "99999999999999999999h"] {
        assert_eq!(parse_duration(text), None, "{text}");
    }
    for ms in [0, 1, 999, 1000, 61_000, 3_600_000] {
        let value = Duration::from_millis(ms);
        assert_eq!(parse_duration(&print_duration(value)), Some(value));
    }
}

#[test]
fn settings_name_key_and_range() {
    let table = Patience::default();
    table.set_text("patience.compute", "20s").unwrap();
    assert_eq!(table.get(PatienceKey::Compute), s(20.0));
    let text = |key, value| table.set_text(key, value).unwrap_err().to_string();
    assert_eq!(
        text("silent", "1s"),
        "patience.silent: 1s is out of range; it can be 1500ms to 24h"
    );
    assert!(text("wire", "soon").contains("patience.wire: \"soon\" is not a duration"));
    assert!(text("wires", "1s").contains("\"wires\""));
    assert_eq!(table.get(PatienceKey::Silent), s(10.0));
}

proptest! {
    /// Never earlier than the smallest patience that applies, always by the largest plus one second.
    #[test]
    fn between_the_smallest_and_the_largest_patience(
        phases in proptest::collection::vec(0usize..7, 4),
        edges in proptest::collection::vec(0u32..16, 4),
        limits in proptest::collection::vec(1u64..100, 6),
        waited in 0u64..1000,
        ages in proptest::collection::vec(0u64..1000, 4),
    ) {
        let mut values = PatienceValues::default();
        for (key, limit) in PatienceKey::ALL.into_iter().zip(&limits) {
            values = values.with(key, Duration::from_secs(*limit));
        }
        values = values.with(PatienceKey::Silent, Duration::from_secs(limits[5] + 2));
        let mut view = view();
        for rank in 1..4 {
            set(&mut view, rank, |beacon| {
                beacon.phase = Phase::ALL[phases[rank]];
                beacon.phase_age = Duration::from_secs(ages[rank]);
                beacon.waits_for = RankSet(edges[rank]).without(rank);
                beacon.wait_age = Duration::from_secs(ages[rank]);
            });
        }
        let waits_for = RankSet(edges[0] | 2).without(0);
        let smallest = PatienceKey::ALL.into_iter().map(|key| values.get(key)).min().unwrap();
        let largest = PatienceKey::ALL.into_iter().map(|key| values.get(key)).max().unwrap();
        let waited = Duration::from_secs(waited);
        let late = overdue(&view, &values, 0, waits_for, waited, NOW);
        if waited < smallest {
            prop_assert!(late.is_none());
        }
        let settled = largest + Duration::from_secs(1);
        if waited >= settled && ages[1..].iter().all(|age| Duration::from_secs(*age) >= settled) {
            prop_assert!(late.is_some());
        }
    }
}
