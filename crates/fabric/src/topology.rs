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

/// One way from a rank to another: the ranks it visits, and the rail it prefers on each cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    hops: Vec<usize>,
    rail: usize,
}

impl Lane {
    /// The ranks visited, source and destination included.
    pub fn hops(&self) -> &[usize] {
        &self.hops
    }

    /// The rail used on every cable of the lane while that rail works.
    pub fn rail(&self) -> usize {
        self.rail
    }

    /// True when no other rank lies between.
    pub fn is_direct(&self) -> bool {
        self.hops.len() == 2
    }

    /// The ranks that re-send what travels on this lane.
    pub fn relays(&self) -> &[usize] {
        &self.hops[1..self.hops.len() - 1]
    }
}

/// The cables of a group and the lanes that follow from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    ranks: usize,
    rails: usize,
    cables: Vec<Cable>,
    /// `lanes[src * ranks + dst]`; empty on the diagonal.
    lanes: Vec<Vec<Lane>>,
}

impl fmt::Display for Topology {
    /// The cables: `0-1 0-3 1-2 2-3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, cable) in self.cables.iter().enumerate() {
            write!(f, "{}{cable}", if index > 0 { " " } else { "" })?;
        }
        Ok(())
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
        let mut topology = Self { ranks, rails, cables, lanes: Vec::new() };
        for src in 0..ranks {
            for dst in 0..ranks {
                let lanes = if src == dst { Vec::new() } else { topology.find_lanes(src, dst)? };
                topology.lanes.push(lanes);
            }
        }
        Ok(topology)
    }

    /// The same group with some cables cut: what was direct becomes relayed.
    ///
    /// # Errors
    /// A pair of ranks left with no path.
    pub fn without(&self, cut: &[Cable]) -> Result<Self, TopologyError> {
        let left = self.cables.iter().copied().filter(|cable| !cut.contains(cable)).collect();
        Self::of_cables(self.ranks, self.rails, left)
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
            return Ok((0..self.rails).map(|rail| Lane { hops: vec![src, dst], rail }).collect());
        }
        let first = self.shortest(src, dst, &[]).ok_or_else(|| TopologyError::Disconnected {
            from: src,
            to: dst,
            cables: self.to_string(),
        })?;
        // The other way round carries the other half, unless it is much longer: the slower half
        // decides when a transfer is done.
        let second = self
            .shortest(src, dst, &first[1..first.len() - 1])
            .filter(|other| other.len() <= first.len() + 1);
        let mut lanes = vec![Lane { hops: first, rail: 0 }];
        lanes.extend(second.map(|hops| Lane { hops, rail: self.rails - 1 }));
        Ok(lanes)
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
