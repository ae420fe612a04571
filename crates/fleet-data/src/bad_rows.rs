//! Rows that cannot be read: how many a pass over some files accepts, and where they are kept.

use crate::skipped::Skipped;
use fleet_base::sync::lock;
use fleet_base::{Error, Result, text};
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Limits of the rows that may be skipped in all files of a pass, and a file for their text.
///
/// ```
/// use fleet_data::{BadRows, Block, ColumnFiles, ColumnSpec, DataFormat, RecordFormat};
/// let path = std::env::temp_dir().join(format!("bad-rows-{}.csv", std::process::id()));
/// std::fs::write(&path, "age,city\n30,Paris\nold,Rome\n41,Bonn\n").unwrap();
/// let columns = [ColumnSpec::number("age"), ColumnSpec::category("city")];
/// let files = ColumnFiles::new(DataFormat::csv(), columns)?.bad_rows(BadRows::at_most(10));
/// let mut block = Block::new(files.schema());
/// let mut reader = files.open(&path)?;
/// assert_eq!(reader.read(100, &mut block)?, 2);
/// assert_eq!(reader.skipped().lines, 1);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BadRows {
    at_most: u64,
    share_max: f64,
    kept: Option<Arc<Kept>>,
    counts: Arc<Counts>,
}

/// Rows of a pass so far.
#[derive(Debug, Default)]
struct Counts {
    good: AtomicU64,
    bad: AtomicU64,
}

/// The file of bad rows. It is created for the first one.
#[derive(Debug)]
struct Kept {
    path: PathBuf,
    state: Mutex<KeptState>,
}

#[derive(Debug, Default)]
struct KeptState {
    file: Option<File>,
    /// Hashes of the places of rows in the file, so that a second pass does not repeat them.
    places: HashSet<u64>,
}

impl Default for BadRows {
    /// Accepts no bad rows: the first one is an error.
    fn default() -> BadRows {
        BadRows::at_most(0)
    }
}

impl BadRows {
    /// Accepts this number of bad rows in all files of a pass; one more is an error.
    pub fn at_most(rows: u64) -> BadRows {
        BadRows { at_most: rows, share_max: 1.0, kept: None, counts: Arc::default() }
    }

    /// Accepts at most this share of all rows (0 to 1). It is checked from the thousandth row on.
    pub fn share(mut self, share: f64) -> Result<BadRows> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::invalid("share of bad rows is out of range")
                .expected("0 to 1")
                .got(share));
        }
        self.share_max = share;
        Ok(self)
    }

    /// Writes bad rows to a file, a line each: `FILE:LINE:COLUMN: reason`, a tab, and the text. An
    /// older file of this name is replaced at the first bad row.
    pub fn keep(mut self, path: impl Into<PathBuf>) -> BadRows {
        self.kept = Some(Arc::new(Kept { path: path.into(), state: Mutex::default() }));
        self
    }

    /// Returns the number of bad rows of the current pass.
    pub fn count(&self) -> u64 {
        self.counts.bad.load(Ordering::Relaxed)
    }

    /// Returns the same limits with counts of their own, for another pass.
    pub fn for_pass(&self) -> BadRows {
        BadRows { counts: Arc::default(), ..self.clone() }
    }

    /// Counts a row that cannot be read, or returns its error if it exceeds the limit.
    #[cold]
    pub(crate) fn add(&self, skipped: &mut Skipped, error: Error, row: &[u8]) -> Result<()> {
        let before = self.counts.bad.fetch_add(1, Ordering::Relaxed);
        if let Some(kept) = &self.kept {
            kept.write(&error, row)?;
        }
        if before >= self.at_most {
            return Err(match self.at_most {
                0 => error,
                limit => error.or_help(format!(
                    "{} bad rows were skipped before this one, which is the limit",
                    text::count(limit as f64)
                )),
            });
        }
        skipped.lines += 1;
        skipped.first.get_or_insert(error);
        Ok(())
    }

    /// Counts rows that were read, and checks the share of bad ones.
    pub(crate) fn add_good(&self, rows: u64, skipped: &Skipped) -> Result<()> {
        let good = self.counts.good.fetch_add(rows, Ordering::Relaxed) + rows;
        let bad = self.count();
        if bad == 0 || good + bad < SHARE_ROWS_MIN {
            return Ok(());
        }
        let share = bad as f64 / (good + bad) as f64;
        if share <= self.share_max {
            return Ok(());
        }
        let error = Error::invalid("too many rows cannot be read")
            .expected(format!("at most {:.3} % of the rows", 100.0 * self.share_max))
            .got(format!("{bad} of {} rows ({:.3} %)", good + bad, 100.0 * share));
        Err(match &skipped.first {
            None => error,
            Some(first) => error.help(format!("the first one: {}", one_line(&first.to_string()))),
        })
    }
}

