//! Whether a kernel between does, or drops, what its NIC should pass on.

use super::needs::ways;
use super::{FIREWALL, SECTION, SLOW_PATH, SLOW_PATH_USED};
use crate::check::{Findings, Room, view};
use crate::inventory::host_state::Firewall;
use crate::inventory::{HostState, Seen};
use crate::plan::RankPlan;

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    for rank in &room.plan.ranks {
        let Some(state) = view::host(room, rank.rank) else { continue };
        // By netdev: in, out.
        let ways: Vec<(&str, &str)> = ways(room.plan, rank.rank)
            .into_iter()
            .map(|(into, out)| (view::netdev_name(room, into), view::netdev_name(room, out)))
            .collect();
        if ways.is_empty() {
            continue;
        }
        slow_path(rank, state, &ways, to);
        rising(room, rank, state, to);
    }
}

fn slow_path(rank: &RankPlan, state: &HostState, ways: &[(&str, &str)], to: &mut Findings) {
    let host = Some(rank.host.as_str());
    match &state.system.ip_forward {
        Seen::Known(false) => {
            to.looked(SECTION, 1, "hosts between: the kernel passes nothing on");
            return;
        }
        Seen::Known(true) => {}
        Seen::NotMeasured(why) => {
            to.not_measured(SECTION, host, "whether the kernel passes packets on", why.as_str());
            return;
        }
    }
    let mut evidence = vec!["net.ipv4.ip_forward = 1".to_owned()];
    let dropped: Vec<_> = match &state.firewall {
        Seen::Known(firewall) => {
            evidence.push(format!("policy of FORWARD: {}", firewall.forward_policy));
            ways.iter().filter(|(into, out)| drops(firewall, into, out)).collect()
        }
        Seen::NotMeasured(why) => {
            to.not_measured(SECTION, host, "firewall", why.as_str());
            Vec::new()
        }
    };
    if dropped.is_empty() {
        to.find(
            &SLOW_PATH,
            host,
            None,
            "the kernel passes packets on too: what the NIC misses takes a slow way that nothing shows",
            evidence,
            Some("sudo sysctl -w net.ipv4.ip_forward=0   # containers on a bridge network need it".to_owned()),
        );
        return;
    }
    evidence.extend(dropped.iter().map(|(into, out)| format!("no rule accepts {into} → {out}")));
    let fix = dropped
        .iter()
        .map(|(into, out)| format!("sudo iptables -I DOCKER-USER -i {into} -o {out} -j ACCEPT"))
        .collect::<Vec<_>>()
        .join("\n");
    to.find(
        &FIREWALL,
        host,
        None,
        "the firewall drops what the NIC does not pass on: a missing filter or marker looks like a dead cable",
        evidence,
        Some(fix),
    );
}

/// Whether a packet that came in by `into` and would go out by `out` is dropped: the policy says so, and no rule
/// accepts all such packets.
fn drops(firewall: &Firewall, into: &str, out: &str) -> bool {
    firewall.forward_policy != "ACCEPT"
        && !firewall.rules.iter().any(|rule| accepts(rule, into, out))
}

/// Whether a rule of FORWARD or DOCKER-USER, as `iptables -S` prints it, accepts whatever goes this way. A rule with
/// any other condition is taken as one that does not.
fn accepts(rule: &str, into: &str, out: &str) -> bool {
    let mut words = rule.split_whitespace();
    if words.next() != Some("-A") || !matches!(words.next(), Some("FORWARD" | "DOCKER-USER")) {
        return false;
    }
    let mut accepts = false;
    while let Some(word) = words.next() {
        let Some(value) = words.next() else { return false };
        match word {
            "-i" if fits(value, into) => {}
            "-o" if fits(value, out) => {}
            "-j" if value == "ACCEPT" => accepts = true,
            _ => return false,
        }
    }
    accepts
}

/// Whether a netdev is meant by a pattern, which may end in `+`.
fn fits(pattern: &str, netdev: &str) -> bool {
    match pattern.strip_suffix('+') {
        Some(start) => netdev.starts_with(start),
        None => pattern == netdev,
    }
}

/// Whether the kernel passed packets on since the earlier state.
fn rising(room: &Room<'_>, rank: &RankPlan, state: &HostState, to: &mut Findings) {
    let host = Some(rank.host.as_str());
    let Some(before) = room.before.and_then(|before| before.get(rank.rank)) else { return };
    let what = "packets that the kernel passed on";
    let (then, now) = match (&before.system.forwarded_datagrams, &state.system.forwarded_datagrams)
    {
        (Seen::Known(then), Seen::Known(now)) => (*then, *now),
        (Seen::NotMeasured(why), _) | (_, Seen::NotMeasured(why)) => {
            to.not_measured(SECTION, host, what, why.as_str());
            return;
        }
    };
    let restarted = before.system.boot_id.known() != state.system.boot_id.known();
    if restarted || now < then {
        to.not_measured(SECTION, host, what, "the host was restarted since the earlier state");
        return;
    }
    if now == then {
        to.looked(
            SECTION,
            1,
            "hosts between: the kernel passed nothing on since the earlier state",
        );
        return;
    }
    to.find(
        &SLOW_PATH_USED,
        host,
        None,
        format!(
            "the kernel passed {} packets on since the earlier state: if they are no container's, they missed the NIC",
            now - then
        ),
        vec![format!("IpForwDatagrams: {then} then, {now} now")],
        None,
    );
}
