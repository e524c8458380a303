//! What the doctor's sections say of rooms that differ from the healthy one in one thing, and what they do not say.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

#[path = "sections/counters.rs"]
mod counters;
#[path = "sections/forwarding.rs"]
mod forwarding;
#[path = "sections/hosts.rs"]
mod hosts;
mod rooms;
#[path = "sections/routes.rs"]
mod routes;

use cluster::check::{self, Finding, Report, Room, Scope};
use cluster::file::ClusterFile;
use cluster::inventory::HostState;
use cluster::plan::{Plan, PlanOptions};

/// A room to change and look at.
struct Lab {
    file: ClusterFile,
    plan: Plan,
    hosts: Vec<HostState>,
    before: Option<Vec<HostState>>,
    reads_per_second: Option<u64>,
}

impl Lab {
    fn healthy() -> Self {
        let file = ClusterFile::parse(&rooms::healthy_file()).unwrap();
        let plan = Plan::of(&file, &PlanOptions::default()).unwrap();
        let hosts = rooms::states(&file, &rooms::healthy());
        Self { file, plan, hosts, before: None, reads_per_second: None }
    }

    /// With the healthy room as an earlier state.
    fn with_before() -> Self {
        let lab = Self::healthy();
        Self { before: Some(lab.hosts.clone()), ..lab }
    }

    fn look(&self) -> Report {
        let hosts: Vec<_> = self.hosts.iter().cloned().map(Ok).collect();
        let room = Room {
            file: &self.file,
            plan: &self.plan,
            hosts: &hosts,
            before: self.before.as_deref(),
            rates: &[],
            reads_per_second: self.reads_per_second,
        };
        check::run(&room, Scope { disk: self.reads_per_second.is_some(), ..Scope::default() })
    }

    /// All findings but notes, as `code host port`.
    fn found(&self) -> Vec<String> {
        let report = self.look();
        let bad = report.findings.iter().filter(|finding| finding.level > check::Level::Note);
        bad.map(|finding| {
            let host = finding.host.as_deref().unwrap_or("-");
            let port = finding.port.as_deref().unwrap_or("-");
            format!("{} {host} {port}", finding.code)
        })
        .collect()
    }

    fn one(&self, code: &str) -> Finding {
        let report = self.look();
        let found: Vec<_> = report.findings.iter().filter(|finding| finding.code == code).collect();
        assert_eq!(found.len(), 1, "{code}: {:#?}", report.findings);
        found[0].clone()
    }

    /// Whether something is told as not measured.
    fn unmeasured(&self, what: &str) -> bool {
        self.look().unmeasured.iter().any(|unmeasured| unmeasured.what.contains(what))
    }
}

#[test]
fn drives_are_compared_only_where_both_rates_are_known() {
    let mut lab = Lab::healthy();
    lab.reads_per_second = Some(87_000);
    assert_eq!(lab.found(), Vec::<String>::new());
    assert!(lab.unmeasured("whether nvme0n1 is fast enough"));
    for (host, rate) in [(1, 87_000), (2, 86_999)] {
        let cluster::inventory::Seen::Known(drives) = &mut lab.hosts[host].drives else { panic!() };
        drives[0].reads_per_second = cluster::inventory::Seen::Known(rate);
    }
    assert_eq!(lab.found(), ["RW-DSK-01 spark2 nvme0n1"]);
}
