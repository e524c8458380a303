//! Any bytes at the meeting point and from it, and in the handshake before.
#![no_main]

use group::control::wire::Frame;
use group::rendezvous::message::{ToHost, ToMember};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&kind, payload)) = input.split_first() else { return };
    let frame = Frame { kind: kind % 8, epoch: 0, payload: payload.to_vec() };
    if let Ok(message) = ToHost::decode(&frame) {
        let _ = message.encode();
    }
    if let Ok(message) = ToMember::decode(&frame) {
        let _ = message.encode();
    }
});
