//! Loops over elements and rows, in parallel: `y[i] = f(x[i])` for any type, sums of tensors,
//! copies of rows by index, and rows along an axis that is not the last one.

use crate::input::Input;
use crate::pool::Pool;
use crate::simd::SharedPtr;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Elements per task.
const GRAIN: usize = 1 << 14;

/// Computes `y = f(x)`.
///
/// # Panics
/// Panics if input and output differ in length.
///
/// ```
/// use fleet_kernels::{input::Input, map::map, pool::Pool};
/// let mut y = [1i64, 2, 3];
/// map(&Pool::new(1), Input::Output, &mut y, |x| 10 * x);
/// assert_eq!(y, [10, 20, 30]);
/// ```
pub fn map<'a, T: Copy + Send + Sync + 'a>(
    pool: &Pool,
    x: impl Into<Input<'a, T>>,
    y: &mut [T],
    f: impl Fn(T) -> T + Sync,
) {
    map_and_check(pool, x, y, |x, _| f(x));
}

/// Like [`map`], and returns whether `f` has set its second argument for any element.
pub fn map_and_check<'a, T: Copy + Send + Sync + 'a>(
    pool: &Pool,
    x: impl Into<Input<'a, T>>,
    y: &mut [T],
    f: impl Fn(T, &mut bool) -> T + Sync,
) -> bool {
    let (len, y) = (y.len(), y.as_mut_ptr());
    let (x, y) = (SharedPtr::new(x.into().start(len, y, len)), SharedPtr::new_mut(y));
    let is_set = AtomicBool::new(false);
    pool.run_ranges(len, GRAIN, |range| {
        let mut flag = false;
        for i in range {
            // SAFETY: both hold `len` elements, and are equal or disjoint because `y` is exclusive.
            // Tasks have disjoint ranges.
            unsafe { *y.at(i) = f(*x.at(i), &mut flag) };
        }
        if flag {
            is_set.store(true, Relaxed);
        }
    });
    is_set.into_inner()
}

