//! From the states of hosts to a cluster file.

#![allow(clippy::unwrap_used, reason = "a fixture that fails is a test that fails")]

use std::collections::{BTreeMap, BTreeSet};

use cluster::address::{Interface, Mac};
use cluster::discover::{DiscoverError, Observed, Probe, discover, parse_probes, probe_script};
use cluster::file::ClusterFile;
use cluster::inventory::Seen;
use cluster::inventory::host_state::{
    HostState, LldpNeighbour, Netdev, NetdevKind, RdmaDevice, RdmaPort, Route, System,
};

fn unmeasured<T>() -> Seen<T> {
    Seen::NotMeasured("not part of the test".to_owned())
}

fn netdev(name: &str, index: u32, mac: &str, address: &str) -> Netdev {
    Netdev {
        name: name.to_owned(),
        index,
        mac: Some(mac.parse().unwrap()),
        mtu_bytes: 9000,
        admin_up: true,
        carrier: true,
        speed_mbps: unmeasured(),
        phys_port_name: None,
        phys_port_id: None,
        pci: None,
        pcie: unmeasured(),
        addresses: if address.is_empty() { Vec::new() } else { vec![address.parse().unwrap()] },
        ipv6: Vec::new(),
        wireless: false,
        kind: NetdevKind::Veth,
        tc_offload: unmeasured(),
        bytes: (0, 0),
    }
}

fn state(name: &str, netdevs: Vec<Netdev>) -> HostState {
    HostState {
        name: name.to_owned(),
        system: System {
            kernel: unmeasured(),
            command_line: unmeasured(),
            boot_id: unmeasured(),
            machine: unmeasured(),
            clock_ahead_ns: unmeasured(),
            ip_forward: unmeasured(),
            io_uring_disabled: unmeasured(),
            seccomp: unmeasured(),
            memlock_bytes: unmeasured(),
            cma_bytes: unmeasured(),
            forwarded_datagrams: unmeasured(),
            binary: unmeasured(),
            cluster_file: unmeasured(),
            environment: unmeasured(),
        },
        netdevs,
        addresses: Seen::Known(0),
        rdma: Vec::new(),
        routes: Seen::Known(Vec::new()),
        neighbours: unmeasured(),
        filters: unmeasured(),
        egress: unmeasured(),
        devlink: unmeasured(),
        eswitch: unmeasured(),
        lldp: Seen::Known(Vec::new()),
        markers: unmeasured(),
        firewall: unmeasured(),
        drives: unmeasured(),
    }
}

fn observed(state: HostState, probes: Vec<Probe>) -> Observed {
    Observed { name: None, reach: format!("netns:{}", state.name), control: None, state, probes }
}

fn answer(netdev: &str, macs: &[&str]) -> Probe {
    let macs: BTreeSet<Mac> = macs.iter().map(|mac| mac.parse().unwrap()).collect();
    Probe { netdev: netdev.to_owned(), macs: Seen::Known(macs) }
}

/// Four hosts of the lab in a ring: cable `i` joins host `i` to the next, two functions each.
fn lab() -> Vec<Observed> {
    let mac = |host: usize, side: usize, number: usize| {
        format!("02:00:00:{host:02x}:{side:02x}:{number:02x}")
    };
    (0..4)
        .map(|host| {
            let (mut netdevs, mut probes) = (Vec::new(), Vec::new());
            for (side, other) in [(0, (host + 1) % 4), (1, (host + 3) % 4)] {
                for number in 0..2 {
                    let name = format!("x{side}{number}");
                    let index = u32::try_from(2 + side * 2 + number).unwrap();
                    netdevs.push(netdev(&name, index, &mac(host, side, number), ""));
                    probes.push(answer(&name, &[&mac(other, 1 - side, number)]));
                }
            }
            observed(state(&format!("n{host}"), netdevs), probes)
        })
        .collect()
}

