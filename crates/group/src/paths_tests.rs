use fabric::{Shape, Way};

use super::*;

const RAIL_1: DistantRail = DistantRail { low: 0, high: 2, rail: 1 };

fn ring() -> Topology {
    let way = |hops: &[usize], rail| Way { hops: hops.to_vec(), rail, forwarded: true };
    let ways = vec![way(&[0, 1, 2], 0), way(&[0, 3, 2], 1), way(&[1, 2, 3], 0), way(&[1, 0, 3], 1)];
    Topology::new(Shape::Ring, 4, 2).unwrap().with_ways(ways).unwrap()
}

fn hosts() -> Vec<String> {
    (0..4).map(|rank| format!("h{rank}")).collect()
}

/// Four ranks of one epoch, each with what it knows.
struct Ranks(Vec<Paths>);

impl Ranks {
    fn new(demotions: &[Arc<Demotions>]) -> Self {
        let paths =
            |(rank, of): (usize, &Arc<Demotions>)| Paths::new(rank, ring(), Arc::clone(of), false);
        Self(demotions.iter().enumerate().map(paths).collect())
    }

    /// One round, in which the ranks tell these hits; whether anything changed, on which all agree.
    fn round(&mut self, hits: impl Fn(usize) -> Vec<RuleHits>) -> bool {
        let told: Vec<Round> = self
            .0
            .iter_mut()
            .enumerate()
            .map(|(rank, paths)| {
                let devices = (0..4).map(|peer| (peer, 1, format!("d{rank}to{peer}"))).collect();
                let text =
                    serde_json::to_string(paths.tell(Vec::new(), hits(rank), devices)).unwrap();
                serde_json::from_str(&text).unwrap()
            })
            .collect();
        let changed: Vec<bool> =
            self.0.iter_mut().map(|paths| paths.merge(&told, &hosts())).collect();
        let topologies: Vec<_> = self.0.iter().map(|paths| paths.topology().unwrap()).collect();
        assert!(changed.windows(2).all(|pair| pair[0] == pair[1]), "{changed:?}");
        assert!(topologies.windows(2).all(|pair| pair[0] == pair[1]));
        changed[0]
    }

    fn story(&self) -> String {
        self.0[3].unproven().map(|(_, why)| why.clone()).collect::<Vec<_>>().join("\n")
    }
}

fn demotions() -> Vec<Arc<Demotions>> {
    (0..4).map(|_| Arc::default()).collect()
}

fn none(_: usize) -> Vec<RuleHits> {
    Vec::new()
}

fn hits(from: usize, to: usize, packets: Option<u64>) -> RuleHits {
    let why =
        if packets.is_none() { "netdev n3l has no filter 18801".to_owned() } else { String::new() };
    RuleHits { from, to, rail: 1, packets, why }
}

#[test]
fn a_rail_that_failed_on_one_rank_is_relayed_by_all_and_the_others_stay() {
    let mut ranks = Ranks::new(&demotions());
    assert!(!ranks.round(none));
    ranks.0[2].failed(0, 1, "no bytes arrived");
    assert!(ranks.round(none));
    let topology = ranks.0[1].topology().unwrap();
    assert_eq!(topology.link_rails(0, 2), [0]);
    assert_eq!(topology.link_rails(1, 3), [0, 1]);
    assert_eq!(topology.lanes(2, 0)[1].hops(), [2, 3, 0]);
    assert!(!ranks.round(none), "told again it changes nothing");
}

