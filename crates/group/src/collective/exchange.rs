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

    /// Waits for the fragments of these ranks.
    ///
    /// The own puts may not have left when it returns. Staging memory is safe all the same: it is
    /// used again two exchanges later, when every rank has got what lay there. Memory of the
    /// caller needs [`drained`](Self::drained).
    pub(super) async fn arrivals(
        &self,
        mut missing: RankSet,
        channel: Channel,
        value: u32,
        incoming: impl Fn(usize) -> u64,
    ) -> Result<(), CollectiveError> {
        let fabric = &*self.fabric;
        let mut outside = None;
        let arrived = || {
            for src in missing.iter() {
                match fabric.has_arrived(src, channel, value, incoming(src)) {
                    Ok(true) => missing = missing.without(src),
                    Ok(false) => {}
                    Err(error) => outside = Some(error),
                }
            }
            let via = || {
                missing.iter().fold(0, |mask, src| {
                    mask | fabric.missing_relays(src, channel, value, incoming(src))
                })
            };
            if missing.is_empty() || outside.is_some() {
                return None;
            }
            Some(Waits { ranks: missing, via: RankSet(via()) })
        };
        self.until(arrived).await?;
        outside.map_or(Ok(()), |outside| Err(outside.into()))
    }

    /// Waits until the own puts have left and their bytes may change. All ranks do so at the same
    /// place of an operation, so each also acknowledges at once what it got.
    pub(super) async fn drained(&self) -> Result<(), CollectiveError> {
        let fabric = &*self.fabric;
        let mut hurried = false;
        let drained = || {
            if fabric.is_drained() {
                return None;
            }
            hurried = hurried || fabric.hurry();
            Some(Waits { ranks: RankSet(fabric.undrained()), via: RankSet::EMPTY })
        };
        self.until(drained).await
    }

    /// Looks until there is nothing to wait for.
    async fn until(&self, mut look: impl FnMut() -> Option<Waits>) -> Result<(), CollectiveError> {
        let mut has_waited = false;
        poll_fn(|_| {
            let Some(waits) = look() else {
                if has_waited {
                    self.watch.goes_on();
                }
                return Poll::Ready(Ok(()));
            };
            has_waited = true;
            match self.watch.waits(&mut || waits) {
                Ok(()) => Poll::Pending,
                Err(verdict) => Poll::Ready(Err(CollectiveError::Stopped(verdict))),
            }
        })
        .await
    }
}
