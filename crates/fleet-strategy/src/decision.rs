//! Decisions: which strategies apply, and why.

use crate::effective::Effective;
use crate::meta::StrategyId;
use std::fmt;

/// The outcome for a strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub strategy: StrategyId,
    /// The field of the strategy that requests it; empty if none does.
    pub field: String,
    pub verdict: Verdict,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Applied,
    /// Applicable, but nothing to do here.
    Idle,
    /// Requested but not applicable, and omitted: a warning.
    Dropped,
    /// Requested, and omitting it would train something else: an error.
    Refused,
}

/// The strategy in effect, and the outcome for each strategy that it requests.
#[derive(Clone, Debug)]
pub struct Decided<'a> {
    pub strategy: Effective<'a>,
    pub decisions: Vec<Decision>,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Applied => "applied",
            Verdict::Idle => "idle",
            Verdict::Dropped => "dropped",
            Verdict::Refused => "refused",
        };
        write!(f, "{:<18} {verdict:<9} {}", self.strategy.name(), self.reason)
    }
}
