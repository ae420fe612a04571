//! The blocked product of bf16 by a hardware unit.
//!
//! Both sides are packed into tiles. Reading rows of A in place is half as fast, because the rows
//! share a few sets of the caches. C is split into blocks by shape, and a block is summed in parts
//! of 32 x 32.

use super::block::{finish_row, mask_row};
use super::{Epilogue, Gemm, RowPart};
use crate::cast::narrow;
use crate::micro::bf16::{self as packing, BLOCK, Block, TERMS, TILE, TILE_LEN};
use crate::micro::unit::{ConfiguredUnit, Unit};
use crate::micro::{LINE, cut_aligned};
use crate::pool::{Pool, Shareable};
use half::bf16;

/// The element type of C.
pub trait GemmOutput: Copy + Send + Sync {
    /// Converts a sum, with rounding if the type is narrower.
    fn of(value: f32) -> Self;
    /// Converts to f32 without loss.
    fn wide(self) -> f32;
}

impl GemmOutput for bf16 {
    #[inline(always)]
    fn of(value: f32) -> bf16 {
        narrow(value)
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

impl GemmOutput for f32 {
    #[inline(always)]
    fn of(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
}

/// Number of terms summed before sums are written to memory. A strip of A is then 32 KB and stays
/// in L1.
const K_BLOCK: usize = 512;
/// Number of rows and columns of a block of C. The packed B for it (over a block of K) takes 256 KB
/// of L2.
const M_BLOCK: usize = 128;
const N_BLOCK: usize = 256;
/// Number of strips (of 16 rows or columns) that one task packs.
const STRIPS_PER_TASK: usize = 4;
/// The split of a product; it depends on the shape alone.
#[derive(Clone, Copy)]
struct Bf16Split {
    /// Number of tiles of terms.
    k_tiles: usize,
    /// Number of strips of 16 rows, and of 16 columns.
    m_strips: usize,
    n_strips: usize,
    m_blocks: usize,
    n_blocks: usize,
}

impl Bf16Split {
    fn new(gemm: &Gemm) -> Bf16Split {
        Bf16Split {
            k_tiles: gemm.k.div_ceil(TERMS),
            m_strips: gemm.m.div_ceil(TILE),
            n_strips: gemm.n.div_ceil(TILE),
            m_blocks: gemm.m.div_ceil(M_BLOCK),
            n_blocks: gemm.n.div_ceil(N_BLOCK),
        }
    }

    /// Returns the length of packed A, in bf16 elements.
    fn a_len(&self) -> usize {
        self.m_strips * self.k_tiles * TILE_LEN
    }

    fn b_len(&self) -> usize {
        self.n_strips * self.k_tiles * TILE_LEN
    }

    /// Returns the length of a worker's sums, in floats: one 32 x 32 block, or all of its block of
    /// C if K is long.
    fn sums_len(&self, gemm: &Gemm) -> usize {
        if gemm.k <= K_BLOCK { BLOCK * BLOCK } else { M_BLOCK * N_BLOCK }
    }
}

/// Returns the length of the scratch memory for [`run`], in floats.
pub(super) fn scratch_len(gemm: &Gemm, threads: usize) -> usize {
    let split = Bf16Split::new(gemm);
    (split.a_len() + split.b_len()).div_ceil(2) + threads * split.sums_len(gemm) + LINE
}

/// Computes C. The caller ensures that the unit is available, that all lengths are valid, and that
/// the product is not a batch.
pub(super) fn run<C: GemmOutput>(
    unit: Unit,
    gemm: &Gemm,
    pool: &Pool,
    a: &[bf16],
    b: &[bf16],
    c: &mut [C],
    scratch: &mut [f32],
    epilogue: &Epilogue<'_>,
) {
    let split = Bf16Split::new(gemm);
    let packed_len = (split.a_len() + split.b_len()).div_ceil(2);
    let (packed, rest) = cut_aligned(scratch, packed_len);
    let sums_len = split.sums_len(gemm);
    let sums = Shareable::new(&mut rest[..pool.threads() * sums_len]);
    let packed: *mut u16 = packed.as_mut_ptr().cast();
    let call = Bf16Call {
        unit,
        gemm,
        split,
        a: a.as_ptr().cast(),
        b: b.as_ptr().cast(),
        packed_a: packed,
        packed_b: packed.wrapping_add(split.a_len()),
        c: Shareable::new(c),
        epilogue,
    };
    let a_tasks = split.m_strips.div_ceil(STRIPS_PER_TASK);
    let b_tasks = split.n_strips.div_ceil(STRIPS_PER_TASK);
    pool.run(a_tasks + b_tasks, |task| match task.checked_sub(a_tasks) {
        None => call.pack_a(task * STRIPS_PER_TASK),
        Some(task) => call.pack_b(task * STRIPS_PER_TASK),
    });
    pool.run_with_worker(split.m_blocks * split.n_blocks, |task, worker| {
        // SAFETY: each worker has its own sums.
        let sums = unsafe { sums.slice(worker * sums_len, sums_len) };
        call.block(task % split.m_blocks, task / split.m_blocks, sums);
    });
}

/// One call: the state that tasks share.
struct Bf16Call<'a, C> {
    unit: Unit,
    gemm: &'a Gemm,
    split: Bf16Split,
    a: *const u16,
    b: *const u16,
    packed_a: *mut u16,
    packed_b: *mut u16,
    c: Shareable<C>,
    epilogue: &'a Epilogue<'a>,
}

// SAFETY: the sides are only read, and each task writes its own strips and its own block of C.
unsafe impl<C: Send + Sync> Sync for Bf16Call<'_, C> {}

impl<C: GemmOutput> Bf16Call<'_, C> {
    fn pack_a(&self, first: usize) {
        let (gemm, split) = (self.gemm, &self.split);
        for strip in first..(first + STRIPS_PER_TASK).min(split.m_strips) {
            let row = strip * TILE;
            let rows = (gemm.m - row).min(TILE);
            for tile in 0..split.k_tiles {
                let term = tile * TERMS;
                let terms = (gemm.k - term).min(TERMS);
                let to = self.packed_a.wrapping_add((strip * split.k_tiles + tile) * TILE_LEN);
                // SAFETY: A holds these rows and terms, and there is space for every tile.
                unsafe {
                    if gemm.trans_a {
                        let from = self.a.add(term * gemm.lda + row);
                        packing::pack_rows_transposed(from, gemm.lda, rows, terms, to);
                    } else {
                        let from = self.a.add(row * gemm.lda + term);
                        packing::pack_rows(from, gemm.lda, rows, terms, to);
                    }
                }
            }
        }
    }

    fn pack_b(&self, first: usize) {
        let (gemm, split) = (self.gemm, &self.split);
        for strip in first..(first + STRIPS_PER_TASK).min(split.n_strips) {
            let col = strip * TILE;
            let cols = (gemm.n - col).min(TILE);
            for tile in 0..split.k_tiles {
                let term = tile * TERMS;
                let terms = (gemm.k - term).min(TERMS);
                let to = self.packed_b.wrapping_add((strip * split.k_tiles + tile) * TILE_LEN);
                // SAFETY: B holds these columns and terms, and there is space for every tile.
                unsafe {
                    if gemm.trans_b {
                        let from = self.b.add(col * gemm.ldb + term);
                        packing::pack_pairs_transposed(from, gemm.ldb, terms, cols, to);
                    } else {
                        let from = self.b.add(term * gemm.ldb + col);
                        packing::pack_pairs(from, gemm.ldb, terms, cols, to);
                    }
                }
            }
        }
    }

    /// Computes one block of C, strips of A times strips of B for each block of K.
    fn block(&self, m_block: usize, n_block: usize, sums: &mut [f32]) {
        // SAFETY: the caller of [`run`] checked that the unit is available.
        let unit = unsafe { ConfiguredUnit::new(self.unit) };
        let (gemm, split) = (self.gemm, &self.split);
        let rows = m_block * M_BLOCK..((m_block + 1) * M_BLOCK).min(gemm.m);
        let cols = n_block * N_BLOCK..((n_block + 1) * N_BLOCK).min(gemm.n);
        let k_blocks = gemm.k.div_ceil(K_BLOCK);
        for k_block in 0..k_blocks {
            let first = k_block * (K_BLOCK / TERMS);
            let steps = (split.k_tiles - first).min(K_BLOCK / TERMS);
            for row in rows.clone().step_by(BLOCK) {
                let a = self.strips(self.packed_a, split.m_strips, row, first);
                for col in cols.clone().step_by(BLOCK) {
                    let at = match k_blocks {
                        1 => 0,
                        _ => ((row - rows.start) * N_BLOCK) + (col - cols.start) * BLOCK,
                    };
                    let sums = &mut sums[at..at + BLOCK * BLOCK];
                    let block = Block {
                        a,
                        b: self.strips(self.packed_b, split.n_strips, col, first),
                        steps,
                        sums: sums.as_mut_ptr(),
                        add: k_block > 0,
                    };
                    // SAFETY: both sides are packed, with zeros beyond their edges.
                    unsafe { unit.run(&block) };
                    if k_block + 1 == k_blocks {
                        let live = [(rows.end - row).min(BLOCK), (cols.end - col).min(BLOCK)];
                        self.finish(row, col, live, sums);
                    }
                }
            }
        }
    }

    /// Returns two packed strips from row or column `at` on, at a tile of terms. If there is no
    /// second strip, the first is returned twice, and its second sums are ignored.
    fn strips(&self, side: *mut u16, count: usize, at: usize, tile: usize) -> [*const u16; 2] {
        let strip = at / TILE;
        let second = if strip + 1 < count { strip + 1 } else { strip };
        [strip, second].map(|strip| {
            side.cast_const().wrapping_add((strip * self.split.k_tiles + tile) * TILE_LEN)
        })
    }

    /// Writes finished sums to C.
    fn finish(&self, row: usize, col: usize, [rows, cols]: [usize; 2], sums: &mut [f32]) {
        let (gemm, epilogue) = (self.gemm, self.epilogue);
        let plain = gemm.alpha == 1.0
            && gemm.beta == 0.0
            && epilogue.mask.is_none()
            && epilogue.finish.is_none();
        for r in 0..rows {
            let sums = &mut sums[r * BLOCK..][..cols];
            // SAFETY: C has this part of a row, and no other task writes it.
            let out = unsafe { self.c.slice((row + r) * gemm.ldc + col, cols) };
            if plain {
                let bias = epilogue.bias.map(|bias| &bias[col..col + cols]);
                // SAFETY: both units imply AVX-512.
                unsafe { store_row(sums, bias, epilogue.relu, out) };
                continue;
            }
            let mut values = [0.0; BLOCK];
            let values = &mut values[..cols];
            if gemm.beta != 0.0 {
                values.iter_mut().zip(&*out).for_each(|(value, out)| *value = out.wide());
            }
            finish_row(gemm, epilogue, col, sums, values);
            if let Some(mask) = epilogue.mask {
                mask_row(&mask[(row + r) * gemm.ldc + col..], values);
            }
            if let Some(hook) = epilogue.finish {
                hook(RowPart { item: 0, row: row + r, col, values });
            }
            out.iter_mut().zip(values).for_each(|(out, value)| *out = C::of(*value));
        }
    }
}

/// Computes `out = act(sums + bias)`, in wide registers.
#[target_feature(enable = "avx512f,avx512bw")]
fn store_row<C: GemmOutput>(sums: &mut [f32], bias: Option<&[f32]>, relu: bool, out: &mut [C]) {
    if let Some(bias) = bias {
        sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
    }
    match relu {
        // Written so that a NaN stays a NaN.
        true => out.iter_mut().zip(sums).for_each(|(out, sum)| {
            *out = C::of(if *sum < 0.0 { 0.0 } else { *sum });
        }),
        false => out.iter_mut().zip(sums).for_each(|(out, sum)| *out = C::of(*sum)),
    }
}
