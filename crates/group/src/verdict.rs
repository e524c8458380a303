//! The words a failure is explained with: what ranks propose, and the one verdict they all adopt.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::beacon::{MAX_RANKS, Phase, RankSet, operation};
use crate::control::view::LinkReport;

pub use crate::control::judge::{Evidence, judge};

/// Most lines of evidence a verdict carries.
pub const MAX_EVIDENCE_LINES: usize = 48;
/// Longest text of one field of a proposal or verdict, in bytes.
pub const MAX_TEXT_BYTES: usize = 400;

/// Where a rank was: its operation and the sequence of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The rank.
    pub rank: u8,
    /// Code of its operation.
    pub operation: u8,
    /// Number of its operation.
    pub sequence: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} at {} #{}", self.rank, operation::name(self.operation), self.sequence)
    }
}

/// The value of a setting on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankValue {
    /// The rank.
    pub rank: u8,
    /// Its value; `None` where it is not set.
    pub value: Option<String>,
}

impl fmt::Display for RankValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "rank {} has {value:?}", self.rank),
            None => write!(f, "rank {} has it not set", self.rank),
        }
    }
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// The process is gone.
    PeerDead,
    /// Alive, and longer in one phase than patience allows.
    PeerStalled {
        /// Which phase.
        phase: Phase,
    },
    /// No heartbeat: the process is stopped, or its machine is.
    PeerSilent,
    /// Bytes do not get from one rank to another, both of them alive.
    PathBroken {
        /// One end.
        from: u8,
        /// The other end.
        to: u8,
    },
    /// Ranks were started with different settings or files.
    ConfigurationDiffers {
        /// Which key.
        key: String,
        /// What ranks have.
        values: Vec<RankValue>,
    },
    /// A limit was reached.
    OutOfCapacity,
    /// Ranks are inside different operations.
    RanksDisagree {
        /// Where each was.
        positions: Vec<Position>,
    },
    /// Nothing went wrong: somebody asked for another epoch.
    Requested {
        /// What for.
        what: String,
    },
    /// The evidence does not single out a cause.
    Unknown,
}

impl Cause {
    /// A short stable name, for labels of metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PeerDead => "peer_dead",
            Self::PeerStalled { .. } => "peer_stalled",
            Self::PeerSilent => "peer_silent",
            Self::PathBroken { .. } => "path_broken",
            Self::ConfigurationDiffers { .. } => "configuration_differs",
            Self::OutOfCapacity => "out_of_capacity",
            Self::RanksDisagree { .. } => "ranks_disagree",
            Self::Requested { .. } => "requested",
            Self::Unknown => "unknown",
        }
    }
}

/// A stall explained: the one record that every rank of an epoch adopts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Epoch that failed.
    pub epoch: u32,
    /// Number of the operation that failed.
    pub sequence: u32,
    /// Code of that operation.
    pub operation: u8,
    /// What went wrong.
    pub cause: Cause,
    /// The rank at fault, where one is.
    pub rank: Option<u8>,
    /// Its machine; empty where no rank is at fault.
    pub host: String,
    /// The other end, where the fault lies between two ranks.
    pub peer: Option<u8>,
    /// How long the cause had lasted, in milliseconds.
    pub lasted_ms: u64,
    /// Ranks that waited.
    pub waited_by: RankSet,
    /// What was seen, one fact a line.
    pub evidence: Vec<String>,
    /// What a person can do.
    pub next_step: String,
    /// The rank that judged.
    pub judged_by: u8,
}

impl Verdict {
    /// How long the cause had lasted, in seconds.
    pub fn seconds(&self) -> f64 {
        Duration::from_millis(self.lasted_ms).as_secs_f64()
    }

    /// Keeps texts and lists within what a control message holds.
    pub(crate) fn bounded(mut self) -> Self {
        self.evidence.truncate(MAX_EVIDENCE_LINES);
        self.evidence.iter_mut().for_each(shorten);
        shorten(&mut self.host);
        shorten(&mut self.next_step);
        if let Cause::RanksDisagree { positions } = &mut self.cause {
            positions.truncate(MAX_RANKS);
        }
        if let Cause::Requested { what } = &mut self.cause {
            shorten(what);
        }
        if let Cause::ConfigurationDiffers { key, values } = &mut self.cause {
            shorten(key);
            values.truncate(MAX_RANKS);
            values.iter_mut().filter_map(|value| value.value.as_mut()).for_each(shorten);
        }
        self
    }
}

