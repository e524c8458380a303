//! How commands get to a host: the only part of this crate that touches a machine.

mod run;
mod way;

pub use run::Output;
pub use way::{Reach, Way};

use std::io;
use std::time::Duration;

/// Why a host could not be reached or a command could not be run there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReachError {
    /// The text is none of the known kinds.
    #[error(
        "{0:?} is no way to reach a host: use local, ssh:TARGET, netns:NAME or recorded:FOLDER"
    )]
    Unknown(String),
    /// The program that leads there could not be started.
    #[error("{host}: cannot start {program}: {source}")]
    Start {
        /// The host.
        host: String,
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It took too long.
    #[error(
        "{host}: no answer within {limit:?}; is the host up, and does `{how}` work without a password?"
    )]
    Late {
        /// The host.
        host: String,
        /// The limit.
        limit: Duration,
        /// A command to try.
        how: String,
    },
    /// It ended with an error of its own.
    #[error("{host}: {how} ended with {status}: {said}")]
    Ended {
        /// The host.
        host: String,
        /// The command.
        how: String,
        /// Its exit status.
        status: String,
        /// The last lines it printed.
        said: String,
    },
    /// It printed more than is read, or what cannot be read.
    #[error("{host}: {what}")]
    Output {
        /// The host.
        host: String,
        /// What is wrong with it.
        what: String,
    },
    /// A recorded host carries nothing out.
    #[error("{host} is a recording; nothing can be changed there")]
    ReadOnly {
        /// The host.
        host: String,
    },
}
