//! Permutes the axes of contiguous tensors with elements of any copyable type.
//!
//! A [`Permute`] is planned once: axes of length 1 are dropped, and axes that stay adjacent are
//! merged. NCHW to NHWC then is a batch of matrix transpositions, and `[B, T, H, D]` to
//! `[B, H, T, D]` copies rows. Transpositions work on tiles of 16 x 16, in registers for elements
//! of four bytes.
//!
//! ```
//! use fleet_kernels::{pool::Pool, transpose::{Permute, permute}};
//! let plan = Permute::new(&[2, 3], &[1, 0]).unwrap();
//! let mut out = [0; 6];
//! permute(&Pool::new(1), &plan, &[1, 2, 3, 4, 5, 6], &mut out);
//! assert_eq!((plan.shape(), out), (&[3, 2][..], [1, 4, 2, 5, 3, 6]));
//! ```

use std::ops::Range;

use fleet_base::{Error, Result};

use crate::kernel;
use crate::pool::Pool;
use crate::simd::{SharedPtr, Simd, block_loop_vectorization};

/// Side length of a tile.
const TILE: usize = 16;
/// Approximate number of elements per task.
const TASK_ELEMENTS: usize = 16 * 1024;

/// The plan of a permutation, made once per shape.
#[derive(Clone, Debug)]
pub struct Permute {
    shape: Vec<usize>,
    /// Merged axes in the order of the output, as (length, stride in the input).
    axes: Vec<(usize, usize)>,
    len: usize,
}

impl Permute {
    /// Plans a permutation in which axis k of the output is axis `perm[k]` of the input.
    pub fn new(shape: &[usize], perm: &[usize]) -> Result<Self> {
        let mut seen = vec![false; shape.len()];
        for &axis in perm {
            if axis < shape.len() && !seen[axis] {
                seen[axis] = true;
            }
        }
        if perm.len() != shape.len() || seen.contains(&false) {
            return Err(Error::invalid("not a permutation of the axes")
                .expected(format!("each of 0 to {} once", shape.len() as isize - 1))
                .got(format!("{perm:?}")));
        }
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        let mut axes: Vec<(usize, usize)> = Vec::new();
        for &axis in perm.iter().filter(|axis| shape[**axis] != 1) {
            let (len, stride) = (shape[axis], strides[axis]);
            match axes.last_mut() {
                Some(outer) if outer.1 == stride * len => *outer = (outer.0 * len, stride),
                _ => axes.push((len, stride)),
            }
        }
        if axes.is_empty() {
            axes.push((1, 1));
        }
        Ok(Permute {
            shape: perm.iter().map(|axis| shape[*axis]).collect(),
            axes,
            len: shape.iter().product(),
        })
    }

