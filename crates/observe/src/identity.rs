//! Who a rank is.

/// The rank's number, host and process: on every metric, in every answer and in every dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The rank's number in its group.
    pub rank: u32,
    /// The host's name.
    pub host: String,
    /// The process id.
    pub pid: u32,
}

impl Identity {
    /// The identity of this process as `rank` on `host`.
    pub fn new(rank: u32, host: impl Into<String>) -> Self {
        Self { rank, host: host.into(), pid: std::process::id() }
    }
}
