//! Cables: is everything plugged in as the file says.
//!
//! What is at the other end of a cable is told by LLDP, or by the hardware address that answered for an address of
//! the far end. Two functions of one port are one wire, so ends are compared as ports, never as functions.

use std::collections::{BTreeMap, BTreeSet};

use super::view;
use super::{Code, Findings, Level, Room, Section};
use crate::address::Mac;
use crate::inventory::host_state::Neighbour;
use crate::plan::{CablePlan, FunctionRef};

#[path = "cables_shape.rs"]
mod shape;

const MISCABLED: Code = Code {
    id: "RW-CAB-01",
    level: Level::Error,
    section: Section::Cables,
    title: "a cable leads elsewhere than the file says",
};
const DARK: Code = Code {
    id: "RW-CAB-02",
    level: Level::Error,
    section: Section::Cables,
    title: "a cable is dead at both ends",
};
const ONE_SIDED: Code = Code {
    id: "RW-CAB-03",
    level: Level::Error,
    section: Section::Cables,
    title: "a cable is dead at one end",
};
const LOOPBACK: Code = Code {
    id: "RW-CAB-04",
    level: Level::Error,
    section: Section::Cables,
    title: "two functions of one port are addressed as if a cable joined them",
};
const SHAPE: Code = Code {
    id: "RW-CAB-05",
    level: Level::Error,
    section: Section::Cables,
    title: "the cables make another shape than the file says",
};
const ABSENT: Code = Code {
    id: "RW-CAB-06",
    level: Level::Error,
    section: Section::Cables,
    title: "a function of the file is not on its host",
};
const RENAMED: Code = Code {
    id: "RW-CAB-07",
    level: Level::Note,
    section: Section::Cables,
    title: "a function has another name than the file says",
};

pub(super) const CODES: &[Code] = &[MISCABLED, DARK, ONE_SIDED, LOOPBACK, SHAPE, ABSENT, RENAMED];

/// One end of a cable: rank and port.
type End = (usize, String);

/// Who is at the other end of a port, by one witness.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// A port of the file.
    Port(End),
    /// A host of the file, by a netdev that the file does not have.
    Host(String),
    /// Someone the file does not know.
    Stranger(String),
}

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    look_for_functions(room, to);
    look_for_loopbacks(room, to);
    let owners: BTreeMap<Mac, &FunctionRef> = room
        .plan
        .ranks
        .iter()
        .flat_map(|rank| rank.functions.iter().map(|function| (function.mac, function)))
        .collect();
    let mut wrong = Vec::new();
    for cable in &room.plan.cables {
        let before = wrong.len();
        look_at_ends(room, cable, &owners, &mut wrong, to);
        if wrong.len() == before {
            look_for_light(room, cable, to);
        }
    }
    tell_miscabled(room, wrong, to);
}

/// Every function of the file, found by its hardware address.
fn look_for_functions(room: &Room<'_>, to: &mut Findings) {
    for rank in &room.plan.ranks {
        let Some(state) = view::host(room, rank.rank) else { continue };
        let host = Some(rank.host.as_str());
        if state.netdevs.is_empty() {
            to.undecided(Section::Cables, host, "functions", "no netdev could be read");
            continue;
        }
        let (found, absent): (Vec<_>, Vec<_>) =
            rank.functions.iter().partition(|function| state.netdev_by_mac(function.mac).is_some());
        to.looked(Section::Cables, found.len(), "functions: found by their hardware addresses");
        let line = |function: &&FunctionRef| {
            let elsewhere =
                room.plan.ranks.iter().filter(|other| other.rank != rank.rank).find(|other| {
                    view::host(room, other.rank)
                        .is_some_and(|state| state.netdev_by_mac(function.mac).is_some())
                });
            let where_else =
                elsewhere.map_or_else(String::new, |other| format!(": it is on {}", other.host));
            format!(
                "no netdev has {} ({}, in the file {}){where_else}",
                function.mac,
                function.label(),
                function.netdev
            )
        };
        if found.is_empty() && !absent.is_empty() {
            let message =
                format!("none of the file's {} functions is here: is it this host?", absent.len());
            to.find(
                &ABSENT,
                host,
                None,
                message,
                absent.iter().map(line).collect(),
                discover(room),
            );
        } else {
            let ports: BTreeSet<&str> =
                absent.iter().map(|function| function.port.as_str()).collect();
            for port in ports {
                let of_port: Vec<_> =
                    absent.iter().filter(|function| function.port == port).collect();
                let message =
                    format!("{} of the file's functions of this port not found", of_port.len());
                let evidence = of_port.into_iter().map(line).collect();
                to.find(
                    &ABSENT,
                    host,
                    Some(port),
                    message,
                    evidence,
                    Some("ip -br link".to_owned()),
                );
            }
        }
        let mut renamed = Vec::new();
        for function in found {
            let Some(netdev) = state.netdev_by_mac(function.mac) else { continue };
            if netdev.name != function.netdev {
                renamed.push(format!(
                    "{}: netdev {}, in the file {}",
                    function.label(),
                    netdev.name,
                    function.netdev
                ));
            }
            match (state.rdma_of(netdev), &function.rdma) {
                (Some(device), Some(name)) if device.name != *name => {
                    renamed.push(format!(
                        "{}: RDMA device {}, in the file {name}",
                        function.label(),
                        device.name
                    ));
                }
                _ => {}
            }
        }
        if !renamed.is_empty() {
            to.find(
                &RENAMED,
                host,
                None,
                "names differ from the file's; names are only hints",
                renamed,
                discover(room),
            );
        }
    }
}

