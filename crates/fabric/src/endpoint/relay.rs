//! Passing on what is meant for others.
//!
//! Each relayed flow has a mailbox of its own at every rank it passes, and the last hop writes
//! into the destination's slot, which the exchange protocol keeps free. So no chunk ever waits
//! for another flow's, and a ring in which all ranks send to their distant rank at once cannot
//! lock up.

use std::sync::atomic::Ordering;

use crate::bell::reached;
use crate::chunk::{CHUNK_HEAD_BYTES, ChunkExpect, ChunkHead};
use crate::device::{FlagWrite, Span, Wake, Write};
use crate::layout::{FIRST_VALUE, Flow, Layout, MAILBOX_DEPTH};
use crate::region::Region;
use crate::topology::Lane;

use super::lane::Hop;
use super::link::{Owner, Submitted};
use super::{Endpoint, FabricError, Notice, PathKind};

#[derive(Debug)]
pub(super) struct Relay {
    flow: Flow,
    /// The rank the chunks come from.
    before: usize,
    rail: usize,
    /// None when the next rank is the destination.
    next: Option<Hop>,
    arrival: u64,
    /// Where the rank before counts the credits.
    credit: u64,
    passed: u32,
    done: u32,
    returned: u32,
    broken: bool,
    /// At the last attempt the way on was shut: what waits here waits for a rank further on.
    blocked: bool,
}

impl Relay {
    pub(super) fn new(layout: &Layout, lane: &Lane, flow: Flow, rank: usize) -> Self {
        let place = lane.hops().iter().position(|&hop| hop == rank).unwrap_or(1);
        let before = lane.hops()[place - 1];
        Self {
            flow,
            before,
            rail: lane.rail(),
            next: Hop::new(layout, lane, flow, rank),
            // The layout lists this rank as a relay of the flow, and the rank before as one that
            // gets credits.
            arrival: layout.arrival(rank, flow).unwrap_or(0),
            credit: layout.credit(before, flow).unwrap_or(0),
            passed: FIRST_VALUE,
            done: FIRST_VALUE,
            returned: FIRST_VALUE,
            broken: false,
            blocked: false,
        }
    }

    pub(super) fn flow(&self) -> Flow {
        self.flow
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn passed(&self) -> u32 {
        self.passed
    }

    pub(super) fn finish_one(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    /// How many chunks arrived that were not passed on.
    pub(super) fn waiting(&self, region: &Region) -> u32 {
        let arrived = region.flag(self.arrival).map_or(0, |flag| flag.load(Ordering::Acquire));
        if reached(arrived, self.passed) { arrived.wrapping_sub(self.passed) } else { 0 }
    }
}

impl Endpoint {
    /// Passes on whatever arrived and can go on, and returns credits.
    pub(super) fn relay_all(&mut self) -> bool {
        let mut moved = false;
        for index in 0..self.relays.len() {
            while self.relays[index].waiting(&self.region) > 0 && !self.relays[index].broken {
                let passed = self.relay_one(index);
                self.relays[index].blocked = passed == Ok(false);
                match passed {
                    Ok(true) => moved = true,
                    Ok(false) => break,
                    Err(error) => {
                        self.relays[index].broken = true;
                        self.notices.push(Notice::BadChunk(error));
                    }
                }
            }
            moved |= self.return_credit(index);
        }
        moved
    }

    fn relay_one(&mut self, index: usize) -> Result<bool, FabricError> {
        let relay = &mut self.relays[index];
        if relay.next.as_ref().is_some_and(|hop| !hop.has_credit(&self.region)) {
            return Ok(false);
        }
        // The layout lists this flow for this rank.
        let mailbox = self.layout.mailbox(self.rank, relay.flow, relay.passed).unwrap_or(0);
        let mut head = [0; CHUNK_HEAD_BYTES];
        self.region.read(mailbox, &mut head)?;
        let expect = ChunkExpect {
            epoch: self.epoch,
            flow: relay.flow,
            count: relay.passed,
            len_max: self.layout.sizes().relay_chunk_bytes,
            region_bytes: self.layout.region_bytes(),
        };
        let (rank, flow) = (self.rank, relay.flow);
        let head = ChunkHead::decode(&head, &expect).map_err(|fault| FabricError::BadChunk {
            rank,
            flow,
            fault,
        })?;
        let body = Span { offset: mailbox + CHUNK_HEAD_BYTES as u64, len: head.len.into() };
        let (peer, rail, write) = match &relay.next {
            Some(hop) => {
                let write = hop.write(&self.layout, self.epoch, body, head.to, head.flag);
                (hop.relay, hop.rail, write)
            }
            None => {
                let write = Write { body, to: head.to, flag: head.flag, ..Write::default() };
                (flow.dst, relay.rail, write)
            }
        };
        let Some(link) = &mut self.links[peer] else { return Ok(false) };
        let owner = Owner::Relay(index);
        let (submitted, rail) = link.submit(&mut *self.device, peer, rail, write, owner);
        match submitted {
            // A dead link was told by a notice.
            Submitted::Full | Submitted::Down => return Ok(false),
            Submitted::Done => relay.finish_one(),
            Submitted::Pending => {}
        }
        relay.passed = relay.passed.wrapping_add(1);
        if let Some(hop) = &mut relay.next {
            hop.advance();
        }
        self.counters.relayed_chunks.fetch_add(1, Ordering::Relaxed);
        self.counters.add_bytes(PathKind::Relayed, rail, body.len);
        Ok(true)
    }

    /// Tells the rank before how many chunks have left the mailbox. The count is a total, so one
    /// write returns several credits.
    fn return_credit(&mut self, index: usize) -> bool {
        let relay = &mut self.relays[index];
        if relay.returned == relay.done {
            return false;
        }
        // Two at a time keep the sender busy and halve the writes; a lone chunk is returned when
        // nothing else of its flow is under way.
        let unreturned = relay.done.wrapping_sub(relay.returned);
        if unreturned < MAILBOX_DEPTH / 2 && relay.passed != relay.done {
            return false;
        }
        let write = Write {
            flag: Some(FlagWrite { offset: relay.credit, value: relay.done }),
            wake: Wake::Progress,
            ..Write::default()
        };
        let Some(link) = &mut self.links[relay.before] else { return false };
        let (submitted, _) =
            link.submit(&mut *self.device, relay.before, relay.rail, write, Owner::Nobody);
        if matches!(submitted, Submitted::Done | Submitted::Pending) {
            relay.returned = relay.done;
            return true;
        }
        false
    }
}
