//! Records in memory: one column for each slot; a ragged slot has offsets and values. Parsers
//! append to the columns; shuffles and batches gather from them. There is no object per record.
//!
//! A ragged slot keeps no offsets while all of its records have as many values as the first one.
//! Most slots of click logs have one id in every record. With offsets, gathering a batch of
//! shuffled records would cause twice as many cache misses.

use crate::slot::{Schema, SlotKind};
use fleet_base::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// The values of a column, record after record.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Ids, stored by their bits.
    Ids(Vec<i64>),
    /// Floats.
    Floats(Vec<f32>),
}

impl Values {
    fn new(kind: SlotKind) -> Values {
        match kind {
            SlotKind::Ids => Values::Ids(Vec::new()),
            SlotKind::Floats => Values::Floats(Vec::new()),
        }
    }

    /// Returns the number of values of all records.
    pub fn len(&self) -> usize {
        match self {
            Values::Ids(values) => values.len(),
            Values::Floats(values) => values.len(),
        }
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn bytes(&self) -> usize {
        match self {
            Values::Ids(values) => values.capacity() * size_of::<i64>(),
            Values::Floats(values) => values.capacity() * size_of::<f32>(),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Values::Ids(values) => values.truncate(len),
            Values::Floats(values) => values.truncate(len),
        }
    }

    /// Appends a range of another column of the same kind.
    fn extend_from(&mut self, other: &Values, range: Range<usize>) {
        match (self, other) {
            (Values::Ids(to), Values::Ids(from)) => to.extend_from_slice(&from[range]),
            (Values::Floats(to), Values::Floats(from)) => to.extend_from_slice(&from[range]),
            _ => unreachable!("blocks of one schema have columns of the same kinds"),
        }
    }
}

/// One slot of all records of a block.
#[derive(Clone, Debug)]
pub struct Column {
    pub(crate) values: Values,
    /// Values of one record, if the slot fixes the number.
    width: Option<usize>,
    /// Values of each record while there are no offsets; 0 before the first record of a ragged
    /// slot.
    each: usize,
    /// Start of each record, then the end of the last one. Empty until two records of a ragged slot
    /// differ in length.
    offsets: Vec<u32>,
    /// End of the last record of a ragged slot.
    end: usize,
}

impl Column {
    fn new(kind: SlotKind, width: Option<usize>) -> Column {
        let (values, each) = (Values::new(kind), width.unwrap_or(0));
        Column { values, width, each, offsets: Vec::new(), end: 0 }
    }

    /// Returns the values of all records, one record after another.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Returns the range of record `row` in the values.
    #[inline]
    pub fn range(&self, row: usize) -> Range<usize> {
        match self.offsets.is_empty() {
            true => row * self.each..(row + 1) * self.each,
            false => self.offsets[row] as usize..self.offsets[row + 1] as usize,
        }
    }

    /// Returns the range of consecutive records in the values.
    fn span(&self, rows: &Range<usize>) -> Range<usize> {
        match self.offsets.is_empty() {
            true => rows.start * self.each..rows.end * self.each,
            false => self.offsets[rows.start] as usize..self.offsets[rows.end] as usize,
        }
    }

    /// Returns a column of the same slot without records.
    pub(crate) fn empty_like(&self) -> Column {
        let kind = match &self.values {
            Values::Ids(_) => SlotKind::Ids,
            Values::Floats(_) => SlotKind::Floats,
        };
        Column::new(kind, self.width)
    }

    /// Appends one record of a column of the same slot.
    pub(crate) fn append_row(&mut self, other: &Column, row: usize) -> Result<()> {
        let range = other.range(row);
        if self.values.len() + range.len() > VALUES_MAX {
            return Err(Error::exhausted("a slot is too large for one block")
                .expected(format!("at most {VALUES_MAX} values")));
        }
        self.values.extend_from(&other.values, range);
        self.end_row();
        Ok(())
    }

    /// Ends a record of a ragged slot. The block checks the limit of the offsets.
    #[inline(always)]
    pub(crate) fn end_row(&mut self) {
        if self.width.is_none() {
            self.end_row_at(self.values.len());
        }
    }

    #[inline(always)]
    fn end_row_at(&mut self, end: usize) {
        if !self.offsets.is_empty() {
            self.offsets.push(end as u32);
        } else if self.each == 0 || end - self.end != self.each {
            self.start_offsets(end);
        }
        self.end = end;
    }

