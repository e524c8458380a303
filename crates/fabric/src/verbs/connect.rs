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
use crate::topology::MAX_RAILS;

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
    ends: Vec<Result<End, (Place, VerbsError)>>,
    nics: Vec<Arc<dyn Nic>>,
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
        let mut places = Vec::new();
        let gids = provider.gids()?;
        for neighbour in &neighbours {
            for end in &neighbour.ends {
                if end.rail >= MAX_RAILS {
                    let (value, what) = (end.rail as u64, "there are at most four");
                    return Err(VerbsError::Setting { key: "rail", value, what });
                }
                places.push((neighbour.rank, end, gids.find(end.address)));
            }
        }
        let mut counts: BTreeMap<(String, u8), u32> = BTreeMap::new();
        for gid in places.iter().filter_map(|(_, _, gid)| gid.as_ref().ok()) {
            *counts.entry((gid.device.clone(), gid.port)).or_default() += 1;
        }
        let mut nics = BTreeMap::new();
        for ((device, port), count) in &counts {
            let completions = count * (SEND_QUEUE + RECEIVE_QUEUE);
            let nic = provider.open(device, *port, &region, completions)?;
            nics.insert((device.clone(), *port), nic);
        }
        let mut ends = Vec::new();
        for (peer, end, gid) in places {
            let place = Place {
                peer,
                rail: end.rail,
                address: end.address,
                forwarded: end.forwarded,
                nic: None,
                tag: Tag { pair: ends.len(), round: 0 },
            };
            let gid = match gid {
                Ok(gid) => gid,
                Err(why) => {
                    ends.push(Err((place, why)));
                    continue;
                }
            };
            // Every device was opened.
            let found =
                nics.keys().position(|(device, port)| (device, *port) == (&gid.device, gid.port));
            let Some((number, nic)) =
                found.and_then(|number| Some((number, nics.values().nth(number)?)))
            else {
                return Err(VerbsError::NoDevices { source: None });
            };
            let place = Place { nic: Some(number), ..place };
            let state = attributes(&**nic)?.state;
            if state != PORT_ACTIVE {
                let Gid { device, port, .. } = gid;
                ends.push(Err((place, VerbsError::PortInactive { device, port, state })));
                continue;
            }
            let agreed = Agreed::new(region.len(), &settings, end.forwarded.as_ref());
            ends.push(Ok(End::make(place, gid, nic, &*provider, agreed)?));
        }
        if ends.iter().all(Result::is_err)
            && let Some(Err((_, why))) = ends.pop()
        {
            return Err(why);
        }
        let nics = nics.into_values().collect();
        Ok(Self { rank, provider, region, settings, ends, nics })
    }

    /// The devices in use, by the rank at the other end and the rail.
    pub fn devices(&self) -> Vec<(usize, usize, String)> {
        let made = self.ends.iter().flatten();
        made.map(|end| (end.place.peer, end.place.rail, end.told.device.clone())).collect()
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
        blob_of(self.ends.iter().flatten().map(|end| (end.place.peer, end.place.rail, &end.told)))
    }

    /// Connects all queue pairs with what the neighbours told, by rank. Nothing may be written
    /// before every rank has come back from this. Rails that have no end here or there, or that
    /// do not connect, are down from the beginning.
    ///
    /// # Errors
    /// The first setting that differs between both ends of a rail.
    pub fn connect(self, blobs: &[Vec<u8>]) -> Result<(VerbsDevice, Arc<VerbsParker>), VerbsError> {
        let Self { rank, provider, region, settings, ends, nics } = self;
        let (mut pairs, mut absent) = (Vec::with_capacity(ends.len()), Vec::new());
        for end in ends {
            let (place, joined) = match end {
                Ok(end) => {
                    let blob = blobs.get(end.place.peer).map(Vec::as_slice).unwrap_or_default();
                    (end.place, end.join(rank, blob, &settings, &*provider))
                }
                Err((place, why)) => (place, Err(why)),
            };
            pairs.push(match joined {
                Ok(pair) => pair,
                Err(error @ VerbsError::Differs { .. }) => return Err(error),
                Err(why) => {
                    absent.push((place.peer, place.rail, why.to_string()));
                    Pair::absent(place, &*provider)
                }
            });
        }
        let parker =
            VerbsParker::new(nics.clone()).map_err(|source| VerbsError::Watch { source })?;
        let parker = Arc::new(parker);
        let mut device =
            VerbsDevice::new(rank, provider, region, settings, nics, pairs, Arc::clone(&parker));
        device.are_down(absent);
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
