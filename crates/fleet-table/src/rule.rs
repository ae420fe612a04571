//! Update rules and their parameters.
//!
//! The formulas, and the state that a rule keeps with the weights, are in `fleet-ps`
//! (`row_rule/`), one file a rule.

use fleet_base::{Error, Result};

/// An update rule.
///
/// ```
/// use fleet_table::{Rule, rule::Adam};
/// let rule = Rule::Adam(Adam { lr: 1e-4, ..Adam::default() });
/// assert_eq!(rule.name(), "adam");
/// assert!(Rule::Adam(Adam { beta1: 1.0, ..Adam::default() }).check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Gradient descent.
    Sgd(Sgd),
    /// Gradient descent with momentum.
    Momentum(Momentum),
    /// The common Adagrad optimizer.
    Adagrad(Adagrad),
    /// Adagrad for click models: one sum per row, gradients divided by shows.
    CtrAdagrad(CtrAdagrad),
    /// Like `CtrAdagrad`, with one sum per element.
    StdAdagrad(StdAdagrad),
    /// Adam with moments per element.
    Adam(Adam),
    /// Adam with one moment of each order per row, which takes less memory.
    SharedAdam(SharedAdam),
}

/// Name, value and valid range of a parameter.
type Parameter = (&'static str, f32, (f32, f32));

/// Valid rates: 0 freezes a table, and no use is known for larger ones.
const RATE: (f32, f32) = (0.0, 1e6);
/// Valid decay factors: at 1, nothing would ever be forgotten or learned.
const DECAY: (f32, f32) = (0.0, 0.999_999_94);
const NOT_NEGATIVE: (f32, f32) = (0.0, f32::MAX);
const POSITIVE: (f32, f32) = (f32::MIN_POSITIVE, f32::MAX);

impl Rule {
    /// Returns the name of the rule: `adam`.
    pub fn name(&self) -> &'static str {
        self.facts().0
    }

    /// Returns whether the rule divides gradients by the shows of a row.
    pub fn divides_by_shows(&self) -> bool {
        matches!(self, Rule::CtrAdagrad(_) | Rule::StdAdagrad(_))
    }

    /// Rejects rates and factors outside the valid range.
    pub fn check(&self) -> Result<()> {
        let (name, parameters) = self.facts();
        for (what, value, range) in parameters {
            let inside = value >= range.0 && value <= range.1 && value.is_finite();
            if !inside {
                return Err(Error::invalid(format!("invalid {what} of rule {name}"))
                    .expected(format!("a number in [{}, {}]", range.0, range.1))
                    .got(value));
            }
        }
        Ok(())
    }

    fn facts(&self) -> (&'static str, Vec<Parameter>) {
        match *self {
            Rule::Sgd(Sgd { lr }) => ("sgd", vec![("lr", lr, RATE)]),
            Rule::Momentum(Momentum { lr, mu, .. }) => {
                ("momentum", vec![("lr", lr, RATE), ("mu", mu, DECAY)])
            }
            Rule::Adagrad(Adagrad { lr, epsilon, initial_accumulator }) => (
                "adagrad",
                vec![
                    ("lr", lr, RATE),
                    ("epsilon", epsilon, NOT_NEGATIVE),
                    ("initial_accumulator", initial_accumulator, NOT_NEGATIVE),
                ],
            ),
            Rule::CtrAdagrad(CtrAdagrad { lr, initial_g2sum }) => {
                ("ctr_adagrad", click_parameters(lr, initial_g2sum))
            }
            Rule::StdAdagrad(StdAdagrad { lr, initial_g2sum }) => {
                ("std_adagrad", click_parameters(lr, initial_g2sum))
            }
            Rule::Adam(Adam { lr, beta1, beta2, epsilon, .. }) => {
                ("adam", adam_parameters(lr, beta1, beta2, epsilon))
            }
            Rule::SharedAdam(SharedAdam { lr, beta1, beta2, epsilon }) => {
                ("shared_adam", adam_parameters(lr, beta1, beta2, epsilon))
            }
        }
    }
}

