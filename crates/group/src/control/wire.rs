//! Frames of the control channel and of the rendezvous, and the messages of the control channel.
//!
//! A frame is a header of 20 bytes (magic, version, kind, two zero bytes, epoch, length, CRC-32C; little endian) and at
//! most as many bytes as its channel allows. The checksum covers the header before it and the payload.

use serde::Serialize;
use serde::de::DeserializeOwned;

use fabric::MAX_RAILS;

use crate::beacon::{BEACON_BYTES, Beacon, BeaconError};
use crate::control::view::{LinkReport, SupervisorNote};
use crate::verdict::{Proposal, Verdict};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 20;
/// Largest payload of a control message, in bytes.
pub const MAX_CONTROL_BYTES: usize = 64 * 1024;
const VERSION: u8 = 1;

/// A stream of frames: which magic they carry and how large they may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel {
    /// First four bytes of each frame.
    pub magic: [u8; 4],
    /// Largest payload, in bytes.
    pub max_bytes: usize,
}

/// The control channel.
pub const CONTROL: Channel = Channel { magic: *b"RWct", max_bytes: MAX_CONTROL_BYTES };

/// Why bytes are not a frame, or a frame not a message.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Another protocol, or a reader that lost its place.
    #[error("frame starts with {got:02x?}, expected {expected:02x?}: not this protocol")]
    Magic {
        /// As found.
        got: [u8; 4],
        /// As this channel has it.
        expected: [u8; 4],
    },
    /// Another version.
    #[error("frame version {got}, this build speaks {VERSION}; run one build on all ranks")]
    Version {
        /// As found.
        got: u8,
    },
    /// Larger than the channel allows.
    #[error("frame of {got} bytes, the limit is {limit}")]
    TooLarge {
        /// As announced.
        got: usize,
        /// The limit.
        limit: usize,
    },
    /// Damaged.
    #[error("frame checksum {got:#010x} does not match its bytes ({computed:#010x})")]
    Checksum {
        /// As written.
        got: u32,
        /// As computed.
        computed: u32,
    },
    /// A kind this build does not know.
    #[error("unknown kind of message {got}")]
    Kind {
        /// As found.
        got: u8,
    },
    /// The payload is not what its kind says.
    #[error("message of kind {kind} cannot be read: {why}")]
    Payload {
        /// Its kind.
        kind: u8,
        /// What was wrong.
        why: String,
    },
    /// The heartbeat's beacon is damaged.
    #[error("heartbeat: {0}")]
    Beacon(#[from] BeaconError),
}

/// One frame, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What the payload is.
    pub kind: u8,
    /// Epoch of the sender.
    pub epoch: u32,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Channel {
    /// The bytes of a frame.
    ///
    /// # Errors
    /// A payload over the channel's limit.
    pub fn encode(&self, kind: u8, epoch: u32, payload: &[u8]) -> Result<Vec<u8>, WireError> {
        let length = u32::try_from(payload.len())
            .ok()
            .filter(|length| *length as usize <= self.max_bytes)
            .ok_or(WireError::TooLarge { got: payload.len(), limit: self.max_bytes })?;
        let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
        out.extend_from_slice(&self.magic);
        out.extend_from_slice(&[VERSION, kind, 0, 0]);
        out.extend_from_slice(&epoch.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&out), payload);
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(payload);
        Ok(out)
    }

    /// The first frame of `bytes` and how many bytes it takes; `None` while it is not complete.
    ///
    /// # Errors
    /// Anything that cannot become a frame of this channel, as soon as the bytes at hand show it.
    pub fn decode(&self, bytes: &[u8]) -> Result<Option<(Frame, usize)>, WireError> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            let seen = bytes.len().min(4);
            if bytes[..seen] != self.magic[..seen] {
                let mut got = [0; 4];
                got[..seen].copy_from_slice(&bytes[..seen]);
                return Err(WireError::Magic { got, expected: self.magic });
            }
            return Ok(None);
        };
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let magic = [header[0], header[1], header[2], header[3]];
        if magic != self.magic {
            return Err(WireError::Magic { got: magic, expected: self.magic });
        }
        if header[4] != VERSION {
            return Err(WireError::Version { got: header[4] });
        }
        let length = word(12) as usize;
        if length > self.max_bytes {
            return Err(WireError::TooLarge { got: length, limit: self.max_bytes });
        }
        let end = HEADER_BYTES + length;
        let Some(payload) = bytes.get(HEADER_BYTES..end) else { return Ok(None) };
        let computed = crc32c::crc32c_append(crc32c::crc32c(&header[..16]), payload);
        if computed != word(16) {
            return Err(WireError::Checksum { got: word(16), computed });
        }
        Ok(Some((Frame { kind: header[5], epoch: word(8), payload: payload.to_vec() }, end)))
    }
}

