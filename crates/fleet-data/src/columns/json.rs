//! JSON lines by the keys of their objects.
//!
//! The parser is our own, since the general one loses the text of a number (so that `1.10` and
//! integers beyond 2^64 would differ from the same columns in CSV), and makes a tree of every line.

pub(super) mod scan;

use super::cells::{Cells, Scalar};
use super::names::NameTree;
use crate::block::Block;
use crate::lines::{LineError, LineFormat};
use crate::slot::Schema;
use fleet_base::{Error, Result, text};
use scan::Scan;
use std::sync::Arc;

/// Parses lines, each of which is an object. A key that is absent, and null, is a missing value.
#[derive(Clone)]
pub(super) struct JsonRows {
    pub cells: Cells,
    /// The columns; in requests, then the names that are ignored.
    pub names: Arc<NameTree>,
    /// Whether unknown keys are errors, and errors show values.
    is_strict: bool,
    /// For each column, the number of its values before the row.
    starts: Vec<usize>,
    /// For each column, whether the row has it.
    pub filled: Vec<bool>,
    /// A text without its escapes.
    pub text: Vec<u8>,
    /// The column of the last value.
    pub last: Option<usize>,
}

impl JsonRows {
    pub fn new(cells: &Cells) -> JsonRows {
        let names = NameTree::new(cells.columns.iter().map(|column| column.name.as_str()));
        JsonRows {
            cells: cells.clone(),
            names: Arc::new(names),
            is_strict: false,
            starts: Vec::new(),
            filled: Vec::new(),
            text: Vec::new(),
            last: None,
        }
    }

    /// Returns a parser to which all keys are errors but those of columns and ignored ones.
    pub fn strict<'a>(cells: &'a Cells, ignored: impl Iterator<Item = &'a str>) -> JsonRows {
        let columns = cells.columns.iter().map(|column| column.name.as_str());
        let names = Arc::new(NameTree::new(columns.chain(ignored)));
        JsonRows { names, is_strict: true, ..JsonRows::new(cells) }
    }

    /// Reads an object as a row, which the caller seals.
    pub fn row(&mut self, scan: &mut Scan<'_>, block: &mut Block) -> Result<(), LineError> {
        self.last = None;
        self.filled.clear();
        self.filled.resize(self.cells.columns.len(), false);
        self.starts.clear();
        self.starts.extend(block.columns.iter().map(|column| column.values.len()));
        let at = scan.at();
        scan.take(b'{')?;
        self.object(NameTree::ROOT, 0, scan, block)?;
        for (index, start) in self.starts.iter().enumerate() {
            let ended = self.cells.end_row(index, *start, &mut block.columns[index]);
            ended.map_err(|error| {
                self.last = Some(index);
                LineError { at, error }
            })?;
        }
        Ok(())
    }

    /// Reads the fields of an object after its opening brace.
    fn object(
        &mut self,
        node: usize,
        depth: usize,
        scan: &mut Scan<'_>,
        block: &mut Block,
    ) -> Result<(), LineError> {
        let names = Arc::clone(&self.names);
        let mut more = !scan.take_if(b'}');
        while more {
            let at = scan.at();
            let key = scan.key(&mut self.text)?;
            let field = names.find(node, key);
            if field.is_none() && self.is_strict {
                let key = String::from_utf8_lossy(key).into_owned();
                return Err(self.unknown(&key, at));
            }
            scan.take(b':')?;
            let is_object = scan.peek() == Some(b'{');
            match field {
                Some(field) if is_object && field.below.is_some() => {
                    scan.enter(depth)?;
                    let below = field.below.unwrap_or(NameTree::ROOT);
                    self.object(below, depth + 1, scan, block)?;
                }
                Some(field) if field.column.is_some_and(|it| it < self.filled.len()) => {
                    let index = field.column.unwrap_or_default();
                    if std::mem::replace(&mut self.filled[index], true) {
                        let name = &self.cells.columns[index].name;
                        return Err(LineError::new(at, format!("duplicate key '{name}'")));
                    }
                    self.value(index, depth, scan, block)?;
                }
                _ => scan.skip(depth)?,
            }
            more = scan.next_of(b'}')?;
        }
        Ok(())
    }

    /// Reads a value of a column: one, or those of a list.
    pub fn value(
        &mut self,
        index: usize,
        depth: usize,
        scan: &mut Scan<'_>,
        block: &mut Block,
    ) -> Result<(), LineError> {
        self.last = Some(index);
        scan.peek();
        let at = scan.at();
        let values = &mut block.columns[index].values;
        let pushed = match scan.peek() {
            Some(b'"') => {
                let text = scan.string(&mut self.text)?;
                self.cells.push_text(index, text, values)
            }
            Some(b'[') => {
                scan.enter(depth)?;
                let mut more = !scan.take_if(b']');
                while more {
                    self.value(index, depth + 1, scan, block)?;
                    more = scan.next_of(b']')?;
                }
                Ok(())
            }
            Some(b'{') => return Err(self.is_object(index, at)),
            Some(b't' | b'f' | b'n' | b'N') => match scan.literal()? {
                Some(value) => self.cells.push(index, Scalar::Bool(value), values),
                None => Ok(()),
            },
            _ => self.cells.push_text(index, scan.number()?, values),
        };
        pushed.map_err(|error| match self.is_strict {
            true => LineError { at, error: error.got(scan.value_at(at)).help(MISSING_HELP) },
            false => LineError { at, error },
        })
    }

    #[cold]
    pub fn unknown(&self, key: &str, at: usize) -> LineError {
        LineError { at, error: unknown_column(&self.cells, key) }
    }

    #[cold]
    fn is_object(&self, index: usize, at: usize) -> LineError {
        let name = &self.cells.columns[index].name;
        let error = Error::invalid(format!("column '{name}' is an object"))
            .expected("a value or a list of values")
            .help(format!("read one of its fields: '{name}.FIELD'"));
        LineError { at, error }
    }
}

