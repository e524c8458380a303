//! A peer that breaks the rules, or whose bytes come late.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::tests::{EPOCH, FLAGS, REGION_BYTES, fault_of_rail, flag, number, region};
use super::*;
use crate::wire::{self, HEADER_BYTES, Header, Kind};
use crate::{Device, Event, FIRST_NUMBER, INBOX_WINDOW, RailFault, Region};

/// A device whose peer is played by the test, over plain sockets.
struct Played {
    device: TcpDevice,
    region: Arc<Region>,
    sockets: Vec<TcpStream>,
    events: Vec<Event>,
}

impl Played {
    fn new(crc: bool) -> Self {
        let region = region();
        let parker = Arc::new(TcpParker::new().unwrap());
        let shared = device::Shared { rank: 0, epoch: EPOCH, crc, region: Arc::clone(&region) };
        let mut device = TcpDevice::new(shared, parker);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sockets = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..2 {
            sockets.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let accepted = listener.accept().unwrap().0;
            accepted.set_nonblocking(true).unwrap();
            theirs.push(OwnedFd::from(accepted));
        }
        device.add_peer(1, theirs, FIRST_NUMBER).unwrap();
        Self { device, region, sockets, events: Vec::new() }
    }

    /// Sends bytes and lets the device look until it says something, or for a moment.
    fn send(&mut self, rail: usize, bytes: &[u8]) {
        self.sockets[rail].write_all(bytes).unwrap();
        let limit = Instant::now() + Duration::from_millis(300);
        while self.events.is_empty() && Instant::now() < limit {
            self.device.poll(&mut self.events);
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; REGION_BYTES as usize];
        self.region.read(0, &mut bytes).unwrap();
        bytes
    }
}

fn put(index: u32, to: u64, len: u32) -> Header {
    Header { kind: Kind::Put, number: number(index), to, len, ..Header::ack(EPOCH, 1, 0, 0) }
}

fn framed(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = wire::encode(header, [payload], true).to_vec();
    frame.extend(payload);
    frame
}

#[test]
fn bad_frames_end_the_rail_with_the_reason_and_write_nothing() {
    let payload = [7; 64];
    let good = put(0, 0, 64);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GET / HTTP/1.1\r\nHost: somewhere.else\r\nAccept: everything\r\n\r\n".to_vec(), "magic"),
        (framed(&Header { epoch: EPOCH - 1, ..good.clone() }, &payload), "epoch is 4"),
        (framed(&Header { src: 2, ..good.clone() }, &payload), "source rank is 2"),
        (framed(&Header { to: REGION_BYTES - 63, ..good.clone() }, &payload), "outside"),
        (framed(&Header { to: u64::MAX, ..good.clone() }, &payload), "outside"),
        (framed(&Header { flag: flag(64, 1), ..good.clone() }, &payload), "flag's offset"),
        (framed(&Header { acked: 1, ..good.clone() }, &payload), "acknowledged"),
        (framed(&put(INBOX_WINDOW, 0, 64), &payload), "within 1024"),
        (framed(&Header { len: u32::MAX, ..good.clone() }, &payload), "length"),
    ];
    for (frame, reason) in cases {
        let mut played = Played::new(true);
        played.send(0, &frame);
        let fault = fault_of_rail(&played.events, 0).unwrap_or_else(|| panic!("{reason}"));
        assert!(
            matches!(fault, RailFault::BadFrame(what) if what.contains(reason)),
            "{reason}: {fault:?}"
        );
        if !reason.contains("acknowledged") {
            assert!(played.bytes().iter().all(|&byte| byte == 0), "{reason}");
        }
    }
}

/// A first copy that comes late, whole or half, never lands over what the second one brought.
#[test]
fn bytes_of_a_failed_rail_never_land_after_the_write_came_again() {
    let first = [1; 9000];
    let second = [2; 9000];
    let raised = |value| Header { flag: flag(0, value), ..put(0, 0, 9000) };
    for had_come in [0, HEADER_BYTES + 100, HEADER_BYTES + 9000] {
        let mut played = Played::new(true);
        let old = framed(&raised(1), &first);
        if had_come > 0 {
            played.send(1, &old[..had_come]);
        }
        assert_eq!(played.events, []);
        let landed = had_come == old.len();
        // The rest is there and not seen yet when the new copy is: rails are looked at in order.
        played.sockets[1].write_all(&old[had_come..]).unwrap();
        let again = Header { rails_down: 2, ..raised(2) };
        played.sockets[0].write_all(&framed(&again, &second)).unwrap();
        let next = Header { rails_down: 2, flag: flag(1, 1), ..put(1, 20_000, 3) };
        played.send(0, &framed(&next, b"end"));
        let limit = Instant::now() + Duration::from_secs(5);
        while played.region.flag(FLAGS + 64).unwrap().load(Ordering::Acquire) == 0 {
            played.device.poll(&mut played.events);
            assert!(Instant::now() < limit);
        }
        assert_eq!(fault_of_rail(&played.events, 1), Some(&RailFault::PeerClosed));
        assert_eq!(played.events.len(), 1, "{:?}", played.events);
        let value = played.region.flag(FLAGS).unwrap().load(Ordering::Acquire);
        let bytes = &played.bytes()[..9000];
        assert!(bytes.iter().all(|&byte| u32::from(byte) == value), "{had_come}: {value}");
        assert_eq!(
            value,
            if landed { 1 } else { 2 },
            "a write lands once, and half of one is none"
        );
    }
}
