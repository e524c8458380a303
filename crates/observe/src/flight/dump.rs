//! A dump: one header line, then one line an event, all JSON.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Event, Ring, Shared};
use crate::verdict::{VerdictRecord, bound_text};

/// Names the format; a reader refuses another.
pub(crate) const SCHEMA: &str = "railweave-flight/1";
/// Every dump's name begins with this.
pub(crate) const FILE_PREFIX: &str = "flight-";
/// Every dump's name ends with this.
pub(crate) const FILE_SUFFIX: &str = ".jsonl";
/// An unfinished dump this old belongs to a process that died while writing.
const STALE: Duration = Duration::from_secs(600);

/// The first line of a dump.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) schema: String,
    pub(crate) rank: u32,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) epoch: u64,
    /// Ranks of the group, if one formed.
    pub(crate) ranks: Option<u32>,
    /// Both clocks at the dump: the map from monotonic to wall time.
    pub(crate) mono_ns: u64,
    pub(crate) wall_ns: u64,
    /// The wall clock when the monotonic one read 0, as it was then. A difference to
    /// `wall_ns - mono_ns` tells that the wall clock was set meanwhile.
    pub(crate) base_wall_ns: u64,
    pub(crate) events: u64,
    /// Older events that were overwritten.
    pub(crate) overwritten: u64,
    pub(crate) verdict: Option<VerdictRecord>,
}

#[derive(Serialize)]
struct Line {
    mono_ns: u64,
    wall_ns: u64,
    #[serde(flatten)]
    event: Event,
}

/// A dump that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dumped {
    /// The new file.
    pub path: PathBuf,
    /// Older dumps of this rank, deleted to keep to the limit.
    pub deleted: Vec<PathBuf>,
    /// Older dumps that should have been deleted and could not, with the reason.
    pub kept: Vec<(PathBuf, String)>,
}

/// A dump could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "rank {rank}: the flight recorder could not {doing} {}: {source}; \
     check that the directory exists, is writable and has space",
    path.display()
)]
pub struct DumpError {
    rank: u32,
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

pub(super) fn write(
    shared: &Shared,
    ring: &Ring,
    dir: &Path,
    verdict: Option<&VerdictRecord>,
    mono_ns: u64,
    wall_ns: u64,
) -> Result<Dumped, DumpError> {
    let rank = shared.identity.rank;
    let failed = |doing, path: &Path| {
        let path = path.to_path_buf();
        move |source| DumpError { rank, doing, path, source }
    };
    fs::create_dir_all(dir).map_err(failed("create", dir))?;
    let mut host = shared.identity.host.clone();
    bound_text(&mut host);
    let header = Header {
        schema: SCHEMA.into(),
        rank,
        host,
        pid: shared.identity.pid,
        epoch: verdict.map_or(ring.epoch, |v| v.epoch),
        ranks: ring.ranks,
        mono_ns,
        wall_ns,
        base_wall_ns: shared.base_wall_ns,
        events: ring.slots.len() as u64,
        overwritten: ring.recorded - ring.slots.len() as u64,
        verdict: verdict.map(VerdictRecord::bounded),
    };
    // A number of its own for each dump of this process: two in one nanosecond stay two files.
    static DUMPS: AtomicU64 = AtomicU64::new(0);
    let dump = DUMPS.fetch_add(1, Relaxed);
    let name = format!(
        "{}e{:010}-t{wall_ns:020}-p{}-{dump:06}{FILE_SUFFIX}",
        rank_prefix(rank),
        header.epoch,
        header.pid
    );
    let path = dir.join(&name);
    let temporary = dir.join(format!(".{name}.part"));
    let written = write_lines(&temporary, &header, ring)
        .map_err(failed("write", &temporary))
        .and_then(|()| fs::rename(&temporary, &path).map_err(failed("rename to", &path)));
    if let Err(error) = written {
        // The first error is the one to tell; a rest that stays is swept by a later dump.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    let mut dumped = Dumped { path, deleted: Vec::new(), kept: Vec::new() };
    sweep(dir, rank, shared.config.files, &mut dumped);
    Ok(dumped)
}

fn rank_prefix(rank: u32) -> String {
    format!("{FILE_PREFIX}r{rank:05}-")
}

fn write_lines(path: &Path, header: &Header, ring: &Ring) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut out = BufWriter::with_capacity(1 << 16, file);
    serde_json::to_writer(&mut out, header)?;
    out.write_all(b"\n")?;
    for (mono_ns, event) in ring.in_order() {
        let before = header.mono_ns.saturating_sub(*mono_ns);
        let wall_ns = header.wall_ns.saturating_sub(before);
        serde_json::to_writer(&mut out, &Line { mono_ns: *mono_ns, wall_ns, event: *event })?;
        out.write_all(b"\n")?;
    }
    let _: File = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(())
}

/// Deletes this rank's oldest dumps beyond `limit`, and its unfinished ones left by the dead.
fn sweep(dir: &Path, rank: u32, limit: usize, dumped: &mut Dumped) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let prefix = rank_prefix(rank);
    let mut dumps: Vec<(OsString, PathBuf)> = Vec::new();
    let mut unwanted = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(text) = name.to_str() else { continue };
        if text.starts_with(&prefix) && text.ends_with(FILE_SUFFIX) {
            // By time, not by epoch: a restarted group counts its epochs from the start again.
            let time = text.split('-').nth(3).unwrap_or_default();
            dumps.push((time.into(), entry.path()));
        } else if text.starts_with(&format!(".{prefix}")) && text.ends_with(".part") {
            let age = entry.metadata().and_then(|m| m.modified()).ok();
            if age.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > STALE) {
                unwanted.push(entry.path());
            }
        }
    }
    dumps.sort();
    let surplus = dumps.len().saturating_sub(limit);
    let oldest = dumps.into_iter().take(surplus).map(|(_, path)| path);
    unwanted.extend(oldest.filter(|path| *path != dumped.path));
    for path in unwanted {
        match fs::remove_file(&path) {
            Ok(()) => dumped.deleted.push(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => dumped.kept.push((path, error.to_string())),
        }
    }
}
