//! Rails fail and come back under two endpoints that send all the time: no flag of a lane is ever
//! overtaken by a later one, and every put arrives.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fabric::sim::{Rng, SimSettings, World};
use fabric::{
    Channel, Endpoint, EndpointSettings, FIRST_VALUE, Layout, Notice, Put, Shape, Sizes, Span,
    Topology,
};

const RAILS: usize = 3;
const PUTS: u32 = 600;

struct Run {
    world: World,
    layout: Arc<Layout>,
    ends: [Endpoint; 2],
    seen: [[u32; RAILS]; 2],
    back: u32,
    down: [[bool; RAILS]; 2],
}

impl Run {
    fn new(seed: u64) -> Self {
        let topology = Topology::new(Shape::Full, 2, RAILS).unwrap();
        let sizes = Sizes { slot_bytes: 4096, heap_bytes: 65536, relay_chunk_bytes: 512 };
        let layout = Arc::new(Layout::new(&topology, sizes));
        let settings = SimSettings {
            seed,
            region_bytes: layout.region_bytes(),
            latency_max: Duration::from_micros(50),
            outstanding_max: 6,
            ..SimSettings::default()
        };
        let world = World::new(topology.clone(), settings).unwrap();
        let ends = [0, 1].map(|rank| {
            Endpoint::new(
                rank,
                1,
                &topology,
                Arc::clone(&layout),
                world.region(rank),
                Box::new(world.device(rank)),
                EndpointSettings { stripe_bytes_min: 2048, write_bytes_max: 512 },
            )
        });
        let seen = [[FIRST_VALUE; RAILS]; 2];
        Self { world, layout, ends, seen, back: 0, down: [[false; RAILS]; 2] }
    }

    fn flag(&self, rank: usize, lane: usize) -> u32 {
        let offset = self.layout.flag(1 - rank, Channel::Ring, lane);
        self.world.region(rank).flag(offset).unwrap().load(Ordering::Acquire)
    }

    fn look(&mut self, seed: u64) {
        for rank in 0..2 {
            for lane in 0..RAILS {
                let (flag, seen) = (self.flag(rank, lane), self.seen[rank][lane]);
                let ahead = flag.wrapping_sub(seen);
                assert!(ahead < 1 << 20, "seed {seed}: lane {lane} of {rank}: {flag} after {seen}");
                self.seen[rank][lane] = flag;
            }
        }
    }

    fn step(&mut self, seed: u64) -> bool {
        let moved = self.world.step();
        self.look(seed);
        moved
    }

    fn poll(&mut self, rank: usize) {
        self.ends[rank].progress();
        for notice in self.ends[rank].take_notices() {
            match notice {
                Notice::RailDown { rail, .. } => self.down[rank][rail] = true,
                Notice::RailUp { rail, .. } => {
                    self.down[rank][rail] = false;
                    self.back += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn remake(&mut self, rail: usize) {
        let told = [0, 1].map(|rank| self.ends[rank].remake(1 - rank, rail));
        let [Some(low), Some(high)] = told else { return };
        self.ends[0].reconnect(1, rail, &high).unwrap();
        self.ends[1].reconnect(0, rail, &low).unwrap();
    }
}

fn trouble(seed: u64) -> u32 {
    let mut run = Run::new(seed);
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut sent = [0; 2];
    let mut steps = 0;
    while sent != [PUTS; 2] || run.ends.iter().any(|end| !end.is_drained()) {
        steps += 1;
        assert!(steps < 300_000, "seed {seed}: {sent:?}, {:?}", run.ends);
        let rank = rng.index(2);
        if sent[rank] < PUTS && rng.once_in(3) {
            let len = [8, 64, 1500, 4096][rng.index(4)];
            let heap = run.layout.heap().offset;
            let put = Put {
                dst: 1 - rank,
                src: Span { offset: heap, len },
                to: heap,
                channel: Channel::Ring,
                value: FIRST_VALUE.wrapping_add(1 + sent[rank]),
            };
            if run.ends[rank].put(&put).is_ok() {
                sent[rank] += 1;
            }
        }
        let whole = (0..RAILS).filter(|&rail| !run.down[0][rail] && !run.down[1][rail]).count();
        let rail = rng.index(RAILS);
        // One that works stays, wherever word of another is still on its way.
        if whole == RAILS && rng.once_in(60) {
            run.ends[rank].cut(1 - rank, rail);
            run.down[rank][rail] = true;
        }
        let tried = run.ends[0].is_on_trial(1, rail) || run.ends[1].is_on_trial(0, rail);
        if run.down[0][rail] && run.down[1][rail] && !tried && rng.once_in(10) {
            run.remake(rail);
        }
        if run.ends[rank].is_on_trial(1 - rank, rail) && rng.once_in(3) {
            run.ends[rank].take_back(1 - rank, rail);
        }
        run.step(seed);
        run.poll(rank);
    }
    // Everything posted has landed.
    while run.step(seed) {}
    for rank in 0..2 {
        let last = (0..RAILS).map(|lane| run.flag(rank, lane).wrapping_sub(FIRST_VALUE)).max();
        assert_eq!(last, Some(PUTS), "seed {seed}");
    }
    run.back
}

#[test]
fn no_flag_of_a_lane_is_overtaken_when_rails_come_back() {
    let back: u32 = (0..60).map(trouble).sum();
    assert!(back > 200, "only {back} ends came back");
}
