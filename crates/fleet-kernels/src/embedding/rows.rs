//! Gradients of a lookup: sums the rows of each id, and applies the sums.

use super::group::Groups;
use super::{BadId, Grid, ROWS_AHEAD, prefetch_row};
use crate::for_registers;
use crate::optim::{SgdOp, UpdateOp};
use crate::pool::{Pool, Shareable};
use crate::simd::Simd;
use std::ops::Range;

/// Number of positions whose groups one task sums.
const POSITIONS_PER_TASK: usize = 2048;
const ZERO_FLOATS_PER_TASK: usize = 1 << 16;

/// The gradient rows: that of position `i` is at the offset which `grid` gives.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The memory that holds the rows.
    pub data: &'a [f32],
    /// Where each row starts.
    pub grid: Grid,
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
    for_each_sum(pool, groups, source, dim, &Store { out: Shareable::new(out) });
}

/// Computes the dense gradient of a table, which is zero except for the rows in use.
pub fn dense_gradient(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    out: &mut [f32],
) -> Result<(), BadId> {
    pool.run_parts(out, ZERO_FLOATS_PER_TASK, |_, part| part.fill(0.0));
    add_dense_gradient(pool, groups, source, dim, out)
}

/// Adds the gradient of a table to `out`, of which only the rows in use change.
pub fn add_dense_gradient(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    out: &mut [f32],
) -> Result<(), BadId> {
    update_rows(pool, groups, source, dim, AddRows, out, [])
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
    update_rows(pool, groups, source, dim, SgdOp { lr }, table, [])
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
    update_rows(pool, groups, source, dim, AdagradRows { lr, epsilon }, table, [moment])
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
    update_rows(pool, groups, source, dim, numbers, table, [first, second])
}

/// Updates the rows in use, each once, with the sum of its gradient rows. `states` are tables of
/// the shape of `table`.
fn update_rows<O: UpdateOp, const N: usize>(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    op: O,
    table: &mut [f32],
    states: [&mut [f32]; N],
) -> Result<(), BadId> {
    const { assert!(N == O::STATES) };
    let len = states.iter().map(|state| state.len()).fold(table.len(), usize::min);
    check_groups(groups, len / dim.max(1))?;
    let (table, states) = (Shareable::new(table), states.map(Shareable::new));
    for_each_sum(pool, groups, source, dim, &RowUpdate { op, table, states });
    Ok(())
}

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
struct Rows {
    data: *const f32,
    grid: Grid,
    /// ceil(2^64 / group): the high half of its product with any u32 is the quotient.
    group_inverse: u64,
}

// SAFETY: the pointer is that of a shared slice.
unsafe impl Sync for Rows {}

impl Rows {
    fn new(source: &Source<'_>, groups: &Groups<'_>, dim: usize) -> Rows {
        let Source { data, grid } = *source;
        let count = groups.positions.iter().max().map_or(0, |&last| last as usize + 1);
        assert!(grid.group > 0, "group of rows is empty");
        assert!(grid.end(count, dim) <= data.len(), "gradient rows exceed the data");
        let group_inverse = (u64::MAX / grid.group as u64).wrapping_add(1);
        Rows { data: data.as_ptr(), grid, group_inverse }
    }

