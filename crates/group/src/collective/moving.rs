//! All-gather, broadcast, all-to-all and barrier.

use fabric::Span;

use super::exchange::Part;
use super::reducing::chunks;
use super::{CollectiveError, Collectives, Operation, Watch};

/// Most bytes of one broadcast whose length the receivers do not know.
pub const BROADCAST_BYTES_MAX: usize = 16 << 20;
/// What the first exchange of such a broadcast carries: the length, and short content whole.
const FIRST_BYTES: usize = 256;
const LENGTH_BYTES: usize = 8;

impl<W: Watch> Collectives<W> {
    /// Concatenates the ranks' parts, in the order of ranks, into `output`. `lengths` gives each
    /// rank's bytes, the same on all ranks.
    ///
    /// # Errors
    /// Lengths that do not fit the arguments; a stopped group.
    pub async fn all_gather(
        &mut self,
        input: &[u8],
        lengths: &[usize],
        output: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let total = lengths.iter().try_fold(0_usize, |sum, &len| sum.checked_add(len));
        if lengths.len() != self.size
            || lengths[self.rank] != input.len()
            || total != Some(output.len())
        {
            return Err(self.argument(format!(
                "an all-gather of lengths {lengths:?} from {} bytes into {}",
                input.len(),
                output.len()
            )));
        }
        if output.is_empty() {
            return Ok(());
        }
        self.begin(Operation::AllGather)?;
        let result = self.gather(input, lengths, output).await;
        self.watch.end();
        result
    }

    async fn gather(
        &mut self,
        input: &[u8],
        lengths: &[usize],
        output: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let fabric = self.fabric.clone();
        let (layout, region) = (fabric.layout(), &**fabric.region());
        let starts: Vec<usize> = lengths
            .iter()
            .scan(0, |next, &len| {
                let start = *next;
                *next += len;
                Some(start)
            })
            .collect();
        output[starts[self.rank]..starts[self.rank] + input.len()].copy_from_slice(input);
        let longest = lengths.iter().copied().max().unwrap_or(0) as u64;
        for part in chunks(longest, self.slot_bytes()) {
            let exchange = self.next_exchange();
            let range = |rank: usize| {
                let len = lengths[rank] as u64;
                part.start.min(len) as usize..part.end.min(len) as usize
            };
            let own = range(self.rank);
            let staging = layout.staging(exchange).offset;
            region.write(staging, &input[own.clone()])?;
            let src = Span { offset: staging, len: own.len() as u64 };
            let to = layout.slot(self.rank, exchange);
            self.exchange(|_| Part { src, to }, |rank| range(rank).len() as u64).await?;
            for rank in (0..self.size).filter(|&rank| rank != self.rank) {
                let range = range(rank);
                let target = starts[rank] + range.start..starts[rank] + range.end;
                region.read(layout.slot(rank, exchange), &mut output[target])?;
            }
        }
        Ok(())
    }

    /// Gives the root's bytes to every rank. All ranks give buffers of one length.
    ///
    /// # Errors
    /// A root that is no rank; a stopped group.
    pub async fn broadcast(
        &mut self,
        bytes: &mut [u8],
        root: usize,
    ) -> Result<(), CollectiveError> {
        self.check_root(root)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.begin(Operation::Broadcast)?;
        let result = self.spread(bytes, root).await;
        self.watch.end();
        result
    }

    /// Gives the root's bytes, of a length only it knows, to every rank: the others' content is
    /// replaced. Short content takes one exchange.
    ///
    /// # Errors
    /// A root that is no rank, more than [`BROADCAST_BYTES_MAX`] bytes; a stopped group.
    pub async fn broadcast_any(
        &mut self,
        bytes: &mut Vec<u8>,
        root: usize,
    ) -> Result<(), CollectiveError> {
        self.check_root(root)?;
        if self.rank == root && bytes.len() > BROADCAST_BYTES_MAX {
            return Err(self.argument(format!(
                "a broadcast of {} bytes; at most {BROADCAST_BYTES_MAX} are carried",
                bytes.len()
            )));
        }
        self.begin(Operation::Broadcast)?;
        let result = self.spread_any(bytes, root).await;
        self.watch.end();
        result
    }

