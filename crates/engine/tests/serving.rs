//! The scheduler and the step loops with a model that has no weights.
#![allow(clippy::unwrap_used)]

mod serving_fakes;

mod scheduler {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use engine::serving::{
        Admission, End, FinishReason, Limits, Load, Request, RequestId, Sampling, Scheduler,
        Settings, Timing, Usage, Waiting,
    };
    use proptest::prelude::*;

    use crate::serving_fakes::{Bytes, FakeModel, Says};

    /// What became of the requests.
    #[derive(Default)]
    struct Told {
        text: HashMap<RequestId, String>,
        end: HashMap<RequestId, End>,
        first: HashMap<RequestId, Duration>,
    }

    struct Bench {
        admission: Admission,
        scheduler: Scheduler,
        model: FakeModel,
        settings: Settings,
        told: Told,
        now: Instant,
    }

    fn bench(says: Says, limits: Limits) -> Bench {
        Bench {
            admission: Admission::new(100),
            scheduler: Scheduler::new(limits, Arc::new(Bytes)),
            model: FakeModel {
                block: limits.kv_block_tokens,
                ..FakeModel::new(says, limits.slots, limits.context_tokens, limits.kv_tokens)
            },
            settings: Settings::new(8, limits.slots),
            told: Told::default(),
            now: Instant::now(),
        }
    }

    impl Bench {
        fn arrive(&mut self, request: Request) -> RequestId {
            let id = RequestId::next();
            assert!(self.admission.push(Waiting { id, request, arrived: self.now }));
            id
        }

        /// One step, which the group loses if `lost`. Returns whether there was anything to do.
        fn step(&mut self, lost: bool) -> bool {
            let planned = self.scheduler.plan(&mut self.admission, &self.settings);
            let fed: usize = planned
                .plan
                .entries
                .iter()
                .filter(|e| e.tokens.len() > 1)
                .map(|entry| entry.tokens.len())
                .sum();
            assert!(fed <= self.settings.prefill_chunk(), "{fed} prompt tokens in one step");
            let busy = !planned.plan.entries.is_empty() || !planned.plan.release.is_empty();
            let logits = self.model.run(&planned.plan);
            self.now += Duration::from_millis(10);
            if lost {
                self.reform();
                return busy;
            }
            for output in self.scheduler.consume(&logits, self.now).unwrap() {
                self.told.text.entry(output.id).or_default().push_str(&output.text);
                if let Timing::First(after) = output.timing {
                    assert!(self.told.first.insert(output.id, after).is_none());
                }
                if let Some(end) = output.end {
                    assert!(self.told.end.insert(output.id, end).is_none());
                }
            }
            busy
        }

        fn reform(&mut self) {
            use engine::serving::Stepper;
            self.model.reset();
            self.scheduler.on_reform();
        }

        fn finish(&mut self) {
            for _ in 0..100_000 {
                if !self.step(false) {
                    return;
                }
            }
            panic!("the requests never end");
        }
    }

    fn request(prompt: &str, max_tokens: usize) -> Request {
        let prompt = prompt.bytes().map(u32::from).collect();
        Request { prompt, max_tokens, stops: vec![], sampling: Sampling::GREEDY }
    }

    const ROOMY: Limits =
        Limits { slots: 4, context_tokens: 200, kv_tokens: 800, kv_block_tokens: 1 };

    fn alone(says: Says, limits: Limits, request: Request) -> (String, End) {
        let mut bench = bench(says, limits);
        let id = bench.arrive(request);
        bench.finish();
        (bench.told.text.remove(&id).unwrap_or_default(), bench.told.end.remove(&id).unwrap())
    }

    fn ended(reason: FinishReason, prompt_tokens: usize, completion_tokens: usize) -> End {
        End::Finished { reason, usage: Usage { prompt_tokens, completion_tokens } }
    }

