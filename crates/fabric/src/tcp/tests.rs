use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::auth::Token;
use crate::wire::{self, HEADER_BYTES, Header, Kind};
use crate::{
    Device, Event, FIRST_NUMBER, FlagWrite, INBOX_WINDOW, Parker, PostError, Posted, RailFault,
    Region, Span, Write,
};
use std::sync::Arc;

pub(super) const SECRET: &str = "a shared secret";
const REGION_BYTES: u64 = 1 << 20;
const EPOCH: u32 = 5;
/// Where flags lie; everything below is bytes.
const FLAGS: u64 = REGION_BYTES - 4096;

pub(super) fn region() -> Arc<Region> {
    Arc::new(Region::private(REGION_BYTES).unwrap())
}

/// Two neighbours on loopback, the lower rank first.
pub(super) fn setups(rails: usize, crc: bool) -> [TcpSetup; 2] {
    setups_over([region(), region()], rails, crc)
}

fn setups_over(regions: [Arc<Region>; 2], rails: usize, crc: bool) -> [TcpSetup; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = vec![listener.local_addr().unwrap(); rails];
    let mut listeners = vec![listener];
    let mut rank = 0;
    regions.map(|region| {
        let setup = TcpSetup {
            rank,
            epoch: EPOCH,
            neighbours: vec![PeerEndpoint { rank: 1 - rank, addresses: addresses.clone() }],
            rails,
            token: Token::new(SECRET).unwrap(),
            crc,
            region,
            listeners: std::mem::take(&mut listeners),
            first_number: FIRST_NUMBER,
            deadline: Instant::now() + Duration::from_secs(10),
        };
        rank += 1;
        setup
    })
}

pub(super) struct Ends {
    pub(super) low: TcpDevice,
    pub(super) high: TcpDevice,
    low_region: Arc<Region>,
    high_region: Arc<Region>,
    low_events: Vec<Event>,
    pub(super) high_events: Vec<Event>,
}

impl Ends {
    pub(super) fn new(rails: usize, crc: bool) -> Self {
        let (low_region, high_region) = (region(), region());
        let [low, high] =
            setups_over([Arc::clone(&low_region), Arc::clone(&high_region)], rails, crc);
        let other = thread::spawn(move || connect(high).unwrap());
        let (low, _) = connect(low).unwrap();
        let (high, _) = other.join().unwrap();
        let (low_events, high_events) = (Vec::new(), Vec::new());
        Self { low, high, low_region, high_region, low_events, high_events }
    }

    fn poll(&mut self) {
        self.low.poll(&mut self.low_events);
        self.high.poll(&mut self.high_events);
    }

    pub(super) fn until(&mut self, what: &str, mut ready: impl FnMut(&Self) -> bool) {
        let limit = Instant::now() + Duration::from_secs(20);
        while !ready(self) {
            self.poll();
            assert!(
                Instant::now() < limit,
                "not {what}: {:?} {:?}",
                self.low_events,
                self.high_events
            );
        }
    }

    fn flag(&self, index: u64) -> u32 {
        self.high_region.flag(FLAGS + index * 64).unwrap().load(Ordering::Acquire)
    }
}

fn number(index: u32) -> u32 {
    FIRST_NUMBER.wrapping_add(index)
}

fn flag(index: u64, value: u32) -> Option<FlagWrite> {
    Some(FlagWrite { offset: FLAGS + index * 64, value })
}

fn is_done(event: &Event) -> bool {
    matches!(event, Event::Done { .. })
}

fn fault_of_rail(events: &[Event], wanted: usize) -> Option<&RailFault> {
    events.iter().find_map(|event| match event {
        Event::RailDown { rail, fault, .. } if *rail == wanted => Some(fault),
        _ => None,
    })
}

#[test]
fn a_write_lands_whole_and_is_done_once() {
    for crc in [false, true] {
        let mut ends = Ends::new(1, crc);
        let body = Span { offset: 100, len: 500_001 };
        let bytes: Vec<u8> = (0..body.len).map(|at| (at * 31 >> 3) as u8).collect();
        ends.low_region.write(body.offset, &bytes).unwrap();
        let write = Write { body, to: 7, flag: flag(0, 9), number: number(0), ..Write::default() };
        assert_eq!(ends.low.post(1, 0, &write.with_head(b"head")), Ok(Posted::Pending));
        ends.until("done", |ends| !ends.low_events.is_empty());
        assert_eq!(ends.low_events, [Event::Done { peer: 1, rail: 0 }]);
        assert_eq!(ends.flag(0), 9);
        let mut found = vec![0; 500_007];
        ends.high_region.read(6, &mut found).unwrap();
        assert_eq!(found[0], 0, "nothing before it");
        assert_eq!(&found[1..5], b"head");
        assert_eq!(&found[5..500_006], bytes);
        assert_eq!(found[500_006], 0, "nothing behind it");
    }
}

