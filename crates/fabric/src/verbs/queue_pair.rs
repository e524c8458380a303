//! One end of a queue pair: what is outstanding on it, and its way from up to down.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::abi::Wc;
use super::end::{End, Place};
use super::error::{VerbsCause, VerbsFault};
use super::provider::{
    Action, CHAIN_MAX, INLINE_BYTES_MAX, Nic, Payload, Plant, Provider, Qp, Remote, Request,
};
use super::word::{Kind, Tag, Word};
use crate::device::{HEAD_BYTES_MAX, PostError, RailFault, Span, Write};
use crate::region::Region;

/// Most writes that one queue pair holds until they complete.
pub(super) const WINDOW: usize = 64;
/// Work requests that writes may have outstanding.
const SENDS: u32 = 256;
/// Room for messages between the two devices, beyond [`SENDS`].
const TELLS: u32 = 32;
/// Flags that may be under way or not taken note of by the peer.
pub(super) const CREDITS: u32 = 256;
/// The peer is told of flags taken note of in steps of this.
const CREDIT_STEP: u32 = 64;
/// Receives beyond [`CREDITS`], for messages between the two devices. A peer that takes note of
/// nothing sends none either, so there are at most `CREDITS / CREDIT_STEP` credits and a word for
/// each rail on their way.
const TELL_RECEIVES: u32 = 64;
/// Most bytes of one work request where the device allows more.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// Largest write that should be posted on a forwarded rail, where the window has room for two:
/// small enough that completions come while others are on their way. Measured by others on such
/// rails, whose windows are of 128 KiB.
const FORWARDED_WRITE_BYTES: u64 = 32 << 10;
/// Bytes of a flag.
const FLAG_BYTES: u64 = 4;
/// A queue pair in error completes all it has at once; what is not there by then is waited for no
/// more, and the queue pair is destroyed.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// Most work requests and receives of one queue pair.
pub(super) const SEND_QUEUE: u32 = SENDS + TELLS;
pub(super) const RECEIVE_QUEUE: u32 = CREDITS + TELL_RECEIVES;

/// A write without its completion.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// It has landed once the peer has seen so many flags.
    landed_at: u32,
    requests: u32,
    bytes: u64,
    since: Instant,
}

/// How far a queue pair is.
#[derive(Clone, Debug)]
pub(super) enum State {
    Up,
    /// It takes no more; the peer hears of it on this queue pair first.
    Closing {
        fault: RailFault,
        until: Instant,
    },
    /// In error: what is outstanding completes.
    Draining {
        fault: RailFault,
        until: Instant,
    },
    /// Destroyed, with the queue read one last time to come.
    Destroyed {
        fault: RailFault,
    },
    /// Nothing lands or is read any more; which writes landed is for the peer to say.
    Asking {
        fault: RailFault,
        until: Instant,
    },
    /// Over, and the owner knows.
    Down,
}

pub(super) struct Pair {
    pub(super) place: Place,
    pub(super) state: State,
    qp: Option<Box<dyn Qp>>,
    remote: Remote,
    request_bytes: u64,
    /// Most bytes that may be on their way at one time, unless one write has more.
    window_bytes: Option<u64>,
    window: VecDeque<Sent>,
    requests: u32,
    /// Bytes of the writes in the window.
    bytes: u64,
    /// Ends of writes, messages and receives that have no completion, good or bad, yet.
    ends: u32,
    tells: u32,
    receives: u32,
    /// Flags sent, taken note of by the peer, come from the peer, and told to the peer; they wrap.
    sent: u32,
    pub(super) credited: u32,
    pub(super) came: u32,
    told: u32,
    /// What the peer's end had seen when it went down.
    pub(super) peer_saw: Option<u32>,
    /// The rail on which the peer was told that this end is down.
    pub(super) told_on: Option<usize>,
    /// How often this end was made again or was about to be, and how often the peer's was when
    /// the two were connected.
    pub(super) rounds: u32,
    pub(super) peer_round: u32,
    /// A new end in this one's place, not connected.
    pub(super) offered: Option<Box<End>>,
    /// A fault to commit, for tests.
    pub(super) plant: Option<Plant>,
}

