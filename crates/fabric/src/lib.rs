//! Bytes between two ranks: regions, puts, flags, rails and relays.
//!
//! A rank owns one [`Region`] for an epoch. Others write into it and raise a flag that this rank
//! sees only after the bytes. [`Topology`] says which ranks a cable joins; [`Endpoint`] decides
//! which rail carries what, re-sends after a rail failed and passes on what is meant for others;
//! a [`Device`] moves the bytes. [`Fabric`] is the face for threads.
//!
//! No wait in this crate is unbounded and nothing from a peer is trusted: lengths, offsets and
//! headers are checked before a byte is written.

pub mod auth;
pub mod bell;
mod buffer;
mod chunk;
mod device;
mod endpoint;
mod eventfd;
mod fabric;
mod inbox;
mod layout;
mod proof;
mod reduce;
mod region;
pub mod shm;
pub mod sim;
pub mod tcp;
mod topology;
pub mod verbs;
pub mod wire;
mod wiring;

pub use buffer::{Buffer, Element, bytes_of, bytes_of_mut};
pub use chunk::{CHUNK_HEAD_BYTES, ChunkError, ChunkExpect, ChunkHead};
pub use device::{
    Device, Event, FlagWrite, HEAD_BYTES_MAX, Head, Parker, PostError, Posted, RailFault, Span,
    Wake, Write,
};
pub use endpoint::{
    Backlog, Counters, Endpoint, EndpointSettings, FabricError, Notice, PUTS_MAX, PathKind, Put,
};
pub use fabric::{Fabric, FabricParts, HeapFull, Waiting};
pub use inbox::{Arrival, FIRST_NUMBER, INBOX_WINDOW, Inbox};
pub use layout::{
    BEACON_BYTES, Channel, FIRST_VALUE, Flow, LANES_MAX, LINE_BYTES, Layout, MAILBOX_DEPTH,
    MAILBOX_HEAD_BYTES, SMALL_BYTES_MAX, Sizes,
};
pub use proof::{Probe, Unproven};
pub use reduce::{ReduceError, Reduction, Scalar, Source, Target, reduce};
pub use region::{OutOfRegion, Region};
pub use topology::{
    Cable, DistantRail, Lane, MAX_RAILS, MAX_RANKS, Shape, Topology, TopologyError, Way,
};
pub use wiring::{DataAddresses, Transport, Wiring, WiringError, WiringSettings};