/// Two functions of one port in one network: the NIC turns that traffic round, and the cable never sees it.
fn look_for_loopbacks(room: &Room<'_>, to: &mut Findings) {
    for rank in &room.plan.ranks {
        let ports: BTreeSet<&str> =
            rank.functions.iter().map(|function| function.port.as_str()).collect();
        for port in ports {
            let functions = view::port(room, rank.rank, port);
            let mut evidence = BTreeSet::new();
            for (number, one) in functions.iter().enumerate() {
                for other in functions.iter().skip(number + 1) {
                    let (Some(a), Some(b)) = (view::netdev(room, one), view::netdev(room, other))
                    else {
                        continue;
                    };
                    for (x, y) in
                        a.addresses.iter().flat_map(|x| b.addresses.iter().map(move |y| (x, y)))
                    {
                        if x.meets(*y) && x.ip != y.ip {
                            evidence.insert(format!("{} {x} and {} {y}", a.name, b.name));
                        }
                    }
                }
            }
            if !evidence.is_empty() {
                let message = "both functions of this port are in one network; they share one wire, and what they \
                               send each other turns round inside the NIC";
                let evidence = evidence.into_iter().collect();
                to.find(&LOOPBACK, Some(&rank.host), Some(port), message, evidence, None);
            }
        }
    }
}

/// Whether both ends of a cable see each other; what else they see goes to `wrong`.
fn look_at_ends(
    room: &Room<'_>,
    cable: &CablePlan,
    owners: &BTreeMap<Mac, &FunctionRef>,
    wrong: &mut Vec<(End, Seen, Vec<String>)>,
    to: &mut Findings,
) {
    let Some(b) = &cable.b else { return };
    if view::host(room, cable.a.0).is_none() && view::host(room, b.0).is_none() {
        return;
    }
    let mut agreed = false;
    let before = wrong.len();
    for (near, far) in [(&cable.a, b), (b, &cable.a)] {
        let seen = seen_from(room, near, owners);
        agreed |= seen.contains_key(&Seen::Port(far.clone()));
        if !seen.contains_key(&Seen::Port(far.clone())) {
            wrong.extend(seen.into_iter().map(|(seen, evidence)| (near.clone(), seen, evidence)));
        }
    }
    if wrong.len() > before {
        return;
    }
    if agreed {
        to.looked(Section::Cables, 1, "cables: seen to lead where the file says");
    } else if !view::dark(room, cable.a.0, &cable.a.1) && !view::dark(room, b.0, &b.1) {
        let why =
            "neither LLDP nor an answered address tells; `ping` the far end once, and check again";
        to.not_measured(Section::Cables, None, format!("where cable {} leads", cable.name), why);
    }
}

