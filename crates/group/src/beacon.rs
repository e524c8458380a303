//! What a rank is doing, in 64 bytes: the record other ranks read before they lose patience.
//!
//! The worker writes a [`BeaconCell`] with a few stores and without reading a clock. Ages are counted by the reader of
//! the cell from the first snapshot that saw a value, so an age is at most one heartbeat too young and never too old:
//! a rank may be judged a tenth of a second late, never early.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The most ranks a group can have.
pub const MAX_RANKS: usize = 16;

/// A set of ranks, one bit each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RankSet(pub u32);

impl RankSet {
    /// The set without members.
    pub const EMPTY: Self = Self(0);

    /// The set of one rank; empty when the number is beyond what a group can hold.
    pub fn one(rank: usize) -> Self {
        if rank < MAX_RANKS { Self(1 << rank) } else { Self::EMPTY }
    }

    /// Ranks `0..size`.
    pub fn all(size: usize) -> Self {
        (0..size.min(MAX_RANKS)).collect()
    }

    /// Whether `rank` is a member.
    pub fn contains(self, rank: usize) -> bool {
        rank < MAX_RANKS && self.0 & (1 << rank) != 0
    }

    /// This set with `rank` in it.
    #[must_use]
    pub fn with(self, rank: usize) -> Self {
        Self(self.0 | Self::one(rank).0)
    }

    /// This set without `rank`.
    #[must_use]
    pub fn without(self, rank: usize) -> Self {
        Self(self.0 & !Self::one(rank).0)
    }

    /// Members of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether there is no member.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many members there are.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Members in rising order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_RANKS).filter(move |rank| self.contains(*rank))
    }
}

impl FromIterator<usize> for RankSet {
    fn from_iter<I: IntoIterator<Item = usize>>(ranks: I) -> Self {
        ranks.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rank) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{rank}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// What a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Phase {
    /// Loading, connecting, proving paths.
    Start = 0,
    /// Computing between two operations of the group.
    Compute = 1,
    /// Reading table rows.
    Rows = 2,
    /// Inside an operation of the group.
    Wire = 3,
    /// Passing bytes on for other ranks.
    Relay = 4,
    /// Nothing to do.
    Idle = 5,
    /// Left the group.
    Stopped = 6,
}

impl Phase {
    /// Every phase, in the order of its code.
    pub const ALL: [Self; 7] = [
        Self::Start,
        Self::Compute,
        Self::Rows,
        Self::Wire,
        Self::Relay,
        Self::Idle,
        Self::Stopped,
    ];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The word for it, as in settings and verdicts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Compute => "compute",
            Self::Rows => "rows",
            Self::Wire => "wire",
            Self::Relay => "relay",
            Self::Idle => "idle",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Codes of the group's operations, as beacons and verdicts carry them.
pub mod operation {
    /// Between operations.
    pub const NONE: u8 = 0;
    /// All-reduce.
    pub const ALL_REDUCE: u8 = 1;
    /// All-gather.
    pub const ALL_GATHER: u8 = 2;
    /// Reduce-scatter.
    pub const REDUCE_SCATTER: u8 = 3;
    /// Broadcast.
    pub const BROADCAST: u8 = 4;
    /// All-to-all.
    pub const ALL_TO_ALL: u8 = 5;
    /// Barrier.
    pub const BARRIER: u8 = 6;

    /// The name of a code; `operation` when the code is not known to this build.
    pub fn name(code: u8) -> &'static str {
        match code {
            NONE => "no operation",
            ALL_REDUCE => "all-reduce",
            ALL_GATHER => "all-gather",
            REDUCE_SCATTER => "reduce-scatter",
            BROADCAST => "broadcast",
            ALL_TO_ALL => "all-to-all",
            BARRIER => "barrier",
            _ => "operation",
        }
    }
}

/// Chunks that reached this rank's relay mailboxes and were not passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayBacklog {
    /// How many chunks wait.
    pub chunks: u16,
    /// How long the oldest has been the oldest.
    pub oldest_age: Duration,
    /// Rank the oldest comes from.
    pub source: u8,
    /// Rank the oldest goes to.
    pub destination: u8,
}

