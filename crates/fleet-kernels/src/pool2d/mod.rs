//! Max and average pooling over two dimensions: strided, global and adaptive windows, forward and
//! backward.
//!
//! One kernel serves both orders. Channels first is treated as channels last with one channel and
//! batch times channels images, which is correct but not optimized. The fast path is channels last,
//! and works on registers of channels. The forward pass of max pooling stores the position of each
//! maximum in its window (one byte for windows of up to 256 values). In the backward pass, every
//! input pixel gathers from the few windows that cover it. dx is therefore written once, in order,
//! and need not be zeroed first.
//!
//! Memory bandwidth is the limit: forward reads x and writes y (and a quarter of it for positions),
//! backward the reverse.

#[cfg(test)]
mod tests;

use crate::batch_norm::Order;
use crate::pool::{Pool, Shareable};
use crate::simd::Simd;
use fleet_base::{Error, Result};
use std::ops::Range;

/// The parameters of a pooling; sizes are [height, width].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2d {
    images: usize,
    channels: usize,
    input: [usize; 2],
    output: [usize; 2],
    windows: Windows,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Windows {
    Strided {
        size: [usize; 2],
        stride: [usize; 2],
        pads: [[usize; 2]; 2],
    },
    /// Output `o` of `n` covers `floor(o * input / n)..ceil((o + 1) * input / n)`.
    Adaptive,
}

/// The shape of the input tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Number of images.
    pub batch: usize,
    /// Number of channels.
    pub channels: usize,
    /// Number of rows of an image.
    pub height: usize,
    /// Number of columns of an image.
    pub width: usize,
    /// Position of the channels in memory.
    pub order: Order,
}

/// Windows at regular intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strided {
    /// Height and width of a window.
    pub size: [usize; 2],
    /// Vertical and horizontal distance between windows.
    pub stride: [usize; 2],
    /// Padding before and after, for height and width.
    pub pads: [[usize; 2]; 2],
    /// Whether to round the number of windows up, so that the last one may extend past the end.
    pub ceil_mode: bool,
}

/// The number of values by which an average divides, for windows at the border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Only values inside the input.
    Exclusive,
    /// Values in the input and in the padding.
    Inclusive,
}

impl Pool2d {
    /// ```
    /// use fleet_kernels::{batch_norm::Order, pool::Pool, pool2d::*};
    /// let order = Order::ChannelsLast;
    /// let input = Input { batch: 1, channels: 1, height: 2, width: 4, order };
    /// let windows =
    ///     Strided { size: [2, 2], stride: [2, 2], pads: [[0, 0]; 2], ceil_mode: false };
    /// let pooling = Pool2d::strided(input, windows).unwrap();
    /// let mut y = [0.0; 2];
    /// let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    /// pooling.max_forward::<u8>(&Pool::new(1), &x, &mut y, None);
    /// assert_eq!(y, [6.0, 8.0]);
    /// ```
    pub fn strided(input: Input, windows: Strided) -> Result<Pool2d> {
        let Strided { size, stride, pads, ceil_mode } = windows;
        let mut pooling = Pool2d::adaptive(input, [1, 1]);
        for axis in 0..2 {
            let padded = pooling.input[axis] + pads[axis][0] + pads[axis][1];
            if size[axis] == 0 || stride[axis] == 0 || size[axis] > padded {
                return Err(Error::invalid("pooling window exceeds the padded input")
                    .expected(format_args!("a size in 1 to {padded} and a stride of at least 1"))
                    .got(format_args!("size {}, stride {}", size[axis], stride[axis])));
            }
            if pads[axis].iter().any(|&pad| pad >= size[axis]) {
                return Err(Error::invalid("pooling window is entirely in the padding")
                    .expected(format_args!("padding below the window size {}", size[axis]))
                    .got(format_args!("{:?}", pads[axis])));
            }
            let steps = padded - size[axis];
            let rounded =
                if ceil_mode { steps.div_ceil(stride[axis]) } else { steps / stride[axis] };
            pooling.output[axis] = rounded + 1;
        }
        pooling.windows = Windows::Strided { size, stride, pads };
        Ok(pooling)
    }

