//! Statistics of the output that the forward pass collects for batch normalization.
//!
//! Each row task and panel of 64 channels has a slot: 64 sums, then 64 sums of squares, in f32 over
//! at most a few hundred pixels. The slots are added in f64, in order. The result does not depend
//! on the number of threads, and needs no extra pass over the output.

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

    fn stats_slots(&self) -> usize {
        let pixels = self.n * self.out_h() * self.out_w();
        match self.is_depthwise() || pixels == 0 {
            true => pixels.div_ceil(PIXELS),
            false => WindowSplit::new(&self.forward_window()).row_tasks,
        }
    }

    fn stats_panels(&self) -> usize {
        if self.is_depthwise() { self.c_out.div_ceil(PANEL) } else { self.groups * self.panels() }
    }

    /// Computes the mean and the (biased) variance of each output channel from the collected
    /// statistics.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn mean_and_variance(
        &self,
        pool: &Pool,
        stats: &[f32],
        mean: &mut [f32],
        variance: &mut [f32],
    ) {
        assert!(stats.len() >= self.stats_len(), "conv: statistics are too short");
        assert!(
            mean.len() >= self.c_out && variance.len() >= self.c_out,
            "conv: moments are too short"
        );
        let (slots, panels) = (self.stats_slots(), self.stats_panels());
        let count = (self.n * self.out_h() * self.out_w()).max(1) as f64;
        let channels = if self.is_depthwise() { self.c_out } else { self.group_out() };
        let in_group = channels.div_ceil(PANEL);
        let (mean, variance) = (Shareable::new(mean), Shareable::new(variance));
        pool.run(panels, |panel| {
            let mut sums = [0.0f64; 2 * PANEL];
            for slot in 0..slots {
                let at = (slot * panels + panel) * 2 * PANEL;
                for (sum, part) in sums.iter_mut().zip(&stats[at..at + 2 * PANEL]) {
                    *sum += f64::from(*part);
                }
            }
            let (group, column) = (panel / in_group, panel % in_group * PANEL);
            let width = (channels - column).min(PANEL);
            // SAFETY: each task writes only the channels of its own panel, and lengths were
            // checked.
            let (mean, variance) = unsafe {
                let at = group * channels + column;
                (mean.slice(at, width), variance.slice(at, width))
            };
            for j in 0..width {
                let center = sums[j] / count;
                mean[j] = center as f32;
                // Rounding may make the difference negative.
                variance[j] = (sums[PANEL + j] / count - center * center).max(0.0) as f32;
            }
        });
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
