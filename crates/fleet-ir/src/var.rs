//! Variables.

use crate::BlockId;
use fleet_tensor::{DType, Layout, Shape};

/// A variable: a typed label for a value that ops read and write.
#[derive(Clone, Debug, PartialEq)]
pub struct Var {
    pub name: String,
    /// Set by [`Program::add_var`](crate::Program::add_var).
    pub block: BlockId,
    pub dtype: DType,
    pub shape: Shape,
    pub kind: VarKind,
    /// How its elements lie in memory; chosen by passes, row-major in programs that users build.
    pub layout: Layout,
    /// Lives in the scope, from one run to the next.
    pub persistable: bool,
    pub stop_gradient: bool,
    /// Fed at run time.
    pub is_data: bool,
    /// Levels of ragged nesting; 0 for a plain tensor.
    pub lod_level: u8,
    pub param: Option<Param>,
}

/// What kind of value a variable holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VarKind {
    #[default]
    Dense,
    /// Some rows of a tall matrix; the shape is that of the whole matrix.
    SparseRows,
    /// A list of tensors.
    TensorArray,
}

/// What makes a variable a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    pub trainable: bool,
    /// Multiplies the optimizer's learning rate.
    pub learning_rate: f64,
    /// Overrides the optimizer's.
    pub regularizer: Option<Regularizer>,
    pub need_clip: bool,
    /// Lives on parameter servers.
    pub is_distributed: bool,
}

/// Weight decay added to a gradient.
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
    /// A temporary of unknown shape, to be added to a program.
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

    /// A variable that is fed.
    pub fn data(name: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> Var {
        Var { is_data: true, stop_gradient: true, ..Var::new(name, dtype, shape) }
    }

    /// A variable that lives in the scope.
    pub fn persistable(name: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> Var {
        Var { persistable: true, stop_gradient: true, ..Var::new(name, dtype, shape) }
    }

    /// A parameter.
    pub fn parameter(
        name: impl Into<String>,
        dtype: DType,
        shape: impl Into<Shape>,
        param: Param,
    ) -> Var {
        let stop_gradient = !param.trainable;
        Var { persistable: true, stop_gradient, param: Some(param), ..Var::new(name, dtype, shape) }
    }

    pub fn is_parameter(&self) -> bool {
        self.param.is_some()
    }
}