    /// Returns the shape of the output.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Returns the offset of the element at a flat index over some axes.
#[inline(always)]
fn offset_of(axes: &[(usize, usize)], mut index: usize) -> usize {
    let mut offset = 0;
    for (len, stride) in axes.iter().rev() {
        offset += index % len * stride;
        index /= len;
    }
    offset
}

/// Writes `x` with permuted axes to `out`.
pub fn permute<T: Copy + Send + Sync>(pool: &Pool, plan: &Permute, x: &[T], out: &mut [T]) {
    assert_eq!(x.len(), plan.len, "wrong number of elements in the input");
    assert_eq!(out.len(), plan.len, "wrong number of elements in the output");
    if plan.is_empty() {
        return;
    }
    let (x, out) = (SharedPtr::new(x.as_ptr()), SharedPtr::new_mut(out.as_mut_ptr()));
    let last = plan.axes.len() - 1;
    if plan.axes[last].1 == 1 {
        copy_rows(pool, &plan.axes, x, out);
    } else {
        transpose_tiles(pool, &plan.axes, plan.len, x, out);
    }
}

/// Computes `out[c, r] = x[r, c]`.
pub fn transpose<T: Copy + Send + Sync>(
    pool: &Pool,
    x: &[T],
    rows: usize,
    columns: usize,
    out: &mut [T],
) {
    assert_eq!(x.len(), rows * columns, "wrong number of elements in the input");
    assert_eq!(out.len(), x.len(), "wrong number of elements in the output");
    if rows <= 1 || columns <= 1 {
        out.copy_from_slice(x);
        return;
    }
    let (x, out) = (SharedPtr::new(x.as_ptr()), SharedPtr::new_mut(out.as_mut_ptr()));
    transpose_tiles(pool, &[(columns, 1), (rows, columns)], rows * columns, x, out);
}

/// Copies whole rows, for a permutation that keeps the innermost axis in place.
fn copy_rows<T: Copy + Send + Sync>(
    pool: &Pool,
    axes: &[(usize, usize)],
    x: SharedPtr<T>,
    out: SharedPtr<T>,
) {
    let (outer, inner) = axes.split_at(axes.len() - 1);
    let width = inner[0].0;
    let rows: usize = outer.iter().map(|(len, _)| len).product();
    if rows == 1 {
        pool.run_ranges(width, 4 * TASK_ELEMENTS, |range| {
            // SAFETY: ranges are disjoint and inside both tensors.
            unsafe {
                let (from, to) = (x.at(range.start).cast_const(), out.at(range.start));
                std::ptr::copy_nonoverlapping(from, to, range.len());
            }
        });
        return;
    }
    pool.run_ranges(rows, (TASK_ELEMENTS / width).max(1), |range| {
        // SAFETY: ranges are disjoint rows of the output.
        unsafe { copy_rows_kernel(outer, width, range, x, out) };
    });
}

kernel! {
    unsafe fn copy_rows_kernel<S, T: Copy>(
        s: S, outer: &[(usize, usize)], width: usize, range: Range<usize>, x: SharedPtr<T>,
        out: SharedPtr<T>,
    ) {
        let _ = s;
        let (last_len, last_stride) = outer[outer.len() - 1];
        let mut row = range.start;
        while row < range.end {
            // Along the last outer axis the offset grows by a constant.
            let column = row % last_len;
            let run = (last_len - column).min(range.end - row);
            let base = offset_of(outer, row);
            for k in 0..run {
                let from = x.at(base + k * last_stride).cast_const();
                copy_run(from, out.at((row + k) * width), width);
            }
            row += run;
        }
    }
}

/// Copies a row. This is inlined for short rows, where a call would cost more than the copy.
#[inline(always)]
unsafe fn copy_run<T: Copy>(from: *const T, to: *mut T, len: usize) {
    // SAFETY: the caller guarantees that both hold `len` elements and do not overlap.
    unsafe {
        if len >= 128 {
            std::ptr::copy_nonoverlapping(from, to, len);
            return;
        }
        let mut i = 0;
        while i + TILE <= len {
            block_loop_vectorization();
            let chunk = from.add(i).cast::<[T; TILE]>().read_unaligned();
            to.add(i).cast::<[T; TILE]>().write_unaligned(chunk);
            i += TILE;
        }
        while i < len {
            *to.add(i) = *from.add(i);
            i += 1;
        }
    }
}

/// The matrices in a permutation that moves the innermost axis.
#[derive(Clone, Copy)]
struct Matrix {
    /// Length of the input's innermost axis; `column_stride` is its stride in the output.
    columns: usize,
    column_stride: usize,
    /// Stride in the input of the output's innermost axis.
    row_stride: usize,
}

fn transpose_tiles<T: Copy + Send + Sync>(
    pool: &Pool,
    axes: &[(usize, usize)],
    len: usize,
    x: SharedPtr<T>,
    out: SharedPtr<T>,
) {
    let last = axes.len() - 1;
    let (rows, row_stride) = axes[last];
    // The innermost axis of the input has the smallest stride.
    let inner = (0..last).min_by_key(|axis| axes[*axis].1).unwrap_or(0);
    let out_stride = |axis: usize| axes[axis + 1..].iter().map(|(len, _)| len).product::<usize>();
    let matrix = Matrix { columns: axes[inner].0, column_stride: out_stride(inner), row_stride };
    let others = Others { axes, inner, count: len / (rows * matrix.columns) };
    let bands = matrix.columns.div_ceil(TILE);
    let grain = (TASK_ELEMENTS / (TILE.min(matrix.columns) * rows)).max(1);
    // A few long bands are also split along the rows.
    let cuts = (TILE * rows).div_ceil(4 * TASK_ELEMENTS);
    let part = rows.div_ceil(cuts).next_multiple_of(TILE);
    pool.run_ranges(others.count * bands * cuts, grain, |range| {
        for unit in range {
            let (cut, band) = (unit % cuts, unit / cuts);
            let (matrix_index, band) = (band / bands, band % bands);
            let (from, to) = others.offsets(matrix_index);
            let some_rows = (cut * part).min(rows)..((cut + 1) * part).min(rows);
            let columns = band * TILE..((band + 1) * TILE).min(matrix.columns);
            // SAFETY: bands and cuts are disjoint parts of the output.
            unsafe {
                transpose_band(matrix, some_rows, columns, x.at(from).cast_const(), out.at(to))
            };
        }
    });
}

/// The axes outside the matrices.
struct Others<'a> {
    axes: &'a [(usize, usize)],
    inner: usize,
    count: usize,
}

