//! Filters: `tc -j -s filter show`.

use serde_json::Value;

use super::capture::name_for;
use super::host_state::{EgressFilter, Filter};
use super::of::{entries, json, number, text};
use super::{Recording, Seen};
use crate::address::{Interface, Mac};

/// Where an Ethernet header holds the destination, the source's end of the same word, and the EtherType.
const AT_DESTINATION: i64 = 0;
const AT_DESTINATION_END: i64 = 4;
const AT_ETHER_TYPE: i64 = 12;

/// All ingress filters, or why they are not all known.
pub(super) fn filters(recording: &Recording) -> Seen<Vec<Filter>> {
    each(recording, "tc-filter", &["clsact", "ingress"], filter)
}

/// All egress filters, or why they are not all known.
pub(super) fn egress(recording: &Recording) -> Seen<Vec<EgressFilter>> {
    each(recording, "tc-egress", &["clsact"], egress_filter)
}

/// What `tool` printed for each netdev with a queueing discipline of one of these kinds.
fn each<T>(
    recording: &Recording,
    tool: &str,
    kinds: &[&str],
    parse: fn(&str, &Value) -> Option<T>,
) -> Seen<Vec<T>> {
    let read = || -> Result<Vec<T>, String> {
        let disciplines = json(recording, "tc-qdisc")?;
        let mut filters = Vec::new();
        for discipline in entries(&disciplines) {
            let Some(netdev) = text(discipline, "dev") else { continue };
            if text(discipline, "kind").is_some_and(|kind| kinds.contains(&kind)) {
                let shown = json(recording, &name_for(tool, netdev))?;
                filters.extend(entries(&shown).filter_map(|filter| parse(netdev, filter)));
            }
        }
        Ok(filters)
    };
    read().map_or_else(Seen::NotMeasured, Seen::Known)
}

fn egress_filter(netdev: &str, shown: &Value) -> Option<EgressFilter> {
    let options = shown.get("options")?;
    let keys = options.get("keys").unwrap_or(&Value::Null);
    let actions = options.get("actions").unwrap_or(&Value::Null);
    let port = |name: &str| number(keys, name).and_then(|port| port.try_into().ok());
    // Ports of TCP are none of ours.
    let udp = text(keys, "ip_proto") == Some("udp");
    Some(EgressFilter {
        netdev: netdev.to_owned(),
        preference: preference(shown),
        handle: handle(options),
        ether_type: matched_ether_type(shown, keys),
        destination_ip: text(keys, "dst_ip").and_then(destination),
        destination_port: port("dst_port").filter(|_| udp),
        source_port: port("src_port").filter(|_| udp),
        set_ether_type: edits(actions).iter().find_map(Edit::ether_type),
        packets: packets(actions),
    })
}

fn preference(shown: &Value) -> u32 {
    number(shown, "pref").and_then(|value| value.try_into().ok()).unwrap_or(0)
}

fn matched_ether_type(shown: &Value, keys: &Value) -> Option<u16> {
    text(keys, "eth_type").and_then(ether_type).or_else(|| protocol(text(shown, "protocol")?))
}

fn edits(actions: &Value) -> Vec<Edit> {
    entries(actions)
        .filter_map(|action| action.get("keys"))
        .flat_map(entries)
        .filter_map(Edit::of)
        .collect()
}

