//! The complete script of each host of the GB10 ring and of the lab's, for both kinds of tag, as files; and the page that explains them.
//!
//! `RAILWEAVE_GOLDEN=write cargo test -p railweave-cluster --test rules_core golden` writes them anew.

use std::path::{Path, PathBuf};

use cluster::file::TagKind;
use cluster::inventory::{HostState, Recording};
use cluster::rules::{PROTOCOL, script, unit};

use super::simulator::{bare, gb10, look, plan, soft_lab};

const KINDS: [(TagKind, &str); 2] =
    [(TagKind::Destination, "destination"), (TagKind::SourcePort, "source-port")];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn page() -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").canonicalize().unwrap();
    let page = fixtures.join("../../../docs/understand/forwarding-rules.md");
    std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

fn equals(name: &str, text: &str) {
    let path = golden(name);
    if std::env::var_os("RAILWEAVE_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(kept, text, "{}", path.display());
}

fn scripts() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (file, marker) in [(gb10(), ""), (soft_lab(), "tc-")] {
        for (kind, name) in KINDS {
            let plan = plan(&file, kind);
            for (rank, host) in file.hosts.iter().enumerate() {
                let comparison = look(&plan, rank, &bare(&file, rank));
                let changes = comparison.ready().unwrap();
                all.push((format!("apply-{marker}{name}-{}.sh", host.name), script(changes)));
            }
        }
    }
    all
}

#[test]
fn the_scripts_of_the_rings_are_those_in_the_files() {
    for (name, text) in scripts() {
        equals(&name, &text);
    }
}

#[test]
fn the_unit_is_that_in_the_file() {
    let text = unit("/usr/local/bin/railweave", "/etc/railweave/cluster.toml", "spark1", &[], &[])
        .unwrap();
    equals("railweave-apply.service", &text);
}

#[test]
fn the_page_quotes_steps_of_the_scripts_word_for_word() {
    let page = page();
    let scripts = scripts();
    let mut quoted = 0;
    for block in page.split("```sh\n").skip(1) {
        let block = block.split("```").next().unwrap();
        assert!(
            scripts.iter().any(|(_, text)| text.contains(block)),
            "no script has this block of the page:\n{block}"
        );
        quoted += block.lines().filter(|line| line.starts_with("at=")).count();
    }
    let (_, whole) =
        scripts.iter().find(|(name, _)| name == "apply-destination-spark1.sh").unwrap();
    let steps = whole.lines().filter(|line| line.starts_with("at=") && *line != "at=0").count();
    assert!(quoted > steps, "the page quotes all {steps} steps of one script and more: {quoted}");
    assert!(page.contains(&format!("protocol number {PROTOCOL},")));
}

#[test]
fn the_recorded_ring_has_nothing_to_change() {
    let file = gb10();
    let plan = plan(&file, file.tag);
    for (rank, host) in file.hosts.iter().enumerate() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gb10-ring4").join(&host.name);
        let state = HostState::of(&Recording::load(&folder).unwrap());
        let comparison = look(&plan, rank, &state);
        assert_eq!(comparison.ready().unwrap(), [], "{}", host.name);
        assert_eq!(comparison.notes, Vec::<String>::new());
        assert_eq!(comparison.unmeasured, []);
    }
}
