//! Checkpoints of demos on parameter servers: the servers' tables and the progress of the workers,
//! all at one step.
//!
//! A checkpoint is a folder `step-<number>`, in which the servers and the first worker save. A file
//! with the checkpoint's progress is written last. A folder without it was left by a job that died
//! during the save, and is skipped.

use super::progress_file::{CheckpointProgress, PROGRESS_FILE};
use fleet::ps::{Arrival, START_ROUNDS, SaveFormat, SaveMode};
use fleet::servers::Worker;
use fleet::{Error, ErrorKind, Result};
use fleet_base::file::make_folder;
use fleet_base::output::{ExitReason, Output};
use std::path::{Path, PathBuf};

/// Folder and interval of checkpoints, and the barriers around them. A restarted worker does not
/// wait at barriers that the others have passed without it.
pub struct ServerCheckpoints {
    folder: Option<PathBuf>,
    every: u64,
    is_first: bool,
    /// Samples per step of all workers, which give meaning to a number of steps.
    samples: usize,
    /// Steps of an earlier run, and the sum of the steps that all workers had made by then. Lost
    /// workers had made fewer.
    pub before: u64,
    pub before_of_all: u64,
    /// Steps of this worker that are in the tables.
    pub done: u64,
}

/// New name of [`PROGRESS_FILE`] in a checkpoint that could not be loaded.
const DAMAGED_FILE: &str = "damaged";
/// Number of checkpoints to keep.
const KEEP: usize = 2;

impl ServerCheckpoints {
    pub fn new(
        folder: Option<PathBuf>,
        every: u64,
        is_first: bool,
        samples: usize,
    ) -> ServerCheckpoints {
        ServerCheckpoints {
            folder,
            every: every.max(1),
            is_first,
            samples,
            before: 0,
            before_of_all: 0,
            done: 0,
        }
    }

    /// Resumes from the newest checkpoint, if there is one. All workers must call it.
    pub fn resume(
        &mut self,
        worker: &mut Worker,
        steps: u64,
        out: &mut Output,
    ) -> Result<(), ExitReason> {
        let Some(folder) = self.folder.clone() else { return Ok(self.barrier(worker, 1)?) };
        if worker.job().plan.exchange.is_geo() {
            return Err(Error::unsupported(
                "--checkpoint is not supported for GEO, whose workers hold the tables",
            )
            .into());
        }
        // If the first worker was restarted meanwhile, its earlier process has loaded the
        // checkpoint.
        if self.is_first && !self.has_passed(worker, 1)? {
            self.load_newest(&folder, worker, out)?;
        }
        // Checkpoints that the first worker rejected are renamed by now.
        self.barrier(worker, 1)?;
        if let Some((step, path)) = checkpoints(&folder)?.pop() {
            worker.flush()?;
            let all = CheckpointProgress::read(&path, step)?
                .steps_of(worker.servers().job().worker_count)?;
            let own = all.get(worker.servers().worker()).copied().unwrap_or(step);
            worker.set_own_steps_done(step, own)?;
            (self.before, self.done) = (step, own);
            self.before_of_all = all.iter().sum();
            out.line(format!("resumed after step {own} of {steps} from {}", path.display()))?;
        }
        Ok(self.barrier(worker, 2)?)
    }

    /// Returns whether this worker joins a training in progress, or resumes one.
    pub fn has_begun(&self, worker: &Worker) -> Result<bool> {
        Ok(worker.can_resume() || self.has_passed(worker, self.initial_barriers())?)
    }

    /// Returns the number of barriers before the first step.
    fn initial_barriers(&self) -> u64 {
        if self.folder.is_some() { 2 } else { 1 }
    }

    /// Returns the numbers of the barriers before and after a checkpoint; `None` if none is due.
    fn barriers_of(&self, step: u64) -> Option<(u64, u64)> {
        self.folder.as_ref()?;
        let is_due = step.is_multiple_of(self.every) && step > self.before;
        let number = (step / self.every).saturating_sub(self.before / self.every);
        let last = self.initial_barriers() + 2 * number;
        is_due.then_some((last - 1, last))
    }

    /// Waits for the barrier number `which` (1 or 2) after the last of `steps`.
    pub fn barrier_at_end(&self, worker: &Worker, steps: u64, which: u64) -> Result<()> {
        let last = steps - steps % self.every;
        let before = self.barriers_of(last).map_or(self.initial_barriers(), |(_, last)| last);
        self.barrier(worker, before + which)
    }

    /// Waits for the barrier with this number, unless the others have passed it.
    fn barrier(&self, worker: &Worker, number: u64) -> Result<()> {
        // In sync mode every step is a barrier, and workers are never restarted alone.
        if worker.job().plan.exchange.is_sync() {
            return worker.barrier();
        }
        while !self.has_passed(worker, number)? {
            worker.barrier()?;
        }
        Ok(())
    }

    fn has_passed(&self, worker: &Worker, number: u64) -> Result<bool> {
        let is_sync = worker.job().plan.exchange.is_sync();
        Ok(!is_sync
            && worker.servers().barriers.rounds(Arrival::Received)? >= START_ROUNDS + number)
    }

