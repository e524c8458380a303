//! All codes a check can report.
//!
//! Codes are promised to people and programs: an id never changes its meaning and is never used again. Each section
//! holds its own list; this joins them.

use super::{
    Code, Section, addresses, cables, counters, disks, forwarding, hosts, links, routes, run,
};

/// The lists of the sections. `run` holds the code of a host that cannot be reached.
const PARTS: &[&[Code]] = &[
    run::CODES,
    cables::CODES,
    links::CODES,
    addresses::CODES,
    routes::CODES,
    forwarding::CODES,
    hosts::CODES,
    counters::CODES,
    disks::CODES,
];

const COUNT: usize = {
    let mut count = 0;
    let mut part = 0;
    while part < PARTS.len() {
        count += PARTS[part].len();
        part += 1;
    }
    count
};

const ALL: [Code; COUNT] = {
    let mut all = [run::UNREACHABLE; COUNT];
    let (mut part, mut at) = (0, 0);
    while part < PARTS.len() {
        let mut next = 0;
        while next < PARTS[part].len() {
            all[at] = PARTS[part][next];
            next += 1;
            at += 1;
        }
        part += 1;
    }
    all
};

/// All codes, by section.
pub const CODES: &[Code] = &ALL;

/// The code with this id.
pub fn code(id: &str) -> Option<&'static Code> {
    CODES.iter().find(|code| code.id == id)
}

/// Where the page of a code lies, from the root of the source tree.
pub fn page(id: &str) -> String {
    format!("docs/codes/{id}.md")
}

/// The codes of one section.
pub fn of(section: Section) -> impl Iterator<Item = &'static Code> {
    CODES.iter().filter(move |code| code.section == section)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_is_there_once() {
        let ids: BTreeSet<_> = CODES.iter().map(|code| code.id).collect();
        assert_eq!(ids.len(), CODES.len());
        assert_eq!(CODES.len(), PARTS.iter().map(|part| part.len()).sum::<usize>());
        for known in CODES {
            assert_eq!(code(known.id), Some(known));
        }
        assert_eq!(code("RW-ZZZ-01"), None);
    }

    #[test]
    fn ids_look_alike() {
        for Code { id, .. } in CODES {
            let parts: Vec<_> = id.split('-').collect();
            let [rw, what, number] = parts[..] else { panic!("{id}") };
            assert_eq!(rw, "RW", "{id}");
            assert!(what.len() == 3 && what.bytes().all(|byte| byte.is_ascii_uppercase()), "{id}");
            assert!(number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit()), "{id}");
        }
    }

    #[test]
    fn sections_are_in_the_order_of_the_report() {
        assert!(Section::ALL.is_sorted());
        let listed: usize = Section::ALL.iter().map(|section| of(*section).count()).sum();
        assert_eq!(listed, CODES.len());
    }
}
