//! What is refused, or turned into relays, and what is said about it.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use cluster::address::Pci;
use cluster::file::{CableEntry, ClusterFile, Forward, RouteEntry, Switch, TagKind};
use cluster::plan::{Coverage, PathKind, Plan, PlanError, PlanOptions};
use common::{cable, hosts, path, port, rail, ring, switch, triangle_with_tail};

fn with_routes(routes: &[&str]) -> PlanOptions {
    let routes = routes.iter().map(|route| route.parse::<RouteEntry>().unwrap()).collect();
    PlanOptions { routes, ..PlanOptions::default() }
}

fn refusal(file: &ClusterFile, options: &PlanOptions) -> String {
    Plan::of(file, options).unwrap_err().to_string()
}

fn rails(plan: &Plan, from: usize, to: usize) -> Vec<String> {
    plan.path(from, to).unwrap().rails.iter().map(rail).collect()
}

/// All RDMA devices, but for some of rank 0.
fn all_but(file: &ClusterFile, missing: &[&str]) -> Coverage {
    let devices = |host: &cluster::file::Host| -> BTreeSet<String> {
        host.ports
            .iter()
            .flat_map(|port| &port.functions)
            .filter_map(|function| function.rdma.clone())
            .collect()
    };
    let mut all: BTreeMap<usize, BTreeSet<String>> =
        file.hosts.iter().map(devices).enumerate().collect();
    for device in missing {
        assert!(all.get_mut(&0).unwrap().remove(*device), "{device}");
    }
    Coverage(all)
}

#[test]
fn a_triangle_and_a_host_alone_are_told_from_a_ring() {
    let mut file = hosts(4, 2);
    for (a, b) in
        [("spark0.p0", "spark1.p1"), ("spark1.p0", "spark2.p1"), ("spark2.p0", "spark0.p1")]
    {
        cable(&mut file, a, b);
    }
    let error = refusal(&file, &PlanOptions::default());
    assert_eq!(
        error,
        "the hosts are not all joined by cables: triangle spark0–spark1–spark2 | spark3 alone. No port of spark0, \
         spark1, spark2 is free: move the end spark1.p1 of cable spark0.p0–spark1.p1 to spark3.p0; one more, \
         spark1.p1–spark3.p1, would make it a ring of 4"
    );
}

#[test]
fn hosts_apart_are_refused_with_the_cable_that_would_join_them() {
    // Two pairs with two cables each: every port is taken, and exchanging two ends makes a ring.
    let mut pairs = hosts(4, 2);
    for (a, b) in [
        ("spark0.p0", "spark1.p1"),
        ("spark0.p1", "spark1.p0"),
        ("spark2.p0", "spark3.p1"),
        ("spark2.p1", "spark3.p0"),
    ] {
        cable(&mut pairs, a, b);
    }
    let error = refusal(&pairs, &PlanOptions::default());
    assert!(error.contains("spark0–spark1 | spark2–spark3. No port is free: exchange the ends spark1.p1 and spark3.p1 of \
                            cables spark0.p0–spark1.p1 and spark2.p0–spark3.p1"), "{error}");
    let mut two = hosts(4, 2);
    cable(&mut two, "spark0.p0", "spark1.p1");
    cable(&mut two, "spark2.p0", "spark3.p1");
    let error = refusal(&two, &PlanOptions::default());
    assert!(error.contains("A cable spark0.p1–spark2.p1 would join them; one more, spark1.p0–spark3.p0, would make it a \
                            ring of 4"), "{error}");
    let error = refusal(&hosts(2, 0), &PlanOptions::default());
    assert!(error.contains("spark0 alone | spark1 alone. No port of spark0 is free"), "{error}");
}

#[test]
fn a_switch_joins_only_what_shares_a_network() {
    let mut file = switch(3);
    for (class, function) in port(&mut file, "spark2.p0").functions.iter_mut().enumerate() {
        function.address = Some(format!("10.20.{class}.1/24").parse().unwrap());
    }
    let error = refusal(&file, &PlanOptions::default());
    assert!(
        error.contains(
            "spark0–spark1 and spark2 alone are on switch sw0 and share no network there"
        ),
        "{error}"
    );
}

#[test]
fn required_names_every_pair_that_cannot_be_forwarded() {
    let mut file = path(6);
    file.forward = Forward::Required;
    port(&mut file, "spark1.p0").functions.iter_mut().for_each(|function| function.pci = None);
    let Err(PlanError::Forward { failures }) = Plan::of(&file, &PlanOptions::default()) else {
        panic!("accepted")
    };
    let pairs: Vec<(usize, usize)> =
        failures.iter().map(|failure| (failure.from, failure.to)).collect();
    // Whatever passes spark1, and nothing else.
    assert_eq!(pairs, [(0, 2), (0, 3), (0, 4), (0, 5)]);
    assert!(
        failures[0].reason.contains("spark1.p0.0 (enp1s0f0np0) is not known to be a PCI function"),
        "{failures:?}"
    );
    assert!(
        failures[3].reason.contains("4 hosts are between spark0 and spark5; at most 3"),
        "{failures:?}"
    );
    let message = PlanError::Forward { failures }.to_string();
    assert!(
        message.starts_with(
            "forward = required, but 4 pairs of hosts cannot be forwarded: spark0–spark2: "
        ),
        "{message}"
    );
}

