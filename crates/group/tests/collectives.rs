//! Every operation on every transport gives the right values and, for reductions in the order of
//! ranks, the same bits whatever the schedule, the cabling and the transport.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Bed, Impatient, drive};
use fabric::{Element, Reduction, Scalar, Shape, Transport, bytes_of, bytes_of_mut};
use group::collective::{Collectives, Data, Schedule, ScheduleTable};
use half::{bf16, f16};

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];
const SHAPES: [Shape; 3] = [Shape::Full, Shape::Ring, Shape::Path];

/// Values whose sum depends on the order it is taken in.
fn awkward(rank: usize, count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| {
            let bits = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(rank as u32 * 97_531);
            let unit = (bits >> 8) as f32 / (1 << 24) as f32 - 0.5;
            unit * 10_f32.powi(((bits >> 3) % 9) as i32 - 4)
        })
        .collect()
}

fn in_rank_order(ranks: usize, count: usize) -> Vec<f32> {
    let parts: Vec<_> = (0..ranks).map(|rank| awkward(rank, count)).collect();
    (0..count).map(|i| parts[1..].iter().fold(parts[0][i], |sum, part| sum + part[i])).collect()
}

fn all_reduce<T: Element>(group: &mut Collectives<Impatient>, values: &mut [T]) {
    let fabric = group.fabric().clone();
    let data = Data::Plain(bytes_of_mut(values));
    drive(&fabric, group.all_reduce(T::SCALAR, Reduction::Sum, data)).unwrap();
}

