//! The command that carries out a change, and how what it makes looks afterwards.

use std::net::Ipv4Addr;

use super::PROTOCOL;
use super::change::{Change, FilterSpec, NeighbourSpec, RouteSpec, When};
use super::marker::marker_unit;
use crate::address::Interface;
use crate::inventory::Seen;
use crate::inventory::host_state::{Filter, Neighbour, Route};

/// Seconds a netdev has to come back after a reload, which itself takes about 4.
const RETURN_LIMIT_S: &str = "30";

fn words(text: &str) -> Vec<String> {
    text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// `words`, with what may hold anything put in for each `@`, as one word each.
fn command(text: &str, values: &[&str]) -> Vec<String> {
    let mut values = values.iter();
    words(text)
        .into_iter()
        .map(|word| match word.as_str() {
            "@" => values.next().map_or_else(String::new, |value| (*value).to_owned()),
            _ => word,
        })
        .collect()
}

impl Change {
    /// The command, as a list of arguments. Run as root on the host.
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::StopMarker { device, pid, .. } => {
                let unit = marker_unit(device);
                // The main process is compared, so that only what was seen and is ours is stopped.
                command(
                    "sh -c @ stop-marker @ @",
                    &[
                        "test \"$(systemctl show --property=MainPID --value \"$1\")\" = \"$2\" && systemctl stop \"$1\"",
                        &unit,
                        &pid.to_string(),
                    ],
                )
            }
            Self::StopAllMarkers => command("systemctl stop @", &[&marker_unit("*")]),
            Self::RemoveFilter { filter } => {
                let mut argv = command("tc filter del dev @ ingress", &[&filter.netdev]);
                if let Some(ether_type) = filter.ether_type {
                    argv.extend(words(&format!("protocol {ether_type:#06x}")));
                }
                argv.extend(words(&format!(
                    "pref {} handle {:#x} flower",
                    filter.preference, filter.handle
                )));
                argv
            }
            Self::RemoveNeighbour { neighbour } => {
                command("ip neigh del @ dev @", &[&neighbour.ip.to_string(), &neighbour.netdev])
            }
            Self::RemoveRoute { route } => command(
                "ip route del @ dev @ proto @",
                &[&route.to.to_string(), &route.netdev, &PROTOCOL.to_string()],
            ),
            Self::SetParameter { pci, name, value, when, .. } => {
                let when = match when {
                    When::Runtime => "runtime",
                    When::DriverInit => "driverinit",
                };
                command(
                    "devlink dev param set @ name @ value @ cmode @",
                    &[&format!("pci/{pci}"), name, value, when],
                )
            }
            Self::Reload { pci, .. } => {
                command("devlink dev reload @ action driver_reinit", &[&format!("pci/{pci}")])
            }
            Self::WaitFor { netdev, address: Some(address) } => command(
                "timeout @ sh -c @ wait @ @",
                &[
                    RETURN_LIMIT_S,
                    "until ip -4 -o address show dev \"$1\" up | grep -qF \" $2 \"; do sleep 0.2; done",
                    netdev,
                    &address.to_string(),
                ],
            ),
            Self::WaitFor { netdev, address: None } => command(
                "timeout @ sh -c @ wait @",
                &[
                    RETURN_LIMIT_S,
                    "until ip link show dev \"$1\" >/dev/null; do sleep 0.2; done",
                    netdev,
                ],
            ),
            Self::SetOffload { netdev } => command("ethtool -K @ hw-tc-offload on", &[netdev]),
            Self::LinkUp { netdev } => command("ip link set dev @ up", &[netdev]),
            Self::SetMtu { netdev, mtu_bytes, .. } => {
                command("ip link set dev @ mtu @", &[netdev, &mtu_bytes.to_string()])
            }
            Self::AddAddress { netdev, address } => {
                command("ip address replace @ dev @", &[&address.to_string(), netdev])
            }
            Self::AddRoute(spec) => command(
                "ip route add @ dev @ src @ scope link proto @",
                &[
                    &spec.destination().to_string(),
                    &spec.netdev,
                    &spec.from.to_string(),
                    &PROTOCOL.to_string(),
                ],
            ),
            Self::SetNeighbour(spec) => command(
                "ip neigh replace @ lladdr @ dev @ nud permanent protocol @",
                &[&spec.ip.to_string(), &spec.mac.to_string(), &spec.netdev, &PROTOCOL.to_string()],
            ),
            Self::AddQdisc { netdev } => command("tc qdisc replace dev @ clsact", &[netdev]),
            Self::AddFilter(spec) => {
                let mut argv = command("tc filter add dev @ ingress", &[&spec.netdev]);
                argv.extend(words(&format!(
                    "protocol {:#06x} pref {} handle {:#x} flower skip_sw",
                    spec.ether_type,
                    spec.preference,
                    spec.handle()
                )));
                if let Some(mac) = spec.source_mac {
                    argv.extend(words(&format!("src_mac {mac}")));
                }
                argv.extend(words(&format!("dst_mac {}", spec.destination_mac)));
                argv.extend(words(&format!(
                    "action pedit ex munge eth type set {:#06x} munge eth dst set {} pipe",
                    spec.set_ether_type, spec.set_destination_mac
                )));
                argv.extend(command("action mirred egress redirect dev @", &[&spec.redirect_to]));
                argv
            }
            Self::StartMarker { device, rules, program, .. } => {
                let mut argv = command(
                    "systemd-run @ --collect --property=Type=exec --property=Restart=always --property=RestartSec=1",
                    &[&format!("--unit={}", marker_unit(device))],
                );
                argv.extend(program.argv(device, rules));
                argv
            }
        }
    }
}

fn host_route(ip: Ipv4Addr) -> Interface {
    Interface { ip, prefix: 32 }
}

impl RouteSpec {
    /// Where it leads.
    pub(super) fn destination(&self) -> Interface {
        host_route(self.to)
    }

    /// How it looks once it is there.
    pub fn as_seen(&self) -> Route {
        Route {
            to: self.destination(),
            via: None,
            netdev: self.netdev.clone(),
            source: Some(self.from),
            protocol: PROTOCOL.to_string(),
            scope: Some("link".to_owned()),
            dead: false,
        }
    }
}

impl NeighbourSpec {
    /// How it looks once it is there.
    pub fn as_seen(&self) -> Neighbour {
        Neighbour {
            ip: self.ip,
            netdev: self.netdev.clone(),
            mac: Some(self.mac),
            states: vec!["PERMANENT".to_owned()],
            protocol: Some(PROTOCOL.to_string()),
        }
    }
}

impl FilterSpec {
    /// How it looks once it is there and the hardware carries it out.
    pub fn as_seen(&self) -> Filter {
        Filter {
            netdev: self.netdev.clone(),
            preference: self.preference,
            handle: self.handle(),
            ether_type: Some(self.ether_type),
            source_mac: self.source_mac,
            destination_mac: Some(self.destination_mac),
            destination_ip: None,
            skip_software: true,
            in_hardware: Seen::Known(true),
            set_ether_type: Some(self.set_ether_type),
            set_destination_mac: Some(self.set_destination_mac),
            redirect_to: Some(self.redirect_to.clone()),
            packets: Seen::Known(0),
        }
    }
}
