//! A whole group in one thread, under virtual time and a seed.
//!
//! Ranks run the real fabric, collectives and control plane over a simulated transport and a
//! simulated control network. A seed decides the cabling, what the ranks do, who runs when, and
//! what goes wrong; the same seed gives the same run. Every run is held against the invariants of
//! the design, and a [`Violation`] names the one that did not hold.
//!
//! ```
//! let report = group::testing::SimGroup::from_seed(7).run().expect("every invariant holds");
//! assert!(report.steps > 0);
//! ```

mod checks;
mod epoch;
mod net;
mod plan;
mod program;
mod rank;
mod seat;
mod steps;
mod story;

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fabric::sim::{LateFrame, Rng};
use fabric::{Cable, Layout, Region, Topology};

use crate::verdict::Verdict;
use epoch::{Epoch, EpochEnd, EpochSetup};
use steps::Book;
use story::Story;

pub use plan::{Mishap, SimPlan, Trouble};
pub use steps::{Memory, Step};

/// Epochs a run may take: one for each mishap and a last one in which nothing goes wrong.
const EPOCHS_MAX: usize = 4;

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// The name of the invariant.
    pub invariant: &'static str,
    /// The epoch in which it broke.
    pub epoch: u32,
    /// What was found.
    pub what: String,
    /// The plan of the run.
    pub plan: String,
    /// What happened before, where the run was verbose.
    pub story: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.story {
            writeln!(f, "{line}")?;
        }
        writeln!(
            f,
            "seed {} breaks {} in epoch {}: {}",
            self.seed, self.invariant, self.epoch, self.what
        )?;
        writeln!(f, "plan: {}", self.plan)?;
        write!(
            f,
            "replay: RAILWEAVE_SIM_SEED={} cargo test -p railweave-group --test simulator -- one_seed --nocapture",
            self.seed
        )
    }
}

impl std::error::Error for Violation {}

/// What came of a run in which every invariant held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// A hash over everything that happened.
    pub hash: u64,
    /// Steps done, repeated ones not counted twice.
    pub steps: usize,
    /// The verdict of each epoch that ended in one.
    pub verdicts: Vec<Arc<Verdict>>,
    /// Frames of earlier epochs that arrived and were refused.
    pub late_refused: u64,
    /// Longest time between the start of a wait, or of its cause if that came later, and the
    /// verdict, less the patience that applied.
    pub overrun: Duration,
    /// Ends of rails that were made again and came back into service.
    pub rails_back: usize,
    /// The virtual time at the end.
    pub time: Duration,
    /// What happened, where the run was verbose.
    pub story: Vec<String>,
}

/// A group to be run once.
#[derive(Debug)]
pub struct SimGroup {
    seed: u64,
    plan: SimPlan,
    verbose: bool,
}

impl SimGroup {
    /// The group that a seed gives.
    pub fn from_seed(seed: u64) -> Self {
        Self::new(seed, SimPlan::from_seed(seed))
    }

    /// A group with a plan of its own; the seed decides the rest.
    pub fn new(seed: u64, plan: SimPlan) -> Self {
        Self { seed, plan, verbose: false }
    }

    /// Keeps a line for everything of note that happens.
    #[must_use]
    pub fn verbose(mut self) -> Self {
        self.verbose = true;
        self
    }

    /// Runs until every rank has done every step.
    ///
    /// # Errors
    /// The first invariant that did not hold.
    pub fn run(self) -> Result<Report, Violation> {
        let mut story = Story::new(self.verbose);
        let mut epoch = 0;
        self.run_epochs(&mut story, &mut epoch).map_err(|(invariant, what)| Violation {
            seed: self.seed,
            invariant,
            epoch,
            what,
            plan: format!("{:?}", self.plan),
            story: story.take(),
        })
    }

