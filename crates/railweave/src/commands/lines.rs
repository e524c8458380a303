//! What child processes print, line by line.

use std::io::{self, BufRead as _, BufReader, Read};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// Reads lines on a thread of this name, until there are no more or nobody wants them. A line is cut at `bytes_max`, and
/// at most `waiting` wait to be looked at.
///
/// # Errors
/// The system refuses the thread.
pub(crate) fn read_lines(
    name: String,
    output: impl Read + Send + 'static,
    bytes_max: u64,
    waiting: usize,
) -> io::Result<Receiver<Vec<u8>>> {
    let (send, lines) = sync_channel(waiting);
    let read = move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            match output.by_ref().take(bytes_max).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if send.send(line).is_err() => return,
                Ok(_) => {}
            }
        }
    };
    thread::Builder::new().name(name).spawn(read)?;
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_or_cut_and_then_end() {
        let lines = read_lines("lines".to_owned(), &b"one\ntwo-and-more\n"[..], 8, 1).unwrap();
        let all: Vec<_> = lines.iter().collect();
        assert_eq!(all, [&b"one\n"[..], b"two-and-", b"more\n"]);
    }
}