#[test]
fn a_lab_ring_is_found_by_who_answers() {
    let found = discover(&lab()).unwrap();
    let cables: Vec<(&str, &str)> =
        found.file.cables.iter().map(|cable| (cable.a.as_str(), cable.b.as_str())).collect();
    assert_eq!(
        cables,
        [("n0.p0", "n1.p1"), ("n0.p1", "n3.p0"), ("n1.p0", "n2.p1"), ("n2.p0", "n3.p1")]
    );
    for host in &found.file.hosts {
        assert_eq!(host.ports.len(), 2, "{}", host.name);
        assert!(host.ports.iter().all(|port| port.functions.len() == 2), "{}", host.name);
    }
    assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
    assert!(
        found.notes[0].starts_with("16 of 16 functions have no address of use"),
        "{:?}",
        found.notes
    );
}

#[test]
fn addresses_are_given_out_per_cable_and_function_and_make_a_valid_file() {
    let mut hosts = lab();
    let taken = netdev("mgmt", 1, "02:00:00:00:09:09", "10.10.1.7/24");
    hosts[0].state.netdevs.push(Netdev { carrier: false, ..taken });
    let found = discover(&hosts).unwrap().with_addresses("10.10.0.0/16".parse().unwrap()).unwrap();
    let file = ClusterFile::parse(&found.file.to_text()).unwrap();
    let of = |host: usize, port: usize, number: usize| {
        file.hosts[host].ports[port].functions[number].address.unwrap().to_string()
    };
    assert_eq!((of(0, 0, 0), of(1, 1, 0)), ("10.10.0.1/24".to_owned(), "10.10.0.2/24".to_owned()));
    // 10.10.1.0/24 is the management network of a host.
    assert_eq!((of(0, 0, 1), of(1, 1, 1)), ("10.10.2.1/24".to_owned(), "10.10.2.2/24".to_owned()));
    assert!(
        !found.notes.iter().any(|note| note.contains("no address of use")),
        "{:?}",
        found.notes
    );
    let small = discover(&lab()).unwrap().with_addresses("10.10.0.0/23".parse().unwrap());
    let base: Interface = "10.10.0.0/23".parse().unwrap();
    assert_eq!(small, Err(DiscoverError::Room { base, room: 2, needed: 8 }));
}

#[test]
fn functions_line_up_with_the_other_end_whatever_their_index() {
    let mut hosts = lab();
    for netdev in &mut hosts[1].state.netdevs {
        netdev.index = 100 - netdev.index;
    }
    let file = discover(&hosts).unwrap().file;
    let mac = |host: usize, port: &str, number: usize| {
        file.hosts[host].ports.iter().find(|one| one.name == port).unwrap().functions[number]
            .mac
            .to_string()
    };
    let cable = file.cables.iter().find(|cable| cable.a == "n0.p0").unwrap();
    let far = cable.b.strip_prefix("n1.").unwrap();
    assert_eq!(mac(0, "p0", 0), "02:00:00:00:00:00");
    assert_eq!(mac(1, far, 0), "02:00:00:01:01:00");
}

fn gb10(host: u8, links: [&str; 2]) -> HostState {
    let mut netdevs = Vec::new();
    let mut rdma = Vec::new();
    let mut lldp = Vec::new();
    for port in 0..2_u8 {
        for domain in 0..2_u8 {
            let name = format!("e{domain}{port}");
            let mac = format!("4c:bb:47:00:{host:02x}:{port}{domain}");
            let mut one = netdev(&name, u32::from(9 - port * 2 - domain), &mac, "");
            one.kind = NetdevKind::Physical;
            one.phys_port_name = Some(format!("p{port}"));
            one.pci = Some(format!("000{}:01:00.{port}", domain * 2).parse().unwrap());
            rdma.push(RdmaDevice {
                name: format!("roce{domain}{port}"),
                pci: one.pci,
                firmware: unmeasured(),
                ports: vec![RdmaPort {
                    number: 1,
                    state: unmeasured(),
                    active_mtu_bytes: unmeasured(),
                    rate_mbps: unmeasured(),
                    netdev: Some(name.clone()),
                    gids: Vec::new(),
                    counters: BTreeMap::new(),
                }],
            });
            // A frame of LLDP reaches both functions of a port, and says which function sent it.
            let mac = links[usize::from(port)];
            if !mac.is_empty() {
                lldp.push(LldpNeighbour {
                    netdev: name,
                    system: None,
                    mac: Some(mac.parse().unwrap()),
                });
            }
            netdevs.push(one);
        }
    }
    let mut uplink = netdev(
        "lan",
        1,
        &format!("02:00:00:00:{host:02x}:ff"),
        &format!("192.168.1.{}/24", 10 + host),
    );
    uplink.kind = NetdevKind::Physical;
    netdevs.push(uplink);
    let mut state = state(&format!("spark{host}.lan"), netdevs);
    state.rdma = rdma;
    state.lldp = Seen::Known(lldp);
    state.routes = Seen::Known(vec![Route {
        to: "0.0.0.0/0".parse().unwrap(),
        via: None,
        netdev: "lan".to_owned(),
        source: None,
        protocol: "dhcp".to_owned(),
        scope: None,
        dead: false,
    }]);
    state
}

