//! The backward pass: the two sums of each channel, then dx.

use super::passes::*;
use super::{Dims, Operand, Order, check_channels, split_coefficients};
use crate::pool::Pool;

/// The condition under which the ReLU blocks the gradient.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// No ReLU.
    None,
    /// Where `(x - mean) * scale + beta` is not positive. Correct only without a residual.
    FromInput,
    /// Where this output is not positive.
    FromOutput(&'a [f32]),
}

/// The destination of the masked gradient, which is also the gradient of the residual.
#[derive(Debug)]
pub enum Masked<'a> {
    /// None; the second pass applies the mask again.
    Drop,
    /// In memory of its own.
    New(&'a mut [f32]),
    /// In place of dy, which must be [`Operand::Reuse`].
    OverDy,
}

/// The destination of dx.
#[derive(Debug)]
pub enum InputGradient<'a> {
    /// In memory of its own.
    New(&'a mut [f32]),
    /// In place of x, which must be [`Operand::Reuse`].
    OverX,
    /// In place of dy, which must be [`Operand::Reuse`] and must not hold the masked gradient.
    OverDy,
}

/// The operands of [`backward`].
#[derive(Debug)]
pub struct Backward<'a> {
    /// The gradient of y.
    pub dy: Operand<'a>,
    /// A second gradient of y, which is added to dy.
    pub addend: Option<&'a [f32]>,
    /// Where the gradient of the activation is zero.
    pub mask: Mask<'a>,
    /// Where the masked gradient goes.
    pub masked: Masked<'a>,
    /// The input of the forward pass.
    pub x: Operand<'a>,
    /// Where the gradient of x goes.
    pub dx: InputGradient<'a>,
    /// Mean per channel, as used by the forward pass.
    pub mean: &'a [f32],
    /// `1 / sqrt(variance + epsilon)` per channel, as used by the forward pass.
    pub inv_std: &'a [f32],
    /// Scale per channel.
    pub gamma: &'a [f32],
    /// Shift per channel.
    pub beta: &'a [f32],
    /// Whether the statistics were given rather than computed from x.
    pub is_frozen: bool,
    /// Gets the gradient of the scale.
    pub d_gamma: &'a mut [f32],
    /// Gets the gradient of the shift.
    pub d_beta: &'a mut [f32],
}

/// Computes the gradients of x, gamma, beta and the residual.
pub fn backward(pool: &Pool, dims: &Dims, args: Backward<'_>, scratch: &mut [f32]) {
    backward_across(pool, dims, args, scratch, |_, _| dims.rows());
}

/// Like [`backward`], for statistics that span several ranks. `reduce` takes the local sums
/// (d_beta, d_gamma), makes them global, and returns the total number of rows of all ranks.
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
        // SAFETY: lengths were checked, and areas of different tasks are disjoint.
        match dims.order {
            // SAFETY: as above.
            Order::ChannelsLast => unsafe { differentiate_area(Vector, &pass, area) },
            // SAFETY: as above.
            Order::ChannelsFirst => unsafe { differentiate_area(Splat, &pass, area) },
        }
    });
}

/// Converts the operands of the backward pass to pointers, and checks them once.
fn backward_passes(dims: &Dims, args: &mut Backward<'_>, scale: *const f32) -> (Sums, *mut f32) {
    let len = dims.len();
    let check =
        |slice: &[f32]| assert_eq!(slice.len(), len, "batch norm: operand has the wrong length");
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
            assert!(!over_dy.is_null(), "batch norm: dy must be Operand::Reuse");
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
    assert!(!dx.is_null(), "batch norm: dx would overwrite a read-only tensor");
    assert!(dx != masked, "batch norm: dx and the masked gradient share a buffer");
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

struct Differentiate {
    gradient: Sums,
    /// May equal x or dy.
    dx: *mut f32,
    slope: *const f32,
    offset: *const f32,
}

// SAFETY: as for `Normalise`.
unsafe impl Sync for Differentiate {}

crate::kernel! {
    /// Computes dx = scale * gradient + slope * (x - mean) + offset.
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
                s.store_n(pass.dx.add(start + column), dx, n);
                column += n;
            }
        }
    }
}
