//! Kernel, limits, clocks, versions.

use std::collections::{BTreeMap, BTreeSet};

use super::{Code, Findings, Level, Room, Section, view};
use crate::inventory::capture::CLUSTER_FILE;
use crate::inventory::host_state::System;
use crate::inventory::{HostState, Seen};
use crate::plan::RankPlan;

const SECTION: Section = Section::Hosts;

const fn code(id: &'static str, level: Level, title: &'static str) -> Code {
    Code { id, level, section: SECTION, title }
}

const MEMLOCK: Code = code("RW-HST-01", Level::Error, "locked memory is limited");
const KHO: Code = code("RW-HST-02", Level::Error, "this kernel refuses to register memory");
const CLOCK: Code = code("RW-HST-03", Level::Warning, "clocks differ by more than a second");
const BINARY: Code = code("RW-HST-04", Level::Warning, "hosts run different programs");
const CONFIG: Code = code("RW-HST-05", Level::Error, "hosts have different cluster files");
const KERNEL: Code = code("RW-HST-06", Level::Warning, "hosts run different kernels");
const IO_URING: Code = code("RW-HST-07", Level::Warning, "the kernel refuses io_uring");
const SECCOMP: Code = code("RW-HST-08", Level::Warning, "a container's filter may refuse io_uring");
const ONE_MACHINE: Code = code("RW-HST-09", Level::Error, "two hosts are one machine");
const CLONED: Code = code("RW-HST-10", Level::Warning, "two machines have one id");
const REBOOTED: Code = code("RW-HST-11", Level::Warning, "the host was restarted");

pub(super) const CODES: &[Code] = &[
    MEMLOCK,
    KHO,
    CLOCK,
    BINARY,
    CONFIG,
    KERNEL,
    IO_URING,
    SECCOMP,
    ONE_MACHINE,
    CLONED,
    REBOOTED,
];

/// Two clocks further apart than this make logs of two hosts unreadable side by side, in nanoseconds.
const SKEW_LIMIT_NS: i128 = 1_000_000_000;

type Host<'a> = (&'a RankPlan, &'a HostState);

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    let hosts: Vec<Host<'_>> = room
        .plan
        .ranks
        .iter()
        .filter_map(|rank| Some((rank, view::host(room, rank.rank)?)))
        .collect();
    for host in &hosts {
        if uses_rdma(*host) {
            memlock(*host, to);
            kho(*host, to);
        }
        io_uring(*host, to);
        rebooted(room, *host, to);
    }
    clocks(&hosts, to);
    let config = |right: usize, wrong: usize| copy_file(room, right, wrong);
    alike(&hosts, &BINARY, "binary", |system| &system.binary, |_, _| None, to);
    alike(&hosts, &CONFIG, "cluster file", |system| &system.cluster_file, config, to);
    alike(&hosts, &KERNEL, "kernel", |system| &system.kernel, |_, _| None, to);
    machines(room, &hosts, to);
}

/// Whether memory of this host is to be registered with a device.
fn uses_rdma((rank, state): Host<'_>) -> bool {
    rank.functions.iter().any(|function| function.rdma.is_some()) || !state.rdma.is_empty()
}

fn memlock((rank, state): Host<'_>, to: &mut Findings) {
    match &state.system.memlock_bytes {
        Seen::Known(None) => to.looked(SECTION, 1, "hosts: locked memory is not limited"),
        Seen::Known(Some(bytes)) => to.find(
            &MEMLOCK,
            Some(&rank.host),
            None,
            format!("a process may lock {bytes} bytes of memory: registering more than that with a device fails"),
            vec![format!("max locked memory: {bytes} bytes"), "wanted: unlimited".to_owned()],
            Some(
                "printf '* - memlock unlimited\\nroot - memlock unlimited\\n' | \
                 sudo tee /etc/security/limits.d/90-railweave.conf   # then log in again"
                    .to_owned(),
            ),
        ),
        Seen::NotMeasured(why) => {
            to.not_measured(SECTION, Some(&rank.host), "limit of locked memory", why.as_str());
        }
    }
}