/// A message of the control channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The sender is alive, and this is what it does.
    Heartbeat(Beacon),
    /// The sender asks for a verdict.
    Propose(Proposal),
    /// A rail went down at the sender.
    Link(LinkReport),
    /// What the sender's supervisor said.
    Note(SupervisorNote),
    /// A verdict, from its judge or passed on.
    Verdict(Verdict),
    /// The sender leaves in order.
    Goodbye,
    /// A step in making a rail between the two again.
    Rail(RailMessage),
}

/// Most bytes of what one end of a rail tells the other, and of the reason of a refusal.
pub const RAIL_BYTES_MAX: usize = 4096;
const WHY_BYTES_MAX: usize = 400;

/// A word about one rail between sender and receiver that is being made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailMessage {
    /// Which rail; fewer than [`MAX_RAILS`].
    pub rail: u8,
    /// The number of the attempt, from 1 on; 0 before the first.
    pub attempt: u32,
    /// What the sender has done.
    pub step: RailStep,
}

/// What one end of a rail tells the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RailStep {
    /// The lower rank has made its end; this is what connecting to it takes.
    Offer(Vec<u8>),
    /// The higher rank has made and connected its end; this is what connecting to it takes.
    Answer(Vec<u8>),
    /// The lower rank is connected as well.
    Ready,
    /// The attempt came to nothing at the sender, or its end is down: why.
    Refuse(String),
}

impl RailStep {
    /// A refusal; a long reason is cut.
    pub fn refuse(why: &str) -> Self {
        let mut why = why.to_owned();
        why.truncate(why.floor_char_boundary(WHY_BYTES_MAX));
        Self::Refuse(why)
    }
}

impl RailMessage {
    /// A message about `rail`.
    pub fn new(rail: usize, attempt: u32, step: RailStep) -> Self {
        // Rails are fewer than MAX_RAILS; another number is refused where it is read.
        Self { rail: u8::try_from(rail).unwrap_or(u8::MAX), attempt, step }
    }

    /// Step, rail, attempt (4 bytes, little endian), then the words of the step.
    fn encode(&self) -> Result<Vec<u8>, WireError> {
        let (step, words): (u8, &[u8]) = match &self.step {
            RailStep::Offer(told) => (1, told),
            RailStep::Answer(told) => (2, told),
            RailStep::Ready => (3, &[]),
            RailStep::Refuse(why) => (4, why.as_bytes()),
        };
        if words.len() > RAIL_BYTES_MAX {
            return Err(WireError::TooLarge { got: words.len(), limit: RAIL_BYTES_MAX });
        }
        let mut bytes = vec![step, self.rail];
        bytes.extend_from_slice(&self.attempt.to_le_bytes());
        bytes.extend_from_slice(words);
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let bad = |why: &str| WireError::Payload { kind: 7, why: why.to_owned() };
        let Some((&[step, rail, a, b, c, d], words)) = bytes.split_first_chunk::<6>() else {
            return Err(bad("shorter than its 6 bytes of step, rail and attempt"));
        };
        if usize::from(rail) >= MAX_RAILS {
            return Err(bad("no link has so many rails"));
        }
        if words.len() > RAIL_BYTES_MAX {
            return Err(WireError::TooLarge { got: words.len(), limit: RAIL_BYTES_MAX });
        }
        let step = match step {
            1 => RailStep::Offer(words.to_vec()),
            2 => RailStep::Answer(words.to_vec()),
            3 if words.is_empty() => RailStep::Ready,
            4 => {
                let why = std::str::from_utf8(words).map_err(|_| bad("its reason is not UTF-8"))?;
                RailStep::refuse(why)
            }
            _ => return Err(bad("its step is none of 1 to 4, or has words where none belong")),
        };
        Ok(Self { rail, attempt: u32::from_le_bytes([a, b, c, d]), step })
    }
}

