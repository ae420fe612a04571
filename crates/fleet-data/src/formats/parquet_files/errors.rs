//! Errors of Parquet files, from the library's errors and panics.

use ::parquet::errors::ParquetError;
use fleet_base::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) fn unreadable(error: ParquetError) -> Error {
    match error {
        // An error of this crate, passed through the parquet crate.
        ParquetError::External(ours) if ours.is::<Error>() => {
            ours.downcast().map_or_else(|_| damaged(), |ours| *ours)
        }
        error => Error::invalid(format!("cannot read the Parquet file: {error}")),
    }
}

/// Catches panics of the parquet crate, which asserts some of what a file claims about itself. A
/// bad file must not cause a panic.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let broken = |_| Error::invalid("Parquet file is damaged: its metadata is inconsistent");
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(broken(panic)))
}

pub(super) fn damaged() -> Error {
    Error::invalid("Parquet file is damaged: invalid footer")
}
