//! Finding the GID that belongs to an address, by content.
//!
//! A GID's place in its table moves when addresses come and go, so no index is ever taken from a
//! file. The kernel lists each port's table in sysfs, with the kind of each entry.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use super::error::VerbsError;

const DEVICES: &str = "/sys/class/infiniband";
/// Most entries looked at in one folder: a table has at most 1024 in every driver.
const ENTRIES_MAX: usize = 1024;
/// A table ends with so many empty slots one after the other: the kernel fills the first free one,
/// so gaps come only from addresses that went away. Reading all of them is slow.
const EMPTY_SLOTS: usize = 32;

/// A RoCE v2 GID of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gid {
    pub(super) device: String,
    pub(super) port: u8,
    pub(super) index: u8,
    pub(super) value: Ipv6Addr,
}

/// The RoCE v2 GIDs of all ports of this host at one moment.
#[derive(Debug)]
pub(super) struct Table {
    gids: Vec<Gid>,
}

impl Table {
    pub(super) fn read() -> Result<Self, VerbsError> {
        Self::read_from(Path::new(DEVICES))
    }

    /// A table of these.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn of(gids: Vec<Gid>) -> Self {
        Self { gids }
    }

    fn read_from(devices: &Path) -> Result<Self, VerbsError> {
        let mut gids = Vec::new();
        let names_found = names(devices);
        if names_found.is_empty() {
            return Err(VerbsError::NoDevices { source: None });
        }
        for device in names_found {
            let ports = devices.join(&device).join("ports");
            for port in names(&ports) {
                if let Ok(number) = port.parse() {
                    gids.extend(of_port(&device, number, &ports.join(&port)));
                }
            }
        }
        Ok(Self { gids })
    }

    /// The GID for an address of this host.
    pub(super) fn find(&self, address: IpAddr) -> Result<Gid, VerbsError> {
        let wanted = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        self.gids.iter().find(|gid| gid.value == wanted).cloned().ok_or_else(|| {
            let found =
                |gid: &Gid| Some(format!("{} on {}", gid.value.to_ipv4_mapped()?, gid.device));
            let found: Vec<_> = self.gids.iter().filter_map(found).collect();
            let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
            VerbsError::NoGid { address, found }
        })
    }
}

/// Every RoCE v2 GID of a port.
fn of_port(device: &str, number: u8, port: &Path) -> Vec<Gid> {
    let mut gids = Vec::new();
    let mut empty = 0;
    for index in 0..=u8::MAX {
        let value = fs::read_to_string(port.join(format!("gids/{index}")));
        let value = value.ok().and_then(|value| value.trim().parse::<Ipv6Addr>().ok());
        let Some(value) = value.filter(|value| !value.is_unspecified()) else {
            empty += 1;
            if empty == EMPTY_SLOTS {
                break;
            }
            continue;
        };
        empty = 0;
        let kind = fs::read_to_string(port.join(format!("gid_attrs/types/{index}")));
        if kind.is_ok_and(|kind| kind.trim() == "RoCE v2") {
            gids.push(Gid { device: device.to_owned(), port: number, index, value });
        }
    }
    gids
}

/// What a folder holds, in order; nothing where it does not exist.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX);
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(folder: &Path, device: &str, gids: &[(&str, &str)]) {
        let port = folder.join(device).join("ports/1");
        fs::create_dir_all(port.join("gids")).unwrap();
        fs::create_dir_all(port.join("gid_attrs/types")).unwrap();
        for (index, (gid, kind)) in gids.iter().enumerate() {
            fs::write(port.join(format!("gids/{index}")), format!("{gid}\n")).unwrap();
            if !kind.is_empty() {
                let name = format!("gid_attrs/types/{index}");
                fs::write(port.join(name), format!("{kind}\n")).unwrap();
            }
        }
    }

    #[test]
    fn the_slot_is_found_by_content() {
        let folder = std::env::temp_dir().join(format!("railweave-gid-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(matches!(Table::read_from(&folder), Err(VerbsError::NoDevices { source: None })));
        let mapped = |last| format!("0000:0000:0000:0000:0000:ffff:0a00:00{last:02x}");
        let empty = "0000:0000:0000:0000:0000:0000:0000:0000";
        let local = "fe80:0000:0000:0000:0000:00ff:fe00:0000";
        table(
            &folder,
            "a",
            &[
                (local, "IB/RoCE v1"),
                (&mapped(1), "IB/RoCE v1"),
                (empty, ""),
                (&mapped(1), "RoCE v2"),
            ],
        );
        table(&folder, "b", &[(local, "RoCE v2"), (&mapped(2), "RoCE v2")]);
        let found = Table::read_from(&folder).unwrap();
        let gid = found.find([10, 0, 0, 1].into()).unwrap();
        assert_eq!((gid.device.as_str(), gid.port, gid.index), ("a", 1, 3));
        let gid = found.find([10, 0, 0, 2].into()).unwrap();
        assert_eq!((gid.device.as_str(), gid.index), ("b", 1));
        let error = found.find([10, 0, 0, 3].into()).unwrap_err().to_string();
        assert!(error.contains("10.0.0.1 on a, 10.0.0.2 on b"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
