//! Sending on one lane of an ordered pair.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use crate::chunk::ChunkHead;
use crate::device::{FlagWrite, Span, Wake, Write};
use crate::layout::{FIRST_VALUE, Flow, Layout, MAILBOX_DEPTH};
use crate::region::Region;
use crate::topology;

use super::link::{Owner, Submitted};
use super::{Endpoint, FabricError, PathKind};

/// A fragment on its way out.
#[derive(Debug)]
pub(super) struct Transfer {
    src: Span,
    to: u64,
    flag: FlagWrite,
    sent: u64,
}

impl Transfer {
    pub(super) fn new(src: Span, to: u64, flag: FlagWrite) -> Self {
        Self { src, to, flag, sent: 0 }
    }

    /// The next piece of at most `most` bytes: its bytes, where they go, and the flag if it is
    /// the last one.
    fn next(&self, most: u64) -> (Span, u64, Option<FlagWrite>) {
        let left = self.src.len - self.sent;
        let len = left.min(most);
        let body = Span { offset: self.src.offset + self.sent, len };
        (body, self.to + self.sent, (len == left).then_some(self.flag))
    }
}

/// The next relay of a flow, as the rank before it sees it.
#[derive(Debug)]
pub(super) struct Hop {
    pub(super) flow: Flow,
    pub(super) relay: usize,
    pub(super) rail: usize,
    arrival: u64,
    credit: u64,
    sent: u32,
}

impl Hop {
    /// The hop of `flow` that leaves `sender` for a mailbox; none if the next rank on the lane is
    /// the destination.
    pub(super) fn new(
        layout: &Layout,
        lane: &topology::Lane,
        flow: Flow,
        sender: usize,
    ) -> Option<Self> {
        let place = lane.hops().iter().position(|&rank| rank == sender)?;
        let relay = *lane.hops().get(place + 1)?;
        Some(Self {
            flow,
            relay,
            rail: lane.rail(),
            arrival: layout.arrival(relay, flow)?,
            credit: layout.credit(sender, flow)?,
            sent: FIRST_VALUE,
        })
    }

    /// True when the relay's mailbox has room for one more chunk.
    pub(super) fn has_credit(&self, region: &Region) -> bool {
        // The layout puts credits inside the region.
        let returned = region.flag(self.credit).map_or(0, |flag| flag.load(Ordering::Acquire));
        self.sent.wrapping_sub(returned) < MAILBOX_DEPTH
    }

    /// The write that brings a chunk to the relay's mailbox.
    pub(super) fn write(
        &self,
        layout: &Layout,
        epoch: u32,
        body: Span,
        to: u64,
        flag: Option<FlagWrite>,
    ) -> Write {
        let head = ChunkHead {
            epoch,
            flow: self.flow,
            count: self.sent,
            // A chunk is at most `relay_chunk_bytes`, which is bounded by 16 MiB.
            len: body.len as u32,
            to,
            flag,
        };
        // The layout has a mailbox for every flow that ends in one.
        let mailbox = layout.mailbox(self.relay, self.flow, self.sent).unwrap_or(0);
        Write {
            body,
            to: mailbox,
            flag: Some(FlagWrite { offset: self.arrival, value: self.sent.wrapping_add(1) }),
            wake: Wake::Progress,
            ..Write::default()
        }
        .with_head(&head.encode())
    }

    pub(super) fn advance(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }
}

#[derive(Debug)]
enum Way {
    /// To the destination's memory in one write of at most `write_bytes_max`.
    Direct {
        peer: usize,
        rail: usize,
        write_bytes_max: u64,
        kind: PathKind,
    },
    Relayed(Hop),
}

#[derive(Debug)]
pub(super) struct Lane {
    way: Way,
    queue: VecDeque<Transfer>,
}

impl Lane {
    pub(super) fn new(
        layout: &Layout,
        lane: &topology::Lane,
        flow: Flow,
        rank: usize,
        write_bytes_max: u64,
    ) -> Self {
        let kind = if lane.through().is_empty() { PathKind::Direct } else { PathKind::Forwarded };
        let direct = Way::Direct { peer: flow.dst, rail: lane.rail(), write_bytes_max, kind };
        let way = Hop::new(layout, lane, flow, rank).map_or(direct, Way::Relayed);
        Self { way, queue: VecDeque::new() }
    }