/// Kernels `7.0.*-nvidia` keep memory for a kexec handover and lose the contiguous allocator to it, unless told
/// `kho=off`; registering even 1 KiB then fails with ENOMEM. It shows as `CmaTotal: 0 kB`.
fn kho((rank, state): Host<'_>, to: &mut Findings) {
    let System { kernel, command_line, cma_bytes, .. } = &state.system;
    let Seen::Known(kernel) = kernel else {
        return; // That the kernel is not known is told once, where kernels are compared.
    };
    if !(kernel.starts_with("7.0.") && kernel.contains("-nvidia")) {
        to.looked(SECTION, 1, "hosts: kernels that register memory");
        return;
    }
    let Seen::Known(command_line) = command_line else {
        let why = command_line.reason().unwrap_or_default();
        to.not_measured(SECTION, Some(&rank.host), "the kernel's command line (kho=off)", why);
        return;
    };
    let cma = match cma_bytes {
        Seen::Known((total, free)) => format!("CmaTotal: {total} bytes, CmaFree: {free} bytes"),
        Seen::NotMeasured(why) => format!("CmaTotal: not measured: {why}"),
    };
    let off = command_line.split_whitespace().any(|word| word == "kho=off");
    // Memory in the contiguous allocator means that the handover did not take it.
    let works = cma_bytes.known().is_some_and(|(total, _)| *total > 0);
    if off || works {
        to.looked(SECTION, 1, "hosts: kernels that register memory");
        return;
    }
    to.find(
        &KHO,
        Some(&rank.host),
        None,
        format!("kernel {kernel} without kho=off: registering memory with a device fails (ENOMEM)"),
        vec![format!("kernel: {kernel}"), "command line: no kho=off".to_owned(), cma],
        Some(
            "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX kho=off\"' | \
             sudo tee /etc/default/grub.d/90-railweave.cfg && sudo update-grub   # then restart the host"
                .to_owned(),
        ),
    );
}

fn io_uring((rank, state): Host<'_>, to: &mut Findings) {
    match &state.system.io_uring_disabled {
        Seen::Known(0) => to.looked(SECTION, 1, "hosts: io_uring is allowed"),
        Seen::Known(value) => {
            let who = if *value == 1 { "all but root and one group" } else { "everyone" };
            to.find(
                &IO_URING,
                Some(&rank.host),
                None,
                format!("io_uring is refused to {who}: table rows are read by slower means"),
                vec![format!("kernel.io_uring_disabled = {value}")],
                Some("sudo sysctl -w kernel.io_uring_disabled=0".to_owned()),
            );
        }
        Seen::NotMeasured(why) => {
            to.not_measured(SECTION, Some(&rank.host), "whether io_uring is allowed", why.as_str());
        }
    }
    match &state.system.seccomp {
        Seen::Known(2) => to.find(
            &SECCOMP,
            Some(&rank.host),
            None,
            "system calls are filtered here: container profiles such as Docker's own refuse io_uring, and table rows \
             are then read by slower means",
            vec!["/proc/self/status: Seccomp: 2 (filtered)".to_owned()],
            Some(
                "docker run --security-opt seccomp=unconfined …   # or a profile that adds \
                 the three io_uring calls"
                    .to_owned(),
            ),
        ),
        Seen::Known(_) => to.looked(SECTION, 1, "hosts: system calls are not filtered"),
        Seen::NotMeasured(why) => {
            to.not_measured(SECTION, Some(&rank.host), "whether system calls are filtered", why.as_str());
        }
    }
}

/// What the kernel was told does not survive a restart: routes, neighbours, filters, queue sizes, markers.
fn rebooted(room: &Room<'_>, (rank, state): Host<'_>, to: &mut Findings) {
    let Some(before) = room.before.and_then(|before| before.get(rank.rank)) else { return };
    match (&before.system.boot_id, &state.system.boot_id) {
        (Seen::Known(then), Seen::Known(now)) if then == now => {
            to.looked(SECTION, 1, "hosts: not restarted since the earlier state");
        }
        (Seen::Known(then), Seen::Known(now)) => to.find(
            &REBOOTED,
            Some(&rank.host),
            None,
            "restarted since the earlier state: routes, neighbours, filters, markers and queue sizes that were set \
             then are gone unless something set them again",
            vec![format!("boot id then: {then}"), format!("boot id now: {now}")],
            Some(format!("railweave apply --diff --host {0} && railweave apply --apply --host {0}", rank.host)),
        ),
        (Seen::NotMeasured(why), _) | (_, Seen::NotMeasured(why)) => {
            to.not_measured(
                SECTION,
                Some(&rank.host),
                "whether it was restarted since the earlier state",
                why.as_str(),
            );
        }
    }
}

