//! Stochastic gradient descent: `w -= lr * g`.

use super::{Optimizer, UpdateRule};
use crate::LearningRate;
use fleet_ir::Attr;

/// Stochastic gradient descent: `w -= lr * g`.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, Sgd::new(0.01))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub type Sgd = Optimizer<SgdRule>;

/// Rule of [`Sgd`].
#[derive(Clone, Debug, PartialEq)]
pub struct SgdRule;

impl Sgd {
    /// Returns plain gradient descent.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Sgd {
        Optimizer::with(SgdRule, learning_rate)
    }
}

impl UpdateRule for SgdRule {
    fn op(&self) -> &'static str {
        "sgd"
    }

    fn attrs(&self, _: &str) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }
}