/// A rank's record of itself at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beacon {
    /// Epoch the rank is in.
    pub epoch: u32,
    /// Rises by one with every heartbeat (wrapping), so that a beacon read twice is not taken for two.
    pub beat: u32,
    /// Sequence of the operation last begun (wrapping).
    pub sequence: u32,
    /// Code of the operation the rank is inside ([`operation`]); `NONE` between operations.
    pub operation: u8,
    /// What the rank is doing.
    pub phase: Phase,
    /// Since when.
    pub phase_age: Duration,
    /// Ranks it cannot go on without.
    pub waits_for: RankSet,
    /// How long it has waited for exactly these.
    pub wait_age: Duration,
    /// Relays the missing fragments come through.
    pub waits_via: RankSet,
    /// What it holds for others.
    pub relay_backlog: RelayBacklog,
    /// Numbers of the phase: in `rows`, rows outstanding and the drive's longest gap in microseconds.
    pub detail: [u64; 2],
}

impl Beacon {
    /// A rank of `epoch` that has just started.
    pub fn starting(epoch: u32) -> Self {
        Self {
            epoch,
            beat: 0,
            sequence: 0,
            operation: operation::NONE,
            phase: Phase::Start,
            phase_age: Duration::ZERO,
            waits_for: RankSet::EMPTY,
            wait_age: Duration::ZERO,
            waits_via: RankSet::EMPTY,
            relay_backlog: RelayBacklog::default(),
            detail: [0; 2],
        }
    }

    /// Whether this rank is done with operation `sequence`: it has left it, or is inside a later one.
    pub fn has_passed(&self, sequence: u32) -> bool {
        let ahead = self.sequence.wrapping_sub(sequence) as i32;
        ahead > 0 || (ahead == 0 && self.operation == operation::NONE)
    }
}

/// Bytes of an encoded beacon.
pub const BEACON_BYTES: usize = 64;

const BEACON_MAGIC: u16 = 0xbeac;
const BEACON_VERSION: u8 = 1;

/// Why bytes are not a beacon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BeaconError {
    /// Fewer bytes than a beacon has.
    #[error("a beacon has {BEACON_BYTES} bytes, got {got}")]
    Short {
        /// Bytes at hand.
        got: usize,
    },
    /// Not the magic of a beacon.
    #[error("not a beacon: it starts with {got:#06x}, expected {BEACON_MAGIC:#06x}")]
    Magic {
        /// What was found.
        got: u16,
    },
    /// Another version.
    #[error("beacon version {got}, this build reads {BEACON_VERSION}; run one build on all ranks")]
    Version {
        /// What was found.
        got: u8,
    },
    /// Torn or damaged.
    #[error(
        "beacon checksum {got:#010x} does not match its bytes ({computed:#010x}): torn or damaged"
    )]
    Checksum {
        /// As written in the bytes.
        got: u32,
        /// As computed.
        computed: u32,
    },
    /// A phase this build does not know.
    #[error("beacon names phase {got}, known are 0 to 6")]
    Phase {
        /// What was found.
        got: u8,
    },
}

fn millis(age: Duration) -> u32 {
    u32::try_from(age.as_millis()).unwrap_or(u32::MAX)
}

