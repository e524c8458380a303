//! The agents on the hosts: starting them, asking them, and hearing when one is gone.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::super::lines::read_lines;
use super::lost::{beginning, end};
use super::wire::{AGENT_SCHEMA, LINE_BYTES_MAX, Order, Said};

/// Lines of an agent that may wait to be looked at.
const LINES_WAITING: usize = 256;
/// How much of an agent's standard error is kept: its end.
const ERRORS_BYTES_MAX: usize = 2048;
/// How long an agent may take to end once its standard input is closed.
const END_LIMIT: Duration = Duration::from_secs(2);
/// How long what it printed last may take to be read after that.
const ERRORS_LIMIT: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// An agent is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AgentError {
    /// It could not be started.
    #[error("cannot start the agent on {host}: {why}")]
    Start {
        /// The host.
        host: String,
        /// What the system said.
        why: String,
    },
    /// It ended.
    #[error("the agent on {host} ended{told}")]
    Gone {
        /// The host.
        host: String,
        /// What it printed last, after a colon.
        told: String,
    },
    /// It is another version.
    #[error(
        "the agent on {host} speaks {theirs} (railweave {version}) and this is {}; install the same railweave on both",
        AGENT_SCHEMA
    )]
    Version {
        /// The host.
        host: String,
        /// Its schema.
        theirs: String,
        /// Its program's version.
        version: String,
    },
    /// It says nothing.
    #[error("the agent on {host} said nothing within {:.1} s", limit.as_secs_f64())]
    Late {
        /// The host.
        host: String,
        /// The limit.
        limit: Duration,
    },
    /// What it says makes no sense.
    #[error("the agent on {host} said what makes no sense: {what}")]
    Nonsense {
        /// The host.
        host: String,
        /// The beginning of it.
        what: String,
    },
}

/// The agent on one host. Dropping it ends it: its standard input is closed, and it is killed if that is not enough.
pub(super) struct Agent {
    host: String,
    input: Option<Box<dyn Write + Send>>,
    lines: Receiver<Vec<u8>>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// The thread that keeps them.
    keeper: Option<JoinHandle<()>>,
    child: Option<Child>,
    /// Answers by order, for orders that are waited for.
    answers: BTreeMap<u64, VecDeque<Said>>,
    boot_id: Option<String>,
}

