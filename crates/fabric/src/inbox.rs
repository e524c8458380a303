//! Each write of a peer lands once, whichever rail brings it and however often.

/// How far writes may run ahead of the oldest that has not arrived. A sender keeps the numbers of
/// its unfinished writes to one peer within this span.
pub const INBOX_WINDOW: u32 = 1024;

/// The number of the first write to a peer: close to the wrap, so that every run goes through it.
pub const FIRST_NUMBER: u32 = u32::MAX - 20;

const WORDS: usize = INBOX_WINDOW as usize / 64;

/// What an arriving number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Its bytes may land.
    New,
    /// It landed before: its bytes must be dropped.
    Duplicate,
    /// No sound sender is that far ahead.
    TooFar,
}

/// The numbers that arrived from one peer, over all rails.
#[derive(Clone, Debug)]
pub struct Inbox {
    /// Everything before this number has arrived, and it has not.
    next: u32,
    /// A bit for each number from `next` on, at `number % INBOX_WINDOW`.
    seen: [u64; WORDS],
}

impl Inbox {
    /// Nothing has arrived and `first` comes first.
    pub fn new(first: u32) -> Self {
        Self { next: first, seen: [0; WORDS] }
    }

    /// The oldest number that has not arrived.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// What the arrival of this number would mean now.
    pub fn judge(&self, number: u32) -> Arrival {
        let ahead = number.wrapping_sub(self.next);
        if ahead > u32::MAX / 2 {
            return Arrival::Duplicate;
        }
        if ahead >= INBOX_WINDOW {
            return Arrival::TooFar;
        }
        let (word, bit) = Self::place(number);
        if self.seen[word] & bit == 0 { Arrival::New } else { Arrival::Duplicate }
    }

    /// Notes that the write with this number has arrived whole.
    pub fn accept(&mut self, number: u32) -> Arrival {
        let arrival = self.judge(number);
        if arrival == Arrival::New {
            let (word, bit) = Self::place(number);
            self.seen[word] |= bit;
            self.advance();
        }
        arrival
    }

    fn advance(&mut self) {
        loop {
            let (word, bit) = Self::place(self.next);
            if self.seen[word] & bit == 0 {
                return;
            }
            self.seen[word] &= !bit;
            self.next = self.next.wrapping_add(1);
        }
    }

    /// The window divides 2^32, so places stay distinct where numbers wrap.
    fn place(number: u32) -> (usize, u64) {
        let place = number % INBOX_WINDOW;
        ((place / 64) as usize, 1 << (place % 64))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_window_ends_where_it_says() {
        for first in [0, 5, u32::MAX - 600, u32::MAX] {
            let mut inbox = Inbox::new(first);
            let at = |ahead: u32| first.wrapping_add(ahead);
            assert_eq!(inbox.accept(at(INBOX_WINDOW)), Arrival::TooFar);
            assert_eq!(inbox.accept(at(INBOX_WINDOW - 1)), Arrival::New);
            assert_eq!(inbox.accept(at(INBOX_WINDOW - 1)), Arrival::Duplicate);
            assert_eq!(inbox.next(), first);
            for ahead in 0..INBOX_WINDOW - 1 {
                assert_eq!(inbox.accept(at(ahead)), Arrival::New);
            }
            assert_eq!(inbox.next(), at(INBOX_WINDOW));
            assert_eq!(inbox.accept(at(INBOX_WINDOW)), Arrival::New);
            assert_eq!(inbox.accept(at(0)), Arrival::Duplicate, "however old");
            assert_eq!(inbox.accept(first.wrapping_sub(1 << 30)), Arrival::Duplicate);
        }
    }

    proptest! {
        /// Two rails deliver in their own order; one fails, and what it had not delivered (and some
        /// of what it had) comes again on the other.
        #[test]
        fn every_write_lands_once_over_two_rails(
            back in 0..400_u32,
            rails in prop::collection::vec(any::<bool>(), 1..600),
            picks in prop::collection::vec(any::<bool>(), 1200),
            fails_after in 0..600_usize,
            unacknowledged in 0..64_usize,
        ) {
            let first = u32::MAX - back;
            let mut queues = [VecDeque::new(), VecDeque::new()];
            for (index, &rail) in rails.iter().enumerate() {
                queues[usize::from(rail)].push_back(first.wrapping_add(index as u32));
            }
            let mut inbox = Inbox::new(first);
            let mut landed = Vec::new();
            let mut delivered = Vec::new();
            let mut failed = false;
            for (step, &pick) in picks.iter().enumerate() {
                if step == fails_after {
                    failed = true;
                    let known: usize = delivered.len() - unacknowledged.min(delivered.len());
                    let mut again: Vec<u32> = delivered.split_off(known);
                    again.extend(queues[0].drain(..));
                    queues[1].extend(again);
                }
                let rail = usize::from(pick || failed);
                let Some(number) = queues[rail].pop_front() else { continue };
                if rail == 0 {
                    delivered.push(number);
                }
                match inbox.accept(number) {
                    Arrival::New => landed.push(number.wrapping_sub(first)),
                    Arrival::Duplicate => prop_assert!(failed, "{number} came once"),
                    Arrival::TooFar => prop_assert!(false, "{number} is within the window"),
                }
            }
            for queue in queues {
                for number in queue {
                    if inbox.accept(number) == Arrival::New {
                        landed.push(number.wrapping_sub(first));
                    }
                }
            }
            landed.sort_unstable();
            prop_assert!(landed.iter().copied().eq(0..rails.len() as u32));
            prop_assert_eq!(inbox.next(), first.wrapping_add(rails.len() as u32));
        }

        #[test]
        fn it_agrees_with_a_set(first: u32, steps in prop::collection::vec(0..1100_u32, 1..300)) {
            let mut inbox = Inbox::new(first);
            let mut set = std::collections::BTreeSet::new();
            for ahead in steps {
                let next = (0..).find(|n| !set.contains(n)).unwrap_or(0);
                let expected = if ahead >= next + INBOX_WINDOW {
                    Arrival::TooFar
                } else if set.insert(ahead) {
                    Arrival::New
                } else {
                    Arrival::Duplicate
                };
                prop_assert_eq!(inbox.accept(first.wrapping_add(ahead)), expected);
            }
        }
    }
}