impl Beacon {
    /// The beacon as bytes, little endian, ages in milliseconds, closed by a CRC-32C: a reader that catches a put half
    /// way sees a checksum error, never a mixture.
    pub fn encode(&self) -> [u8; BEACON_BYTES] {
        let mut out = [0u8; BEACON_BYTES];
        out[0..2].copy_from_slice(&BEACON_MAGIC.to_le_bytes());
        out[2] = BEACON_VERSION;
        out[3] = self.phase as u8;
        out[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        out[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        out[12] = self.operation;
        out[13] = self.relay_backlog.source;
        out[14] = self.relay_backlog.destination;
        out[16..20].copy_from_slice(&millis(self.phase_age).to_le_bytes());
        out[20..24].copy_from_slice(&millis(self.wait_age).to_le_bytes());
        let waits = (self.waits_for.0 & 0xffff) | (self.waits_via.0 << 16);
        out[24..28].copy_from_slice(&waits.to_le_bytes());
        out[28..32].copy_from_slice(&u32::from(self.relay_backlog.chunks).to_le_bytes());
        out[32..36].copy_from_slice(&millis(self.relay_backlog.oldest_age).to_le_bytes());
        out[36..40].copy_from_slice(&self.beat.to_le_bytes());
        out[40..48].copy_from_slice(&self.detail[0].to_le_bytes());
        out[48..56].copy_from_slice(&self.detail[1].to_le_bytes());
        let sum = crc32c::crc32c(&out[..60]);
        out[60..64].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// Any byte sequence that is not exactly one undamaged beacon of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, BeaconError> {
        let Some(b) = bytes.first_chunk::<BEACON_BYTES>() else {
            return Err(BeaconError::Short { got: bytes.len() });
        };
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | (u64::from(word(at + 4)) << 32);
        let magic = u16::from_le_bytes([b[0], b[1]]);
        if magic != BEACON_MAGIC {
            return Err(BeaconError::Magic { got: magic });
        }
        if b[2] != BEACON_VERSION {
            return Err(BeaconError::Version { got: b[2] });
        }
        let computed = crc32c::crc32c(&b[..60]);
        if word(60) != computed {
            return Err(BeaconError::Checksum { got: word(60), computed });
        }
        let phase = Phase::from_code(b[3]).ok_or(BeaconError::Phase { got: b[3] })?;
        let waits = word(24);
        Ok(Self {
            epoch: word(4),
            beat: word(36),
            sequence: word(8),
            operation: b[12],
            phase,
            phase_age: Duration::from_millis(u64::from(word(16))),
            waits_for: RankSet(waits & 0xffff),
            wait_age: Duration::from_millis(u64::from(word(20))),
            waits_via: RankSet(waits >> 16),
            relay_backlog: RelayBacklog {
                chunks: u16::try_from(word(28)).unwrap_or(u16::MAX),
                oldest_age: Duration::from_millis(u64::from(word(32))),
                source: b[13],
                destination: b[14],
            },
            detail: [long(40), long(48)],
        })
    }
}

/// A rank's own beacon while it runs: one worker writes, one relay thread writes the backlog, anyone reads.
#[derive(Debug)]
pub struct BeaconCell {
    epoch: u32,
    /// Odd while the worker is between two stores that belong together.
    version: AtomicU64,
    /// Counts changes of the phase in the upper bits; the phase in the lowest eight.
    phase: AtomicU64,
    /// Sequence in the upper half, operation in the lowest eight bits.
    position: AtomicU64,
    /// Waits-for in the lower half, waits-via in the upper.
    waits: AtomicU64,
    wait_changes: AtomicU32,
    /// Chunks, source, destination, identity of the oldest: 16, 8, 8 and 32 bits.
    backlog: AtomicU64,
    detail: [AtomicU64; 2],
    beat: AtomicU32,
    seen: Mutex<Seen>,
}

/// What the last snapshots saw, and when each value was first seen.
#[derive(Debug, Default)]
struct Seen {
    phase: Option<u64>,
    phase_since: Duration,
    wait_changes: Option<(u32, u64)>,
    wait_since: Duration,
    backlog: u64,
    backlog_since: Duration,
}

const BACKLOG_CHUNKS_SHIFT: u32 = 48;

impl BeaconCell {
    /// The cell of a rank that starts in `epoch`.
    pub fn new(epoch: u32) -> Self {
        Self {
            epoch,
            version: AtomicU64::new(0),
            phase: AtomicU64::new(Phase::Start as u64),
            position: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            wait_changes: AtomicU32::new(0),
            backlog: AtomicU64::new(0),
            detail: [AtomicU64::new(0), AtomicU64::new(0)],
            beat: AtomicU32::new(0),
            seen: Mutex::new(Seen::default()),
        }
    }

    /// The epoch this cell was made for.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Stores that a reader sees together or not at all. Only the worker calls it: there is one writer.
    fn together(&self, stores: impl FnOnce(&Self)) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        stores(self);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The worker enters `phase`. Naming the phase it is in changes nothing: an idle loop may repeat it.
    pub fn set_phase(&self, phase: Phase) {
        if self.phase.load(Ordering::Relaxed) & 0xff != phase as u64 {
            self.together(|cell| cell.store_phase(phase));
        }
    }

    fn store_phase(&self, phase: Phase) {
        let changes = self.phase.load(Ordering::Relaxed) >> 8;
        self.phase.store((changes.wrapping_add(1) << 8) | phase as u64, Ordering::Relaxed);
    }

    /// The worker enters operation `operation`, numbered `sequence`, in phase `wire`.
    pub fn begin_operation(&self, operation: u8, sequence: u32) {
        self.together(|cell| {
            cell.store_waits(0);
            cell.position
                .store((u64::from(sequence) << 32) | u64::from(operation), Ordering::Relaxed);
            cell.store_phase(Phase::Wire);
        });
    }

    /// The worker leaves its operation and goes on in `phase`; it waits for nobody any more.
    pub fn end_operation(&self, phase: Phase) {
        self.together(|cell| {
            let position = cell.position.load(Ordering::Relaxed);
            cell.position.store(position & !0xff, Ordering::Relaxed);
            cell.store_waits(0);
            cell.store_phase(phase);
        });
    }

    /// The worker cannot go on without `ranks`; the missing fragments come through `via`.
    /// Repeating the same set changes nothing, so a polling loop may call it each time round.
    pub fn set_waiting(&self, ranks: RankSet, via: RankSet) {
        let waits = u64::from(ranks.0) | (u64::from(via.0) << 32);
        if self.waits.load(Ordering::Relaxed) != waits {
            self.together(|cell| cell.store_waits(waits));
        }
    }

    /// The worker waits for nobody.
    pub fn clear_waiting(&self) {
        self.together(|cell| cell.store_waits(0));
    }

    fn store_waits(&self, waits: u64) {
        let changes = self.wait_changes.load(Ordering::Relaxed);
        self.wait_changes.store(changes.wrapping_add(1), Ordering::Relaxed);
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// What the relay holds: `chunks` of them, the oldest on its way from `source` to `destination`. `oldest` tells one
    /// chunk from the next: its age restarts when the number changes.
    pub fn set_relay_backlog(&self, chunks: u16, source: u8, destination: u8, oldest: u32) {
        let packed = if chunks == 0 {
            0
        } else {
            (u64::from(chunks) << BACKLOG_CHUNKS_SHIFT)
                | (u64::from(source) << 40)
                | (u64::from(destination) << 32)
                | u64::from(oldest)
        };
        self.backlog.store(packed, Ordering::Relaxed);
    }

    /// Numbers of the phase.
    pub fn set_detail(&self, detail: [u64; 2]) {
        self.detail[0].store(detail[0], Ordering::Relaxed);
        self.detail[1].store(detail[1], Ordering::Relaxed);
    }

    /// The beacon of a heartbeat: as [`Self::snapshot`], with the next beat.
    pub fn heartbeat(&self, now: Duration) -> Beacon {
        self.beat.fetch_add(1, Ordering::Relaxed);
        self.snapshot(now)
    }

    /// What the cell says at `now`, a time since any origin that does not change between calls.
    pub fn snapshot(&self, now: Duration) -> Beacon {
        // A worker that lost its core between two stores is not waited for: a mixed snapshot lasts one heartbeat.
        const TRIES: usize = 64;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = self.read_once();
        for _ in 0..TRIES {
            if read.0 {
                break;
            }
            std::thread::yield_now();
            read = self.read_once();
        }
        let (_, phase, position, waits, wait_changes) = read;
        let backlog = self.backlog.load(Ordering::Relaxed);
        if seen.phase != Some(phase) {
            seen.phase = Some(phase);
            seen.phase_since = now;
        }
        if seen.wait_changes != Some((wait_changes, waits)) {
            seen.wait_changes = Some((wait_changes, waits));
            seen.wait_since = now;
        }
        // The number of chunks may change while the oldest stays the oldest.
        let oldest = |packed: u64| (packed != 0, packed & ((1 << BACKLOG_CHUNKS_SHIFT) - 1));
        if oldest(seen.backlog) != oldest(backlog) {
            seen.backlog_since = now;
        }
        seen.backlog = backlog;
        let waiting = waits as u32 != 0;
        let holding = backlog != 0;
        Beacon {
            epoch: self.epoch,
            beat: self.beat.load(Ordering::Relaxed),
            sequence: (position >> 32) as u32,
            operation: position as u8,
            phase: Phase::from_code(phase as u8).unwrap_or(Phase::Start),
            phase_age: now.saturating_sub(seen.phase_since),
            waits_for: RankSet(waits as u32),
            wait_age: if waiting { now.saturating_sub(seen.wait_since) } else { Duration::ZERO },
            waits_via: RankSet((waits >> 32) as u32),
            relay_backlog: RelayBacklog {
                chunks: (backlog >> BACKLOG_CHUNKS_SHIFT) as u16,
                oldest_age: if holding {
                    now.saturating_sub(seen.backlog_since)
                } else {
                    Duration::ZERO
                },
                source: (backlog >> 40) as u8,
                destination: (backlog >> 32) as u8,
            },
            detail: [
                self.detail[0].load(Ordering::Relaxed),
                self.detail[1].load(Ordering::Relaxed),
            ],
        }
    }

    fn read_once(&self) -> (bool, u64, u64, u64, u32) {
        let before = self.version.load(Ordering::Acquire);
        let phase = self.phase.load(Ordering::Relaxed);
        let position = self.position.load(Ordering::Relaxed);
        let waits = self.waits.load(Ordering::Relaxed);
        let changes = self.wait_changes.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let after = self.version.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2), phase, position, waits, changes)
    }
}

#[cfg(test)]
#[path = "beacon_tests.rs"]
mod tests;
