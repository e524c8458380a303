//! What a receiver does with a frame: every check, then the bytes, then the flag.

use std::sync::atomic::Ordering;

use super::settings::Bug;
use super::state::{Flight, State};
use crate::device::{Span, Write};
use crate::inbox::Arrival;
use crate::wire::{self, Expect, Header, Kind};

/// What happens to one frame on its way; the number decides where.
#[derive(Clone, Copy, Debug)]
pub(super) enum Damage {
    /// One bit is flipped.
    Flip(u64),
    /// Its end is lost.
    Truncate(u64),
}

/// A frame that was still on its way when its epoch ended.
#[derive(Clone, Debug)]
pub struct LateFrame {
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) rail: usize,
    pub(super) epoch: u32,
    pub(super) bytes: Vec<u8>,
}

impl LateFrame {
    /// Who sent it.
    pub fn src(&self) -> usize {
        self.src
    }

    /// Whom it is for.
    pub fn dst(&self) -> usize {
        self.dst
    }

    /// The rail it was posted on.
    pub fn rail(&self) -> usize {
        self.rail
    }

    /// The epoch it belongs to.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }
}

impl State {
    /// The frame of a write, from the sender's region as it is now.
    pub(super) fn encode(&self, index: usize, write: &Write, into: &mut Vec<u8>) {
        let half = &self.halves[index];
        let mut rails_down = 0;
        let mut rail = 0;
        while let Some(other) = self.half(half.src, half.dst, rail) {
            rails_down |= u8::from(self.halves[other].down) << rail;
            rail += 1;
        }
        let header = Header {
            number: write.number,
            rails_down,
            to: write.to,
            // A post whose bytes do not fit 32 bits was refused.
            len: write.len() as u32,
            flag: write.flag,
            wake: write.wake,
            kind: Kind::Put,
            ..Header::ack(self.settings.epoch, half.src, half.dst, 0)
        };
        let Span { offset, len } = write.body;
        // A post whose body lies outside was refused, so there is always something to lend.
        let _ = self.regions[half.src].lend(Span { offset, len }, |body| {
            let start = wire::encode(&header, [write.head(), body], self.settings.crc);
            into.extend_from_slice(&start);
            into.extend_from_slice(write.head());
            into.extend_from_slice(body);
        });
    }

    /// Lands a write, or only the first `torn` of its bytes. The error says which check failed.
    pub(super) fn land(
        &mut self,
        index: usize,
        flight: &Flight,
        torn: Option<u64>,
    ) -> Result<(), String> {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        match &flight.frame {
            Some(bytes) => frame.extend_from_slice(bytes),
            None => self.encode(index, &flight.write, &mut frame),
        }
        match flight.damage {
            Some(Damage::Flip(place)) => {
                let bit = (place % (frame.len() as u64 * 8)) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            Some(Damage::Truncate(place)) => {
                let left = (place % frame.len() as u64) as usize;
                frame.truncate(left);
            }
            None => {}
        }
        let (src, dst) = (self.halves[index].src, self.halves[index].dst);
        let uncounted = flight.write.unnumbered;
        let outcome = self.take_in(src, dst, self.settings.epoch, &frame, torn, uncounted);
        self.scratch = frame;
        if let Err(what) = &outcome {
            self.note_reject(index as u64, what);
        }
        outcome
    }

    /// Shows a frame of an earlier epoch to its receiver. It came on a queue pair that is no more,
    /// so no rail of this world goes down with it.
    pub(super) fn land_late(&mut self, late: &LateFrame) {
        let epoch = match self.settings.bug {
            Some(Bug::NoEpochCheck) => late.epoch,
            _ => self.settings.epoch,
        };
        if let Err(what) = self.take_in(late.src, late.dst, epoch, &late.bytes, None, true) {
            self.counters.late_rejected += 1;
            self.note_reject(u64::MAX, &what);
        }
    }

    fn note_reject(&mut self, place: u64, what: &str) {
        self.counters.rejected += 1;
        self.trace.add(place);
        self.trace.add(self.now);
        self.last_reject = Some(what.to_owned());
    }

    fn take_in(
        &mut self,
        src: usize,
        dst: usize,
        epoch: u32,
        frame: &[u8],
        torn: Option<u64>,
        uncounted: bool,
    ) -> Result<(), String> {
        let region_bytes = self.regions[dst].len();
        let (max_len, crc) = (self.settings.max_write_bytes, self.settings.crc);
        let expect = Expect { epoch, src, dst, region_bytes, max_len, crc };
        let (header, mut checksum) =
            wire::decode(frame, &expect).map_err(|error| error.to_string())?;
        let payload = frame.get(wire::HEADER_BYTES..).unwrap_or_default();
        if payload.len() != header.len as usize {
            return Err(format!("{} of {} bytes followed the header", payload.len(), header.len));
        }
        if header.kind != Kind::Put {
            return Err("an acknowledgement where only puts travel".to_owned());
        }
        if let Some(share) = torn {
            return self.take_in_part(src, dst, &header, payload, share);
        }
        checksum.add(payload);
        checksum.finish().map_err(|error| error.to_string())?;
        self.trace.add(self.now);
        self.trace.add((src as u64) << 32 | (dst as u64) << 16);
        self.trace.add(u64::from(header.number) << 32 | u64::from(crc32c::crc32c(frame)));
        let pair = self.pair(dst, src);
        // Numbers of an earlier epoch were counted by an inbox that is no more, and some have none.
        match if uncounted { Arrival::New } else { self.inboxes[pair].accept(header.number) } {
            Arrival::New => {}
            Arrival::Duplicate => {
                self.counters.duplicates += 1;
                if self.settings.bug != Some(Bug::NoInbox) {
                    return Ok(());
                }
            }
            Arrival::TooFar => {
                return Err(format!(
                    "number {} is too far ahead of {}, the oldest that has not come",
                    header.number,
                    self.inboxes[pair].next()
                ));
            }
        }
        if self.settings.bug == Some(Bug::FlagBeforeBytes) && header.flag.is_some() {
            self.straggle(dst, header.to, payload.to_vec());
        } else {
            self.regions[dst].write(header.to, payload).map_err(|error| error.to_string())?;
        }
        if let Some(flag) = header.flag {
            let place = self.regions[dst].flag(flag.offset).map_err(|error| error.to_string())?;
            place.store(flag.value, Ordering::Release);
        }
        self.counters.landed += 1;
        self.counters.landed_bytes += u64::from(header.len);
        self.stir(dst);
        Ok(())
    }

    fn take_in_part(
        &mut self,
        src: usize,
        dst: usize,
        header: &Header,
        payload: &[u8],
        share: u64,
    ) -> Result<(), String> {
        let pair = self.pair(dst, src);
        if self.inboxes[pair].judge(header.number) != Arrival::New || share == 0 {
            return Ok(());
        }
        let part = &payload[..payload.len().min(share as usize)];
        self.regions[dst].write(header.to, part).map_err(|error| error.to_string())?;
        self.counters.torn += 1;
        self.trace.add(share);
        Ok(())
    }
}
