//! The choice of the next token from logits.
//!
//! A draw depends on the request's seed and on how many tokens it has, on nothing else: neither batch mates nor a
//! re-formed group change what a seed gives.

use std::cmp::Ordering;

/// How a request wants its tokens chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token (greedy); above, logits are divided by it.
    pub temperature: f32,
    /// Keeps the most likely tokens whose probabilities add up to this, 0 to 1.
    pub top_p: f32,
    /// Seed of the draws.
    pub seed: u64,
}

impl Sampling {
    /// The most likely token, always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, seed: 0 };
}

/// No token can be chosen, since no logit is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "none of the {count} logits is a number: the model's weights or a collective's result are damaged"
)]
pub struct NoToken {
    /// How many logits there were.
    pub count: usize,
}

/// How many of the likeliest tokens are ordered before all of them are: enough for nearly every draw.
const HEAD: usize = 256;

/// Chooses the token after `drawn` earlier tokens of the same request.
///
/// # Errors
/// [`NoToken`] where every logit is NaN or negative infinity, or there is none.
pub fn choose(logits: &[f32], sampling: &Sampling, drawn: usize) -> Result<u32, NoToken> {
    let best = greedy(logits)?;
    let top = logits[best as usize];
    if sampling.temperature <= 0.0 || sampling.top_p <= 0.0 || top == f32::INFINITY {
        return Ok(best);
    }
    let weight = |logit: f32| {
        if logit.is_nan() { 0.0 } else { f64::from((logit - top) / sampling.temperature).exp() }
    };
    let total: f64 = logits.iter().map(|&logit| weight(logit)).sum();
    let point = unit(sampling.seed, drawn as u64);
    if sampling.top_p >= 1.0 {
        let ids = 0..logits.len() as u32;
        return Ok(pick(ids.map(|id| (id, weight(logits[id as usize]))), point * total, best));
    }
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let likelier =
        |a: &u32, b: &u32| descending(logits[*a as usize], logits[*b as usize]).then(a.cmp(b));
    let wanted = f64::from(sampling.top_p) * total;
    let mut head = HEAD;
    loop {
        let ordered = head.min(ids.len());
        if ordered < ids.len() {
            ids.select_nth_unstable_by(ordered, likelier);
        }
        ids[..ordered].sort_unstable_by(likelier);
        let mut sum = 0.0;
        let kept = ids[..ordered].iter().position(|&id| {
            sum += weight(logits[id as usize]);
            sum >= wanted
        });
        if kept.is_some() || ordered == ids.len() {
            let kept = kept.map_or(ordered, |last| last + 1);
            let nucleus = ids[..kept].iter().map(|&id| (id, weight(logits[id as usize])));
            return Ok(pick(nucleus, point * sum, best));
        }
        head *= 16;
    }
}

/// The most likely token; of equals the lowest.
fn greedy(logits: &[f32]) -> Result<u32, NoToken> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &logit) in (0u32..).zip(logits) {
        if logit > best.map_or(f32::NEG_INFINITY, |(_, top)| top) {
            best = Some((id, logit));
        }
    }
    best.map(|(id, _)| id).ok_or(NoToken { count: logits.len() })
}

fn descending(a: f32, b: f32) -> Ordering {
    let number = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x };
    number(b).total_cmp(&number(a))
}

/// The first token at which the running sum passes `point`; rounding at the very end falls back to `best`.
fn pick(weights: impl Iterator<Item = (u32, f64)>, point: f64, best: u32) -> u32 {
    let mut sum = 0.0;
    for (id, weight) in weights {
        sum += weight;
        if sum > point {
            return id;
        }
    }
    best
}

/// A number in 0..1 from a seed and a count, by the SplitMix64 mixing function.
fn unit(seed: u64, count: u64) -> f64 {
    // The seed is mixed once first, so that neighbouring seeds do not share shifted draws.
    let mixed =
        mix(mix(seed).wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(temperature: f32, top_p: f32, seed: u64) -> Sampling {
        Sampling { temperature, top_p, seed }
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(choose(&[0.0, 3.0, 3.0, f32::NAN], &Sampling::GREEDY, 0), Ok(1));
    }

    #[test]
    fn logits_that_are_no_numbers_are_an_error() {
        assert_eq!(choose(&[f32::NAN; 3], &at(1.0, 0.5, 1), 0), Err(NoToken { count: 3 }));
        assert_eq!(choose(&[], &Sampling::GREEDY, 0), Err(NoToken { count: 0 }));
    }

    #[test]
    fn draws_follow_the_probabilities() {
        // Probabilities 1/2, 1/4, 1/4.
        let logits = [2.0f32.ln(), 0.0, 0.0, f32::NEG_INFINITY];
        let mut counts = [0usize; 4];
        for drawn in 0..8000 {
            counts[choose(&logits, &at(1.0, 1.0, 7), drawn).unwrap() as usize] += 1;
        }
        assert!((3800..4200).contains(&counts[0]), "{counts:?}");
        assert!((1850..2150).contains(&counts[1]), "{counts:?}");
        assert_eq!(counts[3], 0);
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_it() {
        let logits = [0.0, 2.0f32.ln(), 0.0, 4.0f32.ln()];
        let seen = |top_p| {
            let mut ids: Vec<u32> =
                (0..500).map(|drawn| choose(&logits, &at(1.0, top_p, 3), drawn).unwrap()).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        assert_eq!(seen(0.5), [3]);
        assert_eq!(seen(0.75), [1, 3]);
        assert_eq!(seen(0.8), [0, 1, 3]);
        assert_eq!(seen(0.99), [0, 1, 2, 3]);
    }

    #[test]
    fn a_wide_flat_distribution_is_ordered_as_far_as_needed() {
        let logits = vec![0.0f32; 20_000];
        for drawn in 0..20 {
            let id = choose(&logits, &at(1.0, 0.5, 9), drawn).unwrap();
            assert!(id < 10_000, "the nucleus of equals is the lowest half, got {id}");
        }
    }

    #[test]
    fn a_seed_fixes_every_draw_and_seeds_differ() {
        let logits = vec![0.0f32; 1000];
        let draws = |seed| -> Vec<u32> {
            (0..20).map(|drawn| choose(&logits, &at(0.7, 1.0, seed), drawn).unwrap()).collect()
        };
        assert_eq!(draws(5), draws(5));
        assert_ne!(draws(5), draws(6));
        assert_ne!(draws(5)[1..], draws(6)[..19]);
    }
}
