//! Any numbers in any order: each lands once, and never far ahead of what has not arrived.
#![no_main]

use std::collections::BTreeSet;

use fabric::{Arrival, INBOX_WINDOW, Inbox};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((first, steps)) = input.split_first_chunk::<4>() else { return };
    let first = u32::from_le_bytes(*first);
    let mut inbox = Inbox::new(first);
    // What arrived, counted from `first`; everything before `next` did.
    let mut landed = BTreeSet::new();
    let mut next = 0_u32;
    for step in steps.chunks_exact(2) {
        // Around the window, both sides of it included.
        let jump = u32::from(u16::from_le_bytes([step[0], step[1]])) % (INBOX_WINDOW * 2);
        let ahead = next.saturating_sub(INBOX_WINDOW / 2) + jump;
        let expected = if ahead < next || landed.contains(&ahead) {
            Arrival::Duplicate
        } else if ahead - next >= INBOX_WINDOW {
            Arrival::TooFar
        } else {
            Arrival::New
        };
        assert_eq!(inbox.accept(first.wrapping_add(ahead)), expected, "{ahead} of {next}");
        if expected == Arrival::New {
            landed.insert(ahead);
            while landed.remove(&next) {
                next += 1;
            }
        }
        assert_eq!(inbox.next(), first.wrapping_add(next));
    }
});
