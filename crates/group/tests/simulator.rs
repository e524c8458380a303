//! Seeded runs of whole groups, each held against the invariants of the design.
//!
//! `RAILWEAVE_SIM_SEED=N` runs one seed and tells what happened; `RAILWEAVE_SIM_SEEDS=COUNT` sets
//! how many are run; `RAILWEAVE_SIM_FIRST=N` sets where they begin.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric::Shape;
use fabric::sim::Bug;
use group::testing::{Mishap, SimGroup, SimPlan, Step, Trouble, Violation};

/// Seeds of all slices together.
const SEEDS: u64 = 10_000;
const SLICES: u64 = 8;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs one share of the seeds and answers how often each cause was the verdict.
fn run_slice(slice: u64) -> BTreeMap<&'static str, u64> {
    let first = setting("RAILWEAVE_SIM_FIRST").unwrap_or(0);
    let (mut causes, mut overrun) = (BTreeMap::new(), Duration::ZERO);
    let count = setting("RAILWEAVE_SIM_SEEDS").unwrap_or(SEEDS);
    for seed in (first..first.saturating_add(count)).filter(|seed| seed % SLICES == slice) {
        let report =
            SimGroup::from_seed(seed).run().unwrap_or_else(|violation| panic!("{violation}"));
        overrun = overrun.max(report.overrun);
        for verdict in report.verdicts {
            *causes.entry(verdict.cause.name()).or_default() += 1;
        }
    }
    println!("{causes:?}, at most {overrun:?} beyond patience");
    causes
}

macro_rules! slices {
    ($($name:ident $slice:literal),*) => {$(
        #[test]
        fn $name() {
            run_slice($slice);
        }
    )*};
}

slices!(
    seeds_0 0, seeds_1 1, seeds_2 2, seeds_3 3, seeds_4 4, seeds_5 5, seeds_6 6, seeds_7 7
);

/// Runs the seed of `RAILWEAVE_SIM_SEED`, else the first, and tells what happened.
#[test]
fn one_seed() {
    let seed = setting("RAILWEAVE_SIM_SEED").unwrap_or(0);
    match SimGroup::from_seed(seed).verbose().run() {
        Ok(report) => {
            report.story.iter().for_each(|line| println!("{line}"));
            println!("{} steps, hash {:016x}, {:?}", report.steps, report.hash, report.time);
        }
        Err(violation) => panic!("{violation}"),
    }
}

#[test]
fn a_seed_gives_the_same_run_twice_and_another_seed_another_one() {
    let hash = |seed| SimGroup::from_seed(seed).run().map(|report| report.hash);
    let hashes: Vec<_> = (0..60).map(|seed| hash(seed).unwrap()).collect();
    assert_eq!(hashes, (0..60).map(|seed| hash(seed).unwrap()).collect::<Vec<_>>());
    let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
    assert_eq!(distinct.len(), hashes.len());
}

/// The first seed in which a planted defect shows, and how.
fn find(bug: Bug, seeds: u64) -> Option<(u64, Violation)> {
    (0..seeds).find_map(|seed| {
        let plan = SimPlan { bug: Some(bug), ..SimPlan::from_seed(seed) };
        SimGroup::new(seed, plan).run().err().map(|violation| (seed, violation))
    })
}

#[test]
fn a_flag_before_its_bytes_is_found_within_ten_seeds() {
    let (_, found) = find(Bug::FlagBeforeBytes, 10).expect("it must be found");
    assert!(["EXACT", "SAME-BITS"].contains(&found.invariant), "{found}");
}

#[test]
fn a_missing_epoch_check_is_found_within_a_hundred_seeds() {
    let (_, found) = find(Bug::NoEpochCheck, 100).expect("it must be found");
    assert!(found.epoch > 1, "{found}");
}

/// Not only by counting: what lands from an earlier epoch makes values wrong.
#[test]
fn frames_of_an_earlier_epoch_would_make_values_wrong() {
    let wrong = (0..200).any(|seed| {
        let plan = SimPlan { bug: Some(Bug::NoEpochCheck), ..held(seed) };
        let found = SimGroup::new(seed, plan).run().err();
        found.is_some_and(|found| ["EXACT", "SAME-BITS"].contains(&found.invariant))
    });
    assert!(wrong, "no seed of 200 shows it");
}

/// A group whose first epoch's frames all arrive in the second.
fn held(seed: u64) -> SimPlan {
    let shape = [Shape::Full, Shape::Ring, Shape::Path][seed as usize % 3];
    let steps = (1..5).map(|index| Step::sum(index * 200)).collect();
    let mut plan = SimPlan::quiet(2 + seed as usize % 4, shape, 1 + seed as usize % 2, steps);
    let (step, after) = (seed as usize % 4, Duration::from_micros(seed % 7));
    plan.mishaps = vec![Some(Mishap { trouble: Trouble::HoldWorld, step, after })];
    plan
}

