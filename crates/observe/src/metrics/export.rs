//! From cells to metric families. A label set that was never seen has no line, and a family
//! without any has no HELP or TYPE either.

use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::histogram::Histogram;
use super::process::Process;
use super::{Cells, MAX_RAILS, OPERATIONS, SCHEDULES, SizeClass};
use crate::words::{Cause, Operation, Outcome, PathKind, Schedule};

/// One family: its descriptor is written before the first sample, or never.
pub(super) struct Family<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    name: &'static str,
    help: &'static str,
    kind: MetricType,
}

impl Family<'_, '_> {
    /// Writes one sample for each item.
    pub(super) fn each<T>(
        self,
        items: impl IntoIterator<Item = T>,
        mut sample: impl FnMut(&mut MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut items = items.into_iter().peekable();
        if items.peek().is_none() {
            return Ok(());
        }
        let mut encoder = self.encoder.encode_descriptor(self.name, self.help, None, self.kind)?;
        items.try_for_each(|item| sample(&mut encoder, item))
    }
}

/// Names are given without the prefix and, for counters, without `_total`: both are added.
pub(super) struct Families<'e>(DescriptorEncoder<'e>);

impl<'e> Families<'e> {
    pub(super) fn family(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: MetricType,
    ) -> Family<'_, 'e> {
        Family { encoder: &mut self.0, name, help, kind }
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, value: Option<u64>) -> fmt::Result {
        self.family(name, help, MetricType::Gauge).each(value, |e, v| e.encode_gauge(&v))
    }

    fn counter(
        &mut self,
        name: &'static str,
        help: &'static str,
        value: Option<u64>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter).each(value, count)
    }

    /// A counter by one word; values of 0 were never seen.
    fn counter_by<'w>(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &str,
        words: impl Iterator<Item = &'w str>,
        cells: &[AtomicU64],
    ) -> fmt::Result {
        let seen = words.zip(cells).filter_map(|(w, c)| seen(c).map(|v| (w, v)));
        self.family(name, help, MetricType::Counter)
            .each(seen, |e, (word, v)| count(&mut e.encode_family(&[(label, word)])?, v))
    }

    fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        histogram: &Histogram,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Histogram).each(histogram.read(), |e, r| {
            e.encode_histogram::<NoLabelSet>(r.sum_seconds, r.count, &r.buckets, None)
        })
    }
}

fn seen(cell: &AtomicU64) -> Option<u64> {
    Some(cell.load(Relaxed)).filter(|value| *value > 0)
}

pub(super) fn count(encoder: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

impl Collector for Cells {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        self.encode_group(&mut families, Instant::now())?;
        self.encode_serving(&mut families)?;
        encode_process(&mut families, &Process::read())?;
        let build = [("version", env!("CARGO_PKG_VERSION"))];
        families
            .family("build", "The version of the running program.", MetricType::Info)
            .each([()], |e, ()| e.encode_info(&build))
    }
}

