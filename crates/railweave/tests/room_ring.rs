//! The machine room's commands, over the recorded ring of four hosts: what an owner types, and the exit codes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const HOSTS: [&str; 4] = ["spark0", "spark1", "spark2", "spark3"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cluster/fixtures").canonicalize().unwrap()
}

/// A folder with the ring's recordings and its cluster file; it goes when dropped.
struct Lab(PathBuf);

impl Lab {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("rw-room-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let lab = Self(folder);
        let ring = fixtures().join("gb10-ring4");
        for host in HOSTS {
            symlink(ring.join(host), lab.0.join(host)).unwrap();
        }
        let file = fs::read_to_string(ring.join("cluster.toml")).unwrap();
        let file = file.replace("\"ssh:spark", "\"recorded:spark");
        fs::write(lab.0.join("cluster.toml"), file).unwrap();
        lab
    }

    /// Gives a host a recording of its own, to change it.
    fn own(&self, host: &str) -> PathBuf {
        let folder = self.0.join(host);
        fs::remove_file(&folder).unwrap();
        self.lay(&fixtures().join("gb10-ring4").join(host), &folder);
        folder
    }

    /// Lays the state of a fault over the healthy one.
    fn with_fault(self, code: &str) -> Self {
        for host in HOSTS {
            let from = fixtures().join("faults").join(code).join(host);
            if from.exists() {
                self.lay(&from, &self.own(host));
            }
        }
        self
    }

