//! Copies between two strided views of memory, for slices, transposes, concatenations, pads, flips
//! and rolls. A copy is planned once and run many times.
//!
//! Axes are merged where both sides are contiguous. Contiguous runs are copied as a whole. A
//! transpose works tile by tile, so that both sides are accessed in whole cache lines. A plan
//! stores the number of elements that it needs on each side, and each run checks it against the
//! slices.

use crate::pool::Pool;
use crate::simd::SharedPtr;

/// Elements per task.
const GRAIN: usize = 16 * 1024;
/// Side of the square tile of a transpose: 32 rows of 128 bytes in each direction fit in L1.
const TILE: usize = 32;
/// Maximum number of axes: those of two merged shapes.
const AXES_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    len: usize,
    from: isize,
    to: isize,
}

/// A planned copy.
#[derive(Clone, Debug)]
pub struct Strided {
    /// Axes from outermost to innermost. The last one is the innermost loop.
    axes: Vec<Axis>,
    from_at: usize,
    to_at: usize,
    tiled: bool,
    /// Number of elements that the source and the target must have.
    from_len: usize,
    to_len: usize,
}

/// Returns the strides of a row-major tensor.
pub fn row_major(lens: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; lens.len()];
    for axis in (1..lens.len()).rev() {
        strides[axis - 1] = strides[axis] * lens[axis] as isize;
    }
    strides
}

impl Strided {
    /// Plans a copy of `lens` elements along each axis. The source starts at `from_at` with strides
    /// `from`; the target starts at `to_at` with strides `to`.
    ///
    /// # Panics
    /// Panics if a position is before the first element, or if two elements have one position in
    /// the target.
    pub fn new(
        lens: &[usize],
        (from_at, from): (usize, &[isize]),
        (to_at, to): (usize, &[isize]),
    ) -> Strided {
        let mut axes: Vec<Axis> = Vec::new();
        for axis in (0..lens.len()).rev().filter(|axis| lens[*axis] != 1) {
            let next = Axis { len: lens[axis], from: from[axis], to: to[axis] };
            match axes.last_mut() {
                Some(inner)
                    if next.from == inner.from * inner.len as isize
                        && next.to == inner.to * inner.len as isize =>
                {
                    inner.len *= next.len;
                }
                _ => axes.push(next),
            }
        }
        axes.reverse();
        let mut tiled = false;
        if let Some(last) = axes.last()
            && last.to == 1
            && last.from != 1
            && last.len >= 4
            && let Some(near) = axes.iter().position(|axis| axis.from == 1 && axis.len >= 4)
        {
            // The axis that is contiguous in the source becomes the second to last.
            let axis = axes.remove(near);
            axes.insert(axes.len() - 1, axis);
            tiled = true;
        }
        if axes.is_empty() {
            axes.push(Axis { len: 1, from: 1, to: 1 });
        }
        assert!(axes.len() <= AXES_MAX, "too many axes");
        assert!(is_injective(&axes), "a copy writes a position twice");
        let from_len = required_len(from_at, &axes, |axis| axis.from);
        let to_len = required_len(to_at, &axes, |axis| axis.to);
        Strided { axes, from_at, to_at, tiled, from_len, to_len }
    }

