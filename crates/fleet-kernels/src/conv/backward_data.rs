//! The gradient of the input: windows over the gradient of the output.
//!
//! Input pixels form `stride x stride` classes by their position. Pixels of one class see the same
//! taps, at every stride-th pixel. Each class is a window over dy with step 1. Its weights are the
//! filter with swapped channels and taps in descending order. Stride 1 gives one class with all
//! taps. A class without taps is filled with zeros.

use super::filter::{SelectedTaps, transpose_filter, transposed_len, transposed_panels};
use super::window::{self, Axis, Sides, Window};
use super::{Backward, Conv2d, KERNEL_MAX, depthwise};
use crate::micro::{self, Isa, LINE, PANEL};
use crate::pool::Pool;

impl Conv2d {
    /// Returns the length of the scratch memory of [`Conv2d::backward_data`] on a pool of
    /// `threads`, in floats.
    pub fn backward_data_scratch_len(&self, threads: usize) -> usize {
        if self.is_depthwise() {
            return 0;
        }
        let rows = self.classes().map(|class| window::scratch_len(&class.window, threads)).max();
        LINE + transposed_len(self) + rows.unwrap_or(0)
    }

    /// Computes `dx = beta * dx + gradient` from `dy`, the gradient of the output.
    ///
    /// # Panics
    /// If the shape does not pass [`Conv2d::check`], or a slice is too short.
    pub fn backward_data(
        &self,
        pool: &Pool,
        dy: &[f32],
        filter: &[f32],
        dx: &mut [f32],
        scratch: &mut [f32],
        options: Backward,
    ) {
        self.hold(dx.len(), filter.len(), dy.len());
        let threads = pool.threads();
        assert!(
            scratch.len() >= self.backward_data_scratch_len(threads),
            "conv: scratch is too short"
        );
        if dx.is_empty() {
            return;
        }
        let isa = options.isa.unwrap_or(Isa::best()).or_best_available();
        if self.is_depthwise() {
            depthwise::backward_data(self, isa, pool, dy, filter, dx, options.beta);
            return;
        }
        let (transposed, scratch) = micro::cut_aligned(scratch, transposed_len(self));
        let mut start = 0;
        for class in self.classes() {
            let len = self.groups * class.window.filter_group;
            transpose_filter(
                self,
                isa,
                pool,
                filter,
                &class.selected,
                &mut transposed[start..start + len],
            );
            start += len;
        }
        let mut start = 0;
        for class in self.classes() {
            let window = Window { filter_start: start, ..class.window };
            start += self.groups * window.filter_group;
            let sides = Sides {
                x: dy.as_ptr(),
                filter: transposed.as_ptr(),
                y: dx.as_mut_ptr(),
                bias: std::ptr::null(),
                stats: std::ptr::null_mut(),
            };
            if window.rows.tap_count * window.cols.tap_count == 0 && options.beta == 1.0 {
                continue;
            }
            window::run(&window, isa, pool, sides, scratch, options.beta, false);
        }
    }

    fn classes(&self) -> impl Iterator<Item = Class> {
        let count = |axis: usize, size: usize| self.stride[axis].min(size);
        let (rows, cols) = (count(0, self.h), count(1, self.w));
        (0..rows * cols).map(move |class| self.class(class / cols, class % cols))
    }

    /// Returns the class of input rows `row`, `row + stride`, ..., and of columns likewise.
    fn class(&self, row: usize, col: usize) -> Class {
        let (rows, row_taps) = self.class_axis(0, row, self.h, self.out_h());
        let (cols, col_taps) = self.class_axis(1, col, self.w, self.out_w());
        let (row_count, col_count) = (rows.tap_count, cols.tap_count);
        let taps = row_count * col_count;
        Class {
            window: Window {
                images: self.n,
                rows,
                cols,
                groups: self.groups,
                c_in: self.group_out(),
                c_out: self.group_in(),
                filter_start: 0,
                filter_group: transposed_panels(self) * taps * self.group_out() * PANEL,
            },
            selected: SelectedTaps { rows: row_taps, row_count, cols: col_taps, col_count },
        }
    }

    /// Returns one dimension of a class, and the filter rows (or columns) of its taps.
    fn class_axis(
        &self,
        axis: usize,
        first: usize,
        size: usize,
        out_size: usize,
    ) -> (Axis, [usize; KERNEL_MAX]) {
        let (mut taps, mut selected, mut tap_count) = ([0; KERNEL_MAX], [0; KERNEL_MAX], 0);
        let stride = self.stride[axis] as isize;
        for k in (0..self.kernel(axis)).rev() {
            let reach = (first + self.pad[axis][0]) as isize - (k * self.dilation[axis]) as isize;
            if reach % stride == 0 {
                (taps[tap_count], selected[tap_count]) = (reach / stride, k);
                tap_count += 1;
            }
        }
        let count = size.saturating_sub(first).div_ceil(self.stride[axis]);
        let axis = Axis {
            size: out_size,
            count,
            step: 1,
            out_size: size,
            out_first: first,
            out_step: self.stride[axis],
            taps,
            tap_count,
        };
        (axis, selected)
    }
}

/// Input pixels that see the same taps.
struct Class {
    window: Window,
    selected: SelectedTaps,
}
