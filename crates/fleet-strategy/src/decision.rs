//! Decisions: the outcomes for strategies and for fields.

use crate::meta::StrategyId;
use std::fmt;

/// The outcome for a strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The strategy that is decided about.
    pub strategy: StrategyId,
    /// The field of the strategy that requests it; empty if none does.
    pub field: String,
    /// The decision.
    pub verdict: Verdict,
    /// One or more lines.
    pub reason: String,
}

/// Column of the reasons.
const INDENT: usize = 29;

/// The decision about a strategy or a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has an effect.
    Applied,
    /// Applicable, but nothing to do here.
    Idle,
    /// A field that a warning names; only for fields.
    Warned,
    /// Requested but not applicable, and omitted: a warning.
    Dropped,
    /// Requested, and omitting it would train something else: an error.
    Refused,
}

impl Verdict {
    /// Returns the word that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Applied => "applied",
            Verdict::Idle => "idle",
            Verdict::Warned => "warned",
            Verdict::Dropped => "dropped",
            Verdict::Refused => "refused",
        }
    }
}

/// The outcome for an assigned field.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Its path, such as `amp_configs.decr_ratio`.
    pub path: String,
    /// The assigned value as text.
    pub value: String,
    /// The strategy to which it belongs, if any.
    pub owner: Option<StrategyId>,
    /// The decision about the field.
    pub verdict: Verdict,
    /// The reason; empty for a field that applies and belongs to no strategy.
    pub reason: String,
}

impl Outcome {
    /// Returns whether neither a decision nor a problem shows the field.
    pub(crate) fn is_apart(&self) -> bool {
        let is_unnamed = matches!(self.owner, None | Some(StrategyId::RawProgram));
        is_unnamed && matches!(self.verdict, Verdict::Applied | Verdict::Idle)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { path, value, verdict, reason, .. } = self;
        write!(f, "{path:<18} {:<9} ", verdict.name())?;
        match verdict {
            Verdict::Idle => write!(f, "{reason}"),
            _ => write!(f, "{value}"),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason.replace('\n', &format!("\n{:INDENT$}", ""));
        write!(f, "{:<18} {:<9} {reason}", self.strategy.name(), self.verdict.name())
    }
}
