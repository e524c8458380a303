use super::*;
use crate::beacon::{Beacon, RelayBacklog, operation};
use crate::control::view::SupervisorNote;
use crate::verdict::RankValue;

const NOW: Duration = Duration::from_secs(1000);

fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

struct Scene {
    view: ClusterView,
    proposals: Vec<Proposal>,
}

impl Scene {
    /// Four ranks inside all-reduce #1234 since `age`; rank 0 judges.
    fn new(age: f64) -> Self {
        let hosts = ["a", "a", "b", "b"].map(str::to_owned).to_vec();
        let mut scene =
            Self { view: ClusterView::new(3, 0, hosts, Duration::ZERO), proposals: Vec::new() };
        for rank in 0..4 {
            let known = &mut scene.view.ranks[rank];
            known.heard_at = NOW;
            known.beacon_at = NOW;
            known.beacon = Some(Beacon {
                sequence: 1234,
                operation: operation::ALL_REDUCE,
                phase: Phase::Wire,
                phase_age: s(age),
                wait_age: s(age),
                ..Beacon::starting(3)
            });
        }
        scene
    }

    fn set(mut self, rank: usize, change: impl FnOnce(&mut Beacon)) -> Self {
        change(self.view.ranks[rank].beacon.as_mut().unwrap());
        self
    }

    fn waits(self, rank: usize, for_whom: &[usize]) -> Self {
        let ranks = for_whom.iter().copied().collect();
        let mut scene = self.set(rank, |beacon| beacon.waits_for = ranks);
        let age = scene.view.ranks[rank].beacon.unwrap().wait_age;
        scene.proposals.push(Proposal {
            from: narrow(rank),
            sequence: 1234,
            operation: operation::ALL_REDUCE,
            waits_for: ranks,
            waits_via: scene.view.ranks[rank].beacon.unwrap().waits_via,
            waited_ms: u64::try_from(age.as_millis()).unwrap(),
            reason: Reason::Overdue,
        });
        scene
    }

    fn in_phase(self, rank: usize, phase: Phase, age: f64) -> Self {
        self.set(rank, |beacon| {
            beacon.phase = phase;
            beacon.phase_age = s(age);
            beacon.operation = operation::NONE;
            beacon.sequence = 1233;
            beacon.waits_for = RankSet::EMPTY;
        })
    }

    fn reason(mut self, rank: usize, reason: Reason) -> Self {
        self.proposals.push(Proposal {
            from: narrow(rank),
            sequence: 1234,
            operation: operation::ALL_REDUCE,
            waits_for: RankSet::EMPTY,
            waits_via: RankSet::EMPTY,
            waited_ms: 0,
            reason,
        });
        self
    }

    fn lost(mut self, rank: usize, by: &[usize], ago: f64) -> Self {
        let known = &mut self.view.ranks[rank];
        known.lost_by = by.iter().copied().collect();
        known.lost_since = Some(NOW - s(ago));
        if by.contains(&0) {
            known.control = ControlState::Lost { at: NOW - s(ago), why: "end of stream".into() };
            known.heard_at = NOW - s(ago);
        }
        self
    }

    fn judge(&self) -> Verdict {
        let patience = &PatienceValues::default();
        judge(&Evidence { view: &self.view, proposals: &self.proposals, patience, now: NOW })
    }
}

fn narrow(rank: usize) -> u8 {
    u8::try_from(rank).unwrap()
}

fn cut(from: u8, to: u8, rails_left: u8) -> LinkReport {
    LinkReport {
        from,
        to,
        rail: Some(0),
        through: Vec::new(),
        rails_left,
        why: "connection reset by peer".into(),
    }
}

#[test]
fn compute_beyond_patience_names_the_rank_that_computes() {
    let scene = Scene::new(61.2).waits(0, &[2]).waits(1, &[2]).waits(3, &[2]).in_phase(
        2,
        Phase::Compute,
        61.2,
    );
    let verdict = scene.judge();
    assert_eq!(
        verdict.to_string(),
        "rank 2 (host b) stalled in compute for 61.2 s at all-reduce #1234; ranks 0,1,3 wait for it"
    );
    assert_eq!(verdict.cause, Cause::PeerStalled { phase: Phase::Compute });
    assert_eq!((verdict.epoch, verdict.judged_by), (3, 0));
    assert!(verdict.next_step.contains("patience.compute"), "{}", verdict.next_step);
}

