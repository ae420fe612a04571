//! Generated rows, which need no files: `made:ctr/0..1500000` names rows of an endless stream of
//! clicks, wherever names of files are given. They are those of `fleet data make ctr`, except that
//! the ids of each column begin at 0.
//!
//! A range is divided into pieces, which are read like files: by several threads, and by any number
//! of workers.

use crate::job::{ColumnPart, Job, LabelPart, TaskKind};
use fleet_base::{Error, Result, text};
use fleet_data::{
    Block, ColumnKind, ColumnSpec, RecordFormat, RecordReader, Schema, TextObserver, category_hash,
    shard_range,
};
use fleet_synth::{Ctr, CtrConfig, IdLayout, IdSpace};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The start of the names of generated rows.
const START: &str = "made:ctr/";
/// Rows of a piece. It does not depend on the machine, since random splits depend on pieces.
const PIECE_ROWS: u64 = 1 << 16;
/// Largest number of rows of a name: the list of its pieces is in memory.
const ROWS_MAX: u64 = 1 << 34;
/// Rows that are generated at once.
const CHUNK_ROWS: usize = 1024;

/// The column with the label.
pub const LABEL: &str = "label";
/// The column with the true probability of the label, which no model can know.
pub const PROBABILITY: &str = "probability";
/// The start of the names of numbers, before their place from 0 on.
const NUMBERS: &str = "dense_input_";
/// The start of the names of ids, before their place from 1 on.
const IDS: &str = "C";

/// Returns whether a name is that of generated rows.
pub fn is_made(name: impl AsRef<Path>) -> bool {
    name.as_ref().to_str().is_some_and(|name| name.starts_with("made:"))
}

/// Returns the rows of a name.
pub fn range_of(name: impl AsRef<Path>) -> Result<Range<u64>> {
    let name = name.as_ref().to_str().unwrap_or_default();
    let wrong = |what: &str| {
        Error::invalid(what)
            .expected("made:ctr/FIRST..END, such as made:ctr/0..1500000")
            .got(format!("'{name}'"))
    };
    let Some(rows) = name.strip_prefix(START) else {
        return Err(wrong("unknown kind of generated rows"));
    };
    let number = |text: &str| text.replace('_', "").parse::<u64>().ok();
    let ends = rows.split_once("..").and_then(|(first, end)| Some((number(first)?, number(end)?)));
    match ends {
        None => Err(wrong("invalid range of generated rows")),
        Some((first, end)) if first >= end => Err(wrong("empty range of generated rows")),
        Some((first, end)) if end - first > ROWS_MAX => {
            Err(wrong(&format!("more than {ROWS_MAX} generated rows in one range")))
        }
        Some((first, end)) => Ok(first..end),
    }
}

/// Returns the name of rows.
pub fn name_of(rows: &Range<u64>) -> String {
    format!("{START}{}..{}", rows.start, rows.end)
}

/// Returns the pieces of a name.
pub fn pieces(name: &str) -> Result<Vec<PathBuf>> {
    let rows = range_of(name)?;
    let starts = (rows.start..rows.end).step_by(PIECE_ROWS as usize);
    let piece = |start: u64| name_of(&(start..rows.end.min(start + PIECE_ROWS))).into();
    Ok(starts.map(piece).collect())
}

/// Returns the number of rows of pieces.
pub fn count(pieces: &[PathBuf]) -> Result<u64> {
    pieces.iter().map(|piece| range_of(piece).map(|rows| rows.end - rows.start)).sum()
}

/// Returns a worker's share of each piece, so that it generates no rows of other workers.
pub fn share(pieces: &[PathBuf], own: u64, of: u64) -> Result<Vec<PathBuf>> {
    let mut shares = Vec::new();
    for piece in pieces {
        let rows = range_of(piece)?;
        let part = shard_range(rows.end - rows.start, own, of)?;
        if !part.is_empty() {
            shares.push(name_of(&(rows.start + part.start..rows.start + part.end)).into());
        }
    }
    Ok(shares)
}

