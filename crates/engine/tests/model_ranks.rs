//! The tiny model gives the same answers whatever the number of ranks, chunks and neighbours in a step.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use engine::communicator::{Activity, Communicator, CommunicatorError, Solo};
use engine::model::{KvLimits, Model, ModelError, ModelFile, Split, StepEntry, StepPlan};
use engine::testing::{TinyModel, communicators};
use std::thread;

const LIMITS: KvLimits = KvLimits { slots: 4, max_tokens_per_slot: 256, max_bytes: 1 << 26 };

fn load(file: &ModelFile, rank: usize, size: usize, threads: usize) -> Model {
    let split = Split::of(file.config(), rank, size).unwrap();
    let (mut last, mut total) = (0, 0);
    let model = Model::load(file, split, LIMITS, threads, &mut |done, all| {
        assert!(done >= last && done <= all);
        (last, total) = (done, all);
    });
    assert_eq!(last, total);
    model.unwrap()
}

fn plan(slot: u32, position: u32, tokens: &[u32]) -> StepPlan {
    let entry = StepEntry { slot, position, tokens: tokens.to_vec(), want_logits: true };
    StepPlan { entries: vec![entry], release: vec![] }
}

fn highest(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    best.0 as u32
}

/// Logits of every step of a greedy run.
fn greedy(model: &mut Model, comm: &mut dyn Communicator, prompt: &[u32]) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    let mut step = plan(0, 0, prompt);
    for _ in 0..12 {
        let logits = model.forward(&step, comm).unwrap().remove(0);
        let position = step.entries[0].position + step.entries[0].tokens.len() as u32;
        step = plan(0, position, &[highest(&logits)]);
        all.push(logits);
    }
    all
}

fn over_ranks(path: &std::path::Path, size: usize, prompt: &[u32]) -> Vec<Vec<f32>> {
    let handles: Vec<_> = communicators(size)
        .into_iter()
        .map(|mut comm| {
            let (path, prompt) = (path.to_path_buf(), prompt.to_vec());
            thread::spawn(move || {
                let file = ModelFile::open(path).unwrap();
                let mut model = load(&file, comm.rank(), comm.size(), 1);
                greedy(&mut model, &mut comm, &prompt)
            })
        })
        .collect();
    let mut results: Vec<_> = handles.into_iter().map(|handle| handle.join().unwrap()).collect();
    let first = results.remove(0);
    for other in results {
        assert_eq!(other, first, "ranks have other bits");
    }
    first
}

#[test]
fn one_to_five_ranks_agree() {
    let tiny = TinyModel::create().unwrap();
    let prompt: Vec<u32> = (0..70).map(|index| 3 + index * 37 % 250).collect();
    let alone = over_ranks(tiny.path(), 1, &prompt);
    assert_eq!(alone[0].len(), 263);
    let spread = alone[0].iter().fold(0.0f32, |most, value| most.max(value.abs()));
    assert!(spread > 0.1 && spread.is_finite(), "{spread}");
    for size in 2..=5 {
        let split = over_ranks(tiny.path(), size, &prompt);
        for (step, (a, b)) in alone.iter().zip(&split).enumerate() {
            assert_eq!(highest(a), highest(b), "step {step} of {size} ranks");
            for (a, b) in a.iter().zip(b) {
                assert!((a - b).abs() <= 1e-3 * spread, "{a} {b} of {size} ranks");
            }
        }
    }
}

#[test]
fn chunks_threads_and_neighbours_change_no_bit() {
    let tiny = TinyModel::create().unwrap();
    let file = ModelFile::open(tiny.path()).unwrap();
    let tokens: Vec<u32> = (0..100).map(|index| 3 + index * 91 % 250).collect();
    let mut model = load(&file, 0, 1, 1);
    let whole = model.forward(&plan(0, 0, &tokens), &mut Solo).unwrap().remove(0);
    let mut model = load(&file, 0, 1, 2);
    model.forward(&plan(1, 0, &tokens[..33]), &mut Solo).unwrap();
    let other = StepEntry { slot: 2, position: 0, tokens: vec![5; 9], want_logits: false };
    let mut step = plan(1, 33, &tokens[33..99]);
    step.entries.insert(0, other);
    assert_eq!(model.forward(&step, &mut Solo).unwrap().len(), 1);
    let mut step = plan(1, 99, &tokens[99..]);
    let neighbour = StepEntry { slot: 2, position: 9, tokens: vec![7], want_logits: true };
    step.entries.push(neighbour);
    let logits = model.forward(&step, &mut Solo).unwrap();
    assert_eq!(logits.len(), 2);
    assert_eq!(logits[0], whole);
    assert_ne!(logits[1], whole);
    model.reset();
    assert_eq!(model.forward(&plan(1, 0, &tokens), &mut Solo).unwrap()[0], whole);
}

#[test]
fn bad_plans_are_refused_and_change_nothing() {
    let tiny = TinyModel::create().unwrap();
    let file = ModelFile::open(tiny.path()).unwrap();
    let mut model = load(&file, 0, 1, 1);
    let expected = model.forward(&plan(0, 0, &[5, 6]), &mut Solo).unwrap();
    let error = model.forward(&plan(0, 1, &[7]), &mut Solo).unwrap_err();
    assert!(matches!(error, ModelError::Kv(_)), "{error}");
    let error = model.forward(&plan(1, 0, &[263]), &mut Solo).unwrap_err();
    assert_eq!(error.to_string(), "slot 1 is fed token 263, the vocabulary has 263");
    let error = model.forward(&plan(9, 0, &[1]), &mut Solo).unwrap_err();
    assert!(matches!(error, ModelError::Kv(_)), "{error}");
    let error = model.forward(&plan(0, 2, &[1]), &mut communicators(2)[0]).unwrap_err();
    assert!(matches!(error, ModelError::Group { .. }), "{error}");
    let mut again = plan(0, 0, &[5, 6]);
    again.release.push(0);
    assert_eq!(model.forward(&again, &mut Solo).unwrap(), expected);
}

/// A group in which every collective is a failure of the test.
struct Silent;

impl Communicator for Silent {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CommunicatorError> {
        panic!("a sum")
    }
    fn all_gather(
        &mut self,
        _: &[f32],
        _: &[usize],
        _: &mut [f32],
    ) -> Result<(), CommunicatorError> {
        panic!("a gather")
    }
    fn broadcast(&mut self, _: &mut Vec<u8>, _: usize) -> Result<(), CommunicatorError> {
        panic!("a broadcast")
    }
    fn enter(&mut self, _: Activity) {}
    fn reform(&mut self) -> Result<(), CommunicatorError> {
        panic!("a re-forming")
    }
}

#[test]
fn a_plan_without_entries_only_releases_slots() {
    let tiny = TinyModel::create().unwrap();
    let file = ModelFile::open(tiny.path()).unwrap();
    let mut model = load(&file, 0, 1, 2);
    model.forward(&plan(1, 0, &[5; 70]), &mut Solo).unwrap();
    assert_eq!(model.kv_blocks().0, 2);
    let release = StepPlan { entries: vec![], release: vec![1] };
    assert!(model.forward(&release, &mut Silent).unwrap().is_empty());
    assert_eq!(model.kv_blocks().0, 0);
    assert!(model.forward(&StepPlan::default(), &mut Silent).unwrap().is_empty());
}
