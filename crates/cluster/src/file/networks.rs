//! Which addresses fit the cables: a network is at the two ends of one cable, or at one switch.

use std::collections::BTreeMap;

use super::ClusterFile;
use super::error::FileError;
use super::validate::{End, Placed};
use crate::address::Interface;

impl ClusterFile {
    /// Refuses addresses no netdev can have, and networks that are not at the two ends of one cable or at one switch.
    pub(super) fn check_networks(
        &self,
        functions: &[Placed<'_>],
        ends: &[(End, End)],
    ) -> Result<(), FileError> {
        let mut networks: BTreeMap<Interface, Vec<(&Placed<'_>, Interface)>> = BTreeMap::new();
        for placed in functions {
            let Some(address) = placed.function.address else { continue };
            if let Some(why) = unusable(address) {
                return Err(FileError::Address { at: placed.label.clone(), address, why });
            }
            let network = Interface { ip: address.network(), prefix: address.prefix };
            networks.entry(network).or_default().push((placed, address));
        }
        check_overlaps(&networks)?;
        // What the port of a function leads to: a switch, or the port at the other end of its cable.
        let other_end = |placed: &Placed<'_>| {
            let port = End::Port(placed.host, placed.port);
            ends.iter().find_map(|&(a, b)| match (a == port, b == port) {
                (true, _) => Some(b),
                (_, true) => Some(a),
                _ => None,
            })
        };
        for (&network, members) in &networks {
            let labels =
                || members.iter().map(|(placed, _)| placed.label.clone()).collect::<Vec<_>>();
            if let Some((first, _)) = members.first()
                && let Some(End::Switch(switch)) = other_end(first)
            {
                if members.iter().all(|(placed, _)| other_end(placed) == Some(End::Switch(switch)))
                {
                    continue;
                }
                return Err(FileError::NetworkMany { network, ends: labels() });
            }
            match members.as_slice() {
                [(only, address)] => {
                    return Err(FileError::NetworkOnce {
                        network,
                        at: only.label.clone(),
                        remedy: self.remedy(functions, only, *address, other_end(only)),
                    });
                }
                [(first, _), (second, _)] => {
                    let joined = other_end(first) == Some(End::Port(second.host, second.port));
                    if !joined {
                        return Err(FileError::NetworkApart {
                            network,
                            first: first.label.clone(),
                            second: second.label.clone(),
                            remedy: self.remedy_apart(first, second, other_end(first)),
                        });
                    }
                }
                _ => return Err(FileError::NetworkMany { network, ends: labels() }),
            }
        }
        Ok(())
    }

    fn port_label(&self, end: End) -> String {
        let found = match end {
            End::Port(h, p) => self
                .hosts
                .get(h)
                .and_then(|host| Some(format!("{}.{}", host.name, host.ports.get(p)?.name))),
            End::Switch(s) => self.switches.get(s).map(|switch| switch.name.clone()),
        };
        found.unwrap_or_default()
    }

    /// What would give a network its second end.
    fn remedy(
        &self,
        functions: &[Placed<'_>],
        only: &Placed<'_>,
        address: Interface,
        other: Option<End>,
    ) -> String {
        let Some(other) = other else {
            let port = self.port_label(End::Port(only.host, only.port));
            return format!("no cable is in {port}; add the [[cable]], or remove the address");
        };
        let free = functions
            .iter()
            .filter(|placed| End::Port(placed.host, placed.port) == other)
            .find(|placed| {
                placed.function.address.is_none_or(|there| {
                    !functions.iter().any(|own| {
                        (own.host, own.port) == (only.host, only.port)
                            && own.function.address.is_some_and(|here| here.meets(there))
                    })
                })
            });
        match free {
            Some(partner) => format!(
                "give {}, at the other end of its cable, address {}, or remove this one",
                partner.label,
                beside(address)
            ),
            None => format!(
                "{}, at the other end of its cable, has no function left; remove the address",
                self.port_label(other)
            ),
        }
    }

    fn remedy_apart(&self, first: &Placed<'_>, second: &Placed<'_>, other: Option<End>) -> String {
        let (a, b) = (End::Port(first.host, first.port), End::Port(second.host, second.port));
        if first.host == second.host {
            return format!(
                "they are on one host, and bytes between them would never reach a cable; give the network \
                            to {} and the port at the other end of its cable",
                self.port_label(a)
            );
        }
        match other {
            Some(end) => format!(
                "{} is cabled to {}; move the address there, or correct the cable",
                self.port_label(a),
                self.port_label(end)
            ),
            None => format!(
                "add the cable {}–{}, or remove the addresses",
                self.port_label(a),
                self.port_label(b)
            ),
        }
    }
}

/// Refuses networks of which one contains the other. They come in order of their first address, so a network that
/// overlaps any earlier one overlaps the one before it or one that contains that.
fn check_overlaps(
    networks: &BTreeMap<Interface, Vec<(&Placed<'_>, Interface)>>,
) -> Result<(), FileError> {
    let mut widest: Option<(u64, &Placed<'_>, Interface)> = None;
    for (network, members) in networks {
        let Some(&(placed, address)) = members.first() else { continue };
        let first = u64::from(u32::from(network.ip));
        let last = first + (1_u64 << (32 - u32::from(network.prefix.min(32)))) - 1;
        if let Some((end, before, before_address)) = widest
            && first <= end
        {
            return Err(FileError::Prefixes {
                first: before.label.clone(),
                first_address: before_address,
                second: placed.label.clone(),
                second_address: address,
            });
        }
        widest = Some((last, placed, address));
    }
    Ok(())
}

/// What an address is that no netdev of a cable can have.
fn unusable(address: Interface) -> Option<&'static str> {
    let Interface { ip, prefix } = address;
    let host_bits = u32::from(ip) & u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
    let all_ones = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
    match () {
        () if prefix == 0 || prefix == 32 => Some("in no network that two ends can share"),
        () if ip.is_unspecified() || ip.octets()[0] == 0 => Some("unspecified"),
        () if ip.is_loopback() => Some("a loopback address"),
        () if ip.is_multicast() => Some("an address of a group"),
        () if ip.octets()[0] >= 240 => Some("reserved"),
        // A network of two addresses has neither (RFC 3021).
        () if prefix <= 30 && host_bits == 0 => Some("the network's own address"),
        () if prefix <= 30 && host_bits == all_ones => Some("the network's broadcast address"),
        () => None,
    }
}

/// Another address of the same network, for a proposal.
fn beside(address: Interface) -> Interface {
    let ip = u32::from(address.ip);
    let proposals = [ip.wrapping_add(1), ip.wrapping_sub(1), ip ^ 1];
    proposals
        .into_iter()
        .map(|ip| Interface { ip: ip.into(), prefix: address.prefix })
        .find(|other| other.meets(address) && unusable(*other).is_none())
        .unwrap_or(address)
}
