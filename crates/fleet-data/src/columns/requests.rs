//! Rows of requests to a server: a JSON body, or columns of values. The same values give the same
//! records as in files.

use super::cells::{Cells, Scalar};
use super::json::scan::Scan;
use super::json::{JsonRows, MISSING_HELP, unknown_column};
use super::names::NameTree;
use super::{ColumnSpec, missing::Missing};
use crate::block::Block;
use crate::lines::LineError;
use crate::slot::Schema;
use fleet_base::{Error, Result, text};
use std::sync::Arc;

/// Parses the rows of requests. Unlike in files, a key that is not a column is an error, unless it
/// is on a list of ignored names.
///
/// ```
/// use fleet_data::{Block, ColumnSpec, RequestRows};
/// let columns = [ColumnSpec::number("age"), ColumnSpec::category("city")];
/// let mut rows = RequestRows::new(columns, &["?"], ["income"])?;
/// let mut block = Block::new(rows.schema());
/// let body = br#"{"rows": [{"age": 37, "city": "Rome"}, {"city": null, "income": 5}]}"#;
/// assert_eq!(rows.json(body, 100, &mut block).unwrap(), 2);
/// assert_eq!(block.column(0).floats(0), Some(&[37.0][..]));
/// let error = rows.json(br#"{"rows": [{"agee": 37}]}"#, 100, &mut block).unwrap_err();
/// assert!(error.error.to_string().contains("did you mean 'age'?"));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone)]
pub struct RequestRows {
    json: JsonRows,
    /// The row that is being read.
    row: Option<usize>,
}

