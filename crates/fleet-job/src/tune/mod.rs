//! `fleet tune`: trains many variants of a job, and keeps the best one.
//!
//! Successive halving: all trials train for a ninth of the job's steps, the best third of them up
//! to a third of the steps, and the best third of those to the end. Each stage resumes from the
//! checkpoints of the one before, so nothing is trained twice. The validation decides; the test
//! rows are measured once, with the best trial's model.
//!
//! Files are read and features fitted once for all trials that have the same columns and crosses.
//! A trial with other bins or another width of embeddings has other inputs, so its rows are made
//! anew.
//!
//! The trials of a stage do not depend on each other. Several threads may train them (`stage.rs`),
//! each with rows of its own; the results are the same for any number of them.

mod results;
pub(crate) mod space;
mod stage;

use self::results::Results;
use self::space::{Searched, Trial};
use self::stage::LastRows;
use crate::check::check;
use crate::file::{self, Text, View};
use crate::job::Job;
use crate::lines::Lines;
use crate::origin::{self, Origin};
use crate::problems::fail_on_errors;
use crate::saved::CHECKPOINTS_FOLDER;
use crate::threads::Threads;
use crate::train::collective::{Length, RankModel};
use crate::train::{Prepared, RunFlags, TrainPlan, prepare};
use clap::Args;
use fleet::strategy::StrategySource;
use fleet::trainer::{Ended, Every, StopFlag};
use fleet::{DistributedStrategy, ExecOptions, Fleet};
use fleet_base::file::{make_folder, write_file};
use fleet_base::output::{ExitReason, Output, error_line};
use fleet_base::sync::lock;
use fleet_base::{Error, Result, text};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Searches the best job.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct TuneArgs {
    /// Job file with a table [tune], as FILE or job:FILE
    pub file: PathBuf,
    /// Number of different jobs to try
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        value_parser = clap::value_parser!(u16).range(1..=10_000),
    )]
    pub trials: u16,
    /// Seed of the values that are tried
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// CSV file for the results, instead of results.csv beside the job file
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Folder for the best model, instead of output.folder
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Number of trials that are trained at the same time, each with its share of the threads and
    /// rows of its own in memory
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256),
    )]
    pub parallel: u16,
    #[command(flatten)]
    pub threads: Threads,
    /// Remove the trials of an earlier search, and begin again
    #[arg(long)]
    pub fresh: bool,
}

/// Trials are divided by this number at each stage, and their steps multiplied by it.
const FACTOR: usize = 3;
/// Stages: at least a ninth of the steps is needed to compare trials.
const STAGES_MAX: usize = 3;
/// Validations of a whole training: enough for all stages. A job whose epochs are fewer is
/// validated more often than once an epoch.
const VALIDATIONS: u64 = 9;
/// The best job file, beside the job file.
const BEST_FILE: &str = "best.toml";

/// Runs the command.
pub fn run(args: &TuneArgs, fleet: &Fleet, out: &mut Output) -> Result<(), ExitReason> {
    tune(args, fleet, &mut Lines::Output(out))
}

/// Like [`run`], with lines that may go elsewhere.
pub fn tune(args: &TuneArgs, fleet: &Fleet, out: &mut Lines<'_>) -> Result<(), ExitReason> {
    let mut search = Search::new(args, fleet)?;
    search.describe(out)?;
    for stage in 0..search.trials.stages.len() {
        search.run_stage(stage, out)?;
        search.drop_others(stage)?;
    }
    search.finish(out)
}

/// A search in progress.
struct Search<'f> {
    trials: Trials<'f>,
    results: Results,
    results_file: PathBuf,
    /// Folder of the best model.
    folder: PathBuf,
    /// Trials that are trained at the same time.
    parallel: usize,
    /// The rows of each of the threads that train them.
    rows: Vec<LastRows>,
    threads: Threads,
}

