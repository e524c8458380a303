//! The cluster file as a graph: functions, the links between them, neighbours.

use std::collections::BTreeSet;

use super::{CablePlan, FunctionRef};
use crate::address::Interface;
use crate::file::{ClusterFile, End, FileError, MarkerKind};

/// One way over a cable or a switch: out of one function, into another. Functions are numbered over all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The cable at the leaving function.
    pub(super) cable: usize,
    /// The cable at the arriving function: another one only where a switch is between.
    pub(super) back: usize,
    pub(super) out: usize,
    pub(super) into: usize,
}

impl Link {
    /// The same link the other way.
    pub(super) fn reversed(self) -> Self {
        Self { cable: self.back, back: self.cable, out: self.into, into: self.out }
    }
}

/// Everything of the file that paths follow from.
pub(super) struct Wiring {
    /// All functions, by rank, then in the order of the file.
    pub(super) functions: Vec<FunctionRef>,
    addresses: Vec<Option<Interface>>,
    /// For each rank its functions, as a range of [`Self::functions`].
    pub(super) of_rank: Vec<std::ops::Range<usize>>,
    /// For each function the links that leave it.
    links: Vec<Vec<Link>>,
    pub(super) cables: Vec<CablePlan>,
    /// For each rank the ranks its links reach.
    pub(super) neighbours: Vec<BTreeSet<usize>>,
    /// For each two ranks how many cables are between, at least; none where no chain of cables joins them.
    distances: Vec<Vec<Option<usize>>>,
    /// For each rank the ports no cable is in.
    pub(super) free_ports: Vec<Vec<String>>,
    /// Names of hosts, by rank.
    pub(super) hosts: Vec<String>,
}

impl Wiring {
    pub(super) fn of(file: &ClusterFile) -> Result<Self, FileError> {
        let mut functions = Vec::new();
        let mut addresses = Vec::new();
        let mut of_rank = Vec::new();
        for (rank, host) in file.hosts.iter().enumerate() {
            let first = functions.len();
            for port in &host.ports {
                for (number, function) in port.functions.iter().enumerate() {
                    addresses.push(function.address);
                    functions.push(FunctionRef {
                        rank,
                        host: host.name.clone(),
                        port: port.name.clone(),
                        number,
                        device_number: functions.len() - first,
                        netdev: function.netdev.clone(),
                        rdma: function.rdma.clone(),
                        mac: function.mac,
                        ip: function.address.map(|address| address.ip),
                        prefix: function.address.map(|address| address.prefix),
                        adapter: match file.marker {
                            MarkerKind::Nic => function.pci.map(crate::address::Pci::adapter),
                            MarkerKind::Tc => Some(format!("the kernel, functions {number}")),
                        },
                    });
                }
            }
            of_rank.push(first..functions.len());
        }
        let count = file.hosts.len();
        let mut wiring = Self {
            links: vec![Vec::new(); functions.len()],
            functions,
            addresses,
            of_rank,
            cables: Vec::new(),
            neighbours: vec![BTreeSet::new(); count],
            distances: Vec::new(),
            free_ports: Vec::new(),
            hosts: file.hosts.iter().map(|host| host.name.clone()).collect(),
        };
        wiring.plug(file)?;
        wiring.measure();
        Ok(wiring)
    }

    fn plug(&mut self, file: &ClusterFile) -> Result<(), FileError> {
        let ends = file.ends()?;
        self.free_ports = file
            .hosts
            .iter()
            .enumerate()
            .map(|(h, host)| {
                let free = |&(p, _): &(usize, _)| {
                    !ends.iter().any(|&(a, b)| [a, b].contains(&End::Port(h, p)))
                };
                host.ports
                    .iter()
                    .enumerate()
                    .filter(free)
                    .map(|(_, port)| port.name.clone())
                    .collect()
            })
            .collect();
        // Ports on each switch, with their cables.
        let mut on_switch: Vec<Vec<(usize, usize, Vec<usize>)>> =
            vec![Vec::new(); file.switches.len()];
        for (cable, &(a, b)) in ends.iter().enumerate() {
            let (a, b) = match (a, b) {
                (End::Port(..), End::Port(..)) if b < a => (b, a),
                _ => (a, b),
            };
            let End::Port(rank, port) = a else { continue };
            let port_name = |rank: usize, port: usize| {
                let port = file.hosts.get(rank).and_then(|host| host.ports.get(port));
                port.map(|port| port.name.clone()).unwrap_or_default()
            };
            let (host, name) = (self.host(rank).to_owned(), port_name(rank, port));
            let here = self.at_port(rank, &name);
            match b {
                End::Switch(number) => {
                    let switch = file
                        .switches
                        .get(number)
                        .map(|switch| switch.name.clone())
                        .unwrap_or_default();
                    if let Some(ports) = on_switch.get_mut(number) {
                        ports.push((rank, cable, here));
                    }
                    self.cables.push(CablePlan {
                        name: format!("{host}.{name}–{switch}"),
                        a: (rank, name),
                        b: None,
                        switch: Some(switch),
                        pairs: Vec::new(),
                    });
                }
                End::Port(other, other_port) => {
                    let other_name = port_name(other, other_port);
                    let there = self.at_port(other, &other_name);
                    let pairs = self.pairs(&here, &there);
                    for &(a, b) in &pairs {
                        self.link(Link { cable, back: cable, out: a, into: b });
                    }
                    let refs = pairs
                        .iter()
                        .filter_map(|&(a, b)| Some((self.function(a)?, self.function(b)?)));
                    let pairs = refs.map(|(a, b)| (a.clone(), b.clone())).collect();
                    self.cables.push(CablePlan {
                        name: format!("{host}.{name}–{}.{other_name}", self.host(other)),
                        a: (rank, name),
                        b: Some((other, other_name)),
                        switch: None,
                        pairs,
                    });
                }
            }
        }
        for ports in &on_switch {
            self.link_switch(ports);
        }
        Ok(())
    }