    pub(super) fn push(&mut self, transfer: Transfer) {
        self.queue.push_back(transfer);
    }

    /// The peer, rail and kind of a lane that has nothing queued, needs no credit, and takes so
    /// many bytes at once.
    fn open_way(&self, len: u64) -> Option<(usize, usize, PathKind)> {
        match self.way {
            Way::Direct { peer, rail, write_bytes_max, kind }
                if self.queue.is_empty() && len <= write_bytes_max =>
            {
                Some((peer, rail, kind))
            }
            _ => None,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The rank its oldest transfer goes to next; none if it has none.
    pub(super) fn waits_for(&self) -> Option<usize> {
        self.queue.front().map(|_| match &self.way {
            Way::Direct { peer, .. } => *peer,
            Way::Relayed(hop) => hop.relay,
        })
    }
}

impl Endpoint {
    /// Sends a fragment without queueing it, if it goes in one write to a peer that takes it
    /// now. Where it does not, nothing was sent.
    pub(super) fn post_at_once(
        &mut self,
        dst: usize,
        lane: usize,
        src: Span,
        to: u64,
        flag: FlagWrite,
    ) -> bool {
        let Some((peer, rail, kind)) = self.lanes[dst][lane].open_way(src.len) else {
            return false;
        };
        let Some(link) = &mut self.links[peer] else { return false };
        let write = Write { body: src, to, flag: Some(flag), ..Write::default() };
        let (submitted, rail) = link.submit(&mut *self.device, peer, rail, write, Owner::Put);
        match submitted {
            Submitted::Full | Submitted::Down => return false,
            Submitted::Pending => self.pending += 1,
            Submitted::Done => {}
        }
        self.counters.add_bytes(kind, rail, src.len);
        true
    }

    /// Sends what the lane's queue pair and credits allow. Answers whether anything was sent.
    pub(super) fn pump(&mut self, dst: usize, lane: usize) -> Result<bool, FabricError> {
        let mut moved = false;
        let lane = &mut self.lanes[dst][lane];
        while let Some(transfer) = lane.queue.front_mut() {
            let (peer, rail, write, kind) = match &lane.way {
                Way::Direct { peer, rail, write_bytes_max, kind } => {
                    let (body, to, flag) = transfer.next(*write_bytes_max);
                    (*peer, *rail, Write { body, to, flag, ..Write::default() }, *kind)
                }
                Way::Relayed(hop) => {
                    if !hop.has_credit(&self.region) {
                        break;
                    }
                    let (body, to, flag) = transfer.next(self.layout.sizes().relay_chunk_bytes);
                    let write = hop.write(&self.layout, self.epoch, body, to, flag);
                    (hop.relay, hop.rail, write, PathKind::Relayed)
                }
            };
            let Some(link) = &mut self.links[peer] else { break };
            let body = write.body;
            let (submitted, rail) = link.submit(&mut *self.device, peer, rail, write, Owner::Put);
            match submitted {
                Submitted::Full => break,
                Submitted::Down => return Err(link.down_error(self.rank, peer)),
                Submitted::Pending => self.pending += 1,
                Submitted::Done => {}
            }
            moved = true;
            self.counters.add_bytes(kind, rail, body.len);
            if let Way::Relayed(hop) = &mut lane.way {
                hop.advance();
            }
            transfer.sent += body.len;
            if transfer.sent == transfer.src.len {
                lane.queue.pop_front();
                self.pending -= 1;
            }
        }
        Ok(moved)
    }

    /// Sends again what was outstanding on failed rails.
    pub(super) fn repost(&mut self) -> bool {
        let mut done = Vec::new();
        let mut count = 0;
        for (peer, link) in self.links.iter_mut().enumerate() {
            if let Some(link) = link {
                count += link.repost(&mut *self.device, peer, &mut done);
            }
        }
        for owner in done {
            self.finish(owner);
        }
        self.counters.reposted_writes.fetch_add(count, Ordering::Relaxed);
        count > 0
    }
}
