//! Plan → rules → plan: a packet sent by the rules of all hosts arrives exactly where the plan says.

use std::net::Ipv4Addr;

use cluster::address::{Mac, Pci};
use cluster::file::{ClusterFile, MarkerKind, TagKind};
use cluster::inventory::host_state::{HostState, Netdev};
use cluster::plan::{PathKind, Plan, Rail};
use cluster::rules::IPV4;

use super::simulator::{Sim, applied, gb10, path, plan, ring, soft};

/// More cables than any planned path crosses.
const HOP_LIMIT: usize = 12;

const KINDS: [TagKind; 2] = [TagKind::Destination, TagKind::SourcePort];

#[derive(Clone, Copy, Debug)]
struct Packet {
    ether_type: u16,
    source_mac: Mac,
    destination_mac: Mac,
    destination_ip: Ipv4Addr,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    /// As IPv4, at this host's netdev with this MAC.
    Arrived { rank: usize, mac: Mac },
    /// The NIC at this host did not take it, and no rule did.
    Dropped { rank: usize, why: &'static str },
    /// It went on and on.
    Circled,
}

/// Hosts with their rules, joined by the plan's cables.
struct Wires<'a> {
    plan: &'a Plan,
    hosts: &'a [Sim],
}

impl Wires<'_> {
    fn host(&self, rank: usize) -> &HostState {
        &self.hosts[rank].state
    }

    /// The function at the other end of a function's cable.
    fn other_end(&self, mac: Mac) -> Option<(usize, Mac)> {
        self.plan.cables.iter().flat_map(|cable| &cable.pairs).find_map(|(a, b)| {
            if a.mac == mac {
                Some((b.rank, b.mac))
            } else if b.mac == mac {
                Some((a.rank, a.mac))
            } else {
                None
            }
        })
    }

    /// The packet as it leaves the NIC of `rank` when a queue pair of `device` sends to `to`, by route, neighbour and
    /// marker; and the MAC of the function it leaves by.
    fn send(&self, rank: usize, to: Ipv4Addr, source_port: u16) -> (Packet, Mac) {
        let host = self.host(rank);
        let mut routes: Vec<_> = host
            .routes
            .known()
            .unwrap()
            .iter()
            .filter(|route| route.to.ip == to && route.to.prefix == 32)
            .map(|route| (route.netdev.clone(), route.source.unwrap()))
            .collect();
        assert_eq!(routes.len(), 1, "{to} from rank {rank}");
        let (netdev, source) = routes.remove(0);
        let netdev = host.netdev(&netdev).unwrap();
        assert!(netdev.addresses.iter().any(|own| own.ip == source), "{source} on {}", netdev.name);
        let neighbours = host.neighbours.known().unwrap();
        let next = neighbours.iter().find(|one| one.ip == to && one.netdev == netdev.name).unwrap();
        let packet = Packet {
            ether_type: self.marked(host, netdev, to, source_port),
            source_mac: netdev.mac.unwrap(),
            destination_mac: next.mac.unwrap(),
            destination_ip: to,
        };
        (packet, netdev.mac.unwrap())
    }

    fn marked(&self, host: &HostState, netdev: &Netdev, to: Ipv4Addr, source_port: u16) -> u16 {
        if self.plan.marker == MarkerKind::Tc {
            assert_eq!(host.markers.known().unwrap(), &[], "no program runs");
            let filters = host.egress.known().unwrap().iter().filter(|one| {
                one.netdev == netdev.name
                    && one.destination_port == Some(4791)
                    && one.destination_ip.unwrap().ip == to
                    && one.source_port.is_none_or(|port| port == source_port)
            });
            let tags: Vec<_> = filters.map(|one| one.set_ether_type.unwrap()).collect();
            assert!(tags.len() <= 1, "marked twice: {tags:?}");
            return tags.first().copied().unwrap_or(IPV4);
        }
        let device = &host.rdma_of(netdev).unwrap().name;
        let markers = host.markers.known().unwrap();
        let mut tags =
            markers.iter().filter(|marker| marker.rdma == *device).filter_map(|marker| {
                if marker.source_port == Some(source_port) {
                    return marker.ether_type;
                }
                marker.destinations.iter().find(|(ip, _)| *ip == to).map(|(_, tag)| *tag)
            });
        let tag = tags.next().unwrap_or(IPV4);
        assert_eq!(tags.next(), None, "marked twice");
        tag
    }

    /// Sends a packet along the cables until it arrives or is dropped. Calls `crossed` with the MAC of every function
    /// it leaves by.
    fn walk(&self, mut packet: Packet, mut out: Mac, mut crossed: impl FnMut(Mac)) -> End {
        for _ in 0..HOP_LIMIT {
            crossed(out);
            let Some((rank, into)) = self.other_end(out) else {
                return End::Dropped { rank: usize::MAX, why: "no cable" };
            };
            let host = self.host(rank);
            let netdev = host.netdev_by_mac(into).unwrap();
            let mut filters: Vec<_> = host
                .filters
                .known()
                .unwrap()
                .iter()
                .filter(|filter| filter.netdev == netdev.name)
                .filter(|filter| {
                    filter.ether_type == Some(packet.ether_type)
                        && filter.source_mac.is_none_or(|mac| mac == packet.source_mac)
                        && filter.destination_mac.is_none_or(|mac| mac == packet.destination_mac)
                })
                .collect();
            filters.sort_by_key(|filter| filter.preference);
            if let Some(filter) = filters.first() {
                packet.ether_type = filter.set_ether_type.unwrap();
                packet.destination_mac = filter.set_destination_mac.unwrap();
                let next = host.netdev(filter.redirect_to.as_deref().unwrap()).unwrap();
                assert_eq!(
                    next.pci.map(Pci::adapter),
                    netdev.pci.map(Pci::adapter),
                    "a NIC passes packets on inside one adapter"
                );
                assert_eq!(filter.skip_software, self.plan.marker == MarkerKind::Nic);
                out = next.mac.unwrap();
                continue;
            }
            if packet.destination_mac != into {
                return End::Dropped { rank, why: "for another MAC" };
            }
            if packet.ether_type != IPV4 {
                return End::Dropped { rank, why: "a tag that nobody takes" };
            }
            if !netdev.addresses.iter().any(|own| own.ip == packet.destination_ip) {
                return End::Dropped { rank, why: "for another address" };
            }
            return End::Arrived { rank, mac: into };
        }
        End::Circled
    }
}

