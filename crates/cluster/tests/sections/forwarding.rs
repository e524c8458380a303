use cluster::file::Forward;
use cluster::inventory::Seen;
use cluster::inventory::host_state::Firewall;
use cluster::plan::{Plan, PlanOptions};

use super::Lab;

fn with_firewall(policy: &str, rules: &[&str]) -> Vec<String> {
    let mut lab = Lab::healthy();
    lab.hosts[1].system.ip_forward = Seen::Known(true);
    let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
    lab.hosts[1].firewall = Seen::Known(Firewall { forward_policy: policy.to_owned(), rules });
    lab.found()
}

#[test]
fn a_firewall_that_drops_is_told_from_a_hidden_slow_path() {
    const SLOW: [&str; 1] = ["RW-FWD-01 spark1 -"];
    const DROPS: [&str; 1] = ["RW-FWD-03 spark1 -"];
    // Packets pass spark1 between the first functions of its ports, both ways.
    let both = |target: &str| {
        [
            format!("-A DOCKER-USER -i enp1s0f0np0 -o enp1s0f1np1 -j {target}"),
            format!("-A DOCKER-USER -i enp1s0f1+ -o enp1s0f0+ -j {target}"),
        ]
    };
    let [first, second] = both("ACCEPT");
    assert_eq!(with_firewall("ACCEPT", &[]), SLOW);
    assert_eq!(with_firewall("DROP", &[]), DROPS);
    assert_eq!(with_firewall("DROP", &[&first]), DROPS);
    assert_eq!(with_firewall("DROP", &[&first, &second]), SLOW);
    assert_eq!(with_firewall("DROP", &["-A FORWARD -j ACCEPT"]), SLOW);
    let [first, second] = both("RETURN");
    assert_eq!(with_firewall("DROP", &[&first, &second]), DROPS);
    for other in [
        "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A FORWARD ! -i docker0 -j ACCEPT",
        "-A FORWARD -i docker0 -j ACCEPT",
        "-A INPUT -j ACCEPT",
        "-A FORWARD -j",
        "",
    ] {
        assert_eq!(with_firewall("DROP", &[other]), DROPS, "{other}");
    }
}

#[test]
fn an_uncovered_device_is_named_with_the_paths_that_suffer() {
    let mut lab = Lab::healthy();
    let Seen::Known(markers) = &mut lab.hosts[0].markers else { panic!() };
    markers.retain(|marker| marker.rdma != "rocep1s0f0");
    let finding = lab.one("RW-FWD-04");
    assert_eq!(
        (finding.host.as_deref(), finding.port.as_deref()),
        (Some("spark0"), Some("rocep1s0f0"))
    );
    insta::assert_snapshot!(finding.evidence.join("\n"), @r"
    covered on spark0: roceP2p1s0f1
    not covered on spark0: rocep1s0f0
    rocep1s0f0: needed: to 10.10.2.2: EtherType 0x88b5
    paths 0→2 and 2→0 over rail 0 not tagged on host spark0, device rocep1s0f0
    ");
}

#[test]
fn devices_are_known_by_their_functions_and_not_by_their_names() {
    let mut lab = Lab::healthy();
    let state = &mut lab.hosts[0];
    let Seen::Known(markers) = &mut state.markers else { panic!() };
    for name in markers
        .iter_mut()
        .map(|marker| &mut marker.rdma)
        .chain(state.rdma.iter_mut().map(|device| &mut device.name))
    {
        name.push_str("_new");
    }
    assert!(!lab.found().iter().any(|found| found.starts_with("RW-FWD")), "{:?}", lab.found());
}

#[test]
fn nothing_is_asked_of_a_room_that_forwards_nothing() {
    let mut lab = Lab::healthy();
    let options = PlanOptions { forward: Some(Forward::Off), ..PlanOptions::default() };
    lab.plan = Plan::of(&lab.file, &options).unwrap();
    for host in &mut lab.hosts {
        host.system.ip_forward = Seen::Known(true);
        host.markers = Seen::Known(Vec::new());
        host.devlink = Seen::NotMeasured("not installed".to_owned());
    }
    let found = lab.found();
    assert!(!found.iter().any(|found| found.starts_with("RW-FWD")), "{found:?}");
    // What an older plan left behind is still told.
    assert!(found.iter().any(|found| found.starts_with("RW-RTE-11")), "{found:?}");
}

#[test]
fn settings_that_were_not_read_leave_it_undecided() {
    let mut lab = Lab::healthy();
    lab.hosts[2].devlink = Seen::NotMeasured("devlink: not installed".to_owned());
    let report = lab.look();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!(report.exit_code(), 2);
}