/// Rules 1 and 2: whatever is seen of a flag, all earlier bytes of its queue pair are there.
#[test]
fn flags_follow_their_bytes_and_all_before_them() {
    let mut ends = Ends::new(2, true);
    let body_len = 3000;
    let writes = 600;
    let (mut posted, mut seen) = (0, 0);
    let limit = Instant::now() + Duration::from_secs(20);
    while seen < writes {
        while posted < writes {
            let at = u64::from(posted % 200) * body_len;
            ends.low_region.write(at, &vec![posted as u8; body_len as usize]).unwrap();
            let write = Write {
                body: Span { offset: at, len: body_len },
                to: at,
                flag: flag(0, posted + 1),
                number: number(posted),
                ..Write::default()
            };
            // A body may change again once its write is done, which the window ensures here.
            match ends.low.post(1, 1, &write) {
                Ok(_) => posted += 1,
                Err(error) => {
                    assert_eq!(error, PostError::Full);
                    break;
                }
            }
        }
        ends.poll();
        let now = ends.flag(0);
        assert!(now >= seen && now <= posted);
        for earlier in seen..now {
            let mut found = vec![0; body_len as usize];
            ends.high_region.read(u64::from(earlier % 200) * body_len, &mut found).unwrap();
            assert!(found.iter().all(|&byte| byte == earlier as u8), "write {earlier} of {now}");
        }
        seen = now;
        assert!(Instant::now() < limit);
    }
    ends.until("done", |ends| ends.low_events.len() == writes as usize);
    assert!(ends.low_events.iter().all(|event| *event == Event::Done { peer: 1, rail: 1 }));
}

#[test]
fn a_queue_pair_holds_so_many_writes_and_then_is_full() {
    let mut ends = Ends::new(1, false);
    let write = |index| Write { number: number(index), ..Write::default() };
    for index in 0..64 {
        assert_eq!(ends.low.post(1, 0, &write(index)), Ok(Posted::Pending));
    }
    assert_eq!(ends.low.post(1, 0, &write(64)), Err(PostError::Full));
    ends.until("done", |ends| ends.low_events.len() == 64);
    assert_eq!(ends.low.post(1, 0, &write(64)), Ok(Posted::Pending));
    assert_eq!(ends.low.post(0, 0, &write(65)), Err(PostError::Down), "no such peer");
    assert_eq!(ends.low.post(1, 1, &write(65)), Err(PostError::Down), "no such rail");
}

#[test]
fn no_number_runs_further_ahead_than_the_peer_accepts() {
    let mut ends = Ends::new(2, false);
    let write = |index| Write { number: number(index), ..Write::default() };
    ends.low.post(1, 0, &write(0)).unwrap();
    assert_eq!(ends.low.post(1, 1, &write(INBOX_WINDOW)), Err(PostError::Full));
    ends.until("done", |ends| ends.low_events.len() == 1);
    assert_eq!(ends.low.post(1, 1, &write(INBOX_WINDOW)), Ok(Posted::Pending));
}

#[test]
fn a_cut_rail_is_down_at_both_ends_and_the_other_carries_on() {
    let mut ends = Ends::new(2, true);
    ends.low.cut(1, 0);
    ends.until("down", |ends| !ends.low_events.is_empty() && !ends.high_events.is_empty());
    let down = |peer, fault| [Event::RailDown { peer, rail: 0, fault }];
    assert_eq!(ends.low_events, down(1, RailFault::Cut));
    assert_eq!(ends.high_events, down(0, RailFault::PeerClosed));
    let write = Write { flag: flag(0, 1), number: number(0), ..Write::default() };
    assert_eq!(ends.low.post(1, 0, &write), Err(PostError::Down));
    ends.low.post(1, 1, &write).unwrap();
    ends.until("done", |ends| ends.low_events.len() == 2);
    assert_eq!(ends.flag(0), 1);
    ends.low.cut(1, 0);
    ends.poll();
    assert_eq!(ends.low_events.len(), 2, "a rail goes down once");
}

