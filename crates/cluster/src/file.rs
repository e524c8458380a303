//! The cluster file: hosts, ports, functions, cables, and what the owner wants of them.
//!
//! Names of interfaces in it are hints for people. What identifies a function is its MAC.

mod error;
mod networks;
mod route;
mod text;
mod validate;

use serde::{Deserialize, Serialize};

use crate::address::{Interface, Mac, Pci};

pub use error::FileError;
pub(crate) use validate::End;

/// The schema of the file this build reads and writes.
pub const SCHEMA: &str = "railweave-cluster/1";

/// Longest file that is read, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Most hosts of a cluster: as many ranks as a fabric joins.
pub const MAX_HOSTS: usize = 16;
/// Most ports of a host.
pub const MAX_PORTS: usize = 8;
/// Most functions of a port.
pub const MAX_FUNCTIONS: usize = 4;
/// Most switches.
pub const MAX_SWITCHES: usize = 16;
/// Most routes: four for each ordered pair of hosts.
pub const MAX_ROUTES: usize = 4 * MAX_HOSTS * (MAX_HOSTS - 1);
/// Longest name of a host, port or switch, in bytes.
pub const MAX_NAME: usize = 64;
/// Least MTU of a cable, in bytes: what the smallest useful RoCE MTU, 1024 bytes, needs with its headers, and IPv6's
/// least MTU besides.
pub const MIN_MTU_BYTES: u32 = 1280;
/// Largest MTU of a cable, in bytes: what mlx5 devices take.
pub const MAX_MTU_BYTES: u32 = 9978;

/// Whether distant ranks are reached through the NICs of the hosts between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forward {
    /// Never: distant ranks are reached by relays.
    #[default]
    Off,
    /// Where it works; elsewhere by relays, with the reason.
    Auto,
    /// Or it is an error.
    Required,
}

/// How a packet that is to be passed on is told from one that has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TagKind {
    /// By its destination's address.
    #[default]
    Destination,
    /// By its UDP source port.
    SourcePort,
}

/// What marks packets that are to be passed on, and passes them on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkerKind {
    /// The NICs: programs mark packets in the sender's, filters in hardware pass them on.
    #[default]
    Nic,
    /// The kernels' traffic control: filters of the sender mark packets as they leave, filters between pass them on.
    /// For RDMA devices that are software (soft-RoCE), whose links take no filter into hardware.
    Tc,
}

impl MarkerKind {
    /// Whether it is the default: what does not stand in files and digests.
    pub fn is_nic(&self) -> bool {
        *self == Self::Nic
    }
}

/// A cluster as its owner describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// [`SCHEMA`].
    pub schema: String,
    /// Whether NICs pass packets on.
    #[serde(default)]
    pub forward: Forward,
    /// How such packets are told.
    #[serde(default)]
    pub tag: TagKind,
    /// What marks them and passes them on.
    #[serde(default, skip_serializing_if = "MarkerKind::is_nic")]
    pub marker: MarkerKind,
    /// MTU of every netdev of a cable, in bytes.
    #[serde(default = "default_mtu_bytes")]
    pub mtu_bytes: u32,
    /// Hosts, in the order of ranks.
    #[serde(rename = "host", default)]
    pub hosts: Vec<Host>,
    /// Switches, by name.
    #[serde(rename = "switch", default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<Switch>,
    /// What is plugged into what.
    #[serde(rename = "cable", default)]
    pub cables: Vec<CableEntry>,
    /// Paths the owner chose instead of the derived ones.
    #[serde(rename = "route", default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteEntry>,
}

/// MTU that makes the largest RoCE MTU, 4096 bytes, fit with room to spare.
pub const fn default_mtu_bytes() -> u32 {
    9000
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Name, unique in the file.
    pub name: String,
    /// How commands get there: `local`, `ssh:TARGET`, `netns:NAME` or `recorded:FOLDER`.
    #[serde(default = "local")]
    pub reach: String,
    /// Address on the management network, for control connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// Network cages.
    #[serde(rename = "port", default)]
    pub ports: Vec<Port>,
}

fn local() -> String {
    "local".to_owned()
}

/// A network cage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Name, unique on the host: `p0`.
    pub name: String,
    /// The PCI functions behind it, in the order of their PCI addresses. They share one wire.
    #[serde(rename = "function", default)]
    pub functions: Vec<Function>,
}

/// One PCI function behind a port, with its netdev and its RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Hardware address: what identifies the function.
    pub mac: Mac,
    /// Address, in the network that only this cable and class of function has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Interface>,
    /// Name of the netdev when this was written.
    pub netdev: String,
    /// Name of the RDMA device when this was written; none where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<String>,
    /// Place on the PCI bus; none for a virtual netdev.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<Pci>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Name, unique among hosts and switches.
    pub name: String,
}

/// A cable between two ports, or between a port and a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableEntry {
    /// One end: `host.port`.
    pub a: String,
    /// The other end: `host.port`, or the name of a switch.
    pub b: String,
}

/// Paths from one host to another that the owner chose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteEntry {
    /// Source host.
    pub from: String,
    /// Destination host.
    pub to: String,
    /// Hosts between, in order from `from`. Empty: a direct path, or, with kind `forwarded` or `relayed`, the hosts
    /// the plan would take.
    #[serde(default)]
    pub via: Vec<String>,
    /// `forwarded`, `relayed` or, for neighbours, `direct`; none leaves it to the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The functions' numbers (0 and 1 on a port with two) that carry rails; empty: as derived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<usize>,
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
