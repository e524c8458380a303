//! A server of the API on a loopback socket, with a model that has no weights, and a plain HTTP client.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

#[path = "../serving_fakes/mod.rs"]
pub mod serving_fakes;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use engine::api::{Api, ApiSettings, not_found, router};
use engine::communicator::Solo;
use engine::serving::{Lead, Limits, Observer, Outcome, RequestQueue, Settings};
use serde_json::{Value, json};
use serving_fakes::{Bytes, FakeModel, Says};

pub const LIMITS: Limits =
    Limits { slots: 2, context_tokens: 100, kv_tokens: 200, kv_block_tokens: 1 };

#[derive(Default)]
pub struct Seen {
    pub finished: Mutex<Vec<Outcome>>,
    pub refused: AtomicUsize,
}

impl Observer for Seen {
    fn finished(&self, outcome: Outcome) {
        self.finished.lock().unwrap().push(outcome);
    }
    fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub queue: Arc<RequestQueue>,
    pub seen: Arc<Seen>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.queue.close();
        drop(self.stop.take());
        for thread in self.threads.drain(..) {
            let joined = thread.join();
            assert!(joined.is_ok() || thread::panicking());
        }
    }
}

/// A server whose model says `says`, a step taking `step_takes`; without it, nothing ever answers.
pub fn server(says: Says, step_takes: Option<Duration>, settings: ApiSettings) -> Server {
    let queue = Arc::new(RequestQueue::new(2, LIMITS.request_tokens()));
    let seen = Arc::new(Seen::default());
    let mut threads = Vec::new();
    if let Some(step_takes) = step_takes {
        let (queue, seen) = (Arc::clone(&queue), Arc::clone(&seen));
        threads.push(thread::spawn(move || {
            let mut model =
                FakeModel::new(says, LIMITS.slots, LIMITS.context_tokens, LIMITS.kv_tokens);
            model.step_takes = step_takes;
            let lead = Lead {
                queue: &queue,
                vocabulary: Arc::new(Bytes),
                limits: LIMITS,
                settings: &Settings::new(16, 2),
                observer: &*seen,
            };
            lead.run(&mut model, &mut Solo).unwrap();
        }));
    }
    let api = Api {
        model: "fake/model".into(),
        queue: Arc::clone(&queue),
        vocabulary: Arc::new(Bytes),
        observer: Arc::clone(&seen) as Arc<dyn Observer>,
        settings,
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    threads.push(thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            // As the binary does it: merged with other routes, with one answer for all other paths.
            let health =
                axum::Router::new().route("/healthz", axum::routing::get(|| async { "ok" }));
            let routes = health.merge(router(api)).fallback(not_found);
            tokio::select! {
                served = async { axum::serve(listener, routes).await } => served.unwrap(),
                _ = stopped => {}
            }
        });
    }));
    let address = told.recv().unwrap();
    Server { address, queue, seen, stop: Some(stop), threads }
}

pub fn quick(says: Says) -> Server {
    server(says, Some(Duration::ZERO), ApiSettings::default())
}

pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn error(&self) -> (u16, Value) {
        let error = self.json()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert!(error["type"].is_string() && error.get("param").is_some());
        (self.status, error["code"].clone())
    }

    /// The JSON of each `data:` line but the last, which must be `[DONE]`.
    pub fn pieces(&self) -> Vec<Value> {
        assert!(self.headers.contains("content-type: text/event-stream"), "{}", self.headers);
        let mut data: Vec<&str> =
            self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.into_iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Server {
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        stream
    }

    pub fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        read(self.send(method, path, headers, body))
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, "", &body.to_string())
    }

    pub fn chat(&self, more: Value) -> Answer {
        self.post("/v1/chat/completions", &chat(more))
    }

    pub fn wait_for(&self, outcome: Outcome) {
        let start = Instant::now();
        while !self.seen.finished.lock().unwrap().contains(&outcome) {
            assert!(start.elapsed() < Duration::from_secs(20), "no request is {outcome:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

pub fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "fake/model", "temperature": 0, "messages": [{"role": "user", "content": "hi"}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub fn read(stream: TcpStream) -> Answer {
    let mut reader = BufReader::new(stream);
    let (mut status, mut headers) = (String::new(), String::new());
    reader.read_line(&mut status).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        headers.push_str(&line);
    }
    let mut body = Vec::new();
    if headers.contains("transfer-encoding: chunked") {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).unwrap();
            if size == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    } else {
        reader.read_to_end(&mut body).unwrap();
    }
    let status = status.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, headers, body: String::from_utf8(body).unwrap() }
}
