//! Carrying out changes, host after host, and seeing whether they are in place.

use std::time::Duration;

use cluster::reach::{Output, ReachError};
use cluster::rules::{self, Change};
use cluster::text::clean;

use super::super::{CommandError, print};
use super::apply::Work;
use super::stop::UnderWay;

/// How long the steps of a host may take, apart from those that wait.
const STEPS_LIMIT: Duration = Duration::from_secs(120);
/// What a step that reloads or waits may take on top.
const WAIT_LIMIT: Duration = Duration::from_secs(40);
const ID_LIMIT: Duration = Duration::from_secs(20);
/// Reads the script from its input. Programs of administrators are not on every user's path.
const SHELL: &str = "PATH=$PATH:/usr/sbin:/sbin exec sh -s";
/// Lines of a failed script that are shown.
const SHOWN_LINES: usize = 10;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every host is as it should be.
    InPlace,
    /// A host is not; what was done and what not was printed.
    Failed,
}

/// Carries the changes out, in the hosts' order, and stops at the first host where that fails. `read_again` compares a
/// host once more.
///
/// # Errors
/// A host cannot be read any more, or standard output is broken.
pub(super) fn carry_out<'a>(
    works: &[Work<'a>],
    under_way: &UnderWay,
    read_again: impl Fn(&Work<'a>) -> Result<Option<Work<'a>>, CommandError>,
) -> Result<Outcome, CommandError> {
    let mut rest = works.iter();
    while let Some(work) = rest.next() {
        let name = &work.host.name;
        let mut wrong = None;
        if work.changes.is_empty() {
            in_place(work, "in place already")?;
        } else {
            under_way.set(format!(
                "{name} may have been changed in part: `railweave apply --diff` says what is missing"
            ));
            wrong = on_host(work)?;
        }
        if wrong.is_none() && !work.changes.is_empty() {
            match read_again(work) {
                Ok(Some(again)) if again.changes.is_empty() => {
                    in_place(&again, &format!("{} done, in place", steps(work.changes.len())))?;
                }
                Ok(Some(again)) => {
                    let left = rules::diff(&again.changes);
                    let left = left.lines().collect::<Vec<_>>().join("\n    ");
                    wrong = Some(format!(
                        "all steps ended well, and this is still missing:\n    {left}"
                    ));
                }
                Ok(None) => wrong = Some("the host was not read again".to_owned()),
                Err(error) => wrong = Some(format!("after all steps: {error}")),
            }
        }
        if let Some(wrong) = wrong {
            // What a host's way says of itself starts with the host's name already.
            let named =
                wrong.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with([':', ' ']));
            let who = if named { String::new() } else { format!("{name}: ") };
            eprintln!("railweave: {who}{}", clean(&wrong));
            let left: Vec<_> = rest.map(|work| work.host.name.as_str()).collect();
            if !left.is_empty() {
                eprintln!("railweave: nothing was done on {}", left.join(", "));
            }
            return Ok(Outcome::Failed);
        }
    }
    Ok(Outcome::InPlace)
}

fn in_place(work: &Work<'_>, how: &str) -> Result<(), CommandError> {
    let notes = work.notes.iter().map(|note| format!("  note: {note}\n"));
    print(&format!("{}: {how}\n{}", work.host.name, notes.collect::<String>()))
}

fn steps(number: usize) -> String {
    if number == 1 { "1 step".to_owned() } else { format!("{number} steps") }
}

/// Runs the script of one host; says what went wrong, if something did.
fn on_host(work: &Work<'_>) -> Result<Option<String>, CommandError> {
    let who = match work.reach.run(&["id", "-u"], b"", ID_LIMIT) {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => return Ok(Some(format!("{error}; nothing was changed on it"))),
    };
    let shell: &[&str] =
        if who == "0" { &["sh", "-c", SHELL] } else { &["sudo", "-n", "sh", "-c", SHELL] };
    let waits = work
        .changes
        .iter()
        .filter(|change| matches!(change, Change::Reload { .. } | Change::WaitFor { .. }))
        .count();
    let limit = STEPS_LIMIT + WAIT_LIMIT * u32::try_from(waits).unwrap_or(u32::MAX).min(100);
    let script = rules::script(&work.changes);
    let ran = work.reach.run(shell, script.as_bytes(), limit);
    Ok(failure(&work.changes, ran))
}