    /// Takes the number of values of each record from the first one, or starts to keep offsets at
    /// the first record that differs.
    #[cold]
    fn start_offsets(&mut self, end: usize) {
        if self.end == 0 && end > 0 {
            self.each = end;
        } else {
            let rows = self.end.checked_div(self.each).unwrap_or(0);
            self.offsets.extend((0..=rows).map(|row| (row * self.each) as u32));
            self.offsets.push(end as u32);
        }
    }

    /// Iterates over the ends of the records of a ragged slot.
    fn ends(&self) -> impl Iterator<Item = u32> + '_ {
        let even = match self.offsets.is_empty() {
            true => self.end.checked_div(self.each).unwrap_or(0),
            false => 0,
        };
        let even = (1..=even).map(|rows| (rows * self.each) as u32);
        even.chain(self.offsets.iter().skip(1).copied())
    }

    /// Drops all records after the first `rows`.
    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        if self.width.is_none() && rows == 0 {
            self.offsets.clear();
            self.each = 0;
        }
        self.end = self.span(&(0..rows)).end;
        self.values.truncate(self.end);
    }

    /// Returns the ids of record `row`; `None` for a slot of floats.
    pub fn ids(&self, row: usize) -> Option<&[i64]> {
        match &self.values {
            Values::Ids(values) => Some(&values[self.range(row)]),
            Values::Floats(_) => None,
        }
    }

    /// Returns the floats of record `row`; `None` for a slot of ids.
    pub fn floats(&self, row: usize) -> Option<&[f32]> {
        match &self.values {
            Values::Floats(values) => Some(&values[self.range(row)]),
            Values::Ids(_) => None,
        }
    }
}

/// Columns are equal if they hold the same records, with or without stored offsets.
impl PartialEq for Column {
    fn eq(&self, other: &Column) -> bool {
        let same = self.values == other.values && self.width == other.width;
        same && (self.width.is_some() || self.ends().eq(other.ends()))
    }
}

/// Records of one schema.
///
/// ```
/// use fleet_data::{Block, Schema, Slot};
/// let schema = Schema::new([Slot::ragged_ids("words"), Slot::dense_floats("label", [1])])?;
/// let mut block = Block::new(&schema);
/// block.push_ids(0, &[1926, 8, 17])?;
/// block.push_floats(1, &[1.0])?;
/// block.end_record()?;
/// assert_eq!(block.len(), 1);
/// assert_eq!(block.column(0).ids(0), Some(&[1926, 8, 17][..]));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    schema: Arc<Schema>,
    rows: usize,
    pub(crate) columns: Vec<Column>,
    pub(crate) record_ids: RecordIds,
}

/// Names of records, concatenated; empty if the schema has no record ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecordIds {
    pub bytes: Vec<u8>,
    pub ends: Vec<u32>,
}

impl RecordIds {
    fn range(&self, row: usize) -> Range<usize> {
        let start = if row == 0 { 0 } else { self.ends[row - 1] as usize };
        start..self.ends[row] as usize
    }
}

impl Block {
    /// Returns a block without records.
    pub fn new(schema: &Arc<Schema>) -> Block {
        let column = |slot: &crate::Slot| Column::new(slot.kind, slot.width());
        Block {
            schema: Arc::clone(schema),
            rows: 0,
            columns: schema.slots().iter().map(column).collect(),
            record_ids: RecordIds::default(),
        }
    }

    /// Returns the slots of the records.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns the number of complete records.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether the block has no complete records.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the column of slot `index`.
    pub fn column(&self, index: usize) -> &Column {
        &self.columns[index]
    }

    /// Returns the id of record `row`, if the schema has record ids.
    pub fn record_id(&self, row: usize) -> Option<&[u8]> {
        if !self.schema.has_record_ids() || row >= self.rows {
            return None;
        }
        Some(&self.record_ids.bytes[self.record_ids.range(row)])
    }

