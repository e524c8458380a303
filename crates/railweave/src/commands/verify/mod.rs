//! `railweave verify`: proves each planned path with real bytes both ways, and says what was not proven.

mod agent;
mod blame_pair;
mod coordinator;
mod coverage;
mod crew;
mod judge;
mod lost;
mod pair;
mod pairs;
mod promote;
mod proof;
mod steps;
#[cfg(test)]
mod testing;
mod track;
mod traffic;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueHint;
use cluster::file::{ClusterFile, Host};
use cluster::plan::PathKind;
use cluster::reach::Reach;
use indicatif::{ProgressBar, ProgressStyle};

use super::room::open::{FileArg, PlanFlags, open, rank_of};
use super::room::stop::on_signal;
use super::{CommandError, CommandResult, FAILED, print};
use crate::settings::{Bytes, Field as _, Layers, Valid, show_bytes};
use coordinator::{Coordinator, Seat};
use coverage::Over;
use crew::Agent;
use lost::Lost;
use pairs::Choice;
use promote::promote;
use proof::{HostProof, Outcome, Proof, RailProof, now};
use steps::Item;
use track::{cables, hosts};

pub(crate) use agent::run as run_agent;

/// Exit code when something is neither proven nor has failed.
const UNDECIDED: u8 = 2;
/// How long starting an agent may take: SSH may have to wake up a connection.
const START_LIMIT: Duration = Duration::from_secs(30);
const BYTES_MIN: u64 = 1 << 10;
const BYTES_MAX: u64 = 1 << 30;
/// A proof of eight hosts has about 100 KiB.
const PROOF_BYTES_MAX: u64 = 16 << 20;
/// The hidden command that is an agent.
const AGENT: &str = "agent";

/// Arguments of `railweave verify`.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    file: FileArg,
    /// Print the proof as one JSON document
    #[arg(long)]
    json: bool,
    /// Write the proof to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
    /// Bytes sent each way on each rail, such as 8MiB
    #[arg(long, default_value = "8MiB", value_name = "SIZE", value_parser = size)]
    bytes: u64,
    /// Prove only the path from one host to another, such as 'spark0>spark2'; may be repeated
    #[arg(long, value_name = "A>B")]
    only: Vec<String>,
    /// Prove again only what the proof at --out has not proven; it must be of this plan, and hosts not booted since
    #[arg(long, requires = "out")]
    again: bool,
    /// How long one rail may take
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = limit)]
    limit: Duration,
    /// What carries the bytes
    #[arg(long, value_enum, default_value = "auto", value_name = "TRANSPORT")]
    transport: Choice,
    /// Rank 0 of a group that serves, by its metrics address: it is told which forwarded rails are proven again
    #[arg(long, value_name = "IP:PORT", value_delimiter = ',')]
    server: Vec<SocketAddr>,
    /// The railweave to run on hosts reached by SSH
    #[arg(long, default_value = "railweave", value_name = "PATH")]
    remote_binary: String,
    #[command(flatten)]
    flags: PlanFlags,
}

fn size(text: &str) -> Result<u64, String> {
    Ok(Bytes::parse(text, &Valid::Bytes(BYTES_MIN, BYTES_MAX))?.0)
}

fn limit(text: &str) -> Result<Duration, String> {
    Duration::parse(text, &Valid::Time(Duration::from_secs(1), Duration::from_secs(600)))
}

