//! Links in software: the kernel's traffic control marks packets and passes them on, by filters of its own.

use cluster::file::{ClusterFile, Forward, MarkerKind, TagKind};
use cluster::inventory::Seen;
use cluster::plan::{PathKind, Plan, PlanOptions};
use cluster::rules::{Change, Refusal, RuleOptions, compare, desired, down};

use super::simulator::{Sim, applied, bare, known, look, plan, ring, soft};

fn soft_ring() -> ClusterFile {
    soft(ring(4))
}

#[test]
fn nothing_is_asked_of_a_nic() {
    for kind in [TagKind::Destination, TagKind::SourcePort] {
        let file = soft_ring();
        let plan = plan(&file, kind);
        for rank in 0..4 {
            let mut state = bare(&file, rank);
            state.devlink = Seen::NotMeasured("devlink: not installed".to_owned());
            state.eswitch = Seen::NotMeasured("devlink: not installed".to_owned());
            state.markers = Seen::NotMeasured("no ps".to_owned());
            let comparison = look(&plan, rank, &state);
            let changes = comparison.ready().unwrap();
            let order: Vec<_> = changes
                .iter()
                .map(|change| match change {
                    Change::AddRoute(_) => 0,
                    Change::SetNeighbour(_) => 1,
                    Change::AddQdisc { .. } | Change::AddFilter(_) => 2,
                    Change::AddMark(_) => 3,
                    other => panic!("{other:?}"),
                })
                .collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            // A netdev that only marks is made to take filters just before.
            let marks: Vec<_> = order.iter().filter(|step| **step != 2).collect();
            let sorted: Vec<_> = sorted.iter().filter(|step| **step != 2).collect();
            assert_eq!(marks, sorted, "marks come last");
            assert_eq!(order.iter().filter(|step| **step == 3).count(), 2);
            assert!(comparison.needs_quiet);
        }
    }
}

#[test]
fn a_mark_never_goes_by_the_source_port_alone() {
    let file = soft_ring();
    for (kind, port) in [(TagKind::Destination, None), (TagKind::SourcePort, Some(65535))] {
        let plan = plan(&file, kind);
        for sim in applied(&file, &plan) {
            let marks = sim.state.egress.known().unwrap();
            assert_eq!(marks.len(), 2);
            for mark in marks {
                assert_eq!(mark.destination_ip.unwrap().prefix, 32);
                assert_eq!((mark.destination_port, mark.source_port), (Some(4791), port));
                assert_eq!(mark.set_ether_type, Some(0x88b5));
            }
        }
    }
}

#[test]
fn commands_are_those_that_iproute2_reads() {
    let file = soft_ring();
    let said = |kind| {
        let plan = plan(&file, kind);
        let changes = look(&plan, 0, &bare(&file, 0)).changes;
        let marks = changes.iter().filter(|change| matches!(change, Change::AddMark(_)));
        let filters = changes.iter().filter(|change| matches!(change, Change::AddFilter(_)));
        let text = |change: &Change| change.argv().join(" ");
        (text(marks.into_iter().next().unwrap()), text(filters.into_iter().next().unwrap()))
    };
    let (mark, filter) = said(TagKind::Destination);
    assert_eq!(
        mark,
        "tc filter add dev enp1s0f0np0 egress protocol ip pref 18801 handle 0x1 flower ip_proto udp dst_port 4791 \
         dst_ip 10.11.0.2 action pedit ex munge eth type set 0x88b5"
    );
    assert!(!filter.contains("skip_sw"), "{filter}");
    assert!(filter.contains(" protocol 0x88b5 pref 18801 handle 0x1 flower dst_mac "), "{filter}");
    let (mark, _) = said(TagKind::SourcePort);
    assert!(mark.contains(" dst_ip 10.11.0.2 src_port 65535 action "), "{mark}");
}

