//! Gradients of a lookup: sums the rows of each id, and applies the sums.

use super::group::Groups;
use super::{BadId, Grid, Pooling, ROWS_AHEAD, check_offsets, prefetch_row};
use crate::pool::{Pool, Shareable};
use crate::simd::Simd;
use std::ops::Range;

/// Number of positions whose groups one task sums.
const POSITIONS_PER_TASK: usize = 2048;
const ZERO_FLOATS_PER_TASK: usize = 1 << 16;

/// The source of the gradient row of each position.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The row at the offset given by `grid`.
    Grid { data: &'a [f32], grid: Grid },
    /// A pooled lookup: position `i` belongs to segment `segment_of[i]` (see [`segments`]), whose
    /// gradient row starts at `start + segment * stride`.
    Pooled {
        data: &'a [f32],
        start: usize,
        stride: usize,
        segment_of: &'a [u32],
        offsets: &'a [usize],
        pooling: Pooling,
    },
}

/// Writes the segment of every position: `out[i] = s` for `i` in `offsets[s]..offsets[s + 1]`.
pub fn segments(offsets: &[usize], out: &mut [u32]) {
    check_offsets(offsets, out.len());
    for (segment, span) in offsets.windows(2).enumerate() {
        out[span[0]..span[1]].fill(segment as u32);
    }
}

/// Sets row `u` of `out` to the sum of the gradient rows of unique id `u`.
pub fn merge_rows(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    out: &mut [f32],
) {
    assert!(out.len() >= groups.ids.len() * dim, "merged rows exceed the output");
    for_each_sum(pool, groups, source, dim, &Store { out: Shareable::new(out), by_id: false });
}

/// Computes the dense gradient of a table, which is zero except for the rows in use.
pub fn dense_gradient(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    out: &mut [f32],
) -> Result<(), BadId> {
    let rows = out.len() / dim.max(1);
    check_groups(groups, rows)?;
    let shared = Shareable::new(out);
    pool.run_ranges(rows * dim, ZERO_FLOATS_PER_TASK, |range| {
        // SAFETY: ranges are disjoint and inside `out`.
        unsafe { shared.slice(range.start, range.len()) }.fill(0.0);
    });
    for_each_sum(pool, groups, source, dim, &Store { out: shared, by_id: true });
    Ok(())
}

/// Computes `table[id] -= lr * sum of its gradient rows`, once per row.
pub fn sgd_rows(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    lr: f32,
    table: &mut [f32],
) -> Result<(), BadId> {
    check_groups(groups, table.len() / dim.max(1))?;
    for_each_sum(pool, groups, source, dim, &Sgd { table: Shareable::new(table), lr });
    Ok(())
}

/// Applies Adagrad to the rows in use:
/// `moment += g * g; table -= lr * g / (sqrt(moment) + epsilon)`.
pub fn adagrad_rows(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    (lr, epsilon): (f32, f32),
    table: &mut [f32],
    moment: &mut [f32],
) -> Result<(), BadId> {
    check_groups(groups, table.len().min(moment.len()) / dim.max(1))?;
    let update =
        Adagrad { table: Shareable::new(table), moment: Shareable::new(moment), lr, epsilon };
    for_each_sum(pool, groups, source, dim, &update);
    Ok(())
}

/// The parameters of [`adam_rows`]. `lr` includes the bias correction
/// `sqrt(1 - beta2^t) / (1 - beta1^t)`, and `epsilon` is scaled by `sqrt(1 - beta2^t)`.
#[derive(Clone, Copy, Debug)]
pub struct AdamRows {
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
}

/// Applies lazy Adam, in which moments decay only on the rows in use:
/// `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; table -= lr * m / (sqrt(v) + epsilon)`.
pub fn adam_rows(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    numbers: AdamRows,
    table: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
) -> Result<(), BadId> {
    check_groups(groups, table.len().min(first.len()).min(second.len()) / dim.max(1))?;
    let update = Adam {
        table: Shareable::new(table),
        first: Shareable::new(first),
        second: Shareable::new(second),
        numbers,
    };
    for_each_sum(pool, groups, source, dim, &update);
    Ok(())
}

