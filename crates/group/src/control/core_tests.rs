use std::collections::BTreeMap;

use super::*;
use crate::beacon::BeaconCell;

const STEP: Duration = Duration::from_millis(10);

fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A group in memory: messages take a seeded time of up to 40 ms, in order between two ranks.
struct Sim {
    now: Duration,
    seed: u64,
    ranks: Vec<Rank>,
    /// Receiver, sender, message.
    rail_messages: Vec<(usize, usize, RailMessage)>,
    /// By arrival time and a running number.
    flying: BTreeMap<(Duration, u64), (usize, usize, Flying)>,
    last_arrival: BTreeMap<(usize, usize), Duration>,
    number: u64,
    patience: PatienceValues,
}

struct Rank {
    core: ControlCore,
    cell: BeaconCell,
    dead: bool,
    frozen: bool,
    inbox: Vec<(usize, Flying)>,
    adopted: Vec<(Duration, Arc<Verdict>)>,
}

enum Flying {
    Message(Message),
    End,
}

impl Sim {
    fn new(size: usize, seed: u64) -> Self {
        let ranks = (0..size).map(|rank| {
            let hosts = (0..size).map(|rank| format!("h{rank}")).collect();
            Rank {
                core: ControlCore::new(1, rank, hosts, Duration::ZERO)
                    .with_cables(CableNames::from([((0, 1), "h0.p0–h1.p1".to_owned())])),
                cell: BeaconCell::new(1),
                dead: false,
                frozen: false,
                inbox: Vec::new(),
                adopted: Vec::new(),
            }
        });
        Self {
            now: Duration::ZERO,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            ranks: ranks.collect(),
            flying: BTreeMap::new(),
            last_arrival: BTreeMap::new(),
            number: 0,
            rail_messages: Vec::new(),
            patience: PatienceValues::default(),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    fn send(&mut self, from: usize, to: usize, what: Flying) {
        let delay = Duration::from_millis(self.random(40));
        let last = self.last_arrival.get(&(from, to)).copied().unwrap_or_default();
        let arrival = (self.now + delay).max(last);
        self.last_arrival.insert((from, to), arrival);
        self.number += 1;
        self.flying.insert((arrival, self.number), (from, to, what));
    }

    fn kill(&mut self, rank: usize) {
        self.ranks[rank].dead = true;
        for to in 0..self.ranks.len() {
            if to != rank {
                self.send(rank, to, Flying::End);
            }
        }
    }

    /// Everybody but `late` waits for `late`, which stays in `phase`.
    fn all_wait_for(&mut self, late: usize, phase: Phase) {
        for (rank, known) in self.ranks.iter().enumerate() {
            known.cell.begin_operation(operation::ALL_REDUCE, 8);
            known.cell.set_waiting(RankSet::one(late), RankSet::EMPTY);
            if rank == late {
                known.cell.end_operation(Phase::Idle);
                known.cell.begin_operation(operation::NONE, 7);
                known.cell.set_phase(phase);
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += STEP;
            while let Some(entry) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
                let (from, to, what) = entry.remove();
                self.ranks[to].inbox.push((from, what));
            }
            for to in 0..self.ranks.len() {
                if self.ranks[to].frozen || self.ranks[to].dead {
                    continue;
                }
                for (from, what) in std::mem::take(&mut self.ranks[to].inbox) {
                    let mut out = Vec::new();
                    let core = &mut self.ranks[to].core;
                    match what {
                        Flying::Message(message) => {
                            core.on_message(self.now, from, 1, message, &mut out);
                        }
                        Flying::End => core.on_closed(self.now, from, "end of stream", &mut out),
                    }
                    self.carry_out(to, out);
                }
            }
            for rank in 0..self.ranks.len() {
                if self.ranks[rank].dead || self.ranks[rank].frozen {
                    continue;
                }
                if self.number % 3 == rank as u64 % 3 || self.random(3) == 0 {
                    let mut out = Vec::new();
                    let own = self.ranks[rank].cell.heartbeat(self.now);
                    let patience = self.patience;
                    self.ranks[rank].core.tick(self.now, own, &patience, &mut out);
                    self.carry_out(rank, out);
                }
            }
        }
    }

    fn carry_out(&mut self, rank: usize, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send { to, message } => self.send(rank, to, Flying::Message(message)),
                Output::Adopted(verdict) => {
                    let now = self.now;
                    self.ranks[rank].adopted.push((now, verdict));
                }
                Output::Rail { from, message } => self.rail_messages.push((rank, from, message)),
            }
        }
    }

