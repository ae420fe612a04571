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
mod momentum;
mod sgd;
mod shared_adam;
mod std_adagrad;

use fleet_kernels::optim::UpdateOp;
use fleet_kernels::simd::Simd;
use fleet_kernels::{for_registers, kernel};
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

/// The state and the updates of a rule's rows.
pub(crate) trait RowUpdates {
    /// Returns the floats of state for `len` weights.
    fn state_len(&self, len: usize) -> usize;

    /// Writes the state of a row before its first push.
    fn init_state(&self, len: usize, state: &mut [f32]);

    /// Applies one gradient to each row, one after another.
    ///
    /// # Safety
    /// Each row's pointers are valid for `len` weights and gradients and `state_len(len)` of state,
    /// and nothing else accesses them.
    unsafe fn update(&self, rows: &[Row], len: usize, how: How);
}

impl RowUpdates for Rule {
    fn state_len(&self, len: usize) -> usize {
        each!(self, rule => rule.state_len(len))
    }

    fn init_state(&self, len: usize, state: &mut [f32]) {
        each!(self, rule => rule.init_state(len, state));
    }

    unsafe fn update(&self, rows: &[Row], len: usize, how: How) {
        // SAFETY: promised by the caller.
        each!(self, rule => unsafe { update_rows(*rule, rows, len, how) });
    }
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
    /// As [`RowUpdates::update`], for one row.
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How);
}

kernel! {
    unsafe fn update_rows<S, R: RowRule>(s: S, rule: R, rows: &[Row], len: usize, how: How) {
        for row in rows {
            rule.apply(s, *row, len, how);
        }
    }
}

/// Applies a formula whose state is `O::STATES` runs of `len` numbers, one after another.
///
/// # Safety
/// As [`RowUpdates::update`], for one row.
#[inline(always)]
unsafe fn apply_op<S: Simd, O: UpdateOp>(s: S, op: O, row: Row, len: usize, how: How) {
    for_registers!(S, len, |i, n| {
        // SAFETY: `n` floats from `i` on are inside each run.
        unsafe {
            let mut state = [s.zero(); 3];
            for (k, value) in state.iter_mut().enumerate().take(O::STATES) {
                *value = s.load_n(row.state.add(k * len + i), n);
            }
            let (w, g) = (row.weights.add(i), s.load_n(row.grad.add(i), n));
            let new = op.update(s, s.load_n(w, n), g, &mut state);
            for (k, value) in state.into_iter().enumerate().take(O::STATES) {
                s.store_n(row.state.add(k * len + i), value, n);
            }
            s.store_n(w, clamp(s, new, how), n);
        }
    });
}

/// Clamps to the bounds of the table.
#[inline(always)]
fn clamp<S: Simd>(s: S, w: S::F, how: How) -> S::F {
    s.min(s.splat(how.bounds[1]), s.max(s.splat(how.bounds[0]), w))
}

#[cfg(test)]
pub(crate) mod tests;
