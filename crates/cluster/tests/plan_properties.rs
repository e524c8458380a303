//! What holds for the plan of any valid cluster file.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use cluster::address::Pci;
use cluster::file::{CableEntry, ClusterFile, Forward, Switch, TagKind};
use cluster::plan::{Crossing, MAX_RELAYS, PathKind, Plan, PlanError, PlanOptions, Rail};
use common::{cable, hosts, reordered};
use proptest::prelude::*;
use proptest::sample::Index;

/// How a file differs from plain GB10 hosts.
#[derive(Debug, Clone)]
struct Room {
    hosts: usize,
    ports: usize,
    /// For each host but the first the one it is cabled to.
    tree: Vec<Index>,
    /// Cables besides those of the tree.
    more: Vec<(Index, Index)>,
    /// Hosts on a switch besides; none has no switch.
    switched: usize,
    /// Cables whose functions have no addresses, ports with one function, functions without a PCI place or RDMA device.
    bare: Vec<Index>,
    narrow: Vec<Index>,
    virtual_ones: Vec<Index>,
    forward: Forward,
    tag: TagKind,
    order: Vec<Index>,
}

fn rooms() -> impl Strategy<Value = Room> {
    let indices = |count| prop::collection::vec(any::<Index>(), count);
    let pairs = prop::collection::vec(any::<(Index, Index)>(), 0..6);
    let modes = (
        prop_oneof![
            Just(Forward::Off),
            Just(Forward::Auto),
            Just(Forward::Auto),
            Just(Forward::Required)
        ],
        prop_oneof![Just(TagKind::Destination), Just(TagKind::SourcePort)],
    );
    (
        (1_usize..=9, 2_usize..=4, indices(8..9), pairs, 0_usize..4),
        (indices(0..3), indices(0..3), indices(0..3), modes, indices(9..10)),
    )
        .prop_map(
            |(
                (hosts, ports, tree, more, switched),
                (bare, narrow, virtual_ones, (forward, tag), order),
            )| Room {
                hosts,
                ports,
                tree,
                more,
                switched,
                bare,
                narrow,
                virtual_ones,
                forward,
                tag,
                order,
            },
        )
}

fn free_port(file: &ClusterFile, host: usize) -> Option<String> {
    let host = &file.hosts[host];
    let names = host.ports.iter().map(|port| format!("{}.{}", host.name, port.name));
    names
        .into_iter()
        .find(|name| !file.cables.iter().any(|cable| cable.a == *name || cable.b == *name))
}

fn build(room: &Room) -> ClusterFile {
    let mut file = hosts(room.hosts, room.ports);
    file.forward = room.forward;
    file.tag = room.tag;
    for host in &mut file.hosts {
        for (p, port) in host.ports.iter_mut().enumerate() {
            if room.narrow.iter().any(|index| index.index(room.ports) == p) {
                port.functions.truncate(1);
            }
        }
    }
    for (host, towards) in (1..room.hosts).zip(&room.tree) {
        // A host with a free port among those before; the one just before has one at least.
        let open: Vec<usize> =
            (0..host).filter(|&other| free_port(&file, other).is_some()).collect();
        let other = open[towards.index(open.len())];
        let (a, b) = (free_port(&file, other).unwrap(), free_port(&file, host).unwrap());
        cable(&mut file, &a, &b);
    }
    for (a, b) in &room.more {
        let (a, b) = (a.index(room.hosts), b.index(room.hosts));
        if let (true, Some(a), Some(b)) = (a != b, free_port(&file, a), free_port(&file, b)) {
            cable(&mut file, &a, &b);
        }
    }
    if room.switched > 0 {
        file.switches.push(Switch { name: "sw0".to_owned() });
        for host in 0..room.switched.min(room.hosts) {
            let Some(name) = free_port(&file, host) else { continue };
            for (class, function) in common::port(&mut file, &name).functions.iter_mut().enumerate()
            {
                function.address = Some(format!("10.20.{class}.{}/24", host + 1).parse().unwrap());
            }
            file.cables.push(CableEntry { a: name, b: "sw0".to_owned() });
        }
    }
    // Functions of one number on a cable, by their network, so that both ends change alike.
    let networks: BTreeSet<_> =
        functions(&file).filter_map(|function| Some(function.address?.network())).collect();
    let networks: Vec<_> = networks.into_iter().collect();
    for index in &room.bare {
        if networks.is_empty() {
            break;
        }
        let gone = *index.get(&networks);
        for function in file
            .hosts
            .iter_mut()
            .flat_map(|host| &mut host.ports)
            .flat_map(|port| &mut port.functions)
        {
            if function.address.is_some_and(|address| address.network() == gone) {
                function.address = None;
            }
        }
    }
    let count = functions(&file).count();
    for (i, index) in room.virtual_ones.iter().enumerate() {
        let at = index.index(count);
        let mut all = file
            .hosts
            .iter_mut()
            .flat_map(|host| &mut host.ports)
            .flat_map(|port| &mut port.functions);
        let function = all.nth(at).unwrap();
        match i {
            0 => (function.pci, function.rdma) = (None, None),
            1 => function.rdma = None,
            _ => function.pci = Some(Pci { domain: 7, bus: 0, device: 0, function: 0 }),
        }
    }
    file
}

