//! The receiving half of one connection.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::device::{Shared, fault_of};
use crate::device::{RailFault, Span};
use crate::inbox::{Arrival, INBOX_WINDOW, Inbox};
use crate::wire::{self, Checksum, Expect, FrameError, HEADER_BYTES, Header, Kind};

/// Bytes read together with headers. Longer writes go straight to their place.
const BUFFER_BYTES: usize = 4096;
/// Most system calls for one connection before the others have their turn.
const READS: usize = 16;
/// So many received writes are acknowledged without waiting for a write that takes it along.
const ACK_FRAMES: u32 = 8;
/// So many received bytes, likewise.
const ACK_BYTES: u64 = 64 << 10;

/// The acknowledgement that the peer is owed.
#[derive(Debug, Default)]
pub(super) struct Owed {
    received: u32,
    frames: u32,
    bytes: u64,
}

impl Owed {
    fn add(&mut self, bytes: u32) {
        self.received = self.received.wrapping_add(1);
        self.frames += 1;
        self.bytes += u64::from(bytes);
    }

    /// Writes received since the last acknowledgement.
    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    /// Whether it is too much to wait.
    pub(super) fn is_pressing(&self) -> bool {
        self.frames >= ACK_FRAMES || self.bytes >= ACK_BYTES
    }

    /// The count to tell the peer, which is then owed nothing.
    pub(super) fn take(&mut self) -> u32 {
        self.frames = 0;
        self.bytes = 0;
        self.received
    }
}

/// A write whose header passed all checks.
#[derive(Debug)]
struct Landing {
    header: Header,
    sum: Checksum,
    done: u64,
    /// False for a repeat, whose bytes are dropped.
    keep: bool,
}

impl Landing {
    fn left(&self) -> u64 {
        u64::from(self.header.len) - self.done
    }

    fn rest(&self) -> Span {
        Span { offset: self.header.to + self.done, len: self.left() }
    }
}

/// What one round of reading brought besides writes.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) moved: bool,
    /// The peer's latest count of what it received.
    pub(super) acked: Option<u32>,
    /// The rails that are known to be down.
    pub(super) known_down: u8,
    /// Further rails that the peer holds to be down.
    pub(super) void_rails: u8,
}

/// What one connection receives.
#[derive(Debug)]
pub(super) struct Receiver {
    buffer: Box<[u8; BUFFER_BYTES]>,
    start: usize,
    end: usize,
    landing: Option<Landing>,
    pub(super) owed: Owed,
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            buffer: Box::new([0; BUFFER_BYTES]),
            start: 0,
            end: 0,
            landing: None,
            owed: Owed::default(),
        }
    }

    /// Reads and lands what is there. What came before a fault has landed and counts.
    pub(super) fn receive(
        &mut self,
        socket: &OwnedFd,
        shared: &Shared,
        expect: &Expect,
        inbox: &mut Inbox,
        round: &mut Round,
    ) -> Result<(), RailFault> {
        for _ in 0..READS {
            self.make_room();
            let (asked, result) = self.read(socket, shared);
            match result {
                Ok(0) => return Err(RailFault::PeerClosed),
                Ok(count) => {
                    round.moved = true;
                    self.take_in(count, shared)?;
                    self.process(shared, expect, inbox, round)?;
                    // Those are dropped before anything else is read.
                    if count < asked || round.void_rails != 0 {
                        return Ok(());
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(fault_of(errno)),
            }
        }
        Ok(())
    }

    /// Moves an incomplete header to the front.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// One system call: into the write's place and, behind it, the buffer. Answers how many bytes
    /// it asked for too.
    fn read(&mut self, socket: &OwnedFd, shared: &Shared) -> (usize, Result<usize, Errno>) {
        let room = &mut self.buffer[self.end..];
        match &self.landing {
            // The buffer is empty here: all of it went to the write.
            Some(landing) if landing.keep => {
                let read = |place: &mut [u8]| {
                    let asked = place.len() + room.len();
                    let parts = &mut [IoSliceMut::new(place), IoSliceMut::new(room)];
                    (asked, rustix::io::readv(socket, parts))
                };
                // The header's checks hold the place within the region.
                shared.region.lend_mut(landing.rest(), read).unwrap_or((0, Err(Errno::FAULT)))
            }
            _ => {
                let asked = room.len();
                (asked, recv(socket, room, RecvFlags::DONTWAIT).map(|(count, _)| count))
            }
        }
    }

    /// Notes `count` bytes just read.
    fn take_in(&mut self, count: usize, shared: &Shared) -> Result<(), RailFault> {
        let mut count = count;
        if let Some(landing) = self.landing.as_mut().filter(|landing| landing.keep) {
            let len = landing.left().min(count as u64);
            let place = Span { len, ..landing.rest() };
            shared
                .region
                .lend(place, |bytes| landing.sum.add(bytes))
                .map_err(|outside| bad(outside.into()))?;
            landing.done += len;
            count -= len as usize;
        }
        self.end += count;
        Ok(())
    }

    fn process(
        &mut self,
        shared: &Shared,
        expect: &Expect,
        inbox: &mut Inbox,
        round: &mut Round,
    ) -> Result<(), RailFault> {
        loop {
            if let Some(mut landing) = self.landing.take() {
                self.copy_in(&mut landing, shared)?;
                if landing.left() > 0 {
                    self.landing = Some(landing);
                    return Ok(());
                }
                self.finish(landing, shared, inbox)?;
            }
            let bytes = &self.buffer[self.start..self.end];
            if bytes.len() < HEADER_BYTES {
                return Ok(());
            }
            let (header, sum) = wire::decode(bytes, expect).map_err(bad)?;
            self.start += HEADER_BYTES;
            round.void_rails |= header.rails_down & !round.known_down;
            round.acked = Some(header.acked);
            if header.kind == Kind::Ack {
                continue;
            }
            let keep = match inbox.judge(header.number) {
                Arrival::New => true,
                Arrival::Duplicate => false,
                Arrival::TooFar => {
                    return Err(RailFault::BadFrame(format!(
                        "number is {} and must be within {INBOX_WINDOW} after {}",
                        header.number,
                        inbox.next()
                    )));
                }
            };
            self.landing = Some(Landing { header, sum, done: 0, keep });
        }
    }

    /// Moves what the buffer holds of a write to its place, or drops it.
    fn copy_in(&mut self, landing: &mut Landing, shared: &Shared) -> Result<(), RailFault> {
        let len = landing.left().min((self.end - self.start) as u64);
        if len == 0 {
            return Ok(());
        }
        let bytes = &self.buffer[self.start..self.start + len as usize];
        landing.sum.add(bytes);
        if landing.keep {
            let to = landing.rest().offset;
            shared.region.write(to, bytes).map_err(|outside| bad(outside.into()))?;
        }
        landing.done += len;
        self.start += bytes.len();
        Ok(())
    }

    /// The last byte of a write has landed: checks it and raises its flag.
    fn finish(
        &mut self,
        landing: Landing,
        shared: &Shared,
        inbox: &mut Inbox,
    ) -> Result<(), RailFault> {
        let Landing { header, sum, .. } = landing;
        sum.finish().map_err(bad)?;
        self.owed.add(header.len);
        if inbox.accept(header.number) != Arrival::New {
            return Ok(());
        }
        if let Some(flag) = header.flag {
            let place = shared.region.flag(flag.offset).map_err(|outside| bad(outside.into()))?;
            place.store(flag.value, Ordering::Release);
        }
        Ok(())
    }
}

fn bad(error: FrameError) -> RailFault {
    RailFault::BadFrame(error.to_string())
}
