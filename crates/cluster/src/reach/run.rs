//! Running one command to its end, bounded in time and in what it prints.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process_group};

use super::ReachError;

/// Bytes read of each of a command's two outputs.
const OUTPUT_LIMIT_BYTES: usize = 32 * 1024 * 1024;

/// How long the end of a command that closed its outputs is waited for between looks.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What a command printed and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; 128 and the signal's number if a signal ended it.
    pub status: i32,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it said of errors.
    pub stderr: Vec<u8>,
    /// When the first byte of `stdout` arrived, if any did.
    pub first_byte: Option<SystemTime>,
}

/// One stream, read to its end or to the limit.
struct Stream {
    is_stdout: bool,
    bytes: Vec<u8>,
    first_byte: Option<SystemTime>,
    end: io::Result<()>,
}

/// Runs it. It gets a process group of its own, so that what it starts ends with it when time is up.
pub(super) fn run(
    host: &str,
    how: &str,
    mut command: Command,
    stdin: &[u8],
    limit: Duration,
) -> Result<Output, ReachError> {
    let deadline = Instant::now() + limit;
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|source| ReachError::Start {
        host: host.to_owned(),
        program: program.clone(),
        source,
    })?;
    let streams = start_streams(&mut child, stdin);
    let late = || ReachError::Late { host: host.to_owned(), limit, how: how.to_owned() };
    let result =
        collect(streams, deadline).and_then(|both| Ok((both, wait(&mut child, deadline)?)));
    let (both, status) = match result {
        Ok(done) => done,
        Err(stop) => {
            end(&mut child);
            return Err(match stop {
                Stop::Late => late(),
                Stop::Failed(what) => {
                    ReachError::Output { host: host.to_owned(), what: format!("{program}: {what}") }
                }
            });
        }
    };
    let status = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(-1);
    let [out, error] = both;
    Ok(Output { status, stdout: out.bytes, stderr: error.bytes, first_byte: out.first_byte })
}

/// Why a command was not run to its end.
enum Stop {
    Late,
    Failed(String),
}

/// One thread for each stream: a command that reads its input late and prints a lot meanwhile blocks nobody.
fn start_streams(child: &mut Child, stdin: &[u8]) -> Receiver<Stream> {
    let (sender, streams) = mpsc::channel();
    if let Some(mut input) = child.stdin.take() {
        let bytes = stdin.to_vec();
        // A command that ends without reading its input is no error: its status tells.
        thread::spawn(move || drop(input.write_all(&bytes)));
    }
    if let Some(stdout) = child.stdout.take() {
        read_in_thread(stdout, true, sender.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        read_in_thread(stderr, false, sender);
    }
    streams
}

fn read_in_thread(mut from: impl Read + Send + 'static, is_stdout: bool, to: mpsc::Sender<Stream>) {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut first_byte = None;
        let mut first = [0; 1];
        let end = from.read_exact(&mut first).and_then(|()| {
            first_byte = Some(SystemTime::now());
            bytes.extend_from_slice(&first);
            from.take(OUTPUT_LIMIT_BYTES as u64).read_to_end(&mut bytes).map(drop)
        });
        let end = match end {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            end => end,
        };
        // The receiver is gone when time was up: then nobody needs it.
        drop(to.send(Stream { is_stdout, bytes, first_byte, end }));
    });
}

/// Both streams, standard output first.
fn collect(streams: Receiver<Stream>, deadline: Instant) -> Result<[Stream; 2], Stop> {
    let next = || {
        let left = deadline.saturating_duration_since(Instant::now());
        let stream = streams.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Stop::Late,
            RecvTimeoutError::Disconnected => {
                Stop::Failed("its output could not be read".to_owned())
            }
        })?;
        if stream.bytes.len() > OUTPUT_LIMIT_BYTES {
            return Err(Stop::Failed(format!("printed more than {OUTPUT_LIMIT_BYTES} bytes")));
        }
        match &stream.end {
            Ok(()) => Ok(stream),
            Err(error) => Err(Stop::Failed(format!("its output could not be read: {error}"))),
        }
    };
    let (one, other) = (next()?, next()?);
    Ok(if one.is_stdout { [one, other] } else { [other, one] })
}

/// A command may close its outputs and run on: its end is waited for no longer than the rest of the time.
fn wait(child: &mut Child, deadline: Instant) -> Result<ExitStatus, Stop> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() >= deadline => return Err(Stop::Late),
            Ok(None) => thread::sleep(LOOK_AGAIN),
            Err(error) => {
                return Err(Stop::Failed(format!("its end could not be waited for: {error}")));
            }
        }
    }
}

/// Ends the child and what it started here. The child is not waited for before this, so its group is still its own.
fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        // Fails only if it ended on its own just now.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
