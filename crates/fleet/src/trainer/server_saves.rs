//! Checkpoints of a job with parameter servers: the tables, and each worker's state, all at one
//! step.
//!
//! ```text
//! step-000000000400/
//!   000/ 001/ ...       parts of the tables, which the servers save
//!   worker/             variables of the first worker that are in no table
//!   worker-00000/ ...   state of each worker: variables, and its position in the data
//!   done                steps of each worker; written last
//! ```
//!
//! Workers wait for each other before the save and after it. Before, each sends all its gradients.
//! In GEO it sends its difference; then the tables are the mean of the workers' copies, and a
//! resumed worker begins with that. After the save, the first worker writes the file `done`. A
//! folder without it was left by a job that died during the save, and is skipped.

use super::server_barriers::{has_passed, wait};
use super::server_progress::{PROGRESS_FILE, ServerProgress};
use super::source::Source;
use super::state::{Start, State, state_at};
use crate::servers::{Worker, worker_var_names};
use crate::{CheckpointPolicy, Resumed};
use fleet_base::file::make_folder;
use fleet_base::output::note;
use fleet_base::{Error, ErrorKind, Result};
use fleet_format::{Meta, list_tensors, load_tensors, save_tensors};
use fleet_ps::{SaveFormat, SaveMode, remote_url};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folder of the best model's checkpoint, in the folder of the others.
pub(super) const BEST: &str = "best";
/// New name of [`PROGRESS_FILE`] in a checkpoint that could not be loaded.
const DAMAGED_FILE: &str = "damaged";
const PREFIX: &str = "step-";
/// Barriers before the first step: before and after the workers read the checkpoint.
const BARRIERS_AT_START: u64 = 2;

/// Checkpoints of a worker's job.
pub(super) struct ServerSaves {
    folder: PathBuf,
    every: Option<u64>,
    keep_last: usize,
    /// Last step of the training, if workers do not agree on their steps as they go.
    last: Option<u64>,
    /// Whether each worker runs alone and knows the steps of saves only by their numbers.
    is_alone: bool,
    constants: Vec<(String, String)>,
    keeps_best: bool,
    own: usize,
    workers: usize,
    /// Step after which this run of the job began, and the sum of the steps that all workers had
    /// made by then.
    before: u64,
    pub before_of_all: u64,
    saved_step: Option<u64>,
}

/// Steps of a training, as its settings limit them.
pub(super) struct Limits {
    pub epochs: Option<u64>,
    pub steps: Option<u64>,
}

impl ServerSaves {
    pub fn open(
        worker: &Worker,
        (folder, policy): (&Path, &CheckpointPolicy),
        (keeps_best, constants): (bool, &[(String, String)]),
        is_in_team: bool,
        limits: Limits,
    ) -> Result<ServerSaves> {
        if let Some(url) = remote_url(folder)? {
            return Err(Error::unsupported("checkpoints in a remote folder are not supported")
                .expected("a folder that all processes see")
                .got(url)
                .help("save to it with Worker::save_persistables"));
        }
        policy.check()?;
        let workers = worker.servers().job().worker_count;
        let is_alone = workers > 1 && !is_in_team;
        if is_alone {
            check_limits(policy, &limits)?;
        }
        make_folder(folder)?;
        // Servers on this machine may have another working directory.
        let folder =
            std::path::absolute(folder).map_err(|error| Error::io("find", folder, &error))?;
        Ok(ServerSaves {
            folder,
            every: policy.every_steps,
            keep_last: policy.keep_last,
            last: limits.steps.filter(|_| is_alone),
            is_alone,
            constants: constants.to_vec(),
            keeps_best,
            own: worker.servers().worker(),
            workers,
            before: 0,
            before_of_all: 0,
            saved_step: None,
        })
    }

    /// Returns whether workers may save at any step: they agree on it, or there is one worker.
    pub fn saves_at_any_step(&self) -> bool {
        !self.is_alone
    }

