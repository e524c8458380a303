//! How a sleeping thread is never missed.
//!
//! A writer stores its flag and then looks whether somebody sleeps; a sleeper says so and then
//! looks at the flag once more. A full fence between the two steps on both sides makes at least
//! one of them see the other. The words are generic so that `loom` can try every order.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A 32-bit word that several threads or processes share.
pub trait Word {
    /// Loads the word.
    fn load(&self, order: Ordering) -> u32;
    /// Stores the word.
    fn store(&self, value: u32, order: Ordering);
    /// Adds one, wrapping.
    fn increment(&self, order: Ordering);
    /// A fence among all words of this kind.
    fn fence(order: Ordering);
}

impl Word for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    fn increment(&self, order: Ordering) {
        self.fetch_add(1, order);
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}

/// The pair of words one sleeper and its wakers share.
#[derive(Debug)]
pub struct Bell<'a, W> {
    /// Not zero while somebody sleeps or is about to.
    pub asleep: &'a W,
    /// Changes whenever a sleeper must look again; the word that is slept on.
    pub rung: &'a W,
}

impl<W: Word> Bell<'_, W> {
    /// Publishes `value`, and answers whether the sleeper must be woken by the system.
    pub fn raise(&self, flag: &W, value: u32) -> bool {
        flag.store(value, Ordering::Release);
        self.ring()
    }

    /// Makes a sleeper look again, and answers whether the system must wake it.
    pub fn ring(&self) -> bool {
        W::fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.rung.increment(Ordering::Release);
        true
    }

    /// Says that somebody is about to sleep. What is waited for must be looked at once more before
    /// sleeping on [`rung`](Self::rung) while it has the value returned here.
    pub fn prepare(&self) -> u32 {
        self.asleep.store(1, Ordering::Relaxed);
        let ticket = self.rung.load(Ordering::Acquire);
        W::fence(Ordering::SeqCst);
        ticket
    }

    /// Says that nobody sleeps any more.
    pub fn leave(&self) {
        self.asleep.store(0, Ordering::Relaxed);
    }
}

/// True when a flag that grows by steps and wraps has reached a value.
pub fn reached(flag: u32, value: u32) -> bool {
    flag.wrapping_sub(value) < 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_compare_across_the_wrap() {
        assert!(reached(5, 5) && reached(6, 5) && !reached(4, 5));
        assert!(reached(2, u32::MAX) && !reached(u32::MAX, 2));
        assert!(reached(u32::MAX, u32::MAX - 1));
    }
}
