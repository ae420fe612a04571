//! The formulas on registers: one type per rule.

use super::{Regularizer, Step};
use crate::simd::Simd;

/// The gradient after scale and regularizer, as in the formulas.
#[derive(Clone, Copy)]
pub(super) struct Gradient {
    pub(super) scale: f32,
    pub(super) regularizer: Regularizer,
}

impl Gradient {
    #[inline(always)]
    pub(super) fn at<S: Simd>(self, s: S, g: S::F, w: S::F) -> S::F {
        let g = s.mul(g, s.splat(self.scale));
        match self.regularizer {
            Regularizer::None => g,
            Regularizer::L2(coefficient) => s.fma(w, s.splat(coefficient), g),
            Regularizer::L1(coefficient) => {
                let push = s.copysign(s.splat(coefficient), w);
                s.select(s.eq(w, s.zero()), g, s.add(g, push))
            }
        }
    }
}

/// A rule on registers: returns the new parameter, and updates the state in place.
pub trait UpdateOp: Copy + Send + Sync {
    /// Number of state values of a parameter, the first ones of `state`.
    const STATES: usize;
    /// Returns the new parameters of a register, from parameters `w`, gradients `g` and the state.
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F;
}

/// w -= lr g.
#[derive(Clone, Copy)]
pub struct SgdOp {
    /// Learning rate.
    pub lr: f32,
}

impl UpdateOp for SgdOp {
    const STATES: usize = 0;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, _: &mut [S::F; 3]) -> S::F {
        s.neg_fma(s.splat(self.lr), g, w)
    }
}

/// v = mu v + g; w -= lr v, or lr (g + mu v) with Nesterov. State: v.
#[derive(Clone, Copy)]
pub struct MomentumOp<const NESTEROV: bool> {
    /// Learning rate.
    pub lr: f32,
    /// Factor of the velocity.
    pub mu: f32,
}

impl<const NESTEROV: bool> UpdateOp for MomentumOp<NESTEROV> {
    const STATES: usize = 1;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let mu = s.splat(self.mu);
        state[0] = s.fma(mu, state[0], g);
        let d = if NESTEROV { s.fma(mu, state[0], g) } else { state[0] };
        s.neg_fma(s.splat(self.lr), d, w)
    }
}

#[derive(Clone, Copy)]
pub(super) struct AdamOp {
    pub(super) beta1: f32,
    pub(super) beta2: f32,
    /// lr √(1 - b2^t) / (1 - b1^t).
    pub(super) rate: f32,
    /// eps √(1 - b2^t).
    pub(super) epsilon: f32,
    /// 1 - lr decay.
    keep: f32,
}

impl AdamOp {
    pub(super) fn new(
        beta1: f32,
        beta2: f32,
        epsilon: f32,
        lr: f32,
        step: Step,
        decay: f32,
    ) -> Self {
        let root = (1.0 - step.beta2_pow).sqrt();
        AdamOp {
            beta1,
            beta2,
            rate: lr * root / (1.0 - step.beta1_pow),
            epsilon: epsilon * root,
            keep: 1.0 - lr * decay,
        }
    }
}

/// Updates m and v of the Adam family.
#[inline(always)]
pub(super) fn moments<S: Simd>(s: S, beta1: f32, beta2: f32, g: S::F, state: &mut [S::F; 3]) {
    state[0] = s.fma(s.splat(beta1), state[0], s.mul(s.splat(1.0 - beta1), g));
    state[1] = s.fma(s.splat(beta2), state[1], s.mul(s.mul(s.splat(1.0 - beta2), g), g));
}

impl UpdateOp for AdamOp {
    const STATES: usize = 2;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        moments(s, self.beta1, self.beta2, g, state);
        let root = s.add(s.sqrt_fast(state[1]), s.splat(self.epsilon));
        let w = s.mul(w, s.splat(self.keep));
        s.neg_fma(s.splat(self.rate), s.div(state[0], root), w)
    }
}

#[derive(Clone, Copy)]
pub(super) struct AdamaxOp {
    pub(super) beta1: f32,
    pub(super) beta2: f32,
    pub(super) epsilon: f32,
    /// lr / (1 - b1^t).
    pub(super) rate: f32,
}

impl UpdateOp for AdamaxOp {
    const STATES: usize = 2;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        state[0] = s.fma(s.splat(self.beta1), state[0], s.mul(s.splat(1.0 - self.beta1), g));
        let old = s.fma(s.splat(self.beta2), state[1], s.splat(self.epsilon));
        state[1] = s.max(s.abs(g), old);
        s.neg_fma(s.splat(self.rate), s.div(state[0], state[1]), w)
    }
}

