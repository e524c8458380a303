//! One change on one host: what it does, why, and what would undo it.

use serde::Serialize;

use super::IPV4;
use super::marker::{MarkerProgram, MarkerRules};
use super::spec::{FilterSpec, MarkSpec, NeighbourSpec, RouteSpec};
use crate::address::{Interface, Pci};
use crate::inventory::host_state::{EgressFilter, Filter, Neighbour, Route};

/// When a parameter of a NIC takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// At once.
    Runtime,
    /// When the function is reloaded.
    DriverInit,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "change")]
#[non_exhaustive]
pub enum Change {
    /// Stop the marker of a device, if it is the process that was seen.
    StopMarker {
        /// RDMA device.
        device: String,
        /// The process that was seen.
        pid: u32,
        /// What it marks, if that could be told.
        rules: Option<MarkerRules>,
        /// The programs to start it with again.
        program: Option<MarkerProgram>,
    },
    /// Stop all markers that are Railweave's.
    StopAllMarkers,
    /// Remove a filter.
    RemoveFilter {
        /// As it was seen.
        filter: Filter,
    },
    /// Remove an egress filter that marks packets.
    RemoveMark {
        /// As it was seen.
        filter: EgressFilter,
    },
    /// Remove a neighbour.
    RemoveNeighbour {
        /// As it was seen.
        neighbour: Neighbour,
    },
    /// Remove a route.
    RemoveRoute {
        /// As it was seen.
        route: Route,
    },
    /// Set a parameter of a NIC's function.
    SetParameter {
        /// The function.
        pci: Pci,
        /// Its netdev.
        netdev: String,
        /// The parameter.
        name: String,
        /// Its value.
        value: String,
        /// Its value before.
        was: String,
        /// When it takes effect.
        when: When,
    },
    /// Start a function anew. Its netdev and its RDMA device go and come back.
    Reload {
        /// The function.
        pci: Pci,
        /// Its netdev.
        netdev: String,
    },
    /// Wait until a netdev is back, at most 30 seconds.
    WaitFor {
        /// The netdev.
        netdev: String,
        /// The address it has to have again; none waits for the netdev alone.
        address: Option<Interface>,
    },
    /// Let the NIC carry out filters.
    SetOffload {
        /// The netdev.
        netdev: String,
    },
    /// Set a link up.
    LinkUp {
        /// The netdev.
        netdev: String,
    },
    /// Set the MTU.
    SetMtu {
        /// The netdev.
        netdev: String,
        /// In bytes.
        mtu_bytes: u32,
        /// What it was, in bytes.
        was_bytes: u32,
    },
    /// Add an address.
    AddAddress {
        /// The netdev.
        netdev: String,
        /// The address.
        address: Interface,
    },
    /// Add a route.
    AddRoute(RouteSpec),
    /// Add a permanent neighbour, or put one in the place of what the kernel has learned.
    SetNeighbour(NeighbourSpec),
    /// Make a netdev take filters.
    AddQdisc {
        /// The netdev.
        netdev: String,
    },
    /// Add a filter.
    AddFilter(FilterSpec),
    /// Add an egress filter that marks packets.
    AddMark(MarkSpec),
    /// Start a marker.
    StartMarker {
        /// RDMA device.
        device: String,
        /// What it marks.
        rules: MarkerRules,
        /// The programs it is started with.
        program: MarkerProgram,
        /// The paths it is for.
        serves: String,
    },
}

