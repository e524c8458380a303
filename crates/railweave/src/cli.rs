//! The command line.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, Parser, Subcommand, ValueHint};
use cluster::text::clean;

use crate::commands::{ask, bench, config, explain, rank, room, serve, set, status, tune, verify};
use crate::process::RankBody;
use crate::settings::{Effective, KEYS, Key, Layers, SettingsError, Valid};

const EXIT_CODES: &str = "\
Exit codes:
  0    it worked
  1    it failed
  2    the command line or a setting is wrong
  3    no server could be reached
  130  stopped by a signal, in order";

const SERVE_EXAMPLES: &str = "\
Examples:
  railweave serve
  railweave serve --ranks 2 --topology full --listen 127.0.0.1:9000
  railweave serve --model ./my-model.gguf --config railweave.toml
  RAILWEAVE_PATIENCE_COMPUTE=20s railweave serve
  torchrun --nproc-per-node 4 --no-python railweave serve

Secrets (api_key, token) come from the file or RAILWEAVE_API_KEY and RAILWEAVE_TOKEN, since a
command line is public.";

const DISCOVER_HELP: &str = "\
Examples:
  railweave discover spark0 spark1 spark2 spark3
  railweave discover local ssh:admin@spark1 -o pair.toml --assign-addresses 10.10.0.0/16
  railweave discover netns:rw-a netns:rw-b --no-probe -o -

Hosts are read over SSH as you would log in there, without a password (ssh-agent or a key). The order
of the hosts is the order of ranks. The file is written only if every host could be read.

Exit codes:
  0    the file was written
  1    a host could not be read, or the file not be written; nothing was written
  2    the command line is wrong, or the file is there already (--force writes over it)
  130  stopped by a signal";

const PLAN_HELP: &str = "\
Examples:
  railweave plan
  railweave plan lab.toml --forward required --tag source-port --json
  railweave plan --route 'spark0>spark2 via spark3 kind relayed' --route 'spark2>spark0 via spark3 kind relayed'
  railweave plan --svg cluster.svg
  railweave plan --live --forward auto

Exit codes:
  0    there is a plan
  1    forwarding is required and not possible, or with --live: a host could not be read
  2    the command line or the file is wrong, or no plan follows from it
  130  stopped by a signal";

const APPLY_HELP: &str = "\
Examples:
  railweave apply                     print what would be done, as a script for each host
  railweave apply --diff              print only what differs
  railweave apply --apply             do it, read the hosts again, and compare
  railweave apply --down              take back all that is ours
  railweave apply --unit --host spark0 > railweave-spark0.service

Nothing is done on any host if any host has something in the way that is not ours; it is named.
Queue pairs that are alive lose packets while rules change, so --apply and --down refuse while there
are any; --yes-live does it all the same.

Exit codes:
  0    it is in place, or was printed
  1    refused, or a step failed; what was done and what not is said
  2    the command line or the file is wrong, or no plan follows from it
  130  stopped by a signal";

const CHECK_HELP: &str = "\
Examples:
  railweave check
  railweave check --pre               this machine alone, if there is no cluster.toml
  railweave check --json | jq '.findings[].code'
  railweave check --bundle before && run-the-model; railweave check --before before

Each finding has a code with a page of its own: docs/codes.

Exit codes:
  0    nothing was found
  1    something was found
  2    it could not be decided, since a host could not be read; or the command line or the file is wrong
  130  stopped by a signal";

const VERIFY_HELP: &str = "\
Examples:
  railweave verify
  railweave verify --out proof.json && railweave verify --out proof.json --again
  railweave verify --only 'spark0>spark2' --bytes 64MiB

Exit codes:
  0    every path is proven
  1    a path failed
  2    a path could not be decided; or the command line or the file is wrong
  130  stopped by a signal";

const ENV_HELP: &str = "\
Examples:
  eval \"$(railweave env --engine nccl)\"
  railweave env --engine b12x --rank 2 --format dotenv > rank2.env
  railweave env --engine sircl lab.toml --host spark3 --format json

Exit codes:
  0    printed
  1    the engine cannot run on this plan
  2    the command line or the file is wrong, or no plan follows from it";

