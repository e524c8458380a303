//! One rail's names, and what a failure on it means for a person.

use cluster::plan::{Crossing, Plan};

use super::judge::Blame;
use super::proof::Outcome;
use super::steps::Item;
use super::wire::Step;

/// What a rail needs, looked up once.
pub(super) struct Track<'a> {
    /// The rail.
    pub(super) item: Item<'a>,
    /// Its cables, in order.
    pub(super) cables: Vec<String>,
    /// Its hosts, in order.
    pub(super) hosts: Vec<String>,
}

impl<'a> Track<'a> {
    /// Of a rail of this plan.
    pub(super) fn new(plan: &Plan, item: Item<'a>) -> Self {
        Self { item, cables: cables(plan, item), hosts: hosts(plan, item) }
    }

    fn host(&self, hop: usize) -> String {
        self.hosts.get(hop).cloned().unwrap_or_default()
    }

    /// The cable of a crossing; all of them if nobody knows which.
    fn place(&self, crossing: Option<usize>) -> String {
        crossing
            .and_then(|number| self.cables.get(number))
            .cloned()
            .unwrap_or_else(|| self.cables.join(", "))
    }

    fn crossing(&self, number: usize) -> Option<&Crossing> {
        self.item.rail.crossings.get(number)
    }

    /// A cable of it has failed on a rail before.
    pub(super) fn broken_before(&self, crossing: usize) -> Outcome {
        let cable = self.place(Some(crossing));
        Outcome::Failed {
            who: self.host(crossing),
            why: format!("it crosses cable {cable}, which failed just before on this rail"),
            next: format!("mend {cable}, then `railweave verify --again`"),
            r#where: cable,
        }
    }

    /// The bytes arrived, and not over this crossing.
    pub(super) fn elsewhere(&self, crossing: usize, why: String) -> Outcome {
        let host = self.host(crossing);
        let route = self.crossing(crossing).and_then(|one| one.into.ip.zip(one.out.ip));
        let route = route
            .map(|(to, from)| format!(" `ip route get {to} from {from}` there,"))
            .unwrap_or_default();
        Outcome::Failed {
            who: host.clone(),
            r#where: self.place(Some(crossing)),
            why,
            next: format!(
                "see how {host} routes:{route} then `railweave check`, which finds wrong routes and addresses"
            ),
        }
    }

    /// What one host of it reported explains the others, and all their agents answer.
    pub(super) fn blamed(&self, blame: Blame) -> Outcome {
        let who = self.host(blame.hop);
        // One host that lacks an address says nothing about a cable.
        let place = match blame.step {
            Step::Bind => self.crossing(blame.hop).map(|one| one.out.label()),
            Step::Listen => blame
                .hop
                .checked_sub(1)
                .and_then(|hop| self.crossing(hop))
                .map(|one| one.into.label()),
            _ => None,
        };
        let place = place.unwrap_or_else(|| self.place(blame.crossing));
        let next = match blame.step {
            // Its agent could not begin.
            Step::Begin | Step::Raise => {
                return Outcome::NotProven { r#where: Some(who), why: blame.why };
            }
            Step::Bind | Step::Listen => {
                format!(
                    "give {who} the addresses of the plan: `railweave apply --diff` shows what is missing"
                )
            }
            Step::Compare => {
                format!(
                    "bytes change on the way: swap {place}, and look at error counters with `railweave check`"
                )
            }
            _ => match blame.crossing.and_then(|number| self.crossing(number)) {
                Some(one) => format!(
                    "look at {} on {} and {} on {}: `railweave check` says what is wrong with {place}",
                    one.out.netdev, one.out.host, one.into.netdev, one.into.host
                ),
                None => "`railweave check` says what is wrong on the way".to_owned(),
            },
        };
        Outcome::Failed { who, r#where: place, why: blame.why, next }
    }
}

/// The names of the cables of a rail, in order.
pub(super) fn cables(plan: &Plan, item: Item<'_>) -> Vec<String> {
    let name = |crossing: &Crossing| match plan.cables.get(crossing.cable) {
        Some(cable) => cable.name.clone(),
        None => format!("{}–{}", crossing.out.label(), crossing.into.label()),
    };
    item.rail.crossings.iter().map(name).collect()
}

/// The names of the hosts of a rail, in order.
pub(super) fn hosts(plan: &Plan, item: Item<'_>) -> Vec<String> {
    let name = |rank: &usize| match plan.ranks.get(*rank) {
        Some(rank) => rank.host.clone(),
        None => format!("rank {rank}"),
    };
    item.rail.hops.iter().map(name).collect()
}
