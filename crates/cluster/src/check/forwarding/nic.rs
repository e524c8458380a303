//! Settings of the functions that mark packets or pass them on.

use super::needs::functions;
use super::{ESWITCH, OFFLOAD, QUEUE_COUNT, QUEUE_SIZE, SECTION, STEERING};
use crate::address::Pci;
use crate::check::{Code, Findings, Room, view};
use crate::inventory::host_state::Netdev;
use crate::inventory::{HostState, Seen};
use crate::rules::{HAIRPIN_ENTRIES, HAIRPIN_QUEUES, Nic, STEERING as STEERING_WANTED};

const ESWITCH_WANTED: &str = "legacy";

/// The command that sets the size and number of hairpin queues. Both take effect when the function's driver starts
/// anew.
pub(in crate::check) fn hairpin_command(pci: Pci) -> String {
    format!(
        "sudo devlink dev param set pci/{pci} name hairpin_queue_size value {HAIRPIN_ENTRIES} cmode driverinit\n\
         sudo devlink dev param set pci/{pci} name hairpin_num_queues value {HAIRPIN_QUEUES} cmode driverinit\n\
         sudo devlink dev reload pci/{pci} action driver_reinit   # ends all queue pairs, routes and filters of it"
    )
}

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    for rank in &room.plan.ranks {
        let Some(state) = view::host(room, rank.rank) else { continue };
        let host = rank.host.as_str();
        let functions = functions(room.plan, rank.rank);
        if functions.is_empty() {
            continue;
        }
        unmeasured(state, host, to);
        for (function, work) in functions {
            // That a function is not there is told elsewhere.
            let Some(netdev) = view::netdev(room, &function) else { continue };
            let Some(pci) = netdev.pci else {
                let what = format!("settings of {}", netdev.name);
                to.undecided(SECTION, Some(host), what, "it is not a PCI function's");
                continue;
            };
            let at = At { host, netdev, pci };
            settings(state, &at, work, to);
            if work.relays {
                at.offload(to);
            }
        }
    }
}

/// What could not be read on a host is told once.
fn unmeasured(state: &HostState, host: &str, to: &mut Findings) {
    if let Seen::NotMeasured(why) = &state.devlink {
        to.undecided(SECTION, Some(host), "devlink parameters", why.as_str());
    }
    if let Seen::NotMeasured(why) = &state.eswitch {
        to.not_measured(SECTION, Some(host), "eswitch mode", why.as_str());
    }
}

fn settings(state: &HostState, at: &At<'_>, work: Nic, to: &mut Findings) {
    let (host, port, pci) = (Some(at.host), Some(at.netdev.name.as_str()), at.pci);
    if let Some(parameters) = state.devlink.known() {
        let value =
            |name: &str| parameters.get(&pci).and_then(|all| all.get(name)).map(String::as_str);
        if work.relays {
            for (code, name, wanted) in [
                (&QUEUE_SIZE, "hairpin_queue_size", HAIRPIN_ENTRIES),
                (&QUEUE_COUNT, "hairpin_num_queues", HAIRPIN_QUEUES),
            ] {
                at.at_least(code, name, wanted, value(name), to);
            }
        }
        let name = "flow_steering_mode";
        match value(name) {
            Some(STEERING_WANTED) => to.looked(SECTION, 1, "functions: steering mode hmfs"),
            Some(other) => to.find(
                &STEERING,
                host,
                port,
                format!("steering mode is {other}: it has to be {STEERING_WANTED} for packets to be \
                     marked and passed on"),
                vec![format!("pci/{pci} {name}: {other}")],
                Some(format!("sudo devlink dev param set pci/{pci} name {name} value {STEERING_WANTED} cmode runtime")),
            ),
            None => at.missing(name, to),
        }
    }
    if let Some(modes) = state.eswitch.known() {
        match modes.get(&pci).map(String::as_str) {
            Some(ESWITCH_WANTED) => to.looked(SECTION, 1, "functions: eswitch in legacy mode"),
            Some(other) => to.find(
                &ESWITCH,
                host,
                port,
                format!("its eswitch is in {other} mode: filters then mean something else"),
                vec![format!("pci/{pci} eswitch mode: {other}")],
                Some(format!(
                    "sudo devlink dev eswitch set pci/{pci} mode {ESWITCH_WANTED}   # ends all queue pairs of it"
                )),
            ),
            None => at.missing("eswitch mode", to),
        }
    }
}

/// The function that is looked at.
struct At<'a> {
    host: &'a str,
    netdev: &'a Netdev,
    pci: Pci,
}

impl At<'_> {
    fn at_least(
        &self,
        code: &Code,
        name: &str,
        wanted: u32,
        value: Option<&str>,
        to: &mut Findings,
    ) {
        let Some(value) = value else { return self.missing(name, to) };
        let pci = self.pci;
        match value.parse::<u32>() {
            Ok(number) if number >= wanted => {
                to.looked(SECTION, 1, "hairpin settings: enough for bursts");
            }
            Ok(number) => to.find(
                code,
                Some(self.host),
                Some(&self.netdev.name),
                format!("{name} is {number}, and {wanted} are needed: bursts overflow, and what overflows is dropped"),
                vec![format!("pci/{pci} {name}: {number}")],
                Some(hairpin_command(pci)),
            ),
            Err(_) => to.undecided(
                SECTION,
                Some(self.host),
                format!("{name} of pci/{pci}"),
                format!("{value:?} is no number"),
            ),
        }
    }

    fn missing(&self, name: &str, to: &mut Findings) {
        let what = format!("{name} of pci/{}", self.pci);
        to.undecided(
            SECTION,
            Some(self.host),
            what,
            "devlink does not show it; is the driver mlx5_core?",
        );
    }

    fn offload(&self, to: &mut Findings) {
        let (host, name) = (Some(self.host), self.netdev.name.as_str());
        match &self.netdev.tc_offload {
            Seen::Known(true) => to.looked(SECTION, 1, "functions: filters are left to the NIC"),
            Seen::Known(false) => to.find(
                &OFFLOAD,
                host,
                Some(name),
                "hw-tc-offload is off: the NIC takes no filter",
                vec![format!("{name} hw-tc-offload: off")],
                Some(format!("sudo ethtool -K {name} hw-tc-offload on")),
            ),
            Seen::NotMeasured(why) => {
                to.undecided(SECTION, host, format!("hw-tc-offload of {name}"), why.as_str());
            }
        }
    }
}
