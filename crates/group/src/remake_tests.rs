use std::collections::VecDeque;

use fabric::sim::Rng;

use super::*;

const TICK: Duration = Duration::from_millis(100);
const RAIL: usize = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Link {
    #[default]
    Serving,
    Down,
    Trial,
}

/// One end of the rail, as a device and an endpoint have it.
#[derive(Clone, Debug)]
struct End {
    link: Link,
    round: u32,
    joined: u32,
    offered: Option<u32>,
    probed: u32,
    can_make: bool,
    working: usize,
    /// True: up, false: down.
    notices: VecDeque<bool>,
}

/// The rail between ranks 0 and 1, and the way for messages.
struct Bed {
    now: Duration,
    ends: [End; 2],
    carries: bool,
    /// An end that goes down tells the other.
    tells: bool,
    sent: Vec<(Duration, usize, RailMessage)>,
    flying: VecDeque<(Duration, usize, RailMessage)>,
    /// Loses the message with this number.
    loses: Box<dyn FnMut(usize) -> bool>,
    delay: Box<dyn FnMut() -> Duration>,
    waits: [Vec<Duration>; 2],
}

struct Hand<'a>(&'a mut Bed, usize);

impl Bed {
    fn fall(&mut self, rank: usize) {
        for (end, told) in [(rank, true), (1 - rank, self.tells)] {
            if told && self.ends[end].link != Link::Down {
                if self.ends[end].link == Link::Serving {
                    self.ends[end].notices.push_back(false);
                }
                self.ends[end].link = Link::Down;
            }
        }
    }

    fn is_joined(&self) -> bool {
        let [low, high] = &self.ends;
        (low.round, low.joined) == (high.joined, high.round)
    }
}

impl Rails for Hand<'_> {
    fn working(&self, _: usize) -> usize {
        self.0.ends[self.1].working + usize::from(self.0.ends[self.1].link == Link::Serving)
    }
    fn remake(&mut self, peer: usize, rail: usize) -> Option<Vec<u8>> {
        assert_eq!((peer, rail), (1 - self.1, RAIL));
        let end = &mut self.0.ends[self.1];
        if end.link != Link::Down || !end.can_make {
            return None;
        }
        end.offered = Some(end.offered.unwrap_or(end.round) + 1);
        end.offered.map(|round| round.to_le_bytes().to_vec())
    }
    fn reconnect(&mut self, _: usize, _: usize, told: &[u8]) -> Result<(), String> {
        let end = &mut self.0.ends[self.1];
        end.round = end.offered.take().ok_or("not offered")?;
        end.joined = u32::from_le_bytes(told.try_into().map_err(|_| "no such words")?);
        end.link = Link::Trial;
        Ok(())
    }
    fn probe(&mut self, _: usize, _: usize, attempt: u32) {
        // It may have gone down again meanwhile; a proof is lost then.
        if self.0.ends[self.1].link == Link::Trial {
            self.0.ends[self.1].probed = attempt;
        }
    }
    fn trial(&mut self, _: usize, _: usize) -> Trial {
        let (own, other) = (&self.0.ends[self.1], &self.0.ends[1 - self.1]);
        match own.link {
            Link::Down => Trial::Failed,
            Link::Serving => Trial::Proven,
            Link::Trial => {
                let both = other.link != Link::Down && own.probed == other.probed;
                if both && self.0.carries && self.0.is_joined() {
                    Trial::Proven
                } else {
                    Trial::Runs
                }
            }
        }
    }
    fn take_back(&mut self, _: usize, _: usize) {
        let end = &mut self.0.ends[self.1];
        if end.link == Link::Trial {
            end.link = Link::Serving;
            end.notices.push_back(true);
        }
    }
    fn cut(&mut self, _: usize, _: usize) {
        self.0.fall(self.1);
    }
    fn send(&mut self, peer: usize, message: RailMessage) {
        let number = self.0.sent.len();
        self.0.sent.push((self.0.now, peer, message.clone()));
        if !(self.0.loses)(number) {
            let last = self.0.flying.iter().filter(|flying| flying.1 == peer).map(|it| it.0).max();
            let at = (self.0.now + (self.0.delay)()).max(last.unwrap_or_default());
            self.0.flying.push_back((at, peer, message));
        }
    }
    fn failed(&mut self, _: usize, _: usize, _: u32, why: &str, wait: Duration) {
        assert!(!why.is_empty());
        self.0.waits[self.1].push(wait);
    }
}

struct Pair {
    bed: Bed,
    machines: [Remaking; 2],
    back: [Vec<Back>; 2],
}

impl Pair {
    fn new() -> Self {
        let end = End {
            link: Link::Serving,
            round: 0,
            joined: 0,
            offered: None,
            probed: 0,
            can_make: true,
            working: 1,
            notices: VecDeque::new(),
        };
        let bed = Bed {
            now: Duration::ZERO,
            ends: [end.clone(), end],
            carries: true,
            tells: true,
            sent: Vec::new(),
            flying: VecDeque::new(),
            loses: Box::new(|_| false),
            delay: Box::new(|| Duration::from_millis(1)),
            waits: [Vec::new(), Vec::new()],
        };
        Self { bed, machines: [Remaking::new(0), Remaking::new(1)], back: [Vec::new(), Vec::new()] }
    }

