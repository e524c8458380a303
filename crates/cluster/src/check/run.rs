//! One check, from the first section to the last.

use std::collections::BTreeMap;

use crate::text::quoted;

use super::{
    Code, Findings, Level, Report, Room, Scope, Section, addresses, cables, counters, disks,
    forwarding, hosts, links, routes,
};

/// A host could not be reached.
pub(super) const UNREACHABLE: Code = Code {
    id: "RW-RCH-01",
    level: Level::Error,
    section: Section::Hosts,
    title: "a host could not be read",
};

pub(super) const CODES: &[Code] = &[UNREACHABLE];

/// Looks at everything in `scope`, and reports it sorted by section, level, code and host.
pub fn run(room: &Room<'_>, scope: Scope) -> Report {
    let mut to = Findings::default();
    unreachable(room, scope, &mut to);
    for section in Section::ALL.into_iter().filter(|section| scope.takes(*section)) {
        match section {
            Section::Cables => cables::look(room, &mut to),
            Section::Links => {
                links::look(room, &mut to);
                if scope.wire {
                    links::look_at_rates(room, &mut to);
                }
            }
            Section::Addresses => addresses::look(room, &mut to),
            Section::Routes => routes::look(room, &mut to),
            Section::Forwarding => forwarding::look(room, &mut to),
            Section::Hosts => hosts::look(room, &mut to),
            Section::Counters => counters::look(room, &mut to),
            Section::Disks => disks::look(room, &mut to),
        }
    }
    let (mut findings, mut unmeasured, looked_at) = to.into_parts();
    let ranks: BTreeMap<&str, usize> =
        room.plan.ranks.iter().map(|rank| (rank.host.as_str(), rank.rank)).collect();
    let place = |host: &Option<String>| host.as_deref().and_then(|host| ranks.get(host).copied());
    findings.sort_by(|a, b| {
        let key = |finding: &super::Finding| {
            (finding.section, std::cmp::Reverse(finding.level), finding.code)
        };
        (key(a), place(&a.host), &a.port, &a.message).cmp(&(
            key(b),
            place(&b.host),
            &b.port,
            &b.message,
        ))
    });
    unmeasured.sort_by(|a, b| {
        (a.section, place(&a.host), &a.what, &a.why).cmp(&(
            b.section,
            place(&b.host),
            &b.what,
            &b.why,
        ))
    });
    Report::new(findings, unmeasured, looked_at)
}

/// A host without a state is one finding, and nothing in any section is known of it.
fn unreachable(room: &Room<'_>, scope: Scope, to: &mut Findings) {
    for rank in &room.plan.ranks {
        let (host, why) = match room.hosts.get(rank.rank) {
            Some(Ok(_)) => continue,
            Some(Err(why)) => (rank.host.as_str(), why.as_str()),
            None => (rank.host.as_str(), "it was not asked"),
        };
        let reach = room.file.hosts.get(rank.rank).map_or("local", |host| host.reach.as_str());
        let fix = match reach.split_once(':') {
            Some(("ssh", target)) => Some(format!("ssh -o BatchMode=yes {} true", quoted(target))),
            Some(("netns", name)) => Some(format!("ip netns exec {} true", quoted(name))),
            Some(("recorded", folder)) => Some(format!("ls {}", quoted(folder))),
            _ => None,
        };
        let evidence = vec![format!("reach = {reach:?}"), why.to_owned()];
        to.find(
            &UNREACHABLE,
            Some(host),
            None,
            "nothing could be read on this host",
            evidence,
            fix,
        );
        for section in Section::ALL.into_iter().filter(|section| scope.takes(*section)) {
            to.undecided(section, Some(host), "everything", "the host could not be read");
        }
    }
}
