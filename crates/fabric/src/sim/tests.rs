use std::time::{Duration, Instant};

use super::*;
use crate::device::{Device, Event, FlagWrite, PostError, Posted, RailFault, Span, Write};
use crate::topology::{Shape, Topology};

const MICRO: Duration = Duration::from_micros(1);

fn settings(seed: u64) -> SimSettings {
    SimSettings { seed, region_bytes: 64 << 10, first_number: 0, ..SimSettings::default() }
}

fn world_of(ranks: usize, settings: SimSettings) -> World {
    World::new(Topology::new(Shape::Full, ranks, 2).unwrap(), settings).unwrap()
}

/// Write `number`: a hundred bytes that say so, to a place and flag of its own.
fn write(world: &World, from: usize, number: u32) -> Write {
    let place = 4096 + u64::from(number) % 100 * 128;
    world.region(from).write(32768 + place, &[number as u8 + 1; 100]).unwrap();
    Write {
        body: Span { offset: 32768 + place, len: 100 },
        to: place,
        flag: Some(FlagWrite { offset: place + 100, value: number + 1 }),
        number,
        ..Write::default()
    }
}

fn flag(world: &World, rank: usize, number: u32) -> u32 {
    let offset = 4096 + u64::from(number) * 128 + 100;
    world.region(rank).flag(offset).unwrap().load(std::sync::atomic::Ordering::Acquire)
}

fn byte(world: &World, rank: usize, number: u32) -> u8 {
    let mut byte = [0];
    world.region(rank).read(4096 + u64::from(number) * 128 + 99, &mut byte).unwrap();
    byte[0]
}

fn post(world: &World, from: usize, to: usize, rail: usize, number: u32) {
    let write = write(world, from, number);
    assert_eq!(world.device(from).post(to, rail, &write), Ok(Posted::Pending));
}

fn run(world: &World) {
    while world.step() {}
}

fn events(world: &World, rank: usize) -> Vec<Event> {
    let mut events = Vec::new();
    world.device(rank).poll(&mut events);
    events
}

fn down(peer: usize, rail: usize, fault: RailFault) -> Event {
    Event::RailDown { peer, rail, fault }
}

/// The order in which twenty writes over two rails land.
fn order(seed: u64) -> (Vec<u32>, u64, Counters) {
    let world = world_of(2, settings(seed));
    (0..20).for_each(|number| post(&world, 0, 1, number as usize % 2, number));
    let mut order = Vec::new();
    while world.step() {
        for number in 0..20 {
            if flag(&world, 1, number) != 0 && !order.contains(&number) {
                order.push(number);
            }
        }
    }
    (order, world.trace_hash(), world.counters())
}

#[test]
fn a_seed_replays_and_another_gives_another_order() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let once = order(seed);
        assert_eq!(once, order(seed));
        assert_eq!(once.0.len(), 20);
        for rail in 0..2 {
            let of_rail: Vec<_> = once.0.iter().filter(|&number| number % 2 == rail).collect();
            assert!(of_rail.is_sorted(), "a queue pair keeps order: {:?}", once.0);
        }
        orders.insert(once.0);
    }
    assert!(orders.len() > 10, "few orders: {orders:?}");
}

#[test]
fn faults_replay_too() {
    let hash = |seed| {
        let world = world_of(3, settings(seed));
        let mut rng = Rng::new(seed);
        let topology = Topology::new(Shape::Full, 3, 2).unwrap();
        for (at, fault) in survivable(&mut rng, &topology, 50 * MICRO, 8) {
            world.inject_at(at, fault);
        }
        for number in 0..60 {
            let (from, rail) = (number as usize % 3, number as usize / 3 % 2);
            let write = write(&world, from, number / 3);
            let _ = world.device(from).post((from + 1) % 3, rail, &write);
            world.advance_to(world.now() + MICRO);
        }
        run(&world);
        (world.trace_hash(), world.counters())
    };
    let hashes: Vec<_> = (0..30).map(hash).collect();
    assert_eq!(hashes, (0..30).map(hash).collect::<Vec<_>>());
    assert!(hashes.iter().any(|(_, counters)| counters.ends_down > 0));
    assert!(hashes.iter().any(|(_, counters)| counters.dropped > 0));
}

