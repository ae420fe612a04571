//! Checkpoints of demos on parameter servers: the servers' tables and how far the workers are, all
//! at one step.
//!
//! A checkpoint is a folder, `step-<number>`, in which servers and the first worker save, and at
//! last a file that says what it is of: a folder without one is of a job that died meanwhile, and
//! is passed over.

use super::done::{DONE_FILE, Done};
use crate::output::{Output, Stop};
use fleet::ps::{Arrival, START_ROUNDS, SaveFormat, SaveMode};
use fleet::servers::{Exchange, Worker};
use fleet::{Error, ErrorKind, Result};
use fleet_base::file::make_folder;
use std::path::{Path, PathBuf};

/// Where checkpoints are, and when they are due; and when workers meet. A worker that was started
/// again does not wait where the others have been without it.
pub struct Saves {
    folder: Option<PathBuf>,
    every: u64,
    is_first: bool,
    /// Samples of a step of all workers, without which a number of steps says nothing.
    samples: usize,
    /// Steps of an earlier run, and what all workers had made by then: those that were lost had
    /// made fewer.
    pub before: u64,
    pub before_of_all: u64,
    /// Steps of this worker that are in the tables.
    pub done: u64,
}

/// What [`DONE_FILE`] is called in a checkpoint that could not be loaded.
const DAMAGED_FILE: &str = "damaged";
/// Checkpoints that are kept.
const KEEP: usize = 2;

impl Saves {
    pub fn new(folder: Option<PathBuf>, every: u64, is_first: bool, samples: usize) -> Saves {
        Saves {
            folder,
            every: every.max(1),
            is_first,
            samples,
            before: 0,
            before_of_all: 0,
            done: 0,
        }
    }

    /// Goes on from the newest checkpoint, if there is one. All workers call it.
    pub fn resume(
        &mut self,
        worker: &mut Worker,
        steps: u64,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let Some(folder) = self.folder.clone() else { return Ok(self.meet(worker, 1)?) };
        if worker.job().plan.exchange.is_geo() {
            return Err(Error::unsupported(
                "--checkpoint is not there for GEO: its workers hold the tables",
            )
            .into());
        }
        // A first worker that was started again meanwhile has loaded it before.
        if self.is_first && !self.is_past(worker, 1)? {
            self.load_newest(&folder, worker, out)?;
        }
        // What the first worker has passed over counts no more.
        self.meet(worker, 1)?;
        if let Some((step, path)) = checkpoints(&folder)?.pop() {
            worker.flush()?;
            let all = Done::read(&path, step)?.steps_of(worker.servers().tables().worker_count)?;
            let own = all.get(worker.servers().worker()).copied().unwrap_or(step);
            worker.set_own_steps_done(step, own)?;
            (self.before, self.done) = (step, own);
            self.before_of_all = all.iter().sum();
            out.line(format!("resumed after step {own} of {steps} from {}", path.display()))?;
        }
        Ok(self.meet(worker, 2)?)
    }

    /// Whether this worker joins a training that has begun, or resumes one.
    pub fn have_begun(&self, worker: &Worker) -> Result<bool> {
        Ok(worker.resumes() || self.is_past(worker, self.opening())?)
    }

    /// Meetings before the first step.
    fn opening(&self) -> u64 {
        if self.folder.is_some() { 2 } else { 1 }
    }

    /// The meetings of a checkpoint, before and after it; none where none is due.
    fn meetings_of(&self, step: u64) -> Option<(u64, u64)> {
        self.folder.as_ref()?;
        let is_due = step.is_multiple_of(self.every) && step > self.before;
        let number = (step / self.every).saturating_sub(self.before / self.every);
        let last = self.opening() + 2 * number;
        is_due.then_some((last - 1, last))
    }

    /// The first and the second meeting behind the last of `steps`.
    pub fn meet_at_end(&self, worker: &Worker, steps: u64, which: u64) -> Result<()> {
        let last = steps - steps % self.every;
        let before = self.meetings_of(last).map_or(self.opening(), |(_, last)| last);
        self.meet(worker, before + which)
    }

    /// Waits for the meeting of this number, unless the others have had it.
    fn meet(&self, worker: &Worker, number: u64) -> Result<()> {
        // There steps are meetings too, and nobody is started again.
        if worker.job().plan.exchange == Exchange::Sync {
            return worker.barrier();
        }
        while !self.is_past(worker, number)? {
            worker.barrier()?;
        }
        Ok(())
    }

    fn is_past(&self, worker: &Worker, number: u64) -> Result<bool> {
        let is_sync = worker.job().plan.exchange == Exchange::Sync;
        Ok(!is_sync && worker.servers().rounds(Arrival::Received)? >= START_ROUNDS + number)
    }

