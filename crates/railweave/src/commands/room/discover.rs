//! `railweave discover`: reads hosts and writes the cluster file that describes them.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueHint;
use cluster::address::Interface;
use cluster::discover::{Discovery, Observed, Probe, discover, parse_probes, probe_script};
use cluster::file::MAX_HOSTS;
use cluster::inventory::host_state::NetdevKind;
use cluster::inventory::{HostState, Seen};
use cluster::plan::{Plan, PlanOptions};
use cluster::reach::{Reach, ReachError};
use cluster::render;
use cluster::text::clean;

use super::super::{CommandError, CommandResult, print};
use super::open::{CAPTURE_LIMIT, DEFAULT_FILE, RECORDED, each};
use super::stop::on_signal;

/// The schema of `railweave discover --json`.
pub const DISCOVER_SCHEMA: &str = "railweave-discover/1";

/// How long asking all netdevs of a host may take: the script is done within some seconds.
const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// Arguments of `railweave discover`.
#[derive(Debug, clap::Args)]
pub struct DiscoverArgs {
    /// Hosts in the order of ranks: local, ssh:TARGET or only TARGET, netns:NAME, recorded:FOLDER
    #[arg(value_name = "HOST", required = true, num_args = 1..=MAX_HOSTS, value_parser = reach)]
    hosts: Vec<String>,
    /// Where to write the cluster file; - prints it and nothing else
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE, value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Ask over every port who is at the other end, by an echo request to all nodes of the link [default]
    #[arg(long, overrides_with = "no_probe")]
    probe: bool,
    /// Send nothing: find cables by LLDP and by networks
    #[arg(long)]
    no_probe: bool,
    /// Give cables without addresses networks of 24 bits out of this one, such as 10.10.0.0/16
    #[arg(long, value_name = "NETWORK", visible_alias = "addresses")]
    assign_addresses: Option<Interface>,
    /// Write over a cluster file that is there
    #[arg(long)]
    force: bool,
    /// Print what was found as one JSON document; where the file goes to a file
    #[arg(long)]
    json: bool,
}

/// What leads to a host, as the cluster file says it: a name without a kind is an SSH target.
fn reach(text: &str) -> Result<String, String> {
    let known =
        text == "local" || ["ssh:", "netns:", RECORDED].iter().any(|kind| text.starts_with(kind));
    let reach = match text.strip_prefix(RECORDED) {
        // The cluster file may be written to, and read from, another folder.
        Some(folder) => {
            let folder = std::path::absolute(folder).map_err(|error| error.to_string())?;
            format!("{RECORDED}{}", folder.display())
        }
        None if known => text.to_owned(),
        None => format!("ssh:{text}"),
    };
    Reach::parse(text, &reach).map_err(|error| error.to_string())?;
    Ok(reach)
}

