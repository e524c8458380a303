//! The text of `/metrics`: literally, and against the format's rules.

// The helpers below panic as the tests they serve do.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use observe::{
    Cause, Health, Identity, Metrics, Operation, Outcome, PathKind, Phase, RdmaCount, RdmaPort,
    Schedule, VerdictRecord,
};

struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

struct Family {
    kind: String,
    samples: Vec<Sample>,
}

/// A strict reader of the text format: every sample belongs to the family declared just before
/// it, every family is declared once, with HELP then TYPE, and has at least one sample.
fn strict(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'));
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut helped = None;
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(help.ends_with('.') && help.len() > 5, "{line}");
            assert!(helped.replace(name.to_owned()).is_none(), "two HELP in a row: {line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(helped.take().as_deref(), Some(name), "HELP goes before TYPE");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let family = Family { kind: kind.into(), samples: Vec::new() };
            assert!(families.insert(name.into(), family).is_none(), "declared twice: {name}");
            current = name.to_owned();
        } else {
            assert!(!line.starts_with('#') && !line.is_empty(), "odd line {line:?}");
            let sample = sample(line);
            let family = families.get_mut(&current).expect("a declared family");
            let suffix = sample.name.strip_prefix(current.as_str()).expect("its own family");
            let allowed: &[&str] =
                if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(allowed.contains(&suffix), "{line}");
            family.samples.push(sample);
        }
    }
    for (name, family) in &families {
        check_family(name, family);
    }
    families
}

fn sample(line: &str) -> Sample {
    let open = line.find('{').expect("labels");
    let close = line.rfind('}').expect("labels");
    let mut labels = BTreeMap::new();
    for pair in line[open + 1..close].split(',') {
        let (key, value) = pair.split_once('=').expect("key=value");
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).expect("quotes");
        assert!(labels.insert(key.to_owned(), value.to_owned()).is_none(), "{line}");
    }
    let value = line[close + 1..].strip_prefix(' ').expect("one space").parse().expect("a number");
    Sample { name: line[..open].to_owned(), labels, value }
}

fn check_family(name: &str, family: &Family) {
    assert!(name.starts_with("railweave_"), "{name}");
    assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
    assert_eq!(name.ends_with("_total"), family.kind == "counter", "{name}");
    assert!(!family.samples.is_empty(), "{name} has no sample");
    for unit in ["_ms", "_us", "_ns", "_milliseconds", "_microseconds", "_kb", "_mb"] {
        assert!(!name.contains(&format!("{unit}_")) && !name.ends_with(unit), "base units: {name}");
    }
    if family.kind == "histogram" {
        assert!(name.ends_with("_seconds"), "{name}");
    }
    let mut seen = std::collections::BTreeSet::new();
    // By label set without `le`: the last bucket's bound and count, and the count.
    let mut buckets: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for sample in &family.samples {
        assert_eq!(sample.labels["rank"], "1");
        assert_eq!(sample.labels["host"], "spark-b");
        assert!(seen.insert((sample.name.clone(), sample.labels.clone())), "twice in {name}");
        let mut labels = sample.labels.clone();
        let le = labels.remove("le");
        let key = format!("{labels:?}");
        if sample.name.ends_with("_bucket") {
            let le: f64 = le.expect("le").replace("+Inf", "inf").parse().unwrap();
            let (bound, count) = buckets.insert(key, (le, sample.value)).unwrap_or((0.0, 0.0));
            assert!(le > bound && sample.value >= count, "buckets rise in {name}");
        } else if family.kind == "histogram" && sample.name.ends_with("_count") {
            assert_eq!(buckets[&key], (f64::INFINITY, sample.value), "{name}");
        } else {
            assert!(le.is_none(), "{name}");
        }
    }
}

/// Without the lines that differ from run to run.
fn steady(text: &str) -> String {
    let changing = ["railweave_process_", "railweave_wait_age_seconds{", "railweave_build_info{"];
    let mut kept: String = text
        .lines()
        .filter(|l| !changing.iter().any(|c| l.contains(c)))
        .map(|l| l.to_owned() + "\n")
        .collect();
    kept = kept.replace("rank=\"1\",host=\"spark-b\"", "R");
    kept
}

fn new() -> Metrics {
    Metrics::new(&Identity::new(1, "spark-b"))
}

#[test]
fn a_fresh_rank_shows_only_what_is_measured() {
    let metrics = new();
    let text = metrics.encode();
    let names: Vec<_> = strict(&text).into_keys().collect();
    assert_eq!(
        names,
        [
            "railweave_build_info",
            "railweave_process_cpu_seconds_total",
            "railweave_process_open_fds",
            "railweave_process_resident_memory_bytes",
            "railweave_process_threads",
        ]
    );
    metrics.serves_requests();
    let families = strict(&metrics.encode());
    assert_eq!(families["railweave_generated_tokens_total"].samples[0].value, 0.0);
    assert_eq!(families["railweave_prefill_tokens_total"].samples[0].value, 0.0);
}

