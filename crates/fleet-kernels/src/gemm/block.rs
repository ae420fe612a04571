//! The blocked product: the loops of a task.
//!
//! Sketch: C is split into blocks, and K into blocks of terms. For one block of K, a thread packs
//! its columns of B into its own panels, which fit in L2. Then it iterates over the row tiles of C.
//! A tile of A (at most 18 KB) stays in L1 while the panels stream from L2. Threads keep to their
//! columns while rows are left for them ([`Queues`]), so B is read from memory about once.
//!
//! A transposed A is packed into strips of six columns just before use, a few rows of C at a time.
//! The next part of A is prefetched while sums run.

use super::pack::Source;
use super::queues::Queues;
use super::split::GemmSplit;
use super::{Epilogue, Gemm, RowPart};
use crate::micro::{self, Finish, LINE, PANEL, Prefetch, TILE_ROWS, Tile};
use crate::pool::{Pool, Shareable};
use std::ops::Range;

/// Number of rows of C for which a transposed A is packed at once: three cache lines of A.
const STRIP_ROWS: usize = 8 * TILE_ROWS;

/// Number of rows of C that one task sums in the last step of a sliced product.
const ROWS_PER_SUM: usize = 16;

fn round_up(len: usize) -> usize {
    len.div_ceil(LINE) * LINE
}

/// Returns the lengths of each thread's own scratch, in floats: a packed block of B, and strips of
/// A.
fn own_lens(gemm: &Gemm, split: &GemmSplit) -> [usize; 2] {
    let strips = if gemm.trans_a { micro::strips_len(split.k, STRIP_ROWS) } else { 0 };
    [round_up(split.b_len(gemm)), round_up(strips)]
}

/// Returns the length of the sums of all slices, in floats.
fn sums_len(gemm: &Gemm, split: &GemmSplit) -> usize {
    if split.slices > 1 { split.slices * gemm.m * gemm.n } else { 0 }
}

pub(super) fn scratch_len(gemm: &Gemm, threads: usize) -> usize {
    let split = GemmSplit::new(gemm, threads);
    let [b, strips] = own_lens(gemm, &split);
    LINE + threads * (b + strips) + sums_len(gemm, &split)
}

pub(super) fn run(
    gemm: &Gemm,
    pool: &Pool,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    scratch: &mut [f32],
    epilogue: &Epilogue<'_>,
) {
    let split = GemmSplit::new(gemm, pool.threads());
    let [b_len, strips_len] = own_lens(gemm, &split);
    let all = scratch_len(gemm, pool.threads()) - LINE;
    let (scratch, _) = micro::cut_aligned(scratch, all);
    let (own, sums) = scratch.split_at_mut(pool.threads() * (b_len + strips_len));
    let own = Shareable::new(own);
    let sums = (split.slices > 1).then(|| Shareable::new(sums));
    let call = GemmCall { gemm, split, a, b, c: Shareable::new(c), sums, epilogue };
    let own = move |worker: usize| {
        let b = own.ptr().wrapping_add(worker * (b_len + strips_len));
        ThreadScratch { b, strips: b.wrapping_add(b_len), held: None }
    };
    let items = gemm.batch.len();
    match split.items_alone {
        true => call.run_tasks(pool, &Queues::new(1, items), own, |(_, item), own| {
            call.product_on_one_thread(item, own);
        }),
        false => (0..items).for_each(|item| call.product(pool, item, own)),
    }
}

/// Scratch memory of one thread.
struct ThreadScratch {
    b: *mut f32,
    strips: *mut f32,
    /// Source of the panels in `b`: offset of the product's B, block of columns, block of K.
    held: Option<[usize; 3]>,
}

/// One block of one product.
struct BlockIndex {
    item: usize,
    slice: usize,
    k_block: usize,
    n_block: usize,
    m_block: usize,
}

/// One call of the product: the state that tasks share.
struct GemmCall<'a> {
    gemm: &'a Gemm,
    split: GemmSplit,
    a: &'a [f32],
    b: &'a [f32],
    c: Shareable<f32>,
    /// For a sliced product: the sums from which C is computed.
    sums: Option<Shareable<f32>>,
    epilogue: &'a Epilogue<'a>,
}

/// The location of the panels of a block.
#[derive(Clone, Copy)]
struct Panels {
    /// Packed panels from `first` on, with `terms` rows each.
    packed: *const f32,
    first: usize,
    terms: usize,
    /// For a B that is read in place: its first term, its leading dimension, and its number of
    /// panels.
    in_place: Option<(*const f32, usize, usize)>,
}

