//! Why a queue pair did or did not carry its bytes: pure, over what its ends said and what covered it on the way.

use super::coverage::{BetweenProof, EndProof, PairProof, RuleProof};
use super::wire::{Fault, Step};

/// What one end said.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EndSaid {
    /// All bytes came and were right, and what it sent was acknowledged.
    Done,
    /// It failed.
    Failed(Fault),
    /// Nothing.
    Nothing,
}

impl EndSaid {
    /// Bytes that came and were right; none if nobody knows.
    fn came(&self) -> Option<u64> {
        match self {
            Self::Done => Some(u64::MAX),
            Self::Failed(fault) => fault.offset,
            Self::Nothing => None,
        }
    }

    fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Failed(fault) => Some(fault),
            _ => None,
        }
    }
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Everything that has to hold was seen.
    Proven,
    /// It does not carry bytes, and this is why.
    Failed {
        /// The host to look at.
        who: String,
        /// The device, the rule or the way.
        r#where: String,
        /// What was seen.
        why: String,
        /// What a person does next.
        next: String,
    },
    /// Nobody knows; this was seen.
    Unknown(String),
}

/// Names for a judgement's text.
pub(super) struct Names<'a> {
    /// The ranks of the near and the far end.
    pub(super) ranks: (usize, usize),
    /// The rail.
    pub(super) rail: usize,
    /// The cables, from the near end.
    pub(super) cables: &'a [String],
}

/// Judges a queue pair, forwarded or not.
pub(super) fn judge(
    names: &Names<'_>,
    pair: &PairProof,
    near: &EndSaid,
    far: &EndSaid,
) -> Judgement {
    for (said, end) in [(near, &pair.near), (far, &pair.far)] {
        if let Some(fault) = said.fault().filter(|fault| fault.step == Step::Compare) {
            return Judgement::Failed {
                who: end.host.clone(),
                r#where: names.way(),
                why: fault.why.clone(),
                next: "bytes change on the way: look at error counters with `railweave check`"
                    .to_owned(),
            };
        }
    }
    for (said, end) in [(near, &pair.near), (far, &pair.far)] {
        if let Some(fault) = said.fault().filter(|fault| fault.step == Step::Raise) {
            return Judgement::Failed {
                who: end.host.clone(),
                r#where: end.function.clone(),
                why: fault.why.clone(),
                next: format!(
                    "`railweave apply --diff` shows what {} lacks, `railweave check` what is wrong",
                    end.host
                ),
            };
        }
        if let Some(fault) = said.fault().filter(|fault| fault.step == Step::Begin) {
            return Judgement::Unknown(format!("{}: {}", end.host, fault.why));
        }
    }
    if pair.near.marker.is_none() {
        return direct(names, pair, near, far);
    }
    match (near, far) {
        (EndSaid::Done, EndSaid::Done) => passed(names, pair),
        _ => stopped(names, pair, near, far),
    }
}

/// A queue pair between neighbours: its cable is the only thing between them.
fn direct(names: &Names<'_>, pair: &PairProof, near: &EndSaid, far: &EndSaid) -> Judgement {
    let (end, fault) = match (near, far) {
        (EndSaid::Done, EndSaid::Done) => return Judgement::Proven,
        (EndSaid::Failed(fault), EndSaid::Failed(other)) => {
            // One that waits in vain says less than one whose bytes were not acknowledged.
            if fault.step == Step::Await && other.step != Step::Await {
                (&pair.far, other)
            } else {
                (&pair.near, fault)
            }
        }
        (EndSaid::Failed(fault), _) => (&pair.near, fault),
        (_, EndSaid::Failed(fault)) => (&pair.far, fault),
        _ => return Judgement::Unknown(evidence(pair, near, far)),
    };
    Judgement::Failed {
        who: end.host.clone(),
        r#where: names.way(),
        why: format!("{} ({})", fault.why, evidence(pair, near, far)),
        next: format!(
            "look at {} on {} and {} on {}: `railweave check` says what is wrong with {}",
            pair.near.device,
            pair.near.host,
            pair.far.device,
            pair.far.host,
            names.way()
        ),
    }
}

