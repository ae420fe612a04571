//! A job's checkpoints: one every so many steps or minutes, the last few kept, resumed from the newest
//! that is whole.
//!
//! ```text
//! folder/
//!   step-000000000400/     a checkpoint as `fleet_format` writes it
//!   step-000000000500/
//! ```
//!
//! A checkpoint holds everything that a program keeps between runs (parameters, optimizer state,
//! schedules, scaling of losses, counters), the scope's step, from which random numbers follow, and
//! what the caller adds: the cursor of its data. A job that is resumed from it computes the same bits
//! as one that was never stopped.
//!
//! The variables are copied between two steps and written by a thread of their own while training goes
//! on. A checkpoint appears whole or not at all; one that is found damaged is passed over for the one
//! before it, and [`Resumed::passed_over`] says so.

use crate::save::{collect, put_all};
use fleet_base::{Error, Result};
use fleet_exec::Scope;
use fleet_format::{Meta, load_tensors, save_tensors};
use fleet_ir::Program;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// When to save, and how many to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// After steps that are multiples of this.
    pub every_steps: Option<u64>,
    /// When so much time has gone by since the last one.
    pub every: Option<Duration>,
    /// Older ones are removed once a new one is whole; at least 1.
    pub keep_last: usize,
}

impl Default for CheckpointPolicy {
    /// Every ten minutes, the last three.
    fn default() -> Self {
        let every = Some(Duration::from_secs(600));
        CheckpointPolicy { every_steps: None, every, keep_last: 3 }
    }
}

/// What a job was resumed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Steps that were done.
    pub step: u64,
    /// What the caller saved beside the variables.
    pub entries: BTreeMap<String, String>,
    pub path: PathBuf,
    /// Newer checkpoints that could not be used, and why.
    pub passed_over: Vec<String>,
}

/// Saves and resumes one job.
///
/// ```
/// # use fleet::prelude::*;
/// # use fleet::{CheckpointPolicy, Checkpoints};
/// # let folder = std::env::temp_dir().join(format!("fleet-job-doc-{}", std::process::id()));
/// let net = Net::new();
/// let x = net.data("x", [-1, 2], DType::F32);
/// net.minimize(x.fc(1).mean(), Adam::new(0.1))?;
/// let mut session = Session::new(net.build()?, ExecOptions::default())?;
///
/// let policy = CheckpointPolicy { every_steps: Some(5), ..CheckpointPolicy::default() };
/// let mut checkpoints = Checkpoints::open(&folder, policy)?;
/// let resumed = checkpoints.resume(&session.programs.main, &mut session.scope)?;
/// let done = resumed.map_or(0, |resumed| resumed.step);
/// let x = Tensor::zeros(DType::F32, [4, 2])?;
/// for step in done + 1..=10 {
///     session.run(&[("x", &x)], &[])?;
///     let cursor = || [("cursor".to_string(), format!("sample {}", step * 4))].into();
///     checkpoints.after_step(step, &session.programs.main, &session.scope, cursor)?;
/// }
/// checkpoints.finish()?;
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct Checkpoints {
    folder: PathBuf,
    policy: CheckpointPolicy,
    writer: Option<JoinHandle<Result<()>>>,
    last_saved: Instant,
}

impl Checkpoints {
    /// Makes the folder if it is not there.
    pub fn open(folder: impl AsRef<Path>, policy: CheckpointPolicy) -> Result<Checkpoints> {
        let folder = folder.as_ref().to_path_buf();
        if policy.keep_last == 0 || policy.every_steps == Some(0) {
            return Err(Error::invalid("the policy of checkpoints makes no sense")
                .expected("keep_last and every_steps of at least 1")
                .got(format!("{policy:?}")));
        }
        fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
        Ok(Checkpoints { folder, policy, writer: None, last_saved: Instant::now() })
    }

