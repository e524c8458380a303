use super::*;
use proptest::prelude::*;

fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value)
}

#[test]
fn ages_count_from_the_snapshot_that_first_saw_a_value() {
    let cell = BeaconCell::new(7);
    assert_eq!(cell.snapshot(seconds(1.0)), Beacon::starting(7));
    cell.begin_operation(operation::ALL_REDUCE, 41);
    cell.set_waiting(RankSet::one(2), RankSet::one(1));
    let first = cell.snapshot(seconds(2.0));
    assert_eq!((first.phase, first.phase_age), (Phase::Wire, Duration::ZERO));
    let later = cell.heartbeat(seconds(5.0));
    assert_eq!((later.sequence, later.operation, later.beat), (41, operation::ALL_REDUCE, 1));
    assert_eq!((later.waits_for, later.waits_via), (RankSet::one(2), RankSet::one(1)));
    assert_eq!((later.phase_age, later.wait_age), (seconds(3.0), seconds(3.0)));
    cell.end_operation(Phase::Compute);
    let after = cell.snapshot(seconds(6.0));
    assert_eq!((after.phase, after.phase_age), (Phase::Compute, Duration::ZERO));
    assert!(after.waits_for.is_empty() && after.has_passed(41) && !after.has_passed(42));
}

#[test]
fn a_phase_entered_again_between_two_snapshots_is_young() {
    let cell = BeaconCell::new(1);
    cell.set_phase(Phase::Compute);
    cell.snapshot(seconds(1.0));
    cell.set_phase(Phase::Wire);
    cell.set_phase(Phase::Compute);
    assert_eq!(cell.snapshot(seconds(50.0)).phase_age, Duration::ZERO);
}

#[test]
fn a_backlog_ages_with_its_oldest_chunk_only() {
    let cell = BeaconCell::new(1);
    cell.set_relay_backlog(1, 0, 2, 9);
    cell.snapshot(seconds(1.0));
    cell.set_relay_backlog(5, 0, 2, 9);
    let held = cell.snapshot(seconds(4.0)).relay_backlog;
    assert_eq!((held.chunks, held.source, held.destination), (5, 0, 2));
    assert_eq!(held.oldest_age, seconds(3.0));
    cell.set_relay_backlog(5, 0, 2, 10);
    assert_eq!(cell.snapshot(seconds(5.0)).relay_backlog.oldest_age, Duration::ZERO);
    cell.set_relay_backlog(0, 0, 2, 10);
    assert_eq!(cell.snapshot(seconds(9.0)).relay_backlog, RelayBacklog::default());
}

#[test]
fn positions_compare_across_the_wrap_of_the_sequence() {
    let mut beacon = Beacon::starting(1);
    beacon.sequence = 1;
    beacon.operation = operation::BARRIER;
    assert!(beacon.has_passed(u32::MAX) && !beacon.has_passed(1) && !beacon.has_passed(2));
}

#[test]
fn readers_never_see_half_an_update() {
    use std::sync::atomic::AtomicBool;
    let cell = BeaconCell::new(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 1u32.. {
                cell.together(|cell| {
                    cell.position.store((u64::from(sequence) << 32) | 1, Ordering::Relaxed);
                    cell.store_waits(u64::from(sequence & 0xffff));
                });
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let until = std::time::Instant::now() + seconds(10.0);
        let mut whole = 0;
        while whole < 10_000 && std::time::Instant::now() < until {
            let (consistent, _, position, waits, _) = cell.read_once();
            if consistent && position != 0 {
                assert_eq!((position >> 32) & 0xffff, waits & 0xffff);
                whole += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(whole, 10_000);
    });
}

#[test]
fn damage_anywhere_is_an_error() {
    let good = Beacon::starting(3).encode();
    for bit in 0..BEACON_BYTES * 8 {
        let mut bad = good;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Beacon::decode(&bad).is_err(), "bit {bit}");
    }
    assert_eq!(Beacon::decode(&good[..63]), Err(BeaconError::Short { got: 63 }));
}

proptest! {
    #[test]
    fn encoding_keeps_every_field(
        numbers in any::<(u32, u32, u32, u8, u16, u16)>(),
        phase in 0usize..7,
        ages in any::<(u32, u32, u32)>(),
        backlog in any::<(u16, u8, u8)>(),
        detail in any::<[u64; 2]>(),
    ) {
        let age = |ms: u32| Duration::from_millis(u64::from(ms));
        let beacon = Beacon {
            epoch: numbers.0,
            beat: numbers.1,
            sequence: numbers.2,
            operation: numbers.3,
            phase: Phase::ALL[phase],
            phase_age: age(ages.0),
            waits_for: RankSet(u32::from(numbers.4)),
            wait_age: age(ages.1),
            waits_via: RankSet(u32::from(numbers.5)),
            relay_backlog: RelayBacklog {
                chunks: backlog.0,
                oldest_age: age(ages.2),
                source: backlog.1,
                destination: backlog.2,
            },
            detail,
        };
        prop_assert_eq!(Beacon::decode(&beacon.encode()), Ok(beacon));
    }

    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Beacon::decode(&bytes);
    }
}
