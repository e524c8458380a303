//! Links, addresses and MTU: compared always, changed only if the owner allows it.

use super::change::Change;
use super::compare::Work;
use super::desired::DesiredFunction;
use super::refusal::Refusal;
use crate::address::Interface;
use crate::inventory::host_state::Netdev;

pub(super) fn compare(work: &mut Work<'_>) {
    let host = work.host;
    let unread = host.addresses.reason();
    if let Some(why) = unread {
        let needed = work.desired.functions.iter().any(|wanted| wanted.address.is_some());
        work.not_measured("addresses", why, needed);
    }
    for (wanted, netdev) in work.functions() {
        let reloaded = work.reloaded.contains(&netdev.name);
        if reloaded {
            // What manages addresses brings them back; where Railweave does, it has to.
            let address = wanted.address.filter(|_| !work.desired.options.set_addresses);
            work.phases.links.push(Change::WaitFor { netdev: netdev.name.clone(), address });
        }
        link(work, wanted, netdev, reloaded);
        if let Some(address) = wanted.address.filter(|_| unread.is_none()) {
            address_of(work, wanted, netdev, address, reloaded);
        }
        mtu(work, wanted, netdev, reloaded);
    }
}

fn link(work: &mut Work<'_>, wanted: &DesiredFunction, netdev: &Netdev, reloaded: bool) {
    if netdev.admin_up && !reloaded {
        return;
    }
    if work.desired.options.set_addresses {
        work.phases.links.push(Change::LinkUp { netdev: netdev.name.clone() });
    } else if !netdev.admin_up {
        work.refusals.push(Refusal::LinkDown {
            netdev: netdev.name.clone(),
            function: wanted.function.label(),
        });
    }
}

fn address_of(
    work: &mut Work<'_>,
    wanted: &DesiredFunction,
    netdev: &Netdev,
    address: Interface,
    reloaded: bool,
) {
    let there = netdev.addresses.contains(&address);
    if there && !reloaded {
        return;
    }
    let in_the_way = work.host.netdevs.iter().find_map(|other| {
        let found = other.addresses.iter().find(|found| {
            **found != address
                && (found.ip == address.ip || (other.name == netdev.name && found.meets(address)))
                || (**found == address && other.name != netdev.name)
        })?;
        Some((other, *found))
    });
    if let Some((other, found)) = in_the_way
        && !there
    {
        work.refusals.push(Refusal::AddressInTheWay {
            wanted: address,
            netdev: netdev.name.clone(),
            other: other.name.clone(),
            found,
        });
    } else if work.desired.options.set_addresses {
        work.phases.links.push(Change::AddAddress { netdev: netdev.name.clone(), address });
    } else if !there {
        let has: Vec<_> = netdev.addresses.iter().map(Interface::to_string).collect();
        work.refusals.push(Refusal::AddressMissing {
            netdev: netdev.name.clone(),
            function: wanted.function.label(),
            wanted: address,
            has: if has.is_empty() { "none".to_owned() } else { has.join(", ") },
        });
    }
}

fn mtu(work: &mut Work<'_>, wanted: &DesiredFunction, netdev: &Netdev, reloaded: bool) {
    let differs = netdev.mtu_bytes != wanted.mtu_bytes;
    if work.desired.options.set_mtu {
        if differs || reloaded {
            work.phases.links.push(Change::SetMtu {
                netdev: netdev.name.clone(),
                mtu_bytes: wanted.mtu_bytes,
                was_bytes: netdev.mtu_bytes,
            });
        }
    } else if differs {
        work.notes.push(format!(
            "{} has MTU {} and the cluster file says {}; left as it is: set it where this host's MTU is set, or use \
             --set-mtu",
            netdev.name, netdev.mtu_bytes, wanted.mtu_bytes
        ));
    }
}
