//! `railweave tune`: measures every schedule and tells from which size each is the fastest.

use std::process::ExitCode;

use group::collective::{Schedule, ScheduleTable};

use super::bench::{PlaceArgs, Point, Row, measure};
use super::{CommandResult, print};
use crate::settings::show_bytes;

/// Version of the shape of `railweave tune --json`.
pub const TUNE_SCHEMA: u32 = 1;

const SIZES: [u64; 13] = [
    8,
    256,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    48 << 10,
    128 << 10,
    256 << 10,
    1536 << 10,
    4 << 20,
];

/// How often each is measured, in turns. The best counts: whatever else runs here only adds.
const ROUNDS: u32 = 3;

/// The ring schedule rounds differently from the others, so it must be clearly faster.
const RING_SHARE: f64 = 0.9;

/// Arguments of `railweave tune`.
#[derive(Debug, clap::Args)]
pub struct TuneArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Let the table use the ring schedule, whose sums follow the ring instead of the order of ranks
    #[arg(long)]
    with_ring: bool,
}

/// The best of the rounds' medians of one size, in µs. A schedule that was not measured has none.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    bytes: u64,
    one_shot: Option<f64>,
    two_shot: Option<f64>,
    mapped: Option<f64>,
    ring: Option<f64>,
}

impl Times {
    fn of(bytes: u64) -> Self {
        Self { bytes, one_shot: None, two_shot: None, mapped: None, ring: None }
    }

    fn get(&self, schedule: Schedule) -> Option<f64> {
        match schedule {
            Schedule::Mapped => self.mapped,
            Schedule::OneShot => self.one_shot,
            Schedule::Ring => self.ring,
            Schedule::TwoShot => self.two_shot,
            _ => None,
        }
    }

    fn note(&mut self, schedule: Schedule, p50_us: f64) {
        let best = match schedule {
            Schedule::Mapped => &mut self.mapped,
            Schedule::OneShot => &mut self.one_shot,
            Schedule::Ring => &mut self.ring,
            Schedule::TwoShot => &mut self.two_shot,
            _ => return,
        };
        *best = Some(best.map_or(p50_us, |before| before.min(p50_us)));
    }
}