/// Values of a column for all rows of a request.
#[derive(Clone, Copy, Debug)]
pub enum RequestColumn<'a> {
    /// A text for each row; the empty text is a missing value.
    Texts(&'a [String]),
    /// A number for each row; NaN is a missing value.
    Numbers(&'a [f32]),
    /// An integer for each row.
    Integers(&'a [i64]),
    /// Any number of texts for each row.
    Lists {
        /// The texts of all rows, one after the other.
        texts: &'a [String],
        /// Number of the texts of each row.
        lengths: &'a [u32],
    },
}

/// The texts of the values of further keys of a JSON body, if it has them.
pub type FurtherValues<'b, const N: usize> = [Option<&'b [u8]>; N];

/// An error in a request, with its place.
#[derive(Debug)]
pub struct RequestError {
    /// Index of the row, from 0.
    pub row: Option<usize>,
    /// The column.
    pub column: Option<String>,
    /// The error.
    pub error: Error,
}

impl RequestError {
    /// Returns an error that is not about a row.
    pub fn of_request(error: Error) -> RequestError {
        RequestError { row: None, column: None, error }
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Error {
        match error.row {
            Some(row) => error.error.at(format!("row {row}")),
            None => error.error,
        }
    }
}

impl RequestRows {
    /// Returns a parser of these columns. `missing` are texts that stand for a missing value, and
    /// `ignored` are names that rows may have besides.
    pub fn new<S: AsRef<str>>(
        columns: impl IntoIterator<Item = ColumnSpec>,
        missing: &[S],
        ignored: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<RequestRows> {
        let missing = Missing::new(missing.iter().map(AsRef::as_ref))?;
        let cells = Cells { missing, ..Cells::new(columns)? };
        let ignored: Vec<_> = ignored.into_iter().collect();
        let is_column = |name: &str| cells.columns.iter().any(|column| column.name == name);
        let ignored = ignored.iter().map(AsRef::as_ref).filter(|name| !is_column(name));
        Ok(RequestRows { json: JsonRows::strict(&cells, ignored), row: None })
    }

    /// Returns the slots of a row: one for each column.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.json.cells.schema
    }

    /// Returns the columns.
    pub fn columns(&self) -> &[ColumnSpec] {
        &self.json.cells.columns
    }

    /// Appends the rows of a JSON body, and returns their number. The body is an object with a list
    /// of rows, `{"rows": [{"age": 37}, ..]}`, or with columns, `{"columns": {"age": [37, ..]}}`.
    /// Absent keys and null are missing values. After an error, no row is appended.
    pub fn json(
        &mut self,
        body: &[u8],
        rows_max: usize,
        block: &mut Block,
    ) -> Result<usize, RequestError> {
        self.json_with(body, [], rows_max, block).map(|(rows, [])| rows)
    }

    /// Like [`RequestRows::json`], of a body that may have further keys. Returns the texts of their
    /// values.
    ///
    /// ```
    /// use fleet_data::{Block, ColumnSpec, RequestRows};
    /// let mut rows = RequestRows::new([ColumnSpec::category("user")], &[""], [""])?;
    /// let mut block = Block::new(rows.schema());
    /// let body = br#"{"count": 5, "rows": [{"user": 7}]}"#;
    /// let (count, [top]) = rows.json_with(body, ["count"], 100, &mut block).unwrap();
    /// assert_eq!((count, top), (1, Some(&b"5"[..])));
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn json_with<'b, const N: usize>(
        &mut self,
        body: &'b [u8],
        keys: [&str; N],
        rows_max: usize,
        block: &mut Block,
    ) -> Result<(usize, FurtherValues<'b, N>), RequestError> {
        let before = block.len();
        (self.row, self.json.last) = (None, None);
        let mut values = [None; N];
        match self.body(body, (&keys, &mut values), rows_max, block) {
            Ok(rows) => Ok((rows, values)),
            Err(LineError { at, error }) => {
                block.truncate(before);
                let error = match self.json.last {
                    None => error.at(format!("byte {at} of the body")),
                    Some(_) => error,
                };
                Err(self.failed(error))
            }
        }
    }

    /// Appends rows whose columns are lists of values, and returns their number. Columns that are
    /// absent are missing in all rows. After an error, no row is appended.
    pub fn table<'a>(
        &mut self,
        columns: impl IntoIterator<Item = (&'a str, RequestColumn<'a>)>,
        rows_max: usize,
        block: &mut Block,
    ) -> Result<usize, RequestError> {
        let before = block.len();
        (self.row, self.json.last) = (None, None);
        let mut counts = RowCounts::new(rows_max);
        self.json.filled.clear();
        self.json.filled.resize(self.json.cells.columns.len(), false);
        let fill = || -> Result<()> {
            for (name, values) in columns {
                let Some(index) = self.place(name)? else { continue };
                self.json.last = Some(index);
                counts.add(name, values.len())?;
                self.fill(index, values, block)?;
                self.row = None;
            }
            Ok(())
        };
        match fill() {
            Ok(()) => Ok(self.end(counts.rows.unwrap_or(0), block)),
            Err(error) => {
                block.truncate(before);
                Err(self.failed(error))
            }
        }
    }

    fn failed(&self, error: Error) -> RequestError {
        let column = self.json.last.map(|index| self.json.cells.columns[index].name.clone());
        RequestError { row: self.row, column, error }
    }

    fn body<'b>(
        &mut self,
        body: &'b [u8],
        (keys, values): (&[&str], &mut [Option<&'b [u8]>]),
        rows_max: usize,
        block: &mut Block,
    ) -> Result<usize, LineError> {
        let mut scan = Scan::of_body(body);
        let mut rows = None;
        scan.take(b'{')?;
        let mut more = !scan.take_if(b'}');
        while more {
            scan.peek();
            let at = scan.at();
            let key = scan.key(&mut self.json.text)?;
            let further = keys.iter().position(|known| known.as_bytes() == key);
            match (key, further) {
                (b"rows", _) if rows.is_none() => {
                    scan.take(b':')?;
                    rows = Some(self.rows(&mut scan, rows_max, block)?);
                }
                (b"columns", _) if rows.is_none() => {
                    scan.take(b':')?;
                    rows = Some(self.json_columns(&mut scan, rows_max, block)?);
                }
                (_, Some(index)) if values[index].is_none() => {
                    scan.take(b':')?;
                    scan.peek();
                    let start = scan.at();
                    scan.skip(0)?;
                    values[index] = body.get(start..scan.at());
                }
                (other, _) => return Err(LineError { at, error: unknown_key(other, keys) }),
            }
            (self.row, self.json.last) = (None, None);
            more = scan.next_of(b'}')?;
        }
        scan.end()?;
        rows.ok_or_else(|| {
            let error = Error::invalid("the request has no rows").expected("'rows' or 'columns'");
            LineError { at: scan.at(), error }
        })
    }

    fn rows(
        &mut self,
        scan: &mut Scan<'_>,
        rows_max: usize,
        block: &mut Block,
    ) -> Result<usize, LineError> {
        scan.take(b'[')?;
        let mut rows = 0;
        let mut more = !scan.take_if(b']');
        while more {
            if rows == rows_max {
                return Err(LineError { at: scan.at(), error: too_many(rows_max) });
            }
            self.row = Some(rows);
            self.json.row(scan, block)?;
            block.seal();
            rows += 1;
            (self.row, self.json.last) = (None, None);
            more = scan.next_of(b']')?;
        }
        Ok(rows)
    }

    fn json_columns(
        &mut self,
        scan: &mut Scan<'_>,
        rows_max: usize,
        block: &mut Block,
    ) -> Result<usize, LineError> {
        let mut counts = RowCounts::new(rows_max);
        self.json.filled.clear();
        self.json.filled.resize(self.json.cells.columns.len(), false);
        scan.take(b'{')?;
        let mut more = !scan.take_if(b'}');
        while more {
            scan.peek();
            let at = scan.at();
            let name = String::from_utf8_lossy(scan.key(&mut self.json.text)?).into_owned();
            let place = self.place(&name).map_err(|error| LineError { at, error })?;
            scan.take(b':')?;
            match place {
                None => scan.skip(0)?,
                Some(index) => {
                    let rows = self.json_column(index, scan, rows_max, block)?;
                    self.row = None;
                    counts.add(&name, rows).map_err(|error| LineError { at, error })?;
                }
            }
            self.json.last = None;
            more = scan.next_of(b'}')?;
        }
        Ok(self.end(counts.rows.unwrap_or(0), block))
    }

    /// Reads the list of a column's values, and returns their number.
    fn json_column(
        &mut self,
        index: usize,
        scan: &mut Scan<'_>,
        rows_max: usize,
        block: &mut Block,
    ) -> Result<usize, LineError> {
        self.json.last = Some(index);
        scan.take(b'[')?;
        let mut rows = 0;
        let mut more = !scan.take_if(b']');
        while more {
            self.row = Some(rows);
            scan.peek();
            let (at, start) = (scan.at(), block.columns[index].values.len());
            if rows == rows_max {
                return Err(LineError { at, error: too_many(rows_max) });
            }
            self.json.value(index, 1, scan, block)?;
            let ended = self.json.cells.end_row(index, start, &mut block.columns[index]);
            ended.map_err(|error| LineError { at, error })?;
            rows += 1;
            more = scan.next_of(b']')?;
        }
        Ok(rows)
    }

    /// Returns the place of a column, or none if it is ignored.
    fn place(&mut self, name: &str) -> Result<Option<usize>> {
        let Some(field) = self.json.names.find(NameTree::ROOT, name.as_bytes()) else {
            return Err(unknown_column(&self.json.cells, name));
        };
        let Some(index) = field.column.filter(|it| *it < self.json.filled.len()) else {
            return Ok(None);
        };
        match std::mem::replace(&mut self.json.filled[index], true) {
            true => Err(Error::invalid(format!("duplicate column '{name}'"))),
            false => Ok(Some(index)),
        }
    }

    fn fill(&mut self, index: usize, values: RequestColumn<'_>, block: &mut Block) -> Result<()> {
        let (cells, column) = (&self.json.cells, &mut block.columns[index]);
        let mut next = 0;
        for row in 0..values.len() {
            self.row = Some(row);
            let (start, to) = (column.values.len(), &mut column.values);
            match values {
                RequestColumn::Texts(texts) => push_text(cells, index, &texts[row], to)?,
                RequestColumn::Numbers(numbers) => {
                    cells.push(index, Scalar::Float32(numbers[row]), to)?;
                }
                RequestColumn::Integers(integers) => {
                    cells.push(index, Scalar::Int(integers[row]), to)?;
                }
                RequestColumn::Lists { texts, lengths } => {
                    let end = next + lengths[row] as usize;
                    let Some(own) = texts.get(next..end) else {
                        return Err(wrong_lengths(end, texts.len()));
                    };
                    own.iter().try_for_each(|text| push_text(cells, index, text, to))?;
                    next = end;
                }
            }
            cells.end_row(index, start, column)?;
        }
        match values {
            RequestColumn::Lists { texts, .. } if next < texts.len() => {
                self.row = None;
                Err(wrong_lengths(next, texts.len()))
            }
            _ => Ok(()),
        }
    }

    /// Ends the rows of a table, whose other columns are missing.
    fn end(&mut self, rows: usize, block: &mut Block) -> usize {
        for (index, filled) in self.json.filled.iter().enumerate() {
            for _ in 0..if *filled { 0 } else { rows } {
                let column = &mut block.columns[index];
                self.json.cells.push_missing(index, &mut column.values);
                column.end_row();
            }
        }
        (0..rows).for_each(|_| block.seal());
        rows
    }
}

impl RequestColumn<'_> {
    fn len(&self) -> usize {
        match self {
            RequestColumn::Texts(texts) => texts.len(),
            RequestColumn::Numbers(numbers) => numbers.len(),
            RequestColumn::Integers(integers) => integers.len(),
            RequestColumn::Lists { lengths, .. } => lengths.len(),
        }
    }
}