/// The trials of a search, which threads share.
struct Trials<'f> {
    fleet: &'f Fleet,
    /// The job file, and the folder that its names are relative to.
    file: PathBuf,
    origin: Origin,
    /// Folder of the trials.
    work: PathBuf,
    fields: Vec<Searched>,
    all: Vec<Trial>,
    /// Number of trials of each stage.
    stages: Vec<usize>,
    strategy: DistributedStrategy,
    strategy_source: Option<StrategySource>,
    /// Stops the trainings, as by SIGTERM.
    stop: StopFlag,
    /// The data that was read last, with the parts of the job that it follows from.
    prepared: Mutex<Option<(String, Prepared)>>,
}

impl<'f> Search<'f> {
    fn new(args: &TuneArgs, fleet: &'f Fleet) -> Result<Search<'f>> {
        let named = args.file.to_str().and_then(|name| name.strip_prefix("job:"));
        let file = named.map_or_else(|| args.file.clone(), PathBuf::from);
        let (text, source) = file::read(&file)?;
        let (job, problems) = check(&text);
        problems.iter().filter(|problem| !problem.is_error()).for_each(error_line);
        fail_on_errors(&problems)?;
        let (fields, _) = space::searched(&text.root);
        let needs =
            |what: &str, help: &str| Err(Error::invalid(what).at(file.display()).help(help));
        if fields.is_empty() {
            return needs(
                "the job file has no fields to search",
                "add a table [tune], such as \"train.optimizer.rate\" = { log = [1e-4, 1e-2] }",
            );
        }
        if job.data.validation.is_none() {
            return needs(
                "a search needs validation rows",
                "set data.validation, such as { share = 0.1 }",
            );
        }
        let origin = Origin::new(file.parent().unwrap_or(Path::new("")), fleet.env())?;
        let folder = args.output.clone().unwrap_or_else(|| origin.path(&job.folder));
        origin::check_local("a model folder", &folder)?;
        let work = work_folder(&folder);
        if args.fresh && work.exists() {
            remove(&work)?;
        }
        let mut strategy = DistributedStrategy::new();
        let mut strategy_source = None;
        if let Some(file) = &job.strategy {
            let (source, warnings) = strategy.load_with_source(origin.path(file))?;
            warnings.iter().for_each(error_line);
            strategy_source = Some(source);
        }
        let is_valid = |root: &[file::Entry]| {
            let text = Text { file: file.clone(), root: root.to_vec(), problems: Vec::new() };
            check(&text).1.iter().all(|problem| !problem.is_error())
        };
        let count = usize::from(args.trials);
        let all = space::trials(&text.root, &fields, count, args.seed, is_valid);
        if all.is_empty() {
            return needs("no combination of the values is a valid job", "fleet job check FILE");
        }
        let key =
            format!("{:08x}-{}-{}", crc32fast::hash(source.as_bytes()), args.seed, args.trials);
        let trials = Trials {
            fleet,
            stages: stages(all.len()),
            file,
            origin,
            work,
            fields,
            all,
            strategy,
            strategy_source,
            stop: StopFlag::on_terminate()?,
            prepared: Mutex::default(),
        };
        Ok(Search {
            results: Results::open(&trials.work, &key, job.goal())?,
            results_file: args.out.clone().unwrap_or_else(|| trials.origin.path("results.csv")),
            trials,
            folder,
            parallel: usize::from(args.parallel),
            rows: (0..args.parallel).map(|_| None).collect(),
            threads: args.threads,
        })
    }

    fn describe(&self, out: &mut Lines<'_>) -> Result<(), ExitReason> {
        let trials = &self.trials;
        let stages: Vec<String> = trials.stages.iter().map(usize::to_string).collect();
        let parallel = match self.parallel {
            1 => String::new(),
            count => format!("; {count} at the same time"),
        };
        out.line(format!(
            "{}: {} over {}, in stages of {}{parallel}",
            trials.file.display(),
            text::counted(trials.all.len(), "trial"),
            text::counted(trials.fields.len(), "field"),
            stages.join(", "),
        ))?;
        if self.results.done() > 0 {
            let done = text::counted(self.results.done(), "result");
            out.line(format!("resumed with {done} of {}", trials.work.display()))?;
        }
        Ok(())
    }

    /// Returns the trials of a stage. Those with the same rows follow each other.
    fn chosen(&self, stage: usize) -> Vec<usize> {
        let mut chosen: Vec<usize> = match stage {
            0 => (0..self.trials.all.len()).collect(),
            stage => self.results.best(stage - 1),
        };
        chosen.truncate(self.trials.stages[stage]);
        let mut keyed: Vec<(String, usize)> =
            chosen.into_iter().map(|trial| (rows_key(&self.trials.job(trial)), trial)).collect();
        keyed.sort();
        keyed.into_iter().map(|(_, trial)| trial).collect()
    }

    /// Removes the checkpoints of trials that will not go on.
    fn drop_others(&self, stage: usize) -> Result<()> {
        let next = self.trials.stages.get(stage + 1).copied().unwrap_or(1);
        for trial in self.results.best(stage).into_iter().skip(next) {
            let folder = self.trials.folder(trial);
            if folder.exists() {
                remove(&folder)?;
            }
        }
        Ok(())
    }

    /// Shows the table, and saves and measures the best model.
    fn finish(self, out: &mut Lines<'_>) -> Result<(), ExitReason> {
        let best = self.results.ranked().first().filter(|it| it.value.is_some()).cloned();
        let Some(best) = best else {
            let error = Error::invalid("no trial has a result").at(self.results_file.display());
            let first = self.results.ranked().first().map(|it| it.error.clone());
            return Err(error.got(first.unwrap_or_default()).into());
        };
        let trials = &self.trials;
        let (names, values) = trials.fields();
        write_file(&self.results_file, self.results.csv(&names, &values).as_bytes())?;
        out.line("")?;
        self.results.table(&names, &values).into_iter().try_for_each(|line| out.line(line))?;
        out.line("")?;

        let mut plan = trials.plan(best.trial, self.threads.options())?;
        let trial_folder = std::mem::replace(&mut plan.folder, self.folder.clone());
        make_folder(&plan.folder)?;
        for name in ["scalars.csv", "scalars.jsonl"] {
            let (from, to) = (trial_folder.join(name), plan.folder.join(name));
            std::fs::copy(&from, &to).map_err(|error| Error::io("copy", &from, &error))?;
        }
        let mut model = RankModel::new(&plan, trials.fleet)?;
        let key = rows_key(&plan.job);
        let known = self.rows.into_iter().flatten().find(|(known, _)| *known == key);
        let mut rows = known.map_or_else(|| model.rows(&plan), |(_, rows)| Ok(rows))?;
        // It has made these steps: the training resumes from its checkpoint, and ends.
        let (_, every) = trials.length(&plan, trials.stages.len() - 1);
        let length = Length { steps: Some(best.steps), every: Some(every) };
        let trained = model.train(&plan, trials.fleet, &mut rows, length, &trials.stop)?;
        drop(rows);
        if trained.ended == Ended::Requested {
            return Err(ExitReason::Terminated);
        }
        model.finish(&plan, trials.fleet, &trained)?;
        plan.trained(&trained, trained.seconds, out)?;
        plan.report(&trained, out)?;
        let best_file = trials.origin.path(BEST_FILE);
        write_file(&best_file, plan.source.as_bytes())?;
        out.line(format!("{:<12}{} (trial {})", "best job", best_file.display(), best.trial + 1))?;
        out.line(format!("{:<12}{}", "results", self.results_file.display()))?;
        remove(&trials.work)?;
        Ok(())
    }
}

impl Trials<'_> {
    fn job(&self, trial: usize) -> Job {
        Job::of(View::root(&self.all[trial].root))
    }

