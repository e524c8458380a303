//! What a rank records.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::words::{Cause, Operation, Phase, Schedule};

/// Something that happened in a rank. In a dump the variant's name is the field `event`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The rank's phase is now `phase`.
    PhaseChanged {
        /// The new phase.
        phase: Phase,
    },
    /// A collective began.
    CollectiveBegin {
        /// What it computes.
        operation: Operation,
        /// How it moves bytes.
        schedule: Schedule,
        /// Its number in the epoch.
        sequence: u64,
        /// Its payload.
        bytes: u64,
    },
    /// A collective ended.
    CollectiveEnd {
        /// What it computed.
        operation: Operation,
        /// Its number in the epoch.
        sequence: u64,
        /// Whether it succeeded.
        ok: bool,
    },
    /// A put was posted again.
    PutRetry {
        /// The receiver.
        peer: u32,
        /// The rail it goes over now.
        rail: u32,
        /// How often it was posted again.
        attempt: u32,
    },
    /// A rail failed.
    RailDown {
        /// The rank at its other end.
        peer: u32,
        /// The rail.
        rail: u32,
    },
    /// A rail works again.
    RailUp {
        /// The rank at its other end.
        peer: u32,
        /// The rail.
        rail: u32,
    },
    /// A chunk took long to re-send.
    RelayChunkSlow {
        /// Where it came from.
        source: u32,
        /// Where it goes.
        destination: u32,
        /// How long it lay here.
        #[serde(rename = "waited_seconds", serialize_with = "seconds")]
        waited: Duration,
    },
    /// A wait has lasted long.
    WaitLong {
        /// The awaited rank.
        peer: u32,
        /// Its phase.
        phase: Phase,
        /// The sequence waited in.
        sequence: u64,
        /// How long so far.
        #[serde(rename = "waited_seconds", serialize_with = "seconds")]
        waited: Duration,
    },
    /// This rank proposed a verdict.
    Proposal {
        /// The proposed cause.
        cause: Cause,
        /// The blamed rank.
        rank: Option<u32>,
        /// The sequence that stalled.
        sequence: u64,
    },
    /// This rank adopted a verdict.
    VerdictAdopted {
        /// Its cause.
        cause: Cause,
        /// The blamed rank.
        rank: Option<u32>,
        /// The epoch it ends.
        epoch: u64,
        /// The rank that judged.
        judged_by: u32,
    },
    /// A group formed.
    EpochFormed {
        /// Its epoch.
        epoch: u64,
        /// How many ranks it has.
        ranks: u32,
    },
    /// A request was admitted.
    RequestAdmitted {
        /// Its number.
        request: u64,
        /// Tokens of its prompt.
        prompt_tokens: u32,
    },
    /// A request ended as asked.
    RequestFinished {
        /// Its number.
        request: u64,
        /// Tokens generated.
        tokens: u32,
    },
    /// A request was cancelled.
    RequestCancelled {
        /// Its number.
        request: u64,
        /// Tokens generated.
        tokens: u32,
    },
    /// A step of the engine began.
    StepBegin {
        /// Its number.
        step: u64,
        /// Requests in it.
        requests: u32,
        /// Tokens in it.
        tokens: u32,
    },
    /// A step of the engine ended.
    StepEnd {
        /// Its number.
        step: u64,
    },
    /// A fault was injected on purpose.
    FaultInjected {
        /// Which.
        fault: &'static str,
        /// The peer it concerns.
        peer: Option<u32>,
    },
    /// Anything else worth a line.
    Note {
        /// The line.
        text: &'static str,
    },
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
