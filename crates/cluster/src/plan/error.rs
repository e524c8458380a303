//! Why there is no plan.

use crate::file::FileError;

/// Why there is no plan. Each message names the hosts, cables or ports, and what would make it valid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The file itself is not valid.
    #[error("{0}")]
    File(#[from] FileError),
    /// Hosts no chain of cables joins.
    #[error("the hosts are not all joined by cables: {}. {remedy}", parts.join(" | "))]
    Disconnected {
        /// The hosts of each part, as they are cabled.
        parts: Vec<String>,
        /// Which cable would join them.
        remedy: String,
    },
    /// Forwarding is required, and some pairs cannot have it.
    #[error("forward = required, but {} pairs of hosts cannot be forwarded: {}", failures.len(), list(failures))]
    Forward {
        /// Every such pair.
        failures: Vec<ForwardFailure>,
    },
    /// A route that does not fit the cabling, or another route.
    #[error("route {route:?}: {why}")]
    Route {
        /// The route.
        route: String,
        /// What contradicts it, and what cabling would make it right.
        why: String,
    },
    /// The plan could not be written as JSON.
    #[error("the plan's digest cannot be computed: {source}")]
    Digest {
        /// Why.
        #[from]
        source: serde_json::Error,
    },
}

/// A pair of ranks whose path cannot be forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardFailure {
    /// The lower rank.
    pub from: usize,
    /// The higher rank.
    pub to: usize,
    /// Their hosts.
    pub hosts: (String, String),
    /// Why.
    pub reason: String,
}

fn list(failures: &[ForwardFailure]) -> String {
    let each = failures.iter().map(|failure| {
        let (from, to) = &failure.hosts;
        format!("{from}–{to}: {}", failure.reason)
    });
    each.collect::<Vec<_>>().join("; ")
}
