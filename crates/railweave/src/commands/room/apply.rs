//! `railweave apply`: sets on each host what the plan needs, and only what carries Railweave's mark.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueHint;
use cluster::file::{ClusterFile, Host};
use cluster::inventory::HostState;
use cluster::plan::Plan;
use cluster::reach::Reach;
use cluster::rules::{self, Change, MarkerProgram, RuleOptions};

use super::super::{CommandError, CommandResult, FAILED, print};
use super::carry_out::{self, Outcome};
use super::open::{FileArg, PlanFlags, capture, open, select, states};
use super::quiet;
use super::stop::on_signal;

/// Where the program and the cluster file lie on a host, for its unit.
const BINARY: &str = "/usr/local/bin/railweave";

/// Arguments of `railweave apply`.
#[derive(Debug, clap::Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    file: FileArg,
    #[command(flatten)]
    mode: ModeFlags,
    /// Only on this host; may be repeated
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// With --dry-run and --unit: write a file for each host to this folder
    #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    output: Option<PathBuf>,
    #[command(flatten)]
    allow: AllowFlags,
    #[command(flatten)]
    flags: PlanFlags,
}

#[derive(Debug, Clone, clap::Args)]
#[group(id = "mode", multiple = false)]
struct ModeFlags {
    /// Print the script of each host [default]
    #[arg(long)]
    dry_run: bool,
    /// Carry it out, host after host, and read each again
    #[arg(long)]
    apply: bool,
    /// Print one line for each difference; the exit code is 0 with and without any
    #[arg(long)]
    diff: bool,
    /// Take back all routes, neighbours, filters and markers that are Railweave's
    #[arg(long)]
    down: bool,
    /// Print the systemd unit that applies and checks at boot, since nothing in the kernel survives one
    #[arg(long)]
    unit: bool,
}

#[derive(Debug, Clone, clap::Args)]
struct AllowFlags {
    /// Add addresses and set links up; otherwise they are only compared
    #[arg(long, help_heading = "What may be changed")]
    set_addresses: bool,
    /// Change the MTU; otherwise it is only compared
    #[arg(long, help_heading = "What may be changed")]
    set_mtu: bool,
    /// Reload NIC functions that pass packets on even if their hairpin queues look right
    #[arg(long, help_heading = "What may be changed")]
    reload: bool,
    /// Go on although queue pairs are alive: they lose packets
    #[arg(long, help_heading = "What may be changed")]
    yes_live: bool,
    /// Program that marks packets by destination, as found on the hosts; none leaves marking to you
    #[arg(long, value_name = "PROGRAM|none", help_heading = "What may be changed")]
    marker: Option<String>,
    /// Program that marks packets by source port, as found on the hosts
    #[arg(long, value_name = "PROGRAM", help_heading = "What may be changed")]
    source_port_marker: Option<String>,
}

impl AllowFlags {
    /// The flags again, for a unit that has to do the same at every boot.
    fn words(&self) -> Vec<String> {
        let switches = [
            (self.set_addresses, "--set-addresses"),
            (self.set_mtu, "--set-mtu"),
            (self.reload, "--reload"),
            (self.yes_live, "--yes-live"),
        ];
        let set = switches.into_iter().filter(|(on, _)| *on).map(|(_, flag)| flag.to_owned());
        let values =
            [("--marker", &self.marker), ("--source-port-marker", &self.source_port_marker)];
        let given = values.into_iter().filter_map(|(flag, value)| Some((flag, value.clone()?)));
        set.chain(given.flat_map(|(flag, value)| [flag.to_owned(), value])).collect()
    }

    fn options(&self) -> RuleOptions {
        let known = MarkerProgram::default();
        let marker = match self.marker.as_deref() {
            Some("none") => None,
            program => Some(MarkerProgram {
                destination: program.map_or(known.destination, str::to_owned),
                source_port: self.source_port_marker.clone().unwrap_or(known.source_port),
            }),
        };
        RuleOptions {
            set_addresses: self.set_addresses,
            set_mtu: self.set_mtu,
            reload: self.reload,
            marker,
        }
    }
}

/// What is to be done on one host.
pub(super) struct Work<'a> {
    pub(super) rank: usize,
    pub(super) host: &'a Host,
    pub(super) reach: Reach,
    pub(super) state: HostState,
    pub(super) changes: Vec<Change>,
    /// Why no queue pair may be alive meanwhile; none if any may.
    pub(super) why_quiet: Option<String>,
    /// What could not be compared, and what is left to the owner, in a line each.
    pub(super) notes: Vec<String>,
}

/// Compares every host with the plan, and prints or carries out what follows.
///
/// # Errors
/// The file or a flag is wrong, a host could not be read, or something that is not Railweave's is in the way.
pub fn run(args: &ApplyArgs) -> CommandResult {
    let file = open(&args.file.file)?;
    let plan = args.flags.plan(&file)?;
    let ranks = select(&file, &args.hosts)?;
    if args.mode.unit {
        return units(&file, args, &ranks);
    }
    let under_way = on_signal()?;
    let options = args.allow.options();
    let read = |ranks: &[usize]| read(&file, &plan, &options, args.mode.down, ranks);
    let works = read(&ranks)?;
    if args.mode.diff {
        return diff(&works);
    }
    if !args.mode.apply && !args.mode.down {
        return scripts(&works, args.output.as_deref());
    }
    quiet::expect_quiet(&file, &works, args.allow.yes_live)?;
    let carried = carry_out::carry_out(&works, &under_way, |work| {
        let again = read(&[work.rank])?;
        Ok(again.into_iter().next())
    })?;
    under_way.set("");
    Ok(match carried {
        Outcome::InPlace => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::from(FAILED),
    })
}

