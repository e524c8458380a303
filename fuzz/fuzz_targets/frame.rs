//! Any bytes where a frame is expected: an error, or a write that lies within the region.
#![no_main]

use fabric::wire::{Expect, HEADER_BYTES, Kind, MAGIC, VERSION, decode, encode};
use libfuzzer_sys::fuzz_target;

const REGION_BYTES: u64 = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let crc = choice & 1 != 0;
    let expect =
        Expect { epoch: 7, src: 2, dst: 3, region_bytes: REGION_BYTES, max_len: 1 << 12, crc };
    let mut bytes = bytes.to_vec();
    // Most inputs are taken past the first checks, so that the later ones see something.
    if choice & 2 != 0 && bytes.len() >= HEADER_BYTES {
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4] = VERSION;
        bytes[5] = bytes[5] % 2 + 1;
        bytes[8..16].copy_from_slice(&[7, 0, 0, 0, 2, 0, 3, 0]);
        if !crc {
            bytes[HEADER_BYTES - 8..HEADER_BYTES].fill(0);
        }
    }
    let Ok((header, mut sum)) = decode(&bytes, &expect) else { return };
    assert!(header.to + u64::from(header.len) <= REGION_BYTES);
    assert!(header.len <= expect.max_len);
    assert!(header.kind == Kind::Put || header.len == 0 && header.flag.is_none());
    if let Some(flag) = header.flag {
        assert!(flag.offset % 4 == 0 && flag.offset + 4 <= REGION_BYTES);
    }
    let payload = &bytes[HEADER_BYTES..];
    let payload = &payload[..payload.len().min(header.len as usize)];
    sum.add(payload);
    if sum.finish().is_ok() && payload.len() == header.len as usize {
        let again = encode(&header, [payload], crc);
        let (decoded, _) = decode(&again, &expect).expect("an accepted header is encoded soundly");
        assert_eq!(decoded, header);
    }
});
