//! The raw columns of a job: which files, which format, and where a column is in a block.

use crate::job::{ColumnKind, ColumnPart, DataPart, Job};
use crate::made::{self, MadeRows};
use crate::origin::Origin;
use fleet_base::{Error, Result, text};
use fleet_data::{
    BadRows, Block, ColumnFiles, ColumnSpec, CsvHeader, DataFormat, RecordFormat, TextDictionary,
    TextObserver,
};
use std::path::Path;
use std::sync::Arc;

/// The names of the columns of a raw block, in the order of its slots.
#[derive(Clone, Debug)]
pub struct RawNames(Vec<String>);

impl RawNames {
    /// Takes the names of columns, in the order of their slots.
    pub fn new(names: impl IntoIterator<Item = String>) -> RawNames {
        RawNames(names.into_iter().collect())
    }

    /// Returns the place of a column.
    pub fn index(&self, name: &str) -> Result<usize> {
        self.0.iter().position(|known| known == name).ok_or_else(|| {
            let near = text::did_you_mean(name, self.0.iter().map(String::as_str));
            Error::invalid(format!("column '{name}' is not read{near}"))
        })
    }
}

/// Where raw columns come from.
#[derive(Clone, Debug)]
pub enum RawFormat {
    /// Files of a format.
    Files(DataFormat),
    /// A generator.
    Made,
}

impl RawFormat {
    /// Returns the format of files. Fails for generated rows, which `what` does not have.
    pub fn of_files(self, what: &str) -> Result<DataFormat> {
        match self {
            RawFormat::Files(format) => Ok(format),
            RawFormat::Made => {
                Err(Error::unsupported(format!("{what} is not supported with generated rows"))
                    .help("write them to files: fleet data make ctr FOLDER --format csv"))
            }
        }
    }
}

/// Returns the format of the files, or that of generated rows.
pub fn format_of(data: &DataPart, columns: &[ColumnPart], first: &Path) -> Result<RawFormat> {
    if made::is_made(first) {
        return Ok(RawFormat::Made);
    }
    file_format(data, columns, first).map(RawFormat::Files)
}

fn file_format(data: &DataPart, columns: &[ColumnPart], first: &Path) -> Result<DataFormat> {
    let separator = data.separator.bytes().next().unwrap_or(b',');
    let csv = || DataFormat::Csv { separator, header: CsvHeader::FirstLine };
    Ok(match data.format.as_str() {
        "csv" => csv(),
        "criteo" => DataFormat::Criteo,
        "parquet" => DataFormat::Parquet,
        "jsonl" => DataFormat::JsonLines,
        "tfrecord" => DataFormat::TfRecord,
        "multislot" => {
            let names = columns.iter().map(|column| column.source.clone()).collect();
            DataFormat::MultiSlot { names }
        }
        _ => match DataFormat::of_name(first) {
            Ok(DataFormat::Csv { separator: b',', .. }) => csv(),
            Ok(format) => format,
            Err(error) => return Err(error.or_help("set data.format")),
        },
    })
}

/// The raw columns of some files.
pub struct Raw {
    files: Arc<dyn RecordFormat>,
    /// Where each column is.
    pub names: RawNames,
    /// Number of rows that may be left out because of their labels.
    pub bad_rows_max: u64,
    /// The texts of categories, if they are wanted.
    pub texts: Option<Arc<TextDictionary>>,
}

/// Memory for the texts of the values of slices, and of users and items.
const TEXTS_BYTES: usize = 256 << 20;

impl Raw {
    /// Prepares to read the columns of a job that `which` selects. `keeps_texts` keeps the texts of
    /// categories, which takes time.
    pub fn new(
        job: &Job,
        origin: &Origin,
        format: RawFormat,
        keeps_texts: bool,
        which: impl Fn(&ColumnPart) -> bool,
    ) -> Result<Raw> {
        let columns: Vec<&ColumnPart> = job.columns.iter().filter(|column| which(column)).collect();
        let specs = columns.iter().map(|column| spec(column));
        let texts = keeps_texts.then(|| Arc::new(TextDictionary::new(columns.len(), TEXTS_BYTES)));
        let observer = texts.clone().map(|texts| texts as Arc<dyn TextObserver>);
        let files: Arc<dyn RecordFormat> = match format {
            RawFormat::Made => Arc::new(MadeRows::new(&origin.clicks()?, specs, observer)?),
            RawFormat::Files(format) => {
                let files = origin.open(ColumnFiles::new(format, specs)?);
                let files = files.missing(&job.data.missing)?.bad_rows(bad_rows(job, origin)?);
                Arc::new(observer.into_iter().fold(files, ColumnFiles::observe_texts))
            }
        };
        Ok(Raw {
            files,
            names: RawNames(columns.iter().map(|column| column.name.clone()).collect()),
            bad_rows_max: job.data.bad_rows_max,
            texts,
        })
    }

    /// Returns the text of a category, of which the texts are kept.
    pub fn text(&self, at: usize, hash: u64) -> Result<String> {
        let texts = self.texts.as_ref();
        texts.and_then(|texts| texts.text(at, hash)).ok_or_else(|| {
            Error::exhausted("the texts of users or items do not fit into their memory")
                .expected(format!("at most {} MB", TEXTS_BYTES >> 20))
                .help("use shorter names, such as numbers")
        })
    }

    /// Returns the format for one pass over the files, which counts its own bad rows.
    pub fn pass(&self) -> Arc<dyn RecordFormat> {
        self.files.for_pass().unwrap_or_else(|| Arc::clone(&self.files))
    }

    /// Returns a block without rows.
    pub fn block(&self) -> Block {
        Block::new(self.files.schema())
    }
}

fn bad_rows(job: &Job, origin: &Origin) -> Result<BadRows> {
    let bad = BadRows::at_most(job.data.bad_rows_max).share(job.data.bad_share_max)?;
    let kept = job.data.bad_rows_kept.iter();
    Ok(kept.fold(bad, |bad, path| bad.keep(origin.path(path))))
}

/// Returns the column of files that a column of a job names.
pub fn spec(column: &ColumnPart) -> ColumnSpec {
    match column.kind {
        ColumnKind::Number => ColumnSpec::number(&column.source),
        ColumnKind::Category => match column.category.rows {
            Some(rows) => ColumnSpec::row(&column.source, rows),
            None => ColumnSpec::category(&column.source),
        },
        ColumnKind::Categories => ColumnSpec::categories(&column.source, &column.separator),
        ColumnKind::Time => ColumnSpec::time(&column.source),
    }
}
