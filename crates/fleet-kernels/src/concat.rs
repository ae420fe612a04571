//! Copies between tensors of different shapes, over bytes and so for every dtype: concat, split,
//! stack, slice, pad, any strided view.
//!
//! Everything is bound by memory: rows that are contiguous on both sides are copied as they are, a
//! transposition goes by blocks that stay in L1. Results are checked to lie inside their buffers and
//! apart before a byte moves. Transpositions proper have their own file.

use crate::pool::{Pool, Shareable};

/// Dimensions of a strided copy.
pub const RANK_MAX: usize = 8;

/// One operand of a concat: a dense `[outer, inner]` of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub data: &'a [u8],
    /// Bytes of this part in each row of the whole.
    pub inner: usize,
}

/// One result of a split.
#[derive(Debug)]
pub struct PartMut<'a> {
    pub data: &'a mut [u8],
    pub inner: usize,
}

/// Rows of all parts side by side: `out` is `[outer, sum of inner]`. A stack is a concat whose parts
/// have a dimension of one.
///
/// ```
/// use fleet_kernels::{concat::*, pool::Pool};
/// let parts = [Part { data: &[1, 2, 5, 6], inner: 2 }, Part { data: &[3, 7], inner: 1 }];
/// let mut out = [0; 6];
/// concat(&Pool::new(1), 2, &parts, &mut out);
/// assert_eq!(out, [1, 2, 3, 5, 6, 7]);
/// ```
pub fn concat(pool: &Pool, outer: usize, parts: &[Part<'_>], out: &mut [u8]) {
    let whole: usize = parts.iter().map(|part| part.inner).sum();
    assert_eq!(out.len(), outer * whole, "result of concat has the wrong length");
    for part in parts {
        assert_eq!(part.data.len(), outer * part.inner, "part of concat has the wrong length");
    }
    let out = Shareable::new(out);
    for_rows(pool, outer, whole, |row, from, to| {
        let mut start = 0;
        for part in parts {
            let (first, last) = (from.max(start), to.min(start + part.inner));
            if first < last {
                let data = &part.data[row * part.inner + first - start..][..last - first];
                // SAFETY: tasks own disjoint spans of rows, and lengths were checked.
                unsafe { out.slice(row * whole + first, last - first) }.copy_from_slice(data);
            }
            start += part.inner;
        }
    });
}

/// The reverse of [`concat`].
pub fn split(pool: &Pool, outer: usize, x: &[u8], parts: &mut [PartMut<'_>]) {
    let whole: usize = parts.iter().map(|part| part.inner).sum();
    assert_eq!(x.len(), outer * whole, "operand of split has the wrong length");
    let mut start = 0;
    // One part after the other: each is a call of its own, so that nothing is allocated.
    for part in parts {
        let inner = part.inner;
        assert_eq!(part.data.len(), outer * inner, "part of split has the wrong length");
        let data = Shareable::new(&mut *part.data);
        for_rows(pool, outer, inner, |row, from, to| {
            let source = &x[row * whole + start + from..][..to - from];
            // SAFETY: tasks own disjoint spans of rows, and lengths were checked.
            unsafe { data.slice(row * inner + from, to - from) }.copy_from_slice(source);
        });
        start += inner;
    }
}

/// Calls `body(row, from, to)` for spans of bytes of all rows.
fn for_rows(pool: &Pool, rows: usize, inner: usize, body: impl Fn(usize, usize, usize) + Sync) {
    if inner >= BYTES_PER_TASK {
        let pieces = inner.div_ceil(BYTES_PER_TASK);
        pool.run(rows * pieces, |task| {
            let from = task % pieces * BYTES_PER_TASK;
            body(task / pieces, from, (from + BYTES_PER_TASK).min(inner));
        });
    } else if let Some(grain) = BYTES_PER_TASK.checked_div(inner) {
        pool.run_ranges(rows, grain, |range| {
            range.for_each(|row| body(row, 0, inner));
        });
    }
}

/// Where the elements of one side of a strided copy lie, in elements.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    pub start: usize,
    /// One for each dimension; negative ones walk backwards.
    pub strides: &'a [isize],
}

/// Copies `shape` elements of `width` bytes from one placement to another: slices with steps,
/// the inside of a padding, transposed views, and broadcasts (stride 0 at the source).
///
/// ```
/// use fleet_kernels::{concat::*, pool::Pool};
/// let mut out = [0; 6];
/// // The transpose of [[1, 2, 3], [4, 5, 6]].
/// copy_strided(
///     &Pool::new(1), &[3, 2], 1,
///     &[1, 2, 3, 4, 5, 6], Placement { start: 0, strides: &[1, 3] },
///     &mut out, Placement { start: 0, strides: &[2, 1] },
/// );
/// assert_eq!(out, [1, 4, 2, 5, 3, 6]);
/// ```
pub fn copy_strided(
    pool: &Pool,
    shape: &[usize],
    width: usize,
    from: &[u8],
    source: Placement<'_>,
    to: &mut [u8],
    target: Placement<'_>,
) {
    assert!(shape.len() <= RANK_MAX, "too many dimensions");
    assert!(source.strides.len() == shape.len() && target.strides.len() == shape.len());
    if width == 0 || shape.contains(&0) {
        return;
    }
    check_inside(shape, source, from.len() / width);
    check_inside(shape, target, to.len() / width);
    let mut axes = [Axis::default(); RANK_MAX];
    let rank = simplify(shape, source.strides, target.strides, &mut axes);
    let axes = &axes[..rank];
    check_apart(axes);
    let plan = Plan { axes, width, from: from.as_ptr(), to: Shareable::new(to) };
    plan.run(pool, source.start as isize, target.start as isize);
}

/// The elements `starts[d] + i * steps[d]` of every dimension of a dense `x`.
pub fn slice(
    pool: &Pool,
    width: usize,
    x: &[u8],
    shape: &[usize],
    starts: &[usize],
    steps: &[isize],
    out: &mut [u8],
    out_shape: &[usize],
) {
    let (start, strides) = window(shape, starts, steps);
    let strides = &strides[..shape.len()];
    let dense = dense_strides(out_shape);
    let target = Placement { start: 0, strides: &dense[..out_shape.len()] };
    copy_strided(pool, out_shape, width, x, Placement { start, strides }, out, target);
}

/// The gradient of [`slice`]: zero but where the slice lay.
pub fn slice_gradient(
    pool: &Pool,
    width: usize,
    d_out: &[u8],
    out_shape: &[usize],
    starts: &[usize],
    steps: &[isize],
    dx: &mut [u8],
    shape: &[usize],
) {
    fill(pool, &[0], dx);
    let (start, strides) = window(shape, starts, steps);
    let strides = &strides[..shape.len()];
    let dense = dense_strides(out_shape);
    let source = Placement { start: 0, strides: &dense[..out_shape.len()] };
    copy_strided(pool, out_shape, width, d_out, source, dx, Placement { start, strides });
}

/// `x` inside a larger tensor: `before[d]` elements of `value` come before it in each dimension.
pub fn pad(
    pool: &Pool,
    value: &[u8],
    x: &[u8],
    shape: &[usize],
    before: &[usize],
    out: &mut [u8],
    out_shape: &[usize],
) {
    fill(pool, value, out);
    let (start, strides) = window(out_shape, before, &[1; RANK_MAX][..out_shape.len()]);
    let dense = dense_strides(shape);
    let source = Placement { start: 0, strides: &dense[..shape.len()] };
    let target = Placement { start, strides: &strides[..shape.len()] };
    copy_strided(pool, shape, value.len(), x, source, out, target);
}

/// Repeats the bytes of `value` over `out`.
fn fill(pool: &Pool, value: &[u8], out: &mut [u8]) {
    assert!(!value.is_empty() && out.len().is_multiple_of(value.len()));
    let width = value.len();
    let grain = (BYTES_PER_TASK / width).max(1) * width;
    let first = value[0];
    let shared = Shareable::new(&mut *out);
    let len = out.len();
    pool.run_ranges(len, grain, |range| {
        // SAFETY: ranges are disjoint and inside.
        let part = unsafe { shared.slice(range.start, range.len()) };
        if value.iter().all(|&byte| byte == first) {
            part.fill(first);
            return;
        }
        part[..width].copy_from_slice(value);
        // What is filled doubles.
        let mut done = width;
        while done < part.len() {
            let more = done.min(part.len() - done);
            part.copy_within(..more, done);
            done += more;
        }
    });
}

/// Strides of a dense tensor, in elements.
pub fn dense_strides(shape: &[usize]) -> [isize; RANK_MAX] {
    assert!(shape.len() <= RANK_MAX, "too many dimensions");
    let mut strides = [0; RANK_MAX];
    let mut stride = 1;
    for axis in (0..shape.len()).rev() {
        strides[axis] = stride as isize;
        stride *= shape[axis];
    }
    strides
}

/// Bytes moved by one task: some 10 us of memory traffic.
const BYTES_PER_TASK: usize = 1 << 17;
/// Side of a block of a transposition.
const BLOCK: usize = 16;

/// Start and strides of a window with steps into a dense tensor.
fn window(shape: &[usize], starts: &[usize], steps: &[isize]) -> (usize, [isize; RANK_MAX]) {
    assert!(starts.len() == shape.len() && steps.len() == shape.len());
    let mut strides = dense_strides(shape);
    let mut start = 0;
    for axis in 0..shape.len() {
        start += starts[axis] * strides[axis] as usize;
        strides[axis] *= steps[axis];
    }
    (start, strides)
}

fn check_inside(shape: &[usize], placement: Placement<'_>, len: usize) {
    let (mut low, mut high) = (placement.start as i128, placement.start as i128);
    for (&count, &stride) in shape.iter().zip(placement.strides) {
        let reach = (count as i128 - 1) * stride as i128;
        if reach < 0 { low += reach } else { high += reach }
    }
    assert!(low >= 0 && high < len as i128, "a strided copy leaves its buffer");
}

#[derive(Clone, Copy, Debug, Default)]
struct Axis {
    count: usize,
    source: isize,
    target: isize,
}

/// Drops dimensions of one and joins those that are one run on both sides; outermost first.
fn simplify(
    shape: &[usize],
    source: &[isize],
    target: &[isize],
    axes: &mut [Axis; RANK_MAX],
) -> usize {
    let mut rank = 0usize;
    for axis in 0..shape.len() {
        let next = Axis { count: shape[axis], source: source[axis], target: target[axis] };
        if next.count == 1 {
            continue;
        }
        if let Some(last) = rank.checked_sub(1).map(|last| &mut axes[last])
            && last.source == next.source * next.count as isize
            && last.target == next.target * next.count as isize
        {
            *last = Axis { count: last.count * next.count, ..next };
            continue;
        }
        axes[rank] = next;
        rank += 1;
    }
    if rank == 0 {
        axes[0] = Axis { count: 1, source: 1, target: 1 };
        rank = 1;
    }
    rank
}

/// From the inside out, every stride of the target steps over all that lies inside.
fn check_apart(axes: &[Axis]) {
    let mut sorted = [(0usize, 0usize); RANK_MAX];
    for (sorted, axis) in sorted.iter_mut().zip(axes) {
        *sorted = (axis.target.unsigned_abs(), axis.count);
    }
    let sorted = &mut sorted[..axes.len()];
    sorted.sort_unstable();
    let mut extent = 1;
    for &mut (stride, count) in sorted {
        assert!(count == 1 || stride >= extent, "targets of a strided copy overlap");
        extent += stride * (count - 1);
    }
}

struct Plan<'a> {
    axes: &'a [Axis],
    width: usize,
    from: *const u8,
    to: Shareable<u8>,
}

