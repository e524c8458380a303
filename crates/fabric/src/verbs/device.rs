//! One rank's queue pairs over RDMA.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::abi::{WC_RECV_RDMA_WITH_IMM, Wc};
use super::counters::{self, PortCounts};
use super::error::{Notice, VerbsCause};
use super::meaning;
use super::parker::VerbsParker;
use super::provider::{Nic, Plant, Provider};
use super::queue_pair::{DRAIN_LIMIT, Pair, Refused, State};
use super::settings::VerbsSettings;
use super::word::{Kind, Word, widened};
use crate::device::{Device, Event, Parker, PostError, Posted, RailFault, Write};
use crate::region::Region;

/// Completions taken with one call.
const BATCH: usize = 32;
/// Most calls for one device before the others have their turn.
const ROUNDS: usize = 8;
/// Most of such turns until all that came is read, though others go on.
const READS_MAX: usize = 64;
/// Looks in vain between two that look after queue pairs too.
const LOOKS: u32 = 1024;
/// Least time between two of those, unless something is known to be wrong.
const TEND_INTERVAL: Duration = Duration::from_millis(20);
/// How long a queue pair that is closed on purpose may take to say so.
const GOODBYE_LIMIT: Duration = Duration::from_millis(500);
/// The same when everything is closed.
const FAREWELL_LIMIT: Duration = Duration::from_millis(200);

/// An opened device, and whether its port is down.
pub(super) struct Port {
    pub(super) nic: Arc<dyn Nic>,
    /// What it had counted when the epoch began.
    began: PortCounts,
    pub(super) down: bool,
    pub(super) gone: bool,
}

impl Port {
    pub(super) fn new(nic: Arc<dyn Nic>) -> Self {
        Self { began: nic.counts(), nic, down: false, gone: false }
    }
}

/// One rank's queue pairs over RDMA.
pub struct VerbsDevice {
    pub(super) rank: usize,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) region: Arc<Region>,
    pub(super) settings: VerbsSettings,
    // Queue pairs go before the devices they are on.
    pub(super) pairs: Vec<Pair>,
    pub(super) ports: Vec<Port>,
    events: Vec<Event>,
    pub(super) parker: Arc<VerbsParker>,
    looks: u32,
    tended: Instant,
    /// Some queue pair is on its way down.
    pub(super) ailing: bool,
}

impl std::fmt::Debug for VerbsDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerbsDevice")
            .field("rank", &self.rank)
            .field("queue_pairs", &self.pairs.len())
            .finish_non_exhaustive()
    }
}

impl VerbsDevice {
    /// A device over connected queue pairs, whose indices are their places.
    pub(super) fn new(
        rank: usize,
        provider: Arc<dyn Provider>,
        region: Arc<Region>,
        settings: VerbsSettings,
        nics: Vec<Arc<dyn Nic>>,
        pairs: Vec<Pair>,
        parker: Arc<VerbsParker>,
    ) -> Self {
        let ports = nics.into_iter().map(Port::new).collect();
        Self {
            tended: provider.now(),
            rank,
            provider,
            region,
            settings,
            pairs,
            ports,
            events: Vec::new(),
            parker,
            looks: 0,
            ailing: false,
        }
    }

    /// Rails that have no queue pair, and why.
    pub(super) fn are_down(&mut self, rails: Vec<(usize, usize, String)>) {
        self.events.extend(rails.into_iter().map(|(peer, rail, why)| Event::RailDown {
            peer,
            rail,
            fault: RailFault::Absent(why),
        }));
    }

    pub(super) fn find(&self, peer: usize, rail: usize) -> Option<usize> {
        self.pairs.iter().position(|pair| pair.peer() == peer && pair.rail() == rail)
    }

    fn port_of(&self, pair: &Pair) -> Option<&Port> {
        self.ports.get(pair.nic()?)
    }

    /// Takes the completions of all devices; answers whether there were any.
    fn take_completions(&mut self) -> bool {
        let mut any = false;
        for port in 0..self.ports.len() {
            for _ in 0..ROUNDS {
                let mut room = [Wc::default(); BATCH];
                match self.ports[port].nic.poll(&mut room) {
                    Ok(count) => {
                        if count > 0 {
                            any = true;
                            let now = self.provider.now();
                            room[..count].iter().for_each(|wc| self.complete(wc, now));
                        }
                        if count < BATCH {
                            break;
                        }
                    }
                    Err(_) => {
                        self.lose_sight(port, self.provider.now());
                        break;
                    }
                }
            }
        }
        any
    }

