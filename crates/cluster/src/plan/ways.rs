//! Ways from one rank to a distant one, function by function, and which of them become rails.

use std::cmp::Ordering;

use super::wiring::{Link, Wiring};
use crate::file::{MAX_FUNCTIONS, MAX_HOSTS, MAX_PORTS};

/// Who carries bytes on at the hosts between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// The NIC: they leave by a function of the adapter they came in by, and not by the port.
    Nic,
    /// The rank: they leave by any function, if possible one of the same number.
    Rank,
}

/// A way: its links, in order.
pub(super) type Chain = Vec<Link>;

/// Chains that are looked at for each function of the source.
const CHAINS_PER_FUNCTION: usize = 16;
/// Links that are tried for each function of the source.
const STEPS_PER_FUNCTION: usize = 4096;

/// What to look for.
#[derive(Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Cables to cross.
    pub(super) length: usize,
    pub(super) carrier: Carrier,
    /// The ranks to visit between, if they are given.
    pub(super) via: Option<&'a [usize]>,
}

/// All chains of a length, ordered by the numbers of the functions they use. Bounded, so in a cluster with very many
/// ways it is the first of them. Looked for from both ends, so that both find the same.
pub(super) fn chains(wiring: &Wiring, search: Search<'_>) -> Vec<Chain> {
    let mut all = from_one_end(wiring, search);
    let via: Option<Vec<usize>> = search.via.map(|via| via.iter().rev().copied().collect());
    let back = Search { from: search.to, to: search.from, via: via.as_deref(), ..search };
    all.extend(from_one_end(wiring, back).iter().map(reversed));
    all.sort_by(|a, b| order(wiring, a, b));
    all.dedup();
    all
}

/// A way from its end to its start.
pub(super) fn reversed(chain: &Chain) -> Chain {
    chain.iter().rev().map(|link| link.reversed()).collect()
}

fn from_one_end(wiring: &Wiring, search: Search<'_>) -> Vec<Chain> {
    let mut all = Vec::new();
    for start in wiring.ids(search.from) {
        let mut walk = Walk { wiring, search, chain: Vec::new(), found: Vec::new(), steps: 0 };
        walk.leave_by(start);
        all.append(&mut walk.found);
    }
    all
}

struct Walk<'a> {
    wiring: &'a Wiring,
    search: Search<'a>,
    chain: Chain,
    found: Vec<Chain>,
    steps: usize,
}

impl Walk<'_> {
    fn leave_by(&mut self, out: usize) {
        for &link in self.wiring.links(out) {
            self.steps += 1;
            if self.steps > STEPS_PER_FUNCTION || self.found.len() >= CHAINS_PER_FUNCTION {
                return;
            }
            if !self.leads_on(link) {
                continue;
            }
            self.chain.push(link);
            if self.chain.len() == self.search.length {
                self.found.push(self.chain.clone());
            } else {
                self.carry_on(link.into);
            }
            self.chain.pop();
        }
    }

    /// Whether a link fits as the next one.
    fn leads_on(&self, link: Link) -> bool {
        let rank = self.wiring.rank(link.into);
        let left = self.search.length - self.chain.len() - 1;
        if left == 0 || rank == self.search.to {
            return left == 0 && rank == self.search.to;
        }
        if rank == self.search.from
            || self.chain.iter().any(|earlier| self.wiring.rank(earlier.out) == rank)
        {
            return false;
        }
        match self.search.via {
            Some(via) => via.get(self.chain.len()) == Some(&rank),
            None => {
                self.wiring.distance(rank, self.search.to).is_some_and(|distance| distance <= left)
            }
        }
    }

    fn carry_on(&mut self, into: usize) {
        let wiring = self.wiring;
        let Some(arrived) = wiring.function(into) else { return };
        let functions =
            || wiring.ids(arrived.rank).filter_map(|id| Some((id, wiring.function(id)?)));
        match self.search.carrier {
            Carrier::Nic => {
                for (id, function) in functions() {
                    if arrived.adapter.is_some()
                        && function.adapter == arrived.adapter
                        && function.port != arrived.port
                    {
                        self.leave_by(id);
                    }
                }
            }
            Carrier::Rank => {
                let before = self.found.len();
                for same in [true, false] {
                    for (id, function) in functions() {
                        if (function.number == arrived.number) == same {
                            self.leave_by(id);
                        }
                    }
                    if self.found.len() > before {
                        return;
                    }
                }
            }
        }
    }
}

