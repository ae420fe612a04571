//! Options of an export, and where it gets values from.

use fleet_base::{Error, Result, text};
use fleet_tensor::Tensor;
use std::ops::RangeInclusive;

/// Options of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxOptions {
    /// Version of the op set, 17 to 23.
    pub opset: i64,
    /// Limit on the rows of an embedding table.
    pub table_rows_max: u64,
    /// The inputs, in order; those that the results do not need are left out. If empty, all inputs
    /// that are needed, in the order of the program.
    pub feeds: Vec<String>,
}

impl Default for OnnxOptions {
    fn default() -> Self {
        OnnxOptions {
            opset: *OnnxOptions::OPSETS.start(),
            table_rows_max: TABLE_ROWS_MAX,
            feeds: Vec::new(),
        }
    }
}

impl OnnxOptions {
    /// The supported op sets.
    pub const OPSETS: RangeInclusive<i64> = 17..=23;
}

/// Default limit on rows: a table of width 50 then has 2 GB.
const TABLE_ROWS_MAX: u64 = 10_000_000;
/// The rows of a table on parameter servers.
#[derive(Debug)]
pub struct TableRows {
    /// The ids that have a row, in any order.
    pub ids: Vec<i64>,
    /// A row for each id: `[ids, width]`, f32.
    pub rows: Tensor,
}

/// Where an export gets values from.
pub trait Values {
    /// Returns the value of a variable that the program keeps between runs.
    fn variable(&mut self, name: &str) -> Result<Tensor>;
    /// Returns the rows of a table on parameter servers, or an error if it has more than
    /// `row_count_max`.
    fn table(&mut self, id: u32, row_count_max: u64) -> Result<TableRows>;
}

/// Returns the error for a table with more rows than [`OnnxOptions::table_rows_max`].
pub fn too_many_rows(table: &str, count: u64, limit: u64) -> Error {
    Error::unsupported(format!("table {table} has too many rows for an ONNX file"))
        .expected(format!("at most {}", text::counted(limit as usize, "row")))
        .got(count)
        .help(
            "raise the limit with --max-table-rows (max_table_rows in Python, table_rows_max in \
             Rust), or save fewer rows: mode 1 (base) has those that serving needs",
        )
}
