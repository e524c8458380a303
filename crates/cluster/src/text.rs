//! Text that came from a file or a host, made fit for a terminal or a shell.

use std::borrow::Cow;

/// The text with everything that a terminal would act on, or not show, written out: control characters other than line
/// ends and tabs, marks that turn the direction of writing, and characters without width.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) {
            cleaned.extend(c.escape_unicode());
        } else {
            cleaned.push(c);
        }
    }
    Cow::Owned(cleaned)
}

fn acts(c: char) -> bool {
    let invisible = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    invisible || (c.is_control() && c != '\n' && c != '\t')
}

/// A word as a POSIX shell reads it back whole.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_written_out() {
        assert_eq!(clean("\u{1b}[31mred\u{7f}\0\r"), "\\u{1b}[31mred\\u{7f}\\u{0}\\u{d}");
        assert_eq!(clean("a\u{202e}b\u{200b}c\u{9b}"), "a\\u{202e}b\\u{200b}c\\u{9b}");
        let plain = "two\nlines\tof spark0.p0–spark1.p1 √";
        assert!(matches!(clean(plain), Cow::Borrowed(text) if text == plain));
    }

    #[test]
    fn a_word_comes_back_whole_from_a_shell() {
        for word in ["", "plain", "a b", "x;$(id)", "it's", "-n", "\n", "~", "*"] {
            let shell = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(word))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(shell.stdout).unwrap(), word);
        }
    }
}
