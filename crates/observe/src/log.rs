//! Logs: one line an event, to standard error.

use std::io::{self, IsTerminal, Write};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// The variable of the environment that overrides the level.
pub const VARIABLE: &str = "RAILWEAVE_LOG";

/// Logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is malformed.
    #[error(
        "{VARIABLE}=`{value}`: {reason}; use a level (error, warn, info, debug, trace) or target=level, separated by commas"
    )]
    Filter {
        /// The variable's value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something has set up logging before.
    #[error("logging is set up already; call init once for a process")]
    Twice,
}

/// Sends events at `default` and above to standard error, one line each, or as the environment's
/// [`VARIABLE`] says. `None` is quiet: warnings and errors only. Colours only on a terminal.
pub fn init(default: Option<LevelFilter>) -> Result<(), LogError> {
    let filter = filter(default, std::env::var(VARIABLE).ok().as_deref())?;
    let terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(terminal)
        .with_writer(OneLine(io::stderr));
    let done = if terminal { builder.compact().try_init() } else { builder.try_init() };
    done.map_err(|_| LogError::Twice)
}

fn filter(default: Option<LevelFilter>, value: Option<&str>) -> Result<EnvFilter, LogError> {
    let builder =
        EnvFilter::builder().with_default_directive(default.unwrap_or(LevelFilter::WARN).into());
    let value = value.map(str::trim).unwrap_or_default();
    builder
        .parse(value)
        .map_err(|error| LogError::Filter { value: value.to_owned(), reason: error.to_string() })
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
        let text = logged(filter(None, None).unwrap());
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("WARN") && text.contains("two\\nlines") && text.contains("peer=2"));
    }

    #[test]
    fn the_environment_overrides_the_level_and_a_bad_filter_is_named() {
        assert_eq!(logged(filter(None, Some("info")).unwrap()).lines().count(), 2);
        assert_eq!(logged(filter(Some(LevelFilter::INFO), None).unwrap()).lines().count(), 2);
        assert_eq!(logged(filter(Some(LevelFilter::INFO), Some("off")).unwrap()), "");
        let error = filter(None, Some("observe=loud")).unwrap_err().to_string();
        assert!(error.contains("RAILWEAVE_LOG=`observe=loud`"), "{error}");
    }
}
