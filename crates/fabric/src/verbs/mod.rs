//! Writes over RDMA: a reliable queue pair for each neighbour and rail.
//!
//! A write's bytes go as RDMA WRITE from the own region into the peer's; its flag follows as an
//! inline RDMA WRITE on the same queue pair, which lands only after the bytes. The flag's write
//! carries an immediate value, so each has a completion at the peer too: that wakes whoever sleeps
//! there, and counts what landed.
//!
//! # Why no crate
//!
//! libibverbs is loaded at run time, so nothing of rdma-core is needed to build or to start. Of
//! the crates, `rdma-mummy-sys` does the same, and needs cmake and libclang on every machine that
//! builds this; `sideway`, over it, has no finished completion channels. About twenty calls and
//! fifteen structures are used here, all of the interface that has been stable for as long as the
//! library has symbol versions; a test compares their layouts with the installed header's.
//!
//! # Room at the receiver
//!
//! An immediate value takes one of the receives that the peer posted, and a queue pair without one
//! makes its sender wait and then fail. So flags are sent on credit: a peer tells from time to
//! time how many it took note of. A rank that is stopped thus makes its senders' queue pairs full,
//! not broken.
//!
//! # After a rail failed
//!
//! A queue pair that fails has lost acknowledgements, so its sender cannot know which writes
//! landed, and a write that is posted again must not land twice. Each end therefore brings its
//! queue pair to the error state, after which nothing lands there, takes what completions remain,
//! and tells the other end over another rail how many flags had come. What those announced is
//! done; what is left was seen by nobody and may be written again. Only then is the owner told.
//! Without another rail there is nowhere to write again, and it is told at once.
//!
//! A queue pair may also stall with neither completion nor error: soft-RoCE does when its own link
//! is taken down. One whose oldest write has made no progress for
//! [`stall_limit`](VerbsSettings::stall_limit) is failed.

mod abi;
mod connect;
mod counters;
mod device;
#[cfg(any(test, feature = "testing"))]
pub mod double;
mod end;
mod error;
mod ffi;
mod gid;
mod meaning;
mod parker;
mod provider;
mod queue_pair;
mod raise;
mod remake;
mod settings;
mod told;
mod word;

pub use connect::{Forwarded, VerbsEnd, VerbsEnds, VerbsNeighbour, VerbsSetup, available};
pub use counters::{Count, CounterGroup, DEVICES_ROOT, DevicePort, PortCounts, Rise, Rises};
pub use device::VerbsDevice;
pub use error::{VerbsCause, VerbsError, VerbsFault};
pub use parker::VerbsParker;
pub use settings::VerbsSettings;