#[test]
fn sums_have_the_same_bits_on_every_schedule_transport_and_cabling() {
    for ranks in [1, 2, 3, 4] {
        // Fewer than a line, one slot and its neighbours, several rounds of slots.
        for count in [1, 4096, 4097, 70_001] {
            let expected = in_rank_order(ranks, count);
            for transport in TRANSPORTS {
                for shape in SHAPES {
                    for schedule in [Schedule::OneShot, Schedule::TwoShot] {
                        let bed = Bed::new(transport, shape, ranks);
                        let results = bed.run(ScheduleTable::only(schedule), |group| {
                            let mut values = awkward(group.rank(), count);
                            all_reduce(group, &mut values);
                            values
                        });
                        for result in results {
                            assert!(
                                bytes_of(&result) == bytes_of(&expected),
                                "{ranks} ranks, {count} values, {transport} {shape} {schedule}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn registered_buffers_give_the_same_bits_without_copies() {
    for (transport, shape, schedule) in [
        (Transport::Shm, Shape::Full, Schedule::Mapped),
        (Transport::Shm, Shape::Ring, Schedule::TwoShot),
        (Transport::Shm, Shape::Full, Schedule::OneShot),
        (Transport::Tcp, Shape::Full, Schedule::TwoShot),
    ] {
        let (ranks, count) = (4, 30_000);
        let expected = in_rank_order(ranks, count);
        for in_place in [false, true] {
            let bed = Bed::new(transport, shape, ranks);
            let results = bed.run(ScheduleTable::only(schedule), |group| {
                let fabric = group.fabric().clone();
                let mut input = fabric.alloc(count as u64 * 4).unwrap();
                let other = fabric.alloc(count as u64 * 4).unwrap();
                input.as_mut_slice::<f32>().copy_from_slice(&awkward(group.rank(), count));
                let output = if in_place { input.span() } else { other.span() };
                let data = Data::Registered { input: input.span(), output };
                assert_eq!(group.schedule_for(&data), schedule);
                drive(&fabric, group.all_reduce(Scalar::F32, Reduction::Sum, data)).unwrap();
                if in_place { input.as_slice::<f32>().to_vec() } else { other.as_slice().to_vec() }
            });
            for result in results {
                assert!(bytes_of(&result) == bytes_of(&expected), "{transport} {shape} {schedule}");
            }
        }
    }
}

#[test]
fn a_ring_schedule_gives_all_ranks_the_same_bits() {
    for (transport, shape) in [(Transport::Shm, Shape::Ring), (Transport::Tcp, Shape::Path)] {
        for ranks in [2, 3, 5] {
            let count = 20_011;
            let bed = Bed::new(transport, shape, ranks);
            let results = bed.run(ScheduleTable::only(Schedule::Ring), |group| {
                let mut values = awkward(group.rank(), count);
                all_reduce(group, &mut values);
                let fabric = group.fabric().clone();
                let mut buffer = fabric.alloc(count as u64 * 4).unwrap();
                buffer.as_mut_slice::<f32>().copy_from_slice(&awkward(group.rank(), count));
                let data = Data::Registered { input: buffer.span(), output: buffer.span() };
                drive(&fabric, group.all_reduce(Scalar::F32, Reduction::Sum, data)).unwrap();
                assert_eq!(bytes_of(buffer.as_slice::<f32>()), bytes_of(&values));
                values
            });
            let expected = in_rank_order(ranks, count);
            for result in &results {
                assert_eq!(bytes_of(result), bytes_of(&results[0]));
                for (value, expected) in result.iter().zip(&expected) {
                    assert!((value - expected).abs() <= 1e-5 * expected.abs().max(1000.0));
                }
            }
        }
    }
}

#[test]
fn half_floats_are_summed_in_f32_and_rounded_once() {
    for shape in SHAPES {
        let bed = Bed::new(Transport::Shm, shape, 5);
        let results = bed.run(ScheduleTable::only(Schedule::TwoShot), |group| {
            // 2048 + 1 + 1 + 1 + 1: each step alone would round back.
            let start = if group.rank() == 0 { 2048.0 } else { 1.0 };
            let mut halves = vec![f16::from_f32(start); 3000];
            all_reduce(group, &mut halves);
            let mut brains = vec![bf16::from_f32(start / 8.0); 3000];
            all_reduce(group, &mut brains);
            (halves[2999].to_f32(), brains[2999].to_f32())
        });
        assert!(results.iter().all(|&result| result == (2052.0, 256.0)), "{results:?}");
    }
}

#[test]
fn the_other_operations_move_the_right_bytes() {
    for transport in TRANSPORTS {
        for shape in SHAPES {
            for ranks in [1, 2, 4, 8] {
                let bed = Bed::new(transport, shape, ranks);
                bed.run(ScheduleTable::default(), other_operations);
            }
        }
    }
}

fn other_operations(group: &mut Collectives<Impatient>) {
    let fabric = group.fabric().clone();
    let (rank, size) = (group.rank(), group.size());
    // Ragged: nothing from rank 0, several slots from the last.
    let lengths: Vec<usize> = (0..size).map(|rank| rank * 9001).collect();
    let byte = |rank: usize, i: usize| (rank * 31 + i * 7) as u8;
    let mine: Vec<u8> = (0..lengths[rank]).map(|i| byte(rank, i)).collect();
    let mut all = vec![0; lengths.iter().sum()];
    drive(&fabric, group.all_gather(&mine, &lengths, &mut all)).unwrap();
    let expected: Vec<u8> =
        (0..size).flat_map(|rank| (0..rank * 9001).map(move |i| byte(rank, i))).collect();
    assert!(all == expected);

    for root in 0..size {
        let text = |len: usize| (0..len).map(|i| byte(root, i)).collect::<Vec<u8>>();
        let mut fixed = if rank == root { text(50_000) } else { vec![0; 50_000] };
        drive(&fabric, group.broadcast(&mut fixed, root)).unwrap();
        assert!(fixed == text(50_000));
        for len in [0, 5, 248, 249, 40_000] {
            let mut any = if rank == root { text(len) } else { b"other".to_vec() };
            drive(&fabric, group.broadcast_any(&mut any, root)).unwrap();
            assert!(any == text(len), "{len} bytes from {root}");
        }
    }

    let share = 17_000;
    let input: Vec<u8> =
        (0..size).flat_map(|dst| (0..share).map(move |i| byte(rank * 16 + dst, i))).collect();
    let mut output = vec![0; input.len()];
    drive(&fabric, group.all_to_all(&input, &mut output)).unwrap();
    let expected: Vec<u8> =
        (0..size).flat_map(|src| (0..share).map(move |i| byte(src * 16 + rank, i))).collect();
    assert!(output == expected);

    let values: Vec<i32> = (0..size * 5000).map(|i| (i + rank) as i32).collect();
    let mut part = vec![0_i32; 5000];
    drive(
        &fabric,
        group.reduce_scatter(
            Scalar::I32,
            Reduction::Max,
            bytes_of(&values),
            bytes_of_mut(&mut part),
        ),
    )
    .unwrap();
    assert!((0..5000).all(|i| part[i] == (rank * 5000 + i + size - 1) as i32));

    for _ in 0..10 {
        drive(&fabric, group.barrier()).unwrap();
    }
    let wrong = drive(&fabric, group.all_gather(&mine, &[1], &mut []));
    assert!(wrong.unwrap_err().to_string().contains("all-gather"));
}