#[test]
fn a_second_apply_does_nothing_and_drift_is_mended() {
    let file = soft_ring();
    let (by_destination, by_port) =
        (plan(&file, TagKind::Destination), plan(&file, TagKind::SourcePort));
    for (rank, mut sim) in applied(&file, &by_destination).into_iter().enumerate() {
        let again = look(&by_destination, rank, &sim.state);
        assert_eq!((again.changes, again.refusals), (vec![], vec![]));
        // A mark of other content, and one that is gone.
        known(&mut sim.state.egress)[0].set_ether_type = Some(0x88b6);
        known(&mut sim.state.egress).pop();
        let drifted = look(&by_destination, rank, &sim.state);
        let kinds: Vec<_> = drifted
            .changes
            .iter()
            .filter_map(|change| match change {
                Change::RemoveMark { .. } => Some('-'),
                Change::AddMark(_) => Some('+'),
                Change::AddQdisc { .. } => None,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(kinds, ['-', '+', '+']);
        sim.apply(&drifted.changes);
        assert_eq!(look(&by_destination, rank, &sim.state).changes, []);
        // The other kind of tag replaces marks and filters.
        sim.apply(look(&by_port, rank, &sim.state).ready().unwrap());
        assert_eq!(look(&by_port, rank, &sim.state).changes, []);
    }
}

#[test]
fn taking_back_leaves_nothing_of_ours() {
    let file = soft_ring();
    let plan = plan(&file, TagKind::Destination);
    let off = PlanOptions { forward: Some(Forward::Off), ..PlanOptions::default() };
    let off = Plan::of(&file, &off).unwrap();
    for (rank, mut sim) in applied(&file, &plan).into_iter().enumerate() {
        let mut other = sim.clone();
        let changes = down(&sim.state).changes;
        assert!(matches!(changes[0], Change::RemoveMark { .. }), "marks go first: {changes:?}");
        sim.apply(&changes);
        other.apply(look(&off, rank, &other.state).ready().unwrap());
        for sim in [sim, other] {
            assert_eq!(sim.state.egress.known().unwrap(), &[]);
            assert_eq!(sim.state.filters.known().unwrap(), &[]);
            assert_eq!(sim.state.routes.known().unwrap(), &[]);
            assert_eq!(down(&sim.state).changes, []);
        }
    }
}

#[test]
fn somebodys_egress_filter_with_our_preference_is_refused() {
    let file = soft_ring();
    let plan = plan(&file, TagKind::Destination);
    let mut state = applied(&file, &plan).remove(0).state;
    known(&mut state.egress)[0].handle = 77;
    let comparison = look(&plan, 0, &state);
    assert!(
        matches!(comparison.refusals[..], [Refusal::ForeignMark { handle: 77, .. }]),
        "{:?}",
        comparison.refusals
    );
    let lines = comparison.ready().unwrap_err().join("\n");
    assert!(lines.contains("tc filter del dev enp1s0f0np0 egress pref 18801"), "{lines}");
}

#[test]
fn marks_that_cannot_be_read_are_not_taken_for_right() {
    let file = soft_ring();
    let plan = plan(&file, TagKind::Destination);
    let mut state = applied(&file, &plan).remove(0).state;
    state.egress = Seen::NotMeasured("no tc".to_owned());
    let lines = look(&plan, 0, &state).ready().unwrap_err().join("\n");
    assert!(lines.contains("not measured: egress filters: no tc"), "{lines}");
}

#[test]
fn marking_may_be_left_to_the_owner() {
    let file = soft_ring();
    let plan = plan(&file, TagKind::Destination);
    let options = RuleOptions { marker: None, ..RuleOptions::default() };
    let mut sim = Sim::new(bare(&file, 0));
    let comparison = compare(&desired(&plan, 0, &options), &sim.state);
    sim.apply(comparison.ready().unwrap());
    assert_eq!(sim.state.egress.known().unwrap(), &[]);
    assert_eq!(comparison.notes.len(), 2, "{:?}", comparison.notes);
    assert!(comparison.notes[0].contains("left to you"), "{:?}", comparison.notes);
}

#[test]
fn a_link_in_software_without_the_setting_is_told_of_it() {
    // The file says nothing of PCI functions: no NIC can pass packets on, so paths are relayed.
    let mut file = soft_ring();
    file.marker = MarkerKind::Nic;
    let options = |forward| PlanOptions { forward: Some(forward), ..PlanOptions::default() };
    let relayed = Plan::of(&file, &options(Forward::Auto)).unwrap();
    let path = relayed.path(0, 2).unwrap();
    assert_eq!(path.kind, PathKind::Relayed);
    assert!(path.instead.as_ref().unwrap().contains("marker = \"tc\""), "{:?}", path.instead);
    let error = Plan::of(&file, &options(Forward::Required)).unwrap_err().to_string();
    assert!(error.contains("marker = \"tc\""), "{error}");
    // The file says they are, and on the host they are not.
    let named = ring(4);
    let plan = plan(&named, TagKind::Destination);
    let mut state = bare(&named, 1);
    for netdev in &mut state.netdevs {
        netdev.pci = None;
    }
    let comparison = look(&plan, 1, &state);
    assert!(matches!(comparison.refusals[0], Refusal::NoPci { .. }), "{:?}", comparison.refusals);
    assert!(comparison.refusals[0].to_string().contains("marker = \"tc\""));
}

#[test]
fn plans_of_both_kinds_are_told_apart_and_the_file_keeps_its_text() {
    let (nic, tc) = (ring(4), soft_ring());
    assert!(!nic.to_text().contains("marker"));
    assert!(tc.to_text().contains("\nmarker = \"tc\"\n"));
    assert_eq!(ClusterFile::parse(&tc.to_text()).unwrap(), tc);
    let mut same = nic.clone();
    same.marker = MarkerKind::Tc;
    assert_ne!(
        plan(&nic, TagKind::Destination).digest,
        plan(&same, TagKind::Destination).digest,
        "all ranks have to mark alike"
    );
    let wrong = tc.to_text().replace("\"tc\"", "\"bpf\"");
    assert!(ClusterFile::parse(&wrong).unwrap_err().to_string().contains("bpf"));
}
