//! What is in the way is named, with who made it and what to do, and then nothing is changed.

use cluster::file::TagKind;
use cluster::inventory::Seen;
use cluster::inventory::host_state::HostState;
use cluster::plan::{PathKind, Plan};
use cluster::rules::{Change, Comparison, Refusal, RuleOptions, compare, desired};

use super::simulator::{applied, bare, gb10, known, look, plan};

fn ring() -> Plan {
    plan(&gb10(), TagKind::Destination)
}

/// What is refused on spark1 after `spoil`, with the lines a person reads.
fn refused(spoil: impl FnOnce(&mut HostState)) -> (Vec<Refusal>, String) {
    let plan = ring();
    let mut state = applied(&gb10(), &plan).remove(1).state;
    spoil(&mut state);
    let comparison = look(&plan, 1, &state);
    let lines = comparison.ready().unwrap_err().join("\n");
    (comparison.refusals, lines)
}

fn says(lines: &str, all: &[&str]) {
    for part in all {
        assert!(lines.contains(part), "{part:?} is not in: {lines}");
    }
}

#[test]
fn a_function_that_is_not_there() {
    let (refusals, lines) = refused(|state| {
        state.netdevs[0].mac = Some("02:00:00:00:00:01".parse().unwrap());
    });
    assert!(matches!(refusals[..], [Refusal::NoNetdev { .. }]), "{refusals:?}");
    says(&lines, &["spark1.p0.0", "4c:bb:47:00:01:00", "enp1s0f0np0", "railweave discover"]);
}

#[test]
fn somebodys_route() {
    let (refusals, lines) = refused(|state| known(&mut state.routes)[0].protocol = "82".to_owned());
    assert!(matches!(refusals[..], [Refusal::ForeignRoute { .. }]), "{refusals:?}");
    says(&lines, &["10.10.4.2/32", "enp1s0f0np0", "sparkring (protocol 82)", "ip route del"]);
}

#[test]
fn somebodys_neighbour_but_not_what_the_kernel_learned() {
    let spoil = |state: &mut HostState, permanent: bool| {
        let neighbour = &mut known(&mut state.neighbours)[0];
        neighbour.protocol = None;
        neighbour.mac = Some("02:00:00:00:00:01".parse().unwrap());
        if !permanent {
            neighbour.states = vec!["STALE".to_owned()];
        }
    };
    let (refusals, lines) = refused(|state| spoil(state, true));
    assert!(matches!(refusals[..], [Refusal::ForeignNeighbour { .. }]), "{refusals:?}");
    says(&lines, &["02:00:00:00:00:01", "4c:bb:47:00:02:10", "ip neigh del"]);

    let plan = ring();
    let mut state = applied(&gb10(), &plan).remove(1).state;
    spoil(&mut state, false);
    let changes = look(&plan, 1, &state).changes;
    assert!(matches!(changes[..], [Change::SetNeighbour(_)]), "{changes:?}");
}

#[test]
fn somebodys_filter_of_our_preference_or_for_our_packets() {
    let (refusals, lines) = refused(|state| known(&mut state.filters)[0].handle = 7);
    assert!(matches!(refusals[..], [Refusal::ForeignFilter { .. }]), "{refusals:?}");
    says(&lines, &["preference 18801", "handle 7", "tc filter del dev"]);
    let (refusals, lines) = refused(|state| {
        let mut other = known(&mut state.filters)[0].clone();
        (other.preference, other.handle) = (11, 1);
        known(&mut state.filters).push(other);
    });
    assert!(matches!(refusals[..], [Refusal::ForeignFilter { .. }]), "{refusals:?}");
    says(&lines, &["preference 11", "EtherType 0x88b5"]);
}

