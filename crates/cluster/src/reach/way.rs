//! Where commands go, and how their words get there whole.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ReachError;
use super::run::{self, Output};
use crate::inventory::recording::ToolOutput;
use crate::inventory::{Recording, capture};
use crate::text::quoted;

/// Seconds SSH may take to connect.
const CONNECT_LIMIT_S: u32 = 10;

/// The status with which `ssh` and `ip netns exec` say that they themselves failed.
const LEADER_FAILED: i32 = 255;

/// How commands get to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The host, for messages.
    pub host: String,
    /// Which way.
    pub way: Way,
}

/// The ways to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is this one.
    Local,
    /// Over SSH, with the user's own configuration and without questions.
    Ssh {
        /// `host`, `user@host`, or a name from the user's configuration.
        target: String,
    },
    /// It is a network namespace of this one.
    Netns {
        /// Its name, as `ip netns` lists it.
        name: String,
    },
    /// It was recorded: there is nothing to reach.
    Recorded {
        /// The recording's folder.
        folder: PathBuf,
    },
}

impl Reach {
    /// Reads `local`, `ssh:TARGET`, `netns:NAME` or `recorded:FOLDER`, the last relative to the current folder.
    ///
    /// # Errors
    ///
    /// If it is none of these, or the target or name could be taken for something else.
    pub fn parse(host: &str, text: &str) -> Result<Self, ReachError> {
        Self::parse_in(host, text, Path::new(""))
    }

    /// As [`Reach::parse`], with the folder a relative `recorded:FOLDER` starts from.
    ///
    /// # Errors
    ///
    /// As [`Reach::parse`].
    pub fn parse_in(host: &str, text: &str, base: &Path) -> Result<Self, ReachError> {
        let unknown = || ReachError::Unknown(text.to_owned());
        let way = if text == "local" {
            Way::Local
        } else if let Some(target) = text.strip_prefix("ssh:") {
            let target = checked(target, "@._-:[]%+").ok_or_else(unknown)?;
            Way::Ssh { target }
        } else if let Some(name) = text.strip_prefix("netns:") {
            let name =
                checked(name, "._-").filter(|name| !name.starts_with('.')).ok_or_else(unknown)?;
            Way::Netns { name }
        } else if let Some(folder) =
            text.strip_prefix("recorded:").filter(|folder| !folder.is_empty())
        {
            Way::Recorded { folder: base.join(folder) }
        } else {
            return Err(unknown());
        };
        Ok(Self { host: host.to_owned(), way })
    }

    /// The command that runs `argv` there, not yet started. Its words arrive as they are.
    ///
    /// Ending an `ssh` does not end what it started on the other side: whoever starts something lasting makes it end
    /// when its input does.
    ///
    /// # Errors
    ///
    /// If the host is recorded, or `argv` is empty.
    pub fn command(&self, argv: &[&str]) -> Result<Command, ReachError> {
        let Some((program, arguments)) = argv.split_first() else {
            return Err(ReachError::Output {
                host: self.host.clone(),
                what: "no command was given".to_owned(),
            });
        };
        Ok(match &self.way {
            Way::Local => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            Way::Ssh { target } => {
                let mut command = Command::new("ssh");
                command.args([
                    "-o",
                    "BatchMode=yes",
                    "-o",
                    &format!("ConnectTimeout={CONNECT_LIMIT_S}"),
                ]);
                let words: Vec<String> = argv.iter().map(|word| quoted(word)).collect();
                command.args(["--", target, &words.join(" ")]);
                command
            }
            Way::Netns { name } => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).args(argv);
                command
            }
            Way::Recorded { .. } => return Err(ReachError::ReadOnly { host: self.host.clone() }),
        })
    }

    /// Runs `argv` there with `stdin` and waits for its end. Whatever its status: that is the caller's to judge.
    ///
    /// # Errors
    ///
    /// If the host is recorded or cannot be reached, or the command takes longer than `limit` or prints more than
    /// 32 MiB; then what was started here is ended.
    pub fn run(&self, argv: &[&str], stdin: &[u8], limit: Duration) -> Result<Output, ReachError> {
        let output = run::run(&self.host, &self.hint(), self.command(argv)?, stdin, limit)?;
        if output.status == LEADER_FAILED && !matches!(self.way, Way::Local) {
            return Err(self.ended(argv, &output));
        }
        Ok(output)
    }

    /// Reads the host's state with the script of [`capture::script`]; a recorded host's is loaded.
    ///
    /// # Errors
    ///
    /// As [`Reach::run`], and if what came back is no capture.
    pub fn capture(&self, limit: Duration) -> Result<Recording, ReachError> {
        let wrong = |what: String| ReachError::Output { host: self.host.clone(), what };
        if let Way::Recorded { folder } = &self.way {
            return Recording::load(folder).map_err(|error| wrong(error.to_string()));
        }
        let argv = ["sh", "-s"];
        let before = since_epoch_ns();
        let output = self.run(&argv, capture::script().as_bytes(), limit)?;
        let after = output.first_byte.map_or_else(since_epoch_ns, as_ns);
        if output.status != 0 && output.stdout.is_empty() {
            return Err(self.ended(&argv, &output));
        }
        let mut recording =
            capture::parse(&output.stdout).map_err(|error| wrong(error.to_string()))?;
        // The script prints its clock before all else, so it was read before the first byte came.
        if let Some(ToolOutput::Printed(clock)) = recording.tools.get_mut("clock") {
            *clock = format!("{} {before} {after}", clock.trim());
        }
        Ok(recording)
    }

    /// A command that shows whether the host can be reached.
    fn hint(&self) -> String {
        match &self.way {
            Way::Local | Way::Recorded { .. } => "true".to_owned(),
            Way::Ssh { target } => format!("ssh -o BatchMode=yes {} true", quoted(target)),
            Way::Netns { name } => format!("ip netns exec {name} true"),
        }
    }

    fn ended(&self, argv: &[&str], output: &Output) -> ReachError {
        let how = match &self.way {
            Way::Local | Way::Recorded { .. } => argv.join(" "),
            Way::Ssh { .. } | Way::Netns { .. } => self.hint(),
        };
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let said = match lines.get(lines.len().saturating_sub(3)..) {
            Some(last) if !last.is_empty() => last.join("; "),
            _ => "nothing".to_owned(),
        };
        ReachError::Ended {
            host: self.host.clone(),
            how,
            status: format!("status {}", output.status),
            said,
        }
    }
}

/// A target or name of letters, digits and these, that no program takes for an option.
fn checked(text: &str, also: &str) -> Option<String> {
    let fine = !text.is_empty()
        && text.len() <= 255
        && !text.starts_with('-')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c));
    fine.then(|| text.to_owned())
}

fn since_epoch_ns() -> u128 {
    as_ns(SystemTime::now())
}

/// A clock before 1970 counts as 1970.
fn as_ns(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

#[cfg(test)]
#[path = "way_tests.rs"]
mod tests;