    /// Loads the newest checkpoint that is whole; those that are not count no more when there is
    /// one.
    fn load_newest(
        &self,
        folder: &Path,
        worker: &mut Worker,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let mut all = checkpoints(folder)?;
        let mut damaged: Vec<(PathBuf, Error)> = Vec::new();
        let mut newest = None;
        while let Some((step, path)) = all.pop() {
            let loaded = match Done::read(&path, step) {
                Ok(done) => {
                    same_samples(&path, &done, self.samples)?;
                    done.steps_of(worker.servers().tables().worker_count)?;
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
            // An older one must not lie over a part of this one.
            for table in &worker.job().tables.tables {
                worker.servers().clear(table.table_id())?;
            }
        }
        for (path, error) in damaged {
            let done = path.join(DONE_FILE);
            std::fs::rename(&done, path.join(DAMAGED_FILE))
                .map_err(|error| Error::io("rename", &done, &error))?;
            out.line(format!("passed over a checkpoint that is not whole: {error}"))?;
        }
        for path in unfinished(folder, newest)? {
            out.line(format!(
                "passed over {}: it has no file `{DONE_FILE}`, so the save was not finished",
                path.display()
            ))?;
        }
        Ok(())
    }

    /// Goes on beside others, behind the last step of this worker that is in all tables.
    pub fn join(&mut self, worker: &mut Worker, out: &mut Output) -> Result<(), Stop> {
        if let Some(progress) = worker.go_on()? {
            (self.before, self.done) = (progress.base, progress.complete);
            let workers = worker.servers().tables().worker_count;
            self.before_of_all = progress.base * workers as u64;
        }
        out.line(format!(
            "joins a training that goes on, and begins its share after step {}",
            self.done
        ))?;
        // It may have died at a checkpoint.
        Ok(self.after_step(self.done, worker)?)
    }

    /// A step has been made; where a checkpoint is due, all workers meet and the first one sees to
    /// it.
    pub fn after_step(&self, step: u64, worker: &mut Worker) -> Result<()> {
        let (Some(folder), Some((first, second))) = (&self.folder, self.meetings_of(step)) else {
            return Ok(());
        };
        worker.flush()?;
        self.meet(worker, first)?;
        if self.is_first && !self.is_past(worker, second)? {
            self.save(folder, step, worker)?;
        }
        self.meet(worker, second)
    }

    fn save(&self, folder: &Path, step: u64, worker: &mut Worker) -> Result<()> {
        let path = folder.join(format!("step-{step:012}"));
        make_folder(&path)?;
        // Servers of this machine may run in another folder.
        let path = std::path::absolute(&path).map_err(|error| Error::io("find", &path, &error))?;
        worker.save_persistables(&path, SaveMode::All, SaveFormat::Binary)?;
        // It may be in place of one that could not be loaded.
        let _ = std::fs::remove_file(path.join(DAMAGED_FILE));
        Done { step, samples: self.samples, steps: steps_of_all(worker)? }.write(&path)?;
        let mut all = checkpoints(folder)?;
        all.truncate(all.len().saturating_sub(KEEP));
        for (_, old) in all {
            // First it counts no more; what cannot be deleted harms nobody.
            let _ = std::fs::remove_file(old.join(DONE_FILE));
            let _ = std::fs::remove_dir_all(old);
        }
        Ok(())
    }
}

/// Complete checkpoints of a folder, by step.
fn checkpoints(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut all = folders(folder)?;
    all.retain(|(_, path)| path.join(DONE_FILE).is_file());
    for (_, path) in &mut all {
        *path = std::path::absolute(&*path).map_err(|error| Error::io("find", path, &error))?;
    }
    Ok(all)
}

/// Checkpoints behind this step that no [`DONE_FILE`] ends, and that were not reported yet.
fn unfinished(folder: &Path, newest: Option<u64>) -> Result<Vec<PathBuf>> {
    let ends = |path: &Path| [DONE_FILE, DAMAGED_FILE].iter().any(|name| path.join(name).is_file());
    let all = folders(folder)?.into_iter();
    let later = all.filter(|(step, path)| Some(*step) > newest && !ends(path));
    Ok(later.map(|(_, path)| path).collect())
}

/// Checkpoints of a folder, complete or not, by step.
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

/// Steps of each worker. Workers that are lost lag behind, and a job that resumes makes their steps
/// then. None in sync jobs, whose workers are all at one step.
fn steps_of_all(worker: &Worker) -> Result<Vec<u64>> {
    if worker.job().plan.exchange == Exchange::Sync {
        return Ok(Vec::new());
    }
    Ok(worker.workers()?.iter().map(|seen| seen.complete).collect())
}

/// The number in a checkpoint's name.
fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

fn same_samples(path: &Path, done: &Done, samples: usize) -> Result<()> {
    if done.samples == samples {
        return Ok(());
    }
    Err(Error::invalid("the checkpoints are of a training with other steps")
        .expected(format!("{samples} samples in a step of all workers"))
        .got(done.samples)
        .at(path.display())
        .help("give another --checkpoint folder, or the number of workers of before"))
}
