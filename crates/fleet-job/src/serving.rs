//! A model that scores the rows of requests, for servers: the same columns, features and program
//! as [`predict`](crate::predict), so that a row has the same scores, bit for bit. A retrieval also
//! recommends items, like [`recommend`](crate::recommend).

mod recommend;

use crate::catalogue::{Catalogue, CatalogueOptions};
use crate::features::{Applied, Meaning, Scratch};
use crate::file;
use crate::job::{ColumnKind, ColumnPart, Job, TaskKind};
use crate::origin::Origin;
use crate::raw::{RawNames, spec};
use crate::recommend::SearchWay;
use crate::saved::{JOB_FILE, REPORT_FILE, SavedModel};
use crate::threads::Threads;
use crate::vectors::check_version;
use crate::version;
use fleet::ExecOptions;
use fleet_base::{Error, Result, input};
use fleet_data::{Batch, Block, RequestRows, RowRef};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use self::recommend::Towers;
pub use self::recommend::{Recommended, Recommender, Wanted};
pub use crate::recommend::no_items;
pub use crate::version::Version;
pub use fleet::topology::Env;
pub use fleet_data::{RequestColumn, RequestError};

/// How a model recommends.
#[derive(Clone)]
pub struct RecommendOptions {
    /// How items are found.
    pub search: SearchWay,
    /// Files with users and items that are left out.
    pub exclude: Vec<String>,
    origin: Origin,
    threads: usize,
}

impl RecommendOptions {
    /// The files may be in object stores, which are reached by the variables of `env`. `threads`
    /// build an index if the model has none.
    pub fn new(
        search: SearchWay,
        exclude: &[String],
        env: &Env,
        threads: Threads,
    ) -> Result<RecommendOptions> {
        let (exclude, origin) = (exclude.to_vec(), Origin::new("", env)?);
        Ok(RecommendOptions { search, exclude, origin, threads: threads.started() })
    }
}

/// A model folder that was read, to be shared by threads.
pub struct ServedModel {
    folder: PathBuf,
    saved: Mutex<SavedModel>,
    applied: Arc<Applied>,
    rows: RequestRows,
    classes: Vec<String>,
    labels: Vec<String>,
    info: Value,
    version: u64,
    towers: Option<Arc<Towers>>,
}

impl ServedModel {
    /// Reads a model folder. Parameters are in memory once for all threads.
    pub fn open(folder: &Path, options: &RecommendOptions) -> Result<ServedModel> {
        let RecommendOptions { search, exclude, origin, threads } = options;
        let how = CatalogueOptions { search: *search, exclude, origin, threads: *threads };
        let (saved, catalogue) = Catalogue::open(folder, ExecOptions::threads(1), &how)?;
        if catalogue.is_none() && !exclude.is_empty() {
            return Err(crate::recommend::no_items().got(folder.display()).at("--exclude"));
        }
        let towers = catalogue.map(|catalogue| Towers::new(&saved, catalogue)).transpose()?;
        let towers = towers.map(Arc::new);
        let job = &saved.job;
        let (read, others): (Vec<_>, Vec<_>) =
            job.columns.iter().partition(|column| saved.reads(column));
        let columns = read.iter().map(|column| spec(column));
        let ignored = others.iter().map(|column| column.source.as_str());
        let rows = RequestRows::new(columns, &job.data.missing, ignored)?;
        let names = RawNames::new(read.iter().map(|column| column.name.clone()));
        let applied = Arc::new(Applied::new(&saved.features, &names, false)?);
        let classes = match &saved.features.label.meaning {
            Meaning::Classes(classes) => classes.clone(),
            _ => Vec::new(),
        };
        let labels = saved.features.label_names();
        let (version, info) = (saved.version.version, info(&saved, &read));
        let saved = Mutex::new(saved);
        let folder = folder.to_path_buf();
        Ok(ServedModel { folder, saved, applied, rows, classes, labels, info, version, towers })
    }

    /// Returns the version of the folder when it was read.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the version of the folder if it is complete and not this one. Its files may still be
    /// faulty.
    pub fn newer(&self) -> Option<Version> {
        let own = self.saved.lock().unwrap_or_else(PoisonError::into_inner).version.clone();
        // A file that cannot be read is likely to be replaced soon.
        let version = version::read(&self.folder).ok().flatten();
        version.filter(|version| {
            version.is_complete() && *version != own && has_vectors(&self.folder, version.version)
        })
    }

    /// Returns whether the model recommends items.
    pub fn recommends(&self) -> bool {
        self.towers.is_some()
    }

    /// Returns the name of a recommended item.
    pub fn item(&self, place: usize) -> &str {
        self.towers.as_ref().map_or("", |towers| towers.item(place))
    }