/// By device numbers along the way. Only over a switch can two ways have equal ones; then hardware addresses decide,
/// so that the order of hosts in the file does not.
fn order(wiring: &Wiring, a: &Chain, b: &Chain) -> Ordering {
    fn ends(chain: &Chain) -> impl Iterator<Item = usize> {
        chain.iter().flat_map(|link| [link.out, link.into])
    }
    let numbers = |chain| ends(chain).map(|id| wiring.device_number(id));
    let macs = |chain| ends(chain).map(|id| wiring.function(id).map(|function| function.mac));
    numbers(a).cmp(numbers(b)).then_with(|| macs(a).cmp(macs(b)))
}

/// At most two rails out of all chains: no function is in both; if possible no host between is either, and they differ
/// in the numbers of their functions at both ends; among equals the ones with the lowest device numbers.
pub(super) fn choose(wiring: &Wiring, chains: &[Chain]) -> Vec<Chain> {
    let marks: Vec<Marks> = chains.iter().map(|chain| Marks::of(wiring, chain)).collect();
    let mut best: Option<(u32, usize, usize)> = None;
    'all: for (i, first) in marks.iter().enumerate() {
        for (j, second) in marks.iter().enumerate().skip(i + 1) {
            let Some(score) = first.shares(second) else { continue };
            if best.is_none_or(|(least, _, _)| score < least) {
                best = Some((score, i, j));
                if score == 0 {
                    break 'all;
                }
            }
        }
    }
    let rails: Vec<Chain> = match best {
        Some((_, i, j)) => [i, j].into_iter().filter_map(|at| chains.get(at).cloned()).collect(),
        None => chains.first().cloned().into_iter().collect(),
    };
    sorted(wiring, rails)
}

/// What a chain uses, as bits, since very many pairs of chains are compared.
struct Marks {
    functions: [u64; MAX_HOSTS * MAX_PORTS * MAX_FUNCTIONS / 64],
    /// Hosts between.
    hosts: u32,
    /// Numbers of the functions at both ends.
    numbers: [Option<usize>; 2],
}

impl Marks {
    fn of(wiring: &Wiring, chain: &Chain) -> Self {
        let number = |id: usize| wiring.function(id).map(|function| function.number);
        let ends = [chain.first().map(|link| link.out), chain.last().map(|link| link.into)];
        let mut marks = Self {
            functions: Default::default(),
            hosts: 0,
            numbers: ends.map(|end| end.and_then(number)),
        };
        for id in chain.iter().flat_map(|link| [link.out, link.into]) {
            if let Some(word) = marks.functions.get_mut(id / 64) {
                *word |= 1 << (id % 64);
            }
        }
        // A valid file has at most 16 hosts, so every rank is a bit of the mask.
        marks.hosts =
            chain.iter().skip(1).fold(0, |hosts, link| hosts | 1 << (wiring.rank(link.out) % 32));
        marks
    }

    /// How much two chains share: a host between weighs more than the numbers at the ends. None if they share a
    /// function.
    fn shares(&self, other: &Self) -> Option<u32> {
        if self.functions.iter().zip(&other.functions).any(|(a, b)| a & b != 0) {
            return None;
        }
        let equal = self.numbers.iter().zip(&other.numbers).filter(|(a, b)| a == b).count();
        Some(4 * (self.hosts & other.hosts).count_ones() + u32::try_from(equal).unwrap_or(0))
    }
}

/// Rails in the order both ends agree on: by the two device numbers at the ends, the lower first.
pub(super) fn sorted(wiring: &Wiring, mut rails: Vec<Chain>) -> Vec<Chain> {
    rails.sort_by_key(|rail| {
        let at = |link: Option<&Link>, end: fn(&Link) -> usize| {
            link.map(|link| wiring.device_number(end(link)))
        };
        let (first, last) = (at(rail.first(), |link| link.out), at(rail.last(), |link| link.into));
        (first.min(last), first.max(last), first)
    });
    rails
}

/// Whether no function is in both.
pub(super) fn disjoint(a: &Chain, b: &Chain) -> bool {
    !a.iter()
        .flat_map(|link| [link.out, link.into])
        .any(|id| b.iter().any(|link| link.out == id || link.into == id))
}
