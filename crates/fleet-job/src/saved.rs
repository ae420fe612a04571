//! The model folder: what a training leaves, and what scores rows.
//!
//! ```text
//! model/job.toml        the job file
//! model/features.json   the fitted features
//! model/program/        the program and its parameters, or a save of servers
//! model/report.json     the measures of the finished model
//! model/report.html     the same as a page with charts
//! model/scalars.csv     the measures during the training
//! model/version.json    the version, with sums of the other files; written last
//! ```

use crate::check::check;
use crate::features::{self, Applied, Features, Meaning};
use crate::file;
use crate::job::{ColumnPart, Job, Role, Side};
use crate::lanes::Lanes;
use crate::origin::{self, Origin};
use crate::raw::{Raw, RawFormat};
use crate::version::{self, Version};
pub use crate::version::{FEATURES_FILE, JOB_FILE, PROGRAM_FOLDER};
use fleet::ExecOptions;
use fleet::ir::Program;
use fleet::ops::Services;
use fleet_base::file::{make_folder, write_file};
use fleet_base::{Error, Result};
use fleet_data::Batch;
use std::path::Path;
use std::sync::Arc;

/// File of the report.
pub const REPORT_FILE: &str = "report.json";
/// File of the report as a page.
pub const HTML_FILE: &str = "report.html";
/// Folder of checkpoints during the training.
pub const CHECKPOINTS_FOLDER: &str = "checkpoints";

/// Rows of a batch that is scored.
pub const SCORE_ROWS: usize = 4096;

/// Writes the job and its features into a model folder. Readers wait until the program is written,
/// too, and [`version::finish`] is called.
pub fn save_job(folder: &Path, text: &str, features: &Features) -> Result<()> {
    make_folder(folder)?;
    version::begin(folder)?;
    write_file(&folder.join(JOB_FILE), text.as_bytes())?;
    features::save(features, &folder.join(FEATURES_FILE))
}

/// A trained model that scores rows. A row has the same scores in any batch, bit for bit.
pub struct SavedModel {
    /// The job.
    pub job: Arc<Job>,
    /// The fitted features.
    pub features: Arc<Features>,
    /// The version of the folder.
    pub version: Version,
    program: Arc<Program>,
    targets: Vec<String>,
    /// The programs of the vectors of users and items, once they are used.
    towers: [Option<Program>; 2],
    lanes: Lanes,
}

impl SavedModel {
    /// Opens a model folder. Rows are scored by as many threads as the options say. If a training
    /// is just replacing the model, waits for it.
    pub fn open(folder: &Path, options: ExecOptions) -> Result<SavedModel> {
        SavedModel::open_with(folder, options, |_| Ok(())).map(|(model, ())| model)
    }

    /// Like [`SavedModel::open`], with a function that reads other files of the same version.
    pub fn open_with<T>(
        folder: &Path,
        options: ExecOptions,
        others: impl Fn(&SavedModel) -> Result<T>,
    ) -> Result<(SavedModel, T)> {
        origin::check_local("a model folder", folder)?;
        if !folder.join(JOB_FILE).is_file() || !folder.join(FEATURES_FILE).is_file() {
            return Err(Error::invalid("not a model folder")
                .expected(format!(
                    "a folder with {JOB_FILE}, {FEATURES_FILE} and {PROGRAM_FOLDER}/"
                ))
                .got(folder.display())
                .help("name the folder that a job wrote (output.folder)"));
        }
        version::read_whole(folder, |version| {
            let model = SavedModel::read(folder, version, &options)?;
            let others = others(&model)?;
            Ok((model, others))
        })
    }

    fn read(folder: &Path, version: &Version, options: &ExecOptions) -> Result<SavedModel> {
        let (text, _) = file::read(&folder.join(JOB_FILE))?;
        let (job, problems) = check(&text);
        crate::problems::fail_on_errors(&problems)?;
        let features = Arc::new(features::load(&folder.join(FEATURES_FILE))?);
        let model = fleet::load_inference_model(folder.join(PROGRAM_FOLDER))?;
        let services = match &model.tables {
            Some(tables) => Services::none().with_tables(Arc::clone(tables)),
            None => Services::none(),
        };
        Ok(SavedModel {
            job: Arc::new(job),
            features,
            version: version.clone(),
            program: Arc::new(model.program),
            targets: model.targets,
            towers: [None, None],
            lanes: Lanes::new(model.scope, services, options),
        })
    }

    /// Returns the same model for another thread, which scores with one thread. Parameters are in
    /// memory once.
    pub fn share(&mut self) -> SavedModel {
        SavedModel {
            job: Arc::clone(&self.job),
            features: Arc::clone(&self.features),
            version: self.version.clone(),
            program: Arc::clone(&self.program),
            targets: self.targets.clone(),
            towers: [None, None],
            lanes: self.lanes.share(),
        }
    }

    /// Returns the names of the variables with the scores, and with the vectors of two towers.
    pub fn targets(&self) -> &[String] {
        &self.targets
    }

    /// Returns the number of threads that score rows.
    pub fn threads(&self) -> usize {
        self.lanes.count()
    }

    /// Returns the number of scores of a row.
    pub fn scores(&self) -> usize {
        self.features.scores()
    }

    /// Returns whether the label is a class.
    pub fn has_classes(&self) -> bool {
        matches!(self.features.label.meaning, Meaning::Classes(_))
    }

    /// Prepares to read the columns that the features need, from files of a format. Rows that
    /// cannot be read are errors.
    pub fn raw(&self, origin: &Origin, format: RawFormat) -> Result<Raw> {
        let mut job = Job::clone(&self.job);
        (job.data.bad_rows_max, job.data.bad_rows_kept) = (0, None);
        Raw::new(&job, origin, format, false, |column| self.reads(column))
    }

    /// Returns whether the features need a column.
    pub fn reads(&self, column: &ColumnPart) -> bool {
        let crosses = &self.job.crosses;
        column.role == Role::Feature
            || crosses.iter().any(|cross| cross.columns.contains(&column.name))
    }

    /// Prepares the features for rows without labels.
    pub fn apply(&self, raw: &Raw) -> Result<Arc<Applied>> {
        Ok(Arc::new(Applied::new(&self.features, &raw.names, false)?))
    }

    /// Returns the scores of a batch, row after row.
    pub fn score(&mut self, batch: &Batch) -> Result<&[f32]> {
        let target = self.targets.first().ok_or_else(|| Error::internal("no scores"))?;
        self.lanes.run(&self.program, target, batch)
    }

    /// Returns the vectors of users or items of a batch, row after row, of a model with two towers.
    pub fn vectors(&mut self, side: Side, batch: &Batch) -> Result<&[f32]> {
        let at = match side {
            Side::User => 0,
            Side::Item => 1,
        };
        let no_vectors = || Error::internal("the model has no vectors");
        let target = self.targets.get(1 + at).ok_or_else(no_vectors)?;
        let program = match &mut self.towers[at] {
            Some(program) => program,
            // Without the other tower, whose inputs may be missing.
            none => none.insert(self.program.prune(&[self.program.var_named(target)?])),
        };
        self.lanes.run(program, target, batch)
    }
}
