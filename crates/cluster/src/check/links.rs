//! Links: state, speed, MTU, PCI, and the RDMA port on top.
//!
//! A virtual netdev has no speed worth the name, no PCI link and perhaps no RDMA device: what it cannot have is
//! neither found missing nor reported as not measured.

use std::collections::BTreeMap;

use super::view;
use super::{Code, Findings, Level, Room, Section};
use crate::inventory::Seen;
use crate::inventory::host_state::{Netdev, PcieLink};
use crate::plan::FunctionRef;

#[path = "links_mtu.rs"]
mod mtu;
#[path = "links_rates.rs"]
mod rates;

pub(super) use rates::look_at_rates;

const OFF: Code = Code {
    id: "RW-LNK-01",
    level: Level::Error,
    section: Section::Links,
    title: "a netdev is switched off",
};
const NO_CARRIER: Code = Code {
    id: "RW-LNK-02",
    level: Level::Error,
    section: Section::Links,
    title: "one function of a live port has no link",
};
const SLOW: Code = Code {
    id: "RW-LNK-03",
    level: Level::Warning,
    section: Section::Links,
    title: "a link is slower than the others",
};
const BELOW_200G: Code = Code {
    id: "RW-LNK-04",
    level: Level::Note,
    section: Section::Links,
    title: "all links are below 200 Gb/s",
};
const NOT_ACTIVE: Code = Code {
    id: "RW-LNK-05",
    level: Level::Error,
    section: Section::Links,
    title: "an RDMA port is not active",
};
const NO_RDMA: Code = Code {
    id: "RW-LNK-06",
    level: Level::Error,
    section: Section::Links,
    title: "a function has no RDMA device",
};
const NARROW: Code = Code {
    id: "RW-PCI-01",
    level: Level::Warning,
    section: Section::Links,
    title: "a PCIe link has too few lanes",
};
const OLD_PCIE: Code = Code {
    id: "RW-PCI-02",
    level: Level::Warning,
    section: Section::Links,
    title: "a PCIe link runs at a lower generation than it could",
};

/// The speed of one QSFP port of a GB10, in Mb/s.
const GB10_PORT_MBPS: u64 = 200_000;

pub(super) const CODES: &[Code] = &[
    OFF,
    NO_CARRIER,
    SLOW,
    BELOW_200G,
    NOT_ACTIVE,
    NO_RDMA,
    NARROW,
    OLD_PCIE,
    mtu::DIFFERS,
    mtu::LOW,
    mtu::ROCE_LOW,
    rates::TOO_SLOW,
];

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    look_at_states(room, to);
    look_at_speeds(room, to);
    look_at_rdma(room, to);
    look_at_pcie(room, to);
    mtu::look(room, to);
}

fn look_at_states(room: &Room<'_>, to: &mut Findings) {
    for (function, _, netdev) in view::found(room) {
        let (host, port) = (Some(function.host.as_str()), Some(function.port.as_str()));
        if !netdev.admin_up {
            let fix = Some(format!("ip link set dev {} up", netdev.name));
            to.find(
                &OFF,
                host,
                port,
                format!("{} is switched off", netdev.name),
                vec![not_up(netdev)],
                fix,
            );
        } else if !netdev.carrier && !view::dark(room, function.rank, &function.port) {
            let message = format!("{} has no link, while its port has", netdev.name);
            let evidence = view::port(room, function.rank, &function.port)
                .into_iter()
                .filter_map(|function| view::netdev(room, function))
                .map(|netdev| {
                    format!(
                        "{}: {}",
                        netdev.name,
                        if netdev.carrier { "carrier" } else { "no carrier" }
                    )
                })
                .collect();
            let name = &netdev.name;
            let fix = Some(format!("ip link set dev {name} down; ip link set dev {name} up"));
            to.find(&NO_CARRIER, host, port, message, evidence, fix);
        } else if netdev.carrier {
            to.looked(Section::Links, 1, "functions: link up");
        }
    }
}

fn not_up(netdev: &Netdev) -> String {
    format!("{}: the flag UP is not set", netdev.name)
}

