//! A look at files with columns: what the columns are called, what they hold, and what is unusual.
//!
//! The survey reads files with the parsers that training uses ([`ColumnFiles`]), every column as
//! lists of words, and sees the texts through an observer. So it works for every format, and finds
//! the problems that training would meet.

mod column;
mod distinct;
mod sniff;

pub use column::{ColumnSummary, InferredKind, NumberSummary};

use crate::bad_rows::BadRows;
use crate::block::Block;
use crate::columns::{ColumnFiles, ColumnSpec, CsvHeader, DataFormat, TextObserver, column_names};
use crate::dataset::RecordFormat;
use crate::lines::Skipped;
use crate::pipe::FileSource;
use column::ColumnStats;
use fleet_base::sync::lock;
use fleet_base::{Error, Result, text};
use sniff::format_of;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Settings of a survey.
#[derive(Clone)]
pub struct SurveyOptions {
    /// The format; `None` guesses it from the first file.
    pub format: Option<DataFormat>,
    /// Limit of the rows to read, from all files in equal parts.
    pub rows_max: u64,
    /// Texts that stand for a missing value, besides the empty text.
    pub missing: Vec<String>,
    /// The most frequent values to keep of each column.
    pub top_max: usize,
    /// Where to find files with names of objects.
    #[cfg(feature = "object-store")]
    pub stores: Option<crate::ObjectStores>,
}

impl Default for SurveyOptions {
    /// Guesses the format, reads 200,000 rows, and keeps ten values of a column.
    fn default() -> SurveyOptions {
        SurveyOptions {
            format: None,
            rows_max: 200_000,
            missing: Vec::new(),
            top_max: 10,
            #[cfg(feature = "object-store")]
            stores: None,
        }
    }
}

impl SurveyOptions {
    fn source(&self) -> FileSource {
        FileSource {
            #[cfg(feature = "object-store")]
            stores: self.stores.clone(),
            ..FileSource::default()
        }
    }
}

/// The findings of a survey.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The format of the files.
    pub format: DataFormat,
    /// Number of rows read.
    pub rows: u64,
    /// Whether these are all rows of all files.
    pub is_complete: bool,
    /// Rows that cannot be read.
    pub bad_rows: Skipped,
    /// The columns, in the order of the files.
    pub columns: Vec<ColumnSummary>,
    /// Texts that seem to stand for missing values, and are not in the list of them.
    pub missing_marks: Vec<String>,
    /// Unusual facts, each as a sentence with its place.
    pub findings: Vec<String>,
}

impl Survey {
    /// Reads a part of the files. Fails if no file can be read.
    ///
    /// ```
    /// use fleet_data::{InferredKind, Survey, SurveyOptions};
    /// let path = std::env::temp_dir().join(format!("survey-{}.csv", std::process::id()));
    /// std::fs::write(&path, "age,city\n30,Paris\n41,Rome\n?,Paris\n").unwrap();
    /// let survey = Survey::of(&[path.clone()], &SurveyOptions::default())?;
    /// assert_eq!((survey.rows, survey.columns.len()), (3, 2));
    /// assert_eq!(survey.columns[0].kind, InferredKind::Integer);
    /// assert_eq!(survey.columns[1].top[0], ("Paris".to_string(), 2));
    /// assert_eq!(survey.missing_marks, ["?"]);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn of<P: AsRef<Path>>(files: &[P], options: &SurveyOptions) -> Result<Survey> {
        let files: Vec<PathBuf> = files.iter().map(|path| path.as_ref().to_path_buf()).collect();
        let Some(first) = files.first() else {
            return Err(Error::invalid("no files to look at"));
        };
        let format = match &options.format {
            Some(format) => format.clone(),
            None => format_of(first, &options.source())?,
        };
        let mut work = Work::new(format, options);
        let mut failed = None;
        for (at, file) in files.iter().enumerate() {
            let files_left = (files.len() - at) as u64;
            let quota = (options.rows_max.saturating_sub(work.rows)).div_ceil(files_left);
            if let Err(error) = work.check_name(file).and_then(|()| work.file(file, quota)) {
                work.findings.push(one_line(&error));
                failed.get_or_insert(error);
            }
        }
        match failed {
            Some(error) if work.stats.is_empty() => Err(error),
            _ => Ok(work.finish(files.len())),
        }
    }
}

