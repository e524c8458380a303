//! Every order in which threads can see the words of shared memory.
//!
//! `loom` runs each model below under every interleaving, up to a number of preemptions, and lets
//! every load return every value that the memory model allows. Bytes lie in its `Cell`s,
//! which report a race; a wake-up that gets lost is reported as a deadlock.
//!
//! The models whose names begin with `caught` each break one rule of the protocol and must fail:
//! they show that the others would fail too if the rule were dropped.
//!
//! Run them with `RUSTFLAGS="--cfg loom" cargo test -p railweave-fabric --test loom --release`.
#![allow(unexpected_cfgs, reason = "loom's own switch, set on its command line")]
#![cfg(loom)]

use std::marker::PhantomData;

use fabric::bell::{Bell, Word, reached};
use loom::cell::Cell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Preemptions per run. Bugs of memory order need two or three; more cost minutes.
const PREEMPTIONS: usize = 3;

/// Numbers start close to the wrap, as those of an epoch do.
const FIRST: u32 = u32::MAX - 1;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS));
    builder.check(model);
}

/// How a thread uses the words: as the code does, or with one rule broken.
trait Discipline: 'static {
    const FENCES: bool = true;
    const RELEASES: bool = true;
}

struct Sound;
impl Discipline for Sound {}

struct NoFence;
impl Discipline for NoFence {
    const FENCES: bool = false;
}

struct NoRelease;
impl Discipline for NoRelease {
    const RELEASES: bool = false;
}

/// A word as one side sees it.
struct Seen<'a, D>(&'a AtomicU32, PhantomData<D>);

impl<'a, D> Seen<'a, D> {
    fn new(word: &'a AtomicU32) -> Self {
        Self(word, PhantomData)
    }
}

impl<D: Discipline> Word for Seen<'_, D> {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, if D::RELEASES { order } else { Ordering::Relaxed });
    }

    fn increment(&self, order: Ordering) {
        self.0.fetch_add(1, order);
    }

    fn fence(order: Ordering) {
        if D::FENCES {
            fence(order);
        }
    }
}

