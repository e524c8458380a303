//! Addresses as they stand in files and in the kernel's output.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What was not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}, such as {example}")]
pub struct AddressError {
    /// As given.
    pub text: String,
    /// What it should have been.
    pub wanted: &'static str,
    /// One that is right.
    pub example: &'static str,
}

macro_rules! as_text {
    ($name:ty) => {
        impl TryFrom<String> for $name {
            type Error = AddressError;

            fn try_from(text: String) -> Result<Self, AddressError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}

/// The hardware address of a netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

as_text!(Mac);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError {
            text: text.to_owned(),
            wanted: "a hardware address",
            example: "4c:bb:47:00:00:01",
        };
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self(bytes))
    }
}

/// An IPv4 address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Interface {
    /// The address.
    pub ip: Ipv4Addr,
    /// Bits of the network, at most 32.
    pub prefix: u8,
}

as_text!(Interface);

impl Interface {
    /// The network's own address.
    pub fn network(self) -> Ipv4Addr {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0);
        Ipv4Addr::from(u32::from(self.ip) & mask)
    }

    /// Whether both are in one network.
    pub fn meets(self, other: Self) -> bool {
        self.prefix == other.prefix && self.network() == other.network()
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl FromStr for Interface {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError {
            text: text.to_owned(),
            wanted: "an IPv4 address with a prefix length",
            example: "10.10.1.1/24",
        };
        let (ip, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let ip = ip.parse().map_err(|_| wrong())?;
        let length: u8 = prefix.parse().map_err(|_| wrong())?;
        // Written in one way only: `+24` and `024` are numbers too.
        if length > 32 || prefix != length.to_string() {
            return Err(wrong());
        }
        Ok(Self { ip, prefix: length })
    }
}

/// The place of a PCI function: `0000:01:00.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pci {
    /// Domain.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

as_text!(Pci);

impl Pci {
    /// The adapter the function is part of, as text: everything but the function's number. Packets can be passed on
    /// by hardware only between two functions of one adapter.
    pub fn adapter(self) -> String {
        format!("{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

impl fmt::Display for Pci {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.adapter(), self.function)
    }
}

impl FromStr for Pci {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError {
            text: text.to_owned(),
            wanted: "a PCI address",
            example: "0000:01:00.1",
        };
        let mut parts = text.split([':', '.']);
        let mut next = || parts.next().ok_or_else(wrong);
        let (domain, bus, device, function) = (next()?, next()?, next()?, next()?);
        let pci = Self {
            domain: u16::from_str_radix(domain, 16).map_err(|_| wrong())?,
            bus: u8::from_str_radix(bus, 16).map_err(|_| wrong())?,
            device: u8::from_str_radix(device, 16).map_err(|_| wrong())?,
            function: u8::from_str_radix(function, 16).map_err(|_| wrong())?,
        };
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(pci)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_written() {
        for text in ["4c:bb:47:00:00:01", "ff:ff:ff:ff:ff:ff"] {
            assert_eq!(text.parse::<Mac>().unwrap().to_string(), text);
        }
        for text in ["10.10.1.1/24", "0.0.0.0/0", "192.168.0.3/32"] {
            assert_eq!(text.parse::<Interface>().unwrap().to_string(), text);
        }
        for text in ["0000:01:00.0", "0002:01:00.1"] {
            assert_eq!(text.parse::<Pci>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["", "4c:bb:47:00:00", "4c:bb:47:00:00:01:02", "4c:bb:47:0:00:011", "gg:bb:47:00:00:01"]
        {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
        for text in
            ["10.10.1.1", "10.10.1.1/33", "10.10.1/24", "/24", "10.10.1.1/+24", "10.10.1.1/024"]
        {
            assert!(text.parse::<Interface>().is_err(), "{text}");
        }
        for text in ["01:00.0", "0000:01:00", "0000:01:00.0.0", "zzzz:01:00.0"] {
            assert!(text.parse::<Pci>().is_err(), "{text}");
        }
    }

    #[test]
    fn networks_meet_by_prefix() {
        let at = |text: &str| text.parse::<Interface>().unwrap();
        assert!(at("10.10.1.1/24").meets(at("10.10.1.2/24")));
        assert!(!at("10.10.1.1/24").meets(at("10.10.2.2/24")));
        assert!(!at("10.10.1.1/24").meets(at("10.10.1.2/16")));
        assert_eq!(at("10.10.1.1/0").network(), Ipv4Addr::UNSPECIFIED);
        assert_eq!(at("10.10.1.1/32").network(), Ipv4Addr::new(10, 10, 1, 1));
    }
}
