//! The check of rooms that are made by hand from the healthy one: what no single fixture shows.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod rooms;

use cluster::address::Interface;
use cluster::check::{self, Level, Report, Room, Scope, TextStyle};
use cluster::file::{ClusterFile, Forward};
use cluster::inventory::host_state::{LldpNeighbour, NetdevKind};
use cluster::inventory::{HostState, Seen};
use cluster::plan::{Plan, PlanOptions};

struct Bench {
    file: ClusterFile,
    hosts: Vec<Result<HostState, String>>,
}

impl Bench {
    /// The healthy ring, with nothing forwarded.
    fn ring() -> Self {
        let mut file = ClusterFile::parse(&rooms::healthy_file()).unwrap();
        file.forward = Forward::Off;
        let hosts = rooms::states(&file, &rooms::healthy()).into_iter().map(Ok).collect();
        Self { file, hosts }
    }

    /// The same ring of virtual cables, as in network namespaces: no PCI, no RDMA, veth's nominal speed.
    fn veth() -> Self {
        let mut bench = Self::ring();
        for function in bench
            .file
            .hosts
            .iter_mut()
            .flat_map(|host| &mut host.ports)
            .flat_map(|port| &mut port.functions)
        {
            function.rdma = None;
            function.pci = None;
        }
        for host in 0..4 {
            let state = bench.host(host);
            state.rdma.clear();
            for netdev in state.netdevs.iter_mut().filter(|netdev| netdev.phys_port_name.is_some())
            {
                netdev.kind = NetdevKind::Veth;
                netdev.pci = None;
                netdev.phys_port_name = None;
                netdev.speed_mbps = Seen::Known(10_000);
                netdev.pcie = Seen::NotMeasured("it is virtual".to_owned());
            }
        }
        bench
    }

    fn host(&mut self, rank: usize) -> &mut HostState {
        self.hosts[rank].as_mut().unwrap()
    }

    fn check(&self, scope: Scope) -> Report {
        let plan = Plan::of(&self.file, &PlanOptions::default()).unwrap();
        let room = Room {
            file: &self.file,
            plan: &plan,
            hosts: &self.hosts,
            before: None,
            rates: &[],
            reads_per_second: None,
        };
        check::run(&room, scope)
    }

    /// Cables, links, addresses and hosts, without what is to be applied.
    fn pre(&self) -> Report {
        self.check(Scope { pre: true, ..Scope::default() })
    }

    fn netdev(&mut self, rank: usize, name: &str) -> &mut cluster::inventory::host_state::Netdev {
        self.host(rank).netdevs.iter_mut().find(|netdev| netdev.name == name).unwrap()
    }

    fn pull(&mut self, rank: usize, names: [&str; 2]) {
        for name in names {
            self.netdev(rank, name).carrier = false;
        }
    }
}

const P0: [&str; 2] = ["enp1s0f0np0", "enP2p1s0f0np0"];
const P1: [&str; 2] = ["enp1s0f1np1", "enP2p1s0f1np1"];

fn at(text: &str) -> Interface {
    text.parse().unwrap()
}

#[track_caller]
fn shows(report: &Report, codes: &[&str]) {
    assert_eq!(report.codes(), codes, "\n{}", report.text(TextStyle::default()));
}

#[test]
fn virtual_cables_are_neither_found_wanting_nor_unmeasured() {
    let report = Bench::veth().pre();
    shows(&report, &[]);
    assert_eq!(report.findings, vec![]);
    let about: Vec<_> =
        report.unmeasured.iter().filter(|one| one.section <= check::Section::Addresses).collect();
    assert!(about.is_empty(), "{about:#?}");
    assert_eq!(report.exit_code(), 0);
}

#[test]
fn faults_of_virtual_cables_are_found() {
    let mut pulled = Bench::veth();
    pulled.pull(0, P0);
    pulled.pull(1, P1);
    let report = pulled.pre();
    shows(&report, &["RW-CAB-02"]);
    assert_eq!(report.findings.len(), 1, "one cable is one finding");
    assert!(report.findings[0].message.contains("spark0.p0"), "{}", report.findings[0].message);
    assert!(report.findings[0].message.contains("spark1.p1"), "{}", report.findings[0].message);

    let mut mtu = Bench::veth();
    mtu.netdev(2, P0[1]).mtu_bytes = 1500;
    let report = mtu.pre();
    shows(&report, &["RW-MTU-01"]);
    assert_eq!(report.findings[0].fix.as_deref(), Some("ip link set dev enP2p1s0f0np0 mtu 9000"));

    let mut twice = Bench::veth();
    twice.netdev(3, P0[0]).addresses.push(at("10.10.0.1/24"));
    let report = twice.pre();
    shows(&report, &["RW-ADR-03"]);
    assert_eq!(report.findings[0].host.as_deref(), Some("spark3"));
    assert_eq!(
        report.findings[0].fix.as_deref(),
        Some("ip address del 10.10.0.1/24 dev enp1s0f0np0")
    );
}

