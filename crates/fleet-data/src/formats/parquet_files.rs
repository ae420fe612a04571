//! Parquet files, in the feature `parquet`. Each slot takes a column of numbers or text, or of
//! lists of them. Columns are decoded a few thousand records at a time; columns without a slot are
//! not read. For an object in a store, the encoded columns of one row group are in memory at a
//! time.

#[cfg(feature = "object-store")]
mod object;

use super::hash_bucket;
use crate::block::Block;
use crate::dataset::RecordFormat;
use crate::files::{is_url, object_name_error};
use crate::lines::RecordReader;
use crate::pipe::open_file;
use crate::slot::{Schema, Slot, SlotKind};
use ::parquet::basic::{Compression, ConvertedType, LogicalType, Type as Physical};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArray, DataType};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use ::parquet::schema::types::ColumnDescriptor;
use fleet_base::{Error, Result, text};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// Reads Parquet files. The column with a slot's name fills it; a list fills it with all its
/// values. Integers and booleans fill ids and floats, floats fill floats, and text fills ids if a
/// number of buckets is set. Nulls are omitted: a ragged slot is then empty, and a dense slot lacks
/// a value, which is an error.
///
/// ```
/// use fleet_data::{DatasetOptions, InMemoryDataset, ParquetFiles, Schema, Slot};
/// let schema = Schema::new([Slot::ragged_ids("words"), Slot::dense_floats("price", [1])])?;
/// let files = ParquetFiles::new(&schema).hash_text(1000);
/// let mut dataset = InMemoryDataset::new(DatasetOptions::new(files)?)?;
/// assert!(dataset.set_filelist(["no/such/file.parquet"]).is_err());
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ParquetFiles {
    schema: Arc<Schema>,
    buckets: Option<u64>,
    #[cfg(feature = "object-store")]
    stores: Option<crate::ObjectStores>,
}

impl ParquetFiles {
    /// Returns a format whose columns have the names of the slots. Text in slots of ids is an
    /// error.
    pub fn new(schema: &Arc<Schema>) -> ParquetFiles {
        ParquetFiles {
            schema: Arc::clone(schema),
            buckets: None,
            #[cfg(feature = "object-store")]
            stores: None,
        }
    }

    /// Hashes text in slots of ids into `buckets` ids.
    pub fn hash_text(mut self, buckets: u64) -> ParquetFiles {
        self.buckets = Some(buckets);
        self
    }

    /// Also accepts names of objects, like
    /// [`TextFiles::object_stores`](crate::TextFiles::object_stores). Only an object's footer and
    /// the columns of slots are downloaded.
    #[cfg(feature = "object-store")]
    pub fn object_stores(mut self, stores: &crate::ObjectStores) -> ParquetFiles {
        self.stores = Some(stores.clone());
        self
    }

    fn source(&self, path: &Path) -> Result<Source> {
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

    /// Returns the index of a slot's column among a file's columns.
    fn column_of(&self, slot: &Slot, columns: &[Arc<ColumnDescriptor>]) -> Result<usize> {
        let root = |column: &Arc<ColumnDescriptor>| column.path().parts().first().cloned();
        let own = |column: &Arc<ColumnDescriptor>| root(column).as_ref() == Some(&slot.name);
        let mut found = columns.iter().enumerate().filter(|(_, column)| own(column));
        let Some((index, column)) = found.next() else {
            let names: Vec<String> = columns.iter().filter_map(root).collect();
            let hint = text::did_you_mean(&slot.name, names.iter().map(String::as_str));
            return Err(Error::invalid(format!("file has no column '{}'{hint}", slot.name)));
        };
        let wrong = |what: &str| {
            Err(Error::unsupported(format!("column '{}' is {what}", slot.name))
                .expected("numbers or text, or lists of them"))
        };
        if found.next().is_some() {
            return wrong("a structure of several columns");
        }
        if column.max_rep_level() > 1 {
            return wrong("lists of lists");
        }
        let decimal = matches!(column.logical_type_ref(), Some(LogicalType::Decimal { .. }))
            || column.converted_type() == ConvertedType::DECIMAL;
        if decimal {
            return wrong("decimal numbers");
        }
        let fits = match column.physical_type() {
            Physical::BOOLEAN | Physical::INT32 | Physical::INT64 => true,
            Physical::FLOAT | Physical::DOUBLE => slot.kind == SlotKind::Floats,
            Physical::BYTE_ARRAY if slot.kind == SlotKind::Ids => match self.buckets {
                Some(_) => true,
                None => {
                    return Err(Error::invalid(format!("column '{}' is text", slot.name))
                        .help("use ParquetFiles::hash_text to hash it into ids"));
                }
            },
            _ => false,
        };
        if fits {
            return Ok(index);
        }
        Err(Error::invalid(format!("column '{}' does not match its slot", slot.name))
            .expected(format!("values for a slot of {}", slot.kind))
            .got(column.physical_type()))
    }
}

impl RecordFormat for ParquetFiles {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn open(&self, path: &Path) -> Result<Box<dyn RecordReader>> {
        let name = path.display().to_string();
        let source = self.source(path)?;
        let columns = source.file.metadata().file_metadata().schema_descr().columns().to_vec();
        let place = |slot| self.column_of(slot, &columns);
        let places: Result<Vec<usize>> = self.schema.slots().iter().map(place).collect();
        let places = places.map_err(|error| error.at(&name))?;
        let mut reader = Reader {
            format: self.clone(),
            source,
            name,
            columns: places.into_iter().map(|at| (at, Arc::clone(&columns[at]))).collect(),
            group: 0,
            left: 0,
            open: Vec::new(),
            decoded: Vec::new(),
            rows: 0..0,
            row: 0,
        };
        reader.check_codecs().map_err(|error| error.at(&reader.name))?;
        Ok(Box::new(reader))
    }

