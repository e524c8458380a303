//! Any bytes as a flight record: problems are named, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use observe::explain::check_dump;

fuzz_target!(|input: &[u8]| {
    check_dump("fuzzed", input);
});
