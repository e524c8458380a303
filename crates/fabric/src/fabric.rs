//! The face of an endpoint for threads, and how they wait.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bell::reached;
use crate::buffer::Buffer;
use crate::device::{Parker, Span};
use crate::endpoint::{Backlog, Counters, Endpoint, FabricError, Notice, Put, fragments};
use crate::layout::{Channel, LINE_BYTES, Layout, SMALL_BYTES_MAX};
use crate::region::{OutOfRegion, Region};
use crate::topology::Topology;
use crate::verbs::DevicePort;

/// Looks of a wait that follow each other at once; later ones leave a moment to whatever shares
/// the core.
const LOOKS_WITHOUT_PAUSE: u32 = 64;

/// A wait longer than this is nobody's hot path: its sleeps are longer.
const LONG_WAIT: Duration = Duration::from_millis(100);
/// By how much.
const LONG_WAIT_PARKS: u32 = 5;

/// How a worker waits before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// How long it looks again and again without giving up its core.
    pub spin: Duration,
    /// How long it then yields between looks.
    pub yielding: Duration,
    /// Longest single sleep of a wait's first tenth of a second, later five times as long; a limit on how late a lost
    /// wake-up could be noticed.
    pub park: Duration,
}

impl Waiting {
    /// What suits a machine with `cores` for `ranks` ranks of one host: spinning is of use only
    /// while every rank can have a core of its own.
    pub fn for_host(ranks: usize, cores: usize) -> Self {
        let spare = ranks <= cores;
        Self {
            spin: if spare { Duration::from_micros(50) } else { Duration::ZERO },
            yielding: Duration::from_micros(if spare { 100 } else { 400 }),
            park: Duration::from_millis(50),
        }
    }
}

/// Shared parts of a fabric that threads use at once.
#[derive(Debug)]
struct Shared {
    endpoint: Mutex<Endpoint>,
    /// Not zero while something waits that needs [`Endpoint::progress`]; spares the lock.
    has_work: AtomicBool,
    stop: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Endpoint> {
        // An endpoint is consistent between calls; a panic elsewhere does not change that.
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One rank's regions, paths and threads of one epoch.
pub struct Fabric {
    rank: usize,
    topology: Arc<Topology>,
    layout: Arc<Layout>,
    region: Arc<Region>,
    /// Peers' regions that can be read in place, by rank; only neighbours of one machine.
    mapped: Vec<Option<Arc<Region>>>,
    shared: Arc<Shared>,
    parker: Arc<dyn Parker>,
    counters: Arc<Counters>,
    stripe_bytes_min: u64,
    /// False when nothing ever needs progress unless a put is pending: shared memory, no relays.
    always_polls: bool,
    waiting: Waiting,
    heap_used_bytes: AtomicU64,
    devices: Vec<DevicePort>,
    progress: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").field("rank", &self.rank).finish_non_exhaustive()
    }
}

/// A buffer that does not fit the heap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} has no room for a buffer of {wanted} bytes: {used} of {heap} heap bytes are \
     used; raise fabric.heap_bytes on every rank"
)]
pub struct HeapFull {
    /// The rank that asked.
    pub rank: usize,
    /// Bytes asked for.
    pub wanted: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes there are.
    pub heap: u64,
}

/// What a fabric is made of.
#[derive(Debug)]
pub struct FabricParts {
    /// This rank.
    pub rank: usize,
    /// The cables in use.
    pub topology: Arc<Topology>,
    /// The layout of all regions.
    pub layout: Arc<Layout>,
    /// The own region.
    pub region: Arc<Region>,
    /// Peers' regions that are mapped here, by rank.
    pub mapped: Vec<Option<Arc<Region>>>,
    /// What decides.
    pub endpoint: Endpoint,
    /// The smallest put that is striped, as in the endpoint's settings.
    pub stripe_bytes_min: u64,
    /// True when arrivals need [`Endpoint::progress`], as with sockets.
    pub arrivals_need_progress: bool,
    /// How to wait.
    pub waiting: Waiting,
}

impl Fabric {
    /// Puts the parts together without a progress thread, as the simulator needs it.
    pub fn new(parts: FabricParts, parker: Arc<dyn Parker>) -> Self {
        let counters = parts.endpoint.counters();
        let always_polls = parts.arrivals_need_progress || parts.endpoint.is_relay();
        Self {
            rank: parts.rank,
            topology: parts.topology,
            layout: parts.layout,
            region: parts.region,
            mapped: parts.mapped,
            shared: Arc::new(Shared {
                endpoint: Mutex::new(parts.endpoint),
                has_work: AtomicBool::new(false),
                stop: AtomicBool::new(false),
            }),
            parker,
            counters,
            stripe_bytes_min: parts.stripe_bytes_min,
            always_polls,
            waiting: parts.waiting,
            heap_used_bytes: AtomicU64::new(0),
            devices: Vec::new(),
            progress: Mutex::new(None),
        }
    }

