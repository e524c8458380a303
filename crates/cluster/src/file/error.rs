//! Why a cluster file is refused: which host, port, cable or address, and what would make it valid.

use std::net::Ipv4Addr;

use super::{
    MAX_BYTES, MAX_FUNCTIONS, MAX_HOSTS, MAX_MTU_BYTES, MAX_NAME, MAX_PORTS, MAX_ROUTES,
    MAX_SWITCHES, MIN_MTU_BYTES, SCHEMA,
};
use crate::address::{Interface, Mac};

/// Why a cluster file is refused. Each message names the place and what would make it valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// More text than is read.
    #[error("the cluster file is {bytes} bytes long; at most {MAX_BYTES} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It is no TOML, or a value is not what its key takes.
    #[error("the cluster file cannot be read: {source}")]
    Syntax {
        /// Where and why, with the line.
        #[from]
        source: toml::de::Error,
    },
    /// A key that does not exist there.
    #[error("{place} has no key {key:?}{}; its keys are {known}", did_you_mean(nearest.as_deref()))]
    UnknownKey {
        /// The table it is in: `[[host.port]]`.
        place: &'static str,
        /// The key.
        key: String,
        /// The key most like it.
        nearest: Option<String>,
        /// All keys there are.
        known: String,
    },
    /// Written for another version.
    #[error("schema {found:?} is not known to this build; it reads schema = {SCHEMA:?}")]
    UnknownSchema {
        /// The schema it names.
        found: String,
    },
    /// No host, or too many.
    #[error(
        "the file has {count} hosts; a cluster has 1 to {MAX_HOSTS}, with a [[host]] for each machine"
    )]
    HostCount {
        /// How many it has.
        count: usize,
    },
    /// Too many ports.
    #[error("host {host} has {count} ports; a host has at most {MAX_PORTS}")]
    PortCount {
        /// The host.
        host: String,
        /// How many it has.
        count: usize,
    },
    /// No function, or too many.
    #[error(
        "port {port} has {count} functions; a port has 1 to {MAX_FUNCTIONS}: add a [[host.port.function]] for each"
    )]
    FunctionCount {
        /// `host.port`.
        port: String,
        /// How many it has.
        count: usize,
    },
    /// More entries of a kind than a cluster can use.
    #[error("the file has {count} entries [[{what}]]; at most {limit} are read")]
    EntryCount {
        /// The kind: `cable`.
        what: &'static str,
        /// How many it has.
        count: usize,
        /// How many it may have.
        limit: usize,
    },
    /// Text that cannot be a name.
    #[error("{name:?} cannot be the {what} of {place}: it takes {takes}")]
    Name {
        /// What it should name.
        what: &'static str,
        /// The text.
        name: String,
        /// Whose it is.
        place: String,
        /// What a name of this kind is made of.
        takes: &'static str,
    },
    /// Two hosts of one name, or a host and a switch.
    #[error(
        "two entries are named {name:?} ({first} and {second}): names of hosts and switches are unique"
    )]
    DuplicateHost {
        /// The name.
        name: String,
        /// The first.
        first: String,
        /// The second.
        second: String,
    },
    /// Two ports of one name on one host.
    #[error("host {host} has two ports named {port:?}: give each its own name, such as p0 and p1")]
    DuplicatePort {
        /// The host.
        host: String,
        /// The name.
        port: String,
    },
    /// One hardware address at two functions.
    #[error(
        "{first} and {second} both have mac {mac}: a mac identifies one function; read it from `ip link`"
    )]
    DuplicateMac {
        /// The address.
        mac: Mac,
        /// One function.
        first: String,
        /// The other.
        second: String,
    },
    /// One IP address at two functions.
    #[error(
        "{first} and {second} both have address {ip}: give one of them another address of its cable's network"
    )]
    DuplicateAddress {
        /// The address.
        ip: Ipv4Addr,
        /// One function.
        first: String,
        /// The other.
        second: String,
    },
    /// One netdev, RDMA device or PCI address at two functions of a host.
    #[error(
        "{first} and {second} both have {what} {name}: they are two functions, so give each its own"
    )]
    DuplicateDevice {
        /// The key.
        what: &'static str,
        /// The value.
        name: String,
        /// One function.
        first: String,
        /// The other.
        second: String,
    },
    /// A hardware address no netdev has.
    #[error(
        "{at} has mac {mac}, which no single netdev can have (it is zero, or for a group): read it from `ip link`"
    )]
    Mac {
        /// The function.
        at: String,
        /// The address.
        mac: Mac,
    },
    /// The end of a cable is not written as one.
    #[error("cable {cable}: {end:?} is no end of a cable: write host.port, such as {example}{}", switch_hint(*switch))]
    EndForm {
        /// The cable.
        cable: String,
        /// The end.
        end: String,
        /// An end that exists.
        example: String,
        /// Whether a switch's name stands in `a`.
        switch: bool,
    },
    /// A cable's end names a host that is not there.
    #[error("cable {cable}: there is no host {host:?}{}; add it as a [[host]], or correct the cable",
        did_you_mean(nearest.as_deref()))]
    UnknownHost {
        /// The cable.
        cable: String,
        /// The name.
        host: String,
        /// The name most like it.
        nearest: Option<String>,
    },
    /// A cable's end names a port that is not there.
    #[error("cable {cable}: host {host} has no port {port:?}{}; it has {ports}", did_you_mean(nearest.as_deref()))]
    UnknownPort {
        /// The cable.
        cable: String,
        /// The host.
        host: String,
        /// The name.
        port: String,
        /// The name most like it.
        nearest: Option<String>,
        /// The ports it has.
        ports: String,
    },
    /// Two cables in one cage.
    #[error(
        "port {port} is in two cables, {first} and {second}: a port takes one; remove the cable that is not there"
    )]
    PortTwice {
        /// `host.port`.
        port: String,
        /// One cable.
        first: String,
        /// The other.
        second: String,
    },
    /// A cable that comes back to its port.
    #[error("cable {cable} joins port {port} to itself: name the port at its other end")]
    SamePort {
        /// The cable.
        cable: String,
        /// The port.
        port: String,
    },
    /// A cable that comes back to its host.
    #[error(
        "cable {cable} joins two ports of host {host}: such a cable reaches nobody; name a port of another host"
    )]
    SameHost {
        /// The cable.
        cable: String,
        /// The host.
        host: String,
    },
    /// An address no netdev can have.
    #[error("{at} has address {address}, which is {why}: use an address such as 10.10.1.1/24")]
    Address {
        /// The function.
        at: String,
        /// The address.
        address: Interface,
        /// What it is instead.
        why: &'static str,
    },
    /// A network at one end of a cable only.
    #[error("network {network} is at one end only, {at}: {remedy}")]
    NetworkOnce {
        /// The network.
        network: Interface,
        /// The function that has it.
        at: String,
        /// What would make it valid.
        remedy: String,
    },
    /// A network at more than two ends.
    #[error("network {network} is at {} ends, {}: a cable's network is at its two ends only; give each cable, \
             and each function on it, a network of its own", ends.len(), ends.join(", "))]
    NetworkMany {
        /// The network.
        network: Interface,
        /// The functions that have it.
        ends: Vec<String>,
    },
    /// A network at two ends that no cable joins.
    #[error("network {network} is at {first} and {second}, which no cable joins: {remedy}")]
    NetworkApart {
        /// The network.
        network: Interface,
        /// One function.
        first: String,
        /// The other.
        second: String,
        /// What would make it valid.
        remedy: String,
    },
    /// Networks that overlap without being equal.
    #[error(
        "{first} has {first_address} and {second} has {second_address}: the networks overlap and their prefixes \
             differ; write both with one prefix length, or move one to another network"
    )]
    Prefixes {
        /// One function.
        first: String,
        /// Its address.
        first_address: Interface,
        /// The other.
        second: String,
        /// Its address.
        second_address: Interface,
    },
    /// An MTU no cable can have.
    #[error(
        "mtu_bytes = {mtu_bytes} is out of range: it is {MIN_MTU_BYTES} to {MAX_MTU_BYTES}, and 9000 for RoCE"
    )]
    Mtu {
        /// The value.
        mtu_bytes: u32,
    },
    /// A route names a host that is not there.
    #[error("route {route}: there is no host {host:?}{}", did_you_mean(nearest.as_deref()))]
    RouteHost {
        /// The route.
        route: String,
        /// The name.
        host: String,
        /// The name most like it.
        nearest: Option<String>,
    },
    /// A route that no cabling could make right.
    #[error("route {route:?}: {why}")]
    Route {
        /// The route.
        route: String,
        /// What is wrong with it, and what would be right.
        why: String,
    },
}

