//! `railweave explain`: what the flight records of all ranks tell together.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{CommandError, CommandResult, print};

/// Arguments of `railweave explain`.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The directory the ranks wrote their flight records to
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: PathBuf,
    /// The epoch to explain [default: the newest incident's]
    #[arg(long, value_name = "EPOCH")]
    epoch: Option<u64>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Merges the records of one incident into one time line, and prints the verdict first.
///
/// # Errors
/// No readable record is there.
pub fn run(args: &ExplainArgs) -> CommandResult {
    let timeline = observe::explain::explain(&args.dir, args.epoch)
        .map_err(|error| CommandError::Failed(error.to_string()))?;
    if args.json {
        print(&format!("{:#}\n", timeline.to_json()))?;
    } else {
        print(&timeline.render())?;
    }
    Ok(ExitCode::SUCCESS)
}
