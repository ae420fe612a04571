//! Rules that are a formula on registers and nothing else.

use super::{How, RowRule};
use fleet_kernels::optim::{Run, UpdateOp, update_run};
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
    fn apply<S: Simd>(self, s: S, run: Run<'_>, shows: f32, how: How) {
        update_run(s, self.op(how, shows), run, how.bounds);
    }
}
