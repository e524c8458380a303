//! Any bytes as what a host answered: as a whole, and as any one file or tool of it.
#![no_main]

use cluster::inventory::capture::{Each, FILES, TOOLS, name_for, parse};
use cluster::inventory::recording::ToolOutput;
use cluster::inventory::{HostState, Recording};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(recording) = parse(input) {
        let _ = HostState::of(&recording);
    }
    let Some((&kind, rest)) = input.split_first() else { return };
    let text = String::from_utf8_lossy(rest).into_owned();
    let mut recording = Recording::default();
    let kind = usize::from(kind);
    match TOOLS.get(kind % (TOOLS.len() + FILES.len())) {
        Some(tool) => {
            let name = match tool.each {
                Each::Host => tool.name.to_owned(),
                _ => name_for(tool.name, "eth0"),
            };
            recording.tools.insert(name, ToolOutput::Printed(text));
        }
        None => {
            let path = FILES[kind % FILES.len()].0.replace('*', "eth0");
            recording.files.insert(path, text);
        }
    }
    let _ = HostState::of(&recording);
    let _ = recording.redacted();
});
