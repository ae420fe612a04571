//! How values of several ranks are combined.

use std::fmt;

/// Reduction of the values of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum; integers wrap around on overflow.
    Sum = 1,
    /// The largest value.
    Max,
    /// The smallest value.
    Min,
    /// The product; integers wrap around on overflow.
    Prod,
    /// The sum divided by the number of ranks; integers round towards zero.
    Avg,
}

impl ReduceOp {
    /// All reductions.
    pub const ALL: [ReduceOp; 5] =
        [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod, ReduceOp::Avg];

    /// Returns the name, as in the names of collective ops: `sum` of `c_allreduce_sum`.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Prod => "prod",
            ReduceOp::Avg => "avg",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
