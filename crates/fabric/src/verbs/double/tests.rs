//! The transport over the double: each failure with its cause, and what goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::connect::{Forwarded, VerbsEnd, VerbsNeighbour, VerbsSetup};
use super::super::device::VerbsDevice;
use super::super::error::{VerbsCause, VerbsError};
use super::super::settings::VerbsSettings;
use super::*;
use crate::device::{Device, Event, FlagWrite, Posted, RailFault, Span, Write};
use crate::region::Region;
use crate::topology::{Shape, Topology};

pub(super) const MILLI: Duration = Duration::from_millis(1);
const REGION: u64 = 1 << 20;
const FLAG: u64 = 4096;
const FORWARDED: Forwarded =
    Forwarded { flow_label: 16383, source_port: Some(65535), window_bytes: 64 << 10 };

/// Parameters whose waits are short.
pub(super) fn quick() -> VerbsSettings {
    VerbsSettings { timeout: 6, stall_limit: 100 * MILLI, ..VerbsSettings::default() }
}

/// Some ranks of a world, joined.
pub(super) struct Bed {
    pub(super) world: World,
    pub(super) ranks: Vec<usize>,
    pub(super) devices: Vec<VerbsDevice>,
    pub(super) regions: Vec<Arc<Region>>,
    pub(super) events: Vec<Vec<Event>>,
}

impl Bed {
    /// Joins two ranks over these ends, by rail.
    pub(super) fn join(
        world: World,
        ranks: [usize; 2],
        ends: &[(VerbsEnd, VerbsEnd)],
        settings: VerbsSettings,
    ) -> Result<Self, VerbsError> {
        let mut all = Vec::new();
        let mut regions = Vec::new();
        for (place, &rank) in ranks.iter().enumerate() {
            let region = Arc::new(Region::private(REGION).unwrap());
            regions.push(Arc::clone(&region));
            let own =
                |(one, two): &(VerbsEnd, VerbsEnd)| if place == 0 { one } else { two }.clone();
            let ends = ends.iter().map(own).collect();
            let neighbours = vec![VerbsNeighbour { rank: ranks[1 - place], ends }];
            all.push(world.prepare(VerbsSetup { rank, neighbours, region, settings })?);
        }
        let mut blobs = vec![Vec::new(); ranks[0].max(ranks[1]) + 1];
        for (ends, &rank) in all.iter().zip(&ranks) {
            blobs[rank] = ends.blob();
        }
        let connect = |ends: VerbsEnds| Ok(ends.connect(&blobs)?.0);
        let devices = all.into_iter().map(connect).collect::<Result<_, VerbsError>>()?;
        let events = vec![Vec::new(); 2];
        Ok(Self { world, ranks: ranks.to_vec(), devices, regions, events })
    }

    /// Two neighbours with two rails.
    fn pair(settings: DoubleSettings, verbs: VerbsSettings) -> Result<Self, VerbsError> {
        let world = World::new(&Topology::new(Shape::Path, 2, 2).unwrap(), settings);
        let ends = [0, 1].map(|rail| (world.end(0, 1, rail), world.end(1, 0, rail)));
        Self::join(world, [0, 1], &ends, verbs)
    }

    /// Ranks 0 and 2 of a ring of four: rail 0 by way of 1, rail 1 by way of 3.
    pub(super) fn distant(
        settings: DoubleSettings,
        forwarded: Forwarded,
    ) -> Result<Self, VerbsError> {
        let world = World::new(&Topology::new(Shape::Ring, 4, 2).unwrap(), settings);
        let ends = [(1, 0), (3, 1)].map(|(via, rail)| world.forward((0, via, 2), rail, forwarded));
        Self::join(world, [0, 2], &ends, quick())
    }

    pub(super) fn tick(&mut self) -> bool {
        let mut moved = false;
        for (device, events) in self.devices.iter_mut().zip(&mut self.events) {
            moved |= device.poll(events);
        }
        if !self.world.step() {
            self.world.advance(MILLI);
            return moved;
        }
        true
    }

