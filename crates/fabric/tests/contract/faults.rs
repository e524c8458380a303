//! The contract while rails and ranks fail.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabric::{FlagWrite, PostError, RailFault, Shape, Span, Write};

use crate::cases::fill;
use crate::rig::{Maker, Rig, pattern};

const FLAGS: u64 = 4096;
const LONE_FLAG: u64 = 2048;
const SLOTS: u64 = 64 << 10;
const BODIES: u64 = 512 << 10;
const SLOT: u64 = 8192;

/// A write with a slot, a body and a flag of its own.
fn own_slot(rig: &Rig, from: usize, index: u32, len: usize) -> Write {
    let offset = BODIES + u64::from(index) * SLOT;
    rig.regions[from].write(offset, &pattern(index, len)).unwrap();
    Write {
        body: Span { offset, len: len as u64 },
        to: SLOTS + u64::from(index) * SLOT,
        flag: Some(FlagWrite { offset: FLAGS + u64::from(index) * 64, value: index + 1 }),
        ..Write::default()
    }
}

fn both_ends_down(rig: &Rig) -> bool {
    rig.down.contains_key(&(0, 1, 0)) && rig.down.contains_key(&(1, 0, 0))
}

fn assert_cut_well(rig: &mut Rig) {
    rig.until("word at both ends", both_ends_down);
    rig.settle();
    assert_eq!(rig.down.len(), 2, "{:?}", rig.down);
    let flag = |value| Some(FlagWrite { offset: LONE_FLAG, value });
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(rig.outstanding((from, to, 0)), 0);
        let write = Write { flag: flag(6), ..Write::default() };
        assert_eq!(rig.post((from, to, 0), &write), Err(PostError::Down));
        let before = rig.flag(to, LONE_FLAG);
        // All posted before goes again on the other rail, in order.
        for number in rig.lost.remove(&(from, to, 0)).unwrap_or_default() {
            while rig.post((from, to, 1), &Write { number, ..Write::default() }).is_err() {
                rig.tick();
            }
        }
        rig.settle();
        assert_eq!(rig.flag(to, LONE_FLAG), before);
        rig.send((from, to, 1), Write { flag: flag(7), ..Write::default() });
        rig.settle();
        assert_eq!(rig.flag(to, LONE_FLAG), 7);
    }
}

pub(crate) fn a_cut_is_told_once_at_both_ends(maker: &Maker) {
    let mut rig = maker.full(3);
    for index in 0..10 {
        let there = own_slot(&rig, 0, index, 500);
        let back = own_slot(&rig, 1, index, 500);
        rig.send((0, 1, 0), there);
        rig.send((1, 0, 0), back);
    }
    for _ in 0..maker.variant % 8 {
        rig.tick();
    }
    rig.devices[0].cut(1, 0);
    assert_cut_well(&mut rig);
    assert_eq!(rig.down[&(0, 1, 0)], RailFault::Cut);
}

pub(crate) fn a_cut_from_both_ends_is_told_once(maker: &Maker) {
    let mut rig = maker.full(2);
    for index in 0..6 {
        let there = own_slot(&rig, 0, index, 500);
        rig.send((0, 1, 0), there);
    }
    rig.devices[1].cut(0, 0);
    for _ in 0..maker.variant % 3 {
        rig.tick();
    }
    rig.devices[0].cut(1, 0);
    rig.devices[1].cut(0, 0);
    assert_cut_well(&mut rig);
}

/// What a receiver does that takes its bytes: each write must be whole, and comes once.
fn consume(rig: &Rig, taken: &mut [u32], lens: &[usize]) {
    for (index, count) in taken.iter_mut().enumerate() {
        let flag = FLAGS + index as u64 * 64;
        if rig.flag(1, flag) == 0 {
            continue;
        }
        assert_eq!(rig.flag(1, flag), index as u32 + 1);
        let at = SLOTS + index as u64 * SLOT;
        assert!(rig.bytes(1, at, lens[index]) == pattern(index as u32, lens[index]));
        rig.regions[1].write(at, &vec![0xee; lens[index]]).unwrap();
        rig.regions[1].flag(flag).unwrap().store(0, Ordering::Release);
        *count += 1;
    }
}

