//! MTU of netdevs, and the RoCE MTU that follows from it.

use super::super::view;
use super::super::{Code, Findings, Level, Room, Section};
use crate::inventory::Seen;
use crate::inventory::host_state::Netdev;
use crate::plan::FunctionRef;

pub(super) const DIFFERS: Code = Code {
    id: "RW-MTU-01",
    level: Level::Error,
    section: Section::Links,
    title: "the MTU differs between the ends of a cable",
};
pub(super) const LOW: Code = Code {
    id: "RW-MTU-02",
    level: Level::Warning,
    section: Section::Links,
    title: "the MTU is below the plan's",
};
pub(super) const ROCE_LOW: Code = Code {
    id: "RW-MTU-03",
    level: Level::Warning,
    section: Section::Links,
    title: "the RoCE MTU is lower than the netdev's MTU allows",
};

/// What RoCE v2 takes of a netdev's MTU besides payload, in bytes: global route header 40, UDP 8, base transport
/// header 12, extended headers 4 and 28, check value 4, as Linux reckons in `iboe_get_mtu` (`include/rdma/ib_addr.h`).
const ROCE_OVERHEAD_BYTES: u32 = 96;

/// The RoCE MTU that a netdev's MTU allows, in bytes.
pub(super) fn roce_mtu_bytes(netdev_mtu_bytes: u32) -> u32 {
    let room = netdev_mtu_bytes.saturating_sub(ROCE_OVERHEAD_BYTES);
    [4096, 2048, 1024, 512].into_iter().find(|mtu| *mtu <= room).unwrap_or(256)
}

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    let wanted = room.plan.mtu_bytes;
    for rank in &room.plan.ranks {
        let mut differs: Vec<(&FunctionRef, &Netdev, String)> = Vec::new();
        let mut low = Vec::new();
        for function in &rank.functions {
            let Some(netdev) = view::netdev(room, function) else { continue };
            if netdev.mtu_bytes >= wanted {
                to.looked(Section::Links, 1, "functions: MTU as planned");
                continue;
            }
            let far = far_end(room, function);
            let here = format!("{} {}: {}", function.host, netdev.name, netdev.mtu_bytes);
            match far {
                Some((far, other)) if other.mtu_bytes != netdev.mtu_bytes => {
                    let line = format!(
                        "{here}; {} {} at the other end: {}",
                        far.host, other.name, other.mtu_bytes
                    );
                    differs.push((function, netdev, line));
                }
                _ => low.push((function, netdev, here)),
            }
        }
        tell(
            &DIFFERS,
            "MTU differs from the other end's, and is below the plan's",
            wanted,
            &differs,
            to,
        );
        tell(&LOW, "MTU is below the plan's", wanted, &low, to);
    }
    look_at_roce(room, to);
}

/// The function at the other end that shares a network with this one.
fn far_end<'a>(room: &Room<'a>, function: &FunctionRef) -> Option<(&'a FunctionRef, &'a Netdev)> {
    let pairs = room.plan.cables.iter().flat_map(|cable| &cable.pairs);
    let far = pairs.into_iter().find_map(|(a, b)| {
        if a.mac == function.mac { Some(b) } else { (b.mac == function.mac).then_some(a) }
    })?;
    Some((far, view::netdev(room, far)?))
}

/// One finding for a host, whichever of its functions are concerned: they are set in one place.
fn tell(
    code: &Code,
    what: &str,
    wanted: u32,
    functions: &[(&FunctionRef, &Netdev, String)],
    to: &mut Findings,
) {
    let Some((first, _, _)) = functions.first() else { return };
    let one_port = functions.iter().all(|(function, _, _)| function.port == first.port);
    let names: Vec<&str> = functions.iter().map(|(_, netdev, _)| netdev.name.as_str()).collect();
    let message = format!("{what} ({wanted}): {}", names.join(", "));
    let fix = names
        .iter()
        .map(|name| format!("ip link set dev {name} mtu {wanted}"))
        .collect::<Vec<_>>()
        .join("\n");
    let evidence = functions.iter().map(|(_, _, line)| line.clone()).collect();
    to.find(
        code,
        Some(&first.host),
        one_port.then_some(first.port.as_str()),
        message,
        evidence,
        Some(fix),
    );
}

fn look_at_roce(room: &Room<'_>, to: &mut Findings) {
    for (function, state, netdev) in view::found(room) {
        let Some(device) = state.rdma_of(netdev).filter(|_| netdev.carrier && netdev.admin_up)
        else {
            continue;
        };
        let allowed = roce_mtu_bytes(netdev.mtu_bytes);
        for port in &device.ports {
            let named = format!("{} port {}", device.name, port.number);
            match &port.active_mtu_bytes {
                Seen::Known(active) if *active < allowed => {
                    let message =
                        format!("{} uses RoCE MTU {active} where {allowed} fits", device.name);
                    let evidence = vec![
                        format!("{named}: active MTU {active}"),
                        format!(
                            "{}: MTU {}, which allows {allowed}",
                            netdev.name, netdev.mtu_bytes
                        ),
                    ];
                    let name = &netdev.name;
                    let fix =
                        Some(format!("ip link set dev {name} down; ip link set dev {name} up"));
                    to.find(
                        &ROCE_LOW,
                        Some(&function.host),
                        Some(&function.port),
                        message,
                        evidence,
                        fix,
                    );
                }
                Seen::Known(_) => {
                    to.looked(Section::Links, 1, "RDMA ports: RoCE MTU as the netdev allows");
                }
                Seen::NotMeasured(why) => {
                    to.not_measured(
                        Section::Links,
                        Some(&function.host),
                        format!("RoCE MTU of {named}"),
                        why.as_str(),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roce_mtu_follows_from_the_netdevs() {
        for (netdev, roce) in [
            (9000, 4096),
            (4200, 4096),
            (4192, 4096),
            (4191, 2048),
            (2144, 2048),
            (1500, 1024),
            (700, 512),
            (90, 256),
        ] {
            assert_eq!(roce_mtu_bytes(netdev), roce, "{netdev}");
        }
    }
}
