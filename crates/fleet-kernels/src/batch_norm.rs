//! Batch normalisation with ReLU and the residual addition folded in, forward and backward.
//!
//! The passes over memory are the cost, so they are counted. Forward in training: one pass for the
//! statistics (none where a convolution hands in partial sums), one that reads x (and the residual)
//! and writes y. Backward: one pass for the two sums of each channel, one for dx. The ReLU mask is
//! recomputed from x where there is no residual, so that y is not read; with a residual the first
//! pass writes the masked gradient over dy, which is the gradient of the residual, and the second
//! reads that. dx may be written over x or over dy, which saves reading the target's lines.
//!
//! Sums are taken in f32 over at most 512 rows, relative to a shift, and merged in f64 in a fixed
//! order: results do not depend on the number of threads.
//!
//! Rows are pixels ([rows, channels], channels last) on the fast path; channels first is right and
//! plain. `examples/norm_bench.rs` has the measurement: 156 ms for
//! all of ResNet-50, batch 16, both ways, with 2 threads, 30 to 45 GB/s of the bytes counted here.

use crate::pool::{Pool, Shareable};
use crate::simd::Simd;
use std::ops::Range;

/// Which dimension is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// [batch, height, width, channels].
    ChannelsLast,
    /// [batch, channels, height, width].
    ChannelsFirst,
}

/// The shape that is normalised over `batch` and `plane`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    pub batch: usize,
    /// Height times width.
    pub plane: usize,
    pub channels: usize,
    pub order: Order,
}

impl Dims {
    /// Values of one channel.
    pub fn rows(&self) -> usize {
        self.batch * self.plane
    }

    /// Floats of the tensor.
    pub fn len(&self) -> usize {
        self.rows() * self.channels
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What follows the normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    None,
    Relu,
}

/// A tensor that is read, and that may be written over where it is no longer needed.
#[derive(Debug)]
pub enum Operand<'a> {
    Read(&'a [f32]),
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
        assert_eq!(found, len, "{name} of batch norm has the wrong length");
        (read, write)
    }
}

/// Where the normalised tensor goes.
#[derive(Debug)]
pub enum Output<'a> {
    New(&'a mut [f32]),
    /// Over x, which must be [`Operand::Reuse`].
    OverX,
}

/// The numbers of one batch norm in training.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// `running = running * momentum + batch * (1 - momentum)`, for mean and biased variance.
    pub momentum: f32,
    pub epsilon: f32,
}

impl Default for Training {
    fn default() -> Self {
        Training { momentum: 0.9, epsilon: 1e-5 }
    }
}

/// Sums over blocks of rows that the producer of x took on its way: `[blocks][2][channels]`, sum
/// and sum of squares of `x - shift`.
#[derive(Clone, Copy, Debug)]
pub struct Partials<'a> {
    pub sums: &'a [f32],
    /// One a channel; zero where it is absent.
    pub shift: Option<&'a [f32]>,
}

/// Where the statistics of a batch come from.
#[derive(Clone, Copy, Debug)]
pub enum Statistics<'a> {
    /// A pass over x.
    Measure,
    Partial(Partials<'a>),
    /// Mean and biased variance, as a convolution or a reduction over ranks gives them.
    Given {
        mean: &'a [f32],
        variance: &'a [f32],
    },
}

/// Floats of scratch for every function of this file.
pub fn scratch_len(dims: &Dims) -> usize {
    let blocks = match dims.order {
        Order::ChannelsLast => dims.rows().div_ceil(rows_per_block(dims.channels)),
        Order::ChannelsFirst => dims.batch,
    };
    (2 * blocks + COEFFICIENTS) * dims.channels
}

