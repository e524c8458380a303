//! The sending half of one connection.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::device::Shared;
use super::receive::Owed;
use crate::device::{HEAD_BYTES_MAX, RailFault, Span, Write};
use crate::wire::{self, HEADER_BYTES, Header, Kind};

/// Most writes that one queue pair holds until they are acknowledged.
pub(super) const WINDOW: usize = 64;

/// Header and head of the frame under way, and how much of the frame has left.
#[derive(Debug)]
struct Frame {
    kind: Kind,
    start: [u8; HEADER_BYTES + HEAD_BYTES_MAX],
    start_len: usize,
    body: Span,
    sent: u64,
}

/// What one connection sends.
#[derive(Debug)]
pub(super) struct Sender {
    /// The oldest first: `sent` of them left whole, the next one may be under way.
    window: VecDeque<Write>,
    sent: usize,
    frame: Option<Frame>,
    /// The count of the peer's last acknowledgement.
    acked: u32,
    /// The socket took less than there is.
    blocked: bool,
}

impl Sender {
    pub(super) fn new() -> Self {
        Self {
            window: VecDeque::with_capacity(WINDOW),
            sent: 0,
            frame: None,
            acked: 0,
            blocked: false,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.window.len() >= WINDOW
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The numbers of the writes that are not acknowledged.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = u32> + '_ {
        self.window.iter().map(|write| write.number)
    }

    pub(super) fn push(&mut self, write: &Write) {
        self.window.push_back(write.clone());
    }

    /// Takes the peer's count; answers how many writes that finishes.
    pub(super) fn acknowledged(&mut self, count: u32) -> Result<usize, RailFault> {
        let fresh = count.wrapping_sub(self.acked) as usize;
        if fresh > self.sent {
            return Err(RailFault::BadFrame(format!(
                "{fresh} more writes are acknowledged and {} were sent",
                self.sent
            )));
        }
        self.window.drain(..fresh);
        self.sent -= fresh;
        self.acked = count;
        Ok(fresh)
    }

    /// Sends what the socket takes: the writes in order, and, once they have all left, an
    /// acknowledgement if `ack` and one is owed. Answers whether anything left.
    pub(super) fn flush(
        &mut self,
        socket: &OwnedFd,
        shared: &Shared,
        to: &mut To<'_>,
        owed: &mut Owed,
        ack: bool,
    ) -> Result<bool, RailFault> {
        let mut moved = false;
        if self.blocked && !has_room(socket) {
            return Ok(false);
        }
        self.blocked = false;
        loop {
            if self.frame.is_none() {
                if let Some(write) = self.window.get(self.sent) {
                    self.frame = Some(put_frame(write, shared, to, owed.take())?);
                } else if ack && owed.frames() > 0 {
                    self.frame = Some(ack_frame(shared, to, owed.take()));
                }
            }
            let Some(frame) = &mut self.frame else { return Ok(moved) };
            match send_part(socket, shared, frame)? {
                Some(0) | None => {
                    self.blocked = true;
                    return Ok(moved);
                }
                Some(count) => frame.sent += count as u64,
            }
            moved = true;
            if frame.sent == frame.start_len as u64 + frame.body.len {
                self.sent += usize::from(frame.kind == Kind::Put);
                self.frame = None;
            }
        }
    }
}

/// Whether a good part of the socket's buffer is free. Filling every byte as it becomes free would
/// cut a stream into tiny packets. A connection that is over counts as free: sending says why.
fn has_room(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    !matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

/// The peer a frame is for.
#[derive(Debug)]
pub(super) struct To<'a> {
    pub(super) peer: usize,
    pub(super) rails_down: u8,
    /// A bit of the next frame is to be flipped.
    pub(super) corrupt: &'a mut bool,
}

fn put_frame(
    write: &Write,
    shared: &Shared,
    to: &mut To<'_>,
    acked: u32,
) -> Result<Frame, RailFault> {
    // What is not so was refused when it was posted.
    let len = u32::try_from(write.len()).unwrap_or(u32::MAX);
    let header = Header {
        kind: Kind::Put,
        rails_down: to.rails_down,
        number: write.number,
        to: write.to,
        len,
        flag: write.flag,
        wake: write.wake,
        ..Header::ack(shared.epoch, shared.rank, to.peer, acked)
    };
    let head = write.head();
    let header = shared
        .region
        .lend(write.body, |body| wire::encode(&header, [head, body], shared.crc))
        .map_err(|outside| RailFault::Io(outside.to_string()))?;
    let mut frame = Frame {
        kind: Kind::Put,
        start: [0; HEADER_BYTES + HEAD_BYTES_MAX],
        start_len: HEADER_BYTES + head.len(),
        body: write.body,
        sent: 0,
    };
    frame.start[..HEADER_BYTES].copy_from_slice(&header);
    frame.start[HEADER_BYTES..frame.start_len].copy_from_slice(head);
    if std::mem::take(to.corrupt) {
        corrupt(&mut frame, shared);
    }
    Ok(frame)
}

fn ack_frame(shared: &Shared, to: &To<'_>, acked: u32) -> Frame {
    let header = Header {
        rails_down: to.rails_down,
        ..Header::ack(shared.epoch, shared.rank, to.peer, acked)
    };
    let mut start = [0; HEADER_BYTES + HEAD_BYTES_MAX];
    start[..HEADER_BYTES].copy_from_slice(&wire::encode(&header, [], shared.crc));
    Frame { kind: Kind::Ack, start, start_len: HEADER_BYTES, body: Span::default(), sent: 0 }
}

/// Flips a bit of the first byte after the header, or of the header where none follows. The
/// region keeps the right bytes: they may be sent again.
fn corrupt(frame: &mut Frame, shared: &Shared) {
    let at = HEADER_BYTES;
    if frame.start_len == at && frame.body.len > 0 {
        let first = &mut frame.start[at..=at];
        if shared.region.read(frame.body.offset, first).is_ok() {
            frame.start_len += 1;
            frame.body.offset += 1;
            frame.body.len -= 1;
        }
    }
    let at = if frame.start_len > at { at } else { at - 1 };
    frame.start[at] ^= 0x10;
}

/// One system call; none when the socket has no room.
fn send_part(socket: &OwnedFd, shared: &Shared, frame: &Frame) -> Result<Option<usize>, RailFault> {
    let start_sent = frame.start_len.min(usize::try_from(frame.sent).unwrap_or(usize::MAX));
    let start = &frame.start[start_sent..frame.start_len];
    let body_sent = frame.sent - start_sent as u64;
    let body = Span { offset: frame.body.offset + body_sent, len: frame.body.len - body_sent };
    let send = |body: &[u8]| loop {
        // A closed connection answers with an error, not with a signal.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let parts = [IoSlice::new(start), IoSlice::new(body)];
        let parts = if start.is_empty() { &parts[1..] } else { &parts[..] };
        match sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(super::device::fault_of(errno)),
            Ok(count) => return Ok(Some(count)),
        }
    };
    shared.region.lend(body, send).unwrap_or_else(|outside| Err(RailFault::Io(outside.to_string())))
}
