//! Dense tables: the dense parameters of a program, flattened into one row and divided among the
//! servers.

mod placement;
mod table;

pub use placement::{DenseBlock, DenseCut, DenseRange, dense_range, dense_ranges};
pub use table::{DenseConfig, DenseTable, Update};
pub(crate) use table::{DenseImage, DenseRuntime};