    /// Resumes from the newest checkpoint, or joins a training in progress. Returns `None` for a
    /// training that begins. All workers must call it.
    pub fn resume(
        &mut self,
        worker: &mut Worker,
        watched: usize,
        data: &dyn Source,
    ) -> Result<Option<Start>> {
        // A worker that is restarted before the first step resumes as the others do.
        let has_begun = match worker.job().plan.exchange.is_sync() {
            true => worker.can_resume(),
            false => has_passed(worker, BARRIERS_AT_START)?,
        };
        if has_begun {
            return self.join(worker, watched, data);
        }
        let mut skipped = Vec::new();
        // If the first worker was restarted meanwhile, its earlier process has loaded the
        // checkpoint.
        if self.own == 0 && !has_passed(worker, 1)? {
            skipped = self.load_newest(worker)?;
        }
        // Checkpoints that the first worker rejected are renamed by now.
        wait(worker, 1)?;
        let start = match checkpoints(&self.folder)?.pop() {
            None if skipped.is_empty() => None,
            None => {
                let (folder, reasons) = (self.folder.display(), skipped.join("; "));
                note(format_args!(
                    "no finished checkpoint in {folder}, starting from the beginning: {reasons}"
                ));
                None
            }
            Some((step, path)) => {
                let read = self.read(worker, (step, &path), watched, data);
                let (state, entries) = read.map_err(|error| error.at(path.display()))?;
                let resumed = Resumed {
                    step,
                    entries_of_ranks: vec![entries.clone()],
                    entries,
                    path,
                    skipped,
                    changed_constants: Vec::new(),
                };
                Some(Start { state, resumed: Some(resumed), has_joined: false })
            }
        };
        wait(worker, BARRIERS_AT_START)?;
        Ok(start)
    }

    /// Joins a training in progress, after this worker's last step that is in all tables.
    fn join(
        &mut self,
        worker: &mut Worker,
        watched: usize,
        data: &dyn Source,
    ) -> Result<Option<Start>> {
        if worker.can_resume() {
            self.set_variables(worker)?;
        }
        let Some(progress) = worker.resume()? else { return Ok(None) };
        self.before = progress.base;
        self.before_of_all = progress.base * self.workers as u64;
        let state = state_at(progress.complete, data, watched)?;
        Ok(Some(Start { state, resumed: None, has_joined: true }))
    }

    /// Sets the variables that are in no table, such as batch statistics, to those of this worker's
    /// newest part of a checkpoint: later ones are lost.
    fn set_variables(&self, worker: &mut Worker) -> Result<()> {
        let parts = checkpoints(&self.folder)?.into_iter().rev();
        let mut parts = parts.map(|(_, path)| worker_folder(&path, self.own));
        let Some(part) = parts.find(|part| part.exists()) else { return Ok(()) };
        let variables = load_tensors(part).map(|part| part.tensors);
        if let Err(error) = variables.and_then(|it| worker.set_variables(&it)) {
            // The others train on, and the tables are whole.
            note(format_args!("variables that are in no table start anew: {error}"));
        }
        Ok(())
    }

    /// Loads the newest complete checkpoint into the servers. If there is one, newer damaged ones
    /// are marked as such. Returns why others were skipped.
    fn load_newest(&self, worker: &mut Worker) -> Result<Vec<String>> {
        let mut all = checkpoints(&self.folder)?;
        let mut damaged: Vec<(PathBuf, Error)> = Vec::new();
        let mut newest = None;
        while let Some((step, path)) = all.pop() {
            let loaded = match described(&path, step) {
                Ok((done, entries)) => {
                    // A whole checkpoint of another job; an older one would not fit either.
                    let fits = done.steps_of(self.workers);
                    fits.and_then(|_| State::check_constants(&self.constants, &entries))
                        .map_err(|error| error.at(path.display()))?;
                    worker.load_persistables(&path).map(drop)
                }
                Err(error) => Err(error),
            };
            let Err(error) = loaded else {
                newest = Some(step);
                break;
            };
            let is_last = all.is_empty() || error.kind() != ErrorKind::Invalid;
            damaged.push((path, error));
            if is_last {
                return Err(damaged.swap_remove(0).1);
            }
            // An older checkpoint must not be loaded over parts of this one.
            for table in &worker.job().tables.tables {
                worker.servers().admin.clear(table.table_id())?;
            }
        }
        let mut skipped = Vec::new();
        for (path, error) in damaged {
            let done = path.join(PROGRESS_FILE);
            std::fs::rename(&done, path.join(DAMAGED_FILE))
                .map_err(|error| Error::io("rename", &done, &error))?;
            skipped.push(error.to_string());
        }
        for path in unfinished(&self.folder, newest)? {
            let path = path.display();
            skipped.push(format!("{path}: the save was not finished (no file `{PROGRESS_FILE}`)"));
        }
        Ok(skipped)
    }

