//! A group of threads in one process, each a rank, over a real transport.
#![allow(dead_code, unreachable_pub)]

use std::pin::pin;
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fabric::auth::Token;
use fabric::{Fabric, Shape, Sizes, Topology, Transport, Waiting, Wiring, WiringSettings};
use group::collective::{Collectives, Operation, ScheduleTable, Waits, Watch};
use group::verdict::Verdict;

/// Panics when an operation waits too long, so that a test ends.
pub struct Impatient {
    limit: Duration,
    since: Mutex<Option<Instant>>,
}

impl Watch for Impatient {
    fn begin(&self, _: Operation, _: u32) -> Result<(), Arc<Verdict>> {
        *self.since.lock().unwrap() = Some(Instant::now());
        Ok(())
    }

    fn waits(&self, waits: &mut dyn FnMut() -> Waits) -> Result<(), Arc<Verdict>> {
        if self.since.lock().unwrap().is_some_and(|since| since.elapsed() > self.limit) {
            panic!("waited {:?} for {:?}", self.limit, waits());
        }
        Ok(())
    }

    fn goes_on(&self) {}

    fn end(&self) {}
}

pub struct Bed {
    pub transport: Transport,
    pub shape: Shape,
    pub ranks: usize,
    pub rails: usize,
    pub sizes: Sizes,
    pub crc: bool,
}

impl Bed {
    pub fn new(transport: Transport, shape: Shape, ranks: usize) -> Self {
        let sizes = Sizes { slot_bytes: 16 << 10, heap_bytes: 1 << 20, relay_chunk_bytes: 2 << 10 };
        Self { transport, shape, ranks, rails: 2, sizes, crc: true }
    }

    /// Runs `work` on every rank and answers what each returned.
    pub fn run<T: Send>(
        &self,
        table: ScheduleTable,
        work: impl Fn(&mut Collectives<Impatient>) -> T + Sync,
    ) -> Vec<T> {
        let topology = Arc::new(Topology::new(self.shape, self.ranks, self.rails).unwrap());
        let token = Token::new(b"a secret of sufficient length".to_vec()).unwrap();
        let blobs = Mutex::new(vec![Vec::new(); self.ranks]);
        let barrier = Barrier::new(self.ranks);
        let rank_main = |rank: usize| {
            let settings = WiringSettings {
                transport: self.transport,
                sizes: self.sizes,
                endpoint: fabric::EndpointSettings { stripe_bytes_min: 1024, ..Default::default() },
                crc: self.crc,
                waiting: Waiting::for_host(self.ranks, 2),
                addresses: fabric::DataAddresses::one(std::net::Ipv4Addr::LOCALHOST.into()),
                verbs: fabric::verbs::VerbsSettings::default(),
                token: token.clone(),
            };
            let wiring = Wiring::prepare(rank, Arc::clone(&topology), settings).unwrap();
            blobs.lock().unwrap()[rank] = wiring.blob();
            barrier.wait();
            let all = blobs.lock().unwrap().clone();
            let deadline = Instant::now() + Duration::from_secs(20);
            let fabric = wiring.connect(1, &all, deadline).unwrap();
            barrier.wait();
            let unproven = fabric.prove(1, deadline).unwrap();
            assert!(unproven.is_empty(), "{unproven:?}");
            barrier.wait();
            let watch = Impatient { limit: Duration::from_secs(30), since: Mutex::new(None) };
            let fabric: Arc<Fabric> = Arc::new(fabric);
            let mut collectives = Collectives::new(fabric, watch, table, u32::MAX - 3);
            let result = work(&mut collectives);
            barrier.wait();
            result
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.ranks).map(|rank| scope.spawn(move || rank_main(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

/// Drives an operation over a real transport.
pub fn drive<T>(fabric: &Fabric, operation: impl Future<Output = T>) -> T {
    let mut operation = pin!(operation);
    let mut context = Context::from_waker(Waker::noop());
    fabric.wait(|| match operation.as_mut().poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}
