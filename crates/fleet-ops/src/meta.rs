//! Type and size of a variable.

use fleet_ir::{Program, VarId, VarKind};
use fleet_tensor::{Arg, DType, Layout, Shape};

/// Type and shape of a variable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Meta {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the dimensions; -1 for those that are known at run time only.
    pub shape: Shape,
    /// Kind of value: dense, some rows, or a list.
    pub kind: VarKind,
    /// Capacity in rows, for sparse rows; 0 while the batch size is unknown. `shape` is the shape
    /// of the whole matrix.
    pub rows: usize,
}

impl Meta {
    /// Returns the type and shape of a dense tensor.
    pub fn dense(dtype: DType, shape: impl Into<Shape>) -> Meta {
        Meta { dtype, shape: shape.into(), kind: VarKind::Dense, rows: 0 }
    }

    /// Sparse rows with capacity for `rows` rows of a matrix of `shape`.
    pub fn sparse(dtype: DType, shape: impl Into<Shape>, rows: usize) -> Meta {
        Meta { dtype, shape: shape.into(), kind: VarKind::SparseRows, rows }
    }

    /// Number of elements. An unknown dimension counts as 1. Saturates at `usize::MAX`, because a
    /// program may declare sizes that exceed any memory.
    pub fn numel(&self) -> usize {
        let count = |first: usize, dims: &[i64]| {
            dims.iter().fold(first, |count, dim| count.saturating_mul(dim.unsigned_abs() as usize))
        };
        match self.kind {
            VarKind::SparseRows => count(self.rows, self.shape.dims().get(1..).unwrap_or(&[])),
            _ => count(1, self.shape.dims()),
        }
    }

    /// Number of elements in memory, including the layout's padding; for sparse rows, the elements
    /// of all rows within the capacity.
    pub fn physical_len(&self, layout: Layout) -> usize {
        match self.kind {
            VarKind::SparseRows => self.numel(),
            _ => layout.physical_len(&self.shape),
        }
    }

    /// Returns an argument of this type and shape, without memory.
    pub fn arg(&self, layout: Layout) -> Arg {
        let capacity = (self.kind == VarKind::SparseRows).then_some(self.rows);
        Arg::unbound(self.dtype, self.shape, layout, capacity)
    }

    /// Returns the size of the elements in bytes. An unknown dimension counts as 1.
    pub fn bytes(&self) -> usize {
        self.numel().saturating_mul(self.dtype.size())
    }

    /// Formats the variable for messages: `f32[2, 3]`, or `f32[100, 3] (sparse rows, capacity 7)`.
    pub fn describe(&self) -> String {
        let Meta { dtype, shape, rows, .. } = self;
        match self.kind {
            VarKind::Dense => format!("{dtype}{shape}"),
            VarKind::SparseRows if *rows == 0 => format!("{dtype}{shape} (sparse rows)"),
            VarKind::SparseRows => format!("{dtype}{shape} (sparse rows, capacity {rows})"),
            VarKind::TensorArray => format!("{dtype}{shape} (tensor array)"),
        }
    }
}

/// Returns the type and shape that a program declares for a variable.
pub fn meta(program: &Program, var: VarId) -> Meta {
    let var = program.var(var);
    Meta { dtype: var.dtype, shape: var.shape, kind: var.kind, rows: 0 }
}
