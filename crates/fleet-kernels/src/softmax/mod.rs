//! Softmax and log-softmax over rows, and their losses: cross-entropy with hard and soft labels,
//! sigmoid cross-entropy with logits, log loss. Forward and backward, f32.
//!
//! A row is read from memory once and stays in L1 for its three passes (maximum, exponentials and
//! their sum, scale). Sketch for 98,304 x 128: 100 MB moved, 12.6 M exponentials at about one a
//! cycle; memory bandwidth is the limit.
//!
//! ```
//! use fleet_kernels::{pool::Pool, softmax::softmax};
//! let mut y = [0.0; 4];
//! softmax(&Pool::new(1), &[0.0, 0.0, 3.0, 3.0], 2, &mut y);
//! assert_eq!(y, [0.5; 4]);
//! ```

pub mod parts;
#[cfg(test)]
mod tests;

use std::ops::Range;

use fleet_base::{Error, Result};

use crate::elementwise::{GRAIN, grain_rows};
use crate::input::Input;
use crate::pool::Pool;
use crate::simd::{SharedPtr, Simd};
use crate::vmath;
use crate::{for_registers, kernel};

#[inline(always)]
unsafe fn row_max<S: Simd>(s: S, x: *const f32, len: usize) -> f32 {
    let low = s.splat(f32::NEG_INFINITY);
    let mut max = low;
    for_registers!(S, len, |i, n| {
        // SAFETY: the row is `len` long.
        let v = unsafe { s.load_n(x.add(i), n) };
        max = s.max(max, if n == S::LANES { v } else { s.select(s.first(n), v, low) });
    });
    s.max_lane(max)
}

/// Computes y = exp(x - max), and returns its sum.
#[inline(always)]
unsafe fn row_exp<S: Simd>(s: S, x: *const f32, max: f32, y: *mut f32, len: usize) -> f32 {
    let max = s.splat(max);
    let mut sum = s.zero();
    for_registers!(S, len, |i, n| {
        // SAFETY: both rows are `len` long.
        unsafe {
            let e = vmath::exp(s, s.sub(s.load_n(x.add(i), n), max));
            s.store_n(y.add(i), e, n);
            sum = s.add(sum, s.keep_first(e, n));
        }
    });
    s.sum(sum)
}

/// Returns the sum of exp(x - max).
#[inline(always)]
unsafe fn row_exp_sum<S: Simd>(s: S, x: *const f32, max: f32, len: usize) -> f32 {
    let max = s.splat(max);
    let mut sum = s.zero();
    for_registers!(S, len, |i, n| {
        // SAFETY: the row is `len` long.
        let e = unsafe { vmath::exp(s, s.sub(s.load_n(x.add(i), n), max)) };
        sum = s.add(sum, s.keep_first(e, n));
    });
    s.sum(sum)
}

/// # Safety
/// `len` floats are readable and writable at `y`.
#[inline(always)]
pub(crate) unsafe fn row_scale<S: Simd>(s: S, y: *mut f32, scale: f32, len: usize) {
    let scale = s.splat(scale);
    for_registers!(S, len, |i, n| {
        // SAFETY: the row is `len` long.
        unsafe { s.store_n(y.add(i), s.mul(s.load_n(y.add(i), n), scale), n) };
    });
}

/// Returns the sum of products of two rows.
///
/// # Safety
/// `len` floats are readable at `a` and at `b`.
#[inline(always)]
pub(crate) unsafe fn row_dot<S: Simd>(s: S, a: *const f32, b: *const f32, len: usize) -> f32 {
    let mut sum = s.zero();
    for_registers!(S, len, |i, n| {
        // SAFETY: both rows are `len` long; lanes past the end are zero.
        unsafe { sum = s.fma(s.load_n(a.add(i), n), s.load_n(b.add(i), n), sum) };
    });
    s.sum(sum)
}

