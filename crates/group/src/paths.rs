//! Which paths carry bytes in an epoch: those that are planned, less what could not be proven.
//!
//! All ranks merge what each of them tells, so that all use the same cables and forward the same
//! rails, or none does. A forwarded rail that failed is relayed in later epochs too, until it is
//! promoted: the next epoch would otherwise run into the same fault.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use fabric::{Cable, DistantRail, Topology, TopologyError};
use serde::{Deserialize, Serialize};

/// Longest reason that a rank tells, in characters.
const WHY_CHARS_MAX: usize = 300;

/// A forwarded rail by its ends, the lower rank first, and its number.
type Ends = (usize, usize, usize);

/// What the rules of one rank's host did for one direction of a forwarded rail that it passes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleHits {
    /// The rank the packets come from.
    pub from: usize,
    /// The rank they go to.
    pub to: usize,
    /// The rail.
    pub rail: usize,
    /// How many packets the rule has passed on so far; none where there is no such rule or it cannot be read.
    pub packets: Option<u64>,
    /// Why there is no count.
    pub why: String,
}

/// Sees what the rules of this rank's host pass on. Reading them is the caller's: the group only compares.
pub trait ForwardWitness: Send + Sync + fmt::Debug {
    /// The rules for every direction of every planned rail that this host passes on.
    fn look(&self) -> Vec<RuleHits>;
}

/// What a rank says in a round of wiring.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Round {
    /// How to connect to it.
    pub(crate) blob: Vec<u8>,
    /// Cables that do not work for it.
    broken: Vec<(usize, usize)>,
    /// Forwarded rails that failed, and what it saw.
    failed: Vec<(Ends, String)>,
    /// How often paths were promoted, as far as it knows.
    promotions: u32,
    /// The forwarded rails that it keeps from being used since then.
    demoted: Vec<Ends>,
    /// What its host's rules passed on during the proof.
    hits: Vec<RuleHits>,
    /// Its devices, by the rank at the other end and the rail.
    devices: Vec<(usize, usize, String)>,
}

/// Forwarded rails that are relayed until they are promoted. One is shared by all epochs of a rank.
#[derive(Debug, Default)]
pub struct Demotions(Mutex<Demoted>);

#[derive(Debug, Default, Clone)]
struct Demoted {
    promotions: u32,
    rails: BTreeSet<DistantRail>,
}

impl Demotions {
    /// Lets all of them be tried again from the next epoch on, on every rank of the group. Answers those that this rank
    /// keeps from being used.
    pub fn promote(&self) -> Vec<DistantRail> {
        let mut demoted = self.lock();
        demoted.promotions = demoted.promotions.wrapping_add(1);
        std::mem::take(&mut demoted.rails).into_iter().collect()
    }

    /// Relays a forwarded rail from the next epoch on.
    pub(crate) fn demote(&self, rail: DistantRail) {
        self.lock().rails.insert(rail);
    }

