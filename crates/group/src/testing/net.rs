//! The control network: messages in order between two ranks, each with a delay of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric::sim::Rng;

/// What arrives.
#[derive(Debug)]
pub(super) enum Parcel {
    /// The bytes of a frame.
    Frame(Vec<u8>),
    /// The end of the connection.
    End,
}

/// What is on its way.
#[derive(Debug)]
pub(super) struct ControlNet {
    rng: Rng,
    last: BTreeMap<(usize, usize), Duration>,
    parcels: BTreeMap<u64, Parcel>,
    next: u64,
}

impl ControlNet {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), last: BTreeMap::new(), parcels: BTreeMap::new(), next: 0 }
    }

    /// Sends; answers when it arrives and under which number.
    pub(super) fn send(
        &mut self,
        now: Duration,
        from: usize,
        to: usize,
        parcel: Parcel,
    ) -> (Duration, u64) {
        let most = if self.rng.once_in(16) { 20_000 } else { 500 };
        let delay = Duration::from_micros(50) + self.rng.up_to(Duration::from_micros(most));
        let last = self.last.entry((from, to)).or_default();
        let at = (now + delay).max(*last);
        *last = at;
        self.next += 1;
        self.parcels.insert(self.next, parcel);
        (at, self.next)
    }

    /// Takes what arrives.
    pub(super) fn take(&mut self, number: u64) -> Option<Parcel> {
        self.parcels.remove(&number)
    }
}
