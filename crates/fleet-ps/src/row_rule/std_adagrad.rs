//! s = g / shows; w -= lr s √(g0 / (g0 + g2)); then g2 += s², element by element. State: g2.

use super::{How, Row, RowRule, apply_op};
use fleet_kernels::optim::StdAdagradOp;
use fleet_kernels::simd::Simd;
use fleet_table::rule::StdAdagrad;

impl RowRule for StdAdagrad {
    fn state_len(self, len: usize) -> usize {
        len
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let (lr, g0) = (self.lr * how.rate_scale, self.initial_g2sum);
        let op = StdAdagradOp { lr, g0, scale: 1.0 / row.shows };
        // SAFETY: promised by the caller.
        unsafe { apply_op(s, op, row, len, how) };
    }
}
