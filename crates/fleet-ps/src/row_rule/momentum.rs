//! v = mu v + g; w -= lr v, or lr (g + mu v) with Nesterov. State: v.

use super::formula::apply_op;
use super::{How, Row, RowRule};
use fleet_kernels::optim::MomentumOp;
use fleet_kernels::simd::Simd;
use fleet_table::rule::Momentum;

impl RowRule for Momentum {
    fn state_len(self, len: usize) -> usize {
        len
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let (lr, mu) = (self.lr * how.rate_scale, self.mu);
        // SAFETY: promised by the caller.
        unsafe {
            match self.nesterov {
                true => apply_op(s, MomentumOp::<true> { lr, mu }, row, len, how),
                false => apply_op(s, MomentumOp::<false> { lr, mu }, row, len, how),
            }
        }
    }
}