    fn snapshot(&self) -> Demoted {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Demoted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The paths of one epoch while it forms.
#[derive(Debug)]
pub(crate) struct Paths {
    rank: usize,
    planned: Topology,
    demotions: Arc<Demotions>,
    /// Whether what failed once is to be tried again each time: it is an error that it fails.
    insists: bool,
    /// What this rank found, to be told.
    own: Round,
    cables: BTreeSet<Cable>,
    demoted: BTreeSet<DistantRail>,
    failed: BTreeMap<DistantRail, String>,
}

impl Paths {
    pub(crate) fn new(
        rank: usize,
        planned: Topology,
        demotions: Arc<Demotions>,
        insists: bool,
    ) -> Self {
        if insists {
            demotions.lock().rails.clear();
        }
        Self {
            rank,
            planned,
            demotions,
            insists,
            own: Round::default(),
            cables: BTreeSet::new(),
            demoted: BTreeSet::new(),
            failed: BTreeMap::new(),
        }
    }

    /// What can be used, as far as is known.
    pub(crate) fn topology(&self) -> Result<Topology, TopologyError> {
        let relayed = |rail| self.failed.contains_key(&rail) || self.demoted.contains(&rail);
        Ok(self.planned.without(&self.cables())?.relaying(relayed))
    }

    pub(crate) fn cables(&self) -> Vec<Cable> {
        self.cables.iter().copied().collect()
    }

    /// The forwarded rails that failed in this epoch, and what was seen.
    pub(crate) fn unproven(&self) -> impl Iterator<Item = (&DistantRail, &String)> {
        self.failed.iter()
    }

    /// The forwarded rails that are relayed since an earlier epoch.
    pub(crate) fn demoted(&self) -> impl Iterator<Item = &DistantRail> {
        self.demoted.iter().filter(|rail| !self.failed.contains_key(rail))
    }

    /// A forwarded rail to a rank failed its proof.
    pub(crate) fn failed(&mut self, peer: usize, rail: usize, why: &str) {
        let ends = (self.rank.min(peer), self.rank.max(peer), rail);
        self.own.failed.push((ends, why.chars().take(WHY_CHARS_MAX).collect()));
    }

    /// A cable is not to be used.
    pub(crate) fn cut(&mut self, cable: Cable) {
        self.own.broken.push(cable.ends());
    }

    /// What this rank tells in the next round.
    pub(crate) fn tell(
        &mut self,
        blob: Vec<u8>,
        hits: Vec<RuleHits>,
        devices: Vec<(usize, usize, String)>,
    ) -> &Round {
        let Demoted { promotions, rails } = self.demotions.snapshot();
        self.own.promotions = promotions;
        self.own.demoted = rails.iter().map(|of| (of.low, of.high, of.rail)).collect();
        self.own.blob = blob;
        self.own.hits = hits;
        self.own.devices = devices;
        &self.own
    }

    /// Takes what all ranks told; true if that takes anything out of use that was in use. `hosts` are the names of
    /// the ranks' machines.
    pub(crate) fn merge(&mut self, rounds: &[Round], hosts: &[String]) -> bool {
        let before = self.out_of_use();
        let ranks = self.planned.ranks();
        let cables = rounds.iter().flat_map(|round| &round.broken);
        self.cables.extend(cables.map(|&(a, b)| Cable::between(a, b)));
        let promotions = rounds.iter().map(|round| round.promotions).max().unwrap_or(0);
        {
            let mut own = self.demotions.lock();
            if own.promotions != promotions {
                *own = Demoted { promotions, rails: BTreeSet::new() };
            }
        }
        let known: BTreeMap<DistantRail, Vec<usize>> =
            self.planned.forwarded().map(|(of, hops)| (of, hops.to_vec())).collect();
        let rail_of = |&(low, high, rail): &Ends| {
            Some(DistantRail { low, high, rail }).filter(|of| known.contains_key(of))
        };
        let current = rounds.iter().filter(|round| round.promotions == promotions);
        self.demoted.extend(current.flat_map(|round| &round.demoted).filter_map(rail_of));
        for (ends, why) in rounds.iter().flat_map(|round| &round.failed) {
            let Some(of) = rail_of(ends) else { continue };
            let Some(hops) = known.get(&of).filter(|hops| hops.iter().all(|&hop| hop < ranks))
            else {
                continue;
            };
            if !self.insists {
                self.demotions.demote(of);
            }
            self.failed.entry(of).or_insert_with(|| explain(of, hops, why, rounds, hosts));
        }
        // A rail over a broken cable is not to blame: it comes back with the cable.
        let explained = |of: &DistantRail| {
            let hops = known.get(of).map_or(&[][..], Vec::as_slice);
            hops.windows(2).any(|pair| self.cables.contains(&Cable::between(pair[0], pair[1])))
        };
        self.demotions.lock().rails.retain(|of| !explained(of));
        self.demoted.retain(|of| !explained(of));
        self.failed.retain(|of, _| !explained(of));
        self.out_of_use() != before
    }

    fn out_of_use(&self) -> (usize, BTreeSet<DistantRail>) {
        let rails = self.demoted.iter().chain(self.failed.keys()).copied().collect();
        (self.cables.len(), rails)
    }
}

/// Why a forwarded rail is not used, from what all ranks saw.
fn explain(
    of: DistantRail,
    hops: &[usize],
    why: &str,
    rounds: &[Round],
    hosts: &[String],
) -> String {
    let host = |rank: usize| {
        hosts
            .get(rank)
            .filter(|host| !host.is_empty())
            .cloned()
            .unwrap_or_else(|| format!("of rank {rank}"))
    };
    let back: Vec<usize> = hops.iter().rev().copied().collect();
    let mut counted = 0;
    for way in [hops, &back] {
        let (Some(&from), Some(&to)) = (way.first(), way.last()) else { continue };
        // The first host on the way that did not pass anything on tells what the one before it did not do.
        for pair in way.windows(2) {
            let (before, at) = (pair[0], pair[1]);
            if at == to {
                break;
            }
            let of_way = |hits: &&RuleHits| (hits.from, hits.to, hits.rail) == (from, to, of.rail);
            let Some(hits) = rounds.get(at).and_then(|round| round.hits.iter().find(of_way)) else {
                continue;
            };
            match hits.packets {
                None => {
                    return format!(
                        "{of} have no rule on host {}: {}; relayed instead",
                        host(at),
                        hits.why
                    );
                }
                Some(0) if before == from => {
                    let device = rounds.get(from).and_then(|round| {
                        round.devices.iter().find(|(peer, rail, _)| (*peer, *rail) == (to, of.rail))
                    });
                    let device = device.map_or("of that rail", |(_, _, device)| device.as_str());
                    return format!(
                        "{of} not tagged on host {}, device {device}; relayed instead",
                        host(from)
                    );
                }
                Some(0) => {
                    return format!(
                        "{of} end at host {}, whose rule passed them on; relayed instead",
                        host(at)
                    );
                }
                Some(_) => counted += 1,
            }
        }
    }
    let seen = match counted {
        0 => "what the rules between passed on was not measured",
        _ => "the rules between passed packets on",
    };
    format!("{of} not proven: {why}, and {seen}; relayed instead; `railweave verify` looks closer")
}

#[cfg(test)]
#[path = "paths_tests.rs"]
mod tests;
