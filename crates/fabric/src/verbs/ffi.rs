//! libibverbs, loaded at run time, behind safe faces.
//!
//! All calls into the library are here. What makes them sound together:
//!
//! - The library is never unloaded, so its functions stay.
//! - Everything it hands out is owned by one value, freed once, and freed after all that was made
//!   from it: a [`Qp`] holds its [`Nic`], and the fields of a `Nic` are dropped in order.
//! - The library's calls may be made from any thread at the same time; that is part of its
//!   documented interface.
//! - A device reads and writes only the region it was given. The [`Nic`] keeps the region mapped;
//!   should deregistration fail, the kernel keeps the pages pinned, so nobody else gets them.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::abi::{self, mask};
use super::error::{Notice, VerbsError, registration_hint};
use crate::device::Span;
use crate::region::Region;

/// Most work requests of one chain.
pub(super) const CHAIN_MAX: usize = 20;
/// Bytes that travel in a work request itself.
pub(super) const INLINE_BYTES_MAX: usize = 96;
/// Most devices looked at.
const DEVICES_MAX: usize = 256;
/// Most events taken from a descriptor at one time.
const EVENTS_MAX: usize = 64;

macro_rules! library {
    ($($name:ident: fn($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The functions of libibverbs that are used.
        struct Library {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
            _library: libloading::Library,
        }

        impl Library {
            fn load() -> Result<Self, String> {
                // SAFETY: loading runs the library's initialisers, which only prepare its own
                // state; it is the system's libibverbs.
                let library = unsafe { libloading::Library::new("libibverbs.so.1") }
                    .map_err(|error| error.to_string())?;
                Ok(Self {
                    // SAFETY: the types are those of the library's header, whose symbols have
                    // versions and never change their meaning; the library stays loaded as long
                    // as the copies of its pointers, which live in the same value.
                    $($name: *unsafe {
                        library.get(concat!(stringify!($name), "\0").as_bytes())
                    }.map_err(|error| error.to_string())?,)*
                    _library: library,
                })
            }
        }
    };
}

library! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut abi::Opaque;
    ibv_free_device_list: fn(*mut *mut abi::Opaque);
    ibv_get_device_name: fn(*mut abi::Opaque) -> *const c_char;
    ibv_open_device: fn(*mut abi::Opaque) -> *mut abi::Context;
    ibv_close_device: fn(*mut abi::Context) -> c_int;
    ibv_query_port: fn(*mut abi::Context, u8, *mut abi::PortAttr) -> c_int;
    ibv_alloc_pd: fn(*mut abi::Context) -> *mut abi::Opaque;
    ibv_dealloc_pd: fn(*mut abi::Opaque) -> c_int;
    ibv_reg_mr: fn(*mut abi::Opaque, *mut c_void, usize, c_int) -> *mut abi::Mr;
    ibv_dereg_mr: fn(*mut abi::Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut abi::Context) -> *mut abi::CompChannel;
    ibv_destroy_comp_channel: fn(*mut abi::CompChannel) -> c_int;
    ibv_create_cq: fn(*mut abi::Context, c_int, *mut c_void, *mut abi::CompChannel, c_int)
        -> *mut abi::Cq;
    ibv_destroy_cq: fn(*mut abi::Cq) -> c_int;
    ibv_get_cq_event: fn(*mut abi::CompChannel, *mut *mut abi::Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut abi::Cq, c_uint);
    ibv_create_qp: fn(*mut abi::Opaque, *mut abi::QpInitAttr) -> *mut abi::Qp;
    ibv_modify_qp: fn(*mut abi::Qp, *mut abi::QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut abi::Qp) -> c_int;
    ibv_get_async_event: fn(*mut abi::Context, *mut abi::AsyncEvent) -> c_int;
    ibv_ack_async_event: fn(*mut abi::AsyncEvent);
}

fn library() -> Result<&'static Library, VerbsError> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(Library::load).as_ref();
    loaded.map_err(|what| VerbsError::NoLibrary { what: what.clone() })
}

/// Something that the library made and takes back.
struct Owned<T> {
    it: NonNull<T>,
    free: unsafe extern "C" fn(*mut T) -> c_int,
}

