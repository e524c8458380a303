//! The contract while nothing fails.

use std::time::Instant;

use fabric::{FlagWrite, INBOX_WINDOW, LINE_BYTES, PostError, Posted, Shape, Span, Write};

use crate::rig::{Maker, Rig, pattern};

const FLAG: u64 = 4096;
/// Where the words end that a transport keeps for its own bells; anything before is theirs.
const OPEN: u64 = 2 * LINE_BYTES;
const SLOTS: u64 = 8192;
const SLOT: u64 = 4096;
const BODIES: u64 = 512 << 10;

fn flag(value: u32) -> Option<FlagWrite> {
    Some(FlagWrite { offset: FLAG, value })
}

/// The write number `index`: its own slot, its own body, one flag that counts.
fn counted(rig: &Rig, from: usize, index: u32, len: usize) -> Write {
    let offset = BODIES + u64::from(index) * SLOT;
    rig.regions[from].write(offset, &pattern(index, len)).unwrap();
    Write {
        body: Span { offset, len: len as u64 },
        to: SLOTS + u64::from(index) * SLOT,
        flag: flag(index + 1),
        ..Write::default()
    }
}

pub(crate) fn writes_land_in_order(maker: &Maker) {
    let mut rig = maker.full(2);
    let lens: Vec<usize> = (0..60).map(|index| 1 + index * 977 % 3001).collect();
    let (mut posted, mut seen) = (0, 0);
    let start = Instant::now();
    while seen < lens.len() {
        assert!(start.elapsed().as_secs() < 30, "{seen} of {} arrived", lens.len());
        while posted < lens.len() {
            let write = counted(&rig, 0, posted as u32, lens[posted]);
            match rig.post_next((0, 1, 0), write) {
                Ok(_) => posted += 1,
                Err(PostError::Full) => break,
                Err(PostError::Down) => panic!("down"),
            }
        }
        rig.tick();
        let now = rig.flag(1, FLAG) as usize;
        assert!((seen..=posted).contains(&now), "the flag went from {seen} to {now}");
        for (index, &len) in lens.iter().enumerate().take(now).skip(seen) {
            let at = SLOTS + index as u64 * SLOT;
            assert!(
                rig.bytes(1, at, len) == pattern(index as u32, len),
                "the flag says {now}, and write {index} is not whole"
            );
        }
        seen = now;
    }
    rig.settle();
}

pub(crate) fn a_large_write_is_whole_when_its_flag_shows(maker: &Maker) {
    const LEN: usize = (1 << 20) + 3;
    let mut rig = maker.rig(Shape::Full, 2, 4 << 20, 0);
    let body = pattern(9, LEN);
    rig.regions[0].write((2 << 20) + 1, &body).unwrap();
    let write = Write {
        body: Span { offset: (2 << 20) + 1, len: LEN as u64 },
        to: 70_001,
        flag: flag(1),
        ..Write::default()
    };
    rig.send((0, 1, 1), write.with_head(b"head"));
    rig.until("the flag", |rig| rig.flag(1, FLAG) == 1);
    assert_eq!(rig.bytes(1, 70_001, 4), b"head");
    assert!(rig.bytes(1, 70_005, LEN) == body);
    rig.settle();
}

pub(crate) fn a_flag_travels_alone(maker: &Maker) {
    let mut rig = maker.full(2);
    let len = rig.regions[1].len();
    for (round, to) in [0, 777, len].into_iter().enumerate() {
        let mut expected = rig.image(1);
        expected[FLAG as usize..][..4].copy_from_slice(&(round as u32 + 5).to_ne_bytes());
        let write = Write { to, flag: flag(round as u32 + 5), ..Write::default() };
        assert!(write.is_empty());
        rig.send((0, 1, 0), write);
        rig.settle();
        assert!(rig.image(1) == expected, "only the flag changes");
    }
    let nothing = Write { to: 50, ..Write::default() };
    rig.send((0, 1, 0), nothing);
    rig.settle();
}

pub(crate) fn head_and_body_are_contiguous(maker: &Maker) {
    let mut rig = maker.full(2);
    let mut count = 0;
    for head_len in [0, 1, 47, 48] {
        for body_len in [0, 1, 5, 64, 1000] {
            count += 1;
            let to = SLOTS + 4096 * u64::from(count) + u64::from(count) % 7;
            let whole = pattern(count, head_len + body_len);
            rig.regions[1].write(to - 8, &vec![0xa5; whole.len() + 16]).unwrap();
            let offset = BODIES + u64::from(count) * 4099;
            rig.regions[0].write(offset, &whole[head_len..]).unwrap();
            let body = Span { offset, len: body_len as u64 };
            let write = Write { body, to, flag: flag(count), ..Write::default() };
            rig.send((0, 1, 0), write.with_head(&whole[..head_len]));
            rig.until("the flag", |rig| rig.flag(1, FLAG) == count);
            let expected = [&[0xa5; 8][..], &whole, &[0xa5; 8]].concat();
            assert_eq!(rig.bytes(1, to - 8, expected.len()), expected);
        }
    }
    rig.settle();
}

