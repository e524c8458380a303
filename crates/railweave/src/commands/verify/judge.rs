//! What follows from counters and from what each end says: pure, so that a wrong cause can be tested for.

use std::collections::BTreeMap;

use cluster::plan::{Crossing, FunctionRef, Rail};
use serde::{Deserialize, Serialize};

use super::wire::{Fault, NetdevCount, Step};

/// The counters of hosts at one time, by rank.
pub(super) type Counts = BTreeMap<usize, Vec<NetdevCount>>;

/// By how much the counters of one crossing's functions moved, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moved {
    /// The cable.
    pub(super) cable: String,
    /// The function the bytes left by.
    pub(super) out: String,
    /// Its netdev of today.
    pub(super) out_netdev: String,
    /// The function they arrived at.
    pub(super) into: String,
    /// Its netdev of today.
    pub(super) into_netdev: String,
    /// Sent there by the first.
    pub(super) out_tx_bytes: u64,
    /// Received there by the second.
    pub(super) into_rx_bytes: u64,
    /// Sent back by the second.
    pub(super) into_tx_bytes: u64,
    /// Received back by the first.
    pub(super) out_rx_bytes: u64,
}

/// Why counters prove nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// They could not be read.
    NotMeasured(String),
    /// They did not move: the bytes went another way.
    Elsewhere {
        /// The crossing's number.
        crossing: usize,
        /// What was seen.
        why: String,
    },
}

/// Whether as many bytes as were sent each way have crossed every cable of the rail, by the counters of exactly the
/// planned functions.
///
/// # Errors
/// A counter that is missing or went back, or that moved less.
pub(super) fn crossed(
    rail: &Rail,
    cables: &[String],
    bytes: u64,
    before: &Counts,
    after: &Counts,
) -> Result<Vec<Moved>, Doubt> {
    let mut all = Vec::new();
    for (number, crossing) in rail.crossings.iter().enumerate() {
        let cable = cables.get(number).cloned().unwrap_or_default();
        let (out, out_rx, out_tx) = moved(&crossing.out, before, after)?;
        let (into, into_rx, into_tx) = moved(&crossing.into, before, after)?;
        let counters = [
            (&crossing.out, &out, "sent", out_tx),
            (&crossing.into, &into, "received", into_rx),
            (&crossing.into, &into, "sent back", into_tx),
            (&crossing.out, &out, "received back", out_rx),
        ];
        if let Some((function, netdev, verb, count)) =
            counters.iter().find(|(.., count)| *count < bytes)
        {
            let others = others(function, bytes, before, after);
            return Err(Doubt::Elsewhere {
                crossing: number,
                why: format!(
                    "{bytes} bytes arrived, but did not cross cable {cable}: its counters did not move ({} {netdev} \
                     {verb} {count} bytes){others}",
                    function.label()
                ),
            });
        }
        all.push(Moved {
            cable,
            out: crossing.out.label(),
            out_netdev: out,
            into: crossing.into.label(),
            into_netdev: into,
            out_tx_bytes: out_tx,
            into_rx_bytes: into_rx,
            into_tx_bytes: into_tx,
            out_rx_bytes: out_rx,
        });
    }
    Ok(all)
}

/// The same for a queue pair: its packets may pass the netdev or only the RDMA device, and on a forwarded rail those of
/// the hosts between pass neither, so only the ends are looked at there.
///
/// # Errors
/// As [`crossed`].
pub(super) fn crossed_by_pair(
    rail: &Rail,
    cables: &[String],
    bytes: u64,
    before: &Counts,
    after: &Counts,
) -> Result<Vec<Moved>, Doubt> {
    let moved = |counts: &Counts, function: &FunctionRef| {
        let found = counts.get(&function.rank)?.iter().find(|netdev| netdev.mac == function.mac)?;
        Some((found.rx_bytes, found.tx_bytes, found.rdma_bytes?))
    };
    // Each function by the counters that moved more.
    let mut seen = (before.clone(), after.clone());
    for function in rail.crossings.iter().flat_map(|one| [&one.out, &one.into]) {
        let (Some(then), Some(now)) = (moved(before, function), moved(after, function)) else {
            continue;
        };
        let by_netdev = (now.0.saturating_sub(then.0)).min(now.1.saturating_sub(then.1));
        let by_device = (now.2.0.saturating_sub(then.2.0)).min(now.2.1.saturating_sub(then.2.1));
        if by_device <= by_netdev {
            continue;
        }
        for (counts, (rx, tx)) in [(&mut seen.0, then.2), (&mut seen.1, now.2)] {
            let netdevs = counts.get_mut(&function.rank).into_iter().flatten();
            for netdev in netdevs.filter(|netdev| netdev.mac == function.mac) {
                (netdev.rx_bytes, netdev.tx_bytes) = (rx, tx);
            }
        }
    }
    let ends = match (rail.crossings.first(), rail.crossings.last()) {
        (Some(first), Some(last)) if rail.crossings.len() > 1 => {
            let whole =
                Crossing { cable: first.cable, out: first.out.clone(), into: last.into.clone() };
            Rail { hops: rail.hops.clone(), crossings: vec![whole], tag: None }
        }
        _ => rail.clone(),
    };
    crossed(&ends, &[cables.join(", ")], bytes, &seen.0, &seen.1)
}

