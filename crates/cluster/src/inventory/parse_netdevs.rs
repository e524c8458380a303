//! Network interfaces: from sysfs, with addresses and kinds from `ip -j -d address show`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::host_state::{Netdev, NetdevKind, PcieLink};
use super::of::{entries, json, names_below, number, text};
use super::parse_system::seen_file;
use super::{Recording, Seen};
use crate::address::{Interface, Pci};
use crate::text::quoted;

/// `IFF_UP` of `flags`.
const FLAG_UP: u64 = 1;

/// All netdevs by index, and how many addresses were read, or why none were.
pub(super) fn netdevs(recording: &Recording) -> (Vec<Netdev>, Seen<usize>) {
    let shown = json(recording, "ip-address");
    let by_name: BTreeMap<&str, &Value> = shown
        .as_ref()
        .map(|list| {
            entries(list).filter_map(|entry| Some((text(entry, "ifname")?, entry))).collect()
        })
        .unwrap_or_default();
    let mut names = names_below(recording, "/sys/class/net/");
    names.extend(by_name.keys().filter(|name| quoted(name) == ***name));
    names.sort_unstable();
    names.dedup();
    let mut netdevs: Vec<Netdev> = names
        .into_iter()
        .filter_map(|name| netdev(recording, name, by_name.get(name).copied()))
        .collect();
    netdevs.sort_by_key(|netdev| netdev.index);
    let count = netdevs.iter().map(|netdev| netdev.addresses.len() + netdev.ipv6.len()).sum();
    let addresses = match &shown {
        Ok(_) => Seen::Known(count),
        Err(why) => Seen::NotMeasured(why.clone()),
    };
    (netdevs, addresses)
}

fn netdev(recording: &Recording, name: &str, shown: Option<&Value>) -> Option<Netdev> {
    let at = format!("/sys/class/net/{name}/");
    let file = |leaf: &str| recording.file(&format!("{at}{leaf}"));
    let shown_number = |field: &str| number(shown?, field)?.try_into().ok();
    let shown_flag = |flag: &str| {
        shown.and_then(|entry| entry.get("flags")).is_some_and(|flags| has(flags, flag))
    };
    // A netdev of which neither number nor MTU is known was gone before it could be read.
    let index =
        file("ifindex").and_then(|text| text.parse().ok()).or_else(|| shown_number("ifindex"))?;
    let mtu_bytes =
        file("mtu").and_then(|text| text.parse().ok()).or_else(|| shown_number("mtu"))?;
    let device = recording.links.get(&format!("{at}device"));
    let pci = device.and_then(|target| target.rsplit('/').next()?.parse::<Pci>().ok());
    let flags =
        file("flags").and_then(|text| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok());
    let info_kind = shown.and_then(|entry| text(entry.get("linkinfo")?, "info_kind"));
    let loopback = name == "lo" || shown_flag("LOOPBACK");
    let (addresses, ipv6) = addresses(shown);
    Some(Netdev {
        name: name.to_owned(),
        index,
        mac: file("address").or_else(|| text(shown?, "address")).and_then(|text| text.parse().ok()),
        mtu_bytes,
        admin_up: flags.map_or_else(|| shown_flag("UP"), |flags| flags & FLAG_UP != 0),
        carrier: file("carrier").map_or_else(|| shown_flag("LOWER_UP"), |carrier| carrier == "1"),
        speed_mbps: speed(recording, &at),
        phys_port_name: file("phys_port_name").filter(|text| !text.is_empty()).map(str::to_owned),
        phys_port_id: file("phys_port_id").filter(|text| !text.is_empty()).map(str::to_owned),
        pci,
        pcie: pcie(recording, &at),
        addresses,
        ipv6,
        wireless: file("wireless").is_some(),
        kind: match info_kind {
            _ if loopback => NetdevKind::Loopback,
            Some("veth") => NetdevKind::Veth,
            _ if device.is_some() => NetdevKind::Physical,
            _ => NetdevKind::Other,
        },
        tc_offload: tc_offload(recording, name),
        bytes: (
            file("statistics/rx_bytes").and_then(|text| text.parse().ok()).unwrap_or(0),
            file("statistics/tx_bytes").and_then(|text| text.parse().ok()).unwrap_or(0),
        ),
    })
}

fn has(list: &Value, word: &str) -> bool {
    entries(list).any(|entry| entry.as_str() == Some(word))
}

fn addresses(shown: Option<&Value>) -> (Vec<Interface>, Vec<String>) {
    let mut four = Vec::new();
    let mut six = Vec::new();
    for info in shown.and_then(|entry| entry.get("addr_info")).into_iter().flat_map(entries) {
        let (Some(local), Some(prefix)) = (text(info, "local"), number(info, "prefixlen")) else {
            continue;
        };
        let whole = format!("{local}/{prefix}");
        match text(info, "family") {
            Some("inet") => four.extend(whole.parse::<Interface>()),
            Some("inet6") => six.push(whole),
            _ => {}
        }
    }
    (four, six)
}

/// `speed` cannot be read while the netdev is down, and holds -1 while the cable is.
fn speed(recording: &Recording, at: &str) -> Seen<u64> {
    let path = format!("{at}speed");
    if recording.file(&path).is_some_and(|text| text.starts_with('-') || text == "4294967295") {
        return Seen::NotMeasured(format!("{path}: the link is down"));
    }
    seen_file(recording, &path, |text| text.parse().ok())
}

fn pcie(recording: &Recording, at: &str) -> Seen<PcieLink> {
    let read = |leaf: &str| -> Result<&str, String> {
        let path = format!("{at}device/{leaf}");
        recording.file(&path).ok_or_else(|| format!("{path}: not there, or not readable"))
    };
    let speed = |leaf: &str| {
        let text = read(leaf)?;
        megatransfers(text).ok_or_else(|| format!("{at}device/{leaf}: {text:?} was not understood"))
    };
    let width = |leaf: &str| {
        let text = read(leaf)?;
        text.parse().map_err(|_| format!("{at}device/{leaf}: {text:?} was not understood"))
    };
    let link = || -> Result<PcieLink, String> {
        Ok(PcieLink {
            speed_mts: speed("current_link_speed")?,
            width: width("current_link_width")?,
            max_speed_mts: speed("max_link_speed")?,
            max_width: width("max_link_width")?,
        })
    };
    link().map_or_else(Seen::NotMeasured, Seen::Known)
}

/// `32.0 GT/s PCIe`, or `2.5 GT/s`, in MT/s.
fn megatransfers(text: &str) -> Option<u64> {
    super::parse_rdma::thousandths(text.split_once(" GT/s")?.0)
}

/// The line `hw-tc-offload: on` of `ethtool -k`, with `[fixed]` after it where it cannot be changed.
fn tc_offload(recording: &Recording, name: &str) -> Seen<bool> {
    let tool = super::capture::name_for("ethtool-features", name);
    let printed = match recording.printed(&tool) {
        Err(why) => return Seen::NotMeasured(why),
        Ok(printed) => printed,
    };
    let value = printed.lines().find_map(|line| line.trim().strip_prefix("hw-tc-offload:"));
    match value.and_then(|rest| rest.split_whitespace().next()) {
        Some("on") => Seen::Known(true),
        Some("off") => Seen::Known(false),
        _ => Seen::NotMeasured(format!("{tool}: has no line hw-tc-offload")),
    }
}