    /// The same fabric, over these ports of RDMA devices.
    pub(crate) fn with_devices(mut self, devices: Vec<DevicePort>) -> Self {
        self.devices = devices;
        self
    }

    /// The ports of RDMA devices in use, each once; none with another transport.
    pub fn devices(&self) -> &[DevicePort] {
        &self.devices
    }

    /// Starts the thread that passes bytes on while the worker does other things.
    ///
    /// # Errors
    /// What the system says when it has no thread left.
    pub fn start_progress(&self) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let parker = Arc::clone(&self.parker);
        let thread = std::thread::Builder::new()
            .name(format!("progress-{}", self.rank))
            .spawn(move || progress_loop(&shared, &*parker))?;
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The cables in use.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The layout of all regions.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The own region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// A peer's region, where it can be read in place.
    pub fn mapped(&self, peer: usize) -> Option<&Region> {
        self.mapped.get(peer)?.as_deref()
    }

    /// Takes a buffer from the heap, for the rest of the epoch. All ranks must take the same
    /// buffers in the same order.
    ///
    /// # Errors
    /// When the heap has no room for it; its size is a setting that all ranks share.
    pub fn alloc(&self, bytes: u64) -> Result<Buffer, HeapFull> {
        let heap = self.layout.heap();
        let full = |used| HeapFull { rank: self.rank, wanted: bytes, used, heap: heap.len };
        let take = |used: u64| {
            let end = used.checked_add(bytes)?.checked_next_multiple_of(LINE_BYTES)?;
            (end <= heap.len).then_some(end)
        };
        match self.heap_used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(start) => {
                let span = Span { offset: heap.offset + start, len: bytes };
                Ok(Buffer::new(Arc::clone(&self.region), span))
            }
            Err(used) => Err(full(used)),
        }
    }

    /// Counts for metrics.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Starts a put.
    ///
    /// # Errors
    /// As [`Endpoint::put`].
    pub fn put(&self, put: &Put) -> Result<(), FabricError> {
        let mut endpoint = self.shared.lock();
        let result = endpoint.put(put);
        let has_work = endpoint.has_work();
        drop(endpoint);
        if has_work || result.is_err() {
            self.shared.has_work.store(true, Ordering::Relaxed);
        }
        result
    }

    /// True once all fragments of a put of `len` bytes from `src` have arrived here.
    ///
    /// # Errors
    /// Never for ranks and lanes of the topology.
    pub fn has_arrived(
        &self,
        src: usize,
        channel: Channel,
        value: u32,
        len: u64,
    ) -> Result<bool, OutOfRegion> {
        let lanes = self.topology.lanes(src, self.rank).len();
        for fragment in fragments(len, value, lanes, self.stripe_bytes_min) {
            let flag = self.region.flag(self.layout.flag(src, channel, fragment.lane))?;
            if !reached(flag.load(Ordering::Acquire), value) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where the bytes of a put of an exchange lie in the region of `dst`: in the slot of `src`, or
    /// beside their flag if they are few. Both ends derive it from the same values.
    pub fn exchange_place(&self, src: usize, dst: usize, value: u32, len: u64) -> u64 {
        if len <= SMALL_BYTES_MAX {
            let lanes = self.topology.lanes(src, dst).len();
            let mut fragments = fragments(len, value, lanes, self.stripe_bytes_min);
            if let (Some(only), None) = (fragments.next(), fragments.next()) {
                return self.layout.small_slot(src, only.lane, value);
            }
        }
        self.layout.slot(src, value)
    }

    /// The relays through which the missing fragments of a put would come, as a bit mask.
    pub fn missing_relays(&self, src: usize, channel: Channel, value: u32, len: u64) -> u32 {
        let lanes = self.topology.lanes(src, self.rank);
        let mut mask = 0;
        for fragment in fragments(len, value, lanes.len(), self.stripe_bytes_min) {
            let flag = self.region.flag(self.layout.flag(src, channel, fragment.lane));
            if flag.is_ok_and(|flag| !reached(flag.load(Ordering::Acquire), value)) {
                mask |=
                    lanes[fragment.lane].relays().iter().fold(0, |mask, relay| mask | 1 << relay);
            }
        }
        mask
    }

    /// True when every put has left and its bytes may change.
    pub fn is_drained(&self) -> bool {
        !self.shared.has_work.load(Ordering::Relaxed) || {
            let endpoint = self.shared.lock();
            let drained = endpoint.is_drained();
            if !endpoint.has_work() {
                self.shared.has_work.store(false, Ordering::Relaxed);
            }
            drained
        }
    }

    /// The neighbours, a bit each, that the own puts wait for; none while the endpoint is busy.
    pub fn undrained(&self) -> u32 {
        self.shared.endpoint.try_lock().map_or(0, |endpoint| endpoint.undrained())
    }

    /// Has what peers may wait for leave with the next look; see [`Device::hurry`](crate::Device).
    /// Answers false while another thread moves bytes.
    pub fn hurry(&self) -> bool {
        // Where arrivals need nobody's help there is nothing to acknowledge either.
        !self.always_polls
            || self.shared.endpoint.try_lock().map(|mut endpoint| endpoint.hurry()).is_ok()
    }

    /// Moves what can be moved. Answers whether anything was; false also while another thread
    /// does it.
    pub fn poll(&self) -> bool {
        if !self.always_polls && !self.shared.has_work.load(Ordering::Relaxed) {
            return false;
        }
        match self.shared.endpoint.try_lock() {
            Ok(mut endpoint) => endpoint.progress(),
            Err(_) => false,
        }
    }

    /// Moves what can be moved, also where [`poll`](Self::poll) would see no need to.
    pub fn poll_now(&self) -> bool {
        self.shared.endpoint.try_lock().is_ok_and(|mut endpoint| endpoint.progress())
    }

    /// Calls the endpoint without waking anybody, for evidence and beacons.
    pub fn look_at_endpoint<T>(&self, call: impl FnOnce(&mut Endpoint) -> T) -> T {
        call(&mut self.shared.lock())
    }

    /// Calls the endpoint, for set-up and faults, and has all threads look at what changed.
    pub fn with_endpoint<T>(&self, call: impl FnOnce(&mut Endpoint) -> T) -> T {
        let result = call(&mut self.shared.lock());
        self.shared.has_work.store(true, Ordering::Relaxed);
        self.parker.wake();
        self.parker.wake_progress();
        result
    }

    /// What arrived to be passed on and was not; none while the endpoint is busy.
    pub fn backlog(&self) -> Option<Backlog> {
        self.shared.endpoint.try_lock().ok().map(|endpoint| endpoint.backlog())
    }

    /// Takes what should be known; none while the endpoint is busy.
    pub fn take_notices(&self) -> Vec<Notice> {
        self.shared
            .endpoint
            .try_lock()
            .map(|mut endpoint| endpoint.take_notices())
            .unwrap_or_default()
    }

    /// Wakes the worker if it sleeps.
    pub fn wake(&self) {
        self.parker.wake();
    }

    /// Waits until `ready` answers something: looks, moves bytes, yields and sleeps in between.
    ///
    /// `ready` must come to an end by itself, by its own deadline at the latest; it is called at
    /// least every five times [`Waiting::park`].
    pub fn wait<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        if let Some(value) = ready() {
            return value;
        }
        if !self.always_polls {
            // Nothing arrives that the progress thread would have to see to, so nobody hands over.
            return self.wait_inside(&mut ready);
        }
        self.parker.worker_enters();
        let value = self.wait_inside(&mut ready);
        self.parker.worker_leaves();
        // What arrived before the progress thread was on guard.
        self.poll();
        value
    }

    fn wait_inside<T>(&self, ready: &mut impl FnMut() -> Option<T>) -> T {
        let mut idle_since: Option<Instant> = None;
        let mut looks = 0_u32;
        loop {
            let moved = self.poll();
            if let Some(value) = ready() {
                return value;
            }
            if moved {
                idle_since = None;
                continue;
            }
            looks = looks.wrapping_add(1);
            // The clock costs more than a look.
            if !self.waiting.spin.is_zero() && !looks.is_multiple_of(32) {
                if looks > LOOKS_WITHOUT_PAUSE {
                    std::hint::spin_loop();
                }
                continue;
            }
            let idle = idle_since.get_or_insert_with(Instant::now).elapsed();
            if idle < self.waiting.spin {
                continue;
            }
            if idle < self.waiting.spin + self.waiting.yielding {
                std::thread::yield_now();
                continue;
            }
            let ticket = self.parker.prepare();
            let moved = self.poll();
            if let Some(value) = ready() {
                self.parker.cancel();
                return value;
            }
            if moved {
                self.parker.cancel();
                idle_since = None;
                continue;
            }
            let parks = if idle < LONG_WAIT { 1 } else { LONG_WAIT_PARKS };
            self.parker.park(ticket, self.waiting.park * parks);
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.parker.wake_progress();
        let thread = self.progress.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A progress thread that panicked has said so; there is nothing to add here.
            let _ = thread.join();
        }
    }
}

/// Longest sleep of the progress thread: it is woken for everything, so this only bounds what a
/// lost wake-up could cost.
const PROGRESS_PARK: Duration = Duration::from_millis(250);

fn progress_loop(shared: &Shared, parker: &dyn Parker) {
    while !shared.stop.load(Ordering::Acquire) {
        parker.park_progress(PROGRESS_PARK);
        let mut endpoint = shared.lock();
        let mut moved = false;
        while endpoint.progress() {
            moved = true;
        }
        drop(endpoint);
        if moved {
            parker.wake();
        }
    }
}
