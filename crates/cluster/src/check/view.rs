//! The functions of the plan, with what was found of them.

use super::Room;
use crate::inventory::HostState;
use crate::inventory::host_state::{Netdev, NetdevKind};
use crate::plan::{CablePlan, FunctionRef};

/// The state of a rank's host, if it could be read.
pub(super) fn host<'a>(room: &Room<'a>, rank: usize) -> Option<&'a HostState> {
    room.hosts.get(rank)?.as_ref().ok()
}

/// The netdev of a function, found by its hardware address.
pub(super) fn netdev<'a>(room: &Room<'a>, function: &FunctionRef) -> Option<&'a Netdev> {
    host(room, function.rank)?.netdev_by_mac(function.mac)
}

/// The name of a function's netdev today; the file's if it is not there.
pub(super) fn netdev_name<'a>(room: &Room<'a>, function: &'a FunctionRef) -> &'a str {
    netdev(room, function).map_or(&function.netdev, |netdev| &netdev.name)
}

/// All functions of hosts that could be read: with the host's state and the netdev, if there is one.
pub(super) fn functions<'a>(
    room: &Room<'a>,
) -> impl Iterator<Item = (&'a FunctionRef, &'a HostState, Option<&'a Netdev>)> + use<'a> {
    let room = *room;
    room.plan.ranks.iter().flat_map(move |rank| {
        let state = host(&room, rank.rank);
        rank.functions.iter().filter_map(move |function| {
            state.map(|state| (function, state, state.netdev_by_mac(function.mac)))
        })
    })
}

/// All functions whose netdev was found.
pub(super) fn found<'a>(
    room: &Room<'a>,
) -> impl Iterator<Item = (&'a FunctionRef, &'a HostState, &'a Netdev)> + use<'a> {
    functions(room)
        .filter_map(|(function, state, netdev)| netdev.map(|netdev| (function, state, netdev)))
}

/// The functions of one port, in the order of their numbers.
pub(super) fn port<'a>(room: &Room<'a>, rank: usize, port: &str) -> Vec<&'a FunctionRef> {
    let functions = room.plan.ranks.get(rank).map_or(&[][..], |rank| &rank.functions);
    functions.iter().filter(|function| function.port == port).collect()
}

/// The cable of a port.
pub(super) fn cable<'a>(room: &Room<'a>, rank: usize, port: &str) -> Option<&'a CablePlan> {
    let here = |end: &(usize, String)| end.0 == rank && end.1 == port;
    room.plan.cables.iter().find(|cable| here(&cable.a) || cable.b.as_ref().is_some_and(here))
}

/// Whether a port has no carrier on any function that was found, and one was: the wire is dead, whatever else is
/// true of its functions.
pub(super) fn dark(room: &Room<'_>, rank: usize, name: &str) -> bool {
    let mut found =
        port(room, rank, name).into_iter().filter_map(|function| netdev(room, function)).peekable();
    found.peek().is_some() && found.all(|netdev| !netdev.carrier)
}

/// Whether a netdev is a NIC's, so that speed, PCI and RDMA are to be expected of it.
pub(super) fn physical(netdev: &Netdev) -> bool {
    netdev.kind == NetdevKind::Physical && netdev.pci.is_some()
}
