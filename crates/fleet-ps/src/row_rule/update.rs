//! Applies rules to rows by their addresses.

use super::{How, RowRule, state_len};
use fleet_kernels::kernel;
use fleet_kernels::optim::Run;
use fleet_table::Rule;

/// One row of an update.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub weights: *mut f32,
    pub state: *mut f32,
    pub grad: *const f32,
    /// Divisor of the gradient in click rules.
    pub shows: f32,
}

/// Applies one gradient to each row, one after another.
///
/// # Safety
/// Each row's pointers are valid for `len` weights and gradients and `state_len(rule, len)` of
/// state, and nothing else accesses them. Rows may be equal, if a peer repeats an id.
pub(crate) unsafe fn update_rows(rule: &Rule, rows: &[Row], len: usize, how: How) {
    // SAFETY: promised by the caller.
    each!(rule, rule => unsafe { apply_to_rows(*rule, rows, len, how) });
}

/// Applies one gradient to weights.
///
/// # Panics
/// Panics if the gradient or the state does not have the length for the weights.
pub(crate) fn update(rule: &Rule, run: Run<'_>, shows: f32, how: How) {
    let len = run.weights.len();
    assert!(run.grad.len() == len && run.state.len() == state_len(rule, len), "wrong length");
    let (weights, state) = (run.weights.as_mut_ptr(), run.state.as_mut_ptr());
    let row = Row { weights, state, grad: run.grad.as_ptr(), shows };
    // SAFETY: the lengths were compared, and the borrows are exclusive.
    unsafe { update_rows(rule, &[row], len, how) };
}

kernel! {
    unsafe fn apply_to_rows<S, R: RowRule>(s: S, rule: R, rows: &[Row], len: usize, how: How) {
        let state_len = rule.state_len(len);
        for row in rows {
            // SAFETY: promised by the caller. The slices end with this row, so rows may be equal.
            let run = unsafe {
                Run {
                    weights: std::slice::from_raw_parts_mut(row.weights, len),
                    state: std::slice::from_raw_parts_mut(row.state, state_len),
                    grad: std::slice::from_raw_parts(row.grad, len),
                }
            };
            rule.apply(s, run, row.shows, how);
        }
    }
}