impl FileError {
    pub(super) fn routes(count: usize) -> Self {
        Self::EntryCount { what: "route", count, limit: MAX_ROUTES }
    }

    pub(super) fn switches(count: usize) -> Self {
        Self::EntryCount { what: "switch", count, limit: MAX_SWITCHES }
    }

    pub(super) fn cables(count: usize) -> Self {
        Self::EntryCount { what: "cable", count, limit: MAX_HOSTS * MAX_PORTS }
    }
}

/// What the name of a host, port or switch is made of.
pub(super) const NAME_TAKES: &str =
    "1 to 64 letters, digits, '-' and '_', and for hosts '.', starting with a letter or digit";

const _: () = assert!(MAX_NAME == 64, "NAME_TAKES says the limit");

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|name| format!(" (did you mean {name:?}?)")).unwrap_or_default()
}

fn switch_hint(switch: bool) -> &'static str {
    if switch { "; a switch's name stands in b" } else { "" }
}

/// The candidate most like a word, if any is like it at all: at most a third of the letters differ, and at least two
/// may.
pub(super) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    let limit = (word.chars().count() / 3).max(2);
    candidates
        .map(|candidate| (edits(word, candidate), candidate))
        .filter(|&(edits, _)| edits <= limit)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

/// Letters to insert, remove or replace to get from one word to the other.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().take(MAX_NAME).collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().take(MAX_NAME).enumerate() {
        let mut last = i + 1;
        let mut next = vec![last];
        for (j, b) in to.iter().enumerate() {
            let replaced = row.get(j).copied().unwrap_or(0) + usize::from(a != *b);
            let removed = row.get(j + 1).copied().unwrap_or(0) + 1;
            last = replaced.min(removed).min(last + 1);
            next.push(last);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}
