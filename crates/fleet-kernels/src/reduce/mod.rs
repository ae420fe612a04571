//! Reductions of contiguous f32 tensors: sum, mean, max, min and product over any axes, arg-max and
//! squared norms.
//!
//! A [`Reduction`] is planned once from shape and axes. Adjacent axes of one kind are merged, which
//! leaves either runs (the last axis is reduced) or columns (it is kept). Long reductions with few
//! results are split into pieces of fixed size. Their partial results are stored in scratch memory
//! and combined in order, so that the value does not depend on the number of threads. Sums are
//! accumulated in blocks, in many lanes, and across blocks in f64 or in pairs of rows.
//!
//! ```
//! use fleet_kernels::{pool::Pool, reduce::{Fold, Reduction, reduce}};
//! let plan = Reduction::new(&[2, 3], &[0]);
//! let (mut out, mut scratch) = (vec![0.0; plan.out_len()], vec![0.0; plan.scratch_len()]);
//! let x = [1.0, 2.0, 3.0, 10.0, 20.0, 30.0];
//! reduce(&Pool::new(1), Fold::Sum, &plan, &x, &mut out, &mut scratch);
//! assert_eq!(out, [11.0, 22.0, 33.0]);
//! ```

mod extreme;
mod sources;
#[cfg(test)]
mod tests;

pub use extreme::{Extreme, arg_extreme};
use sources::{MaxOp, MinOp, ProdOp};
pub(crate) use sources::{Plain, Product, Quotient, ReduceOp, Source, SumOp};

use std::ops::Range;

use crate::kernel;
use crate::pool::Pool;
use crate::simd::{SharedPtr, Simd};

/// The operation over the reduced axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// The sum.
    Sum,
    /// The sum divided by the number of elements.
    Mean,
    /// The largest element.
    Max,
    /// The smallest element.
    Min,
    /// The product.
    Prod,
}

/// Minimum number of elements that a task reads, unless the tensor has fewer.
const TASK_ELEMENTS: usize = 32 * 1024;
/// Number of tasks from which a reduction is not split over its reduced axes.
const TASKS_ENOUGH: usize = 64;
/// Limit on the pieces of one reduction: bounds the scratch memory and the serial part.
const SPLITS_MAX: usize = 256;
/// Limit on the columns that a task keeps in L1 while it reads the rows.
const COLUMNS_MAX: usize = 2048;
/// Width below which several rows are summed together, see [`columns`].
const NARROW: usize = 32;
/// Number of elements of a run that are accumulated in f32 lanes before they are added in f64.
const RUN_BLOCK: usize = 2048;

/// The location of the elements of each result, computed once per shape.
#[derive(Clone, Debug)]
pub struct Reduction {
    /// (length, stride) of the kept axes, except the last one of a column reduction.
    kept: Vec<(usize, usize)>,
    /// (length, stride) of the reduced axes outside the leaf.
    reduced: Vec<(usize, usize)>,
    inner_block: InnerBlock,
    kept_count: usize,
    reduced_count: usize,
    splits: usize,
    empty: bool,
}

/// The innermost, contiguous block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum InnerBlock {
    /// A run of this length that gives one result.
    Run(usize),
    /// A matrix whose columns are reduced.
    Columns { rows: usize, columns: usize },
}

impl Reduction {
    /// Returns the plan for reducing `axes` of a tensor of shape `shape`. Axes outside the shape
    /// and duplicates are ignored.
    pub fn new(shape: &[usize], axes: &[usize]) -> Self {
        // Adjacent axes of one kind are merged; axes of length 1 are skipped.
        let mut dims: Vec<(usize, bool)> = Vec::new();
        for (axis, &len) in shape.iter().enumerate().filter(|(_, len)| **len != 1) {
            let is_reduced = axes.contains(&axis);
            match dims.last_mut() {
                Some((last, kind)) if *kind == is_reduced => *last *= len,
                _ => dims.push((len, is_reduced)),
            }
        }
        let inner_block = match dims.pop() {
            None => InnerBlock::Run(1),
            Some((len, true)) => InnerBlock::Run(len),
            Some((columns, false)) => {
                InnerBlock::Columns { rows: dims.pop().map_or(1, |(rows, _)| rows), columns }
            }
        };
        let mut stride = match inner_block {
            InnerBlock::Run(len) => len,
            InnerBlock::Columns { rows, columns } => rows * columns,
        };
        let (mut kept, mut reduced) = (Vec::new(), Vec::new());
        for (len, is_reduced) in dims.into_iter().rev() {
            let list = if is_reduced { &mut reduced } else { &mut kept };
            list.insert(0, (len, stride));
            stride *= len;
        }
        let count = |list: &[(usize, usize)]| list.iter().map(|(len, _)| len).product();
        let (kept_count, reduced_count) = (count(&kept), count(&reduced));
        let mut plan = Reduction {
            kept,
            reduced,
            inner_block,
            kept_count,
            reduced_count,
            splits: 1,
            empty: shape.contains(&0),
        };
        if plan.units().div_ceil(plan.units_per_task()) < TASKS_ENOUGH {
            let wanted = plan.unit_elements().div_ceil(2 * TASK_ELEMENTS);
            plan.splits = wanted.clamp(1, SPLITS_MAX).min(plan.split_len().max(1));
        }
        plan
    }