fn functions(file: &ClusterFile) -> impl Iterator<Item = &cluster::file::Function> {
    file.hosts.iter().flat_map(|host| &host.ports).flat_map(|port| &port.functions)
}

/// The plan; with forwarding required and not possible, that of `auto`, after a look at what was refused.
fn plan(file: &ClusterFile) -> Plan {
    match Plan::of(file, &PlanOptions::default()) {
        Ok(plan) => plan,
        Err(PlanError::Forward { failures }) => {
            assert_eq!(file.forward, Forward::Required);
            let auto = PlanOptions { forward: Some(Forward::Auto), ..PlanOptions::default() };
            let plan = Plan::of(file, &auto).unwrap();
            let lesser =
                plan.paths.iter().filter(|path| path.from < path.to && path.instead.is_some());
            let lesser: Vec<(usize, usize)> = lesser.map(|path| (path.from, path.to)).collect();
            assert_eq!(
                failures.iter().map(|failure| (failure.from, failure.to)).collect::<Vec<_>>(),
                lesser
            );
            plan
        }
        Err(error) => panic!("{error}\n{}", file.to_text()),
    }
}

fn mirrored(rail: &Rail) -> Vec<(String, String)> {
    rail.crossings
        .iter()
        .rev()
        .map(|crossing| (crossing.into.label(), crossing.out.label()))
        .collect()
}

fn ends(rail: &Rail) -> Vec<(String, String)> {
    rail.crossings.iter().map(|crossing| (crossing.out.label(), crossing.into.label())).collect()
}

fn check_rail(plan: &Plan, kind: PathKind, rail: &Rail) {
    assert_eq!(rail.hops.len(), rail.crossings.len() + 1);
    let visited: BTreeSet<usize> = rail.hops.iter().copied().collect();
    assert_eq!(visited.len(), rail.hops.len(), "no host is visited twice");
    for (i, Crossing { cable, out, into }) in rail.crossings.iter().enumerate() {
        assert_eq!((out.rank, into.rank), (rail.hops[i], rail.hops[i + 1]));
        let cable = &plan.cables[*cable];
        if cable.switch.is_none() {
            let pair = |(a, b): &(_, _)| (a, b) == (out, into) || (b, a) == (out, into);
            assert!(
                cable.pairs.iter().any(pair),
                "{} to {} is not on {}",
                out.label(),
                into.label(),
                cable.name
            );
        } else {
            assert_eq!(cable.a, (out.rank, out.port.clone()));
        }
    }
    assert_eq!(rail.tag.is_some(), kind == PathKind::Forwarded);
    let Some(tag) = &rail.tag else { return };
    let relays = rail.crossings.len() - 1;
    assert!((1..=MAX_RELAYS).contains(&relays));
    assert!(tag.kind == TagKind::Destination || relays == 1);
    let types: Vec<u16> = (1..=relays as u16).rev().map(|left| 0x88b4 + left).collect();
    assert_eq!(tag.ether_types, types);
    for (before, after) in rail.crossings.iter().zip(rail.crossings.iter().skip(1)) {
        assert!(before.into.adapter.is_some() && before.into.adapter == after.out.adapter);
        assert_ne!(before.into.port, after.out.port);
    }
    for end in [&rail.crossings[0].out, &rail.crossings.last().unwrap().into] {
        assert!(end.ip.is_some() && end.rdma.is_some());
    }
}