impl Panels {
    /// Returns the first row of a panel and the distance between its rows.
    fn of(&self, panel: usize) -> (*const f32, usize) {
        match self.in_place {
            Some((b, ldb, panels)) if panel < panels => (b.wrapping_add(panel * PANEL), ldb),
            _ => (self.packed.wrapping_add((panel - self.first) * self.terms * PANEL), PANEL),
        }
    }
}

impl GemmCall<'_> {
    /// Distributes tasks to the threads of the pool.
    fn run_tasks(
        &self,
        pool: &Pool,
        tasks: &Queues,
        own: impl Fn(usize) -> ThreadScratch + Sync,
        body: impl Fn((usize, usize), &mut ThreadScratch) + Sync,
    ) {
        let workers = pool.threads().min(tasks.tasks());
        pool.run_with_worker(workers, |_, worker| {
            let mut own = own(worker);
            tasks.take_tasks(worker, workers).for_each(|task| body(task, &mut own));
        });
    }

    /// Computes one product with all threads.
    fn product(
        &self,
        pool: &Pool,
        item: usize,
        own: impl Fn(usize) -> ThreadScratch + Sync + Copy,
    ) {
        let GemmSplit { n_blocks, m_blocks, k_blocks, slices, .. } = self.split;
        if let Some(sums) = self.sums {
            let tasks = Queues::new(slices * n_blocks, m_blocks);
            self.run_tasks(pool, &tasks, own, |(group, m_block), own| {
                self.slice(item, group / n_blocks, group % n_blocks, m_block, own);
            });
            pool.run_ranges(self.gemm.m, ROWS_PER_SUM, |rows| self.add_slices(item, rows, sums));
            return;
        }
        for k_block in 0..k_blocks {
            let tasks = Queues::new(n_blocks, m_blocks);
            self.run_tasks(pool, &tasks, own, |(n_block, m_block), own| {
                self.block(&BlockIndex { item, slice: 0, k_block, n_block, m_block }, own);
            });
        }
    }

    /// Computes one product of a batch with one thread.
    fn product_on_one_thread(&self, item: usize, own: &mut ThreadScratch) {
        let GemmSplit { n_blocks, k_blocks, m_blocks, .. } = self.split;
        for n_block in 0..n_blocks {
            for (k_block, m_block) in (0..k_blocks).flat_map(|k| (0..m_blocks).map(move |m| (k, m)))
            {
                self.block(&BlockIndex { item, slice: 0, k_block, n_block, m_block }, own);
            }
        }
    }

    /// Computes the blocks of K of one slice, for one block of C.
    fn slice(
        &self,
        item: usize,
        slice: usize,
        n_block: usize,
        m_block: usize,
        own: &mut ThreadScratch,
    ) {
        let split = &self.split;
        let k_blocks =
            slice * split.k_blocks / split.slices..(slice + 1) * split.k_blocks / split.slices;
        for k_block in k_blocks {
            self.block(&BlockIndex { item, slice, k_block, n_block, m_block }, own);
        }
    }

    /// Packs the columns of a block into panels, unless this thread already has them.
    fn panels(&self, index: &BlockIndex, own: &mut ThreadScratch) -> Panels {
        let (gemm, split) = (self.gemm, &self.split);
        let at = gemm.batch.offset(gemm.batch.b, index.item);
        let cols = split.cols(gemm, index.n_block);
        let terms = split.terms(gemm, index.k_block);
        let data = self.b.as_ptr().wrapping_add(at);
        let all = cols.start / PANEL..cols.end.div_ceil(PANEL);
        // In place, a panel may read past the last column only if that is still within the next
        // row.
        let packed = match split.b_in_place {
            true if gemm.n.is_multiple_of(LINE) => all.end..all.end,
            true => (gemm.n / PANEL).max(all.start)..all.end,
            false => all,
        };
        let held = [at, index.n_block, index.k_block];
        if own.held != Some(held) && !packed.is_empty() {
            let source = Source { data, ldb: gemm.ldb, transposed: gemm.trans_b, n: gemm.n };
            // SAFETY: `run` checked the lengths of B and of the scratch memory.
            unsafe { source.pack(gemm.isa, packed.clone(), terms.clone(), own.b) };
            own.held = Some(held);
        }
        let first_term = data.wrapping_add(terms.start * gemm.ldb);
        Panels {
            packed: own.b,
            first: packed.start,
            terms: terms.len(),
            in_place: split.b_in_place.then_some((first_term, gemm.ldb, packed.start)),
        }
    }

    /// Computes one block of C over one block of K, panel by panel for each row tile.
    fn block(&self, index: &BlockIndex, own: &mut ThreadScratch) {
        let (gemm, split) = (self.gemm, &self.split);
        let panels = self.panels(index, own);
        let rows = split.rows(gemm, index.m_block);
        let step = Step::new(self, index, panels);
        if !gemm.trans_a {
            for row in rows.clone().step_by(TILE_ROWS) {
                let at = step.a.wrapping_add(row * gemm.lda);
                let a_rows = std::array::from_fn(|r| at.wrapping_add(r * gemm.lda));
                step.row_tile(row..(row + TILE_ROWS).min(rows.end), a_rows, 1);
            }
            return;
        }
        for first in rows.clone().step_by(STRIP_ROWS) {
            let some = first..(first + STRIP_ROWS).min(rows.end);
            // SAFETY: A holds these terms and columns, and the strips have space for them.
            unsafe {
                let from = step.a.add(first);
                let terms = step.terms.len();
                micro::copy_strips(gemm.isa, from, gemm.lda, terms, some.len(), own.strips);
            }
            for row in some.clone().step_by(TILE_ROWS) {
                let strip = own.strips.wrapping_add((row - first) * step.terms.len());
                let a_rows = std::array::from_fn(|r| strip.wrapping_add(r).cast_const());
                step.row_tile(row..(row + TILE_ROWS).min(some.end), a_rows, TILE_ROWS);
            }
        }
    }

    /// Returns the rows of the mask over a tile.
    fn mask_rows(&self, item: usize, row: usize, col: usize) -> Option<[*const f32; TILE_ROWS]> {
        let gemm = self.gemm;
        let at = gemm.batch.offset(gemm.batch.c, item) + row * gemm.ldc + col;
        let mask = self.epilogue.mask?.as_ptr().wrapping_add(at);
        Some(std::array::from_fn(|r| mask.wrapping_add(r * gemm.ldc)))
    }

    /// Adds the slices of some rows in order, and finishes these rows.
    fn add_slices(&self, item: usize, rows: std::ops::Range<usize>, sums: Shareable<f32>) {
        let (gemm, n) = (self.gemm, self.gemm.n);
        let c = gemm.batch.offset(gemm.batch.c, item);
        for row in rows {
            // SAFETY: C has this row, and no other task writes it.
            let out = unsafe { self.c.slice(c + row * gemm.ldc, n) };
            let part = |slice: usize| {
                // SAFETY: the sums of this row were written earlier and are only read now.
                unsafe { &*sums.slice((slice * gemm.m + row) * n, n) }
            };
            let total = part(0);
            for col in (0..n).step_by(PANEL) {
                let width = (n - col).min(PANEL);
                let mut values = [0.0f32; PANEL];
                values[..width].copy_from_slice(&total[col..col + width]);
                for slice in 1..self.split.slices {
                    for (value, more) in values.iter_mut().zip(&part(slice)[col..col + width]) {
                        *value += more;
                    }
                }
                let out = &mut out[col..col + width];
                finish_row(gemm, self.epilogue, col, &values[..width], out);
                if let Some(mask) = self.epilogue.mask {
                    mask_row(&mask[c + row * gemm.ldc + col..], out);
                }
                if let Some(hook) = self.epilogue.finish {
                    hook(RowPart { item, row, col, values: out });
                }
            }
        }
    }
}