    /// Reads this worker's part of a checkpoint, which is in the tables by now.
    fn read(
        &mut self,
        worker: &mut Worker,
        (step, path): (u64, &Path),
        watched: usize,
        data: &dyn Source,
    ) -> Result<(State, BTreeMap<String, String>)> {
        worker.reload()?;
        let (done, first) = described(path, step)?;
        let all = done.steps_of(self.workers)?;
        let own = all.get(self.own).copied().unwrap_or(step);
        (self.before, self.before_of_all) = (step, all.iter().sum());
        self.saved_step = Some(step);
        let (mut state, saved) = State::read(step, &first, self.workers, watched)?;
        // A worker that was lost when the others saved has no part.
        let has_part = own == step && saved == self.workers;
        let part = load_tensors(worker_folder(path, if has_part { self.own } else { 0 }))?;
        if has_part {
            state = State::read(step, &part.meta.entries, self.workers, watched)?.0;
        } else if own == step {
            state.position = data.redistribute(state.position, saved, self.workers);
        } else {
            state = state_at(own, data, watched)?;
        }
        worker.set_variables(&part.tensors)?;
        worker.session.scope.set_step(part.meta.step);
        worker.set_own_steps_done(step, own)?;
        Ok((state, part.meta.entries))
    }

    /// Returns the numbers of the barriers before and after the save of a step.
    fn barriers_of(&self, step: u64) -> (u64, u64) {
        let last = BARRIERS_AT_START + 2 * self.saves_up_to(step);
        (last.saturating_sub(1), last)
    }

    /// Returns the number of saves of this run up to a step.
    fn saves_up_to(&self, step: u64) -> u64 {
        let by_interval = self.every.map_or(0, |every| (step / every) - (self.before / every));
        let is_extra = |last: u64| {
            step >= last
                && last > self.before
                && !self.every.is_some_and(|every| last.is_multiple_of(every))
        };
        by_interval + u64::from(self.last.is_some_and(is_extra))
    }

    /// Returns the number of barriers that all workers have passed when they have made a step.
    pub fn barriers_up_to(&self, step: u64) -> u64 {
        BARRIERS_AT_START + 2 * self.saves_up_to(step.max(self.before))
    }

    /// Saves if the step is one of the policy's or the last one, or if `must` is true and workers
    /// may save at any step. Returns whether it did. All workers call it for the same steps.
    pub fn after_step(&mut self, state: &State, worker: &mut Worker, must: bool) -> Result<bool> {
        let step = state.step;
        let by_interval = self.every.is_some_and(|every| step.is_multiple_of(every));
        let is_due = step > self.before && (by_interval || Some(step) == self.last);
        if !(is_due || must && !self.is_alone) || self.saved_step == Some(step) || step == 0 {
            return Ok(false);
        }
        self.saved_step = Some(step);
        worker.flush()?;
        let progress = if self.is_alone && is_due {
            let (first, second) = self.barriers_of(step);
            wait(worker, first)?;
            // An earlier process of this worker may have saved, and died since.
            if has_passed(worker, second)? {
                return Ok(false);
            }
            let progress = self.save(&self.folder, state, worker)?;
            wait(worker, second)?;
            progress
        } else {
            worker.barrier()?;
            let progress = self.save(&self.folder, state, worker)?;
            worker.barrier()?;
            progress
        };
        if self.own == 0 {
            self.complete(&self.folder, &progress, self.keep_last)?;
        }
        Ok(true)
    }

    /// Saves the best model. The first worker alone does, since a save needs no other worker.
    pub fn best(&mut self, state: &State, worker: &mut Worker) -> Result<bool> {
        if !self.keeps_best || self.own != 0 {
            return Ok(false);
        }
        let folder = self.folder.join(BEST);
        make_folder(&folder)?;
        let progress = self.save(&folder, state, worker)?;
        self.complete(&folder, &progress, 1)?;
        Ok(true)
    }