pub(crate) fn reposted_writes_land_once(maker: &Maker) {
    const COUNT: usize = 40;
    let mut rig = maker.rig(Shape::Full, 2, 1 << 20, u32::MAX - 17);
    let lens: Vec<usize> = (0..COUNT).map(|index| 1 + index * 1931 % 8000).collect();
    let mut taken = vec![0; COUNT];
    let mut writes = BTreeMap::new();
    // Cut after some have been posted and some have arrived, from either end.
    let cut_at = 5 + maker.variant as usize * 7 % 30;
    for (index, &len) in lens.iter().enumerate() {
        let write = own_slot(&rig, 0, index as u32, len);
        let rail = if index > cut_at { 1 } else { index % 2 };
        let number = rig.send((0, 1, rail), write.clone());
        writes.insert(number, Write { number, ..write });
        if maker.variant.is_multiple_of(3) {
            rig.tick();
        }
        consume(&rig, &mut taken, &lens);
        if index == cut_at {
            let (end, peer) = if maker.variant.is_multiple_of(2) { (0, 1) } else { (1, 0) };
            rig.devices[end].cut(peer, 0);
        }
    }
    // A rail that is cut at one end only may be told at that end alone where nothing is lost.
    let mut again = Vec::new();
    loop {
        let more = rig.tick();
        consume(&rig, &mut taken, &lens);
        again.extend(rig.lost.remove(&(0, 1, 0)).unwrap_or_default());
        again.retain(|number| rig.post((0, 1, 1), &writes[number]).is_err());
        let waiting = rig.outstanding((0, 1, 0)) + rig.outstanding((0, 1, 1)) + again.len();
        if waiting == 0 {
            break;
        }
        assert!(more, "nothing more happens; {waiting} are still out");
    }
    rig.settle();
    consume(&rig, &mut taken, &lens);
    assert_eq!(taken, [1; COUNT], "reposted writes came so often");
    for (index, &len) in lens.iter().enumerate() {
        let slot = rig.bytes(1, SLOTS + index as u64 * SLOT, len);
        assert!(
            slot.iter().all(|&byte| byte == 0xee),
            "reposted writes landed after they were taken: {index}"
        );
    }
}

pub(crate) fn bodies_are_not_read_after_their_rail_went_down(maker: &Maker) {
    let mut rig = maker.full(2);
    for index in 0..12 {
        let write = own_slot(&rig, 0, index, 8000);
        rig.send((0, 1, 0), write);
    }
    rig.devices[0].cut(1, 0);
    rig.until("word of it", |rig| rig.down.contains_key(&(0, 1, 0)));
    for index in 0..12 {
        rig.regions[0].write(BODIES + index * SLOT, &[0xff; 8000]).unwrap();
    }
    rig.settle();
    for index in 0..12 {
        if rig.flag(1, FLAGS + u64::from(index) * 64) != 0 {
            let slot = rig.bytes(1, SLOTS + u64::from(index) * SLOT, 8000);
            assert!(slot == pattern(index, 8000), "write {index}");
        }
    }
}

pub(crate) fn a_damaged_frame_ends_its_rail(maker: &Maker) {
    let mut rig = maker.full(2);
    let sound = own_slot(&rig, 0, 0, 3000);
    rig.send((0, 1, 0), sound);
    rig.settle();
    assert!(rig.devices[0].corrupt_next(1), "a transport without frames is excluded");
    let before = rig.flag(1, FLAGS + 64);
    let damaged = own_slot(&rig, 0, 1, 3000);
    rig.send((0, 1, 0), damaged);
    rig.until("word at both ends", both_ends_down);
    rig.settle();
    assert!(
        matches!(&rig.down[&(1, 0, 0)], RailFault::BadFrame(what) if !what.is_empty()),
        "{:?}",
        rig.down
    );
    assert_eq!(rig.flag(1, FLAGS + 64), before, "a damaged frame raised its flag");
    assert_eq!(rig.lost[&(0, 1, 0)].len(), 1);
    let number = rig.lost[&(0, 1, 0)][0];
    let again = Write { number, ..own_slot(&rig, 0, 1, 3000) };
    assert!(rig.post((0, 1, 1), &again).is_ok());
    rig.settle();
    assert_eq!(rig.flag(1, FLAGS + 64), 2);
    assert!(rig.bytes(1, SLOTS + SLOT, 3000) == pattern(1, 3000));
}