    /// The verdict all living, running ranks adopted exactly once, by `by`.
    fn shared(&self, by: Duration) -> Arc<Verdict> {
        let mut verdicts = self.ranks.iter().enumerate().filter(|(_, r)| !r.dead && !r.frozen).map(
            |(rank, known)| {
                assert_eq!(known.adopted.len(), 1, "rank {rank}: {:?}", known.adopted);
                let (at, verdict) = &known.adopted[0];
                assert!(*at <= by, "rank {rank} adopted at {at:?}, allowed was {by:?}");
                Arc::clone(verdict)
            },
        );
        let first = verdicts.next().unwrap();
        verdicts.for_each(|verdict| assert_eq!(verdict, first));
        first
    }
}

#[test]
fn a_death_is_one_verdict_on_all_survivors_within_a_second() {
    for seed in 0..20 {
        for victim in 0..4 {
            let mut sim = Sim::new(4, seed);
            sim.run(s(1.0));
            sim.all_wait_for(victim, Phase::Compute);
            sim.run(s(0.3));
            sim.kill(victim);
            let by = sim.now + s(1.0);
            sim.run(s(3.0));
            let verdict = sim.shared(by);
            assert_eq!(verdict.cause, Cause::PeerDead, "seed {seed}");
            assert_eq!(verdict.rank, Some(narrow(victim)), "seed {seed}");
        }
    }
}

#[test]
fn the_collector_dying_with_another_or_right_after_leaves_one_verdict() {
    for seed in 0..100 {
        let mut sim = Sim::new(4, seed);
        sim.run(s(1.0));
        sim.kill(3);
        let pause = Duration::from_millis(sim.random(700));
        sim.run(pause);
        sim.kill(0);
        sim.run(s(4.0));
        let verdict = sim.shared(sim.now);
        assert_eq!(verdict.cause, Cause::PeerDead, "seed {seed}");
    }
}

#[test]
fn a_frozen_rank_is_silent_after_patience_the_collector_included() {
    for seed in 0..6 {
        for victim in 0..4 {
            let mut sim = Sim::new(4, seed);
            sim.run(s(1.0));
            sim.all_wait_for(victim, Phase::Wire);
            sim.ranks[victim].frozen = true;
            let by = sim.now + s(11.0);
            sim.run(s(12.0));
            let verdict = sim.shared(by);
            assert_eq!(verdict.cause, Cause::PeerSilent, "seed {seed}");
            assert_eq!(verdict.rank, Some(narrow(victim)), "seed {seed}");
            // Once it goes on, it adopts what the others did, although it thinks everybody else was silent.
            sim.ranks[victim].frozen = false;
            sim.run(s(2.0));
            assert_eq!(sim.shared(sim.now), verdict);
        }
    }
}

#[test]
fn five_seconds_of_sleep_fail_nothing() {
    for seed in 0..6 {
        for victim in 0..4 {
            let mut sim = Sim::new(4, seed);
            sim.run(s(1.0));
            sim.all_wait_for(victim, Phase::Wire);
            sim.run(s(2.0));
            sim.ranks[victim].frozen = true;
            sim.run(s(5.0));
            sim.ranks[victim].frozen = false;
            sim.run(s(1.0));
            for known in &sim.ranks {
                known.cell.end_operation(Phase::Idle);
            }
            sim.run(s(10.0));
            assert!(sim.ranks.iter().all(|rank| rank.adopted.is_empty()), "seed {seed}");
        }
    }
}

#[test]
fn a_late_rank_is_judged_by_its_phase_within_patience_and_a_second() {
    for seed in 0..20 {
        let mut sim = Sim::new(4, seed);
        sim.patience = sim.patience.with(PatienceKey::Compute, s(3.0));
        sim.run(s(1.0));
        sim.all_wait_for(2, Phase::Compute);
        let by = sim.now + s(4.0);
        sim.run(s(2.9));
        assert!(sim.ranks.iter().all(|rank| rank.adopted.is_empty()), "seed {seed}");
        sim.run(s(2.0));
        let verdict = sim.shared(by);
        assert_eq!(verdict.cause, Cause::PeerStalled { phase: Phase::Compute });
        assert_eq!((verdict.rank, verdict.waited_by), (Some(2), RankSet::all(4).without(2)));
    }
}

