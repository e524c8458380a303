//! The seam beneath the transport: what it takes of RDMA devices.
//!
//! The kernel's devices implement it through libibverbs; a double does in tests, with a clock and
//! faults of its own. Everything above is the same code over both. What lies between is called a
//! few times a write, so that a call through a table costs nothing that shows.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::abi::{PortAttr, QPS_ERR, QpAttr, Wc, mask};
use super::counters::PortCounts;
use super::error::{Notice, VerbsError};
use super::gid;
use crate::device::Span;
use crate::region::{OutOfRegion, Region};

/// Most work requests of one chain.
pub(super) const CHAIN_MAX: usize = 20;
/// Bytes that travel in a work request itself.
pub(super) const INLINE_BYTES_MAX: usize = 96;

/// Where devices come from, and the time and chance that go with them.
pub(super) trait Provider: Send + Sync {
    /// The RoCE v2 GIDs of all ports at this moment.
    fn gids(&self) -> Result<gid::Table, VerbsError>;

    /// Opens a device and registers the region whole. Its completion queue holds `completions`.
    fn open(
        &self,
        device: &str,
        port: u8,
        region: &Arc<Region>,
        completions: u32,
    ) -> Result<Arc<dyn Nic>, VerbsError>;

    fn now(&self) -> Instant;

    /// A number that nobody can guess.
    fn random(&self) -> io::Result<u32>;

    /// Lets others go on for a moment.
    fn pause(&self);

    /// A fault that the transport must commit, for tests of what finds it.
    fn plant(&self) -> Option<Plant> {
        None
    }
}

/// A fault of the transport itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// A write is called done when it is posted.
    EarlyDone,
    /// A rail is called down while its queue pair works on.
    NoDrain,
    /// The source port is not looked at.
    NoPortCheck,
}

/// An opened device with one region registered, and its completion queue.
pub(super) trait Nic: Send + Sync {
    fn name(&self) -> &str;

    fn port(&self) -> u8;

    /// What the port has counted; empty where nothing is.
    fn counts(&self) -> PortCounts {
        PortCounts::default()
    }

    /// What the port says at this moment.
    fn attributes(&self) -> io::Result<PortAttr>;

    /// Where peers find the region, and with which key.
    fn remote_access(&self) -> Result<(u64, u32), OutOfRegion>;

    /// Makes a queue pair for so many outstanding requests. It keeps the device open.
    fn make_queue_pair(
        self: Arc<Self>,
        sends: u32,
        receives: u32,
    ) -> Result<Box<dyn Qp>, VerbsError>;

    /// Takes completions; answers how many.
    fn poll(&self, room: &mut [Wc]) -> io::Result<usize>;

    /// Has the next completion make [`completions_fd`](Self::completions_fd) readable. Answers
    /// false where that was so already.
    fn arm(&self) -> bool;

    /// Takes what made [`completions_fd`](Self::completions_fd) readable.
    fn disarm(&self);

    /// Takes one asynchronous event that concerns this port, if there is one.
    fn event(&self) -> Option<Notice>;

    /// Readable once there are completions, when [armed](Self::arm).
    fn completions_fd(&self) -> BorrowedFd<'_>;

    /// Readable while there are asynchronous events.
    fn events_fd(&self) -> BorrowedFd<'_>;
}

/// A reliable connection's end. Dropping it destroys it: nothing lands or is read afterwards.
pub(super) trait Qp: Send {
    fn number(&self) -> u32;

    /// Changes the attributes that `mask` names.
    fn modify(&mut self, attributes: &QpAttr, mask: c_int) -> io::Result<()>;

    /// The attributes that `mask` names, as the device has them.
    fn query(&self, mask: c_int) -> io::Result<QpAttr>;

    /// Posts a chain of requests to a peer's region; on an error any part of it may be posted.
    fn post(&mut self, remote: &Remote, requests: &[Request<'_>]) -> io::Result<()>;

    /// Posts receives without room for bytes: they take numbers.
    fn post_receives(&mut self, id: u64, count: usize) -> io::Result<()>;

    /// Ends all work: what is outstanding completes with an error, and nothing lands any more.
    fn fail(&mut self) -> io::Result<()> {
        self.modify(&QpAttr { qp_state: QPS_ERR, ..QpAttr::default() }, mask::STATE)
    }
}

/// A peer's region as this rank may write it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Remote {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) bytes: u64,
}

/// What a work request carries.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    /// Bytes that are copied when it is posted; at most [`INLINE_BYTES_MAX`].
    Inline(&'a [u8]),
    /// Bytes of the own region, read any time before its completion.
    Region(Span),
}

/// What a work request does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action<'a> {
    /// Writes at an offset of the peer's region.
    Write { payload: Payload<'a>, to: u64 },
    /// The same, and tells the peer a number once it is there.
    WriteTelling { payload: Payload<'a>, to: u64, number: u32 },
    /// Tells the peer a number.
    Tell { number: u32 },
}

/// One work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    /// Comes back with its completion.
    pub(super) id: u64,
    pub(super) action: Action<'a>,
    /// Has a completion when it succeeds; when it fails it always has one.
    pub(super) signalled: bool,
}
