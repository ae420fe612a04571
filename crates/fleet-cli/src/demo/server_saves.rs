//! Checkpoints of demos on parameter servers: the servers' tables and how far the workers are, all at one step.
//!
//! A checkpoint is a folder, `step-<number>`, in which servers and the first worker save, and at last a file
//! that says what it is of: a folder without one is of a job that died meanwhile, and is passed over.

use crate::output::{Output, Stop};
use fleet::ps::{SaveFormat, SaveMode};
use fleet::servers::Worker;
use fleet::{Error, ErrorKind, Result};
use fleet_base::file::write_file;
use std::path::{Path, PathBuf};

/// Where checkpoints are, and when they are due.
pub struct Saves {
    folder: Option<PathBuf>,
    every: u64,
    is_first: bool,
    /// Samples of a step of all workers, without which a number of steps says nothing.
    samples: usize,
    /// Steps of an earlier run.
    pub done: u64,
}

/// Ends a checkpoint.
const DONE_FILE: &str = "done";
/// What [`DONE_FILE`] is called in a checkpoint that could not be loaded.
const DAMAGED_FILE: &str = "damaged";
/// Checkpoints that are kept.
const KEEP: usize = 2;

impl Saves {
    pub fn new(folder: Option<PathBuf>, every: u64, is_first: bool, samples: usize) -> Saves {
        Saves { folder, every: every.max(1), is_first, samples, done: 0 }
    }

    /// Goes on from the newest checkpoint, if there is one. All workers call it.
    pub fn resume(
        &mut self,
        worker: &mut Worker,
        steps: u64,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let Some(folder) = &self.folder else { return Ok(()) };
        if worker.job().plan.exchange.is_geo() {
            return Err(Error::unsupported(
                "--checkpoint is not there for GEO: its workers hold the tables",
            )
            .into());
        }
        if self.is_first {
            self.load_newest(folder, worker, out)?;
        }
        // What the first worker has passed over counts no more.
        worker.barrier()?;
        let Some((step, path)) = checkpoints(folder)?.pop() else { return Ok(()) };
        worker.flush()?;
        worker.set_steps_done(step)?;
        self.done = step;
        out.line(format!("resumed after step {step} of {steps} from {}", path.display()))?;
        Ok(())
    }

    /// Loads the newest checkpoint that is whole; those that are not count no more when there is one.
    fn load_newest(
        &self,
        folder: &Path,
        worker: &mut Worker,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let mut all = checkpoints(folder)?;
        let mut damaged: Vec<(PathBuf, Error)> = Vec::new();
        while let Some((_, path)) = all.pop() {
            same_samples(&path, self.samples)?;
            let Err(error) = worker.load_persistables(&path) else { break };
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
        Ok(())
    }

    /// Goes on beside others, who are somewhere after the newest checkpoint: the servers have what they did.
    pub fn join(&mut self, out: &mut Output) -> Result<(), Stop> {
        let newest = match &self.folder {
            Some(folder) => checkpoints(folder)?.pop(),
            None => None,
        };
        if let Some((step, path)) = newest {
            same_samples(&path, self.samples)?;
            self.done = step;
        }
        out.line(format!(
            "joins a training that goes on, and begins its share after step {}",
            self.done
        ))
    }

    /// A step has been made; where a checkpoint is due, all workers meet and the first one sees to it.
    pub fn after_step(&self, step: u64, worker: &mut Worker) -> Result<()> {
        let Some(folder) = self.folder.as_ref().filter(|_| step.is_multiple_of(self.every)) else {
            return Ok(());
        };
        worker.flush()?;
        worker.barrier()?;
        if self.is_first {
            self.save(folder, step, worker)?;
        }
        worker.barrier()
    }

    fn save(&self, folder: &Path, step: u64, worker: &mut Worker) -> Result<()> {
        let path = folder.join(format!("step-{step:012}"));
        std::fs::create_dir_all(&path).map_err(|error| Error::io("create", &path, &error))?;
        // Servers of this machine may run in another folder.
        let path = std::path::absolute(&path).map_err(|error| Error::io("find", &path, &error))?;
        worker.save_persistables(&path, SaveMode::All, SaveFormat::Binary)?;
        // It may be in place of one that could not be loaded.
        let _ = std::fs::remove_file(path.join(DAMAGED_FILE));
        write_file(&path.join(DONE_FILE), format!("samples {}\n", self.samples).as_bytes())?;
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
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", folder, &error)),
    };
    let step = |path: &Path| path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok();
    let mut all: Vec<(u64, PathBuf)> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join(DONE_FILE).is_file())
        .filter_map(|path| Some((step(&path)?, path)))
        .collect();
    all.sort_unstable();
    for (_, path) in &mut all {
        *path = std::path::absolute(&*path).map_err(|error| Error::io("find", path, &error))?;
    }
    Ok(all)
}

fn same_samples(path: &Path, samples: usize) -> Result<()> {
    let file = path.join(DONE_FILE);
    let text = std::fs::read_to_string(&file).map_err(|error| Error::io("read", &file, &error))?;
    let saved = text.trim().strip_prefix("samples ").unwrap_or("another number");
    if saved == samples.to_string() {
        return Ok(());
    }
    Err(Error::invalid("the checkpoints are of a training with other steps")
        .expected(format!("{samples} samples in a step of all workers"))
        .got(saved)
        .at(path.display())
        .help("give another --checkpoint folder, or the number of workers of before"))
}