pub(crate) fn numbers_wrap(maker: &Maker) {
    let mut rig = maker.rig(Shape::Full, 2, 1 << 20, u32::MAX - 5);
    let last = (0..40).map(|index| {
        let write = counted(&rig, 0, index, 100);
        // Both rails, so that numbers arrive out of order where they wrap.
        rig.send((0, 1, index as usize % 2), Write { flag: None, ..write })
    });
    assert_eq!(last.last(), Some(33));
    rig.settle();
    for index in 0..40 {
        assert_eq!(rig.bytes(1, SLOTS + u64::from(index) * SLOT, 100), pattern(index, 100));
    }
}

/// Posts flags until there is no room or `most` went. Answers how many went.
pub(crate) fn fill(rig: &mut Rig, end: (usize, usize, usize), most: u32) -> u32 {
    for index in 0..most {
        let write = Write { flag: flag(index + 1), ..Write::default() };
        match rig.post_next(end, write) {
            Ok(_) => {}
            Err(PostError::Full) => return index,
            Err(PostError::Down) => panic!("{end:?} is down"),
        }
    }
    most
}

pub(crate) fn a_full_queue_pair_recovers(maker: &Maker) {
    let mut rig = maker.full(2);
    for _ in 0..3 {
        let count = fill(&mut rig, (0, 1, 0), 20_000);
        assert!(count > 0);
        let end = Write { flag: flag(u32::MAX), ..Write::default() };
        // There is room again, and what was refused left no trace.
        rig.send((0, 1, 0), end);
        rig.settle();
        assert_eq!(rig.flag(1, FLAG), u32::MAX);
        assert_eq!(rig.outstanding((0, 1, 0)), 0);
    }
}

pub(crate) fn a_full_rail_does_not_hold_up_the_other(maker: &Maker) {
    let mut rig = maker.full(2);
    // Within the window, although none of these may have arrived.
    fill(&mut rig, (0, 1, 0), INBOX_WINDOW / 2);
    let write = Write { flag: Some(FlagWrite { offset: OPEN, value: 3 }), ..Write::default() };
    assert!(rig.post_next((0, 1, 1), write).is_ok());
    rig.settle();
    assert_eq!(rig.flag(1, OPEN), 3);
}

pub(crate) fn done_means_landed_and_the_body_is_free(maker: &Maker) {
    let mut rig = maker.full(2);
    let body = Span { offset: BODIES, len: 2000 };
    for version in 1..=50 {
        rig.regions[0].write(BODIES, &pattern(version, 2000)).unwrap();
        let to = SLOTS + u64::from(version % 2) * SLOT;
        let write = Write { body, to, flag: flag(version), ..Write::default() };
        rig.send((0, 1, 0), write);
        rig.until("its end", |rig| rig.outstanding((0, 1, 0)) == 0);
        assert_eq!(rig.flag(1, FLAG), version, "done before it landed");
        rig.regions[0].write(BODIES, &[0xff; 2000]).unwrap();
        assert!(rig.bytes(1, to, 2000) == pattern(version, 2000));
    }
    rig.settle();
    assert!(rig.bytes(1, SLOTS, 2000) == pattern(50, 2000), "read after the end");
    assert!(rig.bytes(1, SLOTS + SLOT, 2000) == pattern(49, 2000), "read after the end");
}

pub(crate) fn both_ends_of_the_region_can_be_written(maker: &Maker) {
    let mut rig = maker.full(2);
    let len = rig.regions[1].len();
    let mut expected = rig.image(1);
    let ends = [(OPEN, 40, None), (len - 40, 36, Some(len - 4)), (len - 40, 40, None)];
    for (index, (to, bytes, at)) in ends.into_iter().enumerate() {
        let whole = pattern(index as u32, bytes as usize);
        rig.regions[0].write(len - bytes, &whole).unwrap();
        expected[to as usize..][..whole.len()].copy_from_slice(&whole);
        let write = Write {
            body: Span { offset: len - bytes, len: bytes },
            to,
            flag: at.map(|offset| FlagWrite { offset, value: 0x0102_0304 }),
            ..Write::default()
        };
        if let Some(at) = at {
            expected[at as usize..][..4].copy_from_slice(&0x0102_0304_u32.to_ne_bytes());
        }
        rig.send((0, 1, 0), write);
        rig.settle();
        assert!(rig.image(1) == expected, "write {index}");
    }
}

