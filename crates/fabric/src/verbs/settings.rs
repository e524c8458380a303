//! How queue pairs are set up.

use std::time::Duration;

use cluster::source_port::{TAG_SOURCE_PORT, source_port};

use super::error::VerbsError;

/// Parameters of queue pairs. All ranks of a group use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsSettings {
    /// Decides the UDP source port of packets to neighbours; never 0, which some devices replace by
    /// a hash of both queue pairs' numbers.
    pub flow_label: u32,
    /// The traffic class: priority and congestion marks.
    pub traffic_class: u8,
    /// How many routers a packet may pass.
    pub hop_limit: u8,
    /// A packet is sent again when it was not acknowledged for 4.096 µs × 2^this.
    pub timeout: u8,
    /// How often it is sent again; at most 6, as 7 means for ever on soft-RoCE.
    pub retry_count: u8,
    /// How often a receiver that is not ready is tried again; at most 6, as 7 means for ever.
    pub rnr_retry: u8,
    /// A queue pair whose oldest write has had no completion for so long is failed.
    pub stall_limit: Duration,
}

impl Default for VerbsSettings {
    fn default() -> Self {
        Self {
            flow_label: 1,
            traffic_class: 0,
            hop_limit: 64,
            timeout: 14,
            retry_count: 6,
            rnr_retry: 6,
            stall_limit: Duration::from_secs(5),
        }
    }
}

impl VerbsSettings {
    /// Checks what a device would refuse or, worse, take.
    ///
    /// # Errors
    /// The first setting that cannot be.
    pub fn check(&self) -> Result<(), VerbsError> {
        let wrong = |key, value: u64, what| Err(VerbsError::Setting { key, value, what });
        if !(1..1 << 20).contains(&self.flow_label) {
            return wrong("flow_label", self.flow_label.into(), "it must be from 1 to 1048575");
        }
        if source_port(self.flow_label) == TAG_SOURCE_PORT {
            let what = "its packets to a neighbour would leave from the tag port 65535 and be \
                        forwarded";
            return wrong("flow_label", self.flow_label.into(), what);
        }
        if !(1..=31).contains(&self.timeout) {
            return wrong("timeout", self.timeout.into(), "it must be from 1 to 31");
        }
        for (key, value) in [("retry_count", self.retry_count), ("rnr_retry", self.rnr_retry)] {
            if value > 6 {
                return wrong(key, value.into(), "it must be at most 6: 7 means for ever");
            }
        }
        if self.stall_limit.is_zero() {
            return wrong("stall_limit", 0, "no write completes at once");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused() {
        let good = VerbsSettings::default();
        assert!(good.check().is_ok());
        for bad in [
            VerbsSettings { flow_label: 0, ..good },
            VerbsSettings { flow_label: 0x3fff, ..good },
            VerbsSettings { flow_label: 1 << 20, ..good },
            VerbsSettings { retry_count: 7, ..good },
            VerbsSettings { rnr_retry: 7, ..good },
            VerbsSettings { timeout: 0, ..good },
        ] {
            assert!(matches!(bad.check(), Err(VerbsError::Setting { .. })), "{bad:?}");
        }
    }
}
