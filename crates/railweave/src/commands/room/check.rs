//! `railweave check`: the doctor.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueHint;
use cluster::check::{self, Finding, Report, Room, Scope, TextStyle, Unmeasured};
use cluster::discover::{Observed, discover};
use cluster::file::{ClusterFile, Host, MarkerKind, SCHEMA, default_mtu_bytes};
use cluster::inventory::{HostState, Recording};
use cluster::reach::ReachError;

use super::super::{CommandError, CommandResult, print};
use super::open::{DEFAULT_FILE, PlanFlags, capture, open, select, states};
use super::stop::on_signal;

/// Arguments of `railweave check`.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// Cluster file [default: cluster.toml; with --pre and no such file, this machine alone]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Look only at what has to be right before a plan is applied
    #[arg(long)]
    pre: bool,
    /// Look at the measured rates of cables too
    #[arg(long)]
    wire: bool,
    /// Look at the measured rates of drives too
    #[arg(long)]
    disk: bool,
    /// With --disk: random reads of 4 KiB a second that each drive has to sustain
    #[arg(long, value_name = "NUMBER", requires = "disk")]
    reads_per_second: Option<u64>,
    /// Print only what is about this host; may be repeated. All hosts are read, since a cable has two ends
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Write what was read to this new folder, secrets left out: for a bug report, or as an earlier state for --before
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    bundle: Option<PathBuf>,
    /// Compare with this earlier bundle: what moved, which counters rose
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    before: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: PlanFlags,
}

/// Reads every host and prints what is not as the plan needs it. The exit code is 0 for no findings, 1 for findings,
/// 2 if it could not be decided.
///
/// # Errors
/// The file or a flag is wrong, or a bundle cannot be read or written.
pub fn run(args: &CheckArgs) -> CommandResult {
    let path = args.file.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    if let Some(bundle) = &args.bundle {
        expect_new(bundle)?;
    }
    let alone = args.pre && args.file.is_none() && !path.exists();
    let (file, recordings) = if alone {
        on_signal()?;
        let recordings = capture(&[&this_machine()]);
        (describe(&recordings), recordings)
    } else {
        let file = open(&path)?;
        select(&file, &args.hosts)?;
        on_signal()?;
        let recordings = capture(&file.hosts.iter().collect::<Vec<_>>());
        (file, recordings)
    };
    select(&file, &args.hosts)?;
    let plan = args.flags.plan(&file)?;
    let hosts = states(&recordings);
    let before = args.before.as_deref().map(|folder| earlier(folder, &file)).transpose()?;
    let room = Room {
        file: &file,
        plan: &plan,
        hosts: &hosts,
        before: before.as_deref(),
        rates: &[],
        reads_per_second: args.reads_per_second,
    };
    let scope = Scope { pre: args.pre, wire: args.wire, disk: args.disk };
    let mut report = check::run(&room, scope);
    only(&mut report, &args.hosts);
    for (host, state) in file.hosts.iter().zip(&hosts) {
        if !args.hosts.is_empty() && !args.hosts.contains(&host.name) && state.is_err() {
            eprintln!("note: {} could not be read; what depends on it is not judged", host.name);
        }
    }
    if let Some(folder) = &args.bundle {
        write_bundle(folder, &file, &recordings)?;
    }
    if args.json {
        let text = report
            .to_json()
            .map_err(|error| CommandError::Failed(format!("cannot write JSON: {error}")))?;
        print(&text)?;
    } else {
        print(&report.text(style()))?;
        if args.wire {
            print("what crosses the cables is proven by `railweave verify`\n")?;
        }
        if let Some(folder) = &args.bundle {
            print(&format!(
                "wrote what was read to {}; look through it before you pass it on\n",
                folder.display()
            ))?;
        }
    }
    Ok(ExitCode::from(report.exit_code()))
}

/// Colours and signs as the terminal can show them; plain signs stay where the locale has more than ASCII.
fn style() -> TextStyle {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    let utf8 = locale.is_some_and(|value| {
        let value = value.to_string_lossy().to_ascii_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    });
    TextStyle { ascii: !utf8, colour: io::stdout().is_terminal() && set("NO_COLOR").is_none() }
}

/// Leaves in a report what is about these hosts, or about all; everything if none is named.
fn only(report: &mut Report, hosts: &[String]) {
    let keep = |host: &Option<String>| match host {
        Some(host) => hosts.is_empty() || hosts.contains(host),
        None => true,
    };
    report.findings.retain(|Finding { host, .. }| keep(host));
    report.unmeasured.retain(|Unmeasured { host, .. }| keep(host));
}

fn this_machine() -> Host {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = name.split('.').next().unwrap_or_default();
    let name = if name.is_empty() { "here" } else { name };
    Host { name: name.to_owned(), reach: "local".to_owned(), control: None, ports: Vec::new() }
}

/// A cluster file of this machine alone: its ports without a cable.
fn describe(recordings: &[Result<Recording, ReachError>]) -> ClusterFile {
    let host = this_machine();
    let observed = recordings.iter().flatten().map(|recording| Observed {
        name: Some(host.name.clone()),
        reach: host.reach.clone(),
        control: None,
        state: HostState::of(recording),
        probes: Vec::new(),
    });
    match discover(&observed.collect::<Vec<_>>()) {
        Ok(found) if found.file.hosts.len() == 1 => found.file,
        // A machine without a port still has a kernel, limits and drives to look at.
        _ => ClusterFile {
            schema: SCHEMA.to_owned(),
            forward: Default::default(),
            tag: Default::default(),
            marker: MarkerKind::default(),
            mtu_bytes: default_mtu_bytes(),
            hosts: vec![host],
            switches: Vec::new(),
            cables: Vec::new(),
            routes: Vec::new(),
        },
    }
}

/// The hosts' states of an earlier bundle.
fn earlier(folder: &Path, file: &ClusterFile) -> Result<Vec<HostState>, CommandError> {
    let of = |host: &Host| {
        let path = folder.join(&host.name);
        let recording = Recording::load(&path).map_err(|error| {
            CommandError::Usage(format!(
                "cannot read the earlier state of {} from {}: {error}; --before wants a folder that \
                 `railweave check --bundle` wrote",
                host.name,
                path.display()
            ))
        })?;
        Ok(HostState::of(&recording))
    };
    file.hosts.iter().map(of).collect()
}

/// A bundle never mixes with what is there already.
fn expect_new(folder: &Path) -> Result<(), CommandError> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(CommandError::Usage(format!(
            "cannot write a bundle to {}: {error}; name a new folder",
            folder.display()
        ))),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(CommandError::Usage(format!(
                "{} is not empty; name a new folder for the bundle",
                folder.display()
            ))),
        },
    }
}

/// Writes the recordings, and a cluster file that reaches them: `railweave check FOLDER/cluster.toml` sees the same.
fn write_bundle(
    folder: &Path,
    file: &ClusterFile,
    recordings: &[Result<Recording, ReachError>],
) -> Result<(), CommandError> {
    let failed = |what: &dyn std::fmt::Display| {
        CommandError::Failed(format!("cannot write the bundle to {}: {what}", folder.display()))
    };
    fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    let mut file = file.clone();
    for (host, recording) in file.hosts.iter_mut().zip(recordings) {
        host.reach = format!("recorded:{}", host.name);
        if let Ok(recording) = recording {
            recording.redacted().save(&folder.join(&host.name)).map_err(|error| failed(&error))?;
        }
    }
    fs::write(folder.join(DEFAULT_FILE), file.to_text()).map_err(|error| failed(&error))
}
