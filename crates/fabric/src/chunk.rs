//! The header of a relayed chunk.
//!
//! It lies before the chunk's bytes in a relay's mailbox and tells where they go in the end.

use crate::device::{FlagWrite, HEAD_BYTES_MAX};
use crate::layout::Flow;

/// Bytes of an encoded header. The chunk's bytes follow at a multiple of 16.
pub const CHUNK_HEAD_BYTES: usize = 48;

const _: () = assert!(CHUNK_HEAD_BYTES <= HEAD_BYTES_MAX);

/// "RWc1".
const MAGIC: u32 = 0x3163_5752;
/// Stands for "no flag": no flag lies at an offset that is no multiple of four.
const NO_FLAG: u64 = u64::MAX;

/// Where a relayed chunk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHead {
    /// The epoch it was sent in.
    pub epoch: u32,
    /// The flow it belongs to.
    pub flow: Flow,
    /// Which chunk of the flow; it wraps.
    pub count: u32,
    /// Bytes that follow.
    pub len: u32,
    /// Where they go in the destination's region.
    pub to: u64,
    /// The flag to raise there after them.
    pub flag: Option<FlagWrite>,
}

/// What is wrong with a chunk's header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a relayed chunk's {field} is {found}, expected {expected}")]
pub struct ChunkError {
    field: &'static str,
    found: String,
    expected: String,
}

/// What a relay knows of the next chunk of a flow.
#[derive(Clone, Copy, Debug)]
pub struct ChunkExpect {
    /// The epoch.
    pub epoch: u32,
    /// The flow whose mailbox it lies in.
    pub flow: Flow,
    /// Its place in the flow.
    pub count: u32,
    /// Most bytes a chunk may have.
    pub len_max: u64,
    /// Bytes of the destination's region.
    pub region_bytes: u64,
}

impl ChunkHead {
    /// The header as bytes, its checksum last.
    pub fn encode(&self) -> [u8; CHUNK_HEAD_BYTES] {
        let mut bytes = [0; CHUNK_HEAD_BYTES];
        let flag = self.flag.unwrap_or(FlagWrite { offset: NO_FLAG, value: 0 });
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        // Ranks and lanes are at most 16.
        bytes[8] = self.flow.src as u8;
        bytes[9] = self.flow.dst as u8;
        bytes[10] = self.flow.lane as u8;
        bytes[12..16].copy_from_slice(&self.count.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.to.to_le_bytes());
        bytes[28..36].copy_from_slice(&flag.offset.to_le_bytes());
        bytes[36..40].copy_from_slice(&flag.value.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header and checks every field of it.
    ///
    /// # Errors
    /// The first field that is not as expected.
    pub fn decode(
        bytes: &[u8; CHUNK_HEAD_BYTES],
        expect: &ChunkExpect,
    ) -> Result<Self, ChunkError> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let same = |field, found: u64, expected: u64| {
            if found == expected {
                return Ok(());
            }
            Err(ChunkError { field, found: found.to_string(), expected: expected.to_string() })
        };
        same("magic", word(0).into(), MAGIC.into())?;
        same("checksum", word(44).into(), crc32c::crc32c(&bytes[..44]).into())?;
        same("epoch", word(4).into(), expect.epoch.into())?;
        same("source", bytes[8].into(), expect.flow.src as u64)?;
        same("destination", bytes[9].into(), expect.flow.dst as u64)?;
        same("lane", bytes[10].into(), expect.flow.lane as u64)?;
        same("count", word(12).into(), expect.count.into())?;
        let (len, to, flag) = (word(16), long(20), long(28));
        let at_most = |field, start: u64, bytes: u64, most: u64| match start.checked_add(bytes) {
            Some(end) if end <= most => Ok(()),
            _ => Err(ChunkError {
                field,
                found: format!("{bytes} bytes at {start}"),
                expected: format!("an end of at most {most}"),
            }),
        };
        at_most("length", 0, len.into(), expect.len_max)?;
        at_most("target", to, len.into(), expect.region_bytes)?;
        let flag = if flag == NO_FLAG {
            None
        } else {
            at_most("flag", flag, 4, expect.region_bytes)?;
            same("flag alignment", flag % 4, 0)?;
            Some(FlagWrite { offset: flag, value: word(36) })
        };
        Ok(Self { epoch: expect.epoch, flow: expect.flow, count: expect.count, len, to, flag })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLOW: Flow = Flow { src: 0, dst: 2, lane: 1 };
    const EXPECT: ChunkExpect =
        ChunkExpect { epoch: 3, flow: FLOW, count: 9, len_max: 512, region_bytes: 4096 };

    fn head(len: u32, to: u64, flag: Option<u64>) -> ChunkHead {
        let flag = flag.map(|offset| FlagWrite { offset, value: u32::MAX });
        ChunkHead { epoch: 3, flow: FLOW, count: 9, len, to, flag }
    }

    #[test]
    fn what_was_encoded_is_read_back() {
        for good in [head(512, 3584, Some(4092)), head(0, 0, None)] {
            assert_eq!(ChunkHead::decode(&good.encode(), &EXPECT), Ok(good));
        }
    }

    #[test]
    fn what_lies_outside_is_refused_by_name() {
        for (bad, field) in [
            (head(513, 0, None), "length"),
            (head(512, 3585, None), "target"),
            (head(1, u64::MAX, None), "target"),
            (head(0, 0, Some(4094)), "flag"),
            (head(0, 0, Some(6)), "flag alignment"),
            (ChunkHead { epoch: 2, ..head(0, 0, None) }, "epoch"),
            (ChunkHead { count: 8, ..head(0, 0, None) }, "count"),
        ] {
            assert_eq!(ChunkHead::decode(&bad.encode(), &EXPECT).unwrap_err().field, field);
        }
    }

    proptest! {
        #[test]
        fn a_flipped_bit_never_passes(bit in 0..CHUNK_HEAD_BYTES * 8) {
            let mut bytes = head(64, 128, Some(64)).encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // Some bytes are spare, yet the checksum covers them.
            prop_assert!(ChunkHead::decode(&bytes, &EXPECT).is_err());
        }
    }
}