impl Kept {
    fn write(&self, error: &Error, row: &[u8]) -> Result<()> {
        let state = &mut *lock(&self.state);
        let place = error.places().first().cloned().unwrap_or_default();
        // The place ends with an excerpt of the row, which is written whole.
        let place = place.split(", at '").next().unwrap_or_default();
        let is_new = state.places.len() < KEPT_ROWS_MAX
            && state.places.insert(crate::category_hash(place.as_bytes()));
        if !is_new {
            return Ok(());
        }
        let line = format!("{place}: {}\t{}\n", one_line(&reason(error)), shown(row));
        let file = match &mut state.file {
            Some(file) => file,
            none => none.insert(create(&self.path)?),
        };
        file.write_all(line.as_bytes())
            .map_err(|error| Error::io("write bad rows to", &self.path, &error))
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| Error::io("create the file of bad rows", path, &error))
}

/// Returns the message of an error with what was expected, without places and help.
fn reason(error: &Error) -> String {
    let [expected, got, _] = error.details();
    let expected = expected.map(|it| format!(": expected {it}")).unwrap_or_default();
    let got = got.map(|it| format!(", got {it}")).unwrap_or_default();
    format!("{}{expected}{got}", error.message())
}

fn one_line(message: &str) -> String {
    message.split('\n').map(str::trim).collect::<Vec<_>>().join("; ")
}

/// Returns the text of a row on one line.
fn shown(row: &[u8]) -> String {
    let short = &row[..row.len().min(KEPT_BYTES_MAX)];
    let text = String::from_utf8_lossy(short);
    let text = text.trim_end_matches('\r').replace('\n', "\\n").replace('\r', "\\r");
    if row.len() > short.len() { text + ".." } else { text }
}

/// Rows before the share of bad ones is checked: a share of few rows means little.
const SHARE_ROWS_MIN: u64 = 1000;
/// Limit of a kept row's text; it is for people to look at.
const KEPT_BYTES_MAX: usize = 16 << 10;
/// Limit of the kept rows; their places take 16 MB.
const KEPT_ROWS_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::temporary::TemporaryFolder;

    fn wrong(line: u64) -> Error {
        let error = Error::invalid("not a number").expected("digits");
        error.at(format!("a.csv:{line}:3, at 'x'"))
    }

    #[test]
    fn the_number_is_limited() {
        let (rows, mut skipped) = (BadRows::at_most(2), Skipped::default());
        rows.add(&mut skipped, wrong(1), b"x").unwrap();
        rows.add(&mut skipped, wrong(2), b"y").unwrap();
        let error = rows.add(&mut skipped, wrong(3), b"z").unwrap_err().to_string();
        assert!(error.contains("a.csv:3:3") && error.contains("2 bad rows"), "{error}");
        assert_eq!((skipped.lines, skipped.first), (2, Some(wrong(1))));
        rows.for_pass().add(&mut Skipped::default(), wrong(1), b"x").unwrap();
        assert!(BadRows::default().add(&mut Skipped::default(), wrong(1), b"").is_err());
    }

    #[test]
    fn the_share_is_limited() {
        let (rows, mut skipped) = (BadRows::at_most(50).share(0.01).unwrap(), Skipped::default());
        for line in 0..11 {
            rows.add(&mut skipped, wrong(line), b"x").unwrap();
        }
        rows.add_good(500, &skipped).unwrap();
        let error = rows.add_good(500, &skipped).unwrap_err().to_string();
        let expected = "expected at most 1.000 % of the rows, got 11 of 1011 rows (1.088 %)";
        assert!(error.contains(expected) && error.contains("a.csv:0:3"), "{error}");
        assert!(BadRows::at_most(1).share(1.5).is_err());
    }

    #[test]
    fn rows_are_kept_once() {
        let folder = TemporaryFolder::new(&std::env::temp_dir(), "fleet-bad-rows").unwrap();
        let path = folder.path().join("bad.txt");
        let rows = BadRows::at_most(9).keep(&path);
        for pass in [&rows, &rows.for_pass()] {
            pass.add(&mut Skipped::default(), wrong(7), b"1,\"a\nb\",\xff\r").unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap();
        let expected = "a.csv:7:3: not a number: expected digits\t1,\"a\\nb\",\u{fffd}\n";
        assert_eq!(kept, expected);
        let nowhere = BadRows::at_most(9).keep(folder.path().join("none/bad.txt"));
        assert!(nowhere.add(&mut Skipped::default(), wrong(7), b"").is_err());
    }
}