/// Returns whether a job predicts the label of generated rows as it is.
pub fn predicts(job: &Job, label: &ColumnPart) -> bool {
    let LabelPart { positive_text, positive_number, at_least, levels, .. } = &label.label;
    let is_plain = positive_text.is_none() && at_least.is_none() && levels.is_empty();
    let is_one = positive_number.is_none_or(|positive| positive == 1.0);
    let is_number = label.kind == crate::job::ColumnKind::Number;
    job.task == TaskKind::Binary
        && job.labels().count() == 1
        && label.source == LABEL
        && is_number
        && is_plain
        && is_one
}

/// Returns the generator of clicks, which takes some time to make.
pub fn clicks() -> Result<Ctr> {
    Ctr::new(CtrConfig::small())
}

/// Columns of generated rows.
#[derive(Clone)]
pub struct MadeRows {
    clicks: Arc<Ctr>,
    columns: Arc<[MadeColumn]>,
    schema: Arc<Schema>,
    /// Sees the texts of categories.
    texts: Option<Arc<dyn TextObserver>>,
}

#[derive(Clone, Debug)]
struct MadeColumn {
    name: String,
    value: Value,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Label,
    Probability,
    Number(usize),
    Id(usize),
}

/// How a value fills its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Number,
    Word,
    Row(u64),
}

impl MadeRows {
    /// Prepares to generate these columns. `texts` sees the text of each category.
    pub fn new(
        clicks: &Arc<Ctr>,
        columns: impl Iterator<Item = ColumnSpec>,
        texts: Option<Arc<dyn TextObserver>>,
    ) -> Result<MadeRows> {
        let columns: Vec<ColumnSpec> = columns.collect();
        let schema = Schema::new(columns.iter().map(ColumnSpec::slot))?;
        let made: Result<Vec<MadeColumn>> =
            columns.iter().map(|column| MadeColumn::of(column, clicks)).collect();
        Ok(MadeRows { clicks: Arc::clone(clicks), columns: made?.into(), schema, texts })
    }
}

impl MadeColumn {
    fn of(column: &ColumnSpec, clicks: &Ctr) -> Result<MadeColumn> {
        let name = &column.name;
        let place = |start: &str, first: usize, count: usize| {
            let place = name.strip_prefix(start)?.parse::<usize>().ok()?.checked_sub(first)?;
            // No other spelling of a number, such as C01.
            (place < count && *name == format!("{start}{}", place + first)).then_some(place)
        };
        let (numbers, ids) = (clicks.dense_count(), clicks.slot_count());
        let value = match name.as_str() {
            LABEL => Value::Label,
            PROBABILITY => Value::Probability,
            _ => match (place(NUMBERS, 0, numbers), place(IDS, 1, ids)) {
                (Some(place), _) => Value::Number(place),
                (None, Some(place)) => Value::Id(place),
                (None, None) => {
                    return Err(Error::invalid(format!("generated rows have no column '{name}'"))
                        .expected(format!(
                            "{LABEL}, {NUMBERS}0 to {NUMBERS}{}, or {IDS}1 to {IDS}{ids}",
                            numbers.saturating_sub(1)
                        )));
                }
            },
        };
        let form = match (&column.kind, value) {
            (ColumnKind::Number, _) => Form::Number,
            (ColumnKind::Category, Value::Label | Value::Id(_)) => Form::Word,
            (ColumnKind::Row { rows }, Value::Label | Value::Id(_)) => Form::Row(*rows),
            (_, Value::Label | Value::Id(_)) => {
                return Err(Error::invalid(format!("generated column '{name}' has one integer"))
                    .help("read it as a number or a category"));
            }
            (_, Value::Probability | Value::Number(_)) => {
                return Err(Error::invalid(format!("generated column '{name}' has numbers"))
                    .help("read it as a number"));
            }
        };
        Ok(MadeColumn { name: name.clone(), value, form })
    }
}

impl RecordFormat for MadeRows {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn open(&self, path: &Path) -> Result<Box<dyn RecordReader>> {
        let rows = range_of(path)?;
        let name = path.display().to_string();
        let has_truth = self.columns.iter().any(|column| column.value == Value::Probability);
        let made = Made { has_truth, ..Made::default() };
        Ok(Box::new(MadeReader { rows: self.clone(), name, next: rows.start, end: rows.end, made }))
    }

