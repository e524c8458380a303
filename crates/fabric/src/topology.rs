//! Which ranks a cable joins, and how bytes get from one rank to another.
//!
//! Everything here is a pure function of shared values, so every rank derives the same lanes for
//! every ordered pair, those it is not part of included.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// Most ranks a group may have.
pub const MAX_RANKS: usize = 16;
/// Most rails one cable may have.
pub const MAX_RAILS: usize = 4;

/// How the machines are cabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// A cable between every two ranks.
    Full,
    /// Rank r to rank r + 1 and the last to the first.
    Ring,
    /// Rank r to rank r + 1 only.
    Path,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Ring => "ring",
            Self::Path => "path",
        })
    }
}

impl FromStr for Shape {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, TopologyError> {
        match text {
            "full" => Ok(Self::Full),
            "ring" => Ok(Self::Ring),
            "path" => Ok(Self::Path),
            other => Err(TopologyError::UnknownShape(other.to_owned())),
        }
    }
}

/// Why a topology cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The cables that are left do not reach every rank.
    #[error("no path from rank {from} to rank {to}: the cables {cables} do not join them")]
    Disconnected {
        /// Where the path would start.
        from: usize,
        /// Where it would end.
        to: usize,
        /// The cables there are.
        cables: String,
    },
    /// A rank or rail count outside the limits.
    #[error("{what} is {value}, and must be from 1 to {most}")]
    OutOfRange {
        /// What was counted.
        what: &'static str,
        /// The count.
        value: usize,
        /// The limit.
        most: usize,
    },
    /// A shape that is none of ours.
    #[error("unknown topology {0:?}: use ring, full or path")]
    UnknownShape(String),
    /// A way that these cables do not allow.
    #[error("{way} is no way between distant ranks: {why}")]
    Way {
        /// The ranks it would visit.
        way: Way,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// A cable between two ranks, the lower one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cable {
    low: usize,
    high: usize,
}

impl Cable {
    /// The cable between two different ranks, in either order.
    pub fn between(a: usize, b: usize) -> Self {
        Self { low: a.min(b), high: a.max(b) }
    }

    /// Both ends, the lower rank first.
    pub fn ends(self) -> (usize, usize) {
        (self.low, self.high)
    }
}

impl fmt::Display for Cable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.low, self.high)
    }
}

/// A rail between two distant ranks, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DistantRail {
    /// The lower rank.
    pub low: usize,
    /// The higher rank.
    pub high: usize,
    /// The number of the rail.
    pub rail: usize,
}

impl fmt::Display for DistantRail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, high, rail } = self;
        write!(f, "paths {low}→{high} and {high}→{low} over rail {rail}")
    }
}

/// How one rail gets from a rank to a distant one; the other direction visits the same ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The ranks visited, both ends included, the lower end first.
    pub hops: Vec<usize>,
    /// The number of the rail among those of this pair.
    pub rail: usize,
    /// Whether NICs of the ranks between pass packets on; else those ranks receive and re-send.
    pub forwarded: bool,
}

impl Way {
    fn distant_rail(&self) -> Option<DistantRail> {
        let (&low, &high) = (self.hops.first()?, self.hops.last()?);
        Some(DistantRail { low, high, rail: self.rail })
    }
}

impl fmt::Display for Way {
    /// `0>1>2` where it is forwarded, `0-1-2` where it is relayed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.forwarded { ">" } else { "-" };
        let hops: Vec<_> = self.hops.iter().map(ToString::to_string).collect();
        f.write_str(&hops.join(sign))
    }
}

/// How a share of the bytes gets from a rank to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    hops: Vec<usize>,
    rail: usize,
    through: Vec<usize>,
}

impl Lane {
    /// The ranks whose memory it visits, source and destination included.
    pub fn hops(&self) -> &[usize] {
        &self.hops
    }

    /// The rail used on every cable of the lane while that rail works; of a forwarded one, the
    /// rail of its queue pair.
    pub fn rail(&self) -> usize {
        self.rail
    }

