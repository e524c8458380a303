//! Devices, cables, and what passes packets on between them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use super::queue_pair::Body;
use super::state::{Occurrence, State, nanoseconds};

/// Most devices that one packet passes.
const HOPS_MAX: u32 = 8;
/// Bytes of a packet's heads, as far as they take room and time.
const HEAD_BYTES: u64 = 64;

/// A device, and its port with one cable.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) rank: usize,
    pub(super) name: String,
    address: IpAddr,
    /// GIDs by slot.
    pub(super) gids: BTreeMap<u8, Ipv6Addr>,
    peer: Option<usize>,
    /// The cable is in, at both ends.
    pub(super) carrier: bool,
    /// So many packets of a thousand that leave here are lost.
    pub(super) lost_permille: u64,
    pub(super) gone: bool,
    /// What the next registrations are answered with.
    pub(super) refuses: Option<i32>,
    pub(super) rules: Vec<Rule>,
    /// Until when the queue that passes packets on, out of this device, is busy.
    busy_until: u64,
    /// When the last packet of each queue pair comes in here.
    last: BTreeMap<(u32, u32), u64>,
}

/// What passes packets on at the device where they come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The device that sent them first; rules know it by its hardware address.
    pub(super) from: usize,
    /// Which of its packets.
    pub(super) what: Match,
    /// The device where they go out.
    pub(super) out: usize,
}

/// Which packets are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// Those from this UDP source port, whoever they are for.
    SourcePort(u16),
    /// Those for this address.
    Address(IpAddr),
}

/// What travels between queue pairs.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) source: usize,
    pub(super) gid: Ipv6Addr,
    pub(super) port: u16,
    pub(super) body: Body,
}

impl Packet {
    fn bytes(&self) -> u64 {
        self.body.bytes() + HEAD_BYTES
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

impl Device {
    pub(super) fn has(&self, gid: Ipv6Addr) -> bool {
        self.gids.values().any(|own| *own == gid)
    }

    /// The GID comes back in another slot.
    pub(super) fn move_gid(&mut self, slot: u8) {
        self.gids = BTreeMap::from([(slot, mapped(self.address))]);
    }
}

impl State {
    pub(super) fn add_device(&mut self, rank: usize, name: &str, address: IpAddr) -> usize {
        let slot = self.rng.below(4) as u8;
        self.devices.push(Device {
            rank,
            name: name.to_owned(),
            address,
            gids: BTreeMap::from([(slot, mapped(address))]),
            peer: None,
            carrier: true,
            lost_permille: self.settings.lost_permille,
            gone: false,
            refuses: None,
            rules: Vec::new(),
            busy_until: 0,
            last: BTreeMap::new(),
        });
        self.devices.len() - 1
    }

    pub(super) fn join(&mut self, one: usize, two: usize) {
        self.devices[one].peer = Some(two);
        self.devices[two].peer = Some(one);
    }

    pub(super) fn peer_of(&self, device: usize) -> Option<usize> {
        self.devices[device].peer
    }

    pub(super) fn address_of_device(&self, device: usize) -> Option<IpAddr> {
        self.devices.get(device).map(|device| device.address)
    }

    pub(super) fn add_rule(&mut self, at: usize, rule: Rule) {
        self.devices[at].rules.push(rule);
    }

    /// How long a device is busy with so many bytes.
    pub(super) fn time_of(&self, bytes: u64) -> u64 {
        (nanoseconds(self.settings.kilobyte).saturating_mul(bytes) / 1024).max(1)
    }

    pub(super) fn send(&mut self, packet: Packet) {
        let device = packet.source;
        self.leave(packet, device, 0, 0);
    }

    /// A packet leaves a device over its cable.
    fn leave(&mut self, packet: Packet, device: usize, waits: u64, hops: u32) {
        let (carrier, gone, lost) = {
            let device = &self.devices[device];
            (device.carrier, device.gone, device.lost_permille)
        };
        if !carrier || gone || self.rng.below(1000) < lost {
            self.counters.lost += 1;
            return;
        }
        let Some(peer) = self.devices[device].peer else { return };
        let (least, most) = self.settings.delay;
        let (least, most) = (nanoseconds(least), nanoseconds(most));
        let delay = least + self.rng.below(most.saturating_sub(least) + 1);
        let soonest = self.now + waits + delay;
        let last = self.devices[peer].last.entry((packet.from, packet.to)).or_default();
        let time = soonest.max(*last + 1);
        *last = time;
        self.at(time, Occurrence::Arrive { packet, device: peer, hops });
    }

    /// A packet comes in: it is passed on, or for this device, or nobody wants it.
    pub(super) fn arrive(&mut self, packet: Packet, at: usize, hops: u32) {
        let device = &self.devices[at];
        if !device.carrier || device.gone {
            self.counters.lost += 1;
            return;
        }
        let matches = |rule: &&Rule| {
            rule.from == packet.source
                && match rule.what {
                    Match::SourcePort(port) => packet.port == port,
                    Match::Address(address) => packet.gid == mapped(address),
                }
        };
        if let Some(rule) = device.rules.iter().find(matches).copied() {
            return self.pass_on(packet, rule.out, hops);
        }
        if device.has(packet.gid) {
            self.deliver(packet, at);
        } else {
            self.counters.astray += 1;
        }
    }

    fn pass_on(&mut self, packet: Packet, out: usize, hops: u32) {
        if hops >= HOPS_MAX {
            self.counters.astray += 1;
            return;
        }
        let bytes = packet.bytes();
        let busy = self.devices[out].busy_until.max(self.now);
        // What is in the queue by now, in time.
        let room = self.time_of(self.settings.hairpin_bytes);
        if busy - self.now + self.time_of(bytes) > room {
            self.counters.overflowed += 1;
            return;
        }
        // It leaves a little slower than packets come in, as it shares the device with others.
        let busy = busy + self.time_of(bytes) * 5 / 4;
        self.devices[out].busy_until = busy;
        self.counters.forwarded += 1;
        self.leave(packet, out, busy - self.now, hops + 1);
    }
}
