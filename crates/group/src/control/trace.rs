//! Who everybody waits for: from the waiting ranks along the waits-for edges to those that wait for nobody.

use std::collections::VecDeque;
use std::time::Duration;

use crate::beacon::{Beacon, Phase, RankSet, operation};
use crate::control::view::ClusterView;
use crate::patience::{PatienceKey, PatienceValues};

/// A rank inside a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter {
    /// The rank.
    pub rank: usize,
    /// Its operation and sequence, when it waits inside one.
    pub position: Option<(u8, u32)>,
    /// Ranks it waits for.
    pub waits_for: RankSet,
    /// Relays the missing fragments come through.
    pub via: RankSet,
    /// When the wait began, on the clock of the view.
    pub since: Duration,
}

/// What a wait comes down to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootKind {
    /// No heartbeat.
    Silent,
    /// Waits for nobody and has not done its part.
    InPhase(Phase),
    /// Has done its part, yet `waiter` has not got it.
    Passed {
        /// Who lacks the bytes.
        waiter: usize,
    },
    /// Holds a chunk of `source` for `destination`.
    Relay {
        /// Whose bytes.
        source: usize,
        /// Who lacks them.
        destination: usize,
    },
    /// Inside another operation than `other`, which waits for it.
    Elsewhere {
        /// The rank that waits for it.
        other: usize,
    },
    /// All wait for each other.
    Cycle(RankSet),
}

/// One end of the waits-for edges, with the patience that applies to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// The rank waited for.
    pub rank: usize,
    /// Why the wait ends there.
    pub kind: RootKind,
    /// Which patience applies.
    pub key: PatienceKey,
    /// Its value.
    pub limit: Duration,
    /// From when it is counted.
    pub since: Duration,
    /// When it runs out.
    pub deadline: Duration,
}

/// Everything the waits of `waiters` come down to at `now`, in rising order of deadline.
pub fn trace(
    view: &ClusterView,
    patience: &PatienceValues,
    waiters: &[Waiter],
    now: Duration,
) -> Vec<Root> {
    let mut walk = Walk {
        view,
        patience,
        now,
        base: waiters.iter().map(|waiter| waiter.since).min().unwrap_or(now).max(view.awake_since),
        roots: Vec::new(),
        queue: waiters.iter().copied().collect(),
        seen: waiters.iter().map(|waiter| waiter.rank).collect(),
        cycle_since: view.awake_since,
    };
    walk.run();
    walk.finish()
}

struct Walk<'a> {
    view: &'a ClusterView,
    patience: &'a PatienceValues,
    now: Duration,
    base: Duration,
    roots: Vec<Root>,
    queue: VecDeque<Waiter>,
    seen: RankSet,
    cycle_since: Duration,
}

