//! Making the queue pairs of an epoch.
//!
//! Each rank makes its ends first and tells their parameters to the others through the group;
//! with theirs it connects. No packet travels for that: the first ones are those of the proof.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::abi::{PORT_ACTIVE, PortAttr};
use super::device::VerbsDevice;
use super::error::{VerbsError, state_hint};
use super::ffi::{self, Kernel};
use super::gid::{self, Gid};
use super::parker::VerbsParker;
use super::provider::{Nic, Provider, Qp, Remote};
use super::queue_pair::{self, Pair, RECEIVE_QUEUE, SEND_QUEUE};
use super::raise::{self, NotRaised, Raise};
use super::settings::VerbsSettings;
use super::told::{Agreed, PSN_MASK, Told, blob_of, told_to};
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

struct End {
    peer: usize,
    rail: usize,
    forwarded: Option<Forwarded>,
    nic: usize,
    gid: Gid,
    qp: Box<dyn Qp>,
    told: Told,
}

/// This rank's queue pairs, not connected.
pub struct VerbsEnds {
    rank: usize,
    provider: Arc<dyn Provider>,
    region: Arc<Region>,
    settings: VerbsSettings,
    // Queue pairs go before the devices they are on.
    ends: Vec<End>,
    nics: Vec<Arc<dyn Nic>>,
    /// Rails that have no end here, and why.
    absent: Vec<(usize, usize, VerbsError)>,
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
        let (mut places, mut absent) = (Vec::new(), Vec::new());
        let gids = provider.gids()?;
        for neighbour in &neighbours {
            for end in &neighbour.ends {
                match gids.find(end.address) {
                    Ok(gid) => places.push((neighbour.rank, end, gid)),
                    Err(error) => absent.push((neighbour.rank, end.rail, error)),
                }
            }
        }
        let mut counts: BTreeMap<(String, u8), u32> = BTreeMap::new();
        for (_, _, gid) in &places {
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
            let found = nics.iter().enumerate();
            let found = found.filter(|(_, (place, _))| **place == (gid.device.clone(), gid.port));
            let Some((index, (_, nic))) = found.last() else {
                return Err(VerbsError::NoDevices { source: None });
            };
            let state = attributes(&**nic)?.state;
            if state != PORT_ACTIVE {
                let Gid { device, port, .. } = gid;
                absent.push((peer, end.rail, VerbsError::PortInactive { device, port, state }));
                continue;
            }
            let agreed = Agreed::new(region.len(), &settings, end.forwarded.as_ref());
            let (qp, told) = make_end(&*provider, ends.len(), nic, &gid, agreed)?;
            let (rail, forwarded) = (end.rail, end.forwarded);
            ends.push(End { peer, rail, forwarded, nic: index, gid, qp, told });
        }
        if ends.is_empty()
            && let Some((_, _, error)) = absent.pop()
        {
            return Err(error);
        }
        let nics = nics.into_values().collect();
        Ok(Self { rank, provider, region, settings, ends, nics, absent })
    }

    /// The devices in use, by the rank at the other end and the rail.
    pub fn devices(&self) -> Vec<(usize, usize, String)> {
        self.ends.iter().map(|end| (end.peer, end.rail, end.told.device.clone())).collect()
    }

    /// What the neighbours need to connect to this rank. It is for members of the group only:
    /// whoever has it can write into the region.
    pub fn blob(&self) -> Vec<u8> {
        blob_of(self.ends.iter().map(|end| (end.peer, end.rail, &end.told)))
    }

    /// Connects all queue pairs with what the neighbours told, by rank. Nothing may be written
    /// before every rank has come back from this. Rails that have no end here or there, or that
    /// do not connect, are down from the beginning.
    ///
    /// # Errors
    /// The first setting that differs between both ends of a rail.
    pub fn connect(self, blobs: &[Vec<u8>]) -> Result<(VerbsDevice, Arc<VerbsParker>), VerbsError> {
        let Self { rank, provider, region, settings, ends, nics, absent } = self;
        let mut absent: Vec<_> =
            absent.into_iter().map(|(peer, rail, why)| (peer, rail, why.to_string())).collect();
        let mut pairs: Vec<Pair> = Vec::with_capacity(ends.len());
        for mut end in ends {
            let (index, peer, rail) = (pairs.len(), end.peer, end.rail);
            let blob = blobs.get(peer).map(Vec::as_slice).unwrap_or_default();
            let Some(told) = told_to(rank, rail, blob) else {
                absent.push((peer, rail, format!("rank {peer} has no end of it")));
                continue;
            };
            if let Some(difference) = end.told.agreed.difference(&told.agreed) {
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
                gid: &end.gid,
                own: &end.told,
                peer: &told,
                settings: &settings,
                forwarded: end.forwarded.as_ref(),
                plant: provider.plant(),
                index,
            };
            let device = end.told.device.clone();
            let raised = raise::raise(&mut *end.qp, &with).map_err(|not| match not {
                NotRaised::State { state, source } => VerbsError::QueuePair {
                    rank,
                    peer,
                    rail,
                    device,
                    remote: told.device.clone(),
                    state,
                    hint: state_hint(&source).to_owned(),
                    source,
                },
                NotRaised::Port { seen, wanted } => {
                    VerbsError::SourcePort { rank, peer, rail, device, seen, wanted }
                }
            });
            if let Err(error) = raised {
                absent.push((peer, rail, error.to_string()));
                continue;
            }
            let remote =
                Remote { address: told.address, key: told.key, bytes: told.agreed.bytes() };
            let most = match nics.get(end.nic) {
                Some(nic) => attributes(&**nic)?.max_msg_sz,
                None => 0,
            };
            let window = end.forwarded.map(|it| it.window_bytes);
            let mut pair = Pair::new(index, (peer, rail, end.nic), end.qp, remote, most, window);
            pair.plant = provider.plant();
            pairs.push(pair);
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

fn attributes(nic: &dyn Nic) -> Result<PortAttr, VerbsError> {
    nic.attributes().map_err(|source| VerbsError::Device {
        device: nic.name().to_owned(),
        what: "query its port",
        source,
        hint: String::new(),
    })
}

/// Makes a queue pair, which can receive once it is connected, and what is told about it.
fn make_end(
    provider: &dyn Provider,
    index: usize,
    nic: &Arc<dyn Nic>,
    gid: &Gid,
    agreed: Agreed,
) -> Result<(Box<dyn Qp>, Told), VerbsError> {
    let failed = |what| {
        let device = nic.name().to_owned();
        move |source| VerbsError::Device { device, what, source, hint: String::new() }
    };
    let random = provider.random().map_err(failed("get random bytes"))?;
    let mut qp = queue_pair::make(nic)?;
    raise::initialise(&mut *qp, nic.port(), index).map_err(failed("initialise a queue pair"))?;
    let (address, key) = nic
        .remote_access()
        .map_err(|outside| failed("find the region")(io::Error::other(outside)))?;
    let told = Told {
        device: nic.name().to_owned(),
        gid: gid.value,
        number: qp.number(),
        psn: random & PSN_MASK,
        mtu: attributes(&**nic)?.active_mtu.clamp(1, 5),
        key,
        address,
        agreed,
    };
    Ok((qp, told))
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