impl Message {
    /// The frame of this message.
    ///
    /// # Errors
    /// A message over [`MAX_CONTROL_BYTES`].
    pub fn encode(&self, epoch: u32) -> Result<Vec<u8>, WireError> {
        match self {
            Self::Heartbeat(beacon) => CONTROL.encode(1, epoch, &beacon.encode()),
            Self::Propose(proposal) => CONTROL.encode(2, epoch, &json(2, proposal)?),
            Self::Link(report) => CONTROL.encode(3, epoch, &json(3, report)?),
            Self::Note(note) => CONTROL.encode(4, epoch, &json(4, note)?),
            Self::Verdict(verdict) => CONTROL.encode(5, epoch, &json(5, verdict)?),
            Self::Goodbye => CONTROL.encode(6, epoch, &[]),
            Self::Rail(message) => CONTROL.encode(7, epoch, &message.encode()?),
        }
    }

    /// The message of a frame.
    ///
    /// # Errors
    /// An unknown kind, or a payload that is not of its kind.
    pub fn decode(frame: &Frame) -> Result<Self, WireError> {
        let bytes = &frame.payload;
        Ok(match frame.kind {
            1 if bytes.len() == BEACON_BYTES => Self::Heartbeat(Beacon::decode(bytes)?),
            1 => return Err(BeaconError::Short { got: bytes.len() }.into()),
            2 => Self::Propose(parse::<Proposal>(2, bytes)?.bounded()),
            3 => Self::Link(parse(3, bytes)?),
            4 => Self::Note(parse(4, bytes)?),
            5 => Self::Verdict(parse::<Verdict>(5, bytes)?.bounded()),
            6 => Self::Goodbye,
            7 => Self::Rail(RailMessage::decode(bytes)?),
            got => return Err(WireError::Kind { got }),
        })
    }
}

pub(crate) fn json<T: Serialize>(kind: u8, value: &T) -> Result<Vec<u8>, WireError> {
    serde_json::to_vec(value).map_err(|error| WireError::Payload { kind, why: error.to_string() })
}

