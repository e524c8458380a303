//! The bytes behind tokens, and how they become text.

use super::Tokenizer;

/// The bytes of every token, one after the other.
#[derive(Debug, Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    pub(super) fn push(&mut self, bytes: impl IntoIterator<Item = u8>) {
        self.bytes.extend(bytes);
        self.ends.push(self.bytes.len());
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of `token`; none for a token that does not exist.
    pub(super) fn get(&self, token: u32) -> &[u8] {
        let token = token as usize;
        let Some(&end) = self.ends.get(token) else { return &[] };
        let start = token.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }
}

/// The bytes of a token in the spelling of byte-level BPE, where every byte is one printable character.
pub(super) fn spelled_bytes(spelling: &str) -> Vec<u8> {
    spelling.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| spelling.into())
}

/// Bytes that are printable stand for themselves; the others, in order, are the characters from U+0100.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121) as u8 + 0x7f),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// How byte-level BPE spells `byte`.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn spelling_of(byte: u8) -> char {
    // Every byte is spelled by exactly one character below U+0144.
    ('!'..='\u{143}').find(|&character| byte_of(character) == Some(byte)).unwrap_or('\u{fffd}')
}

/// Turns tokens into text as they arrive, never splitting a character.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    /// The start of a character whose end has not arrived: at most three bytes.
    pending: Vec<u8>,
}

impl StreamDecoder {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, pending: Vec::new() }
    }

    /// The text that `token` completes; empty while a character is incomplete.
    pub fn push(&mut self, token: u32) -> String {
        self.pending.extend_from_slice(self.tokenizer.bytes(token));
        take_text(&mut self.pending)
    }

    /// What is left at the end: U+FFFD for an incomplete character, else nothing.
    pub fn finish(&mut self) -> String {
        let left = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        left
    }
}

/// Takes the complete characters from the front of `bytes`; what can become no character becomes U+FFFD.
fn take_text(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        let open = taken + invalid.len() == bytes.len()
            && str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if invalid.is_empty() || open {
            break;
        }
        text.push('\u{fffd}');
        taken += invalid.len();
    }
    bytes.drain(..taken);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_byte_has_its_own_spelling() {
        let spelled: BTreeSet<char> = (0..=255).map(spelling_of).collect();
        assert_eq!(spelled.len(), 256);
        for (byte, character) in [(b'a', 'a'), (b' ', 'Ġ'), (b'\n', 'Ċ'), (0, 'Ā'), (0xad, 'Ń')]
        {
            assert_eq!(spelling_of(byte), character);
            assert_eq!(spelled_bytes(&character.to_string()), [byte]);
        }
    }

    #[test]
    fn text_is_taken_up_to_an_open_character() {
        let mut pending = b"a\xf0\x9f".to_vec();
        assert_eq!(take_text(&mut pending), "a");
        assert_eq!(pending, b"\xf0\x9f");
        pending.extend(b"\x98\x80!\xc3");
        assert_eq!(take_text(&mut pending), "😀!");
        pending.push(b'x');
        assert_eq!(take_text(&mut pending), "\u{fffd}x");
        pending.extend(b"\xff\xff");
        assert_eq!(take_text(&mut pending), "\u{fffd}\u{fffd}");
        assert!(pending.is_empty());
    }
}
