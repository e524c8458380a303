//! Why verbs cannot be used, and why a queue pair failed.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::counters::Rises;
use super::meaning;

/// Why the verbs transport could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no libibverbs on this host.
    #[error(
        "libibverbs cannot be used: {what}; install rdma-core (Debian: libibverbs1 and \
         ibverbs-providers) or use the transport tcp"
    )]
    NoLibrary {
        /// What the loader said.
        what: String,
    },
    /// The kernel has no RDMA devices.
    #[error(
        "this host has no RDMA devices{}; load the driver of its card or use the transport tcp",
        source.as_ref().map(|error| format!(" ({error})")).unwrap_or_default()
    )]
    NoDevices {
        /// What the library said, if anything.
        source: Option<io::Error>,
    },
    /// No device carries an address.
    #[error(
        "no RDMA device has a RoCE v2 GID for {address}; there are {found}; give the address to \
         a port of an RDMA device, or take one of those"
    )]
    NoGid {
        /// The address for data.
        address: IpAddr,
        /// The RoCE v2 GIDs with an IPv4 address that were found.
        found: String,
    },
    /// A device refused a step.
    #[error("RDMA device {device} cannot {what}: {source}{hint}")]
    Device {
        /// The device.
        device: String,
        /// The step.
        what: &'static str,
        /// What it said.
        source: io::Error,
        /// The known cause and what to do, if there is one; starts with a separator.
        hint: String,
    },
    /// The port of a device is not up.
    #[error(
        "port {port} of RDMA device {device} is not active (state {state}); check its cable and \
         `ip link`"
    )]
    PortInactive {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state by number, as in `enum ibv_port_state`.
        state: u32,
    },
    /// A queue pair could not be connected.
    #[error(
        "rank {rank} cannot bring its queue pair to rank {peer} on rail {rail} (device {device} \
         to {remote}) to {state}: {source}{hint}"
    )]
    QueuePair {
        /// This rank.
        rank: usize,
        /// The neighbour.
        peer: usize,
        /// The rail.
        rail: usize,
        /// The own device.
        device: String,
        /// The neighbour's device.
        remote: String,
        /// The state that was refused.
        state: &'static str,
        /// What the device said.
        source: io::Error,
        /// The known cause and what to do, if there is one; starts with a separator.
        hint: String,
    },
    /// The two ends of a queue pair were not given the same.
    #[error(
        "rank {rank} and rank {peer} differ for rail {rail}: {key} is {own} at rank {rank} and \
         {theirs} at rank {peer}; give both the same settings and the same plan"
    )]
    Differs {
        /// This rank.
        rank: usize,
        /// The other one.
        peer: usize,
        /// The rail.
        rail: usize,
        /// What differs.
        key: &'static str,
        /// This rank's value.
        own: u64,
        /// The other's.
        theirs: u64,
    },
    /// The packets of a queue pair leave from the wrong UDP source port.
    #[error(
        "rank {rank} cannot use its queue pair to rank {peer} on rail {rail}: packets of device \
         {device} leave from UDP source port {seen}{}",
        match wanted {
            Some(port) => format!(
                ", and those of a forwarded rail must leave from the tag port {port} or no marker \
                 matches them; the device does not follow the flow label: plan with destination tags"
            ),
            None => ", the tag port: they would be passed on beyond the neighbour; the device does \
                     not follow the flow label: plan with destination tags"
                .to_owned(),
        }
    )]
    SourcePort {
        /// This rank.
        rank: usize,
        /// The other one.
        peer: usize,
        /// The rail.
        rail: usize,
        /// The own device.
        device: String,
        /// The port.
        seen: u16,
        /// The tag port, for a forwarded rail; for a neighbour's, any other than the one seen.
        wanted: Option<u16>,
    },
    /// What the other end of a rail told is missing or cannot be read.
    #[error("rank {peer} told nothing of its end of rail {rail} that rank {rank} can read")]
    Peer {
        /// This rank.
        rank: usize,
        /// The other one.
        peer: usize,
        /// The rail.
        rail: usize,
    },
    /// A setting that cannot be.
    #[error("{key} is {value}: {what}")]
    Setting {
        /// Which.
        key: &'static str,
        /// Its value.
        value: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The system refused what this rank needs to sleep.
    #[error("cannot watch RDMA devices: {source}")]
    Watch {
        /// What it said.
        source: io::Error,
    },
}

