//! The names of a file's columns: from its header, or from its first records where every record
//! names its own fields.

use super::cells::Cells;
use super::csv::{CsvLines, numbered};
use super::format::criteo_names;
use super::json::field_names;
use super::{ColumnSpec, CsvHeader, DataFormat};
use crate::block::Block;
use crate::lines::{LineError, LineFormat, LineReader};
use crate::pipe::FileSource;
use crate::slot::Schema;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use std::path::Path;
use std::sync::{Arc, Mutex};

impl DataFormat {
    /// Returns the names of a file's columns: from its header or schema, or those in its first
    /// thousand records if each record names its own fields.
    pub fn column_names(&self, path: &Path) -> Result<Vec<String>> {
        column_names(self, &FileSource::default(), path)
    }
}

/// Returns the names of a file's columns.
pub(crate) fn column_names(
    format: &DataFormat,
    source: &FileSource,
    path: &Path,
) -> Result<Vec<String>> {
    match format {
        DataFormat::Csv { header: CsvHeader::Names(names), .. } => Ok(names.clone()),
        DataFormat::Csv { separator, header } => {
            let lines = CsvLines::new(&no_cells()?, *separator, &CsvHeader::FirstLine)?;
            let names = names_of_lines(source, path, 1, NamesOf::Header(lines))?;
            let is_header = *header == CsvHeader::FirstLine;
            Ok(if is_header { names } else { numbered(names.len()) })
        }
        DataFormat::Criteo => Ok(criteo_names()),
        DataFormat::MultiSlot { names } => Ok(names.clone()),
        DataFormat::JsonLines => names_of_lines(source, path, RECORDS, NamesOf::Objects),
        #[cfg(feature = "tfrecord")]
        DataFormat::TfRecord => super::tf_record::feature_names(source, path, RECORDS),
        #[cfg(feature = "parquet")]
        DataFormat::Parquet => super::parquet::column_names(source, path),
        #[cfg(not(all(feature = "parquet", feature = "tfrecord")))]
        format => Err(Error::unsupported(format!("{format} is not supported by this program"))),
    }
}

/// Reads names from the first lines of a file.
fn names_of_lines(
    source: &FileSource,
    path: &Path,
    lines: usize,
    from: NamesOf,
) -> Result<Vec<String>> {
    let names = Arc::new(Mutex::new(Vec::new()));
    let schema = no_cells()?.schema;
    let mut block = Block::new(&schema);
    let format = FirstLines { from, schema, names: Arc::clone(&names) };
    let mut reader = LineReader::new(source.open(path)?, source.name(path), format);
    if reader.read(lines, &mut block)? == 0 {
        return Err(Error::invalid("file is empty")
            .help("remove it from the list")
            .at(path.display()));
    }
    let names = std::mem::take(&mut *lock(&names));
    Ok(names)
}

/// Returns cells of a column that no file has.
fn no_cells() -> Result<Cells> {
    Cells::new([ColumnSpec::category("none")])
}

/// The lines that have the names.
enum NamesOf {
    Header(CsvLines),
    Objects,
}

/// Collects the names in lines; each line is an empty record.
struct FirstLines {
    from: NamesOf,
    schema: Arc<Schema>,
    names: Arc<Mutex<Vec<String>>>,
}

impl LineFormat for FirstLines {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        let line = text[..length].strip_suffix(b"\r").unwrap_or(&text[..length]);
        if line.trim_ascii().is_empty() {
            return Ok(false);
        }
        let names = &mut *lock(&self.names);
        match &mut self.from {
            NamesOf::Header(lines) => *names = lines.names(line)?,
            // A bad line has no names; reading the file reports it.
            NamesOf::Objects => drop(field_names(line, names)),
        }
        block.end_record().map_err(|error| LineError { at: 0, error })?;
        Ok(true)
    }

    fn open_quote(&self) -> Option<usize> {
        match &self.from {
            NamesOf::Header(lines) => lines.open_quote(),
            NamesOf::Objects => None,
        }
    }
}

/// Records that are looked at for names of fields; a field that none of them has is very rare.
const RECORDS: usize = 1000;
