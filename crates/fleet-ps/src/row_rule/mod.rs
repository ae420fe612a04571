//! Update rules of rows, one file per rule. The formulas on registers are those of
//! [`fleet_kernels::optim`]; a rule says what it passes to them, and which state it keeps.
//!
//! A rule sees one run of weights with its state and its gradient: a row of a sparse table, the
//! embedding part of a click row, or a whole dense table. `lr` is the rule's own rate times the
//! table's ([`set_rate_scale`](crate::SparseTable::set_rate_scale)). Weights are clamped to the
//! table's bounds afterwards.

/// Calls a method of the rule.
macro_rules! each {
    ($self:expr, $rule:ident => $body:expr) => {
        match $self {
            Rule::Sgd($rule) => $body,
            Rule::Momentum($rule) => $body,
            Rule::Adagrad($rule) => $body,
            Rule::CtrAdagrad($rule) => $body,
            Rule::StdAdagrad($rule) => $body,
            Rule::Adam($rule) => $body,
            Rule::SharedAdam($rule) => $body,
        }
    };
}

mod adagrad;
mod adam;
mod ctr_adagrad;
mod formula;
mod momentum;
mod sgd;
mod shared_adam;
mod std_adagrad;
#[allow(unsafe_code)]
mod update;

pub(crate) use update::{Row, update, update_rows};

use fleet_kernels::optim::Run;
use fleet_kernels::simd::Simd;
use fleet_table::Rule;

/// Returns the floats of state for `len` weights.
pub(crate) fn state_len(rule: &Rule, len: usize) -> usize {
    each!(rule, rule => rule.state_len(len))
}

/// Writes the state of a row before its first push.
pub(crate) fn init_state(rule: &Rule, len: usize, state: &mut [f32]) {
    each!(rule, rule => rule.init_state(len, state));
}

/// Settings that all rows of an update share.
#[derive(Clone, Copy)]
pub(crate) struct How {
    pub rate_scale: f32,
    pub bounds: [f32; 2],
}

trait RowRule: Copy {
    fn state_len(self, len: usize) -> usize;
    fn init_state(self, _len: usize, state: &mut [f32]) {
        state.fill(0.0);
    }
    /// Applies a gradient. Click rules divide it by `shows`.
    fn apply<S: Simd>(self, s: S, run: Run<'_>, shows: f32, how: How);
}

#[cfg(test)]
pub(crate) mod tests;