/// Computes `y[i] = f([x[0][i], x[1][i], ..])`.
///
/// # Panics
/// Panics if an input and the output differ in length.
pub fn zip<'a, T: Copy + Send + Sync + 'a, const N: usize>(
    pool: &Pool,
    x: [Input<'a, T>; N],
    y: &mut [T],
    f: impl Fn([T; N]) -> T + Sync,
) {
    let (len, y) = (y.len(), y.as_mut_ptr());
    let (x, y) = (x.map(|x| SharedPtr::new(x.start(len, y, len))), SharedPtr::new_mut(y));
    pool.run_ranges(len, GRAIN, |range| {
        for i in range {
            // SAFETY: as in `map_and_check`.
            unsafe { *y.at(i) = f(x.map(|x| *x.at(i))) };
        }
    });
}

/// Computes the sum of tensors, added in their order. At most the output's own memory is among the
/// inputs.
///
/// # Panics
/// Panics if there is no input, or if an input and the output differ in length.
pub fn sum<'a, T: Copy + Default + AddAssign + Send + Sync + 'a>(
    pool: &Pool,
    inputs: impl Iterator<Item = Input<'a, T>> + Clone + Sync,
    out: &mut [T],
) {
    /// Elements per task: few enough for L1.
    const TILE: usize = 2048;
    // If the output is not the first input, a tile is summed in a separate buffer, so that no input
    // is overwritten before it is read.
    let aside = inputs.clone().skip(1).any(|input| matches!(input, Input::Output));
    pool.run_parts(out, TILE, |start, out| {
        let mut tile = [T::default(); TILE];
        let tile = &mut tile[..out.len()];
        for (turn, input) in inputs.clone().enumerate() {
            let from = match input {
                Input::Separate(all) => Some(&all[start..start + out.len()]),
                Input::Output => None,
            };
            match (turn, from, aside) {
                (0, Some(from), false) => out.copy_from_slice(from),
                (0, None, false) => {}
                (0, from, true) => tile.copy_from_slice(from.unwrap_or(&*out)),
                (_, Some(from), false) => add(out, from),
                (_, from, _) => add(tile, from.unwrap_or(&*out)),
            }
        }
        if aside {
            out.copy_from_slice(tile);
        }
    });
}

fn add<T: Copy + AddAssign>(to: &mut [T], from: &[T]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
}

/// Copies row `row(i)` of `from` to row `i` of `to`, for each row of `to`.
///
/// # Panics
/// Panics if a row is outside of `from`.
pub fn gather_rows<T: Copy + Send + Sync>(
    pool: &Pool,
    width: usize,
    from: &[T],
    to: &mut [T],
    row: impl Fn(usize) -> usize + Sync,
) {
    let width = width.max(1);
    pool.run_parts(to, (GRAIN / width).max(1) * width, |start, part| {
        for (i, to) in part.chunks_mut(width).enumerate() {
            to.copy_from_slice(&from[row(start / width + i) * width..][..to.len()]);
        }
    });
}

/// Adds row `i` of each `[count, width]` block of `from` to row `row(i)` of the `[len, width]`
/// block of `to`. Tasks take blocks or bands of columns, so that every sum has a fixed order.
///
/// # Panics
/// Panics if a row is outside of its block.
pub fn add_rows(
    pool: &Pool,
    blocks: usize,
    (count, len, width): (usize, usize, usize),
    from: &[f32],
    to: &mut [f32],
    row: impl Fn(usize) -> usize + Sync,
) {
    /// Columns per band: four cache lines.
    const BAND: usize = 64;
    assert_eq!(to.len(), blocks * len * width, "target has the wrong length");
    let bands = width.div_ceil(BAND);
    let out = SharedPtr::new_mut(to.as_mut_ptr());
    let per_task = (GRAIN / (count * BAND.min(width)).max(1)).max(1);
    pool.run_ranges(blocks * bands, per_task, |range| {
        for task in range {
            let (block, band) = (task / bands, task % bands * BAND);
            let n = BAND.min(width - band);
            for i in 0..count {
                let start = (block * count + i) * width + band;
                let row = row(i);
                assert!(row < len, "row {row} of a block of {len}");
                // SAFETY: the band is inside its row, and the row inside its block. Tasks have
                // different bands.
                let to = unsafe {
                    let at = out.at((block * len + row) * width + band);
                    std::slice::from_raw_parts_mut(at, n)
                };
                add(to, &from[start..start + n]);
            }
        }
    });
}

/// Rows along an axis: `outer` blocks of `classes` groups of `inner` numbers. A row takes one
/// number of each group.
#[derive(Clone, Copy, Debug)]
pub struct AxisRows {
    /// Number of blocks: the product of the sizes before the axis.
    pub outer: usize,
    /// Size of the axis.
    pub classes: usize,
    /// Number of numbers in a group: the product of the sizes after the axis.
    pub inner: usize,
}

impl AxisRows {
    /// Returns the number of rows.
    pub fn count(&self) -> usize {
        self.outer * self.inner
    }

    /// Returns the number of numbers in all rows.
    pub fn len(&self) -> usize {
        self.count() * self.classes
    }

    /// Returns whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the index of the first number of `row`. Each next number is `inner` further.
    #[inline]
    pub fn start(&self, row: usize) -> usize {
        row / self.inner * self.classes * self.inner + row % self.inner
    }

    fn grain(&self) -> usize {
        GRAIN / self.classes.max(1) + 1
    }

    /// Copies rows so that they are contiguous.
    pub fn gather(&self, pool: &Pool, from: &[f32], rows: &mut [f32]) {
        let classes = self.classes.max(1);
        pool.run_parts(&mut rows[..self.len()], self.grain() * classes, |at, part| {
            for (row, to) in part.chunks_exact_mut(classes).enumerate() {
                let start = self.start(at / classes + row);
                for (class, to) in to.iter_mut().enumerate() {
                    *to = from[start + class * self.inner];
                }
            }
        });
    }

    /// Copies contiguous rows back to their positions in the tensor.
    pub fn scatter(&self, pool: &Pool, rows: &[f32], to: &mut [f32]) {
        assert_eq!(to.len(), self.len(), "rows and tensor differ in length");
        let to = SharedPtr::new_mut(to.as_mut_ptr());
        pool.run_ranges(self.count(), self.grain(), |range| {
            for row in range {
                let start = self.start(row);
                for class in 0..self.classes {
                    let value = rows[row * self.classes + class];
                    // SAFETY: the position is inside. Every element belongs to one row, and tasks
                    // take different rows.
                    unsafe { *to.at(start + class * self.inner) = value };
                }
            }
        });
    }

    /// Finds the first `count` elements of each row in the order `is_before`, and their positions
    /// in the row. Equal elements are ordered by position. The outputs have rows of `count`.
    ///
    /// # Panics
    /// Panics if `count` is 0 or exceeds the length of a row, or if a tensor has another length.
    pub fn top_k<T: Copy + Send + Sync>(
        &self,
        pool: &Pool,
        is_before: fn(T, T) -> bool,
        x: &[T],
        count: usize,
        values: &mut [T],
        places: &mut [i64],
    ) {
        let kept = AxisRows { classes: count, ..*self };
        assert!((1..=self.classes).contains(&count), "cannot select {count} of {}", self.classes);
        assert!(values.len() == kept.len() && places.len() == kept.len(), "wrong output length");
        let values = SharedPtr::new_mut(values.as_mut_ptr());
        let places = SharedPtr::new_mut(places.as_mut_ptr());
        pool.run_ranges(self.count(), (GRAIN / self.classes).max(1), |rows| {
            for row in rows {
                let (start, out) = (self.start(row), kept.start(row));
                // SAFETY: tasks take different rows, of `count` elements `inner` apart.
                let (values, places) = unsafe { (values.at(out), places.at(out)) };
                for class in 0..self.classes {
                    let value = x[start + class * self.inner];
                    // SAFETY: as above.
                    unsafe { insert((value, class), count, self.inner, is_before, values, places) };
                }
            }
        });
    }
}

/// Inserts an element into the best `count` elements so far. This is fast because `count` is small
/// and most elements fail the first comparison.
///
/// # Safety
/// `values` and `places` hold `count` elements, `step` apart.
#[inline]
unsafe fn insert<T: Copy>(
    (value, at): (T, usize),
    count: usize,
    step: usize,
    is_before: fn(T, T) -> bool,
    values: *mut T,
    places: *mut i64,
) {
    let kept = at.min(count);
    // SAFETY: every index used is below `count`.
    unsafe {
        if kept == count && !is_before(value, *values.add((count - 1) * step)) {
            return;
        }
        let mut to = kept.min(count - 1);
        while to > 0 && is_before(value, *values.add((to - 1) * step)) {
            *values.add(to * step) = *values.add((to - 1) * step);
            *places.add(to * step) = *places.add((to - 1) * step);
            to -= 1;
        }
        *values.add(to * step) = value;
        *places.add(to * step) = at as i64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_read_the_output_wherever_it_is_listed() {
        let (a, b) = (vec![1.0f32; 5000], vec![10.0f32; 5000]);
        for place in 0..3 {
            for threads in [1, 3] {
                let mut inputs = vec![Input::from(&a), Input::from(&b)];
                inputs.insert(place, Input::Output);
                let mut out = vec![100.0; 5000];
                sum(&Pool::new(threads), inputs.iter().copied(), &mut out);
                assert!(out.iter().all(|value| *value == 111.0), "{place}");
            }
        }
    }

    #[test]
    fn rows_along_an_axis_return_to_their_places() {
        for (outer, classes, inner) in [(3, 4, 5), (1, 700, 90), (2, 1, 1), (4, 3, 0)] {
            let rows = AxisRows { outer, classes, inner };
            let x: Vec<f32> = (0..rows.len()).map(|i| i as f32).collect();
            let (mut gathered, mut back) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            let pool = Pool::new(3);
            rows.gather(&pool, &x, &mut gathered);
            rows.scatter(&pool, &gathered, &mut back);
            assert_eq!(back, x);
            let is_row = |row: usize| {
                (0..classes).all(|c| gathered[row * classes + c] == x[rows.start(row) + c * inner])
            };
            assert!((0..rows.count()).all(is_row));
        }
    }
}