#[inline(always)]
unsafe fn row_sum<S: Simd>(s: S, a: *const f32, len: usize) -> f32 {
    let mut sum = s.zero();
    for_registers!(S, len, |i, n| {
        // SAFETY: the row is `len` long; lanes past the end are zero.
        unsafe { sum = s.add(sum, s.load_n(a.add(i), n)) };
    });
    s.sum(sum)
}

kernel! {
    unsafe fn softmax_rows<S>(s: S, x: *const f32, y: *mut f32, rows: Range<usize>, len: usize) {
        for row in rows {
            let (x, y) = (x.add(row * len), y.add(row * len));
            let max = row_max(s, x, len);
            let sum = row_exp(s, x, max, y, len);
            row_scale(s, y, 1.0 / sum, len);
        }
    }
}

kernel! {
    unsafe fn softmax_grad_rows<S>(
        s: S, y: *const f32, dy: *const f32, dx: *mut f32, rows: Range<usize>, len: usize,
    ) {
        for row in rows {
            let (y, dy, dx) = (y.add(row * len), dy.add(row * len), dx.add(row * len));
            let dot = s.splat(row_dot(s, y, dy, len));
            for_registers!(S, len, |i, n| {
                let d = s.mul(s.load_n(y.add(i), n), s.sub(s.load_n(dy.add(i), n), dot));
                s.store_n(dx.add(i), d, n);
            });
        }
    }
}

kernel! {
    unsafe fn log_softmax_rows<S>(
        s: S, x: *const f32, y: *mut f32, rows: Range<usize>, len: usize,
    ) {
        for row in rows {
            let (x, y) = (x.add(row * len), y.add(row * len));
            let max = row_max(s, x, len);
            // Two subtractions preserve digits that max + ln(sum) would lose.
            let log = s.splat(row_exp_sum(s, x, max, len).ln());
            let max = s.splat(max);
            for_registers!(S, len, |i, n| {
                s.store_n(y.add(i), s.sub(s.sub(s.load_n(x.add(i), n), max), log), n);
            });
        }
    }
}

kernel! {
    unsafe fn log_softmax_grad_rows<S>(
        s: S, y: *const f32, dy: *const f32, dx: *mut f32, rows: Range<usize>, len: usize,
    ) {
        for row in rows {
            let (y, dy, dx) = (y.add(row * len), dy.add(row * len), dx.add(row * len));
            let sum = s.splat(row_sum(s, dy, len));
            for_registers!(S, len, |i, n| {
                let p = vmath::exp(s, s.load_n(y.add(i), n));
                s.store_n(dx.add(i), s.neg_fma(p, sum, s.load_n(dy.add(i), n)), n);
            });
        }
    }
}

fn check_rows(len: usize, elements: usize, others: &[usize]) -> usize {
    assert!(len > 0 && elements.is_multiple_of(len), "not a whole number of rows");
    assert!(others.iter().all(|other| *other == elements), "tensors differ in length");
    elements / len
}

/// Sets `y` to the softmax of the rows of `x`, each of `len` elements.
pub fn softmax<'a>(pool: &Pool, x: impl Into<Input<'a, f32>>, len: usize, y: &mut [f32]) {
    let (rows, all) = (check_rows(len, y.len(), &[]), y.len());
    let y = y.as_mut_ptr();
    let (x, y) = (SharedPtr::new(x.into().start(all, y, all)), SharedPtr::new_mut(y));
    pool.run_ranges(rows, grain_rows(len), |range| {
        // SAFETY: tasks have different rows.
        unsafe { softmax_rows(x.at(0), y.at(0), range, len) };
    });
}

/// Computes the gradient of [`softmax`] from its output.
pub fn softmax_grad<'a>(
    pool: &Pool,
    y: impl Into<Input<'a, f32>>,
    dy: impl Into<Input<'a, f32>>,
    len: usize,
    dx: &mut [f32],
) {
    let (rows, all) = (check_rows(len, dx.len(), &[]), dx.len());
    let dx = dx.as_mut_ptr();
    let y = SharedPtr::new(y.into().start(all, dx, all));
    let (dy, dx) = (SharedPtr::new(dy.into().start(all, dx, all)), SharedPtr::new_mut(dx));
    pool.run_ranges(rows, grain_rows(len), |range| {
        // SAFETY: tasks have different rows.
        unsafe { softmax_grad_rows(y.at(0), dy.at(0), dx.at(0), range, len) };
    });
}

