//! Products of a vector with many others, for searches of the nearest ones, on the calling thread.
//!
//! A product has 16 sums, of every 16th term each, which are added in halves: the bits of a result
//! are the same on every machine, and do not depend on zeros behind the vectors. Products are
//! rounded before they are added, since not every machine has fused additions.
//!
//! Sketch: rows that are chosen one by one are not in a cache. A row of 32 numbers has two lines of
//! a cache, which take some 100 ns to arrive, and 5 ns to compute. So rows are requested some
//! products ahead.

use crate::kernel;
use crate::simd::{Simd, prefetch as prefetch_line};

/// Number of sums of a product: floats in a cache line, and in the widest register.
const SUMS: usize = 16;
/// Number of rows that are requested before they are needed, of the some 16 lines that a core waits
/// for at once.
const AHEAD: usize = 6;

kernel! {
    /// Sets `out[i]` to the product of row `i` of `rows` and a vector, which is as long as a row.
    ///
    /// # Panics
    /// Panics if the vector is empty, or the rows are not one for each product.
    ///
    /// ```
    /// let mut out = [0.0; 2];
    /// fleet_kernels::products::products(&[1.0, 2.0, 3.0, 4.0], &[10.0, 1.0], &mut out);
    /// assert_eq!(out, [12.0, 34.0]);
    /// ```
    pub fn products<S>(s: S, rows: &[f32], vector: &[f32], out: &mut [f32]) {
        assert!(!vector.is_empty(), "a vector without numbers");
        assert_eq!(rows.len(), out.len() * vector.len(), "rows for products");
        for (out, row) in out.iter_mut().zip(rows.chunks_exact(vector.len())) {
            // SAFETY: both are as long as the vector.
            *out = unsafe { product(s, row.as_ptr(), vector.as_ptr(), vector.len()) };
        }
    }
}

kernel! {
    /// Sets `out[i]` to the product of row `at[i]` of `rows` and a vector, which is as long as a
    /// row.
    ///
    /// # Panics
    /// Panics if the vector is empty, a row is outside `rows`, or `out` is shorter than `at`.
    ///
    /// ```
    /// let mut out = [0.0; 1];
    /// fleet_kernels::products::products_at(&[1.0, 2.0, 3.0, 4.0], &[1], &[10.0, 1.0], &mut out);
    /// assert_eq!(out, [34.0]);
    /// ```
    pub fn products_at<S>(s: S, rows: &[f32], at: &[u32], vector: &[f32], out: &mut [f32]) {
        let width = vector.len();
        assert!(width > 0, "a vector without numbers");
        for at in at.iter().take(AHEAD) {
            prefetch(row_of(rows, width, *at));
        }
        for (i, out) in out[..at.len()].iter_mut().enumerate() {
            if let Some(next) = at.get(i + AHEAD) {
                prefetch(row_of(rows, width, *next));
            }
            let row = row_of(rows, width, at[i]);
            // SAFETY: both are `width` long.
            *out = unsafe { product(s, row.as_ptr(), vector.as_ptr(), width) };
        }
    }
}

#[inline(always)]
fn row_of(rows: &[f32], width: usize, at: u32) -> &[f32] {
    &rows[at as usize * width..][..width]
}

/// Requests the memory of some values, which are read soon.
#[inline(always)]
pub fn prefetch<T>(values: &[T]) {
    let bytes = size_of_val(values);
    for line in 0..bytes.div_ceil(LINE_BYTES) {
        prefetch_line(values.as_ptr().cast::<u8>().wrapping_add(line * LINE_BYTES));
    }
}

const LINE_BYTES: usize = 64;

/// # Safety
/// `len` floats are readable at both addresses.
#[inline(always)]
unsafe fn product<S: Simd>(s: S, a: *const f32, b: *const f32, len: usize) -> f32 {
    let (mut low, mut high) = (s.zero(), s.zero());
    let mut at = 0;
    // SAFETY: promised by the caller; all parts end at `len` or before it.
    unsafe {
        while at + SUMS <= len {
            low = s.add(low, terms(s, a.add(at), b.add(at), S::LANES));
            if S::LANES < SUMS {
                let at = at + S::LANES;
                high = s.add(high, terms(s, a.add(at), b.add(at), S::LANES));
            }
            at += SUMS;
        }
        if at < len {
            let n = (len - at).min(S::LANES);
            low = s.add(low, terms(s, a.add(at), b.add(at), n));
            at += n;
        }
        if at < len {
            high = s.add(high, terms(s, a.add(at), b.add(at), len - at));
        }
    }
    const { assert!(S::LANES == SUMS || 2 * S::LANES == SUMS) };
    if S::LANES < SUMS { s.sum(s.add(low, high)) } else { s.sum(low) }
}

/// The products of `n` pairs of floats, and zeros.
///
/// # Safety
/// `n <= LANES` floats are readable at both addresses.
#[inline(always)]
unsafe fn terms<S: Simd>(s: S, a: *const f32, b: *const f32, n: usize) -> S::F {
    // SAFETY: promised by the caller.
    unsafe { s.mul(s.load_n(a, n), s.load_n(b, n)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::for_every_isa;

    fn values(count: usize, seed: u32) -> Vec<f32> {
        let word = |at: usize| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8;
        (0..count).map(|at| word(at) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// 16 sums, as the module describes them.
    fn plain(a: &[f32], b: &[f32]) -> f32 {
        let mut sums = [0.0f32; SUMS];
        a.iter().zip(b).enumerate().for_each(|(at, (a, b))| sums[at % SUMS] += a * b);
        let mut half = SUMS / 2;
        while half > 0 {
            (0..half).for_each(|at| sums[at] += sums[at + half]);
            half /= 2;
        }
        sums[0]
    }

    #[test]
    fn products_are_the_same_on_every_machine() {
        for width in [1, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 50, 128] {
            let (rows, vector) = (values(20 * width, 5), values(width, 77));
            let at = [3, 19, 0, 7, 7, 11, 2, 5, 18, 1];
            let expected: Vec<f32> =
                rows.chunks_exact(width).map(|row| plain(row, &vector)).collect();
            // Zeros behind the vectors do not matter.
            let padded_width = width.next_multiple_of(SUMS);
            let pad = |row: &[f32]| [row, &vec![0.0; padded_width - width]].concat();
            let padded: Vec<f32> = rows.chunks_exact(width).flat_map(pad).collect();
            for_every_isa(|isa| {
                let (mut all, mut some) = ([0.0; 20], [0.0; 12]);
                products(&rows, &vector, &mut all);
                assert_eq!(all, expected[..], "{width} {isa:?}");
                products(&padded, &pad(&vector), &mut all);
                assert_eq!(all, expected[..], "{width} {isa:?}");
                products_at(&rows, &at, &vector, &mut some);
                assert_eq!(some[..10], at.map(|at| expected[at as usize]), "{width} {isa:?}");
                assert_eq!(some[10..], [0.0; 2]);
            });
        }
    }

    #[test]
    fn no_rows_have_no_products() {
        products(&[], &[1.0], &mut []);
        products_at(&[], &[], &[1.0], &mut []);
    }
}