    /// Both ends look after the rail, as the pulse does.
    fn tick(&mut self) {
        self.bed.now += TICK;
        let now = self.bed.now;
        for rank in 0..2 {
            while let Some(up) = self.bed.ends[rank].notices.pop_front() {
                if up {
                    self.back[rank].extend(self.machines[rank].up(now, 1 - rank, RAIL));
                } else {
                    self.machines[rank].down(now, 1 - rank, RAIL);
                }
            }
            let (due, later): (VecDeque<_>, _) =
                self.bed.flying.drain(..).partition(|(at, to, _)| *to == rank && *at <= now);
            self.bed.flying = later;
            for (.., message) in due {
                self.hear(rank, &message);
            }
            self.machines[rank].poll(now, &mut Hand(&mut self.bed, rank));
        }
    }

    fn hear(&mut self, rank: usize, message: &RailMessage) {
        let now = self.bed.now;
        self.machines[rank].hear(now, 1 - rank, message, &mut Hand(&mut self.bed, rank));
    }

    fn run(&mut self, seconds: u64) {
        (0..seconds * 10).for_each(|_| self.tick());
    }

    fn run_until_back(&mut self, seconds_max: u64) {
        for _ in 0..seconds_max * 10 {
            self.tick();
            if self.is_back() {
                return;
            }
        }
        panic!("not back: {:?}, {:?}", self.bed.ends, self.machines);
    }

    fn is_back(&self) -> bool {
        let serves = |end: &End| end.link == Link::Serving && end.notices.is_empty();
        let at_rest = |machine: &Remaking| {
            let step = machine.rails.get(&(1 - machine.rank, RAIL)).map(|rail| rail.step);
            matches!(step, None | Some(Step::InService { .. }))
        };
        self.bed.ends.iter().all(serves)
            && self.machines.iter().all(at_rest)
            && self.bed.is_joined()
    }

