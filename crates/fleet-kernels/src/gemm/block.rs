//! The blocked product: how C is cut into tasks, and the loops of a task.
//!
//! Sketch: a task owns a block of C. For each block of K it walks the row tiles; a tile of A (at most
//! 18 KB) then stays in L1 while the panels of B (at most [`N_BLOCK`] columns) stream from L2.
//!
//! Packing costs a trip of both sides to L3 and back, which a tall `A^T B` with a narrow output (the
//! weight gradient of a small layer) does not earn back: [`Cut::in_place`] reads both where they lie.

use super::pack::{PackedB, Source, packed_b_len};
use super::{Epilogue, Gemm, K_BLOCK, RowPart};
use crate::micro::{self, Ahead, Finish, Isa, LINE, PANEL, TILE_ROWS, Tile};
use crate::pool::{Pool, Shareable};

/// Floats of B (over all of K) that neighbouring tasks share: half of an L2. Cores with AVX-512 have 1 to 2 MB of
/// it, those with AVX2 alone often 512 KB (measured on a Zen 3: 75 to 84 in place of 67 to 80 GFLOP/s).
fn b_block(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 1 << 18,
        _ => 1 << 16,
    }
}

/// Columns of a block of C at most.
const N_BLOCK: usize = 512;

/// Rows of C whose strips of a transposed A one task packs, for one block of K.
const PACK_ROWS: usize = 16 * TILE_ROWS;

/// Blocks that an output is cut into where it is large enough: fair shares for up to a dozen threads.
const TASKS_WANTED: usize = 24;

/// Rows below which a block of C is not cut further: B is read from L3 once a block.
const M_BLOCK_MIN: usize = 72;

/// Products in a batch from which each one is a task of its own.
const ITEMS_ALONE: usize = 8;

/// Rows of op(A) up to which packing B costs more than it brings.
const M_DIRECT: usize = 24;

/// Rows of stored A and B that are read in place: 512 of at most 512 floats are 1 MB, half of an L2.
const K_IN_PLACE: usize = 512;
const PITCH_IN_PLACE: usize = 512;

/// Slices of K at most, where an output is too small to give [`SLICE_TASKS`] blocks.
const SLICES_MAX: usize = 8;
const SLICE_TASKS: usize = 4;

/// The right-hand side as the caller has it.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    Plain(&'a [f32]),
    Packed(PackedB<'a>),
}

/// How one product is cut; a function of its shape alone.
#[derive(Clone, Copy)]
struct Cut {
    /// Rows and columns of a block of C.
    m: usize,
    n: usize,
    m_blocks: usize,
    n_blocks: usize,
    /// Terms in a block of K.
    k: usize,
    k_blocks: usize,
    slices: usize,
    /// B is read in place.
    direct: bool,
    /// A transposed A, too.
    in_place: bool,
}

impl Cut {
    fn new(gemm: &Gemm, packed: bool, threads: usize) -> Cut {
        if !packed && Cut::in_place(gemm) {
            return Cut::whole_rows(gemm, threads);
        }
        let panels = gemm.n.div_ceil(PANEL).max(1);
        let most = (b_block(gemm.isa) / PANEL / gemm.k.max(1)).clamp(2, N_BLOCK / PANEL);
        let n_blocks = panels.div_ceil(most);
        let k_blocks = gemm.k.div_ceil(K_BLOCK).max(1);
        let tiles = gemm.m.div_ceil(TILE_ROWS).max(1);
        let m_blocks = (TASKS_WANTED / n_blocks).clamp(1, gemm.m.div_ceil(M_BLOCK_MIN).max(1));
        let m_tiles = tiles.div_ceil(m_blocks);
        let m_blocks = tiles.div_ceil(m_tiles);
        let slices = SLICE_TASKS.div_ceil(m_blocks * n_blocks).min(SLICES_MAX).min(k_blocks);
        let alone = gemm.batch.len() >= ITEMS_ALONE;
        Cut {
            m: m_tiles * TILE_ROWS,
            n: panels.div_ceil(n_blocks) * PANEL,
            m_blocks,
            n_blocks,
            k: gemm.k.div_ceil(k_blocks),
            k_blocks,
            slices: if alone { 1 } else { slices },
            direct: !packed && !gemm.trans_b && gemm.m <= M_DIRECT,
            in_place: false,
        }
    }

