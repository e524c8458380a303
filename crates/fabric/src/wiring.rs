//! From settings to a working [`Fabric`]: prepare, tell the others, connect.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use crate::auth::Token;
use crate::device::{Device, Parker};
use crate::endpoint::{Endpoint, EndpointSettings};
use crate::fabric::{Fabric, FabricParts, Waiting};
use crate::inbox::FIRST_NUMBER;
use crate::layout::{Layout, Sizes};
use crate::region::Region;
use crate::shm::{Handover, HandoverError, ShmDevice, ShmParker};
use crate::tcp::{ConnectError, PeerEndpoint, TcpSetup};
use crate::topology::Topology;
use crate::verbs::{
    Forwarded, VerbsEnd, VerbsEnds, VerbsError, VerbsNeighbour, VerbsSettings, VerbsSetup,
};

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Memory that the ranks of one machine share.
    Shm,
    /// Sockets.
    Tcp,
    /// RDMA.
    Verbs,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        })
    }
}

impl FromStr for Transport {
    type Err = WiringError;

    fn from_str(text: &str) -> Result<Self, WiringError> {
        match text {
            "shm" => Ok(Self::Shm),
            "tcp" => Ok(Self::Tcp),
            "verbs" => Ok(Self::Verbs),
            other => Err(WiringError::UnknownTransport(other.to_owned())),
        }
    }
}

/// How this rank's fabric is made. All but the addresses and the waiting is shared by all ranks.
#[derive(Clone, Debug)]
pub struct WiringSettings {
    /// What carries the bytes.
    pub transport: Transport,
    /// Sizes of the region.
    pub sizes: Sizes,
    /// How puts are cut.
    pub endpoint: EndpointSettings,
    /// Whether frames carry checksums.
    pub crc: bool,
    /// How to wait.
    pub waiting: Waiting,
    /// Where to listen for neighbours; with RDMA, the addresses of the devices to use.
    pub addresses: DataAddresses,
    /// Parameters of queue pairs.
    pub verbs: VerbsSettings,
    /// The group's secret.
    pub token: Token,
}

/// This host's addresses for data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataAddresses {
    /// Towards a neighbour that is not named below: an address for each rail, or one for all.
    pub any: Vec<IpAddr>,
    /// Towards a neighbour: an address for each rail, the last for all further ones.
    pub towards: BTreeMap<usize, Vec<IpAddr>>,
    /// Towards a distant rank, on a rail that is forwarded: where packets leave, and how they are told from others.
    pub forwarded: BTreeMap<(usize, usize), (IpAddr, Forwarded)>,
}

impl DataAddresses {
    /// One address for everything.
    pub fn one(address: IpAddr) -> Self {
        Self { any: vec![address], ..Self::default() }
    }

    /// Each of them, some perhaps more than once.
    pub fn all(&self) -> impl Iterator<Item = IpAddr> {
        let forwarded = self.forwarded.values().map(|(address, _)| address);
        self.any.iter().chain(self.towards.values().flatten()).chain(forwarded).copied()
    }

    fn of(&self, peer: usize, rail: usize) -> Option<IpAddr> {
        let list = self.towards.get(&peer).unwrap_or(&self.any);
        list.get(rail).or(list.last()).copied()
    }
}

/// Why the fabric could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WiringError {
    /// What another rank told about itself cannot be read.
    #[error("rank {rank} cannot read what rank {peer} told about its {transport} end: {told:?}")]
    Blob {
        /// This rank.
        rank: usize,
        /// The other one.
        peer: usize,
        /// The transport in use.
        transport: Transport,
        /// What it told.
        told: String,
    },
    /// TCP connections could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There is no address for a neighbour.
    #[error("rank {rank} has no address for data towards rank {peer}")]
    NoAddress {
        /// This rank.
        rank: usize,
        /// The neighbour.
        peer: usize,
    },
    /// Memory could not be shared.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// The system refused something this rank needs for itself.
    #[error("rank {rank} cannot {what}: {source}")]
    System {
        /// This rank.
        rank: usize,
        /// What it wanted.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// RDMA cannot be used or refuses.
    #[error("rank {rank}: {source}")]
    Verbs {
        /// This rank.
        rank: usize,
        /// Why.
        source: Box<VerbsError>,
    },
    /// A transport that is none of ours.
    #[error("unknown transport {0:?}: use shm, tcp or verbs")]
    UnknownTransport(String),
}

