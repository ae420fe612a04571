//! Adagrad: `h += g^2; w -= lr * g / (sqrt(h) + epsilon)`.

use super::{Optimizer, State, UpdateRule};
use crate::LearningRate;
use crate::setters::setters;
use fleet_ir::Attr;

/// Adagrad: `h += g^2; w -= lr * g / (sqrt(h) + epsilon)`. Defaults: `epsilon` 1e-6,
/// `initial_accumulator_value` (the initial h) 0.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// net.minimize(loss, Adagrad::new(0.01).initial_accumulator_value(0.1))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub type Adagrad = Optimizer<AdagradRule>;

/// Rule of [`Adagrad`].
#[derive(Clone, Debug, PartialEq)]
pub struct AdagradRule {
    /// Added to the root, so that the divisor is not 0.
    pub epsilon: f64,
    /// The initial `h`.
    pub initial_accumulator_value: f64,
}

impl Adagrad {
    /// Returns the optimizer with `epsilon` 1e-6, starting at `h = 0`.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Adagrad {
        let rule = AdagradRule { epsilon: 1e-6, initial_accumulator_value: 0.0 };
        Optimizer::with(rule, learning_rate)
    }

    setters! {
        /// Sets `epsilon`, which keeps the divisor above 0; 1e-6 by default.
        rule.epsilon: f64,
        /// Sets the initial `h`; 0 by default.
        rule.initial_accumulator_value: f64,
    }
}

impl UpdateRule for AdagradRule {
    fn op(&self) -> &'static str {
        "adagrad"
    }

    fn state(&self) -> Vec<State> {
        let start = self.initial_accumulator_value;
        vec![State { start, ..State::each("moment", "Moment") }]
    }

    fn attrs(&self, _: &str) -> Vec<(&'static str, Attr)> {
        vec![("epsilon", self.epsilon.into())]
    }
}
