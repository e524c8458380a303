//! Any bytes as the plan of a step: an error, or a plan that has this one encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The engine itself would bring its tensor library along; the plan needs nothing of it.
#[allow(dead_code)]
#[path = "../../crates/engine/src/model/plan.rs"]
mod plan;

fuzz_target!(|input: &[u8]| {
    if let Ok(decoded) = plan::StepPlan::decode(input) {
        assert_eq!(decoded.encode().expect("a decoded plan is sound"), input);
        assert!(decoded.check().is_ok());
    }
});