pub(crate) fn parse<T: DeserializeOwned>(kind: u8, bytes: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(bytes)
        .map_err(|error| WireError::Payload { kind, why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::beacon::RankSet;
    use crate::verdict::{Cause, Reason};

    fn verdict() -> Verdict {
        Verdict {
            epoch: 3,
            sequence: 9,
            operation: 1,
            cause: Cause::PathBroken { from: 1, to: 2 },
            rank: Some(1),
            host: "a".into(),
            peer: Some(2),
            lasted_ms: 61_234,
            waited_by: RankSet::all(4),
            evidence: vec!["reset".into()],
            next_step: "look".into(),
            judged_by: 0,
        }
    }

    fn messages() -> Vec<Message> {
        let proposal = Proposal {
            from: 1,
            sequence: u32::MAX,
            operation: 6,
            waits_for: RankSet::one(2),
            waits_via: RankSet::EMPTY,
            waited_ms: 5,
            reason: Reason::PeerClosed { rank: 2, why: "reset by peer".into() },
        };
        let report = LinkReport {
            from: 1,
            to: 2,
            rail: Some(0),
            through: Vec::new(),
            rails_left: 1,
            why: "cut".into(),
        };
        let note = SupervisorNote { rank: 3, ended: true, text: "killed by signal 9".into() };
        vec![
            Message::Heartbeat(Beacon::starting(3)),
            Message::Propose(proposal),
            Message::Link(report),
            Message::Note(note),
            Message::Verdict(verdict()),
            Message::Goodbye,
            Message::Rail(RailMessage::new(0, 1, RailStep::Offer(vec![0xff; RAIL_BYTES_MAX]))),
            Message::Rail(RailMessage::new(3, u32::MAX, RailStep::Answer(vec![7]))),
            Message::Rail(RailMessage::new(1, 2, RailStep::Ready)),
            Message::Rail(RailMessage::new(2, 0, RailStep::refuse("down"))),
        ]
    }

    #[test]
    fn a_rail_message_that_is_not_sound_is_refused() {
        let decode = |bytes: &[u8]| RailMessage::decode(bytes);
        assert!(decode(&[3, 0, 1, 0, 0]).is_err(), "too short");
        assert!(decode(&[3, 4, 1, 0, 0, 0]).is_err(), "no such rail");
        assert!(decode(&[3, 0, 1, 0, 0, 0, 9]).is_err(), "words where none belong");
        assert!(decode(&[0, 0, 1, 0, 0, 0]).is_err(), "no such step");
        assert!(decode(&[4, 0, 1, 0, 0, 0, 0xff]).is_err(), "not UTF-8");
        let long = [&[1, 0, 1, 0, 0, 0][..], &[0; RAIL_BYTES_MAX + 1]].concat();
        assert!(matches!(decode(&long), Err(WireError::TooLarge { .. })));
        let offer = RailStep::Offer(vec![0; RAIL_BYTES_MAX + 1]);
        assert!(RailMessage::new(0, 1, offer).encode().is_err());
        assert_eq!(RailStep::refuse(&"\u{e4}".repeat(300)), RailStep::Refuse("\u{e4}".repeat(200)));
    }

    #[test]
    fn every_message_survives_the_wire_in_any_cut() {
        let stream: Vec<u8> =
            messages().iter().flat_map(|message| message.encode(3).unwrap()).collect();
        let mut buffer = Vec::new();
        let mut read = Vec::new();
        for byte in stream {
            buffer.push(byte);
            if let Some((frame, used)) = CONTROL.decode(&buffer).unwrap() {
                assert_eq!((used, frame.epoch), (buffer.len(), 3));
                read.push(Message::decode(&frame).unwrap());
                buffer.clear();
            }
        }
        assert_eq!(read, messages());
    }

    #[test]
    fn a_flipped_bit_is_an_error_or_still_incomplete_never_a_message() {
        let good = messages()[1].encode(3).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(CONTROL.decode(&bad), Ok(Some(_))), "bit {bit}");
        }
    }

    #[test]
    fn sizes_beyond_the_limit_are_refused_both_ways() {
        let large = vec![0; MAX_CONTROL_BYTES + 1];
        assert!(matches!(CONTROL.encode(1, 0, &large), Err(WireError::TooLarge { .. })));
        let mut frame = CONTROL.encode(1, 0, &[]).unwrap();
        frame[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(CONTROL.decode(&frame), Err(WireError::TooLarge { .. })));
    }

    #[test]
    fn the_largest_verdict_fits_a_frame() {
        let mut large = verdict();
        large.evidence = vec!["\u{1}".repeat(10_000); 1000];
        large.next_step = "\u{1}".repeat(10_000);
        assert!(Message::Verdict(large.bounded()).encode(1).is_ok());
    }

    proptest! {
        #[test]
        fn decoding_never_panics(kind in any::<u8>(), payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let frame = CONTROL.encode(kind, 1, &payload).unwrap();
            let (frame, _) = CONTROL.decode(&frame).unwrap().unwrap();
            let _ = Message::decode(&frame);
            let _ = CONTROL.decode(&payload);
        }
    }
}
