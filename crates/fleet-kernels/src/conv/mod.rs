//! Convolution of images in two dimensions, f32, NHWC: forward, backward to data and to weights.
//!
//! Images are not unrolled. The register tile of `micro` takes six pixels anywhere in an image as
//! its rows, and runs over the window as a few contiguous segments. Filters are stored packed, as
//! `[group][ceil(c_out / 64)][kh][kw][c_in][64]` (channels of one group, zero beyond the last; see
//! [`Conv2d::filter_len`]). Forward therefore packs nothing, and the weight gradient has the same
//! layout. A depthwise filter is `[kh][kw][c]`.
//!
//! Tasks are split by shape and sums are added in a fixed order. Results are bitwise equal for any
//! number of threads.
//!
//! ```
//! use fleet_kernels::{conv::{Conv2d, Forward}, pool::Pool};
//! let conv = Conv2d::square(1, 5, 5, 2, 3, 3);
//! let (x, oihw) = (vec![1.0; conv.input_len()], vec![0.5; conv.oihw_len()]);
//! let (mut filter, mut y) = (vec![0.0; conv.filter_len()], vec![0.0; conv.output_len()]);
//! conv.pack_filter_oihw(&oihw, &mut filter);
//! let pool = Pool::new(1);
//! let mut scratch = vec![0.0; conv.forward_scratch_len(pool.threads())];
//! conv.forward(&pool, &x, &filter, &mut y, &mut scratch, Forward::default());
//! assert_eq!((conv.out_h(), y[0]), (3, 9.0));
//! ```

mod backward_data;
mod backward_weights;
mod depthwise;
mod filter;
mod stats;
#[cfg(test)]
mod tests;
mod window;

use crate::micro::{Isa, PANEL};
use crate::pool::Pool;
use fleet_base::{Error, Result};
use window::{Axis, Sides, Window};

/// Limit on the rows and on the columns of a filter. Offsets of a window are kept on the stack.
pub const KERNEL_MAX: usize = 64;

/// The shape of a convolution. Images are `[n][h][w][c]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2d {
    /// Number of images.
    pub n: usize,
    /// Height of an image.
    pub h: usize,
    /// Width of an image.
    pub w: usize,
    /// Number of input channels of all groups.
    pub c_in: usize,
    /// Number of output channels of all groups.
    pub c_out: usize,
    /// Height of a filter.
    pub kh: usize,
    /// Width of a filter.
    pub kw: usize,
    /// Of rows and of columns, as are the fields below.
    pub stride: [usize; 2],
    /// Number of zeros before the first and after the last row, and column.
    pub pad: [[usize; 2]; 2],
    /// Distance between neighbouring taps of a filter.
    pub dilation: [usize; 2],
    /// Number of groups of channels, each with its own filters.
    pub groups: usize,
}

/// Operations of the forward pass on its output while it is in registers.
#[derive(Default)]
pub struct Forward<'a> {
    /// One number per output channel.
    pub bias: Option<&'a [f32]>,
    /// Whether to replace negative outputs by 0, after the bias.
    pub relu: bool,
    /// Sums and sums of squares of the output by channel, in parts: see [`Conv2d::stats_len`].
    pub stats: Option<&'a mut [f32]>,
    /// Instruction set. `None` means the best of the machine; tests set others.
    pub isa: Option<Isa>,
}

/// Options for writing a gradient.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backward {
    /// 0 overwrites the gradient, 1 adds to it.
    pub beta: f32,
    /// Instruction set. `None` means the best of the machine; tests set others.
    pub isa: Option<Isa>,
}

impl Conv2d {
    /// Returns a convolution with a k x k window, stride 1, no padding and one group.
    pub fn square(n: usize, h: usize, w: usize, c_in: usize, c_out: usize, k: usize) -> Conv2d {
        Conv2d {
            n,
            h,
            w,
            c_in,
            c_out,
            kh: k,
            kw: k,
            stride: [1, 1],
            pad: [[0, 0]; 2],
            dilation: [1, 1],
            groups: 1,
        }
    }

    /// Returns an error if the shape is not valid.
    pub fn check(&self) -> Result<()> {
        let positive = [
            ("filter height", self.kh),
            ("filter width", self.kw),
            ("input channels", self.c_in),
            ("output channels", self.c_out),
            ("row stride", self.stride[0]),
            ("column stride", self.stride[1]),
            ("row dilation", self.dilation[0]),
            ("column dilation", self.dilation[1]),
            ("groups", self.groups),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(Error::invalid(format!("convolution: {name} is 0")));
        }
        for (name, channels) in [("input", self.c_in), ("output", self.c_out)] {
            if channels % self.groups != 0 {
                return Err(Error::invalid(format!(
                    "convolution: {name} channels are not divisible by the groups"
                ))
                .expected(format!("a multiple of {}", self.groups))
                .got(channels));
            }
        }
        if self.kh > KERNEL_MAX || self.kw > KERNEL_MAX {
            return Err(Error::unsupported("convolution: filter is too large")
                .expected(format!("at most {KERNEL_MAX} x {KERNEL_MAX}"))
                .got(format!("{} x {}", self.kh, self.kw)));
        }
        for (axis, name, size) in [(0, "height", self.h), (1, "width", self.w)] {
            let padded = size.saturating_add(self.pad[axis][0]).saturating_add(self.pad[axis][1]);
            let window = (self.kernel(axis) - 1).saturating_mul(self.dilation[axis]) + 1;
            if padded < window {
                return Err(Error::invalid(format!(
                    "convolution: padded {name} is smaller than the window"
                ))
                .expected(format!("at least {window}"))
                .got(padded));
            }
        }
        let sizes =
            [(self.n, self.h, self.w, self.c_in), (self.n, self.out_h(), self.out_w(), self.c_out)];
        let fits = |(n, h, w, c): (usize, usize, usize, usize)| {
            let len = n.checked_mul(h)?.checked_mul(w)?.checked_mul(c)?;
            (len <= isize::MAX as usize / 64).then_some(len)
        };
        if sizes.into_iter().any(|size| fits(size).is_none()) {
            return Err(Error::invalid("convolution: images are too large"));
        }
        Ok(())
    }