    fn complete(&mut self, wc: &Wc, now: Instant) {
        let (tag, kind) = Kind::of(wc.wr_id);
        let index = tag.pair;
        // What is left of a queue pair that was made again since says nothing.
        if self.pairs.get(index).is_none_or(|pair| pair.place.tag != tag) {
            return;
        }
        if wc.status != 0 {
            return self.failed(index, kind, wc, now);
        }
        let Some(pair) = self.pairs.get_mut(index) else { return };
        match kind {
            Kind::Part => {}
            Kind::Tell => pair.was_told(),
            Kind::Write => {
                if pair.written(now) && pair.plant != Some(Plant::EarlyDone) {
                    let (peer, rail) = (pair.peer(), pair.rail());
                    self.events.push(Event::Done { peer, rail });
                }
            }
            Kind::Receive => {
                let posted = pair.received();
                if wc.opcode == WC_RECV_RDMA_WITH_IMM {
                    pair.flag_came();
                    pair.give_credit();
                } else {
                    self.hear(index, u32::from_be(wc.imm_data), now);
                }
                if let Err(error) = posted {
                    let what = format!("a receive cannot be posted: {error}");
                    self.take_down(index, RailFault::Io(what), now);
                }
            }
        }
    }

    /// A work request failed, and with it its queue pair.
    fn failed(&mut self, index: usize, kind: Kind, wc: &Wc, now: Instant) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        match kind {
            Kind::Part => {}
            Kind::Write => pair.ended(),
            Kind::Tell => pair.was_told(),
            Kind::Receive => {
                // Nothing takes its place in a queue pair that failed.
                let _ = pair.received();
            }
        }
        if matches!(pair.state, State::Up | State::Closing { .. }) {
            let Some(port) = pair.nic() else { return };
            self.read_notices(port, now);
            let port = &self.ports[port];
            let fault = self.pairs[index].fault_of(wc, &*port.nic, port.down, now);
            self.take_down(index, fault, now);
        }
    }

    /// Takes a word of the peer's device.
    fn hear(&mut self, on: usize, word: u32, now: Instant) {
        let peer = self.pairs[on].peer();
        match Word::decode(word) {
            Some(Word::Credit { count }) => {
                let pair = &mut self.pairs[on];
                match widened(count, pair.credited, pair.sent()) {
                    Some(count) => pair.credited = count,
                    None => self.take_down(on, bad_word(word), now),
                }
            }
            Some(Word::Down { rail, round, count }) => {
                let Some(about) = self.find(peer, rail) else {
                    return self.take_down(on, bad_word(word), now);
                };
                let pair = &mut self.pairs[about];
                if pair.place.tag.round & Word::ROUND != round {
                    // It is about a queue pair that was made again since.
                    return;
                }
                if pair.peer_saw.is_none() {
                    match widened(count, pair.credited, pair.sent()) {
                        Some(count) => pair.peer_saw = Some(count),
                        None => return self.take_down(on, bad_word(word), now),
                    }
                }
                self.take_down(about, RailFault::PeerClosed, now);
            }
            Some(Word::Bye) => self.take_down(on, RailFault::PeerClosed, now),
            None => self.take_down(on, bad_word(word), now),
        }
    }

    fn take_down(&mut self, index: usize, mut fault: RailFault, now: Instant) {
        let pair = &self.pairs[index];
        if let Some(port) = pair.nic().filter(|_| pair.is_up()) {
            let port = &self.ports[port];
            counters::add_rises(&mut fault, &port.began, &*port.nic);
        }
        self.pairs[index].take_down(fault, now);
        self.ailing = true;
    }

    /// A device failed as a whole.
    fn lose(&mut self, port: usize, now: Instant) {
        if std::mem::replace(&mut self.ports[port].gone, true) {
            return;
        }
        for index in 0..self.pairs.len() {
            if self.pairs[index].nic() == Some(port) {
                let nic = &*self.ports[port].nic;
                let fault = self.pairs[index].fault(VerbsCause::DeviceGone, nic, None, now);
                self.take_down(index, fault, now);
            }
        }
    }

    /// The completions of a device cannot be read any more, so nobody can say which writes landed
    /// there: no other rail to the same peers may write them again.
    fn lose_sight(&mut self, port: usize, now: Instant) {
        if self.ports[port].gone {
            return;
        }
        self.lose(port, now);
        for index in 0..self.pairs.len() {
            let peer = self.pairs[index].peer();
            let shares = |pair: &Pair| pair.peer() == peer && pair.nic() == Some(port);
            if self.pairs.iter().any(shares) {
                let nic = &*self.ports[port].nic;
                let fault = self.pairs[index].fault(VerbsCause::DeviceGone, nic, None, now);
                self.take_down(index, fault, now);
            }
        }
    }

    fn read_notices(&mut self, port: usize, now: Instant) {
        while let Some(notice) = self.ports[port].nic.event() {
            match notice {
                Notice::PortDown | Notice::PortUp => {
                    self.ports[port].down = notice == Notice::PortDown;
                    let device = self.ports[port].nic.name();
                    let rank = self.rank;
                    tracing::warn!(rank, device, ?notice, "an RDMA port changed");
                }
                Notice::Device => self.lose(port, now),
                // A completion follows and says more.
                Notice::QueuePair => {}
                Notice::Other(number) => {
                    meaning::log_event(self.rank, self.ports[port].nic.name(), number);
                }
            }
        }
    }

    /// Looks after queue pairs: those that stall, and those on their way down.
    fn tend(&mut self, now: Instant) {
        self.tended = now;
        for port in 0..self.ports.len() {
            self.read_notices(port, now);
        }
        for index in 0..self.pairs.len() {
            let pair = &self.pairs[index];
            let stuck = pair.stuck_for(now).is_some_and(|it| it > self.settings.stall_limit);
            if stuck
                && pair.is_up()
                && let Some(port) = self.port_of(pair)
            {
                let cause = if port.down { VerbsCause::PortDown } else { VerbsCause::Stalled };
                let fault = pair.fault(cause, &*port.nic, None, now);
                self.take_down(index, fault, now);
            }
        }
        if self.ailing {
            self.ailing = false;
            for index in 0..self.pairs.len() {
                self.lead_down(index, now);
            }
        }
    }

    /// Brings a queue pair a step further on its way down.
    fn lead_down(&mut self, index: usize, now: Instant) {
        match &self.pairs[index].state {
            State::Up => return,
            State::Closing { .. } | State::Draining { .. } => self.pairs[index].drain(now),
            State::Destroyed { fault } => {
                // Nothing more can come: what came is read to its end.
                let fault = fault.clone();
                for _ in 0..READS_MAX {
                    if !self.take_completions() {
                        break;
                    }
                }
                // The peer may have to find out
                // and to wait for its own end first.
                let until = now + 2 * self.settings.stall_limit + DRAIN_LIMIT;
                self.pairs[index].state = State::Asking { fault, until };
            }
            State::Asking { .. } | State::Down => self.settle(index, now),
        }
        self.ailing |= !matches!(self.pairs[index].state, State::Down);
    }

    /// Both ends tell each other, over another rail, which writes of a failed one landed: those
    /// are done, and the others may be posted again without landing twice.
    fn settle(&mut self, index: usize, now: Instant) {
        let (peer, rail) = (self.pairs[index].peer(), self.pairs[index].rail());
        let works = |other: &Pair| other.peer() == peer && other.is_up();
        let told_on = self.pairs[index].told_on.filter(|&other| works(&self.pairs[other]));
        let carrier = told_on.or_else(|| self.pairs.iter().position(works));
        if told_on.is_none()
            && let Some(carrier) = carrier
        {
            let (count, round) = (self.pairs[index].came, self.pairs[index].peer_round);
            let told = self.pairs[carrier].tell(Word::Down { rail, round, count });
            self.pairs[index].told_on = told.then_some(carrier);
            self.ailing |= !told;
        }
        let State::Asking { fault, until } = &self.pairs[index].state else { return };
        let (fault, until) = (fault.clone(), *until);
        let pair = &mut self.pairs[index];
        if carrier.is_none() || (pair.peer_saw.is_some() && pair.told_on.is_some()) {
            let landed = pair.settle();
            self.events.extend((0..landed).map(|_| Event::Done { peer, rail }));
            self.events.push(Event::RailDown { peer, rail, fault });
        } else if now >= until {
            for other in 0..self.pairs.len() {
                if works(&self.pairs[other])
                    && let Some(port) = self.port_of(&self.pairs[other])
                {
                    let nic = &*port.nic;
                    let fault = self.pairs[other].fault(VerbsCause::Unanswered, nic, None, now);
                    self.take_down(other, fault, now);
                }
            }
        }
    }

    /// What happened outside of a poll makes no descriptor readable: somebody must be told.
    fn announce(&self) {
        if self.ailing || !self.events.is_empty() {
            self.parker.wake();
            self.parker.wake_progress();
        }
    }
}