    /// Copies from one slice to another.
    ///
    /// # Panics
    /// Panics if a slice has fewer elements than the plan needs.
    pub fn run<T: Copy + Send + Sync>(&self, pool: &Pool, from: &[T], to: &mut [T]) {
        let (needed, given) = ([self.from_len, self.to_len], [from.len(), to.len()]);
        assert!(needed[0] <= given[0] && needed[1] <= given[1], "copy of {needed:?} in {given:?}");
        let from = SharedPtr::new(from.as_ptr().wrapping_add(self.from_at));
        let to = SharedPtr::new_mut(to.as_mut_ptr().wrapping_add(self.to_at));
        let inner_axes = if self.tiled { 2 } else { 1 };
        let (outer, inner) = self.axes.split_at(self.axes.len() - inner_axes);
        let last = inner[inner_axes - 1];
        if outer.is_empty() {
            // One long run or one matrix, which is split along its first axis.
            let first = inner[0];
            let grain = if self.tiled { TILE } else { GRAIN };
            pool.run_ranges(first.len, grain, |range| {
                let at = range.start as isize;
                // SAFETY: all positions are inside both slices, which the lengths above ensure, and
                // ranges write different ones, which `new` ensures.
                unsafe {
                    let from = from.at(0).cast_const().offset(at * first.from);
                    let to = to.at(0).offset(at * first.to);
                    let first = Axis { len: range.len(), ..first };
                    match self.tiled {
                        true => copy_tiles(first, last, from, to),
                        false => copy_run(first, from, to),
                    }
                }
            });
            return;
        }
        let count: usize = outer.iter().map(|axis| axis.len).product();
        let each: usize = inner.iter().map(|axis| axis.len).product();
        if each == 0 {
            return;
        }
        pool.run_ranges(count, (GRAIN / each).max(1), |range| {
            let mut position = Position::new(outer, range.start);
            for _ in range {
                // SAFETY: as above.
                unsafe {
                    let from = from.at(0).cast_const().offset(position.from);
                    let to = to.at(0).offset(position.to);
                    match self.tiled {
                        true => copy_tiles(inner[0], last, from, to),
                        false => copy_run(last, from, to),
                    }
                }
                position.step(outer);
            }
        });
    }
}

/// Returns the number of elements that a side must have: one more than the last position.
///
/// # Panics
/// Panics if a position is before the first element.
fn required_len(at: usize, axes: &[Axis], step: impl Fn(&Axis) -> isize) -> usize {
    if axes.iter().any(|axis| axis.len == 0) {
        return 0;
    }
    let ends = axes.iter().map(|axis| (axis.len as isize - 1) * step(axis));
    let (before, after) =
        ends.fold((0, 0), |(low, high): (isize, isize), end| (low + end.min(0), high + end.max(0)));
    assert!(at as isize + before >= 0, "copy starts before its tensor");
    (at as isize + after) as usize + 1
}

/// Returns whether no two elements have the same position in the target: each stride exceeds the
/// extent of all smaller ones.
fn is_injective(axes: &[Axis]) -> bool {
    let mut steps: Vec<(usize, usize)> = axes
        .iter()
        .filter(|axis| axis.len > 1)
        .map(|axis| (axis.to.unsigned_abs(), axis.len))
        .collect();
    steps.sort_unstable();
    let mut extent = 0;
    let is_empty = axes.iter().any(|axis| axis.len == 0);
    is_empty
        || steps.into_iter().all(|(step, len)| {
            let is_apart = step > extent;
            extent += step * (len - 1);
            is_apart
        })
}

/// Positions along some axes, advanced without divisions.
struct Position {
    index: [usize; AXES_MAX],
    from: isize,
    to: isize,
}

impl Position {
    fn new(axes: &[Axis], start: usize) -> Position {
        let mut position = Position { index: [0; AXES_MAX], from: 0, to: 0 };
        let mut rest = start;
        for (k, axis) in axes.iter().enumerate().rev() {
            position.index[k] = rest % axis.len;
            rest /= axis.len;
            position.from += position.index[k] as isize * axis.from;
            position.to += position.index[k] as isize * axis.to;
        }
        position
    }

    #[inline]
    fn step(&mut self, axes: &[Axis]) {
        for (k, axis) in axes.iter().enumerate().rev() {
            self.index[k] += 1;
            self.from += axis.from;
            self.to += axis.to;
            if self.index[k] < axis.len {
                return;
            }
            self.index[k] = 0;
            self.from -= axis.from * axis.len as isize;
            self.to -= axis.to * axis.len as isize;
        }
    }
}

