//! `railweave status`: what every rank says about itself.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::reach::{Reach, ReachArgs};
use super::{CommandError, CommandResult, FAILED, print};
use crate::http::Answer;
use crate::settings::{Field as _, Valid};

/// Version of the shape of `railweave status --json`.
pub const STATUS_SCHEMA: u32 = 1;

/// Pause between two questions while waiting for readiness.
const WAIT_PAUSE: Duration = Duration::from_millis(100);

/// Arguments of `railweave status`.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Wait until every rank is ready, at most this long, such as 60s
    #[arg(long, value_name = "DURATION", value_parser = wait_time)]
    wait: Option<Duration>,
}

fn wait_time(text: &str) -> Result<Duration, String> {
    Duration::parse(text, &Valid::Time(Duration::ZERO, Duration::from_secs(86_400)))
}

/// Prints a table of the ranks. The exit code is 1 if a rank is stalled or cannot be reached.
///
/// # Errors
/// No rank could be reached, or not every rank got ready in time.
pub fn run(args: StatusArgs) -> CommandResult {
    let reach = args.reach.resolve()?;
    if let Some(limit) = args.wait {
        wait_until_ready(&reach, limit)?;
    }
    let answers = reach.ask_each(&reach.all(), |client, address| client.get(address, "/progress"));
    let unreached: Vec<_> =
        answers.iter().filter_map(|(_, answer)| answer.as_ref().err().cloned()).collect();
    if unreached.len() == answers.len() {
        return Err(CommandError::Unreachable(unreached.join("; ")));
    }
    if args.json {
        print(&format!("{:#}\n", document(&answers)))?;
    } else {
        print(&table(&answers))?;
    }
    let well = answers.iter().all(|(_, answer)| matches!(answer, Ok(a) if a.status == 200));
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn wait_until_ready(reach: &Reach, limit: Duration) -> Result<(), CommandError> {
    let end = Instant::now() + limit;
    loop {
        let answers =
            reach.ask_each(&reach.all(), |client, address| client.get(address, "/readyz"));
        let waiting: Vec<_> = answers
            .iter()
            .filter(|(_, answer)| !matches!(answer, Ok(answer) if answer.status == 200))
            .collect();
        if waiting.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            let ranks: Vec<_> = waiting
                .iter()
                .map(|(rank, answer)| match answer {
                    Ok(answer) => format!("rank {rank}: {}", answer.problem()),
                    Err(error) => format!("rank {rank}: {error}"),
                })
                .collect();
            let text = format!(
                "not every rank was ready within {} s: {}",
                limit.as_secs_f64(),
                ranks.join("; ")
            );
            return Err(if waiting.iter().all(|(_, answer)| answer.is_err()) {
                CommandError::Unreachable(text)
            } else {
                CommandError::Failed(text)
            });
        }
        thread::sleep(WAIT_PAUSE);
    }
}

fn document(answers: &[(u32, Result<Answer, String>)]) -> Value {
    let ranks: Vec<_> = answers
        .iter()
        .map(|(rank, answer)| match answer {
            Ok(answer) => serde_json::json!({
                "rank": rank, "http_status": answer.status, "progress": answer.body,
            }),
            Err(error) => serde_json::json!({ "rank": rank, "unreachable": error }),
        })
        .collect();
    serde_json::json!({ "schema": STATUS_SCHEMA, "ranks": ranks })
}

const TITLES: [&str; 7] =
    ["RANK", "STATE", "PHASE", "EPOCH", "SEQUENCE", "WAITS FOR", "LAST VERDICT"];

fn table(answers: &[(u32, Result<Answer, String>)]) -> String {
    let rows: Vec<[String; 7]> = answers.iter().map(|(rank, answer)| row(*rank, answer)).collect();
    let mut text = String::new();
    let widths: Vec<usize> = (0..TITLES.len())
        .map(|column| {
            let longest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            longest.max(TITLES[column].len())
        })
        .collect();
    let titles = TITLES.map(str::to_owned);
    for row in std::iter::once(&titles).chain(&rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String cannot fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn row(rank: u32, answer: &Result<Answer, String>) -> [String; 7] {
    let blank = || "-".to_owned();
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            return [
                rank.to_string(),
                "unreachable".to_owned(),
                blank(),
                blank(),
                blank(),
                blank(),
                error.clone(),
            ];
        }
    };
    let body = &answer.body;
    let word = |value: &Value| match value {
        Value::Null => "not measured".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let timed = |what: String, seconds: &Value| match seconds.as_f64() {
        Some(seconds) => format!("{what} {seconds:.1} s"),
        None => what,
    };
    let wait = &body["wait"];
    let wait = if wait.is_object() {
        let whom = format!("rank {} in {}", word(&wait["peer"]), word(&wait["phase"]));
        timed(whom, &wait["seconds"])
    } else {
        blank()
    };
    let verdict = [&body["verdict"]["summary"], &body["last_verdict"]["verdict"]["summary"]]
        .into_iter()
        .find_map(Value::as_str)
        .map_or_else(blank, str::to_owned);
    [
        rank.to_string(),
        word(&body["state"]),
        timed(word(&body["phase"]), &body["phase_seconds"]),
        word(&body["epoch"]),
        word(&body["sequence"]),
        wait,
        verdict,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_waits_verdicts_and_what_is_not_known() {
        let waiting = serde_json::json!({
            "status": "ok", "state": "running", "phase": "wire", "phase_seconds": 0.25, "epoch": 3,
            "sequence": 4711, "wait": {"peer": 2, "phase": "compute", "seconds": 1.5},
            "verdict": null, "last_verdict": {"verdict": {"summary": "rank 2 was killed"}},
        });
        let starting = serde_json::json!({"state": "starting", "phase": null, "epoch": null});
        let text = table(&[
            (0, Ok(Answer { status: 200, body: waiting })),
            (1, Ok(Answer { status: 200, body: starting })),
            (2, Err("cannot reach it".to_owned())),
        ]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        for part in
            ["running", "wire 0.2 s", "4711", "rank 2 in compute 1.5 s", "rank 2 was killed"]
        {
            assert!(lines[1].contains(part), "{part} is not in {}", lines[1]);
        }
        assert!(lines[2].contains("starting") && lines[2].contains("not measured"), "{}", lines[2]);
        assert!(lines[3].contains("unreachable") && lines[3].contains("cannot reach it"));
    }
}
