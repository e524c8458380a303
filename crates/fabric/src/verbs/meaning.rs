//! What RDMA devices say when something fails: one table for the code, its tests and
//! `docs/understand/rdma-errors.md`.
//!
//! Numbers and names of completions and events are those of `enum ibv_wc_status` and
//! `enum ibv_event_type` in libibverbs' `verbs.h`, without their `IBV_WC_` and `IBV_EVENT_`.

use super::error::{Notice, VerbsCause};

/// What the status of a failed completion says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) cause: VerbsCause,
}

const fn status(number: u32, name: &'static str, cause: VerbsCause) -> Status {
    Status { number, name, cause }
}

/// All but success.
pub(super) const STATUSES: &[Status] = &[
    status(1, "LOC_LEN_ERR", VerbsCause::LocalProtection),
    status(2, "LOC_QP_OP_ERR", VerbsCause::LocalOperation),
    status(3, "LOC_EEC_OP_ERR", VerbsCause::LocalOperation),
    status(4, "LOC_PROT_ERR", VerbsCause::LocalProtection),
    status(5, "WR_FLUSH_ERR", VerbsCause::Flushed),
    status(6, "MW_BIND_ERR", VerbsCause::LocalOperation),
    status(7, "BAD_RESP_ERR", VerbsCause::RemoteOperation),
    status(8, "LOC_ACCESS_ERR", VerbsCause::LocalProtection),
    status(9, "REM_INV_REQ_ERR", VerbsCause::RemoteAccess),
    status(10, "REM_ACCESS_ERR", VerbsCause::RemoteAccess),
    status(11, "REM_OP_ERR", VerbsCause::RemoteOperation),
    status(12, "RETRY_EXC_ERR", VerbsCause::NoAnswer),
    status(13, "RNR_RETRY_EXC_ERR", VerbsCause::ReceiverNotReady),
    status(16, "REM_ABORT_ERR", VerbsCause::RemoteOperation),
    status(19, "FATAL_ERR", VerbsCause::DeviceGone),
    status(20, "RESP_TIMEOUT_ERR", VerbsCause::NoAnswer),
    status(21, "GENERAL_ERR", VerbsCause::Unknown),
];

/// What mlx5 adds to a status in `vendor_err`: its meaning is published nowhere, so these are the
/// pairs that users have reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vendor {
    pub(super) code: u32,
    /// The status it comes with.
    pub(super) status: u32,
    pub(super) what: &'static str,
    /// Where the pair was seen.
    #[cfg_attr(not(test), expect(dead_code, reason = "it is for the page"))]
    pub(super) source: &'static str,
}

const fn vendor(code: u32, status: u32, what: &'static str, source: &'static str) -> Vendor {
    Vendor { code, status, what, source }
}

pub(super) const VENDORS: &[Vendor] = &[
    vendor(0x51, 4, "local protection", "linux-rdma/perftest issue 173"),
    vendor(0x81, 12, "transport retries exceeded", "openucx/ucx issues 1880, 6000, 6669"),
    vendor(0x88, 10, "remote access refused", "UCX logs with syndrome 0x13"),
    vendor(0x89, 11, "remote operation failed", "openucx/ucx issue 5472"),
    vendor(0x8a, 9, "remote request invalid", "charmplusplus/charm issue 2532"),
    vendor(0xf9, 5, "flushed", "NVIDIA/nccl issues 1353, 1405"),
];

/// Causes that no completion tells.
#[cfg(test)]
pub(super) const WITHOUT_COMPLETION: &[VerbsCause] =
    &[VerbsCause::PortDown, VerbsCause::Stalled, VerbsCause::DeviceGone, VerbsCause::Unanswered];

/// What an asynchronous event of a device says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) notice: Notice,
    pub(super) what: &'static str,
    /// None where there is nothing to do.
    pub(super) next_step: Option<&'static str>,
}

const fn event(
    number: u32,
    name: &'static str,
    notice: Notice,
    what: &'static str,
    next_step: &'static str,
) -> Event {
    let next_step = if next_step.is_empty() { None } else { Some(next_step) };
    Event { number, name, notice, what, next_step }
}

const KERNEL: &str = "look at the kernel's messages";
const PEER: &str = "look at the completion that follows, and at the peer's log";
const CABLE: &str = "check the cable and `ip link` at both ends";
const REPORT: &str = "report this: nothing of the kind is used";

pub(super) const EVENTS: &[Event] = &[
    event(0, "CQ_ERR", Notice::Device, "a completion queue failed", KERNEL),
    event(1, "QP_FATAL", Notice::QueuePair, "a queue pair failed", PEER),
    event(2, "QP_REQ_ERR", Notice::QueuePair, "the peer sent what cannot be carried out", PEER),
    event(3, "QP_ACCESS_ERR", Notice::QueuePair, "the peer wrote where it must not", PEER),
    event(4, "COMM_EST", Notice::Other(4), "the first packet came", ""),
    event(5, "SQ_DRAINED", Notice::Other(5), "a send queue is empty", ""),
    event(6, "PATH_MIG", Notice::Other(6), "a queue pair took its other path", REPORT),
    event(7, "PATH_MIG_ERR", Notice::Other(7), "a queue pair has no other path", REPORT),
    event(8, "DEVICE_FATAL", Notice::Device, "the device failed as a whole", KERNEL),
    event(9, "PORT_ACTIVE", Notice::PortUp, "the port carries traffic again", ""),
    event(10, "PORT_ERR", Notice::PortDown, "the port stopped carrying traffic", CABLE),
    event(11, "LID_CHANGE", Notice::Other(11), "the port has another InfiniBand address", ""),
    event(12, "PKEY_CHANGE", Notice::Other(12), "the port's partitions changed", ""),
    event(13, "SM_CHANGE", Notice::Other(13), "the subnet has another manager", ""),
    event(14, "SRQ_ERR", Notice::Other(14), "a shared receive queue failed", REPORT),
    event(15, "SRQ_LIMIT_REACHED", Notice::Other(15), "a shared receive queue runs low", REPORT),
    event(16, "QP_LAST_WQE_REACHED", Notice::Other(16), "a queue pair took its last receive", ""),
    event(17, "CLIENT_REREGISTER", Notice::Other(17), "the subnet forgot its members", ""),
    event(
        18,
        "GID_CHANGE",
        Notice::Other(18),
        "an address came to a port or left it",
        "check `ip addr`: queue pairs of an address that left get no answers",
    ),
    event(19, "WQ_FATAL", Notice::Other(19), "a work queue failed", REPORT),
];

/// What is known of a status.
pub(super) fn of_status(number: u32) -> Option<&'static Status> {
    STATUSES.iter().find(|status| status.number == number)
}

/// What is known of mlx5's code that came with a status.
pub(super) fn of_vendor(code: u32, status: u32) -> Option<&'static Vendor> {
    VENDORS.iter().find(|vendor| vendor.code == code && vendor.status == status)
}

/// What is known of an event.
pub(super) fn of_event(number: u32) -> Option<&'static Event> {
    EVENTS.iter().find(|event| event.number == number)
}

/// Says in the log what an event means, if there is anything to do about it.
pub(super) fn log_event(rank: usize, device: &str, number: u32) {
    match of_event(number) {
        Some(Event { next_step: None, .. }) => {}
        Some(Event { name, what, next_step: Some(next_step), .. }) => {
            tracing::warn!(rank, device, event = name, next_step, "RDMA: {what}");
        }
        None => tracing::warn!(rank, device, number, "an RDMA event that is not known here"),
    }
}

#[cfg(test)]
#[path = "meaning_tests.rs"]
mod tests;
