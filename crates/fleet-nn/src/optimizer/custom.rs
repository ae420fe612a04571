//! Optimizers with an update rule of another crate.

use super::{Optimizer, State, UpdateRule};
use crate::LearningRate;
use fleet_ir::Attr;
use std::sync::Arc;

/// A rule that another crate defines, by [`UpdateRule`]: see [`Optimizer::custom`].
///
/// Two such rules are equal if they have the same op and print alike (`Debug`).
#[derive(Clone, Debug)]
pub struct CustomRule(Arc<dyn UpdateRule>);

impl CustomRule {
    /// Wraps a rule.
    pub fn new(rule: impl UpdateRule + 'static) -> CustomRule {
        CustomRule(Arc::new(rule))
    }
}

impl PartialEq for CustomRule {
    fn eq(&self, other: &CustomRule) -> bool {
        let text = |rule: &CustomRule| format!("{:?}", rule.0);
        self.op() == other.op() && text(self) == text(other)
    }
}

impl Optimizer<CustomRule> {
    /// Creates an optimizer with a rule of another crate. Strategies that work with any rule apply
    /// to it. Those that replace or need a certain rule do not, and parameter servers refuse it.
    ///
    /// The rule's op updates one parameter. It has the inputs `Param`, `Grad` and `LearningRate`,
    /// the output `ParamOut`, and a pair of slots for each [`State`]. A rule can use a built-in op
    /// or one of a registry (`Net::with_registry`).
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// use fleet_nn::optimizer::{Attr, Optimizer, State, UpdateRule};
    ///
    /// #[derive(Debug)]
    /// struct Heavy {
    ///     mu: f64,
    /// }
    ///
    /// impl UpdateRule for Heavy {
    ///     fn op(&self) -> &'static str {
    ///         "momentum"
    ///     }
    ///
    ///     fn state(&self) -> Vec<State> {
    ///         vec![State::each("velocity", "Velocity")]
    ///     }
    ///
    ///     fn attrs(&self, parameter: &str) -> Vec<(&'static str, Attr)> {
    ///         let mu = if parameter.contains(".b_") { 0.0 } else { self.mu };
    ///         vec![("mu", mu.into())]
    ///     }
    /// }
    ///
    /// let net = Net::new();
    /// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
    /// let heavy = Optimizer::custom(Heavy { mu: 0.9 }, 0.1);
    /// net.minimize(loss, heavy.grad_clip(GradClip::Norm(1.0)))?;
    /// assert_eq!(net.var("fc_0.w_0_velocity_0").shape(), Shape::from([13, 1]));
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    pub fn custom(
        rule: impl UpdateRule + 'static,
        learning_rate: impl Into<LearningRate>,
    ) -> Optimizer<CustomRule> {
        Optimizer::with(CustomRule::new(rule), learning_rate)
    }
}

impl UpdateRule for CustomRule {
    fn op(&self) -> &'static str {
        self.0.op()
    }

    fn state(&self) -> Vec<State> {
        self.0.state()
    }

    fn attrs(&self, parameter: &str) -> Vec<(&'static str, Attr)> {
        self.0.attrs(parameter)
    }
}
