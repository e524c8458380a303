//! What a port counts: work done, packets lost, requests given up, requests to slow down.
//!
//! Names are those of soft RoCE (Linux 6.1, `drivers/infiniband/sw/rxe/rxe_hw_counters.c`) and of
//! mlx5 (`drivers/infiniband/hw/mlx5/counters.c`, and the port counters of
//! `drivers/infiniband/core/sysfs.c`). Which of them tell of trouble is decided where
//! `railweave check` looks at them too: [`cluster::check::troubles`].
//!
//! Two functions of one port are one wire and count the same packets, so nothing is summed.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use cluster::check::{Trouble, troubles};

use super::error::VerbsCause;
use super::provider::Nic;
use crate::device::RailFault;

/// Where the kernel shows its RDMA devices.
pub const DEVICES_ROOT: &str = "/sys/class/infiniband";

/// Counters of work. Those named `data` count in units of four bytes.
const PROGRESS: &[&str] = &[
    "ack_deferred",
    "port_rcv_data",
    "port_rcv_packets",
    "port_xmit_data",
    "port_xmit_packets",
    "rcvd_pkts",
    "rdma_recvs",
    "rdma_sends",
    "rx_atomic_requests",
    "rx_read_requests",
    "rx_write_requests",
    "sent_pkts",
];
/// Folders of a port in the order in which a name is looked for.
const FOLDERS: [&str; 2] = ["hw_counters", "counters"];
/// Most digits of 64 bits, and the end of the line.
const VALUE_BYTES_MAX: u64 = 21;
/// Most counters that a fault names.
const RISES_MAX: usize = 6;

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CounterGroup {
    /// Requests were given up, or are about to be.
    Fatal,
    /// Packets were lost, damaged, reordered or sent again.
    Loss,
    /// Senders are told to slow down.
    Congestion,
    /// Work done.
    Progress,
}

impl CounterGroup {
    /// All groups.
    pub const ALL: [Self; 4] = [Self::Fatal, Self::Loss, Self::Congestion, Self::Progress];

    /// Its word in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fatal => "fatal",
            Self::Loss => "loss",
            Self::Congestion => "congestion",
            Self::Progress => "progress",
        }
    }
}

impl From<Trouble> for CounterGroup {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Fatal => Self::Fatal,
            Trouble::Loss | Trouble::Link | Trouble::Damaged => Self::Loss,
            Trouble::Congestion => Self::Congestion,
        }
    }
}

/// Every counter that is known here, with its group.
fn known() -> impl Iterator<Item = (&'static str, CounterGroup)> {
    let work = PROGRESS.iter().map(|name| (*name, CounterGroup::Progress));
    troubles().map(|(name, trouble)| (name, trouble.into())).chain(work)
}

/// One port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePort {
    /// The device by its name.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
}

/// One counter at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Its name in sysfs.
    pub name: &'static str,
    /// What it counts.
    pub group: CounterGroup,
    /// Since the driver was loaded; counters named `data` in units of four bytes.
    pub value: u64,
}

/// What a port counted up to one moment. A counter that the driver lacks is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    counts: Vec<Count>,
}

impl PortCounts {
    /// Reads the known counters of a port below `root`, such as [`DEVICES_ROOT`]. What cannot be
    /// read is not measured.
    pub fn read(root: &Path, port: &DevicePort) -> Self {
        if port.device.contains('/') || port.device.starts_with('.') {
            return Self::default();
        }
        let folder = root.join(&port.device).join("ports").join(port.port.to_string());
        let folders = FOLDERS.map(|name| folder.join(name));
        let value = |name| folders.iter().find_map(|folder| read_value(&folder.join(name)));
        let count = |(name, group)| value(name).map(|value| Count { name, group, value });
        Self { counts: known().filter_map(count).collect() }
    }

    /// What devices that are none have counted, by names that are known here.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn of(values: &[(&str, u64)]) -> Self {
        let value = |name| values.iter().find(|(it, _)| *it == name).map(|(_, value)| *value);
        let count = |(name, group)| value(name).map(|value| Count { name, group, value });
        Self { counts: known().filter_map(count).collect() }
    }

    /// What was measured.
    pub fn counts(&self) -> &[Count] {
        &self.counts
    }

    /// Whether any counter of a group was measured.
    pub fn measures(&self, group: CounterGroup) -> bool {
        self.counts.iter().any(|count| count.group == group)
    }

    fn value(&self, name: &str) -> Option<u64> {
        self.counts.iter().find(|count| count.name == name).map(|count| count.value)
    }

    /// Which counters of loss and of requests given up rose since an earlier moment. None if none
    /// was measured at both, or if one fell: the driver was loaded anew in between.
    pub fn rises_since(&self, earlier: &Self) -> Option<Rises> {
        let (mut rises, mut compared) = (Vec::new(), false);
        for count in &self.counts {
            if !matches!(count.group, CounterGroup::Loss | CounterGroup::Fatal) {
                continue;
            }
            let Some(before) = earlier.value(count.name) else { continue };
            compared = true;
            let by = count.value.checked_sub(before)?;
            if by > 0 {
                rises.push((count.group, Rise { counter: count.name, by }));
            }
        }
        rises.sort_by_key(|(group, rise)| (*group, std::cmp::Reverse(rise.by)));
        let more = rises.len().saturating_sub(RISES_MAX);
        let named = rises.into_iter().take(RISES_MAX).map(|(_, rise)| rise).collect();
        compared.then_some(Rises { named, more })
    }
}

fn read_value(path: &Path) -> Option<u64> {
    let mut text = String::new();
    File::open(path).ok()?.take(VALUE_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// By how much a counter rose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rise {
    /// Its name in sysfs.
    pub counter: &'static str,
    /// By how much; more than 0.
    pub by: u64,
}

/// Which counters of loss and of requests given up rose; the latter first, then the largest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rises {
    /// At most six.
    pub named: Vec<Rise>,
    /// How many more there were.
    pub more: usize,
}

impl fmt::Display for Rises {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.named.is_empty() {
            return f.write_str("no loss counted");
        }
        for (index, Rise { counter, by }) in self.named.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{counter} +{by}")?;
        }
        if self.more > 0 {
            write!(f, " and {} more", self.more)?;
        }
        Ok(())
    }
}

/// Adds to a fault what its device counted since the epoch began. A device that is gone is not
/// asked: its driver may take minutes to answer.
pub(super) fn add_rises(fault: &mut RailFault, began: &PortCounts, nic: &dyn Nic) {
    if let RailFault::Verbs(fault) = fault
        && fault.cause != VerbsCause::DeviceGone
    {
        fault.rises = nic.counts().rises_since(began);
    }
}

#[cfg(test)]
#[path = "counters_tests.rs"]
mod tests;
