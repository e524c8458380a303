//! What a change adds: routes, neighbours and filters, and how each looks once it is there.

use std::net::Ipv4Addr;

use serde::Serialize;

use super::{IPV4, PREFERENCE_BASE, PROTOCOL, ROCE_PORT};
use crate::address::{Interface, Mac};
use crate::inventory::Seen;
use crate::inventory::host_state::{EgressFilter, Filter, Neighbour, Route};

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
    /// The kernel carries it out; otherwise only the NIC may.
    pub software: bool,
    /// The paths it is for.
    pub serves: String,
}

/// An egress filter that marks packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MarkSpec {
    /// The netdev packets leave by.
    pub netdev: String,
    /// Preference; the handle is this less [`PREFERENCE_BASE`].
    pub preference: u32,
    /// Where they go.
    pub to: Ipv4Addr,
    /// The UDP source port they must have, where tags go by source port.
    pub source_port: Option<u16>,
    /// The EtherType it writes.
    pub ether_type: u16,
    /// The paths it is for.
    pub serves: String,
}

impl MarkSpec {
    /// The filter's handle.
    pub fn handle(&self) -> u32 {
        self.preference.saturating_sub(PREFERENCE_BASE)
    }

    /// A filter of ours that is there, as one that could be made again; none if some part of it is gone.
    pub(super) fn of(filter: &EgressFilter) -> Option<Self> {
        Some(Self {
            netdev: filter.netdev.clone(),
            preference: filter.preference,
            to: filter.destination_ip.filter(|to| to.prefix == 32)?.ip,
            source_port: filter.source_port,
            ether_type: filter.set_ether_type?,
            serves: "what it served before".to_owned(),
        })
    }

    /// Whether a filter that is there does this.
    pub(crate) fn done_by(&self, filter: &EgressFilter) -> bool {
        EgressFilter { packets: self.as_seen().packets, ..filter.clone() } == self.as_seen()
    }
}

impl FilterSpec {
    /// The filter's handle.
    pub fn handle(&self) -> u32 {
        self.preference.saturating_sub(PREFERENCE_BASE)
    }

    /// A filter of ours that is there, as one that could be made again; none if some part of it is gone.
    pub(super) fn of(filter: &Filter) -> Option<Self> {
        Some(Self {
            netdev: filter.netdev.clone(),
            preference: filter.preference,
            ether_type: filter.ether_type?,
            source_mac: filter.source_mac,
            destination_mac: filter.destination_mac?,
            set_ether_type: filter.set_ether_type?,
            set_destination_mac: filter.set_destination_mac?,
            redirect_to: filter.redirect_to.clone()?,
            software: !filter.skip_software,
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
            && filter.skip_software != self.software
            && (self.software || filter.in_hardware.known() != Some(&false))
            && filter.set_ether_type == Some(self.set_ether_type)
            && filter.set_destination_mac == Some(self.set_destination_mac)
            && filter.redirect_to.as_ref() == Some(&self.redirect_to)
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

impl MarkSpec {
    /// How it looks once it is there.
    pub fn as_seen(&self) -> EgressFilter {
        EgressFilter {
            netdev: self.netdev.clone(),
            preference: self.preference,
            handle: self.handle(),
            ether_type: Some(IPV4),
            destination_ip: Some(host_route(self.to)),
            destination_port: Some(ROCE_PORT),
            source_port: self.source_port,
            set_ether_type: Some(self.ether_type),
            packets: Seen::Known(0),
        }
    }
}

impl FilterSpec {
    /// How it looks once it is there and the hardware, or else the kernel, carries it out.
    pub fn as_seen(&self) -> Filter {
        Filter {
            netdev: self.netdev.clone(),
            preference: self.preference,
            handle: self.handle(),
            ether_type: Some(self.ether_type),
            source_mac: self.source_mac,
            destination_mac: Some(self.destination_mac),
            destination_ip: None,
            skip_software: !self.software,
            in_hardware: Seen::Known(!self.software),
            set_ether_type: Some(self.set_ether_type),
            set_destination_mac: Some(self.set_destination_mac),
            redirect_to: Some(self.redirect_to.clone()),
            packets: Seen::Known(0),
        }
    }
}