    /// Whether neither side is packed: `A^T B` whose stored rows are short, lie on whole lines (B) and
    /// do not meet in a few sets of the caches, as rows a multiple of 512 bytes apart do. Tiles of fewer columns read
    /// A more often, and win by packing it (Zen 3: 78 in place of 58 GFLOP/s).
    fn in_place(gemm: &Gemm) -> bool {
        let spread = |pitch: usize| pitch <= PITCH_IN_PLACE && (16..=112).contains(&(pitch % 128));
        gemm.isa == Isa::Avx512
            && gemm.trans_a
            && !gemm.trans_b
            && gemm.m >= 2 * M_BLOCK_MIN
            && gemm.n >= PANEL
            && gemm.k >= K_IN_PLACE
            && !items_alone(gemm)
            && gemm.n.is_multiple_of(LINE)
            && gemm.ldb.is_multiple_of(LINE)
            && spread(gemm.lda)
            && spread(gemm.ldb)
    }

    /// Whole rows of C a task, one task a thread: each task reads all of B, once a block of K.
    fn whole_rows(gemm: &Gemm, threads: usize) -> Cut {
        let tiles = gemm.m.div_ceil(TILE_ROWS);
        let m_blocks = threads.clamp(1, gemm.m / M_BLOCK_MIN);
        let m_tiles = tiles.div_ceil(m_blocks);
        let k_blocks = gemm.k.div_ceil(K_IN_PLACE);
        Cut {
            m: m_tiles * TILE_ROWS,
            n: gemm.n.next_multiple_of(PANEL),
            m_blocks: tiles.div_ceil(m_tiles),
            n_blocks: 1,
            k: gemm.k.div_ceil(k_blocks),
            k_blocks,
            slices: 1,
            direct: true,
            in_place: true,
        }
    }

    fn tasks(&self) -> usize {
        self.m_blocks * self.n_blocks * self.slices
    }
}

fn items_alone(gemm: &Gemm) -> bool {
    gemm.batch.len() >= ITEMS_ALONE
}

fn round_up(len: usize) -> usize {
    len.div_ceil(LINE) * LINE
}

/// Parts of the scratch, in floats: the packed B, the strips of a transposed A, the slices' sums.
fn parts(gemm: &Gemm, cut: &Cut, packed: bool) -> [usize; 3] {
    let b = match (packed, cut.direct) {
        (true, _) => 0,
        (_, true) if cut.in_place => 0,
        (_, true) => gemm.k * PANEL,
        _ => packed_b_len(gemm.k, gemm.n),
    };
    let strips = if gemm.trans_a && !cut.in_place { micro::strips_len(gemm.k, gemm.m) } else { 0 };
    let sums = if cut.slices > 1 { cut.slices * gemm.m * gemm.n } else { 0 };
    [round_up(b), round_up(strips), round_up(sums)]
}

pub(super) fn scratch_len(gemm: &Gemm, threads: usize, packed: bool) -> usize {
    let [b, strips, sums] = parts(gemm, &Cut::new(gemm, packed, threads), packed);
    LINE + match items_alone(gemm) && !shares_b(gemm) {
        true => threads * (b + strips),
        false => b + if items_alone(gemm) { threads * strips } else { strips } + sums,
    }
}

/// Whether all products of a batch have the same B, which is then packed once.
fn shares_b(gemm: &Gemm) -> bool {
    (0..2).all(|level| gemm.batch.b[level] == 0 || gemm.batch.count[level] == 1)
}

pub(super) fn run(
    gemm: &Gemm,
    pool: &Pool,
    a: &[f32],
    b: Right<'_>,
    c: &mut [f32],
    scratch: &mut [f32],
    epilogue: &Epilogue<'_>,
) {
    let packed = matches!(b, Right::Packed(_));
    let cut = Cut::new(gemm, packed, pool.threads());
    let [b_len, strips_len, sums_len] = parts(gemm, &cut, packed);
    let (scratch, _) =
        micro::cut_aligned(scratch, scratch_len(gemm, pool.threads(), packed) - LINE);
    let call = Call { gemm, cut, a, b, c: Shareable::new(c), epilogue };
    let items = gemm.batch.len();
    if items_alone(gemm) {
        let shared = packed || shares_b(gemm);
        let (shared_b, own) = scratch.split_at_mut(if shared { b_len } else { 0 });
        let panels = shared.then(|| call.pack_b(Some(pool), 0, shared_b));
        let own_len = strips_len + if shared { 0 } else { b_len };
        let own = Shareable::new(own);
        pool.run_with_worker(items, |item, worker| {
            // SAFETY: each worker has a part of its own, counted by `scratch_len`.
            let own = unsafe { own.slice(worker * own_len, own_len) };
            let (strips, own_b) = own.split_at_mut(strips_len);
            let panels = panels.unwrap_or_else(|| call.pack_b(None, item, own_b));
            call.pack_strips(None, item, strips);
            for task in 0..cut.tasks() {
                call.block(item, task, panels, strips.as_ptr(), None);
            }
        });
        return;
    }
    let (packed_b, scratch) = scratch.split_at_mut(b_len);
    let (strips, sums) = scratch.split_at_mut(strips_len);
    for item in 0..items {
        let panels = call.pack_b(Some(pool), item, packed_b);
        call.pack_strips(Some(pool), item, strips);
        let strips = Strips(strips.as_ptr());
        let sums = (cut.slices > 1).then(|| Shareable::new(&mut sums[..sums_len]));
        pool.run(cut.tasks(), |task| call.block(item, task, panels, strips.ptr(), sums));
        if let Some(sums) = sums {
            pool.run_ranges(gemm.m, ROWS_PER_SUM, |rows| call.add_slices(item, rows, sums));
        }
    }
}

