//! The state of one host, as far as Railweave cares.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Seen;
use crate::address::{Interface, Mac, Pci};

/// The state of one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostState {
    /// The host's own name.
    pub name: String,
    /// What runs there.
    pub system: System,
    /// Network interfaces, by kernel index.
    pub netdevs: Vec<Netdev>,
    /// How many addresses all netdevs have together, or why their addresses are not known.
    pub addresses: Seen<usize>,
    /// RDMA devices, by name.
    pub rdma: Vec<RdmaDevice>,
    /// IPv4 routes of all tables but `local`.
    pub routes: Seen<Vec<Route>>,
    /// IPv4 neighbours.
    pub neighbours: Seen<Vec<Neighbour>>,
    /// Ingress filters of all netdevs.
    pub filters: Seen<Vec<Filter>>,
    /// Egress filters of all netdevs.
    pub egress: Seen<Vec<EgressFilter>>,
    /// devlink parameters, by PCI function and parameter's name; values as text.
    pub devlink: Seen<BTreeMap<Pci, BTreeMap<String, String>>>,
    /// The eswitch mode (`legacy`, `switchdev`) of each PCI function.
    pub eswitch: Seen<BTreeMap<Pci, String>>,
    /// Neighbours told by LLDP.
    pub lldp: Seen<Vec<LldpNeighbour>>,
    /// Processes that mark packets.
    pub markers: Seen<Vec<Marker>>,
    /// The firewall's forwarding rules.
    pub firewall: Seen<Firewall>,
    /// Drives.
    pub drives: Seen<Vec<Drive>>,
}

/// Kernel, limits and clocks of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// `uname -r`.
    pub kernel: Seen<String>,
    /// The kernel's command line.
    pub command_line: Seen<String>,
    /// Changes with every boot.
    pub boot_id: Seen<String>,
    /// SHA-256 of the machine's id: tells machines apart without naming them.
    pub machine: Seen<String>,
    /// How far this host's wall clock is ahead of the reader's, in nanoseconds, with half of the round trip as error.
    pub clock_ahead_ns: Seen<(i64, u64)>,
    /// `net.ipv4.ip_forward` is on.
    pub ip_forward: Seen<bool>,
    /// `kernel.io_uring_disabled`: 0 allowed, 1 for some, 2 refused.
    pub io_uring_disabled: Seen<u8>,
    /// The seccomp mode of the reading process: 0 none, 2 filtered.
    pub seccomp: Seen<u8>,
    /// Locked memory a process may have, in bytes; none is unlimited.
    pub memlock_bytes: Seen<Option<u64>>,
    /// Memory of the contiguous allocator in bytes: all of it, and what is free.
    pub cma_bytes: Seen<(u64, u64)>,
    /// IPv4 datagrams forwarded by software since boot.
    pub forwarded_datagrams: Seen<u64>,
    /// SHA-256 of the `railweave` that would be run there.
    pub binary: Seen<String>,
    /// SHA-256 of the cluster file there.
    pub cluster_file: Seen<String>,
    /// The variables of the environment that say where ranks meet (`MASTER_ADDR` and the like).
    pub environment: Seen<BTreeMap<String, String>>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netdev {
    /// Name of today.
    pub name: String,
    /// Kernel index.
    pub index: u32,
    /// Hardware address.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu_bytes: u32,
    /// Set up by an administrator.
    pub admin_up: bool,
    /// There is a live cable.
    pub carrier: bool,
    /// Link speed in Mb/s.
    pub speed_mbps: Seen<u64>,
    /// Its name for its port: `p0`.
    pub phys_port_name: Option<String>,
    /// Names that tell which ports share one wire.
    pub phys_port_id: Option<String>,
    /// Its place on the PCI bus; none for a virtual one.
    pub pci: Option<Pci>,
    /// The PCI link: (speed in MT/s, width), now and at most.
    pub pcie: Seen<PcieLink>,
    /// IPv4 addresses.
    pub addresses: Vec<Interface>,
    /// IPv6 addresses, as text.
    pub ipv6: Vec<String>,
    /// It is Wi-Fi.
    pub wireless: bool,
    /// It is a loopback, a bridge or another netdev without a cable (`veth` counts as one with a cable).
    pub kind: NetdevKind,
    /// `hw-tc-offload` is on.
    pub tc_offload: Seen<bool>,
    /// Bytes received and sent since boot.
    pub bytes: (u64, u64),
}

/// What a netdev is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetdevKind {
    /// A NIC's.
    Physical,
    /// One end of a virtual cable.
    Veth,
    /// `lo`.
    Loopback,
    /// Anything else.
    Other,
}

/// The PCI link of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// `32.0 GT/s PCIe` as MT/s: 32000.
    pub speed_mts: u64,
    /// Lanes.
    pub width: u32,
    /// Speed it could have.
    pub max_speed_mts: u64,
    /// Lanes it could have.
    pub max_width: u32,
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Name of today.
    pub name: String,
    /// Its PCI function.
    pub pci: Option<Pci>,
    /// Firmware's version.
    pub firmware: Seen<String>,
    /// Ports; RoCE devices have one, number 1.
    pub ports: Vec<RdmaPort>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// Number, from 1.
    pub number: u32,
    /// `ACTIVE`, `DOWN` and so on.
    pub state: Seen<String>,
    /// RoCE MTU in bytes.
    pub active_mtu_bytes: Seen<u32>,
    /// Rate in Mb/s.
    pub rate_mbps: Seen<u64>,
    /// The netdev it uses.
    pub netdev: Option<String>,
    /// The table of GIDs: entries that are not empty.
    pub gids: Vec<Gid>,
    /// `counters` and `hw_counters`, by name.
    pub counters: BTreeMap<String, u64>,
}

