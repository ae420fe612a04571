//! Packed filters: conversion from and to `[c_out][c_in / groups][kh][kw]`, and reversal for the
//! backward pass.

use super::{Conv2d, KERNEL_MAX};
use crate::micro::{self, Isa, PANEL};
use crate::pool::{Pool, Shareable};

impl Conv2d {
    /// Returns the length of a packed filter, in floats.
    pub fn filter_len(&self) -> usize {
        if self.is_depthwise() {
            return self.oihw_len();
        }
        self.groups * self.panels() * PANEL * self.kh * self.kw * self.group_in()
    }

    /// Returns the length of a plain filter, in floats.
    pub fn oihw_len(&self) -> usize {
        self.c_out * self.group_in() * self.kh * self.kw
    }

    /// Returns the packed position of the weight of output channel `o`, input channel `i` of its
    /// group, and tap `t`.
    fn packed_at(&self, o: usize, i: usize, t: usize) -> usize {
        if self.is_depthwise() {
            return t * self.c_out + o;
        }
        let (group, column) = (o / self.group_out(), o % self.group_out());
        let panel = group * self.panels() + column / PANEL;
        ((panel * self.kh * self.kw + t) * self.group_in() + i) * PANEL + column % PANEL
    }

    /// Packs a filter `[c_out][c_in / groups][kh][kw]`.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn pack_filter_oihw(&self, oihw: &[f32], packed: &mut [f32]) {
        assert!(oihw.len() >= self.oihw_len(), "conv: filter is too short");
        let packed = &mut packed[..self.filter_len()];
        packed.fill(0.0);
        self.for_weights(|plain, at| packed[at] = oihw[plain]);
    }

    /// Unpacks a filter; the inverse of [`Conv2d::pack_filter_oihw`].
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn unpack_filter_oihw(&self, packed: &[f32], oihw: &mut [f32]) {
        assert!(packed.len() >= self.filter_len(), "conv: packed filter is too short");
        self.for_weights(|plain, at| oihw[plain] = packed[at]);
    }

    /// Calls `body` with the positions of each weight in a plain and in a packed filter.
    fn for_weights(&self, mut body: impl FnMut(usize, usize)) {
        let (c_in, taps) = (self.group_in(), self.kh * self.kw);
        if self.is_depthwise() {
            let all = (0..self.c_out).flat_map(|o| (0..taps).map(move |t| (o, t)));
            return all.for_each(|(o, t)| body(o * taps + t, self.packed_at(o, 0, t)));
        }
        for panel in 0..self.groups * self.panels() {
            let (group, column) = (panel / self.panels(), panel % self.panels() * PANEL);
            let first = group * self.group_out() + column;
            let columns = (self.group_out() - column).min(PANEL);
            let base = self.packed_at(first, 0, 0);
            for at in (0..c_in * taps).step_by(BLOCK) {
                let places: [usize; BLOCK] = std::array::from_fn(|k| {
                    base + ((at + k) % taps * c_in + (at + k) / taps) * PANEL
                });
                let places = &places[..(c_in * taps - at).min(BLOCK)];
                for o in 0..columns {
                    let plain = (first + o) * c_in * taps + at;
                    for (k, place) in places.iter().enumerate() {
                        body(plain + k, place + o);
                    }
                }
            }
        }
    }
}

/// Number of weights of an output channel that are moved together: one cache line of plain weights.
/// With all channels of a panel, they are 4 KiB of packed weights, which stay in the cache until
/// they are complete.
const BLOCK: usize = 16;

/// Rows and columns of a filter, in the order that a window of [`Conv2d::backward_data`] needs.
pub(super) struct SelectedTaps {
    pub rows: [usize; KERNEL_MAX],
    pub row_count: usize,
    pub cols: [usize; KERNEL_MAX],
    pub col_count: usize,
}

impl SelectedTaps {
    fn taps(&self) -> usize {
        self.row_count * self.col_count
    }
}

/// Returns the number of floats that [`transpose_filter`] writes for all taps of a filter.
pub(super) fn transposed_len(conv: &Conv2d) -> usize {
    conv.groups * transposed_panels(conv) * PANEL * conv.kh * conv.kw * conv.group_out()
}

/// Returns the number of panels of input channels in a group.
pub(super) fn transposed_panels(conv: &Conv2d) -> usize {
    conv.group_in().div_ceil(PANEL)
}

/// Swaps the channels of a packed filter and selects taps:
/// `[group][ceil(c_in / 64)][row][column][c_out][64]`.
pub(super) fn transpose_filter(
    conv: &Conv2d,
    isa: Isa,
    pool: &Pool,
    filter: &[f32],
    selected: &SelectedTaps,
    transposed: &mut [f32],
) {
    let (c_in, c_out) = (conv.group_in(), conv.group_out());
    let (taps, panels) = (selected.taps(), transposed_panels(conv));
    assert!(
        transposed.len() >= conv.groups * panels * taps * c_out * PANEL,
        "conv: scratch is too short"
    );
    let target = Shareable::new(transposed);
    pool.run(conv.groups * panels * taps, |task| {
        let (rest, tap) = (task / taps, task % taps);
        let (group, panel) = (rest / panels, rest % panels);
        let kh = selected.rows[tap / selected.col_count];
        let kw = selected.cols[tap % selected.col_count];
        let channels = (c_in - panel * PANEL).min(PANEL);
        for out in (0..c_out).step_by(PANEL) {
            let rows = (c_out - out).min(PANEL);
            let at = conv.packed_at(group * c_out + out, panel * PANEL, kh * conv.kw + kw);
            let to = (task * c_out + out) * PANEL;
            // SAFETY: the lengths of the filter and of the target were checked, and each task
            // writes its own tap.
            unsafe {
                let (from, to) = (filter.as_ptr().add(at), target.ptr().add(to));
                micro::transpose_panel(isa, from, PANEL, rows, channels, to);
            }
        }
    });
}
