//! Starts the ranks of a measurement and collects what rank 0 tells.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use fabric::auth::Token;

use super::super::lines::read_lines;
use super::place::{Order, PlaceArgs, Point, Row};
use crate::commands::CommandError;
use crate::supervisor::reserve_port;

/// The hidden command that is one rank.
pub(super) const WORKER: &str = "bench-rank";
/// How long starting, wiring and ending may take.
const SET_UP_LIMIT: Duration = Duration::from_secs(60);
/// How long one point may take beyond its measuring time: warm-up, filling and checking.
const POINT_LIMIT: Duration = Duration::from_secs(30);
/// How often the ranks are looked after: rarely, since they are being measured.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longest line of a rank.
const LINE_BYTES_MAX: u64 = 4096;
/// Lines of a rank that may wait to be looked at.
const LINES_WAITING: usize = 16;

/// The running ranks. Dropping this ends them.
struct Crew(Vec<Child>);

impl Drop for Crew {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already cannot be killed, which is as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Measures the points in their order; `tell` hears of each row when it is there.
///
/// Call it on the main thread: ranks die with the thread that started them.
///
/// # Errors
/// A rank that could not be started, failed or took too long.
pub(crate) fn measure(
    place: &PlaceArgs,
    points: &[Point],
    mut tell: impl FnMut(&Row) -> Result<(), CommandError>,
) -> Result<Vec<Row>, CommandError> {
    let failed = |what: String| CommandError::Failed(what);
    let (_reservation, address) = reserve_port()?;
    let token = Token::random().map_err(|error| failed(error.to_string()))?;
    let mut order = Order::new(place, points, address.port(), token.secret().to_vec());
    let mut crew = Crew(Vec::new());
    let mut output = None;
    for rank in 0..order.ranks {
        order.rank = rank;
        let text = serde_json::to_vec(&order).map_err(|error| failed(error.to_string()))?;
        let mut child = start(rank, &text)
            .map_err(|error| failed(format!("cannot start rank {rank}: {error}")))?;
        if rank == 0 {
            output = child.stdout.take();
        }
        crew.0.push(child);
    }
    let output = output.ok_or_else(|| failed("rank 0 has no output".to_owned()))?;
    let lines = read_lines("rows".to_owned(), output, LINE_BYTES_MAX, LINES_WAITING)
        .map_err(|error| failed(format!("cannot listen to rank 0: {error}")))?;
    let budget = Duration::from_secs_f64(place.seconds) + POINT_LIMIT;
    let end =
        Instant::now() + SET_UP_LIMIT + budget * u32::try_from(points.len()).unwrap_or(u32::MAX);
    let mut rows = Vec::new();
    loop {
        match lines.recv_timeout(LOOK_EVERY) {
            Ok(line) => {
                let row = serde_json::from_slice(&line)
                    .map_err(|error| failed(format!("rank 0 told what is no row: {error}")))?;
                tell(&row)?;
                rows.push(row);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        look(&mut crew)?;
        if Instant::now() > end {
            let (done, all) = (rows.len(), points.len());
            return Err(failed(format!(
                "the ranks took too long: {done} of {all} points are done"
            )));
        }
    }
    finish(&mut crew)?;
    if rows.len() != points.len() {
        return Err(failed(format!("rank 0 told {} rows of {}", rows.len(), points.len())));
    }
    Ok(rows)
}

fn start(rank: usize, order: &[u8]) -> std::io::Result<Child> {
    let output = if rank == 0 { Stdio::piped() } else { Stdio::null() };
    let mut child = Command::new(std::env::current_exe()?)
        .arg(WORKER)
        .stdin(Stdio::piped())
        .stdout(output)
        .spawn()?;
    if let Some(mut input) = child.stdin.take()
        && let Err(error) = input.write_all(order)
    {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok(child)
}

/// Fails when a rank has.
fn look(crew: &mut Crew) -> Result<(), CommandError> {
    for (rank, child) in crew.0.iter_mut().enumerate() {
        if let Ok(Some(status)) = child.try_wait()
            && !status.success()
        {
            return Err(CommandError::Failed(format!("rank {rank} failed: {status}")));
        }
    }
    Ok(())
}

fn finish(crew: &mut Crew) -> Result<(), CommandError> {
    let end = Instant::now() + SET_UP_LIMIT;
    loop {
        look(crew)?;
        if crew.0.iter_mut().all(|child| matches!(child.try_wait(), Ok(Some(_)))) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(CommandError::Failed("the ranks do not end".to_owned()));
        }
        thread::sleep(Duration::from_millis(5));
    }
}
