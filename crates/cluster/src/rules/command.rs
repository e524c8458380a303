//! The command that carries out a change.

use super::change::{Change, When};
use super::marker::marker_unit;
use super::{PROTOCOL, ROCE_PORT};

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
            Self::RemoveMark { filter } => command(
                "tc filter del dev @ egress protocol ip pref @ handle @ flower",
                &[&filter.netdev, &filter.preference.to_string(), &format!("{:#x}", filter.handle)],
            ),
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
                    "protocol {:#06x} pref {} handle {:#x} flower",
                    spec.ether_type,
                    spec.preference,
                    spec.handle()
                )));
                if !spec.software {
                    argv.push("skip_sw".to_owned());
                }
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
            Self::AddMark(spec) => {
                let mut argv = command("tc filter add dev @ egress", &[&spec.netdev]);
                argv.extend(words(&format!(
                    "protocol ip pref {} handle {:#x} flower ip_proto udp dst_port {ROCE_PORT} dst_ip {}",
                    spec.preference,
                    spec.handle(),
                    spec.to
                )));
                if let Some(port) = spec.source_port {
                    argv.extend(words(&format!("src_port {port}")));
                }
                argv.extend(words(&format!(
                    "action pedit ex munge eth type set {:#06x}",
                    spec.ether_type
                )));
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
