//! What lies where in a rank's region.
//!
//! A pure function of shared values, so that every rank knows the offsets of every other rank's
//! region without asking. The parts, in order:
//!
//! | part | for | bytes |
//! |---|---|---|
//! | bells | the words that sleeping threads wait on | 2 lines |
//! | beacons | a copy of each rank's beacon | `ranks` × 128 |
//! | proofs | what each rail is to carry, carried, and echoed | `ranks` × rails × 3 lines |
//! | flags | exchange, ring and acknowledgement flags | a line each |
//! | relay flags | arrivals and credits of each relayed flow | a line each |
//! | slots | two for each source | `ranks` × 2 × slot |
//! | ring slots | two, from the left neighbour | 2 × slot |
//! | staging | two, where plain buffers are copied before they are sent | 2 × `ranks` × slot |
//! | mailboxes | chunks of others on their way | flows × depth × (chunk + head) |
//! | heap | registered buffers | as set |

use crate::device::{HEAD_BYTES_MAX, Span};
use crate::topology::{MAX_RAILS, Topology};

/// A cache line: flags of different writers never share one.
pub const LINE_BYTES: u64 = 64;
/// Bytes of a beacon's place.
pub const BEACON_BYTES: u64 = 128;
/// Most lanes an ordered pair may have, and so fragments of one put.
pub const LANES_MAX: usize = MAX_RAILS;
/// Chunks of one relayed flow that may lie in one mailbox.
pub const MAILBOX_DEPTH: u32 = 4;
/// Room for a chunk's header in a mailbox, its bytes follow it; keeps mailboxes on whole lines.
pub const MAILBOX_HEAD_BYTES: u64 = LINE_BYTES;

const _: () = assert!(HEAD_BYTES_MAX as u64 <= MAILBOX_HEAD_BYTES);

/// Sizes that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of one receive slot; a multiple of 4096.
    pub slot_bytes: u64,
    /// Bytes of the heap of registered buffers; a multiple of 4096.
    pub heap_bytes: u64,
    /// Most bytes of one relayed chunk; a multiple of 64.
    pub relay_chunk_bytes: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { slot_bytes: 1 << 20, heap_bytes: 64 << 20, relay_chunk_bytes: 64 << 10 }
    }
}

impl Sizes {
    /// Rounds up to what the layout needs.
    #[must_use]
    pub fn rounded(self) -> Self {
        Self {
            slot_bytes: self.slot_bytes.clamp(4096, 1 << 30).next_multiple_of(4096),
            heap_bytes: self.heap_bytes.clamp(4096, 1 << 40).next_multiple_of(4096),
            relay_chunk_bytes: self.relay_chunk_bytes.clamp(256, 1 << 24).next_multiple_of(64),
        }
    }
}

/// Which flag of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The exchange between all ranks.
    Exchange,
    /// Data from the left neighbour in a ring schedule.
    Ring,
    /// The right neighbour has consumed ring data.
    RingAck,
    /// Proofs at set-up.
    Proof,
}

/// What every flag of a channel, arrival and credit has at the start of an epoch. It is close to
/// the wrap, so that every run of some length goes through it.
pub const FIRST_VALUE: u32 = u32::MAX - 63;

/// A flag and what fills its line up to a multiple of eight.
const FLAG_BYTES: u64 = 8;
/// Most bytes that lie beside their flag: two places of this size share the flag's line.
pub const SMALL_BYTES_MAX: u64 = 28;
const _: () = assert!(FLAG_BYTES + 2 * SMALL_BYTES_MAX <= LINE_BYTES);

/// The bytes of a rail's proof in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofBytes {
    /// What this rank sends.
    Own,
    /// What the peer sent.
    Peers,
    /// What the peer sent back.
    Echo,
}

const PROOF_LINES: u64 = 3;

/// One relayed flow: bytes from a source to a distant rank over one of their lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Where the bytes come from.
    pub src: usize,
    /// Where they go.
    pub dst: usize,
    /// Which lane of the pair.
    pub lane: usize,
}

/// The offsets of one group's regions.
#[derive(Clone, Debug)]
pub struct Layout {
    ranks: u64,
    sizes: Sizes,
    /// The flows each rank relays: the order gives a flow's place in that rank's mailboxes.
    relayed: Vec<Vec<Flow>>,
    /// The flows each rank sends into a neighbour's mailbox: the order gives the credit's place.
    credited: Vec<Vec<Flow>>,
    beacons: u64,
    proofs: u64,
    flags: u64,
    arrivals: u64,
    credits: u64,
    slots: u64,
    ring_slots: u64,
    staging: u64,
    mailboxes: u64,
    heap: u64,
}