#[test]
fn survivable_faults_leave_a_rail_of_every_cable() {
    let topology = Topology::new(Shape::Ring, 4, 2).unwrap();
    for seed in 0..100 {
        let world = World::new(topology.clone(), settings(seed)).unwrap();
        let plan = survivable(&mut Rng::new(seed), &topology, 100 * MICRO, 12);
        assert!(plan.len() >= 12);
        for (at, fault) in plan {
            world.inject_at(at, fault);
        }
        for number in 0..50 {
            for from in 0..4 {
                let write = write(&world, from, number);
                let _ = world.device(from).post((from + 1) % 4, number as usize % 2, &write);
            }
            world.advance_to(world.now() + 4 * MICRO);
        }
        run(&world);
        for from in 0..4 {
            let to = (from + 1) % 4;
            let works = |a: usize, b: usize, rail| {
                world.device(a).post(b, rail, &Write::default()) != Err(PostError::Down)
            };
            assert!((0..2).any(|rail| works(from, to, rail) && works(to, from, rail)), "{seed}");
        }
    }
}

#[test]
fn a_body_is_read_when_it_lands() {
    let world = world_of(2, settings(1));
    post(&world, 0, 1, 0, 0);
    world.region(0).write(32768 + 4096, &[9; 100]).unwrap();
    run(&world);
    assert_eq!(byte(&world, 1, 0), 9, "early reuse shows");
}

#[test]
fn time_is_what_bandwidth_and_latency_make_it() {
    let slow = SimSettings {
        bandwidth_bytes_per_second: 1_000_000,
        jitter: Duration::ZERO,
        start: Duration::from_secs(60),
        ..settings(1)
    };
    let world = world_of(2, slow);
    (0..10).for_each(|number| post(&world, 0, 1, 0, number));
    let landed = |world: &World| world.counters().landed;
    // A hundred bytes and a header take 156 microseconds.
    world.advance_to(Duration::from_secs(60) + 156 * MICRO);
    assert_eq!(landed(&world), 0);
    world.advance_to(Duration::from_secs(60) + 161 * MICRO);
    assert_eq!(landed(&world), 1);
    assert!(world.next_event().is_some_and(|at| at > world.now()));
    world.advance_to(Duration::from_secs(60) + 1565 * MICRO);
    assert_eq!(landed(&world), 10);
    assert_eq!(world.now(), Duration::from_secs(60) + 1565 * MICRO);
}

#[test]
fn a_queue_pair_takes_so_many_and_recovers_when_polled() {
    let world = world_of(2, SimSettings { outstanding_max: 3, ..settings(1) });
    (0..3).for_each(|number| post(&world, 0, 1, 0, number));
    let fourth = write(&world, 0, 3);
    assert_eq!(world.device(0).post(1, 0, &fourth), Err(PostError::Full));
    run(&world);
    assert_eq!(world.device(0).post(1, 0, &fourth), Err(PostError::Full), "nothing was polled");
    assert_eq!(events(&world, 0), vec![Event::Done { peer: 1, rail: 0 }; 3]);
    assert_eq!(world.device(0).post(1, 0, &fourth), Ok(Posted::Pending));
    assert_eq!(world.outstanding(0, 1, 0), 1);
}

#[test]
fn of_a_cut_rail_some_frames_land_and_some_do_not() {
    let mut seen = std::collections::BTreeSet::new();
    let mut torn = 0;
    for seed in 0..200 {
        let world = world_of(2, settings(seed));
        (0..4).for_each(|number| post(&world, 0, 1, 0, number));
        world.inject(Fault::Cut { a: 0, b: 1, rail: 0 });
        assert_eq!(events(&world, 0), [down(1, 0, RailFault::Cut)]);
        run(&world);
        assert_eq!(events(&world, 0), []);
        assert_eq!(events(&world, 1), [down(0, 0, RailFault::Cut)]);
        let landed = (0..4).take_while(|&number| flag(&world, 1, number) != 0).count();
        assert_eq!(world.counters().landed, landed as u64, "no gap");
        assert_eq!(world.counters().dropped, 4 - landed as u64);
        torn += world.counters().torn;
        seen.insert(landed);
    }
    assert_eq!(seen.len(), 5, "every count from none to all: {seen:?}");
    assert!(torn > 0);
}

#[test]
fn a_silent_rail_is_given_up() {
    let world = world_of(2, settings(1));
    world.inject(Fault::Silence { a: 0, b: 1, rail: 0 });
    (0..2).for_each(|number| post(&world, 0, 1, 0, number));
    world.advance_to(Duration::from_secs(1));
    assert_eq!(events(&world, 0), []);
    assert_eq!(world.outstanding(0, 1, 0), 2);
    run(&world);
    let fault = RailFault::Timeout(world.settings().give_up_after);
    assert_eq!(events(&world, 0), [down(1, 0, fault)]);
    assert_eq!(events(&world, 1), [], "it sent nothing and knows nothing");
    assert_eq!(world.counters().landed, 0);
}

