//! An opened device.

use std::ffi::c_int;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::abi;
use super::super::counters::{DEVICES_ROOT, DevicePort, PortCounts};
use super::super::error::{Notice, VerbsError, registration_hint};
use super::super::provider::{Nic, Qp};
use super::qp::KernelQp;
use super::{DeviceList, EVENTS_MAX, Library, Owned, answered, library};
use crate::region::{OutOfRegion, Region};

/// An opened device with one region registered, and its completion queue.
pub(super) struct KernelNic {
    pub(super) cq: Owned<abi::Cq>,
    channel: Owned<abi::CompChannel>,
    pub(super) mr: Owned<abi::Mr>,
    pub(super) pd: Owned<abi::Opaque>,
    context: Owned<abi::Context>,
    pub(super) region: Arc<Region>,
    pub(super) library: &'static Library,
    poll: unsafe extern "C" fn(*mut abi::Cq, c_int, *mut abi::Wc) -> c_int,
    notify: unsafe extern "C" fn(*mut abi::Cq, c_int) -> c_int,
    pub(super) name: String,
    port: u8,
    armed: AtomicBool,
}

// SAFETY: it owns what it points to, and the library's calls may come from any thread.
unsafe impl Send for KernelNic {}
// SAFETY: as above; none of its methods changes a field without an atomic.
unsafe impl Sync for KernelNic {}

impl KernelNic {
    /// Opens a device and registers the region whole. Its completion queue holds `completions`.
    pub(super) fn open(
        name: &str,
        port: u8,
        region: Arc<Region>,
        completions: u32,
    ) -> Result<Self, VerbsError> {
        let library = library()?;
        let failed = |what, hint| {
            let device = name.to_owned();
            move |source| VerbsError::Device { device, what, source, hint }
        };
        let list = DeviceList::get(library)?;
        let missing = || failed("be found", String::new())(io::ErrorKind::NotFound.into());
        let device = list.devices().find(|&it| list.name(it) == name).ok_or_else(missing)?;
        // SAFETY: the device is of the list, which is freed after this.
        let made = unsafe { (library.ibv_open_device)(device) };
        let context =
            Owned::new(made, library.ibv_close_device).map_err(failed("open", String::new()))?;
        drop(list);
        // SAFETY: the context is open, and its operations were set when it was opened.
        let ops = unsafe { &(*context.as_ptr()).ops };
        let incomplete = || failed("poll", String::new())(io::ErrorKind::Unsupported.into());
        let (poll, notify) = ops.poll_cq.zip(ops.req_notify_cq).ok_or_else(incomplete)?;
        // SAFETY: the context is open.
        let made = unsafe { (library.ibv_alloc_pd)(context.as_ptr()) };
        let pd = Owned::new(made, library.ibv_dealloc_pd)
            .map_err(failed("make a protection domain", String::new()))?;
        let bytes = region.len();
        let start = region.pointer(0, bytes).map_err(|error| {
            failed("register the region", String::new())(io::Error::other(error))
        })?;
        let access = (abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE) as c_int;
        // SAFETY: the memory is the region's, which the value made here keeps mapped.
        let made =
            unsafe { (library.ibv_reg_mr)(pd.as_ptr(), start.cast(), bytes as usize, access) };
        let mr = Owned::new(made, library.ibv_dereg_mr).map_err(|error| {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            let hint = registration_hint(&error, bytes, limit);
            failed("register the region", hint)(error)
        })?;
        // SAFETY: the context is open.
        let made = unsafe { (library.ibv_create_comp_channel)(context.as_ptr()) };
        let channel = Owned::new(made, library.ibv_destroy_comp_channel)
            .map_err(failed("make a completion channel", String::new()))?;
        let completions = c_int::try_from(completions).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are open, and vector 0 exists on every device.
        let made = unsafe {
            (library.ibv_create_cq)(context.as_ptr(), completions, null_mut(), channel.as_ptr(), 0)
        };
        let cq = Owned::new(made, library.ibv_destroy_cq)
            .map_err(failed("make a completion queue", String::new()))?;
        let nic = Self {
            cq,
            channel,
            mr,
            pd,
            context,
            region,
            library,
            poll,
            notify,
            name: name.to_owned(),
            port,
            armed: AtomicBool::new(false),
        };
        for fd in [nic.completions_fd(), nic.events_fd()] {
            rustix::io::ioctl_fionbio(fd, true).map_err(|errno| {
                failed("make its descriptors non-blocking", String::new())(errno.into())
            })?;
        }
        nic.attributes().map_err(failed("query its port", String::new()))?;
        Ok(nic)
    }
}