/// The data plane of a small AI cluster.
#[derive(Debug, Parser)]
#[command(name = "railweave", version, after_help = EXIT_CODES, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Serve a model on the ranks of this machine, or as one rank under a launcher
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(serve::ServeArgs),
    /// Print the effective value of every setting and where it came from
    #[command(after_help = "Examples:\n  railweave config\n  railweave config --json --ranks 2")]
    Config(config::ConfigArgs),
    /// Change a setting of a running server
    #[command(after_help = "Examples:\n  railweave set patience.compute=20s\n  \
        railweave set patience.wire=10s --rank 2")]
    Set(set::SetArgs),
    /// Print what every rank of a running server is doing
    #[command(after_help = "Examples:\n  railweave status\n  railweave status --json --wait 60s")]
    Status(status::StatusArgs),
    /// Ask a running server one question
    #[command(after_help = "Example:\n  railweave ask \"What is the capital of France?\"")]
    Ask(ask::AskArgs),
    /// Measure collectives between ranks of this machine
    #[command(after_help = "Examples:\n  railweave bench allreduce --ranks 2\n  \
        railweave bench allreduce --ranks 4 --transport tcp --topology ring --sizes 8,48KiB --plain")]
    Bench(bench::BenchArgs),
    /// Measure every schedule and print the table that follows
    #[command(after_help = "Examples:\n  railweave tune --ranks 4\n  \
        railweave tune --ranks 4 --transport tcp --plain --json")]
    Tune(tune::TuneArgs),
    /// Merge the ranks' flight records into one time line
    #[command(after_help = "Example:\n  railweave explain ~/.local/state/railweave/flight")]
    Explain(explain::ExplainArgs),
    /// Read hosts and write the cluster file that describes them
    #[command(after_help = DISCOVER_HELP)]
    Discover(room::discover::DiscoverArgs),
    /// Print how bytes get from any rank to any other
    #[command(after_help = PLAN_HELP)]
    Plan(room::plan::PlanArgs),
    /// Set on each host what the plan needs
    #[command(after_help = APPLY_HELP)]
    Apply(room::apply::ApplyArgs),
    /// Find what is not as the plan needs it, and say what mends it
    #[command(after_help = CHECK_HELP)]
    Check(room::check::CheckArgs),
    /// Prove each planned path with real bytes both ways
    #[command(after_help = VERIFY_HELP)]
    Verify(verify::VerifyArgs),
    /// Print the environment another engine needs for the same plan
    #[command(after_help = ENV_HELP)]
    Env(room::env::EnvArgs),
    /// Be one rank of a supervisor
    #[command(hide = true)]
    Rank(rank::RankArgs),
    /// Be one rank of a measurement
    #[command(hide = true)]
    BenchRank,
    /// Be one end of what `verify` proves
    #[command(hide = true)]
    Agent,
}

/// Runs a command line; `body` is the work of a rank. Prints what goes wrong, and returns the exit code.
///
/// Call it on the main thread: ranks die with the thread that started them.
pub fn run(arguments: impl IntoIterator<Item = OsString>, body: RankBody) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too, with code 0. A closed terminal is nobody to tell.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        }
    };
    let result = match cli.command {
        Action::Serve(args) => serve::run(args, body),
        Action::Config(args) => config::run(args),
        Action::Set(args) => set::run(args),
        Action::Status(args) => status::run(args),
        Action::Ask(args) => ask::run(args),
        Action::Bench(args) => bench::run(&args),
        Action::Tune(args) => tune::run(&args),
        Action::Explain(args) => explain::run(&args),
        Action::Discover(args) => room::discover::run(&args),
        Action::Plan(args) => room::plan::run(&args),
        Action::Apply(args) => room::apply::run(&args),
        Action::Check(args) => room::check::run(&args),
        Action::Verify(args) => verify::run(args),
        Action::Env(args) => room::env::run(&args),
        Action::Rank(args) => rank::run(&args, body),
        Action::BenchRank => bench::run_rank(),
        Action::Agent => verify::run_agent(),
    };
    result.unwrap_or_else(|error| {
        // What a file or a host said is part of it.
        eprintln!("railweave: {}", clean(&error.to_string()));
        ExitCode::from(error.code())
    })
}