#[test]
fn a_killed_rank_is_noticed_or_never() {
    for notice in [Some(Duration::from_millis(3)), None] {
        let world = world_of(3, settings(4));
        (0..8).for_each(|number| post(&world, 1, 0, 0, number));
        post(&world, 0, 1, 1, 0);
        world.inject(Fault::Kill { rank: 1, notice });
        world.advance_to(Duration::from_millis(2));
        assert_eq!(events(&world, 0), []);
        assert_eq!(world.outstanding(0, 1, 1), 1);
        assert_eq!(world.device(1).post(0, 0, &Write::default()), Err(PostError::Down));
        assert_eq!(flag(&world, 1, 0), 0, "nothing lands at the dead");
        run(&world);
        let mut found = events(&world, 0);
        found.sort_by_key(|event| format!("{event:?}"));
        let both = [0, 1].map(|rail| down(1, rail, RailFault::PeerClosed));
        assert_eq!(found, notice.map_or(vec![], |_| both.to_vec()));
        assert_eq!(events(&world, 1), []);
        let counters = world.counters();
        assert_eq!(counters.landed + counters.dropped, 9);
    }
}

#[test]
fn a_frozen_rank_waits_and_loses_nothing() {
    let world = world_of(3, settings(1));
    world.inject(Fault::Freeze { rank: 1 });
    post(&world, 0, 1, 0, 0);
    post(&world, 1, 2, 0, 0);
    post(&world, 0, 2, 0, 0);
    world.inject(Fault::Cut { a: 2, b: 1, rail: 1 });
    world.inject_at(Duration::from_secs(5), Fault::Thaw { rank: 1 });
    world.advance_to(Duration::from_secs(4));
    assert_eq!(world.counters().landed, 1, "only from 0 to 2");
    assert_eq!(events(&world, 1), []);
    run(&world);
    assert_eq!(world.counters().landed, 3);
    assert_eq!(events(&world, 0).len(), 2);
    let mut found = events(&world, 1);
    found.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(found, [Event::Done { peer: 2, rail: 0 }, down(2, 1, RailFault::Cut)]);
}

#[test]
fn a_damaged_frame_is_refused_and_ends_its_rail() {
    for seed in 0..200 {
        let world = world_of(2, settings(seed));
        let fault = if seed % 2 == 0 {
            Fault::FlipBit { from: 0, to: 1 }
        } else {
            Fault::Truncate { from: 0, to: 1 }
        };
        world.inject(fault);
        post(&world, 0, 1, 0, 0);
        run(&world);
        assert_eq!(world.counters().rejected, 1);
        assert_eq!((flag(&world, 1, 0), byte(&world, 1, 0)), (0, 0));
        let why = world.last_reject().unwrap();
        assert_eq!(events(&world, 1), [down(0, 0, RailFault::BadFrame(why))]);
        assert_eq!(events(&world, 0), [down(1, 0, RailFault::PeerClosed)]);
    }
}

#[test]
fn a_slow_rail_is_slow() {
    let world = world_of(2, settings(1));
    let extra = Duration::from_millis(10);
    world.inject(Fault::Slow { a: 1, b: 0, rail: 0, extra, jitter: extra });
    post(&world, 0, 1, 0, 0);
    post(&world, 0, 1, 1, 1);
    world.advance_to(extra);
    assert_eq!((flag(&world, 1, 0), flag(&world, 1, 1)), (0, 2));
    world.advance_to(2 * extra + 100 * MICRO);
    assert_eq!(flag(&world, 1, 0), 1);
}

/// Frames of epoch 1 that arrive in epoch 2, over the same regions.
fn late_frames(bug: Option<Bug>) -> World {
    let old = world_of(2, settings(1));
    old.inject(Fault::Hold);
    (0..5).for_each(|number| post(&old, 0, 1, number as usize % 2, number));
    run(&old);
    assert_eq!(old.counters().landed, 0);
    let late = old.end();
    assert_eq!(late.len(), 5);
    assert!(late.iter().all(|late| (late.src(), late.dst(), late.epoch()) == (0, 1, 1)));
    assert_eq!(old.device(0).post(1, 0, &Write::default()), Err(PostError::Down));
    assert_eq!(old.next_event(), None);
    let regions = vec![old.region(0), old.region(1)];
    let next = SimSettings { epoch: 2, start: old.now(), bug, ..settings(2) };
    let topology = Topology::new(Shape::Full, 2, 2).unwrap();
    let new = World::over(topology, next, regions).unwrap();
    new.deliver_late(late, Duration::from_millis(1));
    (0..5).for_each(|number| post(&new, 1, 0, 0, number));
    run(&new);
    assert_eq!(events(&new, 1).len(), 5, "the new epoch is unharmed");
    new
}

