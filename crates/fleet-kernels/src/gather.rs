//! Kernels that follow indices: gather, scatter, their gradients, top-k, sorting, one-hot, running
//! sums.
//!
//! Rows are bytes where values do not matter, so that one gather serves every dtype. An index out of
//! range is an error value that names the first such position; nothing outside is read or written.
//! Scatters go through the indices in order within every column, so that equal indices have a defined
//! result (the last one, or a sum in order) on any number of threads. Tall tables with many duplicate
//! ids have their own file: `embedding`.

use crate::pool::{Pool, Shareable};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// An index that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIndex {
    /// Where in the indices; the lowest one that is wrong.
    pub position: usize,
    pub index: i64,
    /// Indices must be below this.
    pub len: usize,
}

impl From<BadIndex> for fleet_base::Error {
    fn from(bad: BadIndex) -> Self {
        let message = format!("index at position {} is out of range", bad.position);
        let error = fleet_base::Error::invalid(message).got(bad.index);
        match bad.len {
            0 => error.expected("no index, the dimension is empty"),
            len => error.expected(format_args!("0 to {}", len - 1)),
        }
    }
}

/// A tensor seen as [outer, axis, inner], where `axis` is the dimension that is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    pub outer: usize,
    pub len: usize,
    pub inner: usize,
}

impl Axis {
    /// The dimension `axis` of a shape.
    pub fn of(shape: &[usize], axis: usize) -> Axis {
        Axis {
            outer: shape[..axis].iter().product(),
            len: shape[axis],
            inner: shape[axis + 1..].iter().product(),
        }
    }
}

/// `out[o, i] = x[o, indices[i]]`; `axis.inner` counts bytes.
///
/// ```
/// use fleet_kernels::{gather::*, pool::Pool};
/// let axis = Axis { outer: 1, len: 3, inner: 2 };
/// let mut out = [0; 4];
/// gather(&Pool::new(1), axis, &[1, 2, 3, 4, 5, 6], &[2, 0], &mut out).unwrap();
/// assert_eq!(out, [5, 6, 1, 2]);
/// assert_eq!(gather(&Pool::new(1), axis, &[0; 6], &[0, 3], &mut out).unwrap_err().position, 1);
/// ```
pub fn gather(
    pool: &Pool,
    axis: Axis,
    x: &[u8],
    indices: &[i64],
    out: &mut [u8],
) -> Result<(), BadIndex> {
    let Axis { outer, len, inner } = axis;
    assert_eq!(x.len(), outer * len * inner, "operand of gather has the wrong length");
    assert_eq!(out.len(), outer * indices.len() * inner, "result of gather has the wrong length");
    check(indices, len)?;
    if out.is_empty() {
        return Ok(());
    }
    let out = Shareable::new(out);
    let rows = (BYTES_PER_TASK / inner).max(1);
    pool.run_ranges(outer * indices.len(), rows, |range| {
        for row in range {
            let (o, index) = (row / indices.len(), indices[row % indices.len()] as usize);
            let source = &x[(o * len + index) * inner..][..inner];
            // SAFETY: each row has one task and lies inside.
            unsafe { out.slice(row * inner, inner) }.copy_from_slice(source);
        }
    });
    Ok(())
}

/// `x[o, indices[i]] = updates[o, i]`, the last of equal indices stays; `axis.inner` counts bytes.
pub fn scatter(
    pool: &Pool,
    axis: Axis,
    indices: &[i64],
    updates: &[u8],
    x: &mut [u8],
) -> Result<(), BadIndex> {
    scatter_by(pool, axis, indices, updates, x, |to, from| to.copy_from_slice(from))
}

/// `x[o, indices[i]] += updates[o, i]`, in the order of the indices: the gradient of [`gather`], on
/// top of what x holds. `axis.inner` counts floats.
pub fn scatter_add(
    pool: &Pool,
    axis: Axis,
    indices: &[i64],
    updates: &[f32],
    x: &mut [f32],
) -> Result<(), BadIndex> {
    scatter_by(pool, axis, indices, updates, x, |to, from| {
        for (to, from) in to.iter_mut().zip(from) {
            *to += from;
        }
    })
}