/// Sets `y` to ln softmax of the rows of `x`.
pub fn log_softmax(pool: &Pool, x: &[f32], len: usize, y: &mut [f32]) {
    let rows = check_rows(len, x.len(), &[y.len()]);
    let (x, y) = (SharedPtr::new(x.as_ptr()), SharedPtr::new_mut(y.as_mut_ptr()));
    pool.run_ranges(rows, grain_rows(len), |range| {
        // SAFETY: tasks have different rows, and the lengths were checked.
        unsafe { log_softmax_rows(x.at(0), y.at(0), range, len) };
    });
}

/// Computes the gradient of [`log_softmax`] from its output.
pub fn log_softmax_grad(pool: &Pool, y: &[f32], dy: &[f32], len: usize, dx: &mut [f32]) {
    let rows = check_rows(len, y.len(), &[dy.len(), dx.len()]);
    let (y, dy) = (SharedPtr::new(y.as_ptr()), SharedPtr::new(dy.as_ptr()));
    let dx = SharedPtr::new_mut(dx.as_mut_ptr());
    pool.run_ranges(rows, grain_rows(len), |range| {
        // SAFETY: tasks have different rows, and the lengths were checked.
        unsafe { log_softmax_grad_rows(y.at(0), dy.at(0), dx.at(0), range, len) };
    });
}

kernel! {
    unsafe fn hard_rows<S>(
        s: S, x: *const f32, labels: *const i64, ignore: i64, p: *mut f32, loss: *mut f32,
        rows: Range<usize>, len: usize,
    ) {
        for row in rows {
            let (x, p) = (x.add(row * len), p.add(row * len));
            let max = row_max(s, x, len);
            let label = *labels.add(row);
            // Read before `p` is written, because `p` may be in place of `x`.
            let target = if label == ignore { 0.0 } else { *x.add(label as usize) - max };
            let sum = row_exp(s, x, max, p, len);
            row_scale(s, p, 1.0 / sum, len);
            *loss.add(row) = if label == ignore { 0.0 } else { sum.ln() - target };
        }
    }
}

kernel! {
    unsafe fn hard_grad_rows<S>(
        s: S, p: *const f32, labels: *const i64, ignore: i64, dloss: *const f32, dx: *mut f32,
        rows: Range<usize>, len: usize,
    ) {
        for row in rows {
            let (p, dx) = (p.add(row * len), dx.add(row * len));
            let (label, weight) = (*labels.add(row), *dloss.add(row));
            if label == ignore {
                std::slice::from_raw_parts_mut(dx, len).fill(0.0);
                continue;
            }
            let at_label = (*p.add(label as usize) - 1.0) * weight;
            let weight = s.splat(weight);
            for_registers!(S, len, |i, n| {
                s.store_n(dx.add(i), s.mul(s.load_n(p.add(i), n), weight), n);
            });
            *dx.add(label as usize) = at_label;
        }
    }
}

fn check_labels(labels: &[i64], classes: usize, ignore: i64) -> Result<()> {
    let wrong = |label: &&i64| **label != ignore && !(0..classes as i64).contains(*label);
    match labels.iter().find(wrong) {
        None => Ok(()),
        Some(label) => Err(Error::invalid("label out of range")
            .expected(format!("0 to {} (or {ignore} to be ignored)", classes as i64 - 1))
            .got(label)),
    }
}

