//! Queue pairs that went down and are made again.
//!
//! Each end counts its rounds. A frame lands only where both ends are connected to each other's
//! present round, as a network card drops packets for a queue pair that it does not know.

use super::state::State;
use crate::device::Event;

/// What the words of one end begin with.
const MARK: &[u8; 4] = b"sim ";

impl State {
    pub(super) fn remake(&mut self, rank: usize, peer: usize, rail: usize) -> Option<Vec<u8>> {
        let index = self.half(rank, peer, rail)?;
        let told = |event: &Event| matches!(event, Event::RailDown { peer: of, rail: on, .. } if (*of, *on) == (peer, rail));
        let untold = self.events[rank].iter().any(told);
        if self.ended || self.ranks[rank].dead || !self.halves[index].down || untold {
            return None;
        }
        let half = &mut self.halves[index];
        half.made = half.made.wrapping_add(1);
        half.offered = true;
        Some([&MARK[..], &half.made.to_le_bytes()].concat())
    }

    pub(super) fn reconnect(
        &mut self,
        rank: usize,
        peer: usize,
        rail: usize,
        told: &[u8],
    ) -> Result<(), String> {
        let index = self.half(rank, peer, rail).ok_or("there is no such rail")?;
        let joined = told.strip_prefix(MARK).and_then(|round| round.try_into().ok());
        let joined = u32::from_le_bytes(joined.ok_or("these are not the words of an end")?);
        if self.ended || self.ranks[rank].dead || !std::mem::take(&mut self.halves[index].offered) {
            return Err("it was not offered".to_owned());
        }
        for flight in std::mem::take(&mut self.halves[index].flights) {
            self.drop_frame(index, &flight);
        }
        let now = self.now;
        let half = &mut self.halves[index];
        half.acks.clear();
        (half.unpolled, half.lost) = (0, 0);
        (half.free_at, half.last_due) = (now, now);
        (half.down, half.gives_up) = (false, false);
        (half.round, half.joined) = (half.made, joined);
        Ok(())
    }

    /// True when both ends of a half are connected to each other as they are now.
    pub(super) fn is_joined(&self, index: usize) -> bool {
        let (here, there) = (&self.halves[index], &self.halves[self.back(index)]);
        here.joined == there.round && there.joined == here.round
    }
}
