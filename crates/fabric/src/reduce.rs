//! Element-wise reduction of vectors that lie in regions or in plain memory.
//!
//! Sources are combined in the order given: collectives give them in rank order, so that every
//! rank computes the same bits. 16-bit floats are combined in 32 bits and rounded once.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::device::Span;
use crate::region::{OutOfRegion, Region};

/// What a vector is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scalar {
    /// 16-bit float with the exponent of an `f32`.
    Bf16,
    /// IEEE 754 half precision.
    F16,
    /// IEEE 754 single precision.
    F32,
    /// Signed 32-bit integer; sums wrap.
    I32,
    /// Byte; sums wrap.
    U8,
}

impl Scalar {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::U8 => 1,
        }
    }
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reduction {
    /// The larger one; a NaN loses against a number.
    Max,
    /// The smaller one; a NaN loses against a number.
    Min,
    /// The sum.
    Sum,
}

/// A vector to read: bytes of a region, the own one or a peer's that is mapped here.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Where the bytes are.
    pub region: &'a Region,
    /// Which of them.
    pub span: Span,
}

/// A vector to write.
#[derive(Debug)]
pub enum Target<'a> {
    /// Plain memory.
    Plain(&'a mut [u8]),
    /// A place in each of these regions, all with the same bytes.
    Regions(&'a [(&'a Region, u64)]),
}

/// Why a reduction was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// Lengths differ, or are no multiple of the element, or an offset is not aligned to it.
    #[error(
        "{len} bytes at offset {offset} are no whole, aligned elements of {element} bytes, or differ in length from the target"
    )]
    Shape {
        /// Bytes of the part that does not fit.
        len: u64,
        /// Its offset.
        offset: u64,
        /// Bytes of an element.
        element: usize,
    },
    /// A part outside its region.
    #[error(transparent)]
    Region(#[from] OutOfRegion),
    /// No source, or more than there can be ranks.
    #[error("{0} sources; there must be from 1 to 16")]
    Sources(usize),
}

/// Combines the sources in their order, element by element, into the target.
///
/// # Errors
/// Shapes that do not fit; nothing is written then.
pub fn reduce(
    scalar: Scalar,
    how: Reduction,
    sources: &[Source<'_>],
    target: &mut Target<'_>,
) -> Result<(), ReduceError> {
    let element = scalar.bytes();
    if sources.is_empty() || sources.len() > crate::MAX_RANKS {
        return Err(ReduceError::Sources(sources.len()));
    }
    let len = sources[0].span.len;
    let fits = |offset: u64, bytes: u64| {
        if bytes == len
            && bytes.is_multiple_of(element as u64)
            && offset.is_multiple_of(element as u64)
        {
            Ok(())
        } else {
            Err(ReduceError::Shape { len: bytes, offset, element })
        }
    };
    let mut from = [std::ptr::null::<u8>(); crate::MAX_RANKS];
    for (pointer, source) in from.iter_mut().zip(sources) {
        fits(source.span.offset, source.span.len)?;
        *pointer = source.region.pointer(source.span.offset, len)?;
    }
    let mut to = [std::ptr::null_mut::<u8>(); crate::MAX_RANKS];
    let targets = match target {
        Target::Plain(bytes) => {
            fits(bytes.as_ptr() as u64, bytes.len() as u64)?;
            to[0] = bytes.as_mut_ptr();
            1
        }
        Target::Regions(places) => {
            if places.is_empty() || places.len() > crate::MAX_RANKS {
                return Err(ReduceError::Sources(places.len()));
            }
            for (pointer, (region, offset)) in to.iter_mut().zip(places.iter()) {
                fits(*offset, len)?;
                *pointer = region.pointer(*offset, len)?;
            }
            places.len()
        }
    };
    let job =
        Job { from: &from[..sources.len()], to: &to[..targets], count: len as usize / element };
    // SAFETY: every pointer was checked to be good for `count` aligned elements: regions start on
    // a page, so an aligned offset is an aligned address. Flags order the accesses (see `region`).
    unsafe { dispatch(scalar, how, &job) };
    Ok(())
}

/// Checked pointers, each good for `count` elements.
struct Job<'a> {
    from: &'a [*const u8],
    to: &'a [*mut u8],
    count: usize,
}

/// Elements handled at a time: the accumulators stay in the first-level cache.
const BLOCK: usize = 1024;

/// # Safety
/// All pointers of the job are good for `count` aligned elements of the scalar.
unsafe fn dispatch(scalar: Scalar, how: Reduction, job: &Job<'_>) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
        {
            // SAFETY: the features are there; the caller vouches for the job.
            return unsafe { run_avx512(scalar, how, job) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { run_avx2(scalar, how, job) };
        }
    }
    // SAFETY: the caller vouches for the job.
    unsafe { run(scalar, how, job) }
}

/// # Safety
/// As [`dispatch`], and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn run_avx2(scalar: Scalar, how: Reduction, job: &Job<'_>) {
    // SAFETY: the caller vouches for the job.
    unsafe { run(scalar, how, job) }
}