impl WiringError {
    /// The neighbour whose cable is to blame, if it is one.
    pub fn broken_peer(&self) -> Option<usize> {
        match self {
            Self::Handover(HandoverError::Peer { peer, .. })
            | Self::Connect(
                ConnectError::Missing { peer, .. } | ConnectError::Refused { peer, .. },
            ) => Some(*peer),
            _ => None,
        }
    }
}

enum Prepared {
    Shm(Handover),
    Tcp { region: Arc<Region>, listeners: Vec<TcpListener>, places: Places },
    Verbs { region: Arc<Region>, ends: VerbsEnds },
}

/// Where this rank listens for each neighbour, by rail.
type Places = BTreeMap<usize, Vec<SocketAddr>>;

/// `1=10.0.0.1:4000,10.0.1.1:4001 3=…`: for each neighbour, where to connect on each rail.
fn places_text(places: &Places) -> String {
    let of_peer = |(peer, list): (&usize, &Vec<SocketAddr>)| {
        let list: Vec<_> = list.iter().map(ToString::to_string).collect();
        format!("{peer}={}", list.join(","))
    };
    places.iter().map(of_peer).collect::<Vec<_>>().join(" ")
}

/// What [`places_text`] says of rank `me`: one address for each of `rails`.
fn places_for(me: usize, rails: usize, text: &str) -> Option<Vec<SocketAddr>> {
    let mut words = text.split(' ').filter_map(|word| word.split_once('='));
    let (_, list) = words.find(|(peer, _)| peer.parse() == Ok(me))?;
    let list: Vec<_> = list.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
    (list.len() == rails).then_some(list)
}

/// This rank's end, ready to be told to the others.
pub struct Wiring {
    rank: usize,
    topology: Arc<Topology>,
    layout: Arc<Layout>,
    settings: WiringSettings,
    prepared: Prepared,
}

