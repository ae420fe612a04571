//! h += g²; w -= lr g / (√h + epsilon). State: h.

use super::{How, Row, RowRule, apply_op};
use fleet_kernels::optim::RowAdagradOp;
use fleet_kernels::simd::Simd;
use fleet_table::rule::Adagrad;

impl RowRule for Adagrad {
    fn state_len(self, len: usize) -> usize {
        len
    }

    fn init_state(self, _len: usize, state: &mut [f32]) {
        state.fill(self.initial_accumulator);
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let op = RowAdagradOp { lr: self.lr * how.rate_scale, epsilon: self.epsilon };
        // SAFETY: promised by the caller.
        unsafe { apply_op(s, op, row, len, how) };
    }
}