impl Others<'_> {
    /// Returns the offsets at which matrix `index` starts in the input and in the output.
    fn offsets(&self, mut index: usize) -> (usize, usize) {
        let (mut from, mut to, mut out_stride) = (0, 0, 1);
        let last = self.axes.len() - 1;
        for axis in (0..=last).rev() {
            let (len, stride) = self.axes[axis];
            if axis != last && axis != self.inner {
                from += index % len * stride;
                to += index % len * out_stride;
                index /= len;
            }
            out_stride *= len;
        }
        (from, to)
    }
}

kernel! {
    /// Moves `rows` x `columns` of a matrix from `x` to `out`, with at most `TILE` columns.
    unsafe fn transpose_band<S, T: Copy>(
        s: S, matrix: Matrix, rows: Range<usize>, columns: Range<usize>, x: *const T, out: *mut T,
    ) {
        let mut row = rows.start;
        while row < rows.end {
            let height = TILE.min(rows.end - row);
            let from = x.add(row * matrix.row_stride + columns.start);
            let to = out.add(columns.start * matrix.column_stride + row);
            if height == TILE && columns.len() == TILE && size_of::<T>() == 4 && has_registers(s) {
                for i in [0, 8] {
                    for j in [0, 8] {
                        let from = from.add(i * matrix.row_stride + j).cast();
                        let to = to.add(j * matrix.column_stride + i).cast();
                        transpose_8x8(from, matrix.row_stride, to, matrix.column_stride);
                    }
                }
            } else {
                for c in 0..columns.len() {
                    for r in 0..height {
                        let value = *from.add(r * matrix.row_stride + c);
                        *to.add(c * matrix.column_stride + r) = value;
                    }
                }
            }
            row += height;
        }
    }
}

