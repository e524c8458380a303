use std::collections::BTreeSet;
use std::fmt::Write;

use super::*;

#[test]
fn every_number_is_there_once_and_found() {
    let numbers: BTreeSet<_> = STATUSES.iter().map(|status| status.number).collect();
    assert_eq!(numbers.len(), STATUSES.len());
    let numbers: Vec<_> = EVENTS.iter().map(|event| event.number).collect();
    assert_eq!(numbers, (0..=19).collect::<Vec<_>>());
    for vendor in VENDORS {
        assert!(of_status(vendor.status).is_some(), "{vendor:?}");
        assert_eq!(of_vendor(vendor.code, vendor.status).map(|it| it.what), Some(vendor.what));
        assert!(of_vendor(vendor.code, vendor.status + 1).is_none(), "{vendor:?}");
    }
    assert!(of_status(0).is_none() && of_status(77).is_none() && of_event(20).is_none());
}

#[test]
fn statuses_and_events_lead_to_what_the_code_does() {
    for (status, cause) in [
        (2, VerbsCause::LocalOperation),
        (4, VerbsCause::LocalProtection),
        (5, VerbsCause::Flushed),
        (8, VerbsCause::LocalProtection),
        (10, VerbsCause::RemoteAccess),
        (12, VerbsCause::NoAnswer),
        (13, VerbsCause::ReceiverNotReady),
        (19, VerbsCause::DeviceGone),
        (77, VerbsCause::Unknown),
    ] {
        assert_eq!(VerbsCause::of_status(status), cause, "{status}");
    }
    for (event, notice) in [
        (1, Notice::QueuePair),
        (3, Notice::QueuePair),
        (8, Notice::Device),
        (9, Notice::PortUp),
        (10, Notice::PortDown),
        (18, Notice::Other(18)),
        (77, Notice::Other(77)),
    ] {
        assert_eq!(Notice::of_event(event), notice, "{event}");
    }
    // An event that is for the log alone carries its own number.
    for event in EVENTS {
        assert!(!matches!(event.notice, Notice::Other(it) if it != event.number), "{event:?}");
    }
}

/// The tables of the page, row by row.
fn tables() -> [String; 4] {
    let mut tables = [
        "| status | name | what it means | what to do |\n|---|---|---|---|\n".to_owned(),
        "| code | with status | meaning | seen in |\n|---|---|---|---|\n".to_owned(),
        "| what it means | what to do |\n|---|---|\n".to_owned(),
        "| event | name | what it means | what to do |\n|---|---|---|---|\n".to_owned(),
    ];
    for Status { number, name, cause } in STATUSES {
        let (what, next) = (cause.what(), cause.next_step());
        writeln!(tables[0], "| {number} | `{name}` | {what} | {next} |").unwrap();
    }
    for Vendor { code, status, what, source } in VENDORS {
        writeln!(tables[1], "| `{code:#x}` | {status} | {what} | {source} |").unwrap();
    }
    for cause in WITHOUT_COMPLETION {
        writeln!(tables[2], "| {} | {} |", cause.what(), cause.next_step()).unwrap();
    }
    for Event { number, name, what, next_step, .. } in EVENTS {
        let next = next_step.unwrap_or("nothing");
        writeln!(tables[3], "| {number} | `{name}` | {what} | {next} |").unwrap();
    }
    tables
}

#[test]
fn the_page_has_this_table_and_no_other() {
    let page = include_str!("../../../../docs/understand/rdma-errors.md");
    let tables = tables();
    for table in &tables {
        assert!(page.contains(table.as_str()), "docs/understand/rdma-errors.md lacks:\n{table}");
    }
    let rows = |text: &str| text.lines().filter(|line| line.starts_with('|')).count();
    assert_eq!(rows(page), tables.iter().map(|table| rows(table)).sum::<usize>());
}