    fn offers(&self) -> Vec<Duration> {
        let offers = self.bed.sent.iter();
        offers.filter(|(.., it)| matches!(it.step, RailStep::Offer(_))).map(|it| it.0).collect()
    }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn word(attempt: u32, step: RailStep) -> RailMessage {
    RailMessage::new(RAIL, attempt, step)
}

#[test]
fn a_rail_comes_back_a_second_later() {
    let mut pair = Pair::new();
    pair.run(3);
    assert!(pair.bed.sent.is_empty());
    pair.bed.fall(1);
    pair.run_until_back(3);
    for back in &pair.back {
        assert_eq!(back.len(), 1);
        assert_eq!(back[0].attempt, 1);
        assert!((seconds(1)..seconds(2)).contains(&back[0].after), "{back:?}");
    }
    assert_eq!(pair.bed.sent.len(), 3, "an offer, an answer, and that it is connected");
}

#[test]
fn the_wait_doubles_up_to_half_a_minute() {
    let mut pair = Pair::new();
    pair.bed.ends[1].can_make = false;
    pair.bed.fall(0);
    pair.run(150);
    let offers = pair.offers();
    let between: Vec<_> = offers.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect();
    assert_eq!(offers[0], TICK + seconds(1));
    for (wait, wanted) in between.iter().zip([2.0, 4.0, 8.0, 16.0, 30.0, 30.0]) {
        assert!((wanted..=wanted + 0.3).contains(wait), "{between:?}");
    }
    assert!(between.len() >= 6);
    pair.bed.ends[1].can_make = true;
    pair.run_until_back(32);
    let attempts = u32::try_from(pair.offers().len()).unwrap();
    assert_eq!(pair.back[0].iter().map(|back| back.attempt).collect::<Vec<_>>(), [attempts]);
}

#[test]
fn a_minute_in_service_makes_the_wait_short_again() {
    let mut pair = Pair::new();
    let mut waits = Vec::new();
    for served in [0, 1, 1, 61] {
        pair.run(served);
        pair.bed.fall(0);
        let (before, down) = (pair.offers().len(), pair.bed.now);
        pair.run_until_back(10);
        waits.push((pair.offers()[before] - down).as_millis() / 1000);
    }
    assert_eq!(waits, [1, 2, 4, 1]);
}

#[test]
fn any_one_message_may_be_lost() {
    for lost in 0..8 {
        for can_make in [true, false] {
            let mut pair = Pair::new();
            pair.bed.loses = Box::new(move |number| number == lost);
            pair.bed.ends[1].can_make = can_make;
            pair.bed.fall(0);
            pair.run(4);
            pair.bed.ends[1].can_make = true;
            pair.run_until_back(40);
        }
    }
}

#[test]
fn an_answer_to_an_offer_that_was_given_up_changes_nothing() {
    let mut pair = Pair::new();
    pair.bed.delay = Box::new(|| seconds(6));
    pair.bed.fall(0);
    pair.run(8);
    assert_eq!(pair.bed.waits[0], [seconds(2)], "no answer came within five seconds");
    pair.bed.delay = Box::new(|| TICK);
    pair.run_until_back(60);
    assert!(pair.back[0][0].attempt > 1);
}

#[test]
fn words_of_other_attempts_and_from_the_wrong_end_change_nothing() {
    let mut pair = Pair::new();
    pair.bed.fall(0);
    pair.run_until_back(3);
    let sent = pair.bed.sent.len();
    for attempt in [0, 2, 9] {
        for step in [RailStep::Answer(vec![1; 4]), RailStep::Ready, RailStep::refuse("no")] {
            for rank in 0..2 {
                pair.hear(rank, &word(attempt, step.clone()));
            }
        }
    }
    pair.hear(1, &word(1, RailStep::Offer(vec![1; 4])));
    pair.hear(0, &word(7, RailStep::Offer(vec![1; 4])));
    pair.hear(0, &word(1, RailStep::Ready));
    pair.hear(1, &word(1, RailStep::Answer(vec![1; 4])));
    let far = RailMessage { rail: MAX_RAILS as u8, ..word(9, RailStep::Offer(vec![1; 4])) };
    pair.hear(1, &far);
    pair.run(10);
    assert!(pair.is_back());
    assert_eq!(pair.bed.sent.len(), sent);
}

#[test]
fn it_may_fail_again_at_any_moment() {
    for after in 0..30 {
        for rank in 0..2 {
            let mut pair = Pair::new();
            pair.bed.fall(0);
            (0..after).for_each(|_| pair.tick());
            pair.bed.fall(rank);
            pair.run(1);
            pair.run_until_back(40);
        }
    }
}

#[test]
fn a_rail_that_carries_nothing_is_never_taken_back() {
    let mut pair = Pair::new();
    pair.bed.carries = false;
    pair.bed.fall(1);
    pair.run(60);
    assert!(pair.back.iter().all(Vec::is_empty));
    assert!(pair.bed.waits.iter().all(|waits| waits.len() >= 3), "{:?}", pair.bed.waits);
    pair.bed.carries = true;
    pair.run_until_back(70);
}

#[test]
fn an_end_that_was_not_told_learns_it_from_the_other() {
    for rank in 0..2 {
        let mut pair = Pair::new();
        pair.bed.tells = false;
        pair.bed.fall(rank);
        pair.run_until_back(20);
        assert!(pair.back.iter().all(|back| back.len() == 1));
    }
}

#[test]
fn nothing_is_made_where_the_whole_link_is_down_or_the_epoch_is_over() {
    let mut pair = Pair::new();
    pair.bed.ends.iter_mut().for_each(|end| end.working = 0);
    pair.bed.fall(0);
    pair.run(20);
    assert!(pair.bed.sent.is_empty());
    pair.bed.ends[0].working = 1;
    pair.run(1);
    assert!(matches!(pair.bed.sent.last().unwrap().2.step, RailStep::Refuse(_)));
    assert!(pair.back[1].is_empty());
    pair.machines.iter_mut().for_each(Remaking::end);
    let sent = pair.bed.sent.len();
    pair.bed.ends[1].working = 1;
    pair.hear(1, &word(50, RailStep::Offer(vec![1; 4])));
    pair.machines[0].down(pair.bed.now, 1, RAIL);
    pair.run(60);
    assert_eq!(pair.bed.sent.len(), sent);
}

#[test]
fn the_last_rail_of_a_link_is_not_cut_on_a_word() {
    let mut pair = Pair::new();
    pair.bed.ends[1].working = 0;
    pair.hear(1, &word(1, RailStep::Offer(vec![1; 4])));
    pair.hear(1, &word(1, RailStep::refuse("it is down")));
    assert_eq!(pair.bed.ends[1].link, Link::Serving);
}

/// Whatever is lost, late or down, both come back once the world is sound again.
#[test]
fn seeded_trouble_always_ends_in_service() {
    for seed in 0..300 {
        let mut pair = Pair::new();
        let mut rng = Rng::new(seed);
        let (mut loss, mut lag) = (Rng::new(rng.bits()), Rng::new(rng.bits()));
        pair.bed.loses = Box::new(move |_| loss.once_in(3));
        pair.bed.delay = Box::new(move || {
            let most = if lag.once_in(8) { 8000 } else { 300 };
            lag.up_to(Duration::from_millis(most))
        });
        for _ in 0..1500 {
            if rng.once_in(100) {
                pair.bed.tells = !rng.once_in(3);
                pair.bed.fall(rng.index(2));
            }
            if rng.once_in(80) {
                pair.bed.carries = !pair.bed.carries;
            }
            if rng.once_in(80) {
                let end = rng.index(2);
                pair.bed.ends[end].can_make ^= true;
            }
            pair.tick();
        }
        pair.bed.loses = Box::new(|_| false);
        pair.bed.delay = Box::new(|| Duration::from_millis(1));
        (pair.bed.carries, pair.bed.tells) = (true, true);
        pair.bed.ends.iter_mut().for_each(|end| end.can_make = true);
        let mut back = false;
        for _ in 0..1200 {
            pair.tick();
            back = pair.is_back();
        }
        assert!(back, "seed {seed}: {:?}, {:?}", pair.bed.ends, pair.machines);
    }
}
