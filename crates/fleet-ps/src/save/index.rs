//! The tables of a save, by name.
//!
//! The mark of server 0 lists them, so that a load finds a table or parameter that has another
//! number, or another place in its table. `<dir>/tables.txt` is the same list for people:
//!
//! ```text
//! 000    embedding_0.w_0    sparse    16    adagrad
//! 001    MergedDense    dense    858    adam
//!     fc_0.b_0    0..10
//!     fc_0.w_0    10..858
//! ```
//!
//! A line has the folder, the name, the kind, the width and the rule of a table. The lines of a
//! dense table's parameters follow, with their places in it.

use super::folder_name;
use crate::TableConfig;
use fleet_base::{Error, Result, text};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

/// The tables of the latest complete save of a folder.
///
/// ```
/// use fleet_ps::{
///     JobTables, LocalServers, SaveFormat, SaveMode, ServerTables, SparseConfig, TableAdmin,
///     TableConfig, TableIndex, Tables,
/// };
/// # let dir = std::env::temp_dir().join(format!("fleet-ps-index-{}", std::process::id()));
/// let rows = SparseConfig { name: "words".into(), ..SparseConfig::plain(0, 8) };
/// let tables = vec![TableConfig::Sparse(rows)];
/// let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables };
/// let servers = LocalServers::new(&ServerTables::all(&job)?, 0)?;
/// servers.save(Tables::All, &dir, SaveMode::All, SaveFormat::Binary)?;
/// let index = TableIndex::read(&dir)?;
/// assert_eq!((&index.tables[0].name[..], index.tables[0].width), ("words", 8));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TableIndex {
    /// Folder of the save.
    pub dir: PathBuf,
    /// Number of the save, which all servers wrote.
    pub save_id: u64,
    /// Empty if an earlier version made the save.
    pub tables: Vec<SavedTable>,
}

/// A table of a save.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedTable {
    /// Number of the table in the job that saved it.
    pub id: u32,
    /// [`TableConfig::name`].
    pub name: String,
    /// [`TableConfig::kind`].
    pub kind: String,
    /// Columns that a program sees of a row, or the numbers of a dense table.
    pub width: usize,
    /// The name of the update rule; empty for a table without one.
    pub rule: String,
    /// The parameters of a dense table and their places.
    pub params: Vec<(String, Range<usize>)>,
}

/// Where a table of a job is in a save.
pub(crate) enum Found {
    /// A table of rows, or the steps: in the table of this number.
    Whole(u32),
    /// A dense table: in parts of dense tables.
    Dense(Vec<FoundDense>),
}

/// A dense table of a save, of `len` numbers, and what a table of the job takes from it.
pub(crate) struct FoundDense {
    pub id: u32,
    pub len: usize,
    pub runs: Vec<Run>,
}

/// Numbers in a row: the first is number `own` of the job's table.
pub(crate) struct Run {
    pub own: usize,
    pub saved: Range<usize>,
}

impl TableIndex {
    /// Returns all dense parameters, in the order of tables.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().flat_map(|table| table.params.iter().map(|(name, _)| &name[..]))
    }

    /// Finds a table of a job: by name if the job and the save have names, otherwise by number.
    pub(crate) fn find(&self, config: &TableConfig) -> Result<Found> {
        let own = config.table_id();
        if self.tables.is_empty() {
            return Ok(match config {
                TableConfig::Dense { .. } => same_place(config),
                _ => Found::Whole(own),
            });
        }
        match config {
            TableConfig::Dense { params, .. } if params.iter().any(|(name, _)| name.is_empty()) => {
                Ok(same_place(config))
            }
            TableConfig::Dense { params, .. } => self.find_dense(params).map(Found::Dense),
            TableConfig::Sparse(rows) | TableConfig::Geo(rows) => {
                let same = |it: &&SavedTable| {
                    it.is_rows() && it.name == rows.name && (!it.name.is_empty() || it.id == own)
                };
                let by_number = |it: &&SavedTable| it.is_rows() && it.name.is_empty();
                let found = self.tables.iter().find(same);
                let found = found.or(self.tables.iter().find(|it| by_number(it) && it.id == own));
                match found {
                    Some(table) => Ok(Found::Whole(table.id)),
                    None if rows.name.is_empty() => Ok(Found::Whole(own)),
                    None => Err(self.lacks_table(&rows.name)),
                }
            }
            TableConfig::GlobalStep { .. } => {
                match self.tables.iter().find(|it| it.kind == config.kind()) {
                    Some(table) => Ok(Found::Whole(table.id)),
                    None => Err(self.lacks("count of steps")),
                }
            }
        }
    }

    /// Returns whether the save has a table of rows of this name.
    pub(crate) fn has_rows(&self, name: &str) -> bool {
        self.tables.iter().any(|it| it.is_rows() && it.name == name)
    }

    fn find_dense(&self, params: &[(String, usize)]) -> Result<Vec<FoundDense>> {
        let places = self.places();
        let mut found: Vec<FoundDense> = Vec::new();
        let mut own = 0;
        for (name, len) in params {
            let (at, range) = places.get(&name[..]).ok_or_else(|| self.lacks_param(name))?;
            if range.len() != *len {
                return Err(Error::invalid(format!("'{name}' has another size in the save"))
                    .expected(format!("{len} numbers"))
                    .got(range.len())
                    .help("load a save of the same network, or name the parameters to load")
                    .at(self.dir.display()));
            }
            let SavedTable { id, width, .. } = &self.tables[*at];
            let run = Run { own, saved: range.clone() };
            match found.iter_mut().find(|it| it.id == *id) {
                Some(table) => table.runs.push(run),
                None => found.push(FoundDense { id: *id, len: *width, runs: vec![run] }),
            }
            own += len;
        }
        Ok(found)
    }

    /// Returns the table, by position, and the place of every dense parameter.
    pub(super) fn places(&self) -> HashMap<&str, (usize, Range<usize>)> {
        let tables = self.tables.iter().enumerate();
        let params = tables.flat_map(|(at, table)| {
            table.params.iter().map(move |(name, range)| (&name[..], (at, range.clone())))
        });
        params.collect()
    }

    fn lacks(&self, what: &str) -> Error {
        Error::invalid(format!("the save has no {what}"))
            .at(self.dir.display())
            .help("load a save of the same network, or load tables and parameters by name")
    }

    pub(super) fn lacks_param(&self, name: &str) -> Error {
        let hint = text::did_you_mean(name, self.params());
        self.lacks(&format!("dense parameter '{name}'{hint}"))
    }

    fn lacks_table(&self, name: &str) -> Error {
        let rows = self.tables.iter().filter(|it| it.is_rows());
        let hint = text::did_you_mean(name, rows.map(|it| &it.name[..]));
        self.lacks(&format!("table '{name}'{hint}"))
    }
}

