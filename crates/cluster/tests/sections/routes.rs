use cluster::inventory::Seen;
use cluster::rules::{RuleOptions, compare, desired};

use super::{Lab, rooms};

/// What is told of each fixture and what would be changed there have to agree: nothing is told that `apply` would
/// leave as it is, and nothing changed that is not told.
#[test]
fn what_is_told_is_what_would_be_changed() {
    let healthy = rooms::healthy();
    let mut compared = 0;
    for (name, folder) in rooms::faults().iter().filter(|(name, _)| name.starts_with("RW-RTE-")) {
        let (report, _) = rooms::look_at(folder, &healthy);
        let told = report.findings.iter().any(|finding| finding.code.starts_with("RW-RTE-"));
        assert!(told, "{name}");
        compared += 1;
    }
    assert_eq!(compared, 12);
    let mut lab = Lab::healthy();
    let changes = |lab: &Lab| {
        (0..4)
            .map(|rank| {
                let compared =
                    compare(&desired(&lab.plan, rank, &RuleOptions::default()), &lab.hosts[rank]);
                compared.changes.len() + compared.refusals.len()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(changes(&lab), [0, 0, 0, 0]);
    assert_eq!(lab.found(), Vec::<String>::new());
    for rank in 0..4 {
        let Seen::Known(routes) = &mut lab.hosts[rank].routes else { panic!() };
        routes.retain(|route| route.protocol != "157");
    }
    assert!(changes(&lab).iter().all(|count| *count == 2), "{:?}", changes(&lab));
    assert_eq!(lab.found().len(), 8);
    assert!(lab.found().iter().all(|found| found.starts_with("RW-RTE-01")));
}

#[test]
fn the_fix_of_a_missing_route_is_the_command_that_apply_runs() {
    let mut lab = Lab::healthy();
    let Seen::Known(routes) = &mut lab.hosts[0].routes else { panic!() };
    routes.retain(|route| route.to.to_string() != "10.10.2.2/32");
    let finding = lab.one("RW-RTE-01");
    assert_eq!(
        finding.fix.as_deref(),
        Some("sudo ip route add 10.10.2.2/32 dev enp1s0f0np0 src 10.10.0.1 scope link proto 157")
    );
    assert_eq!(finding.port.as_deref(), Some("enp1s0f0np0"));
}

#[test]
fn nobody_is_told_of_rules_that_are_not_railweaves() {
    let mut lab = Lab::healthy();
    let Seen::Known(routes) = &mut lab.hosts[0].routes else { panic!() };
    let mut other = routes[0].clone();
    (other.to, other.protocol) = ("10.99.0.0/16".parse().unwrap(), "82".to_owned());
    routes.push(other);
    let Seen::Known(filters) = &mut lab.hosts[0].filters else { panic!() };
    let mut other = filters[0].clone();
    (other.preference, other.ether_type) = (7, Some(0x0806));
    filters.push(other);
    assert_eq!(lab.found(), Vec::<String>::new());
}

#[test]
fn a_direct_peer_that_is_tied_to_a_wrong_hardware_address_is_told() {
    let mut lab = Lab::healthy();
    let Seen::Known(neighbours) = &mut lab.hosts[0].neighbours else { panic!() };
    neighbours.retain(|entry| entry.ip.to_string() != "10.10.0.2");
    let mut entry = neighbours[0].clone();
    entry.ip = "10.10.0.2".parse().unwrap();
    entry.netdev = "enp1s0f0np0".to_owned();
    entry.mac = Some("02:00:00:00:00:99".parse().unwrap());
    entry.states = vec!["PERMANENT".to_owned()];
    entry.protocol = None;
    neighbours.push(entry.clone());
    let finding = lab.one("RW-RTE-05");
    assert!(finding.message.contains("10.10.0.2 (spark1.p1.0)"), "{}", finding.message);
    assert_eq!(finding.fix.as_deref(), Some("sudo ip neigh del 10.10.0.2 dev enp1s0f0np0"));
    // The right address, tied as well, is nobody's fault.
    let Seen::Known(neighbours) = &mut lab.hosts[0].neighbours else { panic!() };
    entry.mac = Some("4c:bb:47:00:01:10".parse().unwrap());
    neighbours.pop();
    neighbours.push(entry);
    assert_eq!(lab.found(), Vec::<String>::new());
}

#[test]
fn a_dead_route_of_a_dark_port_is_not_told_twice() {
    let mut lab = Lab::healthy();
    let Seen::Known(routes) = &mut lab.hosts[0].routes else { panic!() };
    routes.iter_mut().filter(|route| route.protocol == "157").for_each(|route| route.dead = true);
    assert_eq!(lab.found().iter().filter(|found| found.starts_with("RW-RTE-03")).count(), 2);
    for netdev in lab.hosts[0].netdevs.iter_mut().filter(|netdev| netdev.pci.is_some()) {
        netdev.carrier = false;
    }
    assert!(!lab.found().iter().any(|found| found.starts_with("RW-RTE")), "{:?}", lab.found());
}

#[test]
fn tables_that_were_not_read_leave_it_undecided() {
    let mut lab = Lab::healthy();
    lab.hosts[1].filters = Seen::NotMeasured("tc: not installed".to_owned());
    let report = lab.look();
    assert_eq!(report.exit_code(), 2);
    assert!(report.findings.is_empty());
    let unmeasured =
        report.unmeasured.iter().find(|unmeasured| unmeasured.what == "filters").unwrap();
    assert_eq!((unmeasured.host.as_deref(), unmeasured.essential), (Some("spark1"), true));
}
