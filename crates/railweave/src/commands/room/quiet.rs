//! Rules never change under queue pairs that are alive.

use std::time::Duration;

use cluster::file::{ClusterFile, Host};
use cluster::inventory::HostState;
use cluster::reach::Reach;
use cluster::rules::{PREFERENCES, QueuePair, live_queue_pairs};

use super::super::CommandError;
use super::apply::Work;
use super::open::each;

/// Programs of administrators are not on every user's path.
const ASK: &str = "PATH=$PATH:/usr/sbin:/sbin; rdma -j resource show qp";
const ASK_LIMIT: Duration = Duration::from_secs(20);
/// Queue pairs that are named.
const NAMED: usize = 8;

/// Refuses changes that disturb while a queue pair is connected that could lose packets, or where that could not be
/// seen. Rules of one host carry queue pairs of others, so then all hosts are asked. As long as the hosts that change
/// carry no rule of ours, as after a boot, nothing of others crosses them, and only they are asked.
///
/// # Errors
/// Something is alive or not known, and it was not allowed.
pub(super) fn expect_quiet(
    file: &ClusterFile,
    works: &[Work<'_>],
    allowed: bool,
) -> Result<(), CommandError> {
    let whys: Vec<_> =
        works.iter().filter_map(|work| Some((work.host, work.why_quiet.as_ref()?))).collect();
    if allowed || whys.is_empty() {
        return Ok(());
    }
    let state = |rank: usize| works.iter().find(|work| work.rank == rank).map(|work| &work.state);
    let carries = works.iter().any(|work| match work.state.filters.known() {
        Some(filters) => filters.iter().any(|filter| PREFERENCES.contains(&filter.preference)),
        None => true,
    });
    let hosts: Vec<(usize, &Host)> = file
        .hosts
        .iter()
        .enumerate()
        .filter(|(rank, _)| carries || state(*rank).is_some())
        .collect();
    let answers = each("asking for queue pairs", &hosts, |(rank, host)| ask(host, state(*rank)));
    let mut problems = Vec::new();
    for ((_, host), answer) in hosts.iter().zip(answers) {
        match answer {
            Ok(alive) if alive.is_empty() => {}
            Ok(alive) => problems.push(format!("{}: {}", host.name, named(&alive))),
            Err(why) => problems.push(format!("{}: queue pairs not measured: {why}", host.name)),
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    let whys: Vec<_> = whys.iter().map(|(host, why)| format!("{}: {why}", host.name)).collect();
    Err(CommandError::Failed(format!(
        "nothing was changed on any host, since connected queue pairs would lose packets:\n  {}\nwhat would be \
         changed:\n  {}\nstop what uses them, or say --yes-live",
        problems.join("\n  "),
        whys.join("\n  ")
    )))
}

/// The connected queue pairs of a host. One that is known to have no RDMA device has none.
fn ask(host: &Host, state: Option<&HostState>) -> Result<Vec<QueuePair>, String> {
    if state.is_some_and(|state| state.rdma.is_empty()) {
        return Ok(Vec::new());
    }
    let reach = Reach::parse(&host.name, &host.reach).map_err(|error| error.to_string())?;
    let output =
        reach.run(&["sh", "-c", ASK], b"", ASK_LIMIT).map_err(|error| error.to_string())?;
    if output.status != 0 {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next_back().unwrap_or_default();
        return Err(format!("`rdma -j resource show qp` ended with {}: {said}", output.status));
    }
    live_queue_pairs(&String::from_utf8_lossy(&output.stdout)).map_err(|error| error.to_string())
}

fn named(alive: &[QueuePair]) -> String {
    let each: Vec<_> = alive
        .iter()
        .take(NAMED)
        .map(|pair| {
            let pid = pair.pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
            format!("{} of {}{pid} on {}", pair.number, pair.process, pair.device)
        })
        .collect();
    let more = alive.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("queue pairs {}{more}", each.join(", "))
}
