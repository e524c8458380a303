use super::*;
use crate::commands::verify::testing::{plan, ring4};

fn names(items: &[Item<'_>]) -> Vec<String> {
    items
        .iter()
        .map(|item| {
            let hops: Vec<_> = item.rail.hops.iter().map(ToString::to_string).collect();
            format!("{} {}", hops.join(">"), item.number)
        })
        .collect()
}

#[test]
fn every_rail_of_every_path_is_proven_direct_ones_first() {
    let plan = ring4("off");
    let items = items(&plan, &[]);
    let rails: usize = plan.paths.iter().map(|path| path.rails.len()).sum();
    assert_eq!(items.len(), rails);
    let direct = items.iter().take_while(|item| item.path.kind == PathKind::Direct).count();
    assert_eq!(direct, 16);
    assert!(items[direct..].iter().all(|item| item.path.kind == PathKind::Relayed));
    let names = names(&items);
    assert_eq!(names[..4], ["0>1 0", "0>1 1", "0>3 0", "0>3 1"]);
    for name in &names {
        assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
    }
}

#[test]
fn only_the_named_pairs_are_proven() {
    let plan = ring4("off");
    let items = items(&plan, &[(0, 2), (1, 0)]);
    assert!(items.iter().all(|item| [(0, 2), (1, 0)].contains(&(item.path.from, item.path.to))));
    assert_eq!(names(&items)[..2], ["1>0 0", "1>0 1"]);
}

#[test]
fn forwarded_rails_and_those_without_addresses_are_not_tried() {
    let plan = ring4("required");
    let items = items(&plan, &[(0, 2)]);
    assert!(!items.is_empty());
    for item in items {
        let Some(Obstacle::NotProven(why)) = obstacle(item, &Known::default()) else {
            panic!("{item:?}")
        };
        assert!(why.contains("needs verbs"), "{why}");
    }

    let mut bare = ring4("off");
    for path in &mut bare.paths {
        for crossing in path.rails.iter_mut().flat_map(|rail| &mut rail.crossings) {
            if crossing.into.label() == "h1.p1.0" {
                crossing.into.ip = None;
            }
        }
    }
    let items = self::items(&bare, &[(0, 1)]);
    let Some(Obstacle::NotProven(why)) = obstacle(items[0], &Known::default()) else { panic!() };
    assert!(why.contains("h1.p1.0"), "{why}");
    assert_eq!(obstacle(items[1], &Known::default()), None);
}

#[test]
fn a_relayed_rail_over_a_cable_that_failed_is_not_tried() {
    let plan = ring4("off");
    let all = items(&plan, &[]);
    let mut known = Known::default();
    let direct = all.iter().find(|item| names(&[**item]) == ["1>2 0"]).unwrap();
    known.note_failed(*direct, 0);
    let pair = |item: &Item<'_>| {
        item.rail.crossings.iter().position(|crossing| {
            (crossing.out.label(), crossing.into.label())
                == (direct.rail.crossings[0].out.label(), direct.rail.crossings[0].into.label())
        })
    };
    let mut hit = 0;
    for item in &all {
        assert_eq!(
            obstacle(*item, &known),
            pair(item).map(Obstacle::Broken),
            "{:?}",
            names(&[*item])
        );
        hit += usize::from(item.path.kind == PathKind::Relayed && pair(item).is_some());
    }
    assert!(hit > 0, "no relayed rail crosses the cable of {direct:?}");
}

#[test]
fn a_plan_of_two_is_two_pairs_of_rails() {
    let plan = plan(2, &[("h0.p0", "h1.p0")], "off");
    assert_eq!(names(&items(&plan, &[])), ["0>1 0", "0>1 1", "1>0 0", "1>0 1"]);
    assert!(without_rails(&plan, &[]).is_empty());
}