#[test]
fn the_whole_text() {
    let metrics = new();
    metrics.collective(Operation::AllReduce, 4096, Schedule::OneShot, Duration::from_micros(11));
    metrics.collective(Operation::AllReduce, 4096, Schedule::OneShot, Duration::from_secs(300));
    metrics.collective(Operation::Barrier, 0, Schedule::Mapped, Duration::from_nanos(800));
    metrics.position(3, 481);
    let since = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
    metrics.wait_begin(2, Phase::Rows, since);
    metrics.stall(Cause::PeerStalled);
    metrics.stall(Cause::PeerStalled);
    metrics.recovery();
    metrics.path_bytes(PathKind::Direct, 0, 1000);
    metrics.path_bytes(PathKind::Direct, 0, 24);
    metrics.path_bytes(PathKind::Relayed, 1, 7);
    metrics.path_bytes(PathKind::Forwarded, 99, 1);
    metrics.rail_down(2, 1);
    metrics.relay_queue_depth(0);
    let of_port =
        |counter: &'static str, group, value| RdmaCount { counter: counter.into(), group, value };
    metrics.rdma(vec![
        RdmaPort {
            device: "n0r".to_owned(),
            port: 1,
            counts: vec![of_port("sent_pkts", "progress", 9), of_port("send_err", "fatal", 0)],
            not_measured: vec!["congestion"],
        },
        RdmaPort {
            device: "gone".to_owned(),
            port: 2,
            counts: Vec::new(),
            not_measured: vec!["loss"],
        },
    ]);
    metrics.requests(2, 5);
    metrics.request_ended(Outcome::Finished);
    metrics.request_ended(Outcome::Rejected);
    metrics.prefill_tokens(12);
    metrics.generated_tokens(64);
    metrics.time_to_first_token(Duration::from_millis(40));
    metrics.time_per_token(Duration::from_millis(3));
    metrics.kv_cache(100, 1 << 30);
    let text = metrics.encode();
    let families = strict(&text);
    // What the literal text leaves out: a time since the test began.
    let wait = &families["railweave_wait_age_seconds"];
    // `Metrics` began after `since`: its clock starts at the wait's begin at the earliest.
    assert!((0.0..60.0).contains(&wait.samples[0].value));
    assert_eq!(
        (&*wait.samples[0].labels["peer"], &*wait.samples[0].labels["phase"]),
        ("2", "rows")
    );
    let steady = steady(&text);
    let expected = include_str!("metrics.txt");
    assert!(steady == expected, "not as tests/metrics.txt; if that is meant, write:\n{steady}");

    metrics.rdma(Vec::new());
    assert!(!metrics.encode().contains("rdma"), "no devices, no counters");
    metrics.wait_end();
    assert!(!metrics.encode().contains("wait_age"), "no wait, no age");
}

#[test]
fn ports_and_their_counters_stay_bounded() {
    let counts: Vec<_> = (0..200)
        .map(|i| RdmaCount { counter: format!("c{i}").into(), group: "loss", value: i })
        .collect();
    let port = |i: u8| RdmaPort {
        device: format!("d{i}"),
        port: 1,
        counts: counts.clone(),
        not_measured: Vec::new(),
    };
    let metrics = new();
    metrics.rdma((0..40).map(port).collect());
    let families = strict(&metrics.encode());
    assert_eq!(families["railweave_rdma_counter_total"].samples.len(), 32 * 128);
}

#[test]
fn health_shares_the_position_and_counts_recoveries() {
    let identity = Identity::new(1, "spark-b");
    let metrics = Metrics::new(&identity);
    let health = Health::new(identity, &metrics);
    health.set_position(9, 10);
    health.set_running(4);
    health.recovered(10, Instant::now());
    let families = strict(&metrics.encode());
    let value = |name: &str| families[name].samples[0].value;
    assert_eq!(value("railweave_epoch"), 10.0);
    assert_eq!(value("railweave_sequence"), 10.0);
    assert_eq!(value("railweave_requests_running"), 4.0);
    assert_eq!(value("railweave_recoveries_total"), 1.0);
    let _: Option<VerdictRecord> = health.progress(Instant::now()).verdict;
}

#[test]
fn a_hostile_host_name_cannot_forge_lines() {
    let metrics = Metrics::new(&Identity::new(1, "a\"} 1\nforged 2"));
    metrics.position(1, 1);
    assert!(metrics.encode().lines().all(|line| !line.starts_with("forged")));
}