/// Proves the plan's paths. The exit code is 0 if all are proven, 1 if one failed, 2 if one could not be decided.
///
/// # Errors
/// The file or a flag is wrong, an earlier proof cannot be used, or the proof cannot be written.
pub(crate) fn run(args: VerifyArgs) -> CommandResult {
    let began = Instant::now();
    let file = open(&args.file.file)?;
    let plan = args.flags.plan(&file)?;
    let only = pairs(&args.only, &file)?;
    let earlier = match (&args.out, args.again) {
        (Some(path), true) => Some(read_proof(path)?),
        _ => None,
    };
    // A signal ends the agents: their standard input closes with this process.
    on_signal()?;
    let items = steps::items(&plan, &only);
    let agents = start(&file, &items, args.transport, &args.remote_binary);
    let mut coordinator = Coordinator::new(&plan, agents, args.bytes, args.limit, random);
    let mut boots = boots(&file, &coordinator);
    let kept: Vec<RailProof> = earlier
        .iter()
        .flat_map(|proof| proof.still_proven(&plan.digest, &boots))
        .filter(|kept| items.iter().any(|item| is_of(kept, item)))
        .cloned()
        .collect();
    let mut results = kept;
    results.extend(steps::without_rails(&plan, &only).into_iter().map(|path| {
        let why =
            path.instead.clone().unwrap_or_else(|| "the plan has no rail for this path".to_owned());
        RailProof {
            from: path.from,
            to: path.to,
            hosts: [path.from, path.to]
                .iter()
                .filter_map(|rank| plan.ranks.get(*rank))
                .map(|rank| rank.host.clone())
                .collect(),
            kind: path.kind,
            rail: None,
            cables: Vec::new(),
            unix_seconds: now(),
            coverage: None,
            outcome: Outcome::NotProven { r#where: None, why },
        }
    }));
    let bar = progress(items.len());
    for item in items {
        if results.iter().any(|kept| is_of(kept, &item)) {
            bar.inc(1);
            continue;
        }
        let (hosts, cables) = (hosts(&plan, item), cables(&plan, item));
        bar.set_message(format!("{} rail {}", hosts.join(" > "), item.number));
        let (outcome, coverage) = coordinator.prove_over(item, args.transport);
        results.push(RailProof {
            from: item.path.from,
            to: item.path.to,
            hosts,
            kind: item.path.kind,
            rail: Some(item.number),
            cables,
            unix_seconds: now(),
            coverage: Some(coverage),
            outcome,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut lost = coordinator.lost();
    drop(coordinator);
    for host in &mut boots {
        host.lost = lost.remove(&host.rank);
    }
    let mut proof = Proof::new(&plan.digest, args.bytes, began.elapsed(), boots, results);
    let is_forwarded = |one: &RailProof| one.kind == PathKind::Forwarded && one.outcome.is_proven();
    if proof.results.iter().any(is_forwarded) {
        let settings = Layers::of_process(None, Vec::new()).resolve()?.settings;
        proof.promotion = promote(&file, &args.server, &settings);
    }
    let document = serde_json::to_string_pretty(&proof)
        .map_err(|error| CommandError::Failed(format!("cannot write JSON: {error}")))?;
    if let Some(path) = &args.out {
        write_proof(path, &document)?;
    }
    if args.json {
        print(&format!("{document}\n"))?;
    } else {
        print(&text(&proof, args.out.as_deref()))?;
    }
    Ok(ExitCode::from(code(&proof)))
}

fn code(proof: &Proof) -> u8 {
    match (proof.failed, proof.not_proven) {
        (0, 0) => 0,
        (0, _) => UNDECIDED,
        _ => FAILED,
    }
}

fn is_of(result: &RailProof, item: &Item<'_>) -> bool {
    (result.from, result.to, result.rail) == (item.path.from, item.path.to, Some(item.number))
}

/// Ranks of pairs of hosts written as `a>b`.
fn pairs(texts: &[String], file: &ClusterFile) -> Result<Vec<(usize, usize)>, CommandError> {
    let pair = |text: &String| {
        let (from, to) = text.split_once('>').ok_or_else(|| {
            CommandError::Usage(format!("--only {text}: write it as A>B, such as 'spark0>spark2'"))
        })?;
        let (from, to) = (rank_of(file, from.trim())?, rank_of(file, to.trim())?);
        if from == to {
            return Err(CommandError::Usage(format!(
                "--only {text}: a host has no path to itself"
            )));
        }
        Ok((from, to))
    };
    texts.iter().map(pair).collect()
}

/// Starts an agent on every host that a rail to prove visits, all at once.
fn start(
    file: &ClusterFile,
    items: &[Item<'_>],
    transport: Choice,
    remote_binary: &str,
) -> BTreeMap<usize, Seat> {
    let needed: BTreeSet<usize> = items
        .iter()
        .filter(|item| transport != Choice::Tcp || item.path.kind != PathKind::Forwarded)
        .flat_map(|item| item.rail.hops.iter().copied())
        .collect();
    thread::scope(|scope| {
        let starting: Vec<_> = needed
            .into_iter()
            .filter_map(|rank| file.hosts.get(rank).map(|host| (rank, host)))
            .map(|(rank, host)| (rank, scope.spawn(move || start_one(host, remote_binary))))
            .collect();
        starting
            .into_iter()
            .map(|(rank, agent)| {
                (rank, agent.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
            .collect()
    })
}

fn start_one(host: &Host, remote_binary: &str) -> Seat {
    let cannot = |why: String| {
        Lost::because(
            "its agent cannot be started",
            why,
            format!("see how {} is reached", host.name),
        )
    };
    let own = std::env::current_exe()
        .map_err(|error| cannot(format!("cannot find this program: {error}")))?;
    let own = own.to_string_lossy();
    let is_remote = host.reach.starts_with("ssh:");
    let binary = if is_remote { remote_binary } else { &own };
    let reach = Reach::parse(&host.name, &host.reach).map_err(|error| cannot(error.to_string()))?;
    let command = reach.command(&[binary, AGENT]).map_err(|error| cannot(error.to_string()))?;
    let hint = if is_remote {
        format!("; does `{remote_binary} --version` work there? --remote-binary names another one")
    } else {
        String::new()
    };
    Agent::start(&host.name, command)
        .and_then(|mut agent| agent.greet(START_LIMIT).map(|()| agent))
        .map_err(|error| Lost::at_start(&host.name, &error, &hint))
}

fn boots(file: &ClusterFile, coordinator: &Coordinator<'_>) -> Vec<HostProof> {
    let mut boots = coordinator.boots();
    let host = |(rank, host): (usize, &Host)| {
        let (boot_id, not_measured) = match boots.remove(&rank) {
            Some(Ok(Some(boot))) => (Some(boot), None),
            Some(Ok(None)) => (None, Some("the host does not tell its boot id".to_owned())),
            Some(Err(why)) => (None, Some(why)),
            None => (None, Some("not asked: no rail to prove visits it".to_owned())),
        };
        HostProof { rank, host: host.name.clone(), boot_id, not_measured, lost: None }
    };
    file.hosts.iter().enumerate().map(host).collect()
}

fn random(room: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

fn progress(items: usize) -> ProgressBar {
    // Drawn on standard error, and only if that is a terminal.
    let bar = ProgressBar::new(items as u64);
    bar.set_style(
        // A constant template; a bad one would fall back to the default look.
        ProgressStyle::with_template("proving {bar:30} {pos}/{len} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn read_proof(path: &Path) -> Result<Proof, CommandError> {
    let wrong = |what: &dyn std::fmt::Display| {
        CommandError::Usage(format!(
            "--again: cannot use the earlier proof {}: {what}; leave --again out to prove everything",
            path.display()
        ))
    };
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(PROOF_BYTES_MAX).read_to_string(&mut text))
        .map_err(|error| wrong(&error))?;
    serde_json::from_str(&text).map_err(|error| wrong(&error))
}

/// Writes it beside and moves it, so that a proof is never half there.
fn write_proof(path: &Path, document: &str) -> Result<(), CommandError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    fs::write(&beside, format!("{document}\n")).and_then(|()| fs::rename(&beside, path)).map_err(
        |error| {
            CommandError::Failed(format!("cannot write the proof to {}: {error}", path.display()))
        },
    )
}

/// The proof for people: what failed and what was not proven comes last, since that is what is left to do.
fn text(proof: &Proof, out: Option<&Path>) -> String {
    let way = |result: &RailProof| result.hosts.join(" > ");
    let width = proof.results.iter().map(|result| way(result).chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    let mut left = String::new();
    let mut failed_cables = BTreeSet::new();
    for result in &proof.results {
        let kind = match result.kind {
            PathKind::Direct => "direct",
            PathKind::Forwarded => "forwarded",
            PathKind::Relayed => "relayed",
        };
        let rail = result.rail.map_or("-".to_owned(), |rail| rail.to_string());
        let head = format!("{:width$}  {kind:9}  rail {rail}", way(result));
        let over = match result.coverage.as_ref().map(|coverage| coverage.transport) {
            Some(Over::Verbs) => " over verbs",
            Some(Over::Tcp) => " over tcp",
            None => "",
        };
        match &result.outcome {
            Outcome::Proven { there, back, .. } => text.push_str(&format!(
                "{head}  proven      {} there{over} in {:.1} ms, back in {:.1} ms\n",
                show_bytes(there.bytes),
                there.seconds * 1e3,
                back.seconds * 1e3
            )),
            Outcome::Failed { who, r#where, why, next } => {
                failed_cables.extend(result.cables.iter().filter(|cable| *cable == r#where));
                text.push_str(&format!("{head}  failed      {}\n", r#where));
                left.push_str(&format!("\n{} rail {rail}: failed\n  who    {who}\n  where  {}\n  why    {why}\n  next   {next}\n", way(result), r#where));
            }
            Outcome::NotProven { r#where, why } => {
                let place = r#where.as_ref().map_or(String::new(), |host| format!("{host}: "));
                text.push_str(&format!("{head}  not proven  {place}{why}\n"));
            }
        }
    }
    text.push_str(&covered(proof));
    text.push_str(&left);
    for cable in failed_cables {
        text.push_str(&format!("\nfailed: cable {cable}\n"));
    }
    for (host, lost) in proof.hosts.iter().filter_map(|one| Some((&one.host, one.lost.as_ref()?))) {
        text.push_str(&format!(
            "\nnot proven: what crosses host {host}: {}\n  why    {}\n  next   {}\n",
            lost.what, lost.why, lost.next
        ));
    }
    text.push_str(&format!(
        "\n{} proven, {} failed, {} not proven; {} each way, in {:.1} s\n",
        proof.proven,
        proof.failed,
        proof.not_proven,
        show_bytes(proof.bytes),
        proof.seconds
    ));
    if let Some(promotion) = &proof.promotion {
        text.push_str(&format!("group at {}: {}\n", promotion.server, promotion.said));
    }
    if let Some(path) = out {
        text.push_str(&format!("wrote the proof to {}\n", path.display()));
    }
    text
}

/// What covered each forwarded rail, and why some rails were not carried by verbs, each reason once.
fn covered(proof: &Proof) -> String {
    let mut text = String::new();
    let mut reasons = BTreeSet::new();
    for result in &proof.results {
        let Some(coverage) = &result.coverage else { continue };
        reasons.extend(coverage.why.as_ref());
        let lines =
            coverage.queue_pair.as_ref().map(coverage::PairProof::lines).unwrap_or_default();
        if !lines.is_empty() {
            let rail = result.rail.map_or("-".to_owned(), |rail| rail.to_string());
            text.push_str(&format!("\n{} rail {rail}\n", result.hosts.join(" > ")));
            lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        }
    }
    for why in reasons {
        text.push_str(&format!("\nover tcp: {why}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_proven(to: usize) -> RailProof {
        let outcome = Outcome::NotProven {
            r#where: Some("h2".to_owned()),
            why: "its agent ended".to_owned(),
        };
        RailProof {
            from: 0,
            to,
            hosts: vec!["h0".to_owned(), format!("h{to}")],
            kind: PathKind::Direct,
            rail: Some(0),
            cables: vec![format!("h0.p0–h{to}.p1")],
            unix_seconds: 5,
            coverage: None,
            outcome,
        }
    }

    #[test]
    fn a_lost_host_is_told_once_and_no_cable_is() {
        let error = crew::AgentError::Gone { host: "h2".to_owned(), told: " (x)".to_owned() };
        let host = HostProof {
            rank: 2,
            host: "h2".to_owned(),
            boot_id: None,
            not_measured: None,
            lost: Some(Lost::of("h2", &error)),
        };
        let results = vec![not_proven(2), not_proven(3)];
        let proof = Proof::new("plan", 1024, Duration::ZERO, vec![host], results);
        assert_eq!(code(&proof), UNDECIDED);
        let text = text(&proof, None);
        assert_eq!(text.matches("not proven  h2: its agent ended\n").count(), 2, "{text}");
        assert_eq!(text.matches("the agent on h2 ended (x)").count(), 1, "{text}");
        assert!(text.contains("\nnot proven: what crosses host h2: its agent ended\n"), "{text}");
        assert!(!text.contains("cable") && !text.contains("failed:"), "{text}");
    }
}
