//! The ring schedule: each rank talks to its right and left neighbour in rank order only.
//!
//! Slice `s` starts at rank `s`, and each rank on the way adds its own part: its sum follows the
//! ring from rank `s` on, and 16-bit floats are rounded at each step. All ranks get the same bits,
//! other ones than those of the schedules that follow the order of ranks.

use fabric::{Channel, FIRST_VALUE, Put, Reduction, Scalar, Source, Span, Target, reduce};

use crate::beacon::RankSet;

use super::reducing::{chunks, slice};
use super::{CollectiveError, Collectives, Data, Watch};

/// How many steps were sent to the right and consumed from the left. They wrap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    sent: u32,
    consumed: u32,
}

impl Default for Steps {
    fn default() -> Self {
        Self { sent: FIRST_VALUE, consumed: FIRST_VALUE }
    }
}

impl<W: Watch> Collectives<W> {
    pub(super) async fn around(
        &mut self,
        scalar: Scalar,
        how: Reduction,
        data: &mut Data<'_>,
        len: u64,
    ) -> Result<(), CollectiveError> {
        let fabric = self.fabric.clone();
        let (layout, region) = (fabric.layout(), &**fabric.region());
        let (rank, size) = (self.rank, self.size);
        // Steps are no exchanges: they use staging memory that an exchange may still send from.
        self.drained().await?;
        for part in chunks(len, self.slot_bytes() * size as u64) {
            // A plain vector is worked on in staging memory, a registered one where it is.
            let (input, output) = match data {
                Data::Plain(bytes) => {
                    let work = layout.staging(0);
                    region.write(work.offset, &bytes[part.start as usize..part.end as usize])?;
                    (work.offset, work.offset)
                }
                Data::Registered { input, output } => {
                    (input.offset + part.start, output.offset + part.start)
                }
            };
            let local = 0..part.end - part.start;
            let piece = |base: u64, index: usize| {
                let part = slice(&local, index % size, size);
                Span { offset: base + part.start, len: part.end - part.start }
            };
            for step in 0..size - 1 {
                let sends = rank + size - step;
                let from = if step == 0 { input } else { output };
                let receives = sends + size - 1;
                let expected = piece(0, receives).len;
                let arrived = self.step(piece(from, sends), expected).await?;
                let theirs = Span { offset: arrived, len: expected };
                let sources = [
                    Source { region, span: theirs },
                    Source { region, span: piece(input, receives) },
                ];
                let places = [(region, piece(output, receives).offset)];
                reduce(scalar, how, &sources, &mut Target::Regions(&places))?;
                self.consume()?;
            }
            for step in 0..size - 1 {
                let sends = rank + 1 + size - step;
                let receives = sends + size - 1;
                let expected = piece(0, receives).len;
                let arrived = self.step(piece(output, sends), expected).await?;
                let theirs = Span { offset: arrived, len: expected };
                region.copy_to(theirs, region, piece(output, receives).offset)?;
                self.consume()?;
            }
            // Everything has left before the vector is the caller's again.
            self.drained().await?;
            if let Data::Plain(bytes) = data {
                region.read(output, &mut bytes[part.start as usize..part.end as usize])?;
            }
        }
        Ok(())
    }

    /// Sends to the right and waits for the left: answers where its bytes lie.
    async fn step(&mut self, src: Span, expected: u64) -> Result<u64, CollectiveError> {
        let right = (self.rank + 1) % self.size;
        let left = (self.rank + self.size - 1) % self.size;
        self.ring.sent = self.ring.sent.wrapping_add(1);
        let value = self.ring.sent;
        // The slot is free once the right neighbour has consumed what lay there two steps ago.
        let freed = value.wrapping_sub(2);
        self.arrivals(RankSet::one(right), Channel::RingAck, freed, |_| 0).await?;
        let fabric = self.fabric.clone();
        let to = fabric.layout().ring_slot(value);
        fabric.put(&Put { dst: right, src, to, channel: Channel::Ring, value })?;
        let arrives = self.ring.consumed.wrapping_add(1);
        self.arrivals(RankSet::one(left), Channel::Ring, arrives, |_| expected).await?;
        Ok(fabric.layout().ring_slot(arrives))
    }

    /// Tells the left neighbour that its last bytes were used.
    fn consume(&mut self) -> Result<(), CollectiveError> {
        let left = (self.rank + self.size - 1) % self.size;
        self.ring.consumed = self.ring.consumed.wrapping_add(1);
        let value = self.ring.consumed;
        let put = Put { dst: left, src: Span::default(), to: 0, channel: Channel::RingAck, value };
        Ok(self.fabric.put(&put)?)
    }
}
