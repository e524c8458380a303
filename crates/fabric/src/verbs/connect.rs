//! Making the queue pairs of an epoch.
//!
//! Each rank makes its ends first and tells their parameters to the others through the group;
//! with theirs it connects. No packet travels for that: the first ones are those of the proof.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::abi::PORT_ACTIVE;
use super::counters::DevicePort;
use super::device::VerbsDevice;
use super::end::{End, Place, attributes};
use super::error::VerbsError;
use super::ffi::{self, Kernel};
use super::gid::{self, Gid};
use super::parker::VerbsParker;
use super::provider::{Nic, Provider};
use super::queue_pair::{Pair, RECEIVE_QUEUE, SEND_QUEUE};
use super::settings::VerbsSettings;
use super::told::{Agreed, blob_of};
use super::word::Tag;
use crate::region::Region;

/// A rank with a queue pair of this one: a neighbour, or a distant rank on forwarded rails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsNeighbour {
    /// Its rank.
    pub rank: usize,
    /// This rank's end of each rail to it.
    pub ends: Vec<VerbsEnd>,
}

/// This rank's end of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsEnd {
    /// The rail, by the number that both ranks know it by.
    pub rail: usize,
    /// The own address: the RDMA device that carries it is used.
    pub address: IpAddr,
    /// How packets are passed on between the two ranks, if they are.
    pub forwarded: Option<Forwarded>,
}

/// A rail whose packets the network cards of the hosts between pass on. Both ends have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// The flow label of its packets; 0 with destination tags.
    pub flow_label: u32,
    /// The UDP source port that the markers match, with source-port tags.
    pub source_port: Option<u16>,
    /// Most bytes that may be posted and not completed: what passes them on drops what it has no
    /// room for. A longer write goes alone.
    pub window_bytes: u64,
}

/// What [`VerbsEnds::prepare`] needs.
#[derive(Debug)]
pub struct VerbsSetup {
    /// This rank.
    pub rank: usize,
    /// The ranks that this rank has queue pairs with.
    pub neighbours: Vec<VerbsNeighbour>,
    /// The own region; all ranks' regions have one size.
    pub region: Arc<Region>,
    /// Parameters that all ranks share.
    pub settings: VerbsSettings,
}

/// This rank's queue pairs, not connected.
pub struct VerbsEnds {
    rank: usize,
    provider: Arc<dyn Provider>,
    region: Arc<Region>,
    settings: VerbsSettings,
    // Queue pairs go before the devices they are on.
    ends: Vec<Result<End, Absent>>,
    nics: Vec<Arc<dyn Nic>>,
    /// Rails whose address no device has.
    nowhere: Vec<(usize, usize, VerbsError)>,
}

/// A rail whose device is there, but not in a state to carry anything.
struct Absent {
    place: Place,
    why: VerbsError,
}

impl std::fmt::Debug for VerbsEnds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerbsEnds")
            .field("rank", &self.rank)
            .field("queue_pairs", &self.ends.len())
            .finish_non_exhaustive()
    }
}

impl VerbsEnds {
    /// Finds the devices by the addresses, registers the region with each, and makes the own end
    /// of every queue pair. Rails whose address no device has, or whose port is not up, are left
    /// out as long as there are others.
    ///
    /// # Errors
    /// No libibverbs, no rail at all, or what a device refuses.
    pub fn prepare(setup: VerbsSetup) -> Result<Self, VerbsError> {
        Self::prepare_on(setup, Arc::new(Kernel))
    }

    /// The same, with devices of another kind.
    pub(super) fn prepare_on(
        setup: VerbsSetup,
        provider: Arc<dyn Provider>,
    ) -> Result<Self, VerbsError> {
        let VerbsSetup { rank, neighbours, region, settings } = setup;
        settings.check()?;
        let (mut places, mut nowhere) = (Vec::new(), Vec::new());
        let gids = provider.gids()?;
        for neighbour in &neighbours {
            for end in &neighbour.ends {
                match gids.find(end.address) {
                    Ok(gid) => places.push((neighbour.rank, end, gid)),
                    Err(error) => nowhere.push((neighbour.rank, end.rail, error)),
                }
            }
        }
        let mut counts: BTreeMap<(String, u8), u32> = BTreeMap::new();
        for (_, _, gid) in &places {
            *counts.entry((gid.device.clone(), gid.port)).or_default() += 1;
        }
        let mut nics = Vec::new();
        for ((device, port), count) in &counts {
            let completions = count * (SEND_QUEUE + RECEIVE_QUEUE);
            nics.push(provider.open(device, *port, &region, completions)?);
        }
        let mut ends: Vec<Result<End, Absent>> = Vec::new();
        for (peer, end, gid) in places {
            // Every place was counted, in the order of the devices.
            let nic =
                counts.keys().position(|(device, port)| (device, *port) == (&gid.device, gid.port));
            let Some((number, nic)) = nic.and_then(|number| Some((number, nics.get(number)?)))
            else {
                return Err(VerbsError::NoDevices { source: None });
            };
            let place = Place {
                peer,
                rail: end.rail,
                address: end.address,
                forwarded: end.forwarded,
                nic: number,
                tag: Tag { pair: ends.len(), round: 0 },
            };
            let state = attributes(&**nic)?.state;
            if state != PORT_ACTIVE {
                let Gid { device, port, .. } = gid;
                let why = VerbsError::PortInactive { device, port, state };
                ends.push(Err(Absent { place, why }));
                continue;
            }
            let agreed = Agreed::new(region.len(), &settings, end.forwarded.as_ref());
            ends.push(Ok(End::make(place, gid, nic, &*provider, agreed)?));
        }
        if ends.iter().all(Result::is_err) {
            let inactive = ends.into_iter().find_map(|end| end.err().map(|absent| absent.why));
            if let Some(error) = inactive.or_else(|| nowhere.pop().map(|(_, _, error)| error)) {
                return Err(error);
            }
            ends = Vec::new();
        }
        Ok(Self { rank, provider, region, settings, ends, nics, nowhere })
    }