    #[test]
    fn a_text_ends_at_its_end_token_limit_or_context() {
        let says = Says::Text("hello");
        let told = alone(says.clone(), ROOMY, request("q\n", 50));
        assert_eq!(told, ("hello".into(), ended(FinishReason::Stop, 2, 6)));
        let told = alone(says, ROOMY, request("q\n", 3));
        assert_eq!(told, ("hel".into(), ended(FinishReason::Length, 2, 3)));
        let told =
            alone(Says::Forever("ab"), Limits { context_tokens: 6, ..ROOMY }, request("q\n", 50));
        assert_eq!(told, ("abab".into(), ended(FinishReason::Length, 2, 4)));
    }

    #[test]
    fn a_stop_string_ends_the_text_before_it_across_characters_and_tokens() {
        let stops = vec!["é🙂".to_owned()];
        let told = alone(Says::Text("aéé🙂b"), ROOMY, Request { stops, ..request("q\n", 50) });
        assert_eq!(told, ("aé".into(), ended(FinishReason::Stop, 2, 9)));
    }

    #[test]
    fn a_limit_inside_a_character_or_a_possible_stop_gives_out_what_is_there() {
        let stops = vec!["yz".to_owned()];
        let told = alone(Says::Text("xyé"), ROOMY, Request { stops, ..request("q\n", 3) });
        assert_eq!(told.0, "xy\u{fffd}");
    }

    #[test]
    fn prompts_share_the_chunk_while_texts_go_on() {
        let mut bench = bench(Says::Forever("ab"), ROOMY);
        let quick = bench.arrive(request("q\n", 50));
        bench.step(false);
        bench.arrive(request(&"x".repeat(40), 5));
        let short = bench.arrive(request("abc\n", 5));
        for _ in 0..2 {
            bench.step(false);
        }
        assert_eq!(bench.told.text[&quick], "aba");
        // Half of a chunk of 8 is enough for the short prompt at once.
        assert_eq!(bench.told.text[&short], "ab");
        bench.finish();
    }

    #[test]
    fn concurrency_can_be_changed_between_steps() {
        let mut bench = bench(Says::Forever("ab"), ROOMY);
        bench.settings.set_max_concurrency(1);
        for _ in 0..3 {
            bench.arrive(request("q\n", 10));
        }
        bench.step(false);
        let load = bench.scheduler.load(bench.admission.len());
        assert_eq!((load.running, load.waiting), (1, 2));
        bench.settings.set_max_concurrency(50);
        bench.step(false);
        assert_eq!(bench.scheduler.load(bench.admission.len()).running, 3);
    }

    #[test]
    fn times_are_measured_from_the_arrival() {
        let mut bench = bench(Says::Forever("ab"), ROOMY);
        let id = bench.arrive(request(&"x".repeat(20), 5));
        bench.finish();
        // 20 tokens in chunks of 8 are three steps of 10 ms.
        assert_eq!(bench.told.first[&id], Duration::from_millis(30));
    }

    #[test]
    fn logits_that_are_no_numbers_end_only_their_request() {
        let mut bench = bench(Says::Text("ok"), ROOMY);
        let (bad, good) = (bench.arrive(request("b\n", 5)), bench.arrive(request("g\n", 5)));
        let planned = bench.scheduler.plan(&mut bench.admission, &bench.settings);
        let mut logits = bench.model.run(&planned.plan);
        logits[0].fill(f32::NAN);
        let outputs = bench.scheduler.consume(&logits, bench.now).unwrap();
        assert!(matches!(&outputs[0].end, Some(End::Failed { .. })) && outputs[0].id == bad);
        bench.told.text.insert(good, outputs[1].text.clone());
        bench.finish();
        assert_eq!(bench.told.text[&good], "ok");
    }

    #[test]
    fn rows_of_another_step_are_refused() {
        let mut bench = bench(Says::Text("ok"), ROOMY);
        bench.arrive(request("b\n", 5));
        bench.scheduler.plan(&mut bench.admission, &bench.settings);
        assert!(bench.scheduler.consume(&[], bench.now).is_err());
    }