#[test]
fn blame_follows_the_edges_to_the_root() {
    let scene = Scene::new(61.0).waits(0, &[1]).waits(1, &[3]).waits(3, &[2]).in_phase(
        2,
        Phase::Rows,
        61.0,
    );
    let verdict = scene.judge();
    assert_eq!((verdict.rank, verdict.cause), (Some(2), Cause::PeerStalled { phase: Phase::Rows }));
}

#[test]
fn a_kill_names_the_dead_and_beats_everything() {
    for rank in 1..4 {
        let others: Vec<usize> = (0..4).filter(|other| *other != rank).collect();
        let scene = Scene::new(70.0)
            .waits(0, &[rank])
            .in_phase(rank, Phase::Compute, 70.0)
            .reason(0, Reason::LinkDown { report: cut(0, narrow(rank), 0) })
            .lost(rank, &others, 0.1);
        let verdict = scene.judge();
        assert_eq!((verdict.rank, &verdict.cause), (Some(narrow(rank)), &Cause::PeerDead));
        assert!(verdict.to_string().contains("died at all-reduce #1234"), "{verdict}");
    }
}

#[test]
fn a_killed_relay_is_named_not_the_far_end() {
    let scene = Scene::new(0.5)
        .set(0, |beacon| beacon.waits_via = RankSet::one(1))
        .waits(0, &[2])
        .lost(1, &[0, 2, 3], 0.2);
    assert_eq!(scene.judge().rank, Some(1));
}

#[test]
fn a_supervisor_that_saw_the_exit_is_believed_and_quoted() {
    let mut scene = Scene::new(1.0).waits(0, &[3]);
    let text = "killed by signal 9".to_owned();
    scene.view.ranks[3].note = Some(SupervisorNote { rank: 3, ended: true, text });
    let verdict = scene.judge();
    assert_eq!((verdict.rank, &verdict.cause), (Some(3), &Cause::PeerDead));
    assert!(verdict.evidence[0].contains("killed by signal 9"));
}

#[test]
fn a_lost_control_connection_to_a_live_rank_is_a_path() {
    let scene = Scene::new(1.0).lost(2, &[0], 0.5);
    assert_eq!(scene.judge().cause, Cause::PathBroken { from: 0, to: 2 });
    // Everybody lost it, and nobody heard it since: dead.
    let scene = Scene::new(1.0).lost(2, &[0, 1, 3], 0.5);
    assert_eq!(scene.judge().cause, Cause::PeerDead);
}

#[test]
fn a_stopped_process_is_silent_whatever_its_last_phase() {
    let mut scene = Scene::new(12.0).waits(0, &[2]).in_phase(2, Phase::Compute, 0.0);
    scene.view.ranks[2].heard_at = NOW - s(10.4);
    let verdict = scene.judge();
    assert_eq!((verdict.rank, &verdict.cause), (Some(2), &Cause::PeerSilent));
    assert!(verdict.to_string().contains("no heartbeat for 10.4 s"), "{verdict}");
    scene.view.ranks[2].heard_at = NOW - s(9.0);
    assert_eq!(scene.judge().cause, Cause::Unknown);
}

#[test]
fn a_relay_that_holds_the_bytes_is_named_rather_than_the_far_end() {
    let held = RelayBacklog { chunks: 3, oldest_age: s(5.5), source: 2, destination: 0 };
    let scene = Scene::new(5.6)
        .set(0, |beacon| beacon.waits_via = RankSet::one(1))
        .waits(0, &[2])
        .set(1, |beacon| beacon.relay_backlog = held)
        .set(2, |beacon| beacon.operation = operation::NONE);
    let verdict = scene.judge();
    assert_eq!(
        (verdict.rank, &verdict.cause),
        (Some(1), &Cause::PeerStalled { phase: Phase::Relay })
    );
    assert!(verdict.evidence[0].contains("chunk of rank 2 for rank 0"));
}

#[test]
fn all_rails_of_a_pair_down_names_both_ends_and_the_reason() {
    let mut scene = Scene::new(1.0)
        .waits(1, &[2])
        .waits(2, &[1])
        .reason(1, Reason::LinkDown { report: cut(1, 2, 0) });
    scene.view.links = vec![cut(1, 2, 0), cut(2, 1, 0)];
    let verdict = scene.judge();
    assert_eq!(verdict.cause, Cause::PathBroken { from: 1, to: 2 });
    assert_eq!(
        verdict.to_string(),
        "path between rank 1 and rank 2 is broken (connection reset by peer) at all-reduce #1234"
    );
}