/// Who is seen from one end, with what shows it: by LLDP if it says anything, else by fresh answers, else by old ones.
fn seen_from(
    room: &Room<'_>,
    end: &End,
    owners: &BTreeMap<Mac, &FunctionRef>,
) -> BTreeMap<Seen, Vec<String>> {
    let mut seen: BTreeMap<Seen, Vec<String>> = BTreeMap::new();
    let Some(state) = view::host(room, end.0) else { return seen };
    let netdevs: Vec<_> = view::port(room, end.0, &end.1)
        .into_iter()
        .filter_map(|function| view::netdev(room, function))
        .collect();
    let ours = |name: &str| netdevs.iter().any(|netdev| netdev.name == name && netdev.carrier);
    let owner = |mac: Mac| {
        owners.get(&mac).map(|function| Seen::Port((function.rank, function.port.clone())))
    };
    for told in state.lldp.known().into_iter().flatten().filter(|told| ours(&told.netdev)) {
        let named = told
            .system
            .as_deref()
            .filter(|name| room.plan.ranks.iter().any(|rank| rank.host == *name));
        let who = told
            .mac
            .and_then(owner)
            .or_else(|| named.map(|name| Seen::Host(name.to_owned())))
            .or_else(|| {
                told.system.clone().or(told.mac.map(|mac| mac.to_string())).map(Seen::Stranger)
            });
        let (Some(who), system) = (who, told.system.as_deref().unwrap_or("nobody by name")) else {
            continue;
        };
        // A host may hear itself over the second function of the same port.
        if who == Seen::Port(end.clone()) {
            continue;
        }
        let mac = told.mac.map_or_else(String::new, |mac| format!(" ({mac})"));
        let line = format!("{} {}: LLDP says {system}{mac}", state.name, told.netdev);
        seen.entry(who).or_default().push(line);
    }
    let fresh = |entry: &Neighbour| {
        entry.states.iter().any(|state| matches!(&state[..], "REACHABLE" | "DELAY" | "PROBE"))
    };
    let old = |entry: &Neighbour| entry.states.iter().any(|state| state == "STALE");
    for answered in [&fresh as &dyn Fn(&Neighbour) -> bool, &old] {
        if !seen.is_empty() {
            break;
        }
        let entries = state.neighbours.known().into_iter().flatten();
        for entry in entries.filter(|entry| ours(&entry.netdev) && answered(entry)) {
            let Some((mac, who)) = entry.mac.and_then(|mac| owner(mac).map(|who| (mac, who)))
            else {
                continue;
            };
            if who != Seen::Port(end.clone()) {
                let line =
                    format!("{} {}: {mac} answered for {}", state.name, entry.netdev, entry.ip);
                seen.entry(who).or_default().push(line);
            }
        }
    }
    seen
}

/// One finding for each wrong cable, however many ends and functions show it; and one for the shape they make.
fn tell_miscabled(room: &Room<'_>, wrong: Vec<(End, Seen, Vec<String>)>, to: &mut Findings) {
    if wrong.is_empty() {
        return;
    }
    let mut cables: BTreeMap<(End, Seen), Vec<String>> = BTreeMap::new();
    for (near, seen, evidence) in wrong {
        let key = match seen {
            Seen::Port(far) if far < near => (far, Seen::Port(near)),
            seen => (near, seen),
        };
        cables.entry(key).or_default().extend(evidence);
    }
    for ((near, seen), evidence) in &cables {
        let far = match seen {
            Seen::Port(far) => label(room, far),
            Seen::Host(host) => format!("{host}, at a netdev the file does not have"),
            Seen::Stranger(who) => format!("{who}, which the file does not know"),
        };
        let said = view::cable(room, near.0, &near.1).and_then(|cable| {
            let other = if cable.a == *near { cable.b.clone() } else { Some(cable.a.clone()) };
            other.map(|other| label(room, &other))
        });
        let said = said.unwrap_or_else(|| "no cable there".to_owned());
        let message = format!("{} leads to {far}; the file says {said}", label(room, near));
        let host = room.plan.ranks.get(near.0).map(|rank| rank.host.as_str());
        to.find(&MISCABLED, host, Some(&near.1), message, evidence.clone(), discover(room));
    }
    // With somebody between whom the file does not know, nobody can tell what the cables make.
    if cables.keys().any(|(_, seen)| matches!(seen, Seen::Stranger(_))) {
        return;
    }
    let observed = cables.keys().filter_map(|(near, seen)| match seen {
        Seen::Port(far) => Some((near.0, far.0)),
        Seen::Host(name) => {
            room.plan.ranks.iter().find(|rank| rank.host == *name).map(|rank| (near.0, rank.rank))
        }
        Seen::Stranger(_) => None,
    });
    let moved: BTreeSet<End> = cables
        .keys()
        .flat_map(|(near, seen)| {
            let far = if let Seen::Port(far) = seen { Some(far.clone()) } else { None };
            [Some(near.clone()), far].into_iter().flatten()
        })
        .collect();
    let kept = room.plan.cables.iter().filter_map(|cable| {
        let b = cable.b.as_ref()?;
        (!moved.contains(&cable.a) && !moved.contains(b)).then_some((cable.a.0, b.0))
    });
    let names: Vec<&str> = room.plan.ranks.iter().map(|rank| rank.host.as_str()).collect();
    let planned =
        room.plan.cables.iter().filter_map(|cable| cable.b.as_ref().map(|b| (cable.a.0, b.0)));
    let (is, said) =
        (shape::describe(&names, observed.chain(kept)), shape::describe(&names, planned));
    if is.kind != said.kind {
        let message = format!("the cables make {}; the file says {}", is.text, said.text);
        let evidence = cables.values().flatten().cloned().collect();
        to.find(&SHAPE, None, None, message, evidence, discover(room));
    }
}