/// As [`scatter_add`], but rows that are named start from zero.
pub fn scatter_sum(
    pool: &Pool,
    axis: Axis,
    indices: &[i64],
    updates: &[f32],
    x: &mut [f32],
) -> Result<(), BadIndex> {
    scatter_by(pool, axis, indices, updates, x, |to, _| to.fill(0.0))?;
    scatter_add(pool, axis, indices, updates, x)
}

/// The flat row of every index tuple: `out[i] = indices[i, 0] * dims[1] * .. + indices[i, 1] * ..`,
/// for gather and scatter over several leading dimensions.
pub fn flatten_indices(indices: &[i64], dims: &[usize], out: &mut [i64]) -> Result<(), BadIndex> {
    assert_eq!(indices.len(), out.len() * dims.len(), "one index for each dimension");
    if dims.is_empty() {
        out.fill(0);
        return Ok(());
    }
    for (row, (tuple, out)) in indices.chunks_exact(dims.len()).zip(out).enumerate() {
        *out = 0;
        for (axis, (&index, &len)) in tuple.iter().zip(dims).enumerate() {
            if index as u64 >= len as u64 {
                return Err(BadIndex { position: row * dims.len() + axis, index, len });
            }
            *out = *out * len as i64 + index;
        }
    }
    Ok(())
}

/// `out[o, i, n] = x[o, indices[o, i, n], n]` for elements of `width` bytes: every element has its
/// own index. `axis.inner` counts elements, `count` is the length of the dimension in `indices`.
pub fn take_along(
    pool: &Pool,
    axis: Axis,
    width: usize,
    x: &[u8],
    (indices, count): (&[i64], usize),
    out: &mut [u8],
) -> Result<(), BadIndex> {
    let Axis { outer, len, inner } = axis;
    assert_eq!(indices.len(), outer * count * inner, "one index for each element");
    assert!(x.len() == outer * len * inner * width && out.len() == indices.len() * width);
    check(indices, len)?;
    let out = Shareable::new(out);
    pool.run_ranges(indices.len(), ELEMENTS_PER_TASK, |range| {
        for at in range {
            let (o, n) = (at / (count * inner), at % inner);
            let from = ((o * len + indices[at] as usize) * inner + n) * width;
            // SAFETY: each element has one task and lies inside.
            unsafe { out.slice(at * width, width) }.copy_from_slice(&x[from..from + width]);
        }
    });
    Ok(())
}

/// `dx[o, indices[o, i, n], n] += d_out[o, i, n]`: the gradient of [`take_along`], on top of what dx
/// holds.
pub fn take_along_gradient(
    pool: &Pool,
    axis: Axis,
    (indices, count): (&[i64], usize),
    d_out: &[f32],
    dx: &mut [f32],
) -> Result<(), BadIndex> {
    let Axis { outer, len, inner } = axis;
    assert_eq!(indices.len(), outer * count * inner, "one index for each element");
    assert!(dx.len() == outer * len * inner && d_out.len() == indices.len());
    check(indices, len)?;
    let dx = Shareable::new(dx);
    // A task owns one slice of the outer dimension, where equal indices may meet.
    pool.run(if indices.is_empty() { 0 } else { outer }, |o| {
        // SAFETY: slices are disjoint and inside.
        let dx = unsafe { dx.slice(o * len * inner, len * inner) };
        let span = o * count * inner..(o + 1) * count * inner;
        for (at, (&index, d)) in indices[span.clone()].iter().zip(&d_out[span]).enumerate() {
            dx[index as usize * inner + at % inner] += d;
        }
    });
    Ok(())
}

/// `out[i, ids[i]] = 1`, the rest 0. An id out of range is an error.
pub fn one_hot(pool: &Pool, ids: &[i64], depth: usize, out: &mut [f32]) -> Result<(), BadIndex> {
    assert_eq!(out.len(), ids.len() * depth, "result of one_hot has the wrong length");
    check(ids, depth)?;
    let out = Shareable::new(out);
    pool.run_ranges(ids.len(), (ELEMENTS_PER_TASK / depth.max(1)).max(1), |range| {
        for row in range {
            // SAFETY: each row has one task and lies inside.
            let out = unsafe { out.slice(row * depth, depth) };
            out.fill(0.0);
            out[ids[row] as usize] = 1.0;
        }
    });
    Ok(())
}