/// Cuts `text` at [`MAX_TEXT_BYTES`], at a character's edge, and blanks control characters: texts of peers go into logs
/// line by line, and each byte of them takes at most two on the wire.
pub(crate) fn shorten(text: &mut String) {
    if text.len() > MAX_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    }
    if text.contains(char::is_control) {
        *text = text.replace(char::is_control, " ");
    }
}

fn named(rank: Option<u8>, host: &str) -> String {
    match rank {
        Some(rank) if host.is_empty() => format!("rank {rank}"),
        Some(rank) => format!("rank {rank} (host {host})"),
        None => "the group".to_owned(),
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = named(self.rank, &self.host);
        let seconds = self.seconds();
        match &self.cause {
            Cause::PeerDead => write!(f, "{who} died")?,
            Cause::PeerStalled { phase: Phase::Stopped } => write!(f, "{who} left the group")?,
            Cause::PeerStalled { phase } => {
                write!(f, "{who} stalled in {phase} for {seconds:.1} s")?;
            }
            Cause::PeerSilent => write!(f, "{who} is silent: no heartbeat for {seconds:.1} s")?,
            Cause::PathBroken { from, to } => {
                write!(f, "path between rank {from} and rank {to} is broken")?;
                if let Some(why) = self.evidence.first() {
                    write!(f, " ({why})")?;
                }
            }
            Cause::ConfigurationDiffers { key, values } => {
                write!(f, "{key} differs: ")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index > 0 { ", " } else { "" })?;
                }
            }
            Cause::OutOfCapacity => {
                write!(f, "{who} is out of capacity")?;
                if let Some(what) = self.evidence.first() {
                    write!(f, ": {what}")?;
                }
            }
            Cause::RanksDisagree { positions } => {
                f.write_str("ranks disagree: ")?;
                for (index, position) in positions.iter().enumerate() {
                    write!(f, "{}{position}", if index > 0 { ", " } else { "" })?;
                }
            }
            Cause::Requested { what } => write!(f, "{who} was asked to {what}")?,
            Cause::Unknown => write!(f, "no progress for {seconds:.1} s, cause unknown")?,
        }
        let disagree = matches!(self.cause, Cause::RanksDisagree { .. });
        if self.operation != operation::NONE && !disagree {
            write!(f, " at {} #{}", operation::name(self.operation), self.sequence)?;
        }
        match self.waited_by.len() {
            0 => Ok(()),
            1 => write!(f, "; rank {} waits for it", self.waited_by),
            _ => write!(f, "; ranks {} wait for it", self.waited_by),
        }
    }
}

/// Why a rank asks for a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// Its wait outlasted patience, or a rank is unheard for longer than patience.
    Overdue,
    /// The control connection to a rank ended without goodbye.
    PeerClosed {
        /// Which rank.
        rank: u8,
        /// As the system put it.
        why: String,
    },
    /// The last rail to a rank went down, and there is no other path.
    LinkDown {
        /// What was seen.
        report: LinkReport,
    },
    /// Ranks have different settings.
    ConfigurationDiffers {
        /// Which key.
        key: String,
        /// What ranks have.
        values: Vec<RankValue>,
    },
    /// A limit was reached on the proposing rank.
    OutOfCapacity {
        /// Which limit, its value, and what asked for more.
        what: String,
    },
    /// A person or a program asked the proposing rank for another epoch.
    Requested {
        /// What for: `have paths proven again`.
        what: String,
    },
    /// Anything else that keeps the proposing rank from going on.
    Failed {
        /// What happened.
        what: String,
    },
}

/// A rank's request for a verdict, with what it knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Who asks.
    pub from: u8,
    /// Number of the operation it is inside or was last inside.
    pub sequence: u32,
    /// Code of the operation; `NONE` between operations.
    pub operation: u8,
    /// Ranks it waits for.
    pub waits_for: RankSet,
    /// Relays the missing fragments come through.
    pub waits_via: RankSet,
    /// How long it has waited, in milliseconds.
    pub waited_ms: u64,
    /// Why it asks.
    pub reason: Reason,
}

impl Proposal {
    /// Keeps texts within what a control message holds.
    pub(crate) fn bounded(mut self) -> Self {
        match &mut self.reason {
            Reason::Overdue => {}
            Reason::PeerClosed { why, .. } => shorten(why),
            Reason::LinkDown { report } => shorten(&mut report.why),
            Reason::ConfigurationDiffers { key, values } => {
                shorten(key);
                values.truncate(MAX_RANKS);
                values.iter_mut().filter_map(|value| value.value.as_mut()).for_each(shorten);
            }
            Reason::OutOfCapacity { what }
            | Reason::Requested { what }
            | Reason::Failed { what } => shorten(what),
        }
        self
    }
}