#[test]
fn a_flipped_bit_ends_the_link_and_is_the_reason() {
    let why = "frame checksum 0x1 does not match its bytes (0x2)".to_owned();
    let report = LinkReport { why, ..cut(3, 0, 0) };
    let verdict = Scene::new(0.5).reason(3, Reason::LinkDown { report }).judge();
    assert_eq!(verdict.cause, Cause::PathBroken { from: 3, to: 0 });
    assert!(verdict.to_string().contains("checksum"), "{verdict}");
}

#[test]
fn one_rail_of_two_is_no_cause() {
    let mut scene = Scene::new(61.0).waits(1, &[2]).in_phase(2, Phase::Compute, 61.0);
    scene.view.links = vec![cut(1, 2, 1)];
    let verdict = scene.judge();
    assert_eq!(verdict.cause, Cause::PeerStalled { phase: Phase::Compute });
    assert!(verdict.evidence.iter().any(|line| line.contains("rail 0 between ranks 1 and 2")));
}

#[test]
fn other_settings_name_key_and_values() {
    let value = |rank, text: &str| RankValue { rank, value: Some(text.into()) };
    let values = vec![value(0, "ab"), value(2, "cd")];
    let reason = Reason::ConfigurationDiffers { key: "engine.model_sha256".into(), values };
    let verdict = Scene::new(0.0).reason(2, reason).judge();
    assert!(
        verdict
            .to_string()
            .starts_with("engine.model_sha256 differs: rank 0 has \"ab\", rank 2 has \"cd\""),
        "{verdict}"
    );
}

#[test]
fn a_limit_names_the_rank_and_the_limit() {
    let what = "KV cache: 512 MiB, asked for 600 MiB".to_owned();
    let verdict = Scene::new(0.0).reason(1, Reason::OutOfCapacity { what }).judge();
    assert_eq!((verdict.rank, &verdict.cause), (Some(1), &Cause::OutOfCapacity));
    assert!(verdict.to_string().contains("KV cache: 512 MiB"));
}

#[test]
fn two_in_one_operation_with_links_up_are_not_blamed() {
    let verdict = Scene::new(6.0).waits(1, &[2]).waits(2, &[1]).judge();
    assert_eq!((verdict.rank, &verdict.cause), (None, &Cause::Unknown));
    assert!(verdict.evidence[0].contains("ranks 1,2 are in one operation"), "{verdict:?}");
}

#[test]
fn different_operations_or_numbers_are_a_disagreement_with_positions() {
    let scene = Scene::new(6.0)
        .waits(1, &[2])
        .set(2, |beacon| beacon.operation = operation::BARRIER)
        .set(2, |beacon| beacon.waits_for = RankSet::one(1));
    assert_eq!(
        scene.judge().to_string(),
        "ranks disagree: rank 1 at all-reduce #1234, rank 2 at barrier #1234"
    );
    let scene = Scene::new(6.0)
        .waits(1, &[2])
        .set(2, |beacon| (beacon.sequence, beacon.waits_for) = (1235, RankSet::one(1)));
    assert!(
        matches!(scene.judge().cause, Cause::RanksDisagree { positions } if positions.len() == 2)
    );
}

#[test]
fn a_rank_that_left_in_order_is_named() {
    let mut scene = Scene::new(2.0).waits(0, &[3]);
    scene.view.ranks[3].control = ControlState::Goodbye;
    let verdict = scene.judge();
    assert_eq!(verdict.cause, Cause::PeerStalled { phase: Phase::Stopped });
    assert!(verdict.to_string().starts_with("rank 3 (host b) left the group"), "{verdict}");
}

#[test]
fn without_evidence_the_cause_is_unknown_and_says_what_was_seen() {
    let what = "the caller gave up".to_owned();
    let verdict = Scene::new(1.0).reason(1, Reason::Failed { what }).judge();
    assert_eq!(verdict.cause, Cause::Unknown);
    assert!(verdict.evidence[0].contains("the caller gave up"));
    assert!(
        verdict.evidence.iter().any(|line| line.starts_with("rank 2 (host b): wire for 1.0 s"))
    );
}

