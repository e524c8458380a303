//! A rank's way into a world.

use super::World;
use crate::device::{Device, Event, PostError, Posted, Write};

/// One rank's queue pairs in a [`World`].
#[derive(Clone, Debug)]
pub struct SimDevice {
    world: World,
    rank: usize,
}

impl SimDevice {
    pub(super) fn new(world: World, rank: usize) -> Self {
        Self { world, rank }
    }

    /// The rank whose queue pairs these are.
    pub fn rank(&self) -> usize {
        self.rank
    }
}

impl Device for SimDevice {
    fn post(&mut self, peer: usize, rail: usize, write: &Write) -> Result<Posted, PostError> {
        self.world.state().post(self.rank, peer, rail, write)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        self.world.state().poll(self.rank, events)
    }

    fn cut(&mut self, peer: usize, rail: usize) {
        self.world.state().cut_from(self.rank, peer, rail);
    }

    fn remake(&mut self, peer: usize, rail: usize) -> Option<Vec<u8>> {
        self.world.state().remake(self.rank, peer, rail)
    }

    fn reconnect(&mut self, peer: usize, rail: usize, told: &[u8]) -> Result<(), String> {
        self.world.state().reconnect(self.rank, peer, rail, told)
    }

    fn corrupt_next(&mut self, peer: usize) -> bool {
        self.world.state().flip_next(self.rank, peer)
    }
}