impl Nic for KernelNic {
    fn name(&self) -> &str {
        &self.name
    }

    fn port(&self) -> u8 {
        self.port
    }

    fn counts(&self) -> PortCounts {
        let port = DevicePort { device: self.name.clone(), port: self.port };
        PortCounts::read(Path::new(DEVICES_ROOT), &port)
    }

    fn attributes(&self) -> io::Result<abi::PortAttr> {
        let mut attributes = abi::PortAttr::default();
        // SAFETY: the context is open; the structure has room for what any version fills.
        let queried = unsafe {
            (self.library.ibv_query_port)(self.context.as_ptr(), self.port, &raw mut attributes)
        };
        answered(queried).map(|()| attributes)
    }

    fn remote_access(&self) -> Result<(u64, u32), OutOfRegion> {
        let start = self.region.pointer(0, 0)? as u64;
        // SAFETY: the registration lives as long as this value.
        Ok((start, unsafe { (*self.mr.as_ptr()).rkey }))
    }

    fn make_queue_pair(
        self: Arc<Self>,
        sends: u32,
        receives: u32,
    ) -> Result<Box<dyn Qp>, VerbsError> {
        Ok(Box::new(KernelQp::new(&self, sends, receives)?))
    }

    fn poll(&self, room: &mut [abi::Wc]) -> io::Result<usize> {
        let most = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is open and the room is good for `most` completions.
        let count = unsafe { (self.poll)(self.cq.as_ptr(), most, room.as_mut_ptr()) };
        usize::try_from(count)
            .map(|count| count.min(room.len()))
            .map_err(|_| io::Error::other(format!("its completion queue cannot be read ({count})")))
    }

    fn arm(&self) -> bool {
        if self.armed.swap(true, Ordering::SeqCst) {
            return false;
        }
        // SAFETY: the queue is open.
        if unsafe { (self.notify)(self.cq.as_ptr(), 0) } != 0 {
            self.armed.store(false, Ordering::SeqCst);
        }
        true
    }

    fn disarm(&self) {
        for _ in 0..EVENTS_MAX {
            let (mut cq, mut own) = (null_mut(), null_mut());
            // SAFETY: the channel is open and does not block; the library fills both places when
            // it answers 0, and the only queue on this channel is this value's.
            let got = unsafe {
                (self.library.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut own)
            };
            if got != 0 {
                return;
            }
            self.armed.store(false, Ordering::SeqCst);
            // SAFETY: one event of this queue was taken just now.
            unsafe { (self.library.ibv_ack_cq_events)(self.cq.as_ptr(), 1) };
        }
    }

    fn event(&self) -> Option<Notice> {
        for _ in 0..EVENTS_MAX {
            let mut event = abi::AsyncEvent { element: 0, event_type: 0 };
            // SAFETY: the context is open and its descriptor does not block; the library fills
            // the event when it answers 0.
            let got = unsafe {
                (self.library.ibv_get_async_event)(self.context.as_ptr(), &raw mut event)
            };
            if got != 0 {
                return None;
            }
            // SAFETY: the event was taken just now and is given back once; a queue pair that it
            // names cannot be freed before.
            unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
            let notice = Notice::of_event(event.event_type);
            // The first four bytes, whichever way round the machine stores them.
            let [a, b, c, d, ..] = event.element.to_ne_bytes();
            let port = u32::from_ne_bytes([a, b, c, d]);
            let of_port = matches!(notice, Notice::PortDown | Notice::PortUp);
            if !of_port || port == u32::from(self.port) {
                return Some(notice);
            }
        }
        None
    }

    fn completions_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as `self`.
        let fd: RawFd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: as above, and the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as `self`.
        let fd: RawFd = unsafe { (*self.context.as_ptr()).async_fd };
        // SAFETY: as above, and the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}