/// Finds a dense table in one of the same number and size.
fn same_place(config: &TableConfig) -> Found {
    let len = config.dense_len();
    let runs = vec![Run { own: 0, saved: 0..len }];
    Found::Dense(vec![FoundDense { id: config.table_id(), len, runs }])
}

impl SavedTable {
    /// Returns the name of the table's folder in the save.
    pub fn folder(&self) -> String {
        folder_name(self.id)
    }

    pub(crate) fn of(config: &TableConfig) -> SavedTable {
        let (width, rule, params) = match config {
            TableConfig::Dense { params, rule, .. } => {
                let mut end = 0;
                let place = |(name, len): &(String, usize)| {
                    let start = end;
                    end += len;
                    (name.clone(), start..end)
                };
                let params = match params.iter().any(|(name, _)| name.is_empty()) {
                    true => Vec::new(),
                    false => params.iter().map(place).collect(),
                };
                (config.dense_len(), rule.name(), params)
            }
            TableConfig::Sparse(rows) | TableConfig::Geo(rows) => {
                (rows.pull_width(), rows.rule.name(), Vec::new())
            }
            TableConfig::GlobalStep { .. } => (1, "", Vec::new()),
        };
        let (id, name, kind) = (config.table_id(), config.name().into(), config.kind().into());
        SavedTable { id, name, kind, width, rule: rule.into(), params }
    }

    pub(super) fn is_rows(&self) -> bool {
        self.kind == "sparse" || self.kind == "geo"
    }
}

/// Writes a list of tables.
pub(super) fn write(tables: &[SavedTable]) -> String {
    let mut text = String::new();
    for SavedTable { id, name, kind, width, rule, params } in tables {
        text += &format!("{id:03}\t{}\t{kind}\t{width}\t{rule}\n", escape(name));
        for (name, Range { start, end }) in params {
            text += &format!("\t{}\t{start}..{end}\n", escape(name));
        }
    }
    text
}

/// Parses a list of tables; `None` if it is malformed.
pub(super) fn parse(text: &str) -> Option<Vec<SavedTable>> {
    let mut tables: Vec<SavedTable> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["", name, place] => {
                let table = tables.last_mut()?;
                let (start, end) = place.split_once("..")?;
                let (start, end) = (start.parse().ok()?, end.parse().ok()?);
                (start <= end && end <= table.width).then_some(())?;
                table.params.push((unescape(name)?, start..end));
            }
            [id, name, kind, width, rule] => tables.push(SavedTable {
                id: id.parse().ok()?,
                name: unescape(name)?,
                kind: kind.to_string(),
                width: width.parse().ok()?,
                rule: rule.to_string(),
                params: Vec::new(),
            }),
            _ => return None,
        }
    }
    Some(tables)
}

/// Characters that would end a field or a line, and what stands for them.
const ESCAPES: [(char, char); 4] = [('\\', '\\'), ('\t', 't'), ('\n', 'n'), ('\r', 'r')];

fn escape(name: &str) -> String {
    let mut text = String::new();
    for char in name.chars() {
        match ESCAPES.iter().find(|(plain, _)| *plain == char) {
            Some((_, letter)) => text.extend(['\\', *letter]),
            None => text.push(char),
        }
    }
    text
}

fn unescape(text: &str) -> Option<String> {
    let (mut name, mut chars) = (String::new(), text.chars());
    while let Some(char) = chars.next() {
        name.push(match char {
            '\\' => {
                let letter = chars.next()?;
                ESCAPES.iter().find(|(_, it)| *it == letter)?.0
            }
            char => char,
        });
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_round_trip() {
        let table = |id, name: &str, params| SavedTable {
            id,
            name: name.into(),
            kind: "dense".into(),
            width: 9,
            rule: "adam".into(),
            params,
        };
        let params = vec![("a\tb\n\\".to_string(), 0..4), ("é".to_string(), 4..9)];
        let tables = vec![table(0, "", vec![]), table(1234, "x\ry", params)];
        assert_eq!(parse(&write(&tables)), Some(tables));
        for wrong in ["\ta\t0..1\n", "0\ta\tdense\t2\tadam\n\tb\t1..3\n", "0\ta\\x\tdense\t2\t\n"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
