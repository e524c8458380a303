//! Plans of all usual layouts, written out.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod common;

use cluster::file::{ClusterFile, Forward, TagKind};
use cluster::plan::{PathKind, Plan, PlanOptions, Shape};
use common::{cable, hosts, lines, path, reordered, ring, switch, triangle_with_tail};

fn plan(file: &ClusterFile) -> Plan {
    Plan::of(file, &PlanOptions::default()).unwrap()
}

fn check(name: &str, shape: Shape, file: &ClusterFile) {
    let plan = plan(file);
    assert_eq!(plan.shape, shape, "{name}");
    insta::assert_snapshot!(name, lines(&plan));
}

#[test]
fn single() {
    check("single", Shape::Single, &hosts(1, 2));
}

#[test]
fn pairs() {
    check("pair", Shape::Pair, &path(2));
    let mut two = hosts(2, 2);
    cable(&mut two, "spark0.p0", "spark1.p0");
    cable(&mut two, "spark0.p1", "spark1.p1");
    check("pair_two_cables", Shape::Pair, &two);
}

#[test]
fn triangle() {
    check("triangle", Shape::Triangle, &ring(3));
}

#[test]
fn paths() {
    check("path3", Shape::Path, &path(3));
    check("path4", Shape::Path, &path(4));
    check("path5", Shape::Path, &path(5));
    // Four hosts and more between the ends are too many for tags.
    check("path6", Shape::Path, &path(6));
    check("path7", Shape::Path, &path(7));
    check("path8", Shape::Path, &path(8));
}

#[test]
fn rings() {
    check("ring4", Shape::Ring, &ring(4));
    check("ring5", Shape::Ring, &ring(5));
    check("ring6", Shape::Ring, &ring(6));
    check("ring7", Shape::Ring, &ring(7));
    check("ring8", Shape::Ring, &ring(8));
}

#[test]
fn switches() {
    check("switch2", Shape::Switch, &switch(2));
    check("switch4", Shape::Switch, &switch(4));
    check("switch8", Shape::Switch, &switch(8));
    for count in [3, 5, 6, 7] {
        check(&format!("switch{count}"), Shape::Switch, &switch(count));
    }
}

#[test]
fn triangle_and_tail() {
    check("triangle_with_tail", Shape::Graph, &triangle_with_tail());
}

#[test]
fn rank_order_is_not_cabling_order() {
    check("ring4_reordered", Shape::Ring, &reordered(&ring(4), &[0, 3, 1, 2]));
}

#[test]
fn every_cable_between_equal_ports_is_a_ring_too() {
    let mut file = hosts(4, 2);
    for (a, b) in [
        ("spark0.p0", "spark1.p0"),
        ("spark1.p1", "spark2.p1"),
        ("spark2.p0", "spark3.p0"),
        ("spark3.p1", "spark0.p1"),
    ] {
        cable(&mut file, a, b);
    }
    check("ring4_equal_ports", Shape::Ring, &file);
}

#[test]
fn source_port_tags_pass_one_host() {
    let mut file = ring(6);
    file.tag = TagKind::SourcePort;
    check("ring6_source_port", Shape::Ring, &file);
}

#[test]
fn without_forwarding_distant_ranks_are_relayed() {
    let mut file = ring(4);
    file.forward = Forward::Off;
    check("ring4_off", Shape::Ring, &file);
}

#[test]
fn full_of_four() {
    let mut file = hosts(4, 3);
    for (a, b) in [
        ("spark0.p0", "spark1.p0"),
        ("spark0.p1", "spark2.p0"),
        ("spark0.p2", "spark3.p0"),
        ("spark1.p1", "spark2.p1"),
        ("spark1.p2", "spark3.p1"),
        ("spark2.p2", "spark3.p2"),
    ] {
        cable(&mut file, a, b);
    }
    check("full4", Shape::Full, &file);
}

