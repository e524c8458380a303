//! What only real queue pairs show: their failures, and sleeping until bytes come. Run in the lab,
//! which names its faults and has a ring of four cables between the devices of one machine.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use fabric::auth::Token;
use fabric::verbs::{
    Forwarded, VerbsCause, VerbsDevice, VerbsEnd, VerbsEnds, VerbsError, VerbsNeighbour,
    VerbsSettings, VerbsSetup,
};
use fabric::{
    Channel, DataAddresses, Device, EndpointSettings, Event, FIRST_VALUE, Fabric, FlagWrite,
    PostError, Posted, Put, RailFault, Region, Shape, Sizes, Span, Topology, Transport, Waiting,
    Wiring, WiringSettings, Write,
};

const REGION: u64 = 1 << 20;
const FLAG: u64 = 4096;
/// Longest wait for anything here; the lab's machines are slow.
const LIMIT: Duration = Duration::from_secs(60);

/// The end of the wire with this number: 1 at the lower rank, 2 at the higher.
fn address(wire: u8, end: u8) -> IpAddr {
    IpAddr::from([10, 10, wire, end])
}

/// Two ranks: rail 0 on the cable between h0 and h1, rail 1 on the one between h1 and h2.
fn two_ranks(settings: VerbsSettings) -> (Vec<VerbsDevice>, Vec<Arc<Region>>) {
    let regions: Vec<_> = (0..2).map(|_| Arc::new(Region::private(REGION).unwrap())).collect();
    let prepare = |rank: usize| {
        let end = |(rail, wire)| VerbsEnd {
            rail,
            address: address(wire, rank as u8 + 1),
            forwarded: None,
        };
        let ends = [(0, 0), (1, 2)].map(end).to_vec();
        let neighbours = vec![VerbsNeighbour { rank: 1 - rank, ends }];
        let region = Arc::clone(&regions[rank]);
        VerbsEnds::prepare(VerbsSetup { rank, neighbours, region, settings }).unwrap()
    };
    let ends = [prepare(0), prepare(1)];
    let blobs = [ends[0].blob(), ends[1].blob()];
    let devices = ends.into_iter().map(|ends| ends.connect(&blobs).unwrap().0).collect();
    (devices, regions)
}

fn fault(words: &[&str]) {
    let tool = std::env::var("ROCE_FAULT").expect("run it in the lab: lab/roce suite");
    let status = Command::new("sh").arg(tool).args(words).status().unwrap();
    assert!(status.success(), "{words:?}");
}

/// Repairs what a test broke, also when it fails.
struct Mend(&'static [&'static str]);

impl Drop for Mend {
    fn drop(&mut self) {
        fault(self.0);
        // Ports and their neighbours' addresses need a moment.
        thread::sleep(Duration::from_secs(2));
    }
}

fn poll_until(
    devices: &mut [VerbsDevice],
    mut so: impl FnMut(&[Vec<Event>; 2]) -> bool,
) -> [Vec<Event>; 2] {
    let mut events = [Vec::new(), Vec::new()];
    let start = Instant::now();
    while !so(&events) {
        assert!(start.elapsed() < LIMIT, "waited too long; seen: {events:?}");
        for (device, events) in devices.iter_mut().zip(&mut events) {
            device.poll(events);
        }
    }
    events
}

fn down(events: &[Event], of: usize) -> Option<&RailFault> {
    events.iter().find_map(|event| match event {
        Event::RailDown { rail, fault, .. } if *rail == of => Some(fault),
        _ => None,
    })
}

fn write(number: u32) -> Write {
    Write {
        body: Span { offset: 512 << 10, len: 4000 },
        to: 64 << 10,
        flag: Some(FlagWrite { offset: FLAG, value: number }),
        number,
        ..Write::default()
    }
}

