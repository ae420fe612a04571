//! Variables.

use crate::BlockId;
use fleet_tensor::{DType, Layout, Shape};

/// A variable: a typed, named value that ops read and write.
#[derive(Clone, Debug, PartialEq)]
pub struct Var {
    /// The name, unique in the program. Change it with
    /// [`Program::rename_var`](crate::Program::rename_var).
    pub name: String,
    /// The block that lists the variable. Set by [`Program::add_var`](crate::Program::add_var).
    pub block: BlockId,
    /// The type of the elements.
    pub dtype: DType,
    /// The sizes, with -1 for a size that is known at run time only.
    pub shape: Shape,
    /// The kind of value: dense, some rows, or a list.
    pub kind: VarKind,
    /// Layout of the elements in memory. Passes choose it; programs that users build are row-major.
    pub layout: Layout,
    /// Whether the value lives in the scope and is kept from one run to the next.
    pub persistable: bool,
    /// Whether gradients stop here: backward computes none for the variable.
    pub stop_gradient: bool,
    /// Whether the value is fed at run time.
    pub is_data: bool,
    /// Number of levels of ragged nesting; 0 for a plain tensor.
    pub lod_level: u8,
    /// Properties of a parameter; `None` for all other variables.
    pub param: Option<Param>,
    /// How ranks may divide the variable, and the part that this program has.
    pub division: Option<Division>,
}

/// How ranks divide a variable along one axis, and the part of it that a program has.
///
/// The axis consists of `groups` blocks of equal size, and every block of `parts` pieces of equal
/// size. Part `i` has piece `i` of each block. Queries, keys and values packed in one matrix are
/// three groups, so that a part has all three for its heads.
///
/// If the parts do not divide the axis, the last ones are padded: parts of 3 rows each divide a
/// table of 10 rows among 4 ranks, with a padding of 2 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Division {
    /// The axis that is divided.
    pub axis: usize,
    /// Number of blocks along the axis that are divided separately.
    pub groups: usize,
    /// The part that the variable holds.
    pub part: usize,
    /// Number of parts; 1 if the variable is whole, and ranks may divide it.
    pub parts: usize,
    /// Number of elements along the axis that the last parts have beyond the whole variable.
    pub padding: usize,
}

impl Division {
    /// Returns that ranks may divide an axis.
    pub const fn along(axis: usize) -> Division {
        Division { axis, groups: 1, part: 0, parts: 1, padding: 0 }
    }

    /// Returns one part of an axis of `size` elements. Parts have equal sizes; the last ones are
    /// padded if necessary.
    ///
    /// ```
    /// use fleet_ir::Division;
    /// use fleet_tensor::Shape;
    /// let last = Division::padded(0, 10, 3, 4);
    /// assert_eq!(last.of(&Shape::from([10, 8])), Some(Shape::from([3, 8])));
    /// assert_eq!(last.whole(&Shape::from([3, 8])), Some(Shape::from([10, 8])));
    /// ```
    pub const fn padded(axis: usize, size: usize, part: usize, parts: usize) -> Division {
        let padding = size.div_ceil(parts) * parts - size;
        Division { axis, groups: 1, part, parts, padding }
    }

    /// Returns the same division of the whole variable, as one part.
    pub const fn undivided(&self) -> Division {
        Division { axis: self.axis, groups: self.groups, part: 0, parts: 1, padding: 0 }
    }

    /// Returns whether the variable is a part of a larger one.
    pub const fn is_part(&self) -> bool {
        self.parts > 1
    }

    /// Returns the shape of the whole variable, of which `part` is the shape of a part. Fails if
    /// the axis does not exist or the size overflows.
    ///
    /// ```
    /// use fleet_ir::Division;
    /// use fleet_tensor::Shape;
    /// let half = Division { part: 1, parts: 2, ..Division::along(1) };
    /// assert_eq!(half.whole(&Shape::from([4, 3])), Some(Shape::from([4, 6])));
    /// assert_eq!(half.whole(&Shape::from([4])), None);
    /// ```
    pub fn whole(&self, part: &Shape) -> Option<Shape> {
        let mut shape = *part;
        let dim = shape.dims_mut().get_mut(self.axis)?;
        if *dim >= 0 {
            let padded = dim.checked_mul(i64::try_from(self.parts).ok()?)?;
            *dim = padded.checked_sub(i64::try_from(self.padding).ok()?)?;
            if *dim < 0 {
                return None;
            }
        }
        Some(shape)
    }

