//! What can be wrong with settings, and where.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The default of the table.
    Default,
    /// A file, with line and column counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The column, in characters.
        column: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag, with its dashes.
    Flag(String),
    /// Made up by the supervisor.
    Generated,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Generated => f.write_str("generated"),
        }
    }
}

fn hint(nearest: Option<&String>) -> String {
    nearest.map_or_else(
        || "`railweave config` lists every key".to_owned(),
        |nearest| format!("did you mean {nearest}?"),
    )
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// No key has this name.
    #[error("{place}: unknown key {written}; {}", hint(.nearest.as_ref()))]
    UnknownKey {
        /// The key as written.
        written: String,
        /// Where it was written.
        place: Place,
        /// The closest key, in the form of that place.
        nearest: Option<String>,
    },
    /// The value is not valid for its key.
    #[error("{place}: bad value of {key}: {problem}; valid is {valid}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// Where the value was written.
        place: Place,
        /// What is wrong.
        problem: String,
        /// What is valid.
        valid: String,
    },
    /// Two values do not go together.
    #[error("{place}: {key} cannot be {value}: {problem}")]
    Conflict {
        /// The key.
        key: &'static str,
        /// Its value, as it may be printed.
        value: String,
        /// Where the value was written.
        place: Place,
        /// Why it cannot be, and what to do.
        problem: String,
    },
    /// A file is not TOML.
    #[error("{place}: not valid TOML: {problem}")]
    BadFile {
        /// Where.
        place: Place,
        /// What the parser said.
        problem: String,
    },
    /// A file cannot be read.
    #[error("cannot read the settings file {}: {source}; check --config and its permissions", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is far larger than settings can be.
    #[error("the settings file {} is larger than {limit_bytes} bytes; is it the right file?", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit_bytes: u64,
    },
    /// An environment variable is not text.
    #[error("environment {name}: the value is not valid UTF-8")]
    NotText {
        /// The variable.
        name: String,
    },
}
