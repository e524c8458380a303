//! What the ranks of a simulated group do, and what must come of it: inputs and results follow from
//! the seed alone, computed here without any of the code under test.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fabric::sim::Rng;
use fabric::{Reduction, Scalar};
use half::{bf16, f16};

use crate::collective::Schedule;

/// Where the vector of an all-reduce lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Plain memory.
    Plain,
    /// One registered buffer for input and output.
    InPlace,
    /// Two registered buffers.
    Apart,
}

/// One operation of the group. Sizes are in bytes unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the arguments of the operation of that name")]
pub enum Step {
    /// An all-gather of so many bytes from each rank.
    AllGather { lengths: Vec<usize> },
    /// An all-reduce.
    AllReduce { scalar: Scalar, how: Reduction, count: usize, memory: Memory },
    /// An all-to-all with parts of so many bytes.
    AllToAll { share: usize },
    /// A barrier.
    Barrier,
    /// A broadcast of a length that all know.
    Broadcast { root: usize, len: usize },
    /// A broadcast of a length that only the root knows.
    BroadcastAny { root: usize, len: usize },
    /// A reduce-scatter that leaves so many elements on each rank.
    ReduceScatter { scalar: Scalar, how: Reduction, count: usize },
}

const SCALARS: [Scalar; 5] = [Scalar::F32, Scalar::F16, Scalar::Bf16, Scalar::I32, Scalar::U8];

impl Step {
    /// A random operation of `ranks` ranks whose slots have `slot_bytes` bytes.
    pub(super) fn random(rng: &mut Rng, ranks: usize, slot_bytes: usize) -> Self {
        let scalar = SCALARS[rng.index(SCALARS.len())];
        let how = match rng.below(4) {
            0 => Reduction::Max,
            1 => Reduction::Min,
            _ => Reduction::Sum,
        };
        let root = rng.index(ranks);
        match rng.below(12) {
            0 => {
                let lengths = (0..ranks).map(|_| size(rng, slot_bytes * 3 / 2)).collect();
                Self::AllGather { lengths }
            }
            1 => Self::AllToAll { share: size(rng, slot_bytes * 3 / 2) },
            2 => Self::Barrier,
            3 => Self::Broadcast { root, len: size(rng, slot_bytes * 2) },
            4 => Self::BroadcastAny { root, len: size(rng, slot_bytes * 2) },
            5 | 6 => {
                let count = size(rng, slot_bytes) / scalar.bytes();
                Self::ReduceScatter { scalar, how, count }
            }
            _ => {
                let memory = match rng.below(3) {
                    0 => Memory::Plain,
                    1 => Memory::InPlace,
                    _ => Memory::Apart,
                };
                let count = size(rng, slot_bytes * 5 / 2) / scalar.bytes();
                Self::AllReduce { scalar, how, count, memory }
            }
        }
    }

    /// Bytes that the step needs of each registered buffer.
    pub(super) fn registered_bytes(&self) -> u64 {
        match self {
            Self::AllReduce { scalar, count, memory: Memory::InPlace | Memory::Apart, .. } => {
                (count * scalar.bytes()) as u64
            }
            _ => 0,
        }
    }
}

/// Mostly small, at times as large as `most`.
fn size(rng: &mut Rng, most: usize) -> usize {
    match rng.below(8) {
        0 => rng.index(2),
        1 => rng.index(most + 1),
        2 => most / 2 + rng.index(2),
        _ => {
            let magnitude = 1 << (3 + rng.below(9));
            rng.index(1 + most.min(magnitude))
        }
    }
}

/// Inputs and results of one step.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) inputs: Vec<Vec<u8>>,
    reduced: Vec<u8>,
}

/// The steps of a run and, once computed, what must come of them.
#[derive(Debug)]
pub(super) struct Book {
    seed: u64,
    ranks: usize,
    slot_bytes: usize,
    pub(super) steps: Vec<Step>,
    cases: RefCell<BTreeMap<(usize, bool), Rc<Case>>>,
}

impl Book {
    pub(super) fn new(seed: u64, ranks: usize, slot_bytes: usize, steps: Vec<Step>) -> Self {
        Self { seed, ranks, slot_bytes, steps, cases: RefCell::default() }
    }

