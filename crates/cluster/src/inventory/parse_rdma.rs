//! RDMA devices: from sysfs, with the netdev of each port from `rdma -j link` and the RoCE MTU from `ibv_devinfo`.
//!
//! The kernel shows a port's active MTU in no file: only the verbs call behind `ibv_devinfo` tells it.

use std::collections::BTreeMap;

use super::host_state::{Gid, RdmaDevice, RdmaPort};
use super::of::{entries, json, names_below, number, text};
use super::parse_system::seen_file;
use super::{Recording, Seen};

/// Active MTU in bytes, by device and port.
type Mtus = BTreeMap<(String, u32), u32>;

pub(super) fn devices(recording: &Recording) -> Vec<RdmaDevice> {
    let mtus = recording.printed("ibv_devinfo").map(active_mtus);
    let netdevs = netdevs(recording);
    let device = |name: &str| {
        let at = format!("/sys/class/infiniband/{name}/");
        let target = recording.links.get(&format!("{at}device"));
        let ports = format!("{at}ports/");
        let mut numbers: Vec<u32> = names_below(recording, &ports)
            .into_iter()
            .filter_map(|number| number.parse().ok())
            .collect();
        numbers.sort_unstable();
        RdmaDevice {
            name: name.to_owned(),
            pci: target.and_then(|target| target.rsplit('/').next()?.parse().ok()),
            firmware: seen_file(recording, &format!("{at}fw_ver"), |text| Some(text.to_owned())),
            ports: numbers
                .into_iter()
                .map(|number| {
                    let key = (name.to_owned(), number);
                    let active_mtu_bytes = match &mtus {
                        Err(why) => Seen::NotMeasured(why.clone()),
                        Ok(mtus) => mtus.get(&key).map_or_else(
                            || {
                                Seen::NotMeasured(format!(
                                    "ibv_devinfo: says nothing of {name} port {number}"
                                ))
                            },
                            |mtu| Seen::Known(*mtu),
                        ),
                    };
                    port(
                        recording,
                        &format!("{ports}{number}/"),
                        number,
                        active_mtu_bytes,
                        netdevs.get(&key),
                    )
                })
                .collect(),
        }
    };
    names_below(recording, "/sys/class/infiniband/").into_iter().map(device).collect()
}

fn port(
    recording: &Recording,
    at: &str,
    number: u32,
    active_mtu_bytes: Seen<u32>,
    netdev: Option<&String>,
) -> RdmaPort {
    let gids = gids(recording, at);
    // Every entry of a RoCE port's table belongs to a netdev; the first tells it where `rdma` is not installed.
    let netdev =
        netdev.cloned().or_else(|| gids.iter().find_map(|gid| gid.netdev.known().cloned()));
    let mut counters = BTreeMap::new();
    for folder in ["counters/", "hw_counters/"] {
        let folder = format!("{at}{folder}");
        for name in names_below(recording, &folder) {
            if let Some(value) =
                recording.file(&format!("{folder}{name}")).and_then(|text| text.parse().ok())
            {
                counters.insert(name.to_owned(), value);
            }
        }
    }
    RdmaPort {
        number,
        // `4: ACTIVE`
        state: seen_file(recording, &format!("{at}state"), |text| {
            Some(text.split_once(": ").map_or(text, |(_, name)| name).to_owned())
        }),
        active_mtu_bytes,
        // `200 Gb/sec (4X HDR)`
        rate_mbps: seen_file(recording, &format!("{at}rate"), |text| {
            thousandths(text.split_once(" Gb/sec")?.0)
        }),
        netdev,
        gids,
        counters,
    }
}

fn gids(recording: &Recording, at: &str) -> Vec<Gid> {
    let folder = format!("{at}gids/");
    let mut gids: Vec<Gid> = names_below(recording, &folder)
        .into_iter()
        .filter_map(|name| {
            let value = recording.file(&format!("{folder}{name}"))?;
            if value.chars().all(|c| matches!(c, '0' | ':')) {
                return None;
            }
            let seen = |leaf: &str| {
                seen_file(recording, &format!("{at}gid_attrs/{leaf}/{name}"), |text| {
                    (!text.is_empty()).then(|| text.to_owned())
                })
            };
            let (kind, netdev) = (seen("types"), seen("ndevs"));
            Some(Gid { index: name.parse().ok()?, value: value.to_ascii_lowercase(), kind, netdev })
        })
        .collect();
    gids.sort_by_key(|gid| gid.index);
    gids
}

/// The netdev of each device and port, as `rdma` tells it.
fn netdevs(recording: &Recording) -> BTreeMap<(String, u32), String> {
    let Ok(shown) = json(recording, "rdma-link") else { return BTreeMap::new() };
    entries(&shown)
        .filter_map(|link| {
            let port = number(link, "port")?.try_into().ok()?;
            Some(((text(link, "ifname")?.to_owned(), port), text(link, "netdev")?.to_owned()))
        })
        .collect()
}

fn active_mtus(text: &str) -> Mtus {
    let mut mtus = Mtus::new();
    let mut device = String::new();
    let mut port = 0;
    for line in text.lines() {
        let Some((label, value)) = line.split_once(':') else { continue };
        let word = value.split_whitespace().next().unwrap_or_default();
        match label.trim() {
            "hca_id" => (device, port) = (word.to_owned(), 0),
            "port" => port = word.parse().unwrap_or(0),
            "active_mtu" => {
                if let Ok(bytes) = word.parse() {
                    mtus.insert((device.clone(), port), bytes);
                }
            }
            _ => {}
        }
    }
    mtus
}

/// A decimal number with at most three places after the point, in thousandths.
pub(super) fn thousandths(text: &str) -> Option<u64> {
    let (whole, places) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    if places.len() > 3 || !places.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let places: u64 = format!("{places:0<3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(places)
}