impl<T> Owned<T> {
    /// Takes what a call made, or says why it made nothing.
    fn new(made: *mut T, free: unsafe extern "C" fn(*mut T) -> c_int) -> io::Result<Self> {
        // Calls that make something leave their reason in errno.
        let it = NonNull::new(made).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { it, free })
    }

    fn as_ptr(&self) -> *mut T {
        self.it.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the library made it, nobody else frees it, and the owners' order of fields frees
        // it after what was made from it. A device that refuses keeps it, which leaks and no more.
        unsafe { (self.free)(self.it.as_ptr()) };
    }
}

/// A function's answer that is an error number.
fn answered(number: c_int) -> io::Result<()> {
    match number {
        0 => Ok(()),
        // Some drivers answer -1 and leave the reason in errno.
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

/// The names of this host's RDMA devices.
pub(super) fn device_names() -> Result<Vec<String>, VerbsError> {
    let list = DeviceList::get(library()?)?;
    Ok(list.devices().map(|device| list.name(device)).collect())
}

struct DeviceList {
    library: &'static Library,
    list: NonNull<*mut abi::Opaque>,
    count: usize,
}

impl DeviceList {
    fn get(library: &'static Library) -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: the library fills the count and answers an array of so many devices, or null.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        let list = NonNull::new(list)
            .ok_or_else(|| VerbsError::NoDevices { source: Some(io::Error::last_os_error()) })?;
        let count = usize::try_from(count).unwrap_or(0).min(DEVICES_MAX);
        Ok(Self { library, list, count })
    }

    fn devices(&self) -> impl Iterator<Item = *mut abi::Opaque> + '_ {
        // SAFETY: the array has `count` entries and lives until it is freed in `drop`.
        (0..self.count).map(|index| unsafe { *self.list.as_ptr().add(index) })
    }

    fn name(&self, device: *mut abi::Opaque) -> String {
        // SAFETY: the device is of this list, and its name is a C string that lives as long.
        let name = unsafe { CStr::from_ptr((self.library.ibv_get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list is the library's own and freed once; opened devices stay.
        unsafe { (self.library.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// An opened device with one region registered, and its completion queue.
pub(super) struct Nic {
    cq: Owned<abi::Cq>,
    channel: Owned<abi::CompChannel>,
    mr: Owned<abi::Mr>,
    pd: Owned<abi::Opaque>,
    context: Owned<abi::Context>,
    region: Arc<Region>,
    library: &'static Library,
    poll: unsafe extern "C" fn(*mut abi::Cq, c_int, *mut abi::Wc) -> c_int,
    notify: unsafe extern "C" fn(*mut abi::Cq, c_int) -> c_int,
    name: String,
    port: u8,
    attributes: abi::PortAttr,
    armed: AtomicBool,
}

// SAFETY: it owns what it points to, and the library's calls may come from any thread.
unsafe impl Send for Nic {}
// SAFETY: as above; none of its methods changes a field without an atomic.
unsafe impl Sync for Nic {}

impl Nic {
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
        let mut attributes = abi::PortAttr::default();
        // SAFETY: the context is open; the structure has room for what any version fills.
        let queried =
            unsafe { (library.ibv_query_port)(context.as_ptr(), port, &raw mut attributes) };
        answered(queried).map_err(failed("query its port", String::new()))?;
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
        let made = unsafe {
            (library.ibv_reg_mr)(pd.as_ptr(), start.cast(), bytes as usize, access)
        };
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
            (library.ibv_create_cq)(
                context.as_ptr(),
                completions,
                null_mut(),
                channel.as_ptr(),
                0,
            )
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
            attributes,
            armed: AtomicBool::new(false),
        };
        for fd in [nic.completions_fd(), nic.events_fd()] {
            rustix::io::ioctl_fionbio(fd, true).map_err(|errno| {
                failed("make its descriptors non-blocking", String::new())(errno.into())
            })?;
        }
        Ok(nic)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn port(&self) -> u8 {
        self.port
    }

    /// What the port said when it was opened.
    pub(super) fn attributes(&self) -> &abi::PortAttr {
        &self.attributes
    }

    /// Where peers find the region, and with which key.
    pub(super) fn remote_access(&self) -> Result<(u64, u32), crate::OutOfRegion> {
        let start = self.region.pointer(0, 0)? as u64;
        // SAFETY: the registration lives as long as this value.
        Ok((start, unsafe { (*self.mr.as_ptr()).rkey }))
    }

    /// Takes completions; answers how many.
    pub(super) fn poll(&self, room: &mut [abi::Wc]) -> io::Result<usize> {
        let most = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is open and the room is good for `most` completions.
        let count = unsafe { (self.poll)(self.cq.as_ptr(), most, room.as_mut_ptr()) };
        usize::try_from(count).map(|count| count.min(room.len())).map_err(|_| {
            io::Error::other(format!("its completion queue cannot be read ({count})"))
        })
    }

    /// Has the next completion make [`completions_fd`](Self::completions_fd) readable. Answers
    /// false where that was so already.
    pub(super) fn arm(&self) -> bool {
        if self.armed.swap(true, Ordering::SeqCst) {
            return false;
        }
        // SAFETY: the queue is open.
        if unsafe { (self.notify)(self.cq.as_ptr(), 0) } != 0 {
            self.armed.store(false, Ordering::SeqCst);
        }
        true
    }

    /// Takes what made [`completions_fd`](Self::completions_fd) readable.
    pub(super) fn disarm(&self) {
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

    /// Takes one asynchronous event that concerns this port, if there is one.
    pub(super) fn event(&self) -> Option<Notice> {
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

    /// Readable once there are completions, when [armed](Self::arm).
    pub(super) fn completions_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as `self`.
        let fd: RawFd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: as above, and the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Readable while there are asynchronous events.
    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as `self`.
        let fd: RawFd = unsafe { (*self.context.as_ptr()).async_fd };
        // SAFETY: as above, and the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// A peer's region as this rank may write it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Remote {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) bytes: u64,
}

/// What a work request carries.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    /// Bytes that are copied when it is posted; at most [`INLINE_BYTES_MAX`].
    Inline(&'a [u8]),
    /// Bytes of the own region, read any time before its completion.
    Region(Span),
}

/// What a work request does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action<'a> {
    /// Writes at an offset of the peer's region.
    Write { payload: Payload<'a>, to: u64 },
    /// The same, and tells the peer a number once it is there.
    WriteTelling { payload: Payload<'a>, to: u64, number: u32 },
    /// Tells the peer a number.
    Tell { number: u32 },
}

/// One work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    /// Comes back with its completion.
    pub(super) id: u64,
    pub(super) action: Action<'a>,
    /// Has a completion when it succeeds; when it fails it always has one.
    pub(super) signalled: bool,
}

/// A reliable connection's end.
pub(super) struct Qp {
    qp: Owned<abi::Qp>,
    nic: Arc<Nic>,
    post_send: unsafe extern "C" fn(*mut abi::Qp, *mut abi::SendWr, *mut *mut abi::SendWr) -> c_int,
    post_recv: unsafe extern "C" fn(*mut abi::Qp, *mut abi::RecvWr, *mut *mut abi::RecvWr) -> c_int,
    lkey: u32,
}

// SAFETY: it owns what it points to, and the library's calls may come from any thread.
unsafe impl Send for Qp {}

impl Qp {
    /// Makes a queue pair for so many outstanding requests.
    pub(super) fn new(nic: &Arc<Nic>, sends: u32, receives: u32) -> Result<Self, VerbsError> {
        let failed = |source| VerbsError::Device {
            device: nic.name.clone(),
            what: "make a queue pair",
            source,
            hint: String::new(),
        };
        let mut wanted = abi::QpInitAttr {
            qp_context: null_mut(),
            send_cq: nic.cq.as_ptr(),
            recv_cq: nic.cq.as_ptr(),
            srq: null_mut(),
            cap: abi::QpCap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: INLINE_BYTES_MAX as u32,
            },
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue belong to the device, which the value made here keeps open.
        let made = unsafe { (nic.library.ibv_create_qp)(nic.pd.as_ptr(), &raw mut wanted) };
        let qp = Owned::new(made, nic.library.ibv_destroy_qp).map_err(failed)?;
        // SAFETY: the queue pair was made just now; its context is the open device's.
        let ops = unsafe { &(*(*qp.as_ptr()).context).ops };
        let (post_send, post_recv) = ops
            .post_send
            .zip(ops.post_recv)
            .ok_or_else(|| failed(io::ErrorKind::Unsupported.into()))?;
        // SAFETY: the registration lives as long as the device.
        let lkey = unsafe { (*nic.mr.as_ptr()).lkey };
        Ok(Self { qp, nic: Arc::clone(nic), post_send, post_recv, lkey })
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as `self`.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// Changes the attributes that `mask` names.
    pub(super) fn modify(&mut self, attributes: &abi::QpAttr, mask: c_int) -> io::Result<()> {
        let mut attributes = *attributes;
        // SAFETY: the queue pair lives, and the structure is whole; the device checks its values.
        answered(unsafe {
            (self.nic.library.ibv_modify_qp)(self.qp.as_ptr(), &raw mut attributes, mask)
        })
    }

    /// Ends all work: what is outstanding completes with an error, and nothing lands any more.
    pub(super) fn fail(&mut self) -> io::Result<()> {
        let attributes = abi::QpAttr { qp_state: abi::QPS_ERR, ..abi::QpAttr::default() };
        self.modify(&attributes, mask::STATE)
    }

    /// Posts a chain of requests to a peer's region; on an error any part of it may be posted.
    pub(super) fn post(&mut self, remote: &Remote, requests: &[Request<'_>]) -> io::Result<()> {
        let refuse = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if requests.is_empty() || requests.len() > CHAIN_MAX {
            return refuse("a chain of no or too many requests");
        }
        let mut sges = [abi::Sge::default(); CHAIN_MAX];
        let mut chain = [abi::SendWr::empty(); CHAIN_MAX];
        let mut next: *mut abi::SendWr = null_mut();
        // From the last to the first, so that each knows its successor.
        let places = sges.iter_mut().zip(&mut chain).take(requests.len()).rev();
        for (request, (sge, wr)) in requests.iter().rev().zip(places) {
            let (opcode, payload, to, number) = match request.action {
                Action::Write { payload, to } => (abi::WR_RDMA_WRITE, Some(payload), to, 0),
                Action::WriteTelling { payload, to, number } => {
                    (abi::WR_RDMA_WRITE_WITH_IMM, Some(payload), to, number)
                }
                Action::Tell { number } => (abi::WR_SEND_WITH_IMM, None, 0, number),
            };
            let mut flags = if request.signalled { abi::SEND_SIGNALED } else { 0 };
            match payload {
                Some(Payload::Inline(bytes)) if bytes.len() <= INLINE_BYTES_MAX => {
                    sge.addr = bytes.as_ptr() as u64;
                    sge.length = bytes.len() as u32;
                    flags |= abi::SEND_INLINE;
                }
                Some(Payload::Region(span)) => {
                    let start = self.nic.region.pointer(span.offset, span.len);
                    sge.addr = start.map_err(io::Error::other)? as u64;
                    let Ok(length) = u32::try_from(span.len) else {
                        return refuse("a longer request than its length can say");
                    };
                    sge.length = length;
                    sge.lkey = self.lkey;
                }
                Some(Payload::Inline(_)) => return refuse("too many bytes to go inline"),
                None => {}
            }
            let len = u64::from(sge.length);
            if to.checked_add(len).is_none_or(|end| end > remote.bytes) {
                return refuse("a write outside of the peer's region");
            }
            *wr = abi::SendWr {
                wr_id: request.id,
                next,
                sg_list: sge,
                num_sge: c_int::from(len > 0),
                opcode,
                send_flags: flags,
                imm_data: number.to_be(),
                remote_addr: remote.address.wrapping_add(to),
                rkey: remote.key,
                ..abi::SendWr::empty()
            };
            next = wr;
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair lives; the chain and its places live until the call is over, and
        // the device keeps no pointer to them. Inline bytes are copied by the call; others lie in
        // the region, which stays registered and mapped as long as the device.
        answered(unsafe { (self.post_send)(self.qp.as_ptr(), next, &raw mut bad) })
    }

    /// Posts receives without room for bytes: they take numbers.
    pub(super) fn post_receives(&mut self, id: u64, count: usize) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let mut chain = [abi::RecvWr {
                wr_id: id,
                next: null_mut(),
                sg_list: null_mut(),
                num_sge: 0,
            }; CHAIN_MAX];
            let batch = left.min(CHAIN_MAX);
            let mut next = null_mut();
            for wr in chain.iter_mut().take(batch).rev() {
                wr.next = next;
                next = wr;
            }
            let mut bad = null_mut();
            // SAFETY: the queue pair lives, and the chain lives until the call is over.
            answered(unsafe { (self.post_recv)(self.qp.as_ptr(), next, &raw mut bad) })?;
            left -= batch;
        }
        Ok(())
    }
}
