//! The frame of transports that carry writes as a stream of bytes.
//!
//! A frame is a header of [`HEADER_BYTES`] and, in a [`Kind::Put`], the bytes of one write. All
//! numbers are little endian:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic |
//! | 4 | 1 | version |
//! | 5 | 1 | kind |
//! | 6 | 1 | bits: a flag follows, wake the progress thread |
//! | 7 | 1 | rails that the sender holds to be down, a bit each |
//! | 8 | 4 | epoch |
//! | 12 | 2 | source rank |
//! | 14 | 2 | destination rank |
//! | 16 | 4 | number |
//! | 20 | 4 | acknowledged puts of this queue pair |
//! | 24 | 8 | where the bytes go |
//! | 32 | 4 | how many bytes follow |
//! | 36 | 4 | the flag's value |
//! | 40 | 8 | the flag's offset |
//! | 48 | 4 | CRC-32C of the bytes that follow |
//! | 52 | 4 | CRC-32C of the header before this field |
//!
//! The header has a checksum of its own, so that a frame with a damaged offset or length is
//! refused before a byte of it is written. Without checksums both fields are zero.

use crate::device::{FlagWrite, Wake};
use crate::region::OutOfRegion;
use crate::topology::MAX_RAILS;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 56;
/// What every frame starts with.
pub const MAGIC: u32 = u32::from_le_bytes(*b"RWfb");
/// The only version of the frame there is.
pub const VERSION: u8 = 1;

const BIT_FLAG: u8 = 1;
const BIT_PROGRESS: u8 = 2;
const AT_PAYLOAD_CRC: usize = 48;
const AT_HEADER_CRC: usize = 52;
const _: () = assert!(AT_HEADER_CRC + 4 == HEADER_BYTES && MAX_RAILS <= 8);

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One write, whose bytes follow the header.
    Put,
    /// Nothing but the count of received puts.
    Ack,
}

impl Kind {
    fn to_byte(self) -> u8 {
        match self {
            Self::Put => 1,
            Self::Ack => 2,
        }
    }
}

/// What stands before the bytes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// The epoch of the group that sent it.
    pub epoch: u32,
    /// The rank that sent it.
    pub src: usize,
    /// The rank it is for.
    pub dst: usize,
    /// The rails between the two that the sender holds to be down, a bit each. What still arrives
    /// on one of them is void: its writes may have been posted again.
    pub rails_down: u8,
    /// The write's position among all from `src` to `dst`; it wraps. Zero in an acknowledgement.
    pub number: u32,
    /// How many puts of this queue pair the sender of this header has received; it wraps.
    pub acked: u32,
    /// Where the bytes go in the destination's region.
    pub to: u64,
    /// How many bytes follow.
    pub len: u32,
    /// The flag to raise after the bytes.
    pub flag: Option<FlagWrite>,
    /// Whom to wake.
    pub wake: Wake,
}

impl Header {
    /// An acknowledgement.
    pub fn ack(epoch: u32, src: usize, dst: usize, acked: u32) -> Self {
        Self {
            kind: Kind::Ack,
            epoch,
            src,
            dst,
            rails_down: 0,
            number: 0,
            acked,
            to: 0,
            len: 0,
            flag: None,
            wake: Wake::Worker,
        }
    }
}

/// What a receiver holds a header against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// The epoch in force.
    pub epoch: u32,
    /// The rank at the other end.
    pub src: usize,
    /// The own rank.
    pub dst: usize,
    /// Bytes of the own region.
    pub region_bytes: u64,
    /// Most bytes of one write.
    pub max_len: u32,
    /// Whether frames carry checksums; both ends have the same setting.
    pub crc: bool,
}