/// One block of C over one block of K.
struct Step<'a> {
    call: &'a GemmCall<'a>,
    item: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    terms: Range<usize>,
    /// Address in A of the first of these terms.
    a: *const f32,
    panels: Panels,
    /// C, or the sums of a slice.
    c: *mut f32,
    ldc: usize,
    finish: Finish,
    /// Whether these are the last sums, after which the epilogue runs.
    last: bool,
}

impl<'a> Step<'a> {
    fn new(call: &'a GemmCall<'a>, index: &BlockIndex, panels: Panels) -> Step<'a> {
        let (gemm, split) = (call.gemm, &call.split);
        let item = index.item;
        let terms = split.terms(gemm, index.k_block);
        let first = index.slice * split.k_blocks / split.slices == index.k_block;
        let last = call.sums.is_none() && index.k_block + 1 == split.k_blocks;
        let (c, ldc) = match call.sums {
            Some(sums) => (sums.ptr().wrapping_add(index.slice * gemm.m * gemm.n), gemm.n),
            None => (call.c.ptr().wrapping_add(gemm.batch.offset(gemm.batch.c, item)), gemm.ldc),
        };
        let finish = Finish {
            alpha: if call.sums.is_some() { 1.0 } else { gemm.alpha },
            beta: match first {
                true if call.sums.is_some() => 0.0,
                true => gemm.beta,
                false => 1.0,
            },
            relu: last && call.epilogue.relu,
            ..Finish::STORE
        };
        let to_term = if gemm.trans_a { terms.start * gemm.lda } else { terms.start };
        let at = gemm.batch.offset(gemm.batch.a, item) + to_term;
        Step {
            call,
            item,
            rows: split.rows(gemm, index.m_block),
            cols: split.cols(gemm, index.n_block),
            terms,
            a: call.a.as_ptr().wrapping_add(at),
            panels,
            c,
            ldc,
            finish,
            last,
        }
    }

    /// Computes at most six rows of C, one tile per panel.
    fn row_tile(&self, rows: Range<usize>, a: [*const f32; TILE_ROWS], a_step: usize) {
        let Step { call, last, ldc, .. } = *self;
        let zero = 0isize;
        for col in self.cols.clone().step_by(PANEL) {
            let (b, b_step) = self.panels.of(col / PANEL);
            let c = self.c.wrapping_add(rows.start * ldc + col);
            let bias = if last { call.epilogue.bias } else { None };
            let tile = Tile {
                a,
                a_step,
                segments: &zero,
                segment_count: 1,
                segment_len: self.terms.len(),
                b,
                b_step,
                c: std::array::from_fn(|r| c.wrapping_add(r * ldc)),
                rows: rows.len(),
                cols: (self.cols.end - col).min(PANEL),
                finish: Finish {
                    bias: bias.map_or(std::ptr::null(), |bias| bias[col..].as_ptr()),
                    ..self.finish
                },
                prefetch: self.prefetch(rows.start, (col - self.cols.start) / PANEL),
            };
            let mask = call.mask_rows(self.item, rows.start, col).filter(|_| last);
            if let Some(mask) = &mask {
                // The mask is in L3 or memory. Prefetched now, it arrives by the time the sums are
                // done.
                micro::prefetch_rows(&mask[..rows.len()], tile.cols);
            }
            // SAFETY: the matrices hold the rows and columns of this tile, and no other task writes
            // them.
            unsafe { micro::tile(call.gemm.isa, &tile) };
            if let Some(mask) = &mask {
                // SAFETY: as above; the mask has the layout of C.
                unsafe { micro::clear_where_not_positive(call.gemm.isa, &tile, mask) };
            }
            if let (true, Some(hook)) = (last, call.epilogue.finish) {
                call_hook(hook, self.item, rows.start, col, &tile);
            }
        }
    }

    /// Returns the memory to prefetch while the tile of a panel runs: the next lines of A.
    fn prefetch(&self, row: usize, panel: usize) -> Prefetch {
        let gemm = self.call.gemm;
        if !gemm.trans_a {
            let (next, terms) = (row + TILE_ROWS + panel, self.terms.len());
            return match panel < TILE_ROWS && next < self.rows.end {
                true => Prefetch::part(self.a.wrapping_add(next * gemm.lda), terms, 0, 1, terms),
                false => Prefetch::none(self.a),
            };
        }
        // One line of the next strips per tile.
        let done = (row - self.rows.start) % STRIP_ROWS;
        let strips = row - done + STRIP_ROWS;
        let line = done / TILE_ROWS * self.cols.len().div_ceil(PANEL) + panel;
        match line <= STRIP_ROWS / LINE && strips + line * LINE < gemm.m {
            true => Prefetch { at: self.a.wrapping_add(strips + line * LINE), step: gemm.lda },
            false => Prefetch::none(self.a),
        }
    }
}