/// What went wrong with a script, and in which step.
fn failure(changes: &[Change], ran: Result<Output, ReachError>) -> Option<String> {
    let output = match ran {
        Ok(output) if output.status == 0 => return None,
        Ok(output) => output,
        Err(error @ ReachError::ReadOnly { .. }) => return Some(error.to_string()),
        Err(error) => {
            return Some(format!(
                "{error}; it may have been changed in part: `railweave apply --diff` says what is missing"
            ));
        }
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let step = said.lines().rev().find_map(failed_step);
    let lines: Vec<_> = said.lines().filter(|line| failed_step(line).is_none()).collect();
    let shown = lines.get(lines.len().saturating_sub(SHOWN_LINES)..).unwrap_or_default();
    let told: String = shown.iter().map(|line| format!("\n    {}", printable(line))).collect();
    Some(match step.and_then(|step| Some((step, changes.get(step.checked_sub(1)?)?))) {
        Some((step, change)) => format!(
            "step {step} of {} failed, those before it were done and those after it not:\n    {}\n    {}{told}{}",
            changes.len(),
            change.diff(),
            change.argv().join(" "),
            remedy(change, &said),
        ),
        None => format!("the script did not begin, or ended with {}:{told}", output.status),
    })
}

/// What helps, where the kernel's own words do not say it.
fn remedy(change: &Change, said: &str) -> &'static str {
    match change {
        // What the kernel answers to `skip_sw` on a netdev whose driver has no filters in hardware.
        Change::AddFilter(spec) if !spec.software && said.contains("Operation not supported") => {
            "\n    this netdev takes no filter into hardware: if its RDMA device is software (soft-RoCE), say marker = \"tc\" \
             in the cluster file; if it is a NIC's, see `ethtool -k` for hw-tc-offload"
        }
        _ => "",
    }
}

/// The number of the failed step, if this line of the script tells it.
fn failed_step(line: &str) -> Option<usize> {
    line.strip_prefix("railweave: step ")?.split_once(" of ")?.0.parse().ok()
}

fn printable(line: &str) -> String {
    line.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use cluster::address::Mac;
    use cluster::rules::FilterSpec;

    use super::*;

    #[test]
    fn the_failed_step_is_told_with_its_command() {
        let offload = |netdev: &str| Change::SetOffload { netdev: netdev.to_owned() };
        let changes = [offload("a"), offload("b"), offload("c")];
        let ran = |status, stderr: &str| {
            Ok(Output {
                status,
                stdout: Vec::new(),
                stderr: stderr.as_bytes().to_vec(),
                first_byte: None,
            })
        };
        assert_eq!(failure(&changes, ran(0, "a warning")), None);
        let said = "netlink error: no such device\nrailweave: step 2 of 3 failed; later steps were not tried\n";
        let told = failure(&changes, ran(1, said)).unwrap();
        assert!(told.starts_with("step 2 of 3 failed"), "{told}");
        assert!(told.contains(&changes[1].argv().join(" ")), "{told}");
        assert!(told.ends_with("\n    netlink error: no such device"), "{told}");
        let told = failure(&changes, ran(1, "sudo: a password is required\n")).unwrap();
        assert!(told.contains("did not begin") && told.contains("password"), "{told}");
        assert!(!told.contains("marker"), "{told}");
        // A filter for hardware on a netdev without any, as the kernel of a soft-RoCE host refuses it.
        let filter = |software| {
            Change::AddFilter(FilterSpec {
                netdev: "h1p0f0".to_owned(),
                preference: 18_801,
                ether_type: 0x88b5,
                source_mac: None,
                destination_mac: Mac([2, 0x72, 0x77, 1, 0, 0]),
                set_ether_type: 0x0800,
                set_destination_mac: Mac([2, 0x72, 0x77, 0, 0, 0]),
                redirect_to: "h1p1f0".to_owned(),
                software,
                serves: "h2 to h0 rail 0".to_owned(),
            })
        };
        let said = "RTNETLINK answers: Operation not supported\nWe have an error talking to the kernel\n\
                    railweave: step 1 of 1 failed; later steps were not tried\n";
        let told = failure(&[filter(false)], ran(2, said)).unwrap();
        assert!(told.contains("skip_sw") && told.contains("marker = \"tc\""), "{told}");
        assert!(!failure(&[filter(true)], ran(2, said)).unwrap().contains("marker ="));
        // A number that no step has is no reason to guess.
        let told = failure(&changes, ran(1, "railweave: step 9 of 3 failed; x\n")).unwrap();
        assert!(told.contains("did not begin, or ended with 1"), "{told}");
    }
}