    /// True when no other rank's memory lies between: a direct or forwarded lane.
    pub fn is_direct(&self) -> bool {
        self.hops.len() == 2
    }

    /// The ranks that re-send what travels on this lane.
    pub fn relays(&self) -> &[usize] {
        &self.hops[1..self.hops.len() - 1]
    }

    /// The ranks whose NICs pass packets of this lane on.
    pub fn through(&self) -> &[usize] {
        &self.through
    }
}

/// The cables of a group and the lanes that follow from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    ranks: usize,
    rails: usize,
    cables: Vec<Cable>,
    /// The rails of distant pairs that a plan gives, by pair and rail.
    ways: Vec<Way>,
    /// `lanes[src * ranks + dst]`; empty on the diagonal.
    lanes: Vec<Vec<Lane>>,
}

impl fmt::Display for Topology {
    /// The cables and the ways: `0-1 0-3 1-2 2-3 0>1>2 0>3>2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cables_text())?;
        self.ways.iter().try_for_each(|way| write!(f, " {way}"))
    }
}

impl Topology {
    /// The cables of a shape, each with `rails` rails.
    ///
    /// # Errors
    /// Counts outside 1..=[`MAX_RANKS`] or 1..=[`MAX_RAILS`].
    pub fn new(shape: Shape, ranks: usize, rails: usize) -> Result<Self, TopologyError> {
        let mut cables = Vec::new();
        for a in 0..ranks {
            for b in a + 1..ranks {
                let next = b == a + 1;
                let wrap = a == 0 && b + 1 == ranks;
                if match shape {
                    Shape::Full => true,
                    Shape::Ring => next || wrap,
                    Shape::Path => next,
                } {
                    cables.push(Cable::between(a, b));
                }
            }
        }
        Self::of_cables(ranks, rails, cables)
    }

    /// Any connected graph of cables.
    ///
    /// # Errors
    /// Counts outside the limits, or a pair of ranks with no path between them.
    pub fn of_cables(
        ranks: usize,
        rails: usize,
        mut cables: Vec<Cable>,
    ) -> Result<Self, TopologyError> {
        for (what, value, most) in
            [("the number of ranks", ranks, MAX_RANKS), ("the number of rails", rails, MAX_RAILS)]
        {
            if value == 0 || value > most {
                return Err(TopologyError::OutOfRange { what, value, most });
            }
        }
        cables.retain(|cable| cable.high < ranks && cable.low != cable.high);
        cables.sort_unstable();
        cables.dedup();
        Self { ranks, rails, cables, ways: Vec::new(), lanes: Vec::new() }.with_lanes()
    }

    /// The same group with the ways a plan has for distant ranks, instead of the shortest ones.
    ///
    /// # Errors
    /// A way that is none.
    pub fn with_ways(mut self, mut ways: Vec<Way>) -> Result<Self, TopologyError> {
        ways.sort_by_key(Way::distant_rail);
        for way in &ways {
            let wrong = |why| TopologyError::Way { way: way.clone(), why };
            let Some(of) = way.distant_rail().filter(|of| of.low < of.high) else {
                return Err(wrong("the lower of two ranks comes first"));
            };
            let others = |&&hop: &&usize| hop == of.low || hop == of.high;
            if way.hops.iter().filter(others).count() != 2 || way.hops.len() > self.ranks {
                return Err(wrong("it visits a rank twice"));
            }
            if self.are_neighbours(of.low, of.high) {
                return Err(wrong("a cable joins the two"));
            }
            if way.rail >= MAX_RAILS {
                return Err(wrong("its rail is beyond the most"));
            }
            if ways.iter().filter(|other| other.distant_rail() == Some(of)).count() > 1 {
                return Err(wrong("another one has its rail"));
            }
            if !self.allows(way) {
                return Err(wrong("there is no such cable"));
            }
        }
        self.ways = ways;
        self.with_lanes()
    }

