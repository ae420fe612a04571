//! Support for ops along one axis whose kernels handle contiguous rows only: positions of the
//! numbers of a row, and copies of rows to scratch and back.

use crate::prelude::*;

/// `outer` blocks of `classes` groups of `inner` numbers. A row takes one number of each group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub outer: usize,
    pub classes: usize,
    pub inner: usize,
}

impl Split {
    pub(crate) fn new(shape: &Shape, axis: usize) -> Split {
        Split {
            outer: shape.product(0..axis),
            classes: shape.at(axis),
            inner: shape.product(axis + 1..shape.rank()),
        }
    }

    /// Returns the split of an op's input along its attribute `axis`.
    pub(crate) fn of(p: &PrepareCtx<'_>, slot: &str) -> Result<Split> {
        let shape = p.input(slot).shape;
        Ok(Split::new(&shape, shape.axis(p.op.attr_int("axis"))?))
    }

    pub(crate) fn rows(&self) -> usize {
        self.outer * self.inner
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
        row / self.inner * self.classes * self.inner + row % self.inner
    }

    /// Returns the row of element `index`, and its position in the row.
    #[inline]
    pub(crate) fn row_and_class(&self, index: usize) -> (usize, usize) {
        let outer = index / (self.classes * self.inner);
        (outer * self.inner + index % self.inner, index / self.inner % self.classes)
    }

    /// Copies rows so that they are contiguous.
    pub(crate) fn gather(&self, pool: &Pool, from: &[f32], rows: &mut [f32]) {
        let rows = Shareable::new(&mut rows[..self.len()]);
        pool.run_ranges(self.rows(), self.grain(), |range| {
            for row in range {
                // SAFETY: tasks take different rows.
                let to = unsafe { rows.slice(row * self.classes, self.classes) };
                let start = self.start(row);
                for (class, to) in to.iter_mut().enumerate() {
                    *to = from[start + class * self.inner];
                }
            }
        });
    }

    /// Copies contiguous rows back to their positions in the tensor.
    pub(crate) fn scatter(&self, pool: &Pool, rows: &[f32], to: &mut [f32]) {
        assert_eq!(to.len(), self.len(), "rows and tensor differ in length");
        let to = Shareable::new(to);
        pool.run_ranges(self.rows(), self.grain(), |range| {
            for row in range {
                let start = self.start(row);
                for class in 0..self.classes {
                    // SAFETY: every element belongs to one row, and tasks take different rows.
                    let cell = unsafe { to.slice(start + class * self.inner, 1) };
                    cell[0] = rows[row * self.classes + class];
                }
            }
        });
    }

    fn grain(&self) -> usize {
        ELEMENTS_PER_TASK / self.classes.max(1) + 1
    }
}

const ELEMENTS_PER_TASK: usize = 1 << 14;
