//! The server, spoken to with plain sockets.

// The helpers below panic as the tests they serve do.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{get, post};
use observe::http::{Exposure, HttpError, Limits, ServerHandle, ServerState, serve};
use observe::{Cause, Health, Identity, Metrics, State, VerdictRecord};

fn state() -> ServerState {
    let identity = Identity::new(1, "spark-b");
    let metrics = Metrics::new(&identity);
    let health = Health::new(identity, &metrics);
    ServerState::new(metrics, health)
}

fn start(state: ServerState, extra: Router) -> ServerHandle {
    serve(TcpListener::bind("127.0.0.1:0").unwrap(), state, extra).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Status code and body.
fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = connect(address);
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let code = answer.get(9..12).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    (code.unwrap_or_else(|| panic!("no answer: {answer:?}")), body.unwrap_or_default())
}

fn get_path(address: SocketAddr, path: &str) -> (u16, String) {
    ask(address, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
}

fn json(body: &str) -> serde_json::Value {
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body:?}"))
}

#[test]
fn the_four_routes_follow_the_rank() {
    let state = state();
    let health = state.health.clone();
    let server = start(state, Router::new().route("/extra", get(|| async { "more" })));
    let at = server.address();

    assert_eq!(get_path(at, "/healthz").0, 200);
    let (code, body) = get_path(at, "/readyz");
    assert_eq!(code, 503);
    assert_eq!(json(&body)["why"], "no token has crossed every rank yet");
    let (code, body) = get_path(at, "/progress");
    assert_eq!((code, &json(&body)["state"]), (200, &"starting".into()));
    assert!(json(&body)["epoch"].is_null());

    health.token_crossed();
    health.set_state(State::Idle);
    health.set_position(3, 7);
    assert_eq!(get_path(at, "/readyz").0, 200);
    let (code, body) = get_path(at, "/progress");
    assert_eq!((code, &json(&body)["status"]), (200, &"idle".into()));

    let verdict = VerdictRecord {
        cause: Cause::PeerDead,
        rank: Some(2),
        host: None,
        peer: None,
        phase: None,
        seconds: None,
        epoch: 3,
        sequence: None,
        operation: None,
        summary: "rank 2 is dead".into(),
        evidence: vec![],
        next_step: "start it again".into(),
        judged_by: 0,
    };
    health.fail(verdict);
    let (code, body) = get_path(at, "/progress");
    assert_eq!((code, &json(&body)["verdict"]["cause"]), (503, &"peer-dead".into()));
    assert_eq!(json(&get_path(at, "/readyz").1)["why"], "rank 2 is dead");
    assert_eq!(get_path(at, "/healthz").0, 200, "the process lives");

    health.recovered(4, Instant::now());
    let (code, body) = get_path(at, "/progress");
    assert_eq!((code, &json(&body)["last_verdict"]["recovered_epoch"]), (200, &4.into()));
    assert!(json(&body)["verdict"].is_null());

    let (code, body) = get_path(at, "/metrics");
    assert!(code == 200 && body.contains("railweave_epoch{rank=\"1\",host=\"spark-b\"} 4\n"));
    assert_eq!(get_path(at, "/extra"), (200, "more".into()));
    assert_eq!(get_path(at, "/nothing").0, 404);
    server.stop();
    assert!(TcpStream::connect(at).is_err(), "nothing listens after stop");
}

#[test]
fn another_address_than_loopback_needs_to_be_allowed() {
    let listener = || TcpListener::bind("0.0.0.0:0").unwrap();
    let error = serve(listener(), state(), Router::new()).unwrap_err();
    assert!(matches!(error, HttpError::Exposed { rank: 1, .. }), "{error}");
    let allowed = ServerState { exposure: Exposure::AnyAddress, ..state() };
    serve(listener(), allowed, Router::new()).unwrap().stop();
}

#[test]
fn sizes_and_times_are_bounded() {
    let mut state = state();
    state.limits = Limits {
        body_bytes: 100,
        body_time: Duration::from_millis(200),
        header_time: Duration::from_millis(300),
        header_bytes: 8192,
        ..Limits::default()
    };
    let server = start(state, Router::new().route("/echo", post(|body: String| async { body })));
    let at = server.address();
    let post = |headers: &str, body: &str| {
        let close = "host: localhost\r\nconnection: close\r\n";
        ask(at, &format!("POST /echo HTTP/1.1\r\n{close}{headers}\r\n{body}"))
    };
    assert_eq!(post("content-length: 5\r\n", "hello"), (200, "hello".into()));
    let long = "x".repeat(101);
    assert_eq!(post("content-length: 101\r\n", &long).0, 413);
    assert_eq!(post("content-length: 9000000000\r\n", "").0, 413, "refused before it is sent");
    let chunk = format!("65\r\n{long}\r\n0\r\n\r\n");
    assert_eq!(post("transfer-encoding: chunked\r\n", &chunk).0, 413);
    assert_eq!(post(&format!("x: {}\r\n", "y".repeat(20_000)), "").0, 431);
    assert_eq!(post(&"x: y\r\n".repeat(65), "").0, 431);
    let began = Instant::now();
    assert_eq!(post("content-length: 5\r\n", "he").0, 408);
    // Headers that never end: the connection is closed.
    let mut slow = connect(at);
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost:").unwrap();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(get_path(at, "/healthz").0, 200);
}

#[test]
fn one_connection_too_many_is_told_so_and_room_returns() {
    let mut state = state();
    state.limits.connections = 2;
    let server = start(state, Router::new());
    let at = server.address();
    let idle: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = connect(at);
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
            let mut start = [0; 12];
            stream.read_exact(&mut start).unwrap();
            assert_eq!(&start, b"HTTP/1.1 200");
            stream
        })
        .collect();
    let mut answer = String::new();
    connect(at).read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("too many connections\n"));
    drop(idle);
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        let mut stream = connect(at);
        let _ = stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        if answer.contains(" 200 ") {
            return;
        }
    }
    panic!("no room after the idle connections closed");
}

#[test]
fn stop_does_not_wait_for_a_request_that_never_ends() {
    let mut state = state();
    state.limits.grace = Duration::from_millis(200);
    let forever = get(|| async { std::future::pending::<&str>().await });
    let server = start(state, Router::new().route("/forever", forever));
    let mut stream = connect(server.address());
    stream.write_all(b"GET /forever HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let began = Instant::now();
    server.stop();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}
