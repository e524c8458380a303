//! libibverbs, loaded at run time, behind safe faces.
//!
//! All calls into the library are here. What makes them sound together:
//!
//! - The library is never unloaded, so its functions stay.
//! - Everything it hands out is owned by one value, freed once, and freed after all that was made
//!   from it: a queue pair holds its [`KernelNic`], and the fields of that are dropped in order.
//! - The library's calls may be made from any thread at the same time; that is part of its
//!   documented interface.
//! - A device reads and writes only the region it was given. The [`KernelNic`] keeps the region mapped;
//!   should deregistration fail, the kernel keeps the pages pinned, so nobody else gets them.
#![allow(unsafe_code)]

mod nic;
mod qp;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::abi;
use super::error::VerbsError;
use super::gid;
use super::provider::{Nic, Provider};
use crate::region::Region;

use nic::KernelNic;

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
    ibv_query_qp: fn(*mut abi::Qp, *mut abi::QpAttr, c_int, *mut abi::QpInitAttr) -> c_int;
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

/// The devices that the kernel has.
pub(in crate::verbs) struct Kernel;

impl Provider for Kernel {
    fn gids(&self) -> Result<gid::Table, VerbsError> {
        gid::Table::read()
    }

    fn open(
        &self,
        device: &str,
        port: u8,
        region: &Arc<Region>,
        completions: u32,
    ) -> Result<Arc<dyn Nic>, VerbsError> {
        Ok(Arc::new(KernelNic::open(device, port, Arc::clone(region), completions)?))
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn random(&self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(u32::from_ne_bytes(bytes))
    }

    fn pause(&self) {
        std::thread::yield_now();
    }
}

/// The names of this host's RDMA devices.
pub(in crate::verbs) fn device_names() -> Result<Vec<String>, VerbsError> {
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
