//! How ranks find each other: rank 0 hosts a meeting point, every rank joins it, and what comes out is a group with one
//! epoch, equal configuration, and a mesh of authenticated control connections.
//!
//! [`core`] decides, without sockets; [`host`] and [`client`] are the edges.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::auth::{AuthError, Token};
use crate::beacon::RankSet;
use crate::control::wire::WireError;
use crate::verdict::RankValue;

pub mod client;
pub mod core;
pub mod host;
pub mod message;

pub use client::{Joined, join};
pub use host::{Host, HostOptions};

/// Largest set-up data of one rank, in bytes.
pub const MAX_BLOB_BYTES: usize = 64 * 1024;
/// Largest contribution of one rank to an agreement, in bytes.
pub const MAX_AGREE_BYTES: usize = 256 * 1024;

/// What a rank brings to the meeting point.
#[derive(Debug, Clone)]
pub struct JoinRequest {
    /// This rank.
    pub rank: usize,
    /// Ranks of the group.
    pub size: usize,
    /// Where rank 0 hosts.
    pub address: SocketAddr,
    /// The group's secret.
    pub token: Token,
    /// This process: made once with [`instance`] and kept, so that a process that joins anew takes its own place while
    /// another that claims its number does not.
    pub instance: [u64; 2],
    /// The last epoch this process was in; `None` when it has just started.
    pub last_epoch: Option<u32>,
    /// Name of this machine.
    pub host_name: String,
    /// What tells this machine from others, such as machine id and boot id.
    pub host_id: String,
    /// Address of this machine that the others can reach.
    pub ip: IpAddr,
    /// What must be equal on all ranks.
    pub config: BTreeMap<String, String>,
    /// Set-up data of the transport, handed to all ranks.
    pub blob: Vec<u8>,
}

/// A number for this process that no other process has.
///
/// # Errors
/// The system gives no random bytes.
pub fn instance() -> Result<[u64; 2], AuthError> {
    let nonce = crate::auth::nonce()?;
    let word =
        |at: usize| nonce[at..at + 8].iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
    Ok([word(0), word(8)])
}

/// One rank of a formed group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberInfo {
    /// The rank.
    pub rank: usize,
    /// Name of its machine.
    pub host_name: String,
    /// What tells its machine from others.
    pub host_id: String,
    /// Its address; the port is that of its control listener of this epoch.
    pub address: SocketAddr,
    /// Its set-up data.
    pub blob: Vec<u8>,
}

/// A rank that has arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The rank.
    pub rank: u8,
    /// Name of its machine.
    pub host: String,
}

/// Why the meeting point refuses a rank, or the whole group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Refusal {
    /// The number is taken by a live process.
    #[error(
        "rank {rank} is already taken by a live process on host {host}; give each process a number of its own"
    )]
    DuplicateRank {
        /// The number.
        rank: u8,
        /// Machine of the process that has it.
        host: String,
    },
    /// The process comes from an epoch the group has left.
    #[error(
        "rank {rank} comes from epoch {reported}, the group has been in epoch {current}; start this process again"
    )]
    OldEpoch {
        /// The rank.
        rank: u8,
        /// Its epoch.
        reported: u32,
        /// The group's.
        current: u32,
    },
    /// The sizes of the group differ.
    #[error(
        "world size differs: rank {rank} (host {host}) was started with {size}, rank 0 hosts {expected}; give all ranks one size"
    )]
    SizeDiffers {
        /// The rank.
        rank: u8,
        /// Its machine.
        host: String,
        /// Its size.
        size: usize,
        /// The host's.
        expected: usize,
    },
    /// The number is not one of the group's.
    #[error("rank {rank} is not in a group of {size}; ranks are 0 to {}", size.saturating_sub(1))]
    RankOutOfRange {
        /// The number.
        rank: u8,
        /// Ranks of the group.
        size: usize,
    },
    /// Something that must be equal is not.
    #[error("{key} differs: {a}, {b}; give it one value on all ranks and start them again")]
    ConfigurationDiffers {
        /// Which key.
        key: String,
        /// The lower rank's value.
        a: RankValue,
        /// The higher rank's value.
        b: RankValue,
    },
    /// A rank advertises an address the others cannot reach.
    #[error(
        "rank {rank} (host {host}) advertises {address}, which rank {other_rank} on host {other_host} cannot reach; advertise an address of its network"
    )]
    UnreachableAddress {
        /// The rank.
        rank: u8,
        /// Its machine.
        host: String,
        /// What it advertises.
        address: IpAddr,
        /// A rank elsewhere.
        other_rank: u8,
        /// Its machine.
        other_host: String,
    },
    /// Not all ranks came in time.
    #[error("ranks {missing} did not come within {:.1} s; arrived: {}", Duration::from_millis(*waited_ms).as_secs_f64(), list(arrived))]
    Missing {
        /// Who is missing.
        missing: RankSet,
        /// Who is there.
        arrived: Vec<Arrival>,
        /// How long the refused rank had waited, in milliseconds.
        waited_ms: u64,
    },
    /// The request makes no sense.
    #[error("the request is not valid: {why}")]
    Malformed {
        /// What was wrong.
        why: String,
    },
}