/// Rule 4 and rule 3: what is outstanding when a rail goes goes again, and each write counts once.
#[test]
fn rails_cut_under_load_lose_and_double_nothing() {
    for round in 0..12_u32 {
        let mut ends = Ends::new(3, true);
        let writes = 300_u32;
        let body_len = 9000;
        // What the endpoint does: outstanding writes of each rail, and those to post again.
        let mut outstanding: [Vec<Write>; 3] = Default::default();
        let mut again: Vec<Write> = Vec::new();
        let mut done = 0;
        let mut next = 0;
        let mut alive = vec![0, 1, 2];
        let mut handled = 0;
        let limit = Instant::now() + Duration::from_secs(20);
        while done < writes {
            assert!(Instant::now() < limit, "{done} of {writes} in round {round}");
            if let Some(write) = again.first() {
                let rail = alive[0];
                if ends.low.post(1, rail, write).is_ok() {
                    outstanding[rail].push(again.remove(0));
                }
            } else if next < writes {
                let rail = alive[next as usize % alive.len()];
                let at = u64::from(next % 100) * body_len;
                let write = Write {
                    body: Span { offset: at, len: body_len },
                    to: at,
                    // A flag of its own each, so that one raised twice or never shows.
                    flag: flag(u64::from(next % 60), next + 1),
                    number: number(next),
                    ..Write::default()
                };
                ends.low_region.write(at, &vec![next as u8; body_len as usize]).unwrap();
                if next < done + 100 && ends.low.post(1, rail, &write).is_ok() {
                    outstanding[rail].push(write);
                    next += 1;
                }
            }
            if next == 40 + round * 7 && alive.len() == 3 {
                ends.low.cut(1, 1);
                alive.retain(|&rail| rail != 1);
            }
            if next == 170 + round && alive.len() == 2 {
                ends.high.cut(0, 0);
                alive.retain(|&rail| rail != 0);
            }
            if next % (round + 1) == 0 || next == writes || !again.is_empty() {
                ends.poll();
            }
            for event in ends.low_events.drain(..) {
                match event {
                    Event::Done { rail, .. } => {
                        let write = outstanding[rail].remove(0);
                        let mut found = vec![0; body_len as usize];
                        ends.high_region.read(write.to, &mut found).unwrap();
                        let index = write.number.wrapping_sub(FIRST_NUMBER);
                        assert!(found.iter().all(|&byte| byte == index as u8), "write {index}");
                        done += 1;
                    }
                    Event::RailDown { rail, .. } => {
                        again.append(&mut outstanding[rail]);
                        alive.retain(|&other| other != rail);
                        handled += 1;
                    }
                }
            }
        }
        assert_eq!(handled, 2);
        for index in 0..60 {
            let last = (0..writes).rev().find(|next| u64::from(next % 60) == index).unwrap();
            let found = ends.flag(index);
            assert!(found % 60 == (last + 1) % 60, "flag {index} is {found}");
        }
    }
}

#[test]
fn a_flipped_bit_ends_the_rail_before_its_flag_and_the_write_goes_again() {
    for (head, len) in [(&b"head"[..], 0), (b"", 5000), (b"", 0), (b"both", 60_000)] {
        let mut ends = Ends::new(2, true);
        let body = Span { offset: 0, len };
        let write = Write { body, to: 64, flag: flag(0, 3), number: number(0), ..Write::default() };
        let write = write.with_head(head);
        assert!(ends.low.corrupt_next(1));
        assert!(!ends.low.corrupt_next(0), "no such peer");
        ends.low.post(1, 0, &write).unwrap();
        ends.until("down", |ends| !ends.low_events.is_empty() && !ends.high_events.is_empty());
        let fault = fault_of_rail(&ends.high_events, 0).unwrap();
        assert!(
            matches!(fault, RailFault::BadFrame(what) if what.contains("checksum")),
            "{fault:?}"
        );
        assert_eq!(fault_of_rail(&ends.low_events, 0), Some(&RailFault::PeerClosed));
        assert_eq!(ends.flag(0), 0, "no flag over damaged bytes");
        ends.low.post(1, 1, &write).unwrap();
        ends.until("done", |ends| ends.low_events.iter().any(is_done));
        assert_eq!(ends.flag(0), 3);
        let mut found = vec![1; head.len()];
        ends.high_region.read(64, &mut found).unwrap();
        assert_eq!(found, head);
    }
}

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

#[test]
fn a_body_outside_the_own_region_is_refused() {
    let mut ends = Ends::new(1, true);
    let body = Span { offset: REGION_BYTES - 1, len: 2 };
    let write = Write { body, number: number(0), ..Write::default() };
    assert_eq!(ends.low.post(1, 0, &write), Err(PostError::Down));
    ends.poll();
    assert!(
        matches!(fault_of_rail(&ends.low_events, 0), Some(RailFault::Io(what)) if what.contains("body")),
        "{:?}",
        ends.low_events
    );
}