    /// Returns a pooling with `output` windows that share the input as evenly as possible.
    pub fn adaptive(input: Input, output: [usize; 2]) -> Pool2d {
        let Input { batch, channels, height, width, order } = input;
        let (images, channels) = match order {
            Order::ChannelsLast => (batch, channels),
            Order::ChannelsFirst => (batch * channels, 1),
        };
        let windows = Windows::Adaptive;
        Pool2d { images, channels, input: [height, width], output, windows }
    }

    /// Returns a pooling with one window over the whole input.
    pub fn global(input: Input) -> Pool2d {
        Pool2d::adaptive(input, [1, 1])
    }

    /// Returns the height and width of the result.
    pub fn output(&self) -> [usize; 2] {
        self.output
    }

    /// Returns the number of floats of the input.
    pub fn input_len(&self) -> usize {
        self.images * self.channels * self.input[0] * self.input[1]
    }

    /// Returns the number of floats of the result.
    pub fn output_len(&self) -> usize {
        self.images * self.channels * self.output[0] * self.output[1]
    }

    /// Returns the number of values in the largest window. Up to 256, offsets fit in a byte.
    pub fn window_len_max(&self) -> usize {
        let axis = |axis: usize| match self.windows {
            Windows::Strided { size, .. } => size[axis].min(self.input[axis]),
            // An uneven share may include one more pixel on each side.
            Windows::Adaptive => {
                (self.input[axis].div_ceil(self.output[axis].max(1)) + 1).min(self.input[axis])
            }
        };
        axis(0) * axis(1)
    }

    /// Computes the maxima and the position of each in its window, for the backward pass. Of equal
    /// values, the first is taken. A NaN in a window is its maximum.
    pub fn max_forward<O: Offset>(
        &self,
        pool: &Pool,
        x: &[f32],
        y: &mut [f32],
        offsets: Option<&mut [O]>,
    ) {
        self.check(x.len(), y.len());
        if let Some(offsets) = &offsets {
            assert_eq!(offsets.len(), y.len(), "expected one offset per maximum");
            assert!(self.window_len_max() - 1 <= O::MAX, "offsets of this type are too narrow");
        }
        let y = Shareable::new(y);
        let offsets = offsets.map(Shareable::new);
        self.for_each_row(pool, self.output, |image, row| {
            let offsets_out = offsets.as_ref().map_or(std::ptr::null_mut(), |offsets| {
                offsets.ptr().wrapping_add(self.output_at(image, row, 0))
            });
            // SAFETY: lengths were checked, and each output row has one task.
            unsafe {
                let y = y.ptr().add(self.output_at(image, row, 0));
                max_row::<O>(self, x.as_ptr().add(self.input_at(image, 0, 0)), row, y, offsets_out);
            }
        });
    }

    /// Computes dx from dy and the offsets of the forward pass.
    pub fn max_backward<O: Offset>(&self, pool: &Pool, dy: &[f32], offsets: &[O], dx: &mut [f32]) {
        self.check(dx.len(), dy.len());
        assert_eq!(offsets.len(), dy.len(), "expected one offset per maximum");
        let dx = Shareable::new(dx);
        self.for_each_row(pool, self.input, |image, row| {
            let start = self.output_at(image, 0, 0);
            // SAFETY: lengths were checked, and each input row has one task.
            unsafe {
                let dx = dx.ptr().add(self.input_at(image, row, 0));
                let (dy, offsets) = (dy.as_ptr().add(start), offsets.as_ptr().add(start));
                max_gradient_row::<O>(self, dy, offsets, row, dx);
            }
        });
    }

    /// Writes the average of each window of `x` to `y`. `count` says whether padding counts.
    pub fn average_forward(&self, pool: &Pool, count: Count, x: &[f32], y: &mut [f32]) {
        self.check(x.len(), y.len());
        let y = Shareable::new(y);
        self.for_each_row(pool, self.output, |image, row| {
            // SAFETY: lengths were checked, and each output row has one task.
            unsafe {
                let y = y.ptr().add(self.output_at(image, row, 0));
                average_row(self, count, x.as_ptr().add(self.input_at(image, 0, 0)), row, y);
            }
        });
    }