/// Mean and biased variance of every channel.
pub fn statistics(
    pool: &Pool,
    dims: &Dims,
    x: &[f32],
    scratch: &mut [f32],
    mean: &mut [f32],
    variance: &mut [f32],
) {
    assert_eq!(x.len(), dims.len(), "x of batch norm has the wrong length");
    let c = dims.channels;
    if dims.is_empty() {
        mean.fill(0.0);
        variance.fill(0.0);
        return;
    }
    let (shift, scratch) = scratch.split_at_mut(c);
    // The first value of a channel is near its mean, measured in deviations.
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

/// Mean and biased variance of `rows` values a channel from partial sums.
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

/// Moves the running statistics towards those of the batch.
pub fn update_running(momentum: f32, batch: &[f32], running: &mut [f32]) {
    for (running, batch) in running.iter_mut().zip(batch) {
        *running = *running * momentum + *batch * (1.0 - momentum);
    }
}

/// `1 / sqrt(variance + epsilon)`, in place.
pub fn invert_deviation(epsilon: f32, variance: &mut [f32]) {
    for value in variance {
        *value = (1.0 / (f64::from(*value) + f64::from(epsilon)).sqrt()) as f32;
    }
}

/// The forward pass in training. `saved_mean` and `saved_inv_std` are what the backward pass needs.
///
/// ```
/// use fleet_kernels::batch_norm::*;
/// use fleet_kernels::pool::Pool;
/// let dims = Dims { batch: 2, plane: 1, channels: 1, order: Order::ChannelsLast };
/// let (mut running_mean, mut running_var) = ([0.0], [1.0]);
/// let (mut mean, mut inv_std, mut y) = ([0.0], [0.0], [0.0; 2]);
/// let mut scratch = vec![0.0; scratch_len(&dims)];
/// forward_training(
///     &Pool::new(1), &dims, Training { momentum: 0.9, epsilon: 0.0 }, &[1.0, 3.0], Statistics::Measure,
///     (&[2.0], &[0.5]), (&mut running_mean, &mut running_var), (&mut mean, &mut inv_std),
///     None, Act::Relu, &mut y, &mut scratch,
/// );
/// assert_eq!((y, mean, inv_std), ([0.0, 2.5], [2.0], [1.0]));
/// assert!((running_mean[0] - 0.2).abs() < 1e-6);
/// ```
pub fn forward_training(
    pool: &Pool,
    dims: &Dims,
    training: Training,
    x: &[f32],
    source: Statistics<'_>,
    (gamma, beta): (&[f32], &[f32]),
    (running_mean, running_variance): (&mut [f32], &mut [f32]),
    (saved_mean, saved_inv_std): (&mut [f32], &mut [f32]),
    residual: Option<&[f32]>,
    act: Act,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    match source {
        Statistics::Measure => statistics(pool, dims, x, scratch, saved_mean, saved_inv_std),
        Statistics::Partial(partials) => {
            statistics_of_partials(dims.rows(), partials, saved_mean, saved_inv_std);
        }
        Statistics::Given { mean, variance } => {
            saved_mean.copy_from_slice(mean);
            saved_inv_std.copy_from_slice(variance);
        }
    }
    update_running(training.momentum, saved_mean, running_mean);
    update_running(training.momentum, saved_inv_std, running_variance);
    invert_deviation(training.epsilon, saved_inv_std);
    let (x, y) = (Operand::Read(x), Output::New(y));
    normalise(pool, dims, x, (saved_mean, saved_inv_std), (gamma, beta), residual, act, y, scratch);
}

/// `act((x - mean) * inv_std * gamma + beta + residual)` with given statistics: the second half of
/// training, and the whole of a test run (with running statistics).
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
            assert_eq!(y.len(), dims.len(), "y of batch norm has the wrong length");
            y.as_mut_ptr()
        }
        Output::OverX => over_x,
    };
    assert!(!y.is_null(), "x of batch norm is read-only, it cannot be written over");
    assert!(residual.is_none_or(|r| r.len() == dims.len()), "residual has the wrong length");
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
        // SAFETY: lengths were checked, areas of different tasks are disjoint.
        match dims.order {
            Order::ChannelsLast => unsafe { normalise_area(Vector, &pass, area) },
            Order::ChannelsFirst => unsafe { normalise_area(Splat, &pass, area) },
        }
    });
}

/// Where the gradient is stopped by the ReLU.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// No ReLU.
    None,
    /// Where `(x - mean) * scale + beta` is not positive; right only without a residual.
    FromInput,
    /// Where this output is not positive.
    FromOutput(&'a [f32]),
}

/// Where the masked gradient goes, which is also the gradient of the residual.
#[derive(Debug)]
pub enum Masked<'a> {
    /// Nowhere: the second pass masks again.
    Drop,
    New(&'a mut [f32]),
    /// Over dy, which must be [`Operand::Reuse`].
    OverDy,
}

/// Where dx goes.
#[derive(Debug)]
pub enum InputGradient<'a> {
    New(&'a mut [f32]),
    /// Over x, which must be [`Operand::Reuse`].
    OverX,
    /// Over dy, which must be [`Operand::Reuse`], and not hold the masked gradient.
    OverDy,
}

/// The operands of [`backward`].
#[derive(Debug)]
pub struct Backward<'a> {
    pub dy: Operand<'a>,
    /// A second gradient of y that is added to dy on the way.
    pub addend: Option<&'a [f32]>,
    pub mask: Mask<'a>,
    pub masked: Masked<'a>,
    pub x: Operand<'a>,
    pub dx: InputGradient<'a>,
    pub mean: &'a [f32],
    pub inv_std: &'a [f32],
    pub gamma: &'a [f32],
    pub beta: &'a [f32],
    /// The statistics were given, not computed from x.
    pub is_frozen: bool,
    pub d_gamma: &'a mut [f32],
    pub d_beta: &'a mut [f32],
}

/// Gradients of x, gamma and beta, and of the residual.
pub fn backward(pool: &Pool, dims: &Dims, args: Backward<'_>, scratch: &mut [f32]) {
    backward_across(pool, dims, args, scratch, |_, _| dims.rows());
}

/// As [`backward`] where the statistics span several ranks: `reduce` takes the local sums (d_beta,
/// d_gamma), makes them global and returns the number of rows of all ranks.
pub fn backward_across(
    pool: &Pool,
    dims: &Dims,
    mut args: Backward<'_>,
    scratch: &mut [f32],
    reduce: impl FnOnce(&mut [f32], &mut [f32]) -> usize,
) {
    let c = dims.channels;
    check_channels(c, &[args.mean, args.inv_std, args.gamma, args.beta]);
    check_channels(c, &[args.d_gamma, args.d_beta]);
    let (sums_scratch, coefficients) = split_coefficients(dims, scratch);
    let scale = &mut coefficients[..c];
    for channel in 0..c {
        scale[channel] = args.gamma[channel] * args.inv_std[channel];
    }
    let (pass, dx) = backward_passes(dims, &mut args, scale.as_ptr());
    let sums = block_sums(pool, dims, &pass, sums_scratch);
    let (d_gamma, d_beta) = (&mut *args.d_gamma, &mut *args.d_beta);
    fold(sums, c, |channel, sum, dot| {
        d_beta[channel] = sum as f32;
        d_gamma[channel] = (dot * f64::from(args.inv_std[channel])) as f32;
    });
    let rows = reduce(d_beta, d_gamma);
    let (scale, rest) = coefficients.split_at_mut(c);
    let (slope, offset) = rest[..2 * c].split_at_mut(c);
    for channel in 0..c {
        let share = if args.is_frozen { 0.0 } else { -scale[channel] / rows.max(1) as f32 };
        slope[channel] = share * d_gamma[channel] * args.inv_std[channel];
        offset[channel] = share * d_beta[channel];
    }
    let pass = Differentiate {
        gradient: pass.second(),
        dx,
        slope: slope.as_ptr(),
        offset: offset.as_ptr(),
    };
    for_each_block(pool, dims, |area| {
        // SAFETY: lengths were checked, areas of different tasks are disjoint.
        match dims.order {
            Order::ChannelsLast => unsafe { differentiate_area(Vector, &pass, area) },
            Order::ChannelsFirst => unsafe { differentiate_area(Splat, &pass, area) },
        }
    });
}

