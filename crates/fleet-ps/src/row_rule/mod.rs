//! Update rules of rows, one file per rule. The formulas on registers are those of
//! [`fleet_kernels::optim`]; a rule says what it passes to them, and which state it keeps.
//!
//! A rule sees one run of weights with its state and its gradient: a row of a sparse table, the
//! embedding part of a click row, or a whole dense table. `lr` is the rule's own rate times the
//! table's ([`set_rate_scale`](crate::SparseTable::set_rate_scale)). Weights are clamped to the
//! table's bounds afterwards.

mod adagrad;
mod adam;
mod ctr_adagrad;
mod formula;
mod momentum;
mod sgd;
mod shared_adam;
mod std_adagrad;

use fleet_kernels::kernel;
use fleet_kernels::simd::Simd;
use fleet_table::Rule;

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

/// Returns the floats of state for `len` weights.
pub(crate) fn state_len(rule: &Rule, len: usize) -> usize {
    each!(rule, rule => rule.state_len(len))
}

/// Writes the state of a row before its first push.
pub(crate) fn init_state(rule: &Rule, len: usize, state: &mut [f32]) {
    each!(rule, rule => rule.init_state(len, state));
}

/// Applies one gradient to each row, one after another.
///
/// # Safety
/// Each row's pointers are valid for `len` weights and gradients and `state_len(rule, len)` of
/// state, and nothing else accesses them. Rows may be equal, if a peer repeats an id.
pub(crate) unsafe fn update(rule: &Rule, rows: &[Row], len: usize, how: How) {
    // SAFETY: promised by the caller.
    each!(rule, rule => unsafe { update_rows(*rule, rows, len, how) });
}

/// One row of an update.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub weights: *mut f32,
    pub state: *mut f32,
    pub grad: *const f32,
    /// Divisor of the gradient in click rules.
    pub shows: f32,
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
    /// # Safety
    /// As [`update`], for one row.
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How);
}

kernel! {
    unsafe fn update_rows<S, R: RowRule>(s: S, rule: R, rows: &[Row], len: usize, how: How) {
        for row in rows {
            rule.apply(s, *row, len, how);
        }
    }
}

/// Clamps to the bounds of the table.
#[inline(always)]
fn clamp<S: Simd>(s: S, w: S::F, how: How) -> S::F {
    s.min(s.splat(how.bounds[1]), s.max(s.splat(how.bounds[0]), w))
}

#[cfg(test)]
pub(crate) mod tests;