impl Pair {
    pub(super) fn new(
        place: Place,
        qp: Option<Box<dyn Qp>>,
        remote: Remote,
        request_bytes_max: u32,
    ) -> Self {
        Self {
            place,
            state: State::Up,
            qp,
            remote,
            request_bytes: u64::from(request_bytes_max).clamp(1, REQUEST_BYTES_MAX),
            window_bytes: place.forwarded.map(|it| it.window_bytes),
            window: VecDeque::with_capacity(WINDOW),
            requests: 0,
            bytes: 0,
            ends: 0,
            tells: 0,
            receives: RECEIVE_QUEUE,
            sent: 0,
            credited: 0,
            came: 0,
            told: 0,
            peer_saw: None,
            told_on: None,
            rounds: place.tag.round,
            peer_round: 0,
            offered: None,
            plant: None,
        }
    }

    /// One that has no queue pair, until it is made again.
    pub(super) fn absent(place: Place, provider: &dyn Provider) -> Self {
        let absent = Self::new(place, None, Remote::default(), 0);
        Self { state: State::Down, receives: 0, plant: provider.plant(), ..absent }
    }

    pub(super) fn peer(&self) -> usize {
        self.place.peer
    }

    pub(super) fn rail(&self) -> usize {
        self.place.rail
    }

    pub(super) fn nic(&self) -> Option<usize> {
        self.place.nic
    }