/// Why a frame is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Bytes and checksum differ.
    #[error("checksum of the {part} is {found:#010x} and the frame says {expected:#010x}")]
    Checksum {
        /// Header or bytes.
        part: &'static str,
        /// What the bytes give.
        found: u32,
        /// What the frame carries.
        expected: u32,
    },
    /// A frame of another epoch.
    #[error("epoch is {found}, which is {}, and must be {expected}", if found < expected { "over" } else { "newer than ours" })]
    Epoch {
        /// What the frame carries.
        found: u32,
        /// The epoch in force.
        expected: u32,
    },
    /// A field whose value has no meaning, or another one than agreed.
    #[error("{field} is {found:#x} and must be {expected}")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What would be right.
        expected: &'static str,
    },
    /// A flag where none can be.
    #[error(
        "the flag's offset {offset} is no multiple of four within a region of {region_bytes} bytes"
    )]
    Flag {
        /// The offset.
        offset: u64,
        /// Bytes of the region.
        region_bytes: u64,
    },
    /// More bytes than a write may have.
    #[error("length is {found} bytes and may be {most}")]
    Length {
        /// What the frame carries.
        found: u32,
        /// The limit.
        most: u32,
    },
    /// A frame from or for somebody else.
    #[error("{field} rank is {found} and must be {expected}")]
    Rank {
        /// Source or destination.
        field: &'static str,
        /// What the frame carries.
        found: usize,
        /// The rank at that end.
        expected: usize,
    },
    /// Bytes that would not lie within the region.
    #[error("its bytes would land outside: {0}")]
    Region(#[from] OutOfRegion),
    /// Fewer bytes than a header has.
    #[error("a header has {HEADER_BYTES} bytes and {found} came")]
    Short {
        /// How many came.
        found: usize,
    },
}

/// The running checksum of a frame's bytes, as they come.
#[derive(Clone, Copy, Debug)]
pub struct Checksum {
    found: u32,
    /// None where frames carry no checksums.
    expected: Option<u32>,
}

impl Checksum {
    /// Takes the next bytes in.
    pub fn add(&mut self, bytes: &[u8]) {
        if self.expected.is_some() {
            self.found = crc32c::crc32c_append(self.found, bytes);
        }
    }

    /// Compares, after the last byte.
    ///
    /// # Errors
    /// [`FrameError::Checksum`].
    pub fn finish(self) -> Result<(), FrameError> {
        match self.expected {
            Some(expected) if expected != self.found => {
                Err(FrameError::Checksum { part: "bytes", found: self.found, expected })
            }
            _ => Ok(()),
        }
    }
}

/// The header's bytes. With `crc`, `payload` is read once, in order; it must be the
/// [`Header::len`] bytes that follow.
pub fn encode<'a>(
    header: &Header,
    payload: impl IntoIterator<Item = &'a [u8]>,
    crc: bool,
) -> [u8; HEADER_BYTES] {
    let crc_of_payload = if crc { payload.into_iter().fold(0, crc32c::crc32c_append) } else { 0 };
    encode_with(header, crc_of_payload, crc)
}

/// Like [`encode`], for a caller that has the CRC-32C of the bytes already.
pub fn encode_with(header: &Header, crc_of_payload: u32, crc: bool) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let mut bits = 0;
    if header.flag.is_some() {
        bits |= BIT_FLAG;
    }
    if header.wake == Wake::Progress {
        bits |= BIT_PROGRESS;
    }
    let flag = header.flag.unwrap_or(FlagWrite { offset: 0, value: 0 });
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&[VERSION, header.kind.to_byte(), bits, header.rails_down]);
    bytes[8..12].copy_from_slice(&header.epoch.to_le_bytes());
    // A rank is less than MAX_RANKS; a larger one becomes one that nobody has.
    bytes[12..14].copy_from_slice(&rank_on_wire(header.src).to_le_bytes());
    bytes[14..16].copy_from_slice(&rank_on_wire(header.dst).to_le_bytes());
    bytes[16..20].copy_from_slice(&header.number.to_le_bytes());
    bytes[20..24].copy_from_slice(&header.acked.to_le_bytes());
    bytes[24..32].copy_from_slice(&header.to.to_le_bytes());
    bytes[32..36].copy_from_slice(&header.len.to_le_bytes());
    bytes[36..40].copy_from_slice(&flag.value.to_le_bytes());
    bytes[40..48].copy_from_slice(&flag.offset.to_le_bytes());
    if crc {
        bytes[AT_PAYLOAD_CRC..AT_HEADER_CRC].copy_from_slice(&crc_of_payload.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..AT_HEADER_CRC]);
        bytes[AT_HEADER_CRC..].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

fn rank_on_wire(rank: usize) -> u16 {
    u16::try_from(rank).unwrap_or(u16::MAX)
}

