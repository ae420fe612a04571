//! Kernels that follow indices or an order: scatter, top-k, sorting, running sums.
//!
//! A scatter treats rows as bytes, so that one kernel serves every dtype. An index out of range
//! gives an error value that names the first such position; no memory outside is accessed. Indices
//! are processed in order within every column. Equal indices therefore have a defined result (the
//! last one) on any number of threads. Copies by index or by stride belong to the ops that need
//! them. For tall tables with many duplicate ids, see `embedding`.

use crate::pool::{Pool, Shareable};

/// An index that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIndex {
    /// Position of the first wrong index.
    pub position: usize,
    /// The index at that position.
    pub index: i64,
    /// Upper bound of indices, exclusive.
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

/// A tensor viewed as [outer, axis, inner], where `axis` is the indexed dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Number of blocks: the product of the sizes before the axis.
    pub outer: usize,
    /// Size of the indexed dimension.
    pub len: usize,
    /// Number of elements per index: the product of the sizes after the axis.
    pub inner: usize,
}

impl Axis {
    /// Returns the view of a shape with `axis` as the indexed dimension.
    pub fn of(shape: &[usize], axis: usize) -> Axis {
        Axis {
            outer: shape[..axis].iter().product(),
            len: shape[axis],
            inner: shape[axis + 1..].iter().product(),
        }
    }
}

/// Sets `x[o, indices[i]] = updates[o, i]`. The last of equal indices wins. `axis.inner` counts
/// bytes.
///
/// ```
/// use fleet_kernels::{pool::Pool, scatter::*};
/// let axis = Axis { outer: 1, len: 3, inner: 2 };
/// let mut x = [0; 6];
/// scatter(&Pool::new(1), axis, &[2, 0], &[5, 6, 1, 2], &mut x).unwrap();
/// assert_eq!(x, [1, 2, 0, 0, 5, 6]);
/// assert_eq!(scatter(&Pool::new(1), axis, &[0, 3], &[0; 4], &mut x).unwrap_err().position, 1);
/// ```
pub fn scatter(
    pool: &Pool,
    axis: Axis,
    indices: &[i64],
    updates: &[u8],
    x: &mut [u8],
) -> Result<(), BadIndex> {
    let Axis { outer, len, inner } = axis;
    assert_eq!(x.len(), outer * len * inner, "scatter: target has the wrong length");
    assert_eq!(
        updates.len(),
        outer * indices.len() * inner,
        "scatter: updates have the wrong length"
    );
    check(indices, len)?;
    let strips = inner.div_ceil(SCATTER_COLUMNS);
    let x = Shareable::new(x);
    pool.run(if indices.is_empty() { 0 } else { outer * strips }, |task| {
        let (o, first) = (task / strips, task % strips * SCATTER_COLUMNS);
        let width = SCATTER_COLUMNS.min(inner - first);
        for (i, &index) in indices.iter().enumerate() {
            let from = (o * indices.len() + i) * inner + first;
            let to = (o * len + index as usize) * inner + first;
            // SAFETY: tasks own disjoint columns, and indices were checked.
            unsafe { x.slice(to, width) }.copy_from_slice(&updates[from..from + width]);
        }
    });
    Ok(())
}

/// The order of sorted values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Descending; a NaN is larger than any number.
    Largest,
    /// Ascending.
    Smallest,
}

/// Writes the first `k` values of every row of `columns` in sorted order, and their positions.
/// Equal values keep their order. With `k = columns` this is a stable sort.
///
/// ```
/// use fleet_kernels::{pool::Pool, scatter::*};
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
    assert!(k <= columns, "top-k: k exceeds the row length");
    let rows = x.len().checked_div(columns).unwrap_or(0);
    assert_eq!(x.len(), rows * columns, "top-k: not a whole number of rows");
    assert!(values.len() == rows * k && indices.len() == rows * k);
    if k == 0 {
        return;
    }
    let (values, indices) = (Shareable::new(values), Shareable::new(indices));
    pool.run_ranges(rows, (ELEMENTS_PER_TASK / columns).max(1), |range| {
        for row in range {
            let x = &x[row * columns..][..columns];
            // SAFETY: each row belongs to one task and lies inside.
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

/// A number that can be summed.
pub trait RunningSum: Copy + Send + Sync {
    /// Type of the accumulated sum.
    type Sum: Copy + Default;
    /// Returns the sum with one more number.
    fn add(sum: Self::Sum, value: Self) -> Self::Sum;
    /// Converts a sum to the type of the numbers.
    fn of(sum: Self::Sum) -> Self;
}

impl RunningSum for f32 {
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

impl RunningSum for f64 {
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
        impl RunningSum for $ty {
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

/// Options of a running sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Whether each sum excludes its own value.
    pub is_exclusive: bool,
    /// Whether the sum runs from the last value to the first.
    pub is_reverse: bool,
}

/// Writes the running sums along an axis; `axis.inner` counts elements. Floats are summed in f64.
/// The gradient of a running sum is the running sum of the gradient in the opposite direction.
pub fn running_sum<T: RunningSum>(pool: &Pool, axis: Axis, scan: Scan, x: &[T], out: &mut [T]) {
    /// Number of columns summed at a time.
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
                // SAFETY: strips are disjoint and inside `out`.
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

const ELEMENTS_PER_TASK: usize = 1 << 14;
/// Bytes of a row that belong to one task of a scatter: whole cache lines.
const SCATTER_COLUMNS: usize = 1024;

fn check(indices: &[i64], len: usize) -> Result<(), BadIndex> {
    // The common case takes one pass, which vectorizes.
    let largest = indices.iter().fold(0u64, |largest, &index| largest.max(index as u64));
    if indices.is_empty() || largest < len as u64 {
        return Ok(());
    }
    let position = indices.iter().position(|&index| index as u64 >= len as u64).unwrap_or(0);
    Err(BadIndex { position, index: indices[position], len })
}

/// Compares in a total order in which all NaN are equal and above all numbers.
#[inline(always)]
fn order(a: f32, b: f32) -> std::cmp::Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Writes the first `values.len()` of a row in the order `by`, sorted. During the pass the results
/// are a heap with the last one on top, so that no scratch memory is needed.
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
        // There are few different values, so that ties occur.
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
    fn the_last_of_equal_rows_stays() {
        for axis in AXES {
            let Axis { outer, len, inner } = axis;
            for count in [0, 1, 57] {
                let (x, updates) = (floats(outer * len * inner), floats(outer * count * inner));
                let list = indices(count, len);
                let mut expected = x.clone();
                for (at, &update) in updates.iter().enumerate() {
                    let (o, i, n) = (at / (count * inner), at / inner % count, at % inner);
                    expected[(o * len + list[i] as usize) * inner + n] = update;
                }
                let mut written = bytes(&x);
                let of_bytes = Axis { inner: inner * 4, ..axis };
                scatter(&Pool::new(3), of_bytes, &list, &bytes(&updates), &mut written).unwrap();
                assert_eq!(written, bytes(&expected));
            }
        }
    }

    #[test]
    fn indices_out_of_range_are_named() {
        let pool = Pool::new(2);
        let axis = Axis { outer: 1, len: 4, inner: 4 };
        let expected = BadIndex { position: 2, index: -1, len: 4 };
        let list = [0, 3, -1, 9];
        assert_eq!(scatter(&pool, axis, &list, &[0; 16], &mut [0; 16]), Err(expected));
        let error = fleet_base::Error::from(expected).to_string();
        assert_eq!(error, "index at position 2 is out of range: expected 0 to 3, got -1");
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