    /// Loads the newest complete checkpoint. If there is one, newer damaged ones are marked as
    /// such.
    fn load_newest(
        &self,
        folder: &Path,
        worker: &mut Worker,
        out: &mut Output,
    ) -> Result<(), ExitReason> {
        let mut all = checkpoints(folder)?;
        let mut damaged: Vec<(PathBuf, Error)> = Vec::new();
        let mut newest = None;
        while let Some((step, path)) = all.pop() {
            let loaded = match CheckpointProgress::read(&path, step) {
                Ok(done) => {
                    check_samples(&path, &done, self.samples)?;
                    done.steps_of(worker.servers().job().worker_count)?;
                    worker.load_persistables(&path).map(|_| ())
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
                return Err(damaged.swap_remove(0).1.into());
            }
            // An older checkpoint must not be loaded over parts of this one.
            for table in &worker.job().tables.tables {
                worker.servers().admin.clear(table.table_id())?;
            }
        }
        for (path, error) in damaged {
            let done = path.join(PROGRESS_FILE);
            std::fs::rename(&done, path.join(DAMAGED_FILE))
                .map_err(|error| Error::io("rename", &done, &error))?;
            out.line(format!("skipped a checkpoint: {error}"))?;
        }
        for path in unfinished(folder, newest)? {
            out.line(format!(
                "skipped {}: the save was not finished (no file `{PROGRESS_FILE}`)",
                path.display()
            ))?;
        }
        Ok(())
    }

    /// Joins a training in progress, after this worker's last step that is in all tables.
    pub fn join(&mut self, worker: &mut Worker, out: &mut Output) -> Result<(), ExitReason> {
        if let Some(progress) = worker.resume()? {
            (self.before, self.done) = (progress.base, progress.complete);
            let workers = worker.servers().job().worker_count;
            self.before_of_all = progress.base * workers as u64;
        }
        out.line(format!("joined the training in progress after step {}", self.done))?;
        // Its earlier process may have died at a checkpoint.
        Ok(self.after_step(self.done, worker)?)
    }

    /// To be called after each step. If a checkpoint is due, all workers wait for each other and
    /// the first one saves.
    pub fn after_step(&self, step: u64, worker: &mut Worker) -> Result<()> {
        let (Some(folder), Some((first, second))) = (&self.folder, self.barriers_of(step)) else {
            return Ok(());
        };
        worker.flush()?;
        self.barrier(worker, first)?;
        if self.is_first && !self.has_passed(worker, second)? {
            self.save(folder, step, worker)?;
        }
        self.barrier(worker, second)
    }

    fn save(&self, folder: &Path, step: u64, worker: &mut Worker) -> Result<()> {
        let path = folder.join(format!("step-{step:012}"));
        make_folder(&path)?;
        // Servers on this machine may have another working directory.
        let path = std::path::absolute(&path).map_err(|error| Error::io("find", &path, &error))?;
        worker.save_persistables(&path, SaveMode::All, SaveFormat::Binary)?;
        // The folder may contain a damaged checkpoint.
        let _ = std::fs::remove_file(path.join(DAMAGED_FILE));
        CheckpointProgress { step, samples: self.samples, steps: steps_of_all(worker)? }
            .write(&path)?;
        let mut all = checkpoints(folder)?;
        all.truncate(all.len().saturating_sub(KEEP));
        for (_, old) in all {
            // First mark it as incomplete; a folder that cannot be deleted is then harmless.
            let _ = std::fs::remove_file(old.join(PROGRESS_FILE));
            let _ = std::fs::remove_dir_all(old);
        }
        Ok(())
    }
}

/// Returns the complete checkpoints of a folder, by step.
fn checkpoints(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut all = folders(folder)?;
    all.retain(|(_, path)| path.join(PROGRESS_FILE).is_file());
    for (_, path) in &mut all {
        *path = std::path::absolute(&*path).map_err(|error| Error::io("find", path, &error))?;
    }
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
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", folder, &error)),
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut all: Vec<(u64, PathBuf)> =
        paths.filter_map(|path| Some((step_of(&path)?, path))).collect();
    all.sort_unstable();
    Ok(all)
}

/// Returns the steps of each worker. Lost workers lag behind; a resumed job makes up their steps.
/// Empty in sync jobs, whose workers are all at one step.
fn steps_of_all(worker: &Worker) -> Result<Vec<u64>> {
    if worker.job().plan.exchange.is_sync() {
        return Ok(Vec::new());
    }
    Ok(worker.workers()?.iter().map(|seen| seen.complete).collect())
}

/// Returns the step in a checkpoint's name.
fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

fn check_samples(path: &Path, done: &CheckpointProgress, samples: usize) -> Result<()> {
    if done.samples == samples {
        return Ok(());
    }
    Err(Error::invalid("the checkpoints have another number of samples per step")
        .expected(format!("{samples} samples per step of all workers"))
        .got(done.samples)
        .at(path.display())
        .help("use another --checkpoint folder, or the previous number of workers"))
}