/// Breaks the wire of rail 0 and holds what both ends say against what they should.
fn a_rail_fails(break_it: &[&str], mend: &'static [&'static str], expected: VerbsCause) {
    let (mut devices, regions) = two_ranks(VerbsSettings::default());
    assert_eq!(devices[0].post(1, 0, &write(1)), Ok(Posted::Pending));
    poll_until(&mut devices, |events| !events[0].is_empty());
    assert_eq!(regions[1].flag(FLAG).unwrap().load(Ordering::Acquire), 1);
    let _mend = Mend(mend);
    fault(break_it);
    let start = Instant::now();
    for number in 2..6 {
        assert_eq!(devices[0].post(1, 0, &write(number)), Ok(Posted::Pending));
    }
    let events = poll_until(&mut devices, |events| {
        down(&events[0], 0).is_some() && down(&events[1], 0).is_some()
    });
    let took = start.elapsed();
    let said = down(&events[0], 0).unwrap();
    println!("after {took:?}: {said}");
    let RailFault::Verbs(fault) = said else { panic!("{said}") };
    assert_eq!((fault.cause, fault.status), (expected, Some(12)), "{said}");
    assert_eq!(fault.device, "roce_h0p0f0");
    assert_eq!(down(&events[1], 0), Some(&RailFault::PeerClosed), "told over the other rail");
    assert!(took < Duration::from_secs(10), "took {took:?}");
    // The other rail carries what was lost, and the flag says so.
    let done = events[0].iter().filter(|event| matches!(event, Event::Done { .. })).count();
    for number in 2 + done as u32..6 {
        assert_eq!(devices[0].post(1, 1, &write(number)), Ok(Posted::Pending));
    }
    poll_until(&mut devices, |events| events[0].len() == 4 - done);
    assert_eq!(regions[1].flag(FLAG).unwrap().load(Ordering::Acquire), 5);
}

#[test]
#[ignore = "needs an RDMA device: lab/roce suite"]
fn a_pulled_cable_is_a_port_that_went_down() {
    a_rail_fails(&["cable-pull", "h0-h1"], &["cable-mend", "h0-h1"], VerbsCause::PortDown);
}

/// Makes rail 0 again at both ends, once both can.
fn make_again(devices: &mut [VerbsDevice]) {
    let start = Instant::now();
    let mut told = [None, None];
    let mut events = Vec::new();
    while told.iter().any(Option::is_none) {
        assert!(start.elapsed() < LIMIT, "it is not offered: {events:?}");
        for (rank, told) in told.iter_mut().enumerate() {
            devices[rank].poll(&mut events);
            *told = told.take().or_else(|| devices[rank].remake(1 - rank, 0));
        }
        thread::sleep(Duration::from_millis(20));
    }
    for rank in 0..2 {
        let told = told[1 - rank].as_deref().unwrap();
        devices[rank].reconnect(1 - rank, 0, told).unwrap();
    }
    println!("made again after {:?}", start.elapsed());
}

