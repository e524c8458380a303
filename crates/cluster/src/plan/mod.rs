//! The plan: for each ordered pair of ranks how bytes get from one to the other.
//!
//! A pure function of the cluster file (and of which devices can mark packets, where that is known). Both ends of a
//! path derive the same pairing from the same text.

mod cabling;
mod derive;
mod digest;
mod error;
mod routes;
mod shape;
mod ways;
mod window;
mod wiring;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::address::Mac;
use crate::file::{Forward, MarkerKind, RouteEntry, TagKind};

pub use derive::{ETHER_TYPE_BASE, MAX_RELAYS};
pub use error::{ForwardFailure, PlanError};

/// The schema of [`Plan`] as JSON.
pub const SCHEMA: &str = "railweave-plan/1";

/// Which RDMA devices are known to mark packets, by rank. A rank that is not in it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(pub BTreeMap<usize, BTreeSet<String>>);

/// What may differ from the cluster file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// Instead of the file's.
    pub forward: Option<Forward>,
    /// Instead of the file's.
    pub tag: Option<TagKind>,
    /// Instead of the file's routes for the same pairs of hosts.
    pub routes: Vec<RouteEntry>,
    /// Which devices mark packets; none: all that need to are taken to.
    pub coverage: Option<Coverage>,
}

/// How the hosts are cabled, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One host.
    Single,
    /// Two hosts and a cable, or two.
    Pair,
    /// Three hosts, every two joined.
    Triangle,
    /// A chain with two ends.
    Path,
    /// Every host joined to two others, in one cycle of four or more.
    Ring,
    /// All hosts on one switch.
    Switch,
    /// Every two of four or more hosts joined.
    Full,
    /// Anything else that is connected.
    Graph,
}

/// How bytes get from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathKind {
    /// One cable, or one switch.
    Direct,
    /// NICs of the hosts between pass packets on.
    Forwarded,
    /// Ranks between receive and re-send.
    Relayed,
}

/// A function, by its place and by what is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionRef {
    /// The rank of its host.
    pub rank: usize,
    /// The host.
    pub host: String,
    /// The port.
    pub port: String,
    /// Its number on the port.
    pub number: usize,
    /// Its number among all functions of the host, in the order of the file.
    pub device_number: usize,
    /// Its netdev.
    pub netdev: String,
    /// Its RDMA device, if it has one.
    pub rdma: Option<String>,
    /// Its hardware address.
    pub mac: Mac,
    /// Its address, if the file has one.
    pub ip: Option<Ipv4Addr>,
    /// Its network's prefix length, if the file has an address.
    pub prefix: Option<u8>,
    /// The adapter it is part of: see [`crate::address::Pci::adapter`]. None for a virtual netdev. Where the kernel
    /// passes packets on ([`MarkerKind::Tc`]), functions with one number on their ports stand for an adapter.
    pub adapter: Option<String>,
}

impl FunctionRef {
    /// `host.port.number`, for messages.
    pub fn label(&self) -> String {
        format!("{}.{}.{}", self.host, self.port, self.number)
    }
}

/// One cable on the way of a rail: out of one function, into another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossing {
    /// Index into [`Plan::cables`].
    pub cable: usize,
    /// The function the bytes leave by.
    pub out: FunctionRef,
    /// The function they arrive at.
    pub into: FunctionRef,
}

/// How packets of a forwarded rail are told from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// Which kind.
    pub kind: TagKind,
    /// Flow label of the rail's queue pairs.
    pub flow_label: u32,
    /// UDP source port that follows from it; none where the flow label is left 0.
    pub source_port: Option<u16>,
    /// The EtherType on each cable from the source to the last relay, in order. The last cable carries plain IPv4.
    pub ether_types: Vec<u16>,
}

/// One pair of functions that carries a share of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rail {
    /// Ranks visited, both ends included.
    pub hops: Vec<usize>,
    /// The cables crossed, in order: one less than hops; on a forwarded rail the arriving function and the next
    /// leaving function are parts of one adapter.
    pub crossings: Vec<Crossing>,
    /// For a forwarded rail.
    pub tag: Option<Tag>,
}

/// How bytes get from rank `from` to rank `to`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathPlan {
    /// Source rank.
    pub from: usize,
    /// Destination rank.
    pub to: usize,
    /// Which kind.
    pub kind: PathKind,
    /// Rails, disjoint, in an order that both directions share.
    pub rails: Vec<Rail>,
    /// Why the path is of a lesser kind than was asked for.
    pub instead: Option<String>,
    /// Whether a route of the owner's set it.
    pub chosen: bool,
}

/// A cable, or a port on a switch, with the functions that meet over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CablePlan {
    /// `host.port–host.port`, or `host.port–switch`.
    pub name: String,
    /// The lower rank's port: `(rank, port)`.
    pub a: (usize, String),
    /// The other end; none is a switch.
    pub b: Option<(usize, String)>,
    /// The switch, if it ends at one.
    pub switch: Option<String>,
    /// Pairs of functions that share a network over this cable, `a`'s first. Empty for a switch's.
    pub pairs: Vec<(FunctionRef, FunctionRef)>,
}

/// What one cable carries in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Index into [`Plan::cables`].
    pub cable: usize,
    /// The rank the bytes leave.
    pub from: usize,
    /// The function number on the port.
    pub number: usize,
    /// Rails of direct paths.
    pub direct: usize,
    /// Crossings of forwarded rails.
    pub forwarded: usize,
    /// Crossings of relayed rails.
    pub relayed: usize,
}

/// A rank of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlan {
    /// Its number: the place of its host in the file.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// Address for control connections, if the file has one.
    pub control: Option<String>,
    /// All functions of the host, in the order of the file.
    pub functions: Vec<FunctionRef>,
    /// Ranks a cable joins it to.
    pub neighbours: Vec<usize>,
}

/// How bytes get from any rank to any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`SCHEMA`].
    pub schema: String,
    /// How the hosts are cabled.
    pub shape: Shape,
    /// What was asked for.
    pub forward: Forward,
    /// How forwarded packets are told.
    pub tag: TagKind,
    /// What marks them and passes them on.
    #[serde(default, skip_serializing_if = "MarkerKind::is_nic")]
    pub marker: MarkerKind,
    /// MTU of every netdev of a cable, in bytes.
    pub mtu_bytes: u32,
    /// Ranks, by number.
    pub ranks: Vec<RankPlan>,
    /// Cables, in the order of the file.
    pub cables: Vec<CablePlan>,
    /// One for each ordered pair, by source, then destination.
    pub paths: Vec<PathPlan>,
    /// What cables carry: one for each cable, direction and function, in order.
    pub loads: Vec<Load>,
    /// SHA-256 of the plan's content, in hexadecimal: equal on all ranks, or the group does not form.
    pub digest: String,
}

impl Plan {
    /// The path from one rank to another; none from a rank to itself.
    pub fn path(&self, from: usize, to: usize) -> Option<&PathPlan> {
        self.paths.iter().find(|path| path.from == from && path.to == to)
    }
}
