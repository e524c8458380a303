//! What a group tells `observe`: its words are mapped here and nowhere else.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use observe::{Event, Health, Metrics, Recorder, VerdictRecord};

use crate::beacon::{Phase, operation};
use crate::collective::{Operation, Schedule};
use crate::verdict::{Cause, Verdict};

/// Where a group reports to. Every part may be absent.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// Counters and gauges.
    pub metrics: Option<Metrics>,
    /// What `/progress` says.
    pub health: Option<Health>,
    /// The flight recorder.
    pub recorder: Option<Arc<Recorder>>,
    /// Where the flight recorder is written when there is a verdict.
    pub flight_dir: Option<PathBuf>,
}

impl Telemetry {
    pub(crate) fn phase(&self, phase: Phase) {
        if let Some(health) = &self.health {
            health.set_phase(phase.into(), Instant::now());
        }
    }

    pub(crate) fn formed(&self, epoch: u32, ranks: usize) {
        let event = Event::EpochFormed { epoch: epoch.into(), ranks: ranks as u32 };
        self.record(Instant::now(), event);
        if let Some(metrics) = &self.metrics {
            metrics.position(epoch.into(), 0);
        }
    }

    pub(crate) fn collective(
        &self,
        operation: Operation,
        schedule: Schedule,
        bytes: u64,
        position: (u32, u32),
        took: (Instant, Instant),
        ok: bool,
    ) {
        let (epoch, sequence) = position;
        let operation = operation.into();
        if let Some(metrics) = &self.metrics {
            if ok {
                let took = took.1.saturating_duration_since(took.0);
                metrics.collective(operation, bytes, schedule.into(), took);
            }
            metrics.position(epoch.into(), sequence.into());
        }
        self.record(took.1, Event::CollectiveEnd { operation, sequence: sequence.into(), ok });
    }

    pub(crate) fn waits(&self, peer: usize, phase: impl FnOnce() -> Phase, since: Instant) {
        if let Some(metrics) = &self.metrics {
            metrics.wait_begin(peer as u32, phase().into(), since);
        }
    }

    pub(crate) fn waits_no_more(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.wait_end();
        }
    }

    pub(crate) fn rail_down(&self, peer: usize, rail: usize) {
        let (peer, rail) = (peer as u32, rail as u32);
        self.record(Instant::now(), Event::RailDown { peer, rail });
        if let Some(metrics) = &self.metrics {
            metrics.rail_down(peer, rail);
        }
    }

    pub(crate) fn rail_up(&self, at: Instant, peer: usize, rail: usize) {
        let (peer, rail) = (peer as u32, rail as u32);
        self.record(at, Event::RailUp { peer, rail });
    }

    pub(crate) fn record(&self, at: Instant, event: Event) {
        if let Some(recorder) = &self.recorder {
            recorder.record_at(at, event);
        }
    }

    /// Publishes a verdict everywhere. Called once per epoch, off the worker's thread.
    pub(crate) fn verdict(&self, verdict: &Verdict) {
        let record = record_of(verdict);
        self.record(
            Instant::now(),
            Event::VerdictAdopted {
                cause: record.cause,
                rank: record.rank,
                epoch: record.epoch,
                judged_by: record.judged_by,
            },
        );
        if let Some(metrics) = &self.metrics {
            metrics.stall(record.cause);
        }
        if let (Some(recorder), Some(dir)) = (&self.recorder, &self.flight_dir) {
            match recorder.dump(dir, Some(&record)) {
                Ok(dumped) => tracing::info!(path = %dumped.path.display(), "flight recorded"),
                Err(error) => tracing::warn!(%error, "the flight recorder could not be written"),
            }
        }
        if let Some(health) = &self.health {
            health.fail(record);
        }
    }
}

/// A verdict in the words of `observe`.
pub fn record_of(verdict: &Verdict) -> VerdictRecord {
    let phase = match verdict.cause {
        Cause::PeerStalled { phase } => Some(phase.into()),
        _ => None,
    };
    let inside = verdict.operation != operation::NONE;
    VerdictRecord {
        cause: (&verdict.cause).into(),
        rank: verdict.rank.map(u32::from),
        host: (!verdict.host.is_empty()).then(|| verdict.host.clone()),
        peer: verdict.peer.map(u32::from),
        phase,
        seconds: Some(verdict.seconds()),
        epoch: verdict.epoch.into(),
        sequence: Some(verdict.sequence.into()),
        operation: Operation::from_code(verdict.operation).filter(|_| inside).map(Into::into),
        summary: verdict.to_string(),
        evidence: verdict.evidence.clone(),
        next_step: verdict.next_step.clone(),
        judged_by: verdict.judged_by.into(),
    }
}

impl From<&Cause> for observe::Cause {
    fn from(cause: &Cause) -> Self {
        match cause {
            Cause::PeerDead => Self::PeerDead,
            Cause::PeerSilent => Self::PeerSilent,
            Cause::PeerStalled { .. } => Self::PeerStalled,
            Cause::PathBroken { .. } => Self::PathBroken,
            Cause::ConfigurationDiffers { .. } => Self::ConfigurationDiffers,
            Cause::OutOfCapacity => Self::OutOfCapacity,
            Cause::RanksDisagree { .. } => Self::RanksDisagree,
            Cause::Requested { .. } => Self::Requested,
            Cause::Unknown => Self::Unknown,
        }
    }
}

impl From<Phase> for observe::Phase {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Start => Self::Start,
            Phase::Compute => Self::Compute,
            Phase::Rows => Self::Rows,
            Phase::Wire => Self::Wire,
            Phase::Relay => Self::Relay,
            Phase::Idle => Self::Idle,
            Phase::Stopped => Self::Stopped,
        }
    }
}

impl From<Operation> for observe::Operation {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::AllGather => Self::AllGather,
            Operation::AllReduce => Self::AllReduce,
            Operation::AllToAll => Self::AllToAll,
            Operation::Barrier => Self::Barrier,
            Operation::Broadcast => Self::Broadcast,
            Operation::ReduceScatter => Self::ReduceScatter,
        }
    }
}

impl From<Schedule> for observe::Schedule {
    fn from(schedule: Schedule) -> Self {
        match schedule {
            Schedule::Mapped => Self::Mapped,
            Schedule::OneShot => Self::OneShot,
            Schedule::Ring => Self::Ring,
            Schedule::TwoShot => Self::TwoShot,
        }
    }
}