/// A survey in progress.
struct Work<'a> {
    options: &'a SurveyOptions,
    format: DataFormat,
    /// The columns so far, by their place.
    names: Vec<String>,
    stats: Vec<ColumnStats>,
    /// The file with the first header, and its names.
    first: Option<(PathBuf, Vec<String>)>,
    rows: u64,
    is_complete: bool,
    bad_rows: Skipped,
    findings: Vec<String>,
}

impl Work<'_> {
    fn new(format: DataFormat, options: &SurveyOptions) -> Work<'_> {
        Work {
            options,
            format,
            names: Vec::new(),
            stats: Vec::new(),
            first: None,
            rows: 0,
            is_complete: true,
            bad_rows: Skipped::default(),
            findings: Vec::new(),
        }
    }

    /// Fails if the format was guessed, and the file's name tells another one.
    fn check_name(&self, path: &Path) -> Result<()> {
        match DataFormat::of_name(path) {
            Ok(named) if self.options.format.is_none() && !named.is_like(&self.format) => {
                Err(Error::invalid("file has another format than the first one")
                    .expected(&self.format)
                    .got(named)
                    .help("look at files of one format at a time")
                    .at(path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Reads up to `quota` rows of a file.
    fn file(&mut self, path: &Path, quota: u64) -> Result<()> {
        let names = column_names(&self.format, &self.options.source(), path)?;
        self.compare_names(path, &names);
        let mut seen = HashSet::new();
        let unique: Vec<&String> =
            names.iter().filter(|name| !name.is_empty() && seen.insert(name.as_str())).collect();
        if unique.len() < names.len() {
            self.findings.push(format!(
                "{}: {} without a name or with the name of another one",
                path.display(),
                text::counted(names.len() - unique.len(), "column")
            ));
        }
        // A name that stands twice cannot be read.
        let is_single = |name: &&String| names.iter().filter(|it| it == name).count() == 1;
        let unique: Vec<String> = unique.into_iter().filter(is_single).cloned().collect();
        if unique.is_empty() {
            return Err(Error::invalid("file has no columns").at(path.display()));
        }
        let places: Vec<usize> = unique.iter().map(|name| self.place(name)).collect();
        let stats = places.iter().map(|at| std::mem::take(&mut self.stats[*at])).collect();
        let seen = Arc::new(Observed(Mutex::new(stats)));
        let outcome = self.read(path, &unique, quota, &seen);
        let stats = std::mem::take(&mut *lock(&seen.0));
        for (at, stats) in places.into_iter().zip(stats) {
            self.stats[at] = stats;
        }
        outcome
    }

    fn read(
        &mut self,
        path: &Path,
        names: &[String],
        quota: u64,
        seen: &Arc<Observed>,
    ) -> Result<()> {
        let columns = names.iter().map(|name| ColumnSpec::categories(name, ""));
        let files = ColumnFiles::new(self.format.clone(), columns)?
            .missing(&self.options.missing)?
            .bad_rows(BadRows::at_most(u64::MAX))
            .observe_texts(Arc::clone(seen) as Arc<dyn TextObserver>);
        #[cfg(feature = "object-store")]
        let files = match &self.options.stores {
            Some(stores) => files.object_stores(stores),
            None => files,
        };
        let mut reader = files.open(path)?;
        let mut block = Block::new(files.schema());
        let mut left = quota;
        let outcome = loop {
            block.clear();
            // One row more shows whether the file ends here.
            let count = reader.read(left.clamp(1, BLOCK_ROWS) as usize, &mut block);
            let count = match count {
                Ok(count) if left == 0 => {
                    self.is_complete &= count == 0;
                    break Ok(());
                }
                Ok(0) => break Ok(()),
                Ok(count) => count as u64,
                Err(error) => break Err(error),
            };
            let stats = &mut *lock(&seen.0);
            for (index, stats) in stats.iter_mut().enumerate() {
                let column = block.column(index);
                (0..block.len()).for_each(|row| stats.add_row(column.ids(row).unwrap_or_default()));
                stats.end_block();
            }
            self.rows += count;
            left -= count;
        };
        self.bad_rows.add(&reader.skipped());
        outcome
    }

    /// Returns the place of a column, and adds it if it is new.
    fn place(&mut self, name: &str) -> usize {
        let known = self.names.iter().position(|it| it == name);
        known.unwrap_or_else(|| {
            self.names.push(name.to_string());
            // Rows before this file lack the column.
            self.stats.push(ColumnStats::default());
            self.names.len() - 1
        })
    }

    fn compare_names(&mut self, path: &Path, names: &[String]) {
        let Some((first, expected)) = &self.first else {
            if has_values_as_names(&self.format, names) {
                self.findings.push(format!(
                    "{}: the first line looks like a row, not like the names of the columns",
                    path.display()
                ));
            }
            self.first = Some((path.to_path_buf(), names.to_vec()));
            return;
        };
        let has_header = matches!(
            self.format,
            DataFormat::Csv { header: CsvHeader::FirstLine, .. } | DataFormat::Parquet
        );
        if !has_header {
            return;
        }
        let place = format!("{}: other columns than {}", path.display(), first.display());
        let lacking: Vec<&str> = missing_in(expected, names);
        let more: Vec<&str> = missing_in(names, expected);
        let mut parts = Vec::new();
        if !lacking.is_empty() {
            parts.push(format!("without {}", lacking.join(", ")));
        }
        if !more.is_empty() {
            parts.push(format!("with {}", more.join(", ")));
        }
        if !parts.is_empty() {
            self.findings.push(format!("{place}: {}", parts.join(", ")));
        }
    }

    fn finish(mut self, files: usize) -> Survey {
        let (rows, top_max) = (self.rows, self.options.top_max);
        let stats = std::mem::take(&mut self.stats).into_iter();
        let columns: Vec<ColumnSummary> = std::mem::take(&mut self.names)
            .into_iter()
            .zip(stats)
            .map(|(name, stats)| stats.summary(name, rows, top_max))
            .collect();
        let mut missing_marks: Vec<String> = Vec::new();
        for mark in columns.iter().flat_map(|column| &column.missing_marks) {
            if !missing_marks.contains(mark) {
                missing_marks.push(mark.clone());
            }
        }
        for column in &columns {
            self.findings.extend(column.finding());
        }
        if let Some(first) = &self.bad_rows.first {
            let count = text::counted(self.bad_rows.lines as usize, "bad row");
            self.findings.push(format!("{count}; the first: {}", one_line(first)));
        }
        if rows == 0 {
            self.findings.push(format!("no rows in {}", text::counted(files, "file")));
        }
        Survey {
            format: self.format,
            rows,
            is_complete: self.is_complete,
            bad_rows: self.bad_rows,
            columns,
            missing_marks,
            findings: self.findings,
        }
    }
}

/// The columns of the file that is being read.
struct Observed(Mutex<Vec<ColumnStats>>);

impl TextObserver for Observed {
    fn observe(&self, column: usize, hash: u64, text: &[u8]) {
        if let Some(stats) = lock(&self.0).get_mut(column) {
            stats.see(hash, text);
        }
    }
}

fn missing_in<'a>(expected: &'a [String], names: &[String]) -> Vec<&'a str> {
    let lacking = expected.iter().filter(|name| !names.contains(name));
    lacking.map(String::as_str).collect()
}

/// Returns whether a header seems to be a row of values.
fn has_values_as_names(format: &DataFormat, names: &[String]) -> bool {
    let is_header = matches!(format, DataFormat::Csv { header: CsvHeader::FirstLine, .. });
    is_header && sniff::has_values(names)
}

/// Returns an error on one line.
fn one_line(error: &Error) -> String {
    error.to_string().split('\n').map(str::trim).collect::<Vec<_>>().join("; ")
}

/// Rows that are read at once.
const BLOCK_ROWS: u64 = 4096;