    /// Removes all records but keeps the memory.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.rollback();
    }

    /// Returns the memory held, in bytes.
    pub fn bytes(&self) -> usize {
        let column =
            |column: &Column| column.values.bytes() + column.offsets.capacity() * size_of::<u32>();
        let ids = self.record_ids.bytes.capacity() + self.record_ids.ends.capacity() * 4;
        self.columns.iter().map(column).sum::<usize>() + ids
    }

    /// Releases unused capacity.
    pub fn shrink(&mut self) {
        for column in &mut self.columns {
            match &mut column.values {
                Values::Ids(values) => values.shrink_to_fit(),
                Values::Floats(values) => values.shrink_to_fit(),
            }
            column.offsets.shrink_to_fit();
        }
        self.record_ids.bytes.shrink_to_fit();
        self.record_ids.ends.shrink_to_fit();
    }

    /// Appends ids to slot `index` of the record under construction.
    pub fn push_ids(&mut self, index: usize, ids: &[i64]) -> Result<()> {
        match &mut self.columns[index].values {
            Values::Ids(values) => {
                values.extend_from_slice(ids);
                Ok(())
            }
            Values::Floats(_) => Err(self.wrong_kind(index)),
        }
    }

    /// Appends floats to slot `index` of the record under construction.
    pub fn push_floats(&mut self, index: usize, floats: &[f32]) -> Result<()> {
        match &mut self.columns[index].values {
            Values::Floats(values) => {
                values.extend_from_slice(floats);
                Ok(())
            }
            Values::Ids(_) => Err(self.wrong_kind(index)),
        }
    }

    /// Names the record under construction.
    pub fn push_record_id(&mut self, id: &[u8]) {
        self.record_ids.bytes.extend_from_slice(id);
    }

    fn wrong_kind(&self, index: usize) -> Error {
        let slot = &self.schema.slots()[index];
        Error::invalid(format!("slot '{}' has {} values", slot.name, slot.kind))
    }

    /// Ends the record under construction. If a slot does not match the schema, drops the record
    /// and returns an error that names the slot.
    pub fn end_record(&mut self) -> Result<()> {
        let wrong = self.columns.iter().position(|column| match column.width {
            Some(width) => column.values.len() != (self.rows + 1) * width,
            None => column.values.len() > VALUES_MAX,
        });
        if let Some(index) = wrong {
            let error = self.wrong_count(index);
            self.rollback();
            return Err(error);
        }
        self.columns.iter_mut().for_each(Column::end_row);
        self.seal();
        Ok(())
    }

    /// Ends a record whose columns have already ended their rows and are below the limit.
    #[inline]
    pub(crate) fn seal(&mut self) {
        if self.schema.has_record_ids() {
            self.record_ids.ends.push(self.record_ids.bytes.len() as u32);
        }
        self.rows += 1;
    }

    /// Returns whether every column has room for `more` values.
    pub(crate) fn has_room_for(&self, more: usize) -> bool {
        self.columns.iter().all(|column| column.values.len() <= VALUES_MAX - more)
    }

    fn wrong_count(&self, index: usize) -> Error {
        let (slot, column) = (&self.schema.slots()[index], &self.columns[index]);
        match column.width {
            Some(width) => {
                Error::invalid(format!("slot '{}' has a wrong number of values", slot.name))
                    .expected(width)
                    .got(column.values.len() - self.rows * width)
            }
            None => Error::exhausted(format!("slot '{}' is too large for one block", slot.name))
                .expected(format!("at most {VALUES_MAX} values"))
                .got(column.values.len()),
        }
    }

    /// Drops the record under construction.
    pub fn rollback(&mut self) {
        let rows = self.rows;
        self.columns.iter_mut().for_each(|column| column.truncate(rows));
        self.record_ids.ends.truncate(rows);
        let end = self.record_ids.ends.last().map_or(0, |end| *end as usize);
        self.record_ids.bytes.truncate(end);
    }

    /// Drops all records after the first `rows`, and the one under construction.
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.rows = self.rows.min(rows);
        self.rollback();
    }

    /// Appends records of another block of the same schema.
    pub fn append(&mut self, other: &Block, rows: Range<usize>) -> Result<()> {
        if !Arc::ptr_eq(&self.schema, &other.schema) && self.schema != other.schema {
            return Err(Error::invalid("records have another schema"));
        }
        if rows.start > rows.end || rows.end > other.rows {
            return Err(Error::invalid("record range is out of bounds")
                .expected(format!("a range within 0..{}", other.rows))
                .got(format!("{rows:?}")));
        }
        for (index, (to, from)) in self.columns.iter_mut().zip(&other.columns).enumerate() {
            let range = from.span(&rows);
            if to.width.is_none() && to.values.len() + range.len() > VALUES_MAX {
                self.rollback();
                return Err(Error::exhausted(format!("slot {index} is too large for one block"))
                    .expected(format!("at most {VALUES_MAX} values")));
            }
            let start = to.values.len();
            to.values.extend_from(&from.values, range.clone());
            if to.width.is_none() {
                rows.clone().for_each(|row| {
                    to.end_row_at(start + from.range(row).end - range.start);
                });
            }
        }
        if self.schema.has_record_ids() {
            for row in rows.clone() {
                let range = other.record_ids.range(row);
                self.record_ids.bytes.extend_from_slice(&other.record_ids.bytes[range]);
                self.record_ids.ends.push(self.record_ids.bytes.len() as u32);
            }
        }
        self.rows += rows.len();
        Ok(())
    }

    /// Encodes the records as bytes for [`Block::decode`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.rows as u64).to_le_bytes());
        for column in &self.columns {
            if column.width.is_none() {
                column.ends().for_each(|end| out.extend_from_slice(&end.to_le_bytes()));
            }
            match &column.values {
                Values::Ids(values) => {
                    values.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
                }
                Values::Floats(values) => {
                    values.iter().for_each(|float| out.extend_from_slice(&float.to_le_bytes()));
                }
            }
        }
        if self.schema.has_record_ids() {
            let ends = &self.record_ids.ends;
            ends.iter().for_each(|end| out.extend_from_slice(&end.to_le_bytes()));
            out.extend_from_slice(&self.record_ids.bytes);
        }
    }

    /// Decodes bytes that [`Block::encode`] wrote for the same schema. The bytes come from a peer
    /// and may be wrong.
    pub fn decode(schema: &Arc<Schema>, bytes: &[u8]) -> Result<Block> {
        let mut block = Block::new(schema);
        let mut rest = bytes;
        let rows = u64::from_le_bytes(take(&mut rest, 8)?.try_into().unwrap_or_default());
        // A record has at least one value or one offset, so at least four bytes.
        if rows > rest.len() as u64 {
            return Err(damaged());
        }
        let rows = rows as usize;
        for column in &mut block.columns {
            let count = match column.width {
                Some(width) => rows.checked_mul(width).ok_or_else(damaged)?,
                None => {
                    let ends = ends(take(&mut rest, 4 * rows)?)?;
                    ends.iter().for_each(|end| column.end_row_at(*end as usize));
                    column.end
                }
            };
            match &mut column.values {
                Values::Ids(values) => {
                    let bytes = take(&mut rest, count.checked_mul(8).ok_or_else(damaged)?)?;
                    let words = bytes.as_chunks::<8>().0.iter();
                    values.extend(words.map(|word| i64::from_le_bytes(*word)));
                }
                Values::Floats(values) => {
                    let bytes = take(&mut rest, count.checked_mul(4).ok_or_else(damaged)?)?;
                    let words = bytes.as_chunks::<4>().0.iter();
                    values.extend(words.map(|word| f32::from_le_bytes(*word)));
                }
            }
        }
        if schema.has_record_ids() {
            block.record_ids.ends = ends(take(&mut rest, 4 * rows)?)?;
            let end = block.record_ids.ends.last().map_or(0, |end| *end as usize);
            block.record_ids.bytes.extend_from_slice(take(&mut rest, end)?);
        }
        if !rest.is_empty() {
            return Err(damaged());
        }
        block.rows = rows;
        Ok(block)
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(count).ok_or_else(damaged)?;
    *rest = tail;
    Ok(head)
}

