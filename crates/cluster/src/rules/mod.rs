//! What a host has to have set so that the plan's paths carry bytes, and what has to change there.
//!
//! [`desired`] says what follows from the plan for one rank. [`compare`] holds it against the state of the host and
//! gives the changes, in an order that is safe, or refuses by name. Nothing here touches a machine: a [`Change`] is a
//! value, with the command that carries it out.
//!
//! Railweave owns what carries its mark: routes and neighbours with the routing protocol number [`PROTOCOL`], ingress
//! and egress filters with a preference in [`PREFERENCES`], and systemd units named `railweave-mark-…`. It changes and removes
//! nothing else. A setting of a NIC (hairpin queues, steering mode, offload) carries no mark, so it is set and never
//! put back.

mod change;
mod command;
mod compare;
mod desired;
mod filters;
mod links;
mod mark;
mod marker;
mod nic;
mod queue_pairs;
mod refusal;
mod relay;
mod script;
mod spec;
mod tables;
mod teardown;
mod unit;

pub use change::{Change, When};
pub use compare::{Comparison, Unmeasured, compare};
pub use desired::{
    Desired, DesiredFilter, DesiredFunction, DesiredMarker, DesiredRoute, Nic, desired,
};
pub(crate) use filters::is_own as is_own_filter;
pub(crate) use mark::{is_own as is_own_mark, specs as mark_specs};
pub use marker::{MarkerProgram, MarkerRules, TcMark, marker_unit};
pub use queue_pairs::{QueuePair, QueuePairsError, live_queue_pairs};
pub use refusal::Refusal;
pub use script::{diff, script};
pub use spec::{FilterSpec, MarkSpec, NeighbourSpec, RouteSpec};
pub use teardown::{down, teardown};
pub use unit::{UnitError, unit};

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// The routing protocol number that marks routes and neighbours as Railweave's: none that the kernel, iproute2 or a
/// routing daemon has a name for.
pub const PROTOCOL: u8 = 157;

/// Preferences of Railweave's filters. A filter's handle is its preference less [`PREFERENCE_BASE`].
pub const PREFERENCES: RangeInclusive<u32> = PREFERENCE_BASE + 1..=PREFERENCE_BASE + 99;

/// What preferences count from.
pub const PREFERENCE_BASE: u32 = 18_800;

/// The EtherType that tags count from: a tag is this and the number of relays left. 0x88b5, one relay left, is the
/// first of IEEE 802's two local experimental EtherTypes.
pub const TAG_BASE: u16 = 0x88b4;

/// The UDP port that RoCE v2 packets go to.
pub(crate) const ROCE_PORT: u16 = 4791;

/// The EtherType of IPv4, and so of a RoCE v2 packet that is not tagged.
pub const IPV4: u16 = 0x0800;

/// Hairpin queues for each pair of functions that pass packets on.
pub const HAIRPIN_QUEUES: u32 = 4;

/// Entries of a hairpin queue. It cannot pause its sender, so what does not fit is lost: with the driver's 1024
/// entries published measurements saw losses from 100 KB messages on, with 8192 only above 480 KB.
pub const HAIRPIN_ENTRIES: u32 = 8192;

/// The steering mode in which these NICs take both kinds of rules.
pub const STEERING: &str = "hmfs";

/// What the owner allows, and with what packets are marked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleOptions {
    /// Addresses may be added and links set up; otherwise they are only compared.
    pub set_addresses: bool,
    /// The MTU may be changed; otherwise it is only compared.
    pub set_mtu: bool,
    /// Functions that pass packets on are reloaded even if their hairpin queues look right. The value that devlink
    /// shows is the one last set, not the one in use, so after an apply that was cut off in between only this helps. It is done each time it is asked for.
    pub reload: bool,
    /// The programs that mark packets; none leaves marking to the owner.
    pub marker: Option<MarkerProgram>,
}

impl Default for RuleOptions {
    fn default() -> Self {
        Self {
            set_addresses: false,
            set_mtu: false,
            reload: false,
            marker: Some(MarkerProgram::default()),
        }
    }
}

/// Whether a protocol, as `ip` prints it with or without `-N`, is [`PROTOCOL`].
pub(crate) fn is_own_protocol(text: &str) -> bool {
    text == "railweave" || text.parse() == Ok(PROTOCOL)
}