/// One entry of a GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Its index today.
    pub index: u32,
    /// 16 bytes, as the kernel prints them.
    pub value: String,
    /// `RoCE v2`, `IB/RoCE v1`.
    pub kind: Seen<String>,
    /// The netdev it belongs to.
    pub netdev: Seen<String>,
}

/// An IPv4 route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination; `0.0.0.0/0` is the default route.
    pub to: Interface,
    /// Next hop.
    pub via: Option<Ipv4Addr>,
    /// Netdev.
    pub netdev: String,
    /// Source address.
    pub source: Option<Ipv4Addr>,
    /// Who made it: a number or a name of `/etc/iproute2/rt_protos`.
    pub protocol: String,
    /// `link`, `global`.
    pub scope: Option<String>,
    /// The kernel does not use it now (`linkdown`, `dead`).
    pub dead: bool,
}

/// An IPv4 neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Address.
    pub ip: Ipv4Addr,
    /// Netdev.
    pub netdev: String,
    /// Hardware address; none if it does not answer.
    pub mac: Option<Mac>,
    /// `PERMANENT`, `REACHABLE`, `FAILED` and so on.
    pub states: Vec<String>,
    /// Who made it, if the kernel says so.
    pub protocol: Option<String>,
}

/// An ingress filter of a netdev.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Netdev.
    pub netdev: String,
    /// Preference.
    pub preference: u32,
    /// Handle.
    pub handle: u32,
    /// EtherType it matches.
    pub ether_type: Option<u16>,
    /// Source MAC it matches.
    pub source_mac: Option<Mac>,
    /// Destination MAC it matches.
    pub destination_mac: Option<Mac>,
    /// Destination address it matches.
    pub destination_ip: Option<Interface>,
    /// It may not be carried out by software.
    pub skip_software: bool,
    /// The hardware carries it out.
    pub in_hardware: Seen<bool>,
    /// EtherType it writes.
    pub set_ether_type: Option<u16>,
    /// Destination MAC it writes.
    pub set_destination_mac: Option<Mac>,
    /// Netdev it redirects to.
    pub redirect_to: Option<String>,
    /// Packets it took, by hardware and software.
    pub packets: Seen<u64>,
}

/// An egress filter of a netdev: what marks packets where software passes them on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressFilter {
    /// Netdev.
    pub netdev: String,
    /// Preference.
    pub preference: u32,
    /// Handle.
    pub handle: u32,
    /// EtherType it matches.
    pub ether_type: Option<u16>,
    /// Destination address it matches.
    pub destination_ip: Option<Interface>,
    /// UDP destination port it matches.
    pub destination_port: Option<u16>,
    /// UDP source port it matches.
    pub source_port: Option<u16>,
    /// EtherType it writes.
    pub set_ether_type: Option<u16>,
    /// Packets it took.
    pub packets: Seen<u64>,
}

/// A neighbour told by LLDP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LldpNeighbour {
    /// The netdev that heard it.
    pub netdev: String,
    /// The neighbour's name.
    pub system: Option<String>,
    /// The MAC of the neighbour's netdev.
    pub mac: Option<Mac>,
}

/// A process that marks packets of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// RDMA device.
    pub rdma: String,
    /// Process id.
    pub pid: u32,
    /// UDP source port it matches, if that is what it matches.
    pub source_port: Option<u16>,
    /// Destination addresses it matches, and the EtherType it sets for each.
    pub destinations: Vec<(Ipv4Addr, u16)>,
    /// EtherType it sets for the source port.
    pub ether_type: Option<u16>,
    /// It has no time limit.
    pub lasting: bool,
}

/// The firewall's forwarding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firewall {
    /// The policy of FORWARD: `ACCEPT` or `DROP`.
    pub forward_policy: String,
    /// Chains and rules as `iptables -S` prints them.
    pub rules: Vec<String>,
}

/// A drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drive {
    /// `nvme0n1`.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Model.
    pub model: Option<String>,
    /// Measured random reads of 4 KiB a second, if someone measured.
    pub reads_per_second: Seen<u64>,
}

impl HostState {
    /// The netdev with this MAC: what a function is found by.
    pub fn netdev_by_mac(&self, mac: Mac) -> Option<&Netdev> {
        self.netdevs
            .iter()
            .find(|netdev| netdev.mac == Some(mac) && netdev.kind != NetdevKind::Other)
    }

    /// The netdev with this name.
    pub fn netdev(&self, name: &str) -> Option<&Netdev> {
        self.netdevs.iter().find(|netdev| netdev.name == name)
    }

    /// The RDMA device that uses this netdev, by its own word or by sharing the PCI function.
    pub fn rdma_of(&self, netdev: &Netdev) -> Option<&RdmaDevice> {
        self.rdma.iter().find(|device| {
            device.ports.iter().any(|port| port.netdev.as_deref() == Some(&netdev.name))
                || (device.pci.is_some() && device.pci == netdev.pci)
        })
    }

    /// Whether an address is one of this host's.
    pub fn has_address(&self, ip: IpAddr) -> bool {
        self.netdevs.iter().any(|netdev| match ip {
            IpAddr::V4(ip) => netdev.addresses.iter().any(|own| own.ip == ip),
            IpAddr::V6(ip) => netdev
                .ipv6
                .iter()
                .any(|own| own.split('/').next().and_then(|text| text.parse().ok()) == Some(ip)),
        })
    }

    /// How far its clock may at most be off from the reader's, if that was measured.
    pub fn clock_skew_at_most(&self) -> Option<Duration> {
        let (ahead, error) = *self.system.clock_ahead_ns.known()?;
        Some(Duration::from_nanos(ahead.unsigned_abs().saturating_add(error)))
    }
}