/// The published inventory of a ring of four: 16 ends of direct rails and 8 of forwarded ones, six at each rank, three
/// at each function; and which cable carries how much of the forwarded bytes.
#[test]
fn ring_of_four_is_as_published() {
    let plan = plan(&ring(4));
    let rails = |kind| {
        plan.paths
            .iter()
            .filter(|path| path.kind == kind)
            .map(|path| path.rails.len())
            .sum::<usize>()
    };
    assert_eq!(rails(PathKind::Direct), 16);
    assert_eq!(rails(PathKind::Forwarded), 8);
    for rank in &plan.ranks {
        let own =
            plan.paths.iter().filter(|path| path.from == rank.rank).flat_map(|path| &path.rails);
        assert_eq!(own.count(), 6, "rank {}", rank.rank);
    }
    for class in 0..2 {
        let own = plan
            .paths
            .iter()
            .flat_map(|path| &path.rails)
            .filter(|rail| rail.crossings[0].out.number == class);
        assert_eq!(own.count(), 12, "function {class}");
    }
    // Both directions together, by the cable's two ranks and the function.
    let forwarded = |a: usize, b: usize, number: usize| {
        let index = plan.cables.iter().position(|cable| {
            let ends = [cable.a.0, cable.b.as_ref().unwrap().0];
            ends.contains(&a) && ends.contains(&b)
        });
        let on =
            plan.loads.iter().filter(|load| Some(load.cable) == index && load.number == number);
        on.map(|load| load.forwarded).sum::<usize>()
    };
    assert_eq!((forwarded(1, 2, 0), forwarded(0, 3, 1)), (4, 4));
    assert_eq!((forwarded(1, 2, 1), forwarded(0, 3, 0)), (0, 0));
    for number in 0..2 {
        assert_eq!((forwarded(0, 1, number), forwarded(2, 3, number)), (2, 2));
    }
}

#[test]
fn the_fixture_is_the_layout_of_the_tests() {
    let text = include_str!("../fixtures/gb10-ring4/cluster.toml");
    assert_eq!(lines(&plan(&ClusterFile::parse(text).unwrap())), lines(&plan(&ring(4))));
}

#[test]
fn the_digest_tells_plans_apart() {
    let plan = plan(&ring(4));
    assert_eq!(plan.digest.len(), 64);
    assert_eq!(plan.digest, plan.computed_digest().unwrap());
    let mut other = ring(4);
    other.mtu_bytes = 1500;
    assert_ne!(plan.digest, Plan::of(&other, &PlanOptions::default()).unwrap().digest);
    let json = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
}

#[test]
fn neighbours_have_a_safe_label_where_ports_are_tags() {
    for (tag, direct, forwarded) in [(TagKind::Destination, 0, 0), (TagKind::SourcePort, 1, 16383)]
    {
        let options = PlanOptions { tag: Some(tag), ..PlanOptions::default() };
        let plan = Plan::of(&ring(4), &options).unwrap();
        assert_eq!(plan.flow_label(&plan.path(0, 1).unwrap().rails[0]), direct);
        assert_eq!(plan.flow_label(&plan.path(0, 2).unwrap().rails[0]), forwarded);
    }
}

/// 0.75 × 512 KiB, as published, divided by the rails that share a function: on a path of four the middle hosts pass
/// two on, on a cycle of eight up to six.
#[test]
fn windows_are_as_published() {
    let windows = |file: &ClusterFile| {
        let plan = plan(file);
        let forwarded = plan.paths.iter().filter(|path| path.kind == PathKind::Forwarded);
        let mut windows: Vec<u64> = forwarded
            .flat_map(|path| {
                (0..path.rails.len()).map(|rail| plan.forward_window_bytes(path, rail))
            })
            .collect();
        windows.sort_unstable();
        windows.dedup();
        windows
    };
    assert_eq!(windows(&ring(4)), [393_216]);
    assert_eq!(windows(&path(4)), [393_216 / 2]);
    assert_eq!(windows(&ring(8)), [6, 5, 4, 3].map(|load| 393_216 / load));
}
