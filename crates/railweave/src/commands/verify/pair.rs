//! One end of a queue pair: random bytes by RDMA, compared at the far end, sent back, and compared again.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use fabric::verbs::{
    Forwarded, VerbsDevice, VerbsEnd, VerbsEnds, VerbsError, VerbsNeighbour, VerbsSettings,
    VerbsSetup,
};
use fabric::{
    Device, Event, FlagWrite, OutOfRegion, PostError, Posted, RailFault, Region, Span, Write,
};

use super::traffic::{Arrived, Deadline, compare};
use super::wire::{CHUNK_BYTES, Fault, PairEnd, Pattern, Said, Step, Terms, Word};

/// Chunks that may be under way.
const SLOTS: u64 = 8;
/// The flag that says how many chunks have come; the slots follow it.
const FLAG: u64 = 0;
/// Where the slots begin.
const SLOTS_AT: u64 = 4096;
/// How long nothing may come before the thread stops looking all the time.
const BUSY: Duration = Duration::from_millis(1);
/// How long it rests then.
const REST: Duration = Duration::from_micros(50);
/// Ranks that a plan may have, at most.
const RANKS_MAX: usize = 1024;
/// How often it looks whether it is told to close.
const LISTEN_EVERY: Duration = Duration::from_millis(5);

/// Makes an end, says so, follows the words, and says what came of it.
pub(super) fn be(
    id: u64,
    end: &PairEnd,
    terms: &Terms,
    words: &Receiver<Word>,
    deadline: Deadline,
    say: impl Fn(&Said),
) {
    let mut device = match raise(id, end, words, deadline, &say) {
        Ok(raised) => raised,
        Err(said) => return say(&said),
    };
    let mut run = Run::new(end, terms, deadline, &device.region, device.chunk_bytes, words);
    let said = match run.carry(&mut device.device) {
        Ok((bytes, time)) => Said::Done { id, bytes, seconds: time.as_secs_f64() },
        Err(fault) => Said::Failed { id, fault },
    };
    let closed = run.closed;
    say(&said);
    // The other end may still need this one's acknowledgements.
    while !closed && !deadline.is_over() && matches!(words.try_recv(), Err(TryRecvError::Empty)) {
        device.device.poll(&mut Vec::new());
        thread::sleep(LISTEN_EVERY);
    }
}

/// An end that is connected, and its memory.
struct Raised {
    device: VerbsDevice,
    region: Arc<Region>,
    chunk_bytes: u64,
}

fn raise(
    id: u64,
    end: &PairEnd,
    words: &Receiver<Word>,
    deadline: Deadline,
    say: &impl Fn(&Said),
) -> Result<Raised, Said> {
    let failed = |fault| Said::Failed { id, fault };
    let (region, chunk_bytes) = room(end).map_err(failed)?;
    let forwarded = end.passed.map(|passed| Forwarded {
        flow_label: passed.flow_label,
        source_port: passed.source_port,
        window_bytes: passed.window_bytes,
    });
    let own = VerbsEnd { rail: end.rail, address: IpAddr::V4(end.address), forwarded };
    let ends = VerbsEnds::prepare(VerbsSetup {
        rank: end.rank,
        neighbours: vec![VerbsNeighbour { rank: end.peer, ends: vec![own] }],
        region: Arc::clone(&region),
        settings: VerbsSettings::default(),
    });
    let ends = ends.map_err(|error| match error {
        VerbsError::NoLibrary { .. } | VerbsError::NoDevices { .. } | VerbsError::NoGid { .. } => {
            Said::NoVerbs { id, why: error.to_string() }
        }
        error => failed(raised(&error)),
    })?;
    let device = ends.devices().into_iter().next().map(|(.., device)| device).unwrap_or_default();
    say(&Said::Made { id, blob: ends.blob(), device });
    let unneeded = || failed(Fault::new(Step::Begin, "nobody needed it".to_owned(), None, false));
    let Word::Connect { blob } = await_word(words, deadline).map_err(failed)? else {
        return Err(unneeded());
    };
    let mut blobs = vec![Vec::new(); end.peer.saturating_add(1).min(RANKS_MAX)];
    if let Some(place) = blobs.get_mut(end.peer) {
        *place = blob;
    }
    let (device, _) = ends.connect(&blobs).map_err(|error| failed(raised(&error)))?;
    say(&Said::Connected { id });
    match await_word(words, deadline).map_err(failed)? {
        Word::Go => Ok(Raised { device, region, chunk_bytes }),
        _ => Err(unneeded()),
    }
}

