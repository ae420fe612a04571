//! Adam: moving averages of the gradient and of its square, with bias correction.

use super::{Optimizer, State, UpdateRule};
use crate::LearningRate;
use crate::setters::setters;
use fleet_ir::Attr;

/// Adam: `m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2`. With bias correction,
/// `m^ = m / (1 - beta1^t)` and `v^ = v / (1 - beta2^t)`, the step is
/// `w -= lr * m^ / (sqrt(v^) + epsilon)`. Defaults: `beta1` 0.9, `beta2` 0.999, `epsilon` 1e-8,
/// `lazy_mode` off.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, Adam::new(1e-3).beta1(0.8).beta2(0.99))?;
/// assert_eq!(net.var("fc_0.w_0_beta1_pow_acc_0").shape(), Shape::from([1]));
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub type Adam = Optimizer<AdamRule>;

/// Rule of [`Adam`].
#[derive(Clone, Debug, PartialEq)]
pub struct AdamRule {
    /// Factor of the moving average of gradients.
    pub beta1: f64,
    /// Factor of the moving average of squared gradients.
    pub beta2: f64,
    /// Added to the root, so that the divisor is not 0.
    pub epsilon: f64,
    /// Whether sparse gradients leave the moments of unused rows unchanged.
    pub lazy_mode: bool,
}

impl Adam {
    /// Returns the optimizer with the default `beta1`, `beta2` and `epsilon`.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Adam {
        let rule = AdamRule { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, lazy_mode: false };
        Optimizer::with(rule, learning_rate)
    }

    setters! {
        /// Sets `beta1`, the factor of the moving average of gradients; 0.9 by default.
        rule.beta1: f64,
        /// Sets `beta2`, the factor of the moving average of squared gradients; 0.999 by default.
        rule.beta2: f64,
        /// Sets `epsilon`, which keeps the divisor above 0; 1e-8 by default.
        rule.epsilon: f64,
        /// Sets whether sparse gradients leave the moments of unused rows unchanged; off by
        /// default.
        rule.lazy_mode: bool,
    }
}

impl UpdateRule for AdamRule {
    fn op(&self) -> &'static str {
        "adam"
    }

    fn state(&self) -> Vec<State> {
        moments(self.beta1, self.beta2)
    }

    fn skips_zeroed_steps(&self) -> bool {
        true
    }

    fn attrs(&self, _: &str) -> Vec<(&'static str, Attr)> {
        vec![
            ("beta1", self.beta1.into()),
            ("beta2", self.beta2.into()),
            ("epsilon", self.epsilon.into()),
            ("lazy_mode", self.lazy_mode.into()),
        ]
    }
}

/// Returns the state of Adam and its variants. The powers of the betas start at the betas.
pub(super) fn moments(beta1: f64, beta2: f64) -> Vec<State> {
    vec![
        State::each("moment1", "Moment1"),
        State::each("moment2", "Moment2"),
        State::single("beta1_pow_acc", "Beta1Pow", beta1),
        State::single("beta2_pow_acc", "Beta2Pow", beta2),
    ]
}