#[test]
fn the_collector_frozen_while_another_rank_is_late() {
    for seed in 0..15 {
        let mut sim = Sim::new(4, seed);
        sim.patience = sim.patience.with(PatienceKey::Compute, s(3.0));
        sim.run(s(1.0));
        sim.all_wait_for(2, Phase::Compute);
        let before = Duration::from_millis(sim.random(4000));
        sim.run(before);
        sim.ranks[0].frozen = true;
        sim.run(s(15.0));
        let verdict = sim.shared(sim.now);
        assert!(verdict.judged_by <= 1, "seed {seed}: {verdict:?}");
        sim.ranks[0].frozen = false;
        sim.run(s(2.0));
        assert_eq!(sim.shared(sim.now), verdict, "seed {seed}");
    }
}

#[test]
fn a_broken_link_names_both_ends() {
    for seed in 0..15 {
        let mut sim = Sim::new(4, seed);
        sim.run(s(1.0));
        let report = LinkReport {
            from: 9,
            to: 3,
            rail: Some(0),
            through: Vec::new(),
            rails_left: 0,
            why: "cable cut".into(),
        };
        let mut out = Vec::new();
        let now = sim.now;
        sim.ranks[2].core.report_link(report.clone(), &mut out);
        let report = LinkReport { from: 2, ..report };
        sim.ranks[2].core.propose(now, Reason::LinkDown { report }, &mut out);
        sim.carry_out(2, out);
        sim.run(s(2.0));
        let verdict = sim.shared(now + s(1.0));
        assert_eq!(verdict.cause, Cause::PathBroken { from: 2, to: 3 });
    }
}

#[test]
fn a_link_that_fails_with_its_machine_waits_for_two_seconds_of_silence() {
    let mut sim = Sim::new(4, 5);
    sim.run(s(1.0));
    sim.ranks[3].frozen = true;
    sim.run(s(0.3));
    let report = LinkReport {
        from: 2,
        to: 3,
        rail: Some(0),
        through: Vec::new(),
        rails_left: 0,
        why: "timed out".into(),
    };
    let mut out = Vec::new();
    let now = sim.now;
    sim.ranks[2].core.propose(now, Reason::LinkDown { report }, &mut out);
    sim.carry_out(2, out);
    sim.run(s(1.4));
    assert!(sim.ranks.iter().all(|rank| rank.adopted.is_empty()));
    sim.run(s(1.0));
    let verdict = sim.shared(s(3.7));
    assert_eq!((verdict.rank, &verdict.cause), (Some(3), &Cause::PeerSilent));
}

#[test]
fn a_path_that_swallows_everything_is_told_from_a_rank_that_is_stuck() {
    for seed in 0..15 {
        let mut sim = Sim::new(4, seed);
        sim.run(s(1.0));
        // Until now, beacons came over the cable between 0 and 1; heartbeats go on all the time.
        for (me, other) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
            let beacon = sim.ranks[other].cell.snapshot(sim.now);
            sim.ranks[me].core.on_fabric_beacon(sim.now, other, beacon);
        }
        for (rank, awaited) in [(0, 1), (1, 0), (2, 0), (3, 0)] {
            sim.ranks[rank].cell.begin_operation(operation::ALL_REDUCE, 8);
            sim.ranks[rank].cell.set_waiting(RankSet::one(awaited), RankSet::EMPTY);
        }
        for _ in 0..80 {
            sim.run(s(0.1));
            for (me, other) in [(1, 2), (2, 1)] {
                let beacon = sim.ranks[other].cell.heartbeat(sim.now);
                sim.ranks[me].core.on_fabric_beacon(sim.now, other, beacon);
            }
        }
        let verdict = sim.shared(sim.now);
        assert!(
            matches!(verdict.cause, Cause::PathBroken { from: 0 | 1, to: 0 | 1 }),
            "seed {seed}: {verdict:?}"
        );
        assert!(verdict.to_string().contains("cable h0.p0–h1.p1: nothing has come"), "{verdict}");
    }
}