fn port_of(rail: &Rail) -> u16 {
    rail.tag.as_ref().unwrap().source_port.unwrap_or(49152)
}

/// Walks every forwarded rail of the plan, and answers how many there were.
fn every_forwarded_rail_arrives(file: &ClusterFile, plan: &Plan) -> usize {
    let hosts = applied(file, plan);
    let wires = Wires { plan, hosts: &hosts };
    let mut rails = 0;
    for path in plan.paths.iter().filter(|path| path.kind == PathKind::Forwarded) {
        for rail in &path.rails {
            rails += 1;
            let (first, last) = (&rail.crossings[0], rail.crossings.last().unwrap());
            let (packet, out) = wires.send(path.from, last.into.ip.unwrap(), port_of(rail));
            let mut crossed = Vec::new();
            let end = wires.walk(packet, out, |mac| crossed.push(mac));
            let place = format!("{} to {} over {:?}", path.from, path.to, rail.hops);
            assert_eq!(end, End::Arrived { rank: path.to, mac: last.into.mac }, "{place}");
            let planned: Vec<_> = rail.crossings.iter().map(|crossing| crossing.out.mac).collect();
            assert_eq!(crossed, planned, "{place}: the cables of the plan, no others");
            assert_eq!(out, first.out.mac, "{place}");

            // Acknowledgements go to the sending function's address, from the far one.
            let (ack, out) = wires.send(path.to, first.out.ip.unwrap(), port_of(rail));
            assert_eq!(
                out, last.into.mac,
                "{place}: acknowledgements leave by the function that received"
            );
            let end = wires.walk(ack, out, |_| {});
            assert_eq!(
                end,
                End::Arrived { rank: path.from, mac: first.out.mac },
                "{place}: and back"
            );
        }
    }
    rails
}

/// Whatever tag from whatever sender stands on whatever cable, it does not go round.
fn nothing_circles(file: &ClusterFile, plan: &Plan) {
    let hosts = applied(file, plan);
    let wires = Wires { plan, hosts: &hosts };
    let functions: Vec<_> = plan.ranks.iter().flat_map(|rank| &rank.functions).collect();
    for out in &functions {
        let Some((_, into)) = wires.other_end(out.mac) else { continue };
        for sender in &functions {
            for ether_type in (0x88b5..=0x88bd).chain([IPV4]) {
                let packet = Packet {
                    ether_type,
                    source_mac: sender.mac,
                    destination_mac: into,
                    destination_ip: sender.ip.unwrap_or(Ipv4Addr::UNSPECIFIED),
                };
                let mut crossings = 0;
                let end = wires.walk(packet, out.mac, |_| crossings += 1);
                assert_ne!(end, End::Circled, "{packet:?}");
                assert!(crossings <= plan.ranks.len(), "{packet:?} crossed {crossings} cables");
            }
        }
    }
}