#[test]
fn one_class_that_cannot_pass_leaves_the_other() {
    let mut file = path(3);
    port(&mut file, "spark1.p0").functions[0].pci =
        Some(Pci { domain: 9, bus: 1, device: 0, function: 0 });
    let plan = Plan::of(&file, &PlanOptions::default()).unwrap();
    assert_eq!(rails(&plan, 0, 2), ["0.p0.1>1.p1.1 1.p0.1>2.p1.1 [88b5]"]);
}

#[test]
fn a_longer_way_is_taken_where_the_short_one_has_no_adapter() {
    let mut file = ring(5);
    port(&mut file, "spark1.p0").functions.iter_mut().for_each(|function| function.pci = None);
    let plan = Plan::of(&file, &PlanOptions::default()).unwrap();
    let path = plan.path(0, 2).unwrap();
    assert_eq!(path.kind, PathKind::Forwarded);
    assert!(path.rails.iter().all(|rail| rail.hops == [0, 4, 3, 2]), "{:?}", rails(&plan, 0, 2));
}

#[test]
fn forwarding_needs_addresses_and_rdma_devices_at_the_ends() {
    let mut bare = ring(4);
    for function in
        bare.hosts.iter_mut().flat_map(|host| &mut host.ports).flat_map(|port| &mut port.functions)
    {
        function.address = None;
    }
    let plan = Plan::of(&bare, &PlanOptions::default()).unwrap();
    let path = plan.path(0, 2).unwrap();
    assert_eq!(path.kind, PathKind::Relayed);
    assert!(path.instead.as_ref().unwrap().contains("spark0.p0.0 has no address"), "{path:?}");
    // Without addresses functions meet by number.
    assert_eq!(rails(&plan, 0, 1), ["0.p0.0>1.p1.0", "0.p0.1>1.p1.1"]);
    let mut no_rdma = ring(4);
    for function in no_rdma.hosts[0].ports.iter_mut().flat_map(|port| &mut port.functions) {
        function.rdma = None;
    }
    let plan = Plan::of(&no_rdma, &PlanOptions::default()).unwrap();
    assert!(
        plan.path(2, 0)
            .unwrap()
            .instead
            .as_ref()
            .unwrap()
            .contains("has no RDMA device to mark its packets")
    );
    assert_eq!(plan.path(1, 3).unwrap().kind, PathKind::Forwarded);
}

#[test]
fn partial_coverage_turns_exactly_the_affected_pairs_into_relays() {
    let file = ring(4);
    let full = PlanOptions { coverage: Some(all_but(&file, &[])), ..PlanOptions::default() };
    assert_eq!(Plan::of(&file, &full).unwrap(), Plan::of(&file, &PlanOptions::default()).unwrap());
    let options =
        PlanOptions { coverage: Some(all_but(&file, &["roceP2p1s0f1"])), ..PlanOptions::default() };
    let plan = Plan::of(&file, &options).unwrap();
    for path in &plan.paths {
        let affected = matches!((path.from, path.to), (0, 2) | (2, 0));
        assert_eq!(path.kind == PathKind::Relayed, affected, "{}>{}", path.from, path.to);
        assert_eq!(path.instead.is_some(), affected);
    }
    assert_eq!(
        plan.path(2, 0).unwrap().instead.as_deref(),
        Some(
            "not every device that sends on its rails marks packets: covered spark0 rocep1s0f0, spark2 roceP2p1s0f0, \
              spark2 rocep1s0f1; not covered spark0 roceP2p1s0f1"
        )
    );
    // A device no rail of a distant pair starts at is not missed.
    let options =
        PlanOptions { coverage: Some(all_but(&file, &["rocep1s0f1"])), ..PlanOptions::default() };
    assert!(Plan::of(&file, &options).unwrap().paths.iter().all(|path| path.instead.is_none()));
    // Required lists them, and an unknown host marks nothing.
    let required = PlanOptions {
        forward: Some(Forward::Required),
        coverage: Some(Coverage::default()),
        ..PlanOptions::default()
    };
    let Err(PlanError::Forward { failures }) = Plan::of(&file, &required) else {
        panic!("accepted")
    };
    assert_eq!(
        failures.iter().map(|failure| (failure.from, failure.to)).collect::<Vec<_>>(),
        [(0, 2), (1, 3)]
    );
    assert!(
        failures[0].reason.contains("covered none; not covered spark0 rocep1s0f0"),
        "{}",
        failures[0].reason
    );
}

