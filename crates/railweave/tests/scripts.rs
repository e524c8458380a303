//! The scripts a new user runs, over fake ranks and without a network.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(name)
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("railweave-script-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn quickstart(folder: &Folder, arguments: &[&str]) -> Command {
    let model = folder.0.join("fake.gguf");
    fs::write(&model, "fake").unwrap();
    let mut command = Command::new(script("quickstart"));
    command
        .args(arguments)
        .env("RW_BINARY", common::program())
        .env("RW_MODEL", model)
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The processes that have this text in their environment.
fn processes_with(marker: &str) -> Vec<String> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let environment = fs::read(path.join("environ")).ok()?;
            String::from_utf8_lossy(&environment)
                .contains(marker)
                .then(|| path.display().to_string())
        })
        .collect()
}

#[test]
fn quickstart_once_answers_and_leaves_nothing() {
    let folder = Folder::new("once");
    let marker = format!("once-{}", std::process::id());
    let output =
        quickstart(&folder, &["--once", "--ranks", "3"]).env("MARK", &marker).output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("> What is the capital of France?\nParis."), "{text}");
    assert!(text.contains("tokens") && text.contains("API") && text.contains("rank 2"), "{text}");
    assert_eq!(processes_with(&marker), Vec::<String>::new());
}

#[test]
fn quickstart_serves_until_it_is_interrupted() {
    let folder = Folder::new("serve");
    let marker = format!("serve-{}", std::process::id());
    let mut child = quickstart(&folder, &["--ranks", "2"]).env("MARK", &marker).spawn().unwrap();
    let pid = child.id().to_string();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut seen = String::new();
    while !seen.contains("Ctrl-C stops.") {
        let read = std::io::BufRead::read_line(&mut output, &mut seen).unwrap();
        assert!(read > 0, "it ended early: {seen}");
    }
    assert!(processes_with(&marker).len() >= 4, "script, supervisor and two ranks");
    let begun = Instant::now();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert_eq!(processes_with(&marker), Vec::<String>::new());
}

#[test]
fn quickstart_says_why_a_server_did_not_start() {
    let folder = Folder::new("broken");
    let output = quickstart(&folder, &["--once", "--topology", "rong"]).output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("nearest is \"ring\"") && text.contains("before it was ready"), "{text}");
    for arguments in [&["--ranks", "9"][..], &["--frob"], &["--question"]] {
        let output = quickstart(&folder, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

fn fetch(folder: &Folder) -> Output {
    Command::new(script("fetch-model"))
        .args(["--to", folder.0.to_str().unwrap()])
        // pip then looks nowhere, as without a network.
        .env("PIP_NO_INDEX", "1")
        .env("PIP_CONFIG_FILE", "/dev/null")
        .env_remove("PIP_FIND_LINKS")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn fetch_model_without_a_network_says_so_and_leaves_no_model() {
    let folder = Folder::new("offline");
    let output = fetch(&folder);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("could not fetch") && text.contains("network"), "{text}");
    assert!(!folder.0.join("SmolLM2-135M-Instruct.Q4_1.gguf").exists());
}

#[test]
fn fetch_model_says_what_is_wrong_with_a_damaged_file() {
    let folder = Folder::new("damaged");
    fs::write(folder.0.join("SmolLM2-135M-Instruct.Q4_1.gguf"), "short").unwrap();
    let text = text(&fetch(&folder));
    assert!(text.contains("expected 98362432 bytes, found 5"), "{text}");
}
