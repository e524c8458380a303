use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::auth::Token;
use crate::{
    Device, Event, FIRST_NUMBER, FlagWrite, INBOX_WINDOW, Parker, PostError, Posted, RailFault,
    Region, Span, Write,
};

pub(super) const SECRET: &str = "a shared secret";
pub(super) const REGION_BYTES: u64 = 1 << 20;
pub(super) const EPOCH: u32 = 5;
/// Where flags lie; everything below is bytes.
pub(super) const FLAGS: u64 = REGION_BYTES - 4096;

pub(super) fn region() -> Arc<Region> {
    Arc::new(Region::private(REGION_BYTES).unwrap())
}

/// Two neighbours on loopback, the lower rank first.
pub(super) fn setups(rails: usize, crc: bool) -> [TcpSetup; 2] {
    setups_over([region(), region()], rails, crc)
}

pub(super) fn setups_over(regions: [Arc<Region>; 2], rails: usize, crc: bool) -> [TcpSetup; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = vec![listener.local_addr().unwrap(); rails];
    let mut listeners = vec![listener];
    let mut rank = 0;
    regions.map(|region| {
        let setup = TcpSetup {
            rank,
            epoch: EPOCH,
            neighbours: vec![PeerEndpoint {
                rank: 1 - rank,
                addresses: addresses.clone(),
                own: addresses.clone(),
            }],
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

pub(super) fn number(index: u32) -> u32 {
    FIRST_NUMBER.wrapping_add(index)
}

pub(super) fn flag(index: u64, value: u32) -> Option<FlagWrite> {
    Some(FlagWrite { offset: FLAGS + index * 64, value })
}

fn is_done(event: &Event) -> bool {
    matches!(event, Event::Done { .. })
}

pub(super) fn fault_of_rail(events: &[Event], wanted: usize) -> Option<&RailFault> {
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
        let bytes: Vec<u8> = (0..body.len).map(|at| (at * 31 / 8) as u8).collect();
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