#[test]
#[ignore = "needs an RDMA device: lab/roce suite"]
fn a_rail_whose_cable_was_pulled_is_made_again_twice() {
    let (mut devices, regions) = two_ranks(VerbsSettings::default());
    for round in 0..2 {
        let number = 1 + round * 10;
        {
            let _mend = Mend(&["cable-mend", "h0-h1"]);
            fault(&["cable-pull", "h0-h1"]);
            assert_eq!(devices[0].post(1, 0, &write(number)), Ok(Posted::Pending));
            poll_until(&mut devices, |events| {
                down(&events[0], 0).is_some() && down(&events[1], 0).is_some()
            });
            assert_eq!(devices[0].remake(1, 0), None, "the cable is out");
        }
        make_again(&mut devices);
        for number in number + 1..number + 9 {
            assert_eq!(devices[0].post(1, 0, &write(number)), Ok(Posted::Pending));
            let events = poll_until(&mut devices, |events| !events[0].is_empty());
            assert_eq!(events[0], [Event::Done { peer: 1, rail: 0 }]);
            assert_eq!(regions[1].flag(FLAG).unwrap().load(Ordering::Acquire), number);
        }
    }
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// The slot of the IPv4 GID of an address on a device.
fn slot(device: &str, address: &str) -> Option<u32> {
    (0..32).find(|slot| {
        let file = format!("/sys/class/infiniband/{device}/ports/1/gids/{slot}");
        let gid = std::fs::read_to_string(file).unwrap_or_default();
        gid.trim().parse().is_ok_and(|gid: std::net::Ipv6Addr| {
            gid.to_ipv4_mapped().is_some_and(|gid| gid.to_string() == address)
        })
    })
}

/// Gives the address its first slot back.
struct Readdress;

impl Drop for Readdress {
    fn drop(&mut self) {
        for words in ["addr del 10.10.77.1/24 dev h0p0f0", "addr del 10.10.0.1/24 dev h0p0f0"] {
            let _ = Command::new("ip").args(words.split(' ')).status();
        }
        ip("addr add 10.10.0.1/24 dev h0p0f0");
        thread::sleep(Duration::from_secs(2));
    }
}

#[test]
#[ignore = "needs an RDMA device: lab/roce suite"]
fn a_rail_comes_back_with_its_gid_in_another_slot() {
    let (mut devices, regions) = two_ranks(VerbsSettings::default());
    let before = slot("roce_h0p0f0", "10.10.0.1").unwrap();
    devices[0].cut(1, 0);
    poll_until(&mut devices, |events| {
        down(&events[0], 0).is_some() && down(&events[1], 0).is_some()
    });
    let _readdress = Readdress;
    ip("addr del 10.10.0.1/24 dev h0p0f0");
    // Another address takes the slot.
    ip("addr add 10.10.77.1/24 dev h0p0f0");
    let start = Instant::now();
    while slot("roce_h0p0f0", "10.10.77.1").is_none() {
        assert!(start.elapsed() < LIMIT, "the kernel makes no GID");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(devices[0].remake(1, 0), None, "its address is gone");
    ip("addr add 10.10.0.1/24 dev h0p0f0");
    make_again(&mut devices);
    let after = slot("roce_h0p0f0", "10.10.0.1").unwrap();
    assert_ne!(before, after, "the GID is where it was");
    assert_eq!(devices[0].post(1, 0, &write(1)), Ok(Posted::Pending));
    poll_until(&mut devices, |events| !events[0].is_empty());
    assert_eq!(regions[1].flag(FLAG).unwrap().load(Ordering::Acquire), 1);
}

#[test]
#[ignore = "needs an RDMA device: lab/roce suite"]
fn a_silent_wire_is_no_answer() {
    let silence = ["wire", "h0-h1", "loss", "100%"];
    a_rail_fails(&silence, &["wire-mend", "h0-h1"], VerbsCause::NoAnswer);
}

#[test]
#[ignore = "needs an RDMA device: lab/roce suite"]
fn a_lost_answer_is_found_to_have_landed() {
    let (mut devices, regions) = two_ranks(VerbsSettings::default());
    assert_eq!(devices[0].post(1, 0, &write(1)), Ok(Posted::Pending));
    poll_until(&mut devices, |events| !events[0].is_empty());
    let _mend = Mend(&["wire-mend", "h0-h1"]);
    fault(&["wire", "h1>h0", "loss", "100%"]);
    assert_eq!(devices[0].post(1, 0, &write(2)), Ok(Posted::Pending));
    let events = poll_until(&mut devices, |events| down(&events[0], 0).is_some());
    assert_eq!(regions[1].flag(FLAG).unwrap().load(Ordering::Acquire), 2);
    assert_eq!(events[0][0], Event::Done { peer: 1, rail: 0 }, "it had landed");
    assert_eq!(events[0].len(), 2, "{events:?}");
}

#[test]
#[ignore = "needs an RDMA device: lab/roce suite"]
fn a_peer_that_closes_says_so() {
    let (mut devices, _regions) = two_ranks(VerbsSettings::default());
    drop(devices.pop());
    let mut events = Vec::new();
    let start = Instant::now();
    while down(&events, 0).is_none() || down(&events, 1).is_none() {
        devices[0].poll(&mut events);
        assert!(start.elapsed() < LIMIT, "{events:?}");
    }
    assert_eq!(down(&events, 0), Some(&RailFault::PeerClosed));
    assert_eq!(down(&events, 1), Some(&RailFault::PeerClosed));
}

fn settings(end: u8) -> WiringSettings {
    WiringSettings {
        transport: Transport::Verbs,
        sizes: Sizes { slot_bytes: 64 << 10, heap_bytes: 64 << 10, relay_chunk_bytes: 4096 },
        endpoint: EndpointSettings::default(),
        crc: false,
        waiting: Waiting {
            spin: Duration::ZERO,
            yielding: Duration::ZERO,
            park: Duration::from_secs(20),
        },
        addresses: DataAddresses {
            any: [0, 1].map(|wire| address(wire, end)).to_vec(),
            ..DataAddresses::default()
        },
        verbs: VerbsSettings::default(),
        token: Token::new("of the lab").unwrap(),
    }
}

#[test]
#[ignore = "needs an RDMA device: lab/roce suite"]
fn a_fabric_proves_its_rails_and_a_sleeper_wakes() {
    let topology = Arc::new(Topology::new(Shape::Path, 2, 2).unwrap());
    let ends: Vec<_> = (0..2)
        .map(|rank| Wiring::prepare(rank, Arc::clone(&topology), settings(rank as u8 + 1)).unwrap())
        .collect();
    let blobs: Vec<_> = ends.iter().map(Wiring::blob).collect();
    let deadline = Instant::now() + LIMIT;
    let fabrics: Vec<Fabric> =
        ends.into_iter().map(|ends| ends.connect(7, &blobs, deadline).unwrap()).collect();
    thread::scope(|scope| {
        let proofs: Vec<_> = fabrics
            .iter()
            .map(|fabric| scope.spawn(|| fabric.prove(7, deadline).unwrap()))
            .collect();
        for proof in proofs {
            assert_eq!(proof.join().unwrap(), []);
        }
    });
    let [zero, one] = &fabrics[..] else { panic!("two") };
    for round in 1..=3_u32 {
        let value = FIRST_VALUE.wrapping_add(round);
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                one.wait(|| {
                    one.has_arrived(0, Channel::Exchange, value, 8).unwrap().then(Instant::now)
                })
            });
            // Long enough to fall asleep, and shorter than the longest sleep.
            thread::sleep(Duration::from_secs(1));
            let src = Span { offset: zero.layout().staging(0).offset, len: 8 };
            let to = zero.exchange_place(0, 1, value, 8);
            let posted = Instant::now();
            zero.put(&Put { dst: 1, src, to, channel: Channel::Exchange, value }).unwrap();
            let woken = sleeper.join().unwrap();
            let took = woken.saturating_duration_since(posted);
            println!("round {round}: woken after {took:?}");
            assert!(took < Duration::from_secs(5), "the sleeper was not woken: {took:?}");
        });
    }
}