fn check(plan: &Plan) {
    let count = plan.ranks.len();
    assert_eq!(plan.paths.len(), count * (count - 1));
    let mut crossed: BTreeMap<(usize, usize, usize), usize> = BTreeMap::new();
    // What a host between sees of a packet, and what it does with it.
    let mut passed_on = BTreeMap::new();
    for path in &plan.paths {
        assert!(!path.rails.is_empty(), "{}>{} has no rail", path.from, path.to);
        let back = plan.path(path.to, path.from).unwrap();
        assert_eq!(
            (back.kind, &back.instead, back.rails.len()),
            (path.kind, &path.instead, path.rails.len())
        );
        let neighbours = plan.ranks[path.from].neighbours.contains(&path.to);
        assert_eq!(path.kind == PathKind::Direct, neighbours);
        assert!(path.kind == PathKind::Direct || path.rails.len() <= 2);
        assert!(path.instead.is_none() || path.kind == PathKind::Relayed);
        let mut used = BTreeSet::new();
        for (rail, other) in path.rails.iter().zip(&back.rails) {
            assert_eq!((rail.hops[0], *rail.hops.last().unwrap()), (path.from, path.to));
            assert_eq!(
                ends(rail),
                mirrored(other),
                "both directions of {}>{} use the same rails",
                path.from,
                path.to
            );
            check_rail(plan, path.kind, rail);
            for crossing in &rail.crossings {
                assert!(
                    used.insert(crossing.out.label()) && used.insert(crossing.into.label()),
                    "rails are disjoint"
                );
                *crossed
                    .entry((crossing.cable, crossing.out.rank, crossing.out.number))
                    .or_default() += 1;
            }
            let Some(tag) = &rail.tag else { continue };
            for (i, ether_type) in tag.ether_types.iter().enumerate() {
                let (into, next) = (&rail.crossings[i].into, &rail.crossings[i + 1]);
                let seen = (rail.crossings[0].out.mac, into.mac, *ether_type);
                let way = (next.out.label(), next.into.label());
                assert_eq!(
                    passed_on.entry(seen).or_insert_with(|| way.clone()),
                    &way,
                    "a tag tells one way"
                );
            }
        }
    }
    for load in &plan.loads {
        let all = crossed.remove(&(load.cable, load.from, load.number)).unwrap_or(0);
        assert_eq!(load.direct + load.forwarded + load.relayed, all);
    }
    assert!(crossed.is_empty(), "every crossing is in the loads");
}