/// Which keys a command has flags for.
pub trait KeySet {
    /// Whether the command has a flag for this key.
    fn has(key: &Key) -> bool;
}

/// Every key.
#[derive(Debug, Clone)]
pub struct AllKeys;

impl KeySet for AllKeys {
    fn has(_: &Key) -> bool {
        true
    }
}

/// The keys that say where a running server is.
#[derive(Debug, Clone)]
pub struct ReachKeys;

impl KeySet for ReachKeys {
    fn has(key: &Key) -> bool {
        matches!(key.name, "ranks" | "listen" | "metrics_listen")
    }
}

/// `--config`, and a flag for each key of the set, made from the table of keys.
#[derive(Debug, Clone)]
pub struct SettingFlags<S> {
    config: Option<PathBuf>,
    flags: Vec<(&'static str, String)>,
    set: PhantomData<S>,
}

impl<S> SettingFlags<S> {
    /// Puts file, environment and these flags on top of each other.
    ///
    /// # Errors
    /// The first key or value that cannot be used.
    pub fn resolve(self) -> Result<Effective, SettingsError> {
        Layers::of_process(self.config, self.flags).resolve()
    }
}

impl<S: KeySet> clap::Args for SettingFlags<S> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_hint(ValueHint::FilePath)
            .value_parser(clap::value_parser!(PathBuf))
            .help_heading("Settings")
            .help("Settings file [else $XDG_CONFIG_HOME/railweave/config.toml, if there is one]");
        KEYS.iter().filter(|key| S::has(key)).fold(command.arg(config), |command, key| {
            match argument(key) {
                Some(argument) => command.arg(argument),
                None => command,
            }
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(key: &'static Key) -> Option<Arg> {
    let default =
        if key.default.is_empty() { String::new() } else { format!(" [default: {}]", key.default) };
    let argument = Arg::new(key.name)
        .long(key.flag()?)
        .help(format!("{}{default}", key.help))
        .long_help(format!("{}{default}\n{} [env: {}]", key.help, key.valid, key.env()))
        .help_heading("Settings")
        .value_name(value_name(&key.valid));
    Some(if key.valid == Valid::Flag {
        argument.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        argument
    })
}

fn value_name(valid: &Valid) -> String {
    match valid {
        Valid::Number(..) => "NUMBER".to_owned(),
        Valid::Bytes(..) => "SIZE".to_owned(),
        Valid::Time(..) | Valid::TimeOrAuto(..) => "DURATION".to_owned(),
        Valid::Word(words) => words.join("|"),
        Valid::Flag => "true|false".to_owned(),
        Valid::Address => "IP:PORT".to_owned(),
        Valid::HostPort => "HOST:PORT".to_owned(),
        Valid::LogFilter => "FILTER".to_owned(),
        Valid::Text(..) => "TEXT".to_owned(),
    }
}

impl<S: KeySet> clap::FromArgMatches for SettingFlags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = KEYS
            .iter()
            .filter(|key| S::has(key) && key.flag().is_some())
            .filter_map(|key| {
                let value = matches.get_one::<String>(key.name)?;
                Some((key.name, value.clone()))
            })
            .collect();
        let config = matches.get_one::<PathBuf>("config").cloned();
        Ok(Self { config, flags, set: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_public_key_has_a_flag_of_serve() {
        let cli = Cli::try_parse_from([
            "railweave",
            "serve",
            "--ranks",
            "2",
            "--patience-compute",
            "20s",
            "--fabric-crc",
            "--restart=false",
        ])
        .unwrap();
        let Action::Serve(_) = cli.command else { panic!("not serve") };
        let mut command = Cli::command();
        let help = command.find_subcommand_mut("serve").unwrap().render_long_help().to_string();
        for key in KEYS {
            match key.flag() {
                Some(flag) => assert!(
                    help.contains(&format!("--{flag} ")) || help.contains(&format!("--{flag}[")),
                    "{flag}"
                ),
                None => assert!(
                    !help.contains(&format!("--{}", key.name.replace('_', "-"))),
                    "{}",
                    key.name
                ),
            }
        }
    }
}