#[test]
fn packets_a_host_could_not_tell_apart_are_not_forwarded() {
    // A star: three hosts at one adapter with three ports. From spark1, packets to spark2 and spark3 look the same.
    let mut file = hosts(4, 3);
    let functions = file.hosts[0].ports.iter_mut().enumerate();
    for (p, port) in functions {
        for (class, function) in port.functions.iter_mut().enumerate() {
            function.pci = Some(Pci { domain: class as u16, bus: 1, device: 0, function: p as u8 });
        }
    }
    for leaf in 1..4 {
        cable(&mut file, &format!("spark0.p{}", leaf - 1), &format!("spark{leaf}.p0"));
    }
    let plan = Plan::of(&file, &PlanOptions::default()).unwrap();
    let path = plan.path(1, 2).unwrap();
    assert_eq!(path.kind, PathKind::Relayed);
    let reason = path.instead.as_deref().unwrap();
    assert_eq!(
        reason,
        "packets of spark1.p0.0 that arrive by spark0.p0.0 carry one tag and would have to leave by different ways"
    );
    // With one of the leaves gone nothing clashes.
    file.hosts.pop();
    file.cables.pop();
    port(&mut file, "spark0.p2").functions.iter_mut().for_each(|function| function.address = None);
    assert_eq!(
        Plan::of(&file, &PlanOptions::default()).unwrap().path(1, 2).unwrap().kind,
        PathKind::Forwarded
    );
}

#[test]
fn routes_replace_derived_paths_both_ways() {
    let file = ring(4);
    let plan = Plan::of(&file, &with_routes(&["spark2>spark0 via spark3 rails 0"])).unwrap();
    assert_eq!(rails(&plan, 0, 2), ["0.p1.0>3.p0.0 3.p1.0>2.p0.0 [88b5]"]);
    assert_eq!(rails(&plan, 2, 0), ["2.p0.0>3.p1.0 3.p0.0>0.p1.0 [88b5]"]);
    assert!(plan.path(0, 2).unwrap().chosen && plan.path(2, 0).unwrap().chosen);
    assert!(!plan.path(1, 3).unwrap().chosen);
    // Rails over both sides, the classes the other way round than derived.
    let both =
        with_routes(&["spark0>spark2 via spark1 rails 1", "spark0>spark2 via spark3 rails 0"]);
    let plan = Plan::of(&file, &both).unwrap();
    assert_eq!(
        rails(&plan, 0, 2),
        ["0.p1.0>3.p0.0 3.p1.0>2.p0.0 [88b5]", "0.p0.1>1.p1.1 1.p0.1>2.p1.1 [88b5]"]
    );
    // One rail of a cable, a relay around it, and a relay instead of forwarding.
    let plan = Plan::of(&file, &with_routes(&["spark1>spark0 rails 1"])).unwrap();
    assert_eq!(rails(&plan, 0, 1), ["0.p0.1>1.p1.1"]);
    let plan =
        Plan::of(&file, &with_routes(&["spark0>spark1 via spark3,spark2 kind relayed"])).unwrap();
    assert_eq!(plan.path(1, 0).unwrap().rails[0].hops, [1, 2, 3, 0]);
    let plan = Plan::of(&file, &with_routes(&["spark0>spark2 kind relayed"])).unwrap();
    let path = plan.path(0, 2).unwrap();
    assert_eq!((path.kind, path.instead.as_ref()), (PathKind::Relayed, None));
    // Those given apart replace those of the file.
    let mut own = file.clone();
    own.routes = with_routes(&["spark0>spark2 via spark1"]).routes;
    let plan = Plan::of(&own, &with_routes(&["spark2>spark0 via spark3"])).unwrap();
    assert!(plan.path(0, 2).unwrap().rails.iter().all(|rail| rail.hops == [0, 3, 2]));
    // Written both ways, a route is still one.
    let plan =
        Plan::of(&file, &with_routes(&["spark0>spark2 via spark1", "spark2>spark0 via spark1"]))
            .unwrap();
    assert_eq!(plan.path(0, 2).unwrap().rails.len(), 2);
}

