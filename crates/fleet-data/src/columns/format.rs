//! The formats of files with columns.

use fleet_base::{Error, Result, text};
use std::fmt;
use std::path::Path;

/// The names of a CSV file's columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsvHeader {
    /// The first line of every file, each in its own order.
    FirstLine,
    /// These names, in the order of the columns; files have no header.
    Names(Vec<String>),
    /// `column_1`, `column_2`, ..; files have no header.
    Numbered,
}

/// A format of files with columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataFormat {
    /// Lines of fields. Fields with a separator, a quote or a newline are quoted, and quotes in
    /// them are doubled.
    Csv {
        /// The byte between two fields.
        separator: u8,
        /// The names of the columns.
        header: CsvHeader,
    },
    /// Criteo's click logs: `label`, `I1` to `I13` and `C1` to `C26`, separated by tabs.
    Criteo,
    /// A JSON object a line, whose keys are columns.
    JsonLines,
    /// Parquet files.
    Parquet,
    /// Files of `tf.train.Example`, whose features are columns.
    TfRecord,
    /// Lines of the MultiSlot text format: a count and values for each of these columns.
    MultiSlot {
        /// The names of the columns, in the order of a line.
        names: Vec<String>,
    },
}

impl DataFormat {
    /// Returns the format of CSV files with commas and a header.
    pub fn csv() -> DataFormat {
        DataFormat::Csv { separator: b',', header: CsvHeader::FirstLine }
    }

    /// Returns the format that the ending of a file's name stands for. Endings of compressed files
    /// (`.gz`, `.zst`) are ignored.
    ///
    /// ```
    /// use fleet_data::DataFormat;
    /// assert_eq!(DataFormat::of_name("day-1.csv.gz".as_ref())?, DataFormat::csv());
    /// assert_eq!(DataFormat::of_name("clicks.jsonl".as_ref())?, DataFormat::JsonLines);
    /// assert!(DataFormat::of_name("clicks.xlsx".as_ref()).is_err());
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn of_name(path: &Path) -> Result<DataFormat> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let bare = COMPRESSED.iter().find_map(|ending| name.strip_suffix(ending));
        let bare = bare.unwrap_or(&name);
        let ending = bare.rsplit_once('.').map_or("", |(_, ending)| ending);
        Ok(match ending {
            "csv" => DataFormat::csv(),
            "tsv" | "tab" => DataFormat::Csv { separator: b'\t', header: CsvHeader::FirstLine },
            "jsonl" | "ndjson" | "json" => DataFormat::JsonLines,
            "parquet" | "parq" | "pq" | "brotli" | "snappy" => DataFormat::Parquet,
            "tfrecord" | "tfrecords" | "tfr" => DataFormat::TfRecord,
            _ => {
                return Err(Error::invalid("file name does not tell the format")
                    .expected(".csv, .tsv, .jsonl, .parquet or .tfrecord, also with .gz or .zst")
                    .got(format!("'{}'", text::printable_line(&name)))
                    .help("name the format"));
            }
        })
    }

    /// Returns whether two formats differ at most in their settings.
    pub(crate) fn is_like(&self, other: &DataFormat) -> bool {
        let is_table =
            |format: &DataFormat| matches!(format, DataFormat::Csv { .. } | DataFormat::Criteo);
        std::mem::discriminant(self) == std::mem::discriminant(other)
            || is_table(self) && is_table(other)
    }
}

impl fmt::Display for DataFormat {
    /// Writes the name of the format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DataFormat::Csv { separator: b'\t', .. } => "TSV",
            DataFormat::Csv { .. } => "CSV",
            DataFormat::Criteo => "Criteo",
            DataFormat::JsonLines => "JSON lines",
            DataFormat::Parquet => "Parquet",
            DataFormat::TfRecord => "TFRecord",
            DataFormat::MultiSlot { .. } => "MultiSlot",
        })
    }
}

/// Returns the names of the columns of Criteo's click logs.
pub(super) fn criteo_names() -> Vec<String> {
    let numbers = (1..=13).map(|at| format!("I{at}"));
    let words = (1..=26).map(|at| format!("C{at}"));
    std::iter::once("label".to_string()).chain(numbers).chain(words).collect()
}

/// Endings of compressed files.
const COMPRESSED: [&str; 4] = [".gz", ".gzip", ".zst", ".zstd"];
