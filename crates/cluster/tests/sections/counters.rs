use super::Lab;

fn raise(lab: &mut Lab, rank: usize, device: &str, counter: &str, by: u64) {
    let device = lab.hosts[rank].rdma.iter_mut().find(|one| one.name == device).unwrap();
    *device.ports[0].counters.get_mut(counter).unwrap() += by;
}

#[test]
fn without_an_earlier_state_old_errors_are_less_than_an_error() {
    let mut lab = Lab::healthy();
    raise(&mut lab, 0, "rocep1s0f0", "packet_seq_err", 4830);
    raise(&mut lab, 0, "rocep1s0f0", "req_cqe_error", 3);
    assert_eq!(lab.found(), Vec::<String>::new());
    assert_eq!(lab.one("RW-CNT-09").evidence.len(), 2);
    raise(&mut lab, 0, "rocep1s0f0", "req_transport_retries_exceeded", 8);
    assert_eq!(lab.found(), ["RW-CNT-08 spark0 rocep1s0f0"]);
}

#[test]
fn with_an_earlier_state_only_what_rose_counts() {
    let mut lab = Lab::with_before();
    raise(&mut lab, 0, "rocep1s0f0", "packet_seq_err", 4830);
    assert_eq!(lab.found(), ["RW-CNT-02 spark0 rocep1s0f0"]);
    lab.before = Some(lab.hosts.clone());
    assert_eq!(lab.found(), Vec::<String>::new());
}

#[test]
fn counters_that_started_anew_are_not_compared() {
    let mut lab = Lab::with_before();
    let mut before = lab.hosts.clone();
    for device in before[3].rdma.iter_mut() {
        *device.ports[0].counters.get_mut("packet_seq_err").unwrap() = 9;
    }
    lab.before = Some(before);
    assert!(lab.unmeasured("what rose on rocep1s0f0"));
    assert_eq!(lab.found(), Vec::<String>::new());
}

#[test]
fn a_full_hairpin_queue_is_one_finding_with_both_sides_as_evidence() {
    let mut lab = Lab::with_before();
    raise(&mut lab, 1, "rocep1s0f1", "out_of_buffer", 163);
    raise(&mut lab, 2, "rocep1s0f1", "out_of_sequence", 150);
    assert_eq!(lab.found(), ["RW-CNT-06 spark1 rocep1s0f1"]);
    let finding = lab.one("RW-CNT-06");
    for line in ["spark1 rocep1s0f1: out_of_buffer +163", "spark2 rocep1s0f1: out_of_sequence +150"]
    {
        assert!(finding.evidence.iter().any(|seen| seen == line), "{:?}", finding.evidence);
    }
    assert!(
        finding.evidence.iter().any(|seen| seen == "passes here: path 0→2 over rail 0"),
        "{:?}",
        finding.evidence
    );
    assert!(finding.fix.unwrap().contains("devlink dev param set pci/0000:01:00."));
}

#[test]
fn buffers_that_ran_out_where_nothing_is_passed_on_are_the_receivers() {
    let mut lab = Lab::with_before();
    raise(&mut lab, 1, "rocep1s0f1", "out_of_buffer", 163);
    assert_eq!(lab.found(), ["RW-CNT-01 spark1 rocep1s0f1"]);
}

#[test]
fn silence_everywhere_without_errors_is_told_as_a_rank_that_stopped_sending() {
    let lab = Lab::with_before();
    assert_eq!(lab.one("RW-CNT-07").evidence.len(), 16);
    let mut moving = Lab::with_before();
    raise(&mut moving, 2, "rocep1s0f0", "rx_write_requests", 1);
    assert!(moving.look().findings.is_empty());
    let mut failing = Lab::with_before();
    raise(&mut failing, 2, "rocep1s0f0", "local_ack_timeout_err", 1);
    assert_eq!(failing.found(), ["RW-CNT-01 spark2 rocep1s0f0"]);
    assert!(!failing.look().findings.iter().any(|finding| finding.code == "RW-CNT-07"));
}
