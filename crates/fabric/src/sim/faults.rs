//! What can go wrong in a world, and seeded plans of it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::rng::Rng;
use crate::topology::{Cable, Topology};

/// Something that goes wrong, or right again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Both directions of a rail get slower for good.
    Slow {
        /// One end.
        a: usize,
        /// The other end.
        b: usize,
        /// Which rail of the two.
        rail: usize,
        /// What every frame takes longer.
        extra: Duration,
        /// What a frame may take longer on top, at random.
        jitter: Duration,
    },
    /// A rail fails and both ends learn of it. Of the frames on their way some land.
    Cut {
        /// The end that learns of it first.
        a: usize,
        /// The other end.
        b: usize,
        /// Which rail of the two.
        rail: usize,
    },
    /// A rail swallows everything from now on. An end that sends finds out after
    /// [`give_up_after`](super::SimSettings::give_up_after).
    Silence {
        /// One end.
        a: usize,
        /// The other end.
        b: usize,
        /// Which rail of the two.
        rail: usize,
    },
    /// A rail that swallowed everything does so no more. Ends that gave it up stay down until they
    /// are made again.
    Mend {
        /// One end.
        a: usize,
        /// The other end.
        b: usize,
        /// Which rail of the two.
        rail: usize,
    },
    /// A rank is gone.
    Kill {
        /// Which.
        rank: usize,
        /// After how long its peers see their rails to it go down, or never.
        notice: Option<Duration>,
    },
    /// A rank stops: nothing comes in or out, and all of it waits.
    Freeze {
        /// Which.
        rank: usize,
    },
    /// A frozen rank goes on.
    Thaw {
        /// Which.
        rank: usize,
    },
    /// One bit of the next frame posted is flipped on its way.
    FlipBit {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
    /// The next frame posted loses its end on its way.
    Truncate {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
    /// Every frame and acknowledgement stays where it is until [`Release`](Self::Release), or
    /// until [`World::end`](super::World::end) takes them out.
    Hold,
    /// Ends [`Hold`](Self::Hold).
    Release,
}

/// Draws `count` faults that a group must survive without an error, each with its time before
/// `horizon`: slow rails, ranks frozen for a while, and, where cables have several rails, one rail
/// of a cable lost by a cut, a flipped bit or a frame cut short. At least one rail of every cable
/// stays.
pub fn survivable(
    rng: &mut Rng,
    topology: &Topology,
    horizon: Duration,
    count: usize,
) -> Vec<(Duration, Fault)> {
    let mut plan = Vec::with_capacity(count);
    // A flipped bit takes down whichever rail carries it, so each cable gets one such fault.
    let mut hit: BTreeSet<Cable> = BTreeSet::new();
    if topology.cables().is_empty() {
        return plan;
    }
    for _ in 0..count {
        let at = rng.up_to(horizon);
        let cable = topology.cables()[rng.index(topology.cables().len())];
        let (low, high) = cable.ends();
        let (a, b) = if rng.once_in(2) { (low, high) } else { (high, low) };
        let rail = rng.index(topology.rails());
        match rng.below(4) {
            0 => {
                plan.push((at, Fault::Freeze { rank: a }));
                plan.push((at + rng.up_to(horizon / 2), Fault::Thaw { rank: a }));
            }
            1 | 2 if topology.rails() > 1 && hit.insert(cable) => plan.push((
                at,
                match rng.below(3) {
                    0 => Fault::FlipBit { from: a, to: b },
                    1 => Fault::Truncate { from: a, to: b },
                    _ => Fault::Cut { a, b, rail },
                },
            )),
            _ => {
                let (extra, jitter) = (rng.up_to(horizon / 10), rng.up_to(horizon / 20));
                plan.push((at, Fault::Slow { a, b, rail, extra, jitter }));
            }
        }
    }
    plan
}
