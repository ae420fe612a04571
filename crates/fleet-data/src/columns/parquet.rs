//! Parquet files by the names of their columns.
//!
//! Values that tables in text have as text become that text: dates, times and decimals. So the
//! same table gives the same categories from Parquet and from CSV.

mod times;
mod values;

use super::cells::Cells;
use super::{ColumnKind, ColumnSpec};
use crate::bad_rows::BadRows;
use crate::block::Block;
use crate::formats::parquet_files::{Chunks, Origin, catch_panic, unreadable};
use crate::lines::{RecordReader, Skipped};
use crate::pipe::FileSource;
use crate::slot::Schema;
use ::parquet::schema::types::ColumnDescriptor;
use fleet_base::{Error, Result};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use values::{Decoded, Meaning};

/// Reads the records of one file.
pub(super) struct ParquetRows {
    cells: Cells,
    chunks: Chunks,
    name: String,
    /// For each column to be read, its description and the meaning of its values.
    columns: Vec<(Arc<ColumnDescriptor>, Meaning)>,
    /// For each column some decoded records; those in `rows` are not handed out yet.
    decoded: Vec<Decoded>,
    rows: Range<usize>,
    /// Row within the file, for errors.
    row: u64,
    bad_rows: BadRows,
    skipped: Skipped,
}

impl ParquetRows {
    /// Opens a file, and finds the columns in it.
    pub fn open(
        cells: &Cells,
        origin: &Origin,
        path: &Path,
        bad_rows: BadRows,
    ) -> Result<ParquetRows> {
        let source = origin.open(path)?;
        let all = source.columns();
        let place = |spec| place_of(spec, &all);
        let places = cells.columns.iter().map(place).collect::<Result<Vec<usize>>>()?;
        let meaning = |(at, spec): (&usize, &ColumnSpec)| {
            let column = &all[*at];
            let meaning = Meaning::of(column).and_then(|meaning| meaning.fits(spec));
            let named = |error: Error| error.at(format!("column '{}'", spec.name));
            Ok((Arc::clone(column), meaning.map_err(named)?))
        };
        let columns = places.iter().zip(cells.columns.iter()).map(meaning);
        Ok(ParquetRows {
            cells: cells.clone(),
            columns: columns.collect::<Result<_>>()?,
            chunks: Chunks::new(source, places)?,
            name: path.display().to_string(),
            decoded: Vec::new(),
            rows: 0..0,
            row: 0,
            bad_rows,
            skipped: Skipped::default(),
        })
    }

    /// Decodes the next records; returns false at the end.
    fn decode(&mut self) -> Result<bool> {
        let Some((count, readers)) = self.chunks.next()? else { return Ok(false) };
        self.decoded.clear();
        for (reader, (column, _)) in readers.iter_mut().zip(&self.columns) {
            self.decoded.push(Decoded::read(reader, column, count).map_err(unreadable)?);
        }
        self.rows = 0..count;
        Ok(true)
    }

    /// Appends a decoded record.
    fn take(&self, row: usize, block: &mut Block) -> Result<()> {
        for (index, decoded) in self.decoded.iter().enumerate() {
            let column = &mut block.columns[index];
            let start = column.values.len();
            let meaning = &self.columns[index].1;
            decoded.push(row, meaning, index, &self.cells, &mut column.values)?;
            self.cells.end_row(index, start, column)?;
        }
        block.seal();
        Ok(())
    }
}

impl RecordReader for ParquetRows {
    fn schema(&self) -> &Arc<Schema> {
        &self.cells.schema
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
            let taken = match self.decoded.iter().all(|it| block.has_room_for(it.count(row))) {
                true => self.take(row, block),
                false => Err(Error::exhausted("block is full").help("read fewer records at once")),
            };
            if let Err(error) = taken {
                block.rollback();
                let error = error.at(format!("{}, row {}", self.name, self.row));
                self.bad_rows.add(&mut self.skipped, error, &[])?;
            }
        }
        let rows = block.len() - first;
        self.bad_rows.add_good(rows as u64, &self.skipped)?;
        Ok(rows)
    }

    fn skipped(&self) -> Skipped {
        self.skipped.clone()
    }
}

/// Returns the names of a file's columns which can be read.
pub(super) fn column_names(source: &FileSource, path: &Path) -> Result<Vec<String>> {
    let source = Origin::of(source).open(path)?;
    let columns = source.columns();
    let is_readable = |column: &&Arc<ColumnDescriptor>| {
        column.max_rep_level() <= 1 && Meaning::of(column).is_ok()
    };
    Ok(columns.iter().filter(is_readable).map(|column| name_of(column)).collect())
}

/// Returns the place of a column among those of a file.
fn place_of(spec: &ColumnSpec, all: &[Arc<ColumnDescriptor>]) -> Result<usize> {
    let whole = [spec.name.as_str()];
    let parts: Vec<&str> = spec.name.split('.').collect();
    let matches = |column: &ColumnDescriptor| {
        let path = column.path().parts();
        let starts = |name: &[&str]| {
            path.len() >= name.len() && name.iter().zip(path).all(|(name, part)| name == part)
        };
        starts(&whole) || starts(&parts)
    };
    let mut found = all.iter().enumerate().filter(|(_, column)| matches(column));
    let Some((place, column)) = found.next() else {
        let names: Vec<String> = all.iter().map(|column| name_of(column)).collect();
        return Err(super::cells::absent(&spec.name, &names));
    };
    if let Some((_, other)) = found.next() {
        return Err(Error::unsupported(format!("column '{}' is a structure", spec.name))
            .expected("numbers or text, or lists of them")
            .help(format!("read its fields: '{}', '{}'", name_of(column), name_of(other))));
    }
    let is_list = matches!(spec.kind, ColumnKind::Categories { .. } | ColumnKind::Numbers { .. });
    match column.max_rep_level() {
        0 => Ok(place),
        1 if is_list => Ok(place),
        1 => Err(Error::invalid(format!("column '{}' has lists of values", spec.name))
            .expected("one value in each row")
            .help("read the column as `categories` or `numbers`")),
        _ => Err(Error::unsupported(format!("column '{}' has lists of lists", spec.name))
            .expected("numbers or text, or lists of them")),
    }
}

/// Returns the name of a column: its fields joined by dots, without the levels that lists add.
fn name_of(column: &ColumnDescriptor) -> String {
    let parts = column.path().parts();
    let named = match parts {
        [named @ .., group, element]
            if !named.is_empty()
                && column.max_rep_level() > 0
                && LIST_GROUPS.contains(&group.as_str())
                && LIST_ELEMENTS.contains(&element.as_str()) =>
        {
            named
        }
        all => all,
    };
    named.join(".")
}

/// Names of the two levels of a list, by different writers.
const LIST_GROUPS: [&str; 3] = ["list", "bag", "array"];
const LIST_ELEMENTS: [&str; 4] = ["element", "item", "array_element", "array"];
