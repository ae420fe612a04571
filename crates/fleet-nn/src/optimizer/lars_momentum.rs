//! LARS: momentum with a learning rate per layer, proportional to the norm of its weights.

use super::{Optimizer, State, UpdateRule};
use crate::LearningRate;
use crate::setters::setters;
use fleet_ir::Attr;

/// LARS, layer-wise adaptive rate scaling: `v = mu * v + local * (g + wd * w); w -= v` with
/// `local = lr * lars_coeff * |w| / (|g| + wd * |w| + epsilon)` and `wd = lars_weight_decay`.
/// Parameters without decay, and those of which a norm is 0, have the rate `lr`. Defaults:
/// `lars_coeff` 0.001, `lars_weight_decay` 0.0005, `epsilon` 0.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, LarsMomentum::new(0.1, 0.9).exclude_from_weight_decay([".b_0"]))?;
/// let other = LarsMomentum::new(0.1, 0.9).lars_coeff(0.01).lars_weight_decay(1e-4);
/// assert_eq!(other.rule.lars_coeff, 0.01);
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub type LarsMomentum = Optimizer<LarsMomentumRule>;

/// Rule of [`LarsMomentum`].
#[derive(Clone, Debug, PartialEq)]
pub struct LarsMomentumRule {
    /// Factor of the velocity.
    pub mu: f64,
    /// Factor of the ratio of weight norm to gradient norm.
    pub lars_coeff: f64,
    /// Weight decay, which is added to the gradient and to its norm.
    pub lars_weight_decay: f64,
    /// Added to the divisor of the ratio.
    pub epsilon: f64,
    /// Substrings of the names of parameters that are not decayed.
    pub exclude_from_weight_decay: Vec<String>,
}

impl LarsMomentum {
    /// Returns the optimizer with `lars_coeff` 0.001 and decay 0.0005 of all parameters.
    pub fn new(learning_rate: impl Into<LearningRate>, mu: f64) -> LarsMomentum {
        let rule = LarsMomentumRule {
            mu,
            lars_coeff: 0.001,
            lars_weight_decay: 0.0005,
            epsilon: 0.0,
            exclude_from_weight_decay: Vec::new(),
        };
        Optimizer::with(rule, learning_rate)
    }

    /// Excludes parameters from decay whose names contain one of these substrings.
    pub fn exclude_from_weight_decay<S: Into<String>>(
        mut self,
        parts: impl IntoIterator<Item = S>,
    ) -> Self {
        self.rule.exclude_from_weight_decay = parts.into_iter().map(Into::into).collect();
        self
    }

    setters! {
        /// Sets the factor of the ratio of weight norm to gradient norm; 0.001 by default.
        rule.lars_coeff: f64,
        /// Sets the weight decay, which is added to the gradient and to its norm; 0.0005 by
        /// default.
        rule.lars_weight_decay: f64,
        /// Sets `epsilon`, which is added to the divisor of the ratio; 0 by default.
        rule.epsilon: f64,
    }
}

impl UpdateRule for LarsMomentumRule {
    fn op(&self) -> &'static str {
        "lars_momentum"
    }

    fn op_of_parts(&self) -> Option<&'static str> {
        Some("c_lars_momentum")
    }

    fn state(&self) -> Vec<State> {
        vec![State::each("velocity", "Velocity")]
    }

    fn attrs(&self, parameter: &str) -> Vec<(&'static str, Attr)> {
        let excluded = self.exclude_from_weight_decay.iter().any(|part| parameter.contains(part));
        let decay = if excluded { 0.0 } else { self.lars_weight_decay };
        vec![
            ("mu", self.mu.into()),
            ("lars_coeff", self.lars_coeff.into()),
            ("lars_weight_decay", decay.into()),
            ("epsilon", self.epsilon.into()),
        ]
    }
}