/// Checks a header and takes it apart. What follows it goes through the [`Checksum`].
///
/// # Errors
/// The first check that fails, with what was found. Nothing that this accepts can land outside the
/// region.
pub fn decode(bytes: &[u8], expect: &Expect) -> Result<(Header, Checksum), FrameError> {
    let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Err(FrameError::Short { found: bytes.len() });
    };
    let field = |field, found: u64, expected| Err(FrameError::Field { field, found, expected });
    let magic = u32_at(bytes, 0);
    if magic != MAGIC {
        return field("magic", u64::from(magic), "0x62665752");
    }
    if bytes[4] != VERSION {
        return field("version", u64::from(bytes[4]), "1");
    }
    let expected = u32_at(bytes, AT_HEADER_CRC);
    let found = if expect.crc { crc32c::crc32c(&bytes[..AT_HEADER_CRC]) } else { 0 };
    if found != expected {
        return Err(FrameError::Checksum { part: "header", found, expected });
    }
    let payload_crc = u32_at(bytes, AT_PAYLOAD_CRC);
    if !expect.crc && payload_crc != 0 {
        return field("checksum of the bytes", u64::from(payload_crc), "0, as checksums are off");
    }
    let kind = match bytes[5] {
        1 => Kind::Put,
        2 => Kind::Ack,
        other => return field("kind", u64::from(other), "1 or 2"),
    };
    let bits = bytes[6];
    if bits & !(BIT_FLAG | BIT_PROGRESS) != 0 {
        return field("bits", u64::from(bits), "below 4");
    }
    if usize::from(bytes[7]) >> MAX_RAILS != 0 {
        return field("rails down", u64::from(bytes[7]), "a bit for each rail there can be");
    }
    let epoch = u32_at(bytes, 8);
    if epoch != expect.epoch {
        return Err(FrameError::Epoch { found: epoch, expected: expect.epoch });
    }
    let (src, dst) = (usize::from(u16_at(bytes, 12)), usize::from(u16_at(bytes, 14)));
    for (field, found, expected) in [("source", src, expect.src), ("destination", dst, expect.dst)]
    {
        if found != expected {
            return Err(FrameError::Rank { field, found, expected });
        }
    }
    let header = Header {
        kind,
        epoch,
        src,
        dst,
        rails_down: bytes[7],
        number: u32_at(bytes, 16),
        acked: u32_at(bytes, 20),
        to: u64_at(bytes, 24),
        len: u32_at(bytes, 32),
        flag: (bits & BIT_FLAG != 0)
            .then(|| FlagWrite { offset: u64_at(bytes, 40), value: u32_at(bytes, 36) }),
        wake: if bits & BIT_PROGRESS != 0 { Wake::Progress } else { Wake::Worker },
    };
    check_target(&header, expect)?;
    Ok((header, Checksum { found: 0, expected: expect.crc.then_some(payload_crc) }))
}

fn check_target(header: &Header, expect: &Expect) -> Result<(), FrameError> {
    let region = expect.region_bytes;
    let most = if header.kind == Kind::Put { expect.max_len } else { 0 };
    if header.len > most {
        return Err(FrameError::Length { found: header.len, most });
    }
    let len = u64::from(header.len);
    if header.to.checked_add(len).is_none_or(|end| end > region) {
        return Err(OutOfRegion { offset: header.to, len, region }.into());
    }
    match header.flag {
        Some(FlagWrite { offset, .. })
            if !offset.is_multiple_of(4)
                || offset.checked_add(4).is_none_or(|end| end > region) =>
        {
            Err(FrameError::Flag { offset, region_bytes: region })
        }
        Some(flag) if header.kind == Kind::Ack => Err(FrameError::Field {
            field: "flag of an acknowledgement",
            found: flag.offset,
            expected: "absent",
        }),
        _ => Ok(()),
    }
}