impl Walk<'_> {
    fn run(&mut self) {
        while let Some(waiter) = self.queue.pop_front() {
            let counted = waiter.since.max(self.view.counts_since(waiter.rank));
            self.cycle_since = self.cycle_since.max(counted);
            for rank in waiter.waits_for.iter() {
                if rank != waiter.rank && rank < self.view.size() {
                    self.edge(&waiter, rank);
                }
            }
            for relay in waiter.via.iter() {
                if relay != waiter.rank && relay < self.view.size() {
                    self.relay(&waiter, relay);
                }
            }
        }
    }

    fn edge(&mut self, waiter: &Waiter, rank: usize) {
        if self.view.is_stale(rank, self.now) {
            self.silent(rank);
            return;
        }
        let view = &self.view.ranks[rank];
        let Some(beacon) = view.beacon else {
            let since = self.base.max(self.view.counts_since(rank));
            self.push(rank, RootKind::InPhase(Phase::Start), PatienceKey::Start, since);
            return;
        };
        let entered = view.beacon_at.saturating_sub(beacon.phase_age);
        let since = self.base.max(self.view.counts_since(rank)).max(entered);
        match waiter.position {
            Some((_, sequence)) if beacon.has_passed(sequence) => {
                let since = since.max(waiter.since);
                self.push(rank, RootKind::Passed { waiter: waiter.rank }, PatienceKey::Wire, since);
            }
            Some(position) if elsewhere(&beacon, position) => {
                let since = since.max(waiter.since);
                let kind = RootKind::Elsewhere { other: waiter.rank };
                self.push(rank, kind, PatienceKey::Wire, since);
            }
            _ if self.seen.contains(rank) => {}
            _ if beacon.waits_for.without(rank).is_empty() => {
                self.push(rank, RootKind::InPhase(beacon.phase), key_of(beacon.phase), since);
            }
            _ => {
                self.seen = self.seen.with(rank);
                self.queue.push_back(waiter_of(self.view, rank, &beacon));
            }
        }
    }

    /// A relay's own waiting does not keep it from relaying, so its edges are not followed.
    fn relay(&mut self, waiter: &Waiter, relay: usize) {
        if self.view.is_stale(relay, self.now) {
            self.silent(relay);
            return;
        }
        let view = &self.view.ranks[relay];
        let Some(beacon) = view.beacon else { return };
        let held = beacon.relay_backlog;
        let source = usize::from(held.source);
        // Whoever the chunk is from: a relay that passes nothing on returns no credits either, and what the waiter lacks
        // may not have left its source for want of them.
        if held.chunks > 0 && usize::from(held.destination) == waiter.rank {
            let since = view
                .beacon_at
                .saturating_sub(held.oldest_age)
                .max(waiter.since)
                .max(self.view.counts_since(relay));
            let kind = RootKind::Relay { source, destination: waiter.rank };
            self.push(relay, kind, PatienceKey::Relay, since);
        }
    }

    fn silent(&mut self, rank: usize) {
        let since = self.view.silent_since(rank);
        self.push(rank, RootKind::Silent, PatienceKey::Silent, since);
    }

    fn push(&mut self, rank: usize, kind: RootKind, key: PatienceKey, since: Duration) {
        let limit = self.patience.get(key);
        let mut deadline = since.saturating_add(limit);
        if kind != RootKind::Silent {
            // A rank that goes from phase to phase for ever is late as well: no wait outlasts all patience together.
            let all = self.base.max(self.view.counts_since(rank));
            deadline = deadline.min(all.saturating_add(self.patience.sum()));
        }
        let root = Root { rank, kind, key, limit, since, deadline };
        if !self.roots.contains(&root) {
            self.roots.push(root);
        }
    }

    fn finish(mut self) -> Vec<Root> {
        if self.roots.is_empty() && !self.seen.is_empty() {
            let first = self.seen.iter().next().unwrap_or(0);
            let since = self.cycle_since;
            self.push(first, RootKind::Cycle(self.seen), PatienceKey::Wire, since);
        }
        self.roots.sort_by_key(|root| (root.deadline, root.rank));
        self.roots
    }
}

/// The wait a beacon tells of.
pub(crate) fn waiter_of(view: &ClusterView, rank: usize, beacon: &Beacon) -> Waiter {
    let inside = beacon.operation != operation::NONE;
    Waiter {
        rank,
        position: inside.then_some((beacon.operation, beacon.sequence)),
        waits_for: beacon.waits_for.without(rank),
        via: beacon.waits_via,
        since: view.ranks[rank].beacon_at.saturating_sub(beacon.wait_age),
    }
}

/// Whether the rank of `beacon` can never do its part for a waiter at `position`: it is inside another kind of operation
/// with the same number, or waits inside one so far behind that no rank could have got ahead of it.
fn elsewhere(beacon: &Beacon, position: (u8, u32)) -> bool {
    if beacon.operation == operation::NONE {
        return false;
    }
    let behind = position.1.wrapping_sub(beacon.sequence) as i32;
    (behind == 0 && beacon.operation != position.0) || (behind >= 2 && !beacon.waits_for.is_empty())
}

/// The patience for a rank in `phase`. An idle rank was to begin the operation, which is computing's share of the time.
pub(crate) fn key_of(phase: Phase) -> PatienceKey {
    match phase {
        Phase::Start => PatienceKey::Start,
        Phase::Compute | Phase::Idle => PatienceKey::Compute,
        Phase::Rows => PatienceKey::Rows,
        Phase::Wire | Phase::Stopped => PatienceKey::Wire,
        Phase::Relay => PatienceKey::Relay,
    }
}
