//! Adamax: Adam with the largest absolute gradient seen instead of the root mean square.

use super::{Optimizer, State, UpdateRule};
use crate::LearningRate;
use crate::setters::setters;
use fleet_ir::Attr;

/// Adamax: `m = beta1 m + (1 - beta1) g; u = max(|g|, beta2 u + epsilon);
/// w -= lr / (1 - beta1^t) * m / u`. Defaults: `beta1` 0.9, `beta2` 0.999, `epsilon` 1e-8.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, Adamax::new(1e-3).beta1(0.8))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub type Adamax = Optimizer<AdamaxRule>;

/// Rule of [`Adamax`].
#[derive(Clone, Debug, PartialEq)]
pub struct AdamaxRule {
    /// Factor of the moving average of gradients.
    pub beta1: f64,
    /// Factor of the decaying maximum of gradients.
    pub beta2: f64,
    /// Added to the decayed maximum, so that the divisor is not 0.
    pub epsilon: f64,
}

impl Adamax {
    /// Returns the optimizer with the default `beta1`, `beta2` and `epsilon`.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Adamax {
        let rule = AdamaxRule { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
        Optimizer::with(rule, learning_rate)
    }

    setters! {
        /// Sets `beta1`, the factor of the moving average of gradients; 0.9 by default.
        rule.beta1: f64,
        /// Sets `beta2`, the factor of the decaying maximum of gradients; 0.999 by default.
        rule.beta2: f64,
        /// Sets `epsilon`, which keeps the divisor above 0; 1e-8 by default.
        rule.epsilon: f64,
    }
}

impl UpdateRule for AdamaxRule {
    fn op(&self) -> &'static str {
        "adamax"
    }

    fn state(&self) -> Vec<State> {
        vec![
            State::each("moment", "Moment"),
            State::each("inf_norm", "InfNorm"),
            State::single("beta1_pow_acc", "Beta1Pow", self.beta1),
        ]
    }

    fn attrs(&self, _: &str) -> Vec<(&'static str, Attr)> {
        vec![
            ("beta1", self.beta1.into()),
            ("beta2", self.beta2.into()),
            ("epsilon", self.epsilon.into()),
        ]
    }
}