    /// Writes the gradient of the input of [`Pool2d::average_forward`] to `dx`.
    pub fn average_backward(&self, pool: &Pool, count: Count, dy: &[f32], dx: &mut [f32]) {
        self.check(dx.len(), dy.len());
        let dx = Shareable::new(dx);
        self.for_each_row(pool, self.input, |image, row| {
            // SAFETY: lengths were checked, and each input row has one task.
            unsafe {
                let dx = dx.ptr().add(self.input_at(image, row, 0));
                let dy = dy.as_ptr().add(self.output_at(image, 0, 0));
                average_gradient_row(self, count, dy, row, dx);
            }
        });
    }

    fn check(&self, input: usize, output: usize) {
        assert_eq!(input, self.input_len(), "pooling input has the wrong length");
        assert_eq!(output, self.output_len(), "pooling output has the wrong length");
    }

    /// Runs `body(image, row)` for all rows of `size`, in tasks of about 10 us.
    fn for_each_row(&self, pool: &Pool, size: [usize; 2], body: impl Fn(usize, usize) + Sync) {
        let values = self.input_len().max(self.output_len()) / (self.images * size[0]).max(1);
        let rows = (FLOATS_PER_TASK / values.max(1)).max(1);
        if self.channels * size[1] == 0 {
            return;
        }
        pool.run_ranges(self.images * size[0], rows, |range| {
            for row in range {
                body(row / size[0], row % size[0]);
            }
        });
    }

    #[inline(always)]
    fn input_at(&self, image: usize, row: usize, column: usize) -> usize {
        ((image * self.input[0] + row) * self.input[1] + column) * self.channels
    }

    #[inline(always)]
    fn output_at(&self, image: usize, row: usize, column: usize) -> usize {
        ((image * self.output[0] + row) * self.output[1] + column) * self.channels
    }

    /// Returns the input range that output `index` covers along an axis (empty if all is padding),
    /// and the number of positions including padding.
    #[inline(always)]
    fn window(&self, axis: usize, index: usize) -> (Range<usize>, usize) {
        let len = self.input[axis];
        match self.windows {
            Windows::Strided { size, stride, pads } => {
                let [before, after] = pads[axis];
                // In coordinates of the padded input.
                let begin = index * stride[axis];
                let end = (begin + size[axis]).min(len + before + after);
                let inside = begin.max(before).min(before + len)..end.max(before).min(before + len);
                (inside.start - before..inside.end - before, end.saturating_sub(begin))
            }
            Windows::Adaptive => {
                let windows = self.output[axis];
                let range = index * len / windows..((index + 1) * len).div_ceil(windows);
                (range.clone(), range.len())
            }
        }
    }

    /// Returns the outputs whose windows cover input `index` along an axis.
    #[inline(always)]
    fn covering_windows(&self, axis: usize, index: usize) -> Range<usize> {
        let windows = self.output[axis];
        match self.windows {
            Windows::Strided { size, stride, pads } => {
                let at = index + pads[axis][0];
                let first = (at + 1).saturating_sub(size[axis]).div_ceil(stride[axis]);
                first.min(windows)..(at / stride[axis] + 1).min(windows)
            }
            Windows::Adaptive => {
                let len = self.input[axis];
                index * windows / len..((index + 1) * windows).div_ceil(len)
            }
        }
    }

    #[inline(always)]
    fn share(
        &self,
        count: Count,
        rows: &(Range<usize>, usize),
        columns: &(Range<usize>, usize),
    ) -> f32 {
        let values = match count {
            Count::Exclusive => rows.0.len() * columns.0.len(),
            Count::Inclusive => rows.1 * columns.1,
        };
        1.0 / values.max(1) as f32
    }
}

/// Number of floats in a task, input or output, whichever is larger.
const FLOATS_PER_TASK: usize = 1 << 15;

/// The position of a maximum in its window: row by row, from the first value inside the input.
pub trait Offset: Copy + Default + Send + Sync {
    /// The largest position.
    const MAX: usize;
    /// Converts a position, which must not exceed [`Offset::MAX`].
    fn of(index: u32) -> Self;
    /// Returns the position.
    fn index(self) -> u32;
}