    fn lay(&self, from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let target = to.join(&name);
            if entry.file_type().unwrap().is_dir() {
                self.lay(&entry.path(), &target);
            } else if let Some(gone) = name.strip_suffix(".gone") {
                fs::remove_file(to.join(gone)).unwrap();
            } else {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_railweave"));
        command.args(arguments).current_dir(&self.0).stdin(Stdio::null()).env("LANG", "C.UTF-8");
        command
    }

    /// Exit code, standard output, standard error.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command(arguments).output().unwrap();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    fn json(&self, code: i32, arguments: &[&str]) -> Value {
        let (ended, out, error) = self.run(arguments);
        assert_eq!(ended, code, "{arguments:?}: {out}{error}");
        serde_json::from_str(&out).unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn codes(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap();
    let bad = findings.iter().filter(|finding| finding["level"] != "note");
    let mut codes: Vec<_> = bad.map(|finding| finding["code"].as_str().unwrap()).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[test]
fn a_plan_is_a_table_a_document_and_a_drawing() {
    let lab = Lab::new("plan");
    let (code, text, error) = lab.run(&["plan"]);
    assert_eq!(code, 0, "{error}");
    assert!(HOSTS.iter().all(|host| text.contains(host)), "{text}");

    let plan = lab.json(0, &["plan", "--json"]);
    assert_eq!(plan["schema"], "railweave-plan/1");
    assert_eq!(plan["paths"].as_array().unwrap().len(), 12);
    let kind = |plan: &Value, from: u64, to: u64| {
        let paths = plan["paths"].as_array().unwrap();
        let path = paths.iter().find(|path| path["from"] == from && path["to"] == to).unwrap();
        path["kind"].as_str().unwrap().to_owned()
    };
    assert_eq!(kind(&plan, 0, 1), "direct");
    assert_eq!(kind(&plan, 0, 2), "forwarded");
    let off = lab.json(0, &["plan", "--json", "--forward", "off"]);
    assert_eq!(kind(&off, 0, 2), "relayed");
    assert_ne!(off["digest"], plan["digest"]);

    let (code, svg, _) = lab.run(&["plan", "--svg", "-"]);
    assert!(
        code == 0 && svg.trim_start().starts_with("<svg") && svg.trim_end().ends_with("</svg>")
    );
    assert_eq!(lab.run(&["plan", "--svg", "ring.svg"]).0, 0);
    assert_eq!(fs::read_to_string(lab.0.join("ring.svg")).unwrap(), svg);
}

#[test]
fn what_is_wrong_with_a_file_or_a_flag_exits_with_2() {
    let lab = Lab::new("usage");
    for (arguments, expected) in [
        (vec!["plan", "none.toml"], "railweave discover"),
        (vec!["check", "none.toml"], "railweave discover"),
        (vec!["plan", "--forward", "maybe"], "off, auto, required"),
        (vec!["plan", "--route", "spark0 spark2"], "FROM>TO"),
        (vec!["plan", "--route", "spark0>spark9"], "spark9"),
        (vec!["apply", "--apply", "--down"], "cannot be used with"),
        (vec!["apply", "--host", "spark9"], "spark0, spark1"),
        (vec!["env", "--engine", "gloo"], "nccl"),
        (vec!["env", "--engine", "nccl", "--rank", "4"], "0 to 3"),
        (vec!["discover", "netns:a/b"], "no way to reach"),
        (vec!["check", "--before", "nowhere"], "--bundle"),
        (vec!["check", "--bundle", "spark0"], "not empty"),
    ] {
        let (code, _, error) = lab.run(&arguments);
        assert_eq!(code, 2, "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    fs::write(lab.0.join("broken.toml"), "schema = \"railweave-cluster/1\"\nforwad = \"off\"\n")
        .unwrap();
    let (code, _, error) = lab.run(&["plan", "broken.toml"]);
    assert!(code == 2 && error.contains("broken.toml") && error.contains("forward"), "{error}");
}

#[test]
fn a_healthy_ring_checks_clean_and_faults_have_codes() {
    let lab = Lab::new("check");
    let report = lab.json(0, &["check", "--json"]);
    assert_eq!(codes(&report), [] as [&str; 0], "{report:#}");
    let (code, text, _) = lab.run(&["check"]);
    assert!(code == 0 && !text.contains('\u{1b}'), "{text}");

    let lab = Lab::new("fault").with_fault("RW-MTU-01");
    let report = lab.json(1, &["check", "--json"]);
    assert_eq!(codes(&report), ["RW-MTU-01"], "{report:#}");
    let (code, text, _) = lab.run(&["check"]);
    assert!(code == 1 && text.contains("RW-MTU-01") && text.contains("docs/codes/RW-MTU-01.md"));
    let other = lab.json(0, &["check", "--json", "--host", "spark3"]);
    assert_eq!(codes(&other), [] as [&str; 0]);

    let lab = Lab::new("drive").with_fault("RW-DSK-01");
    let report = lab.json(1, &["check", "--json", "--disk", "--reads-per-second", "1000000"]);
    assert!(codes(&report).contains(&"RW-DSK-01"), "{report:#}");
    assert_eq!(codes(&lab.json(0, &["check", "--json", "--disk"])), [] as [&str; 0]);
}

#[test]
fn a_host_that_cannot_be_read_leaves_a_check_undecided() {
    let lab = Lab::new("unread");
    fs::remove_file(lab.0.join("spark2")).unwrap();
    let report = lab.json(2, &["check", "--json"]);
    assert_eq!(codes(&report), ["RW-RCH-01"], "{report:#}");
}

#[test]
fn a_bundle_checks_as_the_hosts_did() {
    let lab = Lab::new("bundle").with_fault("RW-MTU-01");
    let (code, _, error) = lab.run(&["check", "--bundle", "kept"]);
    assert_eq!(code, 1, "{error}");
    let report = lab.json(1, &["check", "kept/cluster.toml", "--json"]);
    assert_eq!(codes(&report), ["RW-MTU-01"]);
    let report = lab.json(1, &["check", "--before", "kept", "--json"]);
    assert_eq!(codes(&report), ["RW-MTU-01"], "nothing changed since: {report:#}");
}

#[test]
fn what_is_in_place_needs_no_step_and_what_is_gone_is_made_again() {
    let lab = Lab::new("apply");
    let (code, text, error) = lab.run(&["apply", "--diff"]);
    assert_eq!(code, 0, "{error}");
    assert!(HOSTS.iter().all(|host| text.contains(&format!("{host}: in place"))), "{text}");
    let (code, text, _) = lab.run(&["apply", "--apply"]);
    assert!(code == 0 && text.contains("spark3: in place already"), "{text}");

    fs::write(lab.own("spark1").join("tools/ip-route.out"), "[]").unwrap();
    let (code, script, error) = lab.run(&["apply", "--host", "spark1"]);
    assert_eq!(code, 0, "{error}");
    assert!(script.starts_with("#!/bin/sh\n") && script.contains("\nip route "), "{script}");
    assert_eq!(lab.run(&["apply", "-o", "scripts"]).0, 0);
    assert_eq!(fs::read_to_string(lab.0.join("scripts/spark1.sh")).unwrap(), script);

    // A recording cannot be changed: the hosts before it are told, and those after it.
    let (code, out, error) = lab.run(&["apply", "--apply", "--yes-live"]);
    assert_eq!(code, 1, "{out}{error}");
    assert!(out.contains("spark0: in place already"), "{out}");
    assert!(
        error.contains("railweave: spark1 is a recording") && error.contains("spark2, spark3"),
        "{error}"
    );
}

#[test]
fn what_is_not_ours_is_refused_by_name_and_nothing_is_done() {
    let lab = Lab::new("refuse").with_fault("RW-RTE-02");
    let (code, out, error) = lab.run(&["apply", "--apply"]);
    let (diff, _, _) = lab.run(&["apply", "--diff"]);
    assert_eq!((code, diff), (1, 1), "{out}{error}");
    assert!(out.is_empty() && error.contains("nothing was changed on any host"), "{error}");
}

#[test]
fn a_unit_names_its_host_and_file() {
    let lab = Lab::new("unit");
    let (code, unit, error) = lab.run(&["apply", "--unit", "--host", "spark2"]);
    assert_eq!(code, 0, "{error}");
    let file = lab.0.join("cluster.toml");
    assert!(unit.contains("--host spark2") && unit.contains(file.to_str().unwrap()), "{unit}");
}

#[test]
fn markers_that_are_missing_turn_pairs_into_relays_or_an_error() {
    let lab = Lab::new("markers");
    let live = lab.json(0, &["plan", "--live", "--json"]);
    let kinds = |plan: &Value, kind: &str| {
        let paths = plan["paths"].as_array().unwrap();
        paths.iter().filter(|path| path["kind"] == kind).count()
    };
    assert_eq!((kinds(&live, "forwarded"), kinds(&live, "relayed")), (4, 0));
    fs::write(lab.own("spark0").join("tools/markers.out"), "").unwrap();
    let live = lab.json(0, &["plan", "--live", "--json"]);
    assert_eq!((kinds(&live, "forwarded"), kinds(&live, "relayed")), (2, 2));
    let (code, _, error) = lab.run(&["plan", "--live", "--forward", "required"]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("spark0–spark2") && !error.contains("spark1–spark3"), "{error}");
}

#[test]
fn every_engine_has_an_environment() {
    let lab = Lab::new("env");
    for engine in ["nccl", "b12x", "sircl", "sparknet"] {
        let (code, text, error) = lab.run(&["env", "--engine", engine, "--rank", "1"]);
        assert_eq!(code, 0, "{engine}: {error}");
        assert!(text.lines().any(|line| line.starts_with("export ")), "{engine}: {text}");
        let document =
            lab.json(0, &["env", "--engine", engine, "--host", "spark1", "--format", "json"]);
        assert_eq!((&document["rank"], &document["host"]), (&1.into(), &"spark1".into()));
        for (name, value) in document["environment"].as_object().unwrap() {
            assert!(text.contains(&format!("export {name}=")), "{name}");
            assert!(text.contains(value.as_str().unwrap()), "{name}");
        }
    }
    let (code, text, _) =
        lab.run(&["env", "--engine", "nccl", "--rank", "0", "--format", "dotenv"]);
    assert!(code == 0 && text.contains("\nNCCL_IB_HCA="), "{text}");
    // No host of the file is this machine.
    let (code, _, error) = lab.run(&["env", "--engine", "nccl"]);
    assert!(code == 2 && error.contains("--rank"), "{error}");
}

#[test]
fn hosts_become_a_cluster_file_with_the_same_plan() {
    let lab = Lab::new("discover");
    let hosts: Vec<_> = HOSTS.iter().map(|host| format!("recorded:{host}")).collect();
    let with = |more: &[&str]| {
        let mut arguments = vec!["discover"];
        arguments.extend(hosts.iter().map(String::as_str));
        arguments.extend(more);
        lab.run(&arguments)
    };
    let (code, _, error) = with(&[]);
    assert!(code == 2 && error.contains("--force"), "{error}");
    let (code, out, error) = with(&["-o", "found.toml"]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("spark3") && out.contains("wrote found.toml"), "{out}");
    let shape = |file: &str| {
        let plan = lab.json(0, &["plan", file, "--json", "--forward", "auto"]);
        let kinds: Vec<_> =
            plan["paths"].as_array().unwrap().iter().map(|path| path["kind"].clone()).collect();
        (plan["shape"].clone(), kinds)
    };
    assert_eq!(shape("found.toml"), shape("cluster.toml"));
    assert_eq!(with(&["-o", "found.toml", "--force", "--json"]).0, 0);
    let (code, printed, _) = with(&["-o", "-"]);
    assert!(code == 0 && printed == fs::read_to_string(lab.0.join("found.toml")).unwrap());

    let (code, _, error) =
        lab.run(&["discover", "recorded:spark0", "recorded:gone", "-o", "none.toml"]);
    assert!(code == 1 && error.contains("gone") && !lab.0.join("none.toml").exists(), "{error}");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let lab = Lab::new("pipe");
    let mut child = lab
        .command(&["plan", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && error.is_empty(), "{error}");
}

/// Waits until something holds, at most 10 s.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "waited for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_signal_ends_what_leads_to_the_hosts_and_nothing_is_written() {
    let lab = Lab::new("signal");
    // Stands in for an SSH that hangs, with a child of its own.
    let ssh = lab.0.join("bin/ssh");
    fs::create_dir_all(lab.0.join("bin")).unwrap();
    fs::write(&ssh, "#!/bin/sh\nsleep 100 &\necho $! $$ > pids.new\nmv pids.new pids\nwait\n")
        .unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", lab.0.join("bin").display(), std::env::var("PATH").unwrap());
    let mut child = lab
        .command(&["discover", "far-away", "-o", "far.toml"])
        .env("PATH", path)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the way to begin", || lab.0.join("pids").exists());
    let pids = fs::read_to_string(lab.0.join("pids")).unwrap();
    assert!(
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success()
    );
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let runs = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // One that nobody waited for yet has ended all the same.
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| !rest.trim().is_empty() && !rest.starts_with(" Z"))
    };
    wait_until("what was started to end", || !pids.split_whitespace().any(runs));
    assert!(!lab.0.join("far.toml").exists());
}