#[test]
fn late_frames_of_an_old_epoch_are_refused() {
    let world = late_frames(None);
    assert_eq!(world.counters().late_rejected, 5);
    assert!((0..5).all(|number| flag(&world, 1, number) == 0 && byte(&world, 1, number) == 0));
    assert_eq!(world.last_reject().unwrap(), "epoch is 1, which is over, and must be 2");
    assert_eq!(events(&world, 0), []);
}

#[test]
fn without_the_epoch_check_they_land() {
    let world = late_frames(Some(Bug::NoEpochCheck));
    assert_eq!(world.counters().late_rejected, 0);
    assert!((0..5).all(|number| flag(&world, 1, number) == number + 1));
}

#[test]
fn a_flag_before_its_bytes_shows() {
    let is_early = |bug| {
        let world = world_of(2, SimSettings { bug, ..settings(3) });
        (0..10).for_each(|number| post(&world, 0, 1, number as usize % 2, number));
        let mut early = 0;
        while world.step() {
            early += (0..10)
                .filter(|&number| flag(&world, 1, number) != 0 && byte(&world, 1, number) == 0)
                .count();
        }
        assert!((0..10).all(|number| byte(&world, 1, number) == number as u8 + 1));
        early > 0
    };
    assert!(is_early(Some(Bug::FlagBeforeBytes)));
    assert!(!is_early(None));
}

#[test]
fn a_write_that_comes_twice_lands_once_or_shows() {
    for (bug, landed) in [(None, 1), (Some(Bug::NoInbox), 2)] {
        let world = world_of(2, SimSettings { bug, ..settings(1) });
        post(&world, 0, 1, 0, 0);
        run(&world);
        world.device(0).cut(1, 0);
        run(&world);
        post(&world, 0, 1, 1, 0);
        run(&world);
        assert_eq!((world.counters().landed, world.counters().duplicates), (landed, 1));
    }
}

#[test]
fn numbers_wrap_and_far_ones_are_refused() {
    let world = world_of(2, SimSettings { first_number: u32::MAX - 2, ..settings(1) });
    for ahead in 0..6_u32 {
        let write = Write { number: (u32::MAX - 2).wrapping_add(ahead), ..write(&world, 0, ahead) };
        assert_eq!(world.device(0).post(1, 0, &write), Ok(Posted::Pending));
    }
    run(&world);
    assert_eq!(world.counters().landed, 6);
    post(&world, 0, 1, 1, 5000);
    run(&world);
    assert!(world.last_reject().unwrap().contains("too far ahead"));
}

#[test]
fn stirred_ranks_are_told_once() {
    let world = world_of(3, settings(1));
    post(&world, 0, 2, 0, 0);
    run(&world);
    assert_eq!(world.take_stirred(), 0b101);
    assert_eq!(world.take_stirred(), 0);
}

/// Run by hand; prints what one frame and one world cost.
#[test]
#[ignore = "measures"]
fn cost_of_a_frame() {
    const WORLDS: u64 = 1000;
    let start = Instant::now();
    let mut frames = 0;
    let mut found = Vec::new();
    for seed in 0..WORLDS {
        let world = world_of(4, SimSettings { region_bytes: 1 << 20, ..settings(seed) });
        let mut devices: Vec<_> = (0..4).map(|rank| world.device(rank)).collect();
        let write = Write { body: Span { offset: 0, len: 64 }, to: 4096, ..Write::default() };
        for number in 0..100 {
            for (from, device) in devices.iter_mut().enumerate() {
                let write = Write { number, ..write.clone() };
                device.post((from + 1) % 4, 0, &write).unwrap();
            }
            while world.step() {}
            for device in &mut devices {
                device.poll(&mut found);
            }
            found.clear();
        }
        frames += world.counters().landed;
    }
    let each = start.elapsed() / frames as u32;
    println!("{frames} frames, {each:?} each, {:?} a world", start.elapsed() / WORLDS as u32);
}
