//! The plan for people.

#![allow(clippy::unwrap_used, reason = "a fixture that fails is a test that fails")]

use cluster::file::ClusterFile;
use cluster::plan::{Plan, PlanOptions};
use cluster::render::{svg, table, text};

fn ring4() -> Plan {
    let file = ClusterFile::parse(include_str!("../fixtures/gb10-ring4/cluster.toml")).unwrap();
    Plan::of(&file, &PlanOptions::default()).unwrap()
}

/// Hosts with two ports of two functions; `cables` as pairs of `host.port`.
fn cabled(hosts: usize, cables: &[(String, String)], switch: bool) -> Plan {
    let mut file = String::from("schema = \"railweave-cluster/1\"\n");
    for host in 0..hosts {
        file.push_str(&format!("[[host]]\nname = \"h{host}\"\n"));
        for port in 0..3 {
            file.push_str(&format!("[[host.port]]\nname = \"p{port}\"\n"));
            for number in 0..2 {
                file.push_str(&format!(
                    "[[host.port.function]]\nmac = \"02:00:00:00:{host:02x}:{port}{number}\"\nnetdev = \"n{port}{number}\"\n"
                ));
            }
        }
    }
    if switch {
        file.push_str("[[switch]]\nname = \"sw\"\n");
    }
    for (a, b) in cables {
        file.push_str(&format!("[[cable]]\na = \"{a}\"\nb = \"{b}\"\n"));
    }
    Plan::of(&ClusterFile::parse(&file).unwrap(), &PlanOptions::default()).unwrap()
}

fn chain(hosts: usize, closed: bool) -> Plan {
    let last = if closed { hosts } else { hosts - 1 };
    let cables: Vec<_> = (0..last)
        .map(|host| (format!("h{host}.p0"), format!("h{}.p1", (host + 1) % hosts)))
        .collect();
    cabled(hosts, &cables, false)
}

fn all() -> Vec<Plan> {
    let mut plans: Vec<Plan> = (3..=8).map(|hosts| chain(hosts, true)).collect();
    plans.extend((2..=8).map(|hosts| chain(hosts, false)));
    plans.push(cabled(1, &[], false));
    plans.push(cabled(
        2,
        &[0, 1].map(|port| (format!("h0.p{port}"), format!("h1.p{port}"))),
        false,
    ));
    let star: Vec<_> = (0..8).map(|host| (format!("h{host}.p0"), "sw".to_owned())).collect();
    plans.push(cabled(8, &star, true));
    let pairs = [(0, 0, 1, 0), (1, 1, 2, 0), (2, 1, 0, 1), (2, 2, 3, 0)];
    plans.push(cabled(
        4,
        &pairs.map(|(a, p, b, q)| (format!("h{a}.p{p}"), format!("h{b}.p{q}"))),
        false,
    ));
    plans
}

#[test]
fn a_ring_is_drawn_as_a_ring() {
    let ring = "\
ring of 4 hosts, 4 cables

┌────────┐              ┌────────┐
│ spark0 │ p0 ══════ p1 │ spark1 │
│ rank 0 │              │ rank 1 │
└────────┘              └────────┘
    ║ p1                    ║ p0
    ║                       ║
    ║ p0                    ║ p1
┌────────┐              ┌────────┐
│ spark3 │ p1 ══════ p0 │ spark2 │
│ rank 3 │              │ rank 2 │
└────────┘              └────────┘
";
    let drawn = text(&ring4());
    assert!(drawn.starts_with(ring), "{drawn}");
}

#[test]
fn drawings_name_every_host_and_fit_a_terminal() {
    for plan in all() {
        let drawn = text(&plan);
        for rank in &plan.ranks {
            assert!(drawn.contains(&rank.host), "{drawn}");
        }
        assert!(drawn.lines().all(|line| line.chars().count() <= 110), "{drawn}");
        if std::env::var("RAILWEAVE_SHOW").is_ok() {
            println!("{drawn}");
        }
    }
}

#[test]
fn the_table_tells_both_ends_of_each_rail_and_every_load() {
    let plan = ring4();
    let table = table(&plan);
    assert!(table.lines().all(|line| line.chars().count() <= 110), "{table}");
    let line = "spark0  spark2  forwarded  spark1  rocep1s0f0    10.10.0.1  rocep1s0f1    10.10.2.2  2     88b5";
    assert!(table.lines().any(|found| found == line), "{table}");
    let rails = plan.paths.iter().map(|path| path.rails.len()).sum::<usize>();
    let first = table.lines().position(|line| line.starts_with("FROM ")).unwrap();
    assert_eq!(table.lines().skip(first + 1).take_while(|line| !line.is_empty()).count(), rails);
    let loads = table.lines().skip_while(|line| !line.starts_with("CABLE ")).skip(1);
    assert_eq!(loads.take_while(|line| !line.is_empty()).count(), plan.loads.len());
}

#[test]
fn reasons_and_choices_stand_below_the_table() {
    let mut plan = ring4();
    plan.paths[0].chosen = true;
    plan.paths[1].instead = Some("spark1 marks nothing".to_owned());
    let table = table(&plan);
    assert!(table.contains("note: spark0 > spark2: spark1 marks nothing\n"), "{table}");
    assert!(table.contains("note: * chosen by a route of the owner's\n"), "{table}");
}

/// Checks tags, attributes and entities of an XML text, and returns its text.
fn well_formed(xml: &str) -> String {
    let (mut open, mut content, mut rest) = (Vec::new(), String::new(), xml);
    while let Some(start) = rest.find('<') {
        content.push_str(&rest[..start]);
        let end = rest[start..].find('>').expect("a tag ends") + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.to_owned()), "closes what is open");
            continue;
        }
        let (body, alone) = tag.strip_suffix('/').map_or((tag, false), |body| (body, true));
        assert_eq!(body.matches('"').count() % 2, 0, "{body}");
        let name = body.split_whitespace().next().unwrap();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        if !alone {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for part in content.split('&').skip(1) {
        assert!(
            ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|known| part.starts_with(known)),
            "{part}"
        );
    }
    content
}

#[test]
fn drawings_are_well_formed_and_the_same_each_time() {
    for plan in all() {
        let drawn = svg(&plan);
        assert_eq!(drawn, svg(&plan));
        let content = well_formed(&drawn);
        for rank in &plan.ranks {
            assert!(content.contains(&rank.host));
        }
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
    }
}

#[test]
fn names_cannot_break_out_of_the_drawing() {
    let mut plan = ring4();
    plan.ranks[0].host = "<script>\"&'\u{1}".to_owned();
    plan.cables[0].name = "</title><b>".to_owned();
    let drawn = svg(&plan);
    well_formed(&drawn);
    assert!(!drawn.contains("<script>") && !drawn.contains("<b>") && !drawn.contains('\u{1}'));
    assert!(drawn.contains("&lt;script&gt;&quot;&amp;&#39;\u{fffd}"));
}

#[test]
fn the_drawing_in_the_docs_is_the_one_that_is_drawn() {
    let drawn = svg(&ring4());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/assets/ring4.svg");
    if std::env::var("RAILWEAVE_WRITE_DOCS").is_ok() {
        std::fs::write(path, &drawn).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        drawn,
        "run with RAILWEAVE_WRITE_DOCS=1 to write it anew"
    );
}
