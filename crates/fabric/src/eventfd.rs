//! What parkers that sleep on descriptors share: event descriptors as bells, and time as the kernel takes it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::Timespec;

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Wakes whoever sleeps on an event descriptor.
pub(crate) fn ring(bell: &OwnedFd) {
    // Full only after 2^64 - 2 rings that nobody heard, and then it rings already.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Has an event or timer descriptor rung no longer.
pub(crate) fn silence(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}