/// All bytes arrived both ways: whether NICs passed them on, and nobody else.
fn passed(names: &Names<'_>, pair: &PairProof) -> Judgement {
    let needed = pair.packets_needed;
    let said = || evidence(pair, &EndSaid::Done, &EndSaid::Done);
    if pair.between.is_empty() {
        return Judgement::Unknown("the plan has no host between the two".to_owned());
    }
    for host in &pair.between {
        if let Some(count) = host.forwarded_datagrams.filter(|count| *count >= needed.max(1)) {
            return Judgement::Failed {
                who: host.host.clone(),
                r#where: names.way(),
                why: format!(
                    "the bytes arrived, but {}'s CPU passed packets on: its kernel forwarded {count} datagrams meanwhile",
                    host.host
                ),
                next: format!(
                    "`railweave apply --diff` shows which rule {} lacks; ip_forward may be off there",
                    host.host
                ),
            };
        }
        for rule in [&host.there, &host.back] {
            match rule.packets {
                Some(packets) if packets < needed => {
                    return Judgement::Failed {
                        who: host.host.clone(),
                        r#where: rule.rule.clone(),
                        why: format!(
                            "the bytes arrived, but not by {} on {}: it took {packets} packets, and they need {needed}",
                            rule.rule, host.host
                        ),
                        next: format!(
                            "see which way the packets take: `railweave check`, and routes on {}",
                            pair.near.host
                        ),
                    };
                }
                Some(_) => {}
                None => {
                    return Judgement::Unknown(format!(
                        "{} on {} was not measured{}",
                        rule.rule,
                        host.host,
                        rule.why.as_ref().map_or_else(String::new, |why| format!(": {why}"))
                    ));
                }
            }
        }
        match host.forwarded_datagrams {
            Some(0) => {}
            Some(count) => {
                return Judgement::Unknown(format!(
                    "the kernel of {} forwarded {count} datagrams meanwhile, so something else passed through it; {}",
                    host.host,
                    said()
                ));
            }
            None => {
                return Judgement::Unknown(format!(
                    "what the kernel of {} forwarded was not measured",
                    host.host
                ));
            }
        }
    }
    Judgement::Proven
}

/// One direction of a forwarded rail.
struct Way<'a> {
    sender: &'a EndProof,
    receiver: &'a EndProof,
    hosts: Vec<(&'a BetweenProof, &'a RuleProof)>,
    /// Cables in this direction.
    cables: Vec<&'a str>,
    came: Option<u64>,
}