/// Computes `out = act(alpha * sums + beta * out + bias)` for columns from `col` on.
pub(super) fn finish_row(
    gemm: &Gemm,
    epilogue: &Epilogue<'_>,
    col: usize,
    sums: &[f32],
    out: &mut [f32],
) {
    for (j, (out, sum)) in out.iter_mut().zip(sums).enumerate() {
        let mut value = gemm.alpha * sum;
        if gemm.beta != 0.0 {
            value += gemm.beta * *out;
        }
        if let Some(bias) = epilogue.bias {
            value += bias[col + j];
        }
        // Written so that a NaN stays a NaN.
        *out = if epilogue.relu && value < 0.0 { 0.0 } else { value };
    }
}

/// Sets outputs to 0 where the mask is not positive. Runs after [`finish_row`].
pub(super) fn mask_row(mask: &[f32], out: &mut [f32]) {
    for (out, mask) in out.iter_mut().zip(mask) {
        *out = if *mask > 0.0 { *out } else { 0.0 };
    }
}

fn call_hook(
    hook: &(dyn Fn(RowPart<'_>) + Sync),
    item: usize,
    row: usize,
    col: usize,
    tile: &Tile,
) {
    for r in 0..tile.rows {
        // SAFETY: this task just wrote the tile, and no other task accesses it.
        let values = unsafe { std::slice::from_raw_parts_mut(tile.c[r], tile.cols) };
        hook(RowPart { item, row: row + r, col, values });
    }
}
