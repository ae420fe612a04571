//! Tables of parameter servers as plain configs. A strategy makes them of a program, and servers
//! and workers take them as they are: there is one vocabulary.
//!
//! Nothing here holds rows or applies rules; see `fleet-ps` for that.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod dense;
mod entry;
mod exchange;
mod initializer;
mod job;
mod non_finite;
pub mod rule;
mod sparse;

pub use dense::{DenseBlock, DenseCut, dense_range};
pub use entry::Entry;
pub use exchange::{Exchange, PushMode};
pub use initializer::Initializer;
pub use job::{DenseOptions, JobTables, TableConfig};
pub use non_finite::NonFinite;
pub use rule::Rule;
pub use sparse::{Accessor, CtrAccessor, DAYS_MAX, SparseConfig};