/// The first position of `indices` at or above `len`, found side by side; for callers that check
/// many indices before they use them.
pub fn check_indices(pool: &Pool, indices: &[i64], len: usize) -> Result<(), BadIndex> {
    let first = AtomicUsize::new(usize::MAX);
    pool.run_ranges(indices.len(), ELEMENTS_PER_TASK, |range| {
        if let Err(bad) = check(&indices[range.clone()], len) {
            first.fetch_min(range.start + bad.position, Relaxed);
        }
    });
    match first.into_inner() {
        usize::MAX => Ok(()),
        position => Err(BadIndex { position, index: indices[position], len }),
    }
}

/// Which end of the order comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Descending; a NaN is larger than all numbers.
    Largest,
    /// Ascending.
    Smallest,
}

/// The first `k` values of every row of `columns`, sorted, and where they were; equal values keep
/// their order. With `k = columns` this is a stable sort.
///
/// ```
/// use fleet_kernels::{gather::*, pool::Pool};
/// let (mut values, mut indices) = ([0.0; 2], [0; 2]);
/// let x = [0.1, 0.7, 0.7, 0.3];
/// top_k(&Pool::new(1), Rank::Largest, &x, 4, 2, &mut values, &mut indices);
/// assert_eq!((values, indices), ([0.7, 0.7], [1, 2]));
/// ```
pub fn top_k(
    pool: &Pool,
    rank: Rank,
    x: &[f32],
    columns: usize,
    k: usize,
    values: &mut [f32],
    indices: &mut [i64],
) {
    assert!(k <= columns, "top-k asks for more values than a row has");
    let rows = x.len().checked_div(columns).unwrap_or(0);
    assert_eq!(x.len(), rows * columns, "rows of top-k are not whole");
    assert!(values.len() == rows * k && indices.len() == rows * k);
    if k == 0 {
        return;
    }
    let (values, indices) = (Shareable::new(values), Shareable::new(indices));
    pool.run_ranges(rows, (ELEMENTS_PER_TASK / columns).max(1), |range| {
        for row in range {
            let x = &x[row * columns..][..columns];
            // SAFETY: each row has one task and lies inside.
            let (values, indices) =
                unsafe { (values.slice(row * k, k), indices.slice(row * k, k)) };
            match rank {
                Rank::Largest => {
                    select(x, values, indices, |a, b| order(b.0, a.0).then(a.1.cmp(&b.1)))
                }
                Rank::Smallest => {
                    select(x, values, indices, |a, b| order(a.0, b.0).then(a.1.cmp(&b.1)))
                }
            }
        }
    });
}

/// Numbers that are added up.
pub trait Running: Copy + Send + Sync {
    /// What the sum is kept in.
    type Sum: Copy + Default;
    fn add(sum: Self::Sum, value: Self) -> Self::Sum;
    fn of(sum: Self::Sum) -> Self;
}

impl Running for f32 {
    type Sum = f64;
    #[inline(always)]
    fn add(sum: f64, value: f32) -> f64 {
        sum + f64::from(value)
    }
    #[inline(always)]
    fn of(sum: f64) -> f32 {
        sum as f32
    }
}

impl Running for f64 {
    type Sum = f64;
    #[inline(always)]
    fn add(sum: f64, value: f64) -> f64 {
        sum + value
    }
    #[inline(always)]
    fn of(sum: f64) -> f64 {
        sum
    }
}

macro_rules! running_integer {
    ($($ty:ty),*) => {$(
        impl Running for $ty {
            type Sum = $ty;
            #[inline(always)]
            fn add(sum: $ty, value: $ty) -> $ty {
                sum.wrapping_add(value)
            }
            #[inline(always)]
            fn of(sum: $ty) -> $ty {
                sum
            }
        }
    )*};
}
running_integer!(i32, i64);

/// How a running sum goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Each sum is of the values before its own.
    pub is_exclusive: bool,
    /// From the last value to the first.
    pub is_reverse: bool,
}

