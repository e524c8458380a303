//! Decides what happens to the ranks of this machine. Inputs and the time come in, actions go out.
//!
//! Only a process this supervisor started is ever signalled, and a healthy one never: a rank is killed when the
//! group's verdict names it silent, when it did not join again in time after a verdict, when it never got ready, or when everything stops.

use std::time::Duration;

use crate::events::{Event, Exit, Note, VerdictKind};

/// Restarts older than this no longer count against the limit.
pub const RESTART_WINDOW: Duration = Duration::from_secs(600);

/// How long ranks get to stop in order.
pub const STOP_PATIENCE: Duration = Duration::from_secs(5);

const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// Most epochs and verdicts reported; a repeated verdict of one epoch is reported once.
const REMEMBERED_VERDICTS: usize = 64;

/// What the core needs of the settings.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Ranks on this machine.
    pub ranks: u32,
    /// Whether a rank that died is started again.
    pub restart: bool,
    /// Most restarts of one rank within [`RESTART_WINDOW`].
    pub restart_limit: u32,
    /// How long a rank may take to become part of the group.
    pub start: Duration,
    /// How long a rank named stalled may take to join again.
    pub stalled: Duration,
}

/// What happened. `life` tells a rank's processes apart: the first is 0, each restart adds 1.
#[derive(Debug, Clone)]
pub enum Input {
    /// A rank's process said something.
    Event {
        /// The rank.
        rank: u32,
        /// Which of its processes.
        life: u32,
        /// What it said.
        event: Event,
    },
    /// A rank's process ended.
    Exited {
        /// The rank.
        rank: u32,
        /// Which of its processes.
        life: u32,
        /// How.
        exit: Exit,
    },
    /// A rank's process could not be started.
    SpawnFailed {
        /// The rank.
        rank: u32,
        /// Which of its processes.
        life: u32,
        /// Why.
        error: String,
    },
    /// Someone asked for a stop: the first time in order, the second time at once.
    Interrupt,
    /// Time passed.
    Tick,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a rank's process.
    Spawn {
        /// The rank.
        rank: u32,
        /// Which of its processes.
        life: u32,
    },
    /// Tell a rank something.
    Note {
        /// The rank.
        rank: u32,
        /// What.
        note: Note,
    },
    /// Keep a setting for ranks started later.
    Keep {
        /// The key.
        key: String,
        /// The value, as text.
        value: String,
    },
    /// Close a rank's standard input and ask its process to stop.
    Stop {
        /// The rank.
        rank: u32,
    },
    /// Kill a rank's process.
    Kill {
        /// The rank.
        rank: u32,
    },
    /// Tell the person.
    Report(Report),
    /// Everything has ended.
    Finish(Outcome),
}

/// What a person is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A rank said something worth showing.
    Event {
        /// The rank.
        rank: u32,
        /// What it said.
        event: Event,
    },
    /// Every rank is ready, for the first time or again.
    AllReady {
        /// The epoch.
        epoch: u64,
    },
    /// A rank's process ended without being asked to.
    Died {
        /// The rank.
        rank: u32,
        /// How it ended, and what it said before.
        cause: String,
        /// When it will be started again.
        restart_in: Option<Duration>,
    },
    /// A rank's process is killed.
    Killing {
        /// The rank.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// The ranks are asked to stop.
    Stopping,
}

/// How it all ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Stopped because someone asked.
    Interrupted,
    /// A rank could not be kept alive.
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Waiting to be started at this time.
    Due(Duration),
    /// Started at this time, not yet part of the group.
    Starting(Duration),
    /// Part of the group.
    Joined,
    /// Ended for good.
    Gone,
}

