//! How the tokens one step may feed are shared among prompts.

/// Shares `budget` tokens among prompts that still need `needs[i]`, oldest first: everyone gets the same unless it
/// needs less, and single tokens left over go to the oldest. So a short prompt is not held up by a long one, and the
/// oldest always goes on.
pub(super) fn share(needs: &[usize], budget: usize) -> Vec<usize> {
    let mut ascending: Vec<usize> = needs.to_vec();
    ascending.sort_unstable();
    let (mut left, mut level) = (budget, usize::MAX);
    for (at, &need) in ascending.iter().enumerate() {
        let each = left / (ascending.len() - at);
        if need > each {
            level = each;
            break;
        }
        left -= need;
    }
    let mut shares: Vec<usize> = needs.iter().map(|&need| need.min(level)).collect();
    let mut over = budget.saturating_sub(shares.iter().sum());
    for (share, &need) in shares.iter_mut().zip(needs) {
        if over > 0 && *share < need {
            *share += 1;
            over -= 1;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_prompts_finish_and_long_ones_share_the_rest() {
        assert_eq!(share(&[1000, 3, 1000], 64), [31, 3, 30]);
        assert_eq!(share(&[5, 5], 64), [5, 5]);
        assert_eq!(share(&[9, 9, 9], 2), [1, 1, 0]);
        assert_eq!(share(&[], 8), [] as [usize; 0]);
    }

    proptest! {
        #[test]
        fn the_budget_is_used_as_far_as_there_is_need(
            needs in proptest::collection::vec(1usize..50, 0..12), budget in 0usize..200,
        ) {
            let shares = share(&needs, budget);
            let sum: usize = shares.iter().sum();
            prop_assert_eq!(sum, budget.min(needs.iter().sum()));
            for (share, need) in shares.iter().zip(&needs) {
                prop_assert!(share <= need);
                let highest = shares.iter().max().unwrap();
                prop_assert!(share == need || share + 1 >= *highest, "{:?} of {:?}", shares, needs);
            }
        }
    }
}
