//! Files with columns: opens them by their format.

use super::cells::Cells;
use super::csv::CsvLines;
use super::format::criteo_names;
use super::json::JsonRows;
use super::missing::Missing;
use super::multi_slot::MultiSlotRows;
#[cfg(feature = "parquet")]
use super::parquet::ParquetRows;
use super::texts::TextObserver;
#[cfg(feature = "tfrecord")]
use super::tf_record::TfRecordRows;
use super::{ColumnSpec, CsvHeader, DataFormat};
use crate::bad_rows::BadRows;
use crate::dataset::RecordFormat;
#[cfg(feature = "parquet")]
use crate::formats::parquet_files::Origin;
use crate::lines::{LineFormat, LineReader, RecordReader};
use crate::pipe::FileSource;
#[cfg(feature = "parquet")]
use crate::pipe::is_plain;
use crate::slot::Schema;
use fleet_base::{Error, Result};
use std::io::{Cursor, Read};
use std::path::Path;
use std::sync::Arc;

/// Reads named columns out of files of a format, the same way from every format. Files whose names
/// end in `.gz` or `.zst` are decompressed.
///
/// ```
/// use fleet_data::{Block, ColumnFiles, ColumnSpec, DataFormat, RecordFormat, category_hash};
/// let path = std::env::temp_dir().join(format!("people-{}.csv", std::process::id()));
/// std::fs::write(&path, "city,age\n\"Paris, 4e\",30\nRome,?\n").unwrap();
/// let columns = [ColumnSpec::number("age"), ColumnSpec::category("city")];
/// let files = ColumnFiles::new(DataFormat::csv(), columns)?.missing(["?"])?;
/// let mut block = Block::new(files.schema());
/// assert_eq!(files.open(&path)?.read(100, &mut block)?, 2);
/// assert_eq!(block.column(0).floats(0), Some(&[30.0][..]));
/// assert!(block.column(0).floats(1).unwrap()[0].is_nan());
/// assert_eq!(block.column(1).ids(0), Some(&[category_hash(b"Paris, 4e") as i64][..]));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone)]
pub struct ColumnFiles {
    format: DataFormat,
    cells: Cells,
    origin: FileSource,
    bad_rows: BadRows,
}

impl ColumnFiles {
    /// Returns files of a format with these columns. Fails if names are not unique, or if the
    /// format cannot have the columns.
    pub fn new(
        format: DataFormat,
        columns: impl IntoIterator<Item = ColumnSpec>,
    ) -> Result<ColumnFiles> {
        let cells = Cells::new(columns)?;
        let (origin, bad_rows) = (FileSource::default(), BadRows::default());
        let files = ColumnFiles { format, cells, origin, bad_rows };
        files.check()?;
        Ok(files)
    }

    /// Sets texts that stand for a missing value, besides the empty text.
    pub fn missing<S: AsRef<str>>(mut self, marks: impl IntoIterator<Item = S>) -> Result<Self> {
        self.cells.missing = Missing::new(marks)?;
        Ok(self)
    }

    /// Sets how many rows may be bad, and where they are kept; by default the first is an error.
    pub fn bad_rows(mut self, bad_rows: BadRows) -> Self {
        self.bad_rows = bad_rows;
        self
    }

    /// Shows the text of every category to an observer, which takes time.
    pub fn observe_texts(mut self, observer: Arc<dyn TextObserver>) -> Self {
        self.cells.observer = Some(observer);
        self
    }

    /// Pipes each file through a shell command first, like
    /// [`TextFiles::pipe_command`](crate::TextFiles::pipe_command). Not for Parquet.
    pub fn pipe_command(mut self, command: impl Into<String>) -> Self {
        self.origin.pipe_command = command.into();
        self
    }

    /// Downloads files with a shell command, like
    /// [`TextFiles::download_command`](crate::TextFiles::download_command). Not for Parquet.
    pub fn download_command(mut self, command: impl Into<String>) -> Self {
        self.origin.download_command = command.into();
        self
    }

    /// Also accepts names of objects, like
    /// [`TextFiles::object_stores`](crate::TextFiles::object_stores).
    #[cfg(feature = "object-store")]
    pub fn object_stores(mut self, stores: &crate::ObjectStores) -> Self {
        self.origin.stores = Some(stores.clone());
        self
    }

    /// Returns the columns, in the order of the slots.
    pub fn columns(&self) -> &[ColumnSpec] {
        &self.cells.columns
    }