    pub(super) fn until(&mut self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let start = self.world.now();
        while !so(self) {
            assert!(self.world.now() - start < Duration::from_secs(60), "waited for {what}");
            self.tick();
        }
    }

    fn post(&mut self, rail: usize, number: u32) {
        let write = write(number, 4000);
        self.regions[0].write(write.body.offset, &[number as u8; 4000]).unwrap();
        let peer = self.ranks[1];
        assert_eq!(self.devices[0].post(peer, rail, &write), Ok(Posted::Pending));
    }

    fn flag(&self) -> u32 {
        self.regions[1].flag(FLAG).unwrap().load(Ordering::Acquire)
    }

    pub(super) fn down(&self, place: usize, of: usize) -> Option<&RailFault> {
        self.events[place].iter().find_map(|event| match event {
            Event::RailDown { rail, fault, .. } if *rail == of => Some(fault),
            _ => None,
        })
    }

    /// Why a rail is not there.
    fn absent(&self, place: usize, rail: usize) -> String {
        match self.down(place, rail) {
            Some(RailFault::Absent(why)) => why.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn done(&self) -> usize {
        self.events[0].iter().filter(|event| matches!(event, Event::Done { .. })).count()
    }

    /// Rail 0 fails at rank 0 for this cause while writes are under way; rail 1 carries them.
    fn assert_survives(&mut self, cause: VerbsCause, status: Option<u32>, break_it: &[Fault]) {
        self.post(0, 1);
        self.until("the first write", |bed| bed.done() == 1);
        for number in 2..6 {
            self.post(0, number);
        }
        break_it.iter().for_each(|&fault| self.world.inject(fault));
        self.until("word at both ends", |bed| bed.down(0, 0).is_some() && bed.down(1, 0).is_some());
        let RailFault::Verbs(fault) = self.down(0, 0).unwrap() else {
            panic!("{:?}", self.down(0, 0))
        };
        assert_eq!((fault.cause, fault.status), (cause, status), "{fault}");
        assert_eq!(fault.device, "d0c1r0");
        assert_eq!(self.down(1, 0), Some(&RailFault::PeerClosed));
        for number in self.done() as u32 + 1..6 {
            self.post(1, number);
        }
        self.until("the other rail", |bed| bed.done() == 5);
        assert_eq!(self.flag(), 5);
        let downs = self.events.iter().flatten().filter(|it| matches!(it, Event::RailDown { .. }));
        assert_eq!(downs.count(), 2, "{:?}", self.events);
    }
}

fn write(number: u32, len: u64) -> Write {
    Write {
        body: Span { offset: (512 << 10) + u64::from(number) % 64 * 4096, len },
        to: (64 << 10) + u64::from(number) % 64 * 4096,
        flag: Some(FlagWrite { offset: FLAG, value: number }),
        number,
        ..Write::default()
    }
}

const END: (usize, usize, usize) = (0, 1, 0);

#[test]
fn every_failure_has_its_cause_and_the_other_rail_carries_on() {
    let complete = |status| Fault::Complete { end: END, status, vendor_error: 0x32 };
    for (seed, (faults, cause, status)) in [
        (vec![complete(2)], VerbsCause::LocalOperation, Some(2)),
        (vec![complete(4)], VerbsCause::LocalProtection, Some(4)),
        (vec![complete(5)], VerbsCause::Flushed, Some(5)),
        (vec![complete(10)], VerbsCause::RemoteAccess, Some(10)),
        (vec![complete(11)], VerbsCause::RemoteOperation, Some(11)),
        (vec![complete(13)], VerbsCause::ReceiverNotReady, Some(13)),
        (vec![complete(77)], VerbsCause::Unknown, Some(77)),
        (vec![Fault::Lose { end: END, permille: 1000 }], VerbsCause::NoAnswer, Some(12)),
        (vec![Fault::Lose { end: (1, 0, 0), permille: 1000 }], VerbsCause::NoAnswer, Some(12)),
        (vec![Fault::Pull { end: END }], VerbsCause::PortDown, Some(12)),
        (vec![Fault::Stall { end: END }], VerbsCause::Stalled, None),
        (vec![Fault::Stall { end: END }, Fault::Mute { end: END }], VerbsCause::Stalled, None),
        (vec![Fault::Gone { end: END }], VerbsCause::DeviceGone, None),
    ]
    .into_iter()
    .enumerate()
    {
        let settings = DoubleSettings { seed: seed as u64, ..DoubleSettings::default() };
        Bed::pair(settings, quick()).unwrap().assert_survives(cause, status, &faults);
    }
}

#[test]
fn a_seed_replays_and_losses_are_made_good() {
    let run = |seed| {
        let settings = DoubleSettings { seed, lost_permille: 50, ..DoubleSettings::default() };
        let mut bed = Bed::pair(settings, quick()).unwrap();
        for number in 1..=20 {
            bed.post(0, number);
        }
        bed.until("all writes", |bed| bed.done() == 20);
        assert_eq!(bed.flag(), 20);
        (bed.world.now(), bed.world.counters())
    };
    let all: Vec<_> = (0..10).map(run).collect();
    assert_eq!(all, (0..10).map(run).collect::<Vec<_>>());
    assert!(all.iter().all(|(_, counters)| counters.resent > 0 && counters.refused == 0));
    assert!(all.windows(2).any(|two| two[0] != two[1]), "seeds make no difference");
}

#[test]
fn what_a_device_refuses_is_said_with_its_cause() {
    let world =
        || World::new(&Topology::new(Shape::Path, 2, 1).unwrap(), DoubleSettings::default());
    let join = |world: World| {
        let ends = [(world.end(0, 1, 0), world.end(1, 0, 0))];
        Bed::join(world, [0, 1], &ends, quick()).err().unwrap()
    };
    let refusing = world();
    let errno = rustix::io::Errno::NOMEM.raw_os_error();
    refusing.inject(Fault::RefuseMemory { end: END, errno });
    let error = join(refusing).to_string();
    assert!(error.contains("cannot register the region") && error.contains("kho=off"), "{error}");
    let unplugged = world();
    unplugged.inject(Fault::Pull { end: END });
    let error = join(unplugged);
    assert!(matches!(error, VerbsError::PortInactive { state: 1, .. }), "{error}");
    let without = world();
    without.inject(Fault::DropGid { end: END });
    let error = join(without);
    assert!(matches!(error, VerbsError::NoGid { .. }), "{error}");
}

#[test]
fn ends_that_were_given_different_settings_do_not_connect() {
    let world = World::new(&Topology::new(Shape::Path, 2, 1).unwrap(), DoubleSettings::default());
    let prepare = |rank: usize, settings| {
        let region = Arc::new(Region::private(4096).unwrap());
        let ends = vec![world.end(rank, 1 - rank, 0)];
        let neighbours = vec![VerbsNeighbour { rank: 1 - rank, ends }];
        world.prepare(VerbsSetup { rank, neighbours, region, settings }).unwrap()
    };
    let other = VerbsSettings { retry_count: 3, ..quick() };
    let (one, two) = (prepare(0, quick()), prepare(1, other));
    let blobs = [one.blob(), two.blob()];
    let error = one.connect(&blobs).unwrap_err().to_string();
    assert!(error.contains("verbs.retry_count is 6 at rank 0 and 3 at rank 1"), "{error}");
}

#[test]
fn a_forwarded_rail_without_the_tag_port_is_down_from_the_beginning_and_says_so() {
    let settings = DoubleSettings { labels_from: u32::MAX, ..DoubleSettings::default() };
    let mut bed = Bed::distant(settings, FORWARDED).unwrap();
    bed.tick();
    let text = bed.absent(0, 0);
    for part in
        ["rank 0", "rank 2", "rail 0", "d0c1r0", "leave from UDP source port", "tag port 65535"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // Destination tags do not need the port.
    let tagged = Forwarded { flow_label: 0, source_port: None, ..FORWARDED };
    let mut bed = Bed::distant(settings, tagged).unwrap();
    bed.post(0, 1);
    bed.until("the write", |bed| bed.done() == 1);
    assert!(bed.world.counters().forwarded > 0);
}

/// Two neighbours whose queue pairs' numbers make the tag port where the label does not count, on
/// a ring whose rules pass on what comes from that port.
fn colliding(labels_from: u32, planted: Option<Planted>) -> Result<Bed, VerbsError> {
    let settings = DoubleSettings { labels_from, planted, ..DoubleSettings::default() };
    let world = World::new(&Topology::new(Shape::Ring, 4, 1).unwrap(), settings);
    world.forward((0, 1, 2), 0, FORWARDED);
    let ends = [(world.end(0, 1, 0), world.end(1, 0, 0))];
    let mut all = Vec::new();
    let mut regions = Vec::new();
    for (rank, number) in [(0, 1), (1, 16383)] {
        world.set_next_number(number);
        let region = Arc::new(Region::private(REGION).unwrap());
        regions.push(Arc::clone(&region));
        let ends = vec![if rank == 0 { ends[0].0.clone() } else { ends[0].1.clone() }];
        let neighbours = vec![VerbsNeighbour { rank: 1 - rank, ends }];
        all.push(world.prepare(VerbsSetup { rank, neighbours, region, settings: quick() })?);
    }
    let blobs: Vec<_> = all.iter().map(VerbsEnds::blob).collect();
    let connect = |ends: VerbsEnds| Ok(ends.connect(&blobs)?.0);
    let devices = all.into_iter().map(connect).collect::<Result<_, VerbsError>>()?;
    Ok(Bed { world, ranks: vec![0, 1], devices, regions, events: vec![Vec::new(); 2] })
}

#[test]
fn a_planted_label_0_collision_is_found() {
    // As it should be: the device follows the label.
    let mut sound = colliding(1, None).unwrap();
    sound.post(0, 1);
    sound.until("the write", |bed| bed.done() == 1);
    assert_eq!(sound.world.counters().astray, 0);
    // Planted: it does not, and nobody looks at the port. The neighbour's host passes packets on.
    let mut astray = colliding(u32::MAX, Some(Planted::NoPortCheck)).unwrap();
    astray.post(0, 1);
    astray.until("the failure", |bed| bed.down(0, 0).is_some());
    assert_eq!(astray.flag(), 0, "nothing came to the neighbour");
    assert!(astray.world.counters().astray > 0, "{:?}", astray.world.counters());
    let fault = astray.down(0, 0).unwrap();
    assert!(matches!(fault, RailFault::Verbs(it) if it.cause == VerbsCause::NoAnswer), "{fault}");
    // The check finds it before a packet leaves.
    let mut found = colliding(u32::MAX, None).unwrap();
    found.tick();
    let text = found.absent(0, 0);
    assert!(text.contains("leave from UDP source port 65535, the tag port"), "{text}");
    assert_eq!(found.world.counters().sent, 0);
    // A device that takes some other label is given one.
    let mut made_again = colliding(3, None).unwrap();
    made_again.post(0, 1);
    made_again.until("the write", |bed| bed.done() == 1);
    assert_eq!(made_again.world.counters().astray, 0);
}

#[test]
fn a_forwarded_rail_without_rules_gets_no_answer() {
    let mut bed = Bed::distant(DoubleSettings::default(), FORWARDED).unwrap();
    bed.post(0, 1);
    bed.until("the write", |bed| bed.done() == 1);
    // The way back only, then the way there.
    bed.world.inject(Fault::DropRules { end: (1, 2, 0) });
    bed.post(0, 2);
    bed.until("the failure", |bed| bed.down(0, 0).is_some());
    let fault = bed.down(0, 0).unwrap();
    assert!(matches!(fault, RailFault::Verbs(it) if it.status == Some(12)), "{fault}");
    let text = fault.to_string();
    assert!(text.contains("; in this epoch retry_exceeded_err +"), "{text}");
    assert!(text.contains(", completer_retry_err +"), "{text}");
    assert_eq!((bed.flag(), bed.done()), (2, 2), "it had landed, and was found to");
    bed.post(1, 3);
    bed.until("the other rail", |bed| bed.done() == 3);
}

/// Writes of 8 KiB from one end to the other as fast as they are taken.
fn pour(window_bytes: u64, hairpin_bytes: u64) -> Bed {
    let settings = DoubleSettings { hairpin_bytes, ..DoubleSettings::default() };
    let mut bed = Bed::distant(settings, Forwarded { window_bytes, ..FORWARDED }).unwrap();
    let mut number = 1;
    let start = bed.world.now();
    while bed.done() < 60 {
        assert!(bed.world.now() - start < Duration::from_secs(5), "{} done", bed.done());
        if number <= 60 && bed.devices[0].post(2, 0, &write(number, 8192)).is_ok() {
            number += 1;
        } else {
            bed.tick();
        }
        assert!(bed.down(0, 0).is_none(), "{:?}", bed.events);
    }
    bed
}

#[test]
fn a_window_keeps_the_queue_on_the_way_from_dropping() {
    let held = pour(64 << 10, 128 << 10);
    assert_eq!(held.world.counters().overflowed, 0);
    let most = held.world.most_on_their_way(0, 2, 0);
    assert!((32 << 10..=64 << 10).contains(&most), "{most} bytes were on their way");
    // Without one it drops, and the queue pair makes that good.
    let loose = pour(1 << 20, 16 << 10);
    assert!(loose.world.counters().overflowed > 0 && loose.world.counters().resent > 0);
}

#[test]
fn the_window_says_how_long_a_write_should_be() {
    for (window_bytes, most) in [(128 << 10, 32 << 10), (40 << 10, 20 << 10), (1, 1)] {
        let forwarded = Forwarded { window_bytes, ..FORWARDED };
        let mut bed = Bed::distant(DoubleSettings::default(), forwarded).unwrap();
        assert_eq!(bed.devices[0].write_bytes_max(2, 0), most);
        // A longer write goes alone.
        bed.post(0, 1);
        bed.until("the write", |bed| bed.done() == 1);
    }
    let bed = Bed::pair(DoubleSettings::default(), quick()).unwrap();
    assert_eq!(bed.devices[0].write_bytes_max(1, 0), u64::MAX);
}

#[test]
fn a_rail_is_made_again_and_again() {
    let end = END;
    let other = (1, 0, 0);
    let complete = |end| Fault::Complete { end, status: 12, vendor_error: 0x81 };
    let mut bed = Bed::pair(DoubleSettings::default(), quick()).unwrap();
    assert_eq!(bed.devices[0].remake(1, 0), None, "it is up");
    let mut number = 0;
    for (round, fault) in [
        complete(end),
        complete(other),
        Fault::Lose { end, permille: 1000 },
        Fault::Pull { end },
        Fault::Gone { end },
        Fault::Stall { end },
        Fault::Gone { end: other },
    ]
    .into_iter()
    .cycle()
    .take(14)
    .enumerate()
    {
        bed.events.iter_mut().for_each(Vec::clear);
        number += 1;
        bed.post(0, number);
        bed.world.inject(fault);
        bed.until("word at both ends", |bed| bed.down(0, 0).is_some() && bed.down(1, 0).is_some());
        for _ in bed.done()..1 {
            bed.post(1, number);
            bed.until("the other rail", |bed| bed.done() == 1);
        }
        if matches!(fault, Fault::Pull { .. } | Fault::Gone { .. }) {
            let place = usize::from(fault == Fault::Gone { end: other });
            assert_eq!(bed.devices[place].remake(1 - place, 0), None, "still without its port");
        }
        for end in [end, other] {
            let slot = (round % 5) as u8;
            let repairs = [
                Fault::Mend { end },
                Fault::Lose { end, permille: 0 },
                Fault::Back { end },
                Fault::MoveGid { end, slot },
            ];
            repairs.into_iter().for_each(|repair| bed.world.inject(repair));
        }
        bed.tick();
        assert!(bed.devices[0].reconnect(1, 0, b"").is_err(), "it was not offered");
        let told = [bed.devices[0].remake(1, 0).unwrap(), bed.devices[1].remake(0, 0).unwrap()];
        bed.devices[0].reconnect(1, 0, &told[1]).unwrap();
        bed.devices[1].reconnect(0, 0, &told[0]).unwrap();
        bed.events.iter_mut().for_each(Vec::clear);
        for _ in 0..100 {
            number += 1;
            bed.post(0, number);
            bed.until("a write on the new queue pair", |bed| bed.done() == 1);
            assert_eq!(bed.flag(), number);
            assert_eq!(bed.events[0].len(), 1, "{:?}", bed.events);
            bed.events[0].clear();
        }
    }
}

#[test]
fn what_was_told_about_a_rail_must_fit_to_make_it_again() {
    let mut bed = Bed::pair(DoubleSettings::default(), quick()).unwrap();
    bed.devices[0].cut(1, 0);
    bed.until("word at both ends", |bed| bed.down(0, 0).is_some() && bed.down(1, 0).is_some());
    assert_eq!(bed.devices[0].remake(1, 7), None, "no such rail");
    for told in [&b""[..], b"0/0=x", b"0/1=d 1 2"] {
        bed.devices[0].remake(1, 0).unwrap();
        let error = bed.devices[0].reconnect(1, 0, told).unwrap_err();
        assert!(error.contains("rank 1 told nothing"), "{error}");
    }
    assert_eq!(bed.devices[0].post(1, 0, &write(1, 8)), Err(crate::device::PostError::Down));
    let told = [bed.devices[0].remake(1, 0).unwrap(), bed.devices[1].remake(0, 0).unwrap()];
    bed.devices[1].reconnect(0, 0, &told[0]).unwrap();
    bed.devices[0].reconnect(1, 0, &told[1]).unwrap();
    bed.post(0, 1);
    bed.until("the write", |bed| bed.done() == 1);
}

#[test]
fn a_device_whose_completions_are_lost_takes_all_rails_to_its_peers_along() {
    let mut bed = Bed::pair(DoubleSettings::default(), quick()).unwrap();
    bed.post(0, 1);
    bed.world.inject(Fault::Unreadable { end: (1, 0, 0) });
    bed.until("word of both rails", |bed| {
        [(1, 0), (1, 1), (0, 0), (0, 1)]
            .iter()
            .all(|&(place, rail)| bed.down(place, rail).is_some())
    });
    for rail in 0..2 {
        let fault = bed.down(1, rail).unwrap();
        let RailFault::Verbs(fault) = fault else { panic!("{fault}") };
        assert_eq!((fault.cause, fault.device.as_str()), (VerbsCause::DeviceGone, "d1c0r0"));
    }
}

#[test]
fn the_only_rail_is_made_again_once_the_peer_cut_it() {
    let world = World::new(&Topology::new(Shape::Path, 2, 1).unwrap(), DoubleSettings::default());
    let ends = [(world.end(0, 1, 0), world.end(1, 0, 0))];
    let mut bed = Bed::join(world, [0, 1], &ends, quick()).unwrap();
    bed.post(0, 1);
    bed.world.inject(Fault::Complete { end: END, status: 12, vendor_error: 0x81 });
    bed.until("word at the sender", |bed| bed.down(0, 0).is_some());
    assert_eq!(bed.devices[1].remake(0, 0), None, "the peer's end is up");
    bed.devices[1].cut(0, 0);
    bed.until("word at the peer", |bed| bed.down(1, 0).is_some());
    let told = [bed.devices[0].remake(1, 0).unwrap(), bed.devices[1].remake(0, 0).unwrap()];
    bed.devices[0].reconnect(1, 0, &told[1]).unwrap();
    bed.devices[1].reconnect(0, 0, &told[0]).unwrap();
    bed.post(0, 2);
    bed.until("the write", |bed| bed.done() == 1);
    assert_eq!(bed.flag(), 2);
}

#[test]
fn a_rail_that_was_never_there_is_made_once_it_can_be() {
    for missing in [Fault::Pull { end: END }, Fault::DropGid { end: END }] {
        let world =
            World::new(&Topology::new(Shape::Path, 2, 2).unwrap(), DoubleSettings::default());
        world.inject(missing);
        let ends = [0, 1].map(|rail| (world.end(0, 1, rail), world.end(1, 0, rail)));
        let mut bed = Bed::join(world, [0, 1], &ends, quick()).unwrap();
        bed.tick();
        assert!(!bed.absent(0, 0).is_empty() && !bed.absent(1, 0).is_empty());
        bed.post(1, 1);
        bed.until("the other rail", |bed| bed.done() == 1);
        assert_eq!(bed.devices[0].remake(1, 0), None, "it is still missing");
        bed.world.inject(Fault::Mend { end: END });
        bed.world.inject(Fault::MoveGid { end: END, slot: 5 });
        bed.tick();
        let told = [bed.devices[0].remake(1, 0).unwrap(), bed.devices[1].remake(0, 0).unwrap()];
        bed.devices[0].reconnect(1, 0, &told[1]).unwrap();
        bed.devices[1].reconnect(0, 0, &told[0]).unwrap();
        for number in 2..50 {
            bed.post(0, number);
            bed.until("a write", |bed| bed.done() == number as usize);
        }
        // It fails as any other, and both ends hear of it.
        bed.events.iter_mut().for_each(Vec::clear);
        bed.world.inject(Fault::Complete { end: END, status: 12, vendor_error: 0 });
        bed.until("word at both ends", |bed| bed.down(0, 0).is_some() && bed.down(1, 0).is_some());
    }
}

#[test]
fn a_rail_that_one_end_alone_could_connect_is_settled_when_it_fails() {
    // Rank 1 sees no label that fits: its end of rail 0 is absent, and rank 0 cannot know.
    let world = World::new(&Topology::new(Shape::Path, 2, 2).unwrap(), DoubleSettings::default());
    let ends = [0, 1].map(|rail| (world.end(0, 1, rail), world.end(1, 0, rail)));
    let prepare = |rank: usize| {
        let region = Arc::new(Region::private(REGION).unwrap());
        let ends = ends.iter().map(|(a, b)| if rank == 0 { a } else { b }.clone()).collect();
        let neighbours = vec![VerbsNeighbour { rank: 1 - rank, ends }];
        let setup = VerbsSetup { rank, neighbours, region: Arc::clone(&region), settings: quick() };
        (world.prepare(setup).unwrap(), region)
    };
    let [(zero, region), (one, peer_region)] = [prepare(0), prepare(1)];
    let blobs = [zero.blob(), one.blob()];
    let connected = zero.connect(&blobs).unwrap().0;
    world.inject(Fault::DropGid { end: (1, 0, 0) });
    let lacking = one.connect(&blobs).unwrap().0;
    let mut bed = Bed {
        world,
        ranks: vec![0, 1],
        devices: vec![connected, lacking],
        regions: vec![region, peer_region],
        events: vec![Vec::new(); 2],
    };
    bed.post(0, 1);
    bed.until("word of it", |bed| bed.down(0, 0).is_some() && bed.down(1, 0).is_some());
    assert!(bed.down(0, 1).is_none() && bed.down(1, 1).is_none(), "{:?}", bed.events);
    bed.post(1, 1);
    bed.until("the other rail", |bed| bed.done() == 1);
    assert_eq!(bed.flag(), 1);
}
