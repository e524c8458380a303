//! The seam between what decides ([`Endpoint`](crate::Endpoint)) and what moves bytes.
//!
//! It has the shape of RDMA verbs: registered memory, a queue pair for each peer and rail, writes
//! that complete with a status, a flag that follows its bytes on the same queue pair. Shared
//! memory, TCP and the simulator implement it; so can a network card.
//!
//! The contract, which one suite of tests checks on every device:
//!
//! 1. Writes of one queue pair land in the order they were posted; across queue pairs there is no
//!    order.
//! 2. A flag becomes visible to the peer only after every byte of its own write and of all
//!    earlier writes of the same queue pair.
//! 3. A write that answered [`Posted::Pending`] is followed by exactly one [`Event::Done`], in
//!    order, or by one [`Event::RailDown`] for all that are outstanding on that queue pair. Until
//!    then its body in the own region must not change; afterwards the device does not touch it.
//! 4. A write posted again with the same number after its rail went down lands once.
//! 5. Nothing is ever written outside the peer's region.

use std::fmt;
use std::time::Duration;

use crate::verbs::VerbsFault;

/// Most bytes of a write's head.
pub const HEAD_BYTES_MAX: usize = 48;

/// A stretch of the own region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Where it starts, in bytes from the region's start.
    pub offset: u64,
    /// How many bytes it has.
    pub len: u64,
}

/// A small value written to a flag after the bytes it announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagWrite {
    /// Where the flag lies in the peer's region; a multiple of four.
    pub offset: u64,
    /// What is stored there. Flags of one kind grow by steps and wrap around.
    pub value: u32,
}

/// Which thread of the peer wants to know that a write arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wake {
    /// The thread that waits for a flag.
    #[default]
    Worker,
    /// Whoever passes bytes on or returns credits: the worker while it waits, else the progress
    /// thread.
    Progress,
}

/// Up to [`HEAD_BYTES_MAX`] bytes that travel with a write itself.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    len: u8,
}

impl Default for Head {
    fn default() -> Self {
        Self { bytes: [0; HEAD_BYTES_MAX], len: 0 }
    }
}

/// One write into a peer's region: the head, then the body, contiguous at `to`; then the flag.
#[derive(Clone, Debug, Default)]
pub struct Write {
    /// Bytes before the body; see [`with_head`](Self::with_head).
    pub head: Head,
    /// Bytes of the own region.
    pub body: Span,
    /// Where the head starts in the peer's region.
    pub to: u64,
    /// The flag, if this write announces something.
    pub flag: Option<FlagWrite>,
    /// Whom to wake at the peer.
    pub wake: Wake,
    /// Position among all writes of this rank to this peer, over all rails. It wraps.
    pub number: u32,
    /// It has no number and is never posted again: a proof on a rail that was made anew, which
    /// must neither land over another rail nor leave a gap among the numbers if it is lost.
    pub unnumbered: bool,
}

impl Write {
    /// Puts up to [`HEAD_BYTES_MAX`] bytes before the body; longer input is cut there.
    #[must_use]
    pub fn with_head(mut self, head: &[u8]) -> Self {
        let len = head.len().min(HEAD_BYTES_MAX);
        self.head.bytes[..len].copy_from_slice(&head[..len]);
        // HEAD_BYTES_MAX fits a byte.
        self.head.len = len as u8;
        self
    }

    /// The bytes before the body.
    pub fn head(&self) -> &[u8] {
        &self.head.bytes[..usize::from(self.head.len)]
    }

    /// Bytes that land in the peer's region, the flag not counted.
    pub fn len(&self) -> u64 {
        self.body.len.saturating_add(self.head.len.into())
    }

    /// True when the write carries a flag at most.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The bytes are in the peer's region; no event follows.
    Done,
    /// An [`Event`] follows.
    Pending,
}

/// Why a post was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue pair holds as many writes as it may; post again after an event.
    Full,
    /// The rail is down; an [`Event::RailDown`] said why or will.
    Down,
}

/// Why a rail went down.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RailFault {
    /// There never was a working queue pair: why.
    Absent(String),
    /// A frame failed a check: which one, and what was found.
    BadFrame(String),
    /// Somebody cut it on purpose.
    Cut,
    /// The operating system reported an error.
    Io(String),
    /// The peer closed its end.
    PeerClosed,
    /// The device gave up re-sending after this long.
    Timeout(Duration),
    /// A queue pair of an RDMA device failed.
    Verbs(VerbsFault),
}

