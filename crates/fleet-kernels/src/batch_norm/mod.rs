//! Batch normalization fused with ReLU and the residual addition, forward and backward.
//!
//! Passes over memory determine the cost. Forward in training takes one pass for the statistics,
//! unless a convolution provides partial sums. A second pass reads x (and the residual) and writes
//! y. Backward takes one pass for the two sums of each channel, and one for dx. Without a residual,
//! the ReLU mask is recomputed from x, so that y is not read. With a residual, the first pass
//! overwrites dy with the masked gradient, which is the gradient of the residual, and the second
//! pass reads that. dx may be written in place of x or dy, which saves reading the cache lines of
//! the target.
//!
//! Sums are computed in f32 over at most 512 rows, relative to a shift, and merged in f64 in a
//! fixed order. Results therefore do not depend on the number of threads.
//!
//! On the fast path, rows are pixels ([rows, channels], channels last). Channels first is correct
//! but not optimized. Measured by `examples/norm_bench.rs`: 156 ms for all of ResNet-50, batch 16,
//! forward and backward, with 2 threads; 30 to 45 GB/s of the bytes counted here.

mod backward;
mod passes;
#[cfg(test)]
mod tests;

pub use backward::{Backward, InputGradient, Mask, Masked, backward, backward_across};

use self::passes::*;
use crate::pool::Pool;

/// The order of dimensions; the last one is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// [batch, height, width, channels].
    ChannelsLast,
    /// [batch, channels, height, width].
    ChannelsFirst,
}

/// The shape of a tensor that is normalized over `batch` and `plane`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Number of images.
    pub batch: usize,
    /// Height times width.
    pub plane: usize,
    /// Number of channels.
    pub channels: usize,
    /// Position of the channels in memory.
    pub order: Order,
}

impl Dims {
    /// Returns the number of values of one channel.
    pub fn rows(&self) -> usize {
        self.batch * self.plane
    }

    /// Returns the number of floats in the tensor.
    pub fn len(&self) -> usize {
        self.rows() * self.channels
    }

    /// Returns whether the tensor has no floats.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The activation after the normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// No activation.
    None,
    /// `max(x, 0)`.
    Relu,
}

/// An input tensor, which may be overwritten (`Reuse`) once it is no longer needed.
#[derive(Debug)]
pub enum Operand<'a> {
    /// Stays as it is.
    Read(&'a [f32]),
    /// May be overwritten.
    Reuse(&'a mut [f32]),
}

impl Operand<'_> {
    fn view(&mut self, len: usize, name: &str) -> (*const f32, *mut f32) {
        let (found, read, write) = match self {
            Operand::Read(slice) => (slice.len(), slice.as_ptr(), std::ptr::null_mut()),
            Operand::Reuse(slice) => {
                let write = slice.as_mut_ptr();
                (slice.len(), write.cast_const(), write)
            }
        };
        assert_eq!(found, len, "batch norm: {name} has the wrong length");
        (read, write)
    }
}

/// The destination of the normalized tensor.
#[derive(Debug)]
pub enum Output<'a> {
    /// In memory of its own.
    New(&'a mut [f32]),
    /// In place of x, which must be [`Operand::Reuse`].
    OverX,
}

/// The parameters of a batch norm in training.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// `running = running * momentum + batch * (1 - momentum)`, for mean and biased variance.
    pub momentum: f32,
    /// Added to the variance before the root is taken.
    pub epsilon: f32,
}

impl Default for Training {
    fn default() -> Self {
        Training { momentum: 0.9, epsilon: 1e-5 }
    }
}

/// Sums over blocks of rows from the producer of x: `[blocks][2][channels]`, sum and sum of squares
/// of `x - shift`.
#[derive(Clone, Copy, Debug)]
pub struct Partials<'a> {
    /// The sums of all blocks.
    pub sums: &'a [f32],
    /// One shift per channel. `None` means zero.
    pub shift: Option<&'a [f32]>,
}

/// Returns the length of the scratch memory for any function of this module, in floats.
pub fn scratch_len(dims: &Dims) -> usize {
    let blocks = match dims.order {
        Order::ChannelsLast => dims.rows().div_ceil(rows_per_block(dims.channels)),
        Order::ChannelsFirst => dims.batch,
    };
    (2 * blocks + COEFFICIENTS) * dims.channels
}

/// Computes the mean and biased variance of every channel.
pub fn statistics(
    pool: &Pool,
    dims: &Dims,
    x: &[f32],
    scratch: &mut [f32],
    mean: &mut [f32],
    variance: &mut [f32],
) {
    assert_eq!(x.len(), dims.len(), "batch norm: x has the wrong length");
    let c = dims.channels;
    if dims.is_empty() {
        mean.fill(0.0);
        variance.fill(0.0);
        return;
    }
    let (shift, scratch) = scratch.split_at_mut(c);
    // The first value of a channel is within a few standard deviations of its mean.
    for (channel, shift) in shift.iter_mut().enumerate() {
        *shift = match dims.order {
            Order::ChannelsLast => x[channel],
            Order::ChannelsFirst => x[channel * dims.plane],
        };
    }
    let pass = Sums { x: x.as_ptr(), shift: shift.as_ptr(), ..Sums::NONE };
    let sums = block_sums(pool, dims, &pass, scratch);
    statistics_of_partials(dims.rows(), Partials { sums, shift: Some(shift) }, mean, variance);
}

