//! What happened in a run, line by line.

use std::time::Duration;

/// Lines kept; the last ones matter.
const LINES_MAX: usize = 4000;

#[derive(Debug)]
pub(super) struct Story {
    kept: bool,
    lines: std::collections::VecDeque<String>,
}

impl Story {
    pub(super) fn new(kept: bool) -> Self {
        Self { kept, lines: std::collections::VecDeque::new() }
    }

    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    pub(super) fn tell(&mut self, now: Duration, line: impl FnOnce() -> String) {
        if !self.kept {
            return;
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{:>12.3} ms  {}", now.as_secs_f64() * 1e3, line()));
    }

    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines).into()
    }
}
