//! Logs: one line an event, to standard error.

use std::io::{self, IsTerminal, Write};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is malformed.
    #[error(
        "{part:?} is no log filter; use a level (error, warn, info, debug, trace, off) or target=level, separated by commas"
    )]
    Filter {
        /// The part of the filter that is wrong.
        part: String,
    },
    /// Something has set up logging before.
    #[error("logging is set up already; call init once for a process")]
    Twice,
}

/// Sends events to standard error, one line each, as `filter` says: levels and `target=level` pairs, separated by
/// commas; empty is quiet, warnings and errors only. Colours only on a terminal.
pub fn init(filter: &str) -> Result<(), LogError> {
    let filter = parse(filter)?;
    let terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(terminal)
        .with_writer(OneLine(io::stderr));
    let done = if terminal { builder.compact().try_init() } else { builder.try_init() };
    done.map_err(|_| LogError::Twice)
}

/// Whether [`init`] would take a filter.
pub fn check(filter: &str) -> Result<(), LogError> {
    parse(filter).map(drop)
}

fn parse(text: &str) -> Result<EnvFilter, LogError> {
    let mut filter = EnvFilter::default().add_directive(LevelFilter::WARN.into());
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let wrong = || LogError::Filter { part: part.to_owned() };
        // A bare word that is no level would be taken for a target, and everything else silenced.
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        level.parse::<LevelFilter>().map_err(|_| wrong())?;
        filter = filter.add_directive(part.parse().map_err(|_| wrong())?);
    }
    Ok(filter)
}

/// Wraps a maker of writers so that an event stays one line whatever its texts hold.
#[derive(Debug)]
struct OneLine<M>(M);

#[derive(Debug)]
struct OneLineWriter<W>(W);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for OneLine<M> {
    type Writer = OneLineWriter<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLineWriter(self.0.make_writer())
    }
}

impl<W: Write> Write for OneLineWriter<W> {
    /// The formatter hands over a whole event at once, ended by a line feed.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let body = event.strip_suffix(b"\n").unwrap_or(event);
        if body.contains(&b'\n') || body.contains(&b'\r') {
            let mut line = Vec::with_capacity(event.len() + 16);
            for byte in body {
                match byte {
                    b'\n' => line.extend_from_slice(b"\\n"),
                    b'\r' => line.extend_from_slice(b"\\r"),
                    other => line.push(*other),
                }
            }
            line.extend_from_slice(&event[body.len()..]);
            self.0.write_all(&line)?;
        } else {
            self.0.write_all(event)?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(filter: EnvFilter) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(false)
            .with_writer(OneLine(move || writer.clone()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("quiet");
            tracing::warn!(peer = 2, text = %"a\nb", "two\nlines");
        });
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn quiet_by_default_and_one_line_an_event() {
        let text = logged(parse("").unwrap());
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("WARN") && text.contains("two\\nlines") && text.contains("peer=2"));
    }

    #[test]
    fn levels_and_targets_are_taken_and_anything_else_is_named() {
        assert_eq!(logged(parse("info").unwrap()).lines().count(), 2);
        assert_eq!(logged(parse("elsewhere=debug").unwrap()).lines().count(), 1);
        assert_eq!(logged(parse("error, observe=info").unwrap()).lines().count(), 2);
        assert_eq!(logged(parse("off").unwrap()), "");
        for wrong in ["nonsense", "observe=loud", "info,nonsense"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("is no log filter"), "{error}");
        }
    }
}