impl Change {
    /// Why, in one line.
    pub fn explain(&self) -> String {
        match self {
            Self::StopMarker { device, pid, .. } => format!(
                "the marker of {device} (pid {pid}) is not what the plan needs; fails if Railweave did not start it"
            ),
            Self::StopAllMarkers => {
                "stops the markers that Railweave started, and no others".to_owned()
            }
            Self::RemoveFilter { filter } => {
                format!("a filter of ours on {} that is no longer right", filter.netdev)
            }
            Self::RemoveMark { filter } => {
                format!(
                    "a filter of ours that marks what leaves {} and is no longer right",
                    filter.netdev
                )
            }
            Self::RemoveNeighbour { neighbour } => {
                format!("a neighbour of ours, {}, that no path needs", neighbour.ip)
            }
            Self::RemoveRoute { route } => {
                format!("a route of ours, to {}, that is no longer right", route.to.ip)
            }
            Self::SetParameter { netdev, name, value, was, when, .. } => match when {
                When::DriverInit => format!(
                    "{netdev} passes packets on: {name} {was} is not enough, {value} takes effect with the reload"
                ),
                When::Runtime => {
                    format!("{netdev}: {name} {was} does not take these rules, {value} does")
                }
            },
            Self::Reload { netdev, .. } => format!(
                "starts {netdev} anew with its new queues: about 4 s; ends its queue pairs, wipes its routes and filters"
            ),
            Self::WaitFor { netdev, address: Some(address) } => {
                format!("{netdev} comes back, and what manages addresses gives it {address} again")
            }
            Self::WaitFor { netdev, address: None } => format!("{netdev} comes back"),
            Self::SetOffload { netdev } => {
                format!(
                    "lets the NIC carry out the filters of {netdev}; off after every boot and reload"
                )
            }
            Self::LinkUp { netdev } => format!("{netdev} is down"),
            Self::SetMtu { mtu_bytes, was_bytes, .. } => format!(
                "{was_bytes} bytes is not the cluster's MTU, {mtu_bytes}; a small one makes RoCE use small packets"
            ),
            Self::AddAddress { netdev, .. } => {
                format!("the cluster file gives {netdev} this address")
            }
            Self::AddRoute(route) => format!("{}: leaves by {}", route.serves, route.netdev),
            Self::SetNeighbour(neighbour) => format!(
                "{}: the first hop is {}, which passes the packets on; nobody answers for {} here",
                neighbour.serves, neighbour.carrier, neighbour.ip
            ),
            Self::AddQdisc { netdev } => {
                format!("{netdev} takes filters; does nothing if it does already")
            }
            Self::AddMark(mark) => format!(
                "{}: packets to {} leave with EtherType {:#06x}",
                mark.serves, mark.to, mark.ether_type
            ),
            Self::AddFilter(filter) if filter.set_ether_type == IPV4 => format!(
                "{}: last relay, so the packet is made IPv4 again and goes out by {}",
                filter.serves, filter.redirect_to
            ),
            Self::AddFilter(filter) => format!(
                "{}: relays remain, so the tag becomes {:#06x} and the packet goes out by {}",
                filter.serves, filter.set_ether_type, filter.redirect_to
            ),
            Self::StartMarker { device, rules, serves, .. } => {
                format!("{serves}: {device} marks {}", rules.describe())
            }
        }
    }

    /// What puts things back; none where nothing does, or nothing needs to.
    pub fn undo(&self) -> Option<Self> {
        match self {
            Self::StopMarker { device, rules: Some(rules), program: Some(program), .. } => {
                Some(Self::StartMarker {
                    device: device.clone(),
                    rules: rules.clone(),
                    program: program.clone(),
                    serves: "what it served before".to_owned(),
                })
            }
            Self::RemoveFilter { filter } => FilterSpec::of(filter).map(Self::AddFilter),
            Self::RemoveMark { filter } => MarkSpec::of(filter).map(Self::AddMark),
            Self::RemoveNeighbour { neighbour } => Some(Self::SetNeighbour(NeighbourSpec {
                ip: neighbour.ip,
                netdev: neighbour.netdev.clone(),
                mac: neighbour.mac?,
                carrier: "the host it was".to_owned(),
                serves: "what it served before".to_owned(),
            })),
            Self::RemoveRoute { route } => Some(Self::AddRoute(RouteSpec {
                to: route.to.ip,
                netdev: route.netdev.clone(),
                from: route.source?,
                serves: "what it served before".to_owned(),
            })),
            Self::SetParameter { pci, netdev, name, value, was, when } => {
                Some(Self::SetParameter {
                    pci: *pci,
                    netdev: netdev.clone(),
                    name: name.clone(),
                    value: was.clone(),
                    was: value.clone(),
                    when: *when,
                })
            }
            Self::SetMtu { netdev, mtu_bytes, was_bytes } => Some(Self::SetMtu {
                netdev: netdev.clone(),
                mtu_bytes: *was_bytes,
                was_bytes: *mtu_bytes,
            }),
            Self::AddRoute(spec) => Some(Self::RemoveRoute { route: spec.as_seen() }),
            Self::SetNeighbour(spec) => Some(Self::RemoveNeighbour { neighbour: spec.as_seen() }),
            Self::AddFilter(spec) => Some(Self::RemoveFilter { filter: spec.as_seen() }),
            Self::AddMark(spec) => Some(Self::RemoveMark { filter: spec.as_seen() }),
            Self::StopMarker { .. }
            | Self::StopAllMarkers
            | Self::Reload { .. }
            | Self::WaitFor { .. }
            | Self::SetOffload { .. }
            | Self::LinkUp { .. }
            | Self::AddAddress { .. }
            | Self::AddQdisc { .. }
            | Self::StartMarker { .. } => None,
        }
    }