/// The sender's own link: soft-RoCE answers at once, late, or not at all.
struct Link;

impl Link {
    fn set(state: &str) {
        let status = Command::new("ip").args(["link", "set", "h0p0f0", state]).status().unwrap();
        assert!(status.success(), "{state}");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        Self::set("up");
        thread::sleep(Duration::from_secs(2));
    }
}

#[test]
#[ignore = "needs an RDMA device: lab/roce suite"]
fn a_link_taken_down_under_load_fails_its_rail() {
    let limit = Duration::from_secs(3);
    let settings = VerbsSettings { stall_limit: limit, ..VerbsSettings::default() };
    let (mut devices, _regions) = two_ranks(settings);
    assert_eq!(devices[0].post(1, 0, &write(1)), Ok(Posted::Pending));
    poll_until(&mut devices, |events| !events[0].is_empty());
    let _link = Link;
    let breaker = thread::spawn(|| Link::set("down"));
    let start = Instant::now();
    let mut number = 1;
    let mut events = [Vec::new(), Vec::new()];
    while down(&events[0], 0).is_none() {
        assert!(start.elapsed() < LIMIT, "waited too long");
        if devices[0].post(1, 0, &write(number + 1)).is_ok() {
            number += 1;
        }
        for (device, events) in devices.iter_mut().zip(&mut events) {
            device.poll(events);
        }
    }
    breaker.join().unwrap();
    println!("after {:?}: {}", start.elapsed(), down(&events[0], 0).unwrap());
    assert!(start.elapsed() < limit + Duration::from_secs(10));
    let cause = match down(&events[0], 0).unwrap() {
        RailFault::Verbs(fault) => fault.cause,
        other => panic!("{other}"),
    };
    assert_eq!(cause, VerbsCause::PortDown);
    assert_eq!(devices[0].post(1, 1, &write(number + 1)), Ok(Posted::Pending));
    poll_until(&mut devices, |events| !events[0].is_empty());
}

/// A path from h0 to h2 by way of h1, whose devices pass packets of the tag port on.
struct Forwarding;

const TAG_PORT: u16 = 65535;
/// Netdev and address of each end.
const FAR: [(&str, &str); 2] = [("h0p0f0", "10.10.0.1"), ("h2p1f0", "10.10.2.2")];

fn tc(words: &str) {
    let status = Command::new("tc").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "tc {words}");
}

