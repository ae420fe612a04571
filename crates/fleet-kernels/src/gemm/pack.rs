//! Packs blocks of a right-hand side into panels: `[panel][term][64]`, zero beyond column n.

use crate::micro::{self, Isa, PANEL};
use std::ops::Range;

/// Number of terms packed into all panels before the next terms, so that rows of a block are read
/// whole. A transposed B has its rows along the terms, so a whole panel is packed at once.
const TERMS_AT_ONCE: usize = 16;

/// A matrix B as stored.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub data: *const f32,
    pub ldb: usize,
    pub transposed: bool,
    pub n: usize,
}

impl Source {
    /// Packs some panels, over some terms.
    ///
    /// # Safety
    /// The matrix is readable, `target` has space for all panels, and `isa` is available.
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
                // SAFETY: promised by the caller.
                unsafe { self.pack_rows(isa, panel, first, rows, target.add(place * PANEL)) }
            }
        }
    }

    /// # Safety
    /// As for [`Source::pack`].
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
        // SAFETY: promised by the caller.
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
