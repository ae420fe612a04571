//! Slices of numbers over the same bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Types of which every bit pattern is a value, and which have no padding.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + Send + Sync {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + Send + Sync> Plain for T {}

/// Unsigned integers, by which kernels move elements of the same width without reading their
/// values.
pub trait Bits: Plain {}

impl Bits for u8 {}
impl Bits for u16 {}
impl Bits for u32 {}
impl Bits for u64 {}

/// Returns the same bytes as numbers of another type.
///
/// # Panics
/// Panics if the bytes are not aligned for `B` or not a whole number of `B`.
///
/// ```
/// assert_eq!(fleet_tensor::view_as::<i32, u32>(&[-1]), [u32::MAX]);
/// ```
pub fn view_as<A: Plain, B: Plain>(slice: &[A]) -> &[B] {
    match <[B]>::ref_from_bytes(slice.as_bytes()) {
        Ok(slice) => slice,
        // An empty slice may have any address.
        Err(_) if slice.is_empty() => &[],
        Err(_) => mismatch::<B>(),
    }
}

/// Like [`view_as`], for writing.
pub fn view_as_mut<A: Plain, B: Plain>(slice: &mut [A]) -> &mut [B] {
    if slice.is_empty() {
        return &mut [];
    }
    match <[B]>::mut_from_bytes(slice.as_mut_bytes()) {
        Ok(slice) => slice,
        Err(_) => mismatch::<B>(),
    }
}

#[cold]
fn mismatch<B>() -> ! {
    panic!("the bytes are not a whole number of {}", std::any::type_name::<B>())
}
