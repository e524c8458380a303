//! Which devices mark packets decides which pairs of ranks are forwarded: those that are covered, and no others.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod rooms;

use std::collections::BTreeMap;

use cluster::check::forwarding::coverage;
use cluster::file::{ClusterFile, Forward};
use cluster::inventory::{HostState, Seen};
use cluster::plan::{Coverage, PathKind, Plan, PlanError, PlanOptions};

/// The healthy room, with every host read.
fn room() -> (ClusterFile, Vec<Result<HostState, String>>) {
    let file = ClusterFile::parse(&rooms::healthy_file()).unwrap();
    let hosts = rooms::states(&file, &rooms::healthy()).into_iter().map(Ok).collect();
    (file, hosts)
}

fn plan(
    file: &ClusterFile,
    forward: Forward,
    coverage: Option<Coverage>,
) -> Result<Plan, PlanError> {
    Plan::of(file, &PlanOptions { forward: Some(forward), coverage, ..PlanOptions::default() })
}

fn stop_marker(hosts: &mut [Result<HostState, String>], rank: usize, device: &str) {
    let Ok(HostState { markers: Seen::Known(markers), .. }) = &mut hosts[rank] else { panic!() };
    let before = markers.len();
    markers.retain(|marker| marker.rdma != device);
    assert_eq!(markers.len(), before - 1, "nothing marked {device}");
}

/// The pairs of each kind, lower rank first.
fn kinds(plan: &Plan) -> BTreeMap<(usize, usize), PathKind> {
    let mut kinds = BTreeMap::new();
    for path in &plan.paths {
        let pair = (path.from.min(path.to), path.from.max(path.to));
        let known = kinds.insert(pair, path.kind);
        assert!(known.is_none_or(|known| known == path.kind), "both ways of {pair:?} differ");
    }
    kinds
}

#[test]
fn full_coverage_changes_nothing() {
    let (file, hosts) = room();
    let wanted = plan(&file, Forward::Auto, None).unwrap();
    let covered = coverage(&hosts, &wanted).unwrap();
    assert_eq!(covered.0.len(), 4);
    assert!(covered.0.values().all(|devices| devices.len() == 2), "{covered:?}");
    assert_eq!(plan(&file, Forward::Auto, Some(covered.clone())).unwrap(), wanted);
    assert!(plan(&file, Forward::Required, Some(covered)).is_ok());
}

#[test]
fn auto_relays_exactly_the_pairs_that_are_not_covered() {
    let (file, mut hosts) = room();
    let wanted = plan(&file, Forward::Auto, None).unwrap();
    stop_marker(&mut hosts, 0, "rocep1s0f0");
    let covered = coverage(&hosts, &wanted).unwrap();
    assert_eq!(covered.0[&0].iter().collect::<Vec<_>>(), ["roceP2p1s0f1"]);

    let lesser = plan(&file, Forward::Auto, Some(covered)).unwrap();
    let mut expected = kinds(&wanted);
    assert_eq!(expected.insert((0, 2), PathKind::Relayed), Some(PathKind::Forwarded));
    assert_eq!(kinds(&lesser), expected);
    for (from, to) in [(0, 2), (2, 0)] {
        let why = lesser.path(from, to).unwrap().instead.as_deref().unwrap();
        assert!(why.contains("not covered spark0 rocep1s0f0"), "{why}");
        assert!(why.contains("spark0 roceP2p1s0f1"), "{why}");
    }
    // All others are as they were.
    for path in wanted.paths.iter().filter(|path| (path.from + path.to, path.from % 2) != (2, 0)) {
        assert_eq!(lesser.path(path.from, path.to), Some(path));
    }
}

#[test]
fn required_lists_the_pairs_that_are_not_covered() {
    let (file, mut hosts) = room();
    let wanted = plan(&file, Forward::Auto, None).unwrap();
    stop_marker(&mut hosts, 0, "rocep1s0f0");
    let one = plan(&file, Forward::Required, coverage(&hosts, &wanted)).unwrap_err();
    let PlanError::Forward { failures } = &one else { panic!("{one}") };
    assert_eq!(
        failures.iter().map(|failure| (failure.from, failure.to)).collect::<Vec<_>>(),
        [(0, 2)]
    );
    let text = one.to_string();
    for named in ["spark0", "spark2", "rocep1s0f0"] {
        assert!(text.contains(named), "{text}");
    }

    let marked_by_3 = match &hosts[3].as_ref().unwrap().markers {
        Seen::Known(markers) => markers[0].rdma.clone(),
        Seen::NotMeasured(why) => panic!("{why}"),
    };
    stop_marker(&mut hosts, 3, &marked_by_3);
    let two = plan(&file, Forward::Required, coverage(&hosts, &wanted)).unwrap_err();
    let PlanError::Forward { failures } = &two else { panic!("{two}") };
    assert_eq!(
        failures.iter().map(|failure| (failure.from, failure.to)).collect::<Vec<_>>(),
        [(0, 2), (1, 3)]
    );
}

#[test]
fn a_marker_with_other_rules_covers_nothing() {
    let (file, mut hosts) = room();
    let wanted = plan(&file, Forward::Auto, None).unwrap();
    let Ok(HostState { markers: Seen::Known(markers), .. }) = &mut hosts[1] else { panic!() };
    for marker in markers {
        for (_, ether_type) in &mut marker.destinations {
            *ether_type += 1;
        }
    }
    let covered = coverage(&hosts, &wanted).unwrap();
    assert!(covered.0[&1].is_empty());
    let lesser = kinds(&plan(&file, Forward::Auto, Some(covered)).unwrap());
    assert_eq!((lesser[&(0, 2)], lesser[&(1, 3)]), (PathKind::Forwarded, PathKind::Relayed));
}

#[test]
fn what_was_not_measured_is_not_covered() {
    let (file, mut hosts) = room();
    let wanted = plan(&file, Forward::Auto, None).unwrap();
    hosts[2] = Err("no answer".to_owned());
    let covered = coverage(&hosts, &wanted).unwrap();
    assert!(!covered.0.contains_key(&2));
    let lesser = kinds(&plan(&file, Forward::Auto, Some(covered)).unwrap());
    assert_eq!((lesser[&(0, 2)], lesser[&(1, 3)]), (PathKind::Relayed, PathKind::Forwarded));

    for state in hosts.iter_mut().flatten() {
        state.markers = Seen::NotMeasured("the processes of other users are hidden".to_owned());
    }
    assert_eq!(coverage(&hosts, &wanted), None);
    let off = plan(&file, Forward::Off, None).unwrap();
    assert_eq!(coverage(&room().1, &off), None);
}
