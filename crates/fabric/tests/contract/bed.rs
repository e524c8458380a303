//! What a transport brings to the suite.

use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fabric::auth::Token;
use fabric::shm::ShmDevice;
use fabric::sim::{Bug, Fault, SimSettings, World};
use fabric::tcp::{PeerEndpoint, TcpSetup, connect};
use fabric::verbs::double::{DoubleSettings, World as Double};
use fabric::verbs::{VerbsEnd, VerbsEnds, VerbsError, VerbsNeighbour, VerbsSettings, VerbsSetup};
use fabric::{Device, Region, Topology};

/// What a case asks for.
pub(crate) struct Setup {
    pub(crate) topology: Topology,
    pub(crate) region_bytes: u64,
    /// The number of the first write of every rank to every peer.
    pub(crate) first_number: u32,
    /// A seed, where the transport has any use for one.
    pub(crate) variant: u64,
}

/// Connected devices, one for each rank.
pub(crate) trait Bed {
    /// The devices and the ranks' own regions; called once.
    fn parts(&mut self) -> (Vec<Box<dyn Device>>, Vec<Arc<Region>>);

    /// Lets a little time go by. Answers false when nothing more can happen by itself.
    fn pass(&mut self) -> bool;

    /// How long nothing must move before nothing more is expected.
    fn quiet_after(&self) -> Duration;

    /// Stops a rank below its device. The suite does not poll a stopped rank.
    fn freeze(&mut self, rank: usize) {
        let _ = rank;
    }

    /// Lets it go on.
    fn thaw(&mut self, rank: usize) {
        let _ = rank;
    }
}

/// A kind of device.
pub(crate) trait Transport {
    const NAME: &'static str;
    /// How often each case runs, with another variant each time.
    const VARIANTS: u64;

    fn build(setup: Setup) -> Box<dyn Bed>;
}

pub(crate) struct SimTransport;

impl Transport for SimTransport {
    const NAME: &'static str = "sim";
    const VARIANTS: u64 = 40;

    fn build(setup: Setup) -> Box<dyn Bed> {
        sim_bed(setup, None)
    }
}

/// A transport whose flags come too early, to see whether the suite finds it.
pub(crate) struct EarlyFlags;

impl Transport for EarlyFlags {
    const NAME: &'static str = "a sim with early flags";
    const VARIANTS: u64 = 40;

    fn build(setup: Setup) -> Box<dyn Bed> {
        sim_bed(setup, Some(Bug::FlagBeforeBytes))
    }
}

/// A transport that lands repeats, to see whether the suite finds it.
pub(crate) struct Repeats;

impl Transport for Repeats {
    const NAME: &'static str = "a sim that lands repeats";
    const VARIANTS: u64 = 40;

    fn build(setup: Setup) -> Box<dyn Bed> {
        sim_bed(setup, Some(Bug::NoInbox))
    }
}

fn sim_bed(setup: Setup, bug: Option<Bug>) -> Box<dyn Bed> {
    let settings = SimSettings {
        seed: setup.variant,
        region_bytes: setup.region_bytes,
        first_number: setup.first_number,
        outstanding_max: 16,
        bug,
        ..SimSettings::default()
    };
    let settings = match setup.variant % 4 {
        // Only chance decides the order.
        0 => SimSettings {
            latency_min: Duration::ZERO,
            latency_max: Duration::ZERO,
            jitter: Duration::ZERO,
            ..settings
        },
        1 => SimSettings { jitter: Duration::from_millis(1), ..settings },
        // Many frames are on their way at once.
        2 => SimSettings { bandwidth_bytes_per_second: 10_000_000, ..settings },
        _ => settings,
    };
    Box::new(SimBed(World::new(setup.topology, settings).unwrap()))
}

struct SimBed(World);

impl Bed for SimBed {
    fn parts(&mut self) -> (Vec<Box<dyn Device>>, Vec<Arc<Region>>) {
        let mut devices: Vec<Box<dyn Device>> = Vec::new();
        let mut regions = Vec::new();
        for rank in 0..self.0.ranks() {
            devices.push(Box::new(self.0.device(rank)));
            regions.push(self.0.region(rank));
        }
        (devices, regions)
    }

    fn pass(&mut self) -> bool {
        self.0.step()
    }

    fn quiet_after(&self) -> Duration {
        Duration::ZERO
    }

