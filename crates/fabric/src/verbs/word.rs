//! The numbers that come back with completions, and those that one device tells the other.

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
    pub(super) fn id(self, pair: usize) -> u64 {
        (pair as u64) << 2 | self as u64
    }

    pub(super) fn of(id: u64) -> (usize, Self) {
        let kind = match id & 3 {
            0 => Self::Part,
            1 => Self::Write,
            2 => Self::Tell,
            _ => Self::Receive,
        };
        (usize::try_from(id >> 2).unwrap_or(usize::MAX), kind)
    }
}

/// A number that one device tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// So many flags of this queue pair have been taken note of.
    Credit { count: u32 },
    /// The sender's end of that rail is down, nothing lands there any more, and so many flags had
    /// come.
    Down { rail: usize, count: u32 },
    /// The sender is about to close its end of this queue pair.
    Bye,
}

/// Bits of a count; fewer than these are ever outstanding.
const COUNT: u32 = 0xff_ffff;

impl Word {
    pub(super) fn encode(self) -> u32 {
        match self {
            Self::Credit { count } => 1 << 28 | count & COUNT,
            // Rails are below MAX_RAILS.
            Self::Down { rail, count } => 2 << 28 | (rail as u32 & 0xf) << 24 | count & COUNT,
            Self::Bye => 3 << 28,
        }
    }

    pub(super) fn decode(word: u32) -> Option<Self> {
        let count = word & COUNT;
        match word >> 28 {
            1 => Some(Self::Credit { count }),
            2 => Some(Self::Down { rail: (word >> 24 & 0xf) as usize, count }),
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
            Word::Down { rail: 3, count: 77 },
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
        assert_eq!(widened(2, 0xff_fffe, 0x100_0005), Some(0x100_0002));
        assert_eq!(widened(1, u32::MAX, 4), Some(1));
        assert_eq!(widened(10, 3, 9), None, "more than was sent");
        assert_eq!(widened(2, 3, 9), None, "less than before");
    }

    #[test]
    fn ids_come_back() {
        for (pair, kind) in
            [(0, Kind::Part), (7, Kind::Write), (255, Kind::Receive), (3, Kind::Tell)]
        {
            assert_eq!(Kind::of(kind.id(pair)), (pair, kind));
        }
    }
}
