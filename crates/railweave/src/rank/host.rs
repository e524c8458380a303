//! Which machine this is, and how the others reach it.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use fabric::auth::AuthError;

/// What cannot be found out about addresses, or not be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressError {
    /// A port or address that cannot be listened at.
    #[error("cannot listen at {address}: {source}; choose another port, or 0 for any free one")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The meeting point has no address.
    #[error("master is {master:?}, which has no address: {source}; write it as HOST:PORT")]
    Master {
        /// What was given.
        master: String,
        /// What the system said.
        source: io::Error,
    },
    /// No way to the meeting point.
    #[error("no interface of this machine leads to {master}: {source}; set address by hand")]
    NoRoute {
        /// Where to.
        master: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Text that is no address.
    #[error("{key} has {text:?}, which is no IP address")]
    NotAnAddress {
        /// The setting.
        key: &'static str,
        /// What was written.
        text: String,
    },
    /// The group's secret cannot be used.
    #[error(transparent)]
    Token(AuthError),
}

/// The name of this machine.
pub(super) fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What tells this machine, since it was started, from others.
pub(super) fn id() -> String {
    let read =
        |path| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    // Two network namespaces of one machine reach each other by cables only.
    let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!(
        "{} {} {} {}",
        name(),
        read("/etc/machine-id"),
        read("/proc/sys/kernel/random/boot_id"),
        network.display()
    )
}

/// The first address of HOST:PORT.
pub(super) fn resolve(master: &str) -> Result<SocketAddr, AddressError> {
    let failed = |source| AddressError::Master { master: master.to_owned(), source };
    let mut found = master.to_socket_addrs().map_err(failed)?;
    let none = || io::Error::new(io::ErrorKind::NotFound, "it resolves to nothing");
    found.next().ok_or_else(|| failed(none()))
}

/// The address of this machine that others use: the one set, or that of the interface towards the
/// meeting point.
pub(super) fn own_address(set: &str, master: SocketAddr) -> Result<IpAddr, AddressError> {
    if !set.is_empty() {
        return parse("address", set);
    }
    if master.ip().is_loopback() {
        return Ok(master.ip());
    }
    let any: IpAddr = match master {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends nothing; it asks the kernel for a route.
    let route = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(master)?;
        socket.local_addr()
    };
    let local = route().map_err(|source| AddressError::NoRoute { master, source })?;
    Ok(local.ip())
}

/// A list of addresses, separated by commas.
pub(super) fn addresses(list: &str) -> Result<Vec<IpAddr>, AddressError> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| parse("data_addresses", word)).collect()
}

fn parse(key: &'static str, text: &str) -> Result<IpAddr, AddressError> {
    text.parse().map_err(|_| AddressError::NotAnAddress { key, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_set_or_found() {
        let loopback: SocketAddr = "127.0.0.1:1".parse().unwrap();
        assert_eq!(own_address("", loopback).unwrap(), loopback.ip());
        assert_eq!(own_address("10.0.0.7", loopback).unwrap().to_string(), "10.0.0.7");
        let wrong = own_address("spark-a", loopback).unwrap_err().to_string();
        assert!(wrong.contains("address has \"spark-a\""), "{wrong}");
        assert_eq!(addresses("10.0.0.1, 10.0.1.1").unwrap().len(), 2);
        assert!(addresses("").unwrap().is_empty());
        assert!(resolve("127.0.0.1").is_err(), "no port");
    }
}