impl LineFormat for JsonRows {
    fn schema(&self) -> &Arc<Schema> {
        &self.cells.schema
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        let mut scan = Scan::new(&text[..length]);
        if scan.peek().is_none() {
            return Ok(false);
        }
        if scan.peek() != Some(b'{') {
            let error = Error::invalid("line is not a JSON object").help(
                "JSON lines have one object per line; write a list of objects as lines: \
                 jq -c '.[]' FILE > NEW_FILE",
            );
            return Err(LineError { at: scan.at(), error });
        }
        self.row(&mut scan, block)?;
        scan.end()?;
        block.seal();
        Ok(true)
    }
}

/// Returns the error of a request with a column that the model does not have.
#[cold]
pub(super) fn unknown_column(cells: &Cells, name: &str) -> Error {
    let known = || cells.columns.iter().map(|column| column.name.as_str());
    let error =
        Error::invalid(format!("unknown column '{name}'{}", text::did_you_mean(name, known())));
    let shown: Vec<&str> = known().take(NAMES_SHOWN).collect();
    let more = if cells.columns.len() > shown.len() { ", .." } else { "" };
    error.expected(format!("{}{more}", shown.join(", ")))
}

/// Help for a value of a request that is none of its column.
pub(super) const MISSING_HELP: &str = "leave the value out if it is missing";
/// Names that an error lists.
const NAMES_SHOWN: usize = 20;

/// Adds the names of an object's fields to the list: those of objects in it are joined by dots.
pub(super) fn field_names(line: &[u8], names: &mut Vec<String>) -> Result<(), LineError> {
    let mut scan = Scan::new(line);
    let is_object = scan.take_if(b'{');
    if is_object { names_below("", 0, &mut scan, names) } else { scan.take(b'{') }
}

fn names_below(
    front: &str,
    depth: usize,
    scan: &mut Scan<'_>,
    names: &mut Vec<String>,
) -> Result<(), LineError> {
    let mut buffer = Vec::new();
    let mut more = !scan.take_if(b'}');
    while more {
        let key = String::from_utf8_lossy(scan.key(&mut buffer)?).into_owned();
        let name = if front.is_empty() { key } else { format!("{front}.{key}") };
        scan.take(b':')?;
        if scan.peek() == Some(b'{') {
            scan.enter(depth)?;
            names_below(&name, depth + 1, scan, names)?;
        } else {
            let is_list_of_objects = scan.peek_list_of(b'{');
            scan.skip(depth)?;
            if !is_list_of_objects && names.len() < NAMES_MAX && !names.contains(&name) {
                names.push(name);
            }
        }
        more = scan.next_of(b'}')?;
    }
    Ok(())
}

/// Limit of the names that are listed; objects with keys such as user ids have no columns.
const NAMES_MAX: usize = 4096;
