//! Finds the position of the largest or smallest number of each row.

use super::TASK_ELEMENTS;
use crate::kernel;
use crate::pool::Pool;
use crate::simd::{SharedPtr, Simd};
use std::ops::Range;

/// The extreme that [`arg_extreme`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extreme {
    /// The largest number.
    Max,
    /// The smallest number.
    Min,
}

kernel! {
    /// Finds the index of the first extreme along the middle axis of `[outer, len, inner]`, for the
    /// results `range` of the flat `[outer, inner]`. `sign` is -1 for minima.
    unsafe fn arg_kernel<S>(
        s: S, x: *const f32, len: usize, inner: usize, range: Range<usize>, sign: f32,
        out: *mut i64,
    ) {
        let sign_v = s.splat(sign);
        if inner == 1 {
            for o in range {
                let row = x.add(o * len);
                *out.add(o) = arg_row(s, row, len, sign_v) as i64;
            }
            return;
        }
        let mut i = range.start;
        while i < range.end {
            let (o, c) = (i / inner, i % inner);
            let n = S::LANES.min(inner - c).min(range.end - i);
            let first = x.add(o * len * inner + c);
            let mut best = s.mul(s.load_part(first, n), sign_v);
            let mut index = s.splat_i(0);
            for k in 1..len {
                let value = s.mul(s.load_part(first.add(k * inner), n), sign_v);
                let better = s.gt(value, best);
                best = s.select(better, value, best);
                index = s.select_i(better, s.splat_i(k as i32), index);
            }
            let mut lanes = [0f32; 16];
            s.store(lanes.as_mut_ptr(), s.of_bits(index));
            for k in 0..n {
                *out.add(i + k) = i64::from(lanes[k].to_bits());
            }
            i += n;
        }
    }
}

/// Returns the first index of the maximum of `sign * row`.
#[inline(always)]
unsafe fn arg_row<S: Simd>(s: S, row: *const f32, len: usize, sign: S::F) -> usize {
    let mut lanes = [0f32; 16];
    let mut indices = [0f32; 16];
    let (mut best, mut best_index) = (f32::NEG_INFINITY, 0);
    let whole = len / S::LANES * S::LANES;
    // SAFETY: `whole <= len`, and no register has more than 16 lanes.
    unsafe {
        if whole > 0 {
            let mut max = s.mul(s.load(row), sign);
            let mut step = s.splat_i(0);
            for k in 1..whole / S::LANES {
                let value = s.mul(s.load(row.add(k * S::LANES)), sign);
                let better = s.gt(value, max);
                max = s.select(better, value, max);
                step = s.select_i(better, s.splat_i(k as i32), step);
            }
            s.store(lanes.as_mut_ptr(), max);
            s.store(indices.as_mut_ptr(), s.of_bits(step));
            for k in 0..S::LANES {
                let index = indices[k].to_bits() as usize * S::LANES + k;
                if lanes[k] > best || (lanes[k] == best && index < best_index) {
                    (best, best_index) = (lanes[k], index);
                }
            }
        }
        s.store(lanes.as_mut_ptr(), sign);
        for i in whole..len {
            let value = *row.add(i) * lanes[0];
            if value > best {
                (best, best_index) = (value, i);
            }
        }
    }
    best_index
}

/// Writes the index of the first largest (smallest) element along the middle axis of
/// `[outer, len, inner]`, as `[outer, inner]`. NaN values are ignored.
pub fn arg_extreme(
    pool: &Pool,
    extreme: Extreme,
    x: &[f32],
    outer: usize,
    len: usize,
    inner: usize,
    out: &mut [i64],
) {
    assert_eq!(x.len(), outer * len * inner, "input has the wrong length");
    assert_eq!(out.len(), outer * inner, "output has the wrong length");
    if len == 0 {
        out.fill(0);
        return;
    }
    let sign = if extreme == Extreme::Max { 1.0 } else { -1.0 };
    let grain = (TASK_ELEMENTS / len).max(1);
    let (x, out_raw) = (SharedPtr::new(x.as_ptr()), SharedPtr::new_mut(out.as_mut_ptr()));
    pool.run_ranges(out.len(), grain, |range| {
        // SAFETY: ranges are disjoint and inside the results, and the sizes were checked above.
        unsafe { arg_kernel(x.at(0), len, inner, range, sign, out_raw.at(0)) };
    });
}