/// Rows whose values are summed in f32.
const BLOCK_ROWS_MAX: usize = 512;
/// Floats of one task: some tens of microseconds of memory traffic.
const BLOCK_FLOATS: usize = 1 << 15;
/// Arrays of one float a channel: shift or scale, slope, offset.
const COEFFICIENTS: usize = 3;

fn rows_per_block(channels: usize) -> usize {
    (BLOCK_FLOATS / channels.max(1)).clamp(8, BLOCK_ROWS_MAX)
}

fn check_channels(channels: usize, slices: &[&[f32]]) {
    let all = slices.iter().all(|slice| slice.len() == channels);
    assert!(all, "batch norm takes one number a channel");
}

fn split_coefficients<'s>(dims: &Dims, scratch: &'s mut [f32]) -> (&'s mut [f32], &'s mut [f32]) {
    assert!(scratch.len() >= scratch_len(dims), "scratch of batch norm is too short");
    let sums = scratch_len(dims) - COEFFICIENTS * dims.channels;
    scratch.split_at_mut(sums)
}

/// Resolves the operands of the backward pass to pointers, checked once.
fn backward_passes(dims: &Dims, args: &mut Backward<'_>, scale: *const f32) -> (Sums, *mut f32) {
    let len = dims.len();
    let check = |slice: &[f32]| assert_eq!(slice.len(), len, "an operand has the wrong length");
    let (dy, over_dy) = args.dy.view(len, "dy");
    let (x, over_x) = args.x.view(len, "x");
    let addend = args.addend.map_or(std::ptr::null(), |addend| {
        check(addend);
        addend.as_ptr()
    });
    let y = match args.mask {
        Mask::FromOutput(y) => {
            check(y);
            y.as_ptr()
        }
        _ => std::ptr::null(),
    };
    let masked = match &mut args.masked {
        Masked::Drop => std::ptr::null_mut(),
        Masked::New(masked) => {
            check(masked);
            masked.as_mut_ptr()
        }
        Masked::OverDy => {
            assert!(!over_dy.is_null(), "dy of batch norm is read-only");
            over_dy
        }
    };
    let dx = match &mut args.dx {
        InputGradient::New(dx) => {
            check(dx);
            dx.as_mut_ptr()
        }
        InputGradient::OverX => over_x,
        InputGradient::OverDy => over_dy,
    };
    assert!(!dx.is_null(), "dx of batch norm would be written over a read-only tensor");
    assert!(dx != masked, "dx and the masked gradient cannot share a buffer");
    let pass = Sums {
        x,
        shift: args.mean.as_ptr(),
        dy,
        addend,
        y,
        masked,
        scale,
        beta: args.beta.as_ptr(),
        from_input: matches!(args.mask, Mask::FromInput),
    };
    (pass, dx)
}

/// A rectangle of the tensor: `rows` runs of `len` floats, `stride` apart from `start` on, the first
/// of which belongs to channel `channel`.
#[derive(Clone, Copy)]
struct Area {
    start: usize,
    rows: usize,
    stride: usize,
    len: usize,
    channel: usize,
}

/// Runs `body` over areas that make up the tensor.
fn for_each_block(pool: &Pool, dims: &Dims, body: impl Fn(Area) + Sync) {
    let c = dims.channels;
    match dims.order {
        Order::ChannelsLast => pool.run_ranges(dims.rows(), rows_per_block(c), |range| {
            body(Area { start: range.start * c, rows: range.len(), stride: c, len: c, channel: 0 });
        }),
        Order::ChannelsFirst => {
            let planes = planes_per_block(dims);
            let groups = c.div_ceil(planes);
            pool.run(dims.batch * groups, |task| {
                body(plane_area(dims, task / groups, planes, task % groups));
            });
        }
    }
}

fn planes_per_block(dims: &Dims) -> usize {
    (BLOCK_FLOATS / dims.plane.max(1)).clamp(1, dims.channels.max(1))
}

fn plane_area(dims: &Dims, image: usize, planes: usize, group: usize) -> Area {
    let channels: Range<usize> = group * planes..((group + 1) * planes).min(dims.channels);
    Area {
        start: (image * dims.channels + channels.start) * dims.plane,
        rows: channels.len(),
        stride: dims.plane,
        len: dims.plane,
        channel: channels.start,
    }
}

/// Sums of every block: `[blocks][2][channels]`.
fn block_sums<'s>(pool: &Pool, dims: &Dims, pass: &Sums, scratch: &'s mut [f32]) -> &'s [f32] {
    let c = dims.channels;
    match dims.order {
        Order::ChannelsLast => {
            let rows = rows_per_block(c);
            let blocks = dims.rows().div_ceil(rows);
            let sums = &mut scratch[..blocks * 2 * c];
            let shared = Shareable::new(&mut *sums);
            pool.run_ranges(dims.rows(), rows, |range| {
                // SAFETY: each block has its own sums.
                let sums = unsafe { shared.slice(range.start / rows * 2 * c, 2 * c) };
                sums.fill(0.0);
                let start = range.start * c;
                let area = Area { start, rows: range.len(), stride: c, len: c, channel: 0 };
                let (sum, dot) = sums.split_at_mut(c);
                // SAFETY: lengths were checked, blocks are disjoint.
                unsafe { sums_of_rows(pass, area, sum, dot) };
            });
            sums
        }
        Order::ChannelsFirst => {
            let sums = &mut scratch[..dims.batch * 2 * c];
            let shared = Shareable::new(&mut *sums);
            let planes = planes_per_block(dims);
            let groups = c.div_ceil(planes);
            pool.run(dims.batch * groups, |task| {
                let area = plane_area(dims, task / groups, planes, task % groups);
                let start = task / groups * 2 * c + area.channel;
                // SAFETY: each plane has its own sums; lengths were checked.
                unsafe {
                    let (sum, dot) =
                        (shared.slice(start, area.rows), shared.slice(start + c, area.rows));
                    sums_of_planes(pass, area, sum, dot);
                }
            });
            sums
        }
    }
}