fn push_text(
    cells: &Cells,
    index: usize,
    text: &str,
    values: &mut crate::block::Values,
) -> Result<()> {
    let pushed = cells.push_text(index, text.as_bytes(), values);
    pushed.map_err(|error| {
        let shown: String = text.chars().take(TEXT_SHOWN).collect();
        error.got(format!("'{}'", text::printable_line(&shown))).help(MISSING_HELP)
    })
}

/// Numbers of values of the columns of a table, which must be the same.
struct RowCounts {
    rows: Option<usize>,
    rows_max: usize,
    first: String,
}

impl RowCounts {
    fn new(rows_max: usize) -> RowCounts {
        RowCounts { rows: None, rows_max, first: String::new() }
    }

    fn add(&mut self, name: &str, rows: usize) -> Result<()> {
        if rows > self.rows_max {
            return Err(too_many(self.rows_max).got(rows));
        }
        match self.rows {
            None => {
                self.rows = Some(rows);
                self.first = name.to_string();
                Ok(())
            }
            Some(first) if first == rows => Ok(()),
            Some(first) => Err(Error::invalid("columns have different numbers of values")
                .expected(format!("{first} as in '{}'", self.first))
                .got(format!("{rows} in '{name}'"))),
        }
    }
}

#[cold]
fn unknown_key(key: &[u8], further: &[&str]) -> Error {
    let known: String = further.iter().map(|key| format!(", '{key}'")).collect();
    Error::invalid("unknown or duplicate key of a request")
        .expected(format!("'rows' or 'columns'{known}"))
        .got(format!("'{}'", String::from_utf8_lossy(key)))
}

