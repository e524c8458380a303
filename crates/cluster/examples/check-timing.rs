//! How long one check of four recorded hosts takes: reading what the recordings mean, planning, and looking.
//!
//! `cargo run --release -p railweave-cluster --example check-timing`

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cluster::check::{self, Room, Scope};
use cluster::file::ClusterFile;
use cluster::inventory::{HostState, Recording};
use cluster::plan::{Plan, PlanOptions};

/// More than this is too long for four hosts.
const LIMIT: Duration = Duration::from_millis(200);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gb10-ring4");
    let mut worst = Duration::ZERO;
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        let file = ClusterFile::parse(&fs::read_to_string(root.join("cluster.toml"))?)?;
        let plan = Plan::of(&file, &PlanOptions::default())?;
        let mut hosts = Vec::new();
        for host in &file.hosts {
            hosts.push(Ok(HostState::of(&Recording::load(&root.join(&host.name))?)));
        }
        let room = Room {
            file: &file,
            plan: &plan,
            hosts: &hosts,
            before: None,
            rates: &[],
            reads_per_second: None,
        };
        let report = check::run(&room, Scope::default());
        let took = start.elapsed();
        worst = worst.max(took);
        best = best.min(took);
        if !report.findings.is_empty() {
            return Err(format!("the healthy room has findings: {}", report.summary()).into());
        }
    }
    println!("check of four recorded hosts: {best:?} at best, {worst:?} at worst of 20");
    if worst > LIMIT {
        return Err(format!("more than {LIMIT:?}").into());
    }
    Ok(())
}
