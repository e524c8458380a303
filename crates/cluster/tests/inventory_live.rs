//! Capturing this machine, and a network namespace of it.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

use cluster::inventory::host_state::NetdevKind;
use cluster::inventory::{HostState, Recording, Seen};
use cluster::reach::Reach;

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn this_machine_is_captured_and_agrees_with_itself() {
    let reach = Reach::parse("here", "local").unwrap();
    let start = Instant::now();
    let recording = reach.capture(LIMIT).unwrap();
    println!("captured in {:?}", start.elapsed());
    let state = HostState::of(&recording);
    let read = |path: &str| std::fs::read_to_string(path).unwrap().trim().to_owned();
    assert_eq!(state.name, read("/proc/sys/kernel/hostname"));
    assert_eq!(state.system.kernel, Seen::Known(read("/proc/sys/kernel/osrelease")));
    assert_eq!(state.system.boot_id, Seen::Known(read("/proc/sys/kernel/random/boot_id")));
    let lo = state.netdev("lo").unwrap();
    assert_eq!((lo.index, lo.kind, lo.admin_up), (1, NetdevKind::Loopback, true));
    assert!(state.has_address(Ipv4Addr::LOCALHOST.into()));
    // What cannot be read of a loopback is not measured, and what follows it was read all the same.
    assert!(lo.speed_mbps.reason().is_some());
    assert_eq!(state.netdevs.len(), std::fs::read_dir("/sys/class/net").unwrap().count());
    // The clock is this one: it differs by no more than the time the question took.
    let (ahead, error) = *state.system.clock_ahead_ns.known().unwrap();
    assert!(ahead.unsigned_abs() <= error, "{ahead} ns, {error} ns");
    assert!(error < 10_000_000_000, "{error} ns");

    // It survives being a folder.
    let folder = std::env::temp_dir().join(format!("rw-live-{}", std::process::id()));
    recording.save(&folder).unwrap();
    let loaded = Recording::load(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(loaded.unwrap(), recording);
}

/// A namespace for one test, removed at its end.
struct Netns(String);

impl Netns {
    /// None where namespaces may not be made.
    fn new() -> Option<Self> {
        let name = format!("rw-inventory-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output().ok()?;
        made.status.success().then_some(Self(name))
    }

    fn ip(&self, words: &str) {
        let words = format!("-n {} {words}", self.0);
        let done = Command::new("ip").args(words.split(' ')).output().unwrap();
        assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        drop(Command::new("ip").args(["netns", "del", &self.0]).output());
    }
}

#[test]
fn a_namespace_shows_its_own_netdevs_only() {
    let Some(netns) = Netns::new() else {
        println!("not run: this user may not make network namespaces");
        return;
    };
    netns.ip("link add rwv0 type veth peer name rwv1");
    netns.ip("link set rwv0 mtu 9000 up");
    netns.ip("link set rwv1 mtu 9000 up");
    netns.ip("address add 10.99.0.1/24 dev rwv0");
    netns.ip("route add 10.99.5.1/32 dev rwv0 src 10.99.0.1 scope link proto 157");
    netns.ip("neigh add 10.99.5.1 lladdr 4c:bb:47:00:01:10 dev rwv0 nud permanent protocol 157");
    let reach = Reach::parse("inner", &format!("netns:{}", netns.0)).unwrap();
    let state = HostState::of(&reach.capture(LIMIT).unwrap());
    let names: Vec<&str> = state.netdevs.iter().map(|netdev| netdev.name.as_str()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(
        names.contains(&"lo") && names.contains(&"rwv0") && names.contains(&"rwv1"),
        "{names:?}"
    );
    let veth = state.netdev("rwv0").unwrap();
    assert_eq!((veth.kind, veth.mtu_bytes, veth.carrier), (NetdevKind::Veth, 9000, true));
    assert_eq!(veth.addresses, ["10.99.0.1/24".parse().unwrap()]);
    let routes = state.routes.known().unwrap();
    let own = routes.iter().find(|route| route.protocol == "157").unwrap();
    assert_eq!((own.to, own.scope.as_deref()), ("10.99.5.1/32".parse().unwrap(), Some("link")));
    let neighbour = &state.neighbours.known().unwrap()[0];
    assert_eq!(neighbour.protocol.as_deref(), Some("157"));
    assert_eq!(neighbour.states, ["PERMANENT"]);
    assert_eq!(state.filters, Seen::Known(Vec::new()));

    let output = reach.run(&["cat", "/sys/class/net/rwv1/mtu"], b"", LIMIT).unwrap();
    assert_eq!(output.stdout, b"9000\n");
}

#[test]
fn a_namespace_that_is_not_there_is_an_error_that_names_it() {
    let reach = Reach::parse("inner", "netns:rw-no-such-namespace").unwrap();
    let error = reach.capture(LIMIT).unwrap_err().to_string();
    assert!(
        error.starts_with("inner: ip netns exec rw-no-such-namespace true ended with"),
        "{error}"
    );
    assert!(error.contains("rw-no-such-namespace"), "{error}");
}