/// Adds up the blocks of every channel in f64, in order.
fn fold(sums: &[f32], channels: usize, mut body: impl FnMut(usize, f64, f64)) {
    /// Channels at a time: whole cache lines of every block.
    const WIDTH: usize = 64;
    for first in (0..channels).step_by(WIDTH) {
        let width = WIDTH.min(channels - first);
        let mut totals = [[0.0f64; WIDTH]; 2];
        for block in sums.chunks_exact(2 * channels) {
            for (half, totals) in totals.iter_mut().enumerate() {
                let part = &block[half * channels + first..][..width];
                for (total, value) in totals.iter_mut().zip(part) {
                    *total += f64::from(*value);
                }
            }
        }
        for channel in 0..width {
            body(first + channel, totals[0][channel], totals[1][channel]);
        }
    }
}

/// Whether a run holds all channels once or one channel many times.
trait Along: Copy + Send + Sync {
    /// The coefficient of lane 0.. of `n` at `column` of run `row`.
    ///
    /// # Safety
    /// `coefficients` holds one float a channel.
    unsafe fn of<S: Simd>(
        self,
        s: S,
        coefficients: *const f32,
        area: &Area,
        row: usize,
        column: usize,
        n: usize,
    ) -> S::F;
}

#[derive(Clone, Copy)]
struct Vector;
#[derive(Clone, Copy)]
struct Splat;

impl Along for Vector {
    #[inline(always)]
    unsafe fn of<S: Simd>(
        self,
        s: S,
        coefficients: *const f32,
        area: &Area,
        _: usize,
        column: usize,
        n: usize,
    ) -> S::F {
        // SAFETY: promised by the caller.
        unsafe { load(s, coefficients.add(area.channel + column), n) }
    }
}

impl Along for Splat {
    #[inline(always)]
    unsafe fn of<S: Simd>(
        self,
        s: S,
        coefficients: *const f32,
        area: &Area,
        row: usize,
        _: usize,
        _: usize,
    ) -> S::F {
        // SAFETY: promised by the caller.
        s.splat(unsafe { *coefficients.add(area.channel + row) })
    }
}

/// # Safety
/// `n <= LANES` floats at `p`.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, p: *const f32, n: usize) -> S::F {
    // SAFETY: promised by the caller.
    unsafe { if n == S::LANES { s.load(p) } else { s.load_part(p, n) } }
}

/// # Safety
/// `n <= LANES` floats at `p`.
#[inline(always)]
unsafe fn store<S: Simd>(s: S, p: *mut f32, x: S::F, n: usize) {
    // SAFETY: promised by the caller.
    unsafe { if n == S::LANES { s.store(p, x) } else { s.store_part(p, x, n) } }
}

struct Normalise {
    x: *const f32,
    /// Null where there is none.
    residual: *const f32,
    /// May be x.
    y: *mut f32,
    mean: *const f32,
    scale: *const f32,
    beta: *const f32,
    relu: bool,
}

// SAFETY: the pointers are those of slices that outlive the pass; tasks write disjoint areas.
unsafe impl Sync for Normalise {}

/// (x - mean) * scale + beta: the same instructions forward and in the mask of the backward pass,
/// so that both see the same sign.
#[inline(always)]
fn normalised<S: Simd>(s: S, x: S::F, mean: S::F, scale: S::F, beta: S::F) -> S::F {
    s.fma(s.sub(x, mean), scale, beta)
}

crate::kernel! {
    unsafe fn normalise_area<S, A: Along>(s: S, along: A, pass: &Normalise, area: Area) {
        for row in 0..area.rows {
            let start = area.start + row * area.stride;
            let mut column = 0;
            while column < area.len {
                let n = S::LANES.min(area.len - column);
                let at = start + column;
                let mean = along.of(s, pass.mean, &area, row, column, n);
                let scale = along.of(s, pass.scale, &area, row, column, n);
                let beta = along.of(s, pass.beta, &area, row, column, n);
                let mut y = normalised(s, load(s, pass.x.add(at), n), mean, scale, beta);
                if !pass.residual.is_null() {
                    y = s.add(y, load(s, pass.residual.add(at), n));
                }
                if pass.relu {
                    // The operands are in the order that keeps a NaN.
                    y = s.max(s.zero(), y);
                }
                store(s, pass.y.add(at), y, n);
                column += n;
            }
        }
    }
}

/// Sums of u and u * v, where v = x - shift, and u is v (statistics) or the masked gradient.
#[derive(Clone, Copy)]
struct Sums {
    x: *const f32,
    shift: *const f32,
    /// Null for statistics.
    dy: *const f32,
    addend: *const f32,
    y: *const f32,
    masked: *mut f32,
    scale: *const f32,
    beta: *const f32,
    from_input: bool,
}

// SAFETY: as for `Normalise`.
unsafe impl Sync for Sums {}

impl Sums {
    const NONE: Sums = Sums {
        x: std::ptr::null(),
        shift: std::ptr::null(),
        dy: std::ptr::null(),
        addend: std::ptr::null(),
        y: std::ptr::null(),
        masked: std::ptr::null_mut(),
        scale: std::ptr::null(),
        beta: std::ptr::null(),
        from_input: false,
    };

