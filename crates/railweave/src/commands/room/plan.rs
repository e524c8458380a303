//! `railweave plan`: how bytes get from any rank to any other.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueHint;
use cluster::check::forwarding;
use cluster::plan::{PathKind, Plan};
use cluster::render;

use super::super::{CommandError, CommandResult, print};
use super::open::{FileArg, PlanFlags, capture, open, states};
use super::stop::on_signal;

/// Arguments of `railweave plan`.
#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    #[command(flatten)]
    file: FileArg,
    #[command(flatten)]
    flags: PlanFlags,
    /// Ask the hosts which of their devices mark packets, and plan with what is there
    #[arg(long)]
    live: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Write a drawing as SVG to this file; without a file, or with -, print it and nothing else
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, num_args = 0..=1,
        default_missing_value = "-")]
    svg: Option<PathBuf>,
}

/// Prints the plan as a drawing and a table, as JSON, or as SVG.
///
/// # Errors
/// The file or a flag is wrong, or forwarding is required and not possible.
pub fn run(args: &PlanArgs) -> CommandResult {
    let file = open(&args.file.file)?;
    let plan = if args.live {
        on_signal()?;
        let hosts: Vec<_> = file.hosts.iter().collect();
        let hosts = states(&capture(&hosts));
        if let Some(error) = hosts.iter().find_map(|host| host.as_ref().err()) {
            return Err(CommandError::Failed(error.clone()));
        }
        // What has to be marked follows from the plan as it would be if everything were.
        let mut options = args.flags.options();
        let wanted = Plan::of(&file, &options)?;
        if wanted.paths.iter().any(|path| path.kind == PathKind::Forwarded) {
            options.coverage = Some(forwarding::coverage(&hosts, &wanted).unwrap_or_default());
        }
        Plan::of(&file, &options)?
    } else {
        args.flags.plan(&file)?
    };
    if let Some(target) = &args.svg {
        let drawing = render::svg(&plan);
        if target.as_os_str() == "-" {
            print(&drawing)?;
            return Ok(ExitCode::SUCCESS);
        }
        fs::write(target, drawing).map_err(|error| {
            CommandError::Failed(format!(
                "cannot write the drawing to {}: {error}",
                target.display()
            ))
        })?;
    }
    if args.json {
        print(&format!("{}\n", super::json(&plan)?))?;
    } else {
        print(&format!("{}\n{}", render::text(&plan), render::table(&plan)))?;
    }
    Ok(ExitCode::SUCCESS)
}