fn raised(error: &VerbsError) -> Fault {
    Fault::new(Step::Raise, error.to_string(), None, false)
}

/// The end's memory, and how large a chunk is. Both ends have the same.
fn room(end: &PairEnd) -> Result<(Arc<Region>, u64), Fault> {
    let most = end.passed.map_or(u64::MAX, |passed| passed.window_bytes);
    // The pattern is made in words of 8 bytes.
    let chunk = (CHUNK_BYTES as u64).min(most / 2).max(4096) & !7;
    let region = Region::private(SLOTS_AT + 2 * SLOTS * chunk).map_err(|error| {
        Fault::new(Step::Begin, format!("no memory for a region: {error}"), None, false)
    })?;
    Ok((Arc::new(region), chunk))
}

fn too_small(error: OutOfRegion) -> Fault {
    Fault::new(Step::Begin, format!("the region is too small: {error}"), None, false)
}

fn await_word(words: &Receiver<Word>, deadline: Deadline) -> Result<Word, Fault> {
    words.recv_timeout(deadline.left()).map_err(|error| match error {
        RecvTimeoutError::Timeout => {
            Fault::new(Step::Begin, "the coordinator said nothing more".to_owned(), None, true)
        }
        RecvTimeoutError::Disconnected => {
            Fault::new(Step::Begin, "the coordinator is gone".to_owned(), None, false)
        }
    })
}

/// The exchange of one end.
struct Run<'a> {
    end: &'a PairEnd,
    terms: &'a Terms,
    deadline: Deadline,
    region: &'a Region,
    chunk_bytes: u64,
    words: &'a Receiver<Word>,
    /// Chunks posted, those of them that were acknowledged, and chunks that came and were right.
    posted: u64,
    acknowledged: u64,
    came: u64,
    first: Option<Instant>,
    closed: bool,
}

impl<'a> Run<'a> {
    fn new(
        end: &'a PairEnd,
        terms: &'a Terms,
        deadline: Deadline,
        region: &'a Region,
        chunk_bytes: u64,
        words: &'a Receiver<Word>,
    ) -> Self {
        Self {
            end,
            terms,
            deadline,
            region,
            chunk_bytes,
            words,
            posted: 0,
            acknowledged: 0,
            came: 0,
            first: None,
            closed: false,
        }
    }

    fn chunks(&self) -> u64 {
        self.terms.bytes.div_ceil(self.chunk_bytes)
    }

    /// Bytes of the first `chunks` chunks.
    fn bytes(&self, chunks: u64) -> u64 {
        chunks.saturating_mul(self.chunk_bytes).min(self.terms.bytes)
    }

    fn carry(&mut self, device: &mut VerbsDevice) -> Result<Arrived, Fault> {
        let chunks = self.chunks();
        let mut events = Vec::new();
        let mut quiet = Instant::now();
        let mut listened = quiet;
        while self.came < chunks || self.acknowledged < chunks {
            device.poll(&mut events);
            let mut moved = self.take(&mut events)?;
            moved |= self.receive()?;
            moved |= self.send(device)?;
            let now = Instant::now();
            if moved {
                quiet = now;
            }
            if now - listened > LISTEN_EVERY {
                listened = now;
                if !matches!(self.words.try_recv(), Err(TryRecvError::Empty)) {
                    self.closed = true;
                    return Err(self.stuck("until the other end gave up", false));
                }
                if self.deadline.is_over() {
                    return Err(self.stuck("within the limit", true));
                }
            }
            if now - quiet > BUSY {
                thread::sleep(REST);
            } else {
                thread::yield_now();
            }
        }
        let time = self.first.map(|first| first.elapsed()).unwrap_or_default();
        Ok((self.terms.bytes, time))
    }

