//! Matrix times vectors, in f32, with the rows of the matrix shared out to threads.
//!
//! Rows are stored side by side in panels, so that one register holds a column of many rows: every product of a row and
//! a vector is summed from the first column to the last, with one rounding for each. So the result for a sequence
//! depends neither on which other sequences share the step, nor on the number of threads, nor on how wide registers are.
//!
//! candle's own product promises no such order and was slower at these shapes. Best of 30 runs, one thread each, on a
//! busy 2-core Xeon with AVX-512, in GFLOP/s, candle against this (see `speed_beside_candle`):
//!
//! | matrix | vectors | candle 0.11 | here |
//! |---|---|---|---|
//! | 3072 x 576 | 512 | 14.8 | 34.7 |
//! | 576 x 1536 | 512 | 17.9 | 64.6 |
//! | 3072 x 576 | 32 | 7.8 | 48.3 |
//! | 3072 x 576 | 1 | 2.8 | 10.2 |

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Vectors worked on while a group of panels stays in a near cache.
const TOKEN_BLOCK: usize = 64;

/// Rows of a panel; a multiple of the values in a register of any width.
const PANEL: usize = 16;

/// Rows of a task are a multiple of this, so that all but the last use whole groups of panels.
const GROUP: usize = 4 * PANEL;

/// The most rows of a task.
const TASK_ROWS: usize = 256;

/// The threads a model computes with.
#[derive(Debug)]
pub(super) struct Threads {
    pool: Option<rayon::ThreadPool>,
    count: usize,
    arch: Arch,
}

impl Threads {
    /// `count` threads; with one, everything runs on the caller's thread.
    pub(super) fn new(count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let count = count.max(1);
        let pool = (count > 1)
            .then(|| {
                rayon::ThreadPoolBuilder::new()
                    .num_threads(count)
                    .thread_name(|index| format!("compute-{index}"))
                    .build()
            })
            .transpose()?;
        Ok(Self { pool, count, arch: Arch::new() })
    }

    pub(super) fn arch(&self) -> Arch {
        self.arch
    }

    /// Runs `work` so that [`chunks`](Self::chunks) inside it is quick to share out.
    pub(super) fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Calls `work` with the number of each chunk of `values` and the chunk.
    pub(super) fn chunks<T: Send>(
        &self,
        values: &mut [T],
        chunk: usize,
        work: impl Fn(usize, &mut [T]) + Sync + Send,
    ) {
        let chunk = chunk.max(1);
        if self.pool.is_some() && values.len() > chunk {
            values.par_chunks_mut(chunk).enumerate().for_each(|(index, part)| work(index, part));
        } else {
            values.chunks_mut(chunk).enumerate().for_each(|(index, part)| work(index, part));
        }
    }
}

/// A matrix of `outputs` rows of `inputs` values.
#[derive(Debug)]
pub(super) struct Linear {
    /// Panel after panel, each with its columns one after the other; the last is filled up with zeros.
    panels: Vec<f32>,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// The matrix whose rows are `values`, `inputs` to a row.
    pub(super) fn new(mut values: Vec<f32>, inputs: usize) -> Self {
        let outputs = values.len().checked_div(inputs).unwrap_or(0);
        let length = outputs.next_multiple_of(PANEL) * inputs;
        values.reserve_exact(length.saturating_sub(values.len()));
        values.resize(length, 0.0);
        let mut rows = Vec::with_capacity(PANEL * inputs);
        for panel in values.chunks_exact_mut((PANEL * inputs).max(1)) {
            rows.clear();
            rows.extend_from_slice(panel);
            for (column, values) in panel.chunks_exact_mut(PANEL).enumerate() {
                for (value, row) in values.iter_mut().zip(rows.chunks_exact(inputs)) {
                    *value = row[column];
                }
            }
        }
        Self { panels: values, inputs, outputs }
    }

    pub(super) fn bytes(&self) -> u64 {
        4 * self.panels.len() as u64
    }