/// Calls `body(index of the unique id, summed row)` for every unique id, for other updates. `dim`
/// is at most [`DIM_MAX_FOR_EACH`]. Calls may run in parallel.
pub fn for_each_row(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    body: impl Fn(usize, &[f32]) + Sync,
) {
    assert!(dim <= DIM_MAX_FOR_EACH, "row is too long for the stack");
    let source = Rows::new(source, groups, dim);
    pool.run_ranges(groups.positions.len(), POSITIONS_PER_TASK, |range| {
        let mut sum = [0.0f32; DIM_MAX_FOR_EACH];
        for unique in owned_groups(groups, range) {
            let sum = &mut sum[..dim];
            sum.fill(0.0);
            for &position in group_positions(groups, unique) {
                // SAFETY: `Rows::new` checked every position.
                let (row, scale) = unsafe { source.row(position as usize) };
                for (column, sum) in sum.iter_mut().enumerate() {
                    // SAFETY: a row has `dim` floats.
                    *sum += unsafe { *row.add(column) } * scale;
                }
            }
            body(unique, sum);
        }
    });
}

/// Limit on the row length of [`for_each_row`]: 16 KB of stack.
pub const DIM_MAX_FOR_EACH: usize = 4096;

fn check_groups(groups: &Groups<'_>, rows: usize) -> Result<(), BadId> {
    // Ids ascend as unsigned numbers, so the last one bounds all, including negative ones.
    match groups.ids.last() {
        Some(&id) if id as u64 >= rows as u64 => {
            let unique = groups.ids.partition_point(|&id| (id as u64) < rows as u64);
            let position = groups.positions[groups.starts[unique] as usize] as usize;
            Err(BadId { position, id: groups.ids[unique], rows })
        }
        _ => Ok(()),
    }
}

/// A checked [`Source`]: every position of the groups has a row inside the data.
#[derive(Clone, Copy)]
enum Rows<'a> {
    Grid {
        data: *const f32,
        grid: Grid,
        group_inverse: u64,
    },
    Pooled {
        data: *const f32,
        stride: usize,
        segment_of: &'a [u32],
        offsets: &'a [usize],
        pooling: Pooling,
    },
}

// SAFETY: the pointers are those of shared slices.
unsafe impl Sync for Rows<'_> {}

impl<'a> Rows<'a> {
    fn new(source: &Source<'a>, groups: &Groups<'_>, dim: usize) -> Self {
        let positions = groups.positions;
        let count = positions.iter().max().map_or(0, |&last| last as usize + 1);
        match *source {
            Source::Grid { data, grid } => {
                assert!(grid.group > 0, "group of rows is empty");
                assert!(grid.end(count, dim) <= data.len(), "gradient rows exceed the data");
                // ceil(2^64 / group): the high half of the product is the quotient for every u32.
                let group_inverse = (u64::MAX / grid.group as u64).wrapping_add(1);
                Rows::Grid { data: data.as_ptr(), grid, group_inverse }
            }
            Source::Pooled { data, start, stride, segment_of, offsets, pooling } => {
                assert!(count <= segment_of.len(), "position without a segment");
                let last = segment_of[..count].iter().max().map_or(0, |&last| last as usize);
                assert!(count == 0 || last + 1 < offsets.len(), "segment without an offset");
                assert!(
                    count == 0 || start + last * stride + dim <= data.len(),
                    "gradient rows exceed the data"
                );
                let data = data.as_ptr().wrapping_add(start);
                Rows::Pooled { data, stride, segment_of, offsets, pooling }
            }
        }
    }