/// Shows a rule with all of its parameters: `momentum(lr 0.05, mu 0.9, nesterov)`.
impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, parameters) = self.facts();
        write!(f, "{name}(")?;
        for (at, (what, value, _)) in parameters.into_iter().enumerate() {
            write!(f, "{}{what} {value}", if at == 0 { "" } else { ", " })?;
        }
        match self {
            Rule::Momentum(rule) if rule.nesterov => f.write_str(", nesterov)"),
            Rule::Adam(rule) if rule.epsilon_corrected => f.write_str(", corrected epsilon)"),
            _ => f.write_str(")"),
        }
    }
}

fn click_parameters(lr: f32, initial_g2sum: f32) -> Vec<Parameter> {
    vec![("lr", lr, RATE), ("initial_g2sum", initial_g2sum, POSITIVE)]
}

fn adam_parameters(lr: f32, beta1: f32, beta2: f32, epsilon: f32) -> Vec<Parameter> {
    vec![
        ("lr", lr, RATE),
        ("beta1", beta1, DECAY),
        ("beta2", beta2, DECAY),
        ("epsilon", epsilon, POSITIVE),
    ]
}

/// w -= lr g.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate; 0.05 by default.
    pub lr: f32,
}

impl Default for Sgd {
    fn default() -> Self {
        Sgd { lr: 0.05 }
    }
}

/// v = mu v + g; w -= lr v, or lr (g + mu v) with Nesterov.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    /// Learning rate; 0.05 by default.
    pub lr: f32,
    /// Factor of the velocity; 0.9 by default.
    pub mu: f32,
    /// Whether to look one step ahead; off by default.
    pub nesterov: bool,
}

impl Default for Momentum {
    fn default() -> Self {
        Momentum { lr: 0.05, mu: 0.9, nesterov: false }
    }
}

/// h += g²; w -= lr g / (√h + epsilon).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adagrad {
    /// Learning rate; 0.05 by default.
    pub lr: f32,
    /// Added to the root; 1e-6 by default.
    pub epsilon: f32,
    /// h of a new row.
    pub initial_accumulator: f32,
}

impl Default for Adagrad {
    fn default() -> Self {
        Adagrad { lr: 0.05, epsilon: 1e-6, initial_accumulator: 0.0 }
    }
}

/// s = g / shows; w -= lr s √(g0 / (g0 + g2)); then g2 += mean(s²).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CtrAdagrad {
    /// Learning rate; 0.05 by default.
    pub lr: f32,
    /// g0: the scale of squared gradients at which steps get shorter.
    pub initial_g2sum: f32,
}

impl Default for CtrAdagrad {
    fn default() -> Self {
        CtrAdagrad { lr: 0.05, initial_g2sum: 3.0 }
    }
}

/// s = g / shows; w -= lr s √(g0 / (g0 + g2)); then g2 += s², element by element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StdAdagrad {
    /// Learning rate; 0.05 by default.
    pub lr: f32,
    /// g0: the scale of squared gradients at which steps get shorter.
    pub initial_g2sum: f32,
}

impl Default for StdAdagrad {
    fn default() -> Self {
        StdAdagrad { lr: 0.05, initial_g2sum: 3.0 }
    }
}

/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g²; w -= lr √(1 - b2^t) / (1 - b1^t) m / (√v +
/// epsilon).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Learning rate; 0.001 by default.
    pub lr: f32,
    /// Factor of the moving average of gradients; 0.9 by default.
    pub beta1: f32,
    /// Factor of the moving average of squared gradients; 0.999 by default.
    pub beta2: f32,
    /// Added to the root; 1e-8 by default.
    pub epsilon: f32,
    /// Whether epsilon is multiplied by √(1 - b2^t).
    pub epsilon_corrected: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, epsilon_corrected: true }
    }
}

/// Like [`Adam`], with the moments m and v of a row: the means over its elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedAdam {
    /// Learning rate; 0.001 by default.
    pub lr: f32,
    /// Factor of the moving average of gradients; 0.9 by default.
    pub beta1: f32,
    /// Factor of the moving average of squared gradients; 0.999 by default.
    pub beta2: f32,
    /// Added to the root; 1e-8 by default.
    pub epsilon: f32,
}

impl Default for SharedAdam {
    fn default() -> Self {
        SharedAdam { lr: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}
