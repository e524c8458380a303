//! One child process of the supervisor: how it is started, heard, told and signalled.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::core::Input;
use crate::events::{Event, Exit, MAX_LINE_BYTES, Note};
use crate::settings::ENV_PREFIX;

/// What is run for a rank.
#[derive(Debug, Clone)]
pub struct RankProgram {
    /// The program.
    pub program: PathBuf,
    /// Its arguments. Nothing secret: they are public.
    pub arguments: Vec<String>,
}

/// What the supervisor's loop hears from the threads that watch children and signals.
#[derive(Debug)]
pub(super) enum Heard {
    /// For the core.
    Input(Input),
    /// A line of a rank's standard error.
    Line { rank: u32, text: String },
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Running {
    stdin: Option<ChildStdin>,
    pidfd: OwnedFd,
}

/// A rank's hand-over cannot be delivered.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The program cannot be run.
    #[error("cannot run {}: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The process was started, but not all of it is usable.
    #[error("cannot set up the process of rank {rank}: {source}")]
    SetUp {
        /// The rank.
        rank: u32,
        /// Why.
        source: io::Error,
    },
}

impl Running {
    /// Starts a rank's process, hands over its settings, and starts the threads that listen to it.
    ///
    /// Call it on a thread that lives as long as the supervisor: the kernel kills a child with the parent-death
    /// signal when the *thread* that started it ends.
    pub(super) fn start(
        program: &RankProgram,
        rank: u32,
        life: u32,
        handover: &str,
        heard: &SyncSender<Heard>,
    ) -> Result<Self, HandoverError> {
        let mut command = Command::new(&program.program);
        command
            .args(&program.arguments)
            .arg(rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Of its own group, so that Ctrl-C on the terminal reaches the supervisor alone, which stops in order.
            .process_group(0);
        // The hand-over has every value; a variable would only show secrets in /proc.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with(ENV_PREFIX) {
                command.env_remove(name);
            }
        }
        let mut child = command
            .spawn()
            .map_err(|source| HandoverError::Spawn { program: program.program.clone(), source })?;
        match Self::set_up(&mut child, rank, handover) {
            Ok((running, stdout, stderr)) => {
                listen(rank, life, child, stdout, stderr, heard);
                Ok(running)
            }
            Err(source) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(HandoverError::SetUp { rank, source })
            }
        }
    }

    fn set_up(
        child: &mut Child,
        rank: u32,
        handover: &str,
    ) -> io::Result<(Self, impl Read + Send + 'static, impl Read + Send + 'static)> {
        let missing = || io::Error::other(format!("rank {rank} has no pipe"));
        let mut stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the process id is out of range"))?;
        // The child is not reaped before the thread that waits for it runs, so the id cannot be another's yet.
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        // Full pipes must not stop the supervisor: a rank that is frozen reads nothing.
        rustix::io::ioctl_fionbio(&stdin, true)?;
        let head = format!("settings {} {}\n", handover.len(), std::process::id());
        match stdin.write_all((head + handover).as_bytes()) {
            // It died before it read: how it ended says more than this pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
        Ok((Self { stdin: Some(stdin), pidfd }, stdout, stderr))
    }

    /// Tells the rank something; a rank that does not read misses it.
    pub(super) fn tell(&mut self, note: &Note) {
        let Some(stdin) = &mut self.stdin else { return };
        if let Ok(mut line) = serde_json::to_vec(note) {
            line.push(b'\n');
            // A pipe takes a line this short whole or not at all.
            let _ = stdin.write_all(&line);
        }
    }

    /// Asks the process to stop: the end of its standard input, and SIGTERM.
    pub(super) fn stop(&mut self) {
        self.stdin = None;
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
    }

    /// Kills the process. The descriptor names this process alone, even after its id is used again.
    pub(super) fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

fn listen(
    rank: u32,
    life: u32,
    mut child: Child,
    stdout: impl Read + Send + 'static,
    stderr: impl Read + Send + 'static,
    heard: &SyncSender<Heard>,
) {
    let lines = heard.clone();
    thread::spawn(move || {
        let _ = each_line(stderr, |text| lines.send(Heard::Line { rank, text }).is_ok());
    });
    let events = heard.clone();
    thread::spawn(move || {
        // Events first, then the end: a rank's last words explain its exit.
        let _ = each_line(stdout, |text| {
            let heard = match serde_json::from_str::<Event>(&text) {
                Ok(event) => Heard::Input(Input::Event { rank, life, event }),
                Err(_) => Heard::Line { rank, text },
            };
            events.send(heard).is_ok()
        });
        let exit = child.wait().map_or(Exit::Unknown, exit_of);
        let _ = events.send(Heard::Input(Input::Exited { rank, life, exit }));
    });
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown,
    }
}

/// Calls `take` for each line until it returns false. A line that is too long comes in pieces.
fn each_line(source: impl Read, mut take: impl FnMut(String) -> bool) -> io::Result<()> {
    let mut source = BufReader::new(source);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut source).take(MAX_LINE_BYTES as u64);
        if bounded.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&line);
        if !take(text.trim_end_matches(['\n', '\r']).to_owned()) {
            return Ok(());
        }
    }
}

/// Reads what [`Running::start`] wrote, leaving the notes that follow: the supervisor's process id and the settings.
pub(crate) fn read_handover(source: &mut BufReader<File>) -> io::Result<(u32, String)> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    let mut head = String::new();
    source.by_ref().take(64).read_line(&mut head)?;
    let (length, supervisor) = head
        .strip_prefix("settings ")
        .and_then(|rest| rest.trim_end().split_once(' '))
        .and_then(|(length, id)| Some((length.parse::<usize>().ok()?, id.parse::<u32>().ok()?)))
        .filter(|(length, _)| *length <= MAX_LINE_BYTES)
        .ok_or_else(|| invalid("standard input does not start with settings"))?;
    let mut text = vec![0; length];
    source.read_exact(&mut text)?;
    let text = String::from_utf8(text).map_err(|_| invalid("the settings are not UTF-8"))?;
    Ok((supervisor, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_comes_in_bounded_pieces() {
        let mut lengths = Vec::new();
        let endless = io::repeat(b'x').take(3 * MAX_LINE_BYTES as u64);
        each_line(endless, |line| {
            lengths.push(line.len());
            true
        })
        .unwrap();
        assert_eq!(lengths, [MAX_LINE_BYTES; 3]);
    }
}
