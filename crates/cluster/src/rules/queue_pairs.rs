//! Queue pairs that are connected: rules never change under them.

use serde::{Deserialize, Serialize};

/// A queue pair of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePair {
    /// RDMA device.
    pub device: String,
    /// Its number.
    pub number: u32,
    /// Its state: `RTR`, `RTS`, `SQD`.
    pub state: String,
    /// The process that has it, if the kernel says so.
    pub pid: Option<u32>,
    /// The process's name.
    pub process: String,
}

/// What was not the output of `rdma -j resource show qp`.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read the output of `rdma -j resource show qp`: {source}; is the rdma tool of iproute2 there?"
)]
pub struct QueuePairsError {
    /// What is wrong with it.
    source: serde_json::Error,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    ifname: String,
    #[serde(default)]
    lqpn: u32,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    state: String,
    pid: Option<u32>,
    #[serde(default)]
    comm: String,
}

/// The queue pairs in `rdma -j resource show qp` through which bytes may be moving: those of processes (the kernel's
/// own, of types GSI and SMI, carry no data) that are connected (`RTR`, `RTS`, `SQD`, `SQE`).
///
/// Rules of one host carry queue pairs of others, so before [`super::Comparison::needs_quiet`] changes this has to be
/// empty on every host of the cluster, not only on the one that changes.
///
/// # Errors
///
/// If the text is something else.
pub fn live_queue_pairs(text: &str) -> Result<Vec<QueuePair>, QueuePairsError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let entries: Vec<Entry> =
        serde_json::from_str(text).map_err(|source| QueuePairsError { source })?;
    Ok(entries
        .into_iter()
        .filter(|entry| !matches!(entry.kind.as_str(), "GSI" | "SMI"))
        .filter(|entry| matches!(entry.state.as_str(), "RTR" | "RTS" | "SQD" | "SQE"))
        .map(|entry| QueuePair {
            device: entry.ifname,
            number: entry.lqpn,
            state: entry.state,
            pid: entry.pid,
            process: entry.comm,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connected_queue_pairs_of_processes_count() {
        let text = r#"[
            {"ifindex":0,"ifname":"rocep1s0f0","port":1,"lqpn":1,"type":"GSI","state":"RTS","sq-psn":0,"comm":"ib_core"},
            {"ifindex":0,"ifname":"rocep1s0f0","port":1,"lqpn":208,"rqpn":210,"type":"RC","state":"RTS","pid":77,"comm":"python3"},
            {"ifindex":0,"ifname":"rocep1s0f0","port":1,"lqpn":209,"type":"RC","state":"INIT","pid":77,"comm":"python3"},
            {"ifindex":1,"ifname":"rocep1s0f1","lqpn":5,"type":"UD","state":"RTR"}]"#;
        let live = live_queue_pairs(text).unwrap();
        let seen: Vec<_> = live.iter().map(|qp| (qp.device.as_str(), qp.number, qp.pid)).collect();
        assert_eq!(seen, [("rocep1s0f0", 208, Some(77)), ("rocep1s0f1", 5, None)]);
        assert_eq!(live[0].process, "python3");
    }

    #[test]
    fn no_output_is_no_queue_pair_and_other_output_is_an_error() {
        assert_eq!(live_queue_pairs("\n").unwrap(), []);
        assert_eq!(live_queue_pairs("[]").unwrap(), []);
        let error = live_queue_pairs("rdma: command not found").unwrap_err();
        assert!(error.to_string().contains("rdma -j resource show qp"), "{error}");
    }
}