#[cold]
fn too_many(rows_max: usize) -> Error {
    Error::exhausted("too many rows in a request")
        .expected(format!("at most {rows_max}"))
        .help("divide the rows among several requests")
}

#[cold]
fn wrong_lengths(lengths: usize, texts: usize) -> Error {
    Error::invalid("lengths of lists do not match their texts").expected(lengths).got(texts)
}

/// Characters of a text that an error shows.
const TEXT_SHOWN: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;

    fn rows() -> RequestRows {
        let columns = [
            ColumnSpec::number("age"),
            ColumnSpec::category("city"),
            ColumnSpec::categories("tags", "|"),
            ColumnSpec::time("user.day"),
        ];
        RequestRows::new(columns, &["?"], ["income", "user.name"]).unwrap()
    }

    const MARKS: &[u8] = b"\"{}[],:\\0e-. tn";
    const BODIES: [&str; 3] = [
        r#"{"rows": [{"age": 1.5, "city": "Rome", "tags": ["a", "b|c"], "user": {"day": 5}},
            {"city": 7, "age": null, "tags": "x|y", "income": [1, {"a": 2}]}, {"age": "?"},
            {"user.day": "2024-03-01", "user": {"name": "\u00e9\n"}, "age": true}]}"#,
        r#"{"columns": {"age": [1, "2", null], "tags": [[], "a", ["b"]], "income": {"x": []}}}"#,
        r#"{ "columns" : { } }"#,
    ];

    #[test]
    fn rows_and_columns_are_the_same() {
        let mut rows = rows();
        let mut blocks = [Block::new(rows.schema()), Block::new(rows.schema())];
        assert_eq!(rows.json(BODIES[0].as_bytes(), 4, &mut blocks[0]).unwrap(), 4);
        let columns = r#"{"columns": {"tags": [["a", "b|c"], "x|y", null, []],
            "age": [1.5, null, "?", true], "city": ["Rome", 7, null, null],
            "user.day": [5, null, null, "2024-03-01"]}}"#;
        assert_eq!(rows.json(columns.as_bytes(), 4, &mut blocks[1]).unwrap(), 4);
        let numbers = |block: &Block| -> Vec<Option<u32>> {
            let all = (0..4).map(|row| block.column(0).floats(row)?.first().map(|it| it.to_bits()));
            all.collect()
        };
        assert_eq!(numbers(&blocks[0]), numbers(&blocks[1]));
        assert!(blocks[0].columns[1..] == blocks[1].columns[1..], "{blocks:?}");
        assert_eq!(blocks[0].column(2).ids(0).map(<[i64]>::len), Some(3));
        // Columns of values, too.
        let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        let (cities, tags) = (texts(&["Rome", "7", "", "?"]), texts(&["a", "b", "c", "x", "y"]));
        let lists = RequestColumn::Lists { texts: &tags, lengths: &[3, 2, 0, 0] };
        let columns = [
            ("age", RequestColumn::Numbers(&[1.5, f32::NAN, f32::NAN, 1.0])),
            ("city", RequestColumn::Texts(&cities)),
            ("tags", lists),
        ];
        let mut table = Block::new(rows.schema());
        assert_eq!(rows.table(columns, 4, &mut table).unwrap(), 4);
        assert!(table.columns[1..3] == blocks[0].columns[1..3], "{table:?}");
    }

    #[test]
    fn errors_name_row_and_column() {
        let (mut rows, mut block) = (rows(), Block::new(rows().schema()));
        let wrong = rows.json(br#"{"rows": [{}, {"age": "x y"}]}"#, 9, &mut block).unwrap_err();
        assert_eq!((wrong.row, wrong.column.as_deref()), (Some(1), Some("age")));
        assert_eq!(wrong.error.details()[1], Some("\"x y\""));
        let wrong = rows.json(br#"{"columns": {"age": [1, []], "x": 1}}"#, 9, &mut block);
        assert!(wrong.unwrap_err().error.to_string().contains("unknown column 'x'"));
        let short = RequestColumn::Lists { texts: &[], lengths: &[0, 2] };
        let wrong = rows.table([("tags", short)], 9, &mut block).unwrap_err();
        assert_eq!((wrong.row, wrong.column.as_deref()), (Some(1), Some("tags")));
        let twice =
            [("age", RequestColumn::Integers(&[1])), ("age", RequestColumn::Integers(&[1]))];
        assert!(rows.table(twice, 9, &mut block).is_err() && block.is_empty());
    }

    #[test]
    fn further_keys_are_in_any_order() {
        let (mut rows, mut block) = (rows(), Block::new(rows().schema()));
        let mut parse = |body: &str| {
            let read = rows.json_with(body.as_bytes(), ["count", "known"], 9, &mut block);
            let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
            read.map(|(rows, values)| (rows, values.map(|value| value.map(text))))
                .map_err(|error| error.error.to_string())
        };
        let none = || None::<String>;
        assert_eq!(parse(r#"{"rows": [{}]}"#), Ok((1, [none(), none()])));
        let value = |text: &str| Some(text.to_string());
        let body = r#"{"known" : [1, {"a": "}"}] , "columns": {"age": [1, 2]}, "count":5}"#;
        assert_eq!(parse(body), Ok((2, [value("5"), value(r#"[1, {"a": "}"}]"#)])));
        for (body, part) in [
            (r#"{"count": 5}"#, "no rows: expected 'rows' or 'columns'"),
            (r#"{"count": 5, "count": 6, "rows": []}"#, "duplicate key"),
            (r#"{"rows": [], "columns": {}}"#, "duplicate key"),
            (r#"{"rows": [], "lines": 1}"#, "'rows' or 'columns', 'count', 'known', got 'lines'"),
            (r#"{"rows": [], "count": }"#, "not valid JSON"),
            (r#"{"rows": [], }"#, "not valid JSON"),
            (r#"{}"#, "no rows: expected"),
        ] {
            let error = parse(body).unwrap_err();
            assert!(error.contains(part), "{body}: {error}");
        }
    }

    /// Changed bodies are rows or errors. After an error the block is as before.
    #[test]
    fn any_body_is_parsed() {
        let mut rows = rows();
        let mut random = Sequence::new(7, 1);
        let (mut parsed, mut block) = (0, Block::new(rows.schema()));
        for round in 0..60_000 {
            let mut body = BODIES[round % BODIES.len()].as_bytes().to_vec();
            for _ in 0..1 + random.below(3) {
                let at = random.below(body.len() as u64) as usize;
                match random.below(4) {
                    0 => body[at] = MARKS[random.below(MARKS.len() as u64) as usize],
                    1 => body[at] = random.below(256) as u8,
                    2 if body.len() > 1 => drop(body.remove(at)),
                    _ => body.truncate(at + 1),
                }
            }
            if block.len() > 20 {
                block.clear();
            }
            let before = block.clone();
            match rows.json(&body, 4, &mut block) {
                Ok(count) => {
                    parsed += 1;
                    assert_eq!(block.len(), before.len() + count);
                }
                Err(_) => {
                    let ends = |block: &Block| -> Vec<usize> {
                        block.columns.iter().map(|column| column.values.len()).collect()
                    };
                    assert_eq!((block.len(), ends(&block)), (before.len(), ends(&before)));
                }
            }
        }
        assert!((1000..50_000).contains(&parsed), "{parsed}");
    }
}
