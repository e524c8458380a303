//! What a seed decides: the cabling, the sizes, the steps, and what goes wrong.

use std::time::Duration;

use fabric::sim::{Bug, Rng};
use fabric::{EndpointSettings, Shape, Sizes, Topology};

use super::steps::{Memory, Step};
use crate::beacon::Phase;
use crate::collective::{Schedule, ScheduleTable};
use crate::patience::{PatienceKey, PatienceValues};
use crate::verdict::{Cause, Verdict};

/// Bytes of a slot in every simulated group.
pub(super) const SLOT_BYTES: u64 = 4096;

/// Something that goes wrong in one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// One rail of a cable is cut.
    Cut {
        /// One end.
        a: usize,
        /// The other end.
        b: usize,
        /// Which rail.
        rail: usize,
    },
    /// All rails of a cable are cut.
    CutAll {
        /// One end.
        a: usize,
        /// The other end.
        b: usize,
    },
    /// A bit of a frame is flipped, or its end is lost.
    Damage {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// Its end is lost.
        truncated: bool,
    },
    /// A process is stopped.
    Freeze {
        /// Whose.
        rank: usize,
        /// For how long; none: for ever.
        lasts: Option<Duration>,
    },
    /// A rank's progress passes nothing on any more.
    HoldRelay {
        /// Which rank.
        rank: usize,
    },
    /// Every frame of the epoch stays on its way; all arrive in the next one.
    HoldWorld,
    /// A process ends.
    Kill {
        /// Whose.
        rank: usize,
    },
    /// A machine loses its power: nothing closes, nothing answers.
    PowerLoss {
        /// Whose.
        rank: usize,
    },
    /// A rail swallows what it is given.
    Silence {
        /// One end.
        a: usize,
        /// The other end.
        b: usize,
        /// Which rail; none: all of them.
        rail: Option<usize>,
    },
    /// Rails that are slower than others, within patience.
    Slow {
        /// What each frame takes longer.
        extra: Duration,
        /// What it may take on top.
        jitter: Duration,
    },
    /// A rank computes longer than patience allows.
    SlowCompute {
        /// Which rank.
        rank: usize,
    },
}

/// A trouble and its moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mishap {
    /// What.
    pub trouble: Trouble,
    /// The step that the first rank begins when it happens.
    pub step: usize,
    /// How long after that.
    pub after: Duration,
}

/// How a group is made, what it does and what goes wrong. All of it follows from a seed, and any
/// part of it can be replaced.
#[derive(Clone, Debug)]
pub struct SimPlan {
    /// How many ranks.
    pub ranks: usize,
    /// How they are cabled.
    pub shape: Shape,
    /// Rails of each cable.
    pub rails: usize,
    /// Sizes of the regions.
    pub sizes: Sizes,
    /// Sizes of the endpoints.
    pub endpoint: EndpointSettings,
    /// Writes a queue pair holds.
    pub outstanding_max: usize,
    /// Which schedule is used when.
    pub table: ScheduleTable,
    /// Whether peers' regions can be read in place.
    pub mapped: bool,
    /// The patience of all ranks.
    pub patience: PatienceValues,
    /// The number before the first operation.
    pub first: u32,
    /// What the group does.
    pub steps: Vec<Step>,
    /// Longest time that a rank computes before a step.
    pub compute: Duration,
    /// What goes wrong in each epoch; nothing in those after the last.
    pub mishaps: Vec<Option<Mishap>>,
    /// Whether a cable that broke stays broken.
    pub stays_broken: bool,
    /// A defect planted in the transport.
    pub bug: Option<Bug>,
}