/// Whether there is light at both ends.
fn look_for_light(room: &Room<'_>, cable: &CablePlan, to: &mut Findings) {
    let ends: Vec<&End> = [Some(&cable.a), cable.b.as_ref()].into_iter().flatten().collect();
    let known = |end: &End| {
        view::port(room, end.0, &end.1)
            .iter()
            .any(|function| view::netdev(room, function).is_some())
    };
    let dark: Vec<&End> =
        ends.iter().copied().filter(|end| view::dark(room, end.0, &end.1)).collect();
    // A port that was switched off makes both ends dark; that is the finding, and the cable may be fine.
    let switched_off = |end: &End| {
        let mut netdevs = view::port(room, end.0, &end.1)
            .into_iter()
            .filter_map(|function| view::netdev(room, function))
            .peekable();
        netdevs.peek().is_some() && netdevs.all(|netdev| !netdev.admin_up)
    };
    if ends.iter().any(|end| switched_off(end)) {
        return;
    }
    let evidence = |end: &End| -> Vec<String> {
        let functions = view::port(room, end.0, &end.1);
        let netdevs = functions
            .into_iter()
            .filter_map(|function| Some((function, view::netdev(room, function)?)));
        netdevs
            .map(|(function, netdev)| {
                let carrier = if netdev.carrier { "carrier" } else { "no carrier" };
                format!("{} {}: {carrier}", function.host, netdev.name)
            })
            .collect()
    };
    let Some(first) = dark.first() else {
        if ends.iter().all(|end| known(end)) {
            to.looked(Section::Cables, 1, "cables: carrier at both ends");
        }
        return;
    };
    let host = room.plan.ranks.get(first.0).map(|rank| rank.host.as_str());
    let seen = ends.iter().flat_map(|end| evidence(end)).collect();
    let all_known_are_dark = ends.iter().all(|end| !known(end) || dark.contains(end));
    if all_known_are_dark {
        let unknown = if ends.iter().all(|end| known(end)) {
            "at both ends"
        } else {
            "at the end that could be read"
        };
        let message = format!(
            "cable {} has no carrier {unknown}: plug it in at both ends, or replace it",
            cable.name
        );
        to.find(&DARK, host, Some(&first.1), message, seen, None);
    } else {
        let message = format!(
            "cable {} has no carrier at {} but has at the other end: reseat it there, then try another cable",
            cable.name,
            label(room, first),
        );
        to.find(&ONE_SIDED, host, Some(&first.1), message, seen, None);
    }
}

fn label(room: &Room<'_>, end: &End) -> String {
    let host = room.plan.ranks.get(end.0).map_or("?", |rank| rank.host.as_str());
    format!("{host}.{}", end.1)
}

/// The command that writes the file anew from what is there.
fn discover(room: &Room<'_>) -> Option<String> {
    let hosts: Vec<&str> = room
        .file
        .hosts
        .iter()
        .map(|host| if host.reach == "local" { &host.name[..] } else { &host.reach[..] })
        .collect();
    Some(format!("railweave discover {}", hosts.join(" ")))
}