/// Measures and prints the table of times and the table of schedules that follows from it.
///
/// # Errors
/// A rank failed, or a sum was wrong.
pub fn run(args: &TuneArgs) -> CommandResult {
    let place = &args.place;
    let sizes = if place.sizes.is_empty() { &SIZES[..] } else { &place.sizes };
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let schedules: Vec<_> = Schedule::ALL
        .into_iter()
        .filter(|schedule| *schedule != Schedule::Mapped || place.in_place())
        .collect();
    let points: Vec<_> = sizes
        .iter()
        .flat_map(|&bytes| {
            let only = |&schedule| Point { bytes, table: ScheduleTable::only(schedule) };
            schedules.iter().map(only).collect::<Vec<_>>()
        })
        .collect();
    let points = points.repeat(ROUNDS as usize);
    let place = &PlaceArgs { seconds: place.seconds / f64::from(ROUNDS), ..place.clone() };
    let rows = measure(place, &points, |_| Ok(()))?;
    let times = collect(&sizes, &rows);
    let table = derive(&times, place.ranks as usize, args.with_ring);
    if place.json {
        print(&format!("{:#}\n", document(place, &times, &table)))?;
    } else {
        print(&text(place, &times, &table))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn collect(sizes: &[u64], rows: &[Row]) -> Vec<Times> {
    let mut times: Vec<_> = sizes.iter().map(|&bytes| Times::of(bytes)).collect();
    for row in rows {
        let schedule = Schedule::ALL.into_iter().find(|one| one.to_string() == row.schedule);
        let place = times.iter_mut().find(|times| times.bytes == row.bytes);
        if let (Some(schedule), Some(place)) = (schedule, place) {
            place.note(schedule, row.p50_us);
        }
    }
    times
}

/// The table that the times ask for; they are sorted by size. A threshold lies where the faster
/// schedule changes for good, so that one odd measurement does not move it far.
fn derive(times: &[Times], ranks: usize, with_ring: bool) -> ScheduleTable {
    let faster = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => a <= b,
        (a, _) => a.is_some(),
    };
    let best_of_shots = |times: &Times| match (times.one_shot, times.two_shot) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let best = |times: &Times| match (best_of_shots(times), times.mapped) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let one_shot_bytes_max = times
        .iter()
        .rev()
        .find(|times| times.one_shot.is_some() && faster(times.one_shot, times.two_shot))
        .map_or(0, |times| times.bytes);
    let from = |wins: &dyn Fn(&Times) -> bool| {
        times.iter().rev().take_while(|times| wins(times)).last().map(|times| times.bytes)
    };
    let mapped_bytes_min =
        from(&|times| times.mapped.is_some() && faster(times.mapped, best_of_shots(times)));
    let ring_bytes_min = from(&|times| match (times.ring, best(times)) {
        (Some(ring), Some(other)) => ring < RING_SHARE * other,
        _ => false,
    });
    ScheduleTable {
        one_shot_bytes_max,
        // Where reading in place was not measured, nothing says that the default is wrong.
        mapped_bytes_min: if times.iter().any(|times| times.mapped.is_some()) {
            mapped_bytes_min.unwrap_or(u64::MAX)
        } else {
            ScheduleTable::for_ranks(ranks).mapped_bytes_min
        },
        ring_bytes_min: ring_bytes_min.filter(|_| with_ring),
    }
}

fn text(place: &PlaceArgs, times: &[Times], table: &ScheduleTable) -> String {
    let mut out =
        format!("all-reduce of f32, {}, {} ranks; median in µs\n", place.label(), place.ranks);
    out.push_str(&format!("{:>8}", "SIZE"));
    for schedule in Schedule::ALL {
        out.push_str(&format!(" {:>12}", schedule.to_string().to_uppercase()));
    }
    out.push('\n');
    for times in times {
        out.push_str(&format!("{:>8}", show_bytes(times.bytes)));
        for schedule in Schedule::ALL {
            let cell =
                times.get(schedule).map_or("not measured".to_owned(), |us| format!("{us:.2}"));
            out.push_str(&format!(" {cell:>12}"));
        }
        out.push('\n');
    }
    out.push_str(&format!("\nschedule_table = \"{table}\"\n"));
    out
}

fn document(place: &PlaceArgs, times: &[Times], table: &ScheduleTable) -> serde_json::Value {
    let rows: Vec<_> = times
        .iter()
        .map(|times| {
            let p50_us: serde_json::Map<_, _> = Schedule::ALL
                .into_iter()
                .map(|schedule| (schedule.to_string(), times.get(schedule).into()))
                .collect();
            serde_json::json!({ "bytes": times.bytes, "p50_us": p50_us })
        })
        .collect();
    serde_json::json!({
        "schema": TUNE_SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "label": place.label(),
        "ranks": place.ranks,
        "schedule_table": table.to_string(),
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(rows: &[(u64, [f64; 4])]) -> Vec<Times> {
        rows.iter()
            .map(|&(bytes, [one_shot, two_shot, mapped, ring])| Times {
                bytes,
                one_shot: Some(one_shot),
                two_shot: Some(two_shot),
                mapped: Some(mapped),
                ring: Some(ring),
            })
            .collect()
    }

    #[test]
    fn thresholds_lie_where_the_faster_schedule_changes() {
        let measured = times(&[
            (8, [1.0, 2.0, 1.5, 3.0]),
            (4096, [2.0, 2.5, 1.9, 4.0]),
            (65_536, [20.0, 15.0, 10.0, 12.0]),
            (1 << 20, [400.0, 300.0, 200.0, 150.0]),
        ]);
        let table = derive(&measured, 4, false);
        assert_eq!(table.to_string(), "one-shot<=4096 mapped>=4096 ring=never");
        assert_eq!(derive(&measured, 4, true).ring_bytes_min, Some(1 << 20));
    }

    #[test]
    fn what_was_not_measured_keeps_its_default() {
        let mut measured = times(&[(8, [1.0, 2.0, 0.0, 3.0]), (4096, [2.0, 1.0, 0.0, 3.0])]);
        for times in &mut measured {
            times.mapped = None;
        }
        let table = derive(&measured, 4, true);
        assert_eq!(table.one_shot_bytes_max, 8);
        assert_eq!(table.mapped_bytes_min, ScheduleTable::for_ranks(4).mapped_bytes_min);
        assert_eq!(table.ring_bytes_min, None);
    }
}
