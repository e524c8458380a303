//! Carries out on a fabric what [`Remaking`] decides, and has its messages sent.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric::{Fabric, Probe};

use crate::control::wire::RailMessage;
use crate::remake::{Back, Rails, Remaking, Trial};

/// Makes the failed rails of one rank again, in one epoch.
#[derive(Debug)]
pub(crate) struct Remaker {
    remaking: Remaking,
    epoch: u32,
    probes: BTreeMap<(usize, usize), Probe>,
}

/// Messages for peers.
pub(crate) type Outbox = Vec<(usize, RailMessage)>;

impl Remaker {
    pub(crate) fn new(rank: usize, epoch: u32) -> Self {
        Self { remaking: Remaking::new(rank), epoch, probes: BTreeMap::new() }
    }

    /// A rail went down.
    pub(crate) fn down(&mut self, now: Duration, peer: usize, rail: usize) {
        self.remaking.down(now, peer, rail);
    }

    /// A rail is in service again.
    pub(crate) fn up(&mut self, now: Duration, peer: usize, rail: usize) -> Option<Back> {
        self.probes.remove(&(peer, rail));
        self.remaking.up(now, peer, rail)
    }

    /// A verdict was reached.
    pub(crate) fn end(&mut self) {
        self.remaking.end();
        self.probes.clear();
    }

    /// Takes in messages of peers and does what is due.
    pub(crate) fn turn(
        &mut self,
        now: Duration,
        fabric: &Fabric,
        heard: impl IntoIterator<Item = (usize, RailMessage)>,
        outbox: &mut Outbox,
    ) {
        let Self { remaking, epoch, probes } = self;
        let mut hands = Hands { fabric, epoch: *epoch, probes, outbox };
        for (peer, message) in heard {
            remaking.hear(now, peer, &message, &mut hands);
        }
        remaking.poll(now, &mut hands);
    }
}

struct Hands<'a> {
    fabric: &'a Fabric,
    epoch: u32,
    probes: &'a mut BTreeMap<(usize, usize), Probe>,
    outbox: &'a mut Outbox,
}

impl Rails for Hands<'_> {
    fn working(&self, peer: usize) -> usize {
        self.fabric.look_at_endpoint(|endpoint| endpoint.working_rails(peer))
    }

    fn remake(&mut self, peer: usize, rail: usize) -> Option<Vec<u8>> {
        self.fabric.look_at_endpoint(|endpoint| endpoint.remake(peer, rail))
    }

    fn reconnect(&mut self, peer: usize, rail: usize, told: &[u8]) -> Result<(), String> {
        self.fabric.look_at_endpoint(|endpoint| endpoint.reconnect(peer, rail, told))
    }

    fn probe(&mut self, peer: usize, rail: usize, attempt: u32) {
        // Only a region without the layout refuses, and then the proof is missed.
        self.probes.remove(&(peer, rail));
        if let Ok(probe) = self.fabric.probe(peer, rail, self.epoch, attempt) {
            self.probes.insert((peer, rail), probe);
        }
    }

    fn trial(&mut self, peer: usize, rail: usize) -> Trial {
        let (on_trial, down) = self.fabric.look_at_endpoint(|endpoint| {
            (endpoint.is_on_trial(peer, rail), endpoint.rail_fault(peer, rail).is_some())
        });
        if !on_trial {
            // Back in service already, and the notice comes.
            return if down { Trial::Failed } else { Trial::Proven };
        }
        let Some(probe) = self.probes.get_mut(&(peer, rail)) else { return Trial::Failed };
        match self.fabric.advance(probe) {
            Ok(()) if probe.missing().is_none() => Trial::Proven,
            Ok(()) => Trial::Runs,
            Err(_) => Trial::Failed,
        }
    }

    fn take_back(&mut self, peer: usize, rail: usize) {
        // It settles when somebody makes progress next.
        self.fabric.with_endpoint(|endpoint| endpoint.take_back(peer, rail));
    }

    fn cut(&mut self, peer: usize, rail: usize) {
        self.probes.remove(&(peer, rail));
        self.fabric.with_endpoint(|endpoint| endpoint.cut(peer, rail));
    }

    fn send(&mut self, peer: usize, message: RailMessage) {
        self.outbox.push((peer, message));
    }

    fn failed(&mut self, peer: usize, rail: usize, attempt: u32, why: &str, wait: Duration) {
        let next_s = wait.as_secs_f64();
        tracing::info!(peer, rail, attempt, why, next_s, "a rail could not be made again");
    }
}