#[test]
fn two_functions_of_a_gb10_are_one_port_and_the_default_route_is_for_control() {
    let hosts = [
        observed(gb10(0, ["4c:bb:47:00:01:10", ""]), Vec::new()),
        observed(gb10(1, ["", "4c:bb:47:00:00:00"]), Vec::new()),
    ];
    let found = discover(&hosts).unwrap();
    let names: Vec<&str> = found.file.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["spark0", "spark1"]);
    assert_eq!(found.file.hosts[1].control.as_deref(), Some("192.168.1.11"));
    let cables: Vec<String> =
        found.file.cables.iter().map(|cable| format!("{} {}", cable.a, cable.b)).collect();
    assert_eq!(cables, ["spark0.p0 spark1.p1"]);
    let functions = &found.file.hosts[0].ports[0].functions;
    let rdma: Vec<&str> =
        functions.iter().map(|function| function.rdma.as_deref().unwrap()).collect();
    assert_eq!(rdma, ["roce00", "roce10"], "in the order of their places on the bus");
    assert!(
        found.notes.contains(&"spark0: left out lan (default route)".to_owned()),
        "{:?}",
        found.notes
    );
    let unknown = "spark0: left out e01, e11 (nothing is known of the other end)";
    assert!(found.notes.contains(&unknown.to_owned()), "{:?}", found.notes);
}

#[test]
fn an_answer_counts_more_than_lldp_and_the_difference_is_told() {
    let mut hosts = lab();
    let stale = LldpNeighbour {
        netdev: "x00".to_owned(),
        system: None,
        mac: Some("02:00:00:02:00:00".parse().unwrap()),
    };
    hosts[0].state.lldp = Seen::Known(vec![stale]);
    let found = discover(&hosts).unwrap();
    assert!(found.file.cables.iter().any(|cable| cable.a == "n0.p0" && cable.b == "n1.p1"));
    let note =
        "n0.x00: LLDP tells of n2.x00, but n1.x10 answers a probe; the answer is newer and counts";
    assert!(found.notes.contains(&note.to_owned()), "{:?}", found.notes);
}

#[test]
fn networks_tell_of_cables_where_nothing_else_does_and_contradictions_are_told() {
    let two = |probed: bool| {
        let one = |host: &str, mac: &str, address: &str| {
            state(host, vec![netdev("eth", 2, mac, address)])
        };
        let far = if probed { vec![answer("eth", &["02:00:00:00:00:02"])] } else { Vec::new() };
        vec![
            observed(one("a", "02:00:00:00:00:01", "10.0.0.1/24"), far),
            observed(
                one("b", "02:00:00:00:00:02", if probed { "" } else { "10.0.0.2/24" }),
                Vec::new(),
            ),
            observed(
                one("c", "02:00:00:00:00:03", if probed { "10.0.0.3/24" } else { "" }),
                Vec::new(),
            ),
        ]
    };
    let by_network = discover(&two(false)).unwrap();
    assert_eq!(by_network.file.cables.len(), 1);
    assert_eq!(
        (by_network.file.cables[0].a.as_str(), by_network.file.cables[0].b.as_str()),
        ("a.p0", "b.p0")
    );
    assert_eq!(
        by_network.file.hosts[0].ports[0].functions[0].address.unwrap().to_string(),
        "10.0.0.1/24"
    );
    let contradicting = discover(&two(true)).unwrap();
    let note = "a.eth is on the wire with b.eth, but its network 10.0.0.0/24 is at c.eth: an address or a cable is wrong";
    assert!(contradicting.notes.contains(&note.to_owned()), "{:?}", contradicting.notes);
}