    fn folder(&self, trial: usize) -> PathBuf {
        self.work.join(format!("trial-{:04}", trial + 1))
    }

    /// Returns the names of the fields, and their values in each trial.
    fn fields(&self) -> (Vec<&str>, Vec<&[String]>) {
        let names = self.fields.iter().map(|field| field.path.as_str()).collect();
        (names, self.all.iter().map(|trial| &trial.values[..]).collect())
    }

    /// Returns the last step of a stage and the interval of validations.
    fn length(&self, plan: &TrainPlan, stage: usize) -> (u64, Every) {
        let train = &plan.job.train;
        let epoch = plan.steps_per_epoch(1, train.batch);
        let total = train.epochs * epoch;
        let interval = match plan.job.evaluation.every_steps {
            Some(steps) => steps,
            None if train.epochs >= VALIDATIONS => epoch,
            None => total.div_ceil(VALIDATIONS),
        };
        let rest = (self.stages.len() - 1 - stage) as u32;
        let share = (FACTOR as u64).pow(rest);
        let steps = match rest {
            0 => total,
            _ => ((total / interval / share).max(1) * interval).min(total),
        };
        (steps, Every::Steps(interval))
    }

    /// Prepares a trial, with the data of another one if that is the same.
    fn plan(&self, trial: usize, options: ExecOptions) -> Result<TrainPlan> {
        let root = self.all[trial].root.clone();
        let head = format!("# Trial {} of fleet tune {}\n", trial + 1, self.file.display());
        let source = head + &file::to_toml(&root);
        let job = self.job(trial);
        let text = Text { file: self.file.clone(), root, problems: Vec::new() };
        let prepared = self.prepared(&job, &text)?;
        let folder = self.folder(trial);
        let checkpoints = Some(folder.join(CHECKPOINTS_FOLDER));
        let (strategy, source_of) = (self.strategy.clone(), self.strategy_source.clone());
        Ok(TrainPlan {
            text,
            source,
            job,
            folder,
            is_kept: true,
            checkpoints,
            strategy,
            strategy_source: source_of,
            data: prepared.data,
            features: prepared.features,
            applied: prepared.applied,
            counts: prepared.counts,
            options,
            flags: RunFlags::default(),
            is_quiet: true,
        })
    }