    /// There are no files.
    fn is_local(&self) -> bool {
        false
    }
}

struct MadeReader {
    rows: MadeRows,
    name: String,
    next: u64,
    end: u64,
    made: Made,
}

/// Some generated rows.
#[derive(Default)]
struct Made {
    has_truth: bool,
    numbers: Vec<f32>,
    ids: Vec<i64>,
    labels: Vec<f32>,
    truth: Vec<f64>,
}

impl Made {
    fn fill(&mut self, clicks: &Ctr, first: u64, count: usize) -> Result<()> {
        self.numbers.resize(count * clicks.dense_count(), 0.0);
        self.ids.resize(count * clicks.slot_count(), 0);
        self.labels.resize(count, 0.0);
        let layout = IdLayout { space: IdSpace::PerSlot, ..IdLayout::default() };
        let (numbers, ids) = (&mut self.numbers, &mut self.ids);
        clicks.fill_batch_as(layout, numbers, ids, &mut self.labels, first)?;
        if self.has_truth {
            self.truth.resize(count, 0.0);
            clicks.fill_probabilities(&mut self.truth, first);
        }
        Ok(())
    }
}

impl MadeReader {
    fn push(&self, row: usize, block: &mut Block) -> Result<()> {
        let (clicks, made) = (&self.rows.clicks, &self.made);
        for (index, column) in self.rows.columns.iter().enumerate() {
            let id = match column.value {
                Value::Number(at) => {
                    block.push_floats(index, &[made.numbers[row * clicks.dense_count() + at]])?;
                    continue;
                }
                Value::Probability => {
                    block.push_floats(index, &[made.truth[row] as f32])?;
                    continue;
                }
                Value::Label => made.labels[row] as i64,
                Value::Id(at) => made.ids[row * clicks.slot_count() + at],
            };
            match column.form {
                Form::Number => block.push_floats(index, &[id as f32])?,
                Form::Row(rows) if id as u64 >= rows => {
                    let last = rows.saturating_sub(1);
                    return Err(Error::invalid(format!("column '{}' has larger ids", column.name))
                        .expected(format!("an integer from 0 to {last}"))
                        .got(id)
                        .help(format!("its `rows` are {}", self.rows_of(column))));
                }
                Form::Row(_) => {
                    self.observe(index, id as u64 + 1, id);
                    block.push_ids(index, &[id + 1])?;
                }
                Form::Word => {
                    let hash = category_hash(id.to_string().as_bytes());
                    self.observe(index, hash, id);
                    block.push_ids(index, &[hash as i64])?;
                }
            }
        }
        block.end_record()
    }

    /// Returns the number of different ids of a column.
    fn rows_of(&self, column: &MadeColumn) -> u64 {
        let rows = &self.rows.clicks.config().slot_rows;
        match column.value {
            Value::Id(at) => rows.get(at).map_or(0, |rows| u64::from(*rows)),
            _ => 2,
        }
    }

    fn observe(&self, index: usize, hash: u64, id: i64) {
        if let Some(texts) = &self.rows.texts {
            texts.observe(index, hash, id.to_string().as_bytes());
        }
    }
}

impl RecordReader for MadeReader {
    fn schema(&self) -> &Arc<Schema> {
        &self.rows.schema
    }

    fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize> {
        let mut count = 0;
        while count < rows_max && self.next < self.end {
            let left = (self.end - self.next).min((rows_max - count) as u64) as usize;
            let rows = left.min(CHUNK_ROWS);
            self.made.fill(&self.rows.clicks, self.next, rows)?;
            for row in 0..rows {
                let pushed = self.push(row, block);
                pushed.map_err(|error| {
                    block.rollback();
                    error.at(format!("{}, row {}", self.name, self.next + row as u64))
                })?;
            }
            self.next += rows as u64;
            count += rows;
        }
        Ok(count)
    }
}

