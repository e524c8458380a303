//! `railweave bench-rank`: one rank of a measurement.
//!
//! Before each timed call all ranks meet at a barrier, and the time of a call is its slowest
//! rank's, as in the usual MPI benchmarks, so that rows can be compared with theirs.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::auth::Token;
use fabric::verbs::VerbsSettings;
use fabric::{Buffer, DataAddresses, EndpointSettings, Reduction, Sizes, Topology, Waiting};
use group::collective::ScheduleTable;
use group::control::CableNames;
use group::patience::{Patience, PatienceKey, PatienceValues};
use group::{Group, Member, MemberOptions, Telemetry, TransportChoice};
use observe::{Health, Identity, Metrics, Recorder, RecorderConfig};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::place::{Order, PointText, Row};
use crate::commands::{CommandError, CommandResult};
use crate::settings::Settings;

/// Longest text of an order.
const ORDER_BYTES_MAX: u64 = 1 << 20;
/// Most calls of one point.
const CALLS_MAX: usize = 20_000;
/// Calls before the first that counts.
const WARM_CALLS: usize = 50;
/// The same for vectors above a mebibyte, where a call fills the caches by itself.
const WARM_CALLS_LARGE: usize = 3;
/// How many small calls go by between two looks at the clock that all ranks share.
const CALLS_PER_LOOK: usize = 10;
const LARGE_BYTES: u64 = 1 << 20;
/// How long ranks may take to find each other.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Runs a rank that a measurement started, and prints rank 0's rows as JSON lines.
///
/// # Errors
/// Anything that keeps the rank from measuring, and sums that are wrong.
pub(crate) fn run() -> CommandResult {
    work().map_err(|error| CommandError::Failed(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

fn work() -> Result<(), Box<dyn Error>> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut text = String::new();
    io::stdin().take(ORDER_BYTES_MAX).read_to_string(&mut text)?;
    let order: Order = serde_json::from_str(&text).map_err(|error| {
        format!("no order on standard input ({error}); `railweave bench` starts this command")
    })?;
    // The signal only tells of a death after it was asked for.
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs());
    if parent != Some(order.starter) {
        return Err("the process that started this rank is gone".into());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if order.pinned {
        let mut cores_allowed = CpuSet::new();
        cores_allowed.set(order.rank % cores);
        // Before any thread is started: all of them stay there.
        sched_setaffinity(None, &cores_allowed)?;
    }
    let rank = order.rank;
    let named = |error: &dyn Error| format!("rank {rank}: {error}");
    let mut member = member(&order, cores)?;
    let mut group = member.form().map_err(|error| named(&error))?;
    measure_all(&mut group, &order).map_err(|error| named(&*error))?;
    Ok(())
}

fn member(order: &Order, cores: usize) -> Result<Member, Box<dyn Error>> {
    let defaults = Settings::default();
    let largest = order.points.iter().map(|point| point.bytes).max().unwrap_or(0);
    let values = PatienceValues::default().with(PatienceKey::Start, START_LIMIT);
    let options = MemberOptions {
        rank: order.rank,
        size: order.ranks,
        master: order.master.into(),
        token: Token::new(order.token.clone())?,
        host_name: "localhost".to_owned(),
        host_id: order.starter.to_string(),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        data_addresses: DataAddresses::one(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        topology: Topology::new(order.topology.parse()?, order.ranks, order.rails)?,
        forward_required: false,
        forward_witness: None,
        no_rdma: None,
        verbs: VerbsSettings::default(),
        cable_names: CableNames::new(),
        transport: TransportChoice::Only(order.transport.parse()?),
        sizes: Sizes {
            slot_bytes: defaults.fabric.slot_bytes.0,
            // The input and the output, each on lines of its own.
            heap_bytes: 2 * largest + 4096,
            relay_chunk_bytes: defaults.fabric.relay_chunk_bytes.0,
        },
        endpoint: EndpointSettings::default(),
        crc: defaults.fabric.crc,
        waiting: Waiting::for_host(order.ranks, cores),
        table: ScheduleTable::default(),
        patience: Arc::new(Patience::new(values)),
        config: BTreeMap::new(),
    };
    // A server measures itself all the time, so what that costs belongs to the result.
    let identity = Identity::new(order.rank as u32, "localhost");
    let metrics = Metrics::new(&identity);
    let telemetry = Telemetry {
        health: Some(Health::new(identity.clone(), &metrics)),
        metrics: Some(metrics),
        recorder: Some(Arc::new(Recorder::new(identity, RecorderConfig::default()))),
        flight_dir: None,
    };
    Ok(Member::new(options, telemetry, |_| {})?)
}

fn measure_all(group: &mut Group, order: &Order) -> Result<(), Box<dyn Error>> {
    let largest = order.points.iter().map(|point| point.bytes).max().unwrap_or(0);
    let mut vectors = if order.plain {
        Vectors::Plain(Vec::new())
    } else {
        Vectors::Registered { input: group.alloc(largest)?, output: group.alloc(largest)? }
    };
    for point in &order.points {
        let row = measure(group, order, point, &mut vectors)?;
        if order.rank == 0 {
            let mut line = serde_json::to_vec(&row)?;
            line.push(b'\n');
            let mut out = io::stdout().lock();
            out.write_all(&line)?;
            out.flush()?;
        }
    }
    // Everybody has all rows behind them. Whoever is last may find the others gone, which is as well.
    let _ = group.barrier();
    Ok(())
}

/// The memory that is summed.
enum Vectors {
    Plain(Vec<f32>),
    Registered { input: Buffer, output: Buffer },
}

/// Element `index` of a rank's vector. All sums of these are exact in an `f32`.
fn value(rank: usize, index: usize) -> f32 {
    ((rank + 1) * (index % 7 + 1)) as f32
}

fn fill(values: &mut [f32], rank: usize) {
    for (index, element) in values.iter_mut().enumerate() {
        *element = value(rank, index);
    }
}

impl Vectors {
    fn begin(&mut self, count: usize, rank: usize) {
        match self {
            Self::Plain(values) => values.resize(count, 0.0),
            Self::Registered { input, output } => {
                fill(&mut input.as_mut_slice()[..count], rank);
                output.as_mut_slice::<f32>()[..count].fill(0.0);
            }
        }
    }

    /// A plain vector is summed in place, so it is filled again before each call.
    fn refill(&mut self, rank: usize) {
        if let Self::Plain(values) = self {
            fill(values, rank);
        }
    }

    fn sum(&mut self, group: &mut Group, count: usize) -> Result<(), Box<dyn Error>> {
        Ok(match self {
            Self::Plain(values) => group.all_reduce(Reduction::Sum, values),
            Self::Registered { input, output } => {
                group.all_reduce_registered::<f32>(Reduction::Sum, input, output, count)
            }
        }?)
    }

    fn check(&self, count: usize, ranks: usize) -> Result<(), String> {
        let values = match self {
            Self::Plain(values) => &values[..],
            Self::Registered { output, .. } => output.as_slice(),
        };
        let factor = ranks * (ranks + 1) / 2;
        let wrong = values[..count]
            .iter()
            .enumerate()
            .find(|(index, got)| **got != (factor * (index % 7 + 1)) as f32);
        match wrong {
            None => Ok(()),
            Some((index, got)) => Err(format!(
                "element {index} of a sum of {count} is {got} instead of {}; this is a defect, \
                 please report it",
                factor * (index % 7 + 1)
            )),
        }
    }
}

fn measure(
    group: &mut Group,
    order: &Order,
    point: &PointText,
    vectors: &mut Vectors,
) -> Result<Row, Box<dyn Error>> {
    let table: ScheduleTable = point.table.parse()?;
    group.set_table(table);
    let count = point.bytes as usize / size_of::<f32>();
    vectors.begin(count, order.rank);
    let large = point.bytes > LARGE_BYTES;
    let mut warm = if large { WARM_CALLS_LARGE } else { WARM_CALLS };
    let mut times = Vec::with_capacity(CALLS_MAX);
    let budget = Duration::from_secs_f64(order.seconds);
    let mut end = Instant::now() + budget;
    loop {
        vectors.refill(order.rank);
        group.barrier()?;
        let begun = Instant::now();
        vectors.sum(group, count)?;
        let took = begun.elapsed();
        if warm > 0 {
            warm -= 1;
            end = Instant::now() + budget;
            continue;
        }
        times.push(took.as_secs_f32());
        if large || times.len().is_multiple_of(CALLS_PER_LOOK) {
            // Rank 0 decides for all.
            let mut stop = [u8::from(Instant::now() > end || times.len() >= CALLS_MAX)];
            group.broadcast(&mut stop, 0)?;
            if stop[0] != 0 {
                break;
            }
        }
    }
    vectors.check(count, order.ranks)?;
    group.all_reduce(Reduction::Max, &mut times)?;
    let mapped =
        (0..order.ranks).all(|peer| peer == order.rank || group.fabric().mapped(peer).is_some());
    let schedule = table.choose(point.bytes, mapped && !order.plain);
    Ok(Row::of(point.bytes, schedule, order.ranks, &mut times))
}
