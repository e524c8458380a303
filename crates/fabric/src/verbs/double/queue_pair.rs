//! Queue pairs: in order, answered, sent again from where a gap is.

use std::collections::VecDeque;
use std::net::Ipv6Addr;

use cluster::source_port::queue_pair_port;

use super::super::abi::{QPS_ERR, QPS_INIT, QPS_RTR, QPS_RTS, WC_RECV_RDMA_WITH_IMM, Wc};
use super::network::{Device, Packet};
use super::state::{Occurrence, State};
use crate::device::Span;

/// Packets that a queue pair has on their way at one time.
const PACKETS_MAX: u64 = 64;
/// How long a receiver that is not ready is given: 0.64 ms.
const RNR_NANOSECONDS: u64 = 640_000;
/// Statuses, as in `enum ibv_wc_status`.
const FLUSHED: u32 = 5;
const REMOTE_ACCESS: u32 = 10;
const RETRIES_EXCEEDED: u32 = 12;
const RNR_RETRIES_EXCEEDED: u32 = 13;

/// What the bytes of a packet are.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Bytes(Vec<u8>),
    /// Of the sender's region, read when the packet is delivered.
    Region(Span),
}

#[derive(Debug)]
pub(super) enum Body {
    Data {
        position: u64,
        content: Content,
        /// The key and address written to; none for a message.
        place: Option<(u32, u64)>,
        /// The number told with the last packet of a request.
        number: Option<u32>,
        /// The last of a request.
        last: bool,
    },
    /// All before this position arrived.
    Answer { position: u64, what: Answer },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Good,
    /// A later one came: there is a gap.
    Gap,
    NotReady,
    NoAccess,
}

impl Body {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Data { content: Content::Bytes(bytes), .. } => bytes.len() as u64,
            Self::Data { content: Content::Region(span), .. } => span.len,
            Self::Answer { .. } => 0,
        }
    }
}

/// A work request under way.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: u64,
    pub(super) signalled: bool,
    pub(super) content: Content,
    pub(super) place: Option<(u32, u64)>,
    pub(super) number: Option<u32>,
    /// The positions of its packets.
    first: u64,
    packets: u64,
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) number: u32,
    pub(super) device: usize,
    /// Of the opened device.
    pub(super) key: u32,
    pub(super) state: u32,
    /// The other end, once connected.
    pub(super) peer: Option<(u32, Ipv6Addr)>,
    pub(super) label: u32,
    pub(super) timeout: u64,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    pub(super) sends_max: usize,
    pub(super) receives_max: usize,
    pub(super) sends: VecDeque<Message>,
    pub(super) receives: VecDeque<u64>,
    pub(super) stalled: bool,
    pub(super) mute: bool,
    pub(super) landed: u64,
    /// Positions: the next to be given out, the next to be sent, the first not answered, and the
    /// first not yet received.
    pub(super) next: u64,
    cursor: u64,
    answered: u64,
    pub(super) expected: u64,
    sent_to: u64,
    tries: u8,
    rnr_tries: u8,
    gap_told: bool,
    transmits: bool,
    round: u64,
}

impl Pair {
    pub(super) fn new(
        (number, device, key): (u32, usize, u32),
        sends_max: usize,
        receives_max: usize,
    ) -> Self {
        Self {
            number,
            device,
            key,
            state: 0,
            peer: None,
            label: 0,
            timeout: 0,
            retries: 0,
            rnr_retries: 0,
            sends_max,
            receives_max,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            stalled: false,
            mute: false,
            landed: 0,
            next: 0,
            cursor: 0,
            answered: 0,
            expected: 0,
            sent_to: 0,
            tries: 0,
            rnr_tries: 0,
            gap_told: false,
            transmits: false,
            round: 0,
        }
    }

    /// The first packet that this end sends.
    pub(super) fn start_sending(&mut self, position: u64) {
        (self.next, self.cursor, self.answered, self.sent_to) =
            (position, position, position, position);
        (self.tries, self.rnr_tries) = (self.retries, self.rnr_retries);
    }

