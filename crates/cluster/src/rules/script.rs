//! Changes as a script that a person can read and run, and as a short list.

use super::change::Change;
use crate::text::quoted;

/// One line of a comment: nothing in it can end the line.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A POSIX shell script that carries out the changes in order, as root. It stops at the first step that fails and
/// names it. Every step has a comment that says why, and one command.
pub fn script(changes: &[Change]) -> String {
    let total = changes.len();
    let mut text = String::from("#!/bin/sh\n");
    text.push_str(&match total {
        0 => "# Railweave: nothing to change.\n".to_owned(),
        1 => "# Railweave: 1 step. Run as root.\n".to_owned(),
        _ => format!("# Railweave: {total} steps, in this order. Run as root.\n"),
    });
    text.push_str("set -eu\n");
    if total == 0 {
        return text;
    }
    text.push_str("at=0\n");
    text.push_str(&format!(
        "trap 'test $? -eq 0 || echo \"railweave: step $at of {total} failed; later steps were not tried\" >&2' EXIT\n"
    ));
    for (number, change) in changes.iter().enumerate() {
        let command: Vec<_> = change.argv().iter().map(|word| quoted(word)).collect();
        text.push_str(&format!(
            "\n# {step}. {why}\nat={step}\n{command}\n",
            step = number + 1,
            why = comment(&change.explain()),
            command = command.join(" "),
        ));
    }
    text
}

/// One line for each change: see [`Change::diff`].
pub fn diff(changes: &[Change]) -> String {
    changes.iter().map(|change| comment(&change.diff()) + "\n").collect()
}
