//! `railweave env`: what another engine needs in its environment, from the same plan.

use std::process::ExitCode;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use cluster::engines::{Engine, Environment, control_netdev, describe};
use cluster::file::ClusterFile;
use cluster::inventory::HostState;

use super::super::{CommandError, CommandResult, print};
use super::open::{FileArg, PlanFlags, capture, open, rank_of};
use super::stop::on_signal;

/// Version of the shape of `railweave env --format json`.
pub const ENV_SCHEMA: &str = "railweave-env/1";

/// How the variables are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// export NAME='value' with its reason, for eval
    Shell,
    /// NAME=value, for docker run --env-file
    Dotenv,
    /// One JSON document
    Json,
}

/// Arguments of `railweave env`.
#[derive(Debug, clap::Args)]
pub struct EnvArgs {
    #[command(flatten)]
    file: FileArg,
    /// The engine
    #[arg(long, value_parser = engine())]
    engine: Engine,
    /// The rank [default: the host that the file reaches as local, or that has this machine's name]
    #[arg(long, value_name = "RANK", conflicts_with = "host")]
    rank: Option<usize>,
    /// The rank, by its host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// How to write them
    #[arg(long, value_enum, default_value_t = Format::Shell)]
    format: Format,
    /// Read the rank's host, to name the interface of its control address
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    flags: PlanFlags,
}

fn engine() -> impl TypedValueParser<Value = Engine> {
    PossibleValuesParser::new(Engine::ALL.map(Engine::name)).try_map(|name| name.parse())
}

/// Prints the environment of one rank.
///
/// # Errors
/// The file or a flag is wrong, or the engine cannot run on this plan.
pub fn run(args: &EnvArgs) -> CommandResult {
    let file = open(&args.file.file)?;
    let plan = args.flags.plan(&file)?;
    let rank = match (args.rank, &args.host) {
        (Some(rank), _) if rank >= file.hosts.len() => {
            return Err(CommandError::Usage(format!(
                "there is no rank {rank}; the cluster file has {} hosts, so ranks are 0 to {}",
                file.hosts.len(),
                file.hosts.len().saturating_sub(1)
            )));
        }
        (Some(rank), _) => rank,
        (None, Some(name)) => rank_of(&file, name)?,
        (None, None) => own_rank(&file)?,
    };
    let netdev = if args.live { control_interface(&file, rank)? } else { None };
    let environment = describe(&plan, args.engine, rank, netdev.as_deref())
        .map_err(|error| CommandError::Failed(error.to_string()))?;
    let text = match args.format {
        Format::Shell => environment.script(),
        Format::Dotenv => dotenv(&environment),
        Format::Json => format!("{:#}\n", document(&environment, &plan.digest)),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The interface that has the control address of a rank, as its host says.
fn control_interface(file: &ClusterFile, rank: usize) -> Result<Option<String>, CommandError> {
    let Some(host) = file.hosts.get(rank) else { return Ok(None) };
    let Some(control) = &host.control else { return Ok(None) };
    on_signal()?;
    match capture(&[host]).pop() {
        Some(Ok(recording)) => {
            let state = HostState::of(&recording);
            Ok(control_netdev(&state, control).map(|netdev| netdev.name.clone()))
        }
        Some(Err(error)) => Err(CommandError::Failed(error.to_string())),
        None => Ok(None),
    }
}

/// A line for each variable. Docker takes such a file as it is, so values have no quotes; none holds a line end.
fn dotenv(environment: &Environment) -> String {
    let mut text =
        format!("# {}: rank {} ({})\n", environment.engine, environment.rank, environment.host);
    for note in &environment.notes {
        text.push_str(&format!("# note: {}\n", note.replace('\n', " ")));
    }
    for variable in &environment.variables {
        text.push_str(&format!("{}={}\n", variable.name, variable.value.replace('\n', " ")));
    }
    text
}

fn document(environment: &Environment, plan: &str) -> serde_json::Value {
    let variables: serde_json::Map<String, _> = environment
        .variables
        .iter()
        .map(|variable| (variable.name.to_owned(), variable.value.clone().into()))
        .collect();
    serde_json::json!({
        "schema": ENV_SCHEMA,
        "engine": environment.engine,
        "plan": plan,
        "rank": environment.rank,
        "host": environment.host,
        "environment": variables,
        "notes": environment.notes,
    })
}

/// The rank of the machine this runs on.
fn own_rank(file: &ClusterFile) -> Result<usize, CommandError> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let one = |is: &dyn Fn(&cluster::file::Host) -> bool| {
        let mut ranks = file.hosts.iter().enumerate().filter(|(_, host)| is(host));
        match (ranks.next(), ranks.next()) {
            (Some((rank, _)), None) => Some(rank),
            _ => None,
        }
    };
    one(&|host| host.reach == "local")
        .or_else(|| one(&|host| short(&host.name) == short(&name)))
        .ok_or_else(|| {
            let hosts: Vec<_> = file.hosts.iter().map(|host| host.name.as_str()).collect();
            CommandError::Usage(format!(
                "this machine is called {name} and is none of the cluster file's hosts ({}); say which one \
                 with --host or --rank",
                hosts.join(", ")
            ))
        })
}