    fn freeze(&mut self, rank: usize) {
        self.0.inject(Fault::Freeze { rank });
    }

    fn thaw(&mut self, rank: usize) {
        self.0.inject(Fault::Thaw { rank });
    }
}

pub(crate) struct ShmTransport;

impl Transport for ShmTransport {
    const NAME: &'static str = "shm";
    const VARIANTS: u64 = 3;

    fn build(setup: Setup) -> Box<dyn Bed> {
        Box::new(ShmBed(setup))
    }
}

struct ShmBed(Setup);

impl Bed for ShmBed {
    fn parts(&mut self) -> (Vec<Box<dyn Device>>, Vec<Arc<Region>>) {
        let Setup { topology, region_bytes, .. } = &self.0;
        let shared: Vec<_> =
            (0..topology.ranks()).map(|_| Region::shared(*region_bytes).unwrap()).collect();
        let mut devices: Vec<Box<dyn Device>> = Vec::new();
        let mut regions = Vec::new();
        for rank in 0..topology.ranks() {
            let own = Arc::new(Region::map(&shared[rank].1, *region_bytes).unwrap());
            let mut peers = vec![None; topology.ranks()];
            for peer in topology.neighbours(rank) {
                let mapped = Region::map(&shared[peer].1, *region_bytes).unwrap();
                peers[peer] = Some(Arc::new(mapped));
            }
            devices.push(Box::new(ShmDevice::new(
                rank,
                Arc::clone(&own),
                &peers,
                topology.rails(),
            )));
            regions.push(own);
        }
        (devices, regions)
    }

    fn pass(&mut self) -> bool {
        thread::yield_now();
        true
    }

    fn quiet_after(&self) -> Duration {
        Duration::from_millis(1)
    }
}

pub(crate) struct TcpTransport;

impl Transport for TcpTransport {
    const NAME: &'static str = "tcp";
    const VARIANTS: u64 = 5;

    fn build(setup: Setup) -> Box<dyn Bed> {
        Box::new(TcpBed(setup))
    }
}

struct TcpBed(Setup);

impl Bed for TcpBed {
    fn parts(&mut self) -> (Vec<Box<dyn Device>>, Vec<Arc<Region>>) {
        let Setup { topology, region_bytes, first_number, .. } = &self.0;
        let listeners: Vec<_> =
            (0..topology.ranks()).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> =
            listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let mut regions = Vec::new();
        let mut joins = Vec::new();
        for (rank, listener) in listeners.into_iter().enumerate() {
            let region = Arc::new(Region::private(*region_bytes).unwrap());
            regions.push(Arc::clone(&region));
            let endpoint = |peer| PeerEndpoint {
                rank: peer,
                addresses: vec![addresses[peer]; topology.rails()],
                own: vec![addresses[rank]; topology.rails()],
            };
            let setup = TcpSetup {
                rank,
                epoch: 3,
                neighbours: topology.neighbours(rank).map(endpoint).collect(),
                rails: topology.rails(),
                token: Token::new("of the contract suite").unwrap(),
                crc: true,
                region,
                listeners: vec![listener],
                first_number: *first_number,
                deadline: Instant::now() + Duration::from_secs(20),
            };
            joins.push(thread::spawn(move || connect(setup).unwrap().0));
        }
        let boxed = |join: thread::JoinHandle<_>| Box::new(join.join().unwrap()) as Box<dyn Device>;
        (joins.into_iter().map(boxed).collect(), regions)
    }

    fn pass(&mut self) -> bool {
        true
    }

    fn quiet_after(&self) -> Duration {
        Duration::from_millis(5)
    }
}

/// The verbs transport over a double of its devices.
pub(crate) struct DoubleTransport;

impl Transport for DoubleTransport {
    const NAME: &'static str = "verbs over a double";
    const VARIANTS: u64 = 20;

    fn build(setup: Setup) -> Box<dyn Bed> {
        let settings = DoubleSettings { seed: setup.variant, ..DoubleSettings::default() };
        let micro = Duration::from_micros(1);
        let settings = match setup.variant % 4 {
            // Only chance decides the order.
            0 => DoubleSettings { delay: (Duration::ZERO, Duration::ZERO), ..settings },
            1 => DoubleSettings { delay: (micro, 200 * micro), packet_bytes: 4096, ..settings },
            // Many packets are on their way at once, and some are lost.
            2 => DoubleSettings { kilobyte: 10 * micro, lost_permille: 10, ..settings },
            _ => settings,
        };
        let world = Double::new(&setup.topology, settings);
        Box::new(DoubleBed { setup, world, idle: 0 })
    }
}