    pub(super) fn goes_to(&self, device: &Device) -> bool {
        self.peer.is_some_and(|(_, gid)| device.has(gid))
    }

    /// Writes that are not answered.
    pub(super) fn writes(&self) -> usize {
        self.sends.iter().filter(|message| message.place.is_some()).count()
    }

    /// Bytes of requests that are not answered.
    pub(super) fn on_their_way(&self) -> u64 {
        let bytes = |message: &Message| match &message.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Region(span) => span.len,
        };
        self.sends.iter().map(bytes).sum()
    }

    /// The packet that answers for what came.
    fn answer(&self, position: u64, what: Answer, port: u16) -> Option<Packet> {
        let (to, gid) = self.peer?;
        let body = Body::Answer { position, what };
        Some(Packet { from: self.number, to, source: self.device, gid, port, body })
    }
}

impl State {
    /// The label that a queue pair's packets have.
    pub(super) fn label_of(&self, pair: &Pair) -> u32 {
        if pair.label < self.settings.labels_from { 0 } else { pair.label }
    }

    fn port_of(&self, pair: &Pair) -> u16 {
        let peer = pair.peer.map_or(0, |(number, _)| number);
        queue_pair_port(self.label_of(pair), pair.number, peer)
    }

    /// Takes a request that there is room for.
    pub(super) fn request(&mut self, number: u32, mut message: Message) {
        let most = self.settings.packet_bytes.max(1);
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let len = match &message.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Region(span) => span.len,
        };
        message.first = pair.next;
        message.packets = len.div_ceil(most).max(1);
        pair.next += message.packets;
        pair.sends.push_back(message);
        self.kick(number);
    }

    fn kick(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if !std::mem::replace(&mut pair.transmits, true) {
            let wait = self.rng.below(2000);
            self.after(wait, Occurrence::Transmit(number));
        }
    }

    pub(super) fn transmit(&mut self, number: u32) {
        let most = self.settings.packet_bytes.max(1);
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let may = pair.state == QPS_RTS && !pair.stalled;
        if !may || pair.cursor >= pair.next || pair.cursor - pair.answered >= PACKETS_MAX {
            pair.transmits = false;
            return;
        }
        let position = pair.cursor;
        let found = pair.sends.partition_point(|it| it.first + it.packets <= position);
        let (Some(message), Some((to, gid))) = (pair.sends.get(found), pair.peer) else {
            pair.transmits = false;
            return;
        };
        let index = position - message.first;
        let (start, last) = (index * most, index + 1 == message.packets);
        let content = match &message.content {
            Content::Bytes(bytes) => {
                let end = (start + most).min(bytes.len() as u64);
                Content::Bytes(bytes[start as usize..end as usize].to_vec())
            }
            Content::Region(span) => {
                let len = most.min(span.len - start);
                Content::Region(Span { offset: span.offset + start, len })
            }
        };
        let place = message.place.map(|(key, address)| (key, address.wrapping_add(start)));
        let number_told = message.number.filter(|_| last);
        let body = Body::Data { position, content, place, number: number_told, last };
        pair.cursor += 1;
        self.counters.sent += 1;
        if position < pair.sent_to {
            self.counters.resent += 1;
        }
        pair.sent_to = pair.sent_to.max(pair.cursor);
        let watched = pair.cursor - pair.answered > 1;
        let source = pair.device;
        let pair = &self.pairs[&number];
        let packet = Packet { from: number, to, source, gid, port: self.port_of(pair), body };
        let busy = self.time_of(packet.body.bytes() + 64);
        self.send(packet);
        self.after(busy, Occurrence::Transmit(number));
        if !watched {
            self.watch(number);
        }
    }

    /// Starts the time for an answer anew.
    fn watch(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.round += 1;
        let (timeout, round) = (pair.timeout, pair.round);
        self.after(timeout, Occurrence::Timer { number, round });
    }

    pub(super) fn timer(&mut self, number: u32, round: u64) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let waits = pair.state == QPS_RTS && !pair.stalled && pair.answered < pair.cursor;
        if !waits || pair.round != round {
            return;
        }
        self.go_back(number);
    }

    /// A queue pair that was stalled goes on where it was.
    pub(super) fn resume(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.stalled = false;
        pair.cursor = pair.answered;
        self.watch(number);
        self.kick(number);
    }

    /// Sends again from the first packet without answer, unless that was done too often.
    fn go_back(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let Some(tries) = pair.tries.checked_sub(1) else {
            return self.fail(number, RETRIES_EXCEEDED, 0x81);
        };
        pair.tries = tries;
        pair.cursor = pair.answered;
        self.watch(number);
        self.kick(number);
    }

    /// A packet is for this device.
    pub(super) fn deliver(&mut self, packet: Packet, device: usize) {
        let Packet { from, to, body, .. } = packet;
        let works = self.pairs.get(&to).is_some_and(|pair| {
            let connected = pair.peer.is_some_and(|(number, _)| number == from);
            let ready = matches!(pair.state, QPS_RTR | QPS_RTS);
            pair.device == device && connected && ready
        });
        if !works {
            self.counters.late += 1;
            return;
        }
        match body {
            Body::Answer { position, what } => self.take_answer(to, position, what),
            Body::Data { position, content, place, number, last } => {
                let answer = self.take_data((from, to), position, &content, place, number, last);
                let Some((position, what)) = answer else { return };
                let Some(pair) = self.pairs.get(&to) else { return };
                if let Some(packet) = pair.answer(position, what, self.port_of(pair)) {
                    self.send(packet);
                }
                if what == Answer::NoAccess {
                    self.flush(to, FLUSHED, 0);
                }
            }
        }
    }

    fn take_data(
        &mut self,
        (from, to): (u32, u32),
        position: u64,
        content: &Content,
        place: Option<(u32, u64)>,
        number: Option<u32>,
        last: bool,
    ) -> Option<(u64, Answer)> {
        let pair = self.pairs.get_mut(&to)?;
        if position < pair.expected {
            return Some((pair.expected, Answer::Good));
        }
        if position > pair.expected {
            let told = std::mem::replace(&mut pair.gap_told, true);
            return (!told).then_some((pair.expected, Answer::Gap));
        }
        if number.is_some() && pair.receives.is_empty() {
            return Some((pair.expected, Answer::NotReady));
        }
        if let Some(place) = place {
            let device = pair.device;
            if self.land(from, content, place, device, number.is_some()).is_none() {
                return Some((position, Answer::NoAccess));
            }
        }
        let pair = self.pairs.get_mut(&to)?;
        pair.expected += 1;
        pair.gap_told = false;
        pair.landed += u64::from(place.is_some());
        let answer = last.then_some((pair.expected, Answer::Good));
        if let Some(number) = number
            && let Some(id) = pair.receives.pop_front()
        {
            let mut wc = Wc::default();
            wc.wr_id = id;
            wc.opcode = if place.is_some() { WC_RECV_RDMA_WITH_IMM } else { 1 << 7 };
            wc.imm_data = number.to_be();
            let key = pair.key;
            self.complete(to, key, wc);
        }
        answer
    }

    /// Writes a packet's bytes into the region of whoever opened the device with this key.
    fn land(
        &self,
        from: u32,
        content: &Content,
        (key, address): (u32, u64),
        device: usize,
        is_flag: bool,
    ) -> Option<()> {
        let opened = self.opened.get(&key).filter(|opened| opened.device == device)?;
        let offset = address.checked_sub(opened.base)?;
        let bytes = match content {
            Content::Bytes(bytes) => bytes.clone(),
            Content::Region(span) => self.read(from, *span)?,
        };
        match <[u8; 4]>::try_from(&bytes[..]) {
            // Others read it as a flag while it is written.
            Ok(value) if is_flag => {
                let flag = opened.region.flag(offset).ok()?;
                flag.store(u32::from_ne_bytes(value), std::sync::atomic::Ordering::Release);
            }
            _ => opened.region.write(offset, &bytes).ok()?,
        }
        Some(())
    }

    fn read(&self, from: u32, span: Span) -> Option<Vec<u8>> {
        let opened = self.opened.get(&self.pairs.get(&from)?.key)?;
        let mut bytes = vec![0; span.len as usize];
        opened.region.read(span.offset, &mut bytes).ok()?;
        Some(bytes)
    }

    fn take_answer(&mut self, number: u32, position: u64, what: Answer) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if pair.state != QPS_RTS || pair.stalled || position > pair.next {
            return;
        }
        if position > pair.answered {
            pair.answered = position;
            pair.cursor = pair.cursor.max(position);
            (pair.tries, pair.rnr_tries) = (pair.retries, pair.rnr_retries);
            let key = pair.key;
            let mut done = Vec::new();
            while pair.sends.front().is_some_and(|it| it.first + it.packets <= position) {
                done.extend(pair.sends.pop_front().filter(|message| message.signalled));
            }
            for message in done {
                let mut wc = Wc::default();
                wc.wr_id = message.id;
                self.complete(number, key, wc);
            }
            self.watch(number);
            self.kick(number);
        }
        match what {
            Answer::Good => {}
            Answer::Gap => self.go_back(number),
            Answer::NotReady => self.wait_for_receiver(number),
            Answer::NoAccess => self.fail(number, REMOTE_ACCESS, 0x88),
        }
    }

    fn wait_for_receiver(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let Some(tries) = pair.rnr_tries.checked_sub(1) else {
            return self.fail(number, RNR_RETRIES_EXCEEDED, 0x87);
        };
        pair.rnr_tries = tries;
        pair.cursor = pair.answered;
        pair.transmits = true;
        self.after(RNR_NANOSECONDS, Occurrence::Transmit(number));
    }

    /// A queue pair fails: its oldest request with this status, the others with it.
    pub(super) fn fail(&mut self, number: u32, status: u32, vendor_error: u32) {
        let Some(pair) = self.pairs.get(&number) else { return };
        if matches!(pair.state, QPS_RTS | QPS_RTR | QPS_INIT) {
            self.counters.failed += 1;
            self.flush(number, status, vendor_error);
        }
    }

    /// Brings a queue pair to error. All it has completes, and it reads nothing more.
    pub(super) fn flush(&mut self, number: u32, status: u32, vendor_error: u32) {
        self.settle_bytes(number);
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if std::mem::replace(&mut pair.state, QPS_ERR) == QPS_ERR || pair.mute {
            return;
        }
        let key = pair.key;
        let sends: Vec<_> = pair.sends.drain(..).map(|message| message.id).collect();
        let receives: Vec<_> = pair.receives.drain(..).collect();
        let (mut status, mut vendor_error) = (status, vendor_error);
        for id in sends.into_iter().chain(receives) {
            let mut wc = Wc::default();
            (wc.wr_id, wc.status, wc.vendor_err) = (id, status, vendor_error);
            self.complete(number, key, wc);
            (status, vendor_error) = (FLUSHED, 0);
        }
    }

    /// What a queue pair has sent is on the wire: its bytes change no more.
    pub(super) fn settle_bytes(&mut self, number: u32) {
        let mut agenda = std::mem::take(&mut self.agenda);
        for what in agenda.values_mut() {
            let Occurrence::Arrive { packet, .. } = what else { continue };
            if packet.from != number {
                continue;
            }
            if let Body::Data { content, .. } = &mut packet.body
                && let Content::Region(span) = content
                && let Some(bytes) = self.read(number, *span)
            {
                *content = Content::Bytes(bytes);
            }
        }
        self.agenda = agenda;
    }

    /// The request of a caller, not yet numbered.
    pub(super) fn message(
        id: u64,
        signalled: bool,
        content: Content,
        place: Option<(u32, u64)>,
        number: Option<u32>,
    ) -> Message {
        Message { id, signalled, content, place, number, first: 0, packets: 0 }
    }
}
