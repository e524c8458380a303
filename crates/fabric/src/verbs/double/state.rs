//! Everything in one place: devices, queue pairs, and what is to happen.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::super::abi::Wc;
use super::DoubleSettings;
use super::faults::Fault;
use super::network::{Device, Packet};
use super::queue_pair::Pair;
use crate::eventfd::ring;
use crate::region::Region;
use crate::sim::Rng;

/// What happened in a [`World`](super::World).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoubleCounters {
    /// Packets with bytes or numbers that were sent, repetitions included.
    pub sent: u64,
    /// Of those, the ones that were sent before.
    pub resent: u64,
    /// Packets that were lost on a cable.
    pub lost: u64,
    /// Packets that a queue on the way had no room for.
    pub overflowed: u64,
    /// Packets that were passed on.
    pub forwarded: u64,
    /// Packets that came where nobody wanted them.
    pub astray: u64,
    /// Queue pairs that failed by themselves or by a fault.
    pub failed: u64,
    /// Requests that a queue pair had no room for: the transport must not post any.
    pub refused: u64,
    /// Packets that were for a queue pair in error or gone.
    pub late: u64,
}

/// A thing to come.
#[derive(Debug)]
pub(super) enum Occurrence {
    /// A queue pair may send its next packet.
    Transmit(u32),
    /// A packet comes in at a device.
    Arrive {
        packet: Packet,
        device: usize,
        hops: u32,
    },
    /// A queue pair was not answered for long.
    Timer {
        number: u32,
        round: u64,
    },
    Fault(Fault),
}

/// An opened device of a rank.
pub(super) struct Opened {
    pub(super) device: usize,
    pub(super) region: Arc<Region>,
    pub(super) base: u64,
    pub(super) completions: VecDeque<(u32, Wc)>,
    pub(super) room: usize,
    pub(super) armed: bool,
    pub(super) bell: Arc<OwnedFd>,
    pub(super) events: VecDeque<u32>,
    pub(super) events_bell: Arc<OwnedFd>,
    /// The device went away after it was opened.
    pub(super) dead: bool,
    /// Its completions are lost.
    pub(super) unreadable: bool,
}

pub(super) type End = (usize, usize, usize);

pub(super) struct State {
    pub(super) now: u64,
    pub(super) rng: Rng,
    pub(super) settings: DoubleSettings,
    pub(super) counters: DoubleCounters,
    pub(super) devices: Vec<Device>,
    /// By the key under which peers write.
    pub(super) opened: BTreeMap<u32, Opened>,
    pub(super) pairs: BTreeMap<u32, Pair>,
    pub(super) ends: BTreeMap<End, usize>,
    pub(super) agenda: BTreeMap<(u64, u64), Occurrence>,
    order: u64,
    pub(super) next_number: u32,
    next_key: u32,
    most_on_their_way: BTreeMap<End, u64>,
}

impl State {
    pub(super) fn new(settings: DoubleSettings) -> Self {
        Self {
            now: 0,
            rng: Rng::new(settings.seed),
            settings,
            counters: DoubleCounters::default(),
            devices: Vec::new(),
            opened: BTreeMap::new(),
            pairs: BTreeMap::new(),
            ends: BTreeMap::new(),
            agenda: BTreeMap::new(),
            order: 0,
            next_number: settings.first_number,
            next_key: 1,
            most_on_their_way: BTreeMap::new(),
        }
    }

    pub(super) fn name_end(&mut self, end: End, device: usize) {
        self.ends.insert(end, device);
    }

    pub(super) fn device_of(&self, end: End) -> Option<usize> {
        self.ends.get(&end).copied()
    }

    pub(super) fn address_of(&self, end: End) -> Option<IpAddr> {
        self.address_of_device(self.device_of(end)?)
    }

    pub(super) fn landed(&self, end: End) -> u64 {
        self.pair_of(end).map_or(0, |pair| pair.landed)
    }

    /// The connected queue pair of an end.
    pub(super) fn pair_of(&self, (rank, peer, rail): End) -> Option<&Pair> {
        let (own, other) =
            (self.device_of((rank, peer, rail))?, self.device_of((peer, rank, rail))?);
        self.pairs.values().find(|pair| pair.device == own && pair.goes_to(&self.devices[other]))
    }

    pub(super) fn note_on_their_way(&mut self, number: u32, bytes: u64) {
        let found = self
            .ends
            .keys()
            .copied()
            .find(|&end| self.pair_of(end).is_some_and(|pair| pair.number == number));
        if let Some(end) = found {
            let most = self.most_on_their_way.entry(end).or_default();
            *most = bytes.max(*most);
        }
    }

    pub(super) fn most_on_their_way(&self, end: End) -> u64 {
        self.most_on_their_way.get(&end).copied().unwrap_or(0)
    }

    pub(super) fn take_number(&mut self) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    pub(super) fn open(&mut self, opened: Opened) -> u32 {
        let key = self.next_key;
        self.next_key += 1;
        self.opened.insert(key, opened);
        key
    }

    pub(super) fn after(&mut self, nanoseconds: u64, what: Occurrence) {
        self.at(self.now.saturating_add(nanoseconds), what);
    }

    pub(super) fn at(&mut self, time: u64, what: Occurrence) {
        self.order += 1;
        self.agenda.insert((time.max(self.now), self.order), what);
    }

    pub(super) fn step(&mut self) -> bool {
        let Some(((time, _), what)) = self.agenda.pop_first() else { return false };
        self.now = time;
        match what {
            Occurrence::Transmit(number) => self.transmit(number),
            Occurrence::Arrive { packet, device, hops } => self.arrive(packet, device, hops),
            Occurrence::Timer { number, round } => self.timer(number, round),
            Occurrence::Fault(fault) => self.commit(fault),
        }
        true
    }

    pub(super) fn advance(&mut self, by: Duration) {
        let until = self.now.saturating_add(nanoseconds(by));
        while self.agenda.first_key_value().is_some_and(|((time, _), _)| *time <= until) {
            self.step();
        }
        self.now = until;
    }

    /// Hands a completion to the device of a queue pair.
    pub(super) fn complete(&mut self, number: u32, key: u32, wc: Wc) {
        let Some(opened) = self.opened.get_mut(&key) else { return };
        assert!(opened.completions.len() < opened.room, "a completion queue overran");
        opened.completions.push_back((number, wc));
        if std::mem::replace(&mut opened.armed, false) {
            ring(&opened.bell);
        }
    }

    /// Tells all who opened a device of an asynchronous event.
    pub(super) fn tell(&mut self, device: usize, event: u32) {
        for opened in self.opened.values_mut().filter(|it| it.device == device && !it.dead) {
            opened.events.push_back(event);
            ring(&opened.events_bell);
        }
    }
}

/// Whole nanoseconds, as far as 64 bits reach.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
