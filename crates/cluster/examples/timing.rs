//! How long the planner takes: `cargo run --release -p railweave-cluster --example timing`.

use std::time::{Duration, Instant};

use cluster::file::ClusterFile;
use cluster::plan::{Plan, PlanOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = ring(8)?;
    let median = median(200, || Plan::of(&file, &PlanOptions::default()).map(|plan| plan.digest))?;
    println!("plan of a ring of 8: median {:.3} ms of 200", median.as_secs_f64() * 1e3);
    Ok(())
}

/// The median time of some runs.
fn median<T, E>(runs: usize, mut run: impl FnMut() -> Result<T, E>) -> Result<Duration, E> {
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        std::hint::black_box(run()?);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times.get(runs / 2).copied().unwrap_or_default())
}

/// Hosts with two ports of two functions, port 0 of each cabled to port 1 of the next.
fn ring(hosts: usize) -> Result<ClusterFile, cluster::file::FileError> {
    use std::fmt::Write as _;
    let mut text = "schema = \"railweave-cluster/1\"\nforward = \"auto\"\n".to_owned();
    for host in 0..hosts {
        let _ = write!(text, "[[host]]\nname = \"spark{host}\"\n");
        for port in 0..2 {
            let _ = write!(text, "[[host.port]]\nname = \"p{port}\"\n");
            // Port 1 is at the far end of the cable of the host before.
            let cable = (host + hosts - port) % hosts;
            for class in 0..2 {
                let _ = write!(
                    text,
                    "[[host.port.function]]\nmac = \"4c:bb:47:00:{host:02x}:{port}{class}\"\n\
                     address = \"10.10.{}.{}/24\"\nnetdev = \"en{class}f{port}\"\nrdma = \"roce{class}f{port}\"\n\
                     pci = \"000{class}:01:00.{port}\"\n",
                    2 * cable + class,
                    port + 1
                );
            }
        }
    }
    for host in 0..hosts {
        let _ = write!(
            text,
            "[[cable]]\na = \"spark{host}.p0\"\nb = \"spark{}.p1\"\n",
            (host + 1) % hosts
        );
    }
    ClusterFile::parse(&text)
}
