//! `railweave set`: changes a setting of a running server.
//!
//! It posts `{"key": …, "value": …}` to `/settings` of each rank. A rank answers with [`Changed`], or with an error
//! in the shape `{"error": {"message": …}}`.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::reach::ReachArgs;
use super::{CommandError, CommandResult, FAILED, print};
use crate::settings::{KEYS, Key, Settings, find, nearest};

/// The path a rank takes changes at.
pub const SETTINGS_PATH: &str = "/settings";

/// A change, as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Its new value, as text.
    pub value: String,
}

/// A change, as it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The key.
    pub key: String,
    /// Its value before, as text.
    pub old: String,
    /// Its value now, as text.
    pub new: String,
}

/// A change that is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// No key has this name.
    #[error("unknown key {key}; {}", nearest.map_or("`railweave config` lists every key".to_owned(), |n| format!("did you mean {n}?")))]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The closest key.
        nearest: Option<&'static str>,
    },
    /// The key cannot be changed while serving.
    #[error(
        "{key} cannot be changed while serving; set it in the file, the environment or by flag, and start again"
    )]
    NotLive {
        /// The key.
        key: &'static str,
    },
    /// The value is not valid.
    #[error("bad value of {key}: {problem}; valid is {valid}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// What is wrong.
        problem: String,
        /// What is valid.
        valid: String,
    },
}

impl Change {
    /// Reads `KEY=VALUE`.
    fn from_argument(text: &str) -> Result<Self, String> {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| "write it as KEY=VALUE, such as patience.compute=20s".to_owned())?;
        Ok(Self { key: key.trim().to_owned(), value: value.trim().to_owned() })
    }

    /// The key, if it may be changed while serving and the value is valid.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<&'static Key, ChangeError> {
        self.apply(&mut Settings::default()).map(|(key, _)| key)
    }

    /// Makes the change in `settings`: what a rank does with a change it was asked for.
    ///
    /// # Errors
    /// The change is refused, and nothing was changed.
    pub fn apply(&self, settings: &mut Settings) -> Result<(&'static Key, Changed), ChangeError> {
        let key = find(&self.key).ok_or_else(|| ChangeError::UnknownKey {
            key: self.key.clone(),
            nearest: nearest(&self.key, KEYS.iter().map(|key| key.name)),
        })?;
        if !key.live {
            return Err(ChangeError::NotLive { key: key.name });
        }
        let old = key.show(settings);
        key.parse(settings, &self.value).map_err(|problem| ChangeError::BadValue {
            key: key.name,
            problem,
            valid: key.valid.to_string(),
        })?;
        let changed = Changed { key: key.name.to_owned(), old, new: key.show(settings) };
        Ok((key, changed))
    }
}

/// Arguments of `railweave set`.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// What to change, such as patience.compute=20s
    #[arg(value_name = "KEY=VALUE", value_parser = Change::from_argument)]
    change: Change,
    /// Change it on this rank only
    #[arg(long, value_name = "RANK", conflicts_with = "all")]
    rank: Option<u32>,
    /// Change it on every rank, which is the default
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    reach: ReachArgs,
}

/// Changes a setting, and prints the old and the new value of each rank.
///
/// # Errors
/// The change is not valid, no rank could be reached, or the settings that say where the ranks are are wrong.
pub fn run(args: SetArgs) -> CommandResult {
    let SetArgs { change, rank, all: _, reach } = args;
    let key = change.check().map_err(|error| CommandError::Usage(error.to_string()))?;
    let reach = reach.resolve()?;
    if key.shared && rank.is_some() {
        return Err(CommandError::Usage(format!(
            "{} must be the same on every rank; leave --rank out",
            key.name
        )));
    }
    let ranks = match rank {
        Some(rank) if rank as usize >= reach.addresses.len() => {
            return Err(CommandError::Usage(format!(
                "there is no rank {rank} among {}",
                reach.addresses.len()
            )));
        }
        Some(rank) => vec![rank],
        None => reach.all(),
    };
    let body = serde_json::json!(change);
    let answers =
        reach.ask_each(&ranks, |client, address| client.post(address, SETTINGS_PATH, &body));
    let mut text = String::new();
    let mut unreached = Vec::new();
    let mut failures = 0;
    for (rank, answer) in &answers {
        match answer {
            Ok(answer) if answer.status == 200 => {
                match serde_json::from_value::<Changed>(answer.body.clone()) {
                    Ok(Changed { key, old, new }) => {
                        text.push_str(&format!("rank {rank}: {key} was {old}, is {new}\n"));
                    }
                    Err(error) => {
                        failures += 1;
                        text.push_str(&format!(
                            "rank {rank}: its answer makes no sense: {error}\n"
                        ));
                    }
                }
            }
            Ok(answer) => {
                failures += 1;
                text.push_str(&format!("rank {rank}: not changed: {}\n", answer.problem()));
            }
            Err(error) => {
                unreached.push(error.clone());
                text.push_str(&format!("rank {rank}: not changed: {error}\n"));
            }
        }
    }
    if unreached.len() == answers.len() {
        return Err(CommandError::Unreachable(unreached.join("; ")));
    }
    print(&text)?;
    Ok(if failures + unreached.len() > 0 { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(text: &str) -> Change {
        Change::from_argument(text).unwrap()
    }

    #[test]
    fn a_change_is_applied_and_told() {
        let mut settings = Settings::default();
        let (_, changed) = change("patience.compute=20s").apply(&mut settings).unwrap();
        assert_eq!((changed.old.as_str(), changed.new.as_str()), ("60s", "20s"));
        assert_eq!(settings.patience.compute.as_secs(), 20);
    }

    #[test]
    fn a_change_that_is_refused_changes_nothing() {
        let mut settings = Settings::default();
        for (text, expected) in [
            ("patience.compte=20s", "did you mean patience.compute?"),
            ("ranks=2", "cannot be changed while serving"),
            ("patience.compute=20", "no unit"),
            ("api_key=x", "cannot be changed while serving"),
        ] {
            let error = change(text).apply(&mut settings).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert_eq!(settings, Settings::default());
        assert!(Change::from_argument("patience.compute").is_err());
    }
}