/// # Safety
/// The positions along the axis must be inside both sides.
#[inline]
unsafe fn copy_run<T: Copy>(axis: Axis, from: *const T, to: *mut T) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if axis.from == 1 && axis.to == 1 {
            std::ptr::copy_nonoverlapping(from, to, axis.len);
            return;
        }
        for i in 0..axis.len as isize {
            *to.offset(i * axis.to) = *from.offset(i * axis.from);
        }
    }
}

/// Copies a transposed tile: `rows` is contiguous in the source, `cols` in the target.
///
/// # Safety
/// As [`copy_run`], for both axes.
unsafe fn copy_tiles<T: Copy>(rows: Axis, cols: Axis, from: *const T, to: *mut T) {
    for row_tile in (0..rows.len).step_by(TILE) {
        let row_end = (row_tile + TILE).min(rows.len);
        for col_tile in (0..cols.len).step_by(TILE) {
            let col_end = (col_tile + TILE).min(cols.len);
            for row in row_tile..row_end {
                for col in col_tile..col_end {
                    // SAFETY: guaranteed by the caller.
                    unsafe {
                        let value = *from.offset(row as isize + col as isize * cols.from);
                        *to.offset(row as isize * rows.to + col as isize) = value;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lens: &[usize], from_strides: &[isize], from_at: usize, source: &[u32]) {
        let count = lens.iter().product();
        let to_strides = row_major(lens);
        let plan = Strided::new(lens, (from_at, from_strides), (0, &to_strides));
        for threads in [1, 3] {
            let mut out = vec![u32::MAX; count];
            plan.run(&Pool::new(threads), source, &mut out);
            for (place, value) in out.iter().enumerate() {
                let mut rest = place;
                let mut at = from_at as isize;
                for axis in (0..lens.len()).rev() {
                    at += (rest % lens[axis]) as isize * from_strides[axis];
                    rest /= lens[axis];
                }
                assert_eq!(*value, source[at as usize], "{lens:?} {from_strides:?} at {place}");
            }
        }
    }

    #[test]
    fn copies_go_where_the_strides_say() {
        let source: Vec<u32> = (0..70_000).collect();
        check(&[3, 4], &[4, 1], 0, &source);
        check(&[4, 3], &[1, 4], 0, &source);
        check(&[100, 70], &[1, 100], 5, &source);
        check(&[5, 40, 33], &[1320, 1, 40], 0, &source);
        check(&[40, 7, 33], &[1, 1320, 40], 0, &source);
        check(&[2, 3, 5], &[15, -5, 1], 10, &source);
        check(&[6], &[-2], 10, &source);
        check(&[4, 2, 3], &[0, 3, 1], 0, &source);
        check(&[60_000], &[1], 3, &source);
        check(&[0, 4], &[4, 1], 0, &source);
        check(&[], &[], 7, &source);
    }

    #[test]
    fn a_plan_that_reaches_beyond_its_arguments_does_not_run() {
        let pool = Pool::new(1);
        let run = |lens: &[usize], from_side: (usize, &[isize]), to_side: (usize, &[isize])| {
            let work = || Strided::new(lens, from_side, to_side).run(&pool, &[1; 12], &mut [0; 12]);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok()
        };
        assert!(run(&[3, 4], (0, &[4, 1]), (0, &[4, 1])));
        assert!(run(&[3, 4], (11, &[-4, -1]), (0, &[1, 3])));
        assert!(run(&[0, 9], (0, &[9, 1]), (99, &[9, 1])));
        assert!(!run(&[3, 4], (1, &[4, 1]), (0, &[4, 1])));
        assert!(!run(&[3, 4], (0, &[4, 1]), (0, &[1, 4])));
        assert!(!run(&[3, 4], (10, &[-4, -1]), (0, &[4, 1])));
        assert!(!run(&[3, 4], (0, &[4, 1]), (0, &[3, 1])));
        assert!(!run(&[3, 4], (0, &[4, 1]), (0, &[0, 1])));
    }
}
