//! How queue pairs are set up.

use std::time::Duration;

use super::error::VerbsError;

/// Parameters of queue pairs. All ranks of a group use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsSettings {
    /// Decides the UDP source port of all packets; never 0, which some devices replace by a hash.
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

/// The source port that markers of forwarded paths match.
const TAG_PORT: u16 = 65535;

/// The UDP source port that follows from a flow label: Annex A17 of the InfiniBand specification
/// leaves it to the sender, and Linux folds the upper six bits of the label onto the lower 14
/// (`rdma_flow_label_to_udp_sport`).
pub fn udp_source_port(flow_label: u32) -> u16 {
    let folded = (flow_label & 0x3fff) ^ ((flow_label & 0xf_c000) >> 14);
    0xc000 | folded as u16
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
        if udp_source_port(self.flow_label) == TAG_PORT {
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
    fn labels_give_the_ports_that_were_measured() {
        assert_eq!(udp_source_port(0x3fff), 65535);
        assert_eq!(udp_source_port(0x12345), 58177);
        assert_eq!(udp_source_port(1), 49153);
    }

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
