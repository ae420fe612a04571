//! Packed right-hand sides: `[ceil(n / 64)][k][64]`, zero beyond column n.

use crate::micro::{self, Isa, PANEL};
use crate::pool::{Pool, Shareable};

/// Rows of a panel that one task packs.
const ROWS_PER_TASK: usize = 256;

/// A matrix B that was packed by [`pack_b`] or [`pack_b_transposed`].
#[derive(Clone, Copy)]
pub struct PackedB<'a> {
    data: &'a [f32],
    k: usize,
    n: usize,
}

impl<'a> PackedB<'a> {
    /// A view of `data` as k x n, or none if it is too short.
    pub fn new(data: &'a [f32], k: usize, n: usize) -> Option<PackedB<'a>> {
        (data.len() >= packed_b_len(k, n)).then_some(PackedB { data, k, n })
    }

    pub fn k(&self) -> usize {
        self.k
    }

    pub fn n(&self) -> usize {
        self.n
    }

    pub(super) fn ptr(&self) -> *const f32 {
        self.data.as_ptr()
    }
}

/// Floats of a packed k x n matrix.
pub fn packed_b_len(k: usize, n: usize) -> usize {
    n.div_ceil(PANEL) * k * PANEL
}

/// Packs B stored `[k][n]` with rows `ldb` apart.
///
/// # Panics
/// If a slice is too short.
pub fn pack_b(pool: &Pool, b: &[f32], ldb: usize, k: usize, n: usize, packed: &mut [f32]) {
    assert!(k == 0 || n == 0 || ldb >= n && b.len() >= (k - 1) * ldb + n, "pack_b: B is too short");
    pack(pool, b, ldb, false, k, n, packed);
}

/// Packs B stored `[n][k]` with rows `ldb` apart.
///
/// # Panics
/// If a slice is too short.
pub fn pack_b_transposed(
    pool: &Pool,
    b: &[f32],
    ldb: usize,
    k: usize,
    n: usize,
    packed: &mut [f32],
) {
    assert!(
        k == 0 || n == 0 || ldb >= k && b.len() >= (n - 1) * ldb + k,
        "pack_b_transposed: B is too short"
    );
    pack(pool, b, ldb, true, k, n, packed);
}

fn pack(
    pool: &Pool,
    b: &[f32],
    ldb: usize,
    transposed: bool,
    k: usize,
    n: usize,
    packed: &mut [f32],
) {
    assert!(packed.len() >= packed_b_len(k, n), "pack_b: the target is too short");
    let source = Source { data: b.as_ptr(), ldb, transposed, k, n };
    let target = Shareable::new(packed);
    pool.run(source.tasks(), |task| {
        // SAFETY: lengths were checked; each task writes its own rows of its own panel.
        unsafe { source.pack_task(Isa::best(), task, target.ptr()) }
    });
}

/// A plain B to be packed, cut into tasks.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub data: *const f32,
    pub ldb: usize,
    pub transposed: bool,
    pub k: usize,
    pub n: usize,
}

// SAFETY: the pointer is only read, and its owner outlives the call that made this.
unsafe impl Sync for Source {}

impl Source {
    pub fn tasks(&self) -> usize {
        self.n.div_ceil(PANEL) * self.k.div_ceil(ROWS_PER_TASK)
    }

    /// # Safety
    /// The matrix is readable, `packed` has room for all of it, and `isa` is available.
    pub unsafe fn pack_task(&self, isa: Isa, task: usize, packed: *mut f32) {
        let chunks = self.k.div_ceil(ROWS_PER_TASK);
        let first = task % chunks * ROWS_PER_TASK;
        let rows = (self.k - first).min(ROWS_PER_TASK);
        // SAFETY: as promised.
        unsafe { self.pack_rows(isa, task / chunks, first, rows, packed) }
    }

    /// Rows `first..first + rows` of one panel, to their place in the packed whole.
    ///
    /// # Safety
    /// As [`Source::pack_task`].
    unsafe fn pack_rows(
        &self,
        isa: Isa,
        panel: usize,
        first: usize,
        rows: usize,
        packed: *mut f32,
    ) {
        let col = panel * PANEL;
        let cols = (self.n - col).min(PANEL);
        // SAFETY: as promised.
        unsafe {
            let target = packed.add((panel * self.k + first) * PANEL);
            if self.transposed {
                let from = self.data.add(col * self.ldb + first);
                micro::transpose_panel(isa, from, self.ldb, rows, cols, target);
            } else {
                let from = self.data.add(first * self.ldb + col);
                micro::copy_panel(isa, from, self.ldb, rows, cols, target);
            }
        }
    }

    /// One panel alone, to the front of `target`.
    ///
    /// # Safety
    /// As [`Source::pack_task`], with room for one panel.
    pub unsafe fn pack_panel_alone(&self, isa: Isa, panel: usize, target: *mut f32) {
        let shifted = target.wrapping_sub(panel * self.k * PANEL);
        for first in (0..self.k).step_by(ROWS_PER_TASK) {
            let rows = (self.k - first).min(ROWS_PER_TASK);
            // SAFETY: as promised; the shift is undone by the panel's place.
            unsafe { self.pack_rows(isa, panel, first, rows, shifted) }
        }
    }
}
