//! The passes over memory: how a tensor is split into areas, and the operations on each register.

use super::{Dims, Order};
use crate::pool::{Pool, Shareable};
use crate::simd::Simd;
use std::ops::Range;

/// Limit on the rows whose values are summed in f32.
pub(super) const BLOCK_ROWS_MAX: usize = 512;
/// Number of floats per task: some tens of microseconds of memory traffic.
pub(super) const BLOCK_FLOATS: usize = 1 << 15;

pub(super) fn rows_per_block(channels: usize) -> usize {
    (BLOCK_FLOATS / channels.max(1)).clamp(8, BLOCK_ROWS_MAX)
}

/// A rectangle of the tensor: `rows` runs of `len` floats, `stride` apart, from `start` on. The
/// first run belongs to channel `channel`.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub(super) start: usize,
    pub(super) rows: usize,
    pub(super) stride: usize,
    pub(super) len: usize,
    pub(super) channel: usize,
}

/// Runs `body` over areas that cover the tensor.
pub(super) fn for_each_block(pool: &Pool, dims: &Dims, body: impl Fn(Area) + Sync) {
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

pub(super) fn planes_per_block(dims: &Dims) -> usize {
    (BLOCK_FLOATS / dims.plane.max(1)).clamp(1, dims.channels.max(1))
}

pub(super) fn plane_area(dims: &Dims, image: usize, planes: usize, group: usize) -> Area {
    let channels: Range<usize> = group * planes..((group + 1) * planes).min(dims.channels);
    Area {
        start: (image * dims.channels + channels.start) * dims.plane,
        rows: channels.len(),
        stride: dims.plane,
        len: dims.plane,
        channel: channels.start,
    }
}

/// Computes the sums of every block: `[blocks][2][channels]`.
pub(super) fn block_sums<'s>(
    pool: &Pool,
    dims: &Dims,
    pass: &Sums,
    scratch: &'s mut [f32],
) -> &'s [f32] {
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
                // SAFETY: lengths were checked, and blocks are disjoint.
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
                // SAFETY: each plane has its own sums, and lengths were checked.
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