#[test]
fn the_rules_between_tell_who_did_not_tag() {
    // Rails 1 between 0 and 2 pass host 3.
    for (there, back, expected) in [
        (
            Some(0),
            Some(9),
            "paths 0→2 and 2→0 over rail 1 not tagged on host h0, device d0to2; relayed instead",
        ),
        (
            Some(9),
            Some(0),
            "paths 0→2 and 2→0 over rail 1 not tagged on host h2, device d2to0; relayed instead",
        ),
        (
            Some(9),
            None,
            "paths 0→2 and 2→0 over rail 1 have no rule on host h3: netdev n3l has no filter 18801; relayed instead",
        ),
        (
            Some(9),
            Some(9),
            "paths 0→2 and 2→0 over rail 1 not proven: no bytes arrived, and the rules between passed packets on; \
             relayed instead; `railweave verify` looks closer",
        ),
    ] {
        let mut ranks = Ranks::new(&demotions());
        ranks.0[0].failed(2, 1, "no bytes arrived");
        ranks.round(
            |rank| if rank == 3 { vec![hits(0, 2, there), hits(2, 0, back)] } else { Vec::new() },
        );
        assert_eq!(ranks.story(), expected);
    }
    let mut ranks = Ranks::new(&demotions());
    ranks.0[0].failed(2, 1, "no bytes arrived");
    ranks.round(none);
    assert!(ranks.story().contains("not measured"), "{}", ranks.story());
}

#[test]
fn a_demoted_rail_stays_relayed_until_it_is_promoted_anywhere() {
    let lasting = demotions();
    let mut ranks = Ranks::new(&lasting);
    ranks.0[0].failed(2, 1, "no bytes arrived");
    ranks.round(none);

    // A rank that was started anew knows nothing, and learns it.
    let mut restarted = lasting.clone();
    restarted[0] = Arc::default();
    let mut ranks = Ranks::new(&restarted);
    assert!(ranks.round(none));
    assert_eq!(ranks.0[0].topology().unwrap().link_rails(0, 2), [0]);
    assert_eq!(ranks.0[0].demoted().collect::<Vec<_>>(), [&RAIL_1]);

    assert_eq!(restarted[3].promote(), [RAIL_1]);
    let mut ranks = Ranks::new(&restarted);
    assert!(!ranks.round(none));
    assert_eq!(ranks.0[0].topology().unwrap().link_rails(0, 2), [0, 1]);
    // And from then on, on every rank.
    let mut ranks = Ranks::new(&restarted);
    assert!(!ranks.round(none));
}

#[test]
fn a_cable_takes_its_forwarded_rails_with_it() {
    let mut ranks = Ranks::new(&demotions());
    ranks.0[0].cut(Cable::between(0, 3));
    assert!(ranks.round(none));
    let topology = ranks.0[0].topology().unwrap();
    assert_eq!(topology.link_rails(0, 2), [0]);
    assert_eq!(topology.link_rails(1, 3), [0]);
    assert!(ranks.story().is_empty(), "the cable says it all");
}

#[test]
fn who_insists_tries_again_each_time() {
    let lasting = demotions();
    lasting[0].demote(RAIL_1);
    let mut paths = Paths::new(0, ring(), Arc::clone(&lasting[0]), true);
    let told = [Round { failed: vec![((0, 2, 1), "x".to_owned())], ..Round::default() }];
    assert!(paths.tell(Vec::new(), Vec::new(), Vec::new()).demoted.is_empty());
    assert!(paths.merge(&told, &[]));
    assert_eq!(paths.unproven().count(), 1);
    assert!(lasting[0].lock().rails.is_empty());
}

#[test]
fn a_rail_that_failed_with_its_cable_comes_back_with_it() {
    let lasting = demotions();
    lasting[0].demote(RAIL_1);
    let mut ranks = Ranks::new(&lasting);
    ranks.0[3].cut(Cable::between(3, 2));
    assert!(ranks.round(none));
    assert_eq!(ranks.0[1].demoted().count(), 0);
    let mut ranks = Ranks::new(&lasting);
    assert!(!ranks.round(none));
    assert_eq!(ranks.0[0].topology().unwrap().link_rails(0, 2), [0, 1]);
}

#[test]
fn rails_that_nobody_planned_are_not_believed() {
    let mut ranks = Ranks::new(&demotions());
    let told = [Round {
        failed: vec![((0, 9, 7), "x".to_owned()), ((2, 0, 0), "y".to_owned())],
        ..Round::default()
    }];
    assert!(!ranks.0[1].merge(&told, &[]));
}
