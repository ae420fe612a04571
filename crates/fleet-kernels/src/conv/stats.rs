//! Statistics of the output that the forward pass collects for batch normalization.
//!
//! Each row task and panel of 64 channels has a slot: 64 sums, then 64 sums of squares, in f32 over
//! at most a few hundred pixels. The user adds the slots in f64, in order. The result does not
//! depend on the number of threads, and needs no extra pass over the output.

use super::Conv2d;
use super::window::WindowSplit;
use crate::micro::PANEL;
use crate::pool::{Pool, Shareable};

/// Number of pixels per slot if the output is read again (depthwise).
const PIXELS: usize = 256;

impl Conv2d {
    /// Returns the length of [`super::Forward::stats`], in floats.
    pub fn stats_len(&self) -> usize {
        self.stats_slots() * self.stats_panels() * 2 * PANEL
    }

    pub(super) fn stats_slots(&self) -> usize {
        let pixels = self.n * self.out_h() * self.out_w();
        match self.is_depthwise() || pixels == 0 {
            true => pixels.div_ceil(PIXELS),
            false => WindowSplit::new(&self.forward_window()).row_tasks,
        }
    }

    pub(super) fn stats_panels(&self) -> usize {
        if self.is_depthwise() { self.c_out.div_ceil(PANEL) } else { self.groups * self.panels() }
    }
}

/// Collects the statistics from a finished output.
pub(super) fn of_output(conv: &Conv2d, pool: &Pool, y: &[f32], stats: &mut [f32]) {
    let channels = conv.c_out;
    let panels = conv.stats_panels();
    let stats = Shareable::new(stats);
    let pixels = conv.n * conv.out_h() * conv.out_w();
    pool.run(conv.stats_slots(), |slot| {
        // SAFETY: each task has its own slot, and the caller checked the length.
        let part = unsafe { stats.slice(slot * panels * 2 * PANEL, panels * 2 * PANEL) };
        part.fill(0.0);
        for pixel in slot * PIXELS..((slot + 1) * PIXELS).min(pixels) {
            let row = &y[pixel * channels..(pixel + 1) * channels];
            for (values, sums) in row.chunks(PANEL).zip(part.chunks_mut(2 * PANEL)) {
                let (sum, squares) = sums.split_at_mut(PANEL);
                for (j, value) in values.iter().enumerate() {
                    sum[j] += value;
                    squares[j] += value * value;
                }
            }
        }
    });
}
