use super::*;
use crate::commands::verify::coverage::MarkerProof;

const NEEDED: u64 = 10;

fn end(host: &str, marker: Option<(Option<bool>, Option<u64>)>, sent: Option<u64>) -> EndProof {
    EndProof {
        host: host.to_owned(),
        function: format!("{host}.p0.0"),
        device: format!("roce_{host}p0f0"),
        destination: None,
        source_port: None,
        marker: marker.map(|(running, packets)| MarkerProof {
            kind: "tc".to_owned(),
            running,
            marks: "10.10.2.2 as 0x88b5".to_owned(),
            packets,
            why: None,
        }),
        sent_bytes: sent,
        work_completion: None,
    }
}

fn rule(name: &str, present: Option<bool>, packets: Option<u64>) -> RuleProof {
    RuleProof { rule: name.to_owned(), present, packets, why: None }
}

/// A forwarded rail on which all is well.
fn good() -> PairProof {
    let marker = Some((Some(true), Some(NEEDED)));
    PairProof {
        near: end("h0", marker, Some(50_000)),
        far: end("h2", marker, Some(50_000)),
        path_mtu_bytes: 4096,
        packets_needed: NEEDED,
        between: vec![BetweenProof {
            host: "h1".to_owned(),
            there: rule("rule there", Some(true), Some(NEEDED)),
            back: rule("rule back", Some(true), Some(NEEDED)),
            forwarded_datagrams: Some(0),
        }],
    }
}

fn judged(pair: &PairProof, near: &EndSaid, far: &EndSaid) -> Judgement {
    let cables = ["h0-h1".to_owned(), "h1-h2".to_owned()];
    judge(&Names { ranks: (2, 0), rail: 1, cables: &cables }, pair, near, far)
}

fn gave_up(came: u64) -> EndSaid {
    let mut fault =
        Fault::new(Step::Send, "nothing was acknowledged".to_owned(), Some(came), false);
    fault.status = Some(12);
    EndSaid::Failed(fault)
}

fn waited(came: u64) -> EndSaid {
    EndSaid::Failed(Fault::new(Step::Await, "nothing more came".to_owned(), Some(came), false))
}