    pub(super) fn has_queue_pair(&self) -> bool {
        self.qp.is_some()
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// The limit of a count that the peer tells.
    pub(super) fn sent(&self) -> u32 {
        self.sent
    }

    /// Why a write cannot be: it does not lie within the regions.
    pub(super) fn check(&self, write: &Write, own: &Region) -> Result<(), String> {
        own.pointer(write.body.offset, write.body.len).map_err(|outside| outside.to_string())?;
        let bytes = self.remote.bytes;
        let fits = |offset: u64, len: u64| offset.checked_add(len).is_some_and(|end| end <= bytes);
        if !fits(write.to, write.len()) {
            return Err(format!("{} bytes at {} leave the peer's region", write.len(), write.to));
        }
        match write.flag {
            Some(flag) if !fits(flag.offset, 4) || !flag.offset.is_multiple_of(4) => {
                Err(format!("a flag at {} of a region of {bytes} bytes", flag.offset))
            }
            _ if self.parts_of(write.body.len) > CHAIN_MAX as u64 - 3 => {
                Err(format!("a write of {} bytes is too long for the device", write.len()))
            }
            _ => Ok(()),
        }
    }

    /// Largest write that should be posted here.
    pub(super) fn write_bytes_max(&self) -> u64 {
        self.window_bytes.map_or(u64::MAX, |bytes| FORWARDED_WRITE_BYTES.min(bytes / 2).max(1))
    }

    fn parts_of(&self, len: u64) -> u64 {
        len.div_ceil(self.request_bytes)
    }

    /// Posts a checked write that carries something.
    pub(super) fn post(
        &mut self,
        write: &Write,
        own: &Region,
        now: Instant,
    ) -> Result<(), Refused> {
        let mut small = [0; INLINE_BYTES_MAX];
        let head = write.head();
        let whole = head.len() as u64 + write.body.len;
        let parts = if whole == 0 {
            0
        } else if whole <= INLINE_BYTES_MAX as u64 {
            1
        } else {
            u64::from(!head.is_empty()) + self.parts_of(write.body.len)
        };
        // At most CHAIN_MAX, as `check` said.
        let needed = parts as u32 + u32::from(write.flag.is_some());
        let no_credit = write.flag.is_some() && self.sent.wrapping_sub(self.credited) >= CREDITS;
        let bytes = whole + if write.flag.is_some() { FLAG_BYTES } else { 0 };
        let too_much = self
            .window_bytes
            .is_some_and(|most| !self.window.is_empty() && self.bytes.saturating_add(bytes) > most);
        let full = self.window.len() >= WINDOW || self.requests + needed > SENDS;
        if full || no_credit || too_much {
            return Err(Refused::Full);
        }
        let Some(qp) = &mut self.qp else { return Err(Refused::Down) };
        let part = Kind::Part.id(self.place.tag);
        let empty = Request { id: part, action: Action::Tell { number: 0 }, signalled: false };
        let mut chain = [empty; CHAIN_MAX];
        let mut count = 0;
        let mut add = |payload, to| {
            chain[count] =
                Request { id: part, action: Action::Write { payload, to }, signalled: false };
            count += 1;
        };
        if whole > 0 && whole <= INLINE_BYTES_MAX as u64 {
            let (first, rest) = small.split_at_mut(head.len().min(HEAD_BYTES_MAX));
            first.copy_from_slice(head);
            // No more than INLINE_BYTES_MAX together.
            let body = &mut rest[..write.body.len as usize];
            own.read(write.body.offset, body).map_err(|_| Refused::Down)?;
            add(Payload::Inline(&small[..whole as usize]), write.to);
        } else {
            if !head.is_empty() {
                add(Payload::Inline(head), write.to);
            }
            let mut done = 0;
            while done < write.body.len {
                let len = self.request_bytes.min(write.body.len - done);
                let span = Span { offset: write.body.offset + done, len };
                add(Payload::Region(span), write.to + head.len() as u64 + done);
                done += len;
            }
        }
        let flag = write.flag.map(|flag| (flag.offset, flag.value.to_ne_bytes()));
        if let Some((to, value)) = &flag {
            let payload = Payload::Inline(value);
            let number = self.sent.wrapping_add(1);
            chain[count].action = Action::WriteTelling { payload, to: *to, number };
            count += 1;
        }
        // `needed` is at least one for a write that carries something.
        let last = &mut chain[count - 1];
        last.id = Kind::Write.id(self.place.tag);
        last.signalled = true;
        qp.post(&self.remote, &chain[..count]).map_err(Refused::Device)?;
        self.window.push_back(Sent {
            landed_at: self.sent.wrapping_add(1),
            requests: needed,
            bytes,
            since: now,
        });
        self.bytes += bytes;
        self.requests += needed;
        self.ends += 1;
        self.sent = self.sent.wrapping_add(u32::from(write.flag.is_some()));
        Ok(())
    }

    /// Tells the peer's device a word; false if it cannot be told now.
    pub(super) fn tell(&mut self, word: Word) -> bool {
        let Some(qp) = self.qp.as_mut().filter(|_| self.tells < TELLS) else { return false };
        let action = Action::Tell { number: word.encode() };
        let id = Kind::Tell.id(self.place.tag);
        let told = qp.post(&self.remote, &[Request { id, action, signalled: true }]).is_ok();
        self.tells += u32::from(told);
        told
    }

    /// The end of a write is over, one way or the other.
    pub(super) fn ended(&mut self) {
        self.ends = self.ends.saturating_sub(1);
    }

    /// The oldest write has landed; false if none was outstanding.
    pub(super) fn written(&mut self, now: Instant) -> bool {
        self.ended();
        let Some(sent) = self.window.pop_front() else { return false };
        self.requests -= sent.requests;
        self.bytes -= sent.bytes;
        if let Some(next) = self.window.front_mut() {
            // It is the turn of the next one: what is limited is the time without any progress.
            next.since = next.since.max(now);
        }
        true
    }

    /// A message to the peer's device is over.
    pub(super) fn was_told(&mut self) {
        self.tells = self.tells.saturating_sub(1);
    }

    /// A receive is over. Another takes its place while the queue pair works.
    pub(super) fn received(&mut self) -> std::io::Result<()> {
        self.receives = self.receives.saturating_sub(1);
        if !matches!(self.state, State::Up | State::Closing { .. }) {
            return Ok(());
        }
        if let Some(qp) = &mut self.qp {
            qp.post_receives(Kind::Receive.id(self.place.tag), 1)?;
            self.receives += 1;
        }
        Ok(())
    }

    /// A flag came.
    pub(super) fn flag_came(&mut self) {
        self.came = self.came.wrapping_add(1);
    }

    /// Tells the peer of flags taken note of, once there are enough.
    pub(super) fn give_credit(&mut self) {
        if self.is_up()
            && self.came.wrapping_sub(self.told) >= CREDIT_STEP
            && self.tell(Word::Credit { count: self.came })
        {
            self.told = self.came;
        }
    }

    /// How long the oldest write has been outstanding without progress.
    pub(super) fn stuck_for(&self, now: Instant) -> Option<Duration> {
        self.window.front().map(|sent| now.saturating_duration_since(sent.since))
    }

    /// Ends the queue pair's work, unless it is over already.
    pub(super) fn take_down(&mut self, fault: RailFault, now: Instant) {
        match &self.state {
            State::Up => {}
            // What was to be told is what began it.
            State::Closing { fault, .. } => {
                let fault = fault.clone();
                return self.end(fault, now);
            }
            _ => return,
        }
        self.end(fault, now);
    }

    fn end(&mut self, fault: RailFault, now: Instant) {
        if self.plant == Some(Plant::NoDrain) {
            self.state = State::Destroyed { fault };
            return;
        }
        let ended = self.qp.as_mut().is_none_or(|qp| qp.fail().is_ok());
        // A queue pair that cannot be put into error is destroyed at once.
        let until = if ended { now + DRAIN_LIMIT } else { now };
        self.state = State::Draining { fault, until };
    }

    /// Says goodbye on this queue pair itself, and ends it when that is over.
    pub(super) fn close(&mut self, fault: RailFault, until: Instant, now: Instant) {
        if self.is_up() && self.tell(Word::Bye) {
            self.state = State::Closing { fault, until };
        } else {
            self.take_down(fault, now);
        }
    }

    /// Goes on with what [`close`](Self::close) and [`take_down`](Self::take_down) began.
    pub(super) fn drain(&mut self, now: Instant) {
        match &self.state {
            State::Closing { fault, until } if self.tells == 0 || now >= *until => {
                let fault = fault.clone();
                self.end(fault, now);
            }
            State::Draining { fault, until } => {
                let rest = self.ends + self.tells + self.receives;
                if rest == 0 || now >= *until {
                    self.state = State::Destroyed { fault: fault.clone() };
                    self.qp = None;
                }
            }
            _ => {}
        }
    }

    /// How many of the outstanding writes landed, now that the peer has told what it saw; the
    /// rest are given up.
    pub(super) fn settle(&mut self) -> usize {
        let landed = match self.peer_saw {
            Some(saw) => {
                let has_landed = |sent: &&Sent| saw.wrapping_sub(sent.landed_at) <= u32::MAX / 2;
                self.window.iter().take_while(has_landed).count()
            }
            None => 0,
        };
        self.window.clear();
        self.requests = 0;
        self.bytes = 0;
        self.state = State::Down;
        landed
    }

    /// What a failed completion says.
    pub(super) fn fault_of(
        &self,
        wc: &Wc,
        nic: &dyn Nic,
        port_is_down: bool,
        now: Instant,
    ) -> RailFault {
        let mut cause = VerbsCause::of_status(wc.status);
        let silent = matches!(cause, VerbsCause::NoAnswer | VerbsCause::LocalOperation);
        if port_is_down && silent {
            cause = VerbsCause::PortDown;
        }
        self.fault(cause, nic, Some((wc.status, wc.vendor_err)), now)
    }

    pub(super) fn fault(
        &self,
        cause: VerbsCause,
        nic: &dyn Nic,
        completion: Option<(u32, u32)>,
        now: Instant,
    ) -> RailFault {
        RailFault::Verbs(VerbsFault {
            cause,
            device: nic.name().to_owned(),
            status: completion.map(|(status, _)| status),
            vendor_error: completion.map_or(0, |(_, vendor)| vendor),
            after: self.stuck_for(now),
            rises: None,
        })
    }
}

/// Why a write was not posted.
#[derive(Debug)]
pub(super) enum Refused {
    Full,
    Down,
    Device(std::io::Error),
}

impl From<&Refused> for PostError {
    fn from(refused: &Refused) -> Self {
        match refused {
            Refused::Full => Self::Full,
            Refused::Down | Refused::Device(_) => Self::Down,
        }
    }
}

/// Makes a queue pair of the sizes used here.
pub(super) fn make(nic: &Arc<dyn Nic>) -> Result<Box<dyn Qp>, super::VerbsError> {
    Arc::clone(nic).make_queue_pair(SEND_QUEUE, RECEIVE_QUEUE)
}

/// Fills the receive queue; only possible from the state `init` on.
pub(super) fn fill(qp: &mut dyn Qp, tag: Tag) -> std::io::Result<()> {
    qp.post_receives(Kind::Receive.id(tag), RECEIVE_QUEUE as usize)
}