    /// For each of the vectors in `x` (of `inputs` values) writes the products with all rows to `y` (of `outputs`
    /// values). `scratch` is memory to work in.
    pub(super) fn apply(
        &self,
        threads: &Threads,
        x: &[f32],
        y: &mut Vec<f32>,
        scratch: &mut Vec<f32>,
    ) {
        let vectors = x.len().checked_div(self.inputs).unwrap_or(0);
        y.clear();
        y.resize(vectors * self.outputs, 0.0);
        if y.is_empty() {
            return;
        }
        let task = match threads.count {
            1 => self.outputs.next_multiple_of(PANEL),
            count => self.outputs.div_ceil(4 * count).next_multiple_of(GROUP).min(TASK_ROWS),
        };
        let multiply = |index: usize, out: &mut [f32]| {
            let panels = &self.panels[index * task * self.inputs..];
            let rows = out.len() / vectors;
            threads.arch.dispatch(Multiply { panels, x, out, inputs: self.inputs, rows });
        };
        if vectors == 1 || task >= self.outputs {
            threads.chunks(y, task * vectors, multiply);
            return;
        }
        // Each task fills a block of its own, and then each vector collects its parts.
        scratch.clear();
        scratch.resize(vectors * self.outputs, 0.0);
        threads.chunks(scratch, task * vectors, multiply);
        let blocks: &[f32] = scratch;
        threads.chunks(y, self.outputs * 16, |index, part| {
            for (vector, out) in part.chunks_mut(self.outputs).enumerate() {
                let vector = index * 16 + vector;
                for (out, block) in out.chunks_mut(task).zip(blocks.chunks(task * vectors)) {
                    out.copy_from_slice(&block[vector * out.len()..][..out.len()]);
                }
            }
        });
    }
}

/// Writes, for each vector in `x`, its products with the first `rows` rows of `panels`.
struct Multiply<'a> {
    panels: &'a [f32],
    x: &'a [f32],
    out: &'a mut [f32],
    inputs: usize,
    rows: usize,
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { panels, x, out, inputs, rows } = self;
        let vectors = x.len() / inputs;
        let mut first = 0;
        while first < vectors {
            let block = vectors.min(first + TOKEN_BLOCK);
            let mut row = 0;
            while row < rows {
                let mut tile = Tile { panels, x, out, inputs, rows, row, vector: first };
                let group = rows - row >= GROUP;
                while tile.vector < block {
                    // As many sums as there are registers to hold them: 32 of 16 values, or 16 of 8.
                    match (S::F32_LANES, block - tile.vector) {
                        (16, 6..) if group => tile.run::<S, 4, 6>(simd),
                        (16, 4..) if group => tile.run::<S, 4, 4>(simd),
                        (16, 2..) if group => tile.run::<S, 4, 2>(simd),
                        (16, _) if group => tile.run::<S, 4, 1>(simd),
                        (8, 4..) if group => tile.run::<S, 2, 4>(simd),
                        (8, _) if group => tile.run::<S, 2, 1>(simd),
                        (_, 4..) => tile.run::<S, 1, 4>(simd),
                        _ => tile.run::<S, 1, 1>(simd),
                    }
                }
                row += match S::F32_LANES {
                    16 if group => 4 * 16,
                    8 if group => 2 * 8,
                    lanes => lanes,
                };
            }
            first = block;
        }
    }
}

/// The products of a few rows from `row` with a few vectors from `vector`.
struct Tile<'a> {
    panels: &'a [f32],
    x: &'a [f32],
    out: &'a mut [f32],
    inputs: usize,
    rows: usize,
    row: usize,
    vector: usize,
}

