//! What each command does. A command returns an exit code, or an error that has one.

pub mod ask;
pub mod bench;
pub mod config;
pub mod explain;
mod lines;
pub mod rank;
pub mod reach;
pub mod room;
pub mod serve;
pub mod set;
pub mod status;
pub mod tune;
pub mod verify;

use std::io::{self, Write as _};
use std::process::ExitCode;

use cluster::file::FileError;
use cluster::plan::PlanError;

use crate::launcher::LauncherError;
use crate::model_store::ModelError;
use crate::process::LaunchError;
use crate::settings::SettingsError;
use crate::supervisor::SupervisorError;

/// Exit code when something failed.
pub const FAILED: u8 = 1;
/// Exit code when the command line or a setting is wrong.
pub const USAGE: u8 = 2;
/// Exit code when no server could be reached.
pub const UNREACHABLE: u8 = 3;
/// Exit code after a stop that was asked for by a signal.
pub const INTERRUPTED: u8 = 130;

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A launcher's environment is wrong.
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// No server could be reached.
    #[error("{0}; is the server running there? `railweave serve` starts one")]
    Unreachable(String),
    /// A cluster file cannot be used.
    #[error("{path}: {source}")]
    ClusterFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: Box<FileError>,
    },
    /// No plan follows from a cluster file.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The model cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A rank's process cannot begin.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The supervisor cannot work.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// Something else failed.
    #[error("{0}")]
    Failed(String),
}

impl CommandError {
    /// Its exit code.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Settings(_)
            | Self::Launcher(_)
            | Self::Usage(_)
            | Self::ClusterFile { .. }
            | Self::Model(ModelError::Unknown { .. } | ModelError::NotAFile { .. })
            | Self::Launch(LaunchError::Settings(_) | LaunchError::NoSuchRank { .. }) => USAGE,
            Self::Unreachable(_) => UNREACHABLE,
            // The file is right, and the cluster cannot do what is asked of it.
            Self::Plan(PlanError::Forward { .. }) => FAILED,
            Self::Plan(_) => USAGE,
            Self::Model(_) | Self::Launch(_) | Self::Supervisor(_) | Self::Failed(_) => FAILED,
        }
    }
}

/// What a command returns.
pub type CommandResult = Result<ExitCode, CommandError>;

/// Writes to standard output. A reader that left early, such as `head`, is not an error.
pub(crate) fn print(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CommandError::Failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
