//! Proving rails over queue pairs: the part of the coordinator that is about RDMA.

use std::time::{Duration, Instant};

use cluster::plan::{FunctionRef, PathKind};

use super::blame_pair::{EndSaid, Judgement, Names, judge};
use super::coordinator::{
    ANSWER_LIMIT, COUNTERS_LIMIT, COUNTERS_PAUSE, Coordinator, LOOK_LIMIT, Stop,
};
use super::coverage::{Coverage, Look, Over, PairProof, of};
use super::crew::AgentError;
use super::judge::{Doubt, Moved, crossed_by_pair};
use super::proof::{Outcome, Way};
use super::steps::{Item, Obstacle, flaw};
use super::track::Track;
use super::wire::{Fault, Order, PairEnd, Passed, Said, Terms, Word};

/// How long making an end may take: devices are opened and memory is registered.
const MAKE_LIMIT: Duration = Duration::from_secs(15);
/// How long reading a host's rules may take.
const RULES_LIMIT: Duration = Duration::from_secs(12);
/// How long an end that is told to close may take to say how far it came.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);
/// How long each end is listened to at a time.
const LISTEN: Duration = Duration::from_millis(20);

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Choice {
    /// Queue pairs where both ends have RDMA devices, else TCP
    #[default]
    Auto,
    /// Queue pairs only
    Verbs,
    /// TCP only; what NICs pass on cannot be proven with it
    Tcp,
}

/// Why a rail cannot have a queue pair, by the plan alone; none if it can.
pub(super) fn no_pair(item: Item<'_>) -> Option<String> {
    if item.path.kind == PathKind::Relayed {
        let why = "a relayed rail has no queue pair of its own; those of its cables are proven by the direct rails";
        return Some(why.to_owned());
    }
    let ends = [
        item.rail.crossings.first().map(|it| &it.out),
        item.rail.crossings.last().map(|it| &it.into),
    ];
    let without = |function: &&FunctionRef| function.rdma.is_none();
    let without = ends.into_iter().flatten().find(without)?;
    Some(format!("the cluster file gives {} no RDMA device", without.label()))
}

/// What both ends said, in how many seconds, and the near end first.
struct Ran {
    said: [EndSaid; 2],
    seconds: [f64; 2],
    devices: [String; 2],
}

