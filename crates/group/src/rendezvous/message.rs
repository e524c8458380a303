//! What ranks and the meeting point say to each other: a JSON head and a binary tail in one frame.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::wire::{Channel, Frame, WireError, json, parse};
use crate::rendezvous::{MAX_AGREE_BYTES, MAX_BLOB_BYTES, MemberInfo, Refusal};

/// Frames of a rank to the meeting point.
pub const TO_HOST: Channel = Channel { magic: *b"RWrh", max_bytes: 512 * 1024 };
/// Frames of the meeting point to a rank: up to 16 contributions of an agreement.
pub const TO_MEMBER: Channel =
    Channel { magic: *b"RWrm", max_bytes: 16 * MAX_AGREE_BYTES + 64 * 1024 };

/// A rank's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The rank.
    pub rank: u8,
    /// Ranks of the group.
    pub size: usize,
    /// Its last epoch.
    pub last_epoch: Option<u32>,
    /// Tells one process from another that claims the same rank.
    pub instance: [u64; 2],
    /// Name of its machine.
    pub host_name: String,
    /// What tells its machine from others.
    pub host_id: String,
    /// Its address.
    pub ip: IpAddr,
    /// Port of its control listener.
    pub port: u16,
    /// What must be equal on all ranks.
    pub config: BTreeMap<String, String>,
    /// How long it will wait, in milliseconds.
    pub wait_ms: u64,
    /// Its set-up data.
    #[serde(skip)]
    pub blob: Vec<u8>,
}

/// From a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToHost {
    /// It wants to join.
    Join(Box<Join>),
    /// Its contribution to an agreement.
    Agree {
        /// Number of the agreement in this epoch.
        round: u32,
        /// The contribution.
        bytes: Vec<u8>,
    },
}

/// From the meeting point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToMember {
    /// The group is formed.
    Welcome {
        /// Its epoch.
        epoch: u32,
        /// All ranks, in order.
        members: Vec<MemberInfo>,
    },
    /// It is not.
    Refused(Refusal),
    /// Everyone's contribution, by rank.
    Agreed {
        /// Number of the agreement.
        round: u32,
        /// By rank.
        parts: Vec<Vec<u8>>,
    },
    /// A member went away: no agreement of this epoch can end any more.
    MemberLeft {
        /// Who.
        rank: u8,
        /// Its machine.
        host: String,
    },
}

#[derive(Serialize, Deserialize)]
struct AgreeHead {
    round: u32,
}

#[derive(Serialize, Deserialize)]
struct WelcomeHead {
    epoch: u32,
    members: Vec<MemberHead>,
}

#[derive(Serialize, Deserialize)]
struct MemberHead {
    rank: u8,
    host_name: String,
    host_id: String,
    address: SocketAddr,
    blob_bytes: usize,
}

#[derive(Serialize, Deserialize)]
struct AgreedHead {
    round: u32,
    part_bytes: Vec<usize>,
}

#[derive(Serialize, Deserialize)]
struct LeftHead {
    rank: u8,
    host: String,
}

fn pack<T: Serialize>(
    channel: Channel,
    kind: u8,
    head: &T,
    tails: &[&[u8]],
) -> Result<Vec<u8>, WireError> {
    let head = json(kind, head)?;
    let length = u32::try_from(head.len())
        .map_err(|_| WireError::TooLarge { got: head.len(), limit: channel.max_bytes })?;
    let mut payload = length.to_le_bytes().to_vec();
    payload.extend_from_slice(&head);
    tails.iter().for_each(|tail| payload.extend_from_slice(tail));
    channel.encode(kind, 0, &payload)
}

fn unpack<T: DeserializeOwned>(frame: &Frame) -> Result<(T, &[u8]), WireError> {
    let short = || payload(frame.kind, "its head is cut off");
    let (length, rest) = frame.payload.split_first_chunk::<4>().ok_or_else(short)?;
    let (head, tail) =
        rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(short)?;
    Ok((parse(frame.kind, head)?, tail))
}

fn payload(kind: u8, why: &str) -> WireError {
    WireError::Payload { kind, why: why.to_owned() }
}

/// Cuts `tail` into pieces of the given sizes, which must use all of it.
fn cut(
    kind: u8,
    mut tail: &[u8],
    sizes: impl Iterator<Item = usize>,
) -> Result<Vec<Vec<u8>>, WireError> {
    let mut parts = Vec::new();
    for size in sizes {
        let (part, rest) =
            tail.split_at_checked(size).ok_or_else(|| payload(kind, "a part is cut off"))?;
        parts.push(part.to_vec());
        tail = rest;
    }
    if tail.is_empty() { Ok(parts) } else { Err(payload(kind, "bytes after the last part")) }
}

impl ToHost {
    /// The frame of this message.
    ///
    /// # Errors
    /// A message over the channel's limit.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        match self {
            Self::Join(join) => pack(TO_HOST, 1, join, &[&join.blob]),
            Self::Agree { round, bytes } => {
                pack(TO_HOST, 2, &AgreeHead { round: *round }, &[bytes])
            }
        }
    }

    /// The message of a frame.
    ///
    /// # Errors
    /// An unknown kind, or a payload that is not of its kind or over its limits.
    pub fn decode(frame: &Frame) -> Result<Self, WireError> {
        match frame.kind {
            1 => {
                let (mut join, tail): (Join, _) = unpack(frame)?;
                if tail.len() > MAX_BLOB_BYTES {
                    return Err(WireError::TooLarge { got: tail.len(), limit: MAX_BLOB_BYTES });
                }
                join.blob = tail.to_vec();
                Ok(Self::Join(Box::new(join)))
            }
            2 => {
                let (head, tail): (AgreeHead, _) = unpack(frame)?;
                if tail.len() > MAX_AGREE_BYTES {
                    return Err(WireError::TooLarge { got: tail.len(), limit: MAX_AGREE_BYTES });
                }
                Ok(Self::Agree { round: head.round, bytes: tail.to_vec() })
            }
            got => Err(WireError::Kind { got }),
        }
    }
}

