//! Why a rank stays without its connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::auth::AuthError;

/// Why connections could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting that cannot be.
    #[error("rank {rank} cannot connect to rank {peer}: {what}")]
    Setup {
        /// This rank.
        rank: usize,
        /// The neighbour.
        peer: usize,
        /// What is wrong.
        what: String,
    },
    /// The system refused something this rank needs for itself.
    #[error("rank {rank} cannot {what}: {source}")]
    System {
        /// This rank.
        rank: usize,
        /// What it wanted.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The neighbour does not share this rank's token.
    #[error("rank {rank} reached rank {peer} on rail {rail} at {address}: {source}")]
    Refused {
        /// This rank.
        rank: usize,
        /// The neighbour.
        peer: usize,
        /// The rail.
        rail: usize,
        /// Where it listens.
        address: SocketAddr,
        /// What failed.
        source: AuthError,
    },
    /// A connection that was not made in time.
    #[error(
        "rank {rank} has no connection {} rank {peer} on rail {rail} {} {address} after {:.1} s \
         ({missing} missing in all): {cause}",
        if rank > peer { "to" } else { "from" },
        if rank > peer { "at" } else { "to" },
        waited.as_secs_f64()
    )]
    Missing {
        /// This rank.
        rank: usize,
        /// The neighbour.
        peer: usize,
        /// The rail.
        rail: usize,
        /// Where the neighbour listens, or this rank if it is the lower one.
        address: SocketAddr,
        /// How long this rank tried.
        waited: Duration,
        /// How many connections are missing.
        missing: usize,
        /// What happened last.
        cause: String,
    },
}
