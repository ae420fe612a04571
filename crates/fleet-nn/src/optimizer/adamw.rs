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
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub coeff: f64,
    pub lazy_mode: bool,
    /// Substrings of the names of parameters that are not decayed.
    pub no_decay: Vec<String>,
}

impl AdamW {
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
        rule.beta1: f64,
        rule.beta2: f64,
        rule.epsilon: f64,
        /// Sets the decay coefficient.
        rule.coeff: f64,
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
