//! What a check says: for people, for programs, and as an exit code.

use std::fmt::Write as _;

use serde::Serialize;

use super::codes::page;
use super::run::UNREACHABLE;
use super::{Finding, Level, Section, Unmeasured};

/// The schema of a report as JSON.
pub const SCHEMA: &str = "railweave-check/1";

/// Things that were looked at and are as they should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LookedAt {
    /// Part of the report.
    pub section: Section,
    /// What they are, and what holds for them.
    pub what: String,
    /// How many.
    pub count: usize,
}

/// All that one check found, in the order it is printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// What was found.
    pub findings: Vec<Finding>,
    /// What could not be looked at.
    pub unmeasured: Vec<Unmeasured>,
    /// What is as it should be.
    pub looked_at: Vec<LookedAt>,
}

/// How a report is printed for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextStyle {
    /// Only ASCII.
    pub ascii: bool,
    /// With colours, as terminals understand them.
    pub colour: bool,
}

/// What stands first on a line.
#[derive(Clone, Copy)]
enum Mark {
    Fine,
    Note,
    Warning,
    Error,
    Unknown,
}

impl TextStyle {
    fn mark(self, mark: Mark) -> String {
        let (sign, ascii, colour) = match mark {
            Mark::Fine => ("√", "ok", 32),
            Mark::Note => ("·", "--", 36),
            Mark::Warning => ("‼", "!!", 33),
            Mark::Error => ("×", "xx", 31),
            Mark::Unknown => ("?", "??", 35),
        };
        let sign = if self.ascii { ascii } else { sign };
        if self.colour { format!("\u{1b}[{colour}m{sign}\u{1b}[0m") } else { sign.to_owned() }
    }

    /// Text from hosts, made safe to print: no control characters, and nothing but ASCII where that was asked for.
    fn safe(self, text: &str) -> String {
        let one = |letter: char| match letter {
            '–' | '—' if self.ascii => '-',
            _ if letter.is_control() || (self.ascii && !letter.is_ascii()) => '?',
            _ => letter,
        };
        text.chars().map(one).collect()
    }
}

impl Report {
    pub(super) fn new(
        findings: Vec<Finding>,
        unmeasured: Vec<Unmeasured>,
        looked_at: Vec<LookedAt>,
    ) -> Self {
        Self { schema: SCHEMA.to_owned(), findings, unmeasured, looked_at }
    }

    /// How many findings there are of a level.
    pub fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    /// 0: nothing was found. 1: something was, an error or a warning. 2: it could not be decided, since something
    /// essential was not measured, such as all of a host that could not be reached, and nothing else was found.
    pub fn exit_code(&self) -> u8 {
        let bad = |finding: &&Finding| finding.level >= Level::Warning;
        if self.findings.iter().filter(bad).any(|finding| finding.code != UNREACHABLE.id) {
            1
        } else if self.findings.iter().any(|finding| finding.code == UNREACHABLE.id)
            || self.unmeasured.iter().any(|unmeasured| unmeasured.essential)
        {
            2
        } else {
            0
        }
    }

    /// The ids of all errors and warnings, sorted, each once.
    pub fn codes(&self) -> Vec<&'static str> {
        let bad = self.findings.iter().filter(|finding| finding.level >= Level::Warning);
        let mut codes: Vec<_> = bad.map(|finding| finding.code).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }

    /// As JSON, with the schema's name and the exit code. Fails only if memory does.
    ///
    /// # Errors
    ///
    /// What the writer of JSON says.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        #[derive(Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            report: &'a Report,
            errors: usize,
            warnings: usize,
            notes: usize,
            not_measured: usize,
            exit_code: u8,
        }
        let whole = Whole {
            report: self,
            errors: self.count(Level::Error),
            warnings: self.count(Level::Warning),
            notes: self.count(Level::Note),
            not_measured: self.unmeasured.len(),
            exit_code: self.exit_code(),
        };
        serde_json::to_string_pretty(&whole).map(|text| text + "\n")
    }

    /// For people: by section what is fine, what was found with its evidence and its cure, and what could not be
    /// looked at; last, how many of each.
    pub fn text(&self, style: TextStyle) -> String {
        let mut out = String::new();
        for section in Section::ALL {
            let looked =
                self.looked_at.iter().filter(|looked| looked.section == section).map(|looked| {
                    format!(
                        "{} {} {}\n",
                        style.mark(Mark::Fine),
                        looked.count,
                        style.safe(&looked.what)
                    )
                });
            let findings = self.findings.iter().filter(|finding| finding.section == section);
            let findings = findings.map(|finding| finding_text(finding, style));
            let unmeasured =
                self.unmeasured.iter().filter(|unmeasured| unmeasured.section == section);
            let unmeasured = unmeasured.map(|unmeasured| unmeasured_text(unmeasured, style));
            let lines: String = looked.chain(findings).chain(unmeasured).collect();
            if !lines.is_empty() {
                // Writing to a `String` cannot fail.
                let _ = write!(
                    out,
                    "{}\n{}\n{lines}\n",
                    section.name(),
                    "-".repeat(section.name().len())
                );
            }
        }
        out.push_str(&self.summary());
        out.push('\n');
        out
    }

    /// `3 errors, 1 warning, 2 not measured`, or `no findings`.
    pub fn summary(&self) -> String {
        let plural = |count: usize, one: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            _ => Some(format!("{count} {one}s")),
        };
        let unmeasured = self.unmeasured.len();
        let parts: Vec<String> = [
            plural(self.count(Level::Error), "error"),
            plural(self.count(Level::Warning), "warning"),
            plural(self.count(Level::Note), "note"),
            (unmeasured > 0).then(|| format!("{unmeasured} not measured")),
        ]
        .into_iter()
        .flatten()
        .collect();
        if parts.is_empty() { "no findings".to_owned() } else { parts.join(", ") }
    }
}

fn place(host: Option<&str>, port: Option<&str>, style: TextStyle) -> String {
    match (host, port) {
        (Some(host), Some(port)) => format!("({}/{}) ", style.safe(host), style.safe(port)),
        (Some(one), None) | (None, Some(one)) => format!("({}) ", style.safe(one)),
        (None, None) => String::new(),
    }
}

fn finding_text(finding: &Finding, style: TextStyle) -> String {
    let mark = style.mark(match finding.level {
        Level::Note => Mark::Note,
        Level::Warning => Mark::Warning,
        Level::Error => Mark::Error,
    });
    let place = place(finding.host.as_deref(), finding.port.as_deref(), style);
    let mut out = format!("{mark} [{}] {place}{}\n", finding.code, style.safe(&finding.message));
    let mut line = |label: &str, text: &str| {
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "    {label:<10}{}", style.safe(text));
    };
    let mut label = "evidence:";
    for evidence in &finding.evidence {
        line(label, evidence);
        label = "";
    }
    let mut label = "fix:";
    for fix in finding.fix.iter().flat_map(|fix| fix.lines()) {
        line(label, fix);
        label = "";
    }
    line("docs:", &page(finding.code));
    out
}

fn unmeasured_text(unmeasured: &Unmeasured, style: TextStyle) -> String {
    format!(
        "{} {}{}: not measured: {}\n",
        style.mark(Mark::Unknown),
        place(unmeasured.host.as_deref(), None, style),
        style.safe(&unmeasured.what),
        style.safe(&unmeasured.why),
    )
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
