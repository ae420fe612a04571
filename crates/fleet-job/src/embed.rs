//! Jobs for programs that embed them, such as the Python package: checks, training and scores
//! without a command line.

use crate::commands::check_file;
use crate::file;
use crate::job::Job;
use crate::lines::Lines;
use crate::made::is_made;
use crate::origin::Origin;
use crate::predict;
use crate::problems::fail_on_errors;
use crate::raw::RawFormat;
use crate::saved::SavedModel;
use crate::scoring::for_each_batch;
use crate::train::{self, TrainArgs};
use fleet::topology::Env;
use fleet::{ExecOptions, Fleet};
use fleet_base::output::ExitReason;
use fleet_base::{Error, Result};
use fleet_data::DataFormat;
use std::path::{Path, PathBuf};

/// Returns the variables of an environment that object stores are reached by, for a job of one
/// process that ignores all others.
pub fn store_settings(env: &Env) -> Env {
    let mut settings = Env::new();
    let is_setting = |name: &str| SETTINGS.iter().any(|prefix| name.starts_with(prefix));
    for (name, value) in env.iter().filter(|(name, _)| is_setting(name)) {
        settings.set(name, value);
    }
    settings
}

/// Starts of the names of the settings of object stores.
const SETTINGS: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// Checks a job file, and up to `rows` rows of its data. Returns the warnings; errors are one
/// error, each on a line with its place.
pub fn check(file: &Path, env: &Env, rows: u64) -> Result<Vec<String>> {
    let (problems, _) = check_file(file, env, rows)?;
    fail_on_errors(&problems)?;
    Ok(problems.iter().map(ToString::to_string).collect())
}

/// Returns the model folder that a job file names.
pub fn folder(file: &Path) -> Result<PathBuf> {
    let (text, _) = file::read(file)?;
    fail_on_errors(&text.problems)?;
    let job = Job::of(file::View::root(&text.root));
    Ok(file.parent().unwrap_or(Path::new("")).join(job.folder))
}

/// Trains a job in this process. `call` gets the lines of the report.
pub fn train(
    args: &TrainArgs,
    fleet: &Fleet,
    call: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    match train::train(args, fleet, &mut Lines::Call(call)) {
        Ok(()) | Err(ExitReason::ReaderClosed) => Ok(()),
        Err(ExitReason::Failed(error)) => Err(error),
        Err(ExitReason::Terminated) => Err(Error::unavailable("the training was stopped")
            .help("call it again to resume from its checkpoint")),
    }
}

/// Scores of rows.
pub struct Scores {
    /// Scores, row after row.
    pub values: Vec<f32>,
    /// Number of scores of a row.
    pub width: usize,
}

/// Scores the rows of files with a model folder. Their format is that of the job's data, or the one
/// that their names stand for.
pub fn predict(
    folder: &Path,
    env: &Env,
    files: &[String],
    is_by_name: bool,
    threads: usize,
) -> Result<Scores> {
    let mut model = SavedModel::open(folder, ExecOptions::threads(threads))?;
    let first = files.first().filter(|file| is_by_name && !is_made(file));
    let format = first.map(|file| DataFormat::of_name(Path::new(file)).map(RawFormat::Files));
    let format = format.transpose()?;
    let dataset = predict::open(&model, &Origin::new("", env)?, files, format)?;
    let (width, mut values) = (model.scores(), Vec::new());
    for_each_batch(&mut model, &dataset, |scores, _| {
        values.extend_from_slice(scores);
        Ok(())
    })?;
    Ok(Scores { values, width })
}