/// What queue pairs of neighbours send is not marked and not diverted.
fn neighbours_are_left_alone(plan: &Plan, hosts: &[Sim], kind: TagKind) {
    for path in plan.paths.iter().filter(|path| path.kind == PathKind::Direct) {
        for rail in &path.rails {
            let crossing = &rail.crossings[0];
            let host = &hosts[path.from].state;
            let to = crossing.into.ip.unwrap();
            let diverted = |route: &&cluster::inventory::host_state::Route| route.to.ip == to;
            assert_eq!(host.routes.known().unwrap().iter().find(diverted), None);
            if kind == TagKind::Destination {
                let wires = Wires { plan, hosts };
                let netdev = host.netdev_by_mac(crossing.out.mac).unwrap();
                assert_eq!(wires.marked(host, netdev, to, 65535), IPV4);
            }
        }
    }
}

#[test]
fn every_packet_of_a_forwarded_rail_arrives_on_rings() {
    for kind in KINDS {
        for hosts in 4..=8 {
            let file = ring(hosts);
            let plan = plan(&file, kind);
            let rails = every_forwarded_rail_arrives(&file, &plan);
            if kind == TagKind::Destination {
                assert!(rails >= hosts, "ring of {hosts}: only {rails} forwarded rails");
            }
            nothing_circles(&file, &plan);
            neighbours_are_left_alone(&plan, &applied(&file, &plan), kind);
        }
    }
}

#[test]
fn every_packet_arrives_where_kernels_pass_them_on() {
    for kind in KINDS {
        for (file, least) in
            [(soft(ring(4)), 8), (soft(ring(5)), 5), (soft(ring(8)), 8), (soft(path(4)), 4)]
        {
            let plan = plan(&file, kind);
            let rails = every_forwarded_rail_arrives(&file, &plan);
            assert!(rails >= least || kind == TagKind::SourcePort, "{kind:?}: {rails}");
            nothing_circles(&file, &plan);
            neighbours_are_left_alone(&plan, &applied(&file, &plan), kind);
        }
    }
}

#[test]
fn every_packet_of_a_forwarded_rail_arrives_on_chains() {
    for hosts in 3..=5 {
        let file = path(hosts);
        let plan = plan(&file, TagKind::Destination);
        assert!(every_forwarded_rail_arrives(&file, &plan) > 0, "chain of {hosts}");
        nothing_circles(&file, &plan);
    }
}

#[test]
fn the_gb10_ring_has_the_objects_of_published_installations() {
    // Two rails for each of two distant pairs, in both directions: 8 rails, each with one route, one neighbour, one
    // marker and one filter, two of each on every host.
    for kind in KINDS {
        let file = gb10();
        let plan = plan(&file, kind);
        assert_eq!(every_forwarded_rail_arrives(&file, &plan), 8);
        nothing_circles(&file, &plan);
        for sim in applied(&file, &plan) {
            let state = &sim.state;
            let counts = (
                state.routes.known().unwrap().len(),
                state.neighbours.known().unwrap().len(),
                state.filters.known().unwrap().len(),
                state.markers.known().unwrap().len(),
            );
            assert_eq!(counts, (2, 2, 2, 2), "{}", state.name);
        }
    }
}

#[test]
fn a_ring_of_eight_has_one_filter_for_each_tag_and_function() {
    let file = ring(8);
    let plan = plan(&file, TagKind::Destination);
    for sim in applied(&file, &plan) {
        let filters = sim.state.filters.known().unwrap();
        for netdev in &sim.state.netdevs {
            let here = || filters.iter().filter(|filter| filter.netdev == netdev.name);
            for filter in here() {
                let tag = u32::from(filter.ether_type.unwrap());
                assert_eq!(filter.preference, 18_800 + tag - 0x88b4);
                assert_eq!(filter.source_mac, None, "the tag alone tells on a ring");
            }
            assert!(here().count() <= 3, "{}", netdev.name);
        }
    }
}

#[test]
fn a_lost_rule_loses_the_packet() {
    // The walk can fail: without one filter, one of the paths over it does not arrive.
    let file = gb10();
    let plan = plan(&file, TagKind::Destination);
    let mut hosts = applied(&file, &plan);
    super::simulator::known(&mut hosts[1].state.filters).pop();
    let wires = Wires { plan: &plan, hosts: &hosts };
    let ends: Vec<_> = plan
        .paths
        .iter()
        .filter(|path| path.kind == PathKind::Forwarded)
        .flat_map(|path| path.rails.iter().map(move |rail| (path, rail)))
        .map(|(path, rail)| {
            let to = rail.crossings.last().unwrap().into.ip.unwrap();
            let (packet, out) = wires.send(path.from, to, port_of(rail));
            wires.walk(packet, out, |_| {})
        })
        .filter(|end| !matches!(end, End::Arrived { .. }))
        .collect();
    assert_eq!(ends, [End::Dropped { rank: 1, why: "a tag that nobody takes" }]);
}
