//! `railweave config`: every key, its effective value, and where that came from.

use std::fmt::Write as _;

use super::{Effective, KEYS};

/// Version of the shape of [`config_json`].
pub const CONFIG_SCHEMA: u32 = 1;

/// Every key as an aligned table for people.
#[must_use]
pub fn config_table(effective: &Effective) -> String {
    let rows: Vec<[String; 4]> = KEYS
        .iter()
        .map(|key| {
            [
                key.name.to_owned(),
                key.show_public(&effective.settings),
                effective.place(key.name).to_string(),
                key.help.to_owned(),
            ]
        })
        .collect();
    let width = |column: usize, title: &str| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(title.len())
    };
    let (key, value, place) = (width(0, "KEY"), width(1, "VALUE"), width(2, "FROM"));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{:key$}  {:value$}  {:place$}  MEANING", "KEY", "VALUE", "FROM");
    for [name, shown, from, help] in &rows {
        let _ = writeln!(text, "{name:key$}  {shown:value$}  {from:place$}  {help}");
    }
    text
}

/// Every key as a document for programs.
#[must_use]
pub fn config_json(effective: &Effective) -> serde_json::Value {
    let keys: Vec<_> = KEYS
        .iter()
        .map(|key| {
            serde_json::json!({
                "key": key.name,
                "value": if key.secret {
                    serde_json::Value::Null
                } else {
                    key.show(&effective.settings).into()
                },
                "set": !key.show(&effective.settings).is_empty(),
                "secret": key.secret,
                "from": effective.place(key.name).to_string(),
                "default": key.default,
                "valid": key.valid.to_string(),
                "env": key.env(),
                "flag": key.flag().map(|flag| format!("--{flag}")),
                "shared": key.shared,
                "live": key.live,
                "help": key.help,
            })
        })
        .collect();
    serde_json::json!({ "schema": CONFIG_SCHEMA, "keys": keys })
}

#[cfg(test)]
mod tests {
    use super::super::Layers;
    use super::*;

    fn with_secret() -> Effective {
        let environment = vec![("RAILWEAVE_API_KEY".into(), "hunter2".into())];
        Layers { environment, ..Layers::default() }.resolve().unwrap()
    }

    #[test]
    fn both_forms_have_every_key_and_no_secret() {
        let effective = with_secret();
        let table = config_table(&effective);
        let json = config_json(&effective);
        assert_eq!(table.lines().count(), KEYS.len() + 1);
        assert_eq!(json["keys"].as_array().unwrap().len(), KEYS.len());
        assert!(!table.contains("hunter2") && !json.to_string().contains("hunter2"));
        assert!(table.contains("environment RAILWEAVE_API_KEY"));
    }
}
