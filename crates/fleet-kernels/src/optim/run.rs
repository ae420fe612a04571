//! Updates of one run of weights, for the rules of parameter servers: a row of a sparse table, or a
//! whole dense table. A run is updated on the calling thread, within a kernel of the caller. An
//! update clamps weights to `bounds`.

use super::rules::{SgdOp, UpdateOp};
use crate::for_registers;
use crate::simd::Simd;

/// Weights with their gradient and the state of the rule.
#[derive(Debug)]
pub struct Run<'a> {
    /// The weights, which are updated in place.
    pub weights: &'a mut [f32],
    /// The state of the rule: runs as long as the weights, one after another.
    pub state: &'a mut [f32],
    /// One gradient per weight.
    pub grad: &'a [f32],
}

impl Run<'_> {
    /// Returns the number of weights.
    ///
    /// # Panics
    /// Panics if the gradient has another length, or the state is shorter than `state_len`. Where
    /// the caller makes the slices from one length, the compiler removes the comparison.
    #[inline(always)]
    fn checked_len(&self, states: usize) -> usize {
        let len = self.weights.len();
        assert!(self.grad.len() == len && self.state.len() >= states * len, "wrong length");
        len
    }
}

#[inline(always)]
fn clamp<S: Simd>(s: S, w: S::F, bounds: [f32; 2]) -> S::F {
    s.min(s.splat(bounds[1]), s.max(s.splat(bounds[0]), w))
}

/// Applies a formula whose state is `O::STATES` runs of numbers, one after another.
///
/// # Panics
/// Panics if the lengths of the slices do not fit each other.
#[inline(always)]
pub fn update_run<S: Simd, O: UpdateOp>(s: S, op: O, run: Run<'_>, bounds: [f32; 2]) {
    let len = run.checked_len(O::STATES);
    let (weights, states) = (run.weights.as_mut_ptr(), run.state.as_mut_ptr());
    for_registers!(S, len, |i, n| {
        // SAFETY: `n` floats from `i` on are inside each run, which `checked_len` has compared.
        unsafe {
            let mut state = [s.zero(); 3];
            for (k, value) in state.iter_mut().enumerate().take(O::STATES) {
                *value = s.load_n(states.add(k * len + i), n);
            }
            let (w, g) = (weights.add(i), s.load_n(run.grad.as_ptr().add(i), n));
            let new = op.update(s, s.load_n(w, n), g, &mut state);
            for (k, value) in state.into_iter().enumerate().take(O::STATES) {
                s.store_n(states.add(k * len + i), value, n);
            }
            s.store_n(w, clamp(s, new, bounds), n);
        }
    });
}

/// Applies `w -= lr g scale`, and returns the mean of (g scale)².
///
/// # Panics
/// Panics if the gradient differs from the weights in length.
#[inline(always)]
pub fn sgd_with_mean_square<S: Simd>(
    s: S,
    lr: f32,
    scale: f32,
    run: Run<'_>,
    bounds: [f32; 2],
) -> f32 {
    let len = run.checked_len(0);
    let (op, scale, weights) = (SgdOp { lr }, s.splat(scale), run.weights.as_mut_ptr());
    let mut squares = s.zero();
    for_registers!(S, len, |i, n| {
        // SAFETY: as in `update_run`.
        unsafe {
            let w = weights.add(i);
            let g = s.mul(s.load_n(run.grad.as_ptr().add(i), n), scale);
            squares = s.fma(g, g, squares);
            let new = op.update(s, s.load_n(w, n), g, &mut [s.zero(); 3]);
            s.store_n(w, clamp(s, new, bounds), n);
        }
    });
    s.sum(squares) / len as f32
}

/// Adam with one moment of each order per run.
#[derive(Clone, Copy, Debug)]
pub struct SharedAdamOp {
    /// Factor of the moving average of gradients.
    pub beta1: f32,
    /// Factor of the moving average of squared gradients.
    pub beta2: f32,
    /// lr √(1 - b2^t) / (1 - b1^t).
    pub rate: f32,
    /// Added to the root.
    pub epsilon: f32,
}

/// Applies `m_i = b1 m + (1 - b1) g_i`, `v_i` likewise and `w -= rate m_i / (√v_i + epsilon)`.
/// Returns the means of `m_i` and `v_i`, which are the next moments.
///
/// # Panics
/// Panics if the gradient differs from the weights in length.
#[inline(always)]
pub fn shared_adam<S: Simd>(
    s: S,
    op: SharedAdamOp,
    moments: [f32; 2],
    run: Run<'_>,
    bounds: [f32; 2],
) -> [f32; 2] {
    let len = run.checked_len(0);
    let weights = run.weights.as_mut_ptr();
    let (rest1, rest2) = (s.splat(1.0 - op.beta1), s.splat(1.0 - op.beta2));
    let (rate, epsilon) = (s.splat(op.rate), s.splat(op.epsilon));
    let (old1, old2) = (s.splat(op.beta1 * moments[0]), s.splat(op.beta2 * moments[1]));
    let (mut sum1, mut sum2) = (s.zero(), s.zero());
    for_registers!(S, len, |i, n| {
        // SAFETY: as in `update_run`.
        unsafe {
            let (w, g) = (weights.add(i), s.load_n(run.grad.as_ptr().add(i), n));
            let first = s.fma(rest1, g, old1);
            let second = s.fma(rest2, s.mul(g, g), old2);
            sum1 = s.add(sum1, s.keep_first(first, n));
            sum2 = s.add(sum2, s.keep_first(second, n));
            let step = s.div(s.mul(rate, first), s.add(s.sqrt(second), epsilon));
            s.store_n(w, clamp(s, s.sub(s.load_n(w, n), step), bounds), n);
        }
    });
    [s.sum(sum1) / len as f32, s.sum(sum2) / len as f32]
}
