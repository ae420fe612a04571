//! Adadelta: gradient steps scaled by moving averages of past gradients and past updates.

use super::{Optimizer, State, UpdateRule};
use crate::LearningRate;
use crate::setters::setters;
use fleet_ir::Attr;

/// Adadelta: `a = rho a + (1 - rho) g^2; dx = -sqrt((d + epsilon) / (a + epsilon)) * g;
/// d = rho d + (1 - rho) dx^2; w += lr * dx`. Defaults: `rho` 0.95, `epsilon` 1e-6.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, Adadelta::new(1.0).rho(0.9))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub type Adadelta = Optimizer<AdadeltaRule>;

/// Rule of [`Adadelta`].
#[derive(Clone, Debug, PartialEq)]
pub struct AdadeltaRule {
    /// Factor of both moving averages.
    pub rho: f64,
    /// Added to both averages before the root is taken.
    pub epsilon: f64,
}

impl Adadelta {
    /// Returns the optimizer with `rho` 0.95 and `epsilon` 1e-6.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Adadelta {
        Optimizer::with(AdadeltaRule { rho: 0.95, epsilon: 1e-6 }, learning_rate)
    }

    setters! {
        /// Sets `rho`, the factor of both moving averages; 0.95 by default.
        rule.rho: f64,
        /// Sets `epsilon`, which is added to both averages; 1e-6 by default.
        rule.epsilon: f64,
    }
}

impl UpdateRule for AdadeltaRule {
    fn op(&self) -> &'static str {
        "adadelta"
    }

    /// The documented names have an extra underscore: `w__avg_squared_grad_0`.
    fn state(&self) -> Vec<State> {
        vec![
            State::each("_avg_squared_grad", "AvgSquaredGrad"),
            State::each("_avg_squared_update", "AvgSquaredUpdate"),
        ]
    }

    fn attrs(&self, _: &str) -> Vec<(&'static str, Attr)> {
        vec![("rho", self.rho.into()), ("epsilon", self.epsilon.into())]
    }
}
