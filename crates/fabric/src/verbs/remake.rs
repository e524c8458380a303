//! A new queue pair in the place of one that failed, while the others carry on.

use std::sync::Arc;

use super::abi::PORT_ACTIVE;
use super::device::{Port, VerbsDevice};
use super::end::{End, Place, attributes};
use super::error::VerbsError;
use super::gid::Gid;
use super::provider::Nic;
use super::queue_pair::{Pair, RECEIVE_QUEUE, SEND_QUEUE, State};
use super::told::{Agreed, blob_of};
use super::word::Tag;

/// Why a rail is not made again now.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotNow {
    #[error("there is no such rail")]
    NoRail,
    #[error("its queue pair is not down yet")]
    NotDown,
    #[error("it was not offered")]
    NotOffered,
    #[error("device {device} is not free for it: other rails use it, or the one before it")]
    Taken { device: String },
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl VerbsDevice {
    /// Makes a queue pair for a rail that is down; answers what the peer needs to know.
    pub(super) fn offer(&mut self, peer: usize, rail: usize) -> Result<Vec<u8>, NotNow> {
        let index = self.find(peer, rail).ok_or(NotNow::NoRail)?;
        if !matches!(self.pairs[index].state, State::Down) {
            return Err(NotNow::NotDown);
        }
        // What was offered before, and never connected, is void.
        self.pairs[index].offered = None;
        let old = self.pairs[index].place;
        let gid = self.provider.gids()?.find(old.address)?;
        let nic = self.port_with(old.nic, &gid)?;
        self.pairs[index].place.nic = Some(nic);
        let opened = &self.ports[nic].nic;
        let port = attributes(&**opened)?;
        if port.state != PORT_ACTIVE {
            let (device, state) = (gid.device, port.state);
            return Err(VerbsError::PortInactive { device, port: gid.port, state }.into());
        }
        let round = self.pairs[index].rounds.wrapping_add(1);
        self.pairs[index].rounds = round;
        let place = Place { nic: Some(nic), tag: Tag { round, ..old.tag }, ..old };
        let bytes = self.region.len();
        let agreed = Agreed::new(bytes, &self.settings, old.forwarded.as_ref());
        let end = End::make(place, gid, opened, &*self.provider, agreed)?;
        let blob = blob_of(std::iter::once((peer, rail, &end.told)));
        self.pairs[index].offered = Some(Box::new(end));
        Ok(blob)
    }

    /// The opened device of a GID: the one that the rail had, or that device opened anew.
    fn port_with(&mut self, had: Option<usize>, gid: &Gid) -> Result<usize, NotNow> {
        let is_it =
            |port: &Port| (port.nic.name(), port.nic.port()) == (gid.device.as_str(), gid.port);
        let Some(had) = had else {
            // None was found so far. Completion queues are made for a number of queue pairs, so it
            // shares no other's.
            let nic = self.open(gid, 1)?;
            self.parker.add(&nic).map_err(|source| VerbsError::Watch { source })?;
            self.ports.push(Port::new(nic));
            return Ok(self.ports.len() - 1);
        };
        let port = &self.ports[had];
        if is_it(port) && !port.gone && port.nic.attributes().is_ok() {
            return Ok(had);
        }
        let on_it = |pair: &&Pair| pair.nic() == Some(had);
        let used = self.pairs.iter().filter(on_it).any(Pair::has_queue_pair);
        let other = self.ports.iter().any(|port| !port.gone && is_it(port));
        if used || (other && !is_it(port)) {
            return Err(NotNow::Taken { device: gid.device.clone() });
        }
        let nic = self.open(gid, self.pairs.iter().filter(on_it).count() as u32)?;
        let old = &self.ports[had].nic;
        self.parker.replace(old, &nic).map_err(|source| VerbsError::Watch { source })?;
        self.ports[had] = Port::new(nic);
        Ok(had)
    }

    fn open(&self, gid: &Gid, pairs: u32) -> Result<Arc<dyn Nic>, VerbsError> {
        let completions = pairs * (SEND_QUEUE + RECEIVE_QUEUE);
        self.provider.open(&gid.device, gid.port, &self.region, completions)
    }

    /// Connects what was [offered](Self::offer) with what the peer offered.
    pub(super) fn accept(&mut self, peer: usize, rail: usize, told: &[u8]) -> Result<(), NotNow> {
        let index = self.find(peer, rail).ok_or(NotNow::NoRail)?;
        let end = self.pairs[index].offered.take().ok_or(NotNow::NotOffered)?;
        let pair = end.join(self.rank, told, &self.settings, &*self.provider)?;
        let rounds = self.pairs[index].rounds;
        self.pairs[index] = pair;
        self.pairs[index].rounds = rounds;
        // What was told on the old queue pair may never have come.
        for pair in &mut self.pairs {
            if pair.told_on == Some(index) {
                pair.told_on = None;
                self.ailing = true;
            }
        }
        Ok(())
    }
}