    /// Returns the row of `position` and its factor.
    ///
    /// # Safety
    /// The position is one of the groups with which the source was checked.
    #[inline(always)]
    unsafe fn row(&self, position: usize) -> (*const f32, f32) {
        match *self {
            Rows::Grid { data, grid, group_inverse } => {
                let group = if grid.group == 1 {
                    position
                } else {
                    ((u128::from(group_inverse) * position as u128) >> 64) as usize
                };
                let inside = position - group * grid.group;
                let offset = grid.start + group * grid.group_stride + inside * grid.stride;
                // SAFETY: checked in `new`.
                (unsafe { data.add(offset) }, 1.0)
            }
            Rows::Pooled { data, stride, segment_of, offsets, pooling } => {
                // SAFETY: checked in `new`.
                let segment = unsafe { *segment_of.get_unchecked(position) } as usize;
                let scale = pooling.scale(offsets[segment + 1].wrapping_sub(offsets[segment]));
                // SAFETY: checked in `new`.
                (unsafe { data.add(segment * stride) }, scale)
            }
        }
    }
}

/// The use of a summed row.
trait Update: Sync {
    /// Prefetches the cache lines that [`Update::apply`] accesses.
    fn prefetch(&self, unique: usize, id: i64, dim: usize);

    /// Applies `sum`: `n` columns, from `column` on, of the sum of unique id `unique`.
    ///
    /// # Safety
    /// The id is inside the tables, no other task has the same id, and `column + n <= dim`.
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F);
}

/// The floats to which an update applies.
#[derive(Clone, Copy)]
struct Place {
    unique: usize,
    id: i64,
    dim: usize,
    column: usize,
    /// Number of columns, at most a register.
    n: usize,
}

impl Place {
    #[inline(always)]
    fn in_table(&self) -> usize {
        self.id as usize * self.dim + self.column
    }
}

/// Loads part of a row into a register.
///
/// # Safety
/// `n` floats at `start` belong to the caller.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, rows: &Shareable<f32>, start: usize, n: usize) -> S::F {
    // SAFETY: promised by the caller.
    unsafe {
        let from = rows.ptr().add(start);
        if n == S::LANES { s.load(from) } else { s.load_part(from, n) }
    }
}

/// # Safety
/// As for [`load`].
#[inline(always)]
unsafe fn store<S: Simd>(s: S, rows: &Shareable<f32>, start: usize, n: usize, value: S::F) {
    // SAFETY: promised by the caller.
    unsafe {
        let to = rows.ptr().add(start);
        if n == S::LANES { s.store(to, value) } else { s.store_part(to, value, n) }
    }
}

struct Store {
    out: Shareable<f32>,
    by_id: bool,
}

impl Update for Store {
    #[inline(always)]
    fn prefetch(&self, _: usize, id: i64, dim: usize) {
        if self.by_id {
            prefetch_row(self.out.ptr().wrapping_add(id as usize * dim), dim);
        }
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F) {
        let start =
            if self.by_id { place.in_table() } else { place.unique * place.dim + place.column };
        // SAFETY: promised by the caller.
        unsafe { store(s, &self.out, start, place.n, sum) };
    }
}

struct Sgd {
    table: Shareable<f32>,
    lr: f32,
}

impl Update for Sgd {
    #[inline(always)]
    fn prefetch(&self, _: usize, id: i64, dim: usize) {
        prefetch_row(self.table.ptr().wrapping_add(id as usize * dim), dim);
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F) {
        let start = place.in_table();
        // SAFETY: promised by the caller.
        unsafe {
            let value = load(s, &self.table, start, place.n);
            store(s, &self.table, start, place.n, s.neg_fma(s.splat(self.lr), sum, value));
        }
    }
}

struct Adagrad {
    table: Shareable<f32>,
    moment: Shareable<f32>,
    lr: f32,
    epsilon: f32,
}

impl Update for Adagrad {
    #[inline(always)]
    fn prefetch(&self, _: usize, id: i64, dim: usize) {
        prefetch_row(self.table.ptr().wrapping_add(id as usize * dim), dim);
        prefetch_row(self.moment.ptr().wrapping_add(id as usize * dim), dim);
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F) {
        let start = place.in_table();
        // SAFETY: promised by the caller.
        unsafe {
            let moment = s.fma(sum, sum, load(s, &self.moment, start, place.n));
            store(s, &self.moment, start, place.n, moment);
            let size = s.add(s.sqrt(moment), s.splat(self.epsilon));
            // Lanes past the end of the row may compute 0 / 0; they are not stored.
            let step = s.div(s.mul(s.splat(self.lr), sum), size);
            let value = load(s, &self.table, start, place.n);
            store(s, &self.table, start, place.n, s.sub(value, step));
        }
    }
}