    /// What the second pass reads: the masked gradient where the first one wrote it.
    fn second(&self) -> Sums {
        if self.masked.is_null() {
            return *self;
        }
        Sums {
            dy: self.masked,
            addend: std::ptr::null(),
            y: std::ptr::null(),
            masked: std::ptr::null_mut(),
            from_input: false,
            ..*self
        }
    }

    /// `x - shift` and the masked gradient of one register; writes the latter where asked.
    ///
    /// # Safety
    /// `at` and the `n` floats after it lie inside all tensors.
    #[inline(always)]
    unsafe fn values<S: Simd, A: Along>(
        &self,
        s: S,
        along: A,
        area: &Area,
        row: usize,
        column: usize,
        n: usize,
    ) -> (S::F, S::F) {
        let at = area.start + row * area.stride + column;
        // SAFETY: promised by the caller.
        unsafe {
            let shift = along.of(s, self.shift, area, row, column, n);
            let x = load(s, self.x.add(at), n);
            let mut v = s.sub(x, shift);
            if n < S::LANES {
                // Lanes beyond the end hold no value of x.
                v = keep_lanes(s, v, n);
            }
            if self.dy.is_null() {
                return (v, v);
            }
            let mut u = load(s, self.dy.add(at), n);
            if !self.addend.is_null() {
                u = s.add(u, load(s, self.addend.add(at), n));
            }
            if !self.y.is_null() {
                u = s.select(s.gt(load(s, self.y.add(at), n), s.zero()), u, s.zero());
            } else if self.from_input {
                let scale = along.of(s, self.scale, area, row, column, n);
                let beta = along.of(s, self.beta, area, row, column, n);
                let y = normalised(s, x, shift, scale, beta);
                u = s.select(s.gt(y, s.zero()), u, s.zero());
            }
            if n < S::LANES {
                u = keep_lanes(s, u, n);
            }
            if !self.masked.is_null() {
                store(s, self.masked.add(at), u, n);
            }
            (u, v)
        }
    }
}

/// The first `n` lanes of `x`, zeros after.
#[inline(always)]
fn keep_lanes<S: Simd>(s: S, x: S::F, n: usize) -> S::F {
    let mut lanes = [0.0f32; 16];
    // SAFETY: no register is longer than 16 floats, and n is at most a register.
    unsafe {
        s.store_part(lanes.as_mut_ptr(), x, n);
        s.load_part(lanes.as_ptr(), n)
    }
}

crate::kernel! {
    /// Adds the sums of each column of the area to `sum` and `dot`.
    unsafe fn sums_of_rows<S>(s: S, pass: &Sums, area: Area, sum: &mut [f32], dot: &mut [f32]) {
        /// Rows that share one load and store of the sums.
        const GROUP: usize = 4;
        let mut row = 0;
        while row < area.rows {
            let group = GROUP.min(area.rows - row);
            let mut column = 0;
            while column < area.len {
                let n = S::LANES.min(area.len - column);
                let (sum, dot) = (sum.as_mut_ptr().add(column), dot.as_mut_ptr().add(column));
                let (mut su, mut sv) = (load(s, sum, n), load(s, dot, n));
                if group == GROUP {
                    let (u0, v0) = pass.values(s, Vector, &area, row, column, n);
                    let (u1, v1) = pass.values(s, Vector, &area, row + 1, column, n);
                    let (u2, v2) = pass.values(s, Vector, &area, row + 2, column, n);
                    let (u3, v3) = pass.values(s, Vector, &area, row + 3, column, n);
                    su = s.add(su, s.add(s.add(u0, u1), s.add(u2, u3)));
                    let low = s.fma(u1, v1, s.mul(u0, v0));
                    let high = s.fma(u3, v3, s.mul(u2, v2));
                    sv = s.add(sv, s.add(low, high));
                } else {
                    for row in row..row + group {
                        let (u, v) = pass.values(s, Vector, &area, row, column, n);
                        su = s.add(su, u);
                        sv = s.fma(u, v, sv);
                    }
                }
                store(s, sum, su, n);
                store(s, dot, sv, n);
                column += n;
            }
            row += group;
        }
    }
}

crate::kernel! {
    /// Writes the sums of each plane of the area.
    unsafe fn sums_of_planes<S>(s: S, pass: &Sums, area: Area, sum: &mut [f32], dot: &mut [f32]) {
        for row in 0..area.rows {
            let (mut su, mut sv) = ([s.zero(); 2], [s.zero(); 2]);
            let mut column = 0;
            while column < area.len {
                let n = S::LANES.min(area.len - column);
                let (u, v) = pass.values(s, Splat, &area, row, column, n);
                // Two chains of additions: shorter, and each of half the rounding.
                su = [su[1], s.add(su[0], u)];
                sv = [sv[1], s.fma(u, v, sv[0])];
                column += n;
            }
            sum[row] = s.sum(s.add(su[0], su[1]));
            dot[row] = s.sum(s.add(sv[0], sv[1]));
        }
    }
}

struct Differentiate {
    gradient: Sums,
    /// May be x or dy.
    dx: *mut f32,
    slope: *const f32,
    offset: *const f32,
}

// SAFETY: as for `Normalise`.
unsafe impl Sync for Differentiate {}

