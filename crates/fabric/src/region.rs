//! Registered memory.
//!
//! This module holds the crate's unsafe access to memory that peers write. The faces are safe: all
//! offsets are checked, nothing outlives its mapping, and any bytes are valid for what is read.
//!
//! # Why plain accesses to shared bytes are sound here
//!
//! Bytes of a region are ordered by flags: a writer stores the bytes, then the flag with release
//! order; a reader loads the flag with acquire order, then the bytes. Collectives keep to that, so
//! no byte is read while another rank writes it. Rust's memory model does not reach across
//! processes; a peer that breaks the protocol can make bytes wrong, as a faulty network card
//! could, but the types read here (integers and floats) have no invalid values.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::device::Span;

/// An access that does not lie within its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not lie within a region of {region} bytes")]
pub struct OutOfRegion {
    /// Where the access would start.
    pub offset: u64,
    /// How many bytes it wanted.
    pub len: u64,
    /// How many the region has.
    pub region: u64,
}

/// Memory of a rank that its peers write into, or a peer's memory mapped here.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and stays until drop; accesses are ordered by
// flags as the module says, whichever thread makes them.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Zeroed memory of this process alone. Pages are taken when first touched.
    ///
    /// # Errors
    /// What the system says when it has no room for the mapping.
    pub fn private(len: u64) -> io::Result<Self> {
        let len = Self::checked_len(len)?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Self::of_mapping(base, len)
    }

    /// Zeroed memory that can be handed to other processes through its file descriptor. It has no
    /// name, so nothing is left when the last process that maps it is gone.
    ///
    /// # Errors
    /// What the system says when it has no room or no memfd.
    pub fn shared(len: u64) -> io::Result<(Self, OwnedFd)> {
        let fd = rustix::fs::memfd_create(
            "railweave-region",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&fd, len)?;
        // A file that cannot shrink cannot turn a peer's access into SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&fd, len)?, fd))
    }

    /// Maps memory that a peer made with [`shared`](Self::shared).
    ///
    /// # Errors
    /// When the descriptor is no sealed memory file of exactly this length.
    pub fn map(fd: impl AsFd, len: u64) -> io::Result<Self> {
        let bytes = Self::checked_len(len)?;
        let found = rustix::fs::fstat(&fd)?.st_size;
        if u64::try_from(found) != Ok(len) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a region of {len} bytes was announced and one of {found} was handed over"),
            ));
        }
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the region handed over could shrink under its readers",
            ));
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of this
        // process; the file cannot shrink, so every byte of it stays accessible.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                0,
            )
        }?;
        Self::of_mapping(base, bytes)
    }

    fn checked_len(len: u64) -> io::Result<usize> {
        match usize::try_from(len) {
            Ok(len) if len > 0 && isize::try_from(len).is_ok() => Ok(len),
            _ => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a region of {len} bytes")))
            }
        }
    }

    fn of_mapping(base: *mut core::ffi::c_void, len: usize) -> io::Result<Self> {
        let base: NonNull<u8> =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave null"))?;
        // Large pages make first touches and translations cheaper; a kernel without them refuses
        // and nothing is lost.
        // SAFETY: the range is this mapping, and the advice changes no content.
        let _ = unsafe {
            rustix::mm::madvise(base.as_ptr().cast(), len, rustix::mm::Advice::LinuxHugepage)
        };
        Ok(Self { base, len })
    }

    /// Bytes of the region.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The flag at an offset.
    ///
    /// # Errors
    /// When it lies outside, or the offset is no multiple of four.
    pub fn flag(&self, offset: u64) -> Result<&AtomicU32, OutOfRegion> {
        let at = self.pointer(offset, 4)?;
        if !offset.is_multiple_of(4) {
            return Err(OutOfRegion { offset, len: 4, region: self.len() });
        }
        // SAFETY: in bounds, aligned (the base is page-aligned), alive as long as `self`; flags
        // are only ever accessed as atomics.
        Ok(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// When they do not all lie within the region; nothing is copied then.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRegion> {
        let at = self.pointer(offset, into.len() as u64)?;
        // SAFETY: `at` is good for `into.len()` bytes, and `into` is no part of the region, since
        // no reference to its bytes can be had for that long.
        unsafe { std::ptr::copy(at, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// When they do not all fit within the region; nothing is written then.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfRegion> {
        let at = self.pointer(offset, bytes.len() as u64)?;
        // SAFETY: `at` is good for `bytes.len()` bytes; `copy` allows overlap.
        unsafe { std::ptr::copy(bytes.as_ptr(), at, bytes.len()) };
        Ok(())
    }

    /// Copies bytes to another region, or elsewhere in this one.
    ///
    /// # Errors
    /// When either side does not lie within its region; nothing is written then.
    pub fn copy_to(&self, from: Span, to: &Self, offset: u64) -> Result<(), OutOfRegion> {
        let source = self.pointer(from.offset, from.len)?;
        let target = to.pointer(offset, from.len)?;
        // SAFETY: both are good for `from.len` bytes; `copy` allows overlap.
        unsafe { std::ptr::copy(source, target, from.len as usize) };
        Ok(())
    }

    /// Lends bytes of the region to `reader`, for a system call that reads them in place.
    ///
    /// # Errors
    /// When they do not lie within the region; `reader` is not called then.
    pub fn lend<T>(&self, span: Span, reader: impl FnOnce(&[u8]) -> T) -> Result<T, OutOfRegion> {
        let at = self.pointer(span.offset, span.len)?;
        // SAFETY: in bounds and alive during the call; flags order the peers' writes before it.
        Ok(reader(unsafe { std::slice::from_raw_parts(at, span.len as usize) }))
    }

    /// Lends bytes of the region to `writer`, for a system call that fills them in place.
    ///
    /// # Errors
    /// When they do not lie within the region; `writer` is not called then.
    pub fn lend_mut<T>(
        &self,
        span: Span,
        writer: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, OutOfRegion> {
        let at = self.pointer(span.offset, span.len)?;
        // SAFETY: in bounds and alive during the call; the protocol gives these bytes to this
        // writer alone until it raises their flag.
        Ok(writer(unsafe { std::slice::from_raw_parts_mut(at, span.len as usize) }))
    }

    /// A pointer good for `len` bytes.
    pub(crate) fn pointer(&self, offset: u64, len: u64) -> Result<*mut u8, OutOfRegion> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => {
                // SAFETY: the offset lies within the mapping or one past its end.
                Ok(unsafe { self.base.as_ptr().add(offset as usize) })
            }
            _ => Err(OutOfRegion { offset, len, region: self.len() }),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives `self`. An
        // error leaves the mapping in place, which harms nothing.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_shared_region_is_one_memory() {
        let (mine, fd) = Region::shared(8192).unwrap();
        let theirs = Region::map(&fd, 8192).unwrap();
        theirs.write(4090, b"across").unwrap();
        let mut read = [0; 6];
        mine.read(4090, &mut read).unwrap();
        assert_eq!(&read, b"across");
        mine.flag(64).unwrap().store(7, Ordering::Release);
        assert_eq!(theirs.flag(64).unwrap().load(Ordering::Acquire), 7);
    }

    #[test]
    fn nothing_outside_is_touched() {
        let region = Region::private(4096).unwrap();
        assert!(region.write(4090, b"too long").is_err());
        assert!(region.read(u64::MAX, &mut [0]).is_err());
        assert!(region.flag(4094).is_err());
        assert!(region.flag(2).is_err(), "not aligned");
        assert!(region.flag(4092).is_ok());
        let end = Span { offset: 4096, len: 0 };
        assert_eq!(region.lend(end, <[u8]>::len), Ok(0));
        assert!(region.copy_to(Span { offset: 0, len: 8 }, &region, 4089).is_err());
    }

    #[test]
    fn a_region_of_another_length_or_kind_is_refused() {
        let (_mine, fd) = Region::shared(4096).unwrap();
        assert!(Region::map(&fd, 8192).is_err());
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert!(Region::map(&loose, 4096).is_err());
        assert!(Region::private(0).is_err());
    }
}
