//! The model folder: what a training leaves, and what scores rows.
//!
//! ```text
//! model/job.toml        the job file
//! model/features.json   the fitted features
//! model/program/        the program and its parameters, or a save of servers
//! model/report.json     the measures of the finished model
//! model/report.html     the same as a page with charts
//! model/scalars.csv     the measures during the training
//! ```

use crate::check::check;
use crate::features::{self, Applied, Features};
use crate::file;
use crate::job::{ColumnPart, Job, Role, Side};
use crate::raw::Raw;
use fleet::ir::Program;
use fleet::ops::Services;
use fleet::{ExecOptions, Executor, InferenceModel, Tensor};
use fleet_base::file::{make_folder, write_file};
use fleet_base::{Error, Result};
use fleet_data::{Batch, DataFormat};
use std::path::Path;
use std::sync::Arc;

/// File of the job in a model folder.
pub const JOB_FILE: &str = "job.toml";
/// File of the features.
pub const FEATURES_FILE: &str = "features.json";
/// Folder of the program.
pub const PROGRAM_FOLDER: &str = "program";
/// File of the report.
pub const REPORT_FILE: &str = "report.json";
/// File of the report as a page.
pub const HTML_FILE: &str = "report.html";
/// Folder of checkpoints during the training.
pub const CHECKPOINTS_FOLDER: &str = "checkpoints";

/// Rows that are scored at once. The report and predictions use the same number.
pub const SCORE_ROWS: usize = 4096;

/// Writes the job and its features into a model folder.
pub fn save_job(folder: &Path, text: &str, features: &Features) -> Result<()> {
    make_folder(folder)?;
    write_file(&folder.join(JOB_FILE), text.as_bytes())?;
    features::save(features, &folder.join(FEATURES_FILE))
}

/// A trained model that scores rows.
pub struct SavedModel {
    /// The job.
    pub job: Job,
    /// The fitted features.
    pub features: Arc<Features>,
    model: InferenceModel,
    executor: Executor,
    /// The programs of the vectors of users and items, once they are used.
    towers: [Option<Program>; 2],
    out: Vec<Tensor>,
}

impl SavedModel {
    /// Opens a model folder.
    pub fn open(folder: &Path, options: ExecOptions) -> Result<SavedModel> {
        let job_file = folder.join(JOB_FILE);
        if !job_file.is_file() || !folder.join(FEATURES_FILE).is_file() {
            return Err(Error::invalid("not a model folder")
                .expected(format!(
                    "a folder with {JOB_FILE}, {FEATURES_FILE} and {PROGRAM_FOLDER}/"
                ))
                .got(folder.display())
                .help("name the folder that a job wrote (output.folder)"));
        }
        let (text, _) = file::read(&job_file)?;
        let (job, problems) = check(&text);
        crate::problems::fail_on_errors(&problems)?;
        let features = Arc::new(features::load(&folder.join(FEATURES_FILE))?);
        let model = fleet::load_inference_model(folder.join(PROGRAM_FOLDER))?;
        let services = match &model.tables {
            Some(tables) => Services::none().with_tables(Arc::clone(tables)),
            None => Services::none(),
        };
        let executor = Executor::new(options).services(services);
        Ok(SavedModel { job, features, model, executor, towers: [None, None], out: Vec::new() })
    }

    /// Returns the number of scores of a row.
    pub fn scores(&self) -> usize {
        self.features.label.scores()
    }

    /// Prepares to read the columns that the features need, from files of a format. Rows that
    /// cannot be read are errors.
    pub fn raw(&self, format: DataFormat) -> Result<Raw> {
        let mut job = self.job.clone();
        (job.data.bad_rows_max, job.data.bad_rows_kept) = (0, None);
        let crossed = |column: &ColumnPart| {
            self.job.crosses.iter().any(|cross| cross.columns.contains(&column.name))
        };
        Raw::new(&job, Path::new(""), format, false, |column| {
            column.role == Role::Feature || crossed(column)
        })
    }

    /// Prepares the features for rows without labels.
    pub fn apply(&self, raw: &Raw) -> Result<Arc<Applied>> {
        Ok(Arc::new(Applied::new(&self.features, &raw.names, false)?))
    }

    /// Returns the scores of a batch, row after row.
    pub fn score(&mut self, batch: &Batch) -> Result<&[f32]> {
        let feeds = batch.feeds();
        let wanted = |(name, _): &(&str, &Tensor)| self.model.feeds.iter().any(|feed| feed == name);
        let feeds: Vec<(&str, &Tensor)> = feeds.into_iter().filter(wanted).collect();
        // The vectors of a model with two towers follow.
        let fetch: Vec<&str> = self.model.targets.iter().take(1).map(String::as_str).collect();
        self.out = self.executor.run(&self.model.program, &mut self.model.scope, &feeds, &fetch)?;
        let scores = self.out.first().ok_or_else(|| Error::internal("no scores"))?;
        scores.as_slice::<f32>()
    }

    /// Returns the vectors of users or items of a batch, row after row, of a model with two towers.
    pub fn vectors(&mut self, side: Side, batch: &Batch) -> Result<&[f32]> {
        let at = match side {
            Side::User => 0,
            Side::Item => 1,
        };
        let no_vectors = || Error::internal("the model has no vectors");
        let target = self.model.targets.get(1 + at).ok_or_else(no_vectors)?;
        let program = match &mut self.towers[at] {
            Some(program) => program,
            // Without the other tower, whose inputs may be missing.
            none => {
                let program = &self.model.program;
                none.insert(program.prune(&[program.var_named(target)?]))
            }
        };
        let is_input = |name: &str| program.find_var(name).is_some();
        let feeds: Vec<(&str, &Tensor)> =
            batch.feeds().into_iter().filter(|(name, _)| is_input(name)).collect();
        self.out = self.executor.run(program, &mut self.model.scope, &feeds, &[target])?;
        self.out.first().ok_or_else(no_vectors)?.as_slice::<f32>()
    }
}