fn bad_word(word: u32) -> RailFault {
    RailFault::BadFrame(format!("the word {word:#010x} from the peer's device makes no sense"))
}

impl Device for VerbsDevice {
    fn post(&mut self, peer: usize, rail: usize, write: &Write) -> Result<Posted, PostError> {
        let index = self.find(peer, rail).ok_or(PostError::Down)?;
        let now = self.provider.now();
        let pair = &mut self.pairs[index];
        if !pair.is_up() {
            return Err(PostError::Down);
        }
        if let Err(what) = pair.check(write, &self.region) {
            self.take_down(index, RailFault::Io(what), now);
            self.announce();
            return Err(PostError::Down);
        }
        if write.is_empty() && write.flag.is_none() {
            return Ok(Posted::Done);
        }
        match pair.post(write, &self.region, now) {
            Ok(()) => {
                if pair.plant == Some(Plant::EarlyDone) {
                    self.events.push(Event::Done { peer, rail });
                }
                Ok(Posted::Pending)
            }
            Err(refused) => {
                let error = PostError::from(&refused);
                if let Refused::Device(source) = refused {
                    let what = format!("the device does not take a write: {source}");
                    self.take_down(index, RailFault::Io(what), now);
                    self.announce();
                }
                Err(error)
            }
        }
    }