/// A filter. `tc` prints each preference once more without options: that is none.
fn filter(netdev: &str, shown: &Value) -> Option<Filter> {
    let options = shown.get("options")?;
    let keys = options.get("keys").unwrap_or(&Value::Null);
    let actions = options.get("actions").unwrap_or(&Value::Null);
    let flag = |name: &str| options.get(name).and_then(Value::as_bool) == Some(true);
    let mac = |name: &str| text(keys, name).and_then(|mac| mac.parse().ok());
    let edits = edits(actions);
    Some(Filter {
        netdev: netdev.to_owned(),
        preference: preference(shown),
        handle: handle(options),
        ether_type: matched_ether_type(shown, keys),
        source_mac: mac("src_mac"),
        destination_mac: mac("dst_mac"),
        destination_ip: text(keys, "dst_ip").and_then(destination),
        skip_software: flag("skip_sw"),
        in_hardware: match (flag("in_hw"), flag("not_in_hw")) {
            (true, _) => Seen::Known(true),
            (_, true) => Seen::Known(false),
            _ => {
                Seen::NotMeasured("tc does not say whether the hardware carries it out".to_owned())
            }
        },
        set_ether_type: edits.iter().find_map(Edit::ether_type),
        set_destination_mac: written_mac(&edits),
        redirect_to: entries(actions)
            .find(|action| text(action, "mirred_action") == Some("redirect"))
            .and_then(|action| text(action, "to_dev"))
            .map(str::to_owned),
        packets: packets(actions),
    })
}

/// `1`, or text in hexadecimal: `0x1`.
fn handle(options: &Value) -> u32 {
    let from_text =
        || u32::from_str_radix(text(options, "handle")?.trim_start_matches("0x"), 16).ok();
    number(options, "handle")
        .and_then(|value| value.try_into().ok())
        .or_else(from_text)
        .unwrap_or(0)
}

/// What `tc` prints as a filter's EtherType: a name, or four hexadecimal digits.
fn ether_type(text: &str) -> Option<u16> {
    match text {
        "ipv4" | "ip" => Some(0x0800),
        "ipv6" => Some(0x86dd),
        "arp" => Some(0x0806),
        "rarp" => Some(0x8035),
        _ => u16::from_str_radix(text.trim_start_matches("0x"), 16).ok(),
    }
}

/// What `tc` prints as a filter's protocol: a name, or a decimal number in brackets.
fn protocol(text: &str) -> Option<u16> {
    match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(number) => number.parse().ok(),
        None if matches!(text, "ip" | "ipv6" | "arp" | "rarp") => ether_type(text),
        None => None,
    }
}

fn destination(text: &str) -> Option<Interface> {
    if text.contains('/') { text.parse().ok() } else { format!("{text}/32").parse().ok() }
}

/// Packets an action took: the most of all actions, as each that runs counts them.
fn packets(actions: &Value) -> Seen<u64> {
    entries(actions)
        .filter_map(|action| number(action.get("stats")?, "packets"))
        .max()
        .map_or_else(|| Seen::NotMeasured("tc printed no statistics".to_owned()), Seen::Known)
}

/// Four bytes of a packet's Ethernet header that an action sets; bits of the mask stay as they are.
struct Edit {
    offset: i64,
    value: u32,
    mask: u32,
}

impl Edit {
    fn of(key: &Value) -> Option<Self> {
        let word = |field: &str| match key.get(field)? {
            Value::String(text) => u32::from_str_radix(text.trim_start_matches("0x"), 16).ok(),
            other => other.as_u64()?.try_into().ok(),
        };
        let set = text(key, "htype") == Some("eth") && text(key, "cmd") == Some("set");
        let edit =
            Self { offset: key.get("offset")?.as_i64()?, value: word("val")?, mask: word("mask")? };
        set.then_some(edit)
    }

    /// The two bytes it sets first, if it sets exactly these.
    fn upper_half(&self) -> Option<u16> {
        (self.mask == 0xffff).then_some((self.value >> 16) as u16)
    }

    fn ether_type(&self) -> Option<u16> {
        (self.offset == AT_ETHER_TYPE).then(|| self.upper_half()).flatten()
    }
}

fn written_mac(edits: &[Edit]) -> Option<Mac> {
    let start = edits.iter().find(|edit| edit.offset == AT_DESTINATION && edit.mask == 0)?.value;
    let end =
        edits.iter().filter(|edit| edit.offset == AT_DESTINATION_END).find_map(Edit::upper_half)?;
    let ([a, b, c, d], [e, f]) = (start.to_be_bytes(), end.to_be_bytes());
    Some(Mac([a, b, c, d, e, f]))
}
