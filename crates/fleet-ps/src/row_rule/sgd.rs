//! w -= lr g. No state.

use super::{How, Row, RowRule, apply_op};
use fleet_kernels::optim::SgdOp;
use fleet_kernels::simd::Simd;
use fleet_table::rule::Sgd;

impl RowRule for Sgd {
    fn state_len(self, _len: usize) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let op = SgdOp { lr: self.lr * how.rate_scale };
        // SAFETY: promised by the caller.
        unsafe { apply_op(s, op, row, len, how) };
    }
}