    /// Saves this worker's part; the first worker also saves the tables. Returns the steps that
    /// the tables have, read before the save: once it has ended, other workers train on.
    fn save(&self, folder: &Path, state: &State, worker: &mut Worker) -> Result<ServerProgress> {
        let path = step_folder(folder, state.step);
        make_folder(&path)?;
        let progress = ServerProgress { step: state.step, steps: steps_of_all(worker)? };
        if self.own == 0 {
            // An earlier run may have left a checkpoint of this step.
            for name in [PROGRESS_FILE, DAMAGED_FILE] {
                remove_if_present(&path.join(name))?;
            }
            worker.save_flushed(&path, None, SaveMode::All, SaveFormat::Binary)?;
        }
        let scope = &worker.session.scope;
        let names = worker_var_names(worker.job(), &worker.session);
        let tensors = crate::save::collect_named(scope, &names)?;
        let entries = state.entries(self.workers, &self.constants);
        let meta = Meta { step: scope.step(), entries };
        let pairs = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
        save_tensors(worker_folder(&path, self.own), pairs, &meta)?;
        Ok(progress)
    }

    /// Completes a checkpoint, and removes all but the last ones.
    fn complete(&self, folder: &Path, progress: &ServerProgress, keep_last: usize) -> Result<()> {
        let step = progress.step;
        progress.write(&step_folder(folder, step))?;
        // Checkpoints of later steps were left by a run that has resumed from an earlier one.
        let mut all = checkpoints(folder)?;
        all.retain(|(other, _)| *other != step);
        let (earlier, later): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(other, _)| *other < step);
        let old = earlier.len().saturating_sub(keep_last - 1);
        for (_, path) in earlier.into_iter().take(old).chain(later) {
            // First mark it as incomplete; a folder that cannot be deleted is then harmless.
            let _ = std::fs::remove_file(path.join(PROGRESS_FILE));
            let _ = std::fs::remove_dir_all(path);
        }
        Ok(())
    }
}

/// Checks the limits of workers that do not agree on their steps. They meet at saves, so all of
/// them must make the same steps.
fn check_limits(policy: &CheckpointPolicy, limits: &Limits) -> Result<()> {
    let (what, expected) = match (policy.every_steps, limits.steps, limits.epochs) {
        (None, ..) => ("an interval in steps", "CheckpointPolicy::every_steps"),
        (_, None, _) | (.., Some(_)) => ("a number of steps", "Trainer::steps without epochs"),
        _ => return Ok(()),
    };
    Err(Error::invalid(format!(
        "checkpoints of workers that do not agree on their steps need {what}"
    ))
    .expected(expected)
    .help("workers of synchronous jobs with a validation or a stop flag agree on their steps"))
}

/// Reads the description of a checkpoint: the progress of all workers, and the first one's entries.
fn described(path: &Path, step: u64) -> Result<(ServerProgress, BTreeMap<String, String>)> {
    let done = ServerProgress::read(path, step)?;
    Ok((done, list_tensors(worker_folder(path, 0))?.1.entries))
}

/// Returns the complete checkpoints of a folder, by step.
fn checkpoints(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut all = folders(folder)?;
    all.retain(|(_, path)| path.join(PROGRESS_FILE).is_file());
    Ok(all)
}

/// Returns checkpoints after this step that lack a [`PROGRESS_FILE`] and were not reported yet.
fn unfinished(folder: &Path, newest: Option<u64>) -> Result<Vec<PathBuf>> {
    let ends =
        |path: &Path| [PROGRESS_FILE, DAMAGED_FILE].iter().any(|name| path.join(name).is_file());
    let all = folders(folder)?.into_iter();
    let later = all.filter(|(step, path)| Some(*step) > newest && !ends(path));
    Ok(later.map(|(_, path)| path).collect())
}

/// Returns the checkpoints of a folder, complete or not, by step.
fn folders(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let listed = |error: std::io::Error| Error::io("list", folder, &error);
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(listed)? {
        let entry = entry.map_err(listed)?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
        all.extend(step.map(|step: u64| (step, entry.path())));
    }
    all.sort_unstable();
    Ok(all)
}

fn step_folder(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("{PREFIX}{step:012}"))
}

fn worker_folder(path: &Path, worker: usize) -> PathBuf {
    path.join(format!("worker-{worker:05}"))
}

fn remove_if_present(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", path, &error))
        }
        _ => Ok(()),
    }
}

/// Returns the steps of each worker. Lost workers lag behind; a resumed job makes up their steps.
/// Empty in sync jobs, whose workers are all at one step.
fn steps_of_all(worker: &Worker) -> Result<Vec<u64>> {
    if worker.job().plan.exchange.is_sync() {
        return Ok(Vec::new());
    }
    Ok(worker.workers()?.iter().map(|seen| seen.complete).collect())
}