/// Clocks: `(place in hosts, ahead of the reader in ns, error in ns)`.
type Clock = (usize, i128, i128);

fn clocks(hosts: &[Host<'_>], to: &mut Findings) {
    let mut clocks: Vec<Clock> = Vec::new();
    for (place, (rank, state)) in hosts.iter().enumerate() {
        match &state.system.clock_ahead_ns {
            Seen::Known((ahead, error)) => {
                clocks.push((place, i128::from(*ahead), i128::from(*error)));
            }
            Seen::NotMeasured(why) => {
                to.not_measured(SECTION, Some(&rank.host), "its clock", why.as_str());
            }
        }
    }
    let apart = |a: &Clock, b: &Clock| (a.1 - b.1).abs() - (a.2 + b.2) > SKEW_LIMIT_NS;
    let unsure =
        |a: &Clock, b: &Clock| !apart(a, b) && (a.1 - b.1).abs() + a.2 + b.2 > SKEW_LIMIT_NS;
    // The clock that most others agree with is taken for the right one; of equals, the lowest rank's.
    let Some(reference) = clocks
        .iter()
        .min_by_key(|clock| (clocks.iter().filter(|other| apart(clock, other)).count(), clock.0))
        .copied()
    else {
        return;
    };
    let name = |clock: &Clock| hosts.get(clock.0).map_or("", |(rank, _)| rank.host.as_str());
    let mut agree = 0;
    let tell = |clock: &Clock, other: &Clock, to: &mut Findings| {
        let evidence = [clock, other]
            .map(|clock| {
                format!(
                    "{}: {:+.3} s ± {:.3} s from the reader's clock",
                    name(clock),
                    seconds(clock.1),
                    seconds(clock.2)
                )
            })
            .to_vec();
        let (apart_s, side) = (
            seconds((clock.1 - other.1).abs()),
            if clock.1 > other.1 { "ahead of" } else { "behind" },
        );
        to.find(
            &CLOCK,
            Some(name(clock)),
            None,
            format!("its clock is {apart_s:.1} s {side} {}'s", name(other)),
            evidence,
            Some("sudo timedatectl set-ntp true && sudo chronyc makestep".to_owned()),
        );
    };
    let mut near: Vec<Clock> = Vec::new();
    for clock in &clocks {
        if apart(clock, &reference) {
            tell(clock, &reference, to);
        } else if clock.0 != reference.0 && unsure(clock, &reference) {
            let why = format!(
                "the host answers too slowly to tell: ± {:.1} s",
                seconds(clock.2 + reference.2)
            );
            to.not_measured(SECTION, Some(name(clock)), "its clock", why);
        } else {
            near.push(*clock);
            agree += 1;
        }
    }
    // Each near to the reference, yet two of them far from each other.
    let (first, last) =
        (near.iter().min_by_key(|clock| clock.1), near.iter().max_by_key(|clock| clock.1));
    if let (Some(first), Some(last)) = (first, last)
        && apart(first, last)
    {
        tell(last, first, to);
        agree = 0;
    }
    if agree > 1 {
        to.looked(SECTION, agree, "hosts: clocks within a second of each other");
    }
}

fn seconds(ns: i128) -> f64 {
    ns as f64 / 1e9
}

/// What most hosts have is taken for right; of equals, what the lowest rank has. The others are told.
fn alike(
    hosts: &[Host<'_>],
    code: &Code,
    what: &str,
    value: impl for<'s> Fn(&'s System) -> &'s Seen<String>,
    fix: impl Fn(usize, usize) -> Option<String>,
    to: &mut Findings,
) {
    let mut by_value: BTreeMap<&str, Vec<&RankPlan>> = BTreeMap::new();
    for (rank, state) in hosts {
        match value(&state.system) {
            Seen::Known(value) => by_value.entry(value).or_default().push(rank),
            Seen::NotMeasured(why) if hosts.len() > 1 => {
                to.not_measured(SECTION, Some(&rank.host), format!("its {what}"), why.as_str());
            }
            Seen::NotMeasured(_) => {}
        }
    }
    let names = |ranks: &[&RankPlan]| {
        ranks.iter().map(|rank| rank.host.as_str()).collect::<Vec<_>>().join(", ")
    };
    let first = |ranks: &[&RankPlan]| ranks.first().map_or(usize::MAX, |rank| rank.rank);
    let Some((usual, usual_ranks)) =
        by_value.iter().max_by_key(|(_, ranks)| (ranks.len(), std::cmp::Reverse(first(ranks))))
    else {
        return;
    };
    if by_value.len() == 1 {
        if usual_ranks.len() > 1 {
            to.looked(SECTION, usual_ranks.len(), &format!("hosts: the same {what}"));
        }
        return;
    }
    let usual_names = names(usual_ranks);
    for (value, ranks) in by_value.iter().filter(|(value, _)| *value != usual) {
        for rank in ranks {
            let evidence = vec![
                format!("{usual_names}: {}", short(usual)),
                format!("{}: {}", names(ranks), short(value)),
            ];
            let message = format!("its {what} is not the one of {usual_names}");
            let fix = fix(first(usual_ranks), rank.rank);
            to.find(code, Some(&rank.host), None, message, evidence, fix);
        }
    }
}

/// The command that copies the cluster file from one host to another, where both are reached by SSH.
fn copy_file(room: &Room<'_>, from: usize, to: usize) -> Option<String> {
    let target = |rank: usize| room.file.hosts.get(rank)?.reach.strip_prefix("ssh:");
    let (from, to) = (target(from)?, target(to)?);
    Some(format!("scp -3 {from}:{CLUSTER_FILE} {to}:{CLUSTER_FILE}"))
}

/// A digest's first digits tell it apart from another; anything else stays whole.
fn short(value: &str) -> &str {
    if value.len() == 64 && value.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        value.get(..16).unwrap_or(value)
    } else {
        value
    }
}