    /// Returns the shape of a part of a variable of this shape. Fails if the axis does not divide
    /// into the groups and parts.
    ///
    /// ```
    /// use fleet_ir::Division;
    /// use fleet_tensor::Shape;
    /// let half = Division { part: 1, parts: 2, ..Division::along(1) };
    /// assert_eq!(half.of(&Shape::from([4, 6])), Some(Shape::from([4, 3])));
    /// assert_eq!(half.of(&Shape::from([4, 5])), None);
    /// ```
    pub fn of(&self, whole: &Shape) -> Option<Shape> {
        let mut shape = *whole;
        let dim = shape.dims_mut().get_mut(self.axis)?;
        let pieces = i64::try_from(self.groups.checked_mul(self.parts)?).ok()?;
        let padded = dim.checked_add(i64::try_from(self.padding).ok()?)?;
        if pieces < 1 || *dim < 0 || padded % pieces != 0 {
            return None;
        }
        *dim = padded / i64::try_from(self.parts).ok()?;
        Some(shape)
    }

    /// Returns whether a variable of this shape can be such a part.
    pub fn fits(&self, part: &Shape) -> bool {
        let counts = self.groups >= 1 && self.part < self.parts;
        let counts = counts && (self.padding == 0 || self.groups == 1);
        counts && self.whole(part).is_some_and(|whole| self.of(&whole) == Some(*part))
    }
}

/// The kind of value that a variable holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VarKind {
    /// One tensor with all of its elements.
    #[default]
    Dense,
    /// Some rows of a tall matrix. The variable's shape is that of the whole matrix.
    SparseRows,
    /// A list of tensors.
    TensorArray,
}

/// Properties of a trainable or frozen parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Whether training changes the parameter.
    pub trainable: bool,
    /// Factor on the optimizer's learning rate.
    pub learning_rate: f64,
    /// Overrides the optimizer's regularizer.
    pub regularizer: Option<Regularizer>,
    /// Whether the gradient takes part in gradient clipping.
    pub need_clip: bool,
    /// Whether the parameter lives on parameter servers.
    pub is_distributed: bool,
}

/// Weight decay, added to the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Regularizer {
    /// `g + coeff * sign(w)`.
    L1(f64),
    /// `g + coeff * w`.
    L2(f64),
}

impl Default for Param {
    fn default() -> Self {
        Param {
            trainable: true,
            learning_rate: 1.0,
            regularizer: None,
            need_clip: true,
            is_distributed: false,
        }
    }
}

impl Var {
    /// Returns a temporary variable, to be added to a program.
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> Var {
        Var {
            name: name.into(),
            block: BlockId::default(),
            dtype,
            shape: shape.into(),
            kind: VarKind::Dense,
            layout: Layout::RowMajor,
            persistable: false,
            stop_gradient: false,
            is_data: false,
            lod_level: 0,
            param: None,
            division: None,
        }
    }

    /// Returns a variable that is fed at run time.
    pub fn data(name: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> Var {
        Var { is_data: true, stop_gradient: true, ..Var::new(name, dtype, shape) }
    }

    /// Returns a variable that the scope keeps from one run to the next.
    pub fn persistable(name: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> Var {
        Var { persistable: true, stop_gradient: true, ..Var::new(name, dtype, shape) }
    }

    /// Returns a parameter.
    pub fn parameter(
        name: impl Into<String>,
        dtype: DType,
        shape: impl Into<Shape>,
        param: Param,
    ) -> Var {
        let stop_gradient = !param.trainable;
        Var { persistable: true, stop_gradient, param: Some(param), ..Var::new(name, dtype, shape) }
    }

    /// Returns whether the variable is a parameter, trainable or frozen.
    pub fn is_parameter(&self) -> bool {
        self.param.is_some()
    }
}