    /// Returns the number of results.
    pub fn out_len(&self) -> usize {
        self.kept_count
            * match self.inner_block {
                InnerBlock::Run(_) => 1,
                InnerBlock::Columns { columns, .. } => columns,
            }
    }

    /// Returns the number of elements per result.
    pub fn reduced_len(&self) -> usize {
        self.reduced_count
            * match self.inner_block {
                InnerBlock::Run(len) => len,
                InnerBlock::Columns { rows, .. } => rows,
            }
    }

    /// Returns the number of elements of the tensor.
    pub fn in_len(&self) -> usize {
        self.out_len() * self.reduced_len()
    }

    /// Returns the length of the scratch memory for the reduction, in floats.
    pub fn scratch_len(&self) -> usize {
        if self.splits > 1 { self.splits * self.out_len() } else { 0 }
    }

    /// Returns the number of units: the smallest parts that one task writes. These are results of
    /// runs, or blocks of columns.
    fn units(&self) -> usize {
        self.kept_count * self.column_blocks()
    }

    fn column_blocks(&self) -> usize {
        match self.inner_block {
            InnerBlock::Run(_) => 1,
            InnerBlock::Columns { columns, .. } => columns.div_ceil(COLUMNS_MAX),
        }
    }

    fn unit_elements(&self) -> usize {
        self.reduced_count
            * match self.inner_block {
                InnerBlock::Run(len) => len,
                InnerBlock::Columns { rows, columns } => rows * columns.min(COLUMNS_MAX),
            }
    }

    fn units_per_task(&self) -> usize {
        (TASK_ELEMENTS / self.unit_elements().max(1)).max(1)
    }

    /// Returns the length along which a reduction is split: the outer reduced axes, or the leaf if
    /// there are none.
    fn split_len(&self) -> usize {
        match self.inner_block {
            _ if self.reduced_count > 1 => self.reduced_count,
            InnerBlock::Run(len) => len,
            InnerBlock::Columns { rows, .. } => rows,
        }
    }

    #[inline(always)]
    fn offset(list: &[(usize, usize)], mut index: usize) -> usize {
        if let [(_, stride)] = list {
            return index * stride;
        }
        let mut offset = 0;
        for (len, stride) in list.iter().rev() {
            offset += index % len * stride;
            index /= len;
        }
        offset
    }
}

/// Replaces lanes from `n` on by the identity.
#[inline(always)]
fn only_first<S: Simd, F: ReduceOp>(s: S, x: S::F, n: usize) -> S::F {
    s.select(s.first(n), x, s.splat(F::IDENTITY))
}

/// Returns the fold of a contiguous run.
#[inline(always)]
unsafe fn run<S: Simd, F: ReduceOp, M: Source>(s: S, source: M, start: usize, len: usize) -> f64 {
    let mut total = f64::from(F::IDENTITY);
    let mut i = start;
    let end = start + len;
    while i < end {
        let block_end = (i + RUN_BLOCK).min(end);
        let mut sums = [s.splat(F::IDENTITY); 4];
        // SAFETY: all indices stay below `end`.
        unsafe {
            while i + 4 * S::LANES <= block_end {
                for k in 0..4 {
                    sums[k] = F::fold(s, sums[k], source.load(s, i + k * S::LANES, S::LANES));
                }
                i += 4 * S::LANES;
            }
            while i + S::LANES <= block_end {
                sums[0] = F::fold(s, sums[0], source.load(s, i, S::LANES));
                i += S::LANES;
            }
            if i < block_end {
                let part = source.load(s, i, block_end - i);
                sums[1] = F::fold(s, sums[1], only_first::<S, F>(s, part, block_end - i));
                i = block_end;
            }
        }
        let sum = F::fold(s, F::fold(s, sums[0], sums[1]), F::fold(s, sums[2], sums[3]));
        total = F::fold_f64(total, F::lanes(s, sum));
    }
    total
}