/// The strips of A, which tasks read.
#[derive(Clone, Copy)]
struct Strips(*const f32);

// SAFETY: the pointer is only read while tasks run.
unsafe impl Sync for Strips {}

impl Strips {
    fn ptr(&self) -> *const f32 {
        self.0
    }
}

/// Rows of C that one task of the last step of a sliced product adds up.
const ROWS_PER_SUM: usize = 16;

/// One call of the product: everything that tasks share.
struct Call<'a> {
    gemm: &'a Gemm,
    cut: Cut,
    a: &'a [f32],
    b: Right<'a>,
    c: Shareable<f32>,
    epilogue: &'a Epilogue<'a>,
}

/// Where the panels of B lie.
#[derive(Clone, Copy)]
struct Panels {
    /// Packed panels; with `direct`, the last panel alone.
    packed: *const f32,
    /// B as stored `[k][n]` and its leading dimension, when its panels are read in place.
    direct: Option<(*const f32, usize)>,
    k: usize,
    n: usize,
}

// SAFETY: the pointers are only read while tasks run.
unsafe impl Sync for Panels {}

impl Panels {
    /// The panel's row `k` and the distance between its rows.
    fn row(&self, panel: usize, k: usize) -> (*const f32, usize) {
        match self.direct {
            Some((b, ldb)) if (panel + 1) * PANEL <= self.n || self.n.is_multiple_of(16) => {
                (b.wrapping_add(k * ldb + panel * PANEL), ldb)
            }
            Some(_) => (self.packed.wrapping_add(k * PANEL), PANEL),
            None => (self.packed.wrapping_add((panel * self.k + k) * PANEL), PANEL),
        }
    }
}

