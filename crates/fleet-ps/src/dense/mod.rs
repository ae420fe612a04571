//! Dense tables: the dense parameters of a program, flattened into one row and divided among the
//! servers.

mod table;

pub use table::{DenseConfig, DenseTable, Update};
pub(crate) use table::{DenseImage, DenseRuntime};
