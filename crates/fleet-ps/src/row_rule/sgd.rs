//! w -= lr g. No state.

use super::How;
use super::formula::FormulaRule;
use fleet_kernels::optim::SgdOp;
use fleet_table::rule::Sgd;

impl FormulaRule for Sgd {
    type Op = SgdOp;

    fn op(self, how: How, _shows: f32) -> SgdOp {
        SgdOp { lr: self.lr * how.rate_scale }
    }
}
