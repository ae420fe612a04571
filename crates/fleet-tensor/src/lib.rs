//! Tensors and their parts: element types, shapes, layouts, aligned buffers, dense tensors and
//! sparse rows. This crate does not depend on programs or sockets.

#![deny(missing_docs)]

mod arg;
mod buffer;
mod convert;
mod dtype;
mod elements;
mod layout;
mod shape;
mod tensor;

pub use arg::{Arg, ArgList, Args, Out, RowsArg, ValueMut, View};
pub use buffer::{ALIGN, Buffer};
pub use convert::{Convert, Widest};
pub use dtype::{DType, Element};
pub use elements::{Bits, Plain, view_as, view_as_mut};
pub use half::{bf16, f16};
pub use layout::Layout;
pub use shape::{RANK_MAX, Shape};
pub use tensor::{SparseRows, Tensor};
