use std::fs;
use std::path::PathBuf;

use super::*;

/// A tree as below `/sys/class/infiniband`, removed again at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("rw-counters-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        Self(root)
    }

    fn write(&self, path: &str, value: impl fmt::Display) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{value}\n")).unwrap();
    }

    fn read(&self, device: &str, port: u8) -> PortCounts {
        PortCounts::read(&self.0, &DevicePort { device: device.to_owned(), port })
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn count(name: &'static str, group: CounterGroup, value: u64) -> Count {
    Count { name, group, value }
}

fn counts(counts: &[(&'static str, CounterGroup, u64)]) -> PortCounts {
    let counts = counts.iter().map(|&(name, group, value)| count(name, group, value)).collect();
    PortCounts { counts }
}

#[test]
fn each_driver_shows_what_it_has_and_nothing_else() {
    let tree = Tree::new("drivers");
    for (name, value) in [("sent_pkts", 7), ("rcvd_seq_err", 0), ("retry_exceeded_err", 2)] {
        tree.write(&format!("n0r/ports/1/hw_counters/{name}"), value);
    }
    tree.write("n0r/ports/1/hw_counters/lifespan", 10);
    tree.write("mlx5_0/ports/1/counters/port_xmit_data", u64::MAX);
    tree.write("mlx5_0/ports/1/counters/port_rcv_data", "N/A (no PMA)");
    tree.write("mlx5_0/ports/1/hw_counters/np_cnp_sent", 3);
    tree.write("mlx5_0/ports/2/hw_counters/out_of_sequence", "9".repeat(30));
    let soft = tree.read("n0r", 1);
    assert_eq!(
        soft.counts(),
        [
            count("retry_exceeded_err", CounterGroup::Fatal, 2),
            count("rcvd_seq_err", CounterGroup::Loss, 0),
            count("sent_pkts", CounterGroup::Progress, 7),
        ]
    );
    assert!(soft.measures(CounterGroup::Loss) && !soft.measures(CounterGroup::Congestion));
    assert_eq!(
        tree.read("mlx5_0", 1).counts(),
        [
            count("np_cnp_sent", CounterGroup::Congestion, 3),
            count("port_xmit_data", CounterGroup::Progress, u64::MAX),
        ]
    );
    for (device, port) in [("mlx5_0", 2), ("n1r", 1), ("n0r/../n0r", 1), ("..", 1), ("", 1)] {
        assert_eq!(tree.read(device, port), PortCounts::default(), "{device}/{port}");
    }
}

#[test]
fn every_counter_of_the_drivers_is_in_one_group() {
    let names: Vec<_> = known().map(|(name, _)| name).collect();
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    for (name, group) in [
        ("ack_deferred", CounterGroup::Progress),
        ("completer_retry_err", CounterGroup::Loss),
        ("link_downed", CounterGroup::Loss),
        ("local_ack_timeout_err", CounterGroup::Fatal),
        ("np_ecn_marked_roce_packets", CounterGroup::Congestion),
        ("packet_seq_err", CounterGroup::Loss),
        ("retry_rnr_exceeded_err", CounterGroup::Fatal),
        ("rx_icrc_encapsulated", CounterGroup::Loss),
        ("rx_write_requests", CounterGroup::Progress),
        ("send_err", CounterGroup::Fatal),
    ] {
        assert!(known().any(|it| it == (name, group)), "{name}");
    }
}

#[test]
fn what_rose_is_told_and_what_was_not_measured_is_not() {
    use CounterGroup::{Congestion, Fatal, Loss, Progress};
    let before = counts(&[
        ("packet_seq_err", Loss, 10),
        ("retry_exceeded_err", Fatal, 1),
        ("np_cnp_sent", Congestion, 1),
        ("sent_pkts", Progress, 1),
    ]);
    assert_eq!(before.rises_since(&before).unwrap().to_string(), "no loss counted");
    let after = counts(&[
        ("packet_seq_err", Loss, 4840),
        ("retry_exceeded_err", Fatal, 9),
        ("np_cnp_sent", Congestion, 2),
        ("sent_pkts", Progress, 2),
        // Not measured before.
        ("out_of_sequence", Loss, 77),
    ]);
    let rises = after.rises_since(&before).unwrap();
    assert_eq!(rises.to_string(), "retry_exceeded_err +8, packet_seq_err +4830");
    assert_eq!(before.rises_since(&after), None, "the driver was loaded anew");
    assert_eq!(after.rises_since(&PortCounts::default()), None);
    assert_eq!(PortCounts::default().rises_since(&before), None);
    let work = counts(&[("sent_pkts", Progress, 2)]);
    assert_eq!(work.rises_since(&work), None, "no counter of loss");
}

#[test]
fn a_fault_names_six_counters_at_most() {
    let all = |value| PortCounts {
        counts: known().map(|(name, group)| count(name, group, value)).collect(),
    };
    let rises = all(5).rises_since(&all(3)).unwrap();
    assert_eq!(rises.named.len(), RISES_MAX);
    assert!(rises.more > 10);
    assert!(rises.to_string().ends_with(&format!(" +2 and {} more", rises.more)));
    assert!(rises.to_string().len() < 250, "{rises}");
}
