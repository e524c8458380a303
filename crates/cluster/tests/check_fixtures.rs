//! Every code has a recorded room that shows it, and a page that explains it; the healthy room shows none.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod rooms;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cluster::check::{CODES, Level, Scope, codes};
use rooms::{faults, healthy, look_at, look_at_healthy};

fn pages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/codes")
}

#[test]
fn the_healthy_room_has_no_findings() {
    for scope in [Scope::default(), Scope { pre: true, ..Scope::default() }] {
        let report = look_at_healthy(scope);
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        assert_eq!(report.exit_code(), 0, "{:#?}", report.unmeasured);
        assert!(report.looked_at.len() > 10, "{:#?}", report.looked_at);
    }
}

#[test]
fn every_fixture_shows_exactly_what_it_says() {
    let healthy = healthy();
    let mut wrong = Vec::new();
    for (name, folder) in faults() {
        let (report, expect) = look_at(&folder, &healthy);
        let notes: BTreeSet<&str> = report
            .findings
            .iter()
            .filter(|found| found.level == Level::Note)
            .map(|found| found.code)
            .collect();
        let exit = expect.exit.unwrap_or(u8::from(!expect.codes.is_empty()));
        let same_notes = expect.notes.iter().all(|note| notes.contains(note.as_str()));
        if report.codes() != expect.codes || !same_notes || report.exit_code() != exit {
            let text = report.text(cluster::check::TextStyle::default());
            wrong.push(format!(
                "{name}: expected {expect:?}, got exit {} and\n{text}",
                report.exit_code()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_code_has_a_fixture_of_its_own() {
    let healthy = healthy();
    let faults = faults();
    for code in CODES {
        let folder = faults
            .get(code.id)
            .unwrap_or_else(|| panic!("{} has no folder in fixtures/faults", code.id));
        let (report, _) = look_at(folder, &healthy);
        let found = report.findings.iter().find(|found| found.code == code.id);
        let found = found.unwrap_or_else(|| panic!("{} does not show in its fixture", code.id));
        assert!(!found.evidence.is_empty(), "{} shows no evidence", code.id);
        assert!(
            !found.message.is_empty() && !found.message.contains('\n'),
            "{}: {:?}",
            code.id,
            found.message
        );
    }
    for name in faults.keys().filter(|name| name.starts_with("RW-")) {
        assert!(codes::code(name).is_some(), "fixtures/faults/{name} is for no code");
    }
}

#[test]
fn two_faults_are_both_found() {
    let (report, expect) = look_at(&faults()["two-faults"], &healthy());
    assert!(expect.codes.len() >= 2);
    assert_eq!(report.codes(), expect.codes);
    let hosts: BTreeSet<_> =
        report.findings.iter().filter_map(|found| found.host.as_deref()).collect();
    assert!(hosts.len() >= 2, "{:#?}", report.findings);
}

#[test]
fn every_code_has_a_page_and_every_page_a_code() {
    let list = fs::read_to_string(pages().join("README.md")).unwrap();
    for code in CODES {
        let page = pages().join(format!("{}.md", code.id));
        let text =
            fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert_eq!(
            text.lines().next(),
            Some(&*format!("# {}: {}", code.id, code.title)),
            "{}",
            page.display()
        );
        for part in [
            "## What it means",
            "## How it shows",
            "## How to look by hand",
            "## How to mend it",
            "## Why",
        ] {
            assert!(text.contains(&format!("{part}\n")), "{} lacks {part:?}", page.display());
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 120),
            "{} has a long line",
            page.display()
        );
        assert!(
            list.contains(&format!("| [{0}]({0}.md) |", code.id)),
            "README.md does not list {}",
            code.id
        );
        assert!(list.contains(code.title), "README.md does not say what {} is", code.id);
    }
    for entry in fs::read_dir(pages()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let id = name.strip_suffix(".md").unwrap();
        assert!(id == "README" || codes::code(id).is_some(), "docs/codes/{name} is for no code");
    }
}

#[test]
fn a_check_is_the_same_every_time() {
    let healthy = healthy();
    let folder = &faults()["two-faults"];
    let (first, _) = look_at(folder, &healthy);
    for _ in 0..3 {
        assert_eq!(look_at(folder, &healthy).0, first);
    }
}
