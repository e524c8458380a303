//! Registered buffers: memory with one offset in every rank's region.
#![allow(unsafe_code)]

use std::sync::Arc;

use half::{bf16, f16};

use crate::device::Span;
use crate::reduce::Scalar;
use crate::region::Region;

mod sealed {
    pub trait Sealed {}
}

/// A number that collectives carry. Any bytes are a valid value of it.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// Its kind.
    const SCALAR: Scalar;
}

macro_rules! elements {
    ($($type:ty => $scalar:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const SCALAR: Scalar = Scalar::$scalar;
        }
    )*};
}

elements!(bf16 => Bf16, f16 => F16, f32 => F32, i32 => I32, u8 => U8);

/// The bytes of elements.
pub fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding; the bytes live as long as the slice.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of elements, to be changed.
pub fn bytes_of_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and any bytes are valid elements.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Memory of the region's heap. Every rank that allocates the same buffers in the same order
/// finds them at the same offsets, so collectives move their bytes without a copy.
///
/// Its content does not survive the epoch.
#[derive(Debug)]
pub struct Buffer {
    region: Arc<Region>,
    span: Span,
}

impl Buffer {
    /// `span` must lie within the region, on a cache line of its own.
    pub(crate) fn new(region: Arc<Region>, span: Span) -> Self {
        debug_assert!(span.offset.is_multiple_of(64) && span.offset + span.len <= region.len());
        Self { region, span }
    }

    /// Where it lies in the region.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Its content as elements; a last part that is no whole element is left out.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        let Ok(start) = self.region.pointer(self.span.offset, self.span.len) else { return &[] };
        // SAFETY: in bounds, aligned to a cache line and alive with `self`. Peers write it only
        // inside a collective, which borrows the buffer mutably.
        unsafe { std::slice::from_raw_parts(start.cast(), self.span.len as usize / size_of::<T>()) }
    }

    /// Its content as elements, to be changed.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        let Ok(start) = self.region.pointer(self.span.offset, self.span.len) else {
            return &mut [];
        };
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(start.cast(), self.span.len as usize / size_of::<T>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_its_part_of_the_region() {
        let region = Arc::new(Region::private(4096).unwrap());
        let mut buffer = Buffer::new(Arc::clone(&region), Span { offset: 128, len: 10 });
        assert_eq!(buffer.as_slice::<f32>().len(), 2);
        buffer.as_mut_slice::<f32>()[1] = 2.5;
        let mut bytes = [0; 4];
        region.read(132, &mut bytes).unwrap();
        assert_eq!(f32::from_le_bytes(bytes), 2.5);
        assert_eq!(bytes_of(buffer.as_slice::<f32>())[4..], bytes);
    }
}