#[test]
fn a_wire_of_three_hosts_is_a_switch_if_fast_and_left_out_if_not() {
    let hosts = |speed: u64| -> Vec<Observed> {
        let macs: Vec<String> = (0..3).map(|host| format!("02:00:00:00:00:0{host}")).collect();
        (0..3)
            .map(|host| {
                let mut one = netdev("eth", 2, &macs[host], &format!("10.0.0.{}/24", host + 1));
                one.speed_mbps = Seen::Known(speed);
                let others: Vec<&str> =
                    macs.iter().map(String::as_str).filter(|mac| *mac != macs[host]).collect();
                observed(state(&format!("h{host}"), vec![one]), vec![answer("eth", &others)])
            })
            .collect()
    };
    let fast = discover(&hosts(100_000)).unwrap();
    assert_eq!(fast.file.switches.len(), 1);
    assert!(fast.file.cables.iter().all(|cable| cable.b == "switch0"));
    assert_eq!(fast.file.cables.len(), 3);
    let slow = discover(&hosts(1000)).unwrap();
    assert!(slow.file.cables.is_empty() && slow.file.switches.is_empty());
    assert_eq!(slow.file.hosts[2].control.as_deref(), Some("10.0.0.3"));
}

#[test]
fn what_was_not_measured_is_told() {
    let mut hosts = lab();
    hosts[0].state.addresses = unmeasured();
    hosts[0].state.routes = unmeasured();
    hosts[0].probes[0].macs = Seen::NotMeasured("there is no ping".to_owned());
    let notes = discover(&hosts).unwrap().notes;
    let told = [
        "n0: routes not measured (not part of the test), so the default route is not known",
        "n0: addresses not measured (not part of the test), so none is in the file",
        "n0.x00: who answers there was not measured: there is no ping",
    ];
    for note in told {
        assert!(notes.contains(&note.to_owned()), "{note}: {notes:?}");
    }
}

#[test]
fn one_name_twice_and_one_machine_twice() {
    let mut hosts = lab();
    for host in &mut hosts {
        host.state.name = "box".to_owned();
    }
    let names: Vec<String> =
        discover(&hosts).unwrap().file.hosts.iter().map(|host| host.name.clone()).collect();
    assert_eq!(names, ["box", "box-2", "box-3", "box-4"]);
    hosts[3] = hosts[0].clone();
    assert!(matches!(discover(&hosts), Err(DiscoverError::SameMachine { .. })));
    assert_eq!(discover(&[]), Err(DiscoverError::NoHosts));
}

#[test]
fn only_neighbours_that_answered_count_and_reasons_are_kept() {
    let output = "== a b\n>> fe80::2\n[{\"dst\":\"fe80::2\",\"lladdr\":\"02:00:00:00:00:02\",\"state\":[\"REACHABLE\"]},\
                  {\"dst\":\"fe80::9\",\"lladdr\":\"02:00:00:00:00:09\",\"state\":[\"STALE\"]}]\n\n.. 0\n\
                  == quiet\n[]\n\n.. 0\n== off\n!! IPv6 is disabled on the netdev\n== odd\n{\n.. 0\n== cut\n>> fe80::3\n";
    let probes = parse_probes(output);
    assert_eq!(probes[0], answer("a b", &["02:00:00:00:00:02"]));
    assert_eq!(probes[1], answer("quiet", &[]));
    let why = |index: usize| probes[index].macs.reason().unwrap();
    assert_eq!(why(2), "IPv6 is disabled on the netdev");
    assert!(why(3).starts_with("`ip -6 -j neigh` printed no JSON"), "{}", why(3));
    assert_eq!(why(4), "the probe ended early");
    assert!(parse_probes("").is_empty());
}

#[test]
fn names_of_netdevs_cannot_leave_their_quotes() {
    let script = probe_script(&["it's".to_owned(), "a/b".to_owned(), "$(x)".to_owned()]);
    assert!(script.starts_with("set -- 'it'\\''s' '$(x)'\n"), "{script}");
    // For a look at the real thing in network namespaces.
    if let Ok(path) = std::env::var("RAILWEAVE_WRITE_PROBE") {
        std::fs::write(path, probe_script(&["e0".to_owned(), "e1".to_owned(), "e9".to_owned()]))
            .unwrap();
    }
}