/// The two words of a bell and the kernel's queue of sleepers behind them.
struct Futex {
    asleep: AtomicU32,
    rung: AtomicU32,
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn new() -> Self {
        Self {
            asleep: AtomicU32::new(0),
            rung: AtomicU32::new(0),
            queue: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Sleeps unless the word has changed; the kernel does both under one lock.
    fn sleep(&self, ticket: u32) {
        let queue = self.queue.lock().unwrap();
        if self.rung.load(Ordering::Relaxed) == ticket {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    fn wake(&self) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_all();
    }

    fn raise<D: Discipline>(&self, flag: &AtomicU32, value: u32) {
        let (asleep, rung) = (Seen::<D>::new(&self.asleep), Seen::new(&self.rung));
        if (Bell { asleep: &asleep, rung: &rung }).raise(&Seen::new(flag), value) {
            self.wake();
        }
    }

    /// Looks, prepares, looks once more, sleeps, as the worker does without its timeout.
    fn wait<D: Discipline>(&self, mut ready: impl FnMut() -> bool) {
        let (asleep, rung) = (Seen::<D>::new(&self.asleep), Seen::new(&self.rung));
        let bell = Bell { asleep: &asleep, rung: &rung };
        while !ready() {
            let ticket = bell.prepare();
            if ready() {
                bell.leave();
                return;
            }
            self.sleep(ticket);
            bell.leave();
        }
    }
}

/// One flag and the bytes it announces.
struct Slot {
    flag: AtomicU32,
    bytes: Cell<u32>,
}

impl Slot {
    fn new() -> Self {
        Self { flag: AtomicU32::new(FIRST), bytes: Cell::new(0) }
    }

    fn has(&self, value: u32) -> bool {
        reached(self.flag.load(Ordering::Acquire), value)
    }
}

/// `writers` ranks put once each; one sleeper waits for all of them.
fn flags_and_bell<Writer: Discipline, Sleeper: Discipline>(writers: u32) {
    explore(move || {
        let futex = Arc::new(Futex::new());
        let slots: Arc<Vec<Slot>> = Arc::new((0..writers).map(|_| Slot::new()).collect());
        let value = FIRST.wrapping_add(1);
        let threads: Vec<_> = (0..writers)
            .map(|writer| {
                let (futex, slots) = (Arc::clone(&futex), Arc::clone(&slots));
                thread::spawn(move || {
                    let slot = &slots[writer as usize];
                    slot.bytes.set(100 + writer);
                    futex.raise::<Writer>(&slot.flag, value);
                })
            })
            .collect();
        futex.wait::<Sleeper>(|| slots.iter().all(|slot| slot.has(value)));
        for (writer, slot) in (0..).zip(slots.iter()) {
            assert_eq!(slot.bytes.get(), 100 + writer);
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_sleeper_is_never_missed() {
    flags_and_bell::<Sound, Sound>(1);
}

#[test]
fn two_writers_wake_one_sleeper() {
    flags_and_bell::<Sound, Sound>(2);
}

#[test]
#[should_panic(expected = "deadlock")]
fn caught_a_writer_without_a_fence() {
    flags_and_bell::<NoFence, Sound>(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn caught_a_sleeper_without_a_fence() {
    flags_and_bell::<Sound, NoFence>(1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn caught_a_flag_that_does_not_order_its_bytes() {
    // The fence behind the store orders nothing before it.
    flags_and_bell::<NoRelease, Sound>(1);
}

/// A sleeper that leaves and comes back is woken for each of two values.
#[test]
fn a_sleeper_that_comes_back_is_woken_again() {
    explore(|| {
        let futex = Arc::new(Futex::new());
        let flag = Arc::new(AtomicU32::new(FIRST));
        let writer = {
            let (futex, flag) = (Arc::clone(&futex), Arc::clone(&flag));
            thread::spawn(move || {
                for step in 1..=2 {
                    futex.raise::<Sound>(&flag, FIRST.wrapping_add(step));
                }
            })
        };
        for step in 1..=2 {
            let value = FIRST.wrapping_add(step);
            futex.wait::<Sound>(|| reached(flag.load(Ordering::Acquire), value));
        }
        writer.join().unwrap();
    });
}

/// The worker moves bytes while it waits and then leaves that to the progress thread: what
/// arrives in between is seen by the worker's last look or has woken the progress thread.
fn hand_over_to_progress<D: Discipline>() {
    explore(|| {
        let futex = Arc::new(Futex::new());
        let arrival = Arc::new(AtomicU32::new(FIRST));
        let value = FIRST.wrapping_add(1);
        let writer = {
            let (futex, arrival) = (Arc::clone(&futex), Arc::clone(&arrival));
            thread::spawn(move || futex.raise::<Sound>(&arrival, value))
        };
        let (asleep, rung) = (Seen::<D>::new(&futex.asleep), Seen::new(&futex.rung));
        let bell = Bell { asleep: &asleep, rung: &rung };
        let look = || reached(arrival.load(Ordering::Acquire), value);
        // The progress thread is on guard, the worker enters, looks, leaves, and looks again.
        bell.prepare();
        bell.leave();
        let mut moved = look();
        bell.prepare();
        moved |= look();
        writer.join().unwrap();
        let woken = futex.rung.load(Ordering::Relaxed) != 0;
        assert!(moved || woken, "nobody looks after the arrival");
    });
}

#[test]
fn an_arrival_while_the_worker_leaves_is_seen() {
    hand_over_to_progress::<Sound>();
}

#[test]
#[should_panic(expected = "nobody looks after the arrival")]
fn caught_a_worker_that_leaves_without_a_fence() {
    hand_over_to_progress::<NoFence>();
}

/// What one rank of an exchange receives in.
struct Receiver {
    futex: Futex,
    flag: AtomicU32,
    slots: Vec<Cell<u32>>,
}

/// Two ranks exchange `count` times over `slots` slots for each source.
fn exchanges<D: Discipline>(count: u32, slots: u32, sleeps: bool) {
    explore(move || {
        let ranks: Arc<Vec<Receiver>> = Arc::new(
            (0..2)
                .map(|_| Receiver {
                    futex: Futex::new(),
                    flag: AtomicU32::new(FIRST),
                    slots: (0..slots).map(|_| Cell::new(0)).collect(),
                })
                .collect(),
        );
        let run = move |ranks: &[Receiver], rank: usize| {
            let (own, peer) = (&ranks[rank], &ranks[1 - rank]);
            for step in 1..=count {
                let value = FIRST.wrapping_add(step);
                let slot = (value % slots) as usize;
                peer.slots[slot].set(value ^ rank as u32);
                if sleeps {
                    peer.futex.raise::<D>(&peer.flag, value);
                    own.futex.wait::<D>(|| reached(own.flag.load(Ordering::Acquire), value));
                } else {
                    Seen::<D>::new(&peer.flag).store(value, Ordering::Release);
                    while !reached(own.flag.load(Ordering::Acquire), value) {
                        thread::yield_now();
                    }
                }
                assert_eq!(own.slots[slot].get(), value ^ (1 - rank) as u32);
            }
        };
        let other = {
            let ranks = Arc::clone(&ranks);
            thread::spawn(move || run(&ranks, 1))
        };
        run(&ranks, 0);
        other.join().unwrap();
    });
}

#[test]
fn two_slots_are_enough_for_exchanges() {
    exchanges::<Sound>(4, 2, false);
}

#[test]
fn two_slots_are_enough_for_ranks_that_sleep() {
    exchanges::<Sound>(3, 2, true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn caught_one_slot_for_exchanges() {
    exchanges::<Sound>(3, 1, false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn caught_an_exchange_whose_flag_does_not_order_its_bytes() {
    exchanges::<NoRelease>(2, 2, false);
}

/// A relayed flow: the source fills a mailbox as its credits allow, the relay passes each chunk
/// on into the destination's slot and returns the credit, the last chunk carries the flag.
struct RelayedFlow {
    arrival: AtomicU32,
    credit: AtomicU32,
    mailbox: Vec<Cell<u32>>,
    flag: AtomicU32,
    slot: Vec<Cell<u32>>,
}

/// What a relayed flow may get wrong.
#[derive(Clone, Copy)]
struct Flaws {
    /// The source believes that the mailbox holds this many more chunks than it does.
    credits_too_many: u32,
    /// The relay returns a credit before it has read the chunk.
    credit_before_read: bool,
}

const CHUNKS: u32 = 4;
const DEPTH: u32 = 2;

fn relayed_flow<D: Discipline>(flaws: Flaws) {
    explore(move || {
        let flow = Arc::new(RelayedFlow {
            arrival: AtomicU32::new(FIRST),
            credit: AtomicU32::new(FIRST),
            mailbox: (0..DEPTH).map(|_| Cell::new(0)).collect(),
            flag: AtomicU32::new(FIRST),
            slot: (0..CHUNKS).map(|_| Cell::new(0)).collect(),
        });
        let relay = {
            let flow = Arc::clone(&flow);
            thread::spawn(move || {
                for chunk in 0..CHUNKS {
                    let passed = FIRST.wrapping_add(chunk);
                    let next = passed.wrapping_add(1);
                    while !reached(flow.arrival.load(Ordering::Acquire), next) {
                        thread::yield_now();
                    }
                    if flaws.credit_before_read {
                        flow.credit.store(next, Ordering::Release);
                    }
                    let bytes = flow.mailbox[(passed % DEPTH) as usize].get();
                    flow.slot[chunk as usize].set(bytes);
                    if chunk + 1 == CHUNKS {
                        flow.flag.store(FIRST.wrapping_add(1), Ordering::Release);
                    }
                    flow.credit.store(next, Ordering::Release);
                }
            })
        };
        // The destination only waits, so the source's thread can play it once everything is sent: it has
        // seen nothing of the slot, which the relay alone writes.
        for chunk in 0..CHUNKS {
            let sent = FIRST.wrapping_add(chunk);
            while sent.wrapping_sub(flow.credit.load(Ordering::Acquire))
                >= DEPTH + flaws.credits_too_many
            {
                thread::yield_now();
            }
            flow.mailbox[(sent % DEPTH) as usize].set(7 + chunk);
            Seen::<D>::new(&flow.arrival).store(sent.wrapping_add(1), Ordering::Release);
        }
        while !reached(flow.flag.load(Ordering::Acquire), FIRST.wrapping_add(1)) {
            thread::yield_now();
        }
        for (chunk, bytes) in (0..).zip(&flow.slot) {
            assert_eq!(bytes.get(), 7 + chunk);
        }
        relay.join().unwrap();
    });
}

const FLAWLESS: Flaws = Flaws { credits_too_many: 0, credit_before_read: false };

#[test]
fn a_relay_passes_each_chunk_on_once_and_whole() {
    relayed_flow::<Sound>(FLAWLESS);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn caught_a_source_with_a_credit_too_many() {
    relayed_flow::<Sound>(Flaws { credits_too_many: 1, ..FLAWLESS });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn caught_a_credit_returned_before_the_chunk_was_read() {
    relayed_flow::<Sound>(Flaws { credit_before_read: true, ..FLAWLESS });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn caught_an_arrival_that_does_not_order_its_chunk() {
    relayed_flow::<NoRelease>(FLAWLESS);
}
