//! Ranks as threads meet over loopback TCP.

#![allow(clippy::unwrap_used, reason = "a fixture that fails is a test that fails")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use group::auth::Token;
use group::beacon::{BeaconCell, Phase, RankSet, operation};
use group::control::{CableNames, Control, ControlOptions};
use group::patience::Patience;
use group::rendezvous::{
    Host, HostOptions, JoinError, JoinRequest, Joined, Refusal, instance, join,
};
use group::verdict::Cause;

const LIMIT: Duration = Duration::from_secs(20);

fn token() -> Token {
    Token::new("a token of the tests").unwrap()
}

fn host(size: usize) -> Host {
    let listen = "127.0.0.1:0".parse().unwrap();
    Host::start(HostOptions { listen, token: token(), size }).unwrap()
}

fn request(rank: usize, size: usize, address: SocketAddr) -> JoinRequest {
    JoinRequest {
        rank,
        size,
        address,
        token: token(),
        instance: instance().unwrap(),
        last_epoch: None,
        host_name: format!("h{rank}"),
        host_id: "this".into(),
        ip: "127.0.0.1".parse().unwrap(),
        config: BTreeMap::from([("key".into(), "value".into())]),
        blob: vec![u8::try_from(rank).unwrap(); 3],
    }
}

fn start(request: JoinRequest) -> JoinHandle<Result<Joined, JoinError>> {
    thread::spawn(move || join(&request, LIMIT))
}

fn form(address: SocketAddr, requests: impl IntoIterator<Item = JoinRequest>) -> Vec<Joined> {
    let threads: Vec<_> =
        requests.into_iter().map(|r| start(JoinRequest { address, ..r })).collect();
    threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
}

#[test]
fn a_group_forms_agrees_and_forms_again() {
    let host = host(4);
    let requests: Vec<_> = (0..4).map(|rank| request(rank, 4, host.address())).collect();
    let mut epoch = None;
    for round in 1..=3 {
        let again = requests.iter().map(|r| JoinRequest { last_epoch: epoch, ..r.clone() });
        let joined = form(host.address(), again);
        let threads: Vec<_> = joined
            .into_iter()
            .map(|mut joined| {
                thread::spawn(move || {
                    assert_eq!(joined.epoch, round);
                    assert_eq!(joined.members[2].blob, [2; 3]);
                    let mut peers: Vec<_> = joined.streams.iter().map(|(peer, _)| *peer).collect();
                    peers.sort_unstable();
                    assert_eq!(peers, (0..4).filter(|r| *r != joined.rank).collect::<Vec<_>>());
                    for turn in 0..3u8 {
                        let mine = [u8::try_from(joined.rank).unwrap(), turn];
                        let all = joined.agree(&mine, LIMIT).unwrap();
                        assert_eq!(all, (0..4u8).map(|r| vec![r, turn]).collect::<Vec<_>>());
                    }
                    joined
                })
            })
            .collect();
        // Some ranks still hold their old connections when the others join anew.
        let joined: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        epoch = Some(joined[0].epoch);
    }
}

#[test]
fn other_configuration_reaches_all_ranks_within_five_seconds() {
    let host = host(3);
    let started = Instant::now();
    let threads: Vec<_> = (0..3)
        .map(|rank| {
            let mut request = request(rank, 3, host.address());
            if rank == 2 {
                request.config.insert("key".into(), "other".into());
            }
            start(request)
        })
        .collect();
    for thread in threads {
        let error = thread.join().unwrap().unwrap_err();
        let JoinError::Refused { refusal: Refusal::ConfigurationDiffers { key, b, .. }, .. } =
            error
        else {
            panic!("{error}")
        };
        assert_eq!((key.as_str(), b.rank, b.value.as_deref()), ("key", 2, Some("other")));
    }
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_wrong_token_is_told_so() {
    let host = host(2);
    let wrong = Token::new("another token").unwrap();
    let request = JoinRequest { token: wrong, ..request(1, 2, host.address()) };
    let error = join(&request, LIMIT).unwrap_err();
    assert!(matches!(error, JoinError::WrongToken { rank: 1, .. }), "{error}");
}

#[test]
fn strangers_do_not_hold_up_ranks() {
    let host = host(2);
    let mut strangers: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(host.address()).unwrap()).collect();
    for stranger in &mut strangers[..10] {
        let _ = stranger.write_all(&[b'x'; 4096]);
    }
    let started = Instant::now();
    form(host.address(), (0..2).map(|rank| request(rank, 2, host.address())));
    assert!(started.elapsed() < Duration::from_secs(4));
    let mut byte = [0];
    strangers[0].set_read_timeout(Some(LIMIT)).unwrap();
    assert!(matches!(strangers[0].read(&mut byte), Ok(0) | Err(_)));
}

#[test]
fn the_missing_are_named_at_the_deadline() {
    let host = host(3);
    let thread = start(request(0, 3, host.address()));
    let error = join(&request(2, 3, host.address()), Duration::from_millis(600)).unwrap_err();
    assert!(error.to_string().contains("ranks 1 did not come within"), "{error}");
    drop(host);
    drop(thread);
}

