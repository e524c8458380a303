//! Making the queue pairs of an epoch.
//!
//! Each rank makes its ends first and tells their parameters to the others through the group;
//! with theirs it connects. No packet travels for that: the first ones are those of the proof.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::abi::{
    ACCESS_REMOTE_WRITE, AhAttr, GlobalRoute, PORT_ACTIVE, QPS_INIT, QPS_RTR, QPS_RTS, QpAttr, mask,
};
use super::device::VerbsDevice;
use super::error::{VerbsError, state_hint};
use super::ffi::{Nic, Qp, Remote};
use super::gid::{self, Gid};
use super::parker::VerbsParker;
use super::queue_pair::{self, Pair, RECEIVE_QUEUE, SEND_QUEUE};
use super::settings::VerbsSettings;
use crate::region::Region;

/// Longest text that a rank may tell about its ends.
const BLOB_BYTES_MAX: usize = 64 << 10;
/// The wait that a receiver which is not ready asks for: 0.64 ms, by the specification's table.
const RNR_TIMER: u8 = 12;
/// Packet sequence numbers have 24 bits.
const PSN_MASK: u32 = 0xff_ffff;

/// A neighbour, and this rank's address towards it on each rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsNeighbour {
    /// Its rank.
    pub rank: usize,
    /// Own addresses, by rail: the RDMA devices that carry them are used.
    pub own: Vec<IpAddr>,
}

/// What [`VerbsEnds::prepare`] needs.
#[derive(Debug)]
pub struct VerbsSetup {
    /// This rank.
    pub rank: usize,
    /// The ranks on the other ends of this rank's cables.
    pub neighbours: Vec<VerbsNeighbour>,
    /// The own region; all ranks' regions have one size.
    pub region: Arc<Region>,
    /// Parameters that all ranks share.
    pub settings: VerbsSettings,
}

/// What one end tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    device: String,
    gid: Ipv6Addr,
    number: u32,
    psn: u32,
    /// Path MTU by its number in `enum ibv_mtu`.
    mtu: u32,
    key: u32,
    address: u64,
    bytes: u64,
}

impl Told {
    fn text(&self) -> String {
        let Self { device, gid, number, psn, mtu, key, address, bytes } = self;
        format!("{device} {gid} {number} {psn} {mtu} {key} {address} {bytes}")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let told = Self {
            device: words.next().filter(|name| !name.is_empty() && name.len() < 64)?.to_owned(),
            gid: words.next()?.parse().ok()?,
            number: words.next()?.parse().ok()?,
            psn: words.next()?.parse().ok().filter(|psn| *psn <= PSN_MASK)?,
            mtu: words.next()?.parse().ok().filter(|mtu| (1..=5).contains(mtu))?,
            key: words.next()?.parse().ok()?,
            address: words.next()?.parse().ok()?,
            bytes: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(told)
    }
}

/// `1/0=n0r ::ffff:10.0.0.1 17 …;1/1=…`: what is told to each neighbour, by rail.
fn blob_of(ends: &[(usize, usize, Told)]) -> String {
    let of_end =
        |(peer, rail, told): &(usize, usize, Told)| format!("{peer}/{rail}={}", told.text());
    ends.iter().map(of_end).collect::<Vec<_>>().join(";")
}

/// What a blob tells rank `me` about a rail.
fn told_to(me: usize, rail: usize, blob: &[u8]) -> Option<Told> {
    let text = std::str::from_utf8(blob).ok().filter(|text| text.len() <= BLOB_BYTES_MAX)?;
    let mut ends = text.split(';').filter_map(|end| end.split_once('='));
    let wanted = format!("{me}/{rail}");
    ends.find(|(end, _)| *end == wanted).and_then(|(_, told)| Told::parse(told))
}

struct End {
    peer: usize,
    rail: usize,
    nic: usize,
    gid: Gid,
    qp: Qp,
    told: Told,
}

/// This rank's queue pairs, not connected.
pub struct VerbsEnds {
    rank: usize,
    region: Arc<Region>,
    settings: VerbsSettings,
    // Queue pairs go before the devices they are on.
    ends: Vec<End>,
    nics: Vec<Arc<Nic>>,
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
    /// of every queue pair.
    ///
    /// # Errors
    /// No libibverbs, no device with an address, or what a device refuses.
    pub fn prepare(setup: VerbsSetup) -> Result<Self, VerbsError> {
        let VerbsSetup { rank, neighbours, region, settings } = setup;
        settings.check()?;
        let mut places = Vec::new();
        let gids = gid::Table::read()?;
        for neighbour in &neighbours {
            for (rail, &address) in neighbour.own.iter().enumerate() {
                places.push((neighbour.rank, rail, gids.find(address)?));
            }
        }
        let mut counts: BTreeMap<(String, u8), u32> = BTreeMap::new();
        for (_, _, gid) in &places {
            *counts.entry((gid.device.clone(), gid.port)).or_default() += 1;
        }
        let mut nics = Vec::new();
        for ((device, port), count) in &counts {
            let completions = count * (SEND_QUEUE + RECEIVE_QUEUE);
            let nic = Nic::open(device, *port, Arc::clone(&region), completions)?;
            let state = nic.attributes().state;
            if state != PORT_ACTIVE {
                return Err(VerbsError::PortInactive {
                    device: device.clone(),
                    port: *port,
                    state,
                });
            }
            nics.push(Arc::new(nic));
        }
        let mut ends = Vec::new();
        for (peer, rail, gid) in places {
            // Every place was counted, in the order of the devices.
            let nic =
                counts.keys().position(|(device, port)| (device, *port) == (&gid.device, gid.port));
            let Some((index, nic)) = nic.and_then(|index| Some((index, nics.get(index)?))) else {
                return Err(VerbsError::NoDevices { source: None });
            };
            ends.push(make_end(ends.len(), (peer, rail, index), nic, gid, &region)?);
        }
        Ok(Self { rank, region, settings, ends, nics })
    }

