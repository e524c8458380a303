//! Applying again changes nothing, whatever was there before.

use cluster::file::TagKind;
use cluster::inventory::Seen;
use cluster::inventory::host_state::HostState;
use cluster::plan::Plan;
use cluster::rules::{Change, RuleOptions, compare, desired, down};
use proptest::prelude::*;

use super::simulator::{Sim, applied, bare, gb10, known, look, plan, ring};

/// The objects of a host, in some order, without process ids.
fn essence(state: &HostState) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut routes: Vec<_> =
        state.routes.known().unwrap().iter().map(|one| format!("{one:?}")).collect();
    let mut neighbours: Vec<_> =
        state.neighbours.known().unwrap().iter().map(|one| format!("{one:?}")).collect();
    let mut filters: Vec<_> =
        state.filters.known().unwrap().iter().map(|one| format!("{one:?}")).collect();
    let mut markers: Vec<_> = state
        .markers
        .known()
        .unwrap()
        .iter()
        .map(|one| format!("{} {:?} {:?}", one.rdma, one.source_port, one.destinations))
        .collect();
    for list in [&mut routes, &mut neighbours, &mut filters, &mut markers] {
        list.sort();
    }
    (routes, neighbours, filters, markers)
}

#[test]
fn a_second_apply_does_nothing() {
    for kind in [TagKind::Destination, TagKind::SourcePort] {
        for file in [gb10(), ring(5), ring(8)] {
            let plan = plan(&file, kind);
            for (rank, sim) in applied(&file, &plan).iter().enumerate() {
                let again = look(&plan, rank, &sim.state);
                assert_eq!(again.changes, [], "{}", sim.state.name);
                assert_eq!(again.refusals, []);
                assert_eq!(again.notes, Vec::<String>::new());
                assert!(!again.needs_quiet);
                assert_eq!(again.why_quiet(), None);
            }
        }
    }
}

#[test]
fn a_plan_without_forwarding_needs_nothing() {
    let file = ring(4);
    let plan = Plan::of(&file, &cluster::plan::PlanOptions::default()).unwrap();
    for rank in 0..4 {
        let mut state = bare(&file, rank);
        // Nor does it matter there that these cannot be read.
        state.filters = Seen::NotMeasured("no tc".to_owned());
        state.markers = Seen::NotMeasured("no ps".to_owned());
        let comparison = look(&plan, rank, &state);
        assert_eq!(comparison.ready().unwrap(), []);
        assert_eq!(comparison.unmeasured.len(), 2, "and it is said");
    }
}

#[test]
fn another_plan_replaces_the_rules_of_the_last() {
    let file = gb10();
    let (by_port, by_destination) =
        (plan(&file, TagKind::SourcePort), plan(&file, TagKind::Destination));
    let (was, fresh) = (applied(&file, &by_port), applied(&file, &by_destination));
    for (rank, (mut sim, fresh)) in was.into_iter().zip(fresh).enumerate() {
        let comparison = look(&by_destination, rank, &sim.state);
        let reloads =
            comparison.changes.iter().any(|change| matches!(change, Change::Reload { .. }));
        assert!(!reloads, "queues are right already");
        sim.apply(comparison.ready().unwrap());
        assert_eq!(essence(&sim.state), essence(&fresh.state));
        assert_eq!(look(&by_destination, rank, &sim.state).changes, []);
    }
}

#[test]
fn without_forwarding_everything_of_ours_goes() {
    let file = gb10();
    let forwarded = plan(&file, TagKind::Destination);
    let options = cluster::plan::PlanOptions {
        forward: Some(cluster::file::Forward::Off),
        ..cluster::plan::PlanOptions::default()
    };
    let off = Plan::of(&file, &options).unwrap();
    for (rank, mut sim) in applied(&file, &forwarded).into_iter().enumerate() {
        let comparison = look(&off, rank, &sim.state);
        assert!(comparison.needs_quiet);
        sim.apply(comparison.ready().unwrap());
        let state = &sim.state;
        assert!(
            state.routes.known().unwrap().is_empty() && state.filters.known().unwrap().is_empty()
        );
        assert!(state.neighbours.known().unwrap().is_empty());
        assert!(state.markers.known().unwrap().is_empty());
        assert_eq!(look(&off, rank, &sim.state).changes, []);
    }
}

