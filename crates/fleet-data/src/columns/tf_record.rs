//! TFRecord files of `tf.train.Example`, whose features are columns.

use super::cells::{Cells, Scalar};
use super::names::NameTree;
use crate::bad_rows::BadRows;
use crate::block::Block;
use crate::formats::tf_record::{FeatureValue, Frames, for_each_feature, for_each_value};
use crate::lines::{RecordReader, Skipped};
use crate::pipe::FileSource;
use crate::slot::Schema;
use fleet_base::{Error, Result};
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// Reads the records of one file. A feature that a record lacks is a missing value.
pub(super) struct TfRecordRows<R> {
    frames: Frames<BufReader<R>>,
    rows: Rows,
    bad_rows: BadRows,
    skipped: Skipped,
}

/// The columns of a record.
struct Rows {
    cells: Cells,
    names: NameTree,
    /// For each column, the number of its values before the row.
    starts: Vec<usize>,
    /// For each column, whether the row has it.
    filled: Vec<bool>,
}

impl<R: Read> TfRecordRows<R> {
    pub fn new(cells: &Cells, from: R, name: &str, bad_rows: BadRows) -> TfRecordRows<R> {
        let from = BufReader::with_capacity(BUFFER_BYTES, from);
        let names = NameTree::new(cells.columns.iter().map(|column| column.name.as_str()));
        let (starts, filled) = (Vec::new(), Vec::new());
        TfRecordRows {
            frames: Frames::new(from, name),
            rows: Rows { cells: cells.clone(), names, starts, filled },
            bad_rows,
            skipped: Skipped::default(),
        }
    }
}

impl Rows {
    /// Appends one record.
    fn take(&mut self, example: &[u8], block: &mut Block) -> Result<()> {
        self.filled.clear();
        self.filled.resize(self.cells.columns.len(), false);
        self.starts.clear();
        self.starts.extend(block.columns.iter().map(|column| column.values.len()));
        for_each_feature(example, |name, feature| {
            let field = self.names.find(NameTree::ROOT, name);
            let Some(index) = field.and_then(|field| field.column) else { return Ok(()) };
            if std::mem::replace(&mut self.filled[index], true) {
                let name = &self.cells.columns[index].name;
                return Err(Error::invalid(format!("duplicate feature '{name}'")));
            }
            let values = &mut block.columns[index].values;
            for_each_value(feature, |value| match value {
                FeatureValue::Bytes(text) => self.cells.push_text(index, text, values),
                FeatureValue::Float(float) => {
                    self.cells.push(index, Scalar::Float32(float), values)
                }
                FeatureValue::Int(int) => self.cells.push(index, Scalar::Int(int), values),
            })
        })?;
        for (index, start) in self.starts.iter().enumerate() {
            self.cells.end_row(index, *start, &mut block.columns[index])?;
        }
        block.seal();
        Ok(())
    }
}

impl<R: Read + Send> RecordReader for TfRecordRows<R> {
    fn schema(&self) -> &Arc<Schema> {
        &self.rows.cells.schema
    }

    fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize> {
        let first = block.len();
        while block.len() - first < rows_max {
            if !block.has_room_for(ROW_VALUES_MAX) {
                return Err(self.frames.at(Error::exhausted("block is full")));
            }
            let outcome = match self.frames.next_frame().map_err(|error| self.frames.at(error))? {
                Ok(false) => break,
                Ok(true) => self.rows.take(self.frames.data(), block),
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                block.rollback();
                self.bad_rows.add(&mut self.skipped, self.frames.at(error), &[])?;
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

/// Returns the names of the features in the first records of a file.
pub(super) fn feature_names(
    source: &FileSource,
    path: &Path,
    records: usize,
) -> Result<Vec<String>> {
    let name = source.name(path);
    let from = BufReader::with_capacity(BUFFER_BYTES, source.open(path)?);
    let (mut frames, mut names) = (Frames::new(from, &name), Vec::new());
    for record in 0..records {
        let frame = frames.next_frame().map_err(|error| frames.at(error))?;
        match frame {
            Ok(false) if record == 0 => {
                return Err(Error::invalid("file is empty")
                    .help("remove it from the list")
                    .at(name));
            }
            Ok(false) => break,
            // A bad record has no names; reading the file reports it.
            Err(_) => continue,
            Ok(true) => {}
        }
        // The same holds for bytes that are not an example.
        let _ = for_each_feature(frames.data(), |name, _| {
            let name = String::from_utf8_lossy(name).into_owned();
            if !names.contains(&name) && names.len() < NAMES_MAX {
                names.push(name);
            }
            Ok(())
        });
    }
    // The features of an example have no order.
    names.sort_unstable();
    Ok(names)
}

/// Limit of the names that are listed.
const NAMES_MAX: usize = 4096;
/// Bytes read at once.
const BUFFER_BYTES: usize = 1 << 18;
/// Values that the largest record may have: a byte each.
const ROW_VALUES_MAX: usize = 256 << 20;