/// Not all bytes went both ways: who stopped them.
fn stopped(names: &Names<'_>, pair: &PairProof, near: &EndSaid, far: &EndSaid) -> Judgement {
    let cables = || names.cables.iter().map(String::as_str);
    let there = Way {
        sender: &pair.near,
        receiver: &pair.far,
        hosts: pair.between.iter().map(|host| (host, &host.there)).collect(),
        cables: cables().collect(),
        came: far.came(),
    };
    let back = Way {
        sender: &pair.far,
        receiver: &pair.near,
        hosts: pair.between.iter().rev().map(|host| (host, &host.back)).collect(),
        cables: cables().rev().collect(),
        came: near.came(),
    };
    let seen = || evidence(pair, near, far);
    // What is not there is to blame before what did not move: first on the way there, then back.
    let found = there
        .lacks(names)
        .or_else(|| back.lacks(names))
        .or_else(|| there.stops(names))
        .or_else(|| if there.arrives() { back.stops(names) } else { None });
    match found {
        Some(Judgement::Failed { who, r#where, why, next }) => {
            Judgement::Failed { who, r#where, why: format!("{why} ({})", seen()), next }
        }
        Some(other) => other,
        None => Judgement::Unknown(format!("it stopped, and nobody knows where: {}", seen())),
    }
}

impl Way<'_> {
    fn arrives(&self) -> bool {
        self.came.is_some_and(|bytes| bytes > 0)
            || self.hosts.last().is_some_and(|(_, rule)| rule.packets.is_some_and(|took| took > 0))
    }

    /// A marker or rule that is known not to be there.
    fn lacks(&self, names: &Names<'_>) -> Option<Judgement> {
        if let Some(marker) = &self.sender.marker
            && marker.running == Some(false)
        {
            return Some(self.untagged(names, marker.why.as_deref().unwrap_or("no marker runs")));
        }
        let (host, rule) = self.hosts.iter().find(|(_, rule)| rule.present == Some(false))?;
        Some(Judgement::Failed {
            who: host.host.clone(),
            r#where: rule.rule.clone(),
            why: format!(
                "{} on {} is missing, so packets from {} to {} are not passed on: {}",
                rule.rule,
                host.host,
                self.sender.host,
                self.receiver.host,
                rule.why.as_deref().unwrap_or("no filter takes them")
            ),
            next: format!(
                "`railweave apply --host {}`, then `railweave verify --again`",
                host.host
            ),
        })
    }

    fn untagged(&self, names: &Names<'_>, because: &str) -> Judgement {
        let (from, to) = (names.ranks.0.min(names.ranks.1), names.ranks.0.max(names.ranks.1));
        let (host, device) = (&self.sender.host, &self.sender.device);
        Judgement::Failed {
            who: host.clone(),
            r#where: device.clone(),
            why: format!(
                "paths {from}→{to} and {to}→{from} over rail {} not tagged on host {host}, device {device}; \
                 relayed instead: {because}",
                names.rail
            ),
            next: format!(
                "start the marker of {device}: `railweave apply --host {host}`, then `railweave verify --again`"
            ),
        }
    }

    /// Where packets were last seen on this way, when everything seems to be there; none if they arrived or if that
    /// was not measured.
    fn stops(&self, names: &Names<'_>) -> Option<Judgement> {
        // Bytes that came say that the way carries some.
        if self.came.is_some_and(|bytes| bytes > 0) {
            return None;
        }
        let mut last = (self.sender.host.as_str(), 0_usize);
        for (index, (host, rule)) in self.hosts.iter().enumerate() {
            match rule.packets {
                Some(0) if index == 0 => return self.first_rule_idle(names, host, rule),
                Some(0) => return Some(self.lost(last.0, &host.host, last.1, index)),
                Some(_) => last = (&host.host, index + 1),
                // Without a count nobody knows whether they got so far.
                None => return None,
            }
        }
        // The last rule sent them on. What came is known, and it is nothing.
        (self.came == Some(0))
            .then(|| self.lost(last.0, &self.receiver.host, last.1, self.hosts.len()))
    }

    fn first_rule_idle(
        &self,
        names: &Names<'_>,
        host: &BetweenProof,
        rule: &RuleProof,
    ) -> Option<Judgement> {
        let marked = self.sender.marker.as_ref().and_then(|marker| marker.packets);
        match (marked, self.sender.sent_bytes) {
            (Some(1..), _) => Some(self.lost(&self.sender.host, &host.host, 0, 0)),
            (_, Some(1..)) => Some(self.untagged(
                names,
                &format!("packets left it, and {} on {} did not move", rule.rule, host.host),
            )),
            (_, Some(0)) => Some(Judgement::Failed {
                who: self.sender.host.clone(),
                r#where: self.sender.device.clone(),
                why: format!("nothing left {} on {}", self.sender.device, self.sender.host),
                next: format!(
                    "see routes and neighbours for {} on {}: `railweave apply --diff`",
                    self.receiver.host, self.sender.host
                ),
            }),
            (_, None) => None,
        }
    }

    /// Packets were seen at one host and not at the next.
    fn lost(&self, from: &str, to: &str, first: usize, last: usize) -> Judgement {
        let cables = self.cables.get(first..=last).unwrap_or_default().join(", ");
        Judgement::Failed {
            who: to.to_owned(),
            r#where: cables.clone(),
            why: format!(
                "packets from {} were marked and seen to leave {from}, and not seen at {to}",
                self.sender.host
            ),
            next: format!(
                "`railweave check` says what is wrong with {cables}, or with the rules and neighbours of {from}"
            ),
        }
    }
}

impl Names<'_> {
    fn way(&self) -> String {
        self.cables.join(", ")
    }
}

/// What was seen, on one line.
pub(super) fn evidence(pair: &PairProof, near: &EndSaid, far: &EndSaid) -> String {
    let bytes = |said: &EndSaid| match said {
        EndSaid::Done => "all bytes came".to_owned(),
        EndSaid::Nothing => "it said nothing".to_owned(),
        EndSaid::Failed(fault) => {
            let came = fault.offset.map_or("not measured".to_owned(), |bytes| bytes.to_string());
            let status = fault.status.map_or_else(
                || ", no work completion".to_owned(),
                |status| format!(", work completion status {status}"),
            );
            format!("{came} bytes came{status}")
        }
    };
    let count = |count: Option<u64>| count.map_or("not measured".to_owned(), |it| it.to_string());
    let mut text = vec![
        format!("{}: {}", pair.near.host, bytes(near)),
        format!("{}: {}", pair.far.host, bytes(far)),
    ];
    for host in &pair.between {
        let rule = |rule: &RuleProof| match rule.present {
            Some(false) => "no rule".to_owned(),
            _ => count(rule.packets),
        };
        text.push(format!(
            "{}: {} packets there, {} back, kernel forwarded {}",
            host.host,
            rule(&host.there),
            rule(&host.back),
            count(host.forwarded_datagrams)
        ));
    }
    text.join("; ")
}

#[cfg(test)]
#[path = "blame_pair_tests.rs"]
mod tests;