/// Three times over: what was lost lands once on the other rail; then the rail is made anew, an
/// unnumbered write crosses it each way, and writes land on it in order again.
pub(crate) fn a_failed_rail_is_made_anew_and_carries_again(maker: &Maker) {
    const EACH: u32 = 20;
    let mut rig = maker.full(2);
    let mut writes = BTreeMap::new();
    let mut value = 0;
    for round in 0..3 {
        let mut cut_at = (maker.variant as u32 * 7 + round * 5) % EACH;
        while value < (round + 1) * EACH {
            for (from, to) in [(0, 1), (1, 0)] {
                let flag = FlagWrite { offset: FLAGS, value: value + 1 };
                let write = Write { flag: Some(flag), ..own_slot(&rig, from, value % 16, 3000) };
                let number = rig.send((from, to, 0), write.clone());
                writes.insert((from, number), Write { number, ..write });
            }
            value += 1;
            if cut_at == 0 {
                break;
            }
            cut_at -= 1;
        }
        value = (round + 1) * EACH;
        let end = round as usize % 2;
        rig.devices[end].cut(1 - end, 0);
        rig.until("word at both ends", both_ends_down);
        for (from, to) in [(0, 1), (1, 0)] {
            for number in rig.lost.remove(&(from, to, 0)).unwrap_or_default() {
                while rig.post((from, to, 1), &writes[&(from, number)]).is_err() {
                    rig.tick();
                }
            }
        }
        rig.settle();
        let before = [0, 1].map(|rank| rig.flag(rank, FLAGS));
        rig.make_again(0);
        for (from, to) in [(0, 1), (1, 0)] {
            let flag = Some(FlagWrite { offset: LONE_FLAG, value: round + 1 });
            let proof = Write { flag, unnumbered: true, ..Write::default() };
            assert!(rig.post((from, to, 0), &proof).is_ok());
        }
        rig.settle();
        for (rank, before) in before.into_iter().enumerate() {
            assert_eq!(rig.flag(rank, LONE_FLAG), round + 1);
            assert_eq!(rig.flag(rank, FLAGS), before, "something of the old queue pair landed");
        }
    }
    for index in 0..100 {
        let flag = Some(FlagWrite { offset: FLAGS, value: 1000 + index });
        rig.send((0, 1, 0), Write { flag, ..Write::default() });
        let before = rig.flag(1, FLAGS);
        rig.tick();
        assert!(rig.flag(1, FLAGS) >= before, "a flag overtook another");
    }
    rig.settle();
    assert_eq!(rig.flag(1, FLAGS), 1099);
    assert!(rig.down.is_empty(), "{:?}", rig.down);
}

pub(crate) fn a_frozen_peer_blocks_nobody(maker: &Maker) {
    let mut rig = maker.full(3);
    rig.freeze(2);
    let start = Instant::now();
    let to_frozen = fill(&mut rig, (0, 2, 0), 3000);
    let from_one = fill(&mut rig, (1, 2, 1), 3000);
    for index in 0..50 {
        let there = own_slot(&rig, 0, index, 4000);
        let back = own_slot(&rig, 1, index, 4000);
        rig.send((0, 1, index as usize % 2), there);
        rig.send((1, 0, index as usize % 2), back);
    }
    rig.settle();
    for (rank, index) in (0..2).flat_map(|rank| (0..50).map(move |index| (rank, index))) {
        assert_eq!(rig.flag(rank, FLAGS + u64::from(index) * 64), index + 1);
    }
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    rig.thaw(2);
    rig.settle();
    assert_eq!(rig.outstanding((0, 2, 0)) + rig.outstanding((1, 2, 1)), 0);
    let last = rig.flag(2, FLAGS);
    assert!(last == to_frozen || last == from_one, "{last}: {to_frozen} or {from_one} was last");
    assert!(rig.down.is_empty(), "{:?}", rig.down);
}