    /// Whether packets that are on their way may be lost by it, so that no queue pair of the cluster may be connected.
    /// What is only added beside others, a route, a neighbour, an address, disturbs nobody.
    pub fn disturbs(&self) -> bool {
        match self {
            Self::StopMarker { .. }
            | Self::StopAllMarkers
            | Self::RemoveFilter { .. }
            | Self::RemoveMark { .. }
            | Self::RemoveNeighbour { .. }
            | Self::RemoveRoute { .. }
            | Self::SetParameter { .. }
            | Self::Reload { .. }
            | Self::SetOffload { .. }
            | Self::SetMtu { .. }
            | Self::AddFilter(_)
            | Self::AddMark(_)
            | Self::StartMarker { .. } => true,
            Self::WaitFor { .. }
            | Self::LinkUp { .. }
            | Self::AddAddress { .. }
            | Self::AddRoute(_)
            | Self::SetNeighbour(_)
            | Self::AddQdisc { .. } => false,
        }
    }

    /// One line: `+` adds, `-` removes, `~` changes, `.` waits.
    pub fn diff(&self) -> String {
        match self {
            Self::StopMarker { device, pid, rules, .. } => {
                let what = rules.as_ref().map_or_else(|| "?".to_owned(), MarkerRules::describe);
                format!("- marker {device} (pid {pid}): {what}")
            }
            Self::StopAllMarkers => "- markers of Railweave".to_owned(),
            Self::RemoveFilter { filter } => {
                format!("- filter {} preference {}", filter.netdev, filter.preference)
            }
            Self::RemoveMark { filter } => {
                format!("- mark {} preference {}", filter.netdev, filter.preference)
            }
            Self::RemoveNeighbour { neighbour } => {
                format!("- neighbour {} on {}", neighbour.ip, neighbour.netdev)
            }
            Self::RemoveRoute { route } => format!("- route {} on {}", route.to, route.netdev),
            Self::SetParameter { pci, name, value, was, .. } => {
                format!("~ devlink pci/{pci} {name}: {was} -> {value}")
            }
            Self::Reload { pci, netdev } => format!("~ devlink pci/{pci} reload ({netdev})"),
            Self::WaitFor { netdev, .. } => format!(". wait for {netdev}"),
            Self::SetOffload { netdev } => format!("~ offload {netdev}: off -> on"),
            Self::LinkUp { netdev } => format!("~ link {netdev}: down -> up"),
            Self::SetMtu { netdev, mtu_bytes, was_bytes } => {
                format!("~ mtu {netdev}: {was_bytes} -> {mtu_bytes}")
            }
            Self::AddAddress { netdev, address } => format!("+ address {address} on {netdev}"),
            Self::AddRoute(spec) => {
                format!("+ route {}/32 on {} from {}", spec.to, spec.netdev, spec.from)
            }
            Self::SetNeighbour(spec) => {
                format!("+ neighbour {} at {} on {}", spec.ip, spec.mac, spec.netdev)
            }
            Self::AddQdisc { netdev } => format!("+ qdisc clsact on {netdev}"),
            Self::AddFilter(spec) => format!(
                "+ filter {} preference {}: {:#06x} -> {:#06x} to {} by {}",
                spec.netdev,
                spec.preference,
                spec.ether_type,
                spec.set_ether_type,
                spec.set_destination_mac,
                spec.redirect_to
            ),
            Self::AddMark(spec) => {
                let port = spec.source_port.map(|port| format!(" from UDP source port {port}"));
                format!(
                    "+ mark {} preference {}: to {}{} as {:#06x}",
                    spec.netdev,
                    spec.preference,
                    spec.to,
                    port.unwrap_or_default(),
                    spec.ether_type
                )
            }
            Self::StartMarker { device, rules, .. } => {
                format!("+ marker {device}: {}", rules.describe())
            }
        }
    }
}