pub(crate) fn outside_is_refused_without_effect(maker: &Maker) {
    const REGION: u64 = 64 << 10;
    let body = |offset, len| Write { body: Span { offset, len }, to: 4096, ..Write::default() };
    let to = |to, len| Write { to, ..body(8192, len) };
    let raised = |offset| Some(FlagWrite { offset, value: 1 });
    let bad = [
        to(REGION - 99, 100),
        to(REGION, 1),
        to(u64::MAX, 1),
        to(u64::MAX - 3, 8),
        to(REGION - 3, 0).with_head(b"head"),
        to(REGION - 8, 8).with_head(b"head"),
        Write { flag: raised(REGION - 2), ..to(4096, 100) },
        Write { flag: raised(REGION), ..to(4096, 100) },
        Write { flag: raised(4097), ..to(8192, 100) }.with_head(b"head"),
        Write { flag: raised(u64::MAX - 3), ..to(4096, 0) },
        body(REGION - 99, 100).with_head(b"head"),
        body(u64::MAX, 2),
        body(0, REGION + 1),
        body(0, u64::MAX).with_head(b"head"),
    ];
    for write in bad {
        let write = Write { flag: write.flag.or(raised(OPEN)), ..write };
        let mut rig = maker.rig(Shape::Full, 2, REGION, 0);
        rig.regions[0].write(8192, &pattern(1, 1000)).unwrap();
        let before = rig.image(1);
        let posted = rig.post_next((0, 1, 0), write.clone());
        assert!(
            matches!(posted, Ok(Posted::Pending) | Err(PostError::Down)),
            "{posted:?} for {write:?}"
        );
        rig.until("word that it was refused", |rig| rig.down.contains_key(&(0, 1, 0)));
        rig.settle();
        assert!(rig.image(1) == before, "{write:?} had an effect");
        // The other rail is unharmed.
        if posted.is_err() {
            rig.send((0, 1, 1), Write { flag: flag(9), ..Write::default() });
            rig.settle();
            assert_eq!(rig.flag(1, FLAG), 9);
        }
    }
}

pub(crate) fn there_is_no_queue_pair_without_a_cable(maker: &Maker) {
    let mut rig = maker.rig(Shape::Path, 3, 1 << 20, 0);
    let write = Write { flag: flag(1), ..Write::default() };
    let before = rig.image(2);
    for end in [(0, 2, 0), (0, 0, 0), (0, 3, 0), (0, usize::MAX, 0), (0, 1, 2), (0, 1, usize::MAX)]
    {
        assert_eq!(rig.post(end, &write), Err(PostError::Down), "{end:?}");
        rig.devices[0].cut(end.1, end.2);
    }
    rig.settle();
    assert!(rig.down.is_empty(), "{:?}", rig.down);
    assert!(rig.image(2) == before);
}

pub(crate) fn all_to_all_arrives_whole(maker: &Maker) {
    const RANKS: usize = 4;
    const AREA: usize = 64 << 10;
    let mut rig = maker.full(RANKS);
    let mut expected: Vec<Vec<u8>> = (0..RANKS).map(|rank| rig.image(rank)).collect();
    let bodies = 768 << 10;
    for (rank, expected) in expected.iter_mut().enumerate() {
        let own = pattern(rank as u32 + 77, 256 << 10);
        rig.regions[rank].write(bodies, &own).unwrap();
        expected[bodies as usize..].copy_from_slice(&own);
    }
    let mut dice = pattern(maker.variant as u32 + 1, 8 * 6000).into_iter();
    let mut roll = |end: usize| {
        let bytes: [u8; 4] = std::array::from_fn(|_| dice.next().unwrap());
        u32::from_le_bytes(bytes) as usize % end
    };
    for round in 0..150_u32 {
        for from in 0..RANKS {
            let to = (from + 1 + roll(RANKS - 1)) % RANKS;
            let rail = roll(2);
            // Every source and rail has an area of its own, so order within it decides.
            let area = OPEN as usize + (from * 2 + rail) * AREA;
            let len = if roll(8) == 0 { roll(8192) } else { roll(300) };
            let (place, source) = (area + roll(AREA - 8192 - 48), roll((256 << 10) - 8192));
            let head = pattern(round, roll(49));
            let whole = [&head, &rig.bytes(from, bodies + source as u64, len)[..]].concat();
            expected[to][place..][..whole.len()].copy_from_slice(&whole);
            let write = Write {
                body: Span { offset: bodies + source as u64, len: len as u64 },
                to: place as u64,
                ..Write::default()
            };
            rig.send((from, to, rail), write.with_head(&head));
        }
    }
    rig.settle();
    for (rank, expected) in expected.iter().enumerate() {
        let image = rig.image(rank);
        let differs = image.iter().zip(expected).position(|(found, right)| found != right);
        assert_eq!(differs, None, "the first wrong byte of rank {rank}");
        assert_eq!(crc32c::crc32c(&image), crc32c::crc32c(expected));
    }
}
