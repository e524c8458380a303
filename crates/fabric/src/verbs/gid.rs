//! Finding the GID that belongs to an address, by content.
//!
//! A GID's place in its table moves when addresses come and go, so no index is ever taken from a
//! file. The kernel lists each port's table in sysfs, with the kind of each entry.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::error::VerbsError;

const DEVICES: &str = "/sys/class/infiniband";
/// Most entries looked at in one folder: a table has at most 256 in every driver.
const ENTRIES_MAX: usize = 1024;

/// A RoCE v2 GID of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gid {
    pub(super) device: String,
    pub(super) port: u8,
    pub(super) index: u8,
    pub(super) value: Ipv6Addr,
}

/// The RoCE v2 GID for an address of this host.
pub(super) fn find(address: IpAddr) -> Result<Gid, VerbsError> {
    find_in(Path::new(DEVICES), address)
}

fn find_in(devices: &Path, address: IpAddr) -> Result<Gid, VerbsError> {
    let wanted = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let all = list(devices);
    if all.is_empty() && names(devices).is_empty() {
        return Err(VerbsError::NoDevices { source: None });
    }
    let found = |gid: &Gid| Some(format!("{} on {}", v4(gid.value)?, gid.device));
    all.iter().find(|gid| gid.value == wanted).cloned().ok_or_else(|| {
        let mut found: Vec<_> = all.iter().filter_map(found).collect();
        found.dedup();
        let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
        VerbsError::NoGid { address, found }
    })
}

fn v4(value: Ipv6Addr) -> Option<Ipv4Addr> {
    value.to_ipv4_mapped()
}

/// Every RoCE v2 GID of every port.
fn list(devices: &Path) -> Vec<Gid> {
    let mut gids = Vec::new();
    for device in names(devices) {
        let ports = devices.join(&device).join("ports");
        for port in names(&ports) {
            let Ok(port_number) = port.parse() else { continue };
            let port = ports.join(&port);
            for slot in names(&port.join("gids")) {
                let Ok(index) = slot.parse() else { continue };
                // An empty slot has a zero GID and no type: reading the type fails.
                let kind = fs::read_to_string(port.join("gid_attrs/types").join(&slot));
                let value = fs::read_to_string(port.join("gids").join(&slot));
                let (Ok(kind), Ok(value)) = (kind, value) else { continue };
                let Ok(value) = value.trim().parse::<Ipv6Addr>() else { continue };
                if kind.trim() == "RoCE v2" && !value.is_unspecified() {
                    gids.push(Gid { device: device.clone(), port: port_number, index, value });
                }
            }
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
        assert!(matches!(
            find_in(&folder, [10, 0, 0, 1].into()),
            Err(VerbsError::NoDevices { source: None })
        ));
        let mapped = |last| format!("0000:0000:0000:0000:0000:ffff:0a00:00{last:02x}");
        let empty = "0000:0000:0000:0000:0000:0000:0000:0000";
        let local = "fe80:0000:0000:0000:0000:00ff:fe00:0000";
        table(&folder, "a", &[
            (local, "IB/RoCE v1"),
            (&mapped(1), "IB/RoCE v1"),
            (empty, ""),
            (&mapped(1), "RoCE v2"),
        ]);
        table(&folder, "b", &[(local, "RoCE v2"), (&mapped(2), "RoCE v2")]);
        let gid = find_in(&folder, [10, 0, 0, 1].into()).unwrap();
        assert_eq!((gid.device.as_str(), gid.port, gid.index), ("a", 1, 3));
        let gid = find_in(&folder, [10, 0, 0, 2].into()).unwrap();
        assert_eq!((gid.device.as_str(), gid.index), ("b", 1));
        let error = find_in(&folder, [10, 0, 0, 3].into()).unwrap_err().to_string();
        assert!(error.contains("10.0.0.1 on a, 10.0.0.2 on b"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