#[test]
fn a_filter_of_somebodys_for_something_else_stays() {
    let plan = ring();
    let mut state = applied(&gb10(), &plan).remove(1).state;
    let mut other = known(&mut state.filters)[0].clone();
    (other.preference, other.handle, other.ether_type) = (49152, 1, Some(0x0806));
    known(&mut state.filters).push(other);
    assert_eq!(look(&plan, 1, &state), Comparison::default());
}

#[test]
fn addresses_that_are_missing_or_somewhere_else() {
    let (refusals, lines) = refused(|state| state.netdevs[0].addresses.clear());
    assert!(matches!(refusals[..], [Refusal::AddressMissing { .. }]), "{refusals:?}");
    says(&lines, &["10.10.2.1/24", "has none", "--set-addresses"]);
    let (refusals, lines) = refused(|state| {
        let address = state.netdevs[0].addresses.remove(0);
        state.netdevs[3].addresses.push(address);
    });
    assert!(matches!(refusals[..], [Refusal::AddressInTheWay { .. }]), "{refusals:?}");
    says(&lines, &["10.10.2.1/24", "enP2p1s0f1np1"]);
    let (refusals, _) =
        refused(|state| state.netdevs[0].addresses[0] = "10.10.2.7/24".parse().unwrap());
    assert!(matches!(refusals[..], [Refusal::AddressInTheWay { .. }]), "{refusals:?}");
}

#[test]
fn a_link_that_is_down_and_an_eswitch_that_is_somebodys() {
    let (refusals, _) = refused(|state| state.netdevs[0].admin_up = false);
    assert!(matches!(refusals[..], [Refusal::LinkDown { .. }]), "{refusals:?}");
    let (refusals, lines) = refused(|state| {
        let pci = state.netdevs[0].pci.unwrap();
        known(&mut state.eswitch).insert(pci, "switchdev".to_owned());
    });
    assert!(matches!(refusals[..], [Refusal::Eswitch { .. }]), "{refusals:?}");
    says(&lines, &["switchdev", "devlink dev eswitch set"]);
}

#[test]
fn a_driver_without_hairpin_queues() {
    let (refusals, lines) = refused(|state| {
        let pci = state.netdevs[0].pci.unwrap();
        known(&mut state.devlink).get_mut(&pci).unwrap().remove("hairpin_queue_size");
    });
    assert!(matches!(refusals[..], [Refusal::NoParameter { .. }]), "{refusals:?}");
    says(&lines, &["hairpin_queue_size", "forward = \"off\""]);
}

#[test]
fn what_was_not_measured_is_not_taken_for_right() {
    for (spoil, what) in [
        (
            (|state| state.routes = Seen::NotMeasured("no ip".to_owned())) as fn(&mut HostState),
            "routes",
        ),
        (|state| state.addresses = Seen::NotMeasured("no ip".to_owned()), "addresses"),
        (|state| state.neighbours = Seen::NotMeasured("no ip".to_owned()), "neighbours"),
        (|state| state.filters = Seen::NotMeasured("no tc".to_owned()), "ingress filters"),
        (|state| state.devlink = Seen::NotMeasured("no devlink".to_owned()), "parameters of pci/"),
        (|state| state.markers = Seen::NotMeasured("no ps".to_owned()), "markers"),
        (
            |state| {
                for netdev in &mut state.netdevs {
                    netdev.tc_offload = Seen::NotMeasured("no ethtool".to_owned());
                }
            },
            "hw-tc-offload",
        ),
    ] {
        let (refusals, lines) = refused(spoil);
        assert_eq!(refusals, []);
        says(&lines, &["not measured", what]);
    }
}

#[test]
fn a_small_mtu_is_said_and_left() {
    let plan = ring();
    let mut state = applied(&gb10(), &plan).remove(1).state;
    state.netdevs[0].mtu_bytes = 1500;
    let comparison = look(&plan, 1, &state);
    assert_eq!(comparison.ready().unwrap(), []);
    assert!(comparison.notes[0].contains("MTU 1500"), "{:?}", comparison.notes);
}

