//! What a person sees: progress while the ranks start, a summary when they serve, and one line for each change.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::core::Report;
use crate::events::Event;
use crate::events::carried;

/// Writes for a person. On a terminal it draws bars while the ranks start; elsewhere it writes plain lines.
#[derive(Debug)]
pub struct Screen {
    bars: Option<MultiProgress>,
    loads: BTreeMap<u32, ProgressBar>,
    step: Option<ProgressBar>,
    ranks: u32,
    model: String,
    metrics: BTreeMap<u32, SocketAddr>,
    api: Option<SocketAddr>,
    served: bool,
    loaded: Vec<u32>,
    last_step: String,
}

impl Screen {
    /// A screen on standard error, for a group of `ranks` ranks that serves `model`.
    #[must_use]
    pub fn new(ranks: u32, model: &str) -> Self {
        let bars = io::stderr()
            .is_terminal()
            .then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        Self {
            bars,
            loads: BTreeMap::new(),
            step: None,
            ranks,
            model: model.to_owned(),
            metrics: BTreeMap::new(),
            api: None,
            served: false,
            loaded: Vec::new(),
            last_step: String::new(),
        }
    }

    /// Shows a line of a rank's standard error.
    pub fn rank_line(&self, rank: u32, text: &str) {
        self.line(&format!("rank {rank} | {text}"));
    }

    /// Shows why everything ends.
    pub(super) fn failed(&self, reason: &str) {
        self.line(&format!("railweave: {reason}"));
    }

    fn line(&self, text: &str) {
        // A terminal that is gone is no reason to stop serving.
        match &self.bars {
            Some(bars) if !self.served => {
                let _ = bars.println(text);
            }
            _ => {
                let _ = writeln!(io::stderr(), "{text}");
            }
        }
    }

    /// Shows what the core reports.
    pub(super) fn report(&mut self, report: &Report) {
        match report {
            Report::Event { rank, event } => self.event(*rank, event),
            Report::AllReady { epoch } if !self.served => {
                self.end_bars();
                self.served = true;
                let _ = io::stdout().write_all(self.summary(*epoch).as_bytes());
                let _ = io::stdout().flush();
            }
            Report::AllReady { epoch } => {
                self.line(&format!("all {} ranks serve again, epoch {epoch}", self.ranks));
            }
            Report::Died { rank, cause, restart_in } => {
                let next = match restart_in {
                    Some(delay) if delay.is_zero() => "; starting it again".to_owned(),
                    Some(delay) => format!("; starting it again in {} s", delay.as_secs_f64()),
                    None => String::new(),
                };
                self.line(&format!("rank {rank} ended with {cause}{next}"));
            }
            Report::Killing { rank, reason } => {
                self.line(&format!("rank {rank} is killed: {reason}"));
            }
            Report::Stopping => {
                self.end_bars();
                self.line("stopping; Ctrl-C again stops at once");
            }
        }
    }

    fn event(&mut self, rank: u32, event: &Event) {
        match event {
            Event::Loading { done_bytes, total_bytes } => {
                self.loading(rank, *done_bytes, *total_bytes);
            }
            Event::Rendezvous { present, .. } => {
                self.starting(format!("ranks meet: {present} of {}", self.ranks));
            }
            Event::Proof { proven, total } => {
                self.starting(format!("paths of rank {rank} proven: {proven} of {total}"));
            }
            // The same on every rank.
            Event::Carrier { transport, why } => {
                if rank == 0 {
                    self.line(&carried(transport, why));
                }
            }
            Event::Listening { metrics, api } => {
                let before = self.metrics.insert(rank, *metrics);
                if self.served && before != Some(*metrics) {
                    self.line(&format!("rank {rank} now serves http://{metrics}/metrics"));
                }
                self.api = api.or(self.api);
            }
            Event::Ready { .. } => self.starting(format!("a token crossed rank {rank}")),
            Event::Verdict { text, .. } => self.line(&format!("verdict: {text}")),
            Event::Setting { key, value } => {
                self.line(&format!("rank {rank}: {key} is now {value}"));
            }
            Event::Reformed { .. } | Event::Failed { .. } | Event::Stopped => {}
        }
    }

    fn loading(&mut self, rank: u32, done: u64, total: u64) {
        if self.served || self.loaded.contains(&rank) {
            return;
        }
        if done >= total {
            self.loaded.push(rank);
        }
        let Some(bars) = &self.bars else {
            if done >= total {
                self.line(&format!("rank {rank} loaded the model"));
            }
            return;
        };
        let bar = self.loads.entry(rank).or_insert_with(|| {
            let bar = bars.add(ProgressBar::new(total));
            bar.set_style(style("{prefix} {bar:30} {bytes}/{total_bytes}"));
            bar.set_prefix(format!("rank {rank} loads the model"));
            bar
        });
        bar.set_length(total);
        bar.set_position(done.min(total));
    }

    fn starting(&mut self, text: String) {
        if self.served || self.last_step == text {
            return;
        }
        if let Some(bars) = &self.bars {
            let bar = self.step.get_or_insert_with(|| {
                let bar = bars.add(ProgressBar::new_spinner());
                bar.set_style(style("{spinner} {msg} ({elapsed})"));
                bar.enable_steady_tick(std::time::Duration::from_millis(120));
                bar
            });
            bar.set_message(text.clone());
        } else {
            self.line(&text);
        }
        self.last_step = text;
    }

    fn end_bars(&mut self) {
        for bar in std::mem::take(&mut self.loads).into_values().chain(self.step.take()) {
            bar.finish_and_clear();
        }
        if let Some(bars) = &self.bars {
            let _ = bars.clear();
        }
    }

    fn summary(&self, epoch: u64) -> String {
        let ranks = if self.ranks == 1 { "rank" } else { "ranks" };
        let mut text =
            format!("Railweave serves {} on {} {ranks}, epoch {epoch}.\n", self.model, self.ranks);
        if let Some(api) = self.api {
            text.push_str(&format!("  API      http://{api}/v1\n"));
        }
        for (rank, address) in &self.metrics {
            text.push_str(&format!("  rank {rank}   http://{address}/metrics\n"));
        }
        text.push_str("  stop     Ctrl-C\n");
        text
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constants of this file; a bad one would fall back to the default look.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_every_address_and_how_to_stop() {
        let mut screen = Screen::new(2, "m.gguf");
        let api = Some("127.0.0.1:8000".parse().unwrap());
        screen.event(0, &Event::Listening { metrics: "127.0.0.1:9400".parse().unwrap(), api });
        screen
            .event(1, &Event::Listening { metrics: "127.0.0.1:9401".parse().unwrap(), api: None });
        assert_eq!(
            screen.summary(3),
            "Railweave serves m.gguf on 2 ranks, epoch 3.\n  API      http://127.0.0.1:8000/v1\n  \
             rank 0   http://127.0.0.1:9400/metrics\n  rank 1   http://127.0.0.1:9401/metrics\n  \
             stop     Ctrl-C\n"
        );
    }
}
