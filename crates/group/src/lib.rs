//! Ranks together: rendezvous, collectives, beacons, patience, verdicts, recovery.

pub mod beacon;
pub mod collective;
pub mod control;
mod group;
mod member;
mod paths;
pub mod patience;
mod pulse;
mod rdma_metrics;
mod remake;
mod remaker;
pub mod rendezvous;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
pub mod verdict;
mod watch;

pub use fabric::auth;
pub use group::{Group, Informant};
pub use member::{Carrier, CutRails, FormError, Member, MemberOptions, TransportChoice};
pub use paths::{Demotions, ForwardWitness, RuleHits};
pub use telemetry::{Telemetry, record_of};
pub use watch::ControlWatch;
