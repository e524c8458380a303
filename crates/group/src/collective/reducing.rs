//! All-reduce and reduce-scatter in the order of ranks.
//!
//! Whatever the schedule here, each element is combined in the order of ranks and rounded once, so
//! all of them give the same bits.

use std::ops::Range;

use fabric::{Reduction, Region, Scalar, Source, Span, Target, reduce};

use super::exchange::Part;
use super::{CollectiveError, Collectives, Operation, Schedule, Watch};

/// The vector of a reduction.
#[derive(Debug)]
pub enum Data<'a> {
    /// Plain memory: one copy in, and the result is computed into it.
    Plain(&'a mut [u8]),
    /// Registered buffers, which may be the same one: no copies.
    Registered {
        /// What is combined.
        input: Span,
        /// Where the result goes: as long as the input.
        output: Span,
    },
}

impl Data<'_> {
    /// Bytes of the vector.
    pub fn len(&self) -> u64 {
        match self {
            Self::Plain(bytes) => bytes.len() as u64,
            Self::Registered { input, .. } => input.len,
        }
    }

    /// True when there is nothing to combine.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of the input as registered memory; a plain one is copied to `staging`.
    fn stage(
        &self,
        region: &Region,
        part: &Range<u64>,
        staging: Span,
    ) -> Result<Span, CollectiveError> {
        match self {
            Self::Plain(bytes) => {
                region.write(staging.offset, &bytes[part.start as usize..part.end as usize])?;
                Ok(Span { offset: staging.offset, len: part.end - part.start })
            }
            Self::Registered { input, .. } => Ok(within(*input, part)),
        }
    }
}

/// Registered vectors of at most this size are copied before a one-shot all-reduce sends them: the
/// copy takes less time than an acknowledgement.
const COPIED_BYTES_MAX: u64 = 4 << 10;

fn within(span: Span, part: &Range<u64>) -> Span {
    Span { offset: span.offset + part.start, len: part.end - part.start }
}

/// Part `index` of `count` parts of a range, in whole cache lines where possible.
pub(super) fn slice(range: &Range<u64>, index: usize, count: usize) -> Range<u64> {
    let len = range.end - range.start;
    let share = len.div_ceil(count as u64).next_multiple_of(64);
    let start = (index as u64 * share).min(len);
    let end = ((index as u64 + 1) * share).min(len);
    range.start + start..range.start + end
}

/// Consecutive parts of at most `most` bytes; `most` is not zero.
pub(super) fn chunks(len: u64, most: u64) -> impl Iterator<Item = Range<u64>> {
    (0..len.div_ceil(most)).map(move |index| index * most..((index + 1) * most).min(len))
}

impl<W: Watch> Collectives<W> {
    /// The schedule that [`all_reduce`](Self::all_reduce) uses for this vector.
    pub fn schedule_for(&self, data: &Data<'_>) -> Schedule {
        let in_place = self.all_mapped && matches!(data, Data::Registered { .. });
        self.table.choose(data.len(), in_place)
    }

    /// Combines the ranks' vectors element by element; every rank gets the result, in the same
    /// bits. All ranks give vectors of one length, and all plain or all registered.
    ///
    /// # Errors
    /// Vectors that are no whole elements or whose output differs in length; a stopped group.
    pub async fn all_reduce(
        &mut self,
        scalar: Scalar,
        how: Reduction,
        mut data: Data<'_>,
    ) -> Result<(), CollectiveError> {
        self.check(scalar, &data)?;
        // Nothing to exchange, so it is no operation: ranks could get ahead of each other by it.
        if data.is_empty() {
            return Ok(());
        }
        self.begin(Operation::AllReduce)?;
        let len = data.len();
        let schedule = self.schedule_for(&data);
        let mut result = match schedule {
            _ if self.size == 1 => self.copy_through(&data),
            Schedule::OneShot => self.one_shot(scalar, how, &mut data, len).await,
            Schedule::TwoShot => self.two_shot(scalar, how, &mut data, len).await,
            Schedule::Mapped => self.in_place(scalar, how, &data, len).await,
            Schedule::Ring => self.around(scalar, how, &mut data, len).await,
        };
        // The caller may change its buffers from now on.
        let is_copied = schedule == Schedule::OneShot && len <= COPIED_BYTES_MAX;
        if result.is_ok() && matches!(data, Data::Registered { .. }) && !is_copied {
            result = self.drained().await;
        }
        self.watch.end();
        result
    }