/// Reads the hosts, finds out how they are cabled, and writes the cluster file.
///
/// # Errors
/// A host could not be read, or the file is there already or cannot be written; then nothing is written.
pub fn run(args: &DiscoverArgs) -> CommandResult {
    let printed = args.output.as_os_str() == "-";
    if printed && args.json {
        let what = "-o - prints the cluster file; leave out --json, or name a file";
        return Err(CommandError::Usage(what.to_owned()));
    }
    if !printed && !args.force && args.output.exists() {
        return Err(there_already(&args.output));
    }
    on_signal()?;
    let observed = each("reading hosts", &args.hosts, |reach| observe(reach, !args.no_probe));
    let observed = all(observed)?;
    let found = discover(&observed).map_err(|error| CommandError::Usage(error.to_string()))?;
    let found = match args.assign_addresses {
        Some(base) => found
            .with_addresses(base)
            .map_err(|error| CommandError::Usage(format!("--assign-addresses: {error}")))?,
        None => found,
    };
    let text = found.file.to_text();
    if printed {
        print(&text)?;
        for note in &found.notes {
            eprintln!("note: {}", clean(note));
        }
        return Ok(ExitCode::SUCCESS);
    }
    write(&args.output, &text, args.force)?;
    if args.json {
        let document = serde_json::json!({
            "schema": DISCOVER_SCHEMA,
            "written": args.output.display().to_string(),
            "file": found.file,
            "notes": found.notes,
        });
        print(&format!("{document:#}\n"))?;
    } else {
        print(&summary(&found, &args.output))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All hosts, or every one that could not be read in one error.
fn all(observed: Vec<Result<Observed, ReachError>>) -> Result<Vec<Observed>, CommandError> {
    let failed: Vec<_> =
        observed.iter().filter_map(|one| one.as_ref().err()).map(ToString::to_string).collect();
    if failed.is_empty() {
        return Ok(observed.into_iter().flatten().collect());
    }
    Err(CommandError::Failed(format!("{}; nothing was written", failed.join("; "))))
}

fn observe(reach: &str, probe: bool) -> Result<Observed, ReachError> {
    let way = Reach::parse(reach, reach)?;
    let state = HostState::of(&way.capture(CAPTURE_LIMIT)?);
    let probes = if probe && !reach.starts_with(RECORDED) { ask(&way, &state) } else { Vec::new() };
    // Namespaces of one machine share its name, so theirs are told apart by what they are reached by.
    let name = reach.strip_prefix("netns:").map(str::to_owned);
    Ok(Observed { name, reach: reach.to_owned(), control: None, state, probes })
}

/// Asks over each netdev with a cable who is at the other end. A host that cannot ask is no error: the reason is told
/// where it matters.
fn ask(way: &Reach, state: &HostState) -> Vec<Probe> {
    let routes = state.routes.known().map(Vec::as_slice).unwrap_or_default();
    let defaults: Vec<_> = routes.iter().filter(|route| route.to.prefix == 0).collect();
    let netdevs: Vec<String> = state
        .netdevs
        .iter()
        .filter(|netdev| matches!(netdev.kind, NetdevKind::Physical | NetdevKind::Veth))
        .filter(|netdev| netdev.carrier && netdev.admin_up && !netdev.wireless)
        // The netdev of the default route is never a cable, and many would answer there.
        .filter(|netdev| defaults.iter().all(|route| route.netdev != netdev.name))
        .map(|netdev| netdev.name.clone())
        .collect();
    if netdevs.is_empty() {
        return Vec::new();
    }
    match way.run(&["sh", "-s"], probe_script(&netdevs).as_bytes(), PROBE_LIMIT) {
        Ok(output) if output.status == 0 => parse_probes(&String::from_utf8_lossy(&output.stdout)),
        Ok(output) => unknown(&netdevs, &format!("the probe ended with {}", output.status)),
        Err(error) => unknown(&netdevs, &error.to_string()),
    }
}

fn unknown(netdevs: &[String], why: &str) -> Vec<Probe> {
    let probe =
        |netdev: &String| Probe { netdev: netdev.clone(), macs: Seen::NotMeasured(why.to_owned()) };
    netdevs.iter().map(probe).collect()
}

fn there_already(path: &Path) -> CommandError {
    CommandError::Usage(format!(
        "{} is there already; --force writes over it, -o FILE writes to another",
        path.display()
    ))
}

/// Writes the file in one go: a reader never sees half of it.
fn write(path: &Path, text: &str, force: bool) -> Result<(), CommandError> {
    let failed = |error: io::Error| {
        CommandError::Failed(format!("cannot write the cluster file {}: {error}", path.display()))
    };
    if !force {
        // Somebody may have made it since it was looked for.
        return match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(mut file) => file.write_all(text.as_bytes()).map_err(failed),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(there_already(path)),
            Err(error) => Err(failed(error)),
        };
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    std::fs::write(&beside, text)
        .and_then(|()| std::fs::rename(&beside, path))
        .inspect_err(|_| drop(std::fs::remove_file(&beside)))
        .map_err(failed)
}

fn summary(found: &Discovery, path: &Path) -> String {
    let mut text = String::new();
    for host in &found.file.hosts {
        let functions: usize = host.ports.iter().map(|port| port.functions.len()).sum();
        text.push_str(&format!(
            "{}: {}, {} ({})\n",
            host.name,
            count(host.ports.len(), "port"),
            count(functions, "function"),
            host.reach
        ));
    }
    text.push_str(&format!("{}\n", count(found.file.cables.len(), "cable")));
    let plan = Plan::of(&found.file, &PlanOptions::default());
    match &plan {
        Ok(plan) => text.push_str(&format!("\n{}\n", render::text(plan))),
        Err(error) => text.push_str(&format!("\nno plan follows from it yet: {error}\n")),
    }
    for note in &found.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    let next = if plan.is_ok() { "`railweave plan` comes next" } else { "look through it" };
    text.push_str(&format!("wrote {}; {next}\n", path.display()));
    text
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_kind_is_reached_by_ssh() {
        assert_eq!(reach("spark0").unwrap(), "ssh:spark0");
        assert_eq!(reach("admin@spark0").unwrap(), "ssh:admin@spark0");
        for known in ["local", "ssh:spark0", "netns:rw-a", "recorded:/tmp"] {
            assert_eq!(reach(known).unwrap(), known);
        }
    }
}