    /// What the neighbours need to connect to this rank. It is for members of the group only:
    /// whoever has it can write into the region.
    pub fn blob(&self) -> Vec<u8> {
        let ends: Vec<_> =
            self.ends.iter().map(|end| (end.peer, end.rail, end.told.clone())).collect();
        blob_of(&ends).into_bytes()
    }

    /// Connects all queue pairs with what the neighbours told, by rank. Nothing may be written
    /// before every rank has come back from this.
    ///
    /// # Errors
    /// The first end that does not fit or that the device refuses.
    pub fn connect(self, blobs: &[Vec<u8>]) -> Result<(VerbsDevice, Arc<VerbsParker>), VerbsError> {
        let Self { rank, region, settings, ends, nics } = self;
        let mut pairs = Vec::with_capacity(ends.len());
        for (index, mut end) in ends.into_iter().enumerate() {
            let (peer, rail) = (end.peer, end.rail);
            let wrong = |what| VerbsError::Peer { rank, peer, rail, what };
            let blob = blobs.get(peer).map(Vec::as_slice).unwrap_or_default();
            let told = told_to(rank, rail, blob)
                .ok_or_else(|| wrong("it told nothing that can be read".to_owned()))?;
            if told.bytes != region.len() {
                let own = region.len();
                let what = format!("its region has {} bytes and the own one {own}", told.bytes);
                return Err(wrong(what));
            }
            let failed = |(state, source): (&'static str, io::Error)| VerbsError::QueuePair {
                rank,
                peer,
                rail,
                device: end.told.device.clone(),
                remote: told.device.clone(),
                state,
                hint: state_hint(&source).to_owned(),
                source,
            };
            raise(&mut end.qp, &end.gid, &end.told, &told, &settings).map_err(failed)?;
            let remote = Remote { address: told.address, key: told.key, bytes: told.bytes };
            let most = nics.get(end.nic).map_or(0, |nic| nic.attributes().max_msg_sz);
            pairs.push(Pair::new(index, (peer, rail, end.nic), end.qp, remote, most));
        }
        let parker =
            VerbsParker::new(nics.clone()).map_err(|source| VerbsError::Watch { source })?;
        let parker = Arc::new(parker);
        let device = VerbsDevice::new(rank, region, settings, nics, pairs, Arc::clone(&parker));
        Ok((device, parker))
    }
}

fn make_end(
    index: usize,
    (peer, rail, nic_index): (usize, usize, usize),
    nic: &Arc<Nic>,
    gid: Gid,
    region: &Region,
) -> Result<End, VerbsError> {
    let failed = |what| {
        let device = nic.name().to_owned();
        move |source| VerbsError::Device { device, what, source, hint: String::new() }
    };
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| failed("get random bytes")(errno.into()))?;
    let mut qp = queue_pair::make(nic)?;
    let init = QpAttr {
        qp_state: QPS_INIT,
        port_num: nic.port(),
        qp_access_flags: ACCESS_REMOTE_WRITE,
        ..QpAttr::default()
    };
    let mask = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    qp.modify(&init, mask).map_err(failed("initialise a queue pair"))?;
    queue_pair::fill(&mut qp, index).map_err(failed("post receives"))?;
    let (address, key) = nic
        .remote_access()
        .map_err(|outside| failed("find the region")(io::Error::other(outside)))?;
    let told = Told {
        device: nic.name().to_owned(),
        gid: gid.value,
        number: qp.number(),
        psn: u32::from_ne_bytes(random) & PSN_MASK,
        mtu: nic.attributes().active_mtu.clamp(1, 5),
        key,
        address,
        bytes: region.len(),
    };
    Ok(End { peer, rail, nic: nic_index, gid, qp, told })
}