/// Folds `rows` rows of `width` elements, `stride` apart, into `acc`.
#[inline(always)]
unsafe fn columns<S: Simd, F: ReduceOp, M: Source>(
    s: S,
    source: M,
    start: usize,
    rows: usize,
    stride: usize,
    width: usize,
    acc: *mut f32,
) {
    // SAFETY: rows and columns are inside the tensor, and `acc` holds `width` floats.
    unsafe {
        let mut row = 0;
        while row < rows {
            let group = (rows - row).min(4);
            let base = start + row * stride;
            let mut c = 0;
            while c < width {
                let n = (width - c).min(S::LANES);
                let at = base + c;
                let first = source.load(s, at, n);
                let rows_sum = if group == 4 {
                    let second = source.load(s, at + stride, n);
                    let third = source.load(s, at + 2 * stride, n);
                    let fourth = source.load(s, at + 3 * stride, n);
                    F::fold(s, F::fold(s, first, second), F::fold(s, third, fourth))
                } else {
                    let mut sum = first;
                    for r in 1..group {
                        sum = F::fold(s, sum, source.load(s, at + r * stride, n));
                    }
                    sum
                };
                s.store_n(acc.add(c), F::fold(s, s.load_n(acc.add(c), n), rows_sum), n);
                c += n;
            }
            row += group;
        }
    }
}

/// Like [`columns`], for contiguous rows narrower than a few registers. Several rows are treated as
/// one wide row, and the wide result is folded at the end.
#[inline(always)]
unsafe fn narrow_columns<S: Simd, F: ReduceOp, M: Source>(
    s: S,
    source: M,
    start: usize,
    rows: usize,
    width: usize,
    acc: *mut f32,
) {
    let pack = 2 * NARROW / width;
    let mut wide = [F::IDENTITY; 2 * NARROW];
    let whole = rows / pack;
    let rest = rows - whole * pack;
    // SAFETY: the wide rows cover `whole * pack` rows, and the last call covers the others.
    unsafe {
        let wide_width = pack * width;
        columns::<S, F, M>(s, source, start, whole, wide_width, wide_width, wide.as_mut_ptr());
        let after = start + whole * wide_width;
        columns::<S, F, M>(s, source, after, 1, 0, rest * width, wide.as_mut_ptr());
        for (i, value) in wide[..wide_width].iter().enumerate() {
            let slot = acc.add(i % width);
            *slot = F::fold_f64(f64::from(*slot), f64::from(*value)) as f32;
        }
    }
}

kernel! {
    /// Computes the results of `units` for part `split` of the reduced axes, and writes them to
    /// `out`.
    unsafe fn fold_units<S, F: ReduceOp, M: Source>(
        s: S, fold: F, source: M, plan: &Reduction, units: Range<usize>, split: usize,
        out: *mut f32,
    ) {
        let _ = fold;
        let part = plan.split_len().div_ceil(plan.splits);
        let cut = (split * part).min(plan.split_len())..((split + 1) * part).min(plan.split_len());
        let blocks = plan.column_blocks();
        for unit in units {
            let (o, block) = if blocks == 1 { (unit, 0) } else { (unit / blocks, unit % blocks) };
            let base = Reduction::offset(&plan.kept, o);
            let outer = plan.reduced_count > 1;
            let steps = if outer { cut.clone() } else { 0..1 };
            match plan.inner_block {
                InnerBlock::Run(len) => {
                    let inner = if outer { 0..len } else { cut.clone() };
                    let mut total = f64::from(F::IDENTITY);
                    for q in steps {
                        let start = base + Reduction::offset(&plan.reduced, q) + inner.start;
                        total = F::fold_f64(total, run::<S, F, M>(s, source, start, inner.len()));
                    }
                    *out.add(o) = total as f32;
                }
                InnerBlock::Columns { rows, columns: width } => {
                    let inner = if outer { 0..rows } else { cut.clone() };
                    let first = block * COLUMNS_MAX;
                    let block_width = COLUMNS_MAX.min(width - first);
                    let acc = out.add(o * width + first);
                    for c in 0..block_width {
                        *acc.add(c) = F::IDENTITY;
                    }
                    for q in steps {
                        let start = base + Reduction::offset(&plan.reduced, q);
                        let start = start + inner.start * width + first;
                        if width <= NARROW && inner.len() > 4 {
                            narrow_columns::<S, F, M>(s, source, start, inner.len(), width, acc);
                        } else {
                            columns::<S, F, M>(
                                s, source, start, inner.len(), width, block_width, acc,
                            );
                        }
                    }
                }
            }
        }
    }
}

kernel! {
    /// Computes `out[i]` from `splits` partial results `len` apart, times `scale`.
    unsafe fn combine<S, F: ReduceOp>(
        s: S, fold: F, partial: *const f32, splits: usize, len: usize, range: Range<usize>,
        scale: f32, out: *mut f32,
    ) {
        let _ = fold;
        let mut i = range.start;
        while i < range.end {
            let n = (range.end - i).min(S::LANES);
            let mut sums = [s.splat(F::IDENTITY); 2];
            for split in 0..splits {
                let x = s.load_part(partial.add(split * len + i), n);
                sums[split % 2] = F::fold(s, sums[split % 2], x);
            }
            let sum = s.mul(F::fold(s, sums[0], sums[1]), s.splat(scale));
            s.store_part(out.add(i), sum, n);
            i += n;
        }
    }
}