    /// Combines the ranks' vectors; rank `r` gets the part of the result that starts at element
    /// `r * count` and has `count` elements, where `input` has `count` elements for each rank.
    ///
    /// # Errors
    /// An input that is not `size` times as long as the output; a stopped group.
    pub async fn reduce_scatter(
        &mut self,
        scalar: Scalar,
        how: Reduction,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), CollectiveError> {
        if output.len() * self.size != input.len() || !output.len().is_multiple_of(scalar.bytes()) {
            return Err(self.argument(format!(
                "a reduce-scatter of {} bytes over {} ranks into {} bytes",
                input.len(),
                self.size,
                output.len()
            )));
        }
        if input.is_empty() {
            return Ok(());
        }
        self.begin(Operation::ReduceScatter)?;
        let result = self.scatter(scalar, how, input, output).await;
        self.watch.end();
        result
    }

    fn check(&self, scalar: Scalar, data: &Data<'_>) -> Result<(), CollectiveError> {
        if !data.len().is_multiple_of(scalar.bytes() as u64) {
            return Err(self.argument(format!(
                "{} bytes are no whole number of {}-byte elements",
                data.len(),
                scalar.bytes()
            )));
        }
        if let Data::Registered { input, output } = data
            && input.len != output.len
        {
            return Err(self.argument(format!(
                "an input of {} bytes and an output of {}",
                input.len, output.len
            )));
        }
        Ok(())
    }

    fn copy_through(&self, data: &Data<'_>) -> Result<(), CollectiveError> {
        if let Data::Registered { input, output } = data {
            self.fabric.region().copy_to(*input, self.fabric.region(), output.offset)?;
        }
        Ok(())
    }

    /// Combines, in the order of ranks, the own part and what came from the others, which lies
    /// where `place` says.
    fn combine(
        &self,
        scalar: Scalar,
        how: Reduction,
        place: impl Fn(usize) -> u64,
        own: Span,
        target: &mut Target<'_>,
    ) -> Result<(), CollectiveError> {
        let region = &**self.fabric.region();
        let mut sources = [Source { region, span: own }; fabric::MAX_RANKS];
        for (rank, source) in sources.iter_mut().enumerate().take(self.size) {
            if rank != self.rank {
                source.span = Span { offset: place(rank), len: own.len };
            }
        }
        Ok(reduce(scalar, how, &sources[..self.size], target)?)
    }

    async fn one_shot(
        &mut self,
        scalar: Scalar,
        how: Reduction,
        data: &mut Data<'_>,
        len: u64,
    ) -> Result<(), CollectiveError> {
        for part in chunks(len, self.slot_bytes()) {
            let (exchange, me) = (self.next_exchange(), self.rank);
            let staging = self.fabric.layout().staging(exchange);
            let mut own = data.stage(self.fabric.region(), &part, staging)?;
            // A small vector is sent from a copy, so that nobody waits until it has left.
            let is_copied = matches!(data, Data::Plain(_)) || len <= COPIED_BYTES_MAX;
            if is_copied && own.offset != staging.offset {
                self.fabric.region().copy_to(own, self.fabric.region(), staging.offset)?;
                own.offset = staging.offset;
            }
            let mut to = [0; fabric::MAX_RANKS];
            for (dst, to) in to.iter_mut().enumerate().take(self.size) {
                *to = self.fabric.exchange_place(me, dst, exchange, own.len);
            }
            self.exchange(|dst| Part { src: own, to: to[dst] }, |_| own.len).await?;
            // The result may replace the input.
            if !is_copied {
                self.drained().await?;
            }
            let fabric = &*self.fabric;
            let places;
            let mut target = match data {
                Data::Plain(bytes) => {
                    Target::Plain(&mut bytes[part.start as usize..part.end as usize])
                }
                Data::Registered { output, .. } => {
                    places = [(&**fabric.region(), output.offset + part.start)];
                    Target::Regions(&places)
                }
            };
            let place = |src| fabric.exchange_place(src, me, exchange, own.len);
            self.combine(scalar, how, place, own, &mut target)?;
        }
        Ok(())
    }

