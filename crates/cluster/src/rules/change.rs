//! One change on one host: what it does, why, and what would undo it.

use std::net::Ipv4Addr;

use serde::Serialize;

use super::marker::{MarkerProgram, MarkerRules};
use super::{IPV4, PREFERENCE_BASE};
use crate::address::{Interface, Mac, Pci};
use crate::inventory::host_state::{Filter, Neighbour, Route};

/// A route to a far address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteSpec {
    /// The far address.
    pub to: Ipv4Addr,
    /// The netdev that leads there.
    pub netdev: String,
    /// The address packets come from.
    pub from: Ipv4Addr,
    /// The paths it is for.
    pub serves: String,
}

/// A permanent neighbour for a far address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NeighbourSpec {
    /// The far address.
    pub ip: Ipv4Addr,
    /// The netdev that leads there.
    pub netdev: String,
    /// Where the packet arrives on the carrying neighbour.
    pub mac: Mac,
    /// The host that is.
    pub carrier: String,
    /// The paths it is for.
    pub serves: String,
}

/// An ingress filter that passes packets on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilterSpec {
    /// The netdev packets arrive at.
    pub netdev: String,
    /// Preference; the handle is this less [`PREFERENCE_BASE`].
    pub preference: u32,
    /// The tag it matches.
    pub ether_type: u16,
    /// The sender's MAC, if it matches that.
    pub source_mac: Option<Mac>,
    /// The MAC of the netdev.
    pub destination_mac: Mac,
    /// The EtherType it writes.
    pub set_ether_type: u16,
    /// The destination MAC it writes.
    pub set_destination_mac: Mac,
    /// The netdev packets leave by.
    pub redirect_to: String,
    /// The paths it is for.
    pub serves: String,
}

impl FilterSpec {
    /// The filter's handle.
    pub fn handle(&self) -> u32 {
        self.preference.saturating_sub(PREFERENCE_BASE)
    }

    /// A filter of ours that is there, as one that could be made again; none if some part of it is gone.
    fn of(filter: &Filter) -> Option<Self> {
        Some(Self {
            netdev: filter.netdev.clone(),
            preference: filter.preference,
            ether_type: filter.ether_type?,
            source_mac: filter.source_mac,
            destination_mac: filter.destination_mac?,
            set_ether_type: filter.set_ether_type?,
            set_destination_mac: filter.set_destination_mac?,
            redirect_to: filter.redirect_to.clone()?,
            serves: "what it served before".to_owned(),
        })
    }

    /// Whether a filter that is there does this, in hardware as far as it is known.
    pub(super) fn done_by(&self, filter: &Filter) -> bool {
        filter.netdev == self.netdev
            && filter.preference == self.preference
            && filter.handle == self.handle()
            && filter.ether_type == Some(self.ether_type)
            && filter.source_mac == self.source_mac
            && filter.destination_mac == Some(self.destination_mac)
            && filter.destination_ip.is_none()
            && filter.skip_software
            && filter.in_hardware.known() != Some(&false)
            && filter.set_ether_type == Some(self.set_ether_type)
            && filter.set_destination_mac == Some(self.set_destination_mac)
            && filter.redirect_to.as_ref() == Some(&self.redirect_to)
    }
}

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
                "{}: the first hop is {}, whose NIC passes the packets on; nobody answers for {} here",
                neighbour.serves, neighbour.carrier, neighbour.ip
            ),
            Self::AddQdisc { netdev } => {
                format!("{netdev} takes ingress filters; does nothing if it does already")
            }
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
            | Self::RemoveNeighbour { .. }
            | Self::RemoveRoute { .. }
            | Self::SetParameter { .. }
            | Self::Reload { .. }
            | Self::SetOffload { .. }
            | Self::SetMtu { .. }
            | Self::AddFilter(_)
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
            Self::StartMarker { device, rules, .. } => {
                format!("+ marker {device}: {}", rules.describe())
            }
        }
    }
}
