//! What one rank knows of all ranks at one moment: the input of every judgement.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::beacon::{Beacon, RankSet};

/// A rank unheard for longer is judged by its silence alone; its last phase says nothing any more.
pub const STALE_AFTER: Duration = Duration::from_secs(1);

/// A path over which no beacon came for this long does not work, if the rank itself is heard otherwise: beacons are sent
/// ten times a second.
pub const PATH_QUIET: Duration = Duration::from_secs(2);

/// The control connection to a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlState {
    /// Open.
    Connected,
    /// The rank said goodbye: it left in order.
    Goodbye,
    /// It ended without goodbye.
    Lost {
        /// When, on this rank's clock.
        at: Duration,
        /// As the system put it.
        why: String,
    },
}

/// One rail of a pair of ranks went down, or nothing comes over any of them, as one end saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Rank that reports: one end.
    pub from: u8,
    /// The other end.
    pub to: u8,
    /// Which rail of the pair; none is the whole path.
    pub rail: Option<u8>,
    /// The ranks whose NICs pass packets of that rail on, in order from the reporting end; none on a cable.
    #[serde(default)]
    pub through: Vec<u8>,
    /// Rails of the pair that still work at the reporting end.
    pub rails_left: u8,
    /// What was wrong, as the transport put it.
    pub why: String,
}

/// What the supervisor of a rank's machine knows of its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorNote {
    /// The rank.
    pub rank: u8,
    /// Whether the process has ended.
    pub ended: bool,
    /// For example `killed by signal 9`.
    pub text: String,
}

/// What is known of one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RankView {
    /// The machine it runs on.
    pub host: String,
    /// Its newest beacon, by whichever way it came.
    pub beacon: Option<Beacon>,
    /// When that beacon came.
    pub beacon_at: Duration,
    /// When it was last heard, by the control channel or through the fabric.
    pub heard_at: Duration,
    /// When its beacon last came through the fabric; none if it is no neighbour.
    pub fabric_at: Option<Duration>,
    /// The beat of that beacon.
    pub fabric_beat: u32,
    /// Start of the present run of heartbeats without a gap longer than [`STALE_AFTER`]. A rank that was stopped and
    /// goes on is given its patience anew from here.
    pub heard_since: Duration,
    /// The connection this rank has to it.
    pub control: ControlState,
    /// Ranks that say their connection to it ended without goodbye.
    pub lost_by: RankSet,
    /// When this rank first knew of any of them.
    pub lost_since: Option<Duration>,
    /// What a supervisor said of it.
    pub note: Option<SupervisorNote>,
}

/// What people call the cables between ranks; the lower rank of a pair comes first.
pub type CableNames = BTreeMap<(u8, u8), String>;

/// What rank `me` knows of all ranks. Times are on the clock of `me`, since an origin of its choice.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterView {
    /// Epoch all of it belongs to.
    pub epoch: u32,
    /// Whose view it is.
    pub me: usize,
    /// Since when this rank has run without being stopped itself: silence before it says nothing about others.
    pub awake_since: Duration,
    /// By rank.
    pub ranks: Vec<RankView>,
    /// Rails that went down, in the order they were reported.
    pub links: Vec<LinkReport>,
    /// What people call the cables.
    pub cables: CableNames,
}

impl ClusterView {
    /// A view of `hosts.len()` ranks at `now`, in which nobody has said anything yet.
    pub fn new(epoch: u32, me: usize, hosts: Vec<String>, now: Duration) -> Self {
        let ranks = hosts
            .into_iter()
            .map(|host| RankView {
                host,
                beacon: None,
                beacon_at: now,
                heard_at: now,
                fabric_at: None,
                fabric_beat: 0,
                heard_since: now,
                control: ControlState::Connected,
                lost_by: RankSet::EMPTY,
                lost_since: None,
                note: None,
            })
            .collect();
        Self { epoch, me, awake_since: now, ranks, links: Vec::new(), cables: CableNames::new() }
    }

