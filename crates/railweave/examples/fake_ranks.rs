//! The real command line and supervisor over ranks without a model, for tests of everything around a rank.
//!
//! A fake rank answers the paths a rank answers. `GET /abort` ends its process by a signal, `GET /fail` by an error
//! that a restart cannot help, and `GET /deaf` makes it ignore the order to stop.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use railweave::commands::set::Change;
use railweave::events::{Event, EventSink, Note};
use railweave::process::{RankError, RankLaunch};
use railweave::settings::Settings;

fn main() -> ExitCode {
    railweave::cli::run(std::env::args_os(), body)
}

struct Rank {
    number: u32,
    settings: Mutex<Settings>,
    model: String,
    events: EventSink,
    deaf: AtomicBool,
    failed: AtomicBool,
    notes: Mutex<Vec<String>>,
}

fn fail(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> RankError {
    RankError { source: source.into(), retry: false }
}

fn body(launch: RankLaunch) -> Result<(), RankError> {
    let RankLaunch { settings, seat, model, events, notes, stop, .. } = launch;
    let metrics = TcpListener::bind(settings.metrics_of_rank(seat.rank)).map_err(fail)?;
    let api = (seat.rank == 0).then(|| TcpListener::bind(settings.listen)).transpose();
    let api = api.map_err(fail)?;
    if seat.rank == 0 {
        // The meeting point can be listened on, although the supervisor holds it.
        TcpListener::bind(&settings.master).map_err(fail)?;
    }
    let rank = Arc::new(Rank {
        number: seat.rank,
        settings: Mutex::new(settings),
        model: model.name,
        events: events.clone(),
        deaf: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        notes: Mutex::new(Vec::new()),
    });
    for done_bytes in [0, 50, 100] {
        events.send(&Event::Loading { done_bytes, total_bytes: 100 });
    }
    events.send(&Event::Rendezvous { present: seat.ranks, after: None });
    events.send(&Event::Proof { proven: 2, total: 2 });
    let api_address = api.as_ref().map(TcpListener::local_addr).transpose().map_err(fail)?;
    let metrics_address = metrics.local_addr().map_err(fail)?;
    events.send(&Event::Listening { metrics: metrics_address, api: api_address });
    for listener in api.into_iter().chain([metrics]) {
        let rank = Arc::clone(&rank);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(&rank, stream);
            }
        });
    }
    let mut epoch = 1;
    events.send(&Event::Ready { epoch });
    eprintln!("fake rank {} serves", seat.rank);
    while !stop.wait_timeout(Duration::from_millis(10)) || rank.deaf.load(Ordering::Relaxed) {
        for note in notes.try_iter() {
            if matches!(note, Note::Restarted { .. }) {
                epoch += 1;
                events.send(&Event::Reformed { epoch });
            }
            let text = serde_json::to_string(&note).unwrap_or_default();
            rank.notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
        if rank.failed.load(Ordering::Relaxed) {
            return Err(fail("the fake model is gone"));
        }
    }
    Ok(())
}

fn answer(rank: &Rank, mut stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        head.push_str(&line);
    }
    let mut request = vec![0; length];
    reader.read_exact(&mut request)?;
    let path = head.split_whitespace().nth(1).unwrap_or_default();
    let (status, kind, text) = respond(rank, path, &request);
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    )
}

fn respond(rank: &Rank, path: &str, request: &[u8]) -> (u16, &'static str, String) {
    let json = "application/json";
    match path {
        "/readyz" => (200, json, "{}".to_owned()),
        "/progress" => {
            let notes = rank.notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let progress = serde_json::json!({
                "status": "idle", "state": "idle", "rank": rank.number, "pid": std::process::id(),
                "phase": "idle", "epoch": 1, "sequence": 7, "notes": notes,
            });
            (200, json, progress.to_string())
        }
        "/settings" => {
            let mut settings = rank.settings.lock().unwrap_or_else(PoisonError::into_inner);
            let Ok(change) = serde_json::from_slice::<Change>(request) else {
                return (400, json, r#"{"error":{"message":"not a change"}}"#.to_owned());
            };
            match change.apply(&mut settings) {
                Ok((_, changed)) => {
                    let (key, value) = (changed.key.clone(), changed.new.clone());
                    rank.events.send(&Event::Setting { key, value });
                    (200, json, serde_json::json!(changed).to_string())
                }
                Err(error) => {
                    let text = serde_json::json!({"error": {"message": error.to_string()}});
                    (400, json, text.to_string())
                }
            }
        }
        "/v1/models" => {
            (200, json, serde_json::json!({ "data": [{ "id": rank.model }] }).to_string())
        }
        "/v1/chat/completions" => {
            let chunk = |text: &str| {
                format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
            };
            let usage = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":2}}\n\n";
            let text = format!("{}{}{usage}data: [DONE]\n\n", chunk("Par"), chunk("is."));
            (200, "text/event-stream", text)
        }
        "/abort" => std::process::abort(),
        "/fail" => {
            rank.failed.store(true, Ordering::Relaxed);
            (200, json, "{}".to_owned())
        }
        "/deaf" => {
            rank.deaf.store(true, Ordering::Relaxed);
            (200, json, "{}".to_owned())
        }
        _ => (404, json, "{}".to_owned()),
    }
}
