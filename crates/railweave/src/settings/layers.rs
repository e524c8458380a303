//! Puts the layers on top of each other: default, file, environment, flag.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::error::{Place, SettingsError};
use super::table::{ENV_PREFIX, KEYS};
use super::value::nearest;
use super::{Effective, Key, Settings, file, user_directory};
use crate::local::read_text;

/// Largest settings file that is read.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// The variable that names a settings file, like `--config`.
const CONFIG_VARIABLE: &str = "RAILWEAVE_CONFIG";

/// Where settings come from. Everything outside the process is passed in.
#[derive(Debug, Default)]
pub struct Layers {
    /// The file of `--config`.
    pub config: Option<PathBuf>,
    /// The file read if it exists and no other is named.
    pub fallback: Option<PathBuf>,
    /// Environment variables; those without the prefix are ignored.
    pub environment: Vec<(OsString, OsString)>,
    /// Values of flags, by the key's name.
    pub flags: Vec<(&'static str, String)>,
}

impl Layers {
    /// The layers of this process: its environment, and the user's settings file.
    #[must_use]
    pub fn of_process(config: Option<PathBuf>, flags: Vec<(&'static str, String)>) -> Self {
        let fallback = user_directory("XDG_CONFIG_HOME", ".config").join("railweave/config.toml");
        Self { config, fallback: Some(fallback), environment: std::env::vars_os().collect(), flags }
    }

    /// The effective value of every key.
    ///
    /// # Errors
    /// The first key or value that cannot be used, with its place.
    pub fn resolve(self) -> Result<Effective, SettingsError> {
        let mut effective = Effective {
            settings: Settings::default(),
            places: KEYS.iter().map(|key| (key.name, Place::Default)).collect(),
        };
        let variables = own_variables(&self.environment)?;
        if let Some((path, text)) = self.read_file(&variables)? {
            for value in file::read(&path, &text)? {
                effective.put(value.key, &value.text, value.place)?;
            }
        }
        for (name, text) in &variables {
            if name == CONFIG_VARIABLE {
                continue;
            }
            let place = Place::Environment(name.clone());
            let Some(key) = KEYS.iter().find(|key| key.env() == *name) else {
                let known: Vec<_> = KEYS.iter().map(Key::env).collect();
                return Err(SettingsError::UnknownKey {
                    nearest: nearest(name, known.iter().map(String::as_str)).map(str::to_owned),
                    written: name.clone(),
                    place,
                });
            };
            effective.put(key, text, place)?;
        }
        for (name, text) in &self.flags {
            if let Some(key) = super::find(name) {
                let flag = key.flag().unwrap_or_default();
                effective.put(key, text, Place::Flag(format!("--{flag}")))?;
            }
        }
        effective.check()?;
        Ok(effective)
    }

    fn read_file(
        &self,
        variables: &BTreeMap<String, String>,
    ) -> Result<Option<(PathBuf, String)>, SettingsError> {
        let named =
            self.config.clone().or_else(|| variables.get(CONFIG_VARIABLE).map(PathBuf::from));
        if let Some(path) = named {
            let text = read_bounded(&path)?;
            return Ok(Some((path, text)));
        }
        let Some(path) = &self.fallback else { return Ok(None) };
        match read_bounded(path) {
            Ok(text) => Ok(Some((path.clone(), text))),
            Err(SettingsError::Unreadable { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn own_variables(
    environment: &[(OsString, OsString)],
) -> Result<BTreeMap<String, String>, SettingsError> {
    let mut own = BTreeMap::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(ENV_PREFIX)) else {
            continue;
        };
        let Some(value) = value.to_str() else {
            return Err(SettingsError::NotText { name: name.to_owned() });
        };
        own.insert(name.to_owned(), value.to_owned());
    }
    Ok(own)
}

fn read_bounded(path: &Path) -> Result<String, SettingsError> {
    read_text(path, MAX_FILE_BYTES).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => {
            SettingsError::TooLarge { path: path.to_owned(), limit_bytes: MAX_FILE_BYTES }
        }
        _ => SettingsError::Unreadable { path: path.to_owned(), source },
    })
}

impl Effective {
    fn put(&mut self, key: &'static Key, text: &str, place: Place) -> Result<(), SettingsError> {
        key.parse(&mut self.settings, text).map_err(|problem| SettingsError::BadValue {
            key: key.name,
            place: place.clone(),
            problem,
            valid: key.valid.to_string(),
        })?;
        self.places.insert(key.name, place);
        Ok(())
    }

    /// The place of a key's value.
    #[must_use]
    pub fn place(&self, key: &str) -> Place {
        self.places.get(key).cloned().unwrap_or(Place::Default)
    }

    fn conflict(&self, name: &'static str, problem: impl Into<String>) -> SettingsError {
        let value = super::find(name).map(|key| key.show_public(&self.settings));
        SettingsError::Conflict {
            key: name,
            value: value.unwrap_or_default(),
            place: self.place(name),
            problem: problem.into(),
        }
    }

    /// Checks what no single value shows.
    fn check(&self) -> Result<(), SettingsError> {
        let settings = &self.settings;
        for (name, address) in
            [("listen", settings.listen), ("metrics_listen", settings.metrics_listen)]
        {
            if address.ip().is_loopback() {
                continue;
            }
            if !settings.allow_remote {
                return Err(self.conflict(
                    name,
                    "it can be reached from other machines; set allow_remote = true if that is meant",
                ));
            }
            if !settings.api_key.is_set() {
                return Err(self.conflict(
                    name,
                    "it can be reached from other machines, and api_key is not set; set api_key in \
                     the file or RAILWEAVE_API_KEY",
                ));
            }
        }
        let last = u32::from(settings.metrics_listen.port()) + settings.ranks - 1;
        if last > u32::from(u16::MAX) {
            return Err(self.conflict(
                "metrics_listen",
                format!("the last of {} ranks would need port {last}", settings.ranks),
            ));
        }
        let metrics = settings.metrics_listen.port();
        let listen = settings.listen.port();
        if metrics != 0
            && listen != 0
            && (metrics..=metrics + (settings.ranks as u16 - 1)).contains(&listen)
        {
            return Err(self.conflict(
                "metrics_listen",
                format!("its ports {metrics} to {last} contain the port of listen, {listen}"),
            ));
        }
        if settings.fabric.relay_chunk_bytes > settings.fabric.slot_bytes {
            return Err(self.conflict(
                "fabric.relay_chunk_bytes",
                format!(
                    "it is larger than fabric.slot_bytes, {}",
                    super::show_bytes(settings.fabric.slot_bytes.0)
                ),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn file_with(name: &str, text: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("railweave-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_flag_beats_the_environment_which_beats_the_file() {
        let path = file_with("order", "ranks = 2\nrails = 1\nqueue_limit = 7\n");
        let effective = Layers {
            config: Some(path.clone()),
            environment: environment(&[
                ("RAILWEAVE_RANKS", "3"),
                ("RAILWEAVE_RAILS", "3"),
                ("HOME", "/x"),
            ]),
            flags: vec![("ranks", "5".to_owned())],
            ..Layers::default()
        }
        .resolve()
        .unwrap();
        std::fs::remove_file(&path).unwrap();
        let settings = &effective.settings;
        assert_eq!((settings.ranks, settings.rails, settings.queue_limit), (5, 3, 7));
        assert_eq!(effective.place("ranks"), Place::Flag("--ranks".to_owned()));
        assert_eq!(effective.place("rails"), Place::Environment("RAILWEAVE_RAILS".to_owned()));
        assert_eq!(effective.place("queue_limit"), Place::File { path, line: 3, column: 15 });
        assert_eq!(effective.place("topology"), Place::Default);
    }

    #[test]
    fn an_unknown_variable_is_an_error_that_names_the_nearest() {
        let error = Layers {
            environment: environment(&[("RAILWEAVE_PATIENCE_COMPTE", "1s")]),
            ..Layers::default()
        }
        .resolve()
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "environment RAILWEAVE_PATIENCE_COMPTE: unknown key RAILWEAVE_PATIENCE_COMPTE; did you \
             mean RAILWEAVE_PATIENCE_COMPUTE?"
        );
    }

    #[test]
    fn a_bad_value_names_key_place_and_what_is_valid() {
        let error = Layers { flags: vec![("ranks", "9".to_owned())], ..Layers::default() }
            .resolve()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "flag --ranks: bad value of ranks: 9 is out of range; valid is a whole number from 1 to 8"
        );
    }

    #[test]
    fn a_missing_file_is_an_error_only_if_it_was_named() {
        let missing = PathBuf::from("/nonexistent/railweave.toml");
        let quiet = Layers { fallback: Some(missing.clone()), ..Layers::default() };
        assert!(quiet.resolve().is_ok());
        let named = Layers { config: Some(missing.clone()), ..Layers::default() };
        assert!(matches!(named.resolve(), Err(SettingsError::Unreadable { .. })));
        let variable = Layers {
            environment: environment(&[("RAILWEAVE_CONFIG", "/nonexistent/railweave.toml")]),
            ..Layers::default()
        };
        assert!(matches!(variable.resolve(), Err(SettingsError::Unreadable { .. })));
    }

    #[test]
    fn a_remote_address_needs_consent_and_a_key() {
        let resolve = |pairs: &[(&str, &str)]| {
            Layers { environment: environment(pairs), ..Layers::default() }.resolve()
        };
        let listen = ("RAILWEAVE_LISTEN", "0.0.0.0:8000");
        let allow = ("RAILWEAVE_ALLOW_REMOTE", "true");
        assert!(resolve(&[listen]).unwrap_err().to_string().contains("allow_remote"));
        assert!(resolve(&[listen, allow]).unwrap_err().to_string().contains("api_key"));
        assert!(resolve(&[listen, allow, ("RAILWEAVE_API_KEY", "k")]).is_ok());
    }

    #[test]
    fn values_that_do_not_go_together_are_refused() {
        for (flags, key) in [
            (vec![("metrics_listen", "127.0.0.1:65534".to_owned())], "metrics_listen"),
            (vec![("metrics_listen", "127.0.0.1:7998".to_owned())], "metrics_listen"),
            (vec![("fabric.relay_chunk_bytes", "1MiB".to_owned())], "fabric.relay_chunk_bytes"),
        ] {
            let error = Layers { flags, ..Layers::default() }.resolve().unwrap_err();
            assert!(
                matches!(error, SettingsError::Conflict { key: found, .. } if found == key),
                "{error}"
            );
        }
    }
}
