//! The split of one product into blocks.

use super::{Gemm, K_BLOCK};
use crate::micro::{Isa, LINE, PANEL, TILE_ROWS};
use std::ops::Range;

/// Limit on the columns of a block of C.
const N_BLOCK: usize = 512;

/// Limit on the threads that pack the same block of B, each for itself. With more threads, blocks
/// are narrower.
const PACKED_TIMES: usize = 4;

/// Target number of blocks of a large output. It gives fair shares for up to a dozen threads.
const TASKS_WANTED: usize = 24;

/// Minimum number of rows in a block of C.
const M_BLOCK_MIN: usize = 72;

/// Batch size from which each product is a separate task.
const ITEMS_ALONE: usize = 8;

/// Number of rows of op(A) up to which packing B costs more than it saves.
const M_DIRECT: usize = 24;

/// Limits for a stored B that is read in place: 512 rows of at most 512 floats are 1 MB.
const K_IN_PLACE: usize = 512;
const PITCH_IN_PLACE: usize = 512;

/// Limit on the slices of K. Slices are used if an output is too small for [`SLICE_TASKS`] blocks
/// of [`SLICE_COLUMNS`] columns.
const SLICES_MAX: usize = 8;
const SLICE_TASKS: usize = 4;
const SLICE_COLUMNS: usize = 2 * PANEL;

/// Returns the size of a packed block of B, which streams from L2, in floats. Cores with AVX-512
/// have 1 to 2 MB of L2. On a Xeon with 2 MB, blocks of 1.5 MB were slower, and sizes from 512 KB
/// to 1 MB made no difference. Cores with AVX2 alone often have 512 KB. There, on a Zen 3, the
/// smaller block gave 75 to 84 GFLOP/s instead of 67 to 80.
fn b_block(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 3 << 16,
        _ => 1 << 16,
    }
}

/// The split of a product. Terms and slices depend on the shape alone, because they determine how
/// sums are rounded.
#[derive(Clone, Copy)]
pub(super) struct GemmSplit {
    /// Number of rows and columns in a block of C.
    pub m: usize,
    pub n: usize,
    pub m_blocks: usize,
    pub n_blocks: usize,
    /// Number of terms in a block of K.
    pub k: usize,
    pub k_blocks: usize,
    pub slices: usize,
    /// Whether B is read in place.
    pub b_in_place: bool,
    /// Whether each product of a batch is a separate task.
    pub items_alone: bool,
}

impl GemmSplit {
    pub fn new(gemm: &Gemm, threads: usize) -> GemmSplit {
        let items_alone = gemm.batch.len() >= ITEMS_ALONE;
        let tall = !items_alone && is_tall(gemm);
        let k_blocks = gemm.k.div_ceil(if tall { K_IN_PLACE } else { K_BLOCK }).max(1);
        let k = gemm.k.div_ceil(k_blocks);
        let panels = gemm.n.div_ceil(PANEL).max(1);
        let n_blocks = match tall {
            true => 1,
            false => n_blocks(gemm.isa, panels, k, if items_alone { 1 } else { threads }),
        };
        let m_blocks = match tall {
            true => threads.clamp(1, gemm.m / M_BLOCK_MIN),
            false => (TASKS_WANTED / n_blocks).clamp(1, gemm.m.div_ceil(M_BLOCK_MIN).max(1)),
        };
        let tiles = gemm.m.div_ceil(TILE_ROWS).max(1);
        let m_tiles = tiles.div_ceil(m_blocks);
        GemmSplit {
            m: m_tiles * TILE_ROWS,
            n: panels.div_ceil(n_blocks) * PANEL,
            m_blocks: tiles.div_ceil(m_tiles),
            n_blocks: panels.div_ceil(panels.div_ceil(n_blocks)),
            k,
            k_blocks,
            slices: if tall || items_alone { 1 } else { slices(gemm, k_blocks) },
            b_in_place: tall || !gemm.trans_b && gemm.m <= M_DIRECT,
            items_alone,
        }
    }

    pub fn rows(&self, gemm: &Gemm, m_block: usize) -> Range<usize> {
        m_block * self.m..((m_block + 1) * self.m).min(gemm.m)
    }

    pub fn cols(&self, gemm: &Gemm, n_block: usize) -> Range<usize> {
        n_block * self.n..((n_block + 1) * self.n).min(gemm.n)
    }

    /// Returns the terms of a block of K.
    pub fn terms(&self, gemm: &Gemm, k_block: usize) -> Range<usize> {
        k_block * self.k..((k_block + 1) * self.k).min(gemm.k)
    }

    /// Returns the length of B's panels in one thread's scratch, in floats.
    pub fn b_len(&self, gemm: &Gemm) -> usize {
        match self.b_in_place {
            true if gemm.n.is_multiple_of(LINE) => 0,
            true => self.k * PANEL,
            false => self.k * self.n,
        }
    }
}

fn n_blocks(isa: Isa, panels: usize, k: usize, threads: usize) -> usize {
    let most = (b_block(isa) / PANEL / k.max(1)).clamp(2, N_BLOCK / PANEL);
    panels.div_ceil(most).max(threads.div_ceil(PACKED_TIMES)).min(panels)
}

fn slices(gemm: &Gemm, k_blocks: usize) -> usize {
    let blocks = gemm.m.div_ceil(M_BLOCK_MIN) * gemm.n.div_ceil(SLICE_COLUMNS);
    SLICE_TASKS.div_ceil(blocks.max(1)).min(SLICES_MAX).min(k_blocks)
}

/// Whether a product is `A^T B` with a tall B whose rows are short, aligned to cache lines, and
/// spread over the sets of the caches. Rows a multiple of 512 bytes apart share a few sets. A
/// narrow output, such as the weight gradient of a small layer, does not repay the packing of such
/// a B. Tiles of fewer columns read A more often and do gain from a packed B (Zen 3: 78 GFLOP/s
/// instead of 58).
fn is_tall(gemm: &Gemm) -> bool {
    let spread = |pitch: usize| pitch <= PITCH_IN_PLACE && (16..=112).contains(&(pitch % 128));
    gemm.isa == Isa::Avx512
        && gemm.trans_a
        && !gemm.trans_b
        && gemm.m >= 2 * M_BLOCK_MIN
        && gemm.n >= PANEL
        && gemm.k >= K_IN_PLACE
        && gemm.n.is_multiple_of(LINE)
        && gemm.ldb.is_multiple_of(LINE)
        && spread(gemm.lda)
        && spread(gemm.ldb)
}