#[test]
fn a_port_that_is_off_explains_the_dark_cable() {
    let mut bench = Bench::ring();
    bench.pull(0, P0);
    bench.pull(1, P1);
    for name in P1 {
        bench.netdev(1, name).admin_up = false;
    }
    let report = bench.pre();
    shows(&report, &["RW-LNK-01"]);
    assert_eq!(report.findings.len(), 2);
    assert!(report.findings.iter().all(|found| found.host.as_deref() == Some("spark1")));
}

#[test]
fn a_host_that_was_not_read_decides_nothing() {
    let mut bench = Bench::ring();
    bench.hosts[2] = Err("ssh: connect to host spark2 port 22: No route to host".to_owned());
    let report = bench.pre();
    shows(&report, &["RW-RCH-01"]);
    assert_eq!(report.exit_code(), 2);
    for section in [check::Section::Cables, check::Section::Links, check::Section::Addresses] {
        assert!(
            report
                .unmeasured
                .iter()
                .any(|one| one.section == section && one.host.as_deref() == Some("spark2")),
            "{section:?}"
        );
    }
    bench.netdev(0, P0[0]).mtu_bytes = 1500;
    let report = bench.pre();
    assert_eq!(report.exit_code(), 1, "a finding beside it decides");
    assert!(report.codes().contains(&"RW-MTU-01"));

    let mut pulled = Bench::ring();
    pulled.hosts[1] = Err("no answer".to_owned());
    pulled.pull(0, P0);
    let report = pulled.pre();
    shows(&report, &["RW-CAB-02", "RW-RCH-01"]);
    let cable = report.findings.iter().find(|found| found.code == "RW-CAB-02").unwrap();
    assert!(cable.message.contains("at the end that could be read"), "{}", cable.message);
}

#[test]
fn addresses_that_were_not_read_are_not_missing() {
    let mut bench = Bench::ring();
    let state = bench.host(1);
    state.addresses = Seen::NotMeasured("ip: not found".to_owned());
    for netdev in &mut state.netdevs {
        netdev.addresses.clear();
        netdev.ipv6.clear();
    }
    let report = bench.pre();
    shows(&report, &[]);
    assert_eq!(report.exit_code(), 2);

    let mut blind = Bench::ring();
    blind.host(1).netdevs.clear();
    let report = blind.pre();
    assert!(!report.codes().contains(&"RW-CAB-06"), "\n{}", report.text(TextStyle::default()));
    assert_ne!(report.exit_code(), 0);
}

#[test]
fn gids_of_an_unknown_kind_are_not_missing() {
    let mut bench = Bench::ring();
    for gid in bench
        .host(0)
        .rdma
        .iter_mut()
        .flat_map(|device| &mut device.ports)
        .flat_map(|port| &mut port.gids)
    {
        gid.kind = Seen::NotMeasured("permission denied".to_owned());
    }
    let report = bench.pre();
    shows(&report, &[]);
    assert_eq!(report.exit_code(), 2);
    assert!(report.text(TextStyle::default()).contains("not measured: permission denied"));
}