/// As seen on a ring whose cable between 0 and 1 was pulled: who missed it first had gone on by one operation.
#[test]
fn a_cable_that_is_missed_by_way_of_a_relay_is_named_all_the_same() {
    for seed in 0..15 {
        let mut sim = Sim::new(4, seed);
        sim.run(s(1.0));
        for (me, other) in [(0, 1), (1, 0)] {
            let beacon = sim.ranks[other].cell.snapshot(sim.now);
            sim.ranks[me].core.on_fabric_beacon(sim.now, other, beacon);
        }
        let one = RankSet::one;
        for (rank, sequence, awaited, via) in [
            (0, 1092, one(2), one(1)),
            (1, 1092, one(3), one(0)),
            (2, 1093, one(0), one(3)),
            (3, 1093, one(0).with(1), one(2)),
        ] {
            sim.ranks[rank].cell.begin_operation(operation::ALL_REDUCE, sequence);
            sim.ranks[rank].cell.set_waiting(awaited, via);
        }
        sim.run(s(8.0));
        let verdict = sim.shared(sim.now);
        assert!(
            matches!(verdict.cause, Cause::PathBroken { from: 0 | 1, to: 0 | 1 }),
            "seed {seed}: {verdict:?}"
        );
    }
}

#[test]
fn leaving_in_order_is_no_death() {
    let mut sim = Sim::new(3, 1);
    sim.run(s(1.0));
    let mut out = Vec::new();
    sim.ranks[1].core.goodbye(&mut out);
    sim.carry_out(1, out);
    sim.kill(1);
    sim.run(s(20.0));
    assert!(sim.ranks.iter().all(|rank| rank.adopted.is_empty()));
    let left = &sim.ranks[0].core.view().ranks[1].control;
    assert_eq!(*left, ControlState::Goodbye);
}

#[test]
fn another_epochs_messages_are_dropped() {
    let hosts = vec!["a".to_owned(), "b".to_owned()];
    let mut core = ControlCore::new(2, 0, hosts, Duration::ZERO);
    let mut out = Vec::new();
    core.on_message(s(0.1), 1, 1, Message::Goodbye, &mut out);
    assert_eq!(core.view().ranks[1].control, ControlState::Connected);
    let old = Message::Heartbeat(Beacon::starting(1));
    core.on_message(s(0.1), 1, 2, old, &mut out);
    assert!(core.view().ranks[1].beacon.is_none());
}

#[test]
fn of_two_verdicts_the_lower_judges_wins_everywhere() {
    let hosts: Vec<String> = (0..4).map(|rank| format!("h{rank}")).collect();
    let mut core = ControlCore::new(1, 3, hosts, Duration::ZERO);
    let verdict = |judge: u8| Verdict {
        epoch: 1,
        sequence: 0,
        operation: 0,
        cause: Cause::Unknown,
        rank: None,
        host: String::new(),
        peer: None,
        lasted_ms: u64::from(judge),
        waited_by: RankSet::EMPTY,
        evidence: Vec::new(),
        next_step: String::new(),
        judged_by: judge,
    };
    let mut out = Vec::new();
    let values = PatienceValues::default();
    for (at, judge) in [(0.10, 2), (0.15, 1), (0.16, 2)] {
        core.on_message(s(at), 2, 1, Message::Verdict(verdict(judge)), &mut out);
    }
    core.tick(s(0.29), Beacon::starting(1), &values, &mut out);
    assert!(core.verdict().is_none());
    core.tick(s(0.30), Beacon::starting(1), &values, &mut out);
    assert_eq!(core.verdict().map(|adopted| adopted.judged_by), Some(1));
    core.on_message(s(0.4), 2, 1, Message::Verdict(verdict(0)), &mut out);
    assert_eq!(core.verdict().map(|adopted| adopted.judged_by), Some(1));
    let adopted = out.iter().filter(|output| matches!(output, Output::Adopted(_))).count();
    assert_eq!(adopted, 1);
}

#[test]
fn words_about_rails_reach_the_other_end_until_a_verdict() {
    use crate::control::wire::RailStep;
    let mut sim = Sim::new(3, 5);
    let word = |attempt| RailMessage::new(1, attempt, RailStep::Ready);
    let mut out = Vec::new();
    sim.ranks[0].core.send_rail(2, word(1), &mut out);
    sim.ranks[0].core.send_rail(0, word(2), &mut out);
    sim.ranks[0].core.send_rail(9, word(3), &mut out);
    sim.carry_out(0, out);
    sim.run(Duration::from_secs(1));
    assert_eq!(sim.rail_messages, [(2, 0, word(1))]);
    sim.kill(1);
    sim.run(Duration::from_secs(5));
    assert!(sim.ranks[2].core.verdict().is_some());
    let mut out = Vec::new();
    sim.ranks[0].core.send_rail(2, word(4), &mut out);
    assert!(out.is_empty());
    sim.ranks[2].core.on_message(sim.now, 0, 1, Message::Rail(word(5)), &mut out);
    assert!(out.is_empty());
}