    fn check_root(&self, root: usize) -> Result<(), CollectiveError> {
        if root < self.size {
            return Ok(());
        }
        Err(self.argument(format!("rank {root} of {} cannot be a root", self.size)))
    }

    async fn spread(&mut self, bytes: &mut [u8], root: usize) -> Result<(), CollectiveError> {
        let fabric = self.fabric.clone();
        let (layout, region) = (fabric.layout(), &**fabric.region());
        for part in chunks(bytes.len() as u64, self.slot_bytes()) {
            let exchange = self.next_exchange();
            let range = part.start as usize..part.end as usize;
            let len = part.end - part.start;
            let mut own = Part { to: layout.slot(self.rank, exchange), ..Part::default() };
            if self.rank == root {
                own.src = Span { offset: layout.staging(exchange).offset, len };
                region.write(own.src.offset, &bytes[range.clone()])?;
            }
            self.exchange(|_| own, |src| if src == root { len } else { 0 }).await?;
            if self.rank != root {
                region.read(layout.slot(root, exchange), &mut bytes[range])?;
            }
        }
        Ok(())
    }

    async fn spread_any(
        &mut self,
        bytes: &mut Vec<u8>,
        root: usize,
    ) -> Result<(), CollectiveError> {
        let mut first = [0; FIRST_BYTES];
        let room = FIRST_BYTES - LENGTH_BYTES;
        if self.rank == root {
            let short = bytes.len().min(room);
            first[..LENGTH_BYTES].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            first[LENGTH_BYTES..LENGTH_BYTES + short].copy_from_slice(&bytes[..short]);
        }
        self.spread(&mut first, root).await?;
        let (length, content) = first.split_at(LENGTH_BYTES);
        let length = length.iter().rev().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length <= BROADCAST_BYTES_MAX)
            .ok_or_else(|| {
            self.argument(format!("rank {root} announced a broadcast of {length} bytes"))
        })?;
        if self.rank != root {
            bytes.clear();
            bytes.extend_from_slice(&content[..length.min(room)]);
            bytes.resize(length, 0);
        }
        if length > room {
            self.spread(&mut bytes[room..], root).await?;
        }
        Ok(())
    }

    /// Gives part `d` of the input to rank `d` and puts what rank `s` has for this rank at part
    /// `s` of the output. All parts have one length.
    ///
    /// # Errors
    /// Lengths that differ or are no multiple of the number of ranks; a stopped group.
    pub async fn all_to_all(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), CollectiveError> {
        if input.len() != output.len() || !input.len().is_multiple_of(self.size) {
            return Err(self.argument(format!(
                "an all-to-all of {} bytes into {} over {} ranks",
                input.len(),
                output.len(),
                self.size
            )));
        }
        if input.is_empty() {
            return Ok(());
        }
        self.begin(Operation::AllToAll)?;
        let result = self.shuffle(input, output).await;
        self.watch.end();
        result
    }

    async fn shuffle(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), CollectiveError> {
        let fabric = self.fabric.clone();
        let (layout, region) = (fabric.layout(), &**fabric.region());
        let share = input.len() / self.size;
        let own = self.rank * share..(self.rank + 1) * share;
        output[own.clone()].copy_from_slice(&input[own]);
        for part in chunks(share as u64, self.slot_bytes()) {
            let exchange = self.next_exchange();
            let len = part.end - part.start;
            let at = |rank: usize| {
                let start = rank * share + part.start as usize;
                start..start + len as usize
            };
            let staging = layout.staging(exchange).offset;
            let piece = |dst: usize| Span { offset: staging + dst as u64 * len, len };
            for dst in (0..self.size).filter(|&dst| dst != self.rank) {
                region.write(piece(dst).offset, &input[at(dst)])?;
            }
            let to = layout.slot(self.rank, exchange);
            self.exchange(|dst| Part { src: piece(dst), to }, |_| len).await?;
            for src in (0..self.size).filter(|&src| src != self.rank) {
                region.read(layout.slot(src, exchange), &mut output[at(src)])?;
            }
        }
        Ok(())
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// A stopped group.
    pub async fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.begin(Operation::Barrier)?;
        let result = self.exchange(|_| Part::default(), |_| 0).await;
        self.watch.end();
        result
    }
}
