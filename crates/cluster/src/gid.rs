//! Which entry of a device's GID table a queue pair must use: found by content, never by a pinned index.
//!
//! Entries move: an address that is set again, IPv6 that comes up late or a driver that is reloaded give the same
//! address another index. What does not move is what an entry says: RoCE v2, the address mapped into IPv6, and the
//! netdev it belongs to.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::inventory::HostState;
use crate::inventory::host_state::{Gid, Netdev};

/// What the kernel calls the kind of GID that goes over UDP.
pub const ROCE_V2: &str = "RoCE v2";

/// A GID, and where it is today.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidChoice {
    /// RDMA device.
    pub device: String,
    /// Its port.
    pub port: u32,
    /// The entry's index today.
    pub index: u32,
    /// The entry: 16 bytes, as the kernel prints them.
    pub value: String,
}

/// Why no entry fits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GidError {
    /// The netdev has no RDMA device.
    #[error(
        "{host}: {netdev} has no RDMA device; is the driver's RDMA module loaded (`rdma link`)?"
    )]
    NoDevice {
        /// The host.
        host: String,
        /// The netdev.
        netdev: String,
    },
    /// The table holds nothing for this netdev.
    #[error(
        "{host}: {device} has no GID at all for {netdev}: all slots are empty; set the address again \
         (`ip address add {ip}/PREFIX dev {netdev}`) and see `rdma link`"
    )]
    Empty {
        /// The host.
        host: String,
        /// The RDMA device.
        device: String,
        /// The netdev.
        netdev: String,
        /// The address that was looked for.
        ip: Ipv4Addr,
    },
    /// Entries are there, and none fits.
    #[error("{host}: no GID of {device} fits {ip} on {netdev}: {why}; it has {}", entries.join(", "))]
    NoneFits {
        /// The host.
        host: String,
        /// The RDMA device.
        device: String,
        /// The netdev.
        netdev: String,
        /// The address that was looked for.
        ip: Ipv4Addr,
        /// What comes nearest, and why it does not fit.
        why: String,
        /// The entries there are, one each.
        entries: Vec<String>,
    },
}

/// The entry for an address of a netdev.
///
/// # Errors
///
/// If the netdev has no RDMA device, or no entry of it is RoCE v2, is this address, and belongs to the netdev.
pub fn gid_for(host: &HostState, netdev: &Netdev, ip: Ipv4Addr) -> Result<GidChoice, GidError> {
    let named = || (host.name.clone(), netdev.name.clone());
    let Some(device) = host.rdma_of(netdev) else {
        let (host, netdev) = named();
        return Err(GidError::NoDevice { host, netdev });
    };
    let all =
        || device.ports.iter().flat_map(|port| port.gids.iter().map(move |gid| (port.number, gid)));
    let fitting = all().find(|(_, gid)| {
        is_mapped(&gid.value, ip)
            && gid.kind.known().is_some_and(|kind| kind == ROCE_V2)
            && gid.netdev.known().is_some_and(|name| *name == netdev.name)
    });
    if let Some((port, gid)) = fitting {
        return Ok(GidChoice {
            device: device.name.clone(),
            port,
            index: gid.index,
            value: gid.value.clone(),
        });
    }
    let ((host, netdev_name), device) = (named(), device.name.clone());
    let gids: Vec<&Gid> = all().map(|(_, gid)| gid).collect();
    if gids.is_empty() {
        return Err(GidError::Empty { host, device, netdev: netdev_name, ip });
    }
    let why = why_none(&gids, &netdev.name, ip);
    let entries = gids.iter().map(|gid| shown(gid)).collect();
    Err(GidError::NoneFits { host, device, netdev: netdev_name, ip, why, entries })
}

/// The address a GID stands for, if it stands for an IPv4 address.
pub fn mapped_address(value: &str) -> Option<Ipv4Addr> {
    value.parse::<std::net::Ipv6Addr>().ok()?.to_ipv4_mapped()
}

fn is_mapped(value: &str, ip: Ipv4Addr) -> bool {
    mapped_address(value) == Some(ip)
}

/// What comes nearest, and why it does not fit.
fn why_none(gids: &[&Gid], netdev: &str, ip: Ipv4Addr) -> String {
    let of_address: Vec<&&Gid> = gids.iter().filter(|gid| is_mapped(&gid.value, ip)).collect();
    let v2 = |gid: &&&Gid| gid.kind.known().is_some_and(|kind| kind == ROCE_V2);
    if let Some(gid) = of_address.iter().copied().find(v2) {
        return match gid.netdev.known() {
            Some(other) => format!(
                "entry {} is this address, and belongs to {other}, not to {netdev}",
                gid.index
            ),
            None => {
                format!("entry {} is this address, and whose it is could not be read", gid.index)
            }
        };
    }
    if let Some(gid) = of_address.first() {
        return match gid.kind.known() {
            Some(kind) => format!(
                "entry {} is this address, but {kind}; only RoCE v2 goes over UDP",
                gid.index
            ),
            None => format!("entry {} is this address, and its kind could not be read", gid.index),
        };
    }
    let others: Vec<String> =
        gids.iter().filter_map(|gid| mapped_address(&gid.value)).map(|ip| ip.to_string()).collect();
    match others.first() {
        None => "all its entries are IPv6; the netdev has no IPv4 address the driver knows of"
            .to_owned(),
        Some(_) => {
            let mut others = others;
            others.dedup();
            format!("its IPv4 entries are for {}", others.join(" and "))
        }
    }
}

/// An entry, for a person.
fn shown(gid: &Gid) -> String {
    let kind = gid.kind.known().map_or("of a kind not measured", String::as_str);
    let netdev = gid.netdev.known().map_or("a netdev not measured", String::as_str);
    let value = mapped_address(&gid.value).map_or_else(|| gid.value.clone(), |ip| ip.to_string());
    format!("{}: {value} {kind} of {netdev}", gid.index)
}

#[cfg(test)]
#[path = "gid_tests.rs"]
mod tests;