#[test]
fn nobody_there_is_a_timeout_that_says_what_was_tried() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = join(&request(1, 2, free), Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, JoinError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn rank_0_restarts_while_others_wait_and_a_client_dies_half_way() {
    let first = host(3);
    let address = first.address();
    let waiting: Vec<_> = [1, 2]
        .map(|rank| start(JoinRequest { last_epoch: Some(4), ..request(rank, 3, address) }))
        .into();
    thread::sleep(Duration::from_millis(200));
    drop(first);
    thread::sleep(Duration::from_millis(200));
    let options = HostOptions { listen: address, token: token(), size: 3 };
    let second = Host::start(options).unwrap();
    // Half a request, then death.
    let mut half = TcpStream::connect(second.address()).unwrap();
    let _ = half.write_all(b"RWau");
    drop(half);
    let rank_0 = start(request(0, 3, address));
    for thread in waiting.into_iter().chain([rank_0]) {
        assert_eq!(thread.join().unwrap().unwrap().epoch, 5);
    }
}

#[test]
fn two_live_processes_with_one_number() {
    let host = host(2);
    let first = start(request(1, 2, host.address()));
    thread::sleep(Duration::from_millis(300));
    let error = join(&request(1, 2, host.address()), LIMIT).unwrap_err();
    assert!(error.to_string().contains("rank 1 is already taken"), "{error}");
    let zero = start(request(0, 2, host.address()));
    assert!(zero.join().unwrap().is_ok() && first.join().unwrap().is_ok());
}

fn controls(joined: &mut [Joined], patience: &Arc<Patience>) -> Vec<(Control, Arc<BeaconCell>)> {
    joined
        .iter_mut()
        .map(|joined| {
            let beacon = Arc::new(BeaconCell::new(joined.epoch));
            let options = ControlOptions {
                epoch: joined.epoch,
                rank: joined.rank,
                streams: std::mem::take(&mut joined.streams),
                hosts: joined.members.iter().map(|member| member.host_name.clone()).collect(),
                cables: CableNames::new(),
                patience: Arc::clone(patience),
                beacon: Arc::clone(&beacon),
                events: Box::new(|_| {}),
            };
            (Control::start(options).unwrap(), beacon)
        })
        .collect()
}

fn wait_for(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while Instant::now() < until {
        if done() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    done()
}

#[test]
fn a_stall_over_real_sockets_is_one_verdict_on_all() {
    let host = host(3);
    let mut joined = form(host.address(), (0..3).map(|rank| request(rank, 3, host.address())));
    let patience = Arc::new(Patience::default());
    patience.set_text("compute", "500ms").unwrap();
    let controls = controls(&mut joined, &patience);
    for (rank, (_, beacon)) in controls.iter().enumerate() {
        if rank == 2 {
            beacon.set_phase(Phase::Compute);
        } else {
            beacon.begin_operation(operation::BARRIER, 1);
            beacon.set_waiting(RankSet::one(2), RankSet::EMPTY);
        }
    }
    assert!(wait_for(LIMIT, || controls.iter().all(|(control, _)| control.failed())));
    let first = controls[0].0.verdict().unwrap();
    assert_eq!(
        (first.rank, &first.cause),
        (Some(2), &Cause::PeerStalled { phase: Phase::Compute })
    );
    for (control, _) in &controls {
        assert_eq!(control.verdict().unwrap(), first);
    }
    // Leaving in order fails nobody and leaves no thread.
    controls.iter().for_each(|(control, _)| control.close());
}

#[test]
fn leaving_in_order_and_dying_are_told_apart_over_real_sockets() {
    let host = host(3);
    let mut joined = form(host.address(), (0..3).map(|rank| request(rank, 3, host.address())));
    // Rank 2 has no control plane: its streams end without goodbye when they are dropped.
    let dying = joined.remove(2);
    let patience = Arc::new(Patience::default());
    let mut running: Vec<Control> = joined
        .iter_mut()
        .map(|joined| {
            let options = ControlOptions {
                epoch: 1,
                rank: joined.rank,
                streams: std::mem::take(&mut joined.streams),
                hosts: vec!["a".into(), "b".into(), "c".into()],
                cables: CableNames::new(),
                patience: Arc::clone(&patience),
                beacon: Arc::new(BeaconCell::new(1)),
                events: Box::new(|_| {}),
            };
            Control::start(options).unwrap()
        })
        .collect();
    thread::sleep(Duration::from_millis(300));
    assert!(running.iter().all(|control| !control.failed()));
    drop(dying);
    assert!(wait_for(LIMIT, || running.iter().all(Control::failed)));
    let verdict = running[1].verdict().unwrap();
    assert_eq!((verdict.rank, &verdict.cause), (Some(2), &Cause::PeerDead));
    running.pop().unwrap().close();
}
