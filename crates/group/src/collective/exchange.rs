//! The exchange between all ranks.

use std::future::poll_fn;
use std::task::Poll;

use fabric::{Channel, Put, Span};

use crate::beacon::RankSet;

use super::{CollectiveError, Collectives, Waits, Watch};

/// What goes to one rank, and where in its region.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    pub(super) src: Span,
    pub(super) to: u64,
}

impl<W: Watch> Collectives<W> {
    /// The number of the next exchange, which tells its slots.
    pub(super) fn next_exchange(&self) -> u32 {
        self.exchange.wrapping_add(1)
    }

    /// Puts a part to every other rank and waits for theirs, of the lengths that `incoming` gives.
    pub(super) async fn exchange(
        &mut self,
        outgoing: impl Fn(usize) -> Part,
        incoming: impl Fn(usize) -> u64,
    ) -> Result<(), CollectiveError> {
        self.exchange = self.next_exchange();
        let value = self.exchange;
        for step in 1..self.size {
            let dst = (self.rank + step) % self.size;
            let Part { src, to } = outgoing(dst);
            self.fabric.put(&Put { dst, src, to, channel: Channel::Exchange, value })?;
        }
        let all = RankSet::all(self.size).without(self.rank);
        self.arrivals(all, Channel::Exchange, value, incoming).await
    }

    /// Waits for the fragments of these ranks, and until the own puts have left.
    pub(super) async fn arrivals(
        &self,
        mut missing: RankSet,
        channel: Channel,
        value: u32,
        incoming: impl Fn(usize) -> u64,
    ) -> Result<(), CollectiveError> {
        let fabric = &*self.fabric;
        let mut looks = 0_u32;
        let mut hurried = false;
        poll_fn(|_| {
            for src in missing.iter() {
                match fabric.has_arrived(src, channel, value, incoming(src)) {
                    Ok(true) => missing = missing.without(src),
                    Ok(false) => {}
                    Err(outside) => return Poll::Ready(Err(outside.into())),
                }
            }
            // Others may wait for the acknowledgements of what came, and this rank may send
            // nothing for long that could take them along.
            if missing.is_empty() && !hurried {
                hurried = fabric.hurry();
            }
            if missing.is_empty() && fabric.is_drained() {
                if looks > 0 {
                    self.watch.goes_on();
                }
                return Poll::Ready(Ok(()));
            }
            looks = looks.saturating_add(1);
            let mut waits = || {
                let via = missing.iter().fold(0, |mask, src| {
                    mask | fabric.missing_relays(src, channel, value, incoming(src))
                });
                // All bytes are here, and own ones have not left: for whom do they wait?
                let ranks = if missing.is_empty() { RankSet(fabric.undrained()) } else { missing };
                Waits { ranks, via: RankSet(via) }
            };
            match self.watch.waits(&mut waits) {
                Ok(()) => Poll::Pending,
                Err(verdict) => Poll::Ready(Err(CollectiveError::Stopped(verdict))),
            }
        })
        .await
    }
}
