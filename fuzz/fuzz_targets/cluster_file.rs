//! Any text as a cluster file: an error, or a file that is written as it is read and has a plan or a reason for none.
#![no_main]

use cluster::file::ClusterFile;
use cluster::plan::{Plan, PlanOptions};
use cluster::render;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(file) = ClusterFile::parse(text) else { return };
    let written = file.to_text();
    assert_eq!(ClusterFile::parse(&written).as_ref(), Ok(&file), "{written}");
    if let Ok(plan) = Plan::of(&file, &PlanOptions::default()) {
        let _ = (render::table(&plan), render::text(&plan), render::svg(&plan));
    }
});