#[test]
fn a_reload_names_what_else_it_wipes() {
    let plan = ring();
    let mut state = bare(&gb10(), 1);
    let mut route = applied(&gb10(), &plan).remove(1).state.routes.known().unwrap()[0].clone();
    route.to = "10.77.0.0/16".parse().unwrap();
    route.protocol = "4".to_owned();
    known(&mut state.routes).push(route);
    let notes = look(&plan, 1, &state).notes;
    assert_eq!(notes.len(), 1);
    says(&notes[0], &["10.77.0.0/16", "somebody's configuration"]);
}

#[test]
fn a_rank_that_is_not_in_the_plan() {
    let wanted = desired(&ring(), 9, &RuleOptions::default());
    assert_eq!(wanted.refusals, [Refusal::NoSuchRank { rank: 9, last: 3 }]);
    assert!(compare(&wanted, &bare(&gb10(), 0)).ready().is_err());
}

#[test]
fn a_path_that_is_forwarded_one_way_only() {
    let mut plan = ring();
    let back = plan.paths.iter_mut().find(|path| (path.from, path.to) == (2, 0)).unwrap();
    back.kind = PathKind::Relayed;
    let wanted = desired(&plan, 1, &RuleOptions::default());
    assert!(wanted.refusals.iter().any(|one| matches!(one, Refusal::OneWay { .. })), "{wanted:?}");
}

#[test]
fn two_packets_that_look_alike_and_go_apart() {
    // The same sender and tag at the same function, to be sent on to two MACs: no filter can tell them apart.
    let mut plan = ring();
    let odd = "02:00:00:00:00:99".parse().unwrap();
    for (from, to) in [(0, 2), (2, 0)] {
        let path = plan.paths.iter_mut().find(|path| (path.from, path.to) == (from, to)).unwrap();
        let mut twin = path.rails[0].clone();
        for crossing in &mut twin.crossings {
            for end in [&mut crossing.out, &mut crossing.into] {
                if end.rank == 2 {
                    end.mac = odd;
                }
            }
        }
        path.rails.push(twin);
    }
    let wanted = desired(&plan, 1, &RuleOptions::default());
    let ambiguous = wanted.refusals.iter().find(|one| matches!(one, Refusal::Ambiguous { .. }));
    says(&ambiguous.unwrap().to_string(), &["spark1.p1.0", "spark0.p0.0", "0x88b5"]);
}

#[test]
fn senders_are_told_apart_where_the_tag_does_not() {
    // Two senders, one tag, two ways on: the filters match the sender.
    let mut plan = ring();
    let (other, odd) = ("02:00:00:00:00:98".parse().unwrap(), "02:00:00:00:00:99".parse().unwrap());
    for (from, to) in [(0, 2), (2, 0)] {
        let path = plan.paths.iter_mut().find(|path| (path.from, path.to) == (from, to)).unwrap();
        let mut twin = path.rails[0].clone();
        for crossing in &mut twin.crossings {
            for end in [&mut crossing.out, &mut crossing.into] {
                match end.rank {
                    0 => end.mac = other,
                    2 => end.mac = odd,
                    _ => {}
                }
            }
        }
        path.rails.push(twin);
    }
    let wanted = desired(&plan, 1, &RuleOptions::default());
    assert_eq!(wanted.refusals, []);
    let from_zero: Vec<_> = wanted
        .filters
        .iter()
        .filter(|filter| {
            filter
                .source
                .is_some_and(|mac| mac == other || mac.to_string().starts_with("4c:bb:47:00:00"))
        })
        .map(|filter| (filter.source, filter.next, filter.preference))
        .collect();
    assert_eq!(from_zero.len(), 2);
    assert!(from_zero.contains(&(Some(other), odd, 18_801)), "{from_zero:?}");
    let preferences: Vec<_> = from_zero.iter().map(|(_, _, preference)| *preference).collect();
    assert_eq!(preferences, [18_801, 18_811]);
}