impl<'a> Coordinator<'a> {
    /// Proves one rail over what was chosen.
    pub(super) fn prove_over(&mut self, item: Item<'a>, choice: Choice) -> (Outcome, Coverage) {
        let not_verbs = match (choice, no_pair(item)) {
            (Choice::Tcp, _) => Some((None, "it was asked for with --transport tcp".to_owned())),
            (_, why) => why.map(|why| (None, why)),
        };
        let (place, why) = match not_verbs {
            Some(why) => why,
            None => match self.prove_pair(item) {
                Ok(proved) => return proved,
                Err((host, why)) => (Some(host), why),
            },
        };
        let needs_verbs = match (choice, item.path.kind) {
            (_, PathKind::Forwarded) => true,
            (Choice::Verbs, kind) => kind == PathKind::Direct,
            _ => false,
        };
        if needs_verbs {
            let reason = if item.path.kind == PathKind::Forwarded {
                format!("needs verbs: NICs pass on RDMA packets only, which TCP cannot show; {why}")
            } else {
                why.clone()
            };
            let outcome = Outcome::NotProven { r#where: place, why: reason };
            return (outcome, Coverage::tcp(&why));
        }
        (self.prove(item), Coverage::tcp(&why))
    }

    /// Over a queue pair.
    ///
    /// # Errors
    /// The host without RDMA, and why it has none.
    fn prove_pair(&mut self, item: Item<'a>) -> Result<(Outcome, Coverage), (String, String)> {
        let rail = Track::new(self.plan, item);
        let covered = |queue_pair| Coverage { transport: Over::Verbs, why: None, queue_pair };
        let early = match flaw(item, &self.known) {
            Some(Obstacle::NotProven(why)) => Some(Outcome::NotProven { r#where: None, why }),
            Some(Obstacle::Broken(crossing)) => Some(rail.broken_before(crossing)),
            None => self.without_agent(&rail),
        };
        if let Some(outcome) = early {
            return Ok((outcome, covered(None)));
        }
        let mut pair = None;
        let outcome = match self.cross_pair(&rail, &mut pair) {
            Ok(outcome) => outcome,
            Err(Stop::NoVerbs { rank, why }) => return Err((self.host(rank), why)),
            Err(stop) => self.explain(&rail, stop),
        };
        Ok((outcome, covered(pair)))
    }

    fn cross_pair(
        &mut self,
        rail: &Track<'a>,
        pair: &mut Option<PairProof>,
    ) -> Result<Outcome, Stop> {
        let before = self.look(rail)?;
        let terms = self.terms()?;
        let ran = self.run_pair(rail, &terms)?;
        let mut until = Instant::now() + COUNTERS_LIMIT;
        if ran.said != [EndSaid::Done, EndSaid::Done] {
            until = Instant::now();
        }
        loop {
            let after = self.look(rail)?;
            let seen = of(self.plan, rail.item.rail, self.bytes, &before, &after);
            let seen = pair.insert(seen);
            for (end, (device, said)) in
                [&mut seen.near, &mut seen.far].into_iter().zip(ran.devices.iter().zip(&ran.said))
            {
                if !device.is_empty() {
                    end.device.clone_from(device);
                }
                if let EndSaid::Failed(fault) = said {
                    end.work_completion = fault.status;
                }
            }
            let names = Names {
                ranks: (rail.item.path.from, rail.item.path.to),
                rail: rail.item.number,
                cables: &rail.cables,
            };
            let moved = crossed_by_pair(
                rail.item.rail,
                &rail.cables,
                self.bytes,
                &before.counts,
                &after.counts,
            );
            let [near, far] = &ran.said;
            let late = Instant::now() >= until;
            match (judge(&names, seen, near, far), moved) {
                (Judgement::Proven, Ok(counters)) => return Ok(self.proven(&ran, counters)),
                // Counters of some NICs come late.
                (Judgement::Proven | Judgement::Failed { .. } | Judgement::Unknown(_), _)
                    if !late =>
                {
                    std::thread::sleep(COUNTERS_PAUSE);
                }
                (Judgement::Proven, Err(Doubt::Elsewhere { crossing, why })) => {
                    return Err(Stop::Elsewhere { crossing, why });
                }
                (Judgement::Proven, Err(Doubt::NotMeasured(why))) => {
                    return Err(Stop::not_proven(&format!("not measured: {why}")));
                }
                (Judgement::Unknown(why), _) => return Err(Stop::not_proven(&why)),
                (Judgement::Failed { who, r#where, why, next }, _) => {
                    if rail.item.path.kind == PathKind::Direct {
                        self.known.note_failed(rail.item, 0);
                    }
                    return Ok(Outcome::Failed { who, r#where, why, next });
                }
            }
        }
    }

    fn proven(&self, ran: &Ran, counters: Vec<Moved>) -> Outcome {
        let [near, far] = ran.seconds;
        Outcome::Proven {
            there: Way::new(self.bytes, far),
            back: Way::new(self.bytes, near),
            counters,
        }
    }

    /// Byte counters of the ends, and of a forwarded rail the rules of all its hosts.
    fn look(&mut self, rail: &Track<'a>) -> Result<Look, Stop> {
        let hops = &rail.item.rail.hops;
        let counts = self.counters(hops, ANSWER_LIMIT)?;
        let mut look = Look { counts, ..Look::default() };
        if rail.item.path.kind != PathKind::Forwarded {
            return Ok(look);
        }
        let id = self.id();
        for &rank in hops {
            let given = self.agent(rank)?.give(&Order::Rules { id });
            given.map_err(|error| Stop::Lost { rank, error })?;
        }
        for &rank in hops {
            let agent = self.agent(rank)?;
            let answer = agent.answer(id, RULES_LIMIT);
            agent.forget(id);
            let state = match answer.map_err(|error| Stop::Lost { rank, error })? {
                Said::Rules { state, .. } => Ok(*state),
                Said::Failed { fault, .. } => Err(fault.why),
                other => {
                    let error = self.agent(rank)?.nonsense(&format!("{other:?}"));
                    return Err(Stop::Lost { rank, error });
                }
            };
            look.rules.insert(rank, state);
        }
        Ok(look)
    }

    /// Makes both ends, lets bytes go, and closes them again whatever came of it.
    fn run_pair(&mut self, rail: &Track<'a>, terms: &Terms) -> Result<Ran, Stop> {
        let path = rail.item.path;
        let ends = [(path.from, self.id()), (path.to, self.id())];
        let ran = self.exchange(rail, terms, &ends);
        for (rank, id) in ends {
            if let Some(Ok(agent)) = self.agents.get_mut(&rank) {
                // One that is gone will be found by whoever asks it next.
                let _ = agent.give(&Order::Tell { id, word: Word::Close });
                agent.forget(id);
            }
        }
        ran
    }

    fn exchange(
        &mut self,
        rail: &Track<'a>,
        terms: &Terms,
        ends: &[(usize, u64); 2],
    ) -> Result<Ran, Stop> {
        let mut ran = Ran {
            said: [EndSaid::Nothing, EndSaid::Nothing],
            seconds: [0.0; 2],
            devices: [String::new(), String::new()],
        };
        let crossings = &rail.item.rail.crossings;
        let own = [
            crossings.first().and_then(|one| one.out.ip),
            crossings.last().and_then(|one| one.into.ip),
        ];
        let passed = rail.item.rail.tag.as_ref().map(|tag| Passed {
            flow_label: tag.flow_label,
            source_port: tag.source_port,
            window_bytes: self.plan.forward_window_bytes(rail.item.path, rail.item.number),
        });
        let [(near, _), (far, _)] = *ends;
        for (index, (&(rank, id), address)) in ends.iter().zip(own).enumerate() {
            let address =
                address.ok_or_else(|| Stop::not_proven("the plan's rail has no addresses"))?;
            let end = PairEnd {
                near: index == 0,
                rank,
                peer: if index == 0 { far } else { near },
                rail: rail.item.number,
                address,
                passed,
            };
            let order = Order::Pair { id, end, terms: terms.clone() };
            self.agent(rank)?.give(&order).map_err(|error| Stop::Lost { rank, error })?;
        }
        let mut blobs = [Vec::new(), Vec::new()];
        for ((&(rank, id), blob), (said, device)) in
            ends.iter().zip(&mut blobs).zip(ran.said.iter_mut().zip(&mut ran.devices))
        {
            match self.answer_of(rank, id, MAKE_LIMIT)? {
                Said::Made { blob: told, device: name, .. } => (*blob, *device) = (told, name),
                Said::NoVerbs { why, .. } => return Err(Stop::NoVerbs { rank, why }),
                Said::Failed { fault, .. } => *said = EndSaid::Failed(fault),
                other => return Err(self.senseless(rank, &other)),
            }
        }
        if ran.said != [EndSaid::Nothing, EndSaid::Nothing] {
            return Ok(ran);
        }
        blobs.reverse();
        for (&(rank, id), blob) in ends.iter().zip(blobs) {
            self.tell(rank, id, Word::Connect { blob })?;
        }
        for (&(rank, id), said) in ends.iter().zip(&mut ran.said) {
            match self.answer_of(rank, id, MAKE_LIMIT)? {
                Said::Connected { .. } => {}
                Said::Failed { fault, .. } => *said = EndSaid::Failed(fault),
                other => return Err(self.senseless(rank, &other)),
            }
        }
        if ran.said != [EndSaid::Nothing, EndSaid::Nothing] {
            return Ok(ran);
        }
        for &(rank, id) in ends.iter().rev() {
            self.tell(rank, id, Word::Go)?;
        }
        self.hear_both(ends, &mut ran)?;
        for (&(rank, _), said) in ends.iter().zip(&ran.said) {
            if *said == EndSaid::Nothing {
                // One that does not answer this either is of no use any more.
                self.counters(&[rank], LOOK_LIMIT)?;
            }
        }
        Ok(ran)
    }

    /// Awaits what both ends say; once one has failed, the other one is asked how far it came.
    fn hear_both(&mut self, ends: &[(usize, u64); 2], ran: &mut Ran) -> Result<(), Stop> {
        let mut until = Instant::now() + self.limit + ANSWER_LIMIT;
        let mut closing = false;
        while ran.said.contains(&EndSaid::Nothing) && Instant::now() < until {
            for (&(rank, id), (said, seconds)) in
                ends.iter().zip(ran.said.iter_mut().zip(&mut ran.seconds))
            {
                if *said != EndSaid::Nothing {
                    continue;
                }
                match self.agent(rank)?.answer(id, LISTEN) {
                    Ok(Said::Done { bytes, seconds: took, .. }) if bytes == self.bytes => {
                        (*said, *seconds) = (EndSaid::Done, took);
                    }
                    Ok(Said::Failed { fault, .. }) => *said = EndSaid::Failed(fault),
                    Ok(other) => return Err(self.senseless(rank, &other)),
                    Err(AgentError::Late { .. }) => {}
                    Err(error) => return Err(Stop::Lost { rank, error }),
                }
            }
            let failed = |said: &EndSaid| matches!(said, EndSaid::Failed(_));
            if !closing && ran.said.iter().any(failed) {
                closing = true;
                until = Instant::now() + CLOSE_LIMIT;
                for (&(rank, id), said) in ends.iter().zip(&ran.said) {
                    if *said == EndSaid::Nothing {
                        self.tell(rank, id, Word::Close)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn tell(&mut self, rank: usize, id: u64, word: Word) -> Result<(), Stop> {
        let given = self.agent(rank)?.give(&Order::Tell { id, word });
        given.map_err(|error| Stop::Lost { rank, error })
    }

    fn answer_of(&mut self, rank: usize, id: u64, limit: Duration) -> Result<Said, Stop> {
        self.agent(rank)?.answer(id, limit).map_err(|error| Stop::Lost { rank, error })
    }

    fn senseless(&mut self, rank: usize, said: &Said) -> Stop {
        match self.agent(rank) {
            Ok(agent) => Stop::Lost { rank, error: agent.nonsense(&format!("{said:?}")) },
            Err(stop) => stop,
        }
    }
}

/// An end that could not be judged for want of an answer.
impl From<Fault> for EndSaid {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault)
    }
}