/// A function's netdev, and what it received and sent meanwhile.
fn moved(
    function: &FunctionRef,
    before: &Counts,
    after: &Counts,
) -> Result<(String, u64, u64), Doubt> {
    let missing =
        |why: String| Doubt::NotMeasured(format!("counters of {}: {why}", function.label()));
    let find = |counts: &Counts| {
        let mut found = counts
            .get(&function.rank)
            .into_iter()
            .flatten()
            .filter(|netdev| netdev.mac == function.mac);
        match (found.next(), found.next()) {
            (Some(netdev), None) => Ok(netdev.clone()),
            (None, _) => Err(missing(format!(
                "no netdev of {} has the hardware address {}",
                function.host, function.mac
            ))),
            (Some(_), Some(_)) => Err(missing(format!("several netdevs have {}", function.mac))),
        }
    };
    let (before, after) = (find(before)?, find(after)?);
    let delta = |before: u64, after: u64| {
        after.checked_sub(before).ok_or_else(|| missing("they went back meanwhile".to_owned()))
    };
    let rx = delta(before.rx_bytes, after.rx_bytes)?;
    let tx = delta(before.tx_bytes, after.tx_bytes)?;
    Ok((after.name, rx, tx))
}

/// Which other netdevs of the host moved as much: where the bytes may have gone.
fn others(function: &FunctionRef, bytes: u64, before: &Counts, after: &Counts) -> String {
    let none = Vec::new();
    let before = before.get(&function.rank).unwrap_or(&none);
    let moved: Vec<_> = after
        .get(&function.rank)
        .unwrap_or(&none)
        .iter()
        .filter(|netdev| netdev.mac != function.mac)
        .filter(|netdev| {
            before.iter().any(|old| {
                old.name == netdev.name
                    && netdev
                        .rx_bytes
                        .saturating_sub(old.rx_bytes)
                        .max(netdev.tx_bytes.saturating_sub(old.tx_bytes))
                        >= bytes
            })
        })
        .map(|netdev| netdev.name.as_str())
        .collect();
    if moved.is_empty() {
        String::new()
    } else {
        format!("; {} of {} moved instead", moved.join(", "), function.host)
    }
}

/// What one end of a rail, or one host between, says at last.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Report {
    /// All bytes arrived there: how many, and in how many seconds.
    Done(u64, f64),
    /// Something went wrong there.
    Failed(Fault),
    /// It was not waited for: another one had failed.
    Unasked,
}

/// Who and where, of the hosts of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blame {
    /// The place in the rail's hops of the host that saw it.
    pub(super) hop: usize,
    /// The number of the crossing that failed; none if it is not one of them.
    pub(super) crossing: Option<usize>,
    /// What was seen.
    pub(super) why: String,
    /// How far that host got.
    pub(super) step: Step,
}

/// Which report explains the others; none if all went well. `reports` is by hop, from the near end to the far end.
///
/// All agents must have answered after the last report: one that is gone explains every broken connection, and says
/// nothing about a cable. Wrong bytes explain why their reader left. A host that cannot call the next one explains why
/// nothing comes through it. What is left are ends that wait in vain, of which the one that is furthest from the near
/// end waits for the others.
pub(super) fn blame(reports: &[Report]) -> Option<Blame> {
    let last = reports.len().saturating_sub(1);
    let faults: Vec<(usize, &Fault)> = reports
        .iter()
        .enumerate()
        .filter_map(|(hop, report)| match report {
            Report::Failed(fault) => Some((hop, fault)),
            _ => None,
        })
        .collect();
    let weight = |(hop, fault): &(usize, &Fault)| {
        let class = match fault.step {
            Step::Compare => 0,
            Step::Begin | Step::Raise | Step::Listen | Step::Bind => 1,
            Step::Connect | Step::Greet => 2,
            Step::Send | Step::Receive => 3,
            Step::Await => 4,
        };
        // Of two hosts that cannot call, the further one got the caller's call.
        (class, fault.late, last.saturating_sub(*hop))
    };
    let (hop, fault) = faults.into_iter().min_by_key(weight)?;
    let crossing = match fault.step {
        Step::Connect | Step::Greet => Some(hop),
        // The far end saw what crossed the last cable; the near end what came back over the first. With one cable
        // they are the same, with more nobody knows where on the way it happened.
        Step::Compare | Step::Send | Step::Receive | Step::Await if last == 1 => Some(0),
        _ => None,
    };
    Some(Blame { hop, crossing, why: fault.why.clone(), step: fault.step })
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
