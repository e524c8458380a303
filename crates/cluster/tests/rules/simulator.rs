//! Clusters of any size, hosts on which nothing was ever applied, and a host that carries changes out as Linux does.

use std::collections::BTreeMap;
use std::path::Path;

use cluster::address::Pci;
use cluster::file::{ClusterFile, Forward, MarkerKind, TagKind};
use cluster::inventory::Seen;
use cluster::inventory::host_state::{
    EgressFilter, Gid, HostState, Marker, Netdev, NetdevKind, PcieLink, RdmaDevice, RdmaPort,
    System,
};
use cluster::plan::{Plan, PlanOptions};
use cluster::rules::{Change, Comparison, MarkerRules, RuleOptions, When, compare, desired};

/// The four GB10 hosts of the fixture.
pub(crate) fn gb10() -> ClusterFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gb10-ring4/cluster.toml");
    ClusterFile::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The four hosts of `lab/roce`, whose devices are software.
pub(crate) fn soft_lab() -> ClusterFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/soft-ring4/cluster.toml");
    ClusterFile::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Hosts of two ports with two functions each; `cables` join port 0 of one to port 1 of the other.
pub(crate) fn cluster(hosts: usize, cables: &[(usize, usize)]) -> ClusterFile {
    let mut text = String::from("schema = \"railweave-cluster/1\"\n");
    let net = |host: usize, port: usize, function: usize| {
        cables.iter().position(|&(a, b)| (a, 0) == (host, port) || (b, 1) == (host, port)).map(
            |cable| {
                let end = if port == 0 { 1 } else { 2 };
                format!("address = \"10.{}.{function}.{end}/24\"\n", cable + 10)
            },
        )
    };
    for host in 0..hosts {
        text.push_str(&format!("[[host]]\nname = \"h{host}\"\nreach = \"ssh:h{host}\"\n"));
        for port in 0..2 {
            text.push_str(&format!("[[host.port]]\nname = \"p{port}\"\n"));
            for function in 0..2 {
                let domain = if function == 0 { "0000" } else { "0002" };
                let twin = if function == 0 { "" } else { "P2" };
                text.push_str(&format!(
                    "[[host.port.function]]\nmac = \"4c:bb:47:00:{host:02x}:{port}{function}\"\n{}netdev = \
                     \"en{twin}p1s0f{port}np{port}\"\nrdma = \"roce{twin}p1s0f{port}\"\npci = \"{domain}:01:00.{port}\"\n",
                    net(host, port, function).unwrap_or_default(),
                ));
            }
        }
    }
    for (a, b) in cables {
        text.push_str(&format!("[[cable]]\na = \"h{a}.p0\"\nb = \"h{b}.p1\"\n"));
    }
    ClusterFile::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A ring: port 0 of each host to port 1 of the next.
pub(crate) fn ring(hosts: usize) -> ClusterFile {
    let cables: Vec<_> = (0..hosts).map(|host| (host, (host + 1) % hosts)).collect();
    cluster(hosts, &cables)
}

/// The same hosts with devices that are software: without PCI functions, and the kernel passes packets on.
pub(crate) fn soft(mut file: ClusterFile) -> ClusterFile {
    file.marker = MarkerKind::Tc;
    let ports = file.hosts.iter_mut().flat_map(|host| &mut host.ports);
    for function in ports.flat_map(|port| &mut port.functions) {
        function.pci = None;
    }
    file
}

/// A chain.
pub(crate) fn path(hosts: usize) -> ClusterFile {
    let cables: Vec<_> = (1..hosts).map(|host| (host - 1, host)).collect();
    cluster(hosts, &cables)
}

pub(crate) fn plan(file: &ClusterFile, tag: TagKind) -> Plan {
    let options =
        PlanOptions { forward: Some(Forward::Auto), tag: Some(tag), ..PlanOptions::default() };
    Plan::of(file, &options).unwrap()
}

fn unknown<T>() -> Seen<T> {
    Seen::NotMeasured("not part of this test".to_owned())
}

/// A host as it is after a boot: addresses and MTU set by its own configuration, and nothing of Railweave's.
pub(crate) fn bare(file: &ClusterFile, rank: usize) -> HostState {
    let host = &file.hosts[rank];
    let mut netdevs = Vec::new();
    let mut rdma = Vec::new();
    let mut devlink = BTreeMap::new();
    let mut eswitch = BTreeMap::new();
    for function in host.ports.iter().flat_map(|port| &port.functions) {
        netdevs.push(Netdev {
            name: function.netdev.clone(),
            index: u32::try_from(netdevs.len()).unwrap() + 2,
            mac: Some(function.mac),
            mtu_bytes: file.mtu_bytes,
            admin_up: true,
            carrier: true,
            speed_mbps: Seen::Known(200_000),
            phys_port_name: None,
            phys_port_id: None,
            pci: function.pci,
            pcie: Seen::Known(PcieLink {
                speed_mts: 32_000,
                width: 4,
                max_speed_mts: 32_000,
                max_width: 4,
            }),
            addresses: function.address.into_iter().collect(),
            ipv6: Vec::new(),
            wireless: false,
            kind: NetdevKind::Physical,
            tc_offload: Seen::Known(false),
            bytes: (0, 0),
        });
        if let Some(name) = &function.rdma {
            rdma.push(RdmaDevice {
                name: name.clone(),
                pci: function.pci,
                firmware: unknown(),
                ports: vec![RdmaPort {
                    number: 1,
                    state: Seen::Known("ACTIVE".to_owned()),
                    active_mtu_bytes: Seen::Known(4096),
                    rate_mbps: unknown(),
                    netdev: Some(function.netdev.clone()),
                    gids: Vec::<Gid>::new(),
                    counters: BTreeMap::new(),
                }],
            });
        }
        if let Some(pci) = function.pci {
            devlink.insert(pci, default_parameters());
            eswitch.insert(pci, "legacy".to_owned());
        }
    }
    HostState {
        name: host.name.clone(),
        system: System {
            kernel: unknown(),
            command_line: unknown(),
            boot_id: unknown(),
            machine: unknown(),
            clock_ahead_ns: unknown(),
            ip_forward: unknown(),
            io_uring_disabled: unknown(),
            seccomp: unknown(),
            memlock_bytes: unknown(),
            cma_bytes: unknown(),
            forwarded_datagrams: unknown(),
            binary: unknown(),
            cluster_file: unknown(),
            environment: unknown(),
        },
        netdevs,
        addresses: Seen::Known(4),
        rdma,
        routes: Seen::Known(Vec::new()),
        neighbours: Seen::Known(Vec::new()),
        filters: Seen::Known(Vec::new()),
        egress: Seen::Known(Vec::new()),
        devlink: Seen::Known(devlink),
        eswitch: Seen::Known(eswitch),
        lldp: unknown(),
        markers: Seen::Known(Vec::new()),
        firewall: unknown(),
        drives: unknown(),
    }
}

/// What the driver starts with.
fn default_parameters() -> BTreeMap<String, String> {
    [("hairpin_num_queues", "2"), ("hairpin_queue_size", "1024"), ("flow_steering_mode", "smfs")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

pub(crate) fn known<T>(seen: &mut Seen<T>) -> &mut T {
    match seen {
        Seen::Known(value) => value,
        Seen::NotMeasured(why) => panic!("not measured: {why}"),
    }
}

/// A host, and which of its netdevs have a queueing discipline for filters.
#[derive(Clone)]
pub(crate) struct Sim {
    pub(crate) state: HostState,
    qdiscs: Vec<String>,
    marker_pid: u32,
    /// Whether something on the host (netplan) sets addresses again when a netdev comes back.
    pub(crate) managed: bool,
}

impl Sim {
    pub(crate) fn new(state: HostState) -> Self {
        let filters = state.filters.known().into_iter().flatten();
        let qdiscs = filters.map(|filter| filter.netdev.clone()).collect();
        Self { state, qdiscs, marker_pid: 5000, managed: true }
    }

    pub(crate) fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            self.step(change).unwrap_or_else(|why| panic!("{}: {why}", change.argv().join(" ")));
        }
    }

    fn netdev(&mut self, name: &str) -> Result<&mut Netdev, String> {
        let found = self.state.netdevs.iter_mut().find(|netdev| netdev.name == name);
        found.ok_or_else(|| format!("Cannot find device {name}"))
    }

    /// Carries one change out, or fails as the command would.
    pub(crate) fn step(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::StopMarker { device, pid, .. } => {
                let markers = known(&mut self.state.markers);
                let before = markers.len();
                markers.retain(|marker| (&marker.rdma, marker.pid) != (device, *pid));
                if markers.len() == before { Err("not loaded".to_owned()) } else { Ok(()) }
            }
            Change::StopAllMarkers => {
                known(&mut self.state.markers).clear();
                Ok(())
            }
            Change::RemoveFilter { filter } => {
                let filters = known(&mut self.state.filters);
                let before = filters.len();
                filters.retain(|one| {
                    (&one.netdev, one.preference, one.handle)
                        != (&filter.netdev, filter.preference, filter.handle)
                });
                if filters.len() == before { Err("no such filter".to_owned()) } else { Ok(()) }
            }
            Change::RemoveNeighbour { neighbour } => {
                let all = known(&mut self.state.neighbours);
                let before = all.len();
                all.retain(|one| (one.ip, &one.netdev) != (neighbour.ip, &neighbour.netdev));
                if all.len() == before { Err("no such neighbour".to_owned()) } else { Ok(()) }
            }
            Change::RemoveRoute { route } => {
                let all = known(&mut self.state.routes);
                let before = all.len();
                all.retain(|one| {
                    (one.to, &one.netdev, &one.protocol)
                        != (route.to, &route.netdev, &route.protocol)
                });
                if all.len() == before { Err("No such process".to_owned()) } else { Ok(()) }
            }
            Change::SetParameter { pci, name, value, when, .. } => {
                let all = known(&mut self.state.devlink).get_mut(pci).ok_or("no such device")?;
                let old = all.insert(name.clone(), value.clone()).ok_or("no such parameter")?;
                let driver = matches!(when, When::DriverInit);
                assert_eq!(driver, name.starts_with("hairpin"), "{name} was {old}");
                Ok(())
            }
            Change::Reload { pci, netdev } => self.reload(*pci, netdev),
            Change::WaitFor { netdev, address } => {
                let found = self.netdev(netdev)?;
                match address {
                    Some(address) if !found.addresses.contains(address) => {
                        Err(format!("{address} did not come back"))
                    }
                    _ => Ok(()),
                }
            }
            Change::SetOffload { netdev } => {
                self.netdev(netdev)?.tc_offload = Seen::Known(true);
                Ok(())
            }
            Change::LinkUp { netdev } => {
                self.netdev(netdev)?.admin_up = true;
                Ok(())
            }
            Change::SetMtu { netdev, mtu_bytes, .. } => {
                self.netdev(netdev)?.mtu_bytes = *mtu_bytes;
                Ok(())
            }
            Change::AddAddress { netdev, address } => {
                let netdev = self.netdev(netdev)?;
                if !netdev.addresses.contains(address) {
                    netdev.addresses.push(*address);
                }
                Ok(())
            }
            Change::AddRoute(spec) => {
                let netdev = self.netdev(&spec.netdev)?;
                if !netdev.admin_up {
                    return Err("Network is down".to_owned());
                }
                let source =
                    |netdev: &Netdev| netdev.addresses.iter().any(|own| own.ip == spec.from);
                if !self.state.netdevs.iter().any(source) {
                    return Err("Invalid prefsrc address".to_owned());
                }
                let routes = known(&mut self.state.routes);
                if routes.iter().any(|route| route.to == spec.as_seen().to) {
                    return Err("File exists".to_owned());
                }
                routes.push(spec.as_seen());
                Ok(())
            }
            Change::SetNeighbour(spec) => {
                self.netdev(&spec.netdev)?;
                let all = known(&mut self.state.neighbours);
                all.retain(|one| (one.ip, &one.netdev) != (spec.ip, &spec.netdev));
                all.push(spec.as_seen());
                Ok(())
            }
            Change::AddQdisc { netdev } => {
                self.netdev(netdev)?;
                if !self.qdiscs.contains(netdev) {
                    self.qdiscs.push(netdev.clone());
                }
                Ok(())
            }
            Change::AddFilter(spec) => {
                for name in [&spec.netdev, &spec.redirect_to] {
                    let netdev = self.netdev(name)?;
                    if spec.software {
                        continue;
                    }
                    if netdev.tc_offload != Seen::Known(true) {
                        return Err("Operation not supported".to_owned());
                    }
                    let pci = netdev.pci.ok_or("Operation not supported")?;
                    let parameters = &known(&mut self.state.devlink)[&pci];
                    assert_eq!(parameters["flow_steering_mode"], "hmfs");
                    assert_eq!(parameters["hairpin_queue_size"], "8192");
                }
                if !self.qdiscs.contains(&spec.netdev) {
                    return Err("Parent Qdisc doesn't exists".to_owned());
                }
                let filters = known(&mut self.state.filters);
                let here = filters.iter().filter(|one| one.netdev == spec.netdev);
                if here.into_iter().any(|one| one.preference == spec.preference) {
                    return Err("File exists".to_owned());
                }
                filters.push(spec.as_seen());
                Ok(())
            }
            Change::StartMarker { device, rules, .. } => {
                if !self.state.rdma.iter().any(|rdma| rdma.name == *device) {
                    return Err("no such device".to_owned());
                }
                let markers = known(&mut self.state.markers);
                if markers.iter().any(|marker| marker.rdma == *device) {
                    return Err("Unit was already loaded".to_owned());
                }
                self.marker_pid += 1;
                markers.push(marker(device, self.marker_pid, rules));
                Ok(())
            }
            Change::AddMark(spec) => {
                self.netdev(&spec.netdev)?;
                if !self.qdiscs.contains(&spec.netdev) {
                    return Err("Parent Qdisc doesn't exists".to_owned());
                }
                let filters = known(&mut self.state.egress);
                let same = |one: &EgressFilter| {
                    one.netdev == spec.netdev && one.preference == spec.preference
                };
                if filters.iter().any(same) {
                    return Err("File exists".to_owned());
                }
                filters.push(spec.as_seen());
                Ok(())
            }
            Change::RemoveMark { filter } => {
                let filters = known(&mut self.state.egress);
                let before = filters.len();
                filters.retain(|one| {
                    (&one.netdev, one.preference, one.handle)
                        != (&filter.netdev, filter.preference, filter.handle)
                });
                if filters.len() == before { Err("no such filter".to_owned()) } else { Ok(()) }
            }
            other => panic!("unknown change {other:?}"),
        }
    }

    /// The netdev goes and comes back: without its routes, neighbours, filters, addresses, and with the driver's own
    /// settings. Filters of others that led to it lead nowhere.
    fn reload(&mut self, pci: Pci, name: &str) -> Result<(), String> {
        let managed = self.managed;
        let netdev = self.netdev(name)?;
        if netdev.pci != Some(pci) {
            return Err("no such device".to_owned());
        }
        netdev.tc_offload = Seen::Known(false);
        if !managed {
            netdev.addresses.clear();
            netdev.admin_up = false;
            netdev.mtu_bytes = 1500;
        }
        let device = self.state.rdma.iter().find(|rdma| rdma.pci == Some(pci));
        let device = device.map(|rdma| rdma.name.clone());
        known(&mut self.state.routes).retain(|route| route.netdev != name);
        known(&mut self.state.neighbours).retain(|neighbour| neighbour.netdev != name);
        let filters = known(&mut self.state.filters);
        filters.retain(|filter| filter.netdev != name);
        for filter in filters.iter_mut() {
            if filter.redirect_to.as_deref() == Some(name) {
                filter.redirect_to = None;
            }
        }
        self.qdiscs.retain(|netdev| netdev != name);
        let parameters = known(&mut self.state.devlink).get_mut(&pci).ok_or("no such device")?;
        parameters.insert("flow_steering_mode".to_owned(), "smfs".to_owned());
        let markers = known(&mut self.state.markers);
        let lost = markers.iter().find(|marker| Some(&marker.rdma) == device.as_ref());
        assert_eq!(lost, None, "a marker's device was taken away under it");
        Ok(())
    }
}

pub(crate) fn marker(device: &str, pid: u32, rules: &MarkerRules) -> Marker {
    let (source_port, ether_type, destinations) = match rules {
        MarkerRules::SourcePort { port, ether_type } => {
            (Some(*port), Some(*ether_type), Vec::new())
        }
        MarkerRules::Destinations(all) => {
            (None, None, all.iter().map(|(ip, tag)| (*ip, *tag)).collect())
        }
        MarkerRules::Filters(_) => panic!("no program does that"),
    };
    Marker { rdma: device.to_owned(), pid, source_port, destinations, ether_type, lasting: true }
}

pub(crate) fn look(plan: &Plan, rank: usize, state: &HostState) -> Comparison {
    compare(&desired(plan, rank, &RuleOptions::default()), state)
}

/// All hosts after everything was applied.
pub(crate) fn applied(file: &ClusterFile, plan: &Plan) -> Vec<Sim> {
    (0..file.hosts.len())
        .map(|rank| {
            let mut sim = Sim::new(bare(file, rank));
            let comparison = look(plan, rank, &sim.state);
            sim.apply(comparison.ready().unwrap_or_else(|why| panic!("{why:?}")));
            sim
        })
        .collect()
}
