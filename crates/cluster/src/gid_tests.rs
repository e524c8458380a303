use std::path::Path;

use super::*;
use crate::inventory::{Recording, Seen};

const AT: &str = "/sys/class/infiniband/rocep1s0f0/ports/1/";
const IP: Ipv4Addr = Ipv4Addr::new(10, 10, 0, 1);

fn recording() -> Recording {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gb10-ring4/spark0");
    Recording::load(&folder).unwrap()
}

/// The choice for `IP` on the first function, after a change.
fn choice(change: impl Fn(&mut Recording)) -> Result<GidChoice, GidError> {
    let mut recording = recording();
    change(&mut recording);
    let host = HostState::of(&recording);
    gid_for(&host, host.netdev("enp1s0f0np0").unwrap(), IP)
}

fn set(recording: &mut Recording, leaf: &str, index: u32, value: &str) {
    recording.files.insert(format!("{AT}{leaf}/{index}"), format!("{value}\n"));
}

fn clear(recording: &mut Recording, index: u32) {
    for leaf in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
        recording.files.remove(&format!("{AT}{leaf}/{index}"));
    }
}

const GID: &str = "0000:0000:0000:0000:0000:ffff:0a0a:0001";

#[test]
fn the_entry_is_found_by_content_wherever_it_is() {
    let today = choice(|_| {}).unwrap();
    assert_eq!(
        today,
        GidChoice { device: "rocep1s0f0".into(), port: 1, index: 3, value: GID.into() }
    );
    let moved = choice(|recording| {
        clear(recording, 2);
        clear(recording, 3);
        for (leaf, value) in
            [("gids", GID), ("gid_attrs/types", ROCE_V2), ("gid_attrs/ndevs", "enp1s0f0np0")]
        {
            set(recording, leaf, 17, value);
        }
    });
    assert_eq!(moved.unwrap().index, 17);
}

#[test]
fn an_address_that_is_not_there_is_told_from_one_of_the_wrong_kind() {
    let only_v6 = choice(|recording| {
        clear(recording, 2);
        clear(recording, 3);
    });
    assert!(only_v6.unwrap_err().to_string().contains("all its entries are IPv6"));

    let only_v1 = choice(|recording| clear(recording, 3)).unwrap_err().to_string();
    assert!(only_v1.contains("entry 2 is this address, but IB/RoCE v1"), "{only_v1}");
    assert!(only_v1.contains("2: 10.10.0.1 IB/RoCE v1 of enp1s0f0np0"), "{only_v1}");

    let other = choice(|recording| {
        set(recording, "gids", 2, "0000:0000:0000:0000:0000:ffff:0a0a:0909");
        set(recording, "gids", 3, "0000:0000:0000:0000:0000:ffff:0a0a:0909");
    });
    assert!(other.unwrap_err().to_string().contains("its IPv4 entries are for 10.10.9.9"));

    let elsewhere = choice(|recording| set(recording, "gid_attrs/ndevs", 3, "enp1s0f0np0.100"));
    let elsewhere = elsewhere.unwrap_err().to_string();
    assert!(elsewhere.contains("belongs to enp1s0f0np0.100, not to enp1s0f0np0"), "{elsewhere}");
}

#[test]
fn empty_slots_and_missing_devices_are_told() {
    let empty = choice(|recording| {
        for index in 0..3 {
            clear(recording, index);
        }
        set(recording, "gids", 3, "0000:0000:0000:0000:0000:0000:0000:0000");
    });
    assert!(matches!(empty, Err(GidError::Empty { .. })), "{empty:?}");

    let gone = choice(|recording| {
        recording.files.retain(|path, _| !path.starts_with("/sys/class/infiniband/"));
        recording.links.retain(|path, _| !path.starts_with("/sys/class/infiniband/"));
    });
    assert!(matches!(gone, Err(GidError::NoDevice { .. })), "{gone:?}");
}

#[test]
fn what_was_not_measured_fits_nothing() {
    let unread = choice(|recording| {
        recording.files.remove(&format!("{AT}gid_attrs/types/3"));
        clear(recording, 2);
    });
    let unread = unread.unwrap_err().to_string();
    assert!(unread.contains("entry 3 is this address, and its kind could not be read"), "{unread}");
    assert!(unread.contains("of a kind not measured"), "{unread}");
    let host = HostState::of(&recording());
    assert!(host.rdma.iter().all(|device| matches!(device.firmware, Seen::Known(_))));
}
