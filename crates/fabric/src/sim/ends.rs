//! How queue pairs, ranks and epochs end, and how faults come about.

use std::time::Duration;

use super::faults::Fault;
use super::landing::{Damage, LateFrame};
use super::rng::nanos;
use super::state::{Cause, Due, Half, State};
use crate::device::{Event, RailFault};

impl State {
    /// Takes the end at a half's start out of service and lets the other end know.
    pub(super) fn close(&mut self, index: usize, fault: RailFault) {
        let Half { src, dst, rail, down, silent, .. } = self.halves[index];
        if down || self.ranks[src].dead {
            return;
        }
        self.shut(index);
        self.tear(index);
        let cause = if fault == RailFault::Cut { Cause::Cut } else { Cause::PeerClosed };
        self.events[src].push_back(Event::RailDown { peer: dst, rail, fault });
        self.stir(src);
        if !silent {
            // Word may overtake frames on their way, which are lost then, or come after them all.
            let slowest = nanos(self.settings.latency_max) + self.halves[index].extra;
            let at = self.now + self.rng.below(slowest.saturating_mul(2).saturating_add(1));
            let back = self.back(index);
            // One that was made again has no part in the end of an earlier one.
            if self.is_joined(index) {
                let round = self.halves[back].round;
                self.schedule(at, Due::Close(back, round, cause));
            }
        }
    }

    /// From here on the device reads no body of this half: what is on its way keeps its bytes.
    fn shut(&mut self, index: usize) {
        self.counters.ends_down += 1;
        self.trace.add(index as u64 | 1 << 41);
        self.trace.add(self.now);
        self.halves[index].down = true;
        self.halves[index].acks.clear();
        self.halves[index].unpolled = 0;
        self.halves[index].lost = 0;
        self.seal(index);
    }

    fn seal(&mut self, index: usize) {
        let mut flights = std::mem::take(&mut self.halves[index].flights);
        for flight in &mut flights {
            if flight.frame.is_none() {
                let mut frame = Vec::new();
                self.encode(index, &flight.write, &mut frame);
                flight.frame = Some(frame);
            }
        }
        self.halves[index].flights = flights;
    }

    /// Of the frame that was arriving at an end that goes down, a part may land.
    fn tear(&mut self, index: usize) {
        let incoming = self.back(index);
        if self.halves[incoming].silent || !self.rng.once_in(2) {
            return;
        }
        if let Some(flight) = self.halves[incoming].flights.pop_front() {
            let share = self.rng.below(flight.write.len() + 1);
            // What is wrong with a frame that never came whole does not matter.
            let _ = self.land(incoming, &flight, Some(share));
            self.halves[incoming].flights.push_front(flight);
        }
    }

    fn kill(&mut self, rank: usize, notice: Option<Duration>) {
        if std::mem::replace(&mut self.ranks[rank].dead, true) {
            return;
        }
        self.events[rank].clear();
        if std::mem::take(&mut self.ranks[rank].frozen) {
            self.unpark();
        }
        for index in 0..self.halves.len() {
            if self.halves[index].src != rank || !self.halves[index].exists {
                continue;
            }
            // Of what it had posted, some has left.
            let left = self.rng.index(self.halves[index].flights.len() + 1);
            while self.halves[index].flights.len() > left {
                if let Some(flight) = self.halves[index].flights.pop_back() {
                    self.drop_frame(index, &flight);
                }
            }
            if !self.halves[index].down {
                self.shut(index);
            }
            if let Some(after) = notice {
                let at = self.now.saturating_add(nanos(after)).saturating_add(self.travel(index));
                let back = self.back(index);
                let round = self.halves[back].round;
                self.schedule(at, Due::Close(back, round, Cause::PeerClosed));
            }
        }
    }

    pub(super) fn end(&mut self) -> Vec<LateFrame> {
        self.ended = true;
        self.due.clear();
        self.parked.clear();
        let mut frames = Vec::new();
        for index in 0..self.halves.len() {
            self.seal(index);
            let Half { src, dst, rail, .. } = self.halves[index];
            for flight in std::mem::take(&mut self.halves[index].flights) {
                if let Some(bytes) = flight.frame {
                    let epoch = self.settings.epoch;
                    frames.push(LateFrame { src, dst, rail, epoch, bytes });
                }
            }
        }
        frames
    }

    pub(super) fn deliver_late(&mut self, frames: Vec<LateFrame>, within: Duration) {
        for frame in frames {
            let at = self.now.saturating_add(nanos(self.rng.up_to(within)));
            self.late.push(Some(frame));
            self.schedule(at, Due::Late(self.late.len() - 1));
        }
    }

    pub(super) fn straggle(&mut self, rank: usize, to: u64, bytes: Vec<u8>) {
        self.stragglers.push((rank, to, bytes));
        let slowest = nanos(self.settings.latency_max);
        let at = self.now + 1 + self.rng.below(slowest.saturating_mul(2).saturating_add(1));
        self.schedule(at, Due::Straggler(self.stragglers.len() - 1));
    }

    pub(super) fn schedule_fault(&mut self, at: u64, fault: Fault) {
        self.faults.push(fault);
        self.schedule(at.max(self.now), Due::Fault(self.faults.len() - 1));
    }

    /// A fault of a rank or rail that does not exist does nothing.
    pub(super) fn inject(&mut self, fault: &Fault) {
        let both = |a, b, rail| self.half(a, b, rail).map(|half| [half, self.back(half)]);
        match *fault {
            Fault::Slow { a, b, rail, extra, jitter } => {
                for half in both(a, b, rail).into_iter().flatten() {
                    self.halves[half].extra = nanos(extra);
                    self.halves[half].jitter = nanos(jitter);
                }
            }
            Fault::Cut { a, b, rail } => {
                if let Some([first, second]) = both(a, b, rail) {
                    // A dead rank's end says nothing, so the other end must hear of it here.
                    let first = if self.ranks[a].dead { second } else { first };
                    self.close(first, RailFault::Cut);
                }
            }
            Fault::Silence { a, b, rail } => {
                for half in both(a, b, rail).into_iter().flatten() {
                    self.halves[half].silent = true;
                }
            }
            Fault::Mend { a, b, rail } => {
                for half in both(a, b, rail).into_iter().flatten() {
                    self.halves[half].silent = false;
                }
            }
            Fault::Kill { rank, notice } if rank < self.ranks.len() => self.kill(rank, notice),
            Fault::Freeze { rank } if rank < self.ranks.len() => self.ranks[rank].frozen = true,
            Fault::Thaw { rank } if rank < self.ranks.len() => {
                self.ranks[rank].frozen = false;
                self.stir(rank);
                self.unpark();
            }
            Fault::Kill { .. } | Fault::Freeze { .. } | Fault::Thaw { .. } => {}
            Fault::FlipBit { from, to } => {
                self.damage_next(from, to, Damage::Flip);
            }
            Fault::Truncate { from, to } => {
                self.damage_next(from, to, Damage::Truncate);
            }
            Fault::Hold => self.hold = true,
            Fault::Release => {
                self.hold = false;
                self.unpark();
            }
        }
    }
}
