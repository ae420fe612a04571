//! Built-in file formats: Criteo's click logs, CSV, libsvm and JSON lines; by feature also Parquet
//! and TFRecord.

mod criteo;
mod csv;
mod json_lines;
mod libsvm;
#[cfg(feature = "parquet")]
pub(crate) mod parquet_files;
#[cfg(feature = "tfrecord")]
pub(crate) mod tf_record;

pub use criteo::{Criteo, CriteoHash};
pub use csv::{Csv, CsvColumn};
pub use json_lines::JsonLines;
pub use libsvm::LibSvm;
#[cfg(feature = "parquet")]
pub use parquet_files::ParquetFiles;
#[cfg(feature = "tfrecord")]
pub use tf_record::{TfRecordReader, TfRecords};

/// Hashes a word into one of `buckets` ids, the same on every machine and in every run.
///
/// ```
/// assert!(fleet_data::hash_bucket(b"14", b"68fd1e64", 1_000_001) < 1_000_001);
/// ```
pub fn hash_bucket(column: &[u8], value: &[u8], buckets: u64) -> u64 {
    let joined =
        crate::dataset::stable_hash(column) ^ crate::dataset::stable_hash(value).rotate_left(17);
    // The upper half of the product: the bias is negligible, and no division is needed.
    ((u128::from(joined.wrapping_mul(0x9e37_79b9_7f4a_7c15)) * u128::from(buckets.max(1))) >> 64)
        as u64
}
