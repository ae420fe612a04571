//! RMSProp:
//! `ms = rho * ms + (1 - rho) * g^2; v = momentum * v + lr * g / sqrt(ms + epsilon); w -= v`.

use super::{Optimizer, State, UpdateRule};
use crate::LearningRate;
use crate::setters::setters;
use fleet_ir::Attr;

/// RMSProp: `ms = rho * ms + (1 - rho) * g^2; v = momentum * v + lr * g / sqrt(ms + epsilon);
/// w -= v`. With `centered`, the variance `ms - mean^2` replaces `ms` in the root, with a moving
/// average `mean` of the gradient. Defaults: `rho` 0.95, `epsilon` 1e-6, `momentum` 0.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, RmsProp::new(0.01).momentum(0.9).centered(true))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub type RmsProp = Optimizer<RmsPropRule>;

/// Rule of [`RmsProp`].
#[derive(Clone, Debug, PartialEq)]
pub struct RmsPropRule {
    /// Factor of the moving averages.
    pub rho: f64,
    /// Added under the root, so that the divisor is not 0.
    pub epsilon: f64,
    /// Factor of the velocity; 0 by default.
    pub momentum: f64,
    /// Whether to divide by the deviation of the gradient instead of its root mean square.
    pub centered: bool,
}

impl RmsProp {
    /// Returns the optimizer with `rho` 0.95, `epsilon` 1e-6 and no momentum.
    pub fn new(learning_rate: impl Into<LearningRate>) -> RmsProp {
        let rule = RmsPropRule { rho: 0.95, epsilon: 1e-6, momentum: 0.0, centered: false };
        Optimizer::with(rule, learning_rate)
    }

    setters! {
        /// Sets `rho`, the factor of the moving averages; 0.95 by default.
        rule.rho: f64,
        /// Sets `epsilon`, which is added under the root; 1e-6 by default.
        rule.epsilon: f64,
        /// Sets the factor of the velocity; 0 by default.
        rule.momentum: f64,
        /// Sets whether to divide by the deviation of the gradient instead of its root mean square;
        /// off by default.
        rule.centered: bool,
    }
}

impl UpdateRule for RmsPropRule {
    fn op(&self) -> &'static str {
        "rmsprop"
    }

    fn state(&self) -> Vec<State> {
        let mut states =
            vec![State::each("momentum", "Moment"), State::each("mean_square", "MeanSquare")];
        if self.centered {
            states.push(State::each("mean_grad", "MeanGrad"));
        }
        states
    }

    fn attrs(&self, _: &str) -> Vec<(&'static str, Attr)> {
        vec![
            ("decay", self.rho.into()),
            ("epsilon", self.epsilon.into()),
            ("momentum", self.momentum.into()),
            ("centered", self.centered.into()),
        ]
    }
}
