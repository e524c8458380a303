use super::*;

fn finding(code: &'static str, level: Level) -> Finding {
    Finding {
        code,
        level,
        section: Section::Links,
        host: Some("spark0".to_owned()),
        port: Some("p0".to_owned()),
        message: "the MTU differs".to_owned(),
        evidence: vec![
            "spark0 enp1s0f0np0: 9000".to_owned(),
            "spark1 enp1s0f1np1: 1500\u{1b}[2J".to_owned(),
        ],
        fix: Some("ip link set enp1s0f1np1 mtu 9000".to_owned()),
    }
}

fn unmeasured(essential: bool) -> Unmeasured {
    Unmeasured {
        section: Section::Routes,
        host: Some("spark2".to_owned()),
        what: "routes".to_owned(),
        why: "ip: not found".to_owned(),
        essential,
    }
}

#[test]
fn exit_codes_say_clean_found_or_undecided() {
    let report = |findings, unmeasured| Report::new(findings, unmeasured, Vec::new());
    assert_eq!(report(vec![], vec![]).exit_code(), 0);
    assert_eq!(report(vec![finding("RW-LNK-01", Level::Note)], vec![]).exit_code(), 0);
    assert_eq!(report(vec![finding("RW-LNK-01", Level::Warning)], vec![]).exit_code(), 1);
    assert_eq!(report(vec![], vec![unmeasured(false)]).exit_code(), 0);
    assert_eq!(report(vec![], vec![unmeasured(true)]).exit_code(), 2);
    assert_eq!(
        report(vec![finding(UNREACHABLE.id, Level::Error)], vec![unmeasured(true)]).exit_code(),
        2
    );
    let both = vec![finding(UNREACHABLE.id, Level::Error), finding("RW-LNK-01", Level::Error)];
    assert_eq!(report(both, vec![unmeasured(true)]).exit_code(), 1);
}

#[test]
fn the_text_has_a_mark_a_code_evidence_a_cure_and_a_page() {
    let report = Report::new(
        vec![finding("RW-MTU-01", Level::Error), finding("RW-LNK-01", Level::Warning)],
        vec![unmeasured(true)],
        vec![LookedAt {
            section: Section::Cables,
            what: "cables: as the file says".to_owned(),
            count: 4,
        }],
    );
    let expected = "\
cables
------
√ 4 cables: as the file says

links
-----
× [RW-MTU-01] (spark0/p0) the MTU differs
    evidence: spark0 enp1s0f0np0: 9000
              spark1 enp1s0f1np1: 1500?[2J
    fix:      ip link set enp1s0f1np1 mtu 9000
    docs:     docs/codes/RW-MTU-01.md
‼ [RW-LNK-01] (spark0/p0) the MTU differs
    evidence: spark0 enp1s0f0np0: 9000
              spark1 enp1s0f1np1: 1500?[2J
    fix:      ip link set enp1s0f1np1 mtu 9000
    docs:     docs/codes/RW-LNK-01.md

routes
------
? (spark2) routes: not measured: ip: not found

1 error, 1 warning, 1 not measured
";
    assert_eq!(report.text(TextStyle::default()), expected);
    let ascii = report.text(TextStyle { ascii: true, colour: false });
    assert_eq!(ascii.lines().nth(6), Some("xx [RW-MTU-01] (spark0/p0) the MTU differs"));
}

#[test]
fn colours_are_there_only_if_asked_for() {
    let report = Report::new(vec![finding("RW-MTU-01", Level::Error)], vec![], vec![]);
    assert!(!report.text(TextStyle::default()).contains('\u{1b}'));
    let coloured = report.text(TextStyle { ascii: false, colour: true });
    assert!(coloured.contains("\u{1b}[31m×\u{1b}[0m [RW-MTU-01]"), "{coloured}");
    assert!(report.text(TextStyle { ascii: true, colour: false }).is_ascii());
}

#[test]
fn the_json_names_its_schema_and_counts() {
    let report =
        Report::new(vec![finding("RW-MTU-01", Level::Error)], vec![unmeasured(true)], vec![]);
    let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
    assert_eq!(json["schema"], "railweave-check/1");
    assert_eq!(json["errors"], 1);
    assert_eq!(json["not_measured"], 1);
    assert_eq!(json["exit_code"], 1);
    assert_eq!(json["findings"][0]["code"], "RW-MTU-01");
    assert_eq!(json["findings"][0]["level"], "error");
    assert_eq!(json["unmeasured"][0]["essential"], true);
}

#[test]
fn the_summary_counts_in_words() {
    let report = |findings, unmeasured| Report::new(findings, unmeasured, Vec::new()).summary();
    assert_eq!(report(vec![], vec![]), "no findings");
    assert_eq!(
        report(vec![finding("RW-MTU-01", Level::Error); 3], vec![unmeasured(true); 2]),
        "3 errors, 2 not measured"
    );
    assert_eq!(report(vec![finding("RW-MTU-01", Level::Warning)], vec![]), "1 warning");
}