    #[derive(Debug, Clone)]
    enum Act {
        Arrive { prompt: Vec<u8>, max_tokens: usize, stop: Option<String>, seed: Option<u64> },
        Cancel(usize),
        Step,
        LoseStep,
        Reform,
        Chunk(usize),
        Concurrency(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        let arrive = (
            proptest::collection::vec(97u8..123, 1..30),
            1usize..40,
            proptest::option::of("[a-z]{1,2}"),
            proptest::option::of(any::<u64>()),
        );
        prop_oneof![
            4 => arrive.prop_map(|(prompt, max_tokens, stop, seed)| Act::Arrive {
                prompt, max_tokens, stop, seed
            }),
            2 => (0usize..20).prop_map(Act::Cancel),
            12 => Just(Act::Step),
            1 => Just(Act::LoseStep),
            1 => Just(Act::Reform),
            1 => (1usize..20).prop_map(Act::Chunk),
            1 => (1usize..6).prop_map(Act::Concurrency),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Whatever happens around it, a request says what it says alone, and nothing is left behind.
        #[test]
        fn every_request_says_what_it_says_alone(
            acts in proptest::collection::vec(act(), 1..80), blocks in 8usize..40, kv_block_tokens in 1usize..10,
        ) {
            let kv_tokens = blocks * kv_block_tokens + 30;
            let limits = Limits { slots: 4, context_tokens: 50, kv_tokens, kv_block_tokens };
            let mut bench = bench(Says::Hash, limits);
            let mut requests: Vec<(RequestId, Request, bool)> = Vec::new();
            for act in acts {
                match act {
                    Act::Arrive { prompt, max_tokens, stop, seed } => {
                        let sampling = match seed {
                            None => Sampling::GREEDY,
                            Some(seed) => Sampling { temperature: 1.0, top_p: 0.9, seed },
                        };
                        let prompt = prompt.into_iter().map(u32::from).collect();
                        let stops = stop.into_iter().collect();
                        let request = Request { prompt, max_tokens, stops, sampling };
                        let id = bench.arrive(request.clone());
                        requests.push((id, request, true));
                    }
                    Act::Cancel(at) => {
                        if let Some((id, _, wanted)) = requests.get_mut(at) {
                            let there = bench.admission.remove(*id) || bench.scheduler.cancel(*id);
                            prop_assert_eq!(there, *wanted && !bench.told.end.contains_key(id));
                            *wanted &= !there;
                        }
                    }
                    Act::Step => { bench.step(false); }
                    Act::LoseStep => { bench.step(true); }
                    Act::Reform => bench.reform(),
                    Act::Chunk(tokens) => bench.settings.set_prefill_chunk(tokens),
                    Act::Concurrency(most) => bench.settings.set_max_concurrency(most),
                }
                let load = bench.scheduler.load(bench.admission.len());
                prop_assert!(load.running <= limits.slots);
                let open = requests.iter().filter(|(id, _, wanted)| *wanted && !bench.told.end.contains_key(id));
                prop_assert_eq!(load.running + load.waiting, open.count());
            }
            bench.finish();
            for (id, request, wanted) in requests {
                if wanted {
                    let (text, end) = alone(Says::Hash, limits, request);
                    prop_assert_eq!(bench.told.text.get(&id), Some(&text));
                    prop_assert_eq!(bench.told.end.get(&id), Some(&end));
                } else {
                    prop_assert_eq!(bench.told.end.get(&id), None);
                }
            }
            prop_assert_eq!(bench.scheduler.load(0), Load::default());
            prop_assert!(bench.model.slots.iter().all(Vec::is_empty), "a slot was not emptied");
            // All slots can be had again.
            bench.settings.set_max_concurrency(limits.slots);
            for _ in 0..limits.slots {
                bench.arrive(request("q", 1));
            }
            bench.step(false);
            prop_assert_eq!(bench.admission.len(), 0);
        }
    }
}

mod loops {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::{Duration, Instant};

