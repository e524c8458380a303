//! Carries out what the core decides: processes, signals, time and the screen.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::child::{Heard, RankProgram, Running};
use super::core::{Action, Core, Input, Outcome, Policy};
use super::screen::Screen;
use crate::settings::{Settings, find, to_handover};

/// Messages that may wait for the supervisor's loop; the threads that send them then wait too.
const WAITING_MESSAGES: usize = 1024;

/// Longest sleep of the loop, so that a clock that jumps is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// How long last lines of ranks that have ended are waited for.
const LAST_LINES: Duration = Duration::from_millis(200);

/// The supervisor itself cannot work.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// No loopback port can be had.
    #[error(
        "cannot reserve a loopback port for the ranks to meet at: {0}; is the loopback interface up?"
    )]
    Port(#[source] io::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}")]
    Signals(#[source] io::Error),
}

/// Reserves a loopback port for a listener of another process.
///
/// The socket is bound and never listens: as both sides allow reuse, the rank can bind and listen on the port, even
/// again after a restart, while the system gives the port to nobody else.
///
/// # Errors
/// The system refuses a socket or has no port left.
pub fn reserve_port() -> Result<(OwnedFd, SocketAddrV4), SupervisorError> {
    let reserve = || -> io::Result<(OwnedFd, SocketAddrV4)> {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let address = SocketAddrV4::try_from(rustix::net::getsockname(&socket)?)
            .map_err(|_| io::Error::other("the address is not IPv4"))?;
        Ok((socket, address))
    };
    reserve().map_err(SupervisorError::Port)
}

/// Runs the ranks until someone asks for a stop or a rank cannot be kept alive.
///
/// `settings` are complete: token and master set. Blocks; call it on the main thread, since the ranks die with the
/// thread that started them. When it returns, no rank is left.
///
/// # Errors
/// Signals cannot be received. What goes wrong with ranks is in the [`Outcome`].
pub fn supervise(
    settings: Settings,
    program: &RankProgram,
    screen: &mut Screen,
) -> Result<Outcome, SupervisorError> {
    let (heard, hears) = sync_channel(WAITING_MESSAGES);
    let signals = SignalThread::start(heard.clone()).map_err(SupervisorError::Signals)?;
    let begun = Instant::now();
    let core = Core::new(Policy {
        ranks: settings.ranks,
        restart: settings.restart,
        restart_limit: settings.restart_limit,
        start: settings.patience.start,
        stalled: settings.patience.compute,
    });
    let mut edge = Edge { settings, program, screen, core, running: BTreeMap::new(), heard };
    let mut outcome = edge.step(begun.elapsed(), Input::Tick);
    while outcome.is_none() {
        let now = begun.elapsed();
        let sleep = edge
            .core
            .next_tick()
            .map_or(LONGEST_SLEEP, |at| at.saturating_sub(now))
            .min(LONGEST_SLEEP);
        match hears.recv_timeout(sleep) {
            Ok(Heard::Line { rank, text }) => edge.screen.rank_line(rank, &text),
            Ok(Heard::Input(input)) => outcome = edge.step(begun.elapsed(), input),
            Err(RecvTimeoutError::Timeout) => {
                outcome = edge.step(begun.elapsed(), Input::Tick);
            }
            // The loop holds a sender itself, so this cannot happen; stopping is the safe answer.
            Err(RecvTimeoutError::Disconnected) => {
                outcome = Some(Outcome::Failed("the supervisor lost its ranks".to_owned()));
            }
        }
    }
    // Last lines of the ranks: their threads may still be handing them over.
    let end = Instant::now() + LAST_LINES;
    while let Ok(message) =
        hears.recv_timeout(end.saturating_duration_since(Instant::now()).min(LAST_LINES / 10))
    {
        if let Heard::Line { rank, text } = message {
            edge.screen.rank_line(rank, &text);
        }
    }
    drop(edge);
    drop(hears);
    signals.end();
    Ok(outcome.unwrap_or(Outcome::Interrupted))
}

struct Edge<'a> {
    settings: Settings,
    program: &'a RankProgram,
    screen: &'a mut Screen,
    core: Core,
    running: BTreeMap<u32, Running>,
    heard: SyncSender<Heard>,
}

impl Edge<'_> {
    fn step(&mut self, now: Duration, input: Input) -> Option<Outcome> {
        let mut outcome = None;
        if let Input::Exited { rank, .. } = &input {
            self.running.remove(rank);
        }
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for action in self.core.handle(now, input) {
                if let Some(failed) = self.carry_out(action, &mut outcome) {
                    inputs.push(failed);
                }
            }
        }
        outcome
    }

    fn carry_out(&mut self, action: Action, outcome: &mut Option<Outcome>) -> Option<Input> {
        match action {
            Action::Spawn { rank, life } => {
                let handover = to_handover(&self.settings);
                match Running::start(self.program, rank, life, &handover, &self.heard) {
                    Ok(running) => {
                        self.running.insert(rank, running);
                    }
                    Err(error) => {
                        return Some(Input::SpawnFailed { rank, life, error: error.to_string() });
                    }
                }
            }
            Action::Note { rank, note } => {
                if let Some(running) = self.running.get_mut(&rank) {
                    running.tell(&note);
                }
            }
            Action::Keep { key, value } => self.keep(&key, &value),
            Action::Stop { rank } => {
                if let Some(running) = self.running.get_mut(&rank) {
                    running.stop();
                }
            }
            Action::Kill { rank } => {
                if let Some(running) = self.running.get(&rank) {
                    running.kill();
                }
            }
            Action::Report(report) => self.screen.report(&report),
            Action::Finish(end) => {
                if let Outcome::Failed(reason) = &end {
                    self.screen.failed(reason);
                }
                *outcome = Some(end);
            }
        }
        None
    }

    /// Keeps a setting that a rank says was changed. A rank of this machine is trusted only as far as the table.
    fn keep(&mut self, name: &str, value: &str) {
        let Some(key) = find(name).filter(|key| key.live) else { return };
        if key.parse(&mut self.settings, value).is_ok() {
            let patience = &self.settings.patience;
            self.core.set_patience(patience.start, patience.compute);
        }
    }
}

/// Turns signals into inputs.
struct SignalThread {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl SignalThread {
    fn start(heard: SyncSender<Heard>) -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        let thread = thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for _ in signals.forever() {
                if heard.send(Heard::Input(Input::Interrupt)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { handle, thread })
    }

    fn end(self) {
        self.handle.close();
        // It only forwards; a panic there has nothing to tell.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
#[path = "edge_tests.rs"]
mod tests;