/// Computes the mean and biased variance of `rows` values per channel from partial sums.
pub fn statistics_of_partials(
    rows: usize,
    partials: Partials<'_>,
    mean: &mut [f32],
    variance: &mut [f32],
) {
    let c = mean.len();
    let count = rows.max(1) as f64;
    fold(partials.sums, c, |channel, sum, squares| {
        let shift = partials.shift.map_or(0.0, |shift| f64::from(shift[channel]));
        let offset = sum / count;
        mean[channel] = (shift + offset) as f32;
        variance[channel] = (squares / count - offset * offset).max(0.0) as f32;
    });
}

/// Moves the running statistics toward those of the batch.
pub fn update_running(momentum: f32, batch: &[f32], running: &mut [f32]) {
    for (running, batch) in running.iter_mut().zip(batch) {
        *running = *running * momentum + *batch * (1.0 - momentum);
    }
}

/// Computes `1 / sqrt(variance + epsilon)` in place.
pub fn invert_deviation(epsilon: f32, variance: &mut [f32]) {
    for value in variance {
        *value = (1.0 / (f64::from(*value) + f64::from(epsilon)).sqrt()) as f32;
    }
}

/// Computes `act((x - mean) * inv_std * gamma + beta + residual)` with given statistics. This is
/// the second half of training, and with running statistics the whole of inference.
///
/// ```
/// use fleet_kernels::batch_norm::*;
/// use fleet_kernels::pool::Pool;
/// let dims = Dims { batch: 2, plane: 1, channels: 1, order: Order::ChannelsLast };
/// let (pool, x, mut y) = (Pool::new(1), [1.0, 3.0], [0.0; 2]);
/// let (mut mean, mut inv_std, mut scratch) = ([0.0], [0.0], vec![0.0; scratch_len(&dims)]);
/// statistics(&pool, &dims, &x, &mut scratch, &mut mean, &mut inv_std);
/// invert_deviation(0.0, &mut inv_std);
/// let (given, affine) = ((&mean[..], &inv_std[..]), (&[2.0][..], &[0.5][..]));
/// let (from, to) = (Operand::Read(&x), Output::New(&mut y));
/// normalise(&pool, &dims, from, given, affine, None, Act::Relu, to, &mut scratch);
/// assert_eq!((y, mean, inv_std), ([0.0, 2.5], [2.0], [1.0]));
/// ```
pub fn normalise(
    pool: &Pool,
    dims: &Dims,
    mut x: Operand<'_>,
    (mean, inv_std): (&[f32], &[f32]),
    (gamma, beta): (&[f32], &[f32]),
    residual: Option<&[f32]>,
    act: Act,
    y: Output<'_>,
    scratch: &mut [f32],
) {
    let c = dims.channels;
    check_channels(c, &[mean, inv_std, gamma, beta]);
    let (x, over_x) = x.view(dims.len(), "x");
    let y = match y {
        Output::New(y) => {
            assert_eq!(y.len(), dims.len(), "batch norm: y has the wrong length");
            y.as_mut_ptr()
        }
        Output::OverX => over_x,
    };
    assert!(!y.is_null(), "batch norm: x is read-only");
    assert!(
        residual.is_none_or(|r| r.len() == dims.len()),
        "batch norm: residual has the wrong length"
    );
    let scale = &mut scratch[..c];
    for channel in 0..c {
        scale[channel] = gamma[channel] * inv_std[channel];
    }
    let pass = Normalise {
        x,
        residual: residual.map_or(std::ptr::null(), <[f32]>::as_ptr),
        y,
        mean: mean.as_ptr(),
        scale: scale.as_ptr(),
        beta: beta.as_ptr(),
        relu: act == Act::Relu,
    };
    for_each_block(pool, dims, |area| {
        // SAFETY: lengths were checked, and areas of different tasks are disjoint.
        match dims.order {
            // SAFETY: as above.
            Order::ChannelsLast => unsafe { normalise_area(Vector, &pass, area) },
            // SAFETY: as above.
            Order::ChannelsFirst => unsafe { normalise_area(Splat, &pass, area) },
        }
    });
}

/// Number of arrays of one float per channel: shift or scale, slope, offset.
const COEFFICIENTS: usize = 3;

fn check_channels(channels: usize, slices: &[&[f32]]) {
    let all = slices.iter().all(|slice| slice.len() == channels);
    assert!(all, "batch norm: expected one number per channel");
}

fn split_coefficients<'s>(dims: &Dims, scratch: &'s mut [f32]) -> (&'s mut [f32], &'s mut [f32]) {
    assert!(scratch.len() >= scratch_len(dims), "batch norm: scratch is too short");
    let sums = scratch_len(dims) - COEFFICIENTS * dims.channels;
    scratch.split_at_mut(sums)
}
