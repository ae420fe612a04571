//! Depthwise convolution: each channel separately, with vectors along channels.
//!
//! Sketch: loads are the limit, two per multiply-add. A k x k window reads each input k * k times
//! from L1. Rows of the output are tasks. The filter's gradient is summed in slices of the output's
//! rows.

use super::{Conv2d, KERNEL_MAX};
use crate::micro::Isa;
use crate::micro::portable::for_isa;
use crate::pool::{Pool, Shareable};

/// Number of channels that stay in registers while the taps of a pixel run.
const LANES: usize = 64;

/// Limit on the slices in which the filter's gradient is summed.
const SLICES_MAX: usize = 8;

/// The input and weight positions of one output pixel, tap by tap.
struct Taps {
    inputs: [usize; TAPS_MAX],
    weights: [usize; TAPS_MAX],
    count: usize,
}

/// Limit on the taps handled at once. A larger window takes several passes.
const TAPS_MAX: usize = KERNEL_MAX;

/// Computes `out = act(beta * out + bias + sum over taps of input * weight)` for all channels of a
/// pixel.
#[inline(always)]
fn pixel_lanes(
    taps: &Taps,
    x: &[f32],
    filter: &[f32],
    out: &mut [f32],
    start: Start<'_>,
    relu: bool,
    fused: impl Fn(f32, f32, f32) -> f32,
) {
    let channels = out.len();
    let mut first = 0;
    while first < channels {
        let width = (channels - first).min(LANES);
        let mut acc = [0.0f32; LANES];
        match start {
            Start::Zero => {}
            Start::Bias(bias) => acc[..width].copy_from_slice(&bias[first..first + width]),
            Start::Scaled(beta) => {
                for (acc, out) in acc.iter_mut().zip(&out[first..first + width]) {
                    *acc = beta * out;
                }
            }
        }
        for t in 0..taps.count {
            let x = &x[taps.inputs[t] + first..][..width];
            let w = &filter[taps.weights[t] + first..][..width];
            // The full width is a constant here, so that the loop uses whole vectors.
            if let (Ok(x), Ok(w)) = (<&[f32; LANES]>::try_from(x), <&[f32; LANES]>::try_from(w)) {
                for i in 0..LANES {
                    acc[i] = fused(x[i], w[i], acc[i]);
                }
            } else {
                for i in 0..width {
                    acc[i] = fused(x[i], w[i], acc[i]);
                }
            }
        }
        for (out, value) in out[first..first + width].iter_mut().zip(acc) {
            // Written so that a NaN stays a NaN.
            *out = if relu && value < 0.0 { 0.0 } else { value };
        }
        first += width;
    }
}

/// The initial value of the sums of a pixel.
#[derive(Clone, Copy)]
enum Start<'a> {
    Zero,
    Bias(&'a [f32]),
    /// The output's value times this factor.
    Scaled(f32),
}

/// Computes `sums[c] += x[c] * dy[c]`.
#[inline(always)]
fn multiply_into(x: &[f32], dy: &[f32], sums: &mut [f32], fused: impl Fn(f32, f32, f32) -> f32) {
    for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
        *sum = fused(*x, *dy, *sum);
    }
}

for_isa! {
    fn pixel(
        taps: &Taps, x: &[f32], filter: &[f32], out: &mut [f32], start: Start<'_>, relu: bool,
    ),
    pixel_lanes
}
for_isa! { fn multiply(x: &[f32], dy: &[f32], sums: &mut [f32]), multiply_into }

/// Runs a pixel over all taps for which `reach` finds an input, [`TAPS_MAX`] at a time.
fn run_pixel(
    isa: Isa,
    conv: &Conv2d,
    reach: impl Fn(usize, usize) -> Option<usize>,
    x: &[f32],
    filter: &[f32],
    out: &mut [f32],
    start: Start<'_>,
    relu: bool,
) {
    let mut taps = Taps { inputs: [0; TAPS_MAX], weights: [0; TAPS_MAX], count: 0 };
    let mut start = start;
    for kh in 0..conv.kh {
        for kw in 0..conv.kw {
            if let Some(input) = reach(kh, kw) {
                if taps.count == TAPS_MAX {
                    pixel(isa, &taps, x, filter, out, start, false);
                    (taps.count, start) = (0, Start::Scaled(1.0));
                }
                taps.inputs[taps.count] = input;
                taps.weights[taps.count] = (kh * conv.kw + kw) * conv.c_in;
                taps.count += 1;
            }
        }
    }
    pixel(isa, &taps, x, filter, out, start, relu);
}

/// Returns the input position of tap `k` for output position `at`, if there is one.
fn forward_reach(conv: &Conv2d, axis: usize, at: usize, k: usize) -> Option<usize> {
    let size = if axis == 0 { conv.h } else { conv.w };
    let position =
        (at * conv.stride[axis] + k * conv.dilation[axis]).checked_sub(conv.pad[axis][0])?;
    (position < size).then_some(position)
}

