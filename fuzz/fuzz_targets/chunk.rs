//! Any bytes where a relay expects a chunk's header: an error, or a chunk that lies within the
//! destination's region.
#![no_main]

use fabric::{CHUNK_HEAD_BYTES, ChunkExpect, ChunkHead, Flow};
use libfuzzer_sys::fuzz_target;

const REGION_BYTES: u64 = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let Some((bytes, rest)) = input.split_first_chunk::<CHUNK_HEAD_BYTES>() else { return };
    let flow = Flow { src: 0, dst: 2, lane: 1 };
    let expect =
        ChunkExpect { epoch: 7, flow, count: 3, len_max: 1 << 12, region_bytes: REGION_BYTES };
    let mut bytes = *bytes;
    if rest.first().is_some_and(|choice| choice & 1 != 0) {
        // Taken past the first checks, so that the later ones see something.
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let flag = (long(28) != u64::MAX)
            .then(|| fabric::FlagWrite { offset: long(28) % (2 * REGION_BYTES), value: word(36) });
        let head = ChunkHead { epoch: 7, flow, count: 3, len: word(16), to: long(20), flag };
        bytes = head.encode();
    }
    let Ok(head) = ChunkHead::decode(&bytes, &expect) else { return };
    assert!(head.to + u64::from(head.len) <= REGION_BYTES);
    if let Some(flag) = head.flag {
        assert!(flag.offset % 4 == 0 && flag.offset + 4 <= REGION_BYTES);
    }
    assert_eq!(ChunkHead::decode(&head.encode(), &expect), Ok(head));
});
