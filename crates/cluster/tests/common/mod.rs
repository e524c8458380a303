//! Cluster files for tests: hosts like a GB10 machine, cabled as asked.

#![allow(dead_code, reason = "each test file uses its own part")]

use cluster::address::{Interface, Mac, Pci};
use cluster::file::{
    CableEntry, ClusterFile, Forward, Function, Host, MarkerKind, Port, SCHEMA, Switch, TagKind,
    default_mtu_bytes,
};
use cluster::plan::{PathKind, Plan, Rail};

/// Hosts `spark0…` without cables. Each port has two functions, in two adapters; two ports share an adapter, so a third
/// and a fourth have another one.
pub(crate) fn hosts(count: usize, ports: usize) -> ClusterFile {
    let host = |h: usize| Host {
        name: format!("spark{h}"),
        reach: format!("ssh:spark{h}"),
        control: Some(format!("192.168.1.{}", 10 + h)),
        ports: (0..ports)
            .map(|p| Port {
                name: format!("p{p}"),
                functions: (0..2).map(|c| function(h, p, c)).collect(),
            })
            .collect(),
    };
    ClusterFile {
        schema: SCHEMA.to_owned(),
        forward: Forward::Auto,
        tag: TagKind::Destination,
        marker: MarkerKind::Nic,
        mtu_bytes: default_mtu_bytes(),
        hosts: (0..count).map(host).collect(),
        switches: Vec::new(),
        cables: Vec::new(),
        routes: Vec::new(),
    }
}

fn function(host: usize, port: usize, class: usize) -> Function {
    let pci = Pci {
        domain: 2 * class as u16,
        bus: 1 + port as u8 / 2,
        device: 0,
        function: port as u8 % 2,
    };
    let domain = if class == 0 { String::new() } else { format!("P{}", 2 * class) };
    let place = format!("{domain}p{}s0f{}", pci.bus, pci.function);
    Function {
        mac: Mac([0x4c, 0xbb, 0x47, port as u8, host as u8, class as u8]),
        address: None,
        netdev: format!("en{place}np{port}"),
        rdma: Some(format!("roce{place}")),
        pci: Some(pci),
    }
}

/// A port of a file, by `host.port`.
pub(crate) fn port<'a>(file: &'a mut ClusterFile, name: &str) -> &'a mut Port {
    let (host, port) = name.rsplit_once('.').unwrap();
    let host = file.hosts.iter_mut().find(|other| other.name == host).unwrap();
    host.ports.iter_mut().find(|other| other.name == port).unwrap()
}

/// Plugs in a cable and gives each pair of functions, by number, a network of its own.
pub(crate) fn cable(file: &mut ClusterFile, a: &str, b: &str) {
    let first = 2 * file.cables.len() as u8;
    let both = port(file, a).functions.len().min(port(file, b).functions.len());
    for (end, name) in [(1, a), (2, b)] {
        for (class, function) in port(file, name).functions.iter_mut().take(both).enumerate() {
            function.address = Some(at(first + class as u8, end));
        }
    }
    file.cables.push(CableEntry { a: a.to_owned(), b: b.to_owned() });
}

fn at(network: u8, host: u8) -> Interface {
    Interface { ip: [10, 10, network, host].into(), prefix: 24 }
}

/// Port 0 of each host to port 1 of the next, wrapping.
pub(crate) fn ring(count: usize) -> ClusterFile {
    let mut file = path(count);
    cable(&mut file, &format!("spark{}.p0", count - 1), "spark0.p1");
    file
}

/// Port 0 of each host to port 1 of the next.
pub(crate) fn path(count: usize) -> ClusterFile {
    let mut file = hosts(count, 2);
    for h in 1..count {
        cable(&mut file, &format!("spark{}.p0", h - 1), &format!("spark{h}.p1"));
    }
    file
}

/// Port 0 of every host to one switch, one network for each function.
pub(crate) fn switch(count: usize) -> ClusterFile {
    let mut file = hosts(count, 2);
    file.switches.push(Switch { name: "sw0".to_owned() });
    for h in 0..count {
        let name = format!("spark{h}.p0");
        for (class, function) in port(&mut file, &name).functions.iter_mut().enumerate() {
            function.address = Some(at(class as u8, 1 + h as u8));
        }
        file.cables.push(CableEntry { a: name, b: "sw0".to_owned() });
    }
    file
}

/// A triangle, and a fourth host at a third port.
pub(crate) fn triangle_with_tail() -> ClusterFile {
    let mut file = hosts(4, 3);
    for (a, b) in [
        ("spark0.p0", "spark1.p1"),
        ("spark1.p0", "spark2.p1"),
        ("spark2.p0", "spark0.p1"),
        ("spark2.p2", "spark3.p0"),
    ] {
        cable(&mut file, a, b);
    }
    file
}

/// The same hosts in another order: `order[new]` is the old rank.
pub(crate) fn reordered(file: &ClusterFile, order: &[usize]) -> ClusterFile {
    ClusterFile {
        hosts: order.iter().map(|&old| file.hosts[old].clone()).collect(),
        ..file.clone()
    }
}

/// A rail as `0.p0.0>1.p1.0 1.p0.0>2.p1.0`.
pub(crate) fn rail(rail: &Rail) -> String {
    let crossings = rail.crossings.iter().map(|crossing| {
        let end = |f: &cluster::plan::FunctionRef| format!("{}.{}.{}", f.rank, f.port, f.number);
        format!("{}>{}", end(&crossing.out), end(&crossing.into))
    });
    let mut text = crossings.collect::<Vec<_>>().join(" ");
    if let Some(tag) = &rail.tag {
        let types: Vec<String> = tag.ether_types.iter().map(|t| format!("{t:04x}")).collect();
        text += &format!(" [{}]", types.join(" "));
    }
    text
}

/// A plan, a line for each ordered pair and for each cable.
pub(crate) fn lines(plan: &Plan) -> String {
    let mut lines = vec![plan.describe_shape()];
    for path in &plan.paths {
        let kind = match path.kind {
            PathKind::Direct => "direct",
            PathKind::Forwarded => "forwarded",
            PathKind::Relayed => "relayed",
        };
        let rails: Vec<String> = path.rails.iter().map(rail).collect();
        let instead =
            path.instead.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        lines.push(format!("{}>{} {kind}: {}{instead}", path.from, path.to, rails.join(" | ")));
    }
    for (index, cable) in plan.cables.iter().enumerate() {
        let loads = plan.loads.iter().filter(|load| load.cable == index).map(|load| {
            format!(
                "from {}/f{} {}+{}+{}",
                load.from, load.number, load.direct, load.forwarded, load.relayed
            )
        });
        lines.push(format!("{}: {}", cable.name, loads.collect::<Vec<_>>().join(", ")));
    }
    lines.join("\n")
}