    async fn two_shot(
        &mut self,
        scalar: Scalar,
        how: Reduction,
        data: &mut Data<'_>,
        len: u64,
    ) -> Result<(), CollectiveError> {
        let (rank, size) = (self.rank, self.size);
        let fabric = self.fabric.clone();
        let (layout, region) = (fabric.layout(), &**fabric.region());
        for part in chunks(len, self.slot_bytes() * size as u64) {
            let first = self.next_exchange();
            let staged = data.stage(region, &part, layout.staging(first))?;
            let local = 0..staged.len;
            let piece = |index: usize| within(staged, &slice(&local, index, size));
            let mine = piece(rank);
            let to = layout.slot(rank, first);
            self.exchange(|dst| Part { src: piece(dst), to }, |_| mine.len).await?;

            let offset_of = |index: usize| part.start + slice(&local, index, size).start;
            let second = self.next_exchange();
            let reduced = match data {
                // What an exchange sends lies in its own staging memory: see `arrivals`.
                Data::Plain(_) => Span { offset: layout.staging(second).offset, len: mine.len },
                Data::Registered { output, .. } => {
                    Span { offset: output.offset + offset_of(rank), len: mine.len }
                }
            };
            let places = [(region, reduced.offset)];
            let place = |src| layout.slot(src, first);
            self.combine(scalar, how, place, mine, &mut Target::Regions(&places))?;

            let to = match data {
                Data::Plain(_) => layout.slot(rank, second),
                Data::Registered { .. } => reduced.offset,
            };
            self.exchange(|_| Part { src: reduced, to }, |src| piece(src).len).await?;
            if let Data::Plain(bytes) = data {
                for index in 0..size {
                    let from =
                        if index == rank { reduced.offset } else { layout.slot(index, second) };
                    let start = offset_of(index) as usize;
                    let end = start + piece(index).len as usize;
                    region.read(from, &mut bytes[start..end])?;
                }
            }
        }
        Ok(())
    }

    /// Reads the others' inputs and writes their outputs where they are. The first exchange tells
    /// that all inputs are there, the second that all are done with them.
    async fn in_place(
        &mut self,
        scalar: Scalar,
        how: Reduction,
        data: &Data<'_>,
        len: u64,
    ) -> Result<(), CollectiveError> {
        let Data::Registered { input, output } = data else {
            return Err(self.argument("plain memory cannot be read in place".to_owned()));
        };
        let (rank, size) = (self.rank, self.size);
        let fabric = self.fabric.clone();
        self.exchange(|_| Part::default(), |_| 0).await?;
        let mine = slice(&(0..len), rank, size);
        let own = &**fabric.region();
        let region = |peer: usize| fabric.mapped(peer).unwrap_or(own);
        let mut sources = [Source { region: own, span: within(*input, &mine) }; fabric::MAX_RANKS];
        let mut places = [(own, output.offset + mine.start); fabric::MAX_RANKS];
        for peer in 0..size {
            sources[peer].region = region(peer);
            places[peer].0 = region(peer);
        }
        reduce(scalar, how, &sources[..size], &mut Target::Regions(&places[..size]))?;
        self.exchange(|_| Part::default(), |_| 0).await
    }

    async fn scatter(
        &mut self,
        scalar: Scalar,
        how: Reduction,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let fabric = self.fabric.clone();
        let (layout, region) = (fabric.layout(), &**fabric.region());
        let share = output.len();
        for part in chunks(share as u64, self.slot_bytes()) {
            let exchange = self.next_exchange();
            let staging = layout.staging(exchange).offset;
            let len = part.end - part.start;
            let piece = |dst: usize| Span { offset: staging + dst as u64 * len, len };
            for dst in 0..self.size {
                let start = dst * share + part.start as usize;
                region.write(piece(dst).offset, &input[start..start + len as usize])?;
            }
            let to = layout.slot(self.rank, exchange);
            self.exchange(|dst| Part { src: piece(dst), to }, |_| len).await?;
            let target = &mut output[part.start as usize..part.end as usize];
            let own = piece(self.rank);
            let place = |src| layout.slot(src, exchange);
            self.combine(scalar, how, place, own, &mut Target::Plain(target))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_the_range_once() {
        for (len, count) in [(0, 3), (8, 4), (100, 3), (4096, 4), (1 << 20, 7)] {
            let whole = 64..64 + len;
            let mut next = whole.start;
            for index in 0..count {
                let part = slice(&whole, index, count);
                assert_eq!(part.start, next);
                next = part.end;
            }
            assert_eq!(next, whole.end);
        }
    }
}
