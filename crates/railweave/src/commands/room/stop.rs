//! What a signal does to a command of the machine room: nothing is left behind.

use std::fs;
use std::process::exit;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::super::{CommandError, INTERRUPTED};

/// What is said if a signal comes now.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnderWay(Arc<Mutex<String>>);

impl UnderWay {
    /// Sets it; empty says nothing.
    pub(crate) fn set(&self, text: impl Into<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
    }

    fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// From here on a signal ends the programs this process started, and then this process.
///
/// # Errors
/// The system refuses to deliver signals.
pub(crate) fn on_signal() -> Result<UnderWay, CommandError> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| CommandError::Failed(format!("cannot watch for signals: {error}")))?;
    let under_way = UnderWay::default();
    let told = under_way.clone();
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            end_children();
            let text = told.get();
            if !text.is_empty() {
                eprintln!("railweave: stopped; {text}");
            }
            exit(i32::from(INTERRUPTED));
        }
    });
    Ok(under_way)
}

/// Ends the processes whose parent this process is, each with its group where it leads one of its own.
fn end_children() {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return };
    for task in tasks.flatten() {
        let Ok(list) = fs::read_to_string(task.path().join("children")) else { continue };
        let pids = list.split_ascii_whitespace().filter_map(|text| text.parse().ok());
        for pid in pids.filter_map(Pid::from_raw) {
            // One that ended meanwhile is nobody to tell.
            let _ = if getpgid(Some(pid)) == Ok(pid) {
                kill_process_group(pid, Signal::KILL)
            } else {
                kill_process(pid, Signal::KILL)
            };
        }
    }
}
