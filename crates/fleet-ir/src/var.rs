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
