//! The control plane's edge against peers that misbehave, over loopback TCP.

#![allow(clippy::unwrap_used, reason = "a fixture that fails is a test that fails")]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use group::beacon::BeaconCell;
use group::control::wire::Message;
use group::control::{CableNames, Control, ControlOptions, ControlState};
use group::patience::Patience;
use group::verdict::Reason;

/// The control plane of rank 0 of two, and the other end of its only connection.
fn pair() -> (Control, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let options = ControlOptions {
        epoch: 1,
        rank: 0,
        streams: vec![(1, stream)],
        hosts: vec!["a".into(), "b".into()],
        cables: CableNames::new(),
        patience: Arc::new(Patience::default()),
        beacon: Arc::new(BeaconCell::new(1)),
        events: Box::new(|_| {}),
    };
    (Control::start(options).unwrap(), peer)
}

fn until(mut done: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < limit, "nothing happened in 10 s");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn garbage_ends_the_connection_and_says_what_it_was() {
    let (control, mut peer) = pair();
    peer.write_all(b"GET / HTTP/1.1\r\n\r\n......").unwrap();
    until(|| control.failed());
    let verdict = control.verdict().unwrap();
    assert!(verdict.evidence.iter().any(|line| line.contains("not this protocol")), "{verdict:?}");
}

#[test]
fn a_peer_that_never_reads_delays_nobody() {
    let (control, _peer) = pair();
    for number in 0..4000 {
        control.propose(Reason::Failed { what: format!("{number} {}", "x".repeat(300)) });
    }
    let started = Instant::now();
    assert!(control.view().size() == 2);
    control.close();
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_goodbye_is_no_death() {
    let (control, mut peer) = pair();
    peer.write_all(&Message::Goodbye.encode(1).unwrap()).unwrap();
    drop(peer);
    until(|| control.view().ranks[1].control == ControlState::Goodbye);
    thread::sleep(Duration::from_millis(800));
    assert!(!control.failed());
}