/// Computes the softmax of the rows of `logits`, and the cross-entropy of each with its label. Rows
/// labeled `ignore` have loss 0.
pub fn softmax_cross_entropy<'a>(
    pool: &Pool,
    logits: impl Into<Input<'a, f32>>,
    labels: &[i64],
    ignore: i64,
    softmax: &mut [f32],
    loss: &mut [f32],
) -> Result<()> {
    assert_eq!(labels.len(), loss.len(), "expected one label and one loss per row");
    if labels.is_empty() {
        return Ok(());
    }
    let (all, len) = (softmax.len(), softmax.len() / labels.len());
    assert_eq!(check_rows(len, all, &[]), labels.len(), "logits and labels differ in rows");
    check_labels(labels, len, ignore)?;
    let (p, labels) = (softmax.as_mut_ptr(), SharedPtr::new(labels.as_ptr()));
    let (x, p) = (SharedPtr::new(logits.into().start(all, p, all)), SharedPtr::new_mut(p));
    let losses = SharedPtr::new_mut(loss.as_mut_ptr());
    pool.run_ranges(loss.len(), grain_rows(len), |range| {
        // SAFETY: tasks have different rows, and lengths and labels were checked.
        unsafe { hard_rows(x.at(0), labels.at(0), ignore, p.at(0), losses.at(0), range, len) };
    });
    Ok(())
}

/// Computes the gradient of the logits from the softmax and the gradient of every row's loss.
pub fn softmax_cross_entropy_grad<'a>(
    pool: &Pool,
    softmax: impl Into<Input<'a, f32>>,
    labels: &[i64],
    ignore: i64,
    dloss: &[f32],
    dlogits: &mut [f32],
) -> Result<()> {
    assert_eq!(labels.len(), dloss.len(), "expected one label and one loss per row");
    if labels.is_empty() {
        return Ok(());
    }
    let (all, len) = (dlogits.len(), dlogits.len() / labels.len());
    assert_eq!(check_rows(len, all, &[]), labels.len(), "logits and labels differ in rows");
    check_labels(labels, len, ignore)?;
    let (dx, labels) = (dlogits.as_mut_ptr(), SharedPtr::new(labels.as_ptr()));
    let (p, dl) = (softmax.into().start(all, dx, all), SharedPtr::new(dloss.as_ptr()));
    let (p, dx) = (SharedPtr::new(p), SharedPtr::new_mut(dx));
    pool.run_ranges(dloss.len(), grain_rows(len), |range| {
        // SAFETY: tasks have different rows, and lengths and labels were checked.
        unsafe { hard_grad_rows(p.at(0), labels.at(0), ignore, dl.at(0), dx.at(0), range, len) };
    });
    Ok(())
}

kernel! {
    unsafe fn soft_rows<S>(
        s: S, x: *const f32, labels: *const f32, p: *mut f32, loss: *mut f32, rows: Range<usize>,
        len: usize,
    ) {
        for row in rows {
            let (x, p, labels) = (x.add(row * len), p.add(row * len), labels.add(row * len));
            let max = row_max(s, x, len);
            let target = row_dot(s, x, labels, len);
            let sum = row_exp(s, x, max, p, len);
            row_scale(s, p, 1.0 / sum, len);
            *loss.add(row) = (sum.ln() + max) * row_sum(s, labels, len) - target;
        }
    }
}

kernel! {
    unsafe fn soft_grad_rows<S>(
        s: S, p: *const f32, labels: *const f32, dloss: *const f32, dx: *mut f32,
        rows: Range<usize>, len: usize,
    ) {
        for row in rows {
            let (p, dx, labels) = (p.add(row * len), dx.add(row * len), labels.add(row * len));
            let total = s.splat(row_sum(s, labels, len));
            let weight = s.splat(*dloss.add(row));
            for_registers!(S, len, |i, n| {
                let p = s.mul(s.load_n(p.add(i), n), total);
                s.store_n(dx.add(i), s.mul(s.sub(p, s.load_n(labels.add(i), n)), weight), n);
            });
        }
    }
}