    /// Nothing more happens here, and nobody told why.
    fn stuck(&self, until: &str, late: bool) -> Fault {
        let (step, what) = if self.posted > self.acknowledged {
            (Step::Send, "what was sent was not acknowledged")
        } else {
            (Step::Await, "nothing more came")
        };
        Fault::new(step, format!("{what} {until}"), Some(self.bytes(self.came)), late)
    }

    fn take(&mut self, events: &mut Vec<Event>) -> Result<bool, Fault> {
        let moved = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Done { .. } => self.acknowledged += 1,
                Event::RailDown { fault, .. } => {
                    // What had come before is looked at first: it says how far the other way works.
                    self.receive()?;
                    return Err(self.down(&fault));
                }
            }
        }
        Ok(moved)
    }

    fn down(&self, fault: &RailFault) -> Fault {
        let status = match fault {
            RailFault::Verbs(fault) => fault.status,
            _ => None,
        };
        let step = match fault {
            RailFault::PeerClosed => Step::Await,
            _ => Step::Send,
        };
        let mut told = Fault::new(step, fault.to_string(), Some(self.bytes(self.came)), false);
        told.status = status;
        told
    }

    /// Looks at the chunks that came, each once.
    fn receive(&mut self) -> Result<bool, Fault> {
        let flag = self.region.flag(FLAG).map_err(too_small)?;
        let announced = u64::from(flag.load(Ordering::Acquire)).min(self.chunks());
        let mut moved = false;
        while self.came < announced {
            let offset = self.bytes(self.came);
            let len = self.bytes(self.came + 1) - offset;
            // A chunk has at most CHUNK_BYTES.
            let mut chunk = vec![0; len as usize];
            let mut expected = vec![0; len as usize];
            self.region.read(self.place(true, self.came), &mut chunk).map_err(too_small)?;
            self.first.get_or_insert_with(Instant::now);
            compare(self.terms.seed, offset, &chunk, &mut expected)?;
            self.came += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// Where a chunk lies in a region: one that came, or one that goes.
    fn place(&self, comes: bool, chunk: u64) -> u64 {
        let slot = chunk % SLOTS + if comes { 0 } else { SLOTS };
        SLOTS_AT + slot * self.chunk_bytes
    }

    /// Posts what may be posted: the near end as long as not too much is under way, the far end what came.
    fn send(&mut self, device: &mut VerbsDevice) -> Result<bool, Fault> {
        let mut moved = false;
        loop {
            let may = if self.end.near {
                // The other end's slot is free once its echo was seen.
                self.chunks().min(self.came + SLOTS)
            } else {
                self.came
            };
            if self.posted >= may || self.posted >= self.acknowledged + SLOTS {
                return Ok(moved);
            }
            let chunk = self.posted;
            let offset = self.bytes(chunk);
            let len = self.bytes(chunk + 1) - offset;
            let mut bytes = vec![0; len as usize];
            let from = self.place(false, chunk);
            if self.end.near {
                Pattern(self.terms.seed).fill(offset, &mut bytes);
            } else {
                self.region.read(self.place(true, chunk), &mut bytes).map_err(too_small)?;
            }
            self.region.write(from, &bytes).map_err(too_small)?;
            let write = Write {
                body: Span { offset: from, len },
                to: self.place(true, chunk),
                // At most 2^30 bytes in chunks of 4096 and more.
                flag: Some(FlagWrite { offset: FLAG, value: (chunk + 1) as u32 }),
                number: chunk as u32,
                ..Write::default()
            };
            match device.post(self.end.peer, self.end.rail, &write) {
                Ok(Posted::Done) => self.acknowledged += 1,
                Ok(Posted::Pending) => {}
                // An event follows that says why.
                Err(PostError::Full | PostError::Down) => return Ok(moved),
            }
            self.posted += 1;
            moved = true;
        }
    }
}