/// A path with hosts instead of ranks, so that plans of differently ordered hosts compare.
fn by_names(plan: &Plan, from: usize, to: usize) -> String {
    let path = plan.path(from, to).unwrap();
    let rails: Vec<String> =
        path.rails.iter().map(|rail| format!("{:?} {:?}", ends(rail), rail.tag)).collect();
    format!("{:?} {:?} {rails:?}", path.kind, path.instead)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_valid_file_has_a_symmetric_disjoint_plan(room in rooms()) {
        let file = build(&room);
        file.validate().unwrap();
        check(&plan(&file));
    }

    #[test]
    fn text_and_plan_are_stable(room in rooms()) {
        let file = build(&room);
        let text = file.to_text();
        let again = ClusterFile::parse(&text).unwrap();
        prop_assert_eq!(&again, &file);
        prop_assert_eq!(again.to_text(), text);
        prop_assert_eq!(plan(&again), plan(&file));
    }

    /// Another order of hosts is another numbering and nothing else: where the lower of two ranks stays the lower, their
    /// path is the same, function by function; elsewhere it is of the same kind and length, and what the lower device
    /// number decided may be decided the other way.
    #[test]
    fn reordered_hosts_reorder_the_plan(room in rooms()) {
        let file = build(&room);
        let mut left: Vec<usize> = (0..room.hosts).collect();
        let order: Vec<usize> = room.order.iter().take(room.hosts).map(|index| left.remove(index.index(left.len()))).collect();
        let one = plan(&file);
        let other = plan(&reordered(&file, &order));
        prop_assert_eq!(one.shape, other.shape);
        let new = |old: usize| order.iter().position(|&rank| rank == old).unwrap();
        for path in &one.paths {
            let (from, to) = (new(path.from), new(path.to));
            if (path.from < path.to) == (from < to) {
                prop_assert_eq!(by_names(&one, path.from, path.to), by_names(&other, from, to));
            } else {
                let there = other.path(from, to).unwrap();
                let lengths = |rails: &[Rail]| rails.iter().map(|rail| rail.hops.len()).collect::<Vec<_>>();
                prop_assert_eq!((path.kind, lengths(&path.rails)), (there.kind, lengths(&there.rails)));
            }
        }
    }

    /// No text makes the parser panic, and none is accepted that does not read back.
    #[test]
    fn no_text_is_too_odd(text in "[\\[\\]a-z=\"\\. 0-9\n/:>–\\\\]{0,400}", cut in any::<Index>()) {
        let _ = ClusterFile::parse(&text);
        let _ = text.parse::<cluster::file::RouteEntry>();
        let whole = include_str!("../fixtures/gb10-ring4/cluster.toml");
        let at = cut.index(whole.len());
        let mixed = format!("{}{text}{}", &whole[..at], &whole[at..]);
        if let Ok(file) = ClusterFile::parse(&mixed) {
            prop_assert_eq!(ClusterFile::parse(&file.to_text()).unwrap(), file);
        }
    }
}

/// The most hosts, ports and functions there can be, with very many ways between: still planned at once.
#[test]
fn the_largest_files_are_planned_in_bounded_time() {
    let mut file = hosts(16, 8);
    file.forward = Forward::Auto;
    for host in &mut file.hosts {
        for (p, port) in host.ports.iter_mut().enumerate() {
            let more: Vec<_> = port
                .functions
                .iter()
                .cloned()
                .enumerate()
                .map(|(c, mut function)| {
                    function.mac.0[0] = 0x4e;
                    function.netdev = format!("more{p}{c}");
                    function.rdma = Some(format!("more{p}{c}"));
                    function.pci =
                        Some(Pci { domain: 8 + c as u16, bus: 1, device: 0, function: p as u8 });
                    function
                })
                .collect();
            port.functions.extend(more);
            for function in &mut port.functions {
                function.address = None;
            }
        }
    }
    // A chain with four cables from each host to the next, all functions of a class on one adapter.
    for function in
        file.hosts.iter_mut().flat_map(|host| &mut host.ports).enumerate().flat_map(|(p, port)| {
            port.functions.iter_mut().enumerate().map(move |(c, function)| (p % 8, c, function))
        })
    {
        let (p, c, function) = function;
        function.pci = Some(Pci { domain: c as u16, bus: 1, device: 0, function: p as u8 });
    }
    for host in 1..16 {
        for p in 0..4 {
            let (a, b) = (format!("spark{}.p{p}", host - 1), format!("spark{host}.p{}", p + 4));
            file.cables.push(CableEntry { a, b });
        }
    }
    let start = std::time::Instant::now();
    let plan = Plan::of(&file, &PlanOptions::default()).unwrap();
    let took = start.elapsed();
    check(&plan);
    assert_eq!(plan.path(0, 1).unwrap().rails.len(), 16);
    assert!(took.as_secs() < 20, "{took:?}");
}
