//! Where and how a measurement runs: the flags, and what each rank is told.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

use group::collective::{Schedule, ScheduleTable};
use serde::{Deserialize, Serialize};

use crate::settings::{Bytes, Field as _, Valid};

/// Largest vector that is measured.
const BYTES_MAX: u64 = 1 << 30;
/// The smallest holds one element of each kind that is measured.
const BYTES_MIN: u64 = 4;

/// When ranks are pinned to cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pin {
    /// When every rank can have a core of its own.
    Auto,
    /// Rank r to core r, modulo the number of cores.
    On,
    /// Never.
    Off,
}

/// Flags of every measurement.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    /// How many ranks to start on this machine
    #[arg(long, default_value_t = 2, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=fabric::MAX_RANKS as i64))]
    pub(crate) ranks: u32,
    /// What carries the bytes
    #[arg(long, default_value = "shm", value_parser = ["shm", "tcp"])]
    pub(crate) transport: String,
    /// Which ranks are neighbours
    #[arg(long, default_value = "full", value_parser = ["ring", "full", "path"])]
    pub(crate) topology: String,
    /// Rails of the path between two neighbours
    #[arg(long, default_value_t = 2, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=fabric::MAX_RAILS as i64))]
    pub(crate) rails: u32,
    /// Sizes of the vectors, such as 8,4KiB,48KiB
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size)]
    pub(crate) sizes: Vec<u64>,
    /// How long each size is measured
    #[arg(long, default_value_t = 0.3, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Vectors in plain memory, copied in and out
    #[arg(long, conflicts_with = "registered")]
    pub(crate) plain: bool,
    /// Vectors in registered memory, without copies [default]
    #[arg(long)]
    pub(crate) registered: bool,
    /// Whether each rank is kept on one core
    #[arg(long, default_value = "auto", value_enum)]
    pub(crate) pin: Pin,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a size of whole `f32` elements.
fn size(text: &str) -> Result<u64, String> {
    let bytes = Bytes::parse(text, &Valid::Bytes(BYTES_MIN, BYTES_MAX))?.0;
    if bytes.is_multiple_of(4) {
        Ok(bytes)
    } else {
        Err(format!("{text:?} is no multiple of 4 bytes"))
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = f64::from_str(text).map_err(|_| format!("{text:?} is not a number"))?;
    if (0.001..=60.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("{text:?} is not from 0.001 to 60"))
    }
}

impl PlaceArgs {
    /// True when every rank can read the others' registered buffers in place.
    pub(crate) fn in_place(&self) -> bool {
        // Up to three ranks a ring has a cable for every pair.
        let all_cabled = match self.topology.as_str() {
            "full" => true,
            "ring" => self.ranks <= 3,
            _ => self.ranks <= 2,
        };
        all_cabled && self.transport == "shm" && !self.plain
    }

    /// Whether ranks are pinned on a machine with this many cores.
    pub(crate) fn pinned(&self, cores: usize) -> bool {
        match self.pin {
            Pin::Auto => self.ranks as usize <= cores,
            Pin::On => true,
            Pin::Off => false,
        }
    }

    /// A name for rows of this place.
    pub(crate) fn label(&self) -> String {
        let memory = if self.plain { "plain" } else { "registered" };
        format!("railweave-{}-{}-{memory}", self.transport, self.topology)
    }
}

/// One size under one table of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// Bytes of the vector.
    pub(crate) bytes: u64,
    /// Which schedule is used when.
    pub(crate) table: ScheduleTable,
}

/// A [`Point`] as it is told to ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PointText {
    pub(super) bytes: u64,
    pub(super) table: String,
}

/// Everything one rank must know. It goes to its standard input, since it holds the token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The process that gives it; the rank dies with it.
    pub(super) starter: u32,
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) master: SocketAddrV4,
    pub(super) token: Vec<u8>,
    pub(super) transport: String,
    pub(super) topology: String,
    pub(super) rails: usize,
    pub(super) plain: bool,
    pub(super) seconds: f64,
    pub(super) pinned: bool,
    pub(super) points: Vec<PointText>,
}

impl Order {
    /// What rank 0 is told; the others' orders differ in the rank alone.
    pub(super) fn new(place: &PlaceArgs, points: &[Point], port: u16, token: Vec<u8>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let points = points
            .iter()
            .map(|point| PointText { bytes: point.bytes, table: point.table.to_string() })
            .collect();
        Self {
            starter: std::process::id(),
            rank: 0,
            ranks: place.ranks as usize,
            master: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            token,
            transport: place.transport.clone(),
            topology: place.topology.clone(),
            rails: place.rails as usize,
            plain: place.plain,
            seconds: place.seconds,
            pinned: place.pinned(cores),
            points,
        }
    }
}

/// What was measured of one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Bytes of the vector.
    pub(crate) bytes: u64,
    /// The schedule that carried it.
    pub(crate) schedule: String,
    /// Calls measured.
    pub(crate) iterations: u64,
    /// Fastest call, by its slowest rank.
    pub(crate) min_us: f64,
    /// Half of the calls were faster.
    pub(crate) p50_us: f64,
    /// 99 of 100 calls were faster.
    pub(crate) p99_us: f64,
    /// Bytes each rank must send and receive at least, by the median time.
    pub(crate) bus_gb_per_s: f64,
}

impl Row {
    /// The row of these times, in seconds, of which there is at least one.
    pub(super) fn of(bytes: u64, schedule: Schedule, ranks: usize, times: &mut [f32]) -> Self {
        times.sort_unstable_by(f32::total_cmp);
        let at = |share: f64| {
            let index = (times.len() as f64 * share) as usize;
            f64::from(times.get(index).or(times.last()).copied().unwrap_or(f32::NAN))
        };
        let p50 = at(0.5);
        let moved = 2.0 * (ranks - 1) as f64 / ranks as f64 * bytes as f64;
        Self {
            bytes,
            schedule: schedule.to_string(),
            iterations: times.len() as u64,
            min_us: at(0.0) * 1e6,
            p50_us: p50 * 1e6,
            p99_us: at(0.99) * 1e6,
            bus_gb_per_s: moved / p50 / 1e9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_elements() {
        assert_eq!(size("48KiB"), Ok(49_152));
        assert_eq!(size("8"), Ok(8));
        assert!(size("6").is_err() && size("0").is_err() && size("2GiB").is_err());
    }

    #[test]
    fn a_row_has_the_median_and_the_bandwidth_of_the_bus() {
        let mut times: Vec<f32> = (1..=200).rev().map(|i| i as f32 * 1e-6).collect();
        let row = Row::of(2000, Schedule::OneShot, 4, &mut times);
        assert_eq!(row.iterations, 200);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-3;
        assert!(near(row.min_us, 1.0) && near(row.p50_us, 101.0) && near(row.p99_us, 199.0));
        assert!(near(row.bus_gb_per_s, 1.5 * 2000.0 / 101e-6 / 1e9));
    }
}