impl Layout {
    /// The layout that follows from a topology and sizes.
    pub fn new(topology: &Topology, sizes: Sizes) -> Self {
        let sizes = sizes.rounded();
        let count = topology.ranks();
        let mut relayed = vec![Vec::new(); count];
        let mut credited = vec![Vec::new(); count];
        for src in 0..count {
            for dst in 0..count {
                for (lane, way) in topology.lanes(src, dst).iter().enumerate() {
                    let flow = Flow { src, dst, lane };
                    for &relay in way.relays() {
                        relayed[relay].push(flow);
                    }
                    // Every hop but the last ends in a mailbox and so returns credits.
                    for &sender in &way.hops()[..way.hops().len() - 2] {
                        credited[sender].push(flow);
                    }
                }
            }
        }
        let most = |lists: &[Vec<Flow>]| lists.iter().map(Vec::len).max().unwrap_or(0) as u64;
        let (most_relayed, most_credited) = (most(&relayed), most(&credited));
        let ranks = count as u64;
        let mut end = 2 * LINE_BYTES;
        let mut take = |bytes: u64| {
            let start = end;
            end += bytes;
            start
        };
        let beacons = take(ranks * BEACON_BYTES);
        let proofs = take(ranks * MAX_RAILS as u64 * PROOF_LINES * LINE_BYTES);
        let flags = take(ranks * 4 * LANES_MAX as u64 * LINE_BYTES);
        let arrivals = take(most_relayed * LINE_BYTES);
        let credits = take(most_credited * LINE_BYTES);
        let pad = (4096 - (credits + most_credited * LINE_BYTES) % 4096) % 4096;
        take(pad);
        let slots = take(ranks * 2 * sizes.slot_bytes);
        let ring_slots = take(2 * sizes.slot_bytes);
        let staging = take(2 * ranks * sizes.slot_bytes);
        let stride = MAILBOX_HEAD_BYTES + sizes.relay_chunk_bytes;
        let mailboxes =
            take((most_relayed * u64::from(MAILBOX_DEPTH) * stride).next_multiple_of(4096));
        let heap = take(sizes.heap_bytes);
        Self {
            ranks,
            sizes,
            relayed,
            credited,
            beacons,
            proofs,
            flags,
            arrivals,
            credits,
            slots,
            ring_slots,
            staging,
            mailboxes,
            heap,
        }
    }

    /// Bytes of the whole region.
    pub fn region_bytes(&self) -> u64 {
        self.heap + self.sizes.heap_bytes
    }

    /// The sizes in force, rounded.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Where the copy of a rank's beacon lies.
    pub fn beacon(&self, of: usize) -> u64 {
        self.beacons + of as u64 * BEACON_BYTES
    }

    /// Where the proof bytes exchanged with `peer` over a rail lie.
    pub fn proof(&self, peer: usize, rail: usize, what: ProofBytes) -> u64 {
        let line = (peer * MAX_RAILS + rail) as u64 * PROOF_LINES + what as u64;
        self.proofs + line * LINE_BYTES
    }

    /// Where a flag raised by `src` lies.
    pub fn flag(&self, src: usize, channel: Channel, fragment: usize) -> u64 {
        let index = (src * 4 + channel as usize) * LANES_MAX + fragment;
        self.flags + index as u64 * LINE_BYTES
    }

