//! What can go wrong.

use std::time::Duration;

use super::super::abi::QPS_RESET;
use super::state::{Occurrence, State, nanoseconds};

/// The asynchronous events of a device, as in `enum ibv_event_type`.
const DEVICE_FATAL: u32 = 8;
const PORT_ACTIVE: u32 = 9;
const PORT_ERROR: u32 = 10;

/// Something that goes wrong, or right again. An end is named by its rank, the rank at the other
/// end, and the rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A queue pair fails with this status and vendor code.
    Complete {
        /// Whose.
        end: (usize, usize, usize),
        /// As in `enum ibv_wc_status`.
        status: u32,
        /// The driver's own code.
        vendor_error: u32,
    },
    /// A queue pair sends and completes nothing any more, nor says so. It still answers.
    Stall {
        /// Whose.
        end: (usize, usize, usize),
    },
    /// It does again.
    Resume {
        /// Whose.
        end: (usize, usize, usize),
    },
    /// A queue pair that is brought to error completes nothing.
    Mute {
        /// Whose.
        end: (usize, usize, usize),
    },
    /// The device reports an asynchronous event.
    Report {
        /// Whose.
        end: (usize, usize, usize),
        /// As in `enum ibv_event_type`.
        event: u32,
    },
    /// The device fails as a whole.
    Gone {
        /// Whose.
        end: (usize, usize, usize),
    },
    /// The completions of the device cannot be read any more.
    Unreadable {
        /// Whose.
        end: (usize, usize, usize),
    },
    /// It is there again, for whoever opens it anew.
    Back {
        /// Whose.
        end: (usize, usize, usize),
    },
    /// The cable of an end is pulled.
    Pull {
        /// Whose.
        end: (usize, usize, usize),
    },
    /// It is put back.
    Mend {
        /// Whose.
        end: (usize, usize, usize),
    },
    /// So many packets of a thousand that leave there are lost.
    Lose {
        /// Whose.
        end: (usize, usize, usize),
        /// All of them at 1000.
        permille: u64,
    },
    /// The address comes back as the GID of another slot.
    MoveGid {
        /// Whose.
        end: (usize, usize, usize),
        /// The slot.
        slot: u8,
    },
    /// The address leaves the device.
    DropGid {
        /// Whose.
        end: (usize, usize, usize),
    },
    /// The device registers no memory.
    RefuseMemory {
        /// Whose.
        end: (usize, usize, usize),
        /// The error number.
        errno: i32,
    },
    /// The rules at an end are gone.
    DropRules {
        /// Whose.
        end: (usize, usize, usize),
    },
}

impl Fault {
    fn end(&self) -> (usize, usize, usize) {
        match *self {
            Self::Complete { end, .. }
            | Self::Stall { end }
            | Self::Resume { end }
            | Self::Mute { end }
            | Self::Report { end, .. }
            | Self::Gone { end }
            | Self::Unreadable { end }
            | Self::Back { end }
            | Self::Pull { end }
            | Self::Mend { end }
            | Self::Lose { end, .. }
            | Self::MoveGid { end, .. }
            | Self::DropGid { end }
            | Self::RefuseMemory { end, .. }
            | Self::DropRules { end } => end,
        }
    }
}

impl State {
    pub(super) fn commit_after(&mut self, after: Duration, fault: Fault) {
        self.after(nanoseconds(after), Occurrence::Fault(fault));
    }

    pub(super) fn commit(&mut self, fault: Fault) {
        let end = fault.end();
        let Some(device) = self.device_of(end) else { return };
        let number = self.pair_of(end).map(|pair| pair.number);
        match fault {
            Fault::Complete { status, vendor_error, .. } => {
                if let Some(number) = number {
                    self.fail(number, status, vendor_error);
                }
            }
            Fault::Stall { .. } | Fault::Mute { .. } => {
                if let Some(pair) = number.and_then(|number| self.pairs.get_mut(&number)) {
                    pair.stalled |= matches!(fault, Fault::Stall { .. });
                    pair.mute |= matches!(fault, Fault::Mute { .. });
                }
            }
            Fault::Resume { .. } => {
                if let Some(number) = number {
                    self.resume(number);
                }
            }
            Fault::Report { event, .. } => self.tell(device, event),
            Fault::Gone { .. } => {
                self.tell(device, DEVICE_FATAL);
                self.devices[device].gone = true;
                for opened in self.opened.values_mut().filter(|it| it.device == device) {
                    opened.dead = true;
                }
                for pair in self.pairs.values_mut().filter(|it| it.device == device) {
                    pair.state = QPS_RESET;
                }
            }
            Fault::Unreadable { .. } => {
                for opened in self.opened.values_mut().filter(|it| it.device == device) {
                    opened.unreadable = true;
                }
            }
            Fault::Back { .. } => self.devices[device].gone = false,
            Fault::Pull { .. } => self.carry(device, false),
            Fault::Mend { .. } => self.carry(device, true),
            Fault::Lose { permille, .. } => self.devices[device].lost_permille = permille,
            Fault::MoveGid { slot, .. } => self.devices[device].move_gid(slot),
            Fault::DropGid { .. } => self.devices[device].gids.clear(),
            Fault::RefuseMemory { errno, .. } => self.devices[device].refuses = Some(errno),
            Fault::DropRules { .. } => self.devices[device].rules.clear(),
        }
    }

    fn carry(&mut self, device: usize, carrier: bool) {
        for device in [Some(device), self.peer_of(device)].into_iter().flatten() {
            self.devices[device].carrier = carrier;
            self.tell(device, if carrier { PORT_ACTIVE } else { PORT_ERROR });
        }
    }
}