    /// Returns what recommends items in one thread, of a model that does.
    pub fn recommender(&self) -> Result<Option<Recommender>> {
        let Some(towers) = &self.towers else { return Ok(None) };
        let saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner).share();
        Recommender::new(saved, Arc::clone(towers)).map(Some)
    }

    /// Returns the classes of a task with several, in the order of the scores.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the names of several labels, in the order of the scores; none of a single one.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Returns the number of scores of a row.
    pub fn width(&self) -> usize {
        self.classes.len().max(self.labels.len()).max(1)
    }

    /// Describes the model: task, columns, version, and the measures of its report.
    pub fn info(&self) -> Value {
        let mut info = self.info.clone();
        // The training writes the report after the model.
        let path = self.folder.join(REPORT_FILE);
        let report = input::read(&path, "the report of a model", REPORT_BYTES_MAX).ok();
        let report = report.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        info["report"] = report.unwrap_or(Value::Null);
        info
    }

    /// Returns a scorer for one thread.
    pub fn scorer(&self) -> Result<RowScorer> {
        let saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner).share();
        let layout = self.applied.layout(false)?;
        Ok(RowScorer {
            saved,
            applied: Arc::clone(&self.applied),
            raw: Block::new(self.rows.schema()),
            rows: self.rows.clone(),
            slots: Block::new(self.applied.schema()),
            batch: Batch::new(&layout),
            refs: Vec::new(),
            scratch: Scratch::default(),
        })
    }
}

/// Returns whether the vectors of a retrieval are written, which a training does after the model.
fn has_vectors(folder: &Path, version: u64) -> bool {
    let task =
        file::read(&folder.join(JOB_FILE)).map(|(text, _)| crate::check::check(&text).0.task);
    // A faulty job file is an error when the model is opened.
    task.is_ok_and(|task| task != TaskKind::Retrieval) || check_version(folder, version).is_ok()
}

/// Rows with which a scorer is tried: all sizes of pieces.
const WARM_UP_ROWS: usize = 64;
const WARM_UP_STEP: usize = 8;
/// Limit of the report.
const REPORT_BYTES_MAX: u64 = 16 << 20;

/// Scores the rows of requests. Requests are added one after the other, and scored together.
pub struct RowScorer {
    saved: SavedModel,
    applied: Arc<Applied>,
    rows: RequestRows,
    raw: Block,
    slots: Block,
    batch: Batch,
    refs: Vec<RowRef>,
    scratch: Scratch,
}

impl RowScorer {
    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.slots.clear();
    }

    /// Adds the rows of a JSON body (see [`RequestRows::json`]), and returns their places among
    /// all. After an error, no row is added.
    pub fn add_json(&mut self, body: &[u8], rows_max: usize) -> Result<Range<usize>, RequestError> {
        self.raw.clear();
        self.rows.json(body, rows_max, &mut self.raw)?;
        self.add()
    }

    /// Adds the rows of a table (see [`RequestRows::table`]), like [`RowScorer::add_json`].
    pub fn add_table<'a>(
        &mut self,
        columns: impl IntoIterator<Item = (&'a str, RequestColumn<'a>)>,
        rows_max: usize,
    ) -> Result<Range<usize>, RequestError> {
        self.raw.clear();
        self.rows.table(columns, rows_max, &mut self.raw)?;
        self.add()
    }

    fn add(&mut self) -> Result<Range<usize>, RequestError> {
        let start = self.slots.len();
        for row in 0..self.raw.len() {
            let applied = self.applied.apply(&self.raw, row, &mut self.scratch, &mut self.slots);
            if let Err(error) = applied {
                self.slots.rollback();
                return Err(RequestError { row: Some(row), column: None, error });
            }
        }
        Ok(start..self.slots.len())
    }

    /// Scores rows without values, which makes the plans of most requests.
    pub fn warm_up(&mut self) -> Result<()> {
        for rows in (WARM_UP_STEP..=WARM_UP_ROWS).step_by(WARM_UP_STEP) {
            self.clear();
            let body = format!("{{\"rows\":[{}]}}", vec!["{}"; rows].join(","));
            self.add_json(body.as_bytes(), rows)?;
            self.score()?;
        }
        self.clear();
        Ok(())
    }

    /// Scores all rows, row after row.
    pub fn score(&mut self) -> Result<&[f32]> {
        if self.slots.is_empty() {
            return Ok(&[]);
        }
        self.refs.clear();
        let count = u32::try_from(self.slots.len())
            .map_err(|_| Error::exhausted("too many rows").got(self.slots.len()))?;
        self.refs.extend((0..count).map(|row| RowRef { block: 0, row }));
        self.batch.fill(&[&self.slots], &self.refs)?;
        self.saved.score(&self.batch)
    }
}

/// Describes a model without its report.
fn info(saved: &SavedModel, read: &[&ColumnPart]) -> Value {
    let job: &Job = &saved.job;
    let columns = read.iter().map(|column| {
        let kind = match column.kind {
            ColumnKind::Number => "number",
            ColumnKind::Category => "category",
            ColumnKind::Categories => "categories",
            ColumnKind::Time => "time",
        };
        json!({ "name": column.source, "kind": kind })
    });
    let classes = match &saved.features.label.meaning {
        Meaning::Classes(classes) => json!(classes),
        _ => Value::Null,
    };
    let labels = saved.features.label_names();
    // Several labels have no name together.
    let label = job.label().filter(|_| labels.is_empty());
    json!({
        "version": saved.version.version,
        "task": job.task.name(),
        "label": label.map(|column| column.source.as_str()),
        "labels": if labels.is_empty() { Value::Null } else { json!(labels) },
        "classes": classes,
        "columns": columns.collect::<Vec<_>>(),
        "training_rows": saved.features.rows,
        "recommends": saved.features.choices.as_ref().map(|choices| {
            json!({ "user": choices.user, "item": choices.item })
        }),
    })
}
