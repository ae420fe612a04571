//! Parquet files, in the feature `parquet`. Each slot takes a column of numbers or text, or of
//! lists of them. Columns without a slot are not read.

mod errors;
mod file;
#[cfg(feature = "object-store")]
mod object;

use super::hash_bucket;
use crate::block::Block;
use crate::dataset::RecordFormat;
use crate::lines::RecordReader;
use crate::slot::{Schema, Slot, SlotKind};
use ::parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArray, DataType};
use ::parquet::errors::ParquetError;
use ::parquet::schema::types::ColumnDescriptor;
pub(crate) use errors::{catch_panic, unreadable};
pub(crate) use file::{Chunks, Origin, read_records};
use fleet_base::{Error, Result, text};
use std::ops::Range;
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
    origin: Origin,
}

impl ParquetFiles {
    /// Returns a format whose columns have the names of the slots. Text in slots of ids is an
    /// error.
    pub fn new(schema: &Arc<Schema>) -> ParquetFiles {
        ParquetFiles { schema: Arc::clone(schema), buckets: None, origin: Origin::default() }
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
        self.origin.stores = Some(stores.clone());
        self
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
        let source = self.origin.open(path)?;
        let columns = source.columns();
        let place = |slot| self.column_of(slot, &columns);
        let places: Result<Vec<usize>> = self.schema.slots().iter().map(place).collect();
        let places = places.map_err(|error| error.at(&name))?;
        let descriptors = places.iter().map(|at| Arc::clone(&columns[*at])).collect();
        let chunks = Chunks::new(source, places).map_err(|error| error.at(&name))?;
        let format = self.clone();
        let (decoded, rows) = (Vec::new(), 0..0);
        Ok(Box::new(Reader { format, chunks, name, columns: descriptors, decoded, rows, row: 0 }))
    }

    #[cfg(feature = "object-store")]
    fn is_local(&self) -> bool {
        self.origin.stores.is_none()
    }
}

/// Reader of the records of one file.
struct Reader {
    format: ParquetFiles,
    chunks: Chunks,
    name: String,
    /// For each slot, its column's description.
    columns: Vec<Arc<ColumnDescriptor>>,
    /// For each slot some decoded records; those in `rows` are not handed out yet.
    decoded: Vec<Decoded>,
    rows: Range<usize>,
    /// Row within the file, for errors.
    row: u64,
}

impl Reader {
    /// Decodes the next records; returns false at the end.
    fn decode(&mut self) -> Result<bool> {
        let Some((count, readers)) = self.chunks.next()? else { return Ok(false) };
        self.decoded.clear();
        let slots = self.format.schema.slots().iter();
        for ((reader, column), slot) in readers.iter_mut().zip(&self.columns).zip(slots) {
            let decoded = ColumnRequest { slot, column, count }.decode(reader, self.format.buckets);
            self.decoded.push(decoded.map_err(|error| match error {
                ParquetError::General(message) if message == NOT_FINITE => {
                    Error::invalid(format!("column '{}' has {NOT_FINITE}", slot.name))
                }
                error => unreadable(error),
            })?);
        }
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
        let (ends, values) = read_records(reader, self.column, self.count)?;
        Ok(Decoded { ends, values: Numbers::Ids(values.iter().map(convert).collect()) })
    }

    fn floats<T: DataType>(
        &self,
        reader: &mut ColumnReaderImpl<T>,
        convert: impl Fn(&T::T) -> f32,
    ) -> Result<Decoded, ParquetError> {
        let (ends, values) = read_records(reader, self.column, self.count)?;
        let values: Vec<f32> = values.iter().map(convert).collect();
        if !values.iter().all(|value| value.is_finite()) {
            return Err(ParquetError::General(NOT_FINITE.to_string()));
        }
        Ok(Decoded { ends, values: Numbers::Floats(values) })
    }
}

const NOT_FINITE: &str = "a value that is not a finite 32-bit float";

#[cfg(test)]
mod tests;