struct Adam {
    table: Shareable<f32>,
    first: Shareable<f32>,
    second: Shareable<f32>,
    numbers: AdamRows,
}

impl Update for Adam {
    #[inline(always)]
    fn prefetch(&self, _: usize, id: i64, dim: usize) {
        for rows in [&self.table, &self.first, &self.second] {
            prefetch_row(rows.ptr().wrapping_add(id as usize * dim), dim);
        }
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F) {
        let (start, n) = (place.in_table(), place.n);
        let AdamRows { lr, beta1, beta2, epsilon } = self.numbers;
        // SAFETY: promised by the caller.
        unsafe {
            let first = s.mul(s.splat(beta1), load(s, &self.first, start, n));
            let first = s.fma(s.splat(1.0 - beta1), sum, first);
            let second = s.mul(s.splat(beta2), load(s, &self.second, start, n));
            let second = s.fma(s.splat(1.0 - beta2), s.mul(sum, sum), second);
            store(s, &self.first, start, n, first);
            store(s, &self.second, start, n, second);
            let size = s.add(s.sqrt(second), s.splat(epsilon));
            let step = s.div(s.mul(s.splat(lr), first), size);
            let value = load(s, &self.table, start, n);
            store(s, &self.table, start, n, s.sub(value, step));
        }
    }
}

/// Returns the groups whose first position is in `range`, so that every group has one owner.
fn owned_groups(groups: &Groups<'_>, range: Range<usize>) -> Range<usize> {
    let starts = &groups.starts[..groups.ids.len()];
    let first = starts.partition_point(|&start| (start as usize) < range.start);
    let last = starts.partition_point(|&start| (start as usize) < range.end);
    first..last
}

pub(super) fn group_positions<'a>(groups: &Groups<'a>, unique: usize) -> &'a [u32] {
    &groups.positions[groups.starts[unique] as usize..groups.starts[unique + 1] as usize]
}

/// Sums the rows of every group and passes the sum to `update`. The caller has checked the ids.
fn for_each_sum<U: Update>(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    update: &U,
) {
    let rows = Rows::new(source, groups, dim);
    pool.run_ranges(groups.positions.len(), POSITIONS_PER_TASK, |range| {
        sum_groups(groups, owned_groups(groups, range), &rows, dim, update);
    });
}

crate::kernel! {
    /// Sums the groups `owned`, one register of columns at a time: most ids occur once or twice.
    fn sum_groups<S, U: Update>(
        s: S,
        groups: &Groups<'_>,
        owned: Range<usize>,
        rows: &Rows<'_>,
        dim: usize,
        update: &U,
    ) {
        for unique in owned.clone() {
            if unique + ROWS_AHEAD < owned.end {
                let ahead = unique + ROWS_AHEAD;
                update.prefetch(ahead, groups.ids[ahead], dim);
                let position = groups.positions[groups.starts[ahead] as usize] as usize;
                // SAFETY: the position is one of the groups.
                prefetch_row(unsafe { rows.row(position) }.0, dim);
            }
            let positions = group_positions(groups, unique);
            let id = groups.ids[unique];
            let mut column = 0;
            while column < dim {
                let n = S::LANES.min(dim - column);
                let mut sum = s.zero();
                for &position in positions {
                    // SAFETY: the position is one of the groups, and a row has `dim` floats.
                    unsafe {
                        let (row, scale) = rows.row(position as usize);
                        let row = row.add(column);
                        let row = if n == S::LANES { s.load(row) } else { s.load_part(row, n) };
                        sum = s.fma(row, s.splat(scale), sum);
                    }
                }
                let place = Place { unique, id, dim, column, n };
                // SAFETY: the caller checked the ids, and a group has one owner.
                unsafe { update.apply(s, place, sum) };
                column += n;
            }
        }
    }
}
