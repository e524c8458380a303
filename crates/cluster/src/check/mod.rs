//! The doctor: compares what is with what the plan needs, and says what to do.
//!
//! Each [`Section`] of the report is a module with its codes and one function, `look`, which reads a [`Room`] and
//! tells [`Findings`]. [`run`](run()) calls them in the order of the report. All of it is pure: what it needs was read
//! before.

mod addresses;
mod cables;
pub mod codes;
mod counters;
mod disks;
mod findings;
pub mod forwarding;
mod hosts;
mod links;
pub mod report;
mod routes;
mod run;
mod view;

pub use codes::{CODES, code};
pub use counters::{Trouble, troubles};
pub use findings::Findings;
pub use report::{LookedAt, Report, TextStyle};
pub use run::run;

use serde::{Deserialize, Serialize};

use crate::file::ClusterFile;
use crate::inventory::HostState;
use crate::plan::Plan;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// It was looked at, and it is as it should be, or worth knowing.
    Note,
    /// It works now, and will cost speed or a night's sleep.
    Warning,
    /// It does not work, or will not.
    Error,
}

/// A code: what a finding is about. Codes are stable; each has a page in `docs/codes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// `RW-GID-03`.
    pub id: &'static str,
    /// How bad it is.
    pub level: Level,
    /// The section it is printed in.
    pub section: Section,
    /// What it means, in a few words.
    pub title: &'static str,
}

/// Parts of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    /// Cables: is everything plugged in as the file says.
    Cables,
    /// Links: state, speed, MTU, PCI.
    Links,
    /// Addresses and GIDs.
    Addresses,
    /// Routes and neighbours.
    Routes,
    /// What NICs need to pass packets on.
    Forwarding,
    /// Kernel, limits, clocks, versions.
    Hosts,
    /// Counters of errors.
    Counters,
    /// Drives.
    Disks,
}

impl Section {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 8] = [
        Self::Cables,
        Self::Links,
        Self::Addresses,
        Self::Routes,
        Self::Forwarding,
        Self::Hosts,
        Self::Counters,
        Self::Disks,
    ];

    /// Its name, as printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cables => "cables",
            Self::Links => "links",
            Self::Addresses => "addresses",
            Self::Routes => "routes",
            Self::Forwarding => "forwarding",
            Self::Hosts => "hosts",
            Self::Counters => "counters",
            Self::Disks => "disks",
        }
    }
}

/// What to look at. The default is all that can be read without a timed measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only what has to be right before a plan is applied: no routes, no rules, no counters.
    pub pre: bool,
    /// Also the measured rates of cables.
    pub wire: bool,
    /// Also the measured rates of drives.
    pub disk: bool,
}

impl Scope {
    /// Whether a section is looked at.
    pub const fn takes(self, section: Section) -> bool {
        match section {
            Section::Cables | Section::Links | Section::Addresses | Section::Hosts => true,
            Section::Routes | Section::Forwarding | Section::Counters => !self.pre,
            Section::Disks => self.disk,
        }
    }
}

/// Something found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The code's id.
    pub code: &'static str,
    /// How bad it is.
    pub level: Level,
    /// Part of the report.
    pub section: Section,
    /// The host; none if it is about all.
    pub host: Option<String>,
    /// The port, netdev or device, if it is about one.
    pub port: Option<String>,
    /// What is wrong, in one line.
    pub message: String,
    /// What was seen, a line each.
    pub evidence: Vec<String>,
    /// The command that mends it, to copy; none if no single command does.
    pub fix: Option<String>,
}

/// Something that was not looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unmeasured {
    /// Part of the report.
    pub section: Section,
    /// The host.
    pub host: Option<String>,
    /// What.
    pub what: String,
    /// Why not.
    pub why: String,
    /// Without it nobody can say whether the paths work.
    pub essential: bool,
}

/// A measured rate of one function over one cable, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireRate {
    /// Index into [`Plan::cables`].
    pub cable: usize,
    /// The rank the bytes left.
    pub from: usize,
    /// The function's number on its port.
    pub number: usize,
    /// Bytes that crossed and were checked, as Mb/s.
    pub rate_mbps: u64,
}

/// What one check sees: the file, the plan that follows from it, and all hosts by rank; a host that could not be
/// reached has no state.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// What should be.
    pub file: &'a ClusterFile,
    /// What follows from it.
    pub plan: &'a Plan,
    /// What is, by rank; or why nothing is known.
    pub hosts: &'a [Result<HostState, String>],
    /// What was, if an earlier state was kept: by rank.
    pub before: Option<&'a [HostState]>,
    /// What was measured on the cables; empty if nothing was.
    pub rates: &'a [WireRate],
    /// Random reads of 4 KiB a second that each host's drive has to sustain; none if nobody said.
    pub reads_per_second: Option<u64>,
}
