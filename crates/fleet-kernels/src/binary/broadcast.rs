//! Broadcasting of two shapes: the walk over their elements.

use crate::reduce::Reduction;
use fleet_base::{Error, Result};
use std::ops::Range;

/// The broadcast of two contiguous tensors by the rules of NumPy (axes aligned at the right).
#[derive(Clone, Debug)]
pub struct Broadcast {
    pub(super) shape: Vec<usize>,
    /// Merged axes, outermost first: length, and the strides of both operands (0 if repeated).
    pub(super) axes: Vec<Axis>,
    pub(super) len: usize,
    pub(super) a_len: usize,
    pub(super) b_len: usize,
    pub(super) a_sums: Option<Reduction>,
    pub(super) b_sums: Option<Reduction>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) len: usize,
    pub(super) a: usize,
    pub(super) b: usize,
}

impl Broadcast {
    /// Returns the plan for two shapes, aligned at their last dimensions. Fails if two sizes differ
    /// and none is 1.
    pub fn new(a: &[usize], b: &[usize]) -> Result<Self> {
        let rank = a.len().max(b.len());
        let dim = |shape: &[usize], axis: usize| {
            (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis])
        };
        let mut shape = Vec::with_capacity(rank);
        for axis in 0..rank {
            shape.push(match (dim(a, axis), dim(b, axis)) {
                (x, y) if x == y => x,
                (1, y) => y,
                (x, 1) => x,
                _ => {
                    return Err(Error::invalid("shapes cannot be broadcast")
                        .expected(format!("{a:?}, up to axes of length 1"))
                        .got(format!("{b:?}")));
                }
            });
        }
        let mut axes: Vec<Axis> = Vec::new();
        let (mut a_stride, mut b_stride) = (1, 1);
        let (mut a_axes, mut b_axes) = (Vec::new(), Vec::new());
        for axis in (0..rank).rev() {
            let len = shape[axis];
            if len == 1 {
                continue;
            }
            let stride_of = |dim: usize, stride: &mut usize, repeated: &mut Vec<usize>| {
                if dim == 1 {
                    repeated.push(axis);
                    return 0;
                }
                std::mem::replace(stride, *stride * dim)
            };
            let here = Axis {
                len,
                a: stride_of(dim(a, axis), &mut a_stride, &mut a_axes),
                b: stride_of(dim(b, axis), &mut b_stride, &mut b_axes),
            };
            match axes.last_mut() {
                Some(inner)
                    if (inner.a == 0) == (here.a == 0) && (inner.b == 0) == (here.b == 0) =>
                {
                    inner.len *= len;
                }
                _ => axes.push(here),
            }
        }
        axes.reverse();
        if axes.is_empty() {
            axes.push(Axis { len: 1, a: 1, b: 1 });
        }
        let sums = |axes: &[usize]| (!axes.is_empty()).then(|| Reduction::new(&shape, axes));
        let (a_sums, b_sums) = (sums(&a_axes), sums(&b_axes));
        Ok(Broadcast {
            len: shape.iter().product(),
            a_len: a.iter().product(),
            b_len: b.iter().product(),
            axes,
            a_sums,
            b_sums,
            shape,
        })
    }

    /// Returns the shape of the result.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements of the result.
    pub fn out_len(&self) -> usize {
        self.len
    }

    /// Returns the numbers of elements of both operands and of the result.
    pub fn lens(&self) -> [usize; 3] {
        [self.a_len, self.b_len, self.len]
    }

    /// Calls `segment(out, a, b, len)` for each contiguous piece of the flat range.
    #[inline(always)]
    pub(super) fn walk(
        &self,
        range: Range<usize>,
        mut segment: impl FnMut(usize, usize, usize, usize),
    ) {
        let (outer, inner) = self.axes.split_at(self.axes.len() - 1);
        let inner = inner[0];
        let mut i = range.start;
        while i < range.end {
            let (mut rest, column) = (i / inner.len, i % inner.len);
            let (mut a, mut b) = (column * inner.a, column * inner.b);
            for axis in outer.iter().rev() {
                let index = rest % axis.len;
                rest /= axis.len;
                a += index * axis.a;
                b += index * axis.b;
            }
            let n = (inner.len - column).min(range.end - i);
            segment(i, a, b, n);
            i += n;
        }
    }

    pub(super) fn steps(&self) -> (usize, usize) {
        let inner = self.axes[self.axes.len() - 1];
        (inner.a, inner.b)
    }
}