    use engine::communicator::Solo;
    use engine::serving::{
        End, Event, FaultHook, FinishReason, Lead, Limits, Observer, Outcome, Request,
        RequestQueue, Sampling, Settings, Ticket, Unobserved, follow,
    };

    use crate::serving_fakes::{Bytes, FakeGroup, FakeModel, Says};

    const LIMITS: Limits =
        Limits { slots: 4, context_tokens: 200, kv_tokens: 800, kv_block_tokens: 1 };

    #[derive(Default)]
    struct Seen {
        ready: Mutex<Vec<bool>>,
        finished: Mutex<Vec<Outcome>>,
        reformed: AtomicUsize,
        failed: AtomicUsize,
    }

    impl Observer for Seen {
        fn ready(&self, ready: bool) {
            self.ready.lock().unwrap().push(ready);
        }
        fn finished(&self, outcome: Outcome) {
            self.finished.lock().unwrap().push(outcome);
        }
        fn reformed(&self, _took: Duration) {
            self.reformed.fetch_add(1, Ordering::Relaxed);
        }
        fn failed(&self, _summary: &str) {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn model(says: &Says) -> FakeModel {
        FakeModel::new(says.clone(), LIMITS.slots, LIMITS.context_tokens, LIMITS.kv_tokens)
    }

    fn ask(queue: &RequestQueue, prompt: &str) -> Ticket {
        let prompt = prompt.bytes().map(u32::from).collect();
        let (max_tokens, sampling) = (30, Sampling::GREEDY);
        queue.submit(Request { prompt, max_tokens, stops: vec![], sampling }).unwrap()
    }

    fn read(mut ticket: Ticket) -> (String, Option<End>) {
        let mut text = String::new();
        while let Some(event) = ticket.events.blocking_recv() {
            match event {
                Event::Text(more) => text.push_str(&more),
                Event::End(end) => return (text, Some(end)),
            }
        }
        (text, None)
    }

    /// The texts of `prompts` from `size` ranks of which the collectives `fail_at` fail, and what rank 0 and rank 1 saw.
    fn serve(
        size: usize,
        fail_at: &[u64],
        prompts: &[&str],
    ) -> (Vec<String>, Arc<Seen>, Arc<Seen>) {
        let (queue, settings) =
            (RequestQueue::new(16, LIMITS.request_tokens()), Settings::new(4, 4));
        let (first, second) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let mut ranks = FakeGroup::of(size, fail_at.iter().copied());
        let close = ranks[0].closer();
        let mut texts = Vec::new();
        thread::scope(|scope| {
            for mut rank in ranks.drain(1..) {
                let (settings, second) = (&settings, &second);
                scope.spawn(move || {
                    follow(&mut model(&Says::Hash), &mut rank, settings, &**second).unwrap();
                });
            }
            let tickets: Vec<Ticket> = prompts.iter().map(|prompt| ask(&queue, prompt)).collect();
            let mut rank = ranks.remove(0);
            let lead = Lead {
                queue: &queue,
                vocabulary: Arc::new(Bytes),
                limits: LIMITS,
                settings: &settings,
                observer: &*first,
            };
            scope.spawn(move || lead.run(&mut model(&Says::Hash), &mut rank).unwrap());
            texts = tickets.into_iter().map(|ticket| read(ticket).0).collect();
            queue.close();
            close();
        });
        (texts, first, second)
    }

    const PROMPTS: [&str; 6] = ["one", "two", "three and more", "four", "five", "six"];

    #[test]
    fn texts_are_the_same_for_any_ranks_and_any_failures() {
        let (undisturbed, seen, _) = serve(1, &[], &PROMPTS);
        assert!(undisturbed.iter().any(|text| text.len() > 10), "{undisturbed:?}");
        assert_eq!(*seen.ready.lock().unwrap(), [true, false]);
        assert_eq!(seen.finished.lock().unwrap().len(), PROMPTS.len());
        // Two collectives a step: the warm-up, steps in the middle, both in a row, the broadcast and the sum.
        for fail_at in [&[1][..], &[2], &[7], &[8, 10, 11], &[12, 20, 31, 35]] {
            let (texts, first, second) = serve(3, fail_at, &PROMPTS);
            assert_eq!(texts, undisturbed, "failures at {fail_at:?}");
            assert_eq!(first.failed.load(Ordering::Relaxed), fail_at.len());
            assert_eq!(first.reformed.load(Ordering::Relaxed), fail_at.len());
            assert!(second.ready.lock().unwrap().contains(&true));
        }
    }

    #[test]
    fn a_client_that_leaves_frees_its_slot() {
        let (queue, settings) = (RequestQueue::new(16, 100_000), Settings::new(4, 1));
        let seen = Seen::default();
        thread::scope(|scope| {
            let limits = Limits { context_tokens: 100_000, kv_tokens: 100_000, ..LIMITS };
            let vocabulary = Arc::new(Bytes);
            let lead =
                Lead { queue: &queue, vocabulary, limits, settings: &settings, observer: &seen };
            scope.spawn(move || {
                let mut model = FakeModel::new(Says::Forever("ab"), 1, 100_000, 100_000);
                model.step_takes = Duration::from_millis(1);
                lead.run(&mut model, &mut Solo).unwrap();
            });
            let prompt = vec![1];
            let (stops, sampling) = (vec![], Sampling::GREEDY);
            let endless = Request { prompt, max_tokens: 90_000, stops, sampling };
            let mut leaving = queue.submit(endless).unwrap();
            assert_eq!(leaving.events.blocking_recv(), Some(Event::Text("b".into())));
            drop(leaving);
            let (text, end) = read(ask(&queue, "q\n"));
            assert_eq!(text.len(), 30);
            assert!(matches!(end, Some(End::Finished { reason: FinishReason::Length, .. })));
            queue.close();
        });
        assert_eq!(*seen.finished.lock().unwrap(), [Outcome::Cancelled, Outcome::Length]);
    }

    #[test]
    fn a_loop_that_panics_tells_its_clients() {
        let queue = RequestQueue::new(16, 300);
        let settings = Settings::new(4, 4);
        thread::scope(|scope| {
            let ticket =
                ask(&queue, "much longer than the context of the model, which panics then");
            let lead = Lead {
                queue: &queue,
                vocabulary: Arc::new(Bytes),
                limits: Limits { context_tokens: 300, ..LIMITS },
                settings: &settings,
                observer: &Unobserved,
            };
            let looping = scope
                .spawn(move || lead.run(&mut FakeModel::new(Says::Hash, 4, 10, 800), &mut Solo));
            assert_eq!(read(ticket), (String::new(), None));
            assert!(looping.join().is_err());
        });
        assert!(queue.is_closed());
    }

    #[test]
    fn a_planted_delay_is_suffered_once_and_only_where_it_is_honoured() {
        let hook = FaultHook::default();
        let queue = RequestQueue::new(16, LIMITS.request_tokens());
        let settings = Settings::new(4, 4).with_faults(hook.clone());
        thread::scope(|scope| {
            let lead = Lead {
                queue: &queue,
                vocabulary: Arc::new(Bytes),
                limits: LIMITS,
                settings: &settings,
                observer: &Unobserved,
            };
            scope.spawn(move || lead.run(&mut model(&Says::Text("ok")), &mut Solo).unwrap());
            assert_eq!(read(ask(&queue, "warm\n")).0, "ok");
            hook.delay_compute(Duration::from_millis(150));
            let start = Instant::now();
            assert_eq!(read(ask(&queue, "q\n")).0, "ok");
            assert!(start.elapsed() >= Duration::from_millis(150));
            queue.close();
        });
    }
}