#[test]
fn routes_that_contradict_the_cabling_are_refused() {
    let file = ring(4);
    for (routes, says) in [
        (
            &["spark0>spark2"][..],
            "no cable joins spark0 and spark2 (spark0 is cabled to spark1, spark3; spark2 is cabled to \
          spark1, spark3); spark0 has no free port; name the hosts between in via",
        ),
        (&["spark0>spark1 via spark2"], "no cable joins spark0 and spark2"),
        (
            &["spark0>spark1 rails 2"],
            "spark0 has no rail 2 of its own on this way; there are rails 0, 1",
        ),
        (&["spark1>spark0 rails 3"], "spark1 has no rail 3"),
        (&["spark0>spark2 via spark1 rails 2"], "spark0 has no rail 2"),
        (
            &["spark0>spark1 kind relayed"],
            "spark0 and spark1 are neighbours: name the hosts between in via",
        ),
        (&["spark0>spark9"], "there is no host \"spark9\""),
        (
            &["spark0>spark2 via spark1 kind relayed", "spark2>spark0 via spark3 kind forwarded"],
            "route \"spark0>spark2 via spark1 kind relayed\" makes the same path relayed, this one forwarded",
        ),
        (
            &["spark0>spark1 via spark3,spark2 rails 0", "spark0>spark1 rails 1"],
            "a path has one kind",
        ),
    ] {
        let options = with_routes(routes);
        let error = refusal(&file, &options);
        assert!(error.contains(says), "{routes:?}: {error}");
    }
    let error = refusal(&path(4), &with_routes(&["spark0>spark3"]));
    assert!(error.contains("a cable spark0.p1–spark3.p0 would join them"), "{error}");
    let off = PlanOptions {
        forward: Some(Forward::Off),
        ..with_routes(&["spark0>spark2 via spark1 kind forwarded"])
    };
    assert!(
        refusal(&file, &off)
            .contains("forward is off, and nothing is forwarded unless that is asked for")
    );
}

#[test]
fn rails_of_several_routes_are_disjoint() {
    // What both say is one rail.
    let again =
        with_routes(&["spark0>spark2 via spark1 rails 0", "spark0>spark2 via spark1 rails 0,1"]);
    assert_eq!(Plan::of(&ring(4), &again).unwrap().path(0, 2).unwrap().rails.len(), 2);
    // spark0 reaches spark1 and spark3 by one port on a switch, and spark2 beyond them.
    let mut file = hosts(4, 3);
    file.switches.push(Switch { name: "sw0".to_owned() });
    for host in [0, 1, 3] {
        file.cables.push(CableEntry { a: format!("spark{host}.p0"), b: "sw0".to_owned() });
    }
    cable(&mut file, "spark1.p1", "spark2.p0");
    cable(&mut file, "spark3.p1", "spark2.p1");
    let one = "spark0>spark2 via spark1 rails 0 kind relayed";
    let error =
        refusal(&file, &with_routes(&[one, "spark0>spark2 via spark3 rails 0 kind relayed"]));
    assert!(
        error.contains(&format!("route {one:?} already has a rail over spark0.p0.0")),
        "{error}"
    );
    let plan =
        Plan::of(&file, &with_routes(&[one, "spark0>spark2 via spark3 rails 1 kind relayed"]))
            .unwrap();
    assert_eq!(rails(&plan, 0, 2), ["0.p0.0>1.p0.0 1.p1.0>2.p0.0", "0.p0.1>3.p0.1 3.p1.1>2.p1.1"]);
}

#[test]
fn chosen_forwarding_that_is_not_possible_is_refused() {
    let tail = triangle_with_tail();
    let error = refusal(&tail, &with_routes(&["spark0>spark3 via spark2 kind forwarded"]));
    assert!(error.contains("at spark2 no one adapter has functions on both cables"), "{error}");
    // Without a kind it becomes a relay, and says why.
    let plan = Plan::of(&tail, &with_routes(&["spark0>spark3 via spark2"])).unwrap();
    let path = plan.path(0, 3).unwrap();
    assert_eq!((path.kind, path.chosen), (PathKind::Relayed, true));
    assert!(path.instead.is_some());
    let mut source_port = ring(6);
    source_port.tag = TagKind::SourcePort;
    let error =
        refusal(&source_port, &with_routes(&["spark0>spark3 via spark1,spark2 kind forwarded"]));
    assert!(error.contains("with tag = source-port one can pass a packet on"), "{error}");
    let file = ring(4);
    let uncovered = PlanOptions {
        coverage: Some(all_but(&file, &["rocep1s0f0"])),
        ..with_routes(&["spark0>spark2 via spark1 rails 0 kind forwarded"])
    };
    assert!(refusal(&file, &uncovered).contains("not covered spark0 rocep1s0f0"));
    // The rail that is covered can be chosen alone: this is what routes are for.
    let covered = PlanOptions {
        routes: with_routes(&["spark0>spark2 via spark1 rails 1 kind forwarded"]).routes,
        ..uncovered
    };
    assert_eq!(Plan::of(&file, &covered).unwrap().path(2, 0).unwrap().kind, PathKind::Forwarded);
}

#[test]
fn a_file_that_is_not_valid_has_no_plan() {
    let mut file = ring(4);
    file.hosts.clear();
    assert!(matches!(Plan::of(&file, &PlanOptions::default()), Err(PlanError::File(_))));
}
