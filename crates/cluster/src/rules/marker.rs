//! Marking: the EtherType of a packet that is to be passed on is changed as it leaves the NIC that sends it.
//!
//! The rule lives in the NIC's RDMA transmit table and exists as long as the process that made it. Railweave has no
//! such program of its own yet; it runs the two published ones, one process for each RDMA device, as systemd units.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::change::Change;
use super::compare::Work;
use super::refusal::Refusal;
use crate::inventory::host_state::Marker;

/// Rules that one process of the published program takes.
pub(super) const MOST_RULES: usize = 64;

/// The programs that mark packets, by name or path on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkerProgram {
    /// Takes `--device D --source-port P --replacement-ethertype E --attach --managed`.
    pub source_port: String,
    /// Takes `--device D --rule ADDRESS=E … --managed`.
    pub destination: String,
}

impl Default for MarkerProgram {
    /// The names under which the two programs are published with sparkring.
    fn default() -> Self {
        Self {
            source_port: "mlx5-rdma-tx-rewrite-probe".to_owned(),
            destination: "mesh_marker".to_owned(),
        }
    }
}

/// What one device marks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkerRules {
    /// Every packet with this UDP source port.
    SourcePort {
        /// The port.
        port: u16,
        /// EtherType it is given.
        ether_type: u16,
    },
    /// Every packet to one of these addresses, with the EtherType it is given.
    Destinations(BTreeMap<Ipv4Addr, u16>),
    /// Egress filters of the kernel: what they do with RoCE packets to each of these addresses.
    Filters(BTreeMap<Ipv4Addr, TcMark>),
}

/// What an egress filter matches besides the destination, and what it sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcMark {
    /// The EtherType the packet is given.
    pub ether_type: u16,
    /// The UDP source port it must have; none where tags go by destination.
    pub source_port: Option<u16>,
}

impl MarkerRules {
    /// Whether a running marker does exactly this, and goes on doing it.
    pub(super) fn done_by(&self, marker: &Marker) -> bool {
        marker.lasting
            && match self {
                Self::SourcePort { port, ether_type } => {
                    marker.source_port == Some(*port)
                        && marker.ether_type == Some(*ether_type)
                        && marker.destinations.is_empty()
                }
                Self::Filters(_) => false,
                Self::Destinations(wanted) => {
                    let has: BTreeMap<_, _> = marker.destinations.iter().copied().collect();
                    marker.source_port.is_none()
                        && has.len() == marker.destinations.len()
                        && has == *wanted
                }
            }
    }

    /// What a running marker does; none if that cannot be told.
    pub(super) fn of(marker: &Marker) -> Option<Self> {
        match (marker.source_port, marker.ether_type) {
            (Some(port), Some(ether_type)) if marker.destinations.is_empty() => {
                Some(Self::SourcePort { port, ether_type })
            }
            (None, _) if !marker.destinations.is_empty() => {
                Some(Self::Destinations(marker.destinations.iter().copied().collect()))
            }
            _ => None,
        }
    }

    /// For people: `UDP source port 65535 as 0x88b5`.
    pub fn describe(&self) -> String {
        match self {
            Self::SourcePort { port, ether_type } => {
                format!("UDP source port {port} as {ether_type:#06x}")
            }
            Self::Destinations(wanted) => wanted
                .iter()
                .map(|(ip, ether_type)| format!("{ip} as {ether_type:#06x}"))
                .collect::<Vec<_>>()
                .join(", "),
            Self::Filters(wanted) => wanted
                .iter()
                .map(|(ip, mark)| {
                    let port = mark.source_port.map(|port| format!(" from UDP source port {port}"));
                    format!("{ip}{} as {:#06x}", port.unwrap_or_default(), mark.ether_type)
                })
                .collect::<Vec<_>>()
                .join(", "),
        }
    }
}

impl MarkerProgram {
    /// The command that marks packets of one device until it is stopped.
    pub fn argv(&self, device: &str, rules: &MarkerRules) -> Vec<String> {
        match rules {
            MarkerRules::SourcePort { port, ether_type } => vec![
                self.source_port.clone(),
                "--device".to_owned(),
                device.to_owned(),
                "--source-port".to_owned(),
                port.to_string(),
                "--replacement-ethertype".to_owned(),
                format!("{ether_type:#06x}"),
                "--attach".to_owned(),
                "--managed".to_owned(),
            ],
            // No program marks these; see `mark`.
            MarkerRules::Filters(_) => Vec::new(),
            MarkerRules::Destinations(wanted) => {
                let mut argv =
                    vec![self.destination.clone(), "--device".to_owned(), device.to_owned()];
                for (ip, ether_type) in wanted {
                    argv.push("--rule".to_owned());
                    argv.push(format!("{ip}={ether_type:#06x}"));
                }
                argv.push("--managed".to_owned());
                argv
            }
        }
    }
}

/// The systemd unit in which a device's marker runs.
pub fn marker_unit(device: &str) -> String {
    format!("railweave-mark-{device}.service")
}

/// Markers that have to stop or start. With `software` none is wanted: egress filters do their work.
pub(super) fn compare(work: &mut Work<'_>, software: bool) {
    let mut wanted = BTreeMap::new();
    for marker in work.desired.markers.iter().filter(|_| !software) {
        let Some(netdev) = work.netdev(marker.function) else { continue };
        match work.host.rdma_of(netdev) {
            Some(device) => {
                wanted.insert(device.name.clone(), marker);
            }
            None => {
                let function =
                    work.desired.functions.iter().find(|one| one.function.mac == marker.function);
                work.refusals.push(Refusal::NoRdma {
                    function: function.map(|one| one.function.label()).unwrap_or_default(),
                    netdev: netdev.name.clone(),
                });
            }
        }
    }
    let cabled: BTreeMap<String, String> = work
        .functions()
        .into_iter()
        .filter_map(|(_, netdev)| {
            Some((work.host.rdma_of(netdev)?.name.clone(), netdev.name.clone()))
        })
        .collect();
    let host = work.host;
    let Some(seen) = host.markers.known() else {
        let why = host.markers.reason().unwrap_or("not read");
        work.not_measured("markers", why, !wanted.is_empty());
        return;
    };
    let mut kept = BTreeSet::new();
    for marker in seen {
        // Devices without a cable of the plan are somebody else's business.
        let Some(netdev) = cabled.get(&marker.rdma) else { continue };
        let right = wanted.get(&marker.rdma).is_some_and(|wanted| wanted.rules.done_by(marker));
        if right && !work.reloaded.contains(netdev) && kept.insert(marker.rdma.clone()) {
            continue;
        }
        work.phases.stop.push(Change::StopMarker {
            device: marker.rdma.clone(),
            pid: marker.pid,
            rules: MarkerRules::of(marker),
            program: work.desired.options.marker.clone(),
        });
    }
    for (device, marker) in wanted {
        if kept.contains(&device) {
            continue;
        }
        match &work.desired.options.marker {
            Some(program) => work.phases.start.push(Change::StartMarker {
                device,
                rules: marker.rules.clone(),
                program: program.clone(),
                serves: marker.serves.clone(),
            }),
            None => work.notes.push(format!(
                "{device} has to mark {} ({}); starting that is left to you",
                marker.rules.describe(),
                marker.serves
            )),
        }
    }
}