impl ToMember {
    /// The frame of this message.
    ///
    /// # Errors
    /// A message over the channel's limit.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        match self {
            Self::Welcome { epoch, members } => {
                let heads = members.iter().map(|member| MemberHead {
                    rank: u8::try_from(member.rank).unwrap_or(u8::MAX),
                    host_name: member.host_name.clone(),
                    host_id: member.host_id.clone(),
                    address: member.address,
                    blob_bytes: member.blob.len(),
                });
                let head = WelcomeHead { epoch: *epoch, members: heads.collect() };
                let blobs: Vec<&[u8]> = members.iter().map(|m| m.blob.as_slice()).collect();
                pack(TO_MEMBER, 1, &head, &blobs)
            }
            Self::Refused(refusal) => pack(TO_MEMBER, 2, refusal, &[]),
            Self::Agreed { round, parts } => {
                let part_bytes = parts.iter().map(Vec::len).collect();
                let tails: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                pack(TO_MEMBER, 3, &AgreedHead { round: *round, part_bytes }, &tails)
            }
            Self::MemberLeft { rank, host } => {
                pack(TO_MEMBER, 4, &LeftHead { rank: *rank, host: host.clone() }, &[])
            }
        }
    }

    /// The message of a frame.
    ///
    /// # Errors
    /// An unknown kind, or a payload that is not of its kind.
    pub fn decode(frame: &Frame) -> Result<Self, WireError> {
        match frame.kind {
            1 => {
                let (head, tail): (WelcomeHead, _) = unpack(frame)?;
                let blobs = cut(1, tail, head.members.iter().map(|member| member.blob_bytes))?;
                let members =
                    head.members.into_iter().zip(blobs).map(|(member, blob)| MemberInfo {
                        rank: usize::from(member.rank),
                        host_name: member.host_name,
                        host_id: member.host_id,
                        address: member.address,
                        blob,
                    });
                Ok(Self::Welcome { epoch: head.epoch, members: members.collect() })
            }
            2 => Ok(Self::Refused(unpack(frame)?.0)),
            3 => {
                let (head, tail): (AgreedHead, _) = unpack(frame)?;
                let parts = cut(3, tail, head.part_bytes.into_iter())?;
                Ok(Self::Agreed { round: head.round, parts })
            }
            4 => {
                let (head, _): (LeftHead, _) = unpack(frame)?;
                Ok(Self::MemberLeft { rank: head.rank, host: head.host })
            }
            got => Err(WireError::Kind { got }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(message: &ToMember) {
        let bytes = message.encode().unwrap();
        let (frame, used) = TO_MEMBER.decode(&bytes).unwrap().unwrap();
        assert_eq!(used, bytes.len());
        assert_eq!(&ToMember::decode(&frame).unwrap(), message);
    }

    #[test]
    fn messages_keep_heads_and_tails() {
        let member = |rank, blob: &[u8]| MemberInfo {
            rank,
            host_name: "a".into(),
            host_id: "id".into(),
            address: "127.0.0.1:9".parse().unwrap(),
            blob: blob.to_vec(),
        };
        round_trip(&ToMember::Welcome {
            epoch: 4,
            members: vec![member(0, b""), member(1, b"xyz")],
        });
        round_trip(&ToMember::Agreed { round: 2, parts: vec![vec![], vec![0, 255], vec![7]] });
        round_trip(&ToMember::MemberLeft { rank: 2, host: "b".into() });
        round_trip(&ToMember::Refused(Refusal::RankOutOfRange { rank: 9, size: 4 }));
        let agree = ToHost::Agree { round: 1, bytes: vec![1, 2, 3] };
        let (frame, _) = TO_HOST.decode(&agree.encode().unwrap()).unwrap().unwrap();
        assert_eq!(ToHost::decode(&frame).unwrap(), agree);
    }

    #[test]
    fn parts_that_do_not_add_up_are_refused() {
        let head = AgreedHead { round: 0, part_bytes: vec![2, usize::MAX] };
        let bytes = pack(TO_MEMBER, 3, &head, &[b"abc"]).unwrap();
        let (frame, _) = TO_MEMBER.decode(&bytes).unwrap().unwrap();
        assert!(ToMember::decode(&frame).is_err());
        let head = AgreedHead { round: 0, part_bytes: vec![2] };
        let bytes = pack(TO_MEMBER, 3, &head, &[b"abc"]).unwrap();
        let (frame, _) = TO_MEMBER.decode(&bytes).unwrap().unwrap();
        assert!(ToMember::decode(&frame).is_err());
    }

    proptest! {
        #[test]
        fn decoding_never_panics(kind in 0u8..6, payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let frame = Frame { kind, epoch: 0, payload };
            let _ = ToHost::decode(&frame);
            let _ = ToMember::decode(&frame);
        }
    }
}