impl SimPlan {
    /// The plan of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5249_4e47);
        let shape = [Shape::Full, Shape::Ring, Shape::Path][rng.index(3)];
        // Small groups are cheap, and large ones show what small ones do not.
        let ranks = if rng.once_in(4) { 5 + rng.index(4) } else { 2 + rng.index(3) };
        let rails = 1 + rng.index(3);
        let steps = (0..2 + rng.index(4))
            .map(|_| Step::random(&mut rng, ranks, SLOT_BYTES as usize))
            .collect();
        let mut plan = Self::quiet(ranks, shape, rails, steps);
        plan.sizes.relay_chunk_bytes = [256, 512, 1024, 4096][rng.index(4)];
        plan.endpoint = EndpointSettings {
            stripe_bytes_min: [1, 256, 1024, 1 << 20][rng.index(4)],
            write_bytes_max: [512, 1536, 1 << 16][rng.index(3)],
        };
        plan.outstanding_max = [2, 3, 8, 64][rng.index(4)];
        plan.mapped = shape == Shape::Full && rng.once_in(3);
        plan.table = match rng.below(5) {
            0 => ScheduleTable::only(Schedule::OneShot),
            1 => ScheduleTable::only(Schedule::TwoShot),
            2 => ScheduleTable::only(Schedule::Ring),
            3 => ScheduleTable {
                one_shot_bytes_max: 512,
                mapped_bytes_min: 1024,
                ring_bytes_min: Some(2048),
            },
            _ => ScheduleTable { one_shot_bytes_max: 1024, ..ScheduleTable::default() },
        };
        let mut seconds = |from: u64, to: u64| {
            Duration::from_millis(1000 * from) + rng.up_to(Duration::from_secs(to - from))
        };
        for key in [PatienceKey::Compute, PatienceKey::Wire, PatienceKey::Relay] {
            plan.patience = plan.patience.with(key, Duration::from_millis(500) + seconds(1, 2));
        }
        plan.patience = plan.patience.with(PatienceKey::Silent, seconds(2, 3));
        plan.first = u32::MAX - rng.below(6) as u32;
        plan.compute = rng.up_to(Duration::from_micros(300));
        let first = plan.mishap(&mut rng);
        plan.mishaps.push(first);
        if rng.once_in(5) {
            let second = plan.mishap(&mut rng);
            plan.mishaps.push(second);
        }
        plan.stays_broken = rng.once_in(2);
        plan
    }

    /// A group in which nothing goes wrong.
    pub fn quiet(ranks: usize, shape: Shape, rails: usize, steps: Vec<Step>) -> Self {
        let second = Duration::from_secs(1);
        let patience = PatienceKey::ALL
            .into_iter()
            .fold(PatienceValues::default(), |values, key| values.with(key, 2 * second));
        let registered = steps.iter().map(Step::registered_bytes).max().unwrap_or(0);
        let heap_bytes = 2 * registered.next_multiple_of(64) + 4096;
        Self {
            ranks,
            shape,
            rails,
            sizes: Sizes { slot_bytes: SLOT_BYTES, heap_bytes, relay_chunk_bytes: 512 },
            endpoint: EndpointSettings { stripe_bytes_min: 256, write_bytes_max: 2048 },
            outstanding_max: 64,
            table: ScheduleTable::default(),
            mapped: false,
            patience,
            first: u32::MAX - 2,
            steps,
            compute: Duration::from_micros(50),
            mishaps: Vec::new(),
            stays_broken: false,
            bug: None,
        }
    }

    /// Bytes of each of the two registered buffers.
    pub(super) fn registered_bytes(&self) -> u64 {
        self.steps.iter().map(Step::registered_bytes).max().unwrap_or(0)
    }

    fn mishap(&self, rng: &mut Rng) -> Option<Mishap> {
        let topology = Topology::new(self.shape, self.ranks, self.rails).ok()?;
        let cable = topology.cables()[rng.index(topology.cables().len())];
        let (low, high) = cable.ends();
        let (a, b) = if rng.once_in(2) { (low, high) } else { (high, low) };
        let (rank, rail) = (rng.index(self.ranks), rng.index(self.rails));
        let ms = Duration::from_millis;
        let silent = self.patience.get(PatienceKey::Silent);
        let trouble = match rng.below(20) {
            0..4 => return None,
            4 | 5 => {
                // On a long path the chunks of many pairs queue up at the middle cable.
                let most = ms(10) / (self.ranks * self.ranks / 4) as u32;
                Trouble::Slow { extra: rng.up_to(most), jitter: rng.up_to(most) }
            }
            6 | 7 if self.rails > 1 => Trouble::Cut { a, b, rail },
            6..9 => Trouble::CutAll { a, b },
            9 | 10 => Trouble::Kill { rank },
            11 => Trouble::PowerLoss { rank },
            12 => Trouble::Freeze { rank, lasts: None },
            13 if rng.once_in(3) => {
                Trouble::Freeze { rank, lasts: Some(silent + ms(1500) + rng.up_to(ms(1000))) }
            }
            13 | 14 => {
                // What is stopped for less than the least patience is not late.
                let most = self.least_patience().saturating_sub(ms(500));
                Trouble::Freeze { rank, lasts: Some(rng.up_to(most)) }
            }
            15 => Trouble::SlowCompute { rank },
            16 => {
                let relays = |rank: usize| {
                    let pairs =
                        (0..self.ranks).flat_map(|src| (0..self.ranks).map(move |dst| (src, dst)));
                    pairs.into_iter().any(|(src, dst)| {
                        topology.lanes(src, dst).iter().any(|lane| lane.relays().contains(&rank))
                    })
                };
                let rank =
                    (0..self.ranks).map(|step| (rank + step) % self.ranks).find(|&r| relays(r));
                Trouble::HoldRelay { rank: rank? }
            }
            17 => Trouble::Damage { from: a, to: b, truncated: rng.once_in(2) },
            18 => {
                let rail = (self.rails > 1 && rng.once_in(2)).then_some(rail);
                Trouble::Silence { a, b, rail }
            }
            _ => Trouble::HoldWorld,
        };
        let after = rng.up_to(Duration::from_micros(60));
        Some(Mishap { trouble, step: rng.index(self.steps.len()), after })
    }

    fn least_patience(&self) -> Duration {
        PatienceKey::ALL
            .into_iter()
            .map(|key| self.patience.get(key))
            .min()
            .unwrap_or(Duration::ZERO)
    }

    /// Whether a mishap must end in a verdict.
    pub(super) fn must_stop(&self, mishap: &Mishap) -> bool {
        match &mishap.trouble {
            Trouble::CutAll { .. }
            | Trouble::Kill { .. }
            | Trouble::PowerLoss { .. }
            | Trouble::Freeze { lasts: None, .. } => true,
            Trouble::Freeze { lasts: Some(lasts), .. } => {
                *lasts > self.patience.get(PatienceKey::Silent)
            }
            _ => false,
        }
    }

    /// Whether a mishap may end in a verdict.
    pub(super) fn may_stop(&self, mishap: &Mishap) -> bool {
        self.must_stop(mishap)
            || match &mishap.trouble {
                Trouble::Damage { .. } => self.rails == 1,
                Trouble::Silence { rail, .. } => rail.is_none(),
                Trouble::HoldRelay { .. } | Trouble::HoldWorld | Trouble::SlowCompute { .. } => {
                    true
                }
                _ => false,
            }
    }

    /// How long a wait that a mishap caused may last before its verdict, a second apart.
    pub(super) fn allowed(&self, mishap: &Mishap) -> Duration {
        let of = |key| self.patience.get(key);
        match &mishap.trouble {
            Trouble::CutAll { .. } | Trouble::Kill { .. } => Duration::ZERO,
            Trouble::Damage { .. } => Duration::ZERO,
            Trouble::Freeze { .. } | Trouble::PowerLoss { .. } => of(PatienceKey::Silent),
            Trouble::SlowCompute { .. } => of(PatienceKey::Compute),
            Trouble::HoldRelay { .. } => of(PatienceKey::Wire).max(of(PatienceKey::Relay)),
            Trouble::HoldWorld => of(PatienceKey::Wire),
            // An end finds out when it next sends: with the beacon of the next tenth of a second.
            Trouble::Silence { .. } => GIVE_UP_AFTER + Duration::from_millis(200),
            Trouble::Cut { .. } | Trouble::Slow { .. } => of(PatienceKey::Wire),
        }
    }
}