    /// The case of a step; an all-reduce by the ring schedule sums in another order.
    pub(super) fn case(&self, index: usize, schedule: Schedule) -> Rc<Case> {
        let around = schedule == Schedule::Ring;
        let mut cases = self.cases.borrow_mut();
        let case = cases.entry((index, around)).or_insert_with(|| {
            let step = &self.steps[index];
            let inputs: Vec<Vec<u8>> =
                (0..self.ranks).map(|rank| self.input(index, step, rank)).collect();
            let reduced = match step {
                Step::AllReduce { scalar, how, .. } if around => {
                    self.around(*scalar, *how, &inputs)
                }
                Step::AllReduce { scalar, how, .. } | Step::ReduceScatter { scalar, how, .. } => {
                    in_rank_order(*scalar, *how, &inputs)
                }
                _ => Vec::new(),
            };
            Rc::new(Case { inputs, reduced })
        });
        Rc::clone(case)
    }

    fn input(&self, index: usize, step: &Step, rank: usize) -> Vec<u8> {
        let place = (index as u64) << 8 | rank as u64;
        let mut rng = Rng::new(self.seed.rotate_left(17) ^ place.wrapping_mul(0x9e37_79b9));
        match step {
            Step::AllGather { lengths } => bytes(&mut rng, lengths[rank]),
            Step::AllToAll { share } => bytes(&mut rng, share * self.ranks),
            Step::Barrier => Vec::new(),
            Step::Broadcast { root, len } | Step::BroadcastAny { root, len } => {
                if *root == rank {
                    bytes(&mut rng, *len)
                } else {
                    Vec::new()
                }
            }
            Step::AllReduce { scalar, count, .. } => numbers(&mut rng, *scalar, *count),
            Step::ReduceScatter { scalar, count, .. } => {
                numbers(&mut rng, *scalar, count * self.ranks)
            }
        }
    }

    /// What a rank must have after the step.
    pub(super) fn expected(&self, index: usize, case: &Case, rank: usize) -> Vec<u8> {
        match &self.steps[index] {
            Step::AllGather { .. } => case.inputs.concat(),
            Step::AllToAll { share } => case
                .inputs
                .iter()
                .flat_map(|input| &input[rank * share..(rank + 1) * share])
                .copied()
                .collect(),
            Step::Barrier => Vec::new(),
            Step::Broadcast { root, .. } | Step::BroadcastAny { root, .. } => {
                case.inputs[*root].clone()
            }
            Step::AllReduce { .. } => case.reduced.clone(),
            Step::ReduceScatter { scalar, count, .. } => {
                let share = count * scalar.bytes();
                case.reduced[rank * share..(rank + 1) * share].to_vec()
            }
        }
    }

    /// Slice `s` of each part starts at rank `s` and is rounded at every rank it passes.
    fn around(&self, scalar: Scalar, how: Reduction, inputs: &[Vec<u8>]) -> Vec<u8> {
        let (size, element) = (self.ranks, scalar.bytes());
        let mut out = Vec::with_capacity(inputs[0].len());
        let whole = self.slot_bytes * size;
        while out.len() < inputs[0].len() {
            let place = out.len();
            let (part, within) =
                (whole.min(inputs[0].len() - place / whole * whole), place % whole);
            let share = part.div_ceil(size).next_multiple_of(64);
            let first = within / share;
            let mut value = Number::read(scalar, &inputs[first][place..]);
            for step in 1..size {
                let other = &inputs[(first + step) % size][place..place + element];
                value = value.with(how, Number::read(scalar, other)).rounded(scalar);
            }
            value.write(scalar, &mut out);
        }
        out
    }
}

fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut out: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| rng.bits().to_le_bytes()).collect();
    out.truncate(len);
    out
}

/// Values whose sum depends on the order it is taken in, and no NaN.
fn numbers(rng: &mut Rng, scalar: Scalar, count: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(count * scalar.bytes());
    for _ in 0..count {
        let bits = rng.bits();
        let unit = (bits >> 40) as f32 / (1 << 24) as f32 - 0.5;
        let scale = 10_f32.powi((bits % 6) as i32 - 3);
        match scalar {
            Scalar::I32 => Number::Int(bits as i32),
            Scalar::U8 => Number::Byte(bits as u8),
            _ => Number::Float(unit * scale),
        }
        .write(scalar, &mut out);
    }
    out
}