#[test]
fn markers_stop_first_and_start_last() {
    let file = gb10();
    let plan = plan(&file, TagKind::Destination);
    for rank in 0..4 {
        let changes = look(&plan, rank, &bare(&file, rank)).changes;
        let kind = |change: &Change| match change {
            Change::SetParameter { name, .. } if name.starts_with("hairpin") => 0,
            Change::Reload { .. } => 0,
            Change::WaitFor { .. } => 1,
            Change::SetParameter { .. } | Change::SetOffload { .. } => 2,
            Change::AddRoute(_) => 3,
            Change::SetNeighbour(_) => 4,
            Change::AddQdisc { .. } | Change::AddFilter(_) => 5,
            Change::StartMarker { .. } => 6,
            other => panic!("{other:?} on a bare host"),
        };
        let order: Vec<_> = changes.iter().map(kind).collect();
        assert!(order.is_sorted(), "{order:?}");
        assert_eq!(order.last(), Some(&6));
    }
}

#[test]
fn where_railweave_sets_addresses_it_does_so_again_after_a_reload() {
    let file = gb10();
    let plan = plan(&file, TagKind::Destination);
    let options = RuleOptions { set_addresses: true, set_mtu: true, ..RuleOptions::default() };
    for rank in 0..4 {
        let mut sim = Sim::new(bare(&file, rank));
        sim.managed = false;
        for netdev in &mut sim.state.netdevs {
            netdev.addresses.clear();
            netdev.admin_up = false;
            netdev.mtu_bytes = 1500;
        }
        let wanted = desired(&plan, rank, &options);
        sim.apply(compare(&wanted, &sim.state).ready().unwrap());
        assert_eq!(compare(&wanted, &sim.state).changes, []);
        for (netdev, fresh) in sim.state.netdevs.iter().zip(bare(&file, rank).netdevs) {
            assert_eq!((&netdev.addresses, netdev.mtu_bytes), (&fresh.addresses, 9000));
        }
    }
}

#[test]
fn a_reload_that_is_asked_for_remakes_all_of_the_function() {
    let file = gb10();
    let plan = plan(&file, TagKind::SourcePort);
    let options = RuleOptions { reload: true, ..RuleOptions::default() };
    for (rank, mut sim) in applied(&file, &plan).into_iter().enumerate() {
        let before = essence(&sim.state);
        let comparison = compare(&desired(&plan, rank, &options), &sim.state);
        assert!(comparison.changes.iter().any(|change| matches!(change, Change::Reload { .. })));
        sim.apply(comparison.ready().unwrap());
        assert_eq!(essence(&sim.state), before);
    }
}

#[test]
fn down_takes_all_of_ours_and_nothing_else() {
    let file = gb10();
    let plan = plan(&file, TagKind::Destination);
    for mut sim in applied(&file, &plan) {
        let mut foreign = known(&mut sim.state.routes)[0].clone();
        foreign.to = "10.99.0.1/32".parse().unwrap();
        foreign.protocol = "82".to_owned();
        known(&mut sim.state.routes).push(foreign.clone());
        let comparison = down(&sim.state);
        assert!(comparison.needs_quiet);
        sim.apply(&comparison.changes);
        assert_eq!(sim.state.routes, Seen::Known(vec![foreign]));
        assert_eq!(sim.state.neighbours, Seen::Known(Vec::new()));
        assert_eq!(sim.state.filters, Seen::Known(Vec::new()));
        assert_eq!(sim.state.markers, Seen::Known(Vec::new()));
        assert_eq!(down(&sim.state).changes, []);
    }
}