/// Reads the ends of ragged records; fails if they ever decrease.
fn ends(bytes: &[u8]) -> Result<Vec<u32>> {
    let words = bytes.as_chunks::<4>().0.iter();
    let ends: Vec<u32> = words.map(|word| u32::from_le_bytes(*word)).collect();
    if ends.is_sorted() { Ok(ends) } else { Err(damaged()) }
}

fn damaged() -> Error {
    Error::invalid("encoded records are damaged, or have another schema")
}

/// Offsets are `u32`. A block of 2^32 values would be 32 GB; blocks are cut long before that.
const VALUES_MAX: usize = u32::MAX as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;
    use fleet_base::rng::Sequence;

    fn random_block(seed: u64, rows: usize) -> Block {
        let schema = Schema::with_record_ids([
            Slot::ragged_ids("a"),
            Slot::dense_floats("b", [2, 3]),
            Slot::ragged_floats("c"),
            Slot::dense_ids("d", []),
        ])
        .unwrap();
        let mut block = Block::new(&schema);
        let mut draws = Sequence::new(seed, 0);
        for row in 0..rows {
            for _ in 0..draws.below(4) {
                block.push_ids(0, &[draws.next_u64() as i64]).unwrap();
            }
            block.push_floats(1, &[row as f32; 6]).unwrap();
            for _ in 0..draws.below(3) {
                block.push_floats(2, &[draws.unit() as f32]).unwrap();
            }
            block.push_ids(3, &[row as i64]).unwrap();
            block.push_record_id(format!("r{row}").as_bytes());
            block.end_record().unwrap();
        }
        block
    }

    #[test]
    fn records_survive_encoding_and_appending() {
        let block = random_block(1, 50);
        let mut bytes = Vec::new();
        block.encode(&mut bytes);
        assert_eq!(Block::decode(block.schema(), &bytes).unwrap(), block);

        let mut joined = Block::new(block.schema());
        joined.append(&block, 0..20).unwrap();
        joined.append(&block, 20..20).unwrap();
        joined.append(&block, 20..50).unwrap();
        assert!(joined.append(&block, 49..51).is_err(), "the block has 50 records");
        assert_eq!(joined, block);
        assert_eq!(joined.record_id(49), Some(&b"r49"[..]));
        assert_eq!(joined.record_id(50), None);
    }

    #[test]
    fn offsets_are_kept_from_the_first_record_that_differs() {
        let schema = Schema::new([Slot::ragged_ids("a")]).unwrap();
        for counts in [&[2usize, 2, 2, 1, 0, 2][..], &[0, 0, 1], &[1, 0], &[3, 3, 3], &[]] {
            let mut block = Block::new(&schema);
            // Dropped records must leave no trace.
            for dropped in [0, 2, 5] {
                block.push_ids(0, &vec![-1; dropped]).unwrap();
                block.rollback();
            }
            let mut next = 0;
            for &count in counts {
                let ids: Vec<i64> = (next..next + count as i64).collect();
                block.push_ids(0, &ids).unwrap();
                block.end_record().unwrap();
                block.push_ids(0, &[-1, -1, -1, -1]).unwrap();
                block.columns[0].end_row();
                block.rollback();
                next += count as i64;
            }
            let mut start = 0;
            for (row, count) in counts.iter().enumerate() {
                assert_eq!(block.column(0).range(row), start..start + count, "{counts:?}");
                start += count;
            }
            let mut bytes = Vec::new();
            block.encode(&mut bytes);
            assert_eq!(Block::decode(&schema, &bytes).unwrap(), block, "{counts:?}");
            let mut joined = Block::new(&schema);
            for row in 0..counts.len() {
                joined.append(&block, row..row + 1).unwrap();
            }
            assert_eq!(joined, block, "{counts:?}");
            block.clear();
            assert_eq!(block, Block::new(&schema));
        }
    }

    #[test]
    fn changed_bytes_never_panic() {
        let block = random_block(2, 20);
        let mut bytes = Vec::new();
        block.encode(&mut bytes);
        for cut in 0..bytes.len() {
            assert!(Block::decode(block.schema(), &bytes[..cut]).is_err(), "truncated at {cut}");
        }
        let mut draws = Sequence::new(3, 0);
        for _ in 0..2000 {
            let mut changed = bytes.clone();
            let at = draws.below(changed.len() as u64) as usize;
            changed[at] ^= 1 << draws.below(8);
            if let Ok(read) = Block::decode(block.schema(), &changed) {
                // Any block that decodes can be walked.
                (0..read.len()).for_each(|row| drop(read.column(0).ids(row).unwrap().to_vec()));
            }
        }
    }

    #[test]
    fn a_wrong_record_is_dropped_whole() {
        let mut block = random_block(4, 3);
        let before = block.clone();
        block.push_ids(0, &[5]).unwrap();
        block.push_floats(1, &[1.0; 5]).unwrap();
        block.push_record_id(b"x");
        let error = block.end_record().unwrap_err();
        assert_eq!(error.to_string(), "slot 'b' has a wrong number of values: expected 6, got 5");
        assert_eq!(block, before);
        let error = block.push_ids(1, &[1]).unwrap_err();
        assert_eq!(error.to_string(), "slot 'b' has float values");
    }
}
