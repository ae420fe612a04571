//! h += g²; w -= lr g / (√h + epsilon). State: h.

use super::How;
use super::formula::FormulaRule;
use fleet_kernels::optim::RowAdagradOp;
use fleet_table::rule::Adagrad;

impl FormulaRule for Adagrad {
    type Op = RowAdagradOp;

    fn op(self, how: How, _shows: f32) -> RowAdagradOp {
        RowAdagradOp { lr: self.lr * how.rate_scale, epsilon: self.epsilon }
    }

    fn initial(self) -> f32 {
        self.initial_accumulator
    }
}