impl fmt::Display for RailFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(why) => f.write_str(why),
            Self::BadFrame(what) => write!(f, "a bad frame arrived: {what}"),
            Self::Cut => f.write_str("it was cut"),
            Self::Io(what) => write!(f, "the system reported: {what}"),
            Self::PeerClosed => f.write_str("the peer closed it"),
            Self::Timeout(after) => write!(f, "no acknowledgement for {after:?}"),
            Self::Verbs(fault) => fault.fmt(f),
        }
    }
}

/// What a device tells its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The oldest outstanding write of this queue pair landed.
    Done {
        /// The rank written to.
        peer: usize,
        /// The rail used.
        rail: usize,
    },
    /// The queue pair failed. All its outstanding writes are over, without a word on whether each
    /// of them landed, and the device no longer reads their bodies.
    RailDown {
        /// The rank at the other end.
        peer: usize,
        /// The rail that failed.
        rail: usize,
        /// Why.
        fault: RailFault,
    },
}

/// One rank's queue pairs.
pub trait Device: Send {
    /// Posts a write on the queue pair of `peer` and `rail`.
    ///
    /// # Errors
    /// [`PostError::Full`] or [`PostError::Down`]; nothing was taken then.
    fn post(&mut self, peer: usize, rail: usize, write: &Write) -> Result<Posted, PostError>;

    /// The largest write that should be posted on a queue pair, in bytes: a longer one is taken,
    /// and holds up others.
    fn write_bytes_max(&self, peer: usize, rail: usize) -> u64 {
        let _ = (peer, rail);
        u64::MAX
    }

    /// Moves what can be moved without blocking, and appends what happened to `events`. Answers
    /// whether anything moved.
    fn poll(&mut self, events: &mut Vec<Event>) -> bool;

    /// The caller has what it waited for and nothing more to send: whatever a peer may be waiting
    /// for, such as acknowledgements, leaves with the next [`poll`](Self::poll).
    fn hurry(&mut self) {}

    /// Takes a rail out of service; [`Event::RailDown`] follows at both ends.
    fn cut(&mut self, peer: usize, rail: usize);

    /// Makes a new queue pair in the place of one that went down, and answers what the peer's
    /// [`reconnect`](Self::reconnect) needs; none if that cannot be now.
    ///
    /// Both ends of a rail are made again together, by whoever owns them and over a way of their
    /// own:
    ///
    /// 1. Each end that has [`Event::RailDown`] for the rail makes its new queue pair with this
    ///    and gives the answer to the other. An end without the event is [cut](Self::cut) first.
    ///    Another call before step 2 makes another, and the earlier answer is void.
    /// 2. Each connects with what the other gave it. From then on it takes writes.
    /// 3. Each tells the other that it is connected; before that, what is written may be lost and
    ///    take the rail down again. Bytes that crossed it both ways prove the rail, before it
    ///    carries any that count.
    fn remake(&mut self, peer: usize, rail: usize) -> Option<Vec<u8>> {
        let _ = (peer, rail);
        None
    }

    /// Connects what [`remake`](Self::remake) made with what it answered at the peer.
    ///
    /// # Errors
    /// Why not, in one line; the rail stays down.
    fn reconnect(&mut self, peer: usize, rail: usize, told: &[u8]) -> Result<(), String> {
        let _ = (peer, rail, told);
        Err("this transport makes no rail anew".to_owned())
    }

    /// Flips one bit of the next frame sent to `peer`: a fault for tests. Answers false where
    /// this device has no frames.
    fn corrupt_next(&mut self, peer: usize) -> bool {
        let _ = peer;
        false
    }
}

/// How a thread of this rank sleeps until something arrives, and is woken.
///
/// The worker prepares, looks once more for what it waits for, and parks: an arrival after
/// `prepare` ends the sleep.
pub trait Parker: Send + Sync {
    /// Announces that the worker is about to sleep.
    fn prepare(&self) -> u32;

    /// Sleeps until an arrival after the `prepare` that gave `ticket`, a [`wake`](Self::wake), or
    /// `timeout`.
    fn park(&self, ticket: u32, timeout: Duration);

    /// Takes back a `prepare` that no `park` follows.
    fn cancel(&self);

    /// Wakes the worker if it sleeps.
    fn wake(&self);

    /// The worker now moves bytes itself; the progress thread may sleep on.
    fn worker_enters(&self);

    /// The worker has other things to do; arrivals wake the progress thread from now on.
    fn worker_leaves(&self);

    /// Sleeps until there may be something to move while no worker does, or `timeout`.
    fn park_progress(&self, timeout: Duration);

    /// Wakes the progress thread whatever it waits for.
    fn wake_progress(&self);
}
