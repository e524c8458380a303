//! Reading what the capture script printed.

use super::Recording;
use super::capture::{FILE_LIMIT_BYTES, HEADER, TOTAL_LIMIT_BYTES};
use super::recording::{ToolOutput, safe_name, safe_path};

/// Frames of one capture at most.
const FRAMES_LIMIT: usize = 100_000;

/// Bytes of a frame's first line at most.
const HEAD_LIMIT_BYTES: usize = 1024;

/// Why the output of a capture could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// It is something else.
    #[error(
        "this is no capture: it starts with {start:?} instead of {HEADER:?}; does the login shell print text of its own?"
    )]
    NotACapture {
        /// Its first bytes.
        start: String,
    },
    /// It is longer than is read.
    #[error("the capture has {bytes} bytes, more than the {limit} that are read")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame is malformed.
    #[error("the capture is malformed at byte {at}: {what}")]
    Frame {
        /// Where, in bytes.
        at: usize,
        /// What is wrong.
        what: String,
    },
    /// It ends early.
    #[error(
        "the capture ends at byte {at} without its last frame: the connection or the script was cut off; try again"
    )]
    CutOff {
        /// Where, in bytes.
        at: usize,
    },
}

/// Reads what the script printed. Bytes that are not UTF-8 are replaced, as no file of interest holds any.
///
/// # Errors
///
/// If it is no capture, is cut off, is too long, or names a path that could lead outside of a recording's folder.
pub fn parse(output: &[u8]) -> Result<Recording, CaptureError> {
    // Room for the frames' first lines beside their content.
    let limit = TOTAL_LIMIT_BYTES.saturating_mul(2);
    if output.len() > limit {
        return Err(CaptureError::TooLong { bytes: output.len(), limit });
    }
    let mut reader = Reader { output, at: 0 };
    let first = reader.line();
    if first != Some(HEADER.as_bytes()) {
        let start = output.get(..output.len().min(80)).unwrap_or_default();
        return Err(CaptureError::NotACapture {
            start: String::from_utf8_lossy(start).into_owned(),
        });
    }
    let mut recording = Recording::default();
    for _ in 0..FRAMES_LIMIT {
        let at = reader.at;
        let wrong = |what: String| CaptureError::Frame { at, what };
        let head = reader.line().ok_or(CaptureError::CutOff { at })?;
        let head = std::str::from_utf8(head)
            .map_err(|_| wrong("a first line that is not text".to_owned()))?;
        let (kind, name, length) =
            split_head(head).ok_or_else(|| wrong(format!("{head:?} is not KIND NAME LENGTH")))?;
        if length > FILE_LIMIT_BYTES {
            return Err(wrong(format!("{name} has {length} bytes, more than {FILE_LIMIT_BYTES}")));
        }
        let content = reader.take(length).ok_or(CaptureError::CutOff { at })?;
        let content = String::from_utf8_lossy(content).into_owned();
        match kind {
            "Z" => return Ok(recording),
            "F" | "L" => {
                safe_path(name).map_err(&wrong)?;
                let part = if kind == "F" { &mut recording.files } else { &mut recording.links };
                part.insert(name.to_owned(), content);
            }
            "T" | "X" => {
                safe_name(name).map_err(&wrong)?;
                let output = if kind == "T" {
                    ToolOutput::Printed(content)
                } else {
                    ToolOutput::Failed(content)
                };
                recording.tools.insert(name.to_owned(), output);
            }
            _ => return Err(wrong(format!("{kind:?} is no kind of frame"))),
        }
    }
    Err(CaptureError::Frame { at: reader.at, what: format!("more than {FRAMES_LIMIT} frames") })
}

/// `KIND NAME LENGTH`.
fn split_head(head: &str) -> Option<(&str, &str, usize)> {
    let (kind, rest) = head.split_once(' ')?;
    let (name, length) = rest.rsplit_once(' ')?;
    Some((kind, name, length.parse().ok()?))
}

struct Reader<'a> {
    output: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The next line, without its end.
    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = self.output.get(self.at..)?;
        let end = rest.iter().take(HEAD_LIMIT_BYTES).position(|byte| *byte == b'\n')?;
        self.at += end + 1;
        rest.get(..end)
    }

    /// That many bytes, and the newline after them.
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let rest = self.output.get(self.at..)?;
        let content = rest.get(..length)?;
        if rest.get(length) != Some(&b'\n') {
            return None;
        }
        self.at += length + 1;
        Some(content)
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