    /// Returns the height of the output.
    pub fn out_h(&self) -> usize {
        self.out(0, self.h)
    }

    /// Returns the width of the output.
    pub fn out_w(&self) -> usize {
        self.out(1, self.w)
    }

    fn out(&self, axis: usize, size: usize) -> usize {
        let window = (self.kernel(axis) - 1) * self.dilation[axis] + 1;
        (size + self.pad[axis][0] + self.pad[axis][1] - window) / self.stride[axis] + 1
    }

    fn kernel(&self, axis: usize) -> usize {
        if axis == 0 { self.kh } else { self.kw }
    }

    /// Returns the number of floats of the input.
    pub fn input_len(&self) -> usize {
        self.n * self.h * self.w * self.c_in
    }

    /// Returns the number of floats of the output.
    pub fn output_len(&self) -> usize {
        self.n * self.out_h() * self.out_w() * self.c_out
    }

    /// Returns the floating-point operations of one direction, including those on padding.
    pub fn flops(&self) -> f64 {
        2.0 * self.output_len() as f64 * (self.kh * self.kw * self.group_in()) as f64
    }

    /// Whether each group has one input and one output channel.
    pub fn is_depthwise(&self) -> bool {
        self.groups == self.c_in && self.groups == self.c_out && self.groups > 1
    }

    fn group_in(&self) -> usize {
        self.c_in / self.groups
    }

    fn group_out(&self) -> usize {
        self.c_out / self.groups
    }

    /// Returns the number of panels of output channels in a group.
    fn panels(&self) -> usize {
        self.group_out().div_ceil(PANEL)
    }

    /// Returns the length of the scratch memory of the forward pass on a pool of `threads`, in
    /// floats.
    pub fn forward_scratch_len(&self, threads: usize) -> usize {
        if self.is_depthwise() {
            return 0;
        }
        window::scratch_len(&self.forward_window(), threads)
    }

    /// Computes `y = act(conv(x, filter) + bias)`.
    ///
    /// # Panics
    /// If the shape does not pass [`Conv2d::check`], or a slice is too short.
    pub fn forward(
        &self,
        pool: &Pool,
        x: &[f32],
        filter: &[f32],
        y: &mut [f32],
        scratch: &mut [f32],
        options: Forward<'_>,
    ) {
        self.hold(x.len(), filter.len(), y.len());
        assert!(
            scratch.len() >= self.forward_scratch_len(pool.threads()),
            "conv: scratch is too short"
        );
        assert!(
            options.bias.is_none_or(|bias| bias.len() >= self.c_out),
            "conv: bias is too short"
        );
        let stats = options.stats.inspect(|stats| {
            assert!(stats.len() >= self.stats_len(), "conv: statistics are too short");
        });
        let isa = options.isa.unwrap_or(Isa::best()).or_best_available();
        if y.is_empty() {
            return;
        }
        if self.is_depthwise() {
            depthwise::forward(self, isa, pool, x, filter, y, options.bias, options.relu);
            if let Some(stats) = stats {
                stats::of_output(self, pool, y, stats);
            }
            return;
        }
        let sides = Sides {
            x: x.as_ptr(),
            filter: filter.as_ptr(),
            y: y.as_mut_ptr(),
            bias: options.bias.map_or(std::ptr::null(), |bias| bias.as_ptr()),
            stats: stats.map_or(std::ptr::null_mut(), |stats| stats.as_mut_ptr()),
        };
        window::run(&self.forward_window(), isa, pool, sides, scratch, 0.0, options.relu);
    }

    fn forward_window(&self) -> Window {
        let axis = |axis: usize, size: usize, count: usize| {
            let mut taps = [0; KERNEL_MAX];
            for (k, tap) in taps.iter_mut().enumerate().take(self.kernel(axis)) {
                *tap = (k * self.dilation[axis]) as isize - self.pad[axis][0] as isize;
            }
            Axis {
                size,
                count,
                step: self.stride[axis],
                out_size: count,
                out_first: 0,
                out_step: 1,
                taps,
                tap_count: self.kernel(axis),
            }
        };
        Window {
            images: self.n,
            rows: axis(0, self.h, self.out_h()),
            cols: axis(1, self.w, self.out_w()),
            groups: self.groups,
            c_in: self.group_in(),
            c_out: self.group_out(),
            filter_start: 0,
            filter_group: self.panels() * self.kh * self.kw * self.group_in() * PANEL,
        }
    }

    fn hold(&self, x_len: usize, filter_len: usize, y_len: usize) {
        if let Err(error) = self.check() {
            panic!("{error}");
        }
        assert!(x_len >= self.input_len(), "conv: input is too short");
        assert!(filter_len >= self.filter_len(), "conv: filter is too short");
        assert!(y_len >= self.output_len(), "conv: output is too short");
    }
}