#[test]
fn a_whole_epoch_of_late_frames_is_refused() {
    let mut refused = 0;
    for seed in 0..200 {
        let report = SimGroup::new(seed, held(seed)).run().unwrap_or_else(|v| panic!("{v}"));
        assert_eq!(report.steps, 4);
        refused += report.late_refused;
    }
    assert!(refused > 1000, "only {refused} frames came late");
}

#[test]
fn all_ranks_send_to_their_distant_rank_at_once() {
    for shape in [Shape::Ring, Shape::Path] {
        for ranks in [4, 6, 8] {
            for outstanding_max in [1, 2, 64] {
                let steps = vec![Step::AllToAll { share: 3 * 4096 }; 2];
                let mut plan = SimPlan::quiet(ranks, shape, 1, steps);
                plan.compute = Duration::ZERO;
                plan.outstanding_max = outstanding_max;
                plan.sizes.relay_chunk_bytes = 256;
                let report = SimGroup::new(ranks as u64, plan).run();
                let report = report.unwrap_or_else(|violation| panic!("{violation}"));
                assert_eq!((report.steps, report.verdicts.len()), (2, 0));
            }
        }
    }
}

/// Faults whose cause the evidence singles out are named, not called unknown.
#[test]
fn plain_faults_are_named() {
    let rank = 1;
    let troubles = [
        (Trouble::Kill { rank }, "peer_dead"),
        (Trouble::PowerLoss { rank }, "peer_silent"),
        (Trouble::Freeze { rank, lasts: None }, "peer_silent"),
        (Trouble::CutAll { a: 1, b: 2 }, "path_broken"),
        (Trouble::SlowCompute { rank }, "peer_stalled"),
        (Trouble::HoldRelay { rank }, "peer_stalled"),
    ];
    for (trouble, name) in troubles {
        for seed in 0..30 {
            // Without the step's begin in flight: the trouble comes before the rank sends its part.
            let mut plan = SimPlan::quiet(4, Shape::Path, 1, vec![Step::sum(3000); 4]);
            let step = 1 + seed as usize % 2;
            let mishap = Mishap { trouble: trouble.clone(), step, after: Duration::ZERO };
            plan.mishaps = vec![Some(mishap)];
            let report = SimGroup::new(seed, plan).run().unwrap_or_else(|v| panic!("{v}"));
            let found = report.verdicts.first().map(|verdict| verdict.cause.name());
            assert_eq!(found, Some(name), "{trouble:?} with seed {seed}: {:?}", report.verdicts);
        }
    }
}

/// A rail that fails while another one works is made again inside the epoch, at both ends, and the
/// steps before, meanwhile and after it are right.
#[test]
fn a_rail_that_failed_comes_back_in_the_same_epoch() {
    for seed in 0..60 {
        let rail = seed as usize % 2;
        let shape = [Shape::Full, Shape::Ring, Shape::Path][seed as usize % 3];
        let ranks = 2 + seed as usize % 3;
        let (trouble, back) = match seed % 4 {
            // It stays mute, so no proof passes.
            0 => (Trouble::Silence { a: 0, b: 1, rail: Some(rail) }, 0),
            1 => (Trouble::Damage { from: 1, to: 0, truncated: seed % 8 < 4 }, 2),
            _ => (Trouble::Cut { a: 0, b: 1, rail }, 2),
        };
        let mut plan = SimPlan::quiet(ranks, shape, 2, vec![Step::sum(700); 8]);
        plan.compute = Duration::from_millis(800);
        let after = Duration::from_micros(seed % 60);
        plan.mishaps = vec![Some(Mishap { trouble, step: 1, after })];
        let report = SimGroup::new(seed, plan).run().unwrap_or_else(|v| panic!("{v}"));
        assert!(report.verdicts.is_empty(), "seed {seed}: {:?}", report.verdicts);
        assert_eq!((report.steps, report.rails_back), (8, back), "seed {seed}");
    }
}

/// Runs that once broke an invariant.
#[test]
fn regressions() {
    const SEEDS: [(u64, &str); 9] = [
        (412, "a relay whose way on was shut by another relay was named"),
        (334, "a relay whose frames were held was named"),
        (441, "a rank that had begun nothing counted as one that was ahead"),
        (568, "a wait for the own puts to leave had no end"),
        (1433, "a rank whose puts could not leave was named for one that was stopped"),
        (637, "a rank whose puts could not leave was named for one without power"),
        (9700, "a write posted again was overtaken by a later one of its lane on another rail"),
        (2416, "a reduced slice was overwritten in staging memory before it had left"),
        (523, "a ring all-reduce overwrote staging memory that an exchange still sent from"),
    ];
    for (seed, what) in SEEDS {
        if let Err(violation) = SimGroup::from_seed(seed).run() {
            panic!("{what}: {violation}");
        }
    }
}