/// Returns what is wrong with the name of generated rows, and help.
pub fn fault_of(name: &str) -> Option<(String, &'static str)> {
    let error = range_of(name).err().filter(|_| is_made(name))?;
    let message = format!("{}, got '{}'", error.message(), text::printable_line(name));
    Some((message, "name rows such as made:ctr/0..1500000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(columns: &[ColumnSpec], name: &str, at_once: usize) -> Result<Block> {
        let rows = MadeRows::new(&Arc::new(clicks()?), columns.iter().cloned(), None)?;
        let mut block = Block::new(rows.schema());
        for piece in pieces(name)? {
            let mut reader = rows.open(&piece)?;
            while reader.read(at_once, &mut block)? > 0 {}
        }
        Ok(block)
    }

    fn columns() -> [ColumnSpec; 5] {
        [
            ColumnSpec::number(LABEL),
            ColumnSpec::number("dense_input_12"),
            ColumnSpec::category("C1"),
            ColumnSpec::row("C26", 100_000),
            ColumnSpec::number(PROBABILITY),
        ]
    }

    #[test]
    fn rows_are_those_of_the_generator() -> Result<()> {
        let clicks = clicks()?;
        let block = read(&columns(), "made:ctr/65_000..66_000", 7)?;
        assert_eq!(block.len(), 1000);
        let (mut numbers, mut ids, mut label) = ([0.0; 13], [0; 26], [0.0]);
        let mut truth = [0.0];
        for row in [0, 535, 536, 999] {
            clicks.fill_batch(&mut numbers, &mut ids, &mut label, 65_000 + row as u64)?;
            clicks.fill_probabilities(&mut truth, 65_000 + row as u64);
            assert_eq!(block.column(0).floats(row), Some(&label[..]));
            assert_eq!(block.column(1).floats(row), Some(&numbers[12..]));
            let hash = category_hash(ids[0].to_string().as_bytes()) as i64;
            assert_eq!(block.column(2).ids(row), Some(&[hash][..]));
            let last = ids[25] - clicks.slot_offset(25).unwrap_or_default();
            assert_eq!(block.column(3).ids(row), Some(&[last + 1][..]));
            assert_eq!(block.column(4).floats(row), Some(&[truth[0] as f32][..]));
        }
        assert_eq!(read(&columns(), "made:ctr/65000..66000", 4096)?, block);
        Ok(())
    }

    #[test]
    fn shares_have_all_rows_once() -> Result<()> {
        let all = pieces("made:ctr/10..200000")?;
        assert_eq!((all.len(), count(&all)?), (4, 199_990));
        let shares: Result<Vec<_>> = (0..3).map(|own| share(&all, own, 3)).collect();
        let mut ranges = Vec::new();
        for piece in shares?.iter().flatten() {
            ranges.push(range_of(piece)?);
        }
        ranges.sort_by_key(|rows| rows.start);
        let ends: Vec<u64> = ranges.windows(2).map(|pair| pair[1].start - pair[0].end).collect();
        assert!(ends.iter().all(|gap| *gap == 0), "{ranges:?}");
        assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (10, 200_000));
        assert_eq!(share(&pieces("made:ctr/0..1")?, 1, 2)?.len(), 0);
        Ok(())
    }

    #[test]
    fn what_is_not_generated_is_an_error() {
        let message = |columns: &[ColumnSpec], name: &str| {
            read(columns, name, 10).expect_err("an error").to_string()
        };
        for (name, part) in [
            ("made:ctr/5..5", "empty range"),
            ("made:ctr/5", "invalid range"),
            ("made:ctr/-1..5", "invalid range"),
            ("made:digits/0..5", "unknown kind of generated rows"),
            ("made:ctr/0..18446744073709551615", "more than"),
        ] {
            assert!(message(&columns(), name).contains(part), "{name}");
        }
        for (column, part) in [
            (ColumnSpec::number("C27"), "no column 'C27': expected label, dense_input_0 to"),
            (ColumnSpec::number("C01"), "no column 'C01'"),
            (ColumnSpec::category("dense_input_1"), "'dense_input_1' has numbers"),
            (ColumnSpec::time("C1"), "'C1' has one integer"),
            (ColumnSpec::row("C26", 3), "column 'C26' has larger ids: expected an integer from 0"),
        ] {
            let message = message(std::slice::from_ref(&column), "made:ctr/0..100");
            assert!(message.contains(part), "{message}");
        }
    }
}