    /// Fails if no file of the format can have the columns.
    fn check(&self) -> Result<()> {
        match &self.format {
            DataFormat::Csv { separator, header } => {
                CsvLines::new(&self.cells, *separator, header).map(drop)
            }
            DataFormat::Criteo => self.criteo().map(drop),
            DataFormat::MultiSlot { names } => MultiSlotRows::new(&self.cells, names).map(drop),
            _ => Ok(()),
        }
    }

    fn criteo(&self) -> Result<CsvLines> {
        CsvLines::new(&self.cells, b'\t', &CsvHeader::Names(criteo_names()))
    }

    #[cfg(feature = "parquet")]
    fn parquet(&self, path: &Path) -> Result<Box<dyn RecordReader>> {
        let commands = [&self.origin.pipe_command, &self.origin.download_command];
        if !commands.iter().all(|command| is_plain(command)) {
            return Err(Error::unsupported("Parquet files cannot be read through a command")
                .help("download them first, or give their names in an object store"));
        }
        let origin = Origin::of(&self.origin);
        let rows = ParquetRows::open(&self.cells, &origin, path, self.bad_rows.clone());
        Ok(Box::new(rows.map_err(|error| error.at(path.display()))?))
    }

    /// Opens a file of lines.
    fn lines<F: LineFormat + 'static>(
        &self,
        path: &Path,
        format: F,
    ) -> Result<Box<dyn RecordReader>> {
        let from = self.not_empty(path)?;
        let reader = LineReader::new(from, self.origin.name(path), format);
        Ok(Box::new(reader.bad_rows(self.bad_rows.clone())))
    }

    /// Opens a file, which must have at least one byte and not be one of Parquet.
    fn not_empty(&self, path: &Path) -> Result<Box<dyn Read + Send>> {
        let mut from = self.origin.open(path)?;
        let mut start = Vec::new();
        let read = from.by_ref().take(PARQUET_START.len() as u64).read_to_end(&mut start);
        let name = self.origin.name(path);
        read.map_err(|error| Error::unavailable(format!("cannot read {name}: {error}")))?;
        match start.as_slice() {
            [] => Err(Error::invalid("file is empty").help("remove it from the list").at(name)),
            PARQUET_START => Err(Error::invalid("file is a Parquet file")
                .expected(&self.format)
                .help("set the format to Parquet")
                .at(name)),
            _ => Ok(Box::new(Cursor::new(start).chain(from))),
        }
    }
}

impl RecordFormat for ColumnFiles {
    fn schema(&self) -> &Arc<Schema> {
        &self.cells.schema
    }

    fn open(&self, path: &Path) -> Result<Box<dyn RecordReader>> {
        match &self.format {
            DataFormat::Csv { separator, header } => {
                self.lines(path, CsvLines::new(&self.cells, *separator, header)?)
            }
            DataFormat::Criteo => self.lines(path, self.criteo()?),
            DataFormat::JsonLines => self.lines(path, JsonRows::new(&self.cells)),
            DataFormat::MultiSlot { names } => {
                self.lines(path, MultiSlotRows::new(&self.cells, names)?)
            }
            #[cfg(feature = "tfrecord")]
            DataFormat::TfRecord => {
                let (from, name) = (self.not_empty(path)?, self.origin.name(path));
                Ok(Box::new(TfRecordRows::new(&self.cells, from, &name, self.bad_rows.clone())))
            }
            #[cfg(not(feature = "tfrecord"))]
            DataFormat::TfRecord => Err(without_feature(&self.format, "tfrecord")),
            #[cfg(feature = "parquet")]
            DataFormat::Parquet => self.parquet(path),
            #[cfg(not(feature = "parquet"))]
            DataFormat::Parquet => Err(without_feature(&self.format, "parquet")),
        }
    }

    fn for_pass(&self) -> Option<Arc<dyn RecordFormat>> {
        Some(Arc::new(ColumnFiles {
            origin: self.origin.for_pass(),
            bad_rows: self.bad_rows.for_pass(),
            ..self.clone()
        }))
    }

    fn stop(&self) {
        self.origin.running.end_all();
    }

    fn is_local(&self) -> bool {
        self.origin.is_local()
    }
}

#[cfg(not(all(feature = "parquet", feature = "tfrecord")))]
fn without_feature(format: &DataFormat, feature: &str) -> Error {
    Error::unsupported(format!("this program was built without support for {format}"))
        .help(format!("build it with the feature `{feature}`"))
}

/// The first bytes of a Parquet file.
const PARQUET_START: &[u8] = b"PAR1";