/// Like [`softmax_cross_entropy`], with a distribution over the classes for every row.
pub fn softmax_cross_entropy_soft<'a>(
    pool: &Pool,
    logits: impl Into<Input<'a, f32>>,
    labels: &[f32],
    softmax: &mut [f32],
    loss: &mut [f32],
) {
    if loss.is_empty() {
        return;
    }
    let (all, len) = (softmax.len(), softmax.len() / loss.len());
    let rows = check_rows(len, all, &[labels.len()]);
    assert_eq!(rows, loss.len(), "expected one loss per row");
    let (p, labels) = (softmax.as_mut_ptr(), SharedPtr::new(labels.as_ptr()));
    let (x, p) = (SharedPtr::new(logits.into().start(all, p, all)), SharedPtr::new_mut(p));
    let losses = SharedPtr::new_mut(loss.as_mut_ptr());
    pool.run_ranges(rows, grain_rows(len), |range| {
        // SAFETY: tasks have different rows, and the lengths were checked.
        unsafe { soft_rows(x.at(0), labels.at(0), p.at(0), losses.at(0), range, len) };
    });
}

/// Computes the gradient of the logits of [`softmax_cross_entropy_soft`]. It is exact for labels of
/// any sum.
pub fn softmax_cross_entropy_soft_grad<'a>(
    pool: &Pool,
    softmax: impl Into<Input<'a, f32>>,
    labels: &[f32],
    dloss: &[f32],
    dlogits: &mut [f32],
) {
    if dloss.is_empty() {
        return;
    }
    let (all, len) = (dlogits.len(), dlogits.len() / dloss.len());
    let rows = check_rows(len, all, &[labels.len()]);
    assert_eq!(rows, dloss.len(), "expected one loss per row");
    let (dx, labels) = (dlogits.as_mut_ptr(), SharedPtr::new(labels.as_ptr()));
    let (p, dl) = (softmax.into().start(all, dx, all), SharedPtr::new(dloss.as_ptr()));
    let (p, dx) = (SharedPtr::new(p), SharedPtr::new_mut(dx));
    pool.run_ranges(rows, grain_rows(len), |range| {
        // SAFETY: tasks have different rows, and the lengths were checked.
        unsafe { soft_grad_rows(p.at(0), labels.at(0), dl.at(0), dx.at(0), range, len) };
    });
}

/// A loss of one element and its label: its value, and its derivative by the first argument.
trait PointLoss: Copy + Send + Sync {
    fn value<S: Simd>(self, s: S, x: S::F, label: S::F) -> S::F;
    fn slope<S: Simd>(self, s: S, x: S::F, label: S::F) -> S::F;
}

#[derive(Clone, Copy)]
struct SigmoidCrossEntropy {
    /// NaN, which equals no label, if nothing is ignored.
    ignore: f32,
}

impl PointLoss for SigmoidCrossEntropy {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::F, label: S::F) -> S::F {
        // max(x, 0) - x label + ln(1 + exp(-|x|))
        let loss = s.neg_fma(x, label, vmath::softplus(s, x));
        s.select(s.eq(label, s.splat(self.ignore)), s.zero(), loss)
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: S::F, label: S::F) -> S::F {
        let slope = s.sub(vmath::sigmoid(s, x), label);
        s.select(s.eq(label, s.splat(self.ignore)), s.zero(), slope)
    }
}

#[derive(Clone, Copy)]
struct LogLoss {
    epsilon: f32,
}

impl PointLoss for LogLoss {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, p: S::F, label: S::F) -> S::F {
        let (one, epsilon) = (s.splat(1.0), s.splat(self.epsilon));
        let yes = s.mul(label, vmath::log(s, s.add(p, epsilon)));
        let no = s.mul(s.sub(one, label), vmath::log(s, s.add(s.sub(one, p), epsilon)));
        s.neg(s.add(yes, no))
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, p: S::F, label: S::F) -> S::F {
        let (one, epsilon) = (s.splat(1.0), s.splat(self.epsilon));
        let yes = s.div(label, s.add(p, epsilon));
        let no = s.div(s.sub(one, label), s.add(s.sub(one, p), epsilon));
        s.sub(no, yes)
    }
}