    /// Reads the data of a job. Other threads wait meanwhile: they are likely to need the same.
    fn prepared(&self, job: &Job, text: &Text) -> Result<Prepared> {
        let mut last = lock(&self.prepared);
        let key = rows_key(job);
        if let Some((known, prepared)) = &*last
            && *known == key
        {
            return Ok(prepared.clone());
        }
        let prepared = prepare(job, &self.origin, text, &|_| {})?;
        *last = Some((key, prepared.clone()));
        Ok(prepared)
    }
}

/// Returns the number of trials of each stage.
fn stages(trials: usize) -> Vec<usize> {
    let mut stages = vec![trials];
    while let Some(last) = stages.last().copied()
        && last >= FACTOR
        && stages.len() < STAGES_MAX
    {
        stages.push(last.div_ceil(FACTOR));
    }
    stages
}

/// Returns the parts of a job that its rows and features follow from.
fn rows_key(job: &Job) -> String {
    let Job { data, columns, crosses, task, evaluation, .. } = job;
    format!("{data:?} {columns:?} {crosses:?} {task:?} {:?} {}", evaluation.slices, job.model.dim)
}

/// Returns the folder of the trials, beside that of the model.
fn work_folder(model: &Path) -> PathBuf {
    let mut name = model.file_name().unwrap_or_default().to_os_string();
    name.push("-tune");
    model.with_file_name(name)
}

fn remove(folder: &Path) -> Result<()> {
    std::fs::remove_dir_all(folder).map_err(|error| Error::io("remove", folder, &error))
}

#[cfg(test)]
mod tests {
    use super::stages;

    #[test]
    fn each_stage_has_a_third() {
        assert_eq!(stages(20), [20, 7, 3]);
        assert_eq!(stages(3), [3, 1]);
        assert_eq!(stages(2), [2]);
        assert_eq!(stages(1000), [1000, 334, 112]);
    }
}
