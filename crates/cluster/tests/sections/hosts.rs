use cluster::inventory::Seen;

use super::Lab;

const S: i64 = 1_000_000_000;

fn with_clocks(clocks: [(i64, u64); 4]) -> Lab {
    let mut lab = Lab::healthy();
    for (host, clock) in lab.hosts.iter_mut().zip(clocks) {
        host.system.clock_ahead_ns = Seen::Known(clock);
    }
    lab
}

#[test]
fn the_clock_that_differs_from_most_is_told() {
    // The reader's own clock is off: all are far from it, and only one is far from the others.
    let lab = with_clocks([(90 * S, 0), (90 * S, 0), (92 * S, 0), (90 * S, 0)]);
    assert_eq!(lab.found(), ["RW-HST-03 spark2 -"]);
    let finding = lab.one("RW-HST-03");
    assert!(finding.message.contains("2.0 s ahead of spark0's"), "{}", finding.message);
}

#[test]
fn the_error_of_the_measurement_is_respected() {
    assert_eq!(with_clocks([(0, 0), (S, 0), (0, 0), (0, 0)]).found(), Vec::<String>::new());
    assert_eq!(with_clocks([(0, 0), (S + 1, 0), (0, 0), (0, 0)]).found(), ["RW-HST-03 spark1 -"]);
    let slow = with_clocks([(0, 0), (3 * S, 2 * S as u64 + 1), (0, 0), (0, 0)]);
    assert_eq!(slow.found(), Vec::<String>::new());
    assert!(slow.unmeasured("its clock"));
}

#[test]
fn clocks_on_both_sides_of_the_middle_are_told_once() {
    let lab = with_clocks([(0, 0), (6 * S / 10, 0), (-6 * S / 10, 0), (0, 0)]);
    assert_eq!(lab.found(), ["RW-HST-03 spark1 -"]);
}

#[test]
fn what_most_hosts_have_is_right_and_ties_go_to_the_lowest_rank() {
    let mut lab = Lab::healthy();
    lab.hosts[0].system.cluster_file = Seen::Known("other".to_owned());
    assert_eq!(lab.found(), ["RW-HST-05 spark0 -"]);
    let fix = lab.one("RW-HST-05").fix.unwrap();
    assert_eq!(fix, "scp -3 spark1:/etc/railweave/cluster.toml spark0:/etc/railweave/cluster.toml");
    lab.hosts[3].system.cluster_file = Seen::Known("other".to_owned());
    assert_eq!(lab.found(), ["RW-HST-05 spark1 -", "RW-HST-05 spark2 -"]);
    for host in &mut lab.hosts {
        host.system.cluster_file = Seen::NotMeasured("sha256sum: not there".to_owned());
    }
    assert_eq!(lab.found(), Vec::<String>::new());
    assert!(lab.unmeasured("its cluster file"));
}

#[test]
fn kho_is_told_by_kernel_command_line_and_the_contiguous_allocator() {
    let with = |kernel: &str, line: &str, cma: Seen<(u64, u64)>| {
        let mut lab = Lab::healthy();
        for host in &mut lab.hosts {
            host.system.kernel = Seen::Known(kernel.to_owned());
            host.system.command_line = Seen::Known(line.to_owned());
            host.system.cma_bytes = cma.clone();
        }
        lab.found().len()
    };
    let none = Seen::Known((0, 963_641_344));
    assert_eq!(with("7.0.0-1019-nvidia", "quiet", none.clone()), 4);
    assert_eq!(with("7.0.0-1019-nvidia", "quiet", Seen::NotMeasured("?".to_owned())), 4);
    assert_eq!(with("7.0.0-1019-nvidia", "quiet kho=off", none.clone()), 0);
    assert_eq!(with("7.0.0-1019-nvidia", "quiet", Seen::Known((134_217_728, 0))), 0);
    assert_eq!(with("6.17.0-1014-nvidia", "quiet", none.clone()), 0);
    assert_eq!(with("7.0.0-14-generic", "quiet", none), 0);
}

#[test]
fn limits_matter_only_where_memory_is_registered() {
    let mut lab = Lab::healthy();
    for host in &mut lab.hosts {
        host.system.memlock_bytes = Seen::Known(Some(8 << 20));
    }
    assert_eq!(lab.found().len(), 4);
    lab.hosts[0].rdma.clear();
    for function in &mut lab.plan.ranks[0].functions {
        function.rdma = None;
    }
    assert!(!lab.found().iter().any(|found| found == "RW-HST-01 spark0 -"), "{:?}", lab.found());
}

#[test]
fn one_machine_twice_is_told_from_a_copied_disk_and_from_namespaces() {
    let mut lab = Lab::healthy();
    lab.hosts[2].system.machine = lab.hosts[1].system.machine.clone();
    assert_eq!(lab.found(), ["RW-HST-10 spark2 -"]);
    lab.hosts[2].system.boot_id = lab.hosts[1].system.boot_id.clone();
    assert_eq!(lab.found(), ["RW-HST-09 spark2 -"]);
    for rank in [1, 2] {
        lab.file.hosts[rank].reach = format!("netns:rw-{rank}");
    }
    assert_eq!(lab.found(), Vec::<String>::new());
}
