//! What the RDMA devices of a rank counted, as it was last read.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::MetricType;

use super::export::{Families, count};

/// Most ports of a rank that are shown.
const MAX_PORTS: usize = 32;
/// Most counters of a port that are shown.
const MAX_COUNTERS: usize = 128;

/// One counter of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaCount {
    /// Its name, as its driver gives it.
    pub counter: Cow<'static, str>,
    /// What kind of thing it counts, in one word.
    pub group: &'static str,
    /// Since the driver was loaded.
    pub value: u64,
}

/// What is known of one port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaPort {
    /// The device by its name.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// What was read.
    pub counts: Vec<RdmaCount>,
    /// Groups of which nothing could be read.
    pub not_measured: Vec<&'static str>,
}

/// The latest reading.
#[derive(Debug, Default)]
pub(super) struct RdmaCells(Mutex<Vec<RdmaPort>>);

impl RdmaCells {
    pub(super) fn set(&self, mut ports: Vec<RdmaPort>) {
        ports.truncate(MAX_PORTS);
        ports.iter_mut().for_each(|port| port.counts.truncate(MAX_COUNTERS));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ports;
    }

    pub(super) fn encode(&self, out: &mut Families<'_>) -> fmt::Result {
        let ports = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let counts = ports.iter().flat_map(|port| port.counts.iter().map(move |it| (port, it)));
        out.family(
            "rdma_counter",
            "What a port of an RDMA device counted, by the driver's name of the counter.",
            MetricType::Counter,
        )
        .each(counts, |e, (port, it)| {
            let number = port.port.to_string();
            let labels = [
                ("device", port.device.as_str()),
                ("port", number.as_str()),
                ("group", it.group),
                ("counter", it.counter.as_ref()),
            ];
            count(&mut e.encode_family(&labels)?, it.value)
        })?;
        let missing =
            ports.iter().flat_map(|port| port.not_measured.iter().map(move |group| (port, group)));
        out.family(
            "rdma_not_measured",
            "A group of counters that a port of an RDMA device lacks.",
            MetricType::Info,
        )
        .each(missing, |e, (port, group)| {
            let number = port.port.to_string();
            e.encode_info(&[
                ("device", port.device.as_str()),
                ("port", number.as_str()),
                ("group", group),
            ])
        })
    }
}