    fn write_bytes_max(&self, peer: usize, rail: usize) -> u64 {
        let pair = self.find(peer, rail).and_then(|index| self.pairs.get(index));
        pair.map_or(u64::MAX, Pair::write_bytes_max)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        let mut moved = self.take_completions();
        self.looks = if moved { 0 } else { self.looks.wrapping_add(1) };
        let slept = self.parker.take_slept();
        if self.ailing || self.parker.take_events_due() || slept || self.looks % LOOKS == LOOKS - 1
        {
            let now = self.provider.now();
            if self.ailing || slept || now.saturating_duration_since(self.tended) >= TEND_INTERVAL {
                self.tend(now);
            }
        }
        moved |= !self.events.is_empty();
        events.append(&mut self.events);
        moved
    }

    fn remake(&mut self, peer: usize, rail: usize) -> Option<Vec<u8>> {
        let offered = self.offer(peer, rail);
        if let Err(why) = &offered {
            tracing::info!(rank = self.rank, peer, rail, %why, "a rail is not made again now");
        }
        offered.ok()
    }

    fn reconnect(&mut self, peer: usize, rail: usize, told: &[u8]) -> Result<(), String> {
        let accepted = self.accept(peer, rail, told).map_err(|why| why.to_string());
        self.announce();
        accepted
    }

    fn cut(&mut self, peer: usize, rail: usize) {
        let Some(index) = self.find(peer, rail) else { return };
        let others = self
            .pairs
            .iter()
            .any(|pair| pair.peer() == peer && pair.rail() != rail && pair.is_up());
        let now = self.provider.now();
        if others {
            self.pairs[index].take_down(RailFault::Cut, now);
        } else {
            self.pairs[index].close(RailFault::Cut, now + GOODBYE_LIMIT, now);
        }
        self.ailing = true;
        self.announce();
    }
}

impl Drop for VerbsDevice {
    /// Tells the peers, who otherwise find out by writing in vain.
    fn drop(&mut self) {
        let now = self.provider.now();
        let until = now + FAREWELL_LIMIT;
        for pair in &mut self.pairs {
            pair.close(RailFault::Cut, until, now);
        }
        let closes = |pair: &Pair| matches!(pair.state, State::Closing { .. });
        while self.pairs.iter().any(closes) && self.provider.now() < until {
            self.take_completions();
            let now = self.provider.now();
            self.pairs.iter_mut().for_each(|pair| pair.drain(now));
            self.provider.pause();
        }
    }
}