#[test]
fn lldp_is_believed_before_old_answers() {
    let told = |netdev: &str, system: &str, mac: Option<&str>| LldpNeighbour {
        netdev: netdev.to_owned(),
        system: Some(system.to_owned()),
        mac: mac.map(|mac| mac.parse().unwrap()),
    };
    // The other function of the right port: two functions are one wire.
    let mut twin = Bench::ring();
    twin.host(0).lldp = Seen::Known(vec![told(P0[0], "spark1", Some("4c:bb:47:00:01:11"))]);
    shows(&twin.pre(), &[]);

    let mut stranger = Bench::ring();
    stranger.host(0).lldp = Seen::Known(vec![told(P0[0], "sw1", Some("00:00:5e:00:01:01"))]);
    let report = stranger.pre();
    shows(&report, &["RW-CAB-01"]);
    assert!(
        report.findings[0].message.contains("sw1, which the file does not know"),
        "{:#?}",
        report.findings
    );

    // Both ends of one wrong cable are one finding.
    let mut moved = Bench::ring();
    moved.host(0).lldp = Seen::Known(vec![told(P0[0], "spark2", Some("4c:bb:47:00:02:00"))]);
    moved.host(2).lldp = Seen::Known(vec![told(P0[0], "spark0", Some("4c:bb:47:00:00:00"))]);
    let report = moved.pre();
    let wrong: Vec<_> = report.findings.iter().filter(|found| found.code == "RW-CAB-01").collect();
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    assert_eq!(wrong[0].message, "spark0.p0 leads to spark2.p0; the file says spark1.p1");
    assert_eq!(wrong[0].evidence.len(), 2);
}

#[test]
fn where_nobody_tells_a_cable_is_not_measured() {
    let mut bench = Bench::ring();
    for host in 0..4 {
        bench.host(host).neighbours = Seen::Known(Vec::new());
    }
    let report = bench.pre();
    shows(&report, &[]);
    let cables = report.unmeasured.iter().filter(|one| one.what.starts_with("where cable")).count();
    assert_eq!(cables, 4);
    assert_eq!(report.exit_code(), 0, "addresses and links still tell that all is well");
}

#[test]
fn a_port_needs_both_its_pcie_links_at_full_width() {
    // All second controllers at two lanes, by their own word all they have: only the wire's speed shows it.
    let mut bench = Bench::ring();
    for host in 0..4 {
        for name in [P0[1], P1[1]] {
            let Seen::Known(link) = &mut bench.netdev(host, name).pcie else {
                panic!("{name} has no PCIe link")
            };
            link.width = 2;
            link.max_width = 2;
        }
    }
    let report = bench.pre();
    shows(&report, &["RW-PCI-01"]);
    assert_eq!(report.findings.len(), 4, "one for each adapter: {:#?}", report.findings);
    assert!(report.findings.iter().all(|found| found.message.contains("0002:01:00")));
}

#[test]
fn a_function_on_the_wrong_host_is_named() {
    let mut bench = Bench::ring();
    bench.hosts.swap(0, 1);
    let report = bench.pre();
    let absent: Vec<_> = report.findings.iter().filter(|found| found.code == "RW-CAB-06").collect();
    assert_eq!(absent.len(), 2, "{absent:#?}");
    assert!(absent[0].evidence[0].ends_with("it is on spark1"), "{:?}", absent[0].evidence);
    assert!(absent.iter().all(|found| found.level == Level::Error));
}

#[test]
fn a_meeting_place_of_one_host_alone_is_found() {
    let mut bench = Bench::ring();
    let set = |bench: &mut Bench, rank: usize, value: &str| {
        let Seen::Known(environment) = &mut bench.host(rank).system.environment else {
            panic!("no environment")
        };
        environment.insert("MASTER_ADDR".to_owned(), value.to_owned());
    };
    for rank in 0..4 {
        set(&mut bench, rank, "192.168.1.10");
    }
    shows(&bench.pre(), &[]);
    set(&mut bench, 3, "192.168.1.11");
    let report = bench.pre();
    shows(&report, &["RW-ADR-09"]);
    assert!(report.findings[0].message.contains("differs"), "{:#?}", report.findings);
    set(&mut bench, 3, "127.0.0.1");
    let report = bench.pre();
    shows(&report, &["RW-ADR-09"]);
    assert!(
        report.findings[0].message.contains("every host is itself there"),
        "{:#?}",
        report.findings
    );
}

#[test]
fn what_a_file_or_a_host_says_can_be_printed_and_copied() {
    let mut bench = Bench::ring();
    bench.file.hosts[1].reach = "ssh:x;$(id)".to_owned();
    bench.hosts[1] = Err("\u{1b}[2J it said \u{202e}this".to_owned());
    let report = bench.pre();
    let found = report.findings.iter().find(|found| found.code == "RW-RCH-01").unwrap();
    assert_eq!(found.fix.as_deref(), Some("ssh -o BatchMode=yes 'x;$(id)' true"));
    assert_eq!(found.evidence[1], "\\u{1b}[2J it said \\u{202e}this");
}
