//! What NICs need to pass packets on: markers at the sources, settings of the functions between, and a kernel between
//! that does not do the NIC's work.
//!
//! Nothing here is looked at unless the plan has forwarded rails.

mod kernel;
mod markers;
mod needs;
mod nic;

pub use markers::coverage;
pub(super) use nic::hairpin_command;

use super::{Code, Findings, Level, Room, Section};
use crate::file::MarkerKind;
use crate::plan::PathKind;

const SECTION: Section = Section::Forwarding;

const fn code(id: &'static str, level: Level, title: &'static str) -> Code {
    Code { id, level, section: SECTION, title }
}

const SLOW_PATH: Code =
    code("RW-FWD-01", Level::Warning, "the kernel would pass packets on in the NIC's place");
const SLOW_PATH_USED: Code = code("RW-FWD-02", Level::Warning, "the kernel passes packets on");
const FIREWALL: Code =
    code("RW-FWD-03", Level::Warning, "the firewall drops what the NIC does not pass on");
const UNMARKED: Code = code("RW-FWD-04", Level::Error, "nothing marks packets of a planned device");
const ENDING: Code = code("RW-FWD-05", Level::Warning, "a marker will end by itself");
const MISMARKED: Code =
    code("RW-FWD-06", Level::Error, "a marker does not set what the plan needs");
const QUEUE_SIZE: Code = code("RW-FWD-07", Level::Warning, "the hairpin queue is small");
const QUEUE_COUNT: Code = code("RW-FWD-08", Level::Warning, "there are few hairpin queues");
const STEERING: Code = code("RW-FWD-09", Level::Error, "the NIC's steering mode is wrong");
const ESWITCH: Code = code("RW-FWD-10", Level::Error, "the NIC's switch is not in legacy mode");
const OFFLOAD: Code = code("RW-FWD-11", Level::Error, "the NIC may not carry filters out");
const HASHED_PORTS: Code =
    code("RW-FWD-12", Level::Note, "other queue pairs can hit the tag's source port");
const OVERMARKED: Code =
    code("RW-FWD-13", Level::Error, "a marker marks what the plan sends plainly");

pub(super) const CODES: &[Code] = &[
    SLOW_PATH,
    SLOW_PATH_USED,
    FIREWALL,
    UNMARKED,
    ENDING,
    MISMARKED,
    QUEUE_SIZE,
    QUEUE_COUNT,
    STEERING,
    ESWITCH,
    OFFLOAD,
    HASHED_PORTS,
    OVERMARKED,
];

pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    if room.plan.paths.iter().all(|path| path.kind != PathKind::Forwarded) {
        return;
    }
    kernel::look(room, to);
    markers::look(room, to);
    // The kernel needs no settings of a NIC.
    if room.plan.marker == MarkerKind::Nic {
        nic::look(room, to);
    }
}
