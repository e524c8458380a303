//! Kernel, limits, clocks and drives.

use std::collections::BTreeMap;

use super::capture::VARIABLES;
use super::host_state::{Drive, System};
use super::of::names_below;
use super::{Recording, Seen};

/// Bytes of a sector as `/sys/block/*/size` counts them, whatever the drive's own are.
const SECTOR_BYTES: u64 = 512;

/// Block devices that are no drives.
const NO_DRIVES: &[&str] = &["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "zd"];

pub(super) fn system(recording: &Recording) -> System {
    let text = |path: &str| seen_file(recording, path, |content| Some(content.to_owned()));
    System {
        kernel: text("/proc/sys/kernel/osrelease"),
        command_line: text("/proc/cmdline"),
        boot_id: text("/proc/sys/kernel/random/boot_id"),
        machine: digest(recording, "machine-id"),
        clock_ahead_ns: clock(recording),
        ip_forward: seen_file(
            recording,
            "/proc/sys/net/ipv4/ip_forward",
            |content| match content {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            },
        ),
        io_uring_disabled: seen_file(recording, "/proc/sys/kernel/io_uring_disabled", |content| {
            content.parse().ok()
        }),
        seccomp: seen_file(recording, "/proc/self/status", |content| {
            field(content, "Seccomp:")?.parse().ok()
        }),
        memlock_bytes: seen_file(recording, "/proc/self/limits", memlock),
        cma_bytes: seen_file(recording, "/proc/meminfo", |content| {
            Some((kibibytes(content, "CmaTotal:")?, kibibytes(content, "CmaFree:")?))
        }),
        forwarded_datagrams: seen_file(recording, "/proc/net/snmp", |content| {
            snmp(content, "ForwDatagrams")
        }),
        binary: digest(recording, "binary"),
        cluster_file: digest(recording, "cluster-file"),
        environment: match recording.printed("environment") {
            Err(why) => Seen::NotMeasured(why),
            Ok(text) => Seen::Known(environment(text)),
        },
    }
}

pub(super) fn drives(recording: &Recording) -> Seen<Vec<Drive>> {
    let names = names_below(recording, "/sys/block/");
    if names.is_empty() {
        return Seen::NotMeasured("/sys/block: nothing could be read".to_owned());
    }
    let drive = |name: &str| {
        let sectors: u64 = recording.file(&format!("/sys/block/{name}/size"))?.parse().ok()?;
        let is_drive = sectors > 0 && !NO_DRIVES.iter().any(|prefix| name.starts_with(prefix));
        is_drive.then(|| Drive {
            name: name.to_owned(),
            size_bytes: sectors.saturating_mul(SECTOR_BYTES),
            model: recording.file(&format!("/sys/block/{name}/device/model")).map(str::to_owned),
            reads_per_second: measured(recording, name),
        })
    };
    Seen::Known(names.into_iter().filter_map(drive).collect())
}

/// What a timed measurement of a drive left behind for checks.
fn measured(recording: &Recording, drive: &str) -> Seen<u64> {
    let path = format!("/var/lib/railweave/drives/{drive}/reads_per_second");
    match recording.file(&path) {
        None => Seen::NotMeasured("nobody measured this drive yet".to_owned()),
        Some(_) => seen_file(recording, &path, |content| content.parse().ok()),
    }
}

/// A file's meaning, or why it has none.
pub(super) fn seen_file<T>(
    recording: &Recording,
    path: &str,
    means: impl Fn(&str) -> Option<T>,
) -> Seen<T> {
    match recording.file(path) {
        None => Seen::NotMeasured(format!("{path}: not there, or not readable")),
        Some(content) => match means(content) {
            Some(value) => Seen::Known(value),
            None => {
                let start: String = content.chars().take(40).collect();
                Seen::NotMeasured(format!("{path}: {start:?} was not understood"))
            }
        },
    }
}

/// The first word after a label at the start of a line.
fn field<'a>(content: &'a str, label: &str) -> Option<&'a str> {
    content.lines().find_map(|line| line.strip_prefix(label))?.split_whitespace().next()
}

fn kibibytes(content: &str, label: &str) -> Option<u64> {
    field(content, label)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit, which a process starts with.
fn memlock(content: &str) -> Option<Option<u64>> {
    match field(content, "Max locked memory")? {
        "unlimited" => Some(None),
        bytes => Some(Some(bytes.parse().ok()?)),
    }
}

/// A value of the two lines, names and values, that `/proc/net/snmp` has for IP.
fn snmp(content: &str, name: &str) -> Option<u64> {
    let mut lines = content.lines().filter_map(|line| line.strip_prefix("Ip:"));
    let place = lines.next()?.split_whitespace().position(|column| column == name)?;
    lines.next()?.split_whitespace().nth(place)?.parse().ok()
}

/// The SHA-256 a tool printed first.
fn digest(recording: &Recording, tool: &str) -> Seen<String> {
    let text = match recording.printed(tool) {
        Err(why) => return Seen::NotMeasured(why),
        Ok(text) => text,
    };
    match text.split_whitespace().next() {
        Some(word) if word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Seen::Known(word.to_ascii_lowercase())
        }
        _ => Seen::NotMeasured(format!("{tool}: printed no SHA-256")),
    }
}

/// What the host's clock showed, then what the reader's showed before it asked and after it had the answer. The host
/// read its own at some moment between: the middle is assumed, and half of the time between is the error.
fn clock(recording: &Recording) -> Seen<(i64, u64)> {
    let text = match recording.printed("clock") {
        Err(why) => return Seen::NotMeasured(why),
        Ok(text) => text,
    };
    let times: Option<Vec<i128>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    let measured = match times.as_deref() {
        Some([_]) => return Seen::NotMeasured("clock: when it was read is not known".to_owned()),
        Some([there, before, after]) if before <= after => {
            // Times of any length were read: their differences are checked, not assumed to fit.
            let round = after.checked_sub(*before);
            let middle = round.and_then(|round| before.checked_add(round / 2));
            let ahead = middle.and_then(|middle| there.checked_sub(middle));
            ahead.zip(round).and_then(|(ahead, round)| {
                Some((ahead.try_into().ok()?, (round / 2).try_into().ok()?))
            })
        }
        _ => None,
    };
    measured.map_or_else(|| Seen::NotMeasured("clock: was not understood".to_owned()), Seen::Known)
}

fn environment(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| VARIABLES.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}