/// Returns the output position to which tap `k` maps input position `at`, if there is one.
fn backward_reach(conv: &Conv2d, axis: usize, at: usize, k: usize) -> Option<usize> {
    let size = if axis == 0 { conv.out_h() } else { conv.out_w() };
    let scaled = (at + conv.pad[axis][0]).checked_sub(k * conv.dilation[axis])?;
    let position = scaled / conv.stride[axis];
    (scaled % conv.stride[axis] == 0 && position < size).then_some(position)
}

pub(super) fn forward(
    conv: &Conv2d,
    isa: Isa,
    pool: &Pool,
    x: &[f32],
    filter: &[f32],
    y: &mut [f32],
    bias: Option<&[f32]>,
    relu: bool,
) {
    let (height, width, channels) = (conv.out_h(), conv.out_w(), conv.c_in);
    let start = bias.map_or(Start::Zero, Start::Bias);
    let y = Shareable::new(y);
    pool.run(conv.n * height, |line| {
        let (image, row) = (line / height, line % height);
        for column in 0..width {
            // SAFETY: each task writes only the pixels of its own line.
            let out = unsafe { y.slice((line * width + column) * channels, channels) };
            let reach = |kh: usize, kw: usize| {
                let r = forward_reach(conv, 0, row, kh)?;
                let c = forward_reach(conv, 1, column, kw)?;
                Some(((image * conv.h + r) * conv.w + c) * channels)
            };
            run_pixel(isa, conv, reach, x, filter, out, start, relu);
        }
    });
}

pub(super) fn backward_data(
    conv: &Conv2d,
    isa: Isa,
    pool: &Pool,
    dy: &[f32],
    filter: &[f32],
    dx: &mut [f32],
    beta: f32,
) {
    let (height, width, channels) = (conv.out_h(), conv.out_w(), conv.c_in);
    let start = if beta == 0.0 { Start::Zero } else { Start::Scaled(beta) };
    let dx = Shareable::new(dx);
    pool.run(conv.n * conv.h, |line| {
        let (image, row) = (line / conv.h, line % conv.h);
        for column in 0..conv.w {
            // SAFETY: each task writes only the pixels of its own line.
            let out = unsafe { dx.slice((line * conv.w + column) * channels, channels) };
            let reach = |kh: usize, kw: usize| {
                let r = backward_reach(conv, 0, row, kh)?;
                let c = backward_reach(conv, 1, column, kw)?;
                Some(((image * height + r) * width + c) * channels)
            };
            run_pixel(isa, conv, reach, dy, filter, out, start, false);
        }
    });
}

/// Returns the number of lines of the output (of all images) in a slice, and the number of slices.
fn slices(conv: &Conv2d) -> (usize, usize) {
    let lines = (conv.n * conv.out_h()).max(1);
    let in_slice = lines.div_ceil(SLICES_MAX);
    (in_slice, lines.div_ceil(in_slice))
}

pub(super) fn backward_weights_scratch_len(conv: &Conv2d) -> usize {
    slices(conv).1 * conv.filter_len()
}

pub(super) fn backward_weights(
    conv: &Conv2d,
    isa: Isa,
    pool: &Pool,
    x: &[f32],
    dy: &[f32],
    dfilter: &mut [f32],
    scratch: &mut [f32],
    beta: f32,
) {
    let (height, width, channels) = (conv.out_h(), conv.out_w(), conv.c_in);
    let (in_slice, slices) = slices(conv);
    let len = conv.filter_len();
    let sums = Shareable::new(&mut scratch[..slices * len]);
    pool.run(slices, |slice| {
        // SAFETY: each task has its own sums.
        let sums = unsafe { sums.slice(slice * len, len) };
        sums.fill(0.0);
        for line in slice * in_slice..((slice + 1) * in_slice).min(conv.n * height) {
            let (image, row) = (line / height, line % height);
            for kh in 0..conv.kh {
                let Some(r) = forward_reach(conv, 0, row, kh) else { continue };
                for column in 0..width {
                    let dy = &dy[(line * width + column) * channels..][..channels];
                    for kw in 0..conv.kw {
                        let Some(c) = forward_reach(conv, 1, column, kw) else { continue };
                        let x = &x[((image * conv.h + r) * conv.w + c) * channels..][..channels];
                        let sums = &mut sums[(kh * conv.kw + kw) * channels..][..channels];
                        multiply(isa, x, dy, sums);
                    }
                }
            }
        }
    });
    for (at, value) in dfilter.iter_mut().enumerate() {
        let mut total = if beta == 0.0 { 0.0 } else { beta * *value };
        for slice in 0..slices {
            // SAFETY: all tasks have finished.
            total += unsafe { sums.slice(slice * len + at, 1) }[0];
        }
        *value = total;
    }
}
