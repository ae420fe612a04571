//! Rows by index, on the calling thread. A parameter server calls these under the lock of a table,
//! with many of its own threads in parallel.

use crate::{for_registers, kernel};

kernel! {
    /// Adds row `i` of `rows` to row `to[i]` of `sums`.
    ///
    /// # Panics
    /// Panics if an index is outside `sums`, or the width is 0.
    ///
    /// ```
    /// let mut sums = [0.0; 4];
    /// fleet_kernels::rows::add_rows(&[1.0, 2.0, 3.0, 4.0], 2, &[1, 1], &mut sums);
    /// assert_eq!(sums, [0.0, 0.0, 4.0, 6.0]);
    /// ```
    pub fn add_rows<S>(s: S, rows: &[f32], width: usize, to: &[u32], sums: &mut [f32]) {
        for (row, to) in rows.chunks_exact(width).zip(to) {
            let sum = &mut sums[*to as usize * width..][..width];
            // SAFETY: both are `width` long.
            unsafe {
                for_registers!(S, width, |i, n| {
                    let at = sum.as_mut_ptr().add(i);
                    s.store_n(at, s.add(s.load_n(at, n), s.load_n(row.as_ptr().add(i), n)), n);
                });
            }
        }
    }
}

kernel! {
    /// Copies row `from[i]` of `rows` to row `i` of `out`.
    ///
    /// # Panics
    /// Panics if an index is outside `rows`, or the width is 0.
    pub fn copy_rows<S>(s: S, rows: &[f32], width: usize, from: &[u32], out: &mut [f32]) {
        for (out, from) in out.chunks_exact_mut(width).zip(from) {
            let row = &rows[*from as usize * width..][..width];
            // SAFETY: both are `width` long.
            unsafe {
                for_registers!(S, width, |i, n| {
                    s.store_n(out.as_mut_ptr().add(i), s.load_n(row.as_ptr().add(i), n), n);
                });
            }
        }
    }
}

/// Returns whether no value is NaN or infinite.
///
/// ```
/// assert!(!fleet_kernels::rows::all_finite(&[1.0, f32::NAN]));
/// ```
pub fn all_finite(x: &[f32]) -> bool {
    sum_of_differences(x) == 0.0
}

kernel! {
    /// x - x is 0 for finite x and NaN otherwise.
    fn sum_of_differences<S>(s: S, x: &[f32]) -> f32 {
        let mut sums = [s.zero(); 4];
        let mut at = 0;
        // SAFETY: every load stays inside the slice.
        unsafe {
            while at + 4 * S::LANES <= x.len() {
                for (k, sum) in sums.iter_mut().enumerate() {
                    let value = s.load(x.as_ptr().add(at + k * S::LANES));
                    *sum = s.add(*sum, s.sub(value, value));
                }
                at += 4 * S::LANES;
            }
            while at < x.len() {
                let n = S::LANES.min(x.len() - at);
                let value = s.load_part(x.as_ptr().add(at), n);
                sums[0] = s.add(sums[0], s.sub(value, value));
                at += n;
            }
        }
        s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_value_is_found_wherever_it_is() {
        for len in [1usize, 5, 16, 64, 200] {
            let mut values = vec![1e38f32; len];
            assert!(all_finite(&values));
            for at in 0..len {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    values[at] = bad;
                    assert!(!all_finite(&values), "{bad} at {at} of {len}");
                }
                values[at] = -1e38;
            }
        }
        assert!(all_finite(&[]));
    }
}
