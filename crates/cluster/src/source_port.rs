//! UDP source ports of RoCE v2 packets: what follows from a flow label, and which labels keep clear of the tag.
//!
//! A queue pair whose flow label is 0 is not without a port: an mlx5 device then makes a label from both queue pair
//! numbers. About one pair of numbers in 16,000 gives the tag's port, and packets of such a pair, meant for a
//! neighbour, would be passed on beyond it. With tags by source port a neighbour's queue pair therefore gets a label of
//! its own, from [`safe_flow_label`].

/// Bits of a flow label.
pub const FLOW_LABEL_MASK: u32 = 0xF_FFFF;

/// Flow label of queue pairs of forwarded rails, with tags by source port.
pub const TAG_FLOW_LABEL: u32 = 16383;

/// The source port that [`TAG_FLOW_LABEL`] gives: packets from it are passed on.
pub const TAG_SOURCE_PORT: u16 = 65535;

/// A flow label for queue pairs to neighbours, with tags by source port: it is not 0, so no device replaces it, and its
/// port, 49153, is not the tag's.
pub const NEIGHBOUR_FLOW_LABEL: u32 = 1;

/// The UDP source port of a flow label, of which the lower 20 bits count: what the Linux kernel gives it
/// (`rdma_flow_label_to_udp_sport` in `include/rdma/ib_verbs.h`). Always 49152 or more.
///
/// ```
/// use cluster::source_port::{source_port, TAG_FLOW_LABEL, TAG_SOURCE_PORT};
///
/// assert_eq!(source_port(TAG_FLOW_LABEL), TAG_SOURCE_PORT);
/// ```
pub const fn source_port(flow_label: u32) -> u16 {
    let folded = (flow_label & 0x3FFF) ^ ((flow_label & 0xF_C000) >> 14);
    // 14 bits under 0xC000: at most 0xFFFF.
    (0xC000 | folded) as u16
}

/// The flow label an mlx5 device gives a queue pair whose label is 0, from the numbers of both queue pairs: what the
/// Linux kernel computes (`rdma_calc_flow_label` in `include/rdma/ib_verbs.h`). The same from both ends.
pub const fn hashed_flow_label(qpn_a: u32, qpn_b: u32) -> u32 {
    let mut v = qpn_a as u64 * qpn_b as u64;
    v ^= v >> 20;
    v ^= v >> 40;
    (v & FLOW_LABEL_MASK as u64) as u32
}

/// The source port of a queue pair: of its label, or of the label its device makes where it is 0.
pub const fn queue_pair_port(flow_label: u32, qpn_a: u32, qpn_b: u32) -> u16 {
    match flow_label & FLOW_LABEL_MASK {
        0 => source_port(hashed_flow_label(qpn_a, qpn_b)),
        label => source_port(label),
    }
}

/// Whether a queue pair with this label can never be taken for a forwarded one: the label is not 0 (a device would
/// replace it) and its port is not the tag's.
pub const fn is_safe(flow_label: u32) -> bool {
    flow_label & FLOW_LABEL_MASK != 0 && source_port(flow_label) != TAG_SOURCE_PORT
}

/// The wanted label if it is safe, else the next one that is. Never 0, and never one whose port is the tag's.
///
/// ```
/// use cluster::source_port::{safe_flow_label, TAG_FLOW_LABEL};
///
/// assert_eq!(safe_flow_label(7), 7);
/// assert_eq!(safe_flow_label(0), 1);
/// assert_ne!(safe_flow_label(TAG_FLOW_LABEL), TAG_FLOW_LABEL);
/// ```
pub const fn safe_flow_label(wanted: u32) -> u32 {
    let mut label = wanted & FLOW_LABEL_MASK;
    // Two labels in a row never share a port, and 0 is one label: the third try at the latest ends this.
    while !is_safe(label) {
        label = (label + 1) & FLOW_LABEL_MASK;
    }
    label
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn exactly_64_labels_give_the_tags_port() {
        let tagged: Vec<u32> =
            (0..=FLOW_LABEL_MASK).filter(|&label| source_port(label) == TAG_SOURCE_PORT).collect();
        assert_eq!(tagged.len(), 64);
        assert_eq!(tagged.first(), Some(&TAG_FLOW_LABEL));
        // One for each value of the upper six bits.
        let upper: std::collections::BTreeSet<u32> =
            tagged.iter().map(|label| label >> 14).collect();
        assert_eq!(upper.len(), 64);
    }

    #[test]
    fn ports_of_known_labels() {
        // By hand from the formula: the upper six bits are folded onto the lowest.
        for (label, port) in [
            (0, 49152),
            (1, 49153),
            (16383, 65535),
            (16384, 49153),
            (0xFFFFF, 65472),
            (0xFFFC0, 65535),
        ] {
            assert_eq!(source_port(label), port, "{label:#x}");
        }
    }

    #[test]
    fn every_label_has_a_safe_one_close_by() {
        for wanted in 0..=FLOW_LABEL_MASK {
            let label = safe_flow_label(wanted);
            assert!(is_safe(label), "{wanted:#x} gives {label:#x}");
            assert!(
                (label.wrapping_sub(wanted) & FLOW_LABEL_MASK) <= 2,
                "{wanted:#x} gives {label:#x}"
            );
            assert_ne!(queue_pair_port(label, 5, 7), TAG_SOURCE_PORT);
        }
        assert!(is_safe(NEIGHBOUR_FLOW_LABEL));
        assert!(!is_safe(TAG_FLOW_LABEL));
    }

    #[test]
    fn a_label_of_0_can_land_on_the_tag() {
        // 1 × 16383 needs no folding: two numbers a device may well give.
        assert_eq!(hashed_flow_label(1, 16383), TAG_FLOW_LABEL);
        assert_eq!(queue_pair_port(0, 1, 16383), TAG_SOURCE_PORT);
        // Folded by hand: 0x10000 × 0x10000 = 1 << 32; >> 20 gives 1 << 12.
        assert_eq!(hashed_flow_label(0x1_0000, 0x1_0000), 1 << 12);
        // Both folds: 1 << 46 gives 1 << 26 after the first, and 1 << 6 after the second.
        assert_eq!(hashed_flow_label(1 << 23, 1 << 23), 1 << 6);
    }

    proptest! {
        #[test]
        fn both_ends_hash_to_one_label(a in 0_u32..1 << 24, b in 0_u32..1 << 24) {
            prop_assert_eq!(hashed_flow_label(a, b), hashed_flow_label(b, a));
            prop_assert!(hashed_flow_label(a, b) <= FLOW_LABEL_MASK);
            prop_assert!(source_port(hashed_flow_label(a, b)) >= 0xC000);
        }

        #[test]
        fn bits_above_the_label_do_not_count(label in any::<u32>()) {
            prop_assert_eq!(source_port(label), source_port(label & FLOW_LABEL_MASK));
        }
    }
}
