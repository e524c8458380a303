//! Filters of a host in the middle: how packets that arrive at one function are told apart, and where they go on.
//!
//! A filter matches the tag and the MAC of the function it stands at. On a ring that is enough: whatever arrives with
//! a tag goes on by the other port, however many ranks lie beyond. In other graphs two packets with one tag may have
//! to leave by different ports; then the filters match the sender's MAC too, which no relay changes. Where one sender's
//! packets with one tag would have to part, nothing tells them apart, and the plan is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::desired::{DesiredFilter, Forwarded, names};
use super::refusal::Refusal;
use super::{IPV4, PREFERENCE_BASE, TAG_BASE};
use crate::address::Mac;
use crate::file::TagKind;
use crate::plan::FunctionRef;

/// Senders that the filters of one function can tell apart for one tag.
const MOST_SENDERS: usize = 10;

/// A rail passed on by one host.
pub(super) struct Passing<'a> {
    /// The rail.
    one: Forwarded<'a>,
    /// Where it arrives.
    pub(super) into: &'a FunctionRef,
    /// Where it leaves.
    pub(super) out: &'a FunctionRef,
    /// Its tag when it arrives.
    ether_type: u16,
    /// Its EtherType when it leaves.
    set_ether_type: u16,
    /// Where it arrives next.
    next: Mac,
    /// The function it came from at first.
    source: &'a FunctionRef,
}

impl<'a> Passing<'a> {
    /// Where a host passes a rail on: once, since a rail visits no host twice.
    pub(super) fn of(one: Forwarded<'a>, rank: usize) -> impl Iterator<Item = Self> {
        let rail = one.rail;
        let source = rail.crossings.first().map(|first| &first.out);
        rail.crossings.windows(2).enumerate().filter_map(move |(at, pair)| {
            let [before, after] = pair else { return None };
            if before.into.rank != rank {
                return None;
            }
            Some(Self {
                one,
                into: &before.into,
                out: &after.out,
                ether_type: *one.tag.ether_types.get(at)?,
                set_ether_type: one.tag.ether_types.get(at + 1).copied().unwrap_or(IPV4),
                next: after.into.mac,
                source: source?,
            })
        })
    }

    fn action(&self) -> (u16, Mac, Mac) {
        (self.set_ether_type, self.next, self.out.mac)
    }
}

/// Filters for everything a host passes on, and what cannot be told apart.
pub(super) fn filters(passings: &[Passing<'_>]) -> (Vec<DesiredFilter>, Vec<Refusal>) {
    let mut groups = BTreeMap::<(usize, Mac, u16), Vec<&Passing<'_>>>::new();
    for passing in passings {
        let key = (passing.into.device_number, passing.into.mac, passing.ether_type);
        groups.entry(key).or_default().push(passing);
    }
    let (mut made, mut refusals) = (Vec::new(), Vec::new());
    for ((_, into, ether_type), group) in groups {
        let actions: BTreeSet<_> = group.iter().map(|passing| passing.action()).collect();
        // A marker that goes by the source port marks all packets that have it, so there the sender is always matched.
        let by_source = actions.len() > 1
            || group.iter().any(|passing| passing.one.tag.kind == TagKind::SourcePort);
        let mut parts = BTreeMap::<Option<Mac>, Vec<&Passing<'_>>>::new();
        for passing in group {
            let source = by_source.then_some(passing.source.mac);
            parts.entry(source).or_default().push(passing);
        }
        if parts.len() > MOST_SENDERS {
            let label = parts.values().flatten().next().map(|passing| passing.into.label());
            let what = format!("telling senders apart at {}", label.unwrap_or_default());
            refusals.push(Refusal::TooMany { what, most: MOST_SENDERS });
            continue;
        }
        for (nth, (source, part)) in (0u32..).zip(parts) {
            let Some(first) = part.first() else { continue };
            if let Some(other) = part.iter().find(|passing| passing.action() != first.action()) {
                refusals.push(Refusal::Ambiguous {
                    function: first.into.label(),
                    source_function: first.source.label(),
                    ether_type,
                    first: first.one.name(),
                    second: other.one.name(),
                });
                continue;
            }
            let relays_left = u32::from(ether_type.saturating_sub(TAG_BASE));
            made.push(DesiredFilter {
                into,
                preference: PREFERENCE_BASE + relays_left + 10 * nth,
                ether_type,
                source,
                set_ether_type: first.set_ether_type,
                next: first.next,
                out: first.out.mac,
                serves: names(part.iter().map(|passing| passing.one.name())),
            });
        }
    }
    (made, refusals)
}
