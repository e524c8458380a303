//! A time line as text for a person.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::{Timeline, TimelineEvent};

/// The last notable events printed for a rank.
const NOTABLE_A_RANK: usize = 20;
/// The last routine events (steps, collectives, phases) printed for a rank.
const ROUTINE_A_RANK: usize = 6;

const ROUTINE: [&str; 5] =
    ["collective-begin", "collective-end", "step-begin", "step-end", "phase-changed"];

impl Timeline {
    /// The time line as JSON.
    pub fn to_json(&self) -> Value {
        // Maps with text keys and finite numbers only: this cannot fail, and null would tell.
        serde_json::to_value(self).unwrap_or(Value::Null)
    }

    /// The verdict in a few lines, where each rank was, and the last events of each rank in one
    /// time line. Times are relative to the verdict.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = self.render_into(&mut out);
        out
    }

    fn render_into(&self, out: &mut String) -> std::fmt::Result {
        self.render_verdict(out)?;
        writeln!(out, "\nWhere each rank was")?;
        for part in &self.ranks {
            write!(out, "  rank {} ({}, pid {})", part.rank, clean(&part.host), part.pid)?;
            if let Some(inside) = &part.inside {
                write!(
                    out,
                    ": inside {} {} for {}",
                    clean(&inside.operation),
                    inside.sequence,
                    seconds(self.reference_wall_ns, inside.since_wall_ns)
                )?;
            } else {
                write!(out, ": in no collective")?;
            }
            if let Some((phase, since)) = &part.phase {
                let age = seconds(self.reference_wall_ns, *since);
                write!(out, ", in phase {} for {age}", clean(phase))?;
            }
            writeln!(out)?;
        }
        for rank in &self.missing_ranks {
            writeln!(out, "  rank {rank}: no dump (dead, or its dumps lie on another host)")?;
        }
        let shown = self.last_events();
        writeln!(
            out,
            "\nTime line (seconds from the {}; {} of {} events)",
            if self.verdict.is_some() { "verdict" } else { "newest dump" },
            shown.len(),
            self.events.len()
        )?;
        for event in shown {
            let nanos = i128::from(event.wall_ns) - i128::from(self.reference_wall_ns);
            write!(
                out,
                "  {:>+13.6}  rank {:<3} {}",
                nanos as f64 / 1e9,
                event.rank,
                clean(&event.event)
            )?;
            for (key, value) in &event.fields {
                match value {
                    Value::String(text) => write!(out, " {}={}", clean(key), clean(text))?,
                    Value::Null => {}
                    other => write!(out, " {}={}", clean(key), clean(&other.to_string()))?,
                }
            }
            writeln!(out)?;
        }
        if !self.problems.is_empty() {
            writeln!(out, "\nDamaged or contradicting")?;
            for problem in &self.problems {
                writeln!(out, "  {}", clean(&problem.to_string()))?;
            }
        }
        Ok(())
    }

    fn render_verdict(&self, out: &mut String) -> std::fmt::Result {
        let Some(verdict) = &self.verdict else {
            return writeln!(
                out,
                "No verdict in epoch {}: these dumps were asked for.",
                self.epoch
            );
        };
        writeln!(out, "Verdict: {} ({})", clean(&verdict.summary), verdict.cause)?;
        write!(out, "  who    ")?;
        match verdict.rank {
            Some(rank) => write!(out, "rank {rank}")?,
            None => write!(out, "not known")?,
        }
        if let Some(host) = &verdict.host {
            write!(out, " on {}", clean(host))?;
        }
        if let Some(peer) = verdict.peer {
            write!(out, ", towards rank {peer}")?;
        }
        write!(out, "\n  where  epoch {}", verdict.epoch)?;
        if let Some(operation) = verdict.operation {
            write!(out, ", {operation}")?;
        }
        if let Some(sequence) = verdict.sequence {
            write!(out, " {sequence}")?;
        }
        if let Some(phase) = verdict.phase {
            write!(out, ", phase {phase}")?;
        }
        match verdict.seconds {
            Some(seconds) => writeln!(out, "\n  since  {seconds:.1} s before the verdict")?,
            None => writeln!(out, "\n  since  not measured")?,
        }
        for (i, fact) in verdict.evidence.iter().enumerate() {
            writeln!(out, "  {}  {}", if i == 0 { "why  " } else { "     " }, clean(fact))?;
        }
        writeln!(out, "  next   {}", clean(&verdict.next_step))?;
        writeln!(out, "  judged by rank {}", verdict.judged_by)
    }

    /// The last notable and the last routine events of each rank, still in order.
    fn last_events(&self) -> Vec<&TimelineEvent> {
        let mut counts: BTreeMap<(u32, bool), usize> = BTreeMap::new();
        let mut shown: Vec<_> = self
            .events
            .iter()
            .rev()
            .filter(|event| {
                let routine = ROUTINE.contains(&event.event.as_str());
                let count = counts.entry((event.rank, routine)).or_default();
                *count += 1;
                *count <= if routine { ROUTINE_A_RANK } else { NOTABLE_A_RANK }
            })
            .collect();
        shown.reverse();
        shown
    }
}

fn seconds(now_ns: u64, since_ns: u64) -> String {
    format!("{:.3} s", now_ns.saturating_sub(since_ns) as f64 / 1e9)
}

/// Dumps may hold anything: no control character reaches the terminal, and no text is endless.
fn clean(text: &str) -> String {
    text.chars().take(600).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
