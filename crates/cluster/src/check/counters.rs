//! Counters of errors, and which kind of trouble each tells of.
//!
//! A counter since boot says little: a peer that was stopped leaves timeouts behind. What rose between two looks says
//! what is wrong now. Names are those of mlx5 and of soft RoCE (`/sys/class/infiniband/DEVICE/ports/1/counters` and
//! `hw_counters` beside it).

use std::collections::{BTreeMap, BTreeSet};

use super::{Code, Findings, Level, Room, Section};
use crate::inventory::HostState;
use crate::inventory::host_state::RdmaDevice;
use crate::plan::{FunctionRef, PathKind};

const fn code(id: &'static str, level: Level, title: &'static str) -> Code {
    Code { id, level, section: Section::Counters, title }
}

const FATAL: Code = code("RW-CNT-01", Level::Error, "requests are given up");
const LOSS: Code = code("RW-CNT-02", Level::Warning, "packets are lost or repeated");
const CONGESTION: Code = code("RW-CNT-03", Level::Warning, "senders are told to slow down");
const LINK: Code = code("RW-CNT-04", Level::Error, "the link itself makes errors");
const DAMAGED: Code = code("RW-CNT-05", Level::Error, "packets arrive damaged");
const OVERFLOW: Code =
    code("RW-CNT-06", Level::Error, "a NIC between drops what it should pass on");
const FROZEN: Code = code("RW-CNT-07", Level::Note, "no rank receives anything");
const GIVEN_UP_SINCE_BOOT: Code =
    code("RW-CNT-08", Level::Warning, "requests were given up since boot");
const SINCE_BOOT: Code = code("RW-CNT-09", Level::Note, "errors were counted since boot");

/// The codes of this section.
pub(super) const CODES: &[Code] =
    &[FATAL, LOSS, CONGESTION, LINK, DAMAGED, OVERFLOW, FROZEN, GIVEN_UP_SINCE_BOOT, SINCE_BOOT];

/// What a counter tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Requests were given up, or are about to be.
    Fatal,
    /// Packets were lost, reordered or sent again.
    Loss,
    /// Senders are told to slow down.
    Congestion,
    /// The cable or its transceiver makes errors.
    Link,
    /// Packets came with a wrong checksum.
    Damaged,
}

/// The counters that tell of trouble, by their names in sysfs.
pub fn troubles() -> impl Iterator<Item = (&'static str, Trouble)> {
    TROUBLES.iter().copied()
}

impl Trouble {
    const ALL: [Self; 5] = [Self::Fatal, Self::Loss, Self::Congestion, Self::Link, Self::Damaged];

    const fn code(self) -> Code {
        match self {
            Self::Fatal => FATAL,
            Self::Loss => LOSS,
            Self::Congestion => CONGESTION,
            Self::Link => LINK,
            Self::Damaged => DAMAGED,
        }
    }

    const fn meaning(self) -> &'static str {
        match self {
            Self::Fatal => "the device gave requests up; their queue pairs are dead",
            Self::Loss => "packets were lost, reordered or sent again",
            Self::Congestion => "something on the way is full and asks senders to slow down",
            Self::Link => "the cable or its transceiver makes errors, or the link went down",
            Self::Damaged => {
                "packets came with a wrong checksum: something on the way changes their bytes"
            }
        }
    }
}

