//! Writes over TCP: a connection for each neighbour and rail, carrying [frames](crate::wire).
//!
//! Bytes go from the own region to the socket and from the socket into the peer's region without
//! a copy in between, except that small writes arrive together with their headers.
//!
//! # Done
//!
//! A write is done when the peer has said that it arrived: every frame carries the count of puts
//! received on its connection. Where nothing goes back, an acknowledgement of its own follows
//! after a few frames or bytes, or a moment of quiet. It is not sent at once: most traffic is
//! answered, and each extra packet wakes somebody.
//!
//! # After a rail failed
//!
//! Its outstanding writes may be posted again on another rail while bytes of their first copies
//! are still under way. Every header names the rails that its sender holds to be down, and a
//! receiver drops those connections, a half-landed write included, before it looks at a further
//! byte of any. A write posted again always comes in a frame that names the failed rail, so once
//! its new copy is looked at, no byte of the old one can land any more. If the old one landed
//! before, the [inbox](crate::Inbox) says so and the new copy is read and dropped.
//!
//! For the same reason nothing overtakes: on the connection of the new copy, everything before it
//! has landed there or, dropped as a repeat, had landed before; and what would come later on the
//! failed rail never comes.

mod connect;
mod device;
mod error;
mod parker;
mod receive;
mod send;

pub use connect::{PeerEndpoint, TcpSetup, connect};
pub use device::TcpDevice;
pub use error::ConnectError;
pub use parker::TcpParker;

#[cfg(test)]
mod connect_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod measure_tests;
#[cfg(test)]
mod tests;
