//! Attention of one token's queries over the keys and values of its sequence.

use pulp::{Simd, WithSimd};

/// Computes `out`, for the query heads that share one key/value head.
pub(super) struct Attend<'a, Blocks> {
    /// The queries, `width` values for each head.
    pub(super) queries: &'a [f32],
    /// Keys and values of the tokens seen so far, block by block, `width` values for each token.
    pub(super) blocks: Blocks,
    /// As long as `queries`.
    pub(super) out: &'a mut [f32],
    /// Memory to work in.
    pub(super) scores: &'a mut Vec<f32>,
    pub(super) width: usize,
}

impl<'a, Blocks> WithSimd for Attend<'_, Blocks>
where
    Blocks: Iterator<Item = (&'a [f32], &'a [f32])> + Clone,
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { queries, blocks, out, scores, width } = self;
        let scale = 1.0 / (width as f32).sqrt();
        for (query, out) in queries.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            scores.clear();
            let mut highest = f32::NEG_INFINITY;
            for (keys, _) in blocks.clone() {
                for key in keys.chunks_exact(width) {
                    let score = dot(simd, query, key) * scale;
                    highest = highest.max(score);
                    scores.push(score);
                }
            }
            let mut sum = 0.0;
            for score in scores.iter_mut() {
                *score = (*score - highest).exp();
                sum += *score;
            }
            let inverse = 1.0 / sum;
            for score in scores.iter_mut() {
                *score *= inverse;
            }
            let step = 4 * S::F32_LANES;
            let mut column = 0;
            while column < width {
                if width - column >= step {
                    weighted::<S, 4>(
                        simd,
                        scores,
                        blocks.clone(),
                        &mut out[column..],
                        width,
                        column,
                    );
                    column += step;
                } else {
                    weighted::<S, 1>(
                        simd,
                        scores,
                        blocks.clone(),
                        &mut out[column..],
                        width,
                        column,
                    );
                    column += S::F32_LANES;
                }
            }
        }
    }
}

#[inline(always)]
fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let mut sum = simd.splat_f32s(0.0);
    for (&a, &b) in a.iter().zip(b) {
        sum = simd.mul_add_f32s(a, b, sum);
    }
    if !a_rest.is_empty() {
        let (a, b) = (simd.partial_load_f32s(a_rest), simd.partial_load_f32s(b_rest));
        sum = simd.mul_add_f32s(a, b, sum);
    }
    simd.reduce_sum_f32s(sum)
}

/// Sums the values, weighted by the scores, for `N` registers of columns from `column`.
#[inline(always)]
fn weighted<'a, S: Simd, const N: usize>(
    simd: S,
    scores: &[f32],
    blocks: impl Iterator<Item = (&'a [f32], &'a [f32])>,
    out: &mut [f32],
    width: usize,
    column: usize,
) {
    let lanes = S::F32_LANES;
    let columns = (N * lanes).min(width - column);
    let mut sums = [simd.splat_f32s(0.0); N];
    let mut scores = scores.iter();
    for (_, values) in blocks {
        for (value, &score) in values.chunks_exact(width).zip(&mut scores) {
            let part = &value[column..column + columns];
            let score = simd.splat_f32s(score);
            let (whole, rest) = S::as_simd_f32s(part);
            if whole.len() == N {
                for (sum, &value) in sums.iter_mut().zip(whole) {
                    *sum = simd.mul_add_f32s(score, value, *sum);
                }
            } else {
                sums[0] = simd.mul_add_f32s(score, simd.partial_load_f32s(rest), sums[0]);
            }
        }
    }
    for (sum, out) in sums.iter().zip(out[..columns].chunks_mut(lanes)) {
        simd.partial_store_f32s(out, *sum);
    }
}
