//! `railweave bench`: measures collectives between ranks of this machine.

mod crew;
mod place;
mod worker;

use std::process::ExitCode;

use group::collective::{Schedule, ScheduleTable};

use super::{CommandResult, print};
use crate::settings::show_bytes;

pub(crate) use crew::measure;
pub(crate) use place::{PlaceArgs, Point, Row};
pub(crate) use worker::run as run_rank;

/// Version of the shape of `railweave bench --json`.
pub const BENCH_SCHEMA: u32 = 1;

/// The sizes measured unless others are given: a decode step of a large model at four ranks is
/// 48 KiB, a batch of them 1.5 MiB.
const SIZES: [u64; 11] = [
    8,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    48 << 10,
    256 << 10,
    1536 << 10,
    4 << 20,
    16 << 20,
    64 << 20,
];

/// Arguments of `railweave bench`.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// The operation
    #[arg(value_parser = ["allreduce"])]
    operation: String,
    #[command(flatten)]
    place: PlaceArgs,
    /// How the bytes move
    #[arg(long, default_value = "auto", value_parser = ["auto", "one-shot", "two-shot", "mapped", "ring"])]
    schedule: String,
    /// The table that auto uses, as `railweave tune` prints it
    #[arg(long, value_name = "TABLE", conflicts_with = "schedule")]
    table: Option<ScheduleTable>,
}

/// Measures all-reduce for each size and prints a table.
///
/// # Errors
/// A rank failed, or a sum was wrong.
pub fn run(args: &BenchArgs) -> CommandResult {
    let place = &args.place;
    let named = Schedule::ALL.into_iter().find(|schedule| schedule.to_string() == args.schedule);
    let table = match (named, args.table) {
        (Some(schedule), _) => ScheduleTable::only(schedule),
        (None, table) => table.unwrap_or_else(|| ScheduleTable::for_ranks(place.ranks as usize)),
    };
    let sizes = if place.sizes.is_empty() { &SIZES[..] } else { &place.sizes };
    let points: Vec<_> = sizes.iter().map(|&bytes| Point { bytes, table }).collect();
    if !place.json {
        print(&title(place))?;
    }
    let rows = measure(place, &points, |row| if place.json { Ok(()) } else { print(&line(row)) })?;
    if place.json {
        print(&format!("{:#}\n", document(args, &rows)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn title(place: &PlaceArgs) -> String {
    format!(
        "all-reduce of f32, {}, {} ranks; slowest rank's time of each call, in µs\n\
         {:>8}  {:<9} {:>6} {:>10} {:>10} {:>10} {:>8}\n",
        place.label(),
        place.ranks,
        "SIZE",
        "SCHEDULE",
        "CALLS",
        "MIN",
        "P50",
        "P99",
        "GB/s",
    )
}

fn line(row: &Row) -> String {
    format!(
        "{:>8}  {:<9} {:>6} {:>10.2} {:>10.2} {:>10.2} {:>8.3}\n",
        show_bytes(row.bytes),
        row.schedule,
        row.iterations,
        row.min_us,
        row.p50_us,
        row.p99_us,
        row.bus_gb_per_s,
    )
}

fn document(args: &BenchArgs, rows: &[Row]) -> serde_json::Value {
    let place = &args.place;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    serde_json::json!({
        "schema": BENCH_SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "operation": args.operation,
        "label": place.label(),
        "ranks": place.ranks,
        "transport": place.transport,
        "topology": place.topology,
        "rails": place.rails,
        "memory": if place.plain { "plain" } else { "registered" },
        "pinned": place.pinned(cores),
        "rows": rows,
    })
}