fn list(arrived: &[Arrival]) -> String {
    if arrived.is_empty() {
        return "none".to_owned();
    }
    let each = arrived.iter().map(|one| format!("rank {} (host {})", one.rank, one.host));
    each.collect::<Vec<_>>().join(", ")
}

/// Why a rank did not join, or an agreement failed.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The meeting point refuses.
    #[error("rank {rank} cannot join: {refusal}")]
    Refused {
        /// This rank.
        rank: usize,
        /// Why.
        refusal: Refusal,
    },
    /// The token is another one.
    #[error("rank {rank} cannot join at {address}: {source}")]
    WrongToken {
        /// This rank.
        rank: usize,
        /// Where.
        address: SocketAddr,
        /// Which end refused.
        source: AuthError,
    },
    /// Something else listens there.
    #[error("rank {rank} cannot join at {address}: {source}; check address, port and build")]
    Protocol {
        /// This rank.
        rank: usize,
        /// Where.
        address: SocketAddr,
        /// What was wrong.
        source: AuthError,
    },
    /// No meeting point, or no answer of it, in time.
    #[error("rank {rank} got no group at {address} within {:.1} s (last: {last}); is rank 0 running, and reachable there?", waited.as_secs_f64())]
    Timeout {
        /// This rank.
        rank: usize,
        /// Where.
        address: SocketAddr,
        /// How long it tried.
        waited: Duration,
        /// What happened last.
        last: String,
    },
    /// Ranks cannot reach each other.
    #[error("control mesh of epoch {epoch} is not complete: {}; check addresses and firewalls between these hosts", failures.join("; "))]
    Mesh {
        /// The epoch that was to be.
        epoch: u32,
        /// What each rank that failed says.
        failures: Vec<String>,
    },
    /// A member went away.
    #[error("rank {left} (host {host}) left during set-up of epoch {epoch}; join again")]
    MemberLeft {
        /// Who.
        left: usize,
        /// Its machine.
        host: String,
        /// The epoch that was to be.
        epoch: u32,
    },
    /// The meeting point sent what it must not, or the connection failed during an agreement.
    #[error("rank {rank}: rendezvous at {address}: {what}")]
    Connection {
        /// This rank.
        rank: usize,
        /// Where.
        address: SocketAddr,
        /// What happened.
        what: String,
    },
    /// This rank's own data is too large or not valid.
    #[error("rank {rank} cannot join: {what}")]
    Request {
        /// This rank.
        rank: usize,
        /// What to change.
        what: String,
    },
    /// A frame could not be written.
    #[error("rendezvous: {0}")]
    Wire(#[from] WireError),
}
