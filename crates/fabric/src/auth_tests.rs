use std::os::unix::net::UnixStream;
use std::thread;

use proptest::prelude::*;

use super::*;

fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

fn end(secret: &str, role: Role, purpose: Purpose, rank: u8, seed: u8) -> Handshake {
    Handshake::new(token(secret), role, purpose, Identity { rank, epoch: 7 }, [seed; NONCE_BYTES])
}

/// Runs both ends against each other in memory.
fn run(mut dialler: Handshake, mut listener: Handshake) -> [Option<Result<Identity, Refusal>>; 2] {
    let hello = dialler.start();
    let answer = listener.feed(&hello.send).unwrap();
    let proof = dialler.feed(&answer.send).unwrap();
    let last = listener.feed(&proof.send).unwrap();
    let end = dialler.feed(&last.send).unwrap();
    [end.result, last.result]
}

#[test]
fn both_ends_learn_who_the_other_is() {
    let [dialler, listener] = run(
        end("secret token", Role::Dialler, Purpose::Control, 3, 1),
        end("secret token", Role::Listener, Purpose::Control, 1, 2),
    );
    assert_eq!(dialler, Some(Ok(Identity { rank: 1, epoch: 7 })));
    assert_eq!(listener, Some(Ok(Identity { rank: 3, epoch: 7 })));
}

#[test]
fn another_token_is_refused_by_both_ends() {
    let [dialler, listener] = run(
        end("secret token", Role::Dialler, Purpose::Control, 3, 1),
        end("other secret", Role::Listener, Purpose::Control, 1, 2),
    );
    assert_eq!(listener, Some(Err(Refusal::WrongProof)));
    assert_eq!(dialler, Some(Err(Refusal::Refused)));
}

#[test]
fn a_recorded_proof_is_worth_nothing_against_a_new_nonce() {
    let mut dialler = end("secret token", Role::Dialler, Purpose::Control, 3, 1);
    let mut listener = end("secret token", Role::Listener, Purpose::Control, 1, 2);
    let hello = dialler.start().send;
    let proof = dialler.feed(&listener.feed(&hello).unwrap().send).unwrap().send;
    assert!(matches!(listener.feed(&proof).unwrap().result, Some(Ok(_))));
    let mut second = end("secret token", Role::Listener, Purpose::Control, 1, 9);
    second.feed(&hello).unwrap();
    assert_eq!(second.feed(&proof).unwrap().result, Some(Err(Refusal::WrongProof)));
}

#[test]
fn a_claimed_rank_or_epoch_is_part_of_the_proof() {
    let mut dialler = end("secret token", Role::Dialler, Purpose::Control, 3, 1);
    let mut listener = end("secret token", Role::Listener, Purpose::Control, 1, 2);
    let mut hello = dialler.start().send;
    hello[7] = 2;
    let answer = listener.feed(&hello).unwrap();
    let proof = dialler.feed(&answer.send).unwrap();
    assert_eq!(listener.feed(&proof.send).unwrap().result, Some(Err(Refusal::WrongProof)));
}

#[test]
fn other_purpose_role_or_protocol_is_named() {
    let mut listener = end("secret token", Role::Listener, Purpose::Control, 1, 2);
    let other = end("secret token", Role::Dialler, Purpose::Fabric, 3, 1).start().send;
    assert!(listener.feed(&other).unwrap_err().to_string().contains("purpose"));
    let mut reflected = end("secret token", Role::Dialler, Purpose::Control, 3, 1);
    let own = reflected.start().send;
    assert!(reflected.feed(&own).unwrap_err().to_string().contains("role"));
    assert!(listener.feed(&[b'G'; HELLO_BYTES]).unwrap_err().to_string().contains("protocol"));
}

#[test]
fn the_rail_is_proven_and_another_rank_than_meant_refuses() {
    let dialler = || end("secret token", Role::Dialler, Purpose::Fabric, 3, 1).on_rail(1);
    let mut listener = end("secret token", Role::Listener, Purpose::Fabric, 0, 2);
    let mut meant = dialler().meant_for(0);
    let answer = listener.feed(&meant.start().send).unwrap();
    let proof = meant.feed(&answer.send).unwrap();
    assert!(matches!(listener.feed(&proof.send).unwrap().result, Some(Ok(_))));
    assert_eq!(listener.rail(), 1);

    let mut listener = end("secret token", Role::Listener, Purpose::Fabric, 0, 2);
    let mut hello = dialler().start().send;
    hello[AT_RAIL] = 0;
    let answer = listener.feed(&hello).unwrap();
    let proof = dialler().feed(&answer.send).unwrap();
    assert_eq!(listener.feed(&proof.send).unwrap().result, Some(Err(Refusal::WrongProof)));

    let mut listener = end("secret token", Role::Listener, Purpose::Fabric, 0, 2);
    let astray = dialler().meant_for(1).start().send;
    assert!(listener.feed(&astray).unwrap_err().to_string().contains("another rank"));
}

#[test]
fn over_a_socket_with_a_deadline() {
    let (mut a, mut b) = UnixStream::pair().unwrap();
    let other = thread::spawn(move || {
        let handshake = end("secret token", Role::Listener, Purpose::Rendezvous, 0, 2);
        authenticate(&mut b, handshake, Duration::from_secs(5))
    });
    let handshake = end("secret token", Role::Dialler, Purpose::Rendezvous, 2, 1);
    assert_eq!(authenticate(&mut a, handshake, Duration::from_secs(5)).unwrap().rank, 0);
    assert_eq!(other.join().unwrap().unwrap().rank, 2);
}

#[test]
fn a_drip_of_bytes_does_not_stretch_the_deadline() {
    let (mut a, mut b) = UnixStream::pair().unwrap();
    let drip = thread::spawn(move || {
        for byte in MAGIC.iter().cycle() {
            if b.write_all(&[*byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
    });
    let started = Instant::now();
    let handshake = end("secret token", Role::Listener, Purpose::Control, 0, 2);
    let result = authenticate(&mut a, handshake, Duration::from_millis(200));
    assert!(matches!(result, Err(AuthError::Timeout { .. })), "{result:?}");
    assert!(started.elapsed() < Duration::from_secs(2));
    drop(a);
    drip.join().unwrap();
}

#[test]
fn tokens_are_not_printed_and_not_short() {
    assert_eq!(format!("{:?}", token("secret token")), "Token(..)");
    assert!(matches!(Token::new("short"), Err(AuthError::ShortToken { got: 5 })));
    assert_ne!(Token::random().unwrap(), Token::random().unwrap());
}

proptest! {
    #[test]
    fn strangers_bytes_never_panic_and_never_pass(
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
        flip in 0usize..PROOF_BYTES * 8,
    ) {
        let mut listener = end("secret token", Role::Listener, Purpose::Control, 1, 2);
        prop_assert!(listener.feed(&bytes).is_err());
        let mut dialler = end("secret token", Role::Dialler, Purpose::Control, 3, 1);
        let answer = listener.feed(&dialler.start().send).unwrap();
        let mut proof = dialler.feed(&answer.send).unwrap().send;
        proof[flip / 8] ^= 1 << (flip % 8);
        let refused = matches!(listener.feed(&proof), Ok(Step { result: Some(Err(_)), .. }));
        prop_assert!(refused);
    }
}
