//! From text to a cluster file and back.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::error::{FileError, nearest};
use super::{ClusterFile, Forward, MAX_BYTES, MarkerKind, SCHEMA, TagKind};

/// Tables of the file, and the keys of each: the name of the table, its keys, and the tables inside it.
struct Known {
    place: &'static str,
    keys: &'static [&'static str],
    inside: &'static [(&'static str, Self)],
}

const FUNCTION: Known = Known {
    place: "[[host.port.function]]",
    keys: &["mac", "address", "netdev", "rdma", "pci"],
    inside: &[],
};
const PORT: Known = Known {
    place: "[[host.port]]",
    keys: &["name", "function"],
    inside: &[("function", FUNCTION)],
};
const HOST: Known = Known {
    place: "[[host]]",
    keys: &["name", "reach", "control", "port"],
    inside: &[("port", PORT)],
};
const FILE: Known = Known {
    place: "the file",
    keys: &["schema", "forward", "tag", "marker", "mtu_bytes", "host", "switch", "cable", "route"],
    inside: &[
        ("host", HOST),
        ("switch", Known { place: "[[switch]]", keys: &["name"], inside: &[] }),
        ("cable", Known { place: "[[cable]]", keys: &["a", "b"], inside: &[] }),
        (
            "route",
            Known {
                place: "[[route]]",
                keys: &["from", "to", "via", "kind", "rails"],
                inside: &[],
            },
        ),
    ],
};

fn check_keys(table: &Table, known: &Known) -> Result<(), FileError> {
    for (key, value) in table {
        if !known.keys.contains(&key.as_str()) {
            return Err(FileError::UnknownKey {
                place: known.place,
                key: key.chars().take(80).collect(),
                nearest: nearest(key, known.keys.iter().copied()),
                known: known.keys.join(", "),
            });
        }
        let Some((_, inside)) = known.inside.iter().find(|(name, _)| name == key) else { continue };
        match value {
            Value::Array(entries) => {
                for table in entries.iter().filter_map(Value::as_table) {
                    check_keys(table, inside)?;
                }
            }
            Value::Table(table) => check_keys(table, inside)?,
            _ => {}
        }
    }
    Ok(())
}

impl ClusterFile {
    /// Reads and validates a cluster file.
    ///
    /// # Errors
    ///
    /// [`FileError`] for text over [`MAX_BYTES`], what is not TOML, unknown keys and schemas, and everything
    /// [`Self::validate`] refuses.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        if text.len() > MAX_BYTES {
            return Err(FileError::TooLong { bytes: text.len() });
        }
        let table: Table = toml::from_str(text)?;
        // The schema first: with another one, other keys may be right.
        if let Some(found) = table.get("schema").and_then(Value::as_str)
            && found != SCHEMA
        {
            return Err(FileError::UnknownSchema { found: found.chars().take(80).collect() });
        }
        check_keys(&table, &FILE)?;
        let file: Self = toml::from_str(text)?;
        file.validate()?;
        Ok(file)
    }

    /// The file as text: the same text for equal files, and [`Self::parse`] gives an equal file back.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let forward = match self.forward {
            Forward::Off => "off",
            Forward::Auto => "auto",
            Forward::Required => "required",
        };
        let tag = match self.tag {
            TagKind::Destination => "destination",
            TagKind::SourcePort => "source-port",
        };
        writeln!(out, "schema = {}", quoted(&self.schema))?;
        writeln!(out, "forward = \"{forward}\"\ntag = \"{tag}\"")?;
        if self.marker == MarkerKind::Tc {
            writeln!(out, "marker = \"tc\"")?;
        }
        writeln!(out, "mtu_bytes = {}", self.mtu_bytes)?;
        for host in &self.hosts {
            writeln!(
                out,
                "\n[[host]]\nname = {}\nreach = {}",
                quoted(&host.name),
                quoted(&host.reach)
            )?;
            if let Some(control) = &host.control {
                writeln!(out, "control = {}", quoted(control))?;
            }
            for port in &host.ports {
                writeln!(out, "\n[[host.port]]\nname = {}", quoted(&port.name))?;
                for function in &port.functions {
                    writeln!(out, "\n[[host.port.function]]\nmac = \"{}\"", function.mac)?;
                    if let Some(address) = function.address {
                        writeln!(out, "address = \"{address}\"")?;
                    }
                    writeln!(out, "netdev = {}", quoted(&function.netdev))?;
                    if let Some(rdma) = &function.rdma {
                        writeln!(out, "rdma = {}", quoted(rdma))?;
                    }
                    if let Some(pci) = function.pci {
                        writeln!(out, "pci = \"{pci}\"")?;
                    }
                }
            }
        }
        for switch in &self.switches {
            writeln!(out, "\n[[switch]]\nname = {}", quoted(&switch.name))?;
        }
        for cable in &self.cables {
            writeln!(out, "\n[[cable]]\na = {}\nb = {}", quoted(&cable.a), quoted(&cable.b))?;
        }
        for route in &self.routes {
            writeln!(
                out,
                "\n[[route]]\nfrom = {}\nto = {}",
                quoted(&route.from),
                quoted(&route.to)
            )?;
            if !route.via.is_empty() {
                let via: Vec<String> = route.via.iter().map(|host| quoted(host)).collect();
                writeln!(out, "via = [{}]", via.join(", "))?;
            }
            if let Some(kind) = &route.kind {
                writeln!(out, "kind = {}", quoted(kind))?;
            }
            if !route.rails.is_empty() {
                let rails: Vec<String> = route.rails.iter().map(ToString::to_string).collect();
                writeln!(out, "rails = [{}]", rails.join(", "))?;
            }
        }
        Ok(())
    }
}

/// A TOML string on one line.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            control if control.is_control() => {
                // Writing to a string cannot fail.
                let _ = write!(quoted, "\\U{:08X}", u32::from(control));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}