fn in_rank_order(scalar: Scalar, how: Reduction, inputs: &[Vec<u8>]) -> Vec<u8> {
    let element = scalar.bytes();
    let mut out = Vec::with_capacity(inputs[0].len());
    for place in (0..inputs[0].len()).step_by(element) {
        let mut value = Number::read(scalar, &inputs[0][place..]);
        for input in &inputs[1..] {
            value = value.with(how, Number::read(scalar, &input[place..]));
        }
        value.write(scalar, &mut out);
    }
    out
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Float(f32),
    Int(i32),
    Byte(u8),
}

impl Number {
    fn read(scalar: Scalar, from: &[u8]) -> Self {
        match scalar {
            Scalar::F32 => Self::Float(f32::from_le_bytes([from[0], from[1], from[2], from[3]])),
            Scalar::F16 => Self::Float(f16::from_le_bytes([from[0], from[1]]).to_f32()),
            Scalar::Bf16 => Self::Float(bf16::from_le_bytes([from[0], from[1]]).to_f32()),
            Scalar::I32 => Self::Int(i32::from_le_bytes([from[0], from[1], from[2], from[3]])),
            _ => Self::Byte(from[0]),
        }
    }

    fn write(self, scalar: Scalar, into: &mut Vec<u8>) {
        match self {
            Self::Float(value) => match scalar {
                Scalar::F16 => into.extend(f16::from_f32(value).to_le_bytes()),
                Scalar::Bf16 => into.extend(bf16::from_f32(value).to_le_bytes()),
                _ => into.extend(value.to_le_bytes()),
            },
            Self::Int(value) => into.extend(value.to_le_bytes()),
            Self::Byte(value) => into.push(value),
        }
    }

    fn rounded(self, scalar: Scalar) -> Self {
        match (self, scalar) {
            (Self::Float(value), Scalar::F16) => Self::Float(f16::from_f32(value).to_f32()),
            (Self::Float(value), Scalar::Bf16) => Self::Float(bf16::from_f32(value).to_f32()),
            _ => self,
        }
    }

    fn with(self, how: Reduction, other: Self) -> Self {
        match (self, other) {
            (Self::Float(a), Self::Float(b)) => Self::Float(match how {
                Reduction::Max => a.max(b),
                Reduction::Min => a.min(b),
                _ => a + b,
            }),
            (Self::Int(a), Self::Int(b)) => Self::Int(match how {
                Reduction::Max => a.max(b),
                Reduction::Min => a.min(b),
                _ => a.wrapping_add(b),
            }),
            (Self::Byte(a), Self::Byte(b)) => Self::Byte(match how {
                Reduction::Max => a.max(b),
                Reduction::Min => a.min(b),
                _ => a.wrapping_add(b),
            }),
            // Both come from one vector, so they are of one kind.
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_what_a_hand_computes() {
        let f32s = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        let inputs = [f32s(&[1.0, 1e8]), f32s(&[2.0, 1.0]), f32s(&[-4.0, -1e8])];
        assert_eq!(in_rank_order(Scalar::F32, Reduction::Sum, &inputs), f32s(&[-1.0, 0.0]));
        assert_eq!(in_rank_order(Scalar::F32, Reduction::Max, &inputs), f32s(&[2.0, 1e8]));
        let bytes = [vec![200, 3], vec![100, 4]];
        assert_eq!(in_rank_order(Scalar::U8, Reduction::Sum, &bytes), [44, 7]);
    }

    #[test]
    fn around_the_ring_each_slice_starts_at_its_rank() {
        // A slice has 16 elements: the second one starts at rank 1.
        let book = Book::new(0, 3, 4096, Vec::new());
        let of = |value: f32| [value; 48].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        let sums = book.around(Scalar::F32, Reduction::Sum, &[of(1e8), of(1.0), of(-1e8)]);
        let at = |i: usize| f32::from_le_bytes(sums[i * 4..i * 4 + 4].try_into().unwrap());
        assert_eq!((at(0), at(16), at(32)), (0.0, 0.0, 1.0));
    }
}
