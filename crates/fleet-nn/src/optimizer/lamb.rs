//! LAMB: Adam with a learning rate per layer, proportional to the norm of its weights.

use super::adam::moments;
use super::{Optimizer, State, UpdateRule};
use crate::LearningRate;
use crate::setters::setters;
use fleet_ir::Attr;

/// LAMB, layer-wise adaptive moments: `r = m^ / (sqrt(v^) + epsilon) + lamb_weight_decay * w` with
/// the moments of Adam; `w -= lr * |w| / |r| * r`. Parameters without decay, and those of
/// which a norm is 0, have the rate `lr`. Defaults: `beta1` 0.9, `beta2` 0.999, `epsilon` 1e-6,
/// `lamb_weight_decay` 0.01.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, Lamb::new(1e-3).exclude_from_weight_decay(["layer_norm", ".b_0"]))?;
/// let other = Lamb::new(1e-3).beta1(0.8).lamb_weight_decay(0.1).always_adapt(true);
/// assert!(other.rule.always_adapt);
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub type Lamb = Optimizer<LambRule>;

/// Rule of [`Lamb`].
#[derive(Clone, Debug, PartialEq)]
pub struct LambRule {
    /// Factor of the moving average of gradients.
    pub beta1: f64,
    /// Factor of the moving average of squared gradients.
    pub beta2: f64,
    /// Added to the root, so that the divisor is not 0.
    pub epsilon: f64,
    /// Weight decay, which is added to the update before it is scaled.
    pub lamb_weight_decay: f64,
    /// Whether to scale by the norms also without weight decay.
    pub always_adapt: bool,
    /// Substrings of the names of parameters that are not decayed.
    pub exclude_from_weight_decay: Vec<String>,
}

impl Lamb {
    /// Returns the optimizer with decay 0.01 of all parameters.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Lamb {
        let rule = LambRule {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-6,
            lamb_weight_decay: 0.01,
            always_adapt: false,
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
        /// Sets `beta1`, the factor of the moving average of gradients; 0.9 by default.
        rule.beta1: f64,
        /// Sets `beta2`, the factor of the moving average of squared gradients; 0.999 by default.
        rule.beta2: f64,
        /// Sets `epsilon`, which keeps the divisor above 0; 1e-6 by default.
        rule.epsilon: f64,
        /// Sets the weight decay, which is added to the update before it is scaled; 0.01 by
        /// default.
        rule.lamb_weight_decay: f64,
        /// Sets whether to scale by the norms also without weight decay; off by default.
        rule.always_adapt: bool,
    }
}

impl UpdateRule for LambRule {
    fn op(&self) -> &'static str {
        "lamb"
    }

    fn op_of_parts(&self) -> Option<&'static str> {
        Some("c_lamb")
    }

    fn state(&self) -> Vec<State> {
        moments(self.beta1, self.beta2)
    }

    fn skips_zeroed_steps(&self) -> bool {
        true
    }

    fn attrs(&self, parameter: &str) -> Vec<(&'static str, Attr)> {
        let excluded = self.exclude_from_weight_decay.iter().any(|part| parameter.contains(part));
        let decay = if excluded { 0.0 } else { self.lamb_weight_decay };
        vec![
            ("beta1", self.beta1.into()),
            ("beta2", self.beta2.into()),
            ("epsilon", self.epsilon.into()),
            ("weight_decay", decay.into()),
            ("always_adapt", self.always_adapt.into()),
        ]
    }
}
