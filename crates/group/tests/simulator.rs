//! Seeded runs of whole groups, each held against the invariants of the design.
//!
//! `RAILWEAVE_SIM_SEED=N` runs one seed and tells what happened; `RAILWEAVE_SIM_SEEDS=COUNT` sets
//! how many are run; `RAILWEAVE_SIM_FIRST=N` sets where they begin.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric::sim::Bug;
use fabric::Shape;
use group::testing::{Mishap, SimGroup, SimPlan, Step, Trouble};

/// Seeds of all slices together.
const SEEDS: u64 = 10_000;
const SLICES: u64 = 8;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs one share of the seeds and answers how often each cause was the verdict.
fn run_slice(slice: u64) -> BTreeMap<&'static str, u64> {
    let count = setting("RAILWEAVE_SIM_SEEDS").unwrap_or(SEEDS);
    let first = setting("RAILWEAVE_SIM_FIRST").unwrap_or(0);
    let mut causes = BTreeMap::new();
    for seed in (first..first + count).filter(|seed| seed % SLICES == slice) {
        let report =
            SimGroup::from_seed(seed).run().unwrap_or_else(|violation| panic!("{violation}"));
        for verdict in report.verdicts {
            *causes.entry(verdict.cause.name()).or_default() += 1;
        }
    }
    causes
}

macro_rules! slices {
    ($($name:ident $slice:literal),*) => {$(
        #[test]
        fn $name() {
            let causes = run_slice($slice);
            println!("{causes:?}");
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
    println!("{:#?}", SimPlan::from_seed(seed));
    match SimGroup::from_seed(seed).verbose().run() {
        Ok(report) => {
            report.story.iter().for_each(|line| println!("{line}"));
            println!("{} steps, hash {:016x}, {:?}", report.steps, report.hash, report.time);
        }
        Err(violation) => panic!("{violation}"),
    }
}