#[test]
fn down_says_what_it_could_not_see() {
    let mut state = bare(&gb10(), 0);
    state.filters = Seen::NotMeasured("tc is not installed".to_owned());
    let comparison = down(&state);
    let why = comparison.ready().unwrap_err();
    assert_eq!(why, ["not measured: ingress filters: tc is not installed"]);
}

/// Which of a host's objects are gone or changed.
#[derive(Clone, Debug)]
struct Damage {
    lose: Vec<bool>,
    tag_port: bool,
    hosts: usize,
    rank: usize,
}

fn damage() -> impl Strategy<Value = Damage> {
    (4usize..=6, any::<bool>(), 0usize..6, proptest::collection::vec(any::<bool>(), 48)).prop_map(
        |(hosts, tag_port, rank, lose)| Damage { lose, tag_port, hosts, rank: rank % hosts },
    )
}

/// Loses what the bits say; some objects are spoiled instead, which is still ours to mend.
fn harm(state: &mut HostState, damage: &Damage) {
    let mut bits = damage.lose.iter().cycle().copied();
    let mut bit = move || bits.next().unwrap_or(false);
    known(&mut state.routes).retain(|_| bit());
    for route in known(&mut state.routes) {
        if bit() && bit() {
            route.source = None;
        }
    }
    known(&mut state.neighbours).retain(|_| bit());
    for neighbour in known(&mut state.neighbours) {
        if bit() && bit() {
            neighbour.mac = Some("02:00:00:00:00:01".parse().unwrap());
        }
    }
    known(&mut state.filters).retain(|_| bit());
    for filter in known(&mut state.filters) {
        match (bit(), bit()) {
            (true, true) => filter.redirect_to = None,
            (true, false) => filter.set_ether_type = Some(0x88bd),
            (false, true) => filter.in_hardware = Seen::Known(false),
            _ => {}
        }
    }
    known(&mut state.markers).retain(|_| bit());
    for marker in known(&mut state.markers) {
        if bit() {
            marker.lasting = false;
        }
    }
    for parameters in known(&mut state.devlink).values_mut() {
        if bit() {
            parameters.insert("hairpin_queue_size".to_owned(), "1024".to_owned());
        }
        if bit() {
            parameters.insert("flow_steering_mode".to_owned(), "dmfs".to_owned());
        }
    }
    for netdev in &mut state.netdevs {
        if bit() && bit() {
            netdev.tc_offload = Seen::Known(false);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn one_apply_mends_whatever_is_missing(damage in damage()) {
        let file = ring(damage.hosts);
        let kind = if damage.tag_port { TagKind::SourcePort } else { TagKind::Destination };
        let plan = plan(&file, kind);
        let mut sim = Sim::new(bare(&file, damage.rank));
        sim.apply(look(&plan, damage.rank, &sim.state).ready().unwrap());
        let whole = essence(&sim.state);

        let mut hurt = sim.clone();
        harm(&mut hurt.state, &damage);
        let comparison = look(&plan, damage.rank, &hurt.state);
        prop_assert_eq!(&comparison.refusals, &[]);
        for change in &comparison.changes {
            if let Err(why) = hurt.step(change) {
                prop_assert!(false, "{}: {why}", change.diff());
            }
        }
        let again = look(&plan, damage.rank, &hurt.state);
        prop_assert_eq!(&again.changes, &[]);
        prop_assert_eq!(essence(&hurt.state), whole);
    }

    #[test]
    fn what_a_change_undoes_is_undone(rank in 0usize..4, port in any::<bool>()) {
        let file = gb10();
        let kind = if port { TagKind::SourcePort } else { TagKind::Destination };
        let plan = plan(&file, kind);
        let mut sim = Sim::new(bare(&file, rank));
        for change in &look(&plan, rank, &sim.state).changes {
            let before = sim.state.clone();
            sim.step(change).unwrap();
            let Some(undo) = change.undo() else { continue };
            let mut back = sim.clone();
            back.step(&undo).unwrap();
            prop_assert_eq!(back.state, before, "{}", undo.diff());
        }
    }
}