impl Offset for u8 {
    const MAX: usize = u8::MAX as usize;
    #[inline(always)]
    fn of(index: u32) -> u8 {
        index as u8
    }
    #[inline(always)]
    fn index(self) -> u32 {
        u32::from(self)
    }
}

impl Offset for u32 {
    const MAX: usize = u32::MAX as usize;
    #[inline(always)]
    fn of(index: u32) -> u32 {
        index
    }
    #[inline(always)]
    fn index(self) -> u32 {
        self
    }
}

/// Stores lanes as offsets.
///
/// # Safety
/// `n <= LANES` offsets are writable at `p`.
#[inline(always)]
unsafe fn store_offsets<S: Simd, O: Offset>(s: S, p: *mut O, x: S::I, n: usize) {
    let mut lanes = [0.0f32; 16];
    // SAFETY: no register has more than 16 floats.
    unsafe { s.store(lanes.as_mut_ptr(), s.of_bits(x)) };
    let mut narrow = [O::default(); 16];
    for lane in 0..16 {
        narrow[lane] = O::of(lanes[lane].to_bits());
    }
    // SAFETY: promised by the caller.
    unsafe {
        // A copy of a constant length is a register store; any other is a call.
        if n == S::LANES {
            p.copy_from_nonoverlapping(narrow.as_ptr(), S::LANES);
        } else {
            p.copy_from_nonoverlapping(narrow.as_ptr(), n);
        }
    }
}

/// # Safety
/// `n <= LANES` offsets are readable at `p`.
#[inline(always)]
unsafe fn load_offsets<S: Simd, O: Offset>(s: S, p: *const O, n: usize) -> S::I {
    let mut narrow = [O::default(); 16];
    // SAFETY: promised by the caller.
    unsafe {
        // A copy of a constant length is a register load; any other is a call.
        if n == S::LANES {
            narrow.as_mut_ptr().copy_from_nonoverlapping(p, S::LANES);
        } else {
            narrow.as_mut_ptr().copy_from_nonoverlapping(p, n);
        }
    }
    let mut lanes = [0.0f32; 16];
    for lane in 0..16 {
        lanes[lane] = f32::from_bits(narrow[lane].index());
    }
    // SAFETY: no register has more than 16 floats.
    s.bits_of(unsafe { s.load(lanes.as_ptr()) })
}

/// Computes one row of outputs. `x` is the image, and `offsets_out` is null if no offsets are
/// requested.
///
/// # Safety
/// Image, row and offsets have the sizes of the pooling.
unsafe fn max_row<O: Offset>(
    p: &Pool2d,
    x: *const f32,
    row: usize,
    y: *mut f32,
    offsets_out: *mut O,
) {
    crate::kernel! {
        unsafe fn run<S, O: Offset>(
            s: S, p: &Pool2d, x: *const f32, row: usize, y: *mut f32, offsets_out: *mut O,
        ) {
            let c = p.channels;
            let (rows, _) = p.window(0, row);
            for column in 0..p.output[1] {
                let (columns, _) = p.window(1, column);
                let mut channel = 0;
                while channel < c {
                    let n = S::LANES.min(c - channel);
                    let at = column * c + channel;
                    let (mut best, mut offset) = (s.zero(), s.splat_i(0));
                    let mut index = 0;
                    for r in rows.clone() {
                        let line = x.add(r * p.input[1] * c + channel);
                        for w in columns.clone() {
                            let value = s.load_n(line.add(w * c), n);
                            if index == 0 {
                                best = value;
                            } else {
                                // True if value is larger, or is NaN and best is not. A NaN in best
                                // stays.
                                let wins = s.and_m(s.not_m(s.le(value, best)), s.eq(best, best));
                                best = s.select(wins, value, best);
                                offset = s.select_i(wins, s.splat_i(index), offset);
                            }
                            index += 1;
                        }
                    }
                    s.store_n(y.add(at), best, n);
                    if !offsets_out.is_null() {
                        store_offsets(s, offsets_out.add(at), offset, n);
                    }
                    channel += n;
                }
            }
        }
    }
    // SAFETY: promised by the caller.
    unsafe { run(p, x, row, y, offsets_out) }
}

