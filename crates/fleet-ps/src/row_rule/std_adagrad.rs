//! s = g / shows; w -= lr s √(g0 / (g0 + g2)); then g2 += s², element by element. State: g2.

use super::How;
use super::formula::FormulaRule;
use fleet_kernels::optim::StdAdagradOp;
use fleet_table::rule::StdAdagrad;

impl FormulaRule for StdAdagrad {
    type Op = StdAdagradOp;

    fn op(self, how: How, shows: f32) -> StdAdagradOp {
        let (lr, g0) = (self.lr * how.rate_scale, self.initial_g2sum);
        StdAdagradOp { lr, g0, scale: 1.0 / shows }
    }
}