struct DoubleBed {
    setup: Setup,
    world: Double,
    /// Milliseconds in which nothing happened.
    idle: u32,
}

impl Bed for DoubleBed {
    fn parts(&mut self) -> (Vec<Box<dyn Device>>, Vec<Arc<Region>>) {
        let Setup { topology, region_bytes, .. } = &self.setup;
        let settings = VerbsSettings {
            // A packet that was lost is sent again after 0.26 ms.
            timeout: 6,
            stall_limit: Duration::from_millis(100),
            ..VerbsSettings::default()
        };
        verbs_parts(
            topology,
            *region_bytes,
            settings,
            |rank, peer, rail| self.world.end(rank, peer, rail),
            |setup| self.world.prepare(setup),
        )
    }

    fn pass(&mut self) -> bool {
        if self.world.step() {
            self.idle = 0;
            return true;
        }
        self.world.advance(Duration::from_millis(1));
        self.idle += 1;
        // Looks of a device that see to what stalls are this far apart.
        self.idle < 3000
    }

    fn quiet_after(&self) -> Duration {
        Duration::ZERO
    }
}

/// Devices whose ends are made and joined.
fn verbs_parts(
    topology: &Topology,
    region_bytes: u64,
    settings: VerbsSettings,
    end: impl Fn(usize, usize, usize) -> VerbsEnd,
    prepare: impl Fn(VerbsSetup) -> Result<VerbsEnds, VerbsError>,
) -> (Vec<Box<dyn Device>>, Vec<Arc<Region>>) {
    let mut regions = Vec::new();
    let mut all = Vec::new();
    for rank in 0..topology.ranks() {
        let region = Arc::new(Region::private(region_bytes).unwrap());
        regions.push(Arc::clone(&region));
        let neighbour = |peer| VerbsNeighbour {
            rank: peer,
            ends: (0..topology.rails()).map(|rail| end(rank, peer, rail)).collect(),
        };
        let neighbours = topology.neighbours(rank).map(neighbour).collect();
        all.push(prepare(VerbsSetup { rank, neighbours, region, settings }).unwrap());
    }
    let blobs: Vec<_> = all.iter().map(VerbsEnds::blob).collect();
    let boxed = |ends: VerbsEnds| Box::new(ends.connect(&blobs).unwrap().0) as Box<dyn Device>;
    (all.into_iter().map(boxed).collect(), regions)
}

/// Queue pairs between the soft-RoCE devices of the lab's single machine: a ring of four cables of
/// two rails each, whose ends have the addresses 10.10.n.1 and 10.10.n.2.
pub(crate) struct VerbsTransport;

impl Transport for VerbsTransport {
    const NAME: &'static str = "verbs";
    const VARIANTS: u64 = 3;

    fn build(setup: Setup) -> Box<dyn Bed> {
        assert!(std::env::var_os("ROCE_LAB").is_some(), "run it in the lab, with ROCE_LAB=1");
        Box::new(VerbsBed(setup))
    }
}

struct VerbsBed(Setup);

impl VerbsBed {
    fn address(rank: usize, peer: usize, rail: usize) -> IpAddr {
        let wire = (rank + peer) % 4 * 2 + rail;
        IpAddr::from([10, 10, wire as u8, if rank < peer { 1 } else { 2 }])
    }
}

impl Bed for VerbsBed {
    fn parts(&mut self) -> (Vec<Box<dyn Device>>, Vec<Arc<Region>>) {
        let Setup { topology, region_bytes, .. } = &self.0;
        let end = |rank, peer, rail| VerbsEnd {
            rail,
            address: Self::address(rank, peer, rail),
            forwarded: None,
        };
        let settings = VerbsSettings::default();
        verbs_parts(topology, *region_bytes, settings, end, VerbsEnds::prepare)
    }

    fn pass(&mut self) -> bool {
        thread::yield_now();
        true
    }

    fn quiet_after(&self) -> Duration {
        Duration::from_millis(20)
    }
}
