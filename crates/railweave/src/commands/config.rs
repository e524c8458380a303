//! `railweave config`: the effective value of every key and where it came from.

use std::process::ExitCode;

use super::{CommandResult, print};
use crate::cli::{AllKeys, SettingFlags};
use crate::settings::{config_json, config_table};

/// Arguments of `railweave config`.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    settings: SettingFlags<AllKeys>,
    /// Print one JSON document, with what each key accepts
    #[arg(long)]
    json: bool,
}

/// Prints every key.
///
/// # Errors
/// A setting is wrong.
pub fn run(args: ConfigArgs) -> CommandResult {
    let effective = args.settings.resolve()?;
    if args.json {
        print(&format!("{:#}\n", config_json(&effective)))?;
    } else {
        print(&config_table(&effective))?;
    }
    Ok(ExitCode::SUCCESS)
}
