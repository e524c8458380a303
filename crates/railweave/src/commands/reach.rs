//! How a command finds the ranks of a running server.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::CommandError;
use crate::cli::{ReachKeys, SettingFlags};
use crate::http::{Answer, Client, Unreachable};
use crate::settings::{Effective, Settings};

/// How long a command waits for one answer of a rank.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// Where the ranks are.
#[derive(Debug, clap::Args)]
pub struct ReachArgs {
    #[command(flatten)]
    settings: SettingFlags<ReachKeys>,
    /// Addresses of the ranks' metrics, in the order of ranks, instead of `--metrics-listen` and `--ranks`
    #[arg(long, value_name = "IP:PORT,…", value_delimiter = ',')]
    at: Vec<SocketAddr>,
}

/// The ranks of a running server.
#[derive(Debug)]
pub struct Reach {
    /// Each rank's address, by rank.
    pub addresses: Vec<SocketAddr>,
    /// The settings the addresses came from.
    pub settings: Settings,
}

impl ReachArgs {
    /// Works out the addresses.
    ///
    /// # Errors
    /// A setting is wrong, or the addresses cannot be known.
    pub fn resolve(self) -> Result<Reach, CommandError> {
        let Effective { settings, .. } = self.settings.resolve()?;
        let addresses = if !self.at.is_empty() {
            self.at
        } else if settings.metrics_listen.port() == 0 {
            return Err(CommandError::Usage(
                "metrics_listen has port 0, so the ranks took any free ports; give the addresses that \
                 `railweave serve` printed with --at"
                    .to_owned(),
            ));
        } else {
            (0..settings.ranks).map(|rank| settings.metrics_of_rank(rank)).collect()
        };
        Ok(Reach { addresses, settings })
    }
}

impl Reach {
    /// Asks the ranks with these numbers at the same time. The answers come in the order of `ranks`.
    pub(crate) fn ask_each(
        &self,
        ranks: &[u32],
        ask: impl Fn(&Client, SocketAddr) -> Result<Answer, Unreachable> + Sync,
    ) -> Vec<(u32, Result<Answer, String>)> {
        let key = self.settings.api_key.reveal();
        thread::scope(|scope| {
            let asked: Vec<_> = ranks
                .iter()
                .filter_map(|rank| Some((*rank, *self.addresses.get(*rank as usize)?)))
                .map(|(rank, address)| {
                    let ask = &ask;
                    let answer = scope.spawn(move || {
                        ask(&Client::new(ANSWER_PATIENCE, key), address).map_err(|e| e.to_string())
                    });
                    (rank, answer)
                })
                .collect();
            let unknown = || Err("the question ended without an answer".to_owned());
            asked
                .into_iter()
                .map(|(rank, t)| (rank, t.join().unwrap_or_else(|_| unknown())))
                .collect()
        })
    }

    /// Every rank's number.
    pub(crate) fn all(&self) -> Vec<u32> {
        (0_u32..).zip(&self.addresses).map(|(rank, _)| rank).collect()
    }
}
