//! Settings of NICs: hairpin queues, steering, offload; and the eswitch, which is only looked at.

use std::collections::BTreeMap;

use super::change::{Change, When};
use super::compare::Work;
use super::refusal::Refusal;
use super::{HAIRPIN_ENTRIES, HAIRPIN_QUEUES, STEERING};
use crate::address::Pci;
use crate::inventory::host_state::Netdev;

const QUEUES: &str = "hairpin_num_queues";
const ENTRIES: &str = "hairpin_queue_size";
const MODE: &str = "flow_steering_mode";

/// One function whose NIC has something to do.
struct Function<'a> {
    netdev: &'a Netdev,
    pci: Pci,
    relays: bool,
}

pub(super) fn compare(work: &mut Work<'_>) {
    let mut functions = Vec::new();
    for (wanted, netdev) in work.functions() {
        if !wanted.nic.relays && !wanted.nic.marks {
            continue;
        }
        match netdev.pci {
            Some(pci) => functions.push(Function { netdev, pci, relays: wanted.nic.relays }),
            None => work.refusals.push(Refusal::NoPci {
                function: wanted.function.label(),
                netdev: netdev.name.clone(),
            }),
        }
    }
    for function in &functions {
        eswitch(work, function);
        let Some(parameters) = parameters(work, function) else { continue };
        if function.relays {
            hairpin(work, function, parameters);
        }
        steering(work, function, parameters);
    }
    for function in functions.iter().filter(|function| function.relays) {
        offload(work, function);
    }
}

fn parameters<'a>(
    work: &mut Work<'a>,
    function: &Function<'_>,
) -> Option<&'a BTreeMap<String, String>> {
    let host = work.host;
    let what = || format!("parameters of pci/{} ({})", function.pci, function.netdev.name);
    match host.devlink.known() {
        Some(all) => {
            let found = all.get(&function.pci);
            if found.is_none() {
                work.not_measured(what(), "devlink lists none; is its driver mlx5_core?", true);
            }
            found
        }
        None => {
            let why = host.devlink.reason().unwrap_or("not read");
            work.not_measured(what(), why, true);
            None
        }
    }
}

fn eswitch(work: &mut Work<'_>, function: &Function<'_>) {
    let host = work.host;
    let mode = host.eswitch.known().and_then(|modes| modes.get(&function.pci));
    match mode {
        Some(mode) if mode == "legacy" => {}
        Some(mode) => work.refusals.push(Refusal::Eswitch {
            pci: function.pci,
            netdev: function.netdev.name.clone(),
            mode: mode.clone(),
        }),
        // Legacy is what every boot begins with, so not knowing is no reason to do nothing.
        None => {
            let why = host.eswitch.reason().unwrap_or("devlink does not say").to_owned();
            work.not_measured(format!("eswitch mode of pci/{}", function.pci), &why, false);
        }
    }
}

fn hairpin(work: &mut Work<'_>, function: &Function<'_>, parameters: &BTreeMap<String, String>) {
    let netdev = &function.netdev.name;
    let mut changes = Vec::new();
    for (name, least) in [(QUEUES, HAIRPIN_QUEUES), (ENTRIES, HAIRPIN_ENTRIES)] {
        let Some(was) = parameters.get(name) else {
            work.refusals.push(Refusal::NoParameter {
                pci: function.pci,
                netdev: netdev.clone(),
                parameter: name.to_owned(),
            });
            return;
        };
        // More than that is somebody's choice, and does no harm here.
        if was.parse::<u32>().is_ok_and(|was| was >= least) {
            continue;
        }
        changes.push(Change::SetParameter {
            pci: function.pci,
            netdev: netdev.clone(),
            name: name.to_owned(),
            value: least.to_string(),
            was: was.clone(),
            when: When::DriverInit,
        });
    }
    if changes.is_empty() && !work.desired.options.reload {
        return;
    }
    work.phases.reload.extend(changes);
    work.phases.reload.push(Change::Reload { pci: function.pci, netdev: netdev.clone() });
    work.reloaded.insert(netdev.clone());
}

fn steering(work: &mut Work<'_>, function: &Function<'_>, parameters: &BTreeMap<String, String>) {
    let netdev = &function.netdev.name;
    let Some(was) = parameters.get(MODE) else {
        work.refusals.push(Refusal::NoParameter {
            pci: function.pci,
            netdev: netdev.clone(),
            parameter: MODE.to_owned(),
        });
        return;
    };
    // A reload puts it back to the driver's own choice.
    if was == STEERING && !work.reloaded.contains(netdev) {
        return;
    }
    work.retaken.insert(netdev.clone());
    work.phases.settings.push(Change::SetParameter {
        pci: function.pci,
        netdev: netdev.clone(),
        name: MODE.to_owned(),
        value: STEERING.to_owned(),
        was: if was == STEERING { "after a reload".to_owned() } else { was.clone() },
        when: When::Runtime,
    });
}

fn offload(work: &mut Work<'_>, function: &Function<'_>) {
    let netdev = &function.netdev.name;
    let reloaded = work.reloaded.contains(netdev);
    match function.netdev.tc_offload.known() {
        Some(true) if !reloaded => {}
        Some(_) => {
            work.retaken.insert(netdev.clone());
            work.phases.settings.push(Change::SetOffload { netdev: netdev.clone() });
        }
        None => {
            let why = function.netdev.tc_offload.reason().unwrap_or("not read");
            work.not_measured(format!("hw-tc-offload of {netdev}"), why, true);
        }
    }
}
