//! The metrics of a rank: typed cells to set, Prometheus text out.

mod export;
mod histogram;
mod process;
mod rdma;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;

use crate::identity::Identity;
use crate::live::{Live, OptionalCell};
use crate::words::{Cause, Operation, Outcome, PathKind, Phase, Schedule};
use histogram::Histogram;
pub use rdma::{RdmaCount, RdmaPort};

/// The `Content-Type` of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Rails counted one by one; bytes of higher rails are counted together.
const MAX_RAILS: usize = 16;
/// Pairs of peer and rail whose failures are counted one by one.
const MAX_DOWN_PAIRS: usize = 1024;

const OPERATIONS: usize = Operation::ALL.len();
const SCHEDULES: usize = Schedule::ALL.len();
const COLLECTIVES: usize = OPERATIONS * SizeClass::COUNT * SCHEDULES;

/// A class of payload sizes, each eight times the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeClass(u8);

impl SizeClass {
    const COUNT: usize = 10;

    /// The class of a payload of `bytes`.
    pub const fn of(bytes: u64) -> Self {
        if bytes == 0 {
            return Self(0);
        }
        let bits = 64 - (bytes - 1).leading_zeros();
        let class = 1 + bits.saturating_sub(6).div_ceil(3);
        Self(if class > 9 { 9 } else { class as u8 })
    }

    /// The largest payload of the class, as a label.
    pub const fn as_str(self) -> &'static str {
        match self.0 {
            0 => "0",
            1 => "64B",
            2 => "512B",
            3 => "4KiB",
            4 => "32KiB",
            5 => "256KiB",
            6 => "2MiB",
            7 => "16MiB",
            8 => "128MiB",
            _ => "larger",
        }
    }
}

/// Every cell a scrape reads.
#[derive(Debug)]
struct Cells {
    live: Arc<Live>,
    collectives: Box<[Histogram]>,
    path_bytes: [[AtomicU64; MAX_RAILS + 1]; PathKind::ALL.len()],
    stalls: [AtomicU64; Cause::ALL.len()],
    recoveries: AtomicU64,
    rail_downs: Mutex<BTreeMap<(u32, u32), u64>>,
    relay_queue: OptionalCell,
    rdma: rdma::RdmaCells,
    serves_requests: AtomicBool,
    waiting: OptionalCell,
    requests: [AtomicU64; Outcome::ALL.len()],
    prefill_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    first_token: Histogram,
    per_token: Histogram,
    kv_used: OptionalCell,
    kv_limit: OptionalCell,
}

/// The metrics of one rank. A clone shares the cells. Recording never allocates or blocks, except
/// where a method says so.
#[derive(Debug, Clone)]
pub struct Metrics {
    cells: Arc<Cells>,
    registry: Arc<Registry>,
}

impl Metrics {
    /// Metrics labelled with the rank and host of `identity`.
    pub fn new(identity: &Identity) -> Self {
        let cells = Arc::new(Cells {
            live: Arc::new(Live::new(Instant::now())),
            collectives: std::iter::repeat_with(Histogram::default).take(COLLECTIVES).collect(),
            path_bytes: [const { [const { AtomicU64::new(0) }; MAX_RAILS + 1] }; 3],
            stalls: [const { AtomicU64::new(0) }; Cause::ALL.len()],
            recoveries: AtomicU64::new(0),
            rail_downs: Mutex::default(),
            relay_queue: OptionalCell::default(),
            rdma: rdma::RdmaCells::default(),
            serves_requests: AtomicBool::new(false),
            waiting: OptionalCell::default(),
            requests: [const { AtomicU64::new(0) }; 4],
            prefill_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            first_token: Histogram::default(),
            per_token: Histogram::default(),
            kv_used: OptionalCell::default(),
            kv_limit: OptionalCell::default(),
        });
        let labels = [("rank", identity.rank.to_string()), ("host", identity.host.clone())];
        let mut registry = Registry::with_prefix_and_labels(
            "railweave",
            labels.into_iter().map(|(key, value)| (Cow::Borrowed(key), Cow::Owned(value))),
        );
        registry.register_collector(Box::new(Arc::clone(&cells)));
        Self { cells, registry: Arc::new(registry) }
    }

    pub(crate) fn live(&self) -> &Arc<Live> {
        &self.cells.live
    }

    /// A collective of `bytes` payload ended after `took`.
    pub fn collective(&self, operation: Operation, bytes: u64, schedule: Schedule, took: Duration) {
        let class = usize::from(SizeClass::of(bytes).0);
        let index = (operation.index() * SizeClass::COUNT + class) * SCHEDULES + schedule.index();
        self.cells.collectives[index].observe(took);
    }

    /// `bytes` of payload left on `rail` of a path of `kind`.
    pub fn path_bytes(&self, kind: PathKind, rail: usize, bytes: u64) {
        self.cells.path_bytes[kind.index()][rail.min(MAX_RAILS)].fetch_add(bytes, Relaxed);
    }

