//! What the coordinator and the agents say to each other, a line of JSON each, and the bytes that prove a path.

use std::net::{Ipv4Addr, SocketAddrV4};

use cluster::address::Mac;
use serde::{Deserialize, Serialize};

use super::lost::beginning;
use crate::rule_hits::RulesState;

/// Version of the lines. Both ends must have the same.
pub(super) const AGENT_SCHEMA: &str = "railweave-agent/2";
/// Longest line either end reads.
pub(super) const LINE_BYTES_MAX: u64 = 256 << 10;
/// Bytes that are made, compared and passed on at a time.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of a [`Secret`].
pub(super) const SECRET_BYTES: usize = 16;

/// Random bytes that only the two ends of one connection know: a stray process can neither call nor answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Secret(pub(super) [u8; SECRET_BYTES]);

/// What both ends of one rail have to agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Terms {
    /// What the caller shows.
    pub(super) call: Secret,
    /// What the called one answers with.
    pub(super) answer: Secret,
    /// Where the pattern begins.
    pub(super) seed: u64,
    /// Bytes each way.
    pub(super) bytes: u64,
    /// When to give up, in milliseconds from the order.
    pub(super) limit_ms: u64,
}

/// Where to connect from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Call {
    /// The own address to call from.
    pub(super) from: Ipv4Addr,
    /// Who is called.
    pub(super) to: SocketAddrV4,
}

/// How packets of a forwarded rail are told from others, and how many may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Passed {
    /// Flow label of the queue pair.
    pub(super) flow_label: u32,
    /// The UDP source port that the markers match, if they go by it.
    pub(super) source_port: Option<u16>,
    /// Most bytes that may be posted and not completed.
    pub(super) window_bytes: u64,
}

/// One end of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PairEnd {
    /// It sends first; the other one compares and sends back.
    pub(super) near: bool,
    /// Its rank.
    pub(super) rank: usize,
    /// The rank at the other end.
    pub(super) peer: usize,
    /// The rail.
    pub(super) rail: usize,
    /// The own address: the RDMA device that carries it is used.
    pub(super) address: Ipv4Addr,
    /// For a forwarded rail.
    pub(super) passed: Option<Passed>,
}

/// What an end of a queue pair is told once it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "kebab-case")]
pub(super) enum Word {
    /// What the other end told about itself.
    Connect {
        /// As it told it.
        blob: Vec<u8>,
    },
    /// Both are connected: bytes may go.
    Go,
    /// Nobody needs it any more.
    Close,
}

/// What the coordinator asks an agent for. Answers carry the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub(super) enum Order {
    /// Tell the counters of all netdevs.
    Counters {
        /// Its number.
        id: u64,
    },
    /// Be the far end: await one caller, compare every byte and send it back.
    Listen {
        /// Its number.
        id: u64,
        /// The own address to listen at.
        address: Ipv4Addr,
        /// What was agreed.
        terms: Terms,
    },
    /// Be in the middle: await one caller, call the next, and pass bytes on both ways.
    Relay {
        /// Its number.
        id: u64,
        /// The own address to listen at.
        address: Ipv4Addr,
        /// Who comes next.
        next: Call,
        /// What was agreed.
        terms: Terms,
    },
    /// Tell what passes packets on here and what marks them.
    Rules {
        /// Its number.
        id: u64,
    },
    /// Make an end of a queue pair, and be it until told to close.
    Pair {
        /// Its number.
        id: u64,
        /// Which end.
        end: PairEnd,
        /// What was agreed.
        terms: Terms,
    },
    /// A word to the end of a queue pair that the order with this number made.
    Tell {
        /// That order's number.
        id: u64,
        /// The word.
        word: Word,
    },
    /// Be the near end: call, send, and compare what comes back.
    Send {
        /// Its number.
        id: u64,
        /// Who is called.
        call: Call,
        /// What was agreed.
        terms: Terms,
    },
}

impl Order {
    /// Its number.
    pub(super) fn id(&self) -> u64 {
        match self {
            Self::Counters { id }
            | Self::Rules { id }
            | Self::Pair { id, .. }
            | Self::Tell { id, .. }
            | Self::Listen { id, .. }
            | Self::Relay { id, .. }
            | Self::Send { id, .. } => *id,
        }
    }
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "kebab-case")]
pub(super) enum Said {
    /// It has begun.
    Here {
        /// [`AGENT_SCHEMA`].
        schema: String,
        /// Version of its program.
        version: String,
        /// Changes with every boot of its host.
        boot_id: Option<String>,
    },
    /// The counters.
    Counters {
        /// The order's number.
        id: u64,
        /// One for each netdev that has a cable or could have one.
        netdevs: Vec<NetdevCount>,
    },
    /// It listens.
    Listening {
        /// The order's number.
        id: u64,
        /// The TCP port.
        port: u16,
    },
    /// What passes packets on and what marks them.
    Rules {
        /// The order's number.
        id: u64,
        /// The state.
        state: Box<RulesState>,
    },
    /// The end of the queue pair is made.
    Made {
        /// The order's number.
        id: u64,
        /// What the other end needs to connect; whoever has it can write into this end's memory.
        blob: Vec<u8>,
        /// The RDMA device.
        device: String,
    },
    /// There are no RDMA devices for it here.
    NoVerbs {
        /// The order's number.
        id: u64,
        /// Why.
        why: String,
    },
    /// The end is connected.
    Connected {
        /// The order's number.
        id: u64,
    },
    /// It went well: all bytes arrived, and were what they should be.
    Done {
        /// The order's number.
        id: u64,
        /// Bytes that arrived here.
        bytes: u64,
        /// From the first to the last of them.
        seconds: f64,
    },
    /// It did not.
    Failed {
        /// The order's number.
        id: u64,
        /// What went wrong.
        fault: Fault,
    },
}