    /// Loads the newest checkpoint that is whole, if there is one. Damaged ones are passed over; one
    /// that is whole but does not fit the program is an error, and nothing changes.
    pub fn resume(&mut self, program: &Program, scope: &mut Scope) -> Result<Option<Resumed>> {
        let mut passed_over = Vec::new();
        for (step, path) in self.list()?.into_iter().rev() {
            let checkpoint = match load_tensors(&path) {
                Ok(checkpoint) => checkpoint,
                Err(error) => {
                    passed_over.push(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            let entries = checkpoint.meta.entries.clone();
            put_all(&path, program, scope, checkpoint)?;
            return Ok(Some(Resumed { step, entries, path, passed_over }));
        }
        if passed_over.is_empty() {
            return Ok(None);
        }
        Err(Error::invalid("no checkpoint in the folder can be read")
            .got(passed_over.join("; "))
            .at(self.folder.display())
            .help("move the folder away to start from the beginning"))
    }

    /// To be called after each step with the number of steps done: saves when the policy says so.
    /// An error of an earlier save that went on in the background comes out here.
    pub fn after_step(
        &mut self,
        step: u64,
        program: &Program,
        scope: &Scope,
        entries: impl FnOnce() -> BTreeMap<String, String>,
    ) -> Result<()> {
        let by_steps = self.policy.every_steps.is_some_and(|every| step.is_multiple_of(every));
        let by_time = self.policy.every.is_some_and(|every| self.last_saved.elapsed() >= every);
        if by_steps || by_time {
            return self.save(step, program, scope, entries());
        }
        if self.writer.as_ref().is_some_and(JoinHandle::is_finished) {
            self.finish()?;
        }
        Ok(())
    }

    /// Saves now: returns once the variables are copied. Waits for a save that is still being written,
    /// so that at most one copy is held.
    pub fn save(
        &mut self,
        step: u64,
        program: &Program,
        scope: &Scope,
        entries: BTreeMap<String, String>,
    ) -> Result<()> {
        self.finish()?;
        let tensors = collect(program, scope, |var| var.persistable)?;
        let meta = Meta { step: scope.step(), entries };
        let (folder, keep_last) = (self.folder.clone(), self.policy.keep_last);
        let path = folder.join(format!("{PREFIX}{step:012}"));
        let write = move || {
            save_tensors(&path, tensors.iter().map(|(name, it)| (name.as_str(), it)), &meta)?;
            remove_old(&folder, keep_last)
        };
        let thread = std::thread::Builder::new().name("fleet-checkpoint".into());
        self.writer = Some(thread.spawn(write).map_err(|error| {
            Error::exhausted("cannot start the thread that writes checkpoints").got(error)
        })?);
        self.last_saved = Instant::now();
        Ok(())
    }

    /// Waits until everything is on the disk. To be called at the end: dropping waits too, but has
    /// nobody to tell of an error.
    pub fn finish(&mut self) -> Result<()> {
        match self.writer.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(Error::internal("the thread that writes checkpoints panicked")),
        }
    }

    /// The checkpoints of the folder with their steps, oldest first.
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>> {
        list(&self.folder)
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

const PREFIX: &str = "step-";

fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = fs::read_dir(folder).map_err(|error| Error::io("read", folder, &error))?;
    let mut found: Vec<(u64, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let step = entry.file_name().to_str()?.strip_prefix(PREFIX)?.parse().ok()?;
            Some((step, entry.path()))
        })
        .collect();
    found.sort();
    Ok(found)
}

/// What was begun and never became whole has no manifest and is not counted among those kept, but goes
/// with the old ones.
fn remove_old(folder: &Path, keep_last: usize) -> Result<()> {
    let all = list(folder)?;
    let whole = |path: &Path| fleet_format::list_tensors(path).is_ok();
    let kept: Vec<u64> =
        all.iter().rev().filter(|(_, path)| whole(path)).take(keep_last).map(|it| it.0).collect();
    let Some(oldest) = kept.last() else { return Ok(()) };
    for (_, path) in all.iter().filter(|(step, _)| step < oldest) {
        fs::remove_dir_all(path).map_err(|error| Error::io("remove", path, &error))?;
    }
    Ok(())
}