    /// The group is at `sequence` of `epoch`.
    pub fn position(&self, epoch: u64, sequence: u64) {
        self.cells.live.epoch.set(epoch);
        self.cells.live.sequence.set(sequence);
    }

    /// This rank waits for `peer` since `since`. `phase` is the peer's, as its beacon tells.
    /// Ranks above 65534 are shown as 65534.
    pub fn wait_begin(&self, peer: u32, phase: Phase, since: Instant) {
        self.cells.live.wait.set(peer, phase, since, self.cells.live.base);
    }

    /// This rank waits for nobody.
    pub fn wait_end(&self) {
        self.cells.live.wait.clear();
    }

    /// A stall was judged: `cause` is the verdict's.
    pub fn stall(&self, cause: Cause) {
        self.cells.stalls[cause.index()].fetch_add(1, Relaxed);
    }

    /// The group formed again after a failure.
    pub fn recovery(&self) {
        self.cells.recoveries.fetch_add(1, Relaxed);
    }

    pub(crate) fn recoveries(&self) -> u64 {
        self.cells.recoveries.load(Relaxed)
    }

    /// `rail` to `peer` failed. Takes a short lock.
    pub fn rail_down(&self, peer: u32, rail: u32) {
        let mut downs = self.cells.rail_downs.lock().unwrap_or_else(PoisonError::into_inner);
        if downs.len() < MAX_DOWN_PAIRS || downs.contains_key(&(peer, rail)) {
            *downs.entry((peer, rail)).or_default() += 1;
        }
    }

    /// Fragments that wait in this rank to be re-sent for others.
    pub fn relay_queue_depth(&self, fragments: u64) {
        self.cells.relay_queue.set(fragments);
    }

    /// What the ports of RDMA devices in use counted, as read just now; replaces what was read
    /// before. At most 32 ports of 128 counters are kept. Takes a short lock.
    pub fn rdma(&self, ports: Vec<RdmaPort>) {
        self.cells.rdma.set(ports);
    }

    /// This rank serves requests: its token counters start at 0 instead of being absent.
    pub fn serves_requests(&self) {
        self.cells.serves_requests.store(true, Relaxed);
    }

    /// Requests being run and requests waiting to be.
    pub fn requests(&self, running: u64, waiting: u64) {
        self.cells.live.set_running(running, Instant::now());
        self.cells.waiting.set(waiting);
    }

    /// A request ended.
    pub fn request_ended(&self, outcome: Outcome) {
        self.cells.requests[outcome.index()].fetch_add(1, Relaxed);
    }

    /// `tokens` of prompts were prefilled.
    pub fn prefill_tokens(&self, tokens: u64) {
        self.cells.prefill_tokens.fetch_add(tokens, Relaxed);
    }

    /// `tokens` were generated.
    pub fn generated_tokens(&self, tokens: u64) {
        self.cells.generated_tokens.fetch_add(tokens, Relaxed);
    }

    /// A request's first token came `took` after its admission.
    pub fn time_to_first_token(&self, took: Duration) {
        self.cells.first_token.observe(took);
    }

    /// A request's token came `took` after the one before.
    pub fn time_per_token(&self, took: Duration) {
        self.cells.per_token.observe(took);
    }

    /// Bytes of key-value cache in use, and the most it may use.
    pub fn kv_cache(&self, used_bytes: u64, limit_bytes: u64) {
        self.cells.kv_used.set(used_bytes);
        self.cells.kv_limit.set(limit_bytes);
    }

    /// Everything measured so far in the Prometheus text format ([`CONTENT_TYPE`]).
    pub fn encode(&self) -> String {
        let mut text = String::new();
        match prometheus_text::encode(&mut text, &self.registry) {
            Ok(()) => text,
            // Writing to a String fails only if an encoder does; half a text would mislead.
            Err(std::fmt::Error) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_have_inclusive_upper_bounds() {
        let names = [
            (0, "0"),
            (1, "64B"),
            (64, "64B"),
            (65, "512B"),
            (512, "512B"),
            (4096, "4KiB"),
            (4097, "32KiB"),
            (48 << 10, "256KiB"),
            (1_572_864, "2MiB"),
            (2 << 20, "2MiB"),
            ((2 << 20) + 1, "16MiB"),
            (64 << 20, "128MiB"),
            (128 << 20, "128MiB"),
            ((128 << 20) + 1, "larger"),
            (u64::MAX, "larger"),
        ];
        for (bytes, name) in names {
            assert_eq!(SizeClass::of(bytes).as_str(), name, "{bytes}");
        }
    }

    #[test]
    fn rail_failures_stay_bounded() {
        let metrics = Metrics::new(&Identity::new(0, "h"));
        for peer in 0..5000 {
            metrics.rail_down(peer, 0);
        }
        metrics.rail_down(3, 0);
        let downs = metrics.cells.rail_downs.lock().unwrap();
        assert_eq!(downs.len(), MAX_DOWN_PAIRS);
        assert_eq!(downs[&(3, 0)], 2);
    }
}