/// Speeds are compared with the room's fastest: which speed a cluster was bought for, the file does not say.
fn look_at_speeds(room: &Room<'_>, to: &mut Findings) {
    let mut speeds: Vec<(&FunctionRef, &Netdev, u64)> = Vec::new();
    for (function, _, netdev) in
        view::found(room).filter(|(_, _, netdev)| view::physical(netdev) && netdev.carrier)
    {
        match &netdev.speed_mbps {
            Seen::Known(speed) => speeds.push((function, netdev, *speed)),
            Seen::NotMeasured(why) => {
                to.not_measured(
                    Section::Links,
                    Some(&function.host),
                    format!("speed of {}", netdev.name),
                    why.as_str(),
                );
            }
        }
    }
    let Some(most) = speeds.iter().map(|(_, _, speed)| *speed).max() else { return };
    let line = |(function, netdev, speed): &(&FunctionRef, &Netdev, u64)| {
        format!("{} {}: {}", function.host, netdev.name, gbps(*speed))
    };
    if most < GB10_PORT_MBPS {
        let message =
            format!("all links run at {} or less; a GB10's port can do 200 Gb/s", gbps(most));
        to.find(&BELOW_200G, None, None, message, speeds.iter().map(line).collect(), None);
    }
    // One finding for a cable: its ends agree on one speed, and its functions share it.
    let mut cables: BTreeMap<usize, Vec<&(&FunctionRef, &Netdev, u64)>> = BTreeMap::new();
    for seen in &speeds {
        let (function, _, speed) = seen;
        let index = room.plan.cables.iter().position(|cable| {
            let here = |end: &(usize, String)| end.0 == function.rank && end.1 == function.port;
            here(&cable.a) || cable.b.as_ref().is_some_and(here)
        });
        match index {
            Some(index) => cables.entry(index).or_default().push(seen),
            None if *speed == most => to.looked(Section::Links, 1, "functions: link at full speed"),
            None => {}
        }
    }
    for (index, seen) in cables {
        let Some(cable) = room.plan.cables.get(index) else { continue };
        let Some((function, netdev, least)) =
            seen.iter().min_by_key(|(_, _, speed)| *speed).copied()
        else {
            continue;
        };
        if *least == most {
            to.looked(Section::Links, seen.len(), "functions: link at full speed");
            continue;
        }
        let message =
            format!("cable {} runs at {}, others at {}", cable.name, gbps(*least), gbps(most));
        let fix = Some(format!("ethtool {0}; ethtool -m {0}", netdev.name));
        let evidence = seen.iter().map(|seen| line(seen)).collect();
        to.find(&SLOW, Some(&function.host), Some(&function.port), message, evidence, fix);
    }
}

fn gbps(mbps: u64) -> String {
    if mbps.is_multiple_of(1000) { format!("{} Gb/s", mbps / 1000) } else { format!("{mbps} Mb/s") }
}

fn look_at_rdma(room: &Room<'_>, to: &mut Findings) {
    let somewhere = view::found(room).any(|(_, state, netdev)| state.rdma_of(netdev).is_some());
    let mut without: BTreeMap<(usize, &str), Vec<(&FunctionRef, String)>> = BTreeMap::new();
    for (function, state, netdev) in view::found(room) {
        let (host, port) = (Some(function.host.as_str()), Some(function.port.as_str()));
        let Some(device) = state.rdma_of(netdev) else {
            if function.rdma.is_some() || (somewhere && view::physical(netdev)) {
                let name = function.rdma.as_deref().unwrap_or("none");
                let line = format!("{}: no RDMA device uses it (in the file: {name})", netdev.name);
                without.entry((function.rank, &function.port)).or_default().push((function, line));
            }
            continue;
        };
        for rdma_port in &device.ports {
            let named = format!("{} port {}", device.name, rdma_port.number);
            match &rdma_port.state {
                // A port is only as active as its link; what is wrong with that is said where links are.
                _ if !netdev.carrier || !netdev.admin_up => {}
                Seen::Known(state) if state == "ACTIVE" => {
                    to.looked(Section::Links, 1, "RDMA ports: active");
                }
                Seen::Known(state) => {
                    let evidence =
                        vec![format!("{named}: {state}"), format!("{}: carrier", netdev.name)];
                    let message =
                        format!("{} is {state} though its netdev has a link", device.name);
                    let fix = Some(format!("rdma link show {}/{}", device.name, rdma_port.number));
                    to.find(&NOT_ACTIVE, host, port, message, evidence, fix);
                }
                Seen::NotMeasured(why) => {
                    to.undecided(Section::Links, host, format!("state of {named}"), why.as_str());
                }
            }
        }
    }
    for ((_, port), functions) in without {
        let Some((first, _)) = functions.first() else { continue };
        let names: Vec<_> =
            functions.iter().map(|(function, _)| view::netdev_name(room, function)).collect();
        let message =
            format!("no RDMA device for {}, while other functions have one", names.join(" and "));
        let fix = view::netdev(room, first).and_then(|netdev| netdev.pci).map_or_else(
            || "rdma link show".to_owned(),
            |pci| format!("modprobe mlx5_ib; devlink dev param show pci/{pci} name enable_roce"),
        );
        let evidence = functions.iter().map(|(_, line)| line.clone()).collect();
        to.find(&NO_RDMA, Some(&first.host), Some(port), message, evidence, Some(fix));
    }
}