fn failed(judgement: Judgement) -> (String, String, String) {
    match judgement {
        Judgement::Failed { who, r#where, why, .. } => (who, r#where, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_are_proven_only_with_all_the_evidence() {
    let (done, all) = (EndSaid::Done, good());
    assert_eq!(judged(&all, &done, &done), Judgement::Proven);
    // Each count of each direction, of the kernel, and whether it was measured.
    for there in [None, Some(0), Some(NEEDED - 1), Some(NEEDED)] {
        for back in [None, Some(0), Some(NEEDED - 1), Some(NEEDED)] {
            for kernel in [None, Some(0), Some(1), Some(NEEDED)] {
                let mut pair = good();
                pair.between[0].there.packets = there;
                pair.between[0].back.packets = back;
                pair.between[0].forwarded_datagrams = kernel;
                let came = judged(&pair, &done, &done);
                let enough = |count: Option<u64>| count.is_some_and(|count| count >= NEEDED);
                let proven = enough(there) && enough(back) && kernel == Some(0);
                let case = format!("{there:?} {back:?} {kernel:?}: {came:?}");
                assert_eq!(came == Judgement::Proven, proven, "{case}");
                if kernel == Some(NEEDED) {
                    assert!(failed(came).2.contains("h1's CPU passed packets on"), "{case}");
                } else if enough(there) && enough(back) && kernel != Some(0) {
                    assert!(matches!(came, Judgement::Unknown(_)), "{case}");
                } else if there.is_some_and(|count| count < NEEDED) {
                    assert_eq!(failed(came).1, "rule there", "{case}");
                } else if enough(there) && back.is_some_and(|count| count < NEEDED) {
                    assert_eq!(failed(came).1, "rule back", "{case}");
                }
            }
        }
    }
}

#[test]
fn what_is_missing_is_named() {
    // No marker at the near end.
    let mut pair = good();
    pair.near.marker = Some(MarkerProof { running: Some(false), ..pair.near.marker.unwrap() });
    pair.between[0].there.packets = Some(0);
    pair.between[0].back.packets = Some(0);
    let (who, place, why) = failed(judged(&pair, &gave_up(0), &waited(0)));
    assert_eq!((who.as_str(), place.as_str()), ("h0", "roce_h0p0f0"));
    let text =
        "paths 0→2 and 2→0 over rail 1 not tagged on host h0, device roce_h0p0f0; relayed instead";
    assert!(why.starts_with(text), "{why}");
    assert!(why.contains("work completion status 12"), "{why}");

    // None at the far end: its answers do not come back.
    let mut pair = good();
    pair.far.marker = Some(MarkerProof { running: Some(false), ..pair.far.marker.unwrap() });
    pair.between[0].back.packets = Some(0);
    let (who, _, why) = failed(judged(&pair, &gave_up(0), &gave_up(40_000)));
    assert_eq!(who, "h2");
    assert!(why.contains("not tagged on host h2, device roce_h2p0f0"), "{why}");

    // A rule of either direction.
    for (back, name) in [(false, "rule there"), (true, "rule back")] {
        let mut pair = good();
        let between = &mut pair.between[0];
        let gone = if back { &mut between.back } else { &mut between.there };
        (gone.present, gone.packets) = (Some(false), None);
        let far = if back { gave_up(40_000) } else { waited(0) };
        let (who, place, why) = failed(judged(&pair, &gave_up(0), &far));
        assert_eq!((who.as_str(), place.as_str()), ("h1", name));
        assert!(why.contains(&format!("{name} on h1 is missing")), "{why}");
    }
}

#[test]
fn without_a_marker_that_can_be_seen_an_idle_rule_tells() {
    for running in [None, Some(true)] {
        // The packets left and were not passed on: they bore no tag.
        let mut pair = good();
        pair.near = end("h0", Some((running, None)), Some(50_000));
        pair.between[0].there.packets = Some(0);
        pair.between[0].back.packets = Some(0);
        let (who, _, why) = failed(judged(&pair, &gave_up(0), &waited(0)));
        assert_eq!(who, "h0");
        assert!(why.contains("not tagged on host h0"), "{why}");
        // They did not leave.
        pair.near.sent_bytes = Some(0);
        let (who, place, why) = failed(judged(&pair, &gave_up(0), &waited(0)));
        assert_eq!((who.as_str(), place.as_str()), ("h0", "roce_h0p0f0"));
        assert!(why.starts_with("nothing left roce_h0p0f0"), "{why}");
        // Nobody knows whether they left.
        pair.near.sent_bytes = None;
        let came = judged(&pair, &gave_up(0), &waited(0));
        assert!(matches!(came, Judgement::Unknown(_)), "{came:?}");
    }
}

#[test]
fn a_cable_is_blamed_where_packets_were_last_seen() {
    // Marked, and not seen at h1.
    let mut pair = good();
    pair.between[0].there.packets = Some(0);
    let (who, place, _) = failed(judged(&pair, &gave_up(0), &waited(0)));
    assert_eq!((who.as_str(), place.as_str()), ("h1", "h0-h1"));
    // Passed on, and not seen at h2.
    let (who, place, _) = failed(judged(&good(), &gave_up(0), &waited(0)));
    assert_eq!((who.as_str(), place.as_str()), ("h2", "h1-h2"));
    // They came, and the answers were passed on and not seen at h0.
    let (who, place, _) = failed(judged(&good(), &gave_up(0), &gave_up(40_000)));
    assert_eq!((who.as_str(), place.as_str()), ("h0", "h0-h1"));
    // They came, and the answers were marked and not seen at h1.
    let mut pair = good();
    pair.between[0].back.packets = Some(0);
    let (who, place, _) = failed(judged(&pair, &gave_up(0), &gave_up(40_000)));
    assert_eq!((who.as_str(), place.as_str()), ("h1", "h1-h2"));
}

/// Everything that can be seen, in every combination: nothing that stopped is proven, nobody is blamed for a rule or a
/// marker that is known to work, and what nobody measured blames nobody.
#[test]
fn every_combination_has_a_verdict_that_follows_from_the_evidence() {
    let markers = [None, Some(false), Some(true)];
    let rules =
        [(None, None), (Some(false), None), (Some(true), Some(0)), (Some(true), Some(NEEDED))];
    let ends = [EndSaid::Nothing, gave_up(0), gave_up(40_000), waited(0), waited(40_000)];
    let mut seen = 0;
    for near_marker in markers {
        for far_marker in markers {
            for there in rules {
                for back in rules {
                    for near in &ends {
                        for far in &ends {
                            let mut pair = good();
                            let count =
                                |running| if running == Some(true) { Some(3) } else { None };
                            pair.near = end("h0", Some((near_marker, count(near_marker))), Some(9));
                            pair.far = end("h2", Some((far_marker, count(far_marker))), Some(9));
                            pair.between[0].there = rule("rule there", there.0, there.1);
                            pair.between[0].back = rule("rule back", back.0, back.1);
                            let came = judged(&pair, near, far);
                            let case = format!(
                                "{near_marker:?} {far_marker:?} {there:?} {back:?} {near:?} {far:?}: {came:?}"
                            );
                            seen += 1;
                            match came {
                                Judgement::Proven => panic!("{case}"),
                                Judgement::Unknown(why) => {
                                    assert!(why.contains("h1: "), "{case}");
                                    assert!(
                                        near_marker != Some(false) && far_marker != Some(false),
                                        "{case}"
                                    );
                                    assert!(
                                        there.0 != Some(false) && back.0 != Some(false),
                                        "{case}"
                                    );
                                }
                                Judgement::Failed { r#where, why, .. } => {
                                    if why.contains("not tagged on host h0") {
                                        assert!(near_marker != Some(true), "{case}");
                                    }
                                    if why.contains("not tagged on host h2") {
                                        assert!(far_marker != Some(true), "{case}");
                                    }
                                    if r#where == "rule there" {
                                        assert_eq!(there.0, Some(false), "{case}");
                                    }
                                    if r#where == "rule back" {
                                        assert_eq!(back.0, Some(false), "{case}");
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert_eq!(seen, 3 * 3 * 4 * 4 * 5 * 5);
}

#[test]
fn between_neighbours_the_cable_is_to_blame() {
    let mut pair = good();
    pair.between.clear();
    pair.near.marker = None;
    pair.far.marker = None;
    assert_eq!(judged(&pair, &EndSaid::Done, &EndSaid::Done), Judgement::Proven);
    let (who, _, why) = failed(judged(&pair, &gave_up(0), &waited(0)));
    assert_eq!(who, "h0");
    assert!(why.contains("status 12"), "{why}");
    let (who, ..) = failed(judged(&pair, &waited(0), &gave_up(10)));
    assert_eq!(who, "h2");
    let wrong = EndSaid::Failed(Fault::new(Step::Compare, "byte 5".to_owned(), Some(5), false));
    assert_eq!(failed(judged(&pair, &waited(0), &wrong)).0, "h2");
    let raise = EndSaid::Failed(Fault::new(Step::Raise, "no route".to_owned(), None, false));
    assert_eq!(failed(judged(&pair, &raise, &EndSaid::Nothing)).1, "h0.p0.0");
    let both = judged(&pair, &EndSaid::Nothing, &EndSaid::Nothing);
    assert!(matches!(both, Judgement::Unknown(_)), "{both:?}");
}
