//! AdamW: Adam with decoupled weight decay, which bypasses the moments.

use super::adam::moments;
use super::{Optimizer, State, UpdateRule};
use crate::LearningRate;
use crate::setters::setters;
use fleet_ir::Attr;

/// AdamW: `w *= 1 - lr * coeff` before each step of Adam. The general option `weight_decay`
/// differs: it is added to gradients and so enters the moments. Defaults: `coeff` 0.01, others as
/// in Adam.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, AdamW::new(1e-4).beta1(0.8).coeff(0.1).no_decay([".b_0"]))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub type AdamW = Optimizer<AdamWRule>;

/// Rule of [`AdamW`].
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWRule {
    /// Factor of the moving average of gradients.
    pub beta1: f64,
    /// Factor of the moving average of squared gradients.
    pub beta2: f64,
    /// Added to the root, so that the divisor is not 0.
    pub epsilon: f64,
    /// Weight decay per step, multiplied by the learning rate.
    pub coeff: f64,
    /// Whether sparse gradients leave the moments of unused rows unchanged.
    pub lazy_mode: bool,
    /// Substrings of the names of parameters that are not decayed.
    pub no_decay: Vec<String>,
}

impl AdamW {
    /// Returns the optimizer with decay 0.01 of all parameters.
    pub fn new(learning_rate: impl Into<LearningRate>) -> AdamW {
        let rule = AdamWRule {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            coeff: 0.01,
            lazy_mode: false,
            no_decay: Vec::new(),
        };
        Optimizer::with(rule, learning_rate)
    }

    /// Excludes parameters from decay whose names contain one of these substrings.
    pub fn no_decay<S: Into<String>>(mut self, parts: impl IntoIterator<Item = S>) -> Self {
        self.rule.no_decay = parts.into_iter().map(Into::into).collect();
        self
    }

    setters! {
        /// Sets `beta1`, the factor of the moving average of gradients; 0.9 by default.
        rule.beta1: f64,
        /// Sets `beta2`, the factor of the moving average of squared gradients; 0.999 by default.
        rule.beta2: f64,
        /// Sets `epsilon`, which keeps the divisor above 0; 1e-8 by default.
        rule.epsilon: f64,
        /// Sets the weight decay per step, which is multiplied by the learning rate; 0.01 by
        /// default.
        rule.coeff: f64,
        /// Sets whether sparse gradients leave the moments of unused rows unchanged; off by
        /// default.
        rule.lazy_mode: bool,
    }
}

impl UpdateRule for AdamWRule {
    fn op(&self) -> &'static str {
        "adamw"
    }

    fn state(&self) -> Vec<State> {
        moments(self.beta1, self.beta2)
    }

    fn skips_zeroed_steps(&self) -> bool {
        true
    }

    fn attrs(&self, parameter: &str) -> Vec<(&'static str, Attr)> {
        let decay = !self.no_decay.iter().any(|part| parameter.contains(part));
        vec![
            ("beta1", self.beta1.into()),
            ("beta2", self.beta2.into()),
            ("epsilon", self.epsilon.into()),
            ("lazy_mode", self.lazy_mode.into()),
            ("coeff", self.coeff.into()),
            ("with_decay", decay.into()),
        ]
    }
}
