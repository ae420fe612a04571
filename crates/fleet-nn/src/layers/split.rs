//! The ways to divide a linear layer among ranks (tensor parallelism).

use fleet_ir::Division;

/// How ranks divide the weight of a linear layer, `[inputs, outputs]`. Without
/// `hybrid_configs.mp_degree` it has no effect.
///
/// Columns, then rows, is the pair that needs one sum over ranks: each rank computes its outputs of
/// the first layer, and with them its summand of the second one.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 64], DType::F32);
/// let wide = x.fc(Fc::new(256).act(Act::Relu).split(Split::Columns));
/// let y = wide.fc(Fc::new(64).split(Split::Rows));
/// assert_eq!(y.shape(), x.shape());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Each rank has some of the outputs: columns of the weight, and elements of the bias.
    Columns,
    /// Columns of several matrices of equal size, packed into one weight. Each rank has its columns
    /// of each matrix, as for the queries, keys and values of attention.
    PackedColumns(usize),
    /// Each rank has the rows of the weight for some of the inputs. The sum over ranks and the bias
    /// follow.
    Rows,
}

impl Split {
    /// Returns the division of the weight.
    pub(crate) fn weight(self) -> Division {
        match self {
            Split::Columns => Division::along(1),
            Split::PackedColumns(groups) => Division { groups, ..Division::along(1) },
            Split::Rows => Division::along(0),
        }
    }

    /// Returns the division of the bias, if it is divided.
    pub(crate) fn bias(self) -> Option<Division> {
        match self {
            Split::Columns => Some(Division::along(0)),
            Split::PackedColumns(groups) => Some(Division { groups, ..Division::along(0) }),
            Split::Rows => None,
        }
    }
}
