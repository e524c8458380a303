//! The command line.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, Parser, Subcommand, ValueHint};

use crate::commands::{ask, bench, config, explain, rank, serve, set, status, tune};
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
    /// Be one rank of a supervisor
    #[command(hide = true)]
    Rank(rank::RankArgs),
    /// Be one rank of a measurement
    #[command(hide = true)]
    BenchRank,
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
        Action::Rank(args) => rank::run(&args, body),
        Action::BenchRank => bench::run_rank(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("railweave: {error}");
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