/// Whether [`transpose_8x8`] may be used. On x86-64, any token but the portable one proves AVX2.
#[inline(always)]
fn has_registers<S: Simd>(_: S) -> bool {
    let portable = std::any::TypeId::of::<S>() == std::any::TypeId::of::<crate::simd::Portable>();
    cfg!(target_arch = "x86_64") && !portable
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transpose_8x8(x: *const f32, x_stride: usize, out: *mut f32, out_stride: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller guarantees eight readable and eight writable rows of eight, and AVX.
    unsafe {
        let row = [
            _mm256_loadu_ps(x),
            _mm256_loadu_ps(x.add(x_stride)),
            _mm256_loadu_ps(x.add(2 * x_stride)),
            _mm256_loadu_ps(x.add(3 * x_stride)),
            _mm256_loadu_ps(x.add(4 * x_stride)),
            _mm256_loadu_ps(x.add(5 * x_stride)),
            _mm256_loadu_ps(x.add(6 * x_stride)),
            _mm256_loadu_ps(x.add(7 * x_stride)),
        ];
        let low = [
            _mm256_unpacklo_ps(row[0], row[1]),
            _mm256_unpackhi_ps(row[0], row[1]),
            _mm256_unpacklo_ps(row[2], row[3]),
            _mm256_unpackhi_ps(row[2], row[3]),
        ];
        let high = [
            _mm256_unpacklo_ps(row[4], row[5]),
            _mm256_unpackhi_ps(row[4], row[5]),
            _mm256_unpacklo_ps(row[6], row[7]),
            _mm256_unpackhi_ps(row[6], row[7]),
        ];
        let upper = [
            _mm256_shuffle_ps::<0x44>(low[0], low[2]),
            _mm256_shuffle_ps::<0xee>(low[0], low[2]),
            _mm256_shuffle_ps::<0x44>(low[1], low[3]),
            _mm256_shuffle_ps::<0xee>(low[1], low[3]),
        ];
        let lower = [
            _mm256_shuffle_ps::<0x44>(high[0], high[2]),
            _mm256_shuffle_ps::<0xee>(high[0], high[2]),
            _mm256_shuffle_ps::<0x44>(high[1], high[3]),
            _mm256_shuffle_ps::<0xee>(high[1], high[3]),
        ];
        for k in 0..4 {
            let first = _mm256_permute2f128_ps::<0x20>(upper[k], lower[k]);
            let second = _mm256_permute2f128_ps::<0x31>(upper[k], lower[k]);
            _mm256_storeu_ps(out.add(k * out_stride), first);
            _mm256_storeu_ps(out.add((k + 4) * out_stride), second);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn transpose_8x8(x: *const f32, x_stride: usize, out: *mut f32, out_stride: usize) {
    for r in 0..8 {
        for c in 0..8 {
            // SAFETY: the caller guarantees eight readable and eight writable rows of eight.
            unsafe { *out.add(c * out_stride + r) = *x.add(r * x_stride + c) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::for_every_isa;

    fn check<T: Copy + Send + Sync + PartialEq + std::fmt::Debug + Default>(
        shape: &[usize],
        perm: &[usize],
        element: impl Fn(usize) -> T,
    ) {
        let x: Vec<T> = (0..shape.iter().product()).map(&element).collect();
        let plan = Permute::new(shape, perm).unwrap();
        let mut expected = Vec::new();
        let mut index = vec![0; perm.len()];
        for flat in 0..x.len() {
            let mut rest = flat;
            for k in (0..perm.len()).rev() {
                index[perm[k]] = rest % shape[perm[k]];
                rest /= shape[perm[k]];
            }
            expected.push(x[shape.iter().zip(&index).fold(0, |at, (len, i)| at * len + i)]);
        }
        let run = |threads| {
            let mut out = vec![T::default(); x.len()];
            permute(&Pool::new(threads), &plan, &x, &mut out);
            out
        };
        for_every_isa(|level| assert!(run(1) == expected, "{shape:?} {perm:?} at {level:?}"));
        assert!(run(3) == expected);
    }

    #[test]
    fn any_permutation_of_any_type() {
        let cases: [(&[usize], &[usize]); 14] = [
            (&[], &[]),
            (&[7], &[0]),
            (&[5, 1], &[1, 0]),
            (&[33, 50], &[1, 0]),
            (&[160, 64], &[1, 0]),
            (&[3, 70_000], &[1, 0]),
            (&[70_000, 3], &[1, 0]),
            (&[2, 17, 5, 7], &[0, 2, 3, 1]),
            (&[2, 5, 7, 17], &[0, 3, 1, 2]),
            (&[3, 20, 4, 16], &[0, 2, 1, 3]),
            (&[3, 4, 5, 6], &[3, 2, 1, 0]),
            (&[3, 4, 5, 6], &[2, 0, 3, 1]),
            (&[2, 1, 3, 200], &[3, 1, 0, 2]),
            (&[0, 3], &[1, 0]),
        ];
        for (shape, perm) in cases {
            check(shape, perm, |i| i as f32);
            check(shape, perm, |i| i as u8);
            check(shape, perm, |i| i as i64);
            check(shape, perm, |i| i as u16);
        }
    }

    #[test]
    fn matrices() {
        let x: Vec<i32> = (0..40 * 23).collect();
        let mut out = vec![0; x.len()];
        transpose(&Pool::new(1), &x, 40, 23, &mut out);
        for r in 0..40 {
            for c in 0..23 {
                assert_eq!(out[c * 40 + r], x[r * 23 + c]);
            }
        }
        let mut out = [0; 3];
        transpose(&Pool::new(1), &[1, 2, 3], 3, 1, &mut out);
        assert_eq!(out, [1, 2, 3]);
    }

    #[test]
    fn wrong_permutations_are_refused() {
        assert!(Permute::new(&[2, 3], &[0, 0]).is_err());
        assert!(Permute::new(&[2, 3], &[0, 2]).is_err());
        assert!(Permute::new(&[2, 3], &[0]).is_err());
    }
}
