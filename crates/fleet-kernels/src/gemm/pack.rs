//! Blocks of a right-hand side brought into panels: `[panel][term][64]`, zero beyond column n.

use crate::micro::{self, Isa, PANEL};
use std::ops::Range;

/// Terms that are brought to all panels before the next ones: rows of a block are read whole. Where
/// B is transposed, its rows lie the other way: a panel is brought whole.
const TERMS_AT_ONCE: usize = 16;

/// A matrix B as it is stored.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub data: *const f32,
    pub ldb: usize,
    pub transposed: bool,
    pub n: usize,
}

impl Source {
    /// Some panels, over some terms.
    ///
    /// # Safety
    /// The matrix is readable, `target` has room for all, and `isa` is available.
    pub unsafe fn pack(
        &self,
        isa: Isa,
        panels: Range<usize>,
        terms: Range<usize>,
        target: *mut f32,
    ) {
        let at_once = if self.transposed { terms.len().max(1) } else { TERMS_AT_ONCE };
        for first in terms.clone().step_by(at_once) {
            let rows = (terms.end - first).min(at_once);
            for panel in panels.clone() {
                let place = (panel - panels.start) * terms.len() + (first - terms.start);
                // SAFETY: as promised.
                unsafe { self.pack_rows(isa, panel, first, rows, target.add(place * PANEL)) }
            }
        }
    }

    /// # Safety
    /// As [`Source::pack`].
    unsafe fn pack_rows(
        &self,
        isa: Isa,
        panel: usize,
        first: usize,
        rows: usize,
        target: *mut f32,
    ) {
        let col = panel * PANEL;
        let cols = (self.n - col).min(PANEL);
        // SAFETY: as promised.
        unsafe {
            if self.transposed {
                let from = self.data.add(col * self.ldb + first);
                micro::transpose_panel(isa, from, self.ldb, rows, cols, target);
            } else {
                let from = self.data.add(first * self.ldb + col);
                micro::copy_panel(isa, from, self.ldb, rows, cols, target);
            }
        }
    }
}