fn mac(netdev: &str) -> String {
    let file = format!("/sys/class/net/{netdev}/address");
    std::fs::read_to_string(file).unwrap().trim().to_owned()
}

impl Forwarding {
    fn new() -> Self {
        ip("route add 10.10.2.2/32 via 10.10.0.2 dev h0p0f0 src 10.10.0.1");
        ip("route add 10.10.0.1/32 via 10.10.2.1 dev h2p1f0 src 10.10.2.2");
        let it = Self;
        for (ingress, out, to) in [("h1p1f0", "h1p0f0", FAR[1]), ("h1p0f0", "h1p1f0", FAR[0])] {
            let (own, far) = (mac(out), mac(to.0));
            let address = to.1;
            tc(&format!("qdisc add dev {ingress} clsact"));
            tc(&format!(
                "filter add dev {ingress} ingress protocol ip flower ip_proto udp dst_port 4791 \
                 src_port {TAG_PORT} dst_ip {address} action pedit ex munge eth dst set {far} \
                 munge eth src set {own} pipe action mirred egress redirect dev {out}"
            ));
        }
        it
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        for words in ["qdisc del dev h1p1f0 clsact", "qdisc del dev h1p0f0 clsact"] {
            let _ = Command::new("tc").args(words.split(' ')).status();
        }
        for words in [
            "route del 10.10.2.2/32 via 10.10.0.2 dev h0p0f0",
            "route del 10.10.0.1/32 via 10.10.2.1 dev h2p1f0",
        ] {
            let _ = Command::new("ip").args(words.split(' ')).status();
        }
    }
}

/// Ranks 0 and 1 on h0 and h2, with one forwarded rail.
fn forwarded_ranks(
    forwarded: Forwarded,
) -> Result<(Vec<VerbsDevice>, Vec<Arc<Region>>), VerbsError> {
    let regions: Vec<_> = (0..2).map(|_| Arc::new(Region::private(REGION).unwrap())).collect();
    let prepare = |rank: usize| {
        let address = FAR[rank].1.parse().unwrap();
        let ends = vec![VerbsEnd { rail: 0, address, forwarded: Some(forwarded) }];
        let neighbours = vec![VerbsNeighbour { rank: 1 - rank, ends }];
        let region = Arc::clone(&regions[rank]);
        let settings = VerbsSettings::default();
        VerbsEnds::prepare(VerbsSetup { rank, neighbours, region, settings })
    };
    let ends = [prepare(0)?, prepare(1)?];
    let blobs = [ends[0].blob(), ends[1].blob()];
    let mut devices = Vec::new();
    for ends in ends {
        devices.push(ends.connect(&blobs)?.0);
    }
    Ok((devices, regions))
}

#[test]
#[ignore = "needs an RDMA device: lab/roce suite"]
fn a_forwarded_rail_carries_bytes_within_its_window_from_the_tag_port() {
    let _forwarding = Forwarding::new();
    let forwarded =
        Forwarded { flow_label: 16383, source_port: Some(TAG_PORT), window_bytes: 16 << 10 };
    let (mut devices, regions) = forwarded_ranks(forwarded).unwrap();
    assert_eq!(devices[0].write_bytes_max(1, 0), 8 << 10);
    let (mut number, mut done) = (0, 0);
    while done < 40 {
        let before = number;
        while devices[0].post(1, 0, &write(number + 1)) == Ok(Posted::Pending) {
            number += 1;
        }
        let full = devices[0].post(1, 0, &write(number + 1));
        assert_eq!(full, Err(PostError::Full), "after {number} writes");
        assert_eq!(number - done, 4, "the window has 16 KiB, and was filled from {before}");
        let events = poll_until(&mut devices, |events| !events[0].is_empty());
        assert!(down(&events[0], 0).is_none(), "{events:?}");
        done += events[0].len() as u32;
    }
    assert!(regions[1].flag(FLAG).unwrap().load(Ordering::Acquire) >= 40);
    // A label that gives another port is found before a packet leaves.
    let wrong = Forwarded { flow_label: 0x12345, ..forwarded };
    let (mut devices, _regions) = forwarded_ranks(wrong).unwrap();
    let events = poll_until(&mut devices, |events| !events[0].is_empty());
    let why = down(&events[0], 0).unwrap().to_string();
    assert!(why.contains("source port 58177") && why.contains("tag port 65535"), "{why}");
}