/// What each counter tells of. Counters that are not here count work, not trouble, or also count the orderly end of a
/// queue pair (`req_cqe_flush_error`).
const TROUBLES: &[(&str, Trouble)] = &[
    ("local_ack_timeout_err", Trouble::Fatal),
    ("out_of_buffer", Trouble::Fatal),
    ("req_cqe_error", Trouble::Fatal),
    ("req_rnr_retries_exceeded", Trouble::Fatal),
    ("req_transport_retries_exceeded", Trouble::Fatal),
    ("resp_cqe_error", Trouble::Fatal),
    ("retry_exceeded_err", Trouble::Fatal),
    ("retry_rnr_exceeded_err", Trouble::Fatal),
    ("rnr_nak_retry_err", Trouble::Fatal),
    ("rx_out_of_buffer", Trouble::Fatal),
    ("send_err", Trouble::Fatal),
    ("completer_retry_err", Trouble::Loss),
    ("duplicate_request", Trouble::Loss),
    ("implied_nak_seq_err", Trouble::Loss),
    ("out_of_seq_request", Trouble::Loss),
    ("out_of_sequence", Trouble::Loss),
    ("packet_seq_err", Trouble::Loss),
    ("rcvd_rnr_err", Trouble::Loss),
    ("rcvd_seq_err", Trouble::Loss),
    ("roce_adp_retrans", Trouble::Loss),
    ("roce_adp_retrans_to", Trouble::Loss),
    ("roce_slow_restart", Trouble::Loss),
    ("send_rnr_err", Trouble::Loss),
    ("np_cnp_sent", Trouble::Congestion),
    ("np_ecn_marked_roce_packets", Trouble::Congestion),
    ("rp_cnp_handled", Trouble::Congestion),
    ("link_downed", Trouble::Link),
    ("link_error_recovery", Trouble::Link),
    ("port_rcv_errors", Trouble::Link),
    ("symbol_error", Trouble::Link),
    ("rx_icrc_encapsulated", Trouble::Damaged),
];

/// Counters that a stopped peer does not raise: worth a warning even if it is not known when they rose.
const NEVER_ORDERLY: &[&str] = &[
    "req_rnr_retries_exceeded",
    "req_transport_retries_exceeded",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "rx_icrc_encapsulated",
];

/// Counters a full hairpin queue raises on the function packets arrive at to be passed on.
const OVERFLOW_BETWEEN: &[&str] = &["out_of_buffer", "rx_out_of_buffer"];

/// Counters it raises at the ends of the path.
const OVERFLOW_AT_ENDS: &[&str] = &[
    "out_of_sequence",
    "packet_seq_err",
    "roce_adp_retrans",
    "local_ack_timeout_err",
    "req_transport_retries_exceeded",
    "req_cqe_error",
];

/// How many more a counter shows now, by counter.
type Rises = BTreeMap<&'static str, u64>;

/// What is known of one function's counters.
struct Look<'a> {
    host: &'a str,
    rank: usize,
    device: &'a str,
    function: &'a FunctionRef,
    now: &'a BTreeMap<String, u64>,
    /// What rose since the earlier state; none where nothing can be compared.
    rises: Option<Rises>,
}

/// Looks at the counters of every function of the plan that has an RDMA device.
pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    let looks = gather(room, to);
    let explained = overflows(room, &looks, to);
    for look in &looks {
        match &look.rises {
            Some(rises) => risen(look, rises, &explained, to),
            None => since_boot(look, to),
        }
    }
    frozen(room, &looks, to);
}

fn gather<'a>(room: &Room<'a>, to: &mut Findings) -> Vec<Look<'a>> {
    let mut looks = Vec::new();
    for (rank, host) in room.plan.ranks.iter().zip(room.hosts) {
        let Ok(state) = host else { continue };
        let before = room.before.and_then(|before| before.get(rank.rank));
        for function in rank.functions.iter().filter(|function| function.rdma.is_some()) {
            let Some(device) = device_of(state, function) else {
                let what = format!("counters of {}", function.label());
                to.not_measured(
                    Section::Counters,
                    Some(&rank.host),
                    what,
                    "it has no RDMA device today",
                );
                continue;
            };
            let Some(now) = counters(device) else {
                let what = format!("counters of {}", device.name);
                to.not_measured(Section::Counters, Some(&rank.host), what, "the device shows none");
                continue;
            };
            let rises = before.and_then(|before| rises(state, before, function, now));
            if rises.is_none() && before.is_some() {
                to.not_measured(
                    Section::Counters,
                    Some(&rank.host),
                    format!("what rose on {}", device.name),
                    "the host or the device was restarted since the earlier state",
                );
            }
            looks.push(Look {
                host: &rank.host,
                rank: rank.rank,
                device: &device.name,
                function,
                now,
                rises,
            });
        }
    }
    looks
}