#[derive(Clone, Copy)]
pub(super) struct AdagradOp {
    pub(super) lr: f32,
    pub(super) epsilon: f32,
}

impl UpdateOp for AdagradOp {
    const STATES: usize = 1;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        state[0] = s.fma(g, g, state[0]);
        let root = s.add(s.sqrt_fast(state[0]), s.splat(self.epsilon));
        s.neg_fma(s.splat(self.lr), s.div(g, root), w)
    }
}

#[derive(Clone, Copy)]
pub(super) struct AdadeltaOp {
    pub(super) lr: f32,
    pub(super) rho: f32,
    pub(super) epsilon: f32,
}

impl UpdateOp for AdadeltaOp {
    const STATES: usize = 2;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let (rho, rest) = (s.splat(self.rho), s.splat(1.0 - self.rho));
        let epsilon = s.splat(self.epsilon);
        state[0] = s.fma(rho, state[0], s.mul(rest, s.mul(g, g)));
        let ratio = s.div(s.add(state[1], epsilon), s.add(state[0], epsilon));
        let d = s.mul(s.sqrt(ratio), g); // minus the documented dx
        state[1] = s.fma(rho, state[1], s.mul(rest, s.mul(d, d)));
        s.neg_fma(s.splat(self.lr), d, w)
    }
}

#[derive(Clone, Copy)]
pub(super) struct RmsPropOp<const CENTERED: bool> {
    pub(super) lr: f32,
    pub(super) rho: f32,
    pub(super) epsilon: f32,
    pub(super) mu: f32,
}

impl<const CENTERED: bool> UpdateOp for RmsPropOp<CENTERED> {
    const STATES: usize = if CENTERED { 3 } else { 2 };
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let (rho, rest) = (s.splat(self.rho), s.splat(1.0 - self.rho));
        state[0] = s.fma(rho, state[0], s.mul(rest, s.mul(g, g)));
        let mut square = s.add(state[0], s.splat(self.epsilon));
        if CENTERED {
            state[2] = s.fma(rho, state[2], s.mul(rest, g));
            square = s.neg_fma(state[2], state[2], square);
        }
        let move_by = s.div(s.mul(s.splat(self.lr), g), s.sqrt(square));
        state[1] = s.fma(s.splat(self.mu), state[1], move_by);
        s.sub(w, state[1])
    }
}

#[derive(Clone, Copy)]
pub(super) struct LarsOp {
    pub(super) local: f32,
    pub(super) mu: f32,
    pub(super) decay: f32,
}

impl UpdateOp for LarsOp {
    const STATES: usize = 1;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let g = s.fma(s.splat(self.decay), w, g);
        state[0] = s.fma(s.splat(self.mu), state[0], s.mul(s.splat(self.local), g));
        s.sub(w, state[0])
    }
}

/// The second pass of LAMB: the moments are already updated, and r is computed again.
#[derive(Clone, Copy)]
pub(super) struct LambOp {
    pub(super) rate: f32,
    pub(super) direction: LambDirection,
}

#[derive(Clone, Copy)]
pub(super) struct LambDirection {
    /// 1 / (1 - b1^t) and 1 / (1 - b2^t).
    correct1: f32,
    correct2: f32,
    pub(super) epsilon: f32,
    pub(super) decay: f32,
}

impl LambDirection {
    pub(super) fn new(step: Step, epsilon: f32, decay: f32) -> Self {
        LambDirection {
            correct1: 1.0 / (1.0 - step.beta1_pow),
            correct2: 1.0 / (1.0 - step.beta2_pow),
            epsilon,
            decay,
        }
    }

    #[inline(always)]
    pub(super) fn at<S: Simd>(self, s: S, w: S::F, m: S::F, v: S::F) -> S::F {
        let root = s.sqrt_fast(s.mul(v, s.splat(self.correct2)));
        let r = s.div(s.mul(m, s.splat(self.correct1)), s.add(root, s.splat(self.epsilon)));
        s.fma(s.splat(self.decay), w, r)
    }
}

impl UpdateOp for LambOp {
    const STATES: usize = 2;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, _: S::F, state: &mut [S::F; 3]) -> S::F {
        s.neg_fma(s.splat(self.rate), self.direction.at(s, w, state[0], state[1]), w)
    }
}

// Formulas of the rows of parameter servers. Adam and Adagrad differ from those of whole tensors in
// rounding: they take exact roots, so that a server computes the same bits on any machine, and a
// log that is replayed on another machine gives the same rows.

/// h += g²; w -= lr g / (√h + epsilon). State: h.
#[derive(Clone, Copy)]
pub struct RowAdagradOp {
    /// Learning rate.
    pub lr: f32,
    /// Added to the root.
    pub epsilon: f32,
}

