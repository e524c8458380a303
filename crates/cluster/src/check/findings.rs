//! Where the sections put what they found. Texts of hosts and files go in here, and come out fit for a terminal.

use std::collections::BTreeMap;

use crate::text::clean;

use super::{Code, Finding, LookedAt, Section, Unmeasured};

/// What was found so far.
#[derive(Debug, Default)]
pub struct Findings {
    findings: Vec<Finding>,
    unmeasured: Vec<Unmeasured>,
    looked: BTreeMap<(Section, String), usize>,
}

impl Findings {
    /// Something is not as it should be, or worth knowing. `host` and `port` say where (none: all hosts, the whole
    /// host), `evidence` is what was seen, a line each, and `fix` a command to copy.
    pub fn find(
        &mut self,
        code: &Code,
        host: Option<&str>,
        port: Option<&str>,
        message: impl Into<String>,
        evidence: Vec<String>,
        fix: Option<String>,
    ) {
        let clean = |text: &str| clean(text).into_owned();
        self.findings.push(Finding {
            code: code.id,
            level: code.level,
            section: code.section,
            host: host.map(clean),
            port: port.map(clean),
            message: clean(&message.into()),
            evidence: evidence.iter().map(|line| clean(line)).collect(),
            fix: fix.as_deref().map(clean),
        });
    }

    /// Something could not be looked at; what could be seen without it is still told.
    pub fn not_measured(
        &mut self,
        section: Section,
        host: Option<&str>,
        what: impl Into<String>,
        why: impl Into<String>,
    ) {
        self.unknown(section, host, what.into(), why.into(), false);
    }

    /// Something could not be looked at without which nobody can say whether the paths work: a check that finds
    /// nothing else has then decided nothing.
    pub fn undecided(
        &mut self,
        section: Section,
        host: Option<&str>,
        what: impl Into<String>,
        why: impl Into<String>,
    ) {
        self.unknown(section, host, what.into(), why.into(), true);
    }

    /// `count` things were looked at and are as they should be. `what` names them and what holds for them, as in
    /// `cables: both ends see each other`; calls with the same words are added up.
    pub fn looked(&mut self, section: Section, count: usize, what: &str) {
        if count > 0 {
            *self.looked.entry((section, what.to_owned())).or_default() += count;
        }
    }

    /// Whether this code was found at this host, or anywhere if none is given.
    pub fn has(&self, code: &Code, host: Option<&str>) -> bool {
        self.findings.iter().any(|finding| {
            finding.code == code.id && (host.is_none() || finding.host.as_deref() == host)
        })
    }

    fn unknown(
        &mut self,
        section: Section,
        host: Option<&str>,
        what: String,
        why: String,
        essential: bool,
    ) {
        let clean = |text: &str| clean(text).into_owned();
        let (what, why) = (clean(&what), clean(&why));
        let unmeasured = Unmeasured { section, host: host.map(clean), what, why, essential };
        if !self.unmeasured.contains(&unmeasured) {
            self.unmeasured.push(unmeasured);
        }
    }

    /// Everything, in no order yet.
    pub(super) fn into_parts(self) -> (Vec<Finding>, Vec<Unmeasured>, Vec<LookedAt>) {
        let looked = self.looked.into_iter().map(|((section, what), count)| LookedAt {
            section,
            what,
            count,
        });
        (self.findings, self.unmeasured, looked.collect())
    }
}