    /// The same group with some cables cut: what was direct becomes relayed, and what was
    /// forwarded over them takes other ways.
    ///
    /// # Errors
    /// A pair of ranks left with no path.
    pub fn without(&self, cut: &[Cable]) -> Result<Self, TopologyError> {
        let mut left = self.clone();
        left.cables.retain(|cable| !cut.contains(cable));
        left.with_lanes()
    }

    /// The same group where some forwarded rails are relayed, over the same ranks.
    #[must_use]
    pub fn relaying(&self, rails: impl Fn(DistantRail) -> bool) -> Self {
        let mut other = self.clone();
        for way in &mut other.ways {
            way.forwarded &= !way.distant_rail().is_some_and(&rails);
        }
        // The cables are the same, so every pair still has its lanes.
        other.clone().with_lanes().unwrap_or(other)
    }

    /// The forwarded rails of all pairs, in order, with the ranks each visits from the lower end.
    pub fn forwarded(&self) -> impl Iterator<Item = (DistantRail, &[usize])> {
        let used = self.ways.iter().filter(|way| way.forwarded && self.allows(way));
        used.filter_map(|way| Some((way.distant_rail()?, way.hops.as_slice())))
    }

    fn with_lanes(mut self) -> Result<Self, TopologyError> {
        self.lanes.clear();
        for src in 0..self.ranks {
            for dst in 0..self.ranks {
                let lanes = if src == dst { Vec::new() } else { self.find_lanes(src, dst)? };
                self.lanes.push(lanes);
            }
        }
        Ok(self)
    }

    fn allows(&self, way: &Way) -> bool {
        way.hops.windows(2).all(|pair| self.are_neighbours(pair[0], pair[1]))
    }

    fn cables_text(&self) -> String {
        self.cables.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// How many rails each cable has.
    pub fn rails(&self) -> usize {
        self.rails
    }

    /// All cables, in order.
    pub fn cables(&self) -> &[Cable] {
        &self.cables
    }

    /// True when a cable joins the two ranks.
    pub fn are_neighbours(&self, a: usize, b: usize) -> bool {
        a != b && self.cables.binary_search(&Cable::between(a, b)).is_ok()
    }

    /// The ranks on the other ends of this rank's cables, in order.
    pub fn neighbours(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.ranks).filter(move |&other| self.are_neighbours(rank, other))
    }

    /// The rails on which two ranks have queue pairs: those of their cable, or the forwarded ones.
    pub fn link_rails(&self, a: usize, b: usize) -> Vec<usize> {
        if a == b || a >= self.ranks || b >= self.ranks {
            return Vec::new();
        }
        let direct = self.lanes(a, b).iter().filter(|lane| lane.is_direct());
        direct.map(Lane::rail).collect()
    }

    /// True when two ranks have a queue pair: a cable joins them, or forwarded packets reach.
    pub fn is_linked(&self, a: usize, b: usize) -> bool {
        !self.link_rails(a, b).is_empty()
    }

