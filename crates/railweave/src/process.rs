//! The process of one rank: how it learns what it is, hears that it should stop, and tells how it ends.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::events::{EventSink, MAX_LINE_BYTES, Note};
use crate::launcher::{Launcher, Seat};
use crate::model_store::{Found, ModelError, ModelStore};
use crate::placement::Placement;
use crate::settings::{Settings, SettingsError, from_handover};
use crate::supervisor::read_handover;

/// Notes that may wait to be read; later ones are dropped, since a note is evidence and never an order.
const WAITING_NOTES: usize = 64;

/// The order to stop. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Gives the order.
    pub fn request(&self) {
        let (requested, changed) = &*self.0;
        *requested.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    /// Whether the order was given.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the order, at most this long; whether it was given.
    #[must_use]
    pub fn wait_timeout(&self, limit: Duration) -> bool {
        let (requested, changed) = &*self.0;
        let guard = requested.lock().unwrap_or_else(PoisonError::into_inner);
        let (guard, _) = changed
            .wait_timeout_while(guard, limit, |requested| !*requested)
            .unwrap_or_else(PoisonError::into_inner);
        *guard
    }
}

/// Everything a rank's body needs of the outside.
#[derive(Debug)]
pub struct RankLaunch {
    /// The settings: complete, with token and master.
    pub settings: Settings,
    /// Which rank this is.
    pub seat: Seat,
    /// Where this rank sits in the machine room, if a cluster file says so.
    pub placement: Option<Placement>,
    /// The model: `settings.model` found and checked.
    pub model: Found,
    /// Where to tell the supervisor how it goes.
    pub events: EventSink,
    /// What the supervisor says about other ranks. Silent under a launcher.
    pub notes: Receiver<Note>,
    /// The order to stop: the body should return within five seconds.
    pub stop: Stop,
}

/// The work of a rank: returns when [`RankLaunch::stop`] was requested, or when it cannot go on.
pub type RankBody = fn(RankLaunch) -> Result<(), RankError>;

/// A rank cannot go on.
#[derive(Debug)]
pub struct RankError {
    /// Why, with its causes.
    pub source: Box<dyn Error + Send + Sync>,
    /// Whether starting the rank again could help. False for a wrong setting, a missing model, a taken port.
    pub retry: bool,
}

impl RankError {
    /// The error with all its causes in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.source.to_string();
        let mut cause = self.source.source();
        while let Some(error) = cause {
            let next = error.to_string();
            // Many errors already print their cause.
            if !text.contains(&next) {
                text.push_str(": ");
                text.push_str(&next);
            }
            cause = error.source();
        }
        text
    }
}

/// A rank's process cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The supervisor is gone already.
    #[error("the process that started this rank is gone")]
    Orphan,
    /// Standard input has no settings.
    #[error(
        "cannot read the settings from standard input: {0}; `railweave rank` is started by `railweave serve`"
    )]
    Handover(#[source] io::Error),
    /// The settings are not usable.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The model cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The rank is not one of the group's.
    #[error("there is no rank {rank} among {ranks}")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// The number of ranks.
        ranks: u32,
    },
    /// The system refuses what a rank needs to begin.
    #[error("cannot set up the rank's process: {0}")]
    System(#[source] io::Error),
}

/// Begins a rank that our supervisor started: settings from standard input, events to standard output.
///
/// From here on the process dies when the supervisor dies: the kernel sends SIGKILL, and the end of standard input
/// is the order to stop.
///
/// # Errors
/// The supervisor is gone, or what it handed over is not usable.
pub fn begin_supervised(rank: u32) -> Result<RankLaunch, LaunchError> {
    let system = |error: rustix::io::Errno| LaunchError::System(error.into());
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(system)?;
    let own = |fd: std::os::fd::BorrowedFd<'_>| {
        fd.try_clone_to_owned().map(File::from).map_err(LaunchError::System)
    };
    let mut input = BufReader::new(own(io::stdin().as_fd())?);
    let output = own(io::stdout().as_fd())?;
    let (supervisor, text) = read_handover(&mut input).map_err(LaunchError::Handover)?;
    // The signal only tells of a death after it was asked for; an earlier one shows in the parent's id.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get().unsigned_abs() != supervisor) {
        return Err(LaunchError::Orphan);
    }
    let settings = from_handover(&text)?;
    let ranks = settings.ranks;
    if rank >= ranks {
        return Err(LaunchError::NoSuchRank { rank, ranks });
    }
    // The supervisor has checked it, so this is only a look at the store's record of that.
    let model = ModelStore::of_user().resolve(&settings.model, &mut |_, _| {})?;
    let stop = Stop::default();
    stop_on_signals(&stop)?;
    let (note, notes) = sync_channel(WAITING_NOTES);
    let ended = stop.clone();
    spawn("supervisor", move || {
        read_notes(input, &note);
        ended.request();
    })?;
    let seat = Seat {
        launcher: Launcher::Supervisor,
        rank,
        ranks,
        local_rank: Some(rank),
        local_ranks: Some(ranks),
        master: Some(settings.master.clone()),
    };
    let events = EventSink::to(Box::new(output));
    Ok(RankLaunch { settings, seat, placement: None, model, events, notes, stop })
}

/// Begins a rank that a launcher started.
///
/// # Errors
/// Signals cannot be received.
pub fn begin_launched(
    settings: Settings,
    seat: Seat,
    placement: Option<Placement>,
    model: Found,
) -> Result<RankLaunch, LaunchError> {
    let stop = Stop::default();
    stop_on_signals(&stop)?;
    let (_, notes) = sync_channel(1);
    let events = EventSink::person(Box::new(io::stdout()), seat.rank);
    Ok(RankLaunch { settings, seat, placement, model, events, notes, stop })
}

/// The first signal is the order to stop, the second ends the process at once.
fn stop_on_signals(stop: &Stop) -> Result<(), LaunchError> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(LaunchError::System)?;
    let stop = stop.clone();
    spawn("signals", move || {
        // Not whether a stop was requested: the end of standard input may have done that just before.
        for (number, _) in signals.forever().enumerate() {
            if number > 0 {
                std::process::exit(130);
            }
            stop.request();
        }
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), LaunchError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(|_| ())
        .map_err(LaunchError::System)
}

/// Passes notes on until standard input ends.
fn read_notes(mut input: BufReader<File>, notes: &SyncSender<Note>) {
    loop {
        let mut line = Vec::new();
        match input.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if let Ok(note) = serde_json::from_slice(&line) {
            let _ = notes.try_send(note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_seen_by_every_clone_and_wakes_a_waiter() {
        let stop = Stop::default();
        assert!(!stop.wait_timeout(Duration::from_millis(1)));
        let waiter = stop.clone();
        let thread = thread::spawn(move || waiter.wait_timeout(Duration::from_secs(10)));
        stop.request();
        assert!(thread.join().unwrap());
        assert!(stop.is_requested());
    }

    #[test]
    fn a_chain_names_each_cause_once() {
        let inner = io::Error::other("disk is gone");
        let source = Box::new(LaunchError::System(inner));
        let error = RankError { source, retry: false };
        assert_eq!(error.chain(), "cannot set up the rank's process: disk is gone");
    }
}