    #[cfg(feature = "object-store")]
    fn is_local(&self) -> bool {
        self.stores.is_none()
    }
}

/// A local file, or an object in a store.
struct Source {
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
}

/// Reader of the records of one file.
struct Reader {
    format: ParquetFiles,
    source: Source,
    name: String,
    /// For each slot, its column's index and description.
    columns: Vec<(usize, Arc<ColumnDescriptor>)>,
    /// `group`: the next row group. `left`: rows of the open row group that are not decoded yet.
    group: usize,
    left: usize,
    open: Vec<ColumnReader>,
    /// For each slot some decoded records; those in `rows` are not handed out yet.
    decoded: Vec<Decoded>,
    rows: Range<usize>,
    /// Row within the file, for errors.
    row: u64,
}

impl Reader {
    /// Rejects unsupported compression codecs before anything is read.
    fn check_codecs(&mut self) -> Result<()> {
        let groups = self.source.file.metadata().row_groups();
        let codecs = groups
            .iter()
            .flat_map(|group| self.columns.iter().filter_map(|(at, _)| group.columns().get(*at)));
        let known = |codec: &Compression| {
            matches!(
                codec,
                Compression::UNCOMPRESSED
                    | Compression::SNAPPY
                    | Compression::GZIP(_)
                    | Compression::LZ4
                    | Compression::LZ4_RAW
            )
        };
        match codecs.map(|column| column.compression()).find(|codec| !known(codec)) {
            None => Ok(()),
            Some(codec) => Err(Error::unsupported("unsupported compression codec")
                .expected("snappy, gzip, lz4 or none")
                .got(codec)),
        }
    }

    /// Decodes the next records; returns false at the end.
    fn decode(&mut self) -> Result<bool> {
        while self.left == 0 {
            if self.group == self.source.file.num_row_groups() {
                return Ok(false);
            }
            let columns: Vec<usize> = self.columns.iter().map(|(at, _)| *at).collect();
            (self.left, self.open) = self.source.open(self.group, &columns)?;
            self.group += 1;
        }
        let count = self.left.min(CHUNK_ROWS);
        self.decoded.clear();
        for (slot, reader) in self.open.iter_mut().enumerate() {
            let column = &self.columns[slot].1;
            let want = ColumnRequest { slot: &self.format.schema.slots()[slot], column, count };
            let decoded = want.decode(reader, self.format.buckets);
            self.decoded.push(decoded.map_err(|error| match error {
                ParquetError::General(message) if message == NOT_FINITE => {
                    let name = &self.format.schema.slots()[slot].name;
                    Error::invalid(format!("column '{name}' has {NOT_FINITE}"))
                }
                error => unreadable(error),
            })?);
        }
        self.left -= count;
        self.rows = 0..count;
        Ok(true)
    }
}

impl RecordReader for Reader {
    fn schema(&self) -> &Arc<Schema> {
        &self.format.schema
    }

    fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize> {
        let first = block.len();
        while block.len() - first < rows_max {
            if self.rows.is_empty() {
                let from = format!("{}, after row {}", self.name, self.row);
                if !catch_panic(|| self.decode()).map_err(|error| error.at(from))? {
                    break;
                }
            }
            let Some(row) = self.rows.next() else { break };
            self.row += 1;
            let pushed = self.decoded.iter().enumerate().try_for_each(|(slot, decoded)| {
                match &decoded.values {
                    Numbers::Ids(ids) => block.push_ids(slot, &ids[decoded.range(row)]),
                    Numbers::Floats(floats) => block.push_floats(slot, &floats[decoded.range(row)]),
                }
            });
            if let Err(error) = pushed.and_then(|()| block.end_record()) {
                block.rollback();
                return Err(error.at(format!("{}, row {}", self.name, self.row)));
            }
        }
        Ok(block.len() - first)
    }
}

/// Some records of one column.
struct Decoded {
    /// End of each record's values.
    ends: Vec<usize>,
    values: Numbers,
}

enum Numbers {
    Ids(Vec<i64>),
    Floats(Vec<f32>),
}

impl Decoded {
    fn range(&self, row: usize) -> Range<usize> {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        start..self.ends[row]
    }
}

/// A request for `count` records of a column.
struct ColumnRequest<'a> {
    slot: &'a Slot,
    column: &'a ColumnDescriptor,
    count: usize,
}

impl ColumnRequest<'_> {
    fn decode(
        &self,
        reader: &mut ColumnReader,
        buckets: Option<u64>,
    ) -> Result<Decoded, ParquetError> {
        let name = self.slot.name.as_bytes();
        let hash = |text: &ByteArray| hash_bucket(name, text.data(), buckets.unwrap_or(1)) as i64;
        let unsigned = self.column.converted_type() == ConvertedType::UINT_32;
        let word = |it: &i32| if unsigned { i64::from(*it as u32) } else { i64::from(*it) };
        let is_ids = self.slot.kind == SlotKind::Ids;
        match reader {
            ColumnReader::BoolColumnReader(it) if is_ids => self.ids(it, |it| i64::from(*it)),
            ColumnReader::BoolColumnReader(it) => self.floats(it, |it| f32::from(u8::from(*it))),
            ColumnReader::Int32ColumnReader(it) if is_ids => self.ids(it, word),
            ColumnReader::Int32ColumnReader(it) => self.floats(it, |it| word(it) as f32),
            ColumnReader::Int64ColumnReader(it) if is_ids => self.ids(it, |it| *it),
            ColumnReader::Int64ColumnReader(it) => self.floats(it, |it| *it as f32),
            ColumnReader::FloatColumnReader(it) => self.floats(it, |it| *it),
            ColumnReader::DoubleColumnReader(it) => self.floats(it, |it| *it as f32),
            ColumnReader::ByteArrayColumnReader(it) => self.ids(it, hash),
            _ => Err(ParquetError::General("a column changes its type".to_string())),
        }
    }

    fn ids<T: DataType>(
        &self,
        reader: &mut ColumnReaderImpl<T>,
        convert: impl Fn(&T::T) -> i64,
    ) -> Result<Decoded, ParquetError> {
        let (ends, values) = self.read(reader)?;
        Ok(Decoded { ends, values: Numbers::Ids(values.iter().map(convert).collect()) })
    }

    fn floats<T: DataType>(
        &self,
        reader: &mut ColumnReaderImpl<T>,
        convert: impl Fn(&T::T) -> f32,
    ) -> Result<Decoded, ParquetError> {
        let (ends, values) = self.read(reader)?;
        let values: Vec<f32> = values.iter().map(convert).collect();
        if !values.iter().all(|value| value.is_finite()) {
            return Err(ParquetError::General(NOT_FINITE.to_string()));
        }
        Ok(Decoded { ends, values: Numbers::Floats(values) })
    }

    /// Reads the values of `count` records, and returns the end of each record and the values.
    fn read<T: DataType>(
        &self,
        reader: &mut ColumnReaderImpl<T>,
    ) -> Result<(Vec<usize>, Vec<T::T>), ParquetError> {
        let (mut present, mut starts, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let (has_nulls, is_list) =
            (self.column.max_def_level() > 0, self.column.max_rep_level() > 0);
        let mut records = 0;
        while records < self.count {
            let (more, ..) = reader.read_records(
                self.count - records,
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
            taken += usize::from(!has_nulls || present[entry] == self.column.max_def_level());
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
}

/// Parses a file's footer.
fn parsed<R: ChunkReader + 'static>(from: R, path: &Path) -> Result<SerializedFileReader<R>> {
    let parsed = catch_panic(|| SerializedFileReader::new(from).map_err(unreadable));
    parsed.map_err(|error| error.at(path.display()))
}

fn unreadable(error: ParquetError) -> Error {
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
fn catch_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let broken = |_| Error::invalid("Parquet file is damaged: its metadata is inconsistent");
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(broken(panic)))
}

fn damaged() -> Error {
    Error::invalid("Parquet file is damaged: invalid footer")
}

/// Records that are decoded at once; the columns of a click log then take a megabyte.
const CHUNK_ROWS: usize = 4096;
const NOT_FINITE: &str = "a value that is not a finite 32-bit float";

#[cfg(test)]
mod tests;