/// False while a wait for the own puts to leave names nobody: such a rank can be taken for one that
/// is stuck itself, and where nobody waits for it the wait has no end. The runs then let both pass.
pub(super) const DRAIN_WAITS_ARE_TOLD: bool = true;

/// After this long a device gives up a rail that swallows its frames.
pub(super) const GIVE_UP_AFTER: Duration = Duration::from_millis(200);

impl Trouble {
    /// Whether a verdict names this trouble, or admits that it does not know.
    pub(super) fn explains(&self, verdict: &Verdict) -> bool {
        let names = |rank: usize| verdict.rank == u8::try_from(rank).ok();
        let joins = |from: u8, to: u8, a: usize, b: usize| {
            let pair = (usize::from(from), usize::from(to));
            pair == (a, b) || pair == (b, a)
        };
        match (self, &verdict.cause) {
            (_, Cause::Unknown) => true,
            // Nothing at all gets through, on any path.
            (Self::HoldWorld, Cause::PathBroken { .. }) => true,
            // Bytes that stay away without a word let ranks get one operation apart, where all that
            // is known of them is that they are in different ones.
            (Self::HoldWorld | Self::HoldRelay { .. }, Cause::RanksDisagree { .. }) => true,
            (
                Self::HoldWorld
                | Self::HoldRelay { .. }
                | Self::PowerLoss { .. }
                | Self::Freeze { .. },
                Cause::PeerStalled { phase: Phase::Wire },
            ) => !DRAIN_WAITS_ARE_TOLD,
            (Self::Kill { rank }, Cause::PeerDead)
            | (Self::PowerLoss { rank }, Cause::PeerSilent)
            | (Self::Freeze { rank, .. }, Cause::PeerSilent | Cause::PeerStalled { .. })
            | (Self::SlowCompute { rank }, Cause::PeerStalled { phase: Phase::Compute })
            | (Self::HoldRelay { rank }, Cause::PeerStalled { phase: Phase::Relay }) => {
                names(*rank)
            }
            (
                Self::CutAll { a, b }
                | Self::Damage { from: a, to: b, .. }
                | Self::Silence { a, b, .. },
                Cause::PathBroken { from, to },
            ) => joins(*from, *to, *a, *b),
            _ => false,
        }
    }