kernel! {
    unsafe fn point_loss<S, L: PointLoss>(
        s: S, loss: L, x: *const f32, label: *const f32, out: *mut f32, len: usize,
    ) {
        for_registers!(S, len, |i, n| {
            let value = loss.value(s, s.load_n(x.add(i), n), s.load_n(label.add(i), n));
            s.store_n(out.add(i), value, n);
        });
    }
}

kernel! {
    unsafe fn point_loss_grad<S, L: PointLoss>(
        s: S, loss: L, x: *const f32, label: *const f32, dloss: *const f32, dx: *mut f32,
        len: usize,
    ) {
        for_registers!(S, len, |i, n| {
            let slope = loss.slope(s, s.load_n(x.add(i), n), s.load_n(label.add(i), n));
            s.store_n(dx.add(i), s.mul(slope, s.load_n(dloss.add(i), n)), n);
        });
    }
}

fn point_forward<L: PointLoss>(pool: &Pool, kind: L, x: &[f32], label: &[f32], loss: &mut [f32]) {
    assert!(x.len() == label.len() && x.len() == loss.len(), "tensors differ in length");
    let (x, label) = (SharedPtr::new(x.as_ptr()), SharedPtr::new(label.as_ptr()));
    let out = SharedPtr::new_mut(loss.as_mut_ptr());
    pool.run_ranges(loss.len(), GRAIN, |range| {
        let i = range.start;
        // SAFETY: ranges are disjoint and inside all three slices.
        unsafe { point_loss(kind, x.at(i), label.at(i), out.at(i), range.len()) };
    });
}

fn point_backward<L: PointLoss>(
    pool: &Pool,
    kind: L,
    x: &[f32],
    label: &[f32],
    dloss: &[f32],
    dx: &mut [f32],
) {
    assert!(x.len() == label.len() && x.len() == dx.len(), "tensors differ in length");
    assert_eq!(dloss.len(), dx.len(), "tensors differ in length");
    let (x, label, dl) = (
        SharedPtr::new(x.as_ptr()),
        SharedPtr::new(label.as_ptr()),
        SharedPtr::new(dloss.as_ptr()),
    );
    let out = SharedPtr::new_mut(dx.as_mut_ptr());
    pool.run_ranges(dx.len(), GRAIN, |range| {
        let i = range.start;
        // SAFETY: ranges are disjoint and inside all four slices.
        unsafe { point_loss_grad(kind, x.at(i), label.at(i), dl.at(i), out.at(i), range.len()) };
    });
}

/// Computes the cross-entropy of sigmoid(logit) with its label for each element. Labels equal to
/// `ignore` have loss 0.
pub fn sigmoid_cross_entropy(
    pool: &Pool,
    logits: &[f32],
    labels: &[f32],
    ignore: Option<f32>,
    loss: &mut [f32],
) {
    let kind = SigmoidCrossEntropy { ignore: ignore.unwrap_or(f32::NAN) };
    point_forward(pool, kind, logits, labels, loss);
}

/// Computes the gradient of the logits of [`sigmoid_cross_entropy`].
pub fn sigmoid_cross_entropy_grad(
    pool: &Pool,
    logits: &[f32],
    labels: &[f32],
    ignore: Option<f32>,
    dloss: &[f32],
    dlogits: &mut [f32],
) {
    let kind = SigmoidCrossEntropy { ignore: ignore.unwrap_or(f32::NAN) };
    point_backward(pool, kind, logits, labels, dloss, dlogits);
}

/// Computes -label ln(p + epsilon) - (1 - label) ln(1 - p + epsilon).
pub fn log_loss(pool: &Pool, p: &[f32], labels: &[f32], epsilon: f32, loss: &mut [f32]) {
    point_forward(pool, LogLoss { epsilon }, p, labels, loss);
}

/// Computes the gradient of the probabilities of [`log_loss`].
pub fn log_loss_grad(
    pool: &Pool,
    p: &[f32],
    labels: &[f32],
    epsilon: f32,
    dloss: &[f32],
    dp: &mut [f32],
) {
    point_backward(pool, LogLoss { epsilon }, p, labels, dloss, dp);
}