/// Two hosts with one machine id are one machine, written down twice, or a copied disk. Network namespaces of one
/// machine are hosts on purpose.
fn machines(room: &Room<'_>, hosts: &[Host<'_>], to: &mut Findings) {
    let mut by_machine: BTreeMap<&str, Vec<Host<'_>>> = BTreeMap::new();
    for host in hosts {
        let reach = room.file.hosts.get(host.0.rank).map_or("", |entry| entry.reach.as_str());
        if reach.starts_with("netns:") {
            continue;
        }
        if let Seen::Known(machine) = &host.1.system.machine {
            by_machine.entry(machine).or_default().push(*host);
        }
    }
    for (machine, hosts) in by_machine.iter().filter(|(_, hosts)| hosts.len() > 1) {
        let names =
            hosts.iter().map(|(rank, _)| rank.host.as_str()).collect::<Vec<_>>().join(" and ");
        let boots: BTreeSet<_> =
            hosts.iter().filter_map(|(_, state)| state.system.boot_id.known()).collect();
        let evidence = hosts
            .iter()
            .map(|(rank, state)| {
                let boot = state.system.boot_id.known().map_or("not measured", String::as_str);
                format!("{}: machine {}, boot id {boot}", rank.host, short(machine))
            })
            .collect();
        let Some((last, _)) = hosts.last() else { continue };
        if boots.len() == 1 {
            to.find(
                &ONE_MACHINE,
                Some(&last.host),
                None,
                format!("{names} lead to one and the same machine"),
                evidence,
                None,
            );
        } else if boots.len() > 1 {
            to.find(
                &CLONED,
                Some(&last.host),
                None,
                format!("{names} have one machine id: one's disk was copied from the other's"),
                evidence,
                Some("sudo rm /etc/machine-id && sudo systemd-machine-id-setup   # then restart the host".to_owned()),
            );
        } else {
            to.not_measured(
                SECTION,
                Some(&last.host),
                format!("whether {names} are one machine: they have one machine id"),
                "no boot id was read",
            );
        }
    }
}