    /// How many ranks the group has.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Takes in a sign of life of `rank`.
    pub fn hear(&mut self, rank: usize, now: Duration) {
        if let Some(view) = self.ranks.get_mut(rank) {
            if now.saturating_sub(view.heard_at.max(self.awake_since)) > STALE_AFTER {
                view.heard_since = now;
            }
            view.heard_at = view.heard_at.max(now);
        }
    }

    /// Takes in a beacon of `rank`. A beacon of another epoch, or one that is not newer than the one at hand, changes
    /// nothing: read twice through the fabric, it is no sign of life.
    pub fn take_beacon(&mut self, rank: usize, beacon: Beacon, now: Duration) {
        if beacon.epoch != self.epoch || rank >= self.ranks.len() {
            return;
        }
        let newer = self.ranks[rank]
            .beacon
            .is_none_or(|old| (beacon.beat.wrapping_sub(old.beat) as i32) > 0);
        if newer {
            self.hear(rank, now);
            self.ranks[rank].beacon = Some(beacon);
            self.ranks[rank].beacon_at = now;
        }
    }

    /// Takes in a beacon of `rank` that came through the fabric, which also tells that the path works.
    pub fn take_fabric_beacon(&mut self, rank: usize, beacon: Beacon, now: Duration) {
        if beacon.epoch != self.epoch {
            return;
        }
        if let Some(view) = self.ranks.get_mut(rank)
            && (view.fabric_at.is_none() || (beacon.beat.wrapping_sub(view.fabric_beat) as i32) > 0)
        {
            view.fabric_at = Some(now);
            view.fabric_beat = beacon.beat;
        }
        self.take_beacon(rank, beacon, now);
    }

    /// How long nothing has come from a neighbour through the fabric, though it is heard; `None` if the path works, if
    /// nothing is heard of the rank at all, or if it is no neighbour.
    pub fn path_quiet_for(&self, rank: usize, now: Duration) -> Option<Duration> {
        // A rank that was stopped goes on with its heartbeats first.
        let last = self.ranks.get(rank)?.fabric_at?.max(self.counts_since(rank));
        let quiet = now.saturating_sub(last);
        (quiet >= PATH_QUIET && !self.is_stale(rank, now)).then_some(quiet)
    }

    /// What people call the cable between two ranks, as a prefix of what is said of it.
    pub(crate) fn cable(&self, a: u8, b: u8) -> String {
        match self.cables.get(&(a.min(b), a.max(b))) {
            Some(name) => format!("cable {name}: "),
            None => String::new(),
        }
    }

    /// What a report is about, as a prefix of what is said of it: the cable, or the forwarded path.
    pub(crate) fn way(&self, report: &LinkReport) -> String {
        if report.through.is_empty() {
            return self.cable(report.from, report.to);
        }
        let ends = [[report.from].as_slice(), &report.through, &[report.to]].concat();
        let host = |rank: &u8| match self.ranks.get(usize::from(*rank)) {
            Some(view) if !view.host.is_empty() => view.host.clone(),
            _ => format!("rank {rank}"),
        };
        format!("forwarded path {}: ", ends.iter().map(host).collect::<Vec<_>>().join(" > "))
    }

    /// Since when `rank` is unheard.
    pub fn silent_since(&self, rank: usize) -> Duration {
        self.ranks.get(rank).map_or(self.awake_since, |view| view.heard_at.max(self.awake_since))
    }

    /// Whether `rank` was not heard for more than [`STALE_AFTER`]. A rank is never stale to itself.
    pub fn is_stale(&self, rank: usize, now: Duration) -> bool {
        rank != self.me && now.saturating_sub(self.silent_since(rank)) > STALE_AFTER
    }

    /// Since when the beacon of `rank` may be counted against it.
    pub(crate) fn counts_since(&self, rank: usize) -> Duration {
        self.ranks.get(rank).map_or(self.awake_since, |view| view.heard_since.max(self.awake_since))
    }

    /// `rank (host)`, as verdicts write it.
    pub(crate) fn name(&self, rank: usize) -> String {
        match self.ranks.get(rank) {
            Some(view) if !view.host.is_empty() => format!("rank {rank} (host {})", view.host),
            _ => format!("rank {rank}"),
        }
    }
}
