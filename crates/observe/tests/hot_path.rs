//! What recording costs. The bounds are loose, since tests share a machine; `--nocapture` prints
//! the numbers.

use std::hint::black_box;
use std::time::{Duration, Instant};

use observe::{Event, Identity, Metrics, Operation, PathKind, Recorder, RecorderConfig, Schedule};

/// Nanoseconds a call, the best of several rounds: the others were disturbed.
fn nanos(name: &str, mut call: impl FnMut(u64)) -> f64 {
    const CALLS: u64 = 100_000;
    let round = |call: &mut dyn FnMut(u64)| {
        let began = Instant::now();
        (0..CALLS).for_each(call);
        began.elapsed().as_nanos() as f64 / CALLS as f64
    };
    let best = (0..9).map(|_| round(&mut call)).fold(f64::INFINITY, f64::min);
    println!("{name}: {best:.1} ns");
    best
}

#[test]
fn recording_is_cheap() {
    let metrics = Metrics::new(&Identity::new(0, "h"));
    let collective = nanos("Metrics::collective", |i| {
        let took = Duration::from_nanos(black_box(i * 977 % 5_000_000));
        metrics.collective(Operation::AllReduce, black_box(i), Schedule::OneShot, took);
    });
    let bytes = nanos("Metrics::path_bytes", |i| {
        metrics.path_bytes(PathKind::Direct, black_box(1), black_box(i));
    });
    let position = nanos("Metrics::position", |i| metrics.position(1, black_box(i)));
    let recorder = Recorder::new(Identity::new(0, "h"), RecorderConfig::default());
    let event = |sequence| Event::CollectiveEnd {
        operation: Operation::AllReduce,
        sequence: black_box(sequence),
        ok: true,
    };
    let clock = nanos("Instant::now", |_| {
        black_box(Instant::now());
    });
    let record = nanos("Recorder::record", |i| recorder.record(event(i)));
    let now = Instant::now();
    let record_at = nanos("Recorder::record_at", |i| recorder.record_at(now, event(i)));
    for (name, cost) in [("collective", collective), ("bytes", bytes), ("position", position)] {
        assert!(cost < 1_000.0, "{name}: {cost} ns");
    }
    assert!(record < clock + 2_000.0 && record_at < 2_000.0, "{record} ns, {record_at} ns");
}