/// The known causes of a refused registration.
pub(super) fn registration_hint(error: &io::Error, bytes: u64, memlock: Option<u64>) -> String {
    let refused = matches!(
        error.raw_os_error().map(rustix::io::Errno::from_raw_os_error),
        Some(rustix::io::Errno::NOMEM | rustix::io::Errno::AGAIN | rustix::io::Errno::PERM)
    );
    match memlock {
        Some(limit) if limit < bytes => format!(
            "; the region has {bytes} bytes and this process may lock {limit} (RLIMIT_MEMLOCK): \
             raise it with `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or \
             memlock in /etc/security/limits.conf"
        ),
        _ if refused => format!(
            "; {bytes} bytes could not be pinned although RLIMIT_MEMLOCK allows it: on kernels \
             with kexec handover (CMA areas that cannot be pinned) boot with kho=off, otherwise \
             free memory or lower fabric.heap_bytes on every rank"
        ),
        _ => String::new(),
    }
}

/// The known causes of a refused change of state.
pub(super) fn state_hint(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::TIMEDOUT | Errno::HOSTUNREACH) => {
            "; the neighbour's hardware address is not resolved: check the cable, and `ip neigh` \
             for its address"
        }
        Some(Errno::NETUNREACH) => {
            "; there is no route to the neighbour's address over this device: check `ip route get`"
        }
        Some(Errno::NODATA) => {
            "; the GID's slot is empty by now: the address left the port, check `ip addr`"
        }
        Some(Errno::INVAL) => "; the device refuses a parameter: its port may be down",
        _ => "",
    }
}

/// What a failed queue pair means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerbsCause {
    /// The own port reported an error, and nothing was acknowledged since.
    PortDown,
    /// Nothing was acknowledged however often it was sent.
    NoAnswer,
    /// The peer had no receive posted.
    ReceiverNotReady,
    /// The peer's device refused access to its memory.
    RemoteAccess,
    /// The peer's device could not do what it was asked.
    RemoteOperation,
    /// The own device refused access to its own memory.
    LocalProtection,
    /// The own device could not carry it out.
    LocalOperation,
    /// The queue pair was in error already, for a reason that no completion told.
    Flushed,
    /// Neither a completion nor an error came.
    Stalled,
    /// The device is gone or failed as a whole.
    DeviceGone,
    /// The peer did not answer on its other rails.
    Unanswered,
    /// A status that is not in the table.
    Unknown,
}

impl VerbsCause {
    /// What a completion's status says, by its number in `enum ibv_wc_status`.
    pub(super) fn of_status(status: u32) -> Self {
        meaning::of_status(status).map_or(Self::Unknown, |known| known.cause)
    }

    pub(super) fn what(self) -> &'static str {
        match self {
            Self::PortDown => "the own port went down and nothing was acknowledged since",
            Self::NoAnswer => "nothing was acknowledged however often it was sent",
            Self::ReceiverNotReady => "the peer had no receive posted",
            Self::RemoteAccess => "the peer's device refused access to its memory",
            Self::RemoteOperation => "the peer's device could not carry it out",
            Self::LocalProtection => "the own device refused access to its memory",
            Self::LocalOperation => "the own device could not carry it out",
            Self::Flushed => "the queue pair was in error already",
            Self::Stalled => "neither a completion nor an error came",
            Self::DeviceGone => "the device failed or is gone",
            Self::Unanswered => "the peer gave no answer on its other rails",
            Self::Unknown => "the device reported a status that is not known here",
        }
    }

    pub(super) fn next_step(self) -> &'static str {
        match self {
            Self::PortDown => "check the cable and `ip link` at both ends",
            Self::NoAnswer => {
                "check the cable, the peer, and for a forwarded path the rules on the hosts between"
            }
            Self::ReceiverNotReady => "report this: credits should keep it from happening",
            Self::RemoteAccess | Self::LocalProtection => {
                "the two ends do not agree on memory: restart both with the same version"
            }
            Self::RemoteOperation => "look at the peer's log and kernel messages",
            Self::LocalOperation => "check `ip link` of the device and the kernel's messages",
            Self::Flushed => "look at the peer's log: its end may have failed first",
            Self::Stalled => {
                "check `ip link` of the device; soft-RoCE stalls when its link is down"
            }
            Self::DeviceGone => "look at the kernel's messages",
            Self::Unanswered => "the peer is stopped or its host is",
            Self::Unknown => "look at the kernel's messages and the device's counters",
        }
    }
}