/// The RDMA device of a function, found by the function's MAC.
fn device_of<'a>(state: &'a HostState, function: &FunctionRef) -> Option<&'a RdmaDevice> {
    state.rdma_of(state.netdev_by_mac(function.mac)?)
}

fn counters(device: &RdmaDevice) -> Option<&BTreeMap<String, u64>> {
    device.ports.iter().map(|port| &port.counters).find(|counters| !counters.is_empty())
}

/// What rose between two states of one host; none if its counters started anew in between.
fn rises(
    state: &HostState,
    before: &HostState,
    function: &FunctionRef,
    now: &BTreeMap<String, u64>,
) -> Option<Rises> {
    let boots = (state.system.boot_id.known(), before.system.boot_id.known());
    if let (Some(now), Some(then)) = boots
        && now != then
    {
        return None;
    }
    let then = counters(device_of(before, function)?)?;
    let mut rises = Rises::new();
    for &(name, _) in TROUBLES {
        let (Some(now), Some(then)) = (now.get(name), then.get(name)) else { continue };
        let rise = now.checked_sub(*then)?;
        if rise > 0 {
            rises.insert(name, rise);
        }
    }
    Some(rises)
}

fn risen(look: &Look<'_>, rises: &Rises, explained: &BTreeSet<(usize, String)>, to: &mut Findings) {
    for trouble in Trouble::ALL {
        let named: Vec<_> = TROUBLES
            .iter()
            .filter(|(_, kind)| *kind == trouble)
            .filter_map(|(name, _)| Some((*name, *rises.get(name)?)))
            .filter(|(name, _)| !explained.contains(&(look.rank, mark(look.device, name))))
            .collect();
        if named.is_empty() {
            continue;
        }
        let evidence = named
            .iter()
            .map(|(name, rise)| {
                format!("{name}: +{rise} since the earlier state, {} in all", total(look, name))
            })
            .collect();
        to.find(
            &trouble.code(),
            Some(look.host),
            Some(look.device),
            format!("{} ({})", trouble.meaning(), names(&named)),
            evidence,
            None,
        );
    }
}

fn total(look: &Look<'_>, name: &str) -> u64 {
    look.now.get(name).copied().unwrap_or_default()
}