/// Sums of the values so far along an axis; `axis.inner` counts elements. Floats are summed in f64.
/// The gradient of a running sum is the running sum of the gradient in the other direction.
pub fn running_sum<T: Running>(pool: &Pool, axis: Axis, scan: Scan, x: &[T], out: &mut [T]) {
    /// Columns whose sums are kept at a time.
    const COLUMNS: usize = 32;
    let Axis { outer, len, inner } = axis;
    assert!(x.len() == outer * len * inner && out.len() == x.len());
    let strips = inner.div_ceil(COLUMNS);
    let out = Shareable::new(out);
    let grain = (ELEMENTS_PER_TASK / (len * COLUMNS.min(inner)).max(1)).max(1);
    pool.run_ranges(outer * strips, grain, |range| {
        for strip in range {
            let first = strip % strips * COLUMNS;
            let width = COLUMNS.min(inner - first);
            let mut sums = [T::Sum::default(); COLUMNS];
            for step in 0..len {
                let step = if scan.is_reverse { len - 1 - step } else { step };
                let start = (strip / strips * len + step) * inner + first;
                // SAFETY: strips are disjoint and inside.
                let out = unsafe { out.slice(start, width) };
                for ((out, sum), value) in out.iter_mut().zip(&mut sums).zip(&x[start..]) {
                    let next = T::add(*sum, *value);
                    *out = T::of(if scan.is_exclusive { *sum } else { next });
                    *sum = next;
                }
            }
        }
    });
}

const BYTES_PER_TASK: usize = 1 << 16;
const ELEMENTS_PER_TASK: usize = 1 << 14;
/// Columns of a scatter that one task owns: whole cache lines.
const SCATTER_COLUMNS: usize = 256;

fn check(indices: &[i64], len: usize) -> Result<(), BadIndex> {
    // The common case is one pass that vectorises.
    let largest = indices.iter().fold(0u64, |largest, &index| largest.max(index as u64));
    if indices.is_empty() || largest < len as u64 {
        return Ok(());
    }
    let position = indices.iter().position(|&index| index as u64 >= len as u64).unwrap_or(0);
    Err(BadIndex { position, index: indices[position], len })
}

/// Applies `body(row of x, row of updates)` in the order of the indices within every column.
fn scatter_by<T: Copy + Send + Sync>(
    pool: &Pool,
    axis: Axis,
    indices: &[i64],
    updates: &[T],
    x: &mut [T],
    body: impl Fn(&mut [T], &[T]) + Sync,
) -> Result<(), BadIndex> {
    let Axis { outer, len, inner } = axis;
    assert_eq!(x.len(), outer * len * inner, "target of scatter has the wrong length");
    assert_eq!(updates.len(), outer * indices.len() * inner, "updates have the wrong length");
    check(indices, len)?;
    let strips = inner.div_ceil(SCATTER_COLUMNS);
    let x = Shareable::new(x);
    pool.run(if indices.is_empty() { 0 } else { outer * strips }, |task| {
        let (o, first) = (task / strips, task % strips * SCATTER_COLUMNS);
        let width = SCATTER_COLUMNS.min(inner - first);
        for (i, &index) in indices.iter().enumerate() {
            let from = (o * indices.len() + i) * inner + first;
            let to = (o * len + index as usize) * inner + first;
            // SAFETY: tasks own disjoint columns, indices were checked.
            body(unsafe { x.slice(to, width) }, &updates[from..from + width]);
        }
    });
    Ok(())
}

/// Total order of numbers with all NaN equal and above.
#[inline(always)]
fn order(a: f32, b: f32) -> std::cmp::Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The first `values.len()` of a row in the order `by`, sorted. The results are a heap with the last
/// one on top until the row is through, so that no scratch is needed.
#[inline(always)]
fn select(
    x: &[f32],
    values: &mut [f32],
    indices: &mut [i64],
    by: impl Fn((f32, i64), (f32, i64)) -> std::cmp::Ordering,
) {
    let k = values.len();
    let comes_first = |a: (f32, i64), b: (f32, i64)| by(a, b).is_lt();
    for (i, &value) in x[..k].iter().enumerate() {
        (values[i], indices[i]) = (value, i as i64);
    }
    for parent in (0..k / 2).rev() {
        sift_down(values, indices, parent, k, &comes_first);
    }
    for (i, &value) in x.iter().enumerate().skip(k) {
        if comes_first((value, i as i64), (values[0], indices[0])) {
            (values[0], indices[0]) = (value, i as i64);
            sift_down(values, indices, 0, k, &comes_first);
        }
    }
    for end in (1..k).rev() {
        values.swap(0, end);
        indices.swap(0, end);
        sift_down(values, indices, 0, end, &comes_first);
    }
}

