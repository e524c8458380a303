//! What this transport reaches between two spinning ranks of one machine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::tests::setups_over;
use super::*;
use crate::{Device, FIRST_NUMBER, FlagWrite, Region, Span, Write};

#[test]
#[ignore = "a measurement; run it alone, in release"]
fn latency_and_rate_over_loopback() {
    let (low_region, high_region) = (Region::private(160 << 20), Region::private(160 << 20));
    let regions = [Arc::new(low_region.unwrap()), Arc::new(high_region.unwrap())];
    let rails = std::env::var("RAILS").map_or(1, |rails| rails.parse().unwrap());
    let [low, high] = setups_over(regions.clone(), rails, false);
    // Bytes and rounds.
    let sizes: [(u64, u32); 4] = [(8, 4000), (48 << 10, 2000), (1 << 20, 200), (64 << 20, 8)];
    let run = move |setup: TcpSetup, region: Arc<Region>| {
        let rank = setup.rank;
        let (mut device, _parker) = connect(setup).unwrap();
        let raised = region.flag(0).unwrap();
        let mut events = Vec::new();
        let mut count = 0;
        let mut idle = 0_u32;
        let mut number = FIRST_NUMBER;
        for (len, rounds) in sizes {
            for together in [false, true] {
                let mut times = Vec::new();
                for _ in 0..rounds {
                    let started = Instant::now();
                    count += 1;
                    let body = Span { offset: 4096, len: len / rails as u64 };
                    let mut wait = |device: &mut TcpDevice| {
                        while (0..rails as u64).any(|rail| {
                            region.flag(rail * 64).unwrap().load(Ordering::Acquire) < count
                        }) {
                            idle = if device.poll(&mut events) { 0 } else { idle + 1 };
                            // Where cores are few the other end needs this one.
                            if idle > 20_000 {
                                thread::yield_now();
                            }
                        }
                    };
                    if rank == 1 && !together {
                        wait(&mut device);
                    }
                    for rail in 0..rails {
                        let flag = Some(FlagWrite { offset: rail as u64 * 64, value: count });
                        let to = (80 << 20) + rail as u64 * body.len;
                        let write = Write { body, to, flag, number, ..Write::default() };
                        while device.post(1 - rank, rail, &write).is_err() {
                            device.poll(&mut Vec::new());
                        }
                        number = number.wrapping_add(1);
                    }
                    if rank == 0 || together {
                        wait(&mut device);
                    }
                    times.push(started.elapsed());
                }
                times.sort_unstable();
                let (least, p50) = (times[0], times[times.len() / 2]);
                if rank == 0 {
                    let trips = if together { 1 } else { 2 };
                    let rate = len as f64 * f64::from(trips) / least.as_secs_f64() / 1e9;
                    let what = if together { "exchange" } else { "one way" };
                    println!(
                        "{rails} rails {len:>9} B {what}: p50 {:?}, least {:?}, {rate:.2} GB/s",
                        p50 / trips,
                        least / trips
                    );
                }
            }
        }
        // Whatever the other end still waits for.
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            device.poll(&mut events);
        }
        assert!(raised.load(Ordering::Acquire) >= count);
    };
    let [low_region, high_region] = regions;
    let other = thread::spawn(move || run(high, high_region));
    run(low, low_region);
    other.join().unwrap();
}
