//! A host over which nothing more can be proven, and what hosts print, made fit to be shown.

use cluster::text::clean;
use serde::{Deserialize, Serialize};

use super::crew::AgentError;

/// How much is shown of what a host printed.
const SHOWN_CHARS_MAX: usize = 120;

/// Why nothing can be proven over a host: its program is gone, or was never there. That says nothing about a cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lost {
    /// In a few words, for each rail over the host.
    pub(super) what: String,
    /// The whole of it, said once.
    pub(super) why: String,
    /// What a person does next.
    pub(super) next: String,
}

impl Lost {
    /// The agent on a host was there, and is of no use any more.
    pub(super) fn of(host: &str, error: &AgentError) -> Self {
        let (what, next) = match error {
            AgentError::Start { .. } => {
                ("its agent cannot be started", format!("see whether {host} can be reached"))
            }
            AgentError::Gone { .. } => {
                ("its agent ended", format!("see whether {host} is up and runs this railweave"))
            }
            AgentError::Version { .. } => {
                ("its agent is another version", "install the same railweave on both".to_owned())
            }
            AgentError::Late { .. } => (
                "its agent does not answer",
                format!("see whether {host} hangs, or its `railweave agent` was stopped"),
            ),
            AgentError::Nonsense { .. } => (
                "its agent says what makes no sense",
                format!("see what else prints when a command starts on {host}, such as its shell"),
            ),
        };
        Self::because(what, error.to_string(), next)
    }

    /// The agent on a host did not begin; `hint` is what else to do.
    pub(super) fn at_start(host: &str, error: &AgentError, hint: &str) -> Self {
        let mut lost = Self::of(host, error);
        if matches!(error, AgentError::Gone { .. } | AgentError::Late { .. }) {
            lost.what = "its agent did not start".to_owned();
        }
        lost.next.push_str(hint);
        lost
    }

    /// There was no way to try.
    pub(super) fn because(what: &str, why: String, next: String) -> Self {
        Self { what: what.to_owned(), why, next }
    }
}

/// The beginning of what a host printed, on one line and with nothing a terminal would act on.
pub(super) fn beginning(text: &str) -> String {
    let mut shown = String::new();
    let mut room = SHOWN_CHARS_MAX;
    for c in text.trim().chars() {
        let piece = piece(c);
        let Some(left) = room.checked_sub(piece.chars().count()) else {
            shown.push('…');
            break;
        };
        room = left;
        shown.push_str(&piece);
    }
    shown
}

/// The end of it, which is where programs say why they end.
pub(super) fn end(text: &str) -> String {
    let mut pieces = Vec::new();
    let mut room = SHOWN_CHARS_MAX;
    for c in text.trim().chars().rev() {
        let piece = piece(c);
        let Some(left) = room.checked_sub(piece.chars().count()) else {
            pieces.push("…".to_owned());
            break;
        };
        room = left;
        pieces.push(piece);
    }
    pieces.into_iter().rev().collect()
}

fn piece(c: char) -> String {
    match c {
        '\n' => "; ".to_owned(),
        '\t' => " ".to_owned(),
        _ => clean(c.encode_utf8(&mut [0; 4])).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_written_out_on_one_line() {
        let text = " \u{1b}]0;x\u{7}a\0b\nc\td\u{202e}\u{2066}\u{200b}e\r\n";
        let shown = "\\u{1b}]0;x\\u{7}a\\u{0}b; c d\\u{202e}\\u{2066}\\u{200b}e";
        assert_eq!(beginning(text), shown);
        assert_eq!(end(text), shown);
        assert_eq!(beginning("h0.p0–h1.p1 √"), "h0.p0–h1.p1 √");
    }

    #[test]
    fn what_is_long_is_cut_and_no_escape_is_cut_in_two() {
        let long = format!("{}{}", "x".repeat(117), "\u{1b}y");
        assert_eq!(beginning(&long), format!("{}…", "x".repeat(117)));
        let long = format!("y\u{1b}{}", "x".repeat(117));
        assert_eq!(end(&long), format!("…{}", "x".repeat(117)));
        assert_eq!(beginning(&"x".repeat(120)), "x".repeat(120));
        assert_eq!(end(&"\0".repeat(100_000)).chars().count(), 1 + 24 * 5);
    }
}
