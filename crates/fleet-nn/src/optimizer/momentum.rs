//! Momentum: `v = mu * v + g; w -= lr * v`, or with Nesterov `w -= lr * (g + mu * v)`.

use super::{Optimizer, State, UpdateRule};
use crate::LearningRate;
use crate::setters::setters;
use fleet_ir::Attr;

/// Gradient descent with momentum: `v = mu * v + g; w -= lr * v`, or with `use_nesterov`
/// `w -= lr * (g + mu * v)`.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, Momentum::new(0.1, 0.9).weight_decay(Regularizer::L2(1e-4)))?;
/// assert_eq!(net.var("fc_0.w_0_velocity_0").shape(), Shape::from([13, 1]));
/// assert!(Momentum::new(0.1, 0.9).use_nesterov(true).rule.use_nesterov);
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub type Momentum = Optimizer<MomentumRule>;

/// Rule of [`Momentum`].
#[derive(Clone, Debug, PartialEq)]
pub struct MomentumRule {
    /// Factor of the velocity.
    pub mu: f64,
    /// Whether to look one step ahead: `w -= lr * (g + mu * v)`.
    pub use_nesterov: bool,
}

impl Momentum {
    /// Returns the optimizer without Nesterov's look-ahead; `mu` is usually 0.9.
    pub fn new(learning_rate: impl Into<LearningRate>, mu: f64) -> Momentum {
        Optimizer::with(MomentumRule { mu, use_nesterov: false }, learning_rate)
    }

    setters! {
        /// Sets whether to look one step ahead, as Nesterov does; off by default.
        rule.use_nesterov: bool,
    }
}

impl UpdateRule for MomentumRule {
    fn op(&self) -> &'static str {
        "momentum"
    }

    fn state(&self) -> Vec<State> {
        vec![State::each("velocity", "Velocity")]
    }

    fn attrs(&self, _: &str) -> Vec<(&'static str, Attr)> {
        vec![("mu", self.mu.into()), ("use_nesterov", self.use_nesterov.into())]
    }
}