fn u16_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REGION: u64 = 1 << 20;

    fn expect(crc: bool) -> Expect {
        Expect { epoch: 7, src: 2, dst: 3, region_bytes: REGION, max_len: 1 << 16, crc }
    }

    fn put(to: u64, len: u32) -> Header {
        Header { kind: Kind::Put, to, len, ..Header::ack(7, 2, 3, 0) }
    }

    fn refuse(header: &Header) -> String {
        decode(&encode_with(header, 0, true), &expect(true)).unwrap_err().to_string()
    }

    prop_compose! {
        fn any_put()(
            payload in prop::collection::vec(any::<u8>(), 0..200),
            to in 0..REGION - 200,
            number: u32,
            acked: u32,
            rails_down in 0..16_u8,
            flag in prop::option::of((0..REGION / 4, any::<u32>())),
            progress: bool,
        ) -> (Header, Vec<u8>) {
            let header = Header {
                number,
                acked,
                rails_down,
                flag: flag.map(|(line, value)| FlagWrite { offset: line * 4, value }),
                wake: if progress { Wake::Progress } else { Wake::Worker },
                ..put(to, payload.len() as u32)
            };
            (header, payload)
        }
    }

    proptest! {
        #[test]
        fn a_frame_comes_out_as_it_went_in((header, payload) in any_put(), crc: bool, cut: u8) {
            let (a, b) = payload.split_at(usize::from(cut) % (payload.len() + 1));
            let bytes = encode(&header, [a, b], crc);
            let (found, mut sum) = decode(&bytes, &expect(crc)).unwrap();
            prop_assert_eq!(found, header);
            sum.add(&payload);
            prop_assert_eq!(sum.finish(), Ok(()));
        }

        #[test]
        fn one_flipped_bit_is_found((header, payload) in any_put(), place: prop::sample::Index) {
            let mut frame = encode(&header, [&payload[..]], true).to_vec();
            frame.extend(&payload);
            let bit = place.index(frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
            let outcome = decode(&frame, &expect(true)).and_then(|(_, mut sum)| {
                sum.add(&frame[HEADER_BYTES..]);
                sum.finish()
            });
            prop_assert!(outcome.is_err(), "bit {bit} of {header:?}");
        }

        #[test]
        fn what_is_accepted_lies_within_the_region(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80),
            sound in 0..HEADER_BYTES,
            crc: bool,
        ) {
            // A sound start takes the bytes past the first checks.
            let start = encode_with(&put(0, 0), 0, false);
            let sound = sound.min(bytes.len());
            bytes[..sound].copy_from_slice(&start[..sound]);
            if let Ok((header, _)) = decode(&bytes, &expect(crc)) {
                prop_assert!(header.to + u64::from(header.len) <= REGION);
                prop_assert!(header.flag.is_none_or(|flag| flag.offset + 4 <= REGION));
            }
        }
    }

    #[test]
    fn an_error_says_which_field_and_what_was_found() {
        let stale = Header { epoch: 6, ..put(0, 0) };
        assert_eq!(refuse(&stale), "epoch is 6, which is over, and must be 7");
        let early = Header { epoch: 8, ..put(0, 0) };
        assert_eq!(refuse(&early), "epoch is 8, which is newer than ours, and must be 7");
        assert_eq!(refuse(&Header { src: 1, ..put(0, 0) }), "source rank is 1 and must be 2");
        assert_eq!(refuse(&Header { dst: 0, ..put(0, 0) }), "destination rank is 0 and must be 3");
        assert_eq!(refuse(&put(0, 65_537)), "length is 65537 bytes and may be 65536");
        for to in [REGION - 3, u64::MAX - 3, u64::MAX] {
            assert!(refuse(&put(to, 4)).contains("outside"), "{to}");
        }
        for offset in [2, REGION - 3, REGION, u64::MAX - 3] {
            let flag = Some(FlagWrite { offset, value: 1 });
            assert!(refuse(&Header { flag, ..put(0, 0) }).contains("flag's offset"), "{offset}");
        }
        let long = Header { len: 1, ..Header::ack(7, 2, 3, 0) };
        assert_eq!(refuse(&long), "length is 1 bytes and may be 0");
        assert!(matches!(decode(&[0; 55], &expect(true)), Err(FrameError::Short { found: 55 })));
    }

    #[test]
    fn each_byte_before_the_ranks_is_checked_without_checksums() {
        let sound = encode_with(&put(0, 0), 0, false);
        assert!(decode(&sound, &expect(false)).is_ok());
        for at in 0..16 {
            let mut bytes = sound;
            bytes[at] ^= 0x80;
            assert!(decode(&bytes, &expect(false)).is_err(), "byte {at}");
        }
        assert!(decode(&sound, &expect(true)).is_err(), "one end has checksums on");
    }
}
