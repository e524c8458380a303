//! Is the rank making progress? The state others set, and the answer of `/progress`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::identity::Identity;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::verdict::VerdictRecord;
use crate::words::Phase;

/// What the rank is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Setting up.
    Starting,
    /// Set up, nothing asked yet.
    Ready,
    /// Has worked, has nothing to do.
    Idle,
    /// Working.
    Running,
    /// Forming the group again after a failure.
    Recovering,
    /// A collective failed; the verdict says why.
    Stalled,
}

/// The one word of `/progress`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Moving forward, or still starting.
    Ok,
    /// Nothing to do.
    Idle,
    /// Not moving forward.
    Stalled,
}

/// How long requests may run without progress before the rank calls itself stalled, unless set.
const DEFAULT_THRESHOLD: Duration = Duration::from_secs(60);

/// The health of one rank. A clone shares it. The epoch, the sequence and the current wait are
/// those of the [`Metrics`] it was made with.
#[derive(Debug, Clone)]
pub struct Health {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    identity: Identity,
    live: Arc<Live>,
    metrics: Metrics,
    token_crossed: AtomicBool,
    threshold_millis: AtomicU64,
    story: Mutex<Story>,
}

/// What changes seldom and must change together.
#[derive(Debug)]
struct Story {
    state: State,
    verdict: Option<VerdictRecord>,
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    verdict: VerdictRecord,
    since: Instant,
    recovered_epoch: u64,
}

/// The wait a rank is in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WaitView {
    /// The awaited rank.
    pub peer: u32,
    /// The awaited rank's phase.
    pub phase: Phase,
    /// Since how many seconds.
    pub seconds: f64,
}

/// A verdict the group recovered from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LastVerdict {
    /// The verdict.
    pub verdict: VerdictRecord,
    /// Seconds since the recovery.
    pub age_seconds: f64,
    /// The epoch the verdict was about.
    pub epoch: u64,
    /// The epoch the group recovered to.
    pub recovered_epoch: u64,
}

/// The answer of `/progress`; `None` (JSON `null`) means not measured or none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    /// Ok, idle or stalled.
    pub status: Status,
    /// The state others set; stalled also when progress stopped without a verdict.
    pub state: State,
    /// The rank's number.
    pub rank: u32,
    /// The host's name.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// Epoch of the group.
    pub epoch: Option<u64>,
    /// Sequence of the latest collective.
    pub sequence: Option<u64>,
    /// What the rank is doing.
    pub phase: Option<Phase>,
    /// Since how many seconds.
    pub phase_seconds: Option<f64>,
    /// The wait the rank is in.
    pub wait: Option<WaitView>,
    /// Requests being run.
    pub running: Option<u64>,
    /// Seconds since the last progress.
    pub last_progress_age_seconds: Option<f64>,
    /// The verdict in force.
    pub verdict: Option<VerdictRecord>,
    /// The verdict before, kept after recovery.
    pub last_verdict: Option<LastVerdict>,
    /// How often the group recovered.
    pub recoveries: u64,
}

impl Health {
    /// Health of `identity`, in state starting and phase start.
    pub fn new(identity: Identity, metrics: &Metrics) -> Self {
        let live = Arc::clone(metrics.live());
        live.phase.set(identity.rank, Phase::Start, Instant::now(), live.base);
        let story = Story { state: State::Starting, verdict: None, last: None };
        Self {
            shared: Arc::new(Shared {
                identity,
                live,
                metrics: metrics.clone(),
                token_crossed: AtomicBool::new(false),
                threshold_millis: AtomicU64::new(DEFAULT_THRESHOLD.as_millis() as u64),
                story: Mutex::new(story),
            }),
        }
    }

    fn story(&self) -> MutexGuard<'_, Story> {
        self.shared.story.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose health this is.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Sets the state. While a verdict is in force only [`Self::recovered`] leaves stalled and
    /// recovering, so that a late "running" cannot hide it.
    pub fn set_state(&self, state: State) {
        let mut story = self.story();
        if story.verdict.is_none() || matches!(state, State::Recovering | State::Stalled) {
            story.state = state;
        }
    }

    /// The state as it was set.
    pub fn state(&self) -> State {
        self.story().state
    }

    /// The rank is in `phase` since `since`.
    pub fn set_phase(&self, phase: Phase, since: Instant) {
        self.shared.live.phase.set(self.shared.identity.rank, phase, since, self.shared.live.base);
    }

    /// The group is at `sequence` of `epoch` (as [`Metrics::position`]).
    pub fn set_position(&self, epoch: u64, sequence: u64) {
        self.shared.metrics.position(epoch, sequence);
    }

    /// Requests being run, on a rank that does not queue them itself.
    pub fn set_running(&self, running: u64) {
        self.shared.live.set_running(running, Instant::now());
    }

    /// Something moved forward at `now`: a collective or a step ended.
    pub fn progressed(&self, now: Instant) {
        self.shared.live.progressed(now);
    }

    /// A token crossed every rank: the rank may call itself ready.
    pub fn token_crossed(&self) {
        self.shared.token_crossed.store(true, Relaxed);
    }

    /// How long requests may run without progress before `/progress` says stalled.
    pub fn set_progress_threshold(&self, threshold: Duration) {
        let millis = u64::try_from(threshold.as_millis()).unwrap_or(u64::MAX);
        self.shared.threshold_millis.store(millis, Relaxed);
    }

    /// A collective failed with `verdict`.
    pub fn fail(&self, verdict: VerdictRecord) {
        let mut story = self.story();
        story.state = State::Stalled;
        story.verdict = Some(verdict);
    }