/// A port's functions share its wire, and each has a PCIe link of its own: together these have to carry the wire's
/// speed. Besides, a function with a lesser link than its twin on the port, or than another of the same kind, was wired
/// or set up otherwise. What a link could do by its own word decides nothing: boards wire fewer lanes than chips have.
fn look_at_pcie(room: &Room<'_>, to: &mut Findings) {
    let mut seen: Vec<(&FunctionRef, &Netdev, &PcieLink)> = Vec::new();
    for (function, _, netdev) in view::found(room).filter(|(_, _, netdev)| view::physical(netdev)) {
        match &netdev.pcie {
            Seen::Known(link) => seen.push((function, netdev, link)),
            Seen::NotMeasured(why) => {
                let what = format!("PCIe link of {}", netdev.name);
                to.not_measured(Section::Links, Some(&function.host), what, why.as_str());
            }
        }
    }
    // All functions of an adapter share one PCIe link, so it is one finding however many show it.
    let mut narrow: BTreeMap<(usize, String), Vec<(&FunctionRef, String)>> = BTreeMap::new();
    let mut old = narrow.clone();
    for (function, netdev, link) in &seen {
        let twin = |other: &FunctionRef| other.rank == function.rank && other.port == function.port;
        let alike = |other: &PcieLink| {
            (other.max_width, other.max_speed_mts) == (link.max_width, link.max_speed_mts)
        };
        let peers = seen.iter().filter(|(other, _, its)| twin(other) || alike(its));
        let lanes = peers.clone().map(|(_, _, its)| its.width).max().unwrap_or(link.width);
        let speed = peers.map(|(_, _, its)| its.speed_mts).max().unwrap_or(link.speed_mts);
        let twins = seen.iter().filter(|(other, _, _)| twin(other));
        let carries: u64 = twins
            .clone()
            .map(|(_, _, its)| its.speed_mts.saturating_mul(u64::from(its.width)))
            .sum();
        // What a port carries is known only if all its functions were seen.
        let whole = twins.clone().count() == view::port(room, function.rank, &function.port).len();
        let too_little = whole && netdev.speed_mbps.known().is_some_and(|speed| carries < *speed);
        let line = format!(
            "{}: {} GT/s x{}, could do {} GT/s x{}",
            netdev.name,
            link.speed_mts / 1000,
            link.width,
            link.max_speed_mts / 1000,
            link.max_width
        );
        let key = (function.rank, function.adapter.clone().unwrap_or_else(|| netdev.name.clone()));
        let (few_lanes, slow) = (link.width < lanes, link.speed_mts < speed);
        let could_be_faster = link.speed_mts < link.max_speed_mts;
        // Where a port carries too little and one of its functions is plainly behind, that one is the cause.
        let unexplained = too_little && !few_lanes && !slow && !behind(&seen, function);
        if few_lanes || (unexplained && !could_be_faster) {
            narrow.entry(key.clone()).or_default().push((function, line.clone()));
        }
        if slow || (unexplained && could_be_faster) {
            old.entry(key).or_default().push((function, line));
        } else if !few_lanes && !unexplained {
            to.looked(Section::Links, 1, "functions: PCIe link as wide and fast as the others");
        }
    }
    let kinds = [
        (&NARROW, narrow, "has too few lanes to carry its share of the wire"),
        (&OLD_PCIE, old, "runs at a lower generation than it could"),
    ];
    for (code, adapters, what) in kinds {
        for ((_, adapter), functions) in adapters {
            let Some((first, _)) = functions.first() else { continue };
            let one_port = functions.iter().all(|(function, _)| function.port == first.port);
            let evidence = functions.iter().map(|(_, line)| line.clone()).collect();
            let fix = Some(format!("lspci -s {adapter} -vv | grep -E 'LnkCap|LnkSta'"));
            let message = format!("the PCIe link of {adapter} {what}");
            to.find(
                code,
                Some(&first.host),
                one_port.then_some(first.port.as_str()),
                message,
                evidence,
                fix,
            );
        }
    }
}

/// Whether another function of the same port has a lesser PCIe link than this one.
fn behind(seen: &[(&FunctionRef, &Netdev, &PcieLink)], function: &FunctionRef) -> bool {
    let rate = |link: &PcieLink| link.speed_mts.saturating_mul(u64::from(link.width));
    let of_port = seen
        .iter()
        .filter(|(other, _, _)| other.rank == function.rank && other.port == function.port);
    let mine = of_port
        .clone()
        .find(|(other, _, _)| other.number == function.number)
        .map(|(_, _, link)| rate(link));
    of_port.map(|(_, _, link)| rate(link)).min() < mine
}