    fn link_switch(&mut self, ports: &[(usize, usize, Vec<usize>)]) {
        for lo in 0..self.hosts.len() {
            for hi in lo + 1..self.hosts.len() {
                let of = |rank: usize| {
                    let ports = ports.iter().filter(move |(owner, _, _)| *owner == rank);
                    ports.flat_map(|(_, cable, functions)| {
                        functions.iter().map(|&function| (function, *cable))
                    })
                };
                let mut here: Vec<(usize, usize)> = of(lo).collect();
                let mut there: Vec<(usize, usize)> = of(hi).collect();
                here.sort_unstable();
                there.sort_unstable();
                let ids = |ends: &[(usize, usize)]| {
                    ends.iter().map(|&(function, _)| function).collect::<Vec<_>>()
                };
                for (a, b) in self.pairs(&ids(&here), &ids(&there)) {
                    let cable_of = |ends: &[(usize, usize)], id: usize| {
                        ends.iter()
                            .find(|&&(function, _)| function == id)
                            .map_or(0, |&(_, cable)| cable)
                    };
                    self.link(Link {
                        cable: cable_of(&here, a),
                        back: cable_of(&there, b),
                        out: a,
                        into: b,
                    });
                }
            }
        }
    }

    /// Which function meets which: by the network they share, else, where neither has an address, by number.
    fn pairs(&self, here: &[usize], there: &[usize]) -> Vec<(usize, usize)> {
        let mut free: Vec<usize> = there.to_vec();
        let mut pairs = Vec::new();
        let mut take = |free: &mut Vec<usize>, a: usize, fits: &dyn Fn(usize) -> bool| {
            if let Some(at) = free.iter().position(|&b| fits(b)) {
                pairs.push((a, free.remove(at)));
            }
        };
        let address = |id: usize| self.addresses.get(id).copied().flatten();
        let number = |id: usize| self.function(id).map(|function| function.number);
        for &a in here {
            match address(a) {
                Some(own) => {
                    take(&mut free, a, &|b| address(b).is_some_and(|other| other.meets(own)));
                }
                None => take(&mut free, a, &|b| address(b).is_none() && number(b) == number(a)),
            }
        }
        pairs
    }

    fn link(&mut self, link: Link) {
        for link in [link, link.reversed()] {
            if let Some(links) = self.links.get_mut(link.out) {
                links.push(link);
            }
            let (from, to) = (self.rank(link.out), self.rank(link.into));
            if let Some(neighbours) = self.neighbours.get_mut(from) {
                neighbours.insert(to);
            }
        }
    }

    /// Cables between every two ranks, by breadth-first search from each.
    fn measure(&mut self) {
        let count = self.hosts.len();
        self.distances = (0..count)
            .map(|from| {
                let mut distances = vec![None; count];
                let mut front = BTreeSet::from([from]);
                let mut distance = 0;
                while !front.is_empty() {
                    for &rank in &front {
                        if let Some(slot) = distances.get_mut(rank) {
                            *slot = Some(distance);
                        }
                    }
                    let reached = front
                        .iter()
                        .filter_map(|&rank| self.neighbours.get(rank))
                        .flatten()
                        .copied();
                    front = reached
                        .filter(|&rank| distances.get(rank).is_some_and(Option::is_none))
                        .collect();
                    distance += 1;
                }
                distances
            })
            .collect();
    }

    pub(super) fn host(&self, rank: usize) -> &str {
        self.hosts.get(rank).map_or("?", String::as_str)
    }

    pub(super) fn function(&self, id: usize) -> Option<&FunctionRef> {
        self.functions.get(id)
    }

    /// The rank of a function. Ids come from this wiring, so every one has a function.
    pub(super) fn rank(&self, id: usize) -> usize {
        self.function(id).map_or(usize::MAX, |function| function.rank)
    }

    /// The number of a function among all of its host.
    pub(super) fn device_number(&self, id: usize) -> usize {
        self.function(id).map_or(usize::MAX, |function| function.device_number)
    }

    pub(super) fn label(&self, id: usize) -> String {
        self.function(id).map(FunctionRef::label).unwrap_or_default()
    }

    pub(super) fn links(&self, id: usize) -> &[Link] {
        self.links.get(id).map(Vec::as_slice).unwrap_or_default()
    }

    /// Functions of a rank.
    pub(super) fn ids(&self, rank: usize) -> std::ops::Range<usize> {
        self.of_rank.get(rank).cloned().unwrap_or_default()
    }

    fn at_port(&self, rank: usize, port: &str) -> Vec<usize> {
        self.ids(rank)
            .filter(|&id| self.function(id).is_some_and(|function| function.port == port))
            .collect()
    }

    pub(super) fn distance(&self, from: usize, to: usize) -> Option<usize> {
        self.distances.get(from)?.get(to).copied().flatten()
    }

    pub(super) fn are_neighbours(&self, a: usize, b: usize) -> bool {
        self.neighbours.get(a).is_some_and(|neighbours| neighbours.contains(&b))
    }

    /// Links from one rank straight to another, in the order of the leaving function.
    pub(super) fn between(&self, from: usize, to: usize) -> Vec<Link> {
        let links = self.ids(from).flat_map(|id| self.links(id).iter().copied());
        links.filter(|link| self.rank(link.into) == to).collect()
    }
}