    /// The group formed again at `epoch`: the verdict in force becomes the last one. Counts as a
    /// recovery and as progress.
    pub fn recovered(&self, epoch: u64, now: Instant) {
        {
            let mut story = self.story();
            if let Some(verdict) = story.verdict.take() {
                story.last = Some(Last { verdict, since: now, recovered_epoch: epoch });
            }
            let running = self.shared.live.running.get().unwrap_or(0) > 0;
            story.state = if running { State::Running } else { State::Idle };
        }
        self.shared.live.epoch.set(epoch);
        self.shared.live.progressed(now);
        self.shared.metrics.recovery();
    }

    /// Whether a token crossed every rank and nothing failed since.
    pub fn is_ready(&self, now: Instant) -> bool {
        self.shared.token_crossed.load(Relaxed) && self.progress(now).status != Status::Stalled
    }

    /// Everything `/progress` tells, at `now`.
    pub fn progress(&self, now: Instant) -> Progress {
        let shared = &*self.shared;
        let live = &*shared.live;
        let threshold = Duration::from_millis(shared.threshold_millis.load(Relaxed));
        let stuck = live.without_progress(now).is_some_and(|age| age > threshold);
        let running = live.running.get();
        let phase = live.phase.get(now, live.base);
        let story = self.story();
        let failed =
            story.verdict.is_some() || matches!(story.state, State::Recovering | State::Stalled);
        let state = if stuck && !failed { State::Stalled } else { story.state };
        let nothing_to_do = running.unwrap_or(0) == 0;
        let status = match state {
            _ if failed || stuck => Status::Stalled,
            State::Ready | State::Idle if nothing_to_do => Status::Idle,
            _ => Status::Ok,
        };
        Progress {
            status,
            state,
            rank: shared.identity.rank,
            host: shared.identity.host.clone(),
            pid: shared.identity.pid,
            epoch: live.epoch.get(),
            sequence: live.sequence.get(),
            phase: phase.map(|(_, phase, _)| phase),
            phase_seconds: phase.map(|(_, _, age)| age.as_secs_f64()),
            wait: live.wait.get(now, live.base).map(|(peer, phase, age)| WaitView {
                peer,
                phase,
                seconds: age.as_secs_f64(),
            }),
            running,
            last_progress_age_seconds: live.progress_age(now).map(|age| age.as_secs_f64()),
            verdict: story.verdict.clone(),
            last_verdict: story.last.as_ref().map(|last| LastVerdict {
                verdict: last.verdict.clone(),
                age_seconds: now.saturating_duration_since(last.since).as_secs_f64(),
                epoch: last.verdict.epoch,
                recovered_epoch: last.recovered_epoch,
            }),
            recoveries: shared.metrics.recoveries(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::stalled_in_compute;

    fn health() -> (Health, Metrics) {
        let identity = Identity::new(1, "spark-b");
        let metrics = Metrics::new(&identity);
        (Health::new(identity, &metrics), metrics)
    }

    #[test]
    fn a_life_from_start_to_recovery() {
        let (health, metrics) = health();
        let now = Instant::now();
        let later = now + Duration::from_secs(7);
        let start = health.progress(later);
        assert_eq!((start.status, start.state), (Status::Ok, State::Starting));
        assert_eq!(start.phase, Some(Phase::Start));
        assert_eq!((start.epoch, start.running, start.wait), (None, None, None));
        assert!(!health.is_ready(now));

        health.token_crossed();
        health.set_state(State::Idle);
        assert!(health.is_ready(now));
        assert_eq!(health.progress(now).status, Status::Idle);

        health.set_state(State::Running);
        health.set_running(2);
        metrics.position(3, 481);
        metrics.wait_begin(2, Phase::Compute, now);
        let running = health.progress(later);
        assert_eq!(
            (running.status, running.epoch, running.sequence),
            (Status::Ok, Some(3), Some(481))
        );
        let wait = running.wait.unwrap();
        assert_eq!((wait.peer, wait.phase), (2, Phase::Compute));
        assert!((wait.seconds - 7.0).abs() < 0.001, "{}", wait.seconds);

        health.fail(stalled_in_compute());
        health.set_state(State::Running);
        let failed = health.progress(now);
        assert_eq!((failed.status, failed.state), (Status::Stalled, State::Stalled));
        assert_eq!(failed.verdict, Some(stalled_in_compute()));
        assert!(!health.is_ready(now));
        health.set_state(State::Recovering);
        assert_eq!(health.progress(now).state, State::Recovering);

        health.recovered(4, now);
        let again = health.progress(later);
        assert_eq!((again.status, again.state, again.epoch), (Status::Ok, State::Running, Some(4)));
        assert_eq!((again.verdict, again.recoveries), (None, 1));
        let last = again.last_verdict.unwrap();
        assert_eq!((last.epoch, last.recovered_epoch, last.age_seconds), (3, 4, 7.0));
        assert!(health.is_ready(now));
    }

    #[test]
    fn no_progress_beyond_the_threshold_is_a_stall_until_progress() {
        let (health, _) = health();
        health.set_state(State::Running);
        health.set_running(1);
        health.set_progress_threshold(Duration::from_secs(5));
        let now = Instant::now();
        assert_eq!(health.progress(now + Duration::from_secs(4)).status, Status::Ok);
        let stuck = health.progress(now + Duration::from_secs(6));
        assert_eq!((stuck.status, stuck.state), (Status::Stalled, State::Stalled));
        assert_eq!(stuck.last_progress_age_seconds, None);
        health.progressed(now + Duration::from_secs(6));
        let moved = health.progress(now + Duration::from_secs(7));
        assert_eq!((moved.status, moved.last_progress_age_seconds), (Status::Ok, Some(1.0)));
    }
}
