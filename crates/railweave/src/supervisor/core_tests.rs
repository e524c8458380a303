use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn policy() -> Policy {
    Policy { ranks: 3, restart: true, restart_limit: 3, start: 600 * SECOND, stalled: 60 * SECOND }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn event(rank: u32, life: u32, event: Event) -> Input {
    Input::Event { rank, life, event }
}

fn exited(rank: u32, life: u32, exit: Exit) -> Input {
    Input::Exited { rank, life, exit }
}

fn verdict(kind: VerdictKind, epoch: u64, rank: u32) -> Event {
    Event::Verdict { epoch, kind, rank: Some(rank), text: format!("rank {rank}: {kind:?}") }
}

fn killed(actions: &[Action]) -> Vec<u32> {
    actions
        .iter()
        .filter_map(|a| if let Action::Kill { rank } = a { Some(*rank) } else { None })
        .collect()
}

fn spawned(actions: &[Action]) -> Vec<(u32, u32)> {
    let pick = |a: &Action| {
        if let Action::Spawn { rank, life } = a { Some((*rank, *life)) } else { None }
    };
    actions.iter().filter_map(pick).collect()
}

fn finished(actions: &[Action]) -> Option<Outcome> {
    actions.iter().find_map(|a| if let Action::Finish(o) = a { Some(o.clone()) } else { None })
}

/// A core whose three ranks are all part of epoch 1 at second 10.
fn serving() -> Core {
    let mut core = Core::new(policy());
    assert_eq!(spawned(&core.handle(at(0), Input::Tick)), [(0, 0), (1, 0), (2, 0)]);
    for rank in 0..3 {
        core.handle(at(10), event(rank, 0, Event::Ready { epoch: 1 }));
    }
    core
}

#[test]
fn all_ready_is_reported_once_for_each_epoch() {
    let mut core = Core::new(policy());
    core.handle(at(0), Input::Tick);
    let ready = |actions: &[Action]| {
        actions.iter().any(|a| matches!(a, Action::Report(Report::AllReady { .. })))
    };
    assert!(!ready(&core.handle(at(1), event(0, 0, Event::Ready { epoch: 1 }))));
    assert!(!ready(&core.handle(at(1), event(1, 0, Event::Ready { epoch: 1 }))));
    assert!(ready(&core.handle(at(1), event(2, 0, Event::Ready { epoch: 1 }))));
    assert!(!ready(&core.handle(at(2), event(2, 0, Event::Ready { epoch: 1 }))));
    assert!(ready(&core.handle(at(3), event(1, 0, Event::Reformed { epoch: 2 }))));
}

#[test]
fn a_killed_rank_is_restarted_at_once_and_the_others_are_told_and_left_alone() {
    let mut core = serving();
    let actions = core.handle(at(20), exited(1, 0, Exit::Signal(9)));
    let note = Note::Exited { rank: 1, exit: Exit::Signal(9) };
    for rank in [0, 2] {
        assert!(actions.contains(&Action::Note { rank, note: note.clone() }));
        assert!(actions.contains(&Action::Note { rank, note: Note::Restarted { rank: 1 } }));
    }
    assert_eq!(spawned(&actions), [(1, 1)]);
    assert!(killed(&actions).is_empty());
}

#[test]
fn restarts_back_off_and_then_give_up_with_the_reason() {
    let mut core = serving();
    assert_eq!(spawned(&core.handle(at(20), exited(1, 0, Exit::Signal(11)))), [(1, 1)]);
    assert!(spawned(&core.handle(at(21), exited(1, 1, Exit::Signal(11)))).is_empty());
    assert_eq!(core.next_tick(), Some(at(21) + FIRST_BACKOFF));
    assert_eq!(spawned(&core.handle(at(22), Input::Tick)), [(1, 2)]);
    core.handle(at(23), exited(1, 2, Exit::Signal(11)));
    assert_eq!(core.next_tick(), Some(at(23) + 2 * FIRST_BACKOFF));
    assert_eq!(spawned(&core.handle(at(24), Input::Tick)), [(1, 3)]);
    let actions = core.handle(at(25), exited(1, 3, Exit::Signal(11)));
    assert!(
        actions.contains(&Action::Stop { rank: 0 }) && actions.contains(&Action::Stop { rank: 2 })
    );
    core.handle(at(26), exited(0, 0, Exit::Code(0)));
    let end = finished(&core.handle(at(26), exited(2, 0, Exit::Code(0))));
    let Some(Outcome::Failed(reason)) = end else { panic!("{end:?}") };
    assert!(
        reason.contains("rank 1") && reason.contains("SIGSEGV") && reason.contains("restart_limit")
    );
}

#[test]
fn old_restarts_are_forgiven() {
    let mut core = serving();
    for life in 0..20 {
        let now = at(20 + u64::from(life) * 700);
        assert_eq!(spawned(&core.handle(now, exited(1, life, Exit::Signal(9)))), [(1, life + 1)]);
        core.handle(now + SECOND, event(1, life + 1, Event::Ready { epoch: u64::from(life) + 2 }));
    }
}

#[test]
fn a_silent_rank_is_killed_once_whoever_says_so() {
    let mut core = serving();
    let silent = verdict(VerdictKind::Silent, 1, 2);
    assert_eq!(killed(&core.handle(at(20), event(0, 0, silent.clone()))), [2]);
    assert!(core.handle(at(20), event(1, 0, silent.clone())).is_empty());
    assert_eq!(spawned(&core.handle(at(21), exited(2, 0, Exit::Signal(9)))), [(2, 1)]);
    // The same verdict again is about the process that is gone.
    assert!(killed(&core.handle(at(22), event(1, 0, silent))).is_empty());
    let later = verdict(VerdictKind::Silent, 2, 2);
    assert_eq!(killed(&core.handle(at(90), event(1, 0, later))), [2]);
}

fn came(rank: u32) -> Input {
    event(rank, 0, Event::Rendezvous { present: 1, after: Some(1) })
}

/// These ranks come to meet the others, as a healthy rank does after a verdict.
fn meet(core: &mut Core, ranks: &[u32]) {
    for &rank in ranks {
        core.handle(at(21), came(rank));
    }
}

#[test]
fn a_rank_that_came_before_its_verdict_was_told_is_left_alone() {
    let mut core = serving();
    core.handle(at(20), came(0));
    core.handle(at(20), event(0, 0, verdict(VerdictKind::Stalled, 1, 2)));
    meet(&mut core, &[1, 2, 3]);
    assert!(killed(&core.handle(at(81), Input::Tick)).is_empty());
}

#[test]
fn a_stalled_rank_is_killed_only_if_it_does_not_join_again() {
    let mut core = serving();
    core.handle(at(20), event(0, 0, verdict(VerdictKind::Stalled, 1, 2)));
    meet(&mut core, &[0, 1]);
    assert_eq!(core.next_tick(), Some(at(80)));
    assert!(killed(&core.handle(at(79), Input::Tick)).is_empty());
    assert_eq!(killed(&core.handle(at(80), Input::Tick)), [2]);
    assert!(killed(&core.handle(at(81), Input::Tick)).is_empty());

    let mut core = serving();
    core.handle(at(20), event(0, 0, verdict(VerdictKind::Stalled, 1, 2)));
    meet(&mut core, &[0, 1]);
    core.handle(at(30), event(2, 0, Event::Reformed { epoch: 2 }));
    assert!(killed(&core.handle(at(200), Input::Tick)).is_empty());
}

#[test]
fn a_rank_that_hangs_while_no_group_lives_is_killed_in_time() {
    let mut core = serving();
    // Rank 2 was named; rank 1 hangs too, and no group is left to say so.
    assert_eq!(killed(&core.handle(at(20), event(0, 0, verdict(VerdictKind::Silent, 1, 2)))), [2]);
    meet(&mut core, &[0]);
    assert!(killed(&core.handle(at(79), Input::Tick)).is_empty());
    assert_eq!(killed(&core.handle(at(80), Input::Tick)), [1]);
}

#[test]
fn other_verdicts_kill_nobody_that_comes_to_meet_the_others() {
    for kind in [
        VerdictKind::Dead,
        VerdictKind::PathBroken,
        VerdictKind::ConfigurationDiffers,
        VerdictKind::RanksDisagree,
        VerdictKind::OutOfCapacity,
        VerdictKind::Unknown,
    ] {
        let mut core = serving();
        assert!(killed(&core.handle(at(20), event(0, 0, verdict(kind, 1, 2)))).is_empty());
        meet(&mut core, &[0, 1, 2]);
        assert!(killed(&core.handle(at(5000), Input::Tick)).is_empty());
    }
}

#[test]
fn a_rank_that_never_gets_ready_is_killed() {
    let mut core = Core::new(policy());
    core.handle(at(0), Input::Tick);
    core.handle(at(1), event(0, 0, Event::Ready { epoch: 1 }));
    assert_eq!(core.next_tick(), Some(at(600)));
    assert_eq!(killed(&core.handle(at(600), Input::Tick)), [1, 2]);
}

#[test]
fn a_rank_that_says_it_is_hopeless_ends_everything() {
    let mut core = serving();
    let words = Event::Failed { error: "model not found".to_owned(), retry: false };
    core.handle(at(20), event(1, 0, words));
    let actions = core.handle(at(20), exited(1, 0, Exit::Code(1)));
    assert!(spawned(&actions).is_empty());
    core.handle(at(21), exited(0, 0, Exit::Code(0)));
    let end = finished(&core.handle(at(21), exited(2, 0, Exit::Code(0))));
    assert!(matches!(end, Some(Outcome::Failed(reason)) if reason.contains("model not found")));
}

#[test]
fn an_interrupt_stops_in_order_then_kills_what_is_left() {
    let mut core = serving();
    let actions = core.handle(at(20), Input::Interrupt);
    let stops = actions.iter().filter(|a| matches!(a, Action::Stop { .. })).count();
    assert_eq!((stops, killed(&actions).len()), (3, 0));
    core.handle(at(21), exited(0, 0, Exit::Code(0)));
    core.handle(at(21), exited(1, 0, Exit::Code(0)));
    assert_eq!(core.next_tick(), Some(at(25)));
    assert_eq!(killed(&core.handle(at(25), Input::Tick)), [2]);
    let end = finished(&core.handle(at(25), exited(2, 0, Exit::Signal(9))));
    assert_eq!(end, Some(Outcome::Interrupted));
    assert_eq!(core.next_tick(), None);
}

#[test]
fn a_second_interrupt_kills_at_once() {
    let mut core = serving();
    core.handle(at(20), Input::Interrupt);
    assert_eq!(killed(&core.handle(at(20), Input::Interrupt)), [0, 1, 2]);
}

#[test]
fn an_interrupt_while_a_restart_is_due_starts_nothing() {
    let mut core = serving();
    core.handle(at(20), exited(1, 0, Exit::Signal(9)));
    core.handle(at(20), exited(1, 1, Exit::Signal(9)));
    core.handle(at(20), Input::Interrupt);
    assert!(spawned(&core.handle(at(24), Input::Tick)).is_empty());
}

#[test]
fn with_restart_off_a_death_is_the_end() {
    let mut core = Core::new(Policy { ranks: 1, restart: false, ..policy() });
    core.handle(at(0), Input::Tick);
    let actions = core.handle(at(1), exited(0, 0, Exit::Signal(9)));
    assert!(matches!(finished(&actions), Some(Outcome::Failed(_))));
}

#[test]
fn a_rank_that_cannot_be_started_counts_as_dead() {
    let mut core = Core::new(Policy { ranks: 1, restart_limit: 0, ..policy() });
    core.handle(at(0), Input::Tick);
    let failed = Input::SpawnFailed { rank: 0, life: 0, error: "no memory".to_owned() };
    let end = finished(&core.handle(at(0), failed));
    assert!(matches!(end, Some(Outcome::Failed(reason)) if reason.contains("no memory")));
}

mod any_order {
    use super::*;
    use proptest::prelude::*;

    fn any_input() -> impl Strategy<Value = Input> {
        let kinds = prop_oneof![
            Just(VerdictKind::Silent),
            Just(VerdictKind::Stalled),
            Just(VerdictKind::Dead)
        ];
        let rank = 0_u32..4;
        let life = 0_u32..3;
        prop_oneof![
            4 => (rank.clone(), life.clone(), 1_u64..5)
                .prop_map(|(rank, life, epoch)| event(rank, life, Event::Ready { epoch })),
            2 => (rank.clone(), life.clone(), kinds, 1_u64..5, rank.clone())
                .prop_map(|(rank, life, kind, epoch, named)| event(rank, life, verdict(kind, epoch, named))),
            3 => (rank, life).prop_map(|(rank, life)| exited(rank, life, Exit::Signal(9))),
            3 => Just(Input::Tick),
            1 => Just(Input::Interrupt),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order: a process is started once, only running ones are signalled, and
        /// nothing is left running at the end.
        #[test]
        fn only_running_processes_are_signalled_and_none_is_left(
            inputs in proptest::collection::vec((any_input(), 0_u64..40), 0..80)
        ) {
            let mut core = Core::new(policy());
            let mut now = 0;
            let mut running = [None::<u32>; 3];
            let mut ended = false;
            let mut apply = |actions: Vec<Action>, running: &mut [Option<u32>; 3]| {
                for action in actions {
                    match action {
                        Action::Spawn { rank, life } => {
                            assert!(!ended);
                            assert_eq!(running[rank as usize].replace(life), None);
                        }
                        Action::Kill { rank } | Action::Stop { rank } | Action::Note { rank, .. } => {
                            assert!(running[rank as usize].is_some());
                        }
                        Action::Finish(_) => {
                            assert_eq!(*running, [None; 3]);
                            ended = true;
                        }
                        Action::Report(_) | Action::Keep { .. } => {}
                    }
                }
            };
            apply(core.handle(at(now), Input::Tick), &mut running);
            for (input, pause) in inputs {
                now += pause;
                if let Input::Exited { rank, life, .. } = &input
                    && let Some(slot) = running.get_mut(*rank as usize)
                    && *slot == Some(*life)
                {
                    *slot = None;
                }
                apply(core.handle(at(now), input), &mut running);
            }
            apply(core.handle(at(now), Input::Interrupt), &mut running);
            for rank in 0..3 {
                if let Some(life) = running[rank as usize].take() {
                    apply(core.handle(at(now), exited(rank, life, Exit::Signal(9))), &mut running);
                }
            }
            assert_eq!(core.next_tick(), None);
        }
    }
}
