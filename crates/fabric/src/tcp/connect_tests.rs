use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use super::tests::{Ends, SECRET, region, setups};
use super::*;
use crate::auth::Token;
use crate::{Device, Event, RailFault};
use std::time::{Duration, Instant};

/// Runs both ends; the lower rank first.
fn meet([low, high]: [TcpSetup; 2]) -> [Result<(), ConnectError>; 2] {
    let other = thread::spawn(move || connect(high).map(|_| ()));
    let low = connect(low).map(|_| ());
    [low, other.join().unwrap()]
}

#[test]
fn another_token_is_refused_and_named() {
    let [mut low, mut high] = setups(2, true);
    low.deadline = Instant::now() + Duration::from_millis(500);
    high.token = Token::new("another secret").unwrap();
    let address = high.neighbours[0].addresses[0];
    let [low, high] = meet([low, high]).map(|end| end.unwrap_err());
    assert!(matches!(high, ConnectError::Refused { rank: 1, peer: 0, rail: 0, .. }), "{high}");
    assert!(high.to_string().contains(&address.to_string()), "{high}");
    let low = low.to_string();
    assert!(low.contains("from rank 1 on rail 0") && low.contains("another token"), "{low}");
}

#[test]
fn another_epoch_is_no_connection_and_named() {
    let [mut low, mut high] = setups(1, true);
    low.deadline = Instant::now() + Duration::from_millis(400);
    high.deadline = low.deadline;
    high.epoch += 1;
    for end in meet([low, high]) {
        let text = end.unwrap_err().to_string();
        assert!(text.contains("epoch 5") && text.contains("epoch 6"), "{text}");
    }
}

#[test]
fn strangers_hold_up_nobody() {
    let [low, mut high] = setups(2, true);
    high.deadline = Instant::now() + Duration::from_secs(20);
    let address = high.neighbours[0].addresses[0];
    let mut strangers: Vec<TcpStream> =
        (0..80).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (index, stranger) in strangers.iter_mut().enumerate() {
        match index % 4 {
            0 => drop(stranger.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n and more to fill")),
            1 => drop(stranger.write_all(b"RWau")),
            2 => drop(stranger.shutdown(std::net::Shutdown::Both)),
            _ => {}
        }
    }
    let started = Instant::now();
    for end in meet([low, high]) {
        end.unwrap();
    }
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    // The listener is gone with its setup, and every stranger was let go.
    for stranger in &mut strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"RWau"), "{answer:?}");
    }
}

#[test]
fn a_neighbour_that_never_comes_is_missing_by_the_deadline() {
    let [mut low, mut high] = setups(2, true);
    let started = Instant::now();
    low.deadline = started + Duration::from_millis(200);
    high.deadline = low.deadline;
    let text = connect(low).unwrap_err().to_string();
    assert!(text.contains("rank 0 has no connection from rank 1 on rail 0"), "{text}");
    assert!(text.contains("2 missing in all"), "{text}");
    // Nothing listens there any more.
    let text = connect(high).unwrap_err().to_string();
    assert!(text.contains("rank 1 has no connection to rank 0 on rail 0"), "{text}");
    assert!(text.contains("refused"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_rank_that_starts_late_is_waited_for() {
    let [low, high] = setups(1, true);
    let other = thread::spawn(move || connect(high).map(|_| ()));
    thread::sleep(Duration::from_millis(150));
    connect(low).unwrap();
    other.join().unwrap().unwrap();
}

#[test]
fn a_setup_that_cannot_be_is_refused() {
    let [mut low, mut high] = setups(2, true);
    low.neighbours[0].addresses.pop();
    assert!(matches!(connect(low), Err(ConnectError::Setup { rank: 0, peer: 1, .. })));
    high.neighbours[0].rank = 1;
    assert!(matches!(connect(high), Err(ConnectError::Setup { .. })));
}

/// Three ranks of a path: the one between has two neighbours and both roles.
#[test]
fn a_rank_between_two_others_connects_to_both() {
    let listeners: Vec<_> =
        (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|one| one.local_addr().unwrap()).collect();
    let mut ranks = Vec::new();
    for (rank, listener) in listeners.into_iter().enumerate() {
        let me = rank;
        let near = (0..3_usize).filter(|&other| other.abs_diff(me) == 1);
        let setup = TcpSetup {
            rank,
            epoch: 5,
            neighbours: near
                .map(|rank| PeerEndpoint {
                    rank,
                    addresses: vec![addresses[rank]; 2],
                    own: vec![addresses[me]; 2],
                })
                .collect(),
            rails: 2,
            token: Token::new(SECRET).unwrap(),
            crc: true,
            region: region(),
            listeners: vec![listener],
            first_number: 0,
            deadline: Instant::now() + Duration::from_secs(10),
        };
        ranks.push(thread::spawn(move || connect(setup).unwrap()));
    }
    let mut devices: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap().0).collect();
    assert!(devices[0].post(2, 0, &crate::Write::default()).is_err(), "no cable there");
    for rail in 0..2 {
        devices[1].post(0, rail, &crate::Write::default()).unwrap();
        let number = rail as u32;
        devices[1].post(2, rail, &crate::Write { number, ..Default::default() }).unwrap();
    }
    drop(devices.remove(0));
    let mut events = Vec::new();
    let limit = Instant::now() + Duration::from_secs(5);
    while events.iter().filter(|event| matches!(event, Event::Done { peer: 2, .. })).count() < 2 {
        for device in &mut devices {
            device.poll(&mut events);
        }
        assert!(Instant::now() < limit, "{events:?}");
    }
    let gone = Event::RailDown { peer: 0, rail: 0, fault: RailFault::PeerClosed };
    assert!(events.contains(&gone), "{events:?}");
}

#[test]
fn what_is_sent_at_once_after_the_handshake_is_kept() {
    for _ in 0..20 {
        let mut ends = Ends::new(2, true);
        ends.high.post(0, 1, &crate::Write::default()).unwrap();
        ends.until("done", |ends| ends.high_events.len() == 1);
    }
}
