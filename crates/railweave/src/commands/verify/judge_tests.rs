use super::*;
use crate::commands::verify::testing::plan;

const BYTES: u64 = 1000;

fn rail() -> Rail {
    plan(2, &[("h0.p0", "h1.p0")], "off").paths[0].rails[0].clone()
}

/// Counters of both hosts: each netdev with (received, sent).
fn counts(values: [[(u64, u64); 2]; 2]) -> Counts {
    let netdev = |host: usize, function: usize, (rx_bytes, tx_bytes): (u64, u64)| NetdevCount {
        mac: format!("02:00:00:{host:02x}:00:{function:02x}").parse().unwrap(),
        name: format!("n{function}"),
        rx_bytes,
        tx_bytes,
        rdma_bytes: None,
    };
    values
        .iter()
        .enumerate()
        .map(|(host, pair)| {
            (
                host,
                pair.iter()
                    .enumerate()
                    .map(|(function, value)| netdev(host, function, *value))
                    .collect(),
            )
        })
        .collect()
}

fn cables() -> Vec<String> {
    vec!["h0.p0–h1.p0".to_owned()]
}

#[test]
fn counters_of_both_ends_and_both_ways_must_move() {
    let before = counts([[(10, 20), (0, 0)], [(30, 40), (0, 0)]]);
    let after = counts([[(1010, 1020), (5, 5)], [(1030, 1050), (5, 5)]]);
    let moved = crossed(&rail(), &cables(), BYTES, &before, &after).unwrap();
    assert_eq!(moved.len(), 1);
    assert_eq!((moved[0].out.as_str(), moved[0].into.as_str()), ("h0.p0.0", "h1.p0.0"));
    assert_eq!(
        (
            moved[0].out_tx_bytes,
            moved[0].into_rx_bytes,
            moved[0].into_tx_bytes,
            moved[0].out_rx_bytes
        ),
        (1000, 1000, 1010, 1000)
    );

    // One byte too few in any of the four.
    for (host, is_rx) in [(0, true), (0, false), (1, true), (1, false)] {
        let mut less = after.clone();
        let netdev = &mut less.get_mut(&host).unwrap()[0];
        if is_rx {
            netdev.rx_bytes = 1009;
        } else {
            netdev.tx_bytes = 1019;
        }
        let Err(Doubt::Elsewhere { crossing, why }) =
            crossed(&rail(), &cables(), BYTES, &before, &less)
        else {
            panic!("host {host}, received {is_rx}")
        };
        assert_eq!(crossing, 0);
        assert!(
            why.contains("did not cross cable h0.p0–h1.p0: its counters did not move"),
            "{why}"
        );
        assert!(why.contains(&format!("h{host}.p0.0")), "{why}");
    }
}

#[test]
fn bytes_that_went_another_way_are_found_there() {
    let before = counts([[(0, 0), (0, 0)], [(0, 0), (0, 0)]]);
    let after = counts([[(0, 0), (1000, 1000)], [(0, 0), (1000, 1000)]]);
    let Err(Doubt::Elsewhere { why, .. }) = crossed(&rail(), &cables(), BYTES, &before, &after)
    else {
        panic!()
    };
    assert!(why.ends_with("(h0.p0.0 n0 sent 0 bytes); n1 of h0 moved instead"), "{why}");
}

#[test]
fn what_cannot_be_read_is_not_measured() {
    let before = counts([[(5, 5), (0, 0)], [(0, 0), (0, 0)]]);
    let mut gone = counts([[(2000, 2000), (0, 0)], [(2000, 2000), (0, 0)]]);
    gone.get_mut(&1).unwrap().remove(0);
    let reason = |after: &Counts| match crossed(&rail(), &cables(), BYTES, &before, after) {
        Err(Doubt::NotMeasured(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(reason(&gone).contains("no netdev of h1 has the hardware address 02:00:00:01:00:00"));
    assert!(reason(&Counts::new()).contains("no netdev of h0"));
    assert!(reason(&counts([[(4, 2000), (0, 0)], [(2000, 2000), (0, 0)]])).contains("went back"));
    let mut twice = counts([[(2000, 2000), (0, 0)], [(2000, 2000), (0, 0)]]);
    let copy = twice[&0][0].clone();
    twice.get_mut(&0).unwrap().push(copy);
    assert!(reason(&twice).contains("several netdevs"));
}

fn fault(step: Step, late: bool) -> Report {
    Report::Failed(Fault::new(step, format!("{step:?}"), None, late))
}

#[test]
fn the_report_that_explains_the_others_is_blamed() {
    let done = Report::Done(8, 1.0);
    let closed = || fault(Step::Receive, false);
    let blamed = |reports: &[Report]| {
        let blame = blame(reports).unwrap();
        (blame.hop, blame.crossing, blame.why)
    };
    assert_eq!(blame(&[done.clone(), done.clone()]), None);
    assert_eq!(blame(&[done.clone(), Report::Unasked]), None);

    // The far end saw a wrong byte and left, so the near end's connection broke.
    assert_eq!(
        blamed(&[closed(), fault(Step::Compare, false)]),
        (1, Some(0), "Compare".to_owned())
    );
    // With a host between nobody knows which cable it was.
    let report = [closed(), closed(), fault(Step::Compare, false)];
    assert_eq!(blamed(&report), (2, None, "Compare".to_owned()));
    // The near end does not reach the far one, which waits in vain.
    assert_eq!(
        blamed(&[fault(Step::Connect, true), fault(Step::Await, true)]),
        (0, Some(0), "Connect".to_owned())
    );
    // The host between does not reach the far end.
    let report = [closed(), fault(Step::Connect, true), fault(Step::Await, true)];
    assert_eq!(blamed(&report), (1, Some(1), "Connect".to_owned()));
    // An address that is missing comes before what follows from it.
    assert_eq!(
        blamed(&[Report::Unasked, fault(Step::Listen, false)]),
        (1, None, "Listen".to_owned())
    );
    // Silence: the near end is first to give up, and says so.
    assert_eq!(
        blamed(&[fault(Step::Receive, true), Report::Unasked]),
        (0, Some(0), "Receive".to_owned())
    );
}