pub(crate) fn reduce_source<F: ReduceOp, M: Source>(
    pool: &Pool,
    fold: F,
    plan: &Reduction,
    source: M,
    scale: f32,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    assert_eq!(out.len(), plan.out_len(), "output has the wrong length");
    assert!(scratch.len() >= plan.scratch_len(), "scratch is too short");
    let len = out.len();
    if plan.empty {
        out.fill(F::IDENTITY * scale);
        return;
    }
    let per_task = plan.units_per_task();
    let tasks = plan.units().div_ceil(per_task);
    let target = if plan.splits > 1 { scratch.as_mut_ptr() } else { out.as_mut_ptr() };
    let target = SharedPtr::new_mut(target);
    let out = SharedPtr::new_mut(out.as_mut_ptr());
    pool.run(tasks * plan.splits, |task| {
        let (split, block) = (task / tasks, task % tasks);
        let units = block * per_task..((block + 1) * per_task).min(plan.units());
        // SAFETY: the lengths were checked above, and tasks write different units or different
        // splits.
        unsafe { fold_units(fold, source, plan, units, split, target.at(split * len)) };
    });
    if plan.splits > 1 || scale != 1.0 {
        pool.run_ranges(len, 4096, |range| {
            // SAFETY: ranges are disjoint. With one split, `target` is `out` itself.
            unsafe { combine(fold, target.at(0), plan.splits, len, range, scale, out.at(0)) };
        });
    }
}

/// Reduces `x` as planned. `scratch` holds [`Reduction::scratch_len`] floats.
pub fn reduce(
    pool: &Pool,
    fold: Fold,
    plan: &Reduction,
    x: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) {
    assert_eq!(x.len(), plan.in_len(), "input has the wrong length");
    let source = Plain(SharedPtr::new(x.as_ptr()));
    match fold {
        Fold::Sum => reduce_source(pool, SumOp, plan, source, 1.0, out, scratch),
        Fold::Mean => {
            let scale = 1.0 / plan.reduced_len() as f32;
            reduce_source(pool, SumOp, plan, source, scale, out, scratch);
        }
        Fold::Max => reduce_source(pool, MaxOp, plan, source, 1.0, out, scratch),
        Fold::Min => reduce_source(pool, MinOp, plan, source, 1.0, out, scratch),
        Fold::Prod => reduce_source(pool, ProdOp, plan, source, 1.0, out, scratch),
    }
}

kernel! {
    /// Adds the column sums of a contiguous `[rows, width]` to `acc`.
    ///
    /// # Safety
    /// `x` holds the matrix, and `acc` holds one row.
    pub(crate) unsafe fn add_columns<S>(
        s: S, x: *const f32, rows: usize, width: usize, acc: *mut f32,
    ) {
        columns::<S, SumOp, Plain>(s, Plain(SharedPtr::new(x)), 0, rows, width, width, acc);
    }
}

/// Sets `out` to the sum of the rows of partial results `[parts, out.len()]`, added in order.
pub(crate) fn add_partials(pool: &Pool, partials: &[f32], out: &mut [f32]) {
    let len = out.len();
    let parts = partials.len() / len.max(1);
    let (partials, out) = (SharedPtr::new(partials.as_ptr()), SharedPtr::new_mut(out.as_mut_ptr()));
    pool.run_ranges(len, 4096, |range| {
        // SAFETY: ranges are disjoint, and there are `parts` rows of `len`.
        unsafe { combine(SumOp, partials.at(0), parts, len, range, 1.0, out.at(0)) };
    });
}

kernel! {
    unsafe fn square_sum<S>(s: S, x: SharedPtr<f32>, range: Range<usize>) -> f64 {
        run::<S, SumOp, Product>(s, Product(x, x), range.start, range.len())
    }
}

/// Returns the sum of squares, in f64 across blocks of lanes.
pub fn squared_norm(pool: &Pool, x: &[f32]) -> f64 {
    let grain = (2 * TASK_ELEMENTS).max(x.len().div_ceil(SPLITS_MAX));
    let mut partial = [0.0; SPLITS_MAX];
    let slots = SharedPtr::new_mut(partial.as_mut_ptr());
    let raw = SharedPtr::new(x.as_ptr());
    pool.run_ranges(x.len(), grain, |range| {
        // SAFETY: there are at most SPLITS_MAX ranges, each with its own slot.
        unsafe { *slots.at(range.start / grain) = square_sum(raw, range.clone()) };
    });
    partial.into_iter().sum()
}