impl Call<'_> {
    /// Brings the B of one product into panels: by the pool, or by this thread alone.
    fn pack_b(&self, pool: Option<&Pool>, item: usize, target: &mut [f32]) -> Panels {
        let gemm = self.gemm;
        let panels = Panels { packed: target.as_ptr(), direct: None, k: gemm.k, n: gemm.n };
        let data = match self.b {
            Right::Packed(b) => return Panels { packed: b.ptr(), ..panels },
            Right::Plain(b) => b.as_ptr().wrapping_add(gemm.batch.offset(gemm.batch.b, item)),
        };
        let (k, n) = (gemm.k, gemm.n);
        let source = Source { data, ldb: gemm.ldb, transposed: gemm.trans_b, k, n };
        if self.cut.direct {
            if !n.is_multiple_of(16) {
                // SAFETY: the caller of `run` was held to the lengths of B and of the scratch.
                unsafe { source.pack_panel_alone(gemm.isa, n / PANEL, target.as_mut_ptr()) };
            }
            return Panels { direct: Some((data, gemm.ldb)), ..panels };
        }
        let target = Shareable::new(target);
        // SAFETY: as above; each task packs rows of its own.
        let pack = |task: usize| unsafe { source.pack_task(gemm.isa, task, target.ptr()) };
        match pool {
            Some(pool) => pool.run(source.tasks(), pack),
            None => (0..source.tasks()).for_each(pack),
        }
        panels
    }

    /// Brings a transposed A into strips of six columns, block of K by block of K.
    fn pack_strips(&self, pool: Option<&Pool>, item: usize, target: &mut [f32]) {
        let (gemm, cut) = (self.gemm, &self.cut);
        if !gemm.trans_a || cut.in_place {
            return;
        }
        let a = &self.a[gemm.batch.offset(gemm.batch.a, item)..];
        let target = Shareable::new(target);
        let parts = gemm.m.div_ceil(PACK_ROWS);
        let pack = |task: usize| {
            let (k_block, row) = (task / parts, task % parts * PACK_ROWS);
            let first = k_block * cut.k;
            let terms = (gemm.k - first).min(cut.k);
            // SAFETY: A holds these rows and columns, and the strips have room for all.
            unsafe {
                let from = a.as_ptr().add(first * gemm.lda + row);
                let to = target.ptr().add(self.strip(first, terms, row));
                let rows = (gemm.m - row).min(PACK_ROWS);
                micro::copy_strips(gemm.isa, from, gemm.lda, terms, rows, to);
            }
        };
        let tasks = if gemm.k == 0 { 0 } else { cut.k_blocks * parts };
        match pool {
            Some(pool) => pool.run(tasks, pack),
            None => (0..tasks).for_each(pack),
        }
    }

    /// Where the strip that begins at a row lies, for `terms` terms from `first` on.
    fn strip(&self, first: usize, terms: usize, row: usize) -> usize {
        first * self.gemm.m.next_multiple_of(TILE_ROWS) + row * terms
    }

    /// One block of C (of one slice of K): all its blocks of K, row tiles and panels.
    fn block(
        &self,
        item: usize,
        task: usize,
        panels: Panels,
        strips: *const f32,
        sums: Option<Shareable<f32>>,
    ) {
        let (gemm, cut) = (self.gemm, &self.cut);
        let (slice, block) =
            (task / (cut.m_blocks * cut.n_blocks), task % (cut.m_blocks * cut.n_blocks));
        let rows = block % cut.m_blocks * cut.m;
        let rows = rows..(rows + cut.m).min(gemm.m);
        let cols = block / cut.m_blocks * cut.n;
        let cols = cols..(cols + cut.n).min(gemm.n);
        let (c, ldc) = match sums {
            Some(sums) => (sums.ptr().wrapping_add(slice * gemm.m * gemm.n), gemm.n),
            None => (self.c.ptr().wrapping_add(gemm.batch.offset(gemm.batch.c, item)), gemm.ldc),
        };
        let a = self.a.as_ptr().wrapping_add(gemm.batch.offset(gemm.batch.a, item));
        let k_blocks = slice * cut.k_blocks / cut.slices..(slice + 1) * cut.k_blocks / cut.slices;
        let zero = 0isize;
        for k_block in k_blocks.clone() {
            let first = k_block * cut.k;
            let terms = (gemm.k - first).min(cut.k);
            let last = sums.is_none() && k_block + 1 == k_blocks.end;
            let finish = Finish {
                alpha: if sums.is_some() { 1.0 } else { gemm.alpha },
                beta: match k_block == k_blocks.start {
                    true if sums.is_some() => 0.0,
                    true => gemm.beta,
                    false => 1.0,
                },
                relu: last && self.epilogue.relu,
                ..Finish::STORE
            };
            let bias = if last { self.epilogue.bias } else { None };
            for row in rows.clone().step_by(TILE_ROWS) {
                let tile_rows = (rows.end - row).min(TILE_ROWS);
                let (a_rows, a_step) = if cut.in_place {
                    let at = a.wrapping_add(first * gemm.lda + row);
                    (std::array::from_fn(|r| at.wrapping_add(r)), gemm.lda)
                } else if gemm.trans_a {
                    let strip = strips.wrapping_add(self.strip(first, terms, row));
                    (std::array::from_fn(|r| strip.wrapping_add(r)), TILE_ROWS)
                } else {
                    let at = a.wrapping_add(row * gemm.lda + first);
                    (std::array::from_fn(|r| at.wrapping_add(r * gemm.lda)), 1)
                };
                for col in cols.clone().step_by(PANEL) {
                    let (b, b_step) = panels.row(col / PANEL, first);
                    let c_tile = c.wrapping_add(row * ldc + col);
                    let tile = Tile {
                        a: a_rows,
                        a_step,
                        segments: &zero,
                        segment_count: 1,
                        segment_len: terms,
                        b,
                        b_step,
                        c: std::array::from_fn(|r| c_tile.wrapping_add(r * ldc)),
                        rows: tile_rows,
                        cols: (cols.end - col).min(PANEL),
                        finish: Finish {
                            bias: bias.map_or(std::ptr::null(), |bias| bias[col..].as_ptr()),
                            ..finish
                        },
                        ahead: match cut.in_place {
                            true => self.next_lines(a, b, row, rows.end, first, col),
                            false => {
                                let panel = (col - cols.start) / PANEL;
                                self.next_rows(a, row, rows.end, first, terms, panel)
                            }
                        },
                    };
                    let mask = self.mask_rows(item, row, col).filter(|_| last);
                    if let Some(mask) = &mask {
                        // From L3 or beyond: asked for now, it is there when the sums are.
                        micro::prefetch_rows(&mask[..tile_rows], tile.cols);
                    }
                    // SAFETY: the matrices hold the rows and columns of this tile, which no other
                    // task writes.
                    unsafe { micro::run(gemm.isa, &tile) };
                    if let Some(mask) = &mask {
                        // SAFETY: as above; the mask is laid out as C is.
                        unsafe { micro::clear_where_not_positive(gemm.isa, &tile, mask) };
                    }
                    if let (true, Some(hook)) = (last, self.epilogue.finish) {
                        call_hook(hook, item, row, col, &tile);
                    }
                }
            }
        }
    }

    /// The rows of the mask over a tile.
    fn mask_rows(&self, item: usize, row: usize, col: usize) -> Option<[*const f32; TILE_ROWS]> {
        let gemm = self.gemm;
        let at = gemm.batch.offset(gemm.batch.c, item) + row * gemm.ldc + col;
        let mask = self.epilogue.mask?.as_ptr().wrapping_add(at);
        Some(std::array::from_fn(|r| mask.wrapping_add(r * gemm.ldc)))
    }

    /// The rows of A after a tile's, one of them for each panel: they come from L3 or beyond.
    fn next_rows(
        &self,
        a: *const f32,
        row: usize,
        end: usize,
        first: usize,
        terms: usize,
        panel: usize,
    ) -> Ahead {
        let (gemm, next) = (self.gemm, row + TILE_ROWS + panel);
        match gemm.trans_a || panel >= TILE_ROWS || next >= end {
            true => Ahead::nothing(a),
            false => Ahead::part(a.wrapping_add(next * gemm.lda + first), terms, 0, 1, terms),
        }
    }

    /// Of sides read in place: at the first panel the line of A beyond this tile's, at the others
    /// (during the last row tiles of a block of K) the lines of the panel in the next block.
    fn next_lines(
        &self,
        a: *const f32,
        b: *const f32,
        row: usize,
        end: usize,
        first: usize,
        col: usize,
    ) -> Ahead {
        /// A panel has as many lines in a row.
        const LINES: usize = PANEL / LINE;
        let gemm = self.gemm;
        if col == 0 {
            return Ahead { at: a.wrapping_add(first * gemm.lda + row + LINE), step: gemm.lda };
        }
        let tiles_left = (end - row).div_ceil(TILE_ROWS) - 1;
        match tiles_left < LINES && first + self.cut.k < gemm.k {
            true => Ahead {
                at: b.wrapping_add(self.cut.k * gemm.ldb + tiles_left * LINE),
                step: gemm.ldb,
            },
            false => Ahead::nothing(a),
        }
    }

    /// Adds the slices of some rows in order, and finishes these rows.
    fn add_slices(&self, item: usize, rows: std::ops::Range<usize>, sums: Shareable<f32>) {
        let (gemm, n) = (self.gemm, self.gemm.n);
        let c = gemm.batch.offset(gemm.batch.c, item);
        for row in rows {
            // SAFETY: C has this row, and no other task writes it.
            let out = unsafe { self.c.slice(c + row * gemm.ldc, n) };
            let part = |slice: usize| {
                // SAFETY: the sums of this row were written before and are only read now.
                unsafe { &*sums.slice((slice * gemm.m + row) * n, n) }
            };
            let total = part(0);
            for col in (0..n).step_by(PANEL) {
                let width = (n - col).min(PANEL);
                let mut values = [0.0f32; PANEL];
                values[..width].copy_from_slice(&total[col..col + width]);
                for slice in 1..self.cut.slices {
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

/// `out = act(alpha * sums + beta * out + bias)` for columns from `col` on.
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
        // Written so that a NaN stays one.
        *out = if epilogue.relu && value < 0.0 { 0.0 } else { value };
    }
}

/// Clears what the mask says, after [`finish_row`].
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
        // SAFETY: the tile was just written by this task, and no other task touches it.
        let values = unsafe { std::slice::from_raw_parts_mut(tile.c[r], tile.cols) };
        hook(RowPart { item, row: row + r, col, values });
    }
}
