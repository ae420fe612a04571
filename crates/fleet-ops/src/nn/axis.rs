//! Support for ops along one axis whose kernels handle contiguous rows only: positions of the
//! numbers of a row, and copies of rows to scratch and back.

use crate::prelude::*;
use fleet_kernels::map::AxisRows;

/// Rows along an axis: one number of each group of `inner` numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub classes: usize,
    pub inner: usize,
    all: AxisRows,
}

impl Split {
    pub(crate) fn new(shape: &Shape, axis: usize) -> Split {
        let (classes, inner) = (shape.at(axis), shape.product(axis + 1..shape.rank()));
        let all = AxisRows { outer: shape.product(0..axis), classes, inner };
        Split { classes, inner, all }
    }

    /// Returns the split of an op's input along its attribute `axis`.
    pub(crate) fn of(p: &PrepareCtx<'_>, slot: &str) -> Result<Split> {
        let shape = p.input(slot).shape;
        Ok(Split::new(&shape, shape.axis(p.op.attr_int("axis"))?))
    }

    pub(crate) fn rows(&self) -> usize {
        self.all.count()
    }

    pub(crate) fn len(&self) -> usize {
        self.rows() * self.classes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether rows are contiguous.
    pub(crate) fn is_last(&self) -> bool {
        self.inner == 1
    }

    /// Returns the index of the first number of `row`. Each next number is `inner` further.
    #[inline]
    pub(crate) fn start(&self, row: usize) -> usize {
        self.all.start(row)
    }

    /// Returns the row of element `index`, and its position in the row.
    #[inline]
    pub(crate) fn row_and_class(&self, index: usize) -> (usize, usize) {
        let outer = index / (self.classes * self.inner);
        (outer * self.inner + index % self.inner, index / self.inner % self.classes)
    }

    /// Copies rows so that they are contiguous.
    pub(crate) fn gather(&self, pool: &Pool, from: &[f32], rows: &mut [f32]) {
        self.all.gather(pool, from, rows);
    }

    /// Copies contiguous rows back to their positions in the tensor.
    pub(crate) fn scatter(&self, pool: &Pool, rows: &[f32], to: &mut [f32]) {
        self.all.scatter(pool, rows, to);
    }
}
