//! Measured rates of cables.

use super::super::view;
use super::super::{Code, Findings, Level, Room, Section};

pub(super) const TOO_SLOW: Code = Code {
    id: "RW-LNK-07",
    level: Level::Error,
    section: Section::Links,
    title: "a link carries far less than its speed",
};

/// The least share of a function's part of the wire that it has to carry, in percent. A GB10's function carries 92 to
/// 97 Gb/s of its 100; one whose NIC came up degraded carries 8 to 25 with every field of its link in order.
const LEAST_PERCENT: u64 = 70;

/// Compares what was measured with what the links say.
pub(in super::super) fn look_at_rates(room: &Room<'_>, to: &mut Findings) {
    for (index, cable) in room.plan.cables.iter().enumerate() {
        for (a, b) in &cable.pairs {
            for (from, into) in [(a, b), (b, a)] {
                let netdev = view::netdev(room, from)
                    .filter(|netdev| netdev.carrier && view::physical(netdev));
                let Some(netdev) = netdev else { continue };
                let what = format!("rate from {} to {}", from.label(), into.label());
                let measured = room.rates.iter().find(|rate| {
                    rate.cable == index && rate.from == from.rank && rate.number == from.number
                });
                let (Some(rate), Some(speed)) = (measured, netdev.speed_mbps.known()) else {
                    let why = if measured.is_none() {
                        "nobody measured it"
                    } else {
                        "the link's speed is not known"
                    };
                    to.not_measured(Section::Links, Some(&from.host), what, why);
                    continue;
                };
                let functions = u64::try_from(view::port(room, from.rank, &from.port).len())
                    .unwrap_or(1)
                    .max(1);
                let share = speed / functions;
                if rate.rate_mbps.saturating_mul(100) >= share.saturating_mul(LEAST_PERCENT) {
                    to.looked(Section::Links, 1, "functions: carry what their links promise");
                    continue;
                }
                let message = format!(
                    "{} carries {} Mb/s of the {share} Mb/s that are its share of the wire",
                    netdev.name, rate.rate_mbps
                );
                let evidence =
                    vec![format!("{what}: {} Mb/s", rate.rate_mbps), format!("link: {speed} Mb/s")];
                to.find(&TOO_SLOW, Some(&from.host), Some(&from.port), message, evidence, None);
            }
        }
    }
}
