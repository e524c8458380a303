//! The numbers that come back with completions, and those that one device tells the other.

/// Which queue pair a completion is of: its place among a rank's, and how often it was made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// Fewer than 2^16.
    pub(super) pair: usize,
    pub(super) round: u32,
}

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A part of a write; only heard of when it fails.
    Part,
    /// The end of a write.
    Write,
    /// A message to the peer's device.
    Tell,
    /// A receive.
    Receive,
}

impl Kind {
    /// The number that comes back with the completion.
    pub(super) fn id(self, tag: Tag) -> u64 {
        u64::from(tag.round) << 18 | (tag.pair as u64 & 0xffff) << 2 | self as u64
    }

    pub(super) fn of(id: u64) -> (Tag, Self) {
        let kind = match id & 3 {
            0 => Self::Part,
            1 => Self::Write,
            2 => Self::Tell,
            _ => Self::Receive,
        };
        // 32 bits were put there.
        (Tag { pair: (id >> 2 & 0xffff) as usize, round: (id >> 18) as u32 }, kind)
    }
}

/// A number that one device tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// So many flags of this queue pair have been taken note of.
    Credit { count: u32 },
    /// The sender's end of that rail is down, nothing lands there any more, and so many flags had
    /// come. It is about the receiver's end of that round, of which the lowest bits are told.
    Down { rail: usize, round: u32, count: u32 },
    /// The sender is about to close its end of this queue pair.
    Bye,
}

/// Bits of a count; fewer than these are ever outstanding.
const COUNT: u32 = 0xf_ffff;

impl Word {
    /// The bits of a round that are told.
    pub(super) const ROUND: u32 = 0xf;

    pub(super) fn encode(self) -> u32 {
        match self {
            Self::Credit { count } => 1 << 28 | count & COUNT,
            // Rails are below MAX_RAILS.
            Self::Down { rail, round, count } => {
                let (rail, round) = (rail as u32 & 0xf, round & Self::ROUND);
                2 << 28 | round << 24 | rail << 20 | count & COUNT
            }
            Self::Bye => 3 << 28,
        }
    }

    pub(super) fn decode(word: u32) -> Option<Self> {
        let count = word & COUNT;
        match word >> 28 {
            1 => Some(Self::Credit { count }),
            2 => Some(Self::Down {
                rail: (word >> 20 & 0xf) as usize,
                round: word >> 24 & Self::ROUND,
                count,
            }),
            3 => Some(Self::Bye),
            _ => None,
        }
    }
}

/// The count at or after `from` whose low bits are told; none if it is beyond `most`.
pub(super) fn widened(told: u32, from: u32, most: u32) -> Option<u32> {
    let step = told.wrapping_sub(from) & COUNT;
    (step <= most.wrapping_sub(from)).then(|| from.wrapping_add(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back() {
        for word in [
            Word::Credit { count: 0 },
            Word::Credit { count: COUNT },
            Word::Down { rail: 3, round: 14, count: 77 },
            Word::Bye,
        ] {
            assert_eq!(Word::decode(word.encode()), Some(word));
        }
        assert_eq!(Word::decode(0), None);
        assert_eq!(Word::decode(u32::MAX), None);
    }

    #[test]
    fn counts_widen_across_their_wrap_and_no_further_than_was_sent() {
        assert_eq!(widened(5, 3, 9), Some(5));
        assert_eq!(widened(2, 0xf_fffe, 0x10_0005), Some(0x10_0002));
        assert_eq!(widened(1, u32::MAX, 4), Some(1));
        assert_eq!(widened(10, 3, 9), None, "more than was sent");
        assert_eq!(widened(2, 3, 9), None, "less than before");
    }

    #[test]
    fn ids_come_back() {
        for (pair, round, kind) in [
            (0, 0, Kind::Part),
            (7, u32::MAX, Kind::Write),
            (255, 1, Kind::Receive),
            (3, 9, Kind::Tell),
        ] {
            let tag = Tag { pair, round };
            assert_eq!(Kind::of(kind.id(tag)), (tag, kind));
        }
    }
}