#[test]
fn a_parked_worker_wakes_for_an_arrival_and_a_call() {
    let [low, high] = setups(1, true);
    let other = thread::spawn(move || connect(high).unwrap());
    let (mut low, parker) = connect(low).unwrap();
    let (mut high, _high_parker) = other.join().unwrap();
    let mut events = Vec::new();

    let ticket = parker.prepare();
    assert!(!low.poll(&mut events));
    let started = Instant::now();
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        high.post(0, 0, &Write { number: number(0), ..Write::default() }).unwrap();
        high
    });
    parker.park(ticket, Duration::from_secs(10));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(low.poll(&mut events));
    let _high = sender.join().unwrap();

    let ticket = parker.prepare();
    parker.wake();
    parker.park(ticket, Duration::from_secs(10));
    parker.wake();
    let ticket = parker.prepare();
    let started = Instant::now();
    parker.park(ticket, Duration::from_millis(30));
    assert!(started.elapsed() >= Duration::from_millis(30), "an old call wakes nobody");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn the_progress_thread_sleeps_while_the_worker_drives() {
    let [low, high] = setups(1, true);
    let other = thread::spawn(move || connect(high).unwrap());
    let (mut low, parker) = connect(low).unwrap();
    let (mut high, _high_parker) = other.join().unwrap();
    let short = Duration::from_millis(40);
    let long = Duration::from_secs(10);
    let sleeps = |timeout| {
        let started = Instant::now();
        parker.park_progress(timeout);
        started.elapsed()
    };

    parker.worker_enters();
    high.post(0, 0, &Write { number: number(0), ..Write::default() }).unwrap();
    assert!(sleeps(short) >= short, "the worker takes care of it");
    parker.worker_leaves();
    assert!(sleeps(long) < long / 2, "nobody else does");
    let mut events = Vec::new();
    assert!(low.poll(&mut events));
    // The acknowledgement is owed, and its timer ends the sleep.
    assert!(sleeps(long) < long / 2);
    low.poll(&mut events);
    let limit = Instant::now() + long;
    while !high.poll(&mut events) {
        assert!(Instant::now() < limit);
    }
    assert_eq!(events, [Event::Done { peer: 0, rail: 0 }]);
    parker.wake_progress();
    assert!(sleeps(long) < long / 2);
    assert!(sleeps(short) >= short);
}

/// Not a test of anything: prints what a release build reaches on this machine.
#[test]
#[ignore = "a measurement; run it alone, in release"]
fn latency_and_rate_over_loopback() {
    let (low_region, high_region) = (Region::private(160 << 20), Region::private(160 << 20));
    let regions = [Arc::new(low_region.unwrap()), Arc::new(high_region.unwrap())];
    let rails = std::env::var("RAILS").map_or(1, |rails| rails.parse().unwrap());
    let [low, high] = setups_over(regions.clone(), rails, false);
    // Bytes of one write, rounds, and whether the second half goes back in answer or at once.
    let sizes: [(u64, u32); 4] = [(8, 20_000), (48 << 10, 4000), (1 << 20, 300), (64 << 20, 8)];
    let run = move |setup: TcpSetup, region: Arc<Region>| {
        let rank = setup.rank;
        let (mut device, _parker) = connect(setup).unwrap();
        let raised = region.flag(0).unwrap();
        let mut events = Vec::new();
        let mut count = 0;
        let mut number = FIRST_NUMBER;
        for (len, rounds) in sizes {
            for together in [false, true] {
                let mut times = Vec::new();
                for _ in 0..rounds {
                    let started = Instant::now();
                    count += 1;
                    let body = Span { offset: 4096, len: len / rails as u64 };
                    let mut wait = |device: &mut TcpDevice| {
                        while (0..rails as u64).any(|rail| {
                            region.flag(rail * 64).unwrap().load(Ordering::Acquire) < count
                        }) {
                            device.poll(&mut events);
                        }
                    };
                    if rank == 1 && !together {
                        wait(&mut device);
                    }
                    for rail in 0..rails {
                        let flag = Some(FlagWrite { offset: rail as u64 * 64, value: count });
                        let to = (80 << 20) + rail as u64 * body.len;
                        let write = Write { body, to, flag, number, ..Write::default() };
                        while device.post(1 - rank, rail, &write).is_err() {
                            device.poll(&mut Vec::new());
                        }
                        number = number.wrapping_add(1);
                    }
                    if rank == 0 || together {
                        wait(&mut device);
                    }
                    times.push(started.elapsed());
                }
                times.sort_unstable();
                let p50 = times[times.len() / 2];
                if rank == 0 {
                    let one_way = if together { p50 } else { p50 / 2 };
                    let rate = len as f64 / one_way.as_secs_f64() / 1e9;
                    let what = if together { "exchange" } else { "one way" };
                    println!("{rails} rails {len:>9} B {what}: p50 {one_way:?}, {rate:.2} GB/s");
                }
            }
        }
        // Whatever the other end still waits for.
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            device.poll(&mut events);
        }
        assert!(raised.load(Ordering::Acquire) >= count);
    };
    let [low_region, high_region] = regions;
    let other = thread::spawn(move || run(high, high_region));
    run(low, low_region);
    other.join().unwrap();
}