/// Why a queue pair failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsFault {
    /// What it means.
    pub cause: VerbsCause,
    /// The own device.
    pub device: String,
    /// The completion's status, by its number in `enum ibv_wc_status`; none without a completion.
    pub status: Option<u32>,
    /// The driver's own code that came with it.
    pub vendor_error: u32,
    /// How long the oldest write had been outstanding, if one was.
    pub after: Option<Duration>,
    /// What the device counted since the epoch began; none if that was not measured.
    pub rises: Option<Rises>,
}

/// The counters are left out where they were not measured; `{:#}` says so.
impl fmt::Display for VerbsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.cause.what(), self.device)?;
        if let Some(after) = self.after {
            write!(f, " for {:.2} s", after.as_secs_f64())?;
        }
        match self.status {
            Some(status) => {
                let name = meaning::of_status(status).map_or("not known", |known| known.name);
                write!(f, " (status {status} {name}, vendor error {:#x}", self.vendor_error)?;
                // Other drivers have no codes of their own, and leave 0.
                if let Some(vendor) = meaning::of_vendor(self.vendor_error, status) {
                    write!(f, " {}", vendor.what)?;
                }
                f.write_str(")")?;
            }
            None => f.write_str(" (no completion)")?,
        }
        match &self.rises {
            Some(rises) => write!(f, "; in this epoch {rises}")?,
            None if f.alternate() => f.write_str("; its counters are not measured")?,
            None => {}
        }
        write!(f, "; {}", self.cause.next_step())
    }
}

/// What an asynchronous event of a device says about its queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The port stopped carrying traffic.
    PortDown,
    /// It carries traffic again.
    PortUp,
    /// One queue pair failed: the one with this number's handle.
    QueuePair,
    /// The device failed as a whole.
    Device,
    /// Nothing that ends a queue pair: the event by its number.
    Other(u32),
}

impl Notice {
    /// By the number in `enum ibv_event_type`.
    pub(super) fn of_event(event: u32) -> Self {
        meaning::of_event(event).map_or(Self::Other(event), |known| known.notice)
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::Rise;
    use super::*;

    fn os(errno: rustix::io::Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn the_limit_is_named_when_it_is_to_blame() {
        let error = os(rustix::io::Errno::NOMEM);
        let hint = registration_hint(&error, 1 << 20, Some(64 << 10));
        assert!(hint.contains("65536 (RLIMIT_MEMLOCK)"), "{hint}");
        let hint = registration_hint(&error, 1 << 20, None);
        assert!(hint.contains("kho=off") && !hint.contains("ulimit"), "{hint}");
        assert_eq!(registration_hint(&os(rustix::io::Errno::INVAL), 5, None), "");
    }

    #[test]
    fn a_fault_says_where_why_and_what_next() {
        let rise = |counter, by| Rise { counter, by };
        let mut fault = VerbsFault {
            cause: VerbsCause::of_status(12),
            device: "n0r".to_owned(),
            status: Some(12),
            vendor_error: 0x81,
            after: Some(Duration::from_millis(480)),
            rises: None,
        };
        let start = "nothing was acknowledged however often it was sent on n0r for 0.48 s (status \
                     12 RETRY_EXC_ERR, vendor error 0x81 transport retries exceeded)";
        let end = "; check the cable, the peer, and for a forwarded path the rules on the hosts \
                   between";
        assert_eq!(fault.to_string(), format!("{start}{end}"));
        assert_eq!(format!("{fault:#}"), format!("{start}; its counters are not measured{end}"));
        let named = vec![rise("req_transport_retries_exceeded", 8), rise("packet_seq_err", 4830)];
        fault.rises = Some(Rises { named, more: 2 });
        let counted = "; in this epoch req_transport_retries_exceeded +8, packet_seq_err +4830 \
                       and 2 more";
        assert_eq!(fault.to_string(), format!("{start}{counted}{end}"));
        fault.rises = Some(Rises::default());
        assert_eq!(fault.to_string(), format!("{start}; in this epoch no loss counted{end}"));
    }

    #[test]
    fn a_code_is_explained_only_beside_the_status_it_was_seen_with() {
        let mut fault = VerbsFault {
            cause: VerbsCause::of_status(77),
            device: "n0r".to_owned(),
            status: Some(77),
            vendor_error: 0x81,
            after: None,
            rises: None,
        };
        assert_eq!(fault.cause, VerbsCause::Unknown);
        let text = fault.to_string();
        assert!(text.contains("(status 77 not known, vendor error 0x81);"), "{text}");
        fault.status = None;
        assert!(fault.to_string().contains("on n0r (no completion);"), "{fault}");
    }
}
