//! Any bytes on a control connection: an error, or messages that can be encoded again.
#![no_main]

use group::beacon::Beacon;
use group::control::wire::{CONTROL, Message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = Beacon::decode(input);
    let Some((&kind, payload)) = input.split_first() else { return };
    // As it came, and as the payload of a sound frame.
    let framed = CONTROL.encode(kind % 8, 3, payload);
    for bytes in [Some(input.to_vec()), framed.ok()].into_iter().flatten() {
        let Ok(Some((frame, used))) = CONTROL.decode(&bytes) else { continue };
        assert!(used <= bytes.len());
        if let Ok(message) = Message::decode(&frame) {
            // Too long for a frame again is an answer too.
            let _ = message.encode(frame.epoch);
        }
    }
});
