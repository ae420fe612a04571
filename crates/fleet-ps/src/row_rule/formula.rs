//! Rules that are a formula on registers and nothing else.

use super::{How, Row, RowRule, clamp};
use fleet_kernels::for_registers;
use fleet_kernels::optim::UpdateOp;
use fleet_kernels::simd::Simd;

/// A rule whose state is `Op::STATES` numbers for each weight.
pub(super) trait FormulaRule: Copy {
    type Op: UpdateOp;

    /// Returns the formula with its parameters. Click rules divide gradients by `shows`.
    fn op(self, how: How, shows: f32) -> Self::Op;

    /// Returns the state before the first push.
    fn initial(self) -> f32 {
        0.0
    }
}

impl<R: FormulaRule> RowRule for R {
    fn state_len(self, len: usize) -> usize {
        R::Op::STATES * len
    }

    fn init_state(self, _len: usize, state: &mut [f32]) {
        state.fill(self.initial());
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        // SAFETY: promised by the caller.
        unsafe { apply_op(s, self.op(how, row.shows), row, len, how) };
    }
}

/// Applies a formula whose state is `O::STATES` runs of `len` numbers, one after another.
///
/// # Safety
/// As [`super::update`], for one row.
#[inline(always)]
pub(super) unsafe fn apply_op<S: Simd, O: UpdateOp>(s: S, op: O, row: Row, len: usize, how: How) {
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