impl UpdateOp for RowAdagradOp {
    const STATES: usize = 1;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        state[0] = s.fma(g, g, state[0]);
        // Where h is 0, g is: without the guard, an epsilon of 0 would make 0 / 0.
        let moved = s.gt(state[0], s.zero());
        let root = s.add(s.sqrt(state[0]), s.splat(self.epsilon));
        let step = s.div(s.mul(s.splat(self.lr), g), root);
        s.sub(w, s.select(moved, step, s.mul(g, s.zero())))
    }
}

/// s = g scale; w -= lr s √(g0 / (g0 + g2)); then g2 += s². State: g2.
#[derive(Clone, Copy)]
pub struct StdAdagradOp {
    /// Learning rate.
    pub lr: f32,
    /// Initial sum of squares.
    pub g0: f32,
    /// Factor on the gradient.
    pub scale: f32,
}

impl UpdateOp for StdAdagradOp {
    const STATES: usize = 1;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let (g, g0) = (s.mul(g, s.splat(self.scale)), s.splat(self.g0));
        let shrink = s.sqrt(s.div(g0, s.add(g0, state[0])));
        let step = s.mul(s.mul(s.splat(self.lr), g), shrink);
        state[0] = s.fma(g, g, state[0]);
        s.sub(w, step)
    }
}

/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g²; w -= rate m / (√v + epsilon). State: m, v.
#[derive(Clone, Copy)]
pub struct RowAdamOp {
    /// Factor of the moving average of gradients.
    pub beta1: f32,
    /// Factor of the moving average of squared gradients.
    pub beta2: f32,
    /// lr √(1 - b2^t) / (1 - b1^t).
    pub rate: f32,
    /// May include the factor √(1 - b2^t).
    pub epsilon: f32,
}

impl UpdateOp for RowAdamOp {
    const STATES: usize = 2;
    #[inline(always)]
    fn update<S: Simd>(self, s: S, w: S::F, g: S::F, state: &mut [S::F; 3]) -> S::F {
        let (rest1, rest2) = (s.splat(1.0 - self.beta1), s.splat(1.0 - self.beta2));
        state[0] = s.fma(s.splat(self.beta1), state[0], s.mul(rest1, g));
        state[1] = s.fma(s.splat(self.beta2), state[1], s.mul(rest2, s.mul(g, g)));
        let root = s.add(s.sqrt(state[1]), s.splat(self.epsilon));
        s.sub(w, s.div(s.mul(s.splat(self.rate), state[0]), root))
    }
}

/// Binds `$op` to the register form of the rule. `$lr` is the learning rate of the tensor.
macro_rules! with_rule {
    ($rule:expr, $step:expr, $lr:expr, $decay:expr, $op:ident => $body:expr) => {{
        let (step, lr, decay): (Step, f32, f32) = ($step, $lr, $decay);
        match $rule {
            Rule::Sgd => {
                let $op = SgdOp { lr };
                $body
            }
            Rule::Momentum { mu, nesterov: false } => {
                let $op = MomentumOp::<false> { lr, mu };
                $body
            }
            Rule::Momentum { mu, nesterov: true } => {
                let $op = MomentumOp::<true> { lr, mu };
                $body
            }
            Rule::Adam { beta1, beta2, epsilon } => {
                let $op = AdamOp::new(beta1, beta2, epsilon, lr, step, 0.0);
                $body
            }
            Rule::AdamW { beta1, beta2, epsilon } => {
                let $op = AdamOp::new(beta1, beta2, epsilon, lr, step, decay);
                $body
            }
            Rule::Adamax { beta1, beta2, epsilon } => {
                let $op = AdamaxOp { beta1, beta2, epsilon, rate: lr / (1.0 - step.beta1_pow) };
                $body
            }
            Rule::Adagrad { epsilon } => {
                let $op = AdagradOp { lr, epsilon };
                $body
            }
            Rule::Adadelta { rho, epsilon } => {
                let $op = AdadeltaOp { lr, rho, epsilon };
                $body
            }
            Rule::RmsProp { rho, epsilon, mu, centered: false } => {
                let $op = RmsPropOp::<false> { lr, rho, epsilon, mu };
                $body
            }
            Rule::RmsProp { rho, epsilon, mu, centered: true } => {
                let $op = RmsPropOp::<true> { lr, rho, epsilon, mu };
                $body
            }
            Rule::Lars { mu, .. } => {
                let $op = LarsOp { local: lr, mu, decay };
                $body
            }
            Rule::Lamb { epsilon, .. } => {
                let $op = LambOp { rate: lr, direction: LambDirection::new(step, epsilon, decay) };
                $body
            }
        }
    }};
}

pub(super) use with_rule;
