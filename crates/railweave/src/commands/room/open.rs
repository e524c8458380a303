//! What the commands of the machine room share: the cluster file, the plan that follows, and the way to the hosts.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use clap::ValueHint;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use cluster::file::{ClusterFile, Forward, Host, MAX_BYTES, RouteEntry, TagKind};
use cluster::inventory::{HostState, Recording};
use cluster::plan::{Plan, PlanOptions};
use cluster::reach::{Reach, ReachError};
use indicatif::{ProgressBar, ProgressStyle};

use super::super::CommandError;
use crate::local;

/// The file that is read if none is named.
pub(crate) const DEFAULT_FILE: &str = "cluster.toml";
/// How long reading the state of one host may take: about a second; an emulated machine that shares its processor may
/// need a minute.
pub(crate) const CAPTURE_LIMIT: Duration = Duration::from_secs(90);

/// Hosts that are reached at the same time.
const AT_ONCE: usize = 8;
/// How the reach of a recorded host starts.
pub(crate) const RECORDED: &str = "recorded:";

/// The cluster file.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FileArg {
    /// Cluster file
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE, value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
}

/// What of the plan the command line decides.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct PlanFlags {
    /// Whether NICs pass packets on to distant ranks [default: what the file says]
    #[arg(long, value_parser = forward(), help_heading = "Plan")]
    forward: Option<Forward>,
    /// How packets to be passed on are told from others [default: what the file says]
    #[arg(long, value_parser = tag(), help_heading = "Plan")]
    tag: Option<TagKind>,
    /// A path to use instead of the derived one, such as 'a>c via b rails 0,1'; may be repeated
    #[arg(long = "route", value_name = "ROUTE", value_parser = route, help_heading = "Plan")]
    routes: Vec<RouteEntry>,
}

fn forward() -> impl TypedValueParser<Value = Forward> {
    PossibleValuesParser::new(["off", "auto", "required"]).map(|word| match word.as_str() {
        "required" => Forward::Required,
        "auto" => Forward::Auto,
        _ => Forward::Off,
    })
}

fn tag() -> impl TypedValueParser<Value = TagKind> {
    PossibleValuesParser::new(["destination", "source-port"]).map(|word| match word.as_str() {
        "source-port" => TagKind::SourcePort,
        _ => TagKind::Destination,
    })
}

fn route(text: &str) -> Result<RouteEntry, String> {
    text.parse::<RouteEntry>().map_err(|error| error.to_string())
}

impl PlanFlags {
    /// The flags again, as words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let forward = self.forward.map(|forward| match forward {
            Forward::Off => "off",
            Forward::Auto => "auto",
            Forward::Required => "required",
        });
        let tag = self.tag.map(|tag| match tag {
            TagKind::Destination => "destination",
            TagKind::SourcePort => "source-port",
        });
        let mut words = Vec::new();
        for (flag, value) in [("--forward", forward), ("--tag", tag)] {
            words.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value.to_owned()]));
        }
        for route in &self.routes {
            words.extend(["--route".to_owned(), route.to_string()]);
        }
        words
    }

    pub(crate) fn options(&self) -> PlanOptions {
        PlanOptions {
            forward: self.forward,
            tag: self.tag,
            routes: self.routes.clone(),
            ..PlanOptions::default()
        }
    }

    /// The plan that follows from the file and these flags.
    ///
    /// # Errors
    /// The file and the flags contradict each other or the cabling.
    pub(crate) fn plan(&self, file: &ClusterFile) -> Result<Plan, CommandError> {
        Ok(Plan::of(file, &self.options())?)
    }
}

/// Reads a cluster file. Folders of recordings in it are relative to the file. A host that has the hardware address
/// of a netdev of this machine is this machine, and is reached without SSH.
///
/// # Errors
/// It is not there, or it is not a cluster file.
pub(crate) fn open(path: &Path) -> Result<ClusterFile, CommandError> {
    let text = local::read_text(path, MAX_BYTES as u64).map_err(|error| {
        let what = format!("cannot read the cluster file {}: {error}", path.display());
        if error.kind() == io::ErrorKind::NotFound {
            CommandError::Usage(format!("{what}; `railweave discover HOST…` writes one"))
        } else {
            CommandError::Usage(what)
        }
    })?;
    let mut file = ClusterFile::parse(&text).map_err(|source| CommandError::ClusterFile {
        path: path.display().to_string(),
        source: Box::new(source),
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let own = local::own_macs();
    for host in &mut file.hosts {
        let functions = host.ports.iter().flat_map(|port| &port.functions);
        let here = functions.into_iter().any(|function| own.contains(&function.mac));
        if host.reach.starts_with("ssh:") && here {
            host.reach = "local".to_owned();
        } else if let Some(recording) = host.reach.strip_prefix(RECORDED) {
            host.reach = format!("{RECORDED}{}", folder.join(recording).display());
        }
    }
    Ok(file)
}

/// The ranks named, or all of them, in order and each once.
///
/// # Errors
/// The file has no such host.
pub(crate) fn select(file: &ClusterFile, names: &[String]) -> Result<Vec<usize>, CommandError> {
    for name in names {
        rank_of(file, name)?;
    }
    let hosts = file.hosts.iter().enumerate();
    Ok(hosts
        .filter(|(_, host)| names.is_empty() || names.contains(&host.name))
        .map(|(rank, _)| rank)
        .collect())
}

/// The rank of a host.
///
/// # Errors
/// The file has no such host.
pub(crate) fn rank_of(file: &ClusterFile, name: &str) -> Result<usize, CommandError> {
    file.hosts.iter().position(|host| host.name == name).ok_or_else(|| {
        let names: Vec<_> = file.hosts.iter().map(|host| host.name.as_str()).collect();
        CommandError::Usage(format!(
            "the cluster file has no host {name:?}; its hosts are {}",
            names.join(", ")
        ))
    })
}

/// Reads the state of hosts, several at a time.
pub(crate) fn capture(hosts: &[&Host]) -> Vec<Result<Recording, ReachError>> {
    each("reading hosts", hosts, |host| {
        Reach::parse(&host.name, &host.reach)?.capture(CAPTURE_LIMIT)
    })
}

/// What recordings mean; a host that could not be read has the reason.
pub(crate) fn states(
    recordings: &[Result<Recording, ReachError>],
) -> Vec<Result<HostState, String>> {
    let state = |recording: &Result<_, ReachError>| match recording {
        Ok(recording) => Ok(HostState::of(recording)),
        Err(error) => Err(error.to_string()),
    };
    recordings.iter().map(state).collect()
}

/// Does the same with each item, several at a time, and gives the results in the items' order. A terminal shows how
/// far it is.
pub(crate) fn each<T: Sync, R: Send>(
    what: &'static str,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    // Drawn on standard error, and only if that is a terminal.
    let bar = ProgressBar::new(items.len() as u64);
    bar.set_style(
        // A constant template; a bad one would fall back to the default look.
        ProgressStyle::with_template("{msg} {bar:30} {pos}/{len}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.set_message(what);
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
            bar.inc(1);
        }
    };
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..items.len().min(AT_ONCE)).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    bar.finish_and_clear();
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_keeps_the_order_and_does_every_item_once() {
        let items: Vec<u64> = (0..50).collect();
        let results = each("counting", &items, |item| {
            thread::sleep(Duration::from_millis(50 - item));
            item * 2
        });
        assert_eq!(results, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert_eq!(each("nothing", &[0_u8; 0], |_| 1), [0; 0]);
    }
}