impl Agent {
    /// Starts an agent; it greets later, see [`Self::greet`].
    pub(super) fn start(host: &str, mut command: Command) -> Result<Self, AgentError> {
        let failed = |why: String| AgentError::Start { host: host.to_owned(), why };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("{}: {error}", command.get_program().display())))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed("it has no pipes".to_owned()));
        };
        let mut agent = Self::over(host, input, output)?;
        agent.child = Some(child);
        let kept = Arc::clone(&agent.errors);
        // It ends with the agent, whose end closes the pipe.
        let spawned = thread::Builder::new()
            .name(format!("errors of {host}"))
            .spawn(move || keep_end(errors, &kept));
        agent.keeper = Some(spawned.map_err(|error| failed(error.to_string()))?);
        Ok(agent)
    }

    /// An agent at the other end of two pipes.
    pub(super) fn over(
        host: &str,
        input: impl Write + Send + 'static,
        output: impl Read + Send + 'static,
    ) -> Result<Self, AgentError> {
        let lines =
            read_lines(format!("agent of {host}"), output, LINE_BYTES_MAX, LINES_WAITING).map_err(
                |error| AgentError::Start { host: host.to_owned(), why: error.to_string() },
            )?;
        Ok(Self {
            host: host.to_owned(),
            input: Some(Box::new(input)),
            lines,
            errors: Arc::default(),
            keeper: None,
            child: None,
            answers: BTreeMap::new(),
            boot_id: None,
        })
    }

    /// Changes with every boot of its host.
    pub(super) fn boot_id(&self) -> Option<&str> {
        self.boot_id.as_deref()
    }

    /// Awaits its greeting.
    pub(super) fn greet(&mut self, limit: Duration) -> Result<(), AgentError> {
        match self.line(Instant::now() + limit, limit)? {
            Said::Here { schema, version, boot_id } if schema == AGENT_SCHEMA => {
                self.boot_id = boot_id;
                let _ = version;
                Ok(())
            }
            Said::Here { schema, version, .. } => {
                Err(AgentError::Version { host: self.host.clone(), theirs: schema, version })
            }
            other => Err(self.nonsense(&format!("{other:?}"))),
        }
    }

    /// Gives an order, whose answers will be kept until [`Self::forget`].
    pub(super) fn give(&mut self, order: &Order) -> Result<(), AgentError> {
        self.answers.entry(order.id()).or_default();
        let mut line = serde_json::to_vec(order).unwrap_or_default();
        line.push(b'\n');
        let written =
            self.input.as_mut().map(|input| input.write_all(&line).and_then(|()| input.flush()));
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err(self.gone()),
        }
    }

    /// The next answer to an order.
    pub(super) fn answer(&mut self, id: u64, limit: Duration) -> Result<Said, AgentError> {
        let until = Instant::now() + limit;
        loop {
            if let Some(said) = self.answers.get_mut(&id).and_then(VecDeque::pop_front) {
                return Ok(said);
            }
            let said = self.line(until, limit)?;
            // Answers to orders that nobody waits for any more are dropped.
            if let Some(queue) = said.id().and_then(|id| self.answers.get_mut(&id)) {
                queue.push_back(said);
            }
        }
    }

    /// From here on nobody waits for an order's answers.
    pub(super) fn forget(&mut self, id: u64) {
        self.answers.remove(&id);
    }

    fn line(&mut self, until: Instant, limit: Duration) -> Result<Said, AgentError> {
        match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => match serde_json::from_slice::<Said>(&line) {
                Ok(said) => Ok(said.cleaned()),
                Err(_) => Err(self.nonsense(&String::from_utf8_lossy(&line))),
            },
            Err(RecvTimeoutError::Timeout) => {
                Err(AgentError::Late { host: self.host.clone(), limit })
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.gone()),
        }
    }

    /// What it said does not belong there.
    pub(super) fn nonsense(&self, what: &str) -> AgentError {
        AgentError::Nonsense { host: self.host.clone(), what: beginning(what) }
    }

    /// Ends it without giving it time to end by itself: it does not answer.
    pub(super) fn abandon(mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
        }
    }

    fn gone(&mut self) -> AgentError {
        self.input = None;
        let status = self.child.as_mut().and_then(|child| wait(child, END_LIMIT));
        // Its last words are read by another thread, which a process it left behind may keep from ending.
        let until = Instant::now() + ERRORS_LIMIT;
        while self.keeper.as_ref().is_some_and(|keeper| !keeper.is_finished())
            && Instant::now() < until
        {
            thread::sleep(LOOK_EVERY);
        }
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let said = end(&String::from_utf8_lossy(&errors));
        let told = match (status, said.is_empty()) {
            (Some(status), false) => format!(" ({status}): {said}"),
            (Some(status), true) => format!(" ({status})"),
            (None, false) => format!(": {said}"),
            (None, true) => String::new(),
        };
        AgentError::Gone { host: self.host.clone(), told }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.input = None;
        if let Some(child) = &mut self.child
            && wait(child, END_LIMIT).is_none()
            && child.kill().is_ok()
        {
            let _ = wait(child, END_LIMIT);
        }
    }
}

fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Err(_) => return None,
            Ok(None) if Instant::now() >= end => return None,
            Ok(None) => thread::sleep(LOOK_EVERY),
        }
    }
}

fn keep_end(mut from: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut chunk = [0; 512];
    loop {
        let Ok(count @ 1..) = from.read(&mut chunk) else { return };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(chunk.get(..count).unwrap_or_default());
        let excess = kept.len().saturating_sub(ERRORS_BYTES_MAX);
        kept.drain(..excess);
    }
}

#[cfg(test)]
#[path = "crew_tests.rs"]
mod tests;
