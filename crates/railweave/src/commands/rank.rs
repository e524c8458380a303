//! `railweave rank`: the process of one rank, started by the supervisor.

use std::process::ExitCode;

use super::{CommandResult, FAILED, USAGE};
use crate::events::Event;
use crate::process::{RankBody, RankLaunch, begin_supervised};

/// Arguments of `railweave rank`.
#[derive(Debug, clap::Args)]
pub struct RankArgs {
    /// Which rank this is
    rank: u32,
}

/// Runs a rank that the supervisor started.
///
/// # Errors
/// The process cannot begin: there is no supervisor, or its settings are not usable.
pub fn run(args: &RankArgs, body: RankBody) -> CommandResult {
    Ok(work(begin_supervised(args.rank)?, body))
}

/// Runs a rank's body, and tells the supervisor and the person how it ended.
pub(crate) fn work(launch: RankLaunch, body: RankBody) -> ExitCode {
    let events = launch.events.clone();
    match body(launch) {
        Ok(()) => {
            events.send(&Event::Stopped);
            ExitCode::SUCCESS
        }
        Err(error) => {
            let text = error.chain();
            eprintln!("railweave: {text}");
            events.send(&Event::Failed { error: text, retry: error.retry });
            ExitCode::from(if error.retry { FAILED } else { USAGE })
        }
    }
}
