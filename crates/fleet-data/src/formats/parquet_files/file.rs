//! Parquet files, their columns and their records: local ones, and objects in stores, of which the
//! encoded columns of one row group are in memory at a time.

use super::errors::{catch_panic, damaged, unreadable};
#[cfg(feature = "object-store")]
use super::object;
use crate::files::{is_url, object_name_error};
use crate::pipe::{FileSource, open_file};
use ::parquet::basic::Compression;
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::DataType;
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use ::parquet::schema::types::ColumnDescriptor;
use fleet_base::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// Where Parquet files are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    #[cfg(feature = "object-store")]
    pub stores: Option<crate::ObjectStores>,
}

impl Origin {
    /// Returns the origin of files of this source.
    #[cfg_attr(not(feature = "object-store"), expect(unused_variables))]
    pub fn of(source: &FileSource) -> Origin {
        Origin {
            #[cfg(feature = "object-store")]
            stores: source.stores.clone(),
        }
    }

    /// Opens a file, and reads its footer.
    pub fn open(&self, path: &Path) -> Result<Source> {
        if !is_url(path) {
            let file = open_file(path)?;
            return Ok(Source::local(Box::new(parsed(file, path)?)));
        }
        #[cfg(feature = "object-store")]
        if let (Some(stores), Some(url)) = (&self.stores, path.to_str()) {
            let object = object::Object::open(stores, url)?;
            let file = Box::new(parsed(object.clone(), path)?);
            return Ok(Source { file, object: Some(object) });
        }
        Err(object_name_error(path.display()))
    }
}

/// A local file, or an object in a store.
pub(crate) struct Source {
    file: Box<dyn FileReader>,
    /// Downloads the parts to be read, if the file is an object.
    #[cfg(feature = "object-store")]
    object: Option<object::Object>,
}

impl Source {
    fn local(file: Box<dyn FileReader>) -> Source {
        Source {
            file,
            #[cfg(feature = "object-store")]
            object: None,
        }
    }

    /// Returns all columns of the file.
    pub fn columns(&self) -> Vec<Arc<ColumnDescriptor>> {
        self.file.metadata().file_metadata().schema_descr().columns().to_vec()
    }

    /// Opens columns of a row group; also returns its number of rows.
    fn open(&self, group: usize, columns: &[usize]) -> Result<(usize, Vec<ColumnReader>)> {
        let group = self.file.get_row_group(group).map_err(unreadable)?;
        let rows = usize::try_from(group.metadata().num_rows()).map_err(|_| damaged())?;
        #[cfg(feature = "object-store")]
        if let Some(object) = &self.object {
            let range = |at: &usize| group.metadata().column(*at).byte_range();
            object.download(columns.iter().map(range))?;
        }
        let open = columns.iter().map(|at| group.get_column_reader(*at));
        Ok((rows, open.collect::<Result<_, _>>().map_err(unreadable)?))
    }

    /// Rejects unsupported compression codecs before anything is read.
    fn check_codecs(&self, columns: &[usize]) -> Result<()> {
        let groups = self.file.metadata().row_groups();
        let codecs = groups
            .iter()
            .flat_map(|group| columns.iter().filter_map(|at| group.columns().get(*at)));
        match codecs.map(|column| column.compression()).find(|codec| !is_known(codec)) {
            None => Ok(()),
            Some(codec) => Err(Error::unsupported("unsupported compression codec")
                .expected("snappy, gzip, zstd, brotli, lz4 or none")
                .got(codec)),
        }
    }
}

fn is_known(codec: &Compression) -> bool {
    match codec {
        Compression::UNCOMPRESSED
        | Compression::SNAPPY
        | Compression::GZIP(_)
        | Compression::BROTLI(_)
        | Compression::ZSTD(_)
        | Compression::LZ4
        | Compression::LZ4_RAW => true,
        Compression::LZO => false,
    }
}

/// Some columns of a file, whose records are decoded a few thousand at a time.
pub(crate) struct Chunks {
    source: Source,
    columns: Vec<usize>,
    /// The next row group.
    group: usize,
    /// Rows of the open row group that are not decoded yet.
    left: usize,
    open: Vec<ColumnReader>,
}

impl Chunks {
    /// Returns the columns at these places of a file.
    pub fn new(source: Source, columns: Vec<usize>) -> Result<Chunks> {
        source.check_codecs(&columns)?;
        Ok(Chunks { source, columns, group: 0, left: 0, open: Vec::new() })
    }

    /// Returns the number of the next records, which the caller must decode from every column, and
    /// the columns; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(usize, &mut [ColumnReader])>> {
        while self.left == 0 {
            if self.group == self.source.file.num_row_groups() {
                return Ok(None);
            }
            (self.left, self.open) = self.source.open(self.group, &self.columns)?;
            self.group += 1;
        }
        let count = self.left.min(CHUNK_ROWS);
        self.left -= count;
        Ok(Some((count, &mut self.open)))
    }
}

/// Reads the values of `count` records, and returns the end of each record and the values.
pub(crate) fn read_records<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    column: &ColumnDescriptor,
    count: usize,
) -> Result<(Vec<usize>, Vec<T::T>), ParquetError> {
    let (mut present, mut starts, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let (has_nulls, is_list) = (column.max_def_level() > 0, column.max_rep_level() > 0);
    let mut records = 0;
    while records < count {
        let (more, ..) = reader.read_records(
            count - records,
            has_nulls.then_some(&mut present),
            is_list.then_some(&mut starts),
            &mut values,
        )?;
        if more == 0 {
            return Err(ParquetError::General("a column ends early".to_string()));
        }
        records += more;
    }
    let mut ends = Vec::with_capacity(records);
    let entries = if has_nulls { present.len() } else { values.len() };
    let mut taken = 0;
    for entry in 0..entries {
        if is_list && starts.get(entry) == Some(&0) && entry > 0 {
            ends.push(taken);
        }
        taken += usize::from(!has_nulls || present[entry] == column.max_def_level());
        if !is_list {
            ends.push(taken);
        }
    }
    if is_list && entries > 0 {
        ends.push(taken);
    }
    if ends.len() != records || taken != values.len() {
        return Err(ParquetError::General("levels do not match the values".to_string()));
    }
    Ok((ends, values))
}

/// Parses a file's footer.
fn parsed<R: ChunkReader + 'static>(from: R, path: &Path) -> Result<SerializedFileReader<R>> {
    let parsed = catch_panic(|| SerializedFileReader::new(from).map_err(unreadable));
    parsed.map_err(|error| error.at(path.display()))
}

/// Records that are decoded at once; the columns of a click log then take a megabyte.
const CHUNK_ROWS: usize = 4096;