    /// The ranks to which this one has queue pairs, in order.
    pub fn linked(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.ranks).filter(move |&other| self.is_linked(rank, other))
    }

    /// The lanes from one rank to another; none from a rank to itself.
    pub fn lanes(&self, src: usize, dst: usize) -> &[Lane] {
        &self.lanes[src * self.ranks + dst]
    }

    /// True when every rank has a cable to every other.
    pub fn is_full(&self) -> bool {
        self.cables.len() == self.ranks * (self.ranks - 1) / 2
    }

    fn find_lanes(&self, src: usize, dst: usize) -> Result<Vec<Lane>, TopologyError> {
        if self.are_neighbours(src, dst) {
            let direct = |rail| Lane { hops: vec![src, dst], rail, through: Vec::new() };
            return Ok((0..self.rails).map(direct).collect());
        }
        let given = self.ways.iter().filter(|way| self.allows(way));
        let given: Vec<_> = given.filter_map(|way| self.lane_of(way, src, dst)).collect();
        if !given.is_empty() {
            return Ok(given);
        }
        let first = self.shortest(src, dst, &[]).ok_or_else(|| TopologyError::Disconnected {
            from: src,
            to: dst,
            cables: self.cables_text(),
        })?;
        // The other way round carries the other half, unless it is much longer: the slower half
        // decides when a transfer is done.
        let second = self
            .shortest(src, dst, &first[1..first.len() - 1])
            .filter(|other| other.len() <= first.len() + 1);
        let relayed = |hops, rail| Lane { hops, rail, through: Vec::new() };
        let mut lanes = vec![relayed(first, 0)];
        lanes.extend(second.map(|hops| relayed(hops, self.rails - 1)));
        Ok(lanes)
    }

    /// What a way is from `src` to `dst`; none if it is of another pair.
    fn lane_of(&self, way: &Way, src: usize, dst: usize) -> Option<Lane> {
        let of = way.distant_rail()?;
        if (of.low, of.high) != (src.min(dst), src.max(dst)) {
            return None;
        }
        let mut hops = way.hops.clone();
        if src > dst {
            hops.reverse();
        }
        Some(if way.forwarded {
            let through = hops[1..hops.len() - 1].to_vec();
            Lane { hops: vec![src, dst], rail: way.rail, through }
        } else {
            Lane { hops, rail: way.rail.min(self.rails - 1), through: Vec::new() }
        })
    }

    /// Breadth first, lower ranks first, so that every rank finds the same path.
    fn shortest(&self, src: usize, dst: usize, avoid: &[usize]) -> Option<Vec<usize>> {
        let mut came_from = vec![usize::MAX; self.ranks];
        let mut queue = VecDeque::from([src]);
        came_from[src] = src;
        while let Some(at) = queue.pop_front() {
            if at == dst {
                let mut hops = vec![dst];
                while hops[hops.len() - 1] != src {
                    hops.push(came_from[hops[hops.len() - 1]]);
                }
                hops.reverse();
                return Some(hops);
            }
            for next in self.neighbours(at) {
                if came_from[next] == usize::MAX && !avoid.contains(&next) {
                    came_from[next] = at;
                    queue.push_back(next);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(topology: &Topology, src: usize, dst: usize) -> Vec<Vec<usize>> {
        topology.lanes(src, dst).iter().map(|lane| lane.hops().to_vec()).collect()
    }

    #[test]
    fn distant_ranks_of_a_ring_use_both_directions() {
        let ring = Topology::new(Shape::Ring, 4, 2).unwrap();
        assert_eq!(hops(&ring, 0, 2), [[0, 1, 2], [0, 3, 2]]);
        assert_eq!(hops(&ring, 3, 1), [[3, 0, 1], [3, 2, 1]]);
        assert_eq!(ring.lanes(0, 1).len(), 2, "two rails to a neighbour");
        assert!(ring.lanes(0, 3).iter().all(Lane::is_direct));
    }

    #[test]
    fn a_path_relays_through_every_rank_between() {
        let path = Topology::new(Shape::Path, 4, 1).unwrap();
        assert_eq!(hops(&path, 0, 3), [[0, 1, 2, 3]]);
        assert_eq!(path.lanes(0, 3)[0].relays(), [1, 2]);
    }

    #[test]
    fn a_cut_cable_turns_a_neighbour_into_a_distant_rank() {
        let ring = Topology::new(Shape::Ring, 4, 2).unwrap();
        let cut = ring.without(&[Cable::between(0, 1)]).unwrap();
        assert_eq!(hops(&cut, 0, 1), [[0, 3, 2, 1]]);
        let twice = cut.without(&[Cable::between(2, 3)]);
        assert!(matches!(twice, Err(TopologyError::Disconnected { .. })), "{twice:?}");
    }

    fn forwarded_ring() -> Topology {
        let way = |hops: &[usize], rail| Way { hops: hops.to_vec(), rail, forwarded: true };
        let ways =
            vec![way(&[1, 2, 3], 1), way(&[0, 1, 2], 0), way(&[1, 0, 3], 0), way(&[0, 3, 2], 1)];
        Topology::new(Shape::Ring, 4, 2).unwrap().with_ways(ways).unwrap()
    }

    #[test]
    fn a_forwarded_rail_is_a_link_of_its_own() {
        let ring = forwarded_ring();
        assert_eq!(ring.to_string(), "0-1 0-3 1-2 2-3 0>1>2 0>3>2 1>0>3 1>2>3");
        let through = |src, dst| -> Vec<_> {
            ring.lanes(src, dst).iter().map(|lane| (lane.rail(), lane.through().to_vec())).collect()
        };
        assert_eq!(through(0, 2), [(0, vec![1]), (1, vec![3])]);
        assert_eq!(through(3, 1), [(0, vec![0]), (1, vec![2])]);
        assert_eq!(hops(&ring, 2, 0), [[2, 0], [2, 0]]);
        assert_eq!(ring.link_rails(2, 0), [0, 1]);
        assert_eq!(ring.linked(0).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(ring.neighbours(0).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(ring.forwarded().count(), 4);
    }

    #[test]
    fn a_rail_that_is_not_forwarded_is_relayed_over_the_same_ranks() {
        let some = forwarded_ring().relaying(|of| (of.low, of.rail) == (0, 1));
        assert_eq!(hops(&some, 0, 2), [vec![0, 2], vec![0, 3, 2]]);
        assert_eq!(hops(&some, 2, 0), [vec![2, 0], vec![2, 3, 0]]);
        assert_eq!(some.link_rails(0, 2), [0]);
        assert_eq!(some.lanes(0, 2)[1].rail(), 1);
        let none = forwarded_ring().relaying(|_| true);
        assert_eq!(none.linked(0).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(none.to_string(), "0-1 0-3 1-2 2-3 0-1-2 0-3-2 1-0-3 1-2-3");
    }

    #[test]
    fn a_cut_cable_takes_the_ways_over_it() {
        let cut = forwarded_ring().without(&[Cable::between(0, 1)]).unwrap();
        assert_eq!(hops(&cut, 0, 2), [[0, 2]], "what is left is forwarded by way of 3");
        assert_eq!(cut.link_rails(0, 2), [1]);
        assert_eq!(hops(&cut, 0, 1), [[0, 3, 2, 1]]);
        assert_eq!(hops(&cut, 3, 1), [[3, 1]]);
    }

    #[test]
    fn what_is_no_way_is_refused() {
        let ring = || Topology::new(Shape::Ring, 4, 2).unwrap();
        let way = |hops: &[usize], rail| Way { hops: hops.to_vec(), rail, forwarded: true };
        for ways in [
            vec![way(&[2, 1, 0], 0)],
            vec![way(&[0, 2], 0)],
            vec![way(&[0, 1], 0)],
            vec![way(&[0, 1, 0, 3, 2], 0)],
            vec![way(&[0, 1, 2], MAX_RAILS)],
            vec![way(&[0, 1, 2], 0), way(&[0, 3, 2], 0)],
            vec![way(&[0], 0)],
            vec![way(&[], 0)],
            vec![way(&[0, 1, 2, 7], 0)],
        ] {
            let refused = ring().with_ways(ways.clone());
            assert!(matches!(refused, Err(TopologyError::Way { .. })), "{ways:?}: {refused:?}");
        }
    }

    #[test]
    fn every_pair_has_a_lane_whose_cables_exist() {
        for shape in [Shape::Full, Shape::Ring, Shape::Path] {
            for ranks in 1..=8 {
                let topology = Topology::new(shape, ranks, 2).unwrap();
                for src in 0..ranks {
                    for dst in (0..ranks).filter(|&dst| dst != src) {
                        let lanes = topology.lanes(src, dst);
                        assert!(!lanes.is_empty());
                        for lane in lanes {
                            assert_eq!((lane.hops[0], *lane.hops.last().unwrap()), (src, dst));
                            assert!(
                                lane.hops.windows(2).all(|h| topology.are_neighbours(h[0], h[1]))
                            );
                        }
                    }
                }
            }
        }
    }
}