impl fmt::Debug for Wiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wiring").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl Wiring {
    /// Makes the region and starts to listen.
    ///
    /// # Errors
    /// What the system refuses: memory, sockets, an address that is not this host's.
    pub fn prepare(
        rank: usize,
        topology: Arc<Topology>,
        settings: WiringSettings,
    ) -> Result<Self, WiringError> {
        let layout = Arc::new(Layout::new(&topology, settings.sizes));
        let bytes = layout.region_bytes();
        let prepared = match settings.transport {
            Transport::Shm => Prepared::Shm(Handover::new(rank, bytes)?),
            Transport::Tcp => {
                let region = private(rank, bytes)?;
                let (listeners, places) = listen(rank, &topology, &settings.addresses)?;
                Prepared::Tcp { region, listeners, places }
            }
            Transport::Verbs => {
                let region = private(rank, bytes)?;
                let neighbours = verbs_ends(rank, &topology, &settings.addresses)?;
                let setup = VerbsSetup {
                    rank,
                    neighbours,
                    region: Arc::clone(&region),
                    settings: settings.verbs,
                };
                let ends = VerbsEnds::prepare(setup).map_err(|error| verbs(rank, error))?;
                Prepared::Verbs { region, ends }
            }
        };
        Ok(Self { rank, topology, layout, settings, prepared })
    }

    /// What the others need to connect to this rank. It is for members of the group only.
    pub fn blob(&self) -> Vec<u8> {
        match &self.prepared {
            Prepared::Shm(handover) => handover.name().to_vec(),
            Prepared::Tcp { places, .. } => places_text(places).into_bytes(),
            Prepared::Verbs { ends, .. } => ends.blob(),
        }
    }

    /// The devices in use, by the rank at the other end and the rail; none where there are no devices.
    pub fn devices(&self) -> Vec<(usize, usize, String)> {
        match &self.prepared {
            Prepared::Verbs { ends, .. } => ends.devices(),
            Prepared::Shm(_) | Prepared::Tcp { .. } => Vec::new(),
        }
    }

    /// Connects to the peers, whose blobs are given by rank. Nothing may be put before every
    /// rank has come back from this.
    ///
    /// # Errors
    /// The first neighbour that was not reached by the deadline.
    pub fn connect(
        self,
        epoch: u32,
        blobs: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<Fabric, WiringError> {
        let Self { rank, topology, layout, settings, prepared } = self;
        let unreadable = |peer: usize| WiringError::Blob {
            rank,
            peer,
            transport: settings.transport,
            told: blobs
                .get(peer)
                .map(|blob| String::from_utf8_lossy(blob).into_owned())
                .unwrap_or_default(),
        };
        let devices = match &prepared {
            Prepared::Verbs { ends, .. } => ends.ports(),
            Prepared::Shm(_) | Prepared::Tcp { .. } => Vec::new(),
        };
        let (device, parker, region, mapped): (Box<dyn Device>, Arc<dyn Parker>, _, _) =
            match prepared {
                Prepared::Shm(handover) => {
                    let mut names = vec![None; topology.ranks()];
                    for peer in topology.neighbours(rank) {
                        let blob = blobs.get(peer).map(Vec::as_slice).unwrap_or_default();
                        names[peer] = Some(blob.try_into().map_err(|_| unreadable(peer))?);
                    }
                    let region = handover.region();
                    let mapped = handover.exchange(epoch, &names, deadline)?;
                    let device =
                        ShmDevice::new(rank, Arc::clone(&region), &mapped, topology.rails());
                    let parker = ShmParker::new(Arc::clone(&region));
                    (Box::new(device), Arc::new(parker), region, mapped)
                }
                Prepared::Tcp { region, listeners, mut places } => {
                    let mut neighbours = Vec::new();
                    for peer in topology.neighbours(rank) {
                        let addresses = blobs
                            .get(peer)
                            .and_then(|blob| std::str::from_utf8(blob).ok())
                            .and_then(|told| places_for(rank, topology.rails(), told))
                            .ok_or_else(|| unreadable(peer))?;
                        let own = places.remove(&peer).unwrap_or_default();
                        neighbours.push(PeerEndpoint { rank: peer, addresses, own });
                    }
                    let (device, parker) = crate::tcp::connect(TcpSetup {
                        rank,
                        epoch,
                        neighbours,
                        rails: topology.rails(),
                        token: settings.token,
                        crc: settings.crc,
                        region: Arc::clone(&region),
                        listeners,
                        first_number: FIRST_NUMBER,
                        deadline,
                    })?;
                    (Box::new(device), parker, region, vec![None; topology.ranks()])
                }
                Prepared::Verbs { region, ends } => {
                    let (device, parker) =
                        ends.connect(blobs).map_err(|error| verbs(rank, error))?;
                    (Box::new(device), parker, region, vec![None; topology.ranks()])
                }
            };
        let endpoint = Endpoint::new(
            rank,
            epoch,
            &topology,
            Arc::clone(&layout),
            Arc::clone(&region),
            device,
            settings.endpoint,
        );
        let parts = FabricParts {
            rank,
            topology,
            layout,
            region,
            mapped,
            endpoint,
            stripe_bytes_min: settings.endpoint.stripe_bytes_min,
            arrivals_need_progress: settings.transport != Transport::Shm,
            waiting: settings.waiting,
        };
        let fabric = Fabric::new(parts, parker).with_devices(devices);
        fabric.start_progress().map_err(|source| WiringError::System {
            rank,
            what: "start its progress thread".to_owned(),
            source,
        })?;
        Ok(fabric)
    }
}

fn verbs(rank: usize, error: VerbsError) -> WiringError {
    WiringError::Verbs { rank, source: Box::new(error) }
}

