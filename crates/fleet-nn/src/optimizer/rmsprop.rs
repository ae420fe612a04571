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
    pub rho: f64,
    pub epsilon: f64,
    pub momentum: f64,
    pub centered: bool,
}

impl RmsProp {
    pub fn new(learning_rate: impl Into<LearningRate>) -> RmsProp {
        let rule = RmsPropRule { rho: 0.95, epsilon: 1e-6, momentum: 0.0, centered: false };
        Optimizer::with(rule, learning_rate)
    }

    setters! {
        rule.rho: f64,
        rule.epsilon: f64,
        rule.momentum: f64,
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