/// # Safety
/// As [`dispatch`], and the processor has AVX-512 F and BW.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn run_avx512(scalar: Scalar, how: Reduction, job: &Job<'_>) {
    // SAFETY: the caller vouches for the job.
    unsafe { run(scalar, how, job) }
}

/// # Safety
/// As [`dispatch`].
#[inline(always)]
unsafe fn run(scalar: Scalar, how: Reduction, job: &Job<'_>) {
    // SAFETY: the caller vouches for the job and its scalar.
    unsafe {
        match (scalar, how) {
            (Scalar::F32, Reduction::Sum) => direct::<f32>(job, |a, b| a + b),
            (Scalar::F32, Reduction::Max) => direct::<f32>(job, f32::max),
            (Scalar::F32, Reduction::Min) => direct::<f32>(job, f32::min),
            (Scalar::I32, Reduction::Sum) => direct::<i32>(job, i32::wrapping_add),
            (Scalar::I32, Reduction::Max) => direct::<i32>(job, i32::max),
            (Scalar::I32, Reduction::Min) => direct::<i32>(job, i32::min),
            (Scalar::U8, Reduction::Sum) => direct::<u8>(job, u8::wrapping_add),
            (Scalar::U8, Reduction::Max) => direct::<u8>(job, u8::max),
            (Scalar::U8, Reduction::Min) => direct::<u8>(job, u8::min),
            (Scalar::Bf16, how) => widened::<bf16>(how, job),
            (Scalar::F16, how) => widened::<f16>(how, job),
        }
    }
}

/// Combines in the element's own type.
///
/// # Safety
/// As [`dispatch`], for elements of type `T`.
#[inline(always)]
unsafe fn direct<T: Copy>(job: &Job<'_>, combine: impl Fn(T, T) -> T) {
    // Not set to anything first: for a few elements that would cost more than the work.
    let mut sums = [const { MaybeUninit::<T>::uninit() }; BLOCK];
    let sums = sums.as_mut_ptr().cast::<T>();
    let mut start = 0;
    while start < job.count {
        let many = BLOCK.min(job.count - start);
        // SAFETY: `start + many <= count`, which every pointer is good for; `sums` has room for
        // `many` elements, which are written before they are read. A target may be one of the
        // sources: this block of it was read already.
        unsafe {
            let at = |pointer: *const u8| pointer.cast::<T>().add(start);
            let first = at(job.from[0]);
            match job.from {
                [_, second] => {
                    let second = at(*second);
                    for i in 0..many {
                        sums.add(i).write(combine(first.add(i).read(), second.add(i).read()));
                    }
                }
                [_, second, third, fourth] => {
                    let (second, third, fourth) = (at(*second), at(*third), at(*fourth));
                    for i in 0..many {
                        let pair = combine(first.add(i).read(), second.add(i).read());
                        let three = combine(pair, third.add(i).read());
                        sums.add(i).write(combine(three, fourth.add(i).read()));
                    }
                }
                [_, rest @ ..] => {
                    std::ptr::copy_nonoverlapping(first, sums, many);
                    for source in rest {
                        let source = at(*source);
                        for i in 0..many {
                            sums.add(i).write(combine(sums.add(i).read(), source.add(i).read()));
                        }
                    }
                }
                [] => return,
            }
            for target in job.to {
                std::ptr::copy_nonoverlapping(sums, target.cast::<T>().add(start), many);
            }
        }
        start += many;
    }
}