/// Computes one row of dx; `dy` and `offsets` are those of the image.
///
/// # Safety
/// As for [`max_row`].
unsafe fn max_gradient_row<O: Offset>(
    p: &Pool2d,
    dy: *const f32,
    offsets: *const O,
    row: usize,
    dx: *mut f32,
) {
    crate::kernel! {
        unsafe fn run<S, O: Offset>(
            s: S, p: &Pool2d, dy: *const f32, offsets: *const O, row: usize, dx: *mut f32,
        ) {
            let c = p.channels;
            for column in 0..p.input[1] {
                let dx = dx.add(column * c);
                let mut is_first = true;
                for r in p.covering_windows(0, row) {
                    let rows = p.window(0, r).0;
                    for w in p.covering_windows(1, column) {
                        let columns = p.window(1, w).0;
                        let index = (row - rows.start) * columns.len() + column - columns.start;
                        let index = s.splat_i(index as i32);
                        let at = (r * p.output[1] + w) * c;
                        let mut channel = 0;
                        while channel < c {
                            let n = S::LANES.min(c - channel);
                            let hit = s.eq_i(load_offsets(s, offsets.add(at + channel), n), index);
                            let mut sum =
                                s.select(hit, s.load_n(dy.add(at + channel), n), s.zero());
                            if !is_first {
                                sum = s.add(s.load_n(dx.add(channel), n), sum);
                            }
                            s.store_n(dx.add(channel), sum, n);
                            channel += n;
                        }
                        is_first = false;
                    }
                }
                if is_first {
                    dx.write_bytes(0, c);
                }
            }
        }
    }
    // SAFETY: promised by the caller.
    unsafe { run(p, dy, offsets, row, dx) }
}

crate::kernel! {
    /// Computes one row of outputs; `x` is the image.
    unsafe fn average_row<S>(
        s: S, p: &Pool2d, count: Count, x: *const f32, row: usize, y: *mut f32,
    ) {
        let c = p.channels;
        let rows = p.window(0, row);
        for column in 0..p.output[1] {
            let columns = p.window(1, column);
            let share = s.splat(p.share(count, &rows, &columns));
            let mut channel = 0;
            while channel < c {
                let n = S::LANES.min(c - channel);
                let mut sum = s.zero();
                for r in rows.0.clone() {
                    let line = x.add(r * p.input[1] * c + channel);
                    // Each line has its own sum, which reduces the rounding error of large windows.
                    let mut part = s.zero();
                    for w in columns.0.clone() {
                        part = s.add(part, s.load_n(line.add(w * c), n));
                    }
                    sum = s.add(sum, part);
                }
                s.store_n(y.add(column * c + channel), s.mul(sum, share), n);
                channel += n;
            }
        }
    }
}

crate::kernel! {
    /// Computes one row of dx; `dy` is that of the image.
    unsafe fn average_gradient_row<S>(
        s: S, p: &Pool2d, count: Count, dy: *const f32, row: usize, dx: *mut f32,
    ) {
        let c = p.channels;
        for column in 0..p.input[1] {
            let dx = dx.add(column * c);
            let mut is_first = true;
            for r in p.covering_windows(0, row) {
                let rows = p.window(0, r);
                for w in p.covering_windows(1, column) {
                    let share = s.splat(p.share(count, &rows, &p.window(1, w)));
                    let at = (r * p.output[1] + w) * c;
                    let mut channel = 0;
                    while channel < c {
                        let n = S::LANES.min(c - channel);
                        let mut sum = s.mul(s.load_n(dy.add(at + channel), n), share);
                        if !is_first {
                            sum = s.add(s.load_n(dx.add(channel), n), sum);
                        }
                        s.store_n(dx.add(channel), sum, n);
                        channel += n;
                    }
                    is_first = false;
                }
            }
            if is_first {
                dx.write_bytes(0, c);
            }
        }
    }
}
