//! One end of a queue pair on its way from made to connected.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::abi::PortAttr;
use super::connect::Forwarded;
use super::error::{VerbsError, state_hint};
use super::gid::Gid;
use super::provider::{Nic, Provider, Qp, Remote};
use super::queue_pair::{self, Pair};
use super::raise::{self, NotRaised, Raise};
use super::settings::VerbsSettings;
use super::told::{Agreed, PSN_MASK, Told, told_to};
use super::word::Tag;

/// Which end of which rail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) peer: usize,
    pub(super) rail: usize,
    /// Its address on this host.
    pub(super) address: IpAddr,
    pub(super) forwarded: Option<Forwarded>,
    /// The opened device, by its number among this rank's; none if none was found.
    pub(super) nic: Option<usize>,
    pub(super) tag: Tag,
}

/// An end that is made and not connected. It can receive as soon as it is.
pub(super) struct End {
    pub(super) place: Place,
    pub(super) told: Told,
    gid: Gid,
    qp: Box<dyn Qp>,
    request_bytes_max: u32,
}

impl End {
    pub(super) fn make(
        place: Place,
        gid: Gid,
        nic: &Arc<dyn Nic>,
        provider: &dyn Provider,
        agreed: Agreed,
    ) -> Result<Self, VerbsError> {
        let failed = |what| {
            let device = nic.name().to_owned();
            move |source| VerbsError::Device { device, what, source, hint: String::new() }
        };
        let random = provider.random().map_err(failed("get random bytes"))?;
        let port = attributes(&**nic)?;
        let mut qp = queue_pair::make(nic)?;
        raise::initialise(&mut *qp, nic.port(), place.tag)
            .map_err(failed("initialise a queue pair"))?;
        let (address, key) = nic
            .remote_access()
            .map_err(|outside| failed("find the region")(io::Error::other(outside)))?;
        let told = Told {
            device: nic.name().to_owned(),
            gid: gid.value,
            number: qp.number(),
            psn: random & PSN_MASK,
            mtu: port.active_mtu.clamp(1, 5),
            key,
            address,
            round: place.tag.round,
            agreed,
        };
        Ok(Self { place, told, gid, qp, request_bytes_max: port.max_msg_sz })
    }

    /// Connects it with what the other end told, and so makes it a pair that takes writes.
    pub(super) fn join(
        mut self,
        rank: usize,
        blob: &[u8],
        settings: &VerbsSettings,
        provider: &dyn Provider,
    ) -> Result<Pair, VerbsError> {
        let Place { peer, rail, .. } = self.place;
        let theirs = told_to(rank, rail, blob).ok_or(VerbsError::Peer { rank, peer, rail })?;
        if let Some(difference) = self.told.agreed.difference(&theirs.agreed) {
            return Err(VerbsError::Differs {
                rank,
                peer,
                rail,
                key: difference.key,
                own: difference.own,
                theirs: difference.theirs,
            });
        }
        let with = Raise {
            gid: &self.gid,
            own: &self.told,
            peer: &theirs,
            settings,
            forwarded: self.place.forwarded.as_ref(),
            plant: provider.plant(),
            tag: self.place.tag,
        };
        let device = self.told.device.clone();
        raise::raise(&mut *self.qp, &with).map_err(|not| match not {
            NotRaised::State { state, source } => VerbsError::QueuePair {
                rank,
                peer,
                rail,
                device,
                remote: theirs.device.clone(),
                state,
                hint: state_hint(&source).to_owned(),
                source,
            },
            NotRaised::Port { seen, wanted } => {
                VerbsError::SourcePort { rank, peer, rail, device, seen, wanted }
            }
        })?;
        let remote =
            Remote { address: theirs.address, key: theirs.key, bytes: theirs.agreed.bytes() };
        let mut pair = Pair::new(self.place, Some(self.qp), remote, self.request_bytes_max);
        pair.peer_round = theirs.round;
        pair.plant = provider.plant();
        Ok(pair)
    }
}

pub(super) fn attributes(nic: &dyn Nic) -> Result<PortAttr, VerbsError> {
    nic.attributes().map_err(|source| VerbsError::Device {
        device: nic.name().to_owned(),
        what: "query its port",
        source,
        hint: String::new(),
    })
}