/// Brings a queue pair from init to ready: to receive, then to send.
fn raise(
    qp: &mut Qp,
    gid: &Gid,
    own: &Told,
    peer: &Told,
    settings: &VerbsSettings,
) -> Result<(), (&'static str, io::Error)> {
    let octets = peer.gid.octets();
    let half = |start: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&octets[start..start + 8]);
        u64::from_ne_bytes(half)
    };
    let receive = QpAttr {
        qp_state: QPS_RTR,
        path_mtu: own.mtu.min(peer.mtu),
        rq_psn: peer.psn,
        dest_qp_num: peer.number,
        max_dest_rd_atomic: 1,
        min_rnr_timer: RNR_TIMER,
        ah_attr: AhAttr {
            grh: GlobalRoute {
                dgid: [half(0), half(8)],
                flow_label: settings.flow_label,
                sgid_index: gid.index,
                hop_limit: settings.hop_limit,
                traffic_class: settings.traffic_class,
            },
            is_global: 1,
            port_num: gid.port,
            ..AhAttr::default()
        },
        ..QpAttr::default()
    };
    let receive_mask = mask::STATE
        | mask::AV
        | mask::PATH_MTU
        | mask::DEST_QPN
        | mask::RQ_PSN
        | mask::MAX_DEST_RD_ATOMIC
        | mask::MIN_RNR_TIMER;
    qp.modify(&receive, receive_mask).map_err(|source| ("ready to receive", source))?;
    let send = QpAttr {
        qp_state: QPS_RTS,
        sq_psn: own.psn,
        max_rd_atomic: 1,
        timeout: settings.timeout,
        retry_cnt: settings.retry_count,
        rnr_retry: settings.rnr_retry,
        ..QpAttr::default()
    };
    let send_mask = mask::STATE
        | mask::SQ_PSN
        | mask::TIMEOUT
        | mask::RETRY_CNT
        | mask::RNR_RETRY
        | mask::MAX_QP_RD_ATOMIC;
    qp.modify(&send, send_mask).map_err(|source| ("ready to send", source))
}

/// Whether this host has an RDMA device for every one of these addresses.
///
/// # Errors
/// Why not, in one line.
pub fn available(addresses: impl IntoIterator<Item = IpAddr>) -> Result<(), VerbsError> {
    if super::ffi::device_names()?.is_empty() {
        return Err(VerbsError::NoDevices { source: None });
    }
    let gids = gid::Table::read()?;
    addresses.into_iter().try_for_each(|address| gids.find(address).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(number: u32) -> Told {
        Told {
            device: "n0r".to_owned(),
            gid: std::net::Ipv4Addr::new(198, 18, 0, 1).to_ipv6_mapped(),
            number,
            psn: 0xff_ffff,
            mtu: 5,
            key: u32::MAX,
            address: u64::MAX,
            bytes: 4096,
        }
    }

    #[test]
    fn each_neighbour_finds_what_it_is_told() {
        let blob = blob_of(&[(1, 0, told(17)), (1, 1, told(18)), (3, 0, told(19))]);
        for (rank, rail, number) in [(1, 0, 17), (1, 1, 18), (3, 0, 19)] {
            assert_eq!(told_to(rank, rail, blob.as_bytes()), Some(told(number)));
        }
        assert_eq!(told_to(3, 1, blob.as_bytes()), None);
        assert_eq!(told_to(0, 0, blob.as_bytes()), None);
    }

    #[test]
    fn what_cannot_be_is_not_read() {
        let good = told(1).text();
        assert!(Told::parse(&good).is_some());
        for bad in [
            String::new(),
            format!("{good} 1"),
            good.replace(" 5 ", " 6 "),
            good.replace("16777215", "16777216"),
            good.replace("n0r", ""),
            good.replace("::ffff:198.18.0.1", "x"),
        ] {
            assert_eq!(Told::parse(&bad), None, "{bad}");
        }
        assert_eq!(told_to(1, 0, &[0xff; 10]), None);
    }

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
