//! From settings to a working [`Fabric`]: prepare, tell the others, connect.

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

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Memory that the ranks of one machine share.
    Shm,
    /// Sockets.
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        })
    }
}

impl FromStr for Transport {
    type Err = WiringError;

    fn from_str(text: &str) -> Result<Self, WiringError> {
        match text {
            "shm" => Ok(Self::Shm),
            "tcp" => Ok(Self::Tcp),
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
    /// Where to listen for neighbours: an address for each rail, or one for all.
    pub addresses: Vec<IpAddr>,
    /// The group's secret.
    pub token: Token,
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
    /// A transport that is none of ours.
    #[error("unknown transport {0:?}: use shm or tcp")]
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
    Tcp { region: Arc<Region>, listeners: Vec<TcpListener> },
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
                let region = Region::private(bytes).map_err(|source| WiringError::System {
                    rank,
                    what: format!("make a region of {bytes} bytes"),
                    source,
                })?;
                let listen = |address: &IpAddr| {
                    TcpListener::bind(SocketAddr::new(*address, 0)).map_err(|source| {
                        let what = format!("listen on {address}");
                        WiringError::System { rank, what, source }
                    })
                };
                let listeners = settings.addresses.iter().map(listen).collect::<Result<_, _>>()?;
                Prepared::Tcp { region: Arc::new(region), listeners }
            }
        };
        Ok(Self { rank, topology, layout, settings, prepared })
    }

    /// What the others need to connect to this rank. It is for members of the group only.
    ///
    /// # Errors
    /// When the system does not tell a listener's address.
    pub fn blob(&self) -> Result<Vec<u8>, WiringError> {
        match &self.prepared {
            Prepared::Shm(handover) => Ok(handover.name().to_vec()),
            Prepared::Tcp { listeners, .. } => {
                let addresses = listeners
                    .iter()
                    .map(|listener| Ok(listener.local_addr()?.to_string()))
                    .collect::<io::Result<Vec<_>>>()
                    .map_err(|source| WiringError::System {
                        rank: self.rank,
                        what: "learn its own address".to_owned(),
                        source,
                    })?;
                Ok(addresses.join(" ").into_bytes())
            }
        }
    }

    /// Connects to the neighbours, whose blobs are given by rank. Nothing may be put before every
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
                Prepared::Tcp { region, listeners } => {
                    let mut neighbours = Vec::new();
                    for peer in topology.neighbours(rank) {
                        let told = blobs.get(peer).and_then(|blob| std::str::from_utf8(blob).ok());
                        let addresses = told
                            .unwrap_or_default()
                            .split_whitespace()
                            .map(|address| address.parse().map_err(|_| unreadable(peer)))
                            .collect::<Result<Vec<SocketAddr>, _>>()?;
                        let last = *addresses.last().ok_or_else(|| unreadable(peer))?;
                        let addresses = (0..topology.rails())
                            .map(|rail| addresses.get(rail).copied().unwrap_or(last))
                            .collect();
                        neighbours.push(PeerEndpoint { rank: peer, addresses });
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
            arrivals_need_progress: settings.transport == Transport::Tcp,
            waiting: settings.waiting,
        };
        let fabric = Fabric::new(parts, parker);
        fabric.start_progress().map_err(|source| WiringError::System {
            rank,
            what: "start its progress thread".to_owned(),
            source,
        })?;
        Ok(fabric)
    }
}