    fn run_epochs(&self, story: &mut Story, epoch: &mut u32) -> Result<Report, Broken> {
        let plan = &self.plan;
        let set_up = |what: &dyn fmt::Display| ("PLAN", what.to_string());
        let mut topology =
            Topology::new(plan.shape, plan.ranks, plan.rails).map_err(|error| set_up(&error))?;
        let region_bytes = self.region_bytes(&topology);
        let new_region =
            || Region::private(region_bytes).map(Arc::new).map_err(|error| set_up(&error));
        let mut regions = (0..plan.ranks).map(|_| new_region()).collect::<Result<Vec<_>, _>>()?;
        let book = Rc::new(Book::new(
            self.seed,
            plan.ranks,
            plan.sizes.slot_bytes as usize,
            plan.steps.clone(),
        ));
        let clock = Rc::new(Cell::new(Duration::ZERO));
        let mut completed = vec![0; plan.ranks];
        let mut late: Vec<LateFrame> = Vec::new();
        let mut report = Report {
            hash: 0,
            steps: 0,
            verdicts: Vec::new(),
            late_refused: 0,
            overrun: Duration::ZERO,
            rails_back: 0,
            time: Duration::ZERO,
            story: Vec::new(),
        };
        for index in 0..EPOCHS_MAX {
            *epoch = index as u32 + 1;
            let mishap = plan.mishaps.get(index).cloned().flatten();
            let setup = EpochSetup {
                seed: Rng::new(self.seed ^ (index as u64) << 56).bits(),
                epoch: *epoch,
                plan,
                topology: Arc::new(topology.clone()),
                regions: regions.clone(),
                book: Rc::clone(&book),
                clock: Rc::clone(&clock),
                completed: completed.clone(),
                late: std::mem::take(&mut late),
                mishap: mishap.clone(),
            };
            let end = Epoch::new(setup, story)?.run()?;
            report.hash = report.hash.rotate_left(7) ^ end.hash;
            report.late_refused += end.late_refused;
            report.overrun = report.overrun.max(end.overrun);
            report.rails_back += end.rails_back;
            report.time = clock.get();
            let EpochEnd { verdict, completed: done, frames, .. } = end;
            let Some(verdict) = verdict else {
                report.steps = done.iter().copied().min().unwrap_or(0);
                report.story = story.take();
                return Ok(report);
            };
            report.verdicts.push(verdict);
            late = frames;
            // What one rank lacks all repeat; the last step at least, so that the new epoch works.
            let again =
                done.iter().copied().min().unwrap_or(0).min(plan.steps.len().saturating_sub(1));
            completed = vec![again; plan.ranks];
            if let Some(trouble) = mishap.map(|mishap| mishap.trouble) {
                if let Some(rank) = trouble.lost_rank() {
                    regions[rank] = new_region()?;
                }
                if let Some((a, b)) = trouble.lost_cable().filter(|_| plan.stays_broken) {
                    topology = topology.without(&[Cable::between(a, b)]).unwrap_or(topology);
                }
            }
        }
        Err(("BOUNDED", format!("{EPOCHS_MAX} epochs were not enough")))
    }

    /// Bytes for the layout of every topology this plan can come to.
    fn region_bytes(&self, topology: &Topology) -> u64 {
        let bytes = |topology: &Topology| Layout::new(topology, self.plan.sizes).region_bytes();
        let cut: Vec<Cable> = self
            .plan
            .mishaps
            .iter()
            .flatten()
            .filter_map(|mishap| mishap.trouble.lost_cable())
            .map(|(a, b)| Cable::between(a, b))
            .collect();
        let mut most = bytes(topology);
        let mut left = topology.clone();
        for cable in cut {
            for other in [topology.without(&[cable]), left.without(&[cable])] {
                most = other.map_or(most, |other| most.max(bytes(&other)));
            }
            left = left.without(&[cable]).unwrap_or(left);
        }
        most
    }
}

/// An invariant and what broke it.
type Broken = (&'static str, String);