/// Reads the hosts and compares them with the plan; with `down`, with nothing.
fn read<'a>(
    file: &'a ClusterFile,
    plan: &Plan,
    options: &RuleOptions,
    down: bool,
    ranks: &[usize],
) -> Result<Vec<Work<'a>>, CommandError> {
    let hosts: Vec<(usize, &Host)> =
        ranks.iter().filter_map(|&rank| Some((rank, file.hosts.get(rank)?))).collect();
    let only: Vec<&Host> = hosts.iter().map(|(_, host)| *host).collect();
    let mut works = Vec::new();
    let mut failed = Vec::new();
    let mut refused = Vec::new();
    for (&(rank, host), state) in hosts.iter().zip(states(&capture(&only))) {
        let reach = Reach::parse(&host.name, &host.reach);
        let (state, reach) = match (state, reach) {
            (Ok(state), Ok(reach)) => (state, reach),
            (Err(error), _) => {
                failed.push(error);
                continue;
            }
            (_, Err(error)) => {
                failed.push(error.to_string());
                continue;
            }
        };
        let comparison = if down {
            rules::down(&state)
        } else {
            rules::compare(&rules::desired(plan, rank, options), &state)
        };
        if let Err(lines) = comparison.ready() {
            refused.extend(lines.iter().map(|line| format!("{}: {line}", host.name)));
        }
        let unmeasured = comparison.unmeasured.iter();
        let notes = unmeasured
            .map(|one| format!("not measured: {}: {}", one.what, one.why))
            .chain(comparison.notes.iter().cloned())
            .collect();
        let why_quiet = comparison.why_quiet();
        works.push(Work {
            rank,
            host,
            reach,
            state,
            changes: comparison.changes,
            why_quiet,
            notes,
        });
    }
    if !failed.is_empty() {
        return Err(CommandError::Failed(format!("{}; nothing was changed", failed.join("; "))));
    }
    if !refused.is_empty() {
        return Err(CommandError::Failed(format!(
            "nothing was changed on any host, since something is in the way:\n  {}",
            refused.join("\n  ")
        )));
    }
    Ok(works)
}

fn diff(works: &[Work<'_>]) -> CommandResult {
    let mut text = String::new();
    for work in works {
        text.push_str(&format!("{}: {}\n", work.host.name, summary(work)));
        for line in rules::diff(&work.changes).lines() {
            text.push_str(&format!("  {line}\n"));
        }
        for note in &work.notes {
            text.push_str(&format!("  note: {note}\n"));
        }
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// How much there is to change on a host.
fn summary(work: &Work<'_>) -> String {
    match work.changes.len() {
        0 => "in place".to_owned(),
        1 => "1 change".to_owned(),
        number => format!("{number} changes"),
    }
}

fn scripts(works: &[Work<'_>], folder: Option<&Path>) -> CommandResult {
    let files = works.iter().map(|work| {
        let mut text = rules::script(&work.changes);
        for note in &work.notes {
            text.push_str(&format!("# note: {}\n", note.replace(char::is_control, " ")));
        }
        (work.host, text)
    });
    each_file(files.collect(), folder, "sh")
}

fn units(file: &ClusterFile, args: &ApplyArgs, ranks: &[usize]) -> CommandResult {
    let wrong = |error: &dyn std::fmt::Display| {
        CommandError::Usage(format!("no unit can be written: {error}"))
    };
    let path = std::path::absolute(&args.file.file).map_err(|error| wrong(&error))?;
    let (plan, allow) = (args.flags.words(), args.allow.words());
    let unit =
        |host: &Host| rules::unit(BINARY, &path.to_string_lossy(), &host.name, &plan, &allow);
    let mut files = Vec::new();
    for host in ranks.iter().filter_map(|&rank| file.hosts.get(rank)) {
        files.push((host, unit(host).map_err(|error| wrong(&error))?));
    }
    each_file(files, args.output.as_deref(), "service")
}

/// Prints a text for each host, or writes them to a folder: `spark0.sh`.
fn each_file(files: Vec<(&Host, String)>, folder: Option<&Path>, ending: &str) -> CommandResult {
    let Some(folder) = folder else {
        let many = files.len() > 1;
        let texts = files.iter().map(|(host, text)| {
            if many { format!("# ---- {} ----\n{text}\n", host.name) } else { text.clone() }
        });
        print(&texts.collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    };
    let failed = |path: &Path, error: std::io::Error| {
        CommandError::Failed(format!("cannot write {}: {error}", path.display()))
    };
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    for (host, text) in &files {
        let path = folder.join(format!("{}.{ending}", host.name));
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
        print(&format!("wrote {}\n", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