    /// Returns the row of `position`.
    ///
    /// # Safety
    /// The position is one of the groups with which the source was checked.
    #[inline(always)]
    unsafe fn row(&self, position: usize) -> *const f32 {
        let grid = &self.grid;
        let group = if grid.group == 1 {
            position
        } else {
            ((u128::from(self.group_inverse) * position as u128) >> 64) as usize
        };
        let inside = position - group * grid.group;
        // SAFETY: checked in `new`.
        unsafe { self.data.add(grid.start + group * grid.group_stride + inside * grid.stride) }
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

/// Stores the sums one after another.
struct Store {
    out: Shareable<f32>,
}

impl Update for Store {
    #[inline(always)]
    fn prefetch(&self, _: usize, _: i64, _: usize) {}

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F) {
        let start = place.unique * place.dim + place.column;
        // SAFETY: promised by the caller.
        unsafe { s.store_n(self.out.ptr().add(start), sum, place.n) };
    }
}

/// Applies a formula to a table and its states.
struct RowUpdate<O, const N: usize> {
    op: O,
    table: Shareable<f32>,
    states: [Shareable<f32>; N],
}

impl<O: UpdateOp, const N: usize> Update for RowUpdate<O, N> {
    #[inline(always)]
    fn prefetch(&self, _: usize, id: i64, dim: usize) {
        prefetch_row(self.table.ptr().wrapping_add(id as usize * dim), dim);
        for state in &self.states {
            prefetch_row(state.ptr().wrapping_add(id as usize * dim), dim);
        }
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F) {
        let (start, n) = (place.in_table(), place.n);
        // SAFETY: promised by the caller. Lanes past the end of the row are not stored.
        unsafe {
            let mut values = [s.zero(); 3];
            for k in 0..N {
                values[k] = s.load_n(self.states[k].ptr().add(start), n);
            }
            let weights = self.table.ptr().add(start);
            let new = self.op.update(s, s.load_n(weights, n), sum, &mut values);
            s.store_n(weights, new, n);
            for k in 0..N {
                s.store_n(self.states[k].ptr().add(start), values[k], n);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct AddRows;

impl UpdateOp for AddRows {
    const STATES: usize = 0;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, old: S::F, sum: S::F, _: &mut [S::F; 3]) -> S::F {
        s.add(old, sum)
    }
}

// The formulas of Adagrad and Adam on rows take exact roots, and round in their own order.

#[derive(Clone, Copy)]
struct AdagradRows {
    lr: f32,
    epsilon: f32,
}

impl UpdateOp for AdagradRows {
    const STATES: usize = 1;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        state[0] = s.fma(g, g, state[0]);
        let size = s.add(s.sqrt(state[0]), s.splat(self.epsilon));
        s.sub(w, s.div(s.mul(s.splat(self.lr), g), size))
    }
}

/// The parameters of [`adam_rows`]. `lr` includes the bias correction
/// `sqrt(1 - beta2^t) / (1 - beta1^t)`, and `epsilon` is scaled by `sqrt(1 - beta2^t)`.
#[derive(Clone, Copy, Debug)]
pub struct AdamRows {
    /// Learning rate, with the bias correction.
    pub lr: f32,
    /// Factor of the moving average of gradients.
    pub beta1: f32,
    /// Factor of the moving average of squared gradients.
    pub beta2: f32,
    /// Added to the root.
    pub epsilon: f32,
}

impl UpdateOp for AdamRows {
    const STATES: usize = 2;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let AdamRows { lr, beta1, beta2, epsilon } = self;
        state[0] = s.fma(s.splat(1.0 - beta1), g, s.mul(s.splat(beta1), state[0]));
        state[1] = s.fma(s.splat(1.0 - beta2), s.mul(g, g), s.mul(s.splat(beta2), state[1]));
        let size = s.add(s.sqrt(state[1]), s.splat(epsilon));
        s.sub(w, s.div(s.mul(s.splat(lr), state[0]), size))
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
        rows: &Rows,
        dim: usize,
        update: &U,
    ) {
        for unique in owned.clone() {
            if unique + ROWS_AHEAD < owned.end {
                let ahead = unique + ROWS_AHEAD;
                update.prefetch(ahead, groups.ids[ahead], dim);
                let position = groups.positions[groups.starts[ahead] as usize] as usize;
                // SAFETY: the position is one of the groups.
                prefetch_row(unsafe { rows.row(position) }, dim);
            }
            let positions = group_positions(groups, unique);
            let id = groups.ids[unique];
            for_registers!(S, dim, |column, n| {
                let mut sum = s.zero();
                for &position in positions {
                    // SAFETY: the position is one of the groups, and a row has `dim` floats.
                    let row = unsafe { s.load_n(rows.row(position as usize).add(column), n) };
                    sum = s.add(row, sum);
                }
                let place = Place { unique, id, dim, column, n };
                // SAFETY: the caller checked the ids, and a group has one owner.
                unsafe { update.apply(s, place, sum) };
            });
        }
    }
}
