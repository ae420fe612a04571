//! Shapes of up to eight dimensions, stored inline. An unknown dimension is -1.

use fleet_base::{Error, Result};
use std::fmt;
use std::ops::Deref;

/// Limit on the number of dimensions: enough for every documented op, and small enough to copy.
pub const RANK_MAX: usize = 8;

/// The dimensions of a tensor. `-1` is an unknown dimension, such as the batch size.
///
/// ```
/// use fleet_tensor::Shape;
/// let shape = Shape::from([-1, 13]);
/// assert_eq!(shape.to_string(), "[-1, 13]");
/// assert_eq!(shape.numel(), None);
/// assert_eq!(Shape::from([2, 3]).numel(), Some(6));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    dims: [i64; RANK_MAX],
}

impl Shape {
    /// The shape of a single number.
    pub const SCALAR: Shape = Shape { rank: 0, dims: [0; RANK_MAX] };

    /// Returns the shape if there are at most [`RANK_MAX`] dimensions and each is -1 or more.
    pub fn new(dims: &[i64]) -> Result<Shape> {
        if dims.len() > RANK_MAX {
            return Err(Error::invalid("too many dimensions")
                .expected(format!("at most {RANK_MAX}"))
                .got(dims.len()));
        }
        if let Some(bad) = dims.iter().find(|dim| **dim < -1) {
            return Err(Error::invalid("negative dimension")
                .expected("-1 (unknown) or more")
                .got(bad));
        }
        Ok(Shape::of(dims))
    }

    /// Like [`Shape::new`], for dimensions that are known to be valid.
    ///
    /// # Panics
    /// With more than [`RANK_MAX`] dimensions.
    pub fn of(dims: &[i64]) -> Shape {
        let mut shape = Shape { rank: dims.len() as u8, dims: [0; RANK_MAX] };
        shape.dims[..dims.len()].copy_from_slice(dims);
        shape
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        usize::from(self.rank)
    }

    /// Returns the dimensions; -1 is unknown.
    pub fn dims(&self) -> &[i64] {
        &self.dims[..self.rank()]
    }

    /// Returns the dimensions, to be changed.
    pub fn dims_mut(&mut self) -> &mut [i64] {
        let rank = self.rank();
        &mut self.dims[..rank]
    }

    /// Whether no dimension is -1.
    pub fn is_known(&self) -> bool {
        self.dims().iter().all(|dim| *dim >= 0)
    }

    /// Returns the number of elements if every dimension is known and the product does not
    /// overflow.
    pub fn numel(&self) -> Option<usize> {
        self.dims()
            .iter()
            .try_fold(1usize, |product, dim| product.checked_mul(usize::try_from(*dim).ok()?))
    }

    /// Returns the number of elements of a known shape.
    ///
    /// # Panics
    /// If a dimension is unknown, or the product overflows. Plans contain known shapes only.
    #[track_caller]
    pub fn len(&self) -> usize {
        self.numel().expect("shape is known")
    }

    /// Returns whether a dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.dims().contains(&0)
    }

    /// Returns dimension `axis` of a known shape.
    pub fn at(&self, axis: usize) -> usize {
        self.dims()[axis] as usize
    }

    /// Returns known dimensions as `usize`, padded with 1 up to [`RANK_MAX`], and the rank.
    pub fn sizes(&self) -> ([usize; RANK_MAX], usize) {
        let mut sizes = [1; RANK_MAX];
        for (to, from) in sizes.iter_mut().zip(self.dims()) {
            *to = *from as usize;
        }
        (sizes, self.rank())
    }

    /// Returns the product of the known dimensions in `range`.
    pub fn product(&self, range: std::ops::Range<usize>) -> usize {
        self.dims()[range].iter().map(|dim| *dim as usize).product()
    }

    /// Returns the index of an axis, which counts from the end if negative. Returns an error if it
    /// is outside the shape.
    pub fn axis(&self, axis: i64) -> Result<usize> {
        let rank = self.rank() as i64;
        let index = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&index) {
            Ok(index as usize)
        } else {
            Err(Error::invalid(format!("axis {axis} is outside shape {self}"))
                .expected(format!("{}..{rank}", -rank)))
        }
    }

    /// Whether the two can be the same shape at run time. An unknown dimension matches any.
    pub fn agrees(&self, other: &Shape) -> bool {
        self.rank == other.rank
            && self.dims().iter().zip(other.dims()).all(|(a, b)| a == b || *a < 0 || *b < 0)
    }

    /// Appends a dimension. Fails at the limit of the rank.
    pub fn push(&mut self, dim: i64) -> Result<()> {
        if self.rank() == RANK_MAX {
            return Err(Error::invalid(format!("more than {RANK_MAX} dimensions")).got(*self));
        }
        self.dims[self.rank()] = dim;
        self.rank += 1;
        Ok(())
    }

    /// Returns the shape to which two operands broadcast, aligned at the last dimension.
    pub fn broadcast(&self, other: &Shape) -> Result<Shape> {
        let rank = self.rank().max(other.rank());
        let mut out = Shape::of(&[1; RANK_MAX][..rank]);
        for back in 0..rank {
            let a = self.dims().iter().rev().nth(back).copied().unwrap_or(1);
            let b = other.dims().iter().rev().nth(back).copied().unwrap_or(1);
            out.dims[rank - 1 - back] = match (a, b) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                (-1, b) => b,
                (a, -1) => a,
                _ => {
                    return Err(Error::invalid("shapes cannot be broadcast")
                        .got(format!("{self} and {other}")));
                }
            };
        }
        Ok(out)
    }
}

impl Deref for Shape {
    type Target = [i64];
    fn deref(&self) -> &[i64] {
        self.dims()
    }
}

impl<const N: usize> From<[i64; N]> for Shape {
    fn from(dims: [i64; N]) -> Shape {
        const { assert!(N <= RANK_MAX) };
        Shape::of(&dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dim) in self.dims().iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