impl Said {
    /// The same, with all text in it fit to be shown.
    pub(super) fn cleaned(mut self) -> Self {
        let clean = |text: &mut String| *text = beginning(text);
        match &mut self {
            Self::Here { schema, version, boot_id } => {
                clean(schema);
                clean(version);
                boot_id.iter_mut().for_each(clean);
            }
            Self::Counters { netdevs, .. } => {
                netdevs.iter_mut().for_each(|netdev| clean(&mut netdev.name));
            }
            Self::Failed { fault, .. } => clean(&mut fault.why),
            Self::NoVerbs { why, .. } => clean(why),
            Self::Made { device, .. } => clean(device),
            Self::Rules { state, .. } => state.clean(beginning),
            Self::Listening { .. } | Self::Connected { .. } | Self::Done { .. } => {}
        }
        self
    }

    /// The number of the order it answers; none for the greeting.
    pub(super) fn id(&self) -> Option<u64> {
        match self {
            Self::Here { .. } => None,
            Self::Counters { id, .. }
            | Self::Rules { id, .. }
            | Self::Made { id, .. }
            | Self::NoVerbs { id, .. }
            | Self::Connected { id }
            | Self::Listening { id, .. }
            | Self::Done { id, .. }
            | Self::Failed { id, .. } => Some(*id),
        }
    }
}

/// The counters of one netdev.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NetdevCount {
    /// Its hardware address.
    pub(super) mac: Mac,
    /// Its name of today.
    pub(super) name: String,
    /// Bytes received since boot.
    pub(super) rx_bytes: u64,
    /// Bytes sent since boot.
    pub(super) tx_bytes: u64,
    /// The same by the counters of its RDMA device, received and sent, where it has them: a NIC's own packets do not
    /// pass the netdev.
    #[serde(default)]
    pub(super) rdma_bytes: Option<(u64, u64)>,
}

/// How far an end got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    /// The order itself could not be begun.
    Begin,
    /// Listening at the own address.
    Listen,
    /// Awaiting the caller.
    Await,
    /// Making an end of a queue pair, or connecting it.
    Raise,
    /// Calling from the own address.
    Bind,
    /// Calling the other one.
    Connect,
    /// Showing and seeing the secrets.
    Greet,
    /// Sending.
    Send,
    /// Receiving.
    Receive,
    /// Comparing.
    Compare,
}

/// What went wrong at one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fault {
    /// How far it got.
    pub(super) step: Step,
    /// What the system said, or what was seen.
    pub(super) why: String,
    /// Bytes that were right before.
    pub(super) offset: Option<u64>,
    /// The deadline passed.
    pub(super) late: bool,
    /// The status of the work completion that told it, if one did.
    #[serde(default)]
    pub(super) status: Option<u32>,
}

impl Fault {
    /// Without a work completion.
    pub(super) fn new(step: Step, why: String, offset: Option<u64>, late: bool) -> Self {
        Self { step, why, offset, late, status: None }
    }
}

/// A pseudo-random pattern: any part of it can be made from its place alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern(pub(super) u64);

impl Pattern {
    /// Fills a chunk that begins at `offset`, a multiple of 8.
    pub(super) fn fill(self, offset: u64, chunk: &mut [u8]) {
        for (index, part) in chunk.chunks_mut(8).enumerate() {
            let word = self.word((offset / 8).wrapping_add(index as u64)).to_le_bytes();
            match <&mut [u8; 8]>::try_from(&mut *part) {
                Ok(whole) => *whole = word,
                Err(_) => part.iter_mut().zip(word).for_each(|(byte, value)| *byte = value),
            }
        }
    }

    /// The 64-bit finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
    fn word(self, index: u64) -> u64 {
        let mut value =
            self.0.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_a_pattern_is_the_same_as_in_the_whole() {
        let mut whole = vec![0; 1000];
        Pattern(7).fill(0, &mut whole);
        let mut part = vec![0; 304];
        Pattern(7).fill(496, &mut part);
        assert_eq!(whole[496..800], part);
        // The first outputs of SplitMix64 for the seed 1234567, as its reference implementation prints them.
        let mut first = [0; 16];
        Pattern(1_234_567).fill(0, &mut first);
        assert_eq!(u64::from_le_bytes(first[..8].try_into().unwrap()), 6_457_827_717_110_365_317);
        assert_eq!(u64::from_le_bytes(first[8..].try_into().unwrap()), 3_203_168_211_198_807_973);
    }

    #[test]
    fn lines_read_back_as_they_were() {
        let terms = Terms {
            call: Secret([1; SECRET_BYTES]),
            answer: Secret([2; SECRET_BYTES]),
            seed: 3,
            bytes: 4,
            limit_ms: 5,
        };
        let call =
            Call { from: Ipv4Addr::new(10, 10, 0, 1), to: "10.10.0.2:4711".parse().unwrap() };
        let order = Order::Relay { id: 9, address: Ipv4Addr::LOCALHOST, next: call, terms };
        let text = serde_json::to_string(&order).unwrap();
        assert!(!text.contains('\n') && (text.len() as u64) < LINE_BYTES_MAX);
        assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
        assert_eq!(order.id(), 9);
    }
}
