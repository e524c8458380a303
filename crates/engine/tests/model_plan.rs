//! Step plans survive their encoding, and nothing else is taken for one.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use engine::model::{MAX_TOKENS, PlanError, StepEntry, StepPlan};
use proptest::prelude::*;

fn entry() -> impl Strategy<Value = StepEntry> {
    (any::<u32>(), 0..u32::MAX - 64, prop::collection::vec(any::<u32>(), 1..64), any::<bool>())
        .prop_map(|(slot, position, tokens, want_logits)| StepEntry {
            slot,
            position,
            tokens,
            want_logits,
        })
}

fn plan() -> impl Strategy<Value = StepPlan> {
    let release = prop::collection::vec(any::<u32>(), 0..16);
    (prop::collection::vec(entry(), 0..16), release).prop_map(|(mut entries, release)| {
        entries.sort_by_key(|entry| entry.slot);
        entries.dedup_by_key(|entry| entry.slot);
        StepPlan { entries, release }
    })
}

proptest! {
    #[test]
    fn decode_gives_what_was_encoded(plan in plan()) {
        let bytes = plan.encode().unwrap();
        prop_assert_eq!(StepPlan::decode(&bytes).unwrap(), plan);
        for end in 0..bytes.len() {
            prop_assert!(StepPlan::decode(&bytes[..end]).is_err());
        }
        let mut longer = bytes;
        longer.push(0);
        prop_assert!(StepPlan::decode(&longer).is_err());
    }

    #[test]
    fn bytes_that_decode_are_the_only_encoding(bytes in prop::collection::vec(0u8..6, 0..24)) {
        if let Ok(plan) = StepPlan::decode(&bytes) {
            prop_assert_eq!(plan.encode().unwrap(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = StepPlan::decode(&bytes);
    }
}

#[test]
fn limits_and_doubles_are_refused_by_name() {
    let entry =
        |slot, count| StepEntry { slot, position: 0, tokens: vec![1; count], want_logits: true };
    let plan = |entries| StepPlan { entries, release: vec![] };
    assert_eq!(
        plan(vec![entry(3, 1), entry(3, 1)]).encode(),
        Err(PlanError::SlotTwice { slot: 3 })
    );
    assert_eq!(plan(vec![entry(3, 0)]).encode(), Err(PlanError::Empty { entry: 0, slot: 3 }));
    let error = plan(vec![entry(0, MAX_TOKENS), entry(1, 1)]).encode().unwrap_err();
    assert_eq!(error.to_string(), "a step plan may have at most 65536 tokens, this one has 65537");
    let largest = plan(vec![entry(0, MAX_TOKENS)]).encode().unwrap();
    assert!(largest.len() < 1 << 20);
    assert_eq!(StepPlan::decode(&largest).unwrap().tokens(), MAX_TOKENS);
}
