//! A recording without secrets, for bug reports.

use std::net::IpAddr;

use super::Recording;
use super::recording::ToolOutput;

/// What stands where something was left out.
const LEFT_OUT: &str = "[left out]";

/// Parts of a variable's or an option's name that say its value is a secret.
const SECRET: &[&str] = &[
    "token",
    "key",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "psk",
    "credential",
    "cookie",
    "auth",
    "bearer",
];

/// Tools whose output is text for people, in which any word may hold a secret.
const PROSE: &[&str] = &["markers", "environment", "iptables-FORWARD", "iptables-DOCKER-USER"];

/// The recording with values of secret names, and addresses that are routed in the Internet, left out. Host names,
/// hardware addresses and private addresses stay: a report is of no use without them.
pub(super) fn redacted(recording: &Recording) -> Recording {
    let mut copy = recording.clone();
    for content in copy.files.values_mut() {
        *content = without_secrets(content);
    }
    for (name, output) in &mut copy.tools {
        let (ToolOutput::Printed(text) | ToolOutput::Failed(text)) = output;
        *text = if PROSE.contains(&name.as_str()) {
            without_secrets(text)
        } else {
            without_public(text)
        };
    }
    copy
}

fn without_secrets(text: &str) -> String {
    without_public(&without_secret_values(text))
}

/// Whether a name is a secret's.
fn secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET.iter().any(|part| name.contains(part))
}

/// Leaves out what follows a secret's name: after `=` or `:` in the same word, or as the word after an option.
fn without_secret_values(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut next_is_secret = false;
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end();
        let space = piece.get(word.len()..).unwrap_or_default();
        if word == "arg" {
            // The label of an argument's line is no argument.
            out.push_str(piece);
            continue;
        }
        if next_is_secret && !word.is_empty() {
            out.push_str(LEFT_OUT);
            next_is_secret = false;
        } else if let Some((name, value)) =
            word.split_once(['=', ':']).filter(|(name, _)| secret(name))
        {
            out.push_str(name);
            out.push(if word.as_bytes().get(name.len()) == Some(&b':') { ':' } else { '=' });
            if value.is_empty() {
                next_is_secret = true;
            } else {
                out.push_str(LEFT_OUT);
            }
        } else {
            next_is_secret = word.starts_with('-') && secret(word);
            out.push_str(word);
        }
        out.push_str(space);
    }
    out
}

/// Leaves out addresses that are routed in the Internet.
fn without_public(text: &str) -> String {
    let part = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(part) {
        let (before, tail) = rest.split_at(start);
        let length = tail.find(|c| !part(c)).unwrap_or(tail.len());
        let (found, after) = tail.split_at(length);
        out.push_str(before);
        // `rocep1s0f0` and `6.17.0-1014` hold hexadecimal digits too.
        let within_word = before
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '_'))
            || after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let (address, end) = split_address(found);
        if !within_word && address.parse::<IpAddr>().is_ok_and(public) {
            out.push_str(LEFT_OUT);
            out.push_str(end);
        } else {
            out.push_str(found);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// An address, and the port or punctuation after it.
fn split_address(found: &str) -> (&str, &str) {
    let address = match found.split_once(':') {
        Some((four, port)) if four.contains('.') && !port.contains(':') => four,
        _ => found,
    };
    let address =
        if address.ends_with("::") { address } else { address.trim_end_matches(['.', ':']) };
    (address, found.get(address.len()..).unwrap_or_default())
}

/// Whether an address is routed in the Internet.
fn public(ip: IpAddr) -> bool {
    let ip = match ip {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => ip,
            // 2000::/3 is what is routed; 2001:db8::/32 is for documents.
            None => return ip.segments()[0] >> 13 == 1 && ip.segments()[..2] != [0x2001, 0xdb8],
        },
    };
    let [a, b, ..] = ip.octets();
    let shared = a == 100 && (64..128).contains(&b);
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_unspecified()
        || ip.is_broadcast()
        || ip.is_documentation()
        || shared
        || a == 0
        || a >= 240)
}

#[cfg(test)]
#[path = "redact_tests.rs"]
mod tests;