#[inline(always)]
fn sift_down(
    values: &mut [f32],
    indices: &mut [i64],
    mut parent: usize,
    end: usize,
    comes_first: &impl Fn((f32, i64), (f32, i64)) -> bool,
) {
    loop {
        let mut child = 2 * parent + 1;
        if child >= end {
            return;
        }
        let at = |i: usize| (values[i], indices[i]);
        if child + 1 < end && comes_first(at(child), at(child + 1)) {
            child += 1;
        }
        if !comes_first(at(parent), at(child)) {
            return;
        }
        values.swap(parent, child);
        indices.swap(parent, child);
        parent = child;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;

    fn floats(count: usize) -> Vec<f32> {
        let mut random = Sequence::new(3, count as u64);
        // Few values, so that there are ties.
        (0..count).map(|_| random.below(50) as f32 * 0.5 - 9.0).collect()
    }

    fn indices(count: usize, len: usize) -> Vec<i64> {
        let mut random = Sequence::new(4, count as u64);
        (0..count).map(|_| random.below(len as u64) as i64).collect()
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    const AXES: [Axis; 5] = [
        Axis { outer: 1, len: 1, inner: 1 },
        Axis { outer: 3, len: 5, inner: 7 },
        Axis { outer: 1, len: 40, inner: 600 },
        Axis { outer: 200, len: 9, inner: 1 },
        Axis { outer: 2, len: 4, inner: 0 },
    ];

    #[test]
    fn gather_and_its_gradient() {
        for axis in AXES {
            let Axis { outer, len, inner } = axis;
            for count in [0, 1, 57] {
                let x = floats(outer * len * inner);
                let list = indices(count, len);
                let pool = Pool::new(3);
                let mut out = vec![0; outer * count * inner * 4];
                let of_bytes = Axis { inner: inner * 4, ..axis };
                gather(&pool, of_bytes, &bytes(&x), &list, &mut out).unwrap();
                let updates = floats(outer * count * inner);
                let (mut added, mut summed) = (x.clone(), x.clone());
                let mut written = bytes(&x);
                scatter_add(&pool, axis, &list, &updates, &mut added).unwrap();
                scatter_sum(&pool, axis, &list, &updates, &mut summed).unwrap();
                scatter(&pool, of_bytes, &list, &bytes(&updates), &mut written).unwrap();
                let (mut of_add, mut of_sum, mut of_write) = (x.clone(), x.clone(), x.clone());
                let mut gathered = Vec::new();
                for o in 0..outer {
                    for &i in &list {
                        let row = (o * len + i as usize) * inner;
                        gathered.extend_from_slice(&x[row..row + inner]);
                        of_sum[row..row + inner].fill(0.0);
                    }
                }
                for (at, &update) in updates.iter().enumerate() {
                    let (o, i, n) = (at / (count * inner), at / inner % count, at % inner);
                    let to = (o * len + list[i] as usize) * inner + n;
                    of_add[to] += update;
                    of_sum[to] += update;
                    of_write[to] = update;
                }
                assert_eq!(out, bytes(&gathered));
                assert_eq!((added, summed), (of_add, of_sum));
                assert_eq!(written, bytes(&of_write));
            }
        }
    }

    #[test]
    fn elements_with_their_own_index() {
        for axis in AXES {
            let Axis { outer, len, inner } = axis;
            let count = 6;
            let x = floats(outer * len * inner);
            let list = indices(outer * count * inner, len);
            let mut out = vec![0; list.len() * 4];
            let pool = Pool::new(3);
            take_along(&pool, axis, 4, &bytes(&x), (&list, count), &mut out).unwrap();
            let d_out = floats(list.len());
            let mut dx = x.clone();
            take_along_gradient(&pool, axis, (&list, count), &d_out, &mut dx).unwrap();
            let (mut expected, mut of_dx) = (Vec::new(), x.clone());
            for (at, &index) in list.iter().enumerate() {
                let (o, n) = (at / (count * inner), at % inner);
                let from = (o * len + index as usize) * inner + n;
                expected.push(x[from]);
                of_dx[from] += d_out[at];
            }
            assert_eq!((out, dx), (bytes(&expected), of_dx));
        }
    }

    #[test]
    fn indices_out_of_range_are_named() {
        let pool = Pool::new(2);
        let axis = Axis { outer: 1, len: 4, inner: 4 };
        let expected = BadIndex { position: 2, index: -1, len: 4 };
        let list = [0, 3, -1, 9];
        assert_eq!(gather(&pool, axis, &[0; 16], &list, &mut [0; 16]), Err(expected));
        assert_eq!(scatter(&pool, axis, &list, &[0; 16], &mut [0; 16]), Err(expected));
        assert_eq!(scatter_add(&pool, axis, &list, &[0.0; 16], &mut [0.0; 16]), Err(expected));
        assert_eq!(one_hot(&pool, &list, 4, &mut [0.0; 16]), Err(expected));
        assert_eq!(check_indices(&pool, &list, 4), Err(expected));
        let error = fleet_base::Error::from(expected).to_string();
        assert_eq!(error, "index at position 2 is out of range: expected 0 to 3, got -1");
        let mut many = vec![1; 100_000];
        many[70_000] = 4;
        many[30_000] = 5;
        assert_eq!(check_indices(&pool, &many, 4).unwrap_err().position, 30_000);
        let mut flat = [0; 2];
        flatten_indices(&[1, 2, 0, 1], &[2, 3], &mut flat).unwrap();
        assert_eq!(flat, [5, 1]);
        let bad = flatten_indices(&[1, 2, 0, 3], &[2, 3], &mut flat).unwrap_err();
        assert_eq!(bad, BadIndex { position: 3, index: 3, len: 3 });
    }

    #[test]
    fn top_k_is_a_stable_sort_cut_short() {
        for (rows, columns) in [(1, 1), (5, 10), (3, 1000), (400, 37)] {
            let mut x = floats(rows * columns);
            if columns > 3 {
                x[2] = f32::NAN;
            }
            for k in [0, 1, columns / 2, columns] {
                for rank in [Rank::Largest, Rank::Smallest] {
                    let (mut values, mut found) = (vec![0.0; rows * k], vec![0; rows * k]);
                    top_k(&Pool::new(3), rank, &x, columns, k, &mut values, &mut found);
                    for row in 0..rows {
                        let x = &x[row * columns..][..columns];
                        let mut sorted: Vec<i64> = (0..columns as i64).collect();
                        sorted.sort_by(|&a, &b| {
                            let ordering = order(x[a as usize], x[b as usize]);
                            if rank == Rank::Largest { ordering.reverse() } else { ordering }
                        });
                        assert_eq!(found[row * k..][..k], sorted[..k]);
                        for (value, &i) in values[row * k..][..k].iter().zip(&sorted) {
                            assert_eq!(value.to_bits(), x[i as usize].to_bits());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn one_hot_rows() {
        let mut out = [7.0; 6];
        one_hot(&Pool::new(1), &[2, 0], 3, &mut out).unwrap();
        assert_eq!(out, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn running_sums_in_all_directions() {
        for axis in AXES {
            let Axis { outer, len, inner } = axis;
            let x = floats(outer * len * inner);
            let whole: Vec<i64> = x.iter().map(|&x| (x * 2.0) as i64).collect();
            for (is_exclusive, is_reverse) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let scan = Scan { is_exclusive, is_reverse };
                let (mut out, mut integers) = (vec![9.0; x.len()], vec![9; x.len()]);
                running_sum(&Pool::new(3), axis, scan, &x, &mut out);
                running_sum(&Pool::new(3), axis, scan, &whole, &mut integers);
                for at in 0..x.len() {
                    let (o, i, n) = (at / (len * inner), at / inner % len, at % inner);
                    let counts = |j: &usize| match (is_reverse, is_exclusive) {
                        (false, false) => *j <= i,
                        (false, true) => *j < i,
                        (true, false) => *j >= i,
                        (true, true) => *j > i,
                    };
                    let sum: f32 =
                        (0..len).filter(counts).map(|j| x[(o * len + j) * inner + n]).sum();
                    assert_eq!(out[at], sum);
                    assert_eq!(integers[at], (sum * 2.0) as i64);
                }
            }
        }
    }
}