    /// All flags of a rank that count from [`FIRST_VALUE`].
    pub(crate) fn counting_flags(&self, rank: usize) -> impl Iterator<Item = u64> + '_ {
        let channels = [Channel::Exchange, Channel::Ring, Channel::RingAck, Channel::Proof];
        let flags = (0..self.ranks as usize).flat_map(move |src| {
            let lanes =
                move |channel| (0..LANES_MAX).map(move |lane| self.flag(src, channel, lane));
            channels.into_iter().flat_map(lanes)
        });
        let arrivals = (0..self.relayed[rank].len()).map(|i| self.arrivals + i as u64 * LINE_BYTES);
        let credits = (0..self.credited[rank].len()).map(|i| self.credits + i as u64 * LINE_BYTES);
        flags.chain(arrivals).chain(credits)
    }

    /// The flows that `rank` passes on.
    pub fn relayed(&self, rank: usize) -> &[Flow] {
        &self.relayed[rank]
    }

    /// Where arrivals of a flow are counted at a relay; none if it does not relay the flow.
    pub fn arrival(&self, relay: usize, flow: Flow) -> Option<u64> {
        let index = self.relayed[relay].iter().position(|&other| other == flow)?;
        Some(self.arrivals + index as u64 * LINE_BYTES)
    }

    /// Where a relay's returned credits of a flow are counted at the rank before it.
    pub fn credit(&self, sender: usize, flow: Flow) -> Option<u64> {
        let index = self.credited[sender].iter().position(|&other| other == flow)?;
        Some(self.credits + index as u64 * LINE_BYTES)
    }

    /// Where the header of the chunk with this count lies in a relay's mailbox; its bytes follow.
    pub fn mailbox(&self, relay: usize, flow: Flow, count: u32) -> Option<u64> {
        let index = self.relayed[relay].iter().position(|&other| other == flow)? as u64;
        let stride = MAILBOX_HEAD_BYTES + self.sizes.relay_chunk_bytes;
        let place = index * u64::from(MAILBOX_DEPTH) + u64::from(count % MAILBOX_DEPTH);
        Some(self.mailboxes + place * stride)
    }

    /// The slot that `src` fills in exchanges with this parity.
    pub fn slot(&self, src: usize, sequence: u32) -> u64 {
        self.slots + (src as u64 * 2 + u64::from(sequence & 1)) * self.sizes.slot_bytes
    }

    /// Where at most [`SMALL_BYTES_MAX`] bytes of an exchange lie: behind their flag, in its own
    /// cache line, so that a reader gets both at once.
    pub fn small_slot(&self, src: usize, lane: usize, sequence: u32) -> u64 {
        let place = FLAG_BYTES + u64::from(sequence & 1) * SMALL_BYTES_MAX;
        self.flag(src, Channel::Exchange, lane) + place
    }

    /// The slot that the left neighbour fills in ring steps with this parity.
    pub fn ring_slot(&self, step: u32) -> u64 {
        self.ring_slots + u64::from(step & 1) * self.sizes.slot_bytes
    }

    /// Where plain input lies while it is sent: `ranks` slots long.
    pub fn staging(&self, sequence: u32) -> Span {
        let len = self.ranks * self.sizes.slot_bytes;
        Span { offset: self.staging + u64::from(sequence & 1) * len, len }
    }

    /// The heap of registered buffers.
    pub fn heap(&self) -> Span {
        Span { offset: self.heap, len: self.sizes.heap_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Shape;

    #[test]
    fn parts_do_not_overlap_and_flags_have_lines_of_their_own() {
        for (shape, ranks) in [(Shape::Ring, 8), (Shape::Path, 5), (Shape::Full, 4)] {
            let topology = Topology::new(shape, ranks, 2).unwrap();
            let sizes = Sizes { slot_bytes: 4096, heap_bytes: 8192, relay_chunk_bytes: 512 };
            let layout = Layout::new(&topology, sizes);
            for rank in 0..ranks {
                let mut parts: Vec<(u64, u64)> = vec![(0, 128)];
                for src in 0..ranks {
                    parts.push((layout.beacon(src), BEACON_BYTES));
                    for rail in 0..MAX_RAILS {
                        for what in [ProofBytes::Own, ProofBytes::Peers, ProofBytes::Echo] {
                            parts.push((layout.proof(src, rail, what), 64));
                        }
                    }
                    for channel in
                        [Channel::Exchange, Channel::Ring, Channel::RingAck, Channel::Proof]
                    {
                        for fragment in 0..LANES_MAX {
                            parts.push((layout.flag(src, channel, fragment), 64));
                        }
                    }
                    parts.push((layout.slot(src, 0), 4096));
                    parts.push((layout.slot(src, 1), 4096));
                }
                for &flow in layout.relayed(rank) {
                    parts.push((layout.arrival(rank, flow).unwrap(), 64));
                    for count in 0..MAILBOX_DEPTH {
                        parts.push((layout.mailbox(rank, flow, count).unwrap(), 64 + 512));
                    }
                }
                for &flow in &layout.credited[rank] {
                    parts.push((layout.credit(rank, flow).unwrap(), 64));
                }
                for sequence in 0..2 {
                    parts.push((layout.ring_slot(sequence), 4096));
                    let staging = layout.staging(sequence);
                    parts.push((staging.offset, staging.len));
                }
                parts.push((layout.heap().offset, layout.heap().len));
                parts.sort_unstable();
                for pair in parts.windows(2) {
                    assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
                }
                let (start, len) = parts[parts.len() - 1];
                assert_eq!(start + len, layout.region_bytes());
                assert!(parts.iter().all(|(start, _)| start % LINE_BYTES == 0));
            }
        }
    }
}
