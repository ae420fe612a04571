//! The raw columns of a job: which files, which format, and where a column is in a block.

use crate::job::{ColumnKind, ColumnPart, DataPart, Job};
use crate::origin::Origin;
use fleet_base::{Error, Result, text};
use fleet_data::{
    BadRows, Block, ColumnFiles, ColumnSpec, CsvHeader, DataFormat, RecordFormat, TextDictionary,
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

/// Returns the format of the files.
pub fn format_of(data: &DataPart, columns: &[ColumnPart], first: &Path) -> Result<DataFormat> {
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
        format: DataFormat,
        keeps_texts: bool,
        which: impl Fn(&ColumnPart) -> bool,
    ) -> Result<Raw> {
        let columns: Vec<&ColumnPart> = job.columns.iter().filter(|column| which(column)).collect();
        let files = ColumnFiles::new(format, columns.iter().map(|column| spec(column)))?;
        let files = origin.open(files);
        let mut bad = BadRows::at_most(job.data.bad_rows_max).share(job.data.bad_share_max)?;
        if let Some(path) = &job.data.bad_rows_kept {
            bad = bad.keep(origin.path(path));
        }
        let mut files = files.missing(&job.data.missing)?.bad_rows(bad);
        let texts = keeps_texts.then(|| Arc::new(TextDictionary::new(columns.len(), TEXTS_BYTES)));
        if let Some(texts) = &texts {
            files = files.observe_texts(texts.clone());
        }
        Ok(Raw {
            files: Arc::new(files),
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

/// Returns the column of files that a column of a job names.
pub fn spec(column: &ColumnPart) -> ColumnSpec {
    match column.kind {
        ColumnKind::Number => ColumnSpec::number(&column.source),
        ColumnKind::Category => ColumnSpec::category(&column.source),
        ColumnKind::Categories => ColumnSpec::categories(&column.source, &column.separator),
        ColumnKind::Time => ColumnSpec::time(&column.source),
    }
}
