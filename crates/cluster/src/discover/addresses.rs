//! Addresses for cables that have none.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::{DiscoverError, Discovery};
use crate::address::Interface;
use crate::file::{ClusterFile, Function};

/// The length of the prefix of each network that is given out.
const PREFIX: u8 = 24;

/// A function: host, port, number.
type Place = (usize, usize, usize);

impl Discovery {
    /// Gives every cable and number of a function a network of 24 bits out of `base`, in the order of the file, where
    /// its functions have none yet: the first end gets `.1`, the second `.2`. At a switch, functions of one number
    /// share a network, and hosts count from `.1`. Networks seen on any host are passed over.
    ///
    /// # Errors
    ///
    /// If `base` has not enough free networks.
    pub fn with_addresses(mut self, base: Interface) -> Result<Self, DiscoverError> {
        let groups = groups(&self.file);
        let first = u64::from(u32::from(base.network()));
        let all = 1_u64 << (32 - u32::from(base.prefix.min(32)));
        let free: Vec<Interface> = (0..all / 256)
            .filter_map(|number| u32::try_from(first + number * 256).ok())
            .map(|network| Interface { ip: Ipv4Addr::from(network), prefix: PREFIX })
            .filter(|network| !self.taken.iter().any(|taken| overlap(*network, *taken)))
            .take(groups.len())
            .collect();
        if free.len() < groups.len() {
            return Err(DiscoverError::Room { base, room: free.len(), needed: groups.len() });
        }
        for (network, places) in free.into_iter().zip(groups) {
            // At most as many places as hosts have ports, so the last byte never overflows.
            for (place, last) in places.into_iter().zip(1_u32..255) {
                let ip = Ipv4Addr::from(u32::from(network.ip) | last);
                if let Some(function) = function(&mut self.file, place) {
                    function.address = Some(Interface { ip, prefix: PREFIX });
                }
            }
            self.taken.push(network);
        }
        self.notes.retain(|note| !note.contains("have no address of use"));
        Ok(self)
    }
}

/// Functions that need a network in common.
fn groups(file: &ClusterFile) -> Vec<Vec<Place>> {
    let find = |end: &str| -> Option<(usize, usize)> {
        let (host, port) = end.rsplit_once('.')?;
        let index = file.hosts.iter().position(|one| one.name == host)?;
        let port = file.hosts.get(index)?.ports.iter().position(|one| one.name == port)?;
        Some((index, port))
    };
    let count = |(host, port): (usize, usize)| {
        file.hosts
            .get(host)
            .and_then(|host| host.ports.get(port))
            .map_or(0, |port| port.functions.len())
    };
    let bare = |(host, port, number): Place| {
        let function =
            file.hosts.get(host).and_then(|host| host.ports.get(port)?.functions.get(number));
        function.is_some_and(|function| function.address.is_none())
    };
    let mut groups = Vec::new();
    let mut switched: BTreeMap<(&str, usize), Vec<Place>> = BTreeMap::new();
    for cable in &file.cables {
        let Some(a) = find(&cable.a) else { continue };
        let Some(b) = find(&cable.b) else {
            for number in 0..count(a) {
                switched.entry((&cable.b, number)).or_default().push((a.0, a.1, number));
            }
            continue;
        };
        for number in 0..count(a).min(count(b)) {
            let pair = vec![(a.0, a.1, number), (b.0, b.1, number)];
            if pair.iter().all(|place| bare(*place)) {
                groups.push(pair);
            }
        }
    }
    groups.extend(switched.into_values().filter(|places| places.iter().all(|place| bare(*place))));
    groups
}

fn function(file: &mut ClusterFile, (host, port, number): Place) -> Option<&mut Function> {
    file.hosts.get_mut(host)?.ports.get_mut(port)?.functions.get_mut(number)
}

fn overlap(a: Interface, b: Interface) -> bool {
    let prefix = a.prefix.min(b.prefix);
    let wide = |one: Interface| Interface { ip: one.ip, prefix }.network();
    wide(a) == wide(b)
}