fn names(named: &[(&str, u64)]) -> String {
    named.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// A device's counter, as a key.
fn mark(device: &str, counter: &str) -> String {
    format!("{device} {counter}")
}

/// Without an earlier state: what is not zero, as less than an error.
fn since_boot(look: &Look<'_>, to: &mut Findings) {
    let counted: Vec<_> = TROUBLES
        .iter()
        .filter_map(|(name, trouble)| {
            let count = look.now.get(*name).copied().filter(|count| *count > 0)?;
            Some((*name, *trouble, count))
        })
        .collect();
    let (grave, light): (Vec<_>, Vec<_>) =
        counted.into_iter().partition(|(name, _, _)| NEVER_ORDERLY.contains(name));
    for (code, counted) in [(GIVEN_UP_SINCE_BOOT, grave), (SINCE_BOOT, light)] {
        if counted.is_empty() {
            continue;
        }
        let evidence = counted
            .iter()
            .map(|(name, trouble, count)| format!("{name}: {count} ({})", trouble.meaning()))
            .collect();
        let named: Vec<_> = counted.iter().map(|(name, _, count)| (*name, *count)).collect();
        to.find(
            &code,
            Some(look.host),
            Some(look.device),
            format!("not zero since boot: {}; when they rose is not known", names(&named)),
            evidence,
            None,
        );
    }
}

/// Full hairpin queues: the arriving function of a host between is out of buffers, and an end of the same rail sees
/// loss. Returns the counters so explained.
fn overflows(room: &Room<'_>, looks: &[Look<'_>], to: &mut Findings) -> BTreeSet<(usize, String)> {
    let rise =
        |function: &FunctionRef, wanted: &[&'static str]| -> Vec<(String, &'static str, u64)> {
            looks
                .iter()
                .filter(|look| look.function.mac == function.mac && look.rank == function.rank)
                .flat_map(|look| {
                    wanted.iter().filter_map(|name| {
                        let rise = *look.rises.as_ref()?.get(name)?;
                        Some((look.device.to_owned(), *name, rise))
                    })
                })
                .collect()
        };
    let mut explained = BTreeSet::new();
    // By the function that drops: several rails may pass one.
    let mut dropped: BTreeMap<(usize, String), Vec<String>> = BTreeMap::new();
    for path in room.plan.paths.iter().filter(|path| path.kind == PathKind::Forwarded) {
        for (number, rail) in path.rails.iter().enumerate() {
            let (Some(first), Some(last)) = (rail.crossings.first(), rail.crossings.last()) else {
                continue;
            };
            let ends: Vec<_> = [&first.out, &last.into]
                .into_iter()
                .map(|end| (end, rise(end, OVERFLOW_AT_ENDS)))
                .filter(|(_, rises)| !rises.is_empty())
                .collect();
            if ends.is_empty() {
                continue;
            }
            for crossing in rail.crossings.iter().take(rail.crossings.len().saturating_sub(1)) {
                for (device, counter, by) in rise(&crossing.into, OVERFLOW_BETWEEN) {
                    let lines = dropped.entry((crossing.into.rank, device.clone())).or_default();
                    let mut line = |text: String| {
                        if !lines.contains(&text) {
                            lines.push(text);
                        }
                    };
                    line(format!("{} {device}: {counter} +{by}", crossing.into.host));
                    explained.insert((crossing.into.rank, mark(&device, counter)));
                    for (end, rises) in &ends {
                        for (device, counter, by) in rises {
                            line(format!("{} {device}: {counter} +{by}", end.host));
                            explained.insert((end.rank, mark(device, counter)));
                        }
                    }
                    line(format!("passes here: path {}→{} over rail {number}", path.from, path.to));
                }
            }
        }
    }
    for ((rank, device), evidence) in dropped {
        let Some(host) = room.plan.ranks.get(rank).map(|rank| rank.host.as_str()) else { continue };
        let fix = looks
            .iter()
            .find(|look| look.rank == rank && look.device == device)
            .and_then(|look| hairpin_fix(room, look));
        to.find(
            &OVERFLOW,
            Some(host),
            Some(&device),
            "its hairpin queue overflowed: it dropped packets it should have passed on",
            evidence,
            fix,
        );
    }
    explained
}

/// The command that gives a function the larger hairpin queue.
fn hairpin_fix(room: &Room<'_>, look: &Look<'_>) -> Option<String> {
    let state = room.hosts.get(look.rank)?.as_ref().ok()?;
    let pci = state.netdev_by_mac(look.function.mac)?.pci?;
    Some(super::forwarding::hairpin_command(pci))
}

/// No rank received a write between the two looks, and no request was given up: whoever should send does not.
fn frozen(room: &Room<'_>, looks: &[Look<'_>], to: &mut Findings) {
    const ARRIVED: &str = "rx_write_requests";
    let Some(before) = room.before else { return };
    let mut evidence = Vec::new();
    for rank in &room.plan.ranks {
        let mut devices = 0;
        for look in looks.iter().filter(|look| look.rank == rank.rank) {
            let Some(rises) = &look.rises else { return };
            let gave_up = TROUBLES
                .iter()
                .any(|(name, kind)| *kind == Trouble::Fatal && rises.contains_key(name));
            let then = before
                .get(rank.rank)
                .and_then(|before| counters(device_of(before, look.function)?))
                .and_then(|then| then.get(ARRIVED));
            let (Some(now), Some(then)) = (look.now.get(ARRIVED), then) else { return };
            // Nothing ever arrived: the group has not started.
            if gave_up || now != then {
                return;
            }
            devices += 1;
            evidence.push(format!("{} {}: {ARRIVED} still {now}", rank.host, look.device));
        }
        if devices == 0 {
            return;
        }
    }
    if evidence.is_empty() {
        return;
    }
    to.find(
        &FROZEN,
        None,
        None,
        "no write arrived at any rank between the two states, and no request was given up: if the group should be \
         serving, a rank has stopped sending (a slow drive, a compiler, a full queue), and the cables are not to blame"
,
        evidence,
        None,
    );
}
