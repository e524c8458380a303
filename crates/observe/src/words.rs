//! The closed sets of words that label metrics, events and verdicts.

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// Every value, in the order of [`Self::index`].
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The stable word used in labels and JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The position in [`Self::ALL`].
            pub const fn index(self) -> usize {
                self as usize
            }

            /// The value at `index` of [`Self::ALL`].
            pub fn from_index(index: usize) -> Option<Self> {
                Self::ALL.get(index).copied()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                Self::ALL.iter().copied().find(|w| w.as_str() == text).ok_or_else(|| UnknownWord {
                    kind: stringify!($name),
                    text: text.chars().take(64).collect(),
                    known: Self::ALL.iter().map(|w| w.as_str()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

/// A text is none of the words of its set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {kind}; use one of: {known}")]
pub struct UnknownWord {
    kind: &'static str,
    text: String,
    known: String,
}

words! {
    /// What a collective computes.
    Operation {
        /// Every rank gets the reduction of all ranks' buffers.
        AllReduce = "all-reduce",
        /// Every rank gets all ranks' buffers.
        AllGather = "all-gather",
        /// Every rank gets its share of the reduction.
        ReduceScatter = "reduce-scatter",
        /// Every rank gets one rank's buffer.
        Broadcast = "broadcast",
        /// Every rank sends each other rank its own share.
        AllToAll = "all-to-all",
        /// No bytes: every rank waits for all.
        Barrier = "barrier",
    }
}

words! {
    /// How a collective moves bytes.
    Schedule {
        /// Every rank puts everything to every other rank.
        OneShot = "one-shot",
        /// Reduce-scatter, then all-gather.
        TwoShot = "two-shot",
        /// Around the ring, step by step.
        Ring = "ring",
        /// Read in place from buffers mapped by every rank.
        Mapped = "mapped",
    }
}

words! {
    /// How bytes get from one rank to another.
    PathKind {
        /// One cable.
        Direct = "direct",
        /// The NIC of each host between passes packets on.
        Forwarded = "forwarded",
        /// A rank between receives and re-sends.
        Relayed = "relayed",
    }
}

words! {
    /// What a rank is doing.
    Phase {
        /// Setting up: loading, connecting, forming the group.
        Start = "start",
        /// Computing between collectives.
        Compute = "compute",
        /// Reading table rows.
        Rows = "rows",
        /// Moving its own bytes, or waiting for a peer's.
        Wire = "wire",
        /// Moving bytes for others.
        Relay = "relay",
        /// Nothing to do.
        Idle = "idle",
        /// Stopped on purpose.
        Stopped = "stopped",
    }
}

words! {
    /// Why a stall happened.
    Cause {
        /// The peer's process or host is gone.
        PeerDead = "peer-dead",
        /// No heartbeat comes from the peer: its process or host is stopped.
        PeerSilent = "peer-silent",
        /// The peer lives but does not move on.
        PeerStalled = "peer-stalled",
        /// The peer moves, its bytes do not arrive.
        PathBroken = "path-broken",
        /// Two ranks hold different settings.
        ConfigurationDiffers = "configuration-differs",
        /// Memory, disk, credits or another bounded thing ran out.
        OutOfCapacity = "out-of-capacity",
        /// Ranks are inside different operations, or wait in a circle.
        RanksDisagree = "ranks-disagree",
        /// Nothing went wrong: another epoch was asked for.
        Requested = "requested",
        /// The evidence does not tell.
        Unknown = "unknown",
    }
}

words! {
    /// How a request ended.
    Outcome {
        /// All of its tokens were sent.
        Finished = "finished",
        /// The client left or cancelled.
        Cancelled = "cancelled",
        /// Refused before it ran (queue full, invalid).
        Rejected = "rejected",
        /// Ended by an error.
        Failed = "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_text_index_and_json() {
        for cause in Cause::ALL.iter().copied() {
            assert_eq!(cause.as_str().parse::<Cause>().unwrap(), cause);
            assert_eq!(Cause::from_index(cause.index()), Some(cause));
            let json = serde_json::to_string(&cause).unwrap();
            assert_eq!(json, format!("\"{cause}\""));
            assert_eq!(serde_json::from_str::<Cause>(&json).unwrap(), cause);
        }
        assert_eq!(Phase::from_index(Phase::ALL.len()), None);
    }

    #[test]
    fn an_unknown_word_names_the_known_ones() {
        let error = "rign".parse::<Schedule>().unwrap_err().to_string();
        assert_eq!(error, "`rign` is no Schedule; use one of: one-shot, two-shot, ring, mapped");
    }
}