    /// The rank that is started anew for the next epoch.
    pub(super) fn lost_rank(&self) -> Option<usize> {
        match self {
            Self::Kill { rank } | Self::PowerLoss { rank } | Self::Freeze { rank, lasts: None } => {
                Some(*rank)
            }
            _ => None,
        }
    }

    /// The cable it happens to, where it is one.
    pub(super) fn cable(&self) -> Option<(usize, usize)> {
        match *self {
            Self::Cut { a, b, .. } | Self::CutAll { a, b } | Self::Silence { a, b, .. } => {
                Some((a, b))
            }
            Self::Damage { from, to, .. } => Some((from, to)),
            _ => None,
        }
    }

    /// The cable that carries nothing any more.
    pub(super) fn lost_cable(&self) -> Option<(usize, usize)> {
        match *self {
            Self::CutAll { a, b } => Some((a, b)),
            Self::Damage { from, to, .. } => Some((from, to)),
            Self::Silence { a, b, rail: None } => Some((a, b)),
            _ => None,
        }
    }
}

impl Step {
    /// An all-reduce that every rank of a test can do.
    pub fn sum(count: usize) -> Self {
        Self::AllReduce {
            scalar: fabric::Scalar::F32,
            how: fabric::Reduction::Sum,
            count,
            memory: Memory::Plain,
        }
    }
}