    /// The devices in use, by the rank at the other end and the rail.
    pub fn devices(&self) -> Vec<(usize, usize, String)> {
        let ends = self.ends.iter().flatten();
        ends.map(|end| (end.place.peer, end.place.rail, end.told.device.clone())).collect()
    }

    /// The ports in use, each once.
    pub fn ports(&self) -> Vec<DevicePort> {
        let port =
            |nic: &Arc<dyn Nic>| DevicePort { device: nic.name().to_owned(), port: nic.port() };
        self.nics.iter().map(port).collect()
    }

    /// What the neighbours need to connect to this rank. It is for members of the group only:
    /// whoever has it can write into the region.
    pub fn blob(&self) -> Vec<u8> {
        let ends = self.ends.iter().flatten();
        blob_of(ends.map(|end| (end.place.peer, end.place.rail, &end.told)))
    }

    /// Connects all queue pairs with what the neighbours told, by rank. Nothing may be written
    /// before every rank has come back from this. Rails that have no end here or there, or that
    /// do not connect, are down from the beginning.
    ///
    /// # Errors
    /// The first setting that differs between both ends of a rail.
    pub fn connect(self, blobs: &[Vec<u8>]) -> Result<(VerbsDevice, Arc<VerbsParker>), VerbsError> {
        let Self { rank, provider, region, settings, ends, nics, nowhere } = self;
        let mut pairs = Vec::with_capacity(ends.len());
        let mut down: Vec<_> =
            nowhere.into_iter().map(|(peer, rail, why)| (peer, rail, why.to_string())).collect();
        for end in ends {
            let joined = end.and_then(|end| {
                let place = end.place;
                let blob = blobs.get(place.peer).map(Vec::as_slice).unwrap_or_default();
                let joined = end.join(rank, blob, &settings, &*provider);
                joined.map_err(|why| Absent { place, why })
            });
            match joined {
                Ok(pair) => pairs.push(pair),
                Err(Absent { why: differs @ VerbsError::Differs { .. }, .. }) => {
                    return Err(differs);
                }
                Err(Absent { place, why }) => {
                    down.push((place.peer, place.rail, why.to_string()));
                    pairs.push(Pair::absent(place));
                }
            }
        }
        let parker =
            VerbsParker::new(nics.clone()).map_err(|source| VerbsError::Watch { source })?;
        let parker = Arc::new(parker);
        let mut device =
            VerbsDevice::new(rank, provider, region, settings, nics, pairs, Arc::clone(&parker));
        device.are_down(down);
        Ok((device, parker))
    }
}

/// Whether this host has an RDMA device for every one of these addresses.
///
/// # Errors
/// Why not, in one line.
pub fn available(addresses: impl IntoIterator<Item = IpAddr>) -> Result<(), VerbsError> {
    if ffi::device_names()?.is_empty() {
        return Err(VerbsError::NoDevices { source: None });
    }
    let gids = gid::Table::read()?;
    addresses.into_iter().try_for_each(|address| gids.find(address).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_devices_says_so_in_one_line() {
        if std::path::Path::new("/sys/class/infiniband").exists() {
            eprintln!("SKIPPED: this host has RDMA devices");
            return;
        }
        let error = available([IpAddr::from([127, 0, 0, 1])]).unwrap_err();
        assert!(
            matches!(error, VerbsError::NoLibrary { .. } | VerbsError::NoDevices { .. }),
            "{error:?}"
        );
        assert_eq!(error.to_string().lines().count(), 1);
    }
}