/// Adds the blocks of every channel in f64, in order.
pub(super) fn fold(sums: &[f32], channels: usize, mut body: impl FnMut(usize, f64, f64)) {
    /// Number of channels at a time: whole cache lines of every block.
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

/// Whether a run holds every channel once, or one channel many times.
pub(super) trait Along: Copy + Send + Sync {
    /// Returns the coefficients of the first `n` lanes at `column` of run `row`.
    ///
    /// # Safety
    /// `coefficients` holds one float per channel.
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
pub(super) struct Vector;
#[derive(Clone, Copy)]
pub(super) struct Splat;

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
        unsafe { s.load_n(coefficients.add(area.channel + column), n) }
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

pub(super) struct Normalise {
    pub(super) x: *const f32,
    /// Null if there is none.
    pub(super) residual: *const f32,
    /// May equal x.
    pub(super) y: *mut f32,
    pub(super) mean: *const f32,
    pub(super) scale: *const f32,
    pub(super) beta: *const f32,
    pub(super) relu: bool,
}

// SAFETY: the pointers are those of slices that outlive the pass, and tasks write disjoint areas.
unsafe impl Sync for Normalise {}

/// Computes (x - mean) * scale + beta. The forward pass and the mask of the backward pass use the
/// same instructions, so that both see the same sign.
#[inline(always)]
pub(super) fn normalised<S: Simd>(s: S, x: S::F, mean: S::F, scale: S::F, beta: S::F) -> S::F {
    s.fma(s.sub(x, mean), scale, beta)
}

crate::kernel! {
    pub(super) unsafe fn normalise_area<S, A: Along>(s: S, along: A, pass: &Normalise, area: Area) {
        for row in 0..area.rows {
            let start = area.start + row * area.stride;
            let mut column = 0;
            while column < area.len {
                let n = S::LANES.min(area.len - column);
                let at = start + column;
                let mean = along.of(s, pass.mean, &area, row, column, n);
                let scale = along.of(s, pass.scale, &area, row, column, n);
                let beta = along.of(s, pass.beta, &area, row, column, n);
                let mut y = normalised(s, s.load_n(pass.x.add(at), n), mean, scale, beta);
                if !pass.residual.is_null() {
                    y = s.add(y, s.load_n(pass.residual.add(at), n));
                }
                if pass.relu {
                    // The order of the operands preserves NaN.
                    y = s.max(s.zero(), y);
                }
                s.store_n(pass.y.add(at), y, n);
                column += n;
            }
        }
    }
}

/// Sums of u and u * v, where v = x - shift. u is v (for statistics) or the masked gradient.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) x: *const f32,
    pub(super) shift: *const f32,
    /// Null for statistics.
    pub(super) dy: *const f32,
    pub(super) addend: *const f32,
    pub(super) y: *const f32,
    pub(super) masked: *mut f32,
    pub(super) scale: *const f32,
    pub(super) beta: *const f32,
    pub(super) from_input: bool,
}

// SAFETY: as for `Normalise`.
unsafe impl Sync for Sums {}

impl Sums {
    pub(super) const NONE: Sums = Sums {
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

    /// Returns the inputs of the second pass: the masked gradient, if the first pass wrote it.
    pub(super) fn second(&self) -> Sums {
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

    /// Returns `x - shift` and the masked gradient of one register, and writes the latter if
    /// requested.
    ///
    /// # Safety
    /// `at` and the `n` floats after it are inside all tensors.
    #[inline(always)]
    pub(super) unsafe fn values<S: Simd, A: Along>(
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
            let x = s.load_n(self.x.add(at), n);
            // Lanes past the end must be zero, although x - shift is not.
            let v = s.keep_first(s.sub(x, shift), n);
            if self.dy.is_null() {
                return (v, v);
            }
            let mut u = s.load_n(self.dy.add(at), n);
            if !self.addend.is_null() {
                u = s.add(u, s.load_n(self.addend.add(at), n));
            }
            if !self.y.is_null() {
                u = s.select(s.gt(s.load_n(self.y.add(at), n), s.zero()), u, s.zero());
            } else if self.from_input {
                let scale = along.of(s, self.scale, area, row, column, n);
                let beta = along.of(s, self.beta, area, row, column, n);
                let y = normalised(s, x, shift, scale, beta);
                u = s.select(s.gt(y, s.zero()), u, s.zero());
            }
            let u = s.keep_first(u, n);
            if !self.masked.is_null() {
                s.store_n(self.masked.add(at), u, n);
            }
            (u, v)
        }
    }
}

crate::kernel! {
    /// Adds the sums of each column of the area to `sum` and `dot`.
    pub(super) unsafe fn sums_of_rows<S>(
        s: S, pass: &Sums, area: Area, sum: &mut [f32], dot: &mut [f32],
    ) {
        /// Number of rows that share one load and store of the sums.
        const GROUP: usize = 4;
        let mut row = 0;
        while row < area.rows {
            let group = GROUP.min(area.rows - row);
            let mut column = 0;
            while column < area.len {
                let n = S::LANES.min(area.len - column);
                let (sum, dot) = (sum.as_mut_ptr().add(column), dot.as_mut_ptr().add(column));
                let (mut su, mut sv) = (s.load_n(sum, n), s.load_n(dot, n));
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
                s.store_n(sum, su, n);
                s.store_n(dot, sv, n);
                column += n;
            }
            row += group;
        }
    }
}

crate::kernel! {
    /// Writes the sums of each plane of the area.
    pub(super) unsafe fn sums_of_planes<S>(
        s: S, pass: &Sums, area: Area, sum: &mut [f32], dot: &mut [f32],
    ) {
        for row in 0..area.rows {
            let (mut su, mut sv) = ([s.zero(); 2], [s.zero(); 2]);
            let mut column = 0;
            while column < area.len {
                let n = S::LANES.min(area.len - column);
                let (u, v) = pass.values(s, Splat, &area, row, column, n);
                // Two chains of additions are faster than one, and each has half the rounding
                // error.
                su = [su[1], s.add(su[0], u)];
                sv = [sv[1], s.fma(u, v, sv[0])];
                column += n;
            }
            sum[row] = s.sum(s.add(su[0], su[1]));
            dot[row] = s.sum(s.add(sv[0], sv[1]));
        }
    }
}
