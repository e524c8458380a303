//! What a rank and its supervisor say to each other: JSON, one message a line.
//!
//! A rank writes [`Event`]s to its standard output. The supervisor writes the settings and then [`Note`]s to the
//! rank's standard input; the end of that input is the order to stop.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Longest line either side accepts, in bytes.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// What kind of cause a verdict names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// The rank's process is gone.
    Dead,
    /// The rank sends no heartbeat.
    Silent,
    /// The rank is alive and stays in one phase.
    Stalled,
    /// Bytes do not cross a path.
    PathBroken,
    /// Ranks have different settings.
    ConfigurationDiffers,
    /// Ranks are inside different operations, or wait for each other in a circle.
    RanksDisagree,
    /// A limit was reached.
    OutOfCapacity,
    /// Nothing went wrong: another epoch was asked for.
    Requested,
    /// The cause is not known.
    Unknown,
}

/// What a rank tells its supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The model is being loaded.
    Loading {
        /// Bytes loaded.
        done_bytes: u64,
        /// Bytes to load.
        total_bytes: u64,
    },
    /// Ranks are meeting.
    Rendezvous {
        /// Ranks that are there, this one included.
        present: u32,
        /// The epoch that ended, if this is not the first meeting.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
    },
    /// Paths are being proven.
    Proof {
        /// Paths that carried bytes both ways.
        proven: u32,
        /// Paths to prove.
        total: u32,
    },
    /// What carries the bytes was decided.
    Carrier {
        /// The transport.
        transport: String,
        /// Why it is this one, in one line.
        why: String,
    },
    /// The rank answers HTTP.
    Listening {
        /// Where it serves metrics and health.
        metrics: SocketAddr,
        /// Where it serves the API: rank 0 only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        api: Option<SocketAddr>,
    },
    /// A token crossed every rank: requests can be served.
    Ready {
        /// The group's epoch.
        epoch: u64,
    },
    /// A wait outlasted its patience, and the group agreed on the cause.
    Verdict {
        /// The epoch that ended.
        epoch: u64,
        /// The kind of cause.
        kind: VerdictKind,
        /// The rank it names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rank: Option<u32>,
        /// The whole verdict in one readable line.
        text: String,
    },
    /// The group formed again, and this rank is part of it.
    Reformed {
        /// The new epoch.
        epoch: u64,
    },
    /// A setting was changed while serving; a rank started later gets the new value.
    Setting {
        /// The key.
        key: String,
        /// The new value, as text.
        value: String,
    },
    /// The rank cannot go on and is about to exit.
    Failed {
        /// What failed, with its causes and the next step.
        error: String,
        /// Whether starting the rank again could help.
        retry: bool,
    },
    /// The rank stopped in order and is about to exit.
    Stopped,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// In a way the system did not tell.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => match signal_hook::low_level::signal_name(*number) {
                Some(name) => write!(f, "signal {number} ({name})"),
                None => write!(f, "signal {number}"),
            },
            Self::Unknown => f.write_str("an unknown end"),
        }
    }
}

/// What the supervisor tells a rank after its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// A rank's process ended: evidence for a verdict about it.
    Exited {
        /// The rank.
        rank: u32,
        /// How it ended.
        exit: Exit,
    },
    /// A rank's process was started again.
    Restarted {
        /// The rank.
        rank: u32,
    },
}

/// Where a rank writes its events. Cheap to clone; threads may share it.
#[derive(Clone)]
pub struct EventSink(Option<Sink>);

#[derive(Clone)]
struct Sink {
    writer: Arc<Mutex<Box<dyn Write + Send>>>,
    /// Whom a person at a rank without a supervisor takes this process for; none writes JSON.
    rank: Option<u32>,
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "EventSink(open)" } else { "EventSink(nobody)" })
    }
}

impl EventSink {
    /// A sink that writes lines.
    #[must_use]
    pub fn to(writer: Box<dyn Write + Send>) -> Self {
        Self(Some(Sink { writer: Arc::new(Mutex::new(writer)), rank: None }))
    }

    /// A sink that tells a person what matters of `rank`, which has no supervisor to do so.
    #[must_use]
    pub fn person(writer: Box<dyn Write + Send>, rank: u32) -> Self {
        Self(Some(Sink { writer: Arc::new(Mutex::new(writer)), rank: Some(rank) }))
    }

    /// A sink without a reader.
    #[must_use]
    pub fn nobody() -> Self {
        Self(None)
    }

    /// Writes one event. A reader that is gone is not an error here: the end of standard input tells it.
    pub fn send(&self, event: &Event) {
        let Some(Sink { writer, rank }) = &self.0 else { return };
        let line = match rank {
            None => serde_json::to_vec(event).ok(),
            Some(rank) => in_words(*rank, event).map(String::into_bytes),
        };
        let Some(mut line) = line else { return };
        line.push(b'\n');
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.write_all(&line).and_then(|()| writer.flush());
    }
}

/// What carries the bytes, and why, for a person.
pub(crate) fn carried(transport: &str, why: &str) -> String {
    format!("bytes travel by {transport}: {why}")
}

/// What a person at a rank wants to know: where it serves, and that it does.
fn in_words(rank: u32, event: &Event) -> Option<String> {
    Some(match event {
        Event::Rendezvous { after: None, .. } => format!("rank {rank} waits for the other ranks"),
        Event::Carrier { transport, why } => carried(transport, why),
        Event::Listening { metrics, api: Some(api) } => {
            format!("rank {rank} serves http://{api}/v1, metrics at http://{metrics}/metrics")
        }
        Event::Listening { metrics, api: None } => {
            format!("rank {rank} serves metrics at http://{metrics}/metrics")
        }
        Event::Ready { epoch } => format!("rank {rank} is ready, epoch {epoch}"),
        Event::Reformed { epoch } => format!("rank {rank} is in the group again, epoch {epoch}"),
        // A verdict is in the log.
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_a_stable_form() {
        let verdict = Event::Verdict {
            epoch: 3,
            kind: VerdictKind::Silent,
            rank: Some(2),
            text: "rank 2 is silent".to_owned(),
        };
        assert_eq!(
            serde_json::to_string(&verdict).unwrap(),
            r#"{"event":"verdict","epoch":3,"kind":"silent","rank":2,"text":"rank 2 is silent"}"#
        );
        assert_eq!(serde_json::to_string(&Event::Stopped).unwrap(), r#"{"event":"stopped"}"#);
        let note = Note::Exited { rank: 1, exit: Exit::Signal(9) };
        assert_eq!(
            serde_json::to_string(&note).unwrap(),
            r#"{"note":"exited","rank":1,"exit":{"signal":9}}"#
        );
    }

    #[test]
    fn a_person_hears_what_matters() {
        #[derive(Clone, Default)]
        struct Page(Arc<Mutex<Vec<u8>>>);
        impl Write for Page {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let page = Page::default();
        let sink = EventSink::person(Box::new(page.clone()), 2);
        sink.send(&Event::Loading { done_bytes: 1, total_bytes: 2 });
        let metrics = "127.0.0.1:9402".parse().unwrap();
        sink.send(&Event::Listening { metrics, api: None });
        sink.send(&Event::Ready { epoch: 1 });
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "rank 2 serves metrics at http://127.0.0.1:9402/metrics\nrank 2 is ready, epoch 1\n"
        );
    }

    #[test]
    fn an_exit_reads_well() {
        assert_eq!(Exit::Signal(9).to_string(), "signal 9 (SIGKILL)");
        assert_eq!(Exit::Code(1).to_string(), "exit code 1");
    }
}