crate::kernel! {
    /// dx = scale * gradient + slope * (x - mean) + offset.
    unsafe fn differentiate_area<S, A: Along>(s: S, along: A, pass: &Differentiate, area: Area) {
        for row in 0..area.rows {
            let start = area.start + row * area.stride;
            let mut column = 0;
            while column < area.len {
                let n = S::LANES.min(area.len - column);
                let (u, v) = pass.gradient.values(s, along, &area, row, column, n);
                let scale = along.of(s, pass.gradient.scale, &area, row, column, n);
                let slope = along.of(s, pass.slope, &area, row, column, n);
                let offset = along.of(s, pass.offset, &area, row, column, n);
                let dx = s.fma(scale, u, s.fma(slope, v, offset));
                store(s, pass.dx.add(start + column), dx, n);
                column += n;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;

    struct Case {
        dims: Dims,
        x: Vec<f32>,
        residual: Vec<f32>,
        dy: Vec<f32>,
        gamma: Vec<f32>,
        beta: Vec<f32>,
    }

    fn case(batch: usize, plane: usize, channels: usize, order: Order) -> Case {
        let dims = Dims { batch, plane, channels, order };
        let mut random = Sequence::new(7, dims.len() as u64);
        let mut floats = |count: usize, scale: f32, offset: f32| -> Vec<f32> {
            (0..count).map(|_| random.normal() as f32 * scale + offset).collect()
        };
        Case {
            x: floats(dims.len(), 2.0, 3.0),
            residual: floats(dims.len(), 1.0, 0.0),
            dy: floats(dims.len(), 1.0, 0.1),
            gamma: floats(channels, 0.5, 1.0),
            beta: floats(channels, 0.5, 0.0),
            dims,
        }
    }

    impl Case {
        fn channel(&self, index: usize) -> usize {
            match self.dims.order {
                Order::ChannelsLast => index % self.dims.channels,
                Order::ChannelsFirst => index / self.dims.plane % self.dims.channels,
            }
        }

        /// Mean and variance in f64.
        fn moments(&self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
            let rows = self.dims.rows() as f64;
            let mut mean = vec![0.0; self.dims.channels];
            for (index, x) in x.iter().enumerate() {
                mean[self.channel(index)] += x / rows;
            }
            let mut variance = vec![0.0; self.dims.channels];
            for (index, x) in x.iter().enumerate() {
                let channel = self.channel(index);
                variance[channel] += (x - mean[channel]).powi(2) / rows;
            }
            (mean, variance)
        }

        fn forward(&self, x: &[f64], residual: bool, relu: bool) -> Vec<f64> {
            let (mean, variance) = self.moments(x);
            x.iter()
                .enumerate()
                .map(|(index, x)| {
                    let c = self.channel(index);
                    let mut y = (x - mean[c]) / (variance[c] + 1e-5).sqrt()
                        * f64::from(self.gamma[c])
                        + f64::from(self.beta[c]);
                    if residual {
                        y += f64::from(self.residual[index]);
                    }
                    if relu { y.max(0.0) } else { y }
                })
                .collect()
        }

        /// Gradients of x, gamma, beta and the residual for a gradient `dy` of y.
        fn backward(&self, dy: &[f64], y: Option<&[f64]>) -> [Vec<f64>; 4] {
            let x: Vec<f64> = self.x.iter().map(|&x| f64::from(x)).collect();
            let (mean, variance) = self.moments(&x);
            let c = self.dims.channels;
            let rows = self.dims.rows() as f64;
            let masked: Vec<f64> = dy
                .iter()
                .enumerate()
                .map(|(i, &dy)| if y.is_none_or(|y| y[i] > 0.0) { dy } else { 0.0 })
                .collect();
            let (mut d_gamma, mut d_beta) = (vec![0.0; c], vec![0.0; c]);
            let hat = |i: usize, c: usize| (x[i] - mean[c]) / (variance[c] + 1e-5).sqrt();
            for (i, g) in masked.iter().enumerate() {
                let c = self.channel(i);
                d_beta[c] += g;
                d_gamma[c] += g * hat(i, c);
            }
            let dx = masked
                .iter()
                .enumerate()
                .map(|(i, g)| {
                    let c = self.channel(i);
                    f64::from(self.gamma[c]) / (variance[c] + 1e-5).sqrt()
                        * (g - d_beta[c] / rows - hat(i, c) * d_gamma[c] / rows)
                })
                .collect();
            [dx, d_gamma, d_beta, masked]
        }
    }

    fn check(ours: &[f32], theirs: &[f64], tolerance: f64, what: &str) {
        assert_eq!(ours.len(), theirs.len());
        for (i, (&a, &b)) in ours.iter().zip(theirs).enumerate() {
            let error = (f64::from(a) - b).abs();
            assert!(error <= tolerance * (1.0 + b.abs()), "{what} {i}: {a} against {b}");
        }
    }

    fn cases() -> Vec<Case> {
        let mut out = Vec::new();
        for order in [Order::ChannelsLast, Order::ChannelsFirst] {
            for (batch, plane, channels) in [
                (1, 1, 1),
                (2, 7, 3),
                (3, 49, 64),
                (2, 650, 17),
                (5, 9, 100),
                (2, 3000, 5),
                (1, 40, 600),
            ] {
                out.push(case(batch, plane, channels, order));
            }
        }
        out
    }

    fn run_forward(case: &Case, pool: &Pool, residual: bool, relu: bool) -> [Vec<f32>; 5] {
        run_forward_with(case, pool, Statistics::Measure, residual, relu)
    }

    fn run_forward_with(
        case: &Case,
        pool: &Pool,
        source: Statistics<'_>,
        residual: bool,
        relu: bool,
    ) -> [Vec<f32>; 5] {
        let c = case.dims.channels;
        let (mut rm, mut rv) = (vec![0.5; c], vec![2.0; c]);
        let (mut mean, mut inv) = (vec![0.0; c], vec![0.0; c]);
        let mut y = vec![f32::NAN; case.dims.len()];
        let mut scratch = vec![f32::NAN; scratch_len(&case.dims)];
        forward_training(
            pool,
            &case.dims,
            Training::default(),
            &case.x,
            source,
            (&case.gamma, &case.beta),
            (&mut rm, &mut rv),
            (&mut mean, &mut inv),
            residual.then_some(&case.residual[..]),
            if relu { Act::Relu } else { Act::None },
            &mut y,
            &mut scratch,
        );
        [y, mean, inv, rm, rv]
    }

    #[test]
    fn forward_matches_the_plain_formula() {
        for case in cases() {
            let x: Vec<f64> = case.x.iter().map(|&x| f64::from(x)).collect();
            let (mean, variance) = case.moments(&x);
            for (residual, relu) in [(false, false), (true, false), (false, true), (true, true)] {
                let one = run_forward(&case, &Pool::new(1), residual, relu);
                let expected = case.forward(&x, residual, relu);
                // One row has no variance: 1 / sqrt(epsilon) enlarges every rounding.
                let tolerance = if case.dims.rows() == 1 { 1e-3 } else { 1e-5 };
                check(&one[0], &expected, tolerance, "y");
                check(&one[1], &mean, 1e-6, "mean");
                let running: Vec<f64> = mean.iter().map(|m| 0.5 * 0.9 + m * 0.1).collect();
                check(&one[3], &running, 1e-6, "running mean");
                let running: Vec<f64> = variance.iter().map(|v| 2.0 * 0.9 + v * 0.1).collect();
                check(&one[4], &running, 1e-5, "running variance");
                assert_eq!(one, run_forward(&case, &Pool::new(3), residual, relu));
            }
        }
    }

    #[test]
    fn a_large_mean_costs_no_accuracy() {
        let mut case = case(4, 500, 16, Order::ChannelsLast);
        for x in &mut case.x {
            *x = *x * 0.5 + 1000.0;
        }
        let x: Vec<f64> = case.x.iter().map(|&x| f64::from(x)).collect();
        let (_, variance) = case.moments(&x);
        let ours = run_forward(&case, &Pool::new(1), false, false);
        let inv: Vec<f64> = variance.iter().map(|v| 1.0 / (v + 1e-5).sqrt()).collect();
        check(&ours[2], &inv, 1e-5, "inverse deviation");
        check(&ours[0], &case.forward(&x, false, false), 2e-4, "y");
    }

    #[test]
    fn partial_sums_of_a_producer_give_the_same_statistics() {
        let case = case(3, 70, 40, Order::ChannelsLast);
        let c = 40;
        let shift = vec![2.5; c];
        for shift in [None, Some(&shift[..])] {
            let mut sums = Vec::new();
            for block in case.x.chunks(32 * c) {
                let (mut sum, mut squares) = (vec![0.0; c], vec![0.0; c]);
                for (i, x) in block.iter().enumerate() {
                    let x = x - shift.map_or(0.0, |shift| shift[i % c]);
                    sum[i % c] += x;
                    squares[i % c] += x * x;
                }
                sums.extend(sum.into_iter().chain(squares));
            }
            let (mut mean, mut variance) = (vec![0.0; c], vec![0.0; c]);
            let partials = Partials { sums: &sums, shift };
            statistics_of_partials(case.dims.rows(), partials, &mut mean, &mut variance);
            let x: Vec<f64> = case.x.iter().map(|&x| f64::from(x)).collect();
            let expected = case.moments(&x);
            check(&mean, &expected.0, 1e-5, "mean");
            check(&variance, &expected.1, 1e-5, "variance");
            let pool = Pool::new(1);
            let of_parts =
                run_forward_with(&case, &pool, Statistics::Partial(partials), true, true);
            let given = Statistics::Given { mean: &mean, variance: &variance };
            assert_eq!(of_parts, run_forward_with(&case, &pool, given, true, true));
            check(&of_parts[0], &case.forward(&x, true, true), 1e-5, "y");
        }
    }

    #[test]
    fn a_test_run_may_write_over_its_input() {
        for case in cases() {
            let c = case.dims.channels;
            let (mean, mut inv) = (vec![2.0; c], vec![4.0 - 1e-5; c]);
            invert_deviation(1e-5, &mut inv);
            let mut x = case.x.clone();
            let mut scratch = vec![0.0; scratch_len(&case.dims)];
            normalise(
                &Pool::new(3),
                &case.dims,
                Operand::Reuse(&mut x),
                (&mean, &inv),
                (&case.gamma, &case.beta),
                Some(&case.residual),
                Act::Relu,
                Output::OverX,
                &mut scratch,
            );
            let expected: Vec<f64> = (0..x.len())
                .map(|i| {
                    let c = case.channel(i);
                    let hat = (f64::from(case.x[i]) - 2.0) / 2.0;
                    let y = hat * f64::from(case.gamma[c]) + f64::from(case.beta[c]);
                    (y + f64::from(case.residual[i])).max(0.0)
                })
                .collect();
            check(&x, &expected, 1e-5, "y");
        }
    }

    /// Where the results of a backward pass go.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Way {
        New,
        OverX,
        OverDy,
    }

    fn run_backward(
        case: &Case,
        threads: usize,
        y: Option<&[f32]>,
        with_residual: bool,
        addend: Option<&[f32]>,
        way: Way,
    ) -> [Vec<f32>; 4] {
        let pool = Pool::new(threads);
        let (dims, c) = (case.dims, case.dims.channels);
        let forward = run_forward(case, &pool, with_residual, y.is_some());
        let (mut d_gamma, mut d_beta) = (vec![f32::NAN; c], vec![f32::NAN; c]);
        let (mut x, mut dy) = (case.x.clone(), case.dy.clone());
        let mut dx = vec![f32::NAN; dims.len()];
        let mut dr = vec![f32::NAN; dims.len()];
        let mut scratch = vec![f32::NAN; scratch_len(&dims)];
        let args = Backward {
            dy: Operand::Reuse(&mut dy),
            addend,
            mask: match y {
                None => Mask::None,
                Some(y) if with_residual => Mask::FromOutput(y),
                Some(_) => Mask::FromInput,
            },
            masked: match way {
                Way::New if with_residual => Masked::New(&mut dr),
                Way::OverX if with_residual => Masked::OverDy,
                _ => Masked::Drop,
            },
            x: if way == Way::OverX { Operand::Reuse(&mut x) } else { Operand::Read(&case.x) },
            dx: match way {
                Way::New => InputGradient::New(&mut dx),
                Way::OverX => InputGradient::OverX,
                Way::OverDy => InputGradient::OverDy,
            },
            mean: &forward[1],
            inv_std: &forward[2],
            gamma: &case.gamma,
            beta: &case.beta,
            is_frozen: false,
            d_gamma: &mut d_gamma,
            d_beta: &mut d_beta,
        };
        backward(&pool, &dims, args, &mut scratch);
        match way {
            Way::New => [dx, d_gamma, d_beta, dr],
            Way::OverX => [x, d_gamma, d_beta, dy],
            Way::OverDy => [dy, d_gamma, d_beta, Vec::new()],
        }
    }

    #[test]
    fn backward_matches_the_plain_formula_wherever_it_writes() {
        for case in cases() {
            if case.dims.rows() == 1 {
                continue;
            }
            let addend: Vec<f32> = case.residual.iter().map(|r| r * 0.3).collect();
            for (relu, with_residual, with_addend) in [
                (false, false, false),
                (true, false, false),
                (true, true, false),
                (true, true, true),
                (false, true, true),
            ] {
                let forward = run_forward(&case, &Pool::new(1), with_residual, relu);
                let y = relu.then_some(&forward[0][..]);
                let y64: Vec<f64> = forward[0].iter().map(|&y| f64::from(y)).collect();
                let added = with_addend.then_some(&addend[..]);
                let dy: Vec<f64> = (0..case.dy.len())
                    .map(|i| f64::from(case.dy[i]) + added.map_or(0.0, |a| f64::from(a[i])))
                    .collect();
                let expected = case.backward(&dy, relu.then_some(&y64[..]));
                let mut results = Vec::new();
                for way in [Way::New, Way::OverX, Way::OverDy] {
                    let ours = run_backward(&case, 1, y, with_residual, added, way);
                    check(&ours[0], &expected[0], 1e-4, "dx");
                    check(&ours[1], &expected[1], 1e-4, "d_gamma");
                    check(&ours[2], &expected[2], 1e-4, "d_beta");
                    if with_residual && way != Way::OverDy {
                        check(&ours[3], &expected[3], 1e-6, "dr");
                    }
                    let bits = |runs: &[Vec<f32>; 4]| {
                        runs.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
                    };
                    let again = run_backward(&case, 3, y, with_residual, added, way);
                    assert_eq!(bits(&ours), bits(&again));
                    results.push(ours);
                }
                assert!(results.iter().all(|other| other[..3] == results[0][..3]));
            }
        }
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        let case = case(2, 5, 3, Order::ChannelsLast);
        let x: Vec<f64> = case.x.iter().map(|&x| f64::from(x)).collect();
        let forward = run_forward(&case, &Pool::new(1), true, true);
        let ours = run_backward(&case, 1, Some(&forward[0]), true, None, Way::New);
        let loss = |x: &[f64]| -> f64 {
            let y = case.forward(x, true, true);
            y.iter().zip(&case.dy).map(|(y, dy)| y * f64::from(*dy)).sum()
        };
        for i in 0..x.len() {
            let (mut more, mut less) = (x.clone(), x.clone());
            more[i] += 1e-5;
            less[i] -= 1e-5;
            let slope = (loss(&more) - loss(&less)) / 2e-5;
            assert!((slope - f64::from(ours[0][i])).abs() < 1e-3, "{i}");
        }
    }

    #[test]
    fn frozen_statistics_pass_the_gradient_through() {
        let case = case(2, 5, 3, Order::ChannelsFirst);
        let (mut d_gamma, mut d_beta) = (vec![0.0; 3], vec![0.0; 3]);
        let mut dx = vec![0.0; case.x.len()];
        let mut scratch = vec![0.0; scratch_len(&case.dims)];
        let args = Backward {
            dy: Operand::Read(&case.dy),
            addend: None,
            mask: Mask::None,
            masked: Masked::Drop,
            x: Operand::Read(&case.x),
            dx: InputGradient::New(&mut dx),
            mean: &[0.0; 3],
            inv_std: &[0.5; 3],
            gamma: &case.gamma,
            beta: &case.beta,
            is_frozen: true,
            d_gamma: &mut d_gamma,
            d_beta: &mut d_beta,
        };
        backward(&Pool::new(1), &case.dims, args, &mut scratch);
        for i in 0..dx.len() {
            assert_eq!(dx[i], case.gamma[case.channel(i)] * 0.5 * case.dy[i]);
        }
    }

    #[test]
    fn every_instruction_set_is_right() {
        crate::simd::at_every_level(|_| {
            let case = case(2, 33, 21, Order::ChannelsLast);
            let x: Vec<f64> = case.x.iter().map(|&x| f64::from(x)).collect();
            let forward = run_forward(&case, &Pool::new(1), true, true);
            check(&forward[0], &case.forward(&x, true, true), 1e-5, "y");
            let y64: Vec<f64> = forward[0].iter().map(|&y| f64::from(y)).collect();
            let dy: Vec<f64> = case.dy.iter().map(|&dy| f64::from(dy)).collect();
            let expected = case.backward(&dy, Some(&y64));
            let ours = run_backward(&case, 1, Some(&forward[0]), true, None, Way::OverX);
            check(&ours[0], &expected[0], 1e-4, "dx");
        });
    }
}
