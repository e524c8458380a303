//! From the state of each host to a cluster file.
//!
//! Works by content: which hardware addresses are seen where, which names the hardware gives its ports, which
//! networks meet. Names of netdevs decide nothing. What contradicts is told in a note, and so is what was left out.

mod addresses;
mod build;
mod evidence;
mod ports;
mod probe;
mod select;

use serde::Serialize;

pub use probe::{Probe, parse_probes, probe_script};

use crate::address::Interface;
use crate::file::{ClusterFile, MAX_HOSTS};
use crate::inventory::HostState;

/// A host as it was observed.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The name it shall have; none takes the host's own.
    pub name: Option<String>,
    /// How commands get there, as in the cluster file.
    pub reach: String,
    /// Its address for control connections; none takes that of the netdev with the default route.
    pub control: Option<String>,
    /// Its state.
    pub state: HostState,
    /// What answered on its netdevs; may be empty.
    pub probes: Vec<Probe>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Discovery {
    /// The cluster file: hosts in the order they were given.
    pub file: ClusterFile,
    /// What contradicts, what was left out and why, and what is still missing.
    pub notes: Vec<String>,
    /// Every IPv4 address seen on any host: networks that are taken.
    pub taken: Vec<Interface>,
}

/// Why no cluster file came of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoverError {
    /// No host was given.
    #[error(
        "no host was given; name at least one, such as `railweave discover ssh:spark0 ssh:spark1`"
    )]
    NoHosts,
    /// Too many were given.
    #[error(
        "{count} hosts were given, and a cluster has at most {MAX_HOSTS}; discover a part of them"
    )]
    TooMany {
        /// How many.
        count: usize,
    },
    /// One host was given twice.
    #[error(
        "{first} and {second} are one machine: both have the hardware address {mac}; give each host once"
    )]
    SameMachine {
        /// How one was reached.
        first: String,
        /// How the other was.
        second: String,
        /// An address both have.
        mac: String,
    },
    /// The network given for addresses is too small.
    #[error(
        "{base} has room for {room} networks of 24 bits, and {needed} are needed; give a larger one, such as 10.10.0.0/16"
    )]
    Room {
        /// As given.
        base: Interface,
        /// Networks that are free in it.
        room: usize,
        /// Networks that are needed.
        needed: usize,
    },
}

/// Finds out which hosts there are and how they are cabled.
///
/// Evidence, strongest first: what answered a probe, what LLDP tells, and a network at exactly two hosts. LLDP may be
/// some minutes old, so where it contradicts an answer, the answer counts and a note tells.
///
/// # Errors
///
/// If there are no hosts or too many, or one host was given twice. A cluster file that is not yet valid, say because
/// a cable was not found, is no error: a note tells.
pub fn discover(hosts: &[Observed]) -> Result<Discovery, DiscoverError> {
    if hosts.is_empty() {
        return Err(DiscoverError::NoHosts);
    }
    if hosts.len() > MAX_HOSTS {
        return Err(DiscoverError::TooMany { count: hosts.len() });
    }
    select::refuse_twins(hosts)?;
    let mut notes = Vec::new();
    let names = select::names(hosts, &mut notes);
    let mut selected = select::candidates(hosts, &names, &mut notes);
    let evidence = evidence::gather(hosts, &names, &mut selected, &mut notes);
    let ports = ports::group(&names, &selected.candidates, &evidence, &mut notes);
    let file = build::file(hosts, &names, &selected, &evidence, ports, &mut notes);
    let taken = hosts
        .iter()
        .flat_map(|host| &host.state.netdevs)
        .flat_map(|netdev| netdev.addresses.iter().copied())
        .collect();
    Ok(Discovery { file, notes, taken })
}