#[derive(Debug)]
struct Rank {
    life: u32,
    state: State,
    /// The highest epoch known when this process was started: verdicts up to it are about an earlier one.
    born_after: Option<u64>,
    /// The epoch after which it last came to meet the others.
    met_after: Option<u64>,
    /// Its epoch ended, and it must come to meet the others.
    awaited: Option<Awaited>,
    restarts: Vec<Duration>,
    last_words: Option<(String, bool)>,
    killed_for: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Awaited {
    /// The epoch that ended.
    epoch: u64,
    /// When it is given up.
    until: Duration,
    /// Whether the verdict named it stalled.
    named: bool,
}

impl Rank {
    fn running(&self) -> bool {
        matches!(self.state, State::Starting(_) | State::Joined)
    }
}

#[derive(Debug)]
enum Mode {
    Running,
    /// Stopping until this time; then what is left is killed.
    Stopping(Duration, Outcome),
    Finished,
}

/// The decisions about all ranks of this machine.
#[derive(Debug)]
pub struct Core {
    policy: Policy,
    ranks: Vec<Rank>,
    mode: Mode,
    epoch: Option<u64>,
    reported_ready: Option<u64>,
    verdicts: Vec<(u64, VerdictKind, Option<u32>)>,
}

impl Core {
    /// All ranks are due at once.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        let rank = || Rank {
            life: 0,
            state: State::Due(Duration::ZERO),
            born_after: None,
            met_after: None,
            awaited: None,
            restarts: Vec::new(),
            last_words: None,
            killed_for: None,
        };
        Self {
            policy,
            ranks: (0..policy.ranks).map(|_| rank()).collect(),
            mode: Mode::Running,
            epoch: None,
            reported_ready: None,
            verdicts: Vec::new(),
        }
    }

    /// When a [`Input::Tick`] is needed next, if nothing else happens before.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        match self.mode {
            Mode::Finished => None,
            Mode::Stopping(until, _) => Some(until),
            Mode::Running => self.ranks.iter().filter_map(|rank| self.deadline(rank)).min(),
        }
    }

    fn deadline(&self, rank: &Rank) -> Option<Duration> {
        match rank.state {
            State::Due(at) => Some(at),
            State::Starting(since) if rank.killed_for.is_none() => Some(since + self.policy.start),
            State::Joined if rank.killed_for.is_none() => rank.awaited.map(|awaited| awaited.until),
            _ => None,
        }
    }

    /// Takes in what happened at time `now`, and says what to do, in order.
    pub fn handle(&mut self, now: Duration, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        if matches!(self.mode, Mode::Finished) {
            return actions;
        }
        match input {
            Input::Event { rank, life, event } => {
                self.on_event(now, rank, life, event, &mut actions);
            }
            Input::Exited { rank, life, exit } => {
                self.on_end(now, rank, life, &exit.to_string(), Some(exit), &mut actions);
            }
            Input::SpawnFailed { rank, life, error } => {
                let cause = format!("it could not be started: {error}");
                self.on_end(now, rank, life, &cause, None, &mut actions);
            }
            Input::Interrupt => self.on_interrupt(now, &mut actions),
            Input::Tick => {}
        }
        self.on_time(now, &mut actions);
        self.finish_when_empty(&mut actions);
        actions
    }

    fn current(&mut self, rank: u32, life: u32) -> Option<&mut Rank> {
        self.ranks.get_mut(rank as usize).filter(|entry| entry.life == life && entry.running())
    }

    fn on_event(
        &mut self,
        now: Duration,
        rank: u32,
        life: u32,
        event: Event,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.current(rank, life) else { return };
        match &event {
            Event::Ready { epoch } | Event::Reformed { epoch } => {
                let epoch = *epoch;
                entry.state = State::Joined;
                if entry.awaited.is_some_and(|awaited| epoch > awaited.epoch) {
                    entry.awaited = None;
                }
                self.epoch = self.epoch.max(Some(epoch));
            }
            // It came to meet the others: from now on it waits for them.
            Event::Rendezvous { after, .. } => {
                entry.met_after = *after;
                entry.awaited = None;
            }
            Event::Failed { error, retry } => entry.last_words = Some((error.clone(), *retry)),
            Event::Verdict { epoch, kind, rank: named, text } => {
                let (epoch, kind, named, text) = (*epoch, *kind, *named, text.clone());
                self.on_verdict(now, rank, epoch, kind, named, text, actions);
                return;
            }
            Event::Setting { key, value } => {
                actions.push(Action::Keep { key: key.clone(), value: value.clone() });
            }
            _ => {}
        }
        let ready = matches!(event, Event::Ready { .. } | Event::Reformed { .. });
        actions.push(Action::Report(Report::Event { rank, event }));
        let epoch = self.epoch.filter(|epoch| Some(*epoch) != self.reported_ready);
        if let Some(epoch) = epoch
            && ready
            && self.ranks.iter().all(|entry| entry.state == State::Joined)
        {
            self.reported_ready = Some(epoch);
            actions.push(Action::Report(Report::AllReady { epoch }));
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one event, and where it came from")]
    fn on_verdict(
        &mut self,
        now: Duration,
        from: u32,
        epoch: u64,
        kind: VerdictKind,
        named: Option<u32>,
        text: String,
        actions: &mut Vec<Action>,
    ) {
        let known = (epoch, kind, named);
        let is_new = !self.verdicts.contains(&known);
        if is_new {
            if self.verdicts.len() == REMEMBERED_VERDICTS {
                self.verdicts.remove(0);
            }
            self.verdicts.push(known);
            let event = Event::Verdict { epoch, kind, rank: named, text: text.clone() };
            actions.push(Action::Report(Report::Event { rank: from, event }));
        }
        if !matches!(self.mode, Mode::Running) || !self.policy.restart {
            return;
        }
        let until = now + self.policy.stalled;
        for (rank, entry) in self.ranks.iter_mut().enumerate() {
            let about_this_life = entry.born_after.is_none_or(|before| epoch > before);
            if !entry.running() || !about_this_life || entry.killed_for.is_some() {
                continue;
            }
            let is_named = named == Some(rank as u32);
            if is_named && kind == VerdictKind::Silent {
                kill(entry, rank as u32, text.clone(), actions);
            } else if is_new && entry.state == State::Joined && entry.met_after < Some(epoch) {
                // The verdict and a rank's coming are told by two threads, in either order.
                // A rank that hangs while no group lives is judged by nobody else.
                let named = is_named && kind == VerdictKind::Stalled;
                entry.awaited = Some(Awaited { epoch, until, named });
            }
        }
    }

    fn on_end(
        &mut self,
        now: Duration,
        rank: u32,
        life: u32,
        cause: &str,
        exit: Option<Exit>,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.current(rank, life) else { return };
        let words = entry.last_words.take();
        let killed = entry.killed_for.take();
        entry.awaited = None;
        entry.state = State::Gone;
        if !matches!(self.mode, Mode::Running) {
            return;
        }
        let cause = match (&words, &killed) {
            (Some((words, _)), _) => format!("{cause}: {words}"),
            (None, Some(reason)) => format!("{cause}, killed here because {reason}"),
            (None, None) => cause.to_owned(),
        };
        if let Some(exit) = exit {
            self.tell_others(rank, &Note::Exited { rank, exit }, actions);
        }
        // A wrong setting or a missing model is the same the next time.
        let hopeless = words.is_some_and(|(_, retry)| !retry) || exit == Some(Exit::Code(2));
        let restart_in =
            (self.policy.restart && !hopeless).then(|| self.backoff(now, rank)).flatten();
        actions.push(Action::Report(Report::Died { rank, cause: cause.clone(), restart_in }));
        if let Some(delay) = restart_in {
            let epoch = self.epoch;
            let entry = &mut self.ranks[rank as usize];
            entry.restarts.push(now);
            entry.life += 1;
            entry.born_after = epoch;
            entry.met_after = None;
            entry.state = State::Due(now + delay);
            return;
        }
        let reason = if hopeless || !self.policy.restart {
            format!("rank {rank} ended with {cause}")
        } else {
            format!(
                "rank {rank} ended with {cause}; it was restarted {} times within {} s, which is \
                 the limit (restart_limit)",
                self.policy.restart_limit,
                RESTART_WINDOW.as_secs()
            )
        };
        self.stop(now, Outcome::Failed(reason), actions);
    }

    /// How long to wait before the next restart of a rank; none when its limit is reached.
    fn backoff(&mut self, now: Duration, rank: u32) -> Option<Duration> {
        let limit = self.policy.restart_limit as usize;
        let restarts = &mut self.ranks[rank as usize].restarts;
        restarts.retain(|at| now.saturating_sub(*at) < RESTART_WINDOW);
        if restarts.len() >= limit {
            return None;
        }
        // The first restart is at once: a rank that died once is the common case, and its peers wait for it.
        let Some(doublings) = restarts.len().checked_sub(1) else { return Some(Duration::ZERO) };
        let factor = 1_u32 << doublings.min(8);
        Some((FIRST_BACKOFF * factor).min(LONGEST_BACKOFF))
    }

    fn tell_others(&self, about: u32, note: &Note, actions: &mut Vec<Action>) {
        for (rank, entry) in (0_u32..).zip(&self.ranks) {
            if rank != about && entry.running() {
                actions.push(Action::Note { rank, note: note.clone() });
            }
        }
    }

    fn on_interrupt(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if matches!(self.mode, Mode::Running) {
            self.stop(now, Outcome::Interrupted, actions);
        } else {
            self.kill_rest(actions);
        }
    }

    fn stop(&mut self, now: Duration, outcome: Outcome, actions: &mut Vec<Action>) {
        self.mode = Mode::Stopping(now + STOP_PATIENCE, outcome);
        actions.push(Action::Report(Report::Stopping));
        for (rank, entry) in (0_u32..).zip(&mut self.ranks) {
            if entry.running() {
                actions.push(Action::Stop { rank });
            } else {
                entry.state = State::Gone;
            }
        }
    }

    fn kill_rest(&mut self, actions: &mut Vec<Action>) {
        for (rank, entry) in (0_u32..).zip(&mut self.ranks) {
            if entry.running() && entry.killed_for.is_none() {
                kill(entry, rank, "it did not stop in time".to_owned(), actions);
            }
        }
    }

    fn on_time(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match self.mode {
            Mode::Finished => {}
            Mode::Stopping(until, _) if now >= until => self.kill_rest(actions),
            Mode::Stopping(..) => {}
            Mode::Running => {
                for rank in 0..self.policy.ranks {
                    self.on_time_of_rank(now, rank, actions);
                }
            }
        }
    }

    fn on_time_of_rank(&mut self, now: Duration, rank: u32, actions: &mut Vec<Action>) {
        let policy = self.policy;
        let entry = &mut self.ranks[rank as usize];
        match entry.state {
            State::Due(at) if now >= at => {
                entry.state = State::Starting(now);
                let life = entry.life;
                actions.push(Action::Spawn { rank, life });
                if life > 0 {
                    self.tell_others(rank, &Note::Restarted { rank }, actions);
                }
            }
            State::Starting(since) if now >= since + policy.start && entry.killed_for.is_none() => {
                let reason = format!(
                    "it was not ready within {} s (patience.start)",
                    policy.start.as_secs_f64()
                );
                kill(entry, rank, reason, actions);
            }
            State::Joined => {
                if let Some(awaited) = entry.awaited
                    && now >= awaited.until
                    && entry.killed_for.is_none()
                {
                    let what = if awaited.named {
                        "it was named stalled and did not join again"
                    } else {
                        "it did not come to meet the others after the group stopped"
                    };
                    let limit = policy.stalled.as_secs_f64();
                    let reason = format!("{what} within {limit} s (patience.compute)");
                    kill(entry, rank, reason, actions);
                }
            }
            _ => {}
        }
    }

    fn finish_when_empty(&mut self, actions: &mut Vec<Action>) {
        if self.ranks.iter().any(Rank::running) {
            return;
        }
        if let Mode::Stopping(_, outcome) = &self.mode {
            actions.push(Action::Finish(outcome.clone()));
            self.mode = Mode::Finished;
        }
    }

    /// Changes how long a rank named stalled may take, and how long a start may take.
    pub fn set_patience(&mut self, start: Duration, stalled: Duration) {
        self.policy.start = start;
        self.policy.stalled = stalled;
    }
}

fn kill(entry: &mut Rank, rank: u32, reason: String, actions: &mut Vec<Action>) {
    entry.killed_for = Some(reason.clone());
    actions.push(Action::Report(Report::Killing { rank, reason }));
    actions.push(Action::Kill { rank });
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