fn private(rank: usize, bytes: u64) -> Result<Arc<Region>, WiringError> {
    let system = |source| WiringError::System {
        rank,
        what: format!("make a region of {bytes} bytes"),
        source,
    };
    Region::private(bytes).map(Arc::new).map_err(system)
}

/// The own end towards each rank with queue pairs, on each rail.
fn verbs_ends(
    rank: usize,
    topology: &Topology,
    addresses: &DataAddresses,
) -> Result<Vec<VerbsNeighbour>, WiringError> {
    let end = |peer, rail| -> Result<VerbsEnd, WiringError> {
        let none = WiringError::NoAddress { rank, peer };
        if topology.are_neighbours(rank, peer) {
            let address = addresses.of(peer, rail).ok_or(none)?;
            return Ok(VerbsEnd { rail, address, forwarded: None });
        }
        let (address, forwarded) = addresses.forwarded.get(&(peer, rail)).copied().ok_or(none)?;
        Ok(VerbsEnd { rail, address, forwarded: Some(forwarded) })
    };
    let of_peer = |peer| {
        let ends = topology.link_rails(rank, peer).into_iter().map(|rail| end(peer, rail));
        Ok(VerbsNeighbour { rank: peer, ends: ends.collect::<Result<_, _>>()? })
    };
    topology.linked(rank).map(of_peer).collect()
}

/// A listener for each address, and which of them is for which neighbour and rail.
fn listen(
    rank: usize,
    topology: &Topology,
    addresses: &DataAddresses,
) -> Result<(Vec<TcpListener>, Places), WiringError> {
    let mut listeners = Vec::new();
    let mut bound: BTreeMap<IpAddr, SocketAddr> = BTreeMap::new();
    let mut places = Places::new();
    for peer in topology.neighbours(rank) {
        for rail in 0..topology.rails() {
            let address = addresses.of(peer, rail).ok_or(WiringError::NoAddress { rank, peer })?;
            let place = match bound.get(&address) {
                Some(&place) => place,
                None => {
                    let bind = || {
                        let listener = TcpListener::bind(SocketAddr::new(address, 0))?;
                        Ok((listener.local_addr()?, listener))
                    };
                    let (place, listener) = bind().map_err(|source| WiringError::System {
                        rank,
                        what: format!("listen on {address}"),
                        source,
                    })?;
                    listeners.push(listener);
                    bound.insert(address, place);
                    place
                }
            };
            places.entry(peer).or_default().push(place);
        }
    }
    Ok((listeners, places))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_neighbour_is_told_its_own_addresses() {
        let topology = Topology::new(crate::Shape::Ring, 4, 2).unwrap();
        let local = |last| IpAddr::from([127, 0, 0, last]);
        let addresses = DataAddresses {
            any: vec![local(1)],
            towards: BTreeMap::from([(1, vec![local(2), local(3)])]),
            ..DataAddresses::default()
        };
        let (listeners, places) = listen(0, &topology, &addresses).unwrap();
        assert_eq!(listeners.len(), 3);
        let text = places_text(&places);
        let ips = |peer| {
            let places = places_for(peer, 2, &text)?;
            Some(places.iter().map(SocketAddr::ip).collect::<Vec<_>>())
        };
        assert_eq!(ips(1), Some(vec![local(2), local(3)]));
        assert_eq!(ips(3), Some(vec![local(1), local(1)]));
        assert_eq!(ips(2), None, "no neighbour");
        assert!(places_for(1, 3, &text).is_none(), "as many addresses as rails");
        for wrong in ["", "1", "1=", "1=x", "1=127.0.0.1:1,", "=127.0.0.1:1"] {
            assert!(places_for(1, 1, wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_neighbour_without_address_is_named() {
        let topology = Topology::new(crate::Shape::Path, 2, 1).unwrap();
        let error = listen(0, &topology, &DataAddresses::default()).unwrap_err();
        assert!(matches!(error, WiringError::NoAddress { rank: 0, peer: 1 }), "{error}");
    }
}