impl Tile<'_> {
    /// Works on `P` registers of rows and `V` vectors, and goes on to the next vector.
    #[inline(always)]
    fn run<S: Simd, const P: usize, const V: usize>(&mut self, simd: S) {
        let (inputs, row, lanes) = (self.inputs, self.row, S::F32_LANES);
        let step = PANEL / lanes;
        let columns: [&[S::f32s]; P] = std::array::from_fn(|index| {
            let row = row + index * lanes;
            let panel = &self.panels[row / PANEL * PANEL * inputs..][..PANEL * inputs];
            &S::as_simd_f32s(panel).0[row % PANEL / lanes..]
        });
        let columns = columns.map(|column| &column[..(inputs - 1) * step + 1]);
        let x: [&[f32]; V] =
            std::array::from_fn(|index| &self.x[(self.vector + index) * inputs..][..inputs]);
        let mut sums = [[simd.splat_f32s(0.0); P]; V];
        for at in 0..inputs {
            let column: [S::f32s; P] = std::array::from_fn(|index| columns[index][at * step]);
            for v in 0..V {
                let value = simd.splat_f32s(x[v][at]);
                for p in 0..P {
                    sums[v][p] = simd.mul_add_f32s(column[p], value, sums[v][p]);
                }
            }
        }
        for (v, sums) in sums.iter().enumerate() {
            let out = &mut self.out[(self.vector + v) * self.rows..][row..self.rows];
            for (out, sum) in out.chunks_mut(lanes).zip(sums) {
                simd.partial_store_f32s(out, *sum);
            }
        }
        self.vector += V;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn products_are_right_for_ragged_shapes_and_any_thread_count() {
        for (outputs, inputs, vectors) in [(1, 1, 1), (13, 40, 1), (667, 95, 7), (9, 64, 130)] {
            let rows = noise(outputs * inputs, 1);
            let matrix = Linear::new(rows.clone(), inputs);
            let x = noise(vectors * inputs, 2);
            let mut results = Vec::new();
            for count in [1, 3] {
                let threads = Threads::new(count).unwrap();
                let (mut y, mut scratch) = (Vec::new(), Vec::new());
                threads.enter(|| matrix.apply(&threads, &x, &mut y, &mut scratch));
                results.push(y);
            }
            assert_eq!(results[0], results[1]);
            for (vector, y) in x.chunks(inputs).zip(results[0].chunks(outputs)) {
                for (row, y) in rows.chunks(inputs).zip(y) {
                    let exact: f64 =
                        row.iter().zip(vector).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                    assert!((exact - f64::from(*y)).abs() < 1e-4, "{exact} {y}");
                }
            }
        }
    }

    #[test]
    fn a_vector_alone_gives_the_bits_it_gives_among_others() {
        let (outputs, inputs, vectors) = (64 + 37, 96 + 5, 71);
        let matrix = Linear::new(noise(outputs * inputs, 3), inputs);
        let x = noise(vectors * inputs, 4);
        let threads = Threads::new(1).unwrap();
        let (mut together, mut alone, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
        matrix.apply(&threads, &x, &mut together, &mut scratch);
        for (vector, expected) in x.chunks(inputs).zip(together.chunks(outputs)) {
            matrix.apply(&threads, vector, &mut alone, &mut scratch);
            assert_eq!(alone, expected);
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn narrower_registers_give_the_same_bits() {
        let Some(narrow) = pulp::x86::V3::try_new() else { return };
        let (outputs, inputs, vectors) = (64 + 37, 50, 7);
        let matrix = Linear::new(noise(outputs * inputs, 3), inputs);
        let x = noise(vectors * inputs, 4);
        let threads = Threads::new(1).unwrap();
        let (mut wide, mut scratch) = (Vec::new(), Vec::new());
        matrix.apply(&threads, &x, &mut wide, &mut scratch);
        let (mut out, panels) = (vec![0.0; wide.len()], &*matrix.panels);
        Simd::vectorize(narrow, Multiply { panels, x: &x, out: &mut out, inputs, rows: outputs });
        assert_eq!(out, wide);
        out.fill(0.0);
        pulp::Scalar.vectorize(Multiply { panels, x: &x, out: &mut out, inputs, rows: outputs });
        assert_eq!(out, wide);
    }

    #[test]
    fn a_matrix_without_rows_or_columns_gives_nothing() {
        let threads = Threads::new(2).unwrap();
        let (mut y, mut scratch) = (vec![1.0], Vec::new());
        Linear::new(Vec::new(), 8).apply(&threads, &[0.0; 16], &mut y, &mut scratch);
        assert!(y.is_empty());
        Linear::new(Vec::new(), 0).apply(&threads, &[], &mut y, &mut scratch);
        assert!(y.is_empty());
    }

    /// Prints the speed of this and of candle's product; candle takes its threads from `RAYON_NUM_THREADS`. Run with
    /// `--release -- --ignored --nocapture speed_beside_candle`.
    #[test]
    #[ignore = "a measurement, not a check"]
    fn speed_beside_candle() {
        use candle_core::{Device, Tensor};
        use std::time::Instant;
        let best = |mut run: Box<dyn FnMut() + '_>| {
            let one = || {
                let start = Instant::now();
                run();
                start.elapsed().as_secs_f64()
            };
            std::iter::repeat_with(one).take(30).fold(f64::INFINITY, f64::min)
        };
        for (outputs, inputs, vectors) in
            [(3072, 576, 512), (576, 1536, 512), (3072, 576, 32), (3072, 576, 1), (49152, 576, 1)]
        {
            let (w, x) = (noise(outputs * inputs, 1), noise(vectors * inputs, 2));
            let flops = 2e-9 * (outputs * inputs * vectors) as f64;
            let candle_w = Tensor::from_slice(&w, (outputs, inputs), &Device::Cpu).unwrap();
            let candle_x = Tensor::from_slice(&x, (vectors, inputs), &Device::Cpu).unwrap();
            let candle_w = candle_w.t().unwrap();
            let candle = best(Box::new(|| drop(candle_x.matmul(&candle_w).unwrap())));
            print!("{outputs}x{inputs}, {vectors} vectors, GFLOP/s: candle {:.1}", flops / candle);
            let matrix = Linear::new(w, inputs);
            for count in [1, 2] {
                let threads = Threads::new(count).unwrap();
                let (mut y, mut scratch) = (Vec::new(), Vec::new());
                let ours = best(Box::new(|| {
                    threads.enter(|| matrix.apply(&threads, &x, &mut y, &mut scratch));
                }));
                print!(", here with {count} threads {:.1}", flops / ours);
            }
            println!();
        }
    }
}