// SAFETY: the source is only read; tasks write disjoint elements.
unsafe impl Sync for Plan<'_> {}

impl Plan<'_> {
    fn run(&self, pool: &Pool, source: isize, target: isize) {
        let rank = self.axes.len();
        let inner = self.axes[rank - 1];
        if inner.source == 1 && inner.target == 1 {
            self.copy_runs(pool, source, target);
            return;
        }
        // The dimension along which the source is contiguous, if it is another one.
        let along = (0..rank - 1).find(|&axis| self.axes[axis].source.unsigned_abs() == 1);
        self.copy_elements(pool, along, source, target);
    }

    /// Offsets of the outer index `index`, over the dimensions that `skip` does not hold.
    fn offsets(&self, mut index: usize, skip: [usize; 2]) -> (isize, isize) {
        let (mut source, mut target) = (0, 0);
        for (position, axis) in self.axes.iter().enumerate().rev() {
            if skip.contains(&position) {
                continue;
            }
            let at = (index % axis.count) as isize;
            index /= axis.count;
            source += at * axis.source;
            target += at * axis.target;
        }
        (source, target)
    }

    fn copy_runs(&self, pool: &Pool, source: isize, target: isize) {
        let last = self.axes.len() - 1;
        let rows: usize = self.axes[..last].iter().map(|axis| axis.count).product();
        let bytes = self.axes[last].count * self.width;
        for_rows(pool, rows, bytes, |row, from, to| {
            let (s, t) = self.offsets(row, [last; 2]);
            let width = self.width as isize;
            // SAFETY: both sides were checked to lie inside, targets to be apart.
            unsafe {
                let from_at = self.from.offset((source + s) * width).add(from);
                let to_at = self.to.ptr().offset((target + t) * width).add(from);
                std::ptr::copy_nonoverlapping(from_at, to_at, to - from);
            }
        });
    }

    /// Element by element; two dimensions go by blocks where `along` names a second one.
    fn copy_elements(&self, pool: &Pool, along: Option<usize>, source: isize, target: isize) {
        let last = self.axes.len() - 1;
        let column = self.axes[last];
        let row = along.map_or(Axis { count: 1, source: 0, target: 0 }, |along| self.axes[along]);
        let skip = [last, along.unwrap_or(last)];
        let outer: usize = (0..self.axes.len())
            .filter(|axis| !skip.contains(axis))
            .map(|axis| self.axes[axis].count)
            .product();
        // Stripes of a block of rows by all columns.
        let stripes = row.count.div_ceil(BLOCK);
        let bytes = BLOCK.min(row.count) * column.count * self.width;
        let grain = (BYTES_PER_TASK / 4 / bytes.max(1)).max(1);
        pool.run_ranges(outer * stripes, grain, |range| {
            for stripe in range {
                let (s, t) = self.offsets(stripe / stripes, skip);
                let first = stripe % stripes * BLOCK;
                let area = Area {
                    rows: Axis { count: BLOCK.min(row.count - first), ..row },
                    columns: column,
                    source: source + s + first as isize * row.source,
                    target: target + t + first as isize * row.target,
                };
                // SAFETY: both sides were checked to lie inside, targets to be apart.
                unsafe {
                    match self.width {
                        1 => self.copy_area::<1>(area),
                        2 => self.copy_area::<2>(area),
                        4 => self.copy_area::<4>(area),
                        8 => self.copy_area::<8>(area),
                        _ => self.copy_area::<0>(area),
                    }
                }
            }
        });
    }

    /// # Safety
    /// The area lies inside on both sides.
    unsafe fn copy_area<const WIDTH: usize>(&self, area: Area) {
        let width = if WIDTH == 0 { self.width } else { WIDTH };
        let (rows, columns) = (area.rows, area.columns);
        for first in (0..columns.count).step_by(BLOCK) {
            let last = (first + BLOCK).min(columns.count);
            for row in 0..rows.count as isize {
                for column in first as isize..last as isize {
                    let source = area.source + row * rows.source + column * columns.source;
                    let target = area.target + row * rows.target + column * columns.target;
                    // SAFETY: promised by the caller.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            self.from.offset(source * width as isize),
                            self.to.ptr().offset(target * width as isize),
                            width,
                        );
                    }
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Area {
    rows: Axis,
    columns: Axis,
    source: isize,
    target: isize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    #[test]
    fn split_undoes_concat() {
        for (outer, inners) in [
            (1, vec![5, 0, 3]),
            (7, vec![1]),
            (300, vec![64, 52, 4]),
            (3, vec![200_000, 17, 300_000]),
            (0, vec![3, 4]),
        ] {
            let data: Vec<Vec<u8>> = inners.iter().map(|inner| bytes(outer * inner)).collect();
            let whole: usize = inners.iter().sum();
            let mut expected = Vec::new();
            for row in 0..outer {
                for (data, &inner) in data.iter().zip(&inners) {
                    expected.extend_from_slice(&data[row * inner..(row + 1) * inner]);
                }
            }
            for threads in [1, 3] {
                let pool = Pool::new(threads);
                let parts: Vec<Part<'_>> =
                    data.iter().zip(&inners).map(|(data, &inner)| Part { data, inner }).collect();
                let mut out = vec![0; outer * whole];
                concat(&pool, outer, &parts, &mut out);
                assert_eq!(out, expected);
                let mut back: Vec<Vec<u8>> = data.iter().map(|data| vec![0; data.len()]).collect();
                let mut parts: Vec<PartMut<'_>> = back
                    .iter_mut()
                    .zip(&inners)
                    .map(|(data, &inner)| PartMut { data, inner })
                    .collect();
                split(&pool, outer, &out, &mut parts);
                assert_eq!(back, data);
            }
        }
    }

    /// Dimension `d` of `out` is dimension `order[d]` of `x`.
    fn transpose(
        pool: &Pool,
        width: usize,
        x: &[u8],
        shape: &[usize],
        order: &[usize],
        out: &mut [u8],
    ) {
        assert_eq!(order.len(), shape.len(), "a transposition names every dimension");
        let dense = dense_strides(shape);
        let (mut out_shape, mut strides) = ([0; RANK_MAX], [0; RANK_MAX]);
        for (axis, &of) in order.iter().enumerate() {
            assert!(!order[..axis].contains(&of), "a transposition names every dimension once");
            (out_shape[axis], strides[axis]) = (shape[of], dense[of]);
        }
        let (out_shape, strides) = (&out_shape[..shape.len()], &strides[..shape.len()]);
        let target = dense_strides(out_shape);
        let target = Placement { start: 0, strides: &target[..shape.len()] };
        copy_strided(pool, out_shape, width, x, Placement { start: 0, strides }, out, target);
    }

    /// All indices of a shape.
    fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
        let mut out = vec![vec![]];
        for &count in shape {
            out = out
                .into_iter()
                .flat_map(|index| {
                    (0..count).map(move |i| index.iter().copied().chain([i]).collect())
                })
                .collect();
        }
        out
    }

    fn at(index: &[usize], shape: &[usize]) -> usize {
        index.iter().zip(shape).fold(0, |at, (i, n)| at * n + i)
    }

    #[test]
    fn transposed_elements_are_where_they_belong() {
        let mut random = Sequence::new(1, 1);
        for shape in [
            vec![5],
            vec![3, 4],
            vec![40, 33],
            vec![2, 17, 3, 19],
            vec![1, 6, 1, 5, 4],
            vec![130, 2, 70],
        ] {
            for width in [1, 2, 3, 4, 8, 16] {
                let mut order: Vec<usize> = (0..shape.len()).collect();
                random.shuffle(&mut order);
                let x = bytes(shape.iter().product::<usize>() * width);
                let out_shape: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
                let mut out = vec![0; x.len()];
                transpose(&Pool::new(3), width, &x, &shape, &order, &mut out);
                for index in indices(&out_shape) {
                    let mut source = vec![0; shape.len()];
                    for (position, &axis) in order.iter().enumerate() {
                        source[axis] = index[position];
                    }
                    let (a, b) = (at(&index, &out_shape) * width, at(&source, &shape) * width);
                    assert_eq!(out[a..a + width], x[b..b + width]);
                }
            }
        }
    }

    #[test]
    fn slices_with_steps_and_their_gradients() {
        for (shape, starts, steps, out_shape) in [
            (vec![10], vec![2], vec![3], vec![3]),
            (vec![10], vec![9], vec![-1], vec![10]),
            (vec![6, 7, 5], vec![1, 6, 0], vec![2, -3, 1], vec![2, 3, 5]),
            (vec![4, 9], vec![0, 2], vec![1, 1], vec![4, 6]),
            (vec![4, 9], vec![0, 2], vec![1, 1], vec![0, 6]),
        ] {
            let x = bytes(shape.iter().product::<usize>() * 4);
            let pool = Pool::new(2);
            let mut out = vec![0; out_shape.iter().product::<usize>() * 4];
            slice(&pool, 4, &x, &shape, &starts, &steps, &mut out, &out_shape);
            let mut dx = vec![9; x.len()];
            slice_gradient(&pool, 4, &out, &out_shape, &starts, &steps, &mut dx, &shape);
            let mut expected = vec![0; x.len()];
            for index in indices(&out_shape) {
                let source: Vec<usize> = (0..shape.len())
                    .map(|d| (starts[d] as isize + index[d] as isize * steps[d]) as usize)
                    .collect();
                let (a, b) = (at(&index, &out_shape) * 4, at(&source, &shape) * 4);
                assert_eq!(out[a..a + 4], x[b..b + 4]);
                expected[b..b + 4].copy_from_slice(&x[b..b + 4]);
            }
            assert_eq!(dx, expected);
        }
    }

    #[test]
    fn padding_surrounds_the_tensor() {
        let (shape, before, out_shape) = ([3, 4], [1, 2], [6, 9]);
        let x = bytes(12 * 2);
        let mut out = vec![0; 54 * 2];
        pad(&Pool::new(2), &[1, 2], &x, &shape, &before, &mut out, &out_shape);
        for index in indices(&out_shape) {
            let a = at(&index, &out_shape) * 2;
            let inside = (0..2).all(|d| (before[d]..before[d] + shape[d]).contains(&index[d]));
            if inside {
                let b = at(&[index[0] - 1, index[1] - 2], &shape) * 2;
                assert_eq!(out[a..a + 2], x[b..b + 2]);
            } else {
                assert_eq!(out[a..a + 2], [1, 2]);
            }
        }
    }

    #[test]
    fn broadcasts_repeat_the_source() {
        let mut out = [0; 6];
        let source = Placement { start: 1, strides: &[0, 1] };
        let target = Placement { start: 0, strides: &[3, 1] };
        copy_strided(&Pool::new(1), &[2, 3], 1, &[9, 1, 2, 3], source, &mut out, target);
        assert_eq!(out, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn fill_repeats_any_value() {
        for len in [0, 4, 400_000] {
            let mut out = vec![0; len];
            fill(&Pool::new(2), &[1, 2, 3, 4], &mut out);
            assert!(out.chunks(4).all(|chunk| chunk == [1, 2, 3, 4]));
        }
    }

    #[test]
    fn copies_that_would_leave_their_buffer_are_refused() {
        let attempt = |start: usize, stride: isize, target_stride: isize| {
            std::panic::catch_unwind(|| {
                let mut out = [0; 8];
                let source = Placement { start, strides: &[stride] };
                let target = Placement { start: 0, strides: &[target_stride] };
                copy_strided(&Pool::new(1), &[4], 1, &[1; 8], source, &mut out, target);
            })
        };
        assert!(attempt(0, 2, 1).is_ok());
        assert!(attempt(0, 3, 1).is_err());
        assert!(attempt(2, -1, 1).is_err());
        assert!(attempt(0, 1, 0).is_err());
    }
}