/// Combines in `f32` and rounds once.
///
/// # Safety
/// As [`dispatch`], for elements of type `T`.
#[inline(always)]
unsafe fn widened<T: Copy + Default>(how: Reduction, job: &Job<'_>)
where
    [T]: HalfFloatSliceExt,
{
    const PART: usize = 256;
    let mut sums = [0_f32; PART];
    let mut wide = [0_f32; PART];
    let mut narrow = [T::default(); PART];
    let mut start = 0;
    while start < job.count {
        let many = PART.min(job.count - start);
        for (index, source) in job.from.iter().enumerate() {
            // SAFETY: `start + many <= count`, which every pointer is good for.
            unsafe {
                let source = source.cast::<T>().add(start);
                std::ptr::copy_nonoverlapping(source, narrow.as_mut_ptr(), many);
            }
            if index == 0 {
                narrow[..many].convert_to_f32_slice(&mut sums[..many]);
                continue;
            }
            narrow[..many].convert_to_f32_slice(&mut wide[..many]);
            let pairs = sums[..many].iter_mut().zip(&wide[..many]);
            match how {
                Reduction::Sum => pairs.for_each(|(sum, value)| *sum += value),
                Reduction::Max => pairs.for_each(|(sum, value)| *sum = sum.max(*value)),
                Reduction::Min => pairs.for_each(|(sum, value)| *sum = sum.min(*value)),
            }
        }
        narrow[..many].convert_from_f32_slice(&sums[..many]);
        for target in job.to {
            // SAFETY: as above.
            unsafe {
                let target = target.cast::<T>().add(start);
                std::ptr::copy_nonoverlapping(narrow.as_ptr(), target, many);
            }
        }
        start += many;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region_of<T: Copy>(values: &[T], bytes: impl Fn(T) -> Vec<u8>) -> (Region, Span) {
        let all: Vec<u8> = values.iter().flat_map(|&value| bytes(value)).collect();
        let region = Region::private(all.len() as u64).unwrap();
        region.write(0, &all).unwrap();
        (region, Span { offset: 0, len: all.len() as u64 })
    }

    #[test]
    fn sums_follow_the_order_given() {
        // 1e8 + 1 loses the 1; in the other order nothing is lost.
        let parts: Vec<_> = [[1e8_f32], [1.0], [-1e8]]
            .iter()
            .map(|values| region_of(values, |value| value.to_le_bytes().to_vec()))
            .collect();
        let sum = |order: [usize; 3]| {
            let sources = order.map(|i| Source { region: &parts[i].0, span: parts[i].1 });
            let mut out = [0.0_f32];
            let bytes = crate::bytes_of_mut(&mut out);
            reduce(Scalar::F32, Reduction::Sum, &sources, &mut Target::Plain(bytes)).unwrap();
            out[0]
        };
        assert_eq!(sum([0, 1, 2]), 0.0);
        assert_eq!(sum([0, 2, 1]), 1.0);
    }

    #[test]
    fn half_floats_round_once() {
        // In f16 each step would round 2048 + 1 back to 2048; in f32 the sum is 2052.
        let values: Vec<_> = [2048.0, 1.0, 1.0, 1.0, 1.0]
            .iter()
            .map(|&value| region_of(&[f16::from_f32(value); 300], |v| v.to_le_bytes().to_vec()))
            .collect();
        let sources: Vec<_> =
            values.iter().map(|(region, span)| Source { region, span: *span }).collect();
        let out = Region::private(600).unwrap();
        let places = [(&out, 0)];
        reduce(Scalar::F16, Reduction::Sum, &sources, &mut Target::Regions(&places)).unwrap();
        let mut last = [0; 2];
        out.read(598, &mut last).unwrap();
        assert_eq!(f16::from_le_bytes(last).to_f32(), 2052.0);
    }

    #[test]
    fn every_scalar_and_reduction_matches_the_plain_formula() {
        let inputs: Vec<Vec<i32>> = (0..3)
            .map(|rank| (0..2500).map(|i| (i * 7 + rank * 13) % 101 - 50).collect())
            .collect();
        let expected = |how: Reduction, i: usize| {
            let column = inputs.iter().map(|input| input[i]);
            match how {
                Reduction::Sum => column.sum::<i32>(),
                Reduction::Max => column.max().unwrap(),
                Reduction::Min => column.min().unwrap(),
            }
        };
        type Codec = (Scalar, fn(i32) -> Vec<u8>, fn(&[u8]) -> i32);
        let codecs: [Codec; 4] = [
            (
                Scalar::F32,
                |v| (v as f32).to_le_bytes().to_vec(),
                |b| f32::from_le_bytes(b.try_into().unwrap()) as i32,
            ),
            (
                Scalar::I32,
                |v| v.to_le_bytes().to_vec(),
                |b| i32::from_le_bytes(b.try_into().unwrap()),
            ),
            (
                Scalar::Bf16,
                |v| bf16::from_f32(v as f32).to_le_bytes().to_vec(),
                |b| bf16::from_le_bytes(b.try_into().unwrap()).to_f32() as i32,
            ),
            (
                Scalar::F16,
                |v| f16::from_f32(v as f32).to_le_bytes().to_vec(),
                |b| f16::from_le_bytes(b.try_into().unwrap()).to_f32() as i32,
            ),
        ];
        for (scalar, encode, decode) in codecs {
            let parts: Vec<_> = inputs.iter().map(|input| region_of(input, encode)).collect();
            let sources: Vec<_> =
                parts.iter().map(|(region, span)| Source { region, span: *span }).collect();
            for how in [Reduction::Sum, Reduction::Max, Reduction::Min] {
                let out = Region::private(sources[0].span.len).unwrap();
                reduce(scalar, how, &sources, &mut Target::Regions(&[(&out, 0)])).unwrap();
                let mut bytes = vec![0; sources[0].span.len as usize];
                out.read(0, &mut bytes).unwrap();
                for (i, element) in bytes.chunks(scalar.bytes()).enumerate() {
                    assert_eq!(decode(element), expected(how, i), "{scalar:?} {how:?} {i}");
                }
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let region = Region::private(64).unwrap();
        let source = |offset, len| Source { region: &region, span: Span { offset, len } };
        let try_it = |sources: &[Source<'_>], to| {
            reduce(Scalar::F32, Reduction::Sum, sources, &mut Target::Regions(&[(&region, to)]))
        };
        assert!(try_it(&[source(0, 8), source(8, 8)], 16).is_ok());
        assert!(try_it(&[source(0, 8), source(8, 4)], 16).is_err(), "lengths differ");
        assert!(try_it(&[source(2, 8)], 16).is_err(), "not aligned");
        assert!(try_it(&[source(0, 6)], 16).is_err(), "half an element");
        assert!(try_it(&[source(0, 8)], 60).is_err(), "outside");
        assert!(try_it(&[], 0).is_err());
    }
}
