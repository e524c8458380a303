//! Settings as TOML: a user's file, and the hand-over from the supervisor to a rank.

use std::fmt::Write as _;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::error::{Place, SettingsError};
use super::table::{KEYS, find};
use super::value::nearest;
use super::{Key, Settings};

/// One value of a file.
#[derive(Debug)]
pub(super) struct FileValue {
    pub(super) key: &'static Key,
    pub(super) text: String,
    pub(super) place: Place,
}

/// Reads every value of a file's text.
pub(super) fn read(path: &Path, text: &str) -> Result<Vec<FileValue>, SettingsError> {
    let at = |offset: usize| {
        let (line, column) = line_and_column(text, offset);
        Place::File { path: path.to_owned(), line, column }
    };
    let table = DeTable::parse(text).map_err(|error| SettingsError::BadFile {
        place: at(error.span().map_or(0, |span| span.start)),
        problem: error.message().replace('\n', ", "),
    })?;
    let mut values = Vec::new();
    flatten(table.get_ref(), "", &at, &mut values)?;
    Ok(values)
}

fn flatten(
    table: &DeTable<'_>,
    prefix: &str,
    at: &dyn Fn(usize) -> Place,
    values: &mut Vec<FileValue>,
) -> Result<(), SettingsError> {
    for (name, value) in table {
        let written = format!("{prefix}{}", name.get_ref());
        if let DeValue::Table(inner) = value.get_ref() {
            let section = format!("{written}.");
            if KEYS.iter().any(|key| key.name.starts_with(&section)) {
                flatten(inner, &section, at, values)?;
                continue;
            }
        }
        let Some(key) = find(&written) else {
            return Err(SettingsError::UnknownKey {
                nearest: nearest(&written, KEYS.iter().map(|key| key.name)).map(str::to_owned),
                written,
                place: at(name.span().start),
            });
        };
        let place = at(value.span().start);
        match plain(value.get_ref()) {
            Ok(text) => values.push(FileValue { key, text, place }),
            Err(problem) => {
                let valid = key.valid.to_string();
                return Err(SettingsError::BadValue { key: key.name, place, problem, valid });
            }
        }
    }
    Ok(())
}

fn plain(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(value) => Ok(value.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|_| "the number is too large".to_owned()),
        DeValue::Datetime(_) => Err("a date is not a value of any key".to_owned()),
        DeValue::Array(_) => Err("an array is not a value of any key".to_owned()),
        DeValue::Table(_) => Err("it is a key, not a section".to_owned()),
    }
}

fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset.min(text.len())).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or(before).chars().count() + 1;
    (line, column)
}

/// Writes every value, secrets too, for the standard input of a rank.
#[must_use]
pub fn to_handover(settings: &Settings) -> String {
    let mut text = String::new();
    for key in KEYS {
        let value = toml::Value::String(key.show(settings));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} = {value}", key.name);
    }
    text
}

/// Reads what [`to_handover`] wrote.
///
/// # Errors
/// The text is not a hand-over: not TOML, an unknown key or a bad value.
pub fn from_handover(text: &str) -> Result<Settings, SettingsError> {
    let mut settings = Settings::default();
    for FileValue { key, text, place } in read(Path::new("<standard input>"), text)? {
        key.parse(&mut settings, &text).map_err(|problem| SettingsError::BadValue {
            key: key.name,
            place,
            problem,
            valid: key.valid.to_string(),
        })?;
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_text(text: &str) -> Result<Vec<FileValue>, SettingsError> {
        read(Path::new("c.toml"), text)
    }

    #[test]
    fn sections_and_dotted_keys_are_the_same() {
        for text in ["[patience]\ncompute = \"20s\"", "patience.compute = \"20s\""] {
            let values = read_text(text).unwrap();
            assert_eq!(values.len(), 1);
            assert_eq!((values[0].key.name, values[0].text.as_str()), ("patience.compute", "20s"));
        }
    }

    #[test]
    fn an_unknown_key_is_placed_and_the_nearest_named() {
        let error = read_text("ranks = 2\n\n[patience]\n  compte = \"1s\"\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "c.toml:4:3: unknown key patience.compte; did you mean patience.compute?"
        );
    }

    #[test]
    fn odd_shapes_are_errors_with_a_place() {
        for (text, expected) in [
            ("ranks = [1]", "c.toml:1:9: bad value of ranks: an array"),
            ("[ranks]\na = 1", "c.toml:1:1: bad value of ranks: it is a key"),
            ("patience = 3", "c.toml:1:1: unknown key patience"),
            ("[fabric.x]\na = 1", "unknown key fabric.x"),
            ("ranks = ", "c.toml:1:"),
            ("ranks = 1\nranks = 2", "c.toml:2:1: not valid TOML"),
        ] {
            let error = read_text(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn a_handover_keeps_every_value_and_odd_characters() {
        let mut settings = Settings {
            model: "/tmp/a \"quoted\" \\ näme.gguf".to_owned(),
            token: super::super::Secret::new("s3cret = \"x\"".to_owned()),
            ..Settings::default()
        };
        settings.patience.wire = std::time::Duration::from_millis(1500);
        settings.fabric.crc = true;
        assert_eq!(from_handover(&to_handover(&settings)).unwrap(), settings);
    }

    proptest! {
        #[test]
        fn no_file_makes_the_reader_panic(text in "[a-z_.=\\[\\]\"0-9\n é{}]{0,80}") {
            let _ = read_text(&text);
        }
    }
}
