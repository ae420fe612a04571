//! The bytes that programs compute on: element types, shapes, aligned buffers, tensors, sparse
//! rows. It knows nothing of programs or sockets.

mod buffer;
mod dtype;
mod layout;
mod shape;
mod tensor;

pub use buffer::{ALIGN, Buffer};
pub use dtype::{DType, Element};
pub use half::{bf16, f16};
pub use layout::Layout;
pub use shape::{RANK_MAX, Shape};
pub use tensor::{SparseRows, Tensor};
