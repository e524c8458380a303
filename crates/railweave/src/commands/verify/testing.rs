//! Cluster files for tests.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use cluster::file::ClusterFile;
use cluster::plan::{Plan, PlanOptions};

/// A file of hosts `h0`, `h1` … with these cables; each port has two functions, each cable a network for each.
pub(super) fn file(hosts: usize, cables: &[(&str, &str)], forward: &str) -> ClusterFile {
    let mut text = format!(
        "schema = \"railweave-cluster/1\"\nforward = \"{forward}\"\ntag = \"destination\"\nmtu_bytes = 9000\n"
    );
    for host in 0..hosts {
        write!(text, "\n[[host]]\nname = \"h{host}\"\n").unwrap();
        for port in 0..2 {
            let name = format!("h{host}.p{port}");
            let Some((cable, end)) = cables.iter().enumerate().find_map(|(cable, ends)| {
                (ends.0 == name).then_some((cable, 1)).or((ends.1 == name).then_some((cable, 2)))
            }) else {
                continue;
            };
            write!(text, "\n[[host.port]]\nname = \"p{port}\"\n").unwrap();
            for function in 0..2 {
                let domain = 2 * function;
                write!(
                    text,
                    "\n[[host.port.function]]\nmac = \"02:00:00:{host:02x}:{port:02x}:{function:02x}\"\n\
                     address = \"10.77.{}.{end}/24\"\nnetdev = \"p{port}f{function}\"\n\
                     rdma = \"r{port}f{function}\"\npci = \"{domain:04x}:01:00.{port}\"\n",
                    2 * cable + function
                )
                .unwrap();
            }
        }
    }
    for (a, b) in cables {
        write!(text, "\n[[cable]]\na = \"{a}\"\nb = \"{b}\"\n").unwrap();
    }
    ClusterFile::parse(&text).unwrap()
}

/// The plan of such a file, moved to loopback addresses, so that agents in one process can prove it.
pub(super) fn plan(hosts: usize, cables: &[(&str, &str)], forward: &str) -> Plan {
    let mut plan = Plan::of(&file(hosts, cables, forward), &PlanOptions::default()).unwrap();
    let rails = plan.paths.iter_mut().flat_map(|path| &mut path.rails);
    for crossing in rails.flat_map(|rail| &mut rail.crossings) {
        for function in [&mut crossing.out, &mut crossing.into] {
            function.ip =
                function.ip.map(|ip| Ipv4Addr::from(ip.to_bits() & 0x00ff_ffff | 127 << 24));
        }
    }
    plan
}

/// Four hosts in a ring.
pub(super) fn ring4(forward: &str) -> Plan {
    let cables = [("h0.p0", "h1.p1"), ("h1.p0", "h2.p1"), ("h2.p0", "h3.p1"), ("h3.p0", "h0.p1")];
    plan(4, &cables, forward)
}