impl Cells {
    fn encode_group(&self, out: &mut Families<'_>, now: Instant) -> fmt::Result {
        let seen_collectives = self.collectives.iter().enumerate().filter_map(|(index, h)| {
            let class = SizeClass((index / SCHEDULES % SizeClass::COUNT) as u8);
            let operation = Operation::from_index(index / SCHEDULES / SizeClass::COUNT)?;
            let schedule = Schedule::from_index(index % SCHEDULES)?;
            Some((operation, class, schedule, h.read()?))
        });
        debug_assert_eq!(self.collectives.len(), OPERATIONS * SizeClass::COUNT * SCHEDULES);
        out.family(
            "collective_duration_seconds",
            "Time of a collective on this rank, by operation, largest size of its class and schedule.",
            MetricType::Histogram,
        )
        .each(seen_collectives, |e, (operation, class, schedule, r)| {
            let labels = [
                ("operation", operation.as_str()),
                ("size_class", class.as_str()),
                ("schedule", schedule.as_str()),
            ];
            e.encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(r.sum_seconds, r.count, &r.buckets, None)
        })?;
        out.gauge("epoch", "Epoch of the group.", self.live.epoch.get())?;
        out.gauge(
            "sequence",
            "Sequence of the latest collective; it wraps.",
            self.live.sequence.get(),
        )?;
        out.family(
            "wait_age_seconds",
            "Age of the current wait, by awaited peer and the peer's phase.",
            MetricType::Gauge,
        )
        .each(self.live.wait.get(now, self.live.base), |e, (peer, phase, age)| {
            let peer = peer.to_string();
            e.encode_family(&[("peer", peer.as_str()), ("phase", phase.as_str())])?
                .encode_gauge(&age.as_secs_f64())
        })?;
        let causes = Cause::ALL.iter().map(|c| c.as_str());
        out.counter_by("stalls", "Stalls by the verdict's cause.", "cause", causes, &self.stalls)?;
        out.counter(
            "recoveries",
            "Times the group formed again after a failure.",
            seen(&self.recoveries),
        )?;
        let sent = PathKind::ALL.iter().flat_map(|kind| {
            let rails = self.path_bytes[kind.index()].iter().enumerate();
            rails.filter_map(move |(rail, cell)| Some((kind, rail, seen(cell)?)))
        });
        out.family(
            "path_bytes",
            "Payload bytes sent, by kind of path and rail.",
            MetricType::Counter,
        )
        .each(sent, |e, (kind, rail, v)| {
            let rail = if rail == MAX_RAILS { format!("{MAX_RAILS}+") } else { rail.to_string() };
            count(&mut e.encode_family(&[("path", kind.as_str()), ("rail", rail.as_str())])?, v)
        })?;
        let downs = self.rail_downs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        out.family("rail_downs", "Failures of a rail, by peer and rail.", MetricType::Counter)
            .each(downs, |e, ((peer, rail), v)| {
                let (peer, rail) = (peer.to_string(), rail.to_string());
                count(&mut e.encode_family(&[("peer", peer.as_str()), ("rail", rail.as_str())])?, v)
            })?;
        out.gauge(
            "relay_queue_depth",
            "Fragments waiting in this rank to be re-sent for others.",
            self.relay_queue.get(),
        )?;
        self.rdma.encode(out)
    }

    fn encode_serving(&self, out: &mut Families<'_>) -> fmt::Result {
        out.gauge("requests_running", "Requests being run.", self.live.running.get())?;
        out.gauge("requests_waiting", "Requests waiting to be run.", self.waiting.get())?;
        let outcomes = Outcome::ALL.iter().map(|o| o.as_str());
        out.counter_by(
            "requests",
            "Requests ended, by outcome.",
            "outcome",
            outcomes,
            &self.requests,
        )?;
        let serves = self.serves_requests.load(Relaxed);
        let measured =
            |cell: &AtomicU64| Some(cell.load(Relaxed)).filter(|value| serves || *value > 0);
        out.counter("prefill_tokens", "Prompt tokens prefilled.", measured(&self.prefill_tokens))?;
        out.counter("generated_tokens", "Tokens generated.", measured(&self.generated_tokens))?;
        out.histogram(
            "time_to_first_token_seconds",
            "Time from a request's admission to its first token.",
            &self.first_token,
        )?;
        out.histogram(
            "time_per_token_seconds",
            "Time between two tokens of a request.",
            &self.per_token,
        )?;
        out.gauge("kv_cache_used_bytes", "Key-value cache in use.", self.kv_used.get())?;
        out.gauge("kv_cache_limit_bytes", "Limit of the key-value cache.", self.kv_limit.get())
    }
}

fn encode_process(out: &mut Families<'_>, process: &Process) -> fmt::Result {
    out.family("process_cpu_seconds", "CPU time of this process.", MetricType::Counter)
        .each(process.cpu_seconds, |e, v| e.encode_counter::<NoLabelSet, _, f64>(&v, None))?;
    out.gauge(
        "process_resident_memory_bytes",
        "Resident memory of this process.",
        process.resident_bytes,
    )?;
    out.gauge("process_threads", "Threads of this process.", process.threads)?;
    out.gauge("process_open_fds", "Open file descriptors of this process.", process.open_fds)
}