/// A rail of the forwarded path 0 > 1 > 2 or back.
fn forwarded(from: u8, to: u8, rail: u8, through: u8, rails_left: u8) -> LinkReport {
    let why = "nothing was acknowledged".to_owned();
    LinkReport { from, to, rail: Some(rail), through: vec![through], rails_left, why }
}

#[test]
fn a_host_that_is_gone_is_named_and_not_the_paths_to_it_or_past_it() {
    // Rank 0 judges 2.1 s after rank 1's host lost its power: no connection was closed.
    for first in [cut(0, 1, 0), forwarded(0, 2, 0, 1, 0)] {
        let mut scene = Scene::new(0.6).waits(0, &[1, 2]);
        scene = scene.reason(0, Reason::LinkDown { report: first });
        scene.view.links = vec![cut(0, 1, 0), cut(2, 1, 0), forwarded(0, 2, 0, 1, 0)];
        scene.view.ranks[1].heard_at = NOW - s(2.1);
        let verdict = scene.judge();
        assert_eq!((verdict.rank, &verdict.cause), (Some(1), &Cause::PeerSilent));
        assert_eq!(verdict.evidence[0], "3 rails to it or past it went down meanwhile");
        assert!(verdict.next_step.contains("off, frozen, or cut off"), "{}", verdict.next_step);
    }
}

#[test]
fn a_rank_that_is_heard_is_alive_and_its_path_is_broken() {
    let mut scene =
        Scene::new(0.6).waits(0, &[1]).reason(0, Reason::LinkDown { report: cut(0, 1, 0) });
    scene.view.links = vec![cut(0, 1, 0)];
    scene.view.ranks[1].heard_at = NOW - s(0.4);
    assert_eq!(scene.judge().cause, Cause::PathBroken { from: 0, to: 1 });
}

#[test]
fn a_forwarded_path_that_fails_alone_is_named_by_its_hosts() {
    let report = forwarded(0, 2, 1, 3, 0);
    let mut scene = Scene::new(1.0).waits(0, &[2]);
    scene = scene.reason(0, Reason::LinkDown { report: report.clone() });
    scene.view.links = vec![forwarded(0, 2, 0, 1, 1), report];
    for (rank, host) in ["h0", "h1", "h2", "h3"].into_iter().enumerate() {
        scene.view.ranks[rank].host = host.to_owned();
    }
    let verdict = scene.judge();
    assert_eq!(verdict.cause, Cause::PathBroken { from: 0, to: 2 });
    assert_eq!(
        verdict.to_string(),
        "path between rank 0 and rank 2 is broken (forwarded path h0 > h3 > h2: nothing was acknowledged) at \
         all-reduce #1234"
    );
    assert!(verdict.next_step.contains("--only 'h0>h2'"), "{}", verdict.next_step);
    let first = "forwarded path h0 > h1 > h2: rail 0 to rank 2 go down";
    assert!(verdict.evidence.iter().any(|line| line.contains(first)), "{:?}", verdict.evidence);
}

#[test]
fn a_cable_explains_the_forwarded_paths_over_it() {
    let mut scene = Scene::new(1.0).waits(0, &[2]).waits(1, &[0]);
    scene = scene.reason(0, Reason::LinkDown { report: forwarded(0, 2, 0, 1, 0) });
    scene.view.links = vec![forwarded(0, 2, 0, 1, 0), cut(1, 0, 0)];
    let verdict = scene.judge();
    assert_eq!(verdict.cause, Cause::PathBroken { from: 1, to: 0 });
}

#[test]
fn a_rank_that_computes_is_not_held_for_a_broken_path_of_others() {
    let mut scene = Scene::new(61.0).waits(0, &[2]).in_phase(2, Phase::Compute, 61.0);
    scene.view.links = vec![forwarded(1, 3, 0, 0, 1), cut(1, 3, 0)];
    assert_eq!(scene.judge().cause, Cause::PeerStalled { phase: Phase::Compute });
}

#[test]
fn another_epoch_that_was_asked_for_is_no_fault() {
    let what = "have paths proven again".to_owned();
    let verdict = Scene::new(1.0).reason(0, Reason::Requested { what }).judge();
    assert_eq!(
        verdict.to_string(),
        "rank 0 (host a) was asked to have paths proven again at all-reduce #1234"
    );
}
