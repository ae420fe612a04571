//! Checkpoints of a job: saved at an interval of steps or time, of which the last few are kept. A
//! job resumes from the newest complete one.
//!
//! ```text
//! folder/
//!   step-000000000400/     a checkpoint as `fleet_format` writes it
//!   step-000000000500/
//! ```
//!
//! A checkpoint holds everything that a program keeps between runs: parameters, optimizer state,
//! schedules, loss scaling and counters. It also holds the scope's step, from which random numbers
//! follow, and the caller's own entries, such as the cursor of its data. A resumed job computes the
//! same bits as one that was never stopped.
//!
//! The variables are copied between two steps. A thread of their own writes them while training
//! continues. A checkpoint appears whole or not at all. A damaged one is passed over for the one
//! before it, and [`Resumed::skipped`] reports it.
//!
//! In a job of several ranks ([`Fleet::checkpoints`](crate::Fleet::checkpoints)) rank 0 writes the
//! state that all ranks have in common. Every rank writes its own state: gradients summed so far,
//! parameters between two averagings, gradients not sent yet, statistics, and the state that it
//! owns under sharding. All ranks must see the
//! same folder. With the same number of ranks each rank gets its own state back. With another
//! number the state is redistributed (see [`Spread`](crate::strategy::Spread)), so that no pending
//! gradient is lost or counted twice.

mod parts;
mod saved;
mod shared;
mod survey;
#[cfg(test)]
mod tests;

use crate::save::{check_fit, collect_named, persistables, put_all};
use crate::slices::divisions;
use fleet_base::disk::{Disk, DiskLock, RealDisk, make_folder, remove_folder_all};
use fleet_base::output::note;
use fleet_base::{Error, Result};
use fleet_comm::{Group, ReduceOp};
use fleet_exec::Scope;
use fleet_format::{Checkpoint, Meta};
use fleet_ir::Program;
use fleet_nn::HostRate;
use fleet_strategy::{LocalVar, layer_ranks, local_state};
use fleet_tensor::{DType, Tensor};
use parts::{Loaded, Part};
pub use saved::{SavedCheckpoint, Verified, VerifyState, checkpoints_in, verify_checkpoints};
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
pub use survey::{Held, SavedVar};

/// When to save, and how many checkpoints to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// Saves after each step that is a multiple of this.
    pub every_steps: Option<u64>,
    /// Saves when this much time has passed since the last save. Ranks follow the clock of rank 0,
    /// which broadcasts its decision in every step.
    pub every: Option<Duration>,
    /// Number of whole checkpoints to keep; at least 1. Older ones are removed once a new one is
    /// whole.
    pub keep_last: usize,
}

impl Default for CheckpointPolicy {
    /// Saves every ten minutes and keeps the last three.
    fn default() -> Self {
        let every = Some(Duration::from_secs(600));
        CheckpointPolicy { every_steps: None, every, keep_last: 3 }
    }
}

impl CheckpointPolicy {
    /// Checks the numbers.
    pub(crate) fn check(&self) -> Result<()> {
        let got = match (self.keep_last, self.every_steps) {
            (0, _) => "keep_last 0",
            (_, Some(0)) => "every_steps 0",
            _ => return Ok(()),
        };
        Err(Error::invalid("invalid checkpoint policy").expected("at least 1").got(got))
    }
}

/// The state from which a job was resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Number of completed steps.
    pub step: u64,
    /// The caller's entries saved beside the variables: those of this rank, or those of rank 0 if
    /// the job had another number of ranks.
    pub entries: BTreeMap<String, String>,
    /// The entries of every rank that saved, by rank.
    pub entries_of_ranks: Vec<BTreeMap<String, String>>,
    /// Folder of the checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints that could not be used, and why.
    pub skipped: Vec<String>,
    /// Numbers that training reads but never writes (a learning rate, the interval of a strategy)
    /// and whose initial value in the program differs. The values of the checkpoint apply, since
    /// the user may have set them.
    pub changed_constants: Vec<String>,
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
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    policy: CheckpointPolicy,
    writer: Option<JoinHandle<Result<()>>>,
    last_saved: Instant,
    member: Member,
    /// Held by rank 0 from its first save, so that no other job saves to the folder at the same
    /// time.
    lock: Option<DiskLock>,
    /// Variables that differ between ranks, and the fingerprint of their program.
    local: Option<(u128, Vec<LocalVar>)>,
    /// Whether permission to create files in the folder has been checked.
    is_writable: bool,
}

/// Result of looking for the newest state to resume from.
enum Newest {
    Loaded(Resumed),
    /// No usable checkpoint; the reasons of saves that were never finished.
    Unfinished(Vec<String>),
}

/// Position of this process among the ranks that save together.
struct Member {
    rank: usize,
    ranks: usize,
    /// The group of all ranks, if there are several.
    group: Option<Group>,
    run: String,
}

impl Member {
    /// Returns the value of rank 0 on every rank.
    fn agree(&self, what: &str, mine: f64) -> Result<f64> {
        let mut value = [mine];
        if let Some(group) = &self.group {
            group.broadcast(what, &mut value, 0)?;
        }
        Ok(value[0])
    }

    /// Returns whether `mine` is true on rank 0.
    fn agree_if(&self, what: &str, mine: bool) -> Result<bool> {
        Ok(self.agree(what, f64::from(u8::from(mine)))? == 1.0)
    }

    /// Returns whether `mine` is true on every rank.
    fn all(&self, what: &str, mine: bool) -> Result<bool> {
        let mut value = [f64::from(u8::from(mine))];
        if let Some(group) = &self.group {
            group.all_reduce(what, &mut value, ReduceOp::Min)?;
        }
        Ok(value[0] == 1.0)
    }
}

impl Checkpoints {
    /// Opens the checkpoints of a job of one process. Creates the folder if it does not exist. In a
    /// job of several ranks this saves only the calling rank's state, which is incomplete if ranks
    /// have state of their own: see [`Fleet::checkpoints`](crate::Fleet::checkpoints).
    pub fn open(folder: impl AsRef<Path>, policy: CheckpointPolicy) -> Result<Checkpoints> {
        let member = Member { rank: 0, ranks: 1, group: None, run: String::new() };
        Checkpoints::open_at(RealDisk::handle(), folder.as_ref(), policy, member)
    }

    /// Opens the checkpoints of a job of several ranks. Every rank must call it.
    pub(crate) fn open_together(
        folder: &Path,
        policy: CheckpointPolicy,
        group: &Group,
    ) -> Result<Checkpoints> {
        let (rank, ranks) = (group.rank(), group.size());
        let group = Some(group.clone());
        let mut member = Member { rank, ranks, group, run: String::new() };
        let number = RandomState::new().hash_one(std::process::id()) & RUN_MASK;
        member.run = member.agree("checkpoints: run", number as f64)?.to_string();
        Checkpoints::open_at(RealDisk::handle(), folder, policy, member)
    }

    fn open_at(
        disk: Arc<dyn Disk>,
        folder: &Path,
        policy: CheckpointPolicy,
        member: Member,
    ) -> Result<Checkpoints> {
        policy.check()?;
        let made = make_folder(&*disk, folder);
        match &member.group {
            Some(group) => shared::check(folder, group, &member.run, made)?,
            None => made?,
        }
        Ok(Checkpoints {
            disk,
            folder: folder.to_path_buf(),
            policy,
            writer: None,
            last_saved: Instant::now(),
            member,
            lock: None,
            local: None,
            is_writable: false,
        })
    }

    /// Loads the newest whole checkpoint, if there is one. In a job of several ranks, all must call
    /// it, and all load the same one. Checkpoints that are damaged, or that some rank never
    /// finished, are passed over. One that is whole but does not fit the program is an error, and
    /// nothing changes.
    pub fn resume(&mut self, program: &Program, scope: &mut Scope) -> Result<Option<Resumed>> {
        match self.load_newest(program, scope)? {
            Newest::Loaded(resumed) => Ok(Some(resumed)),
            Newest::Unfinished(reasons) if self.member.rank == 0 && !reasons.is_empty() => {
                note(format_args!(
                    "no finished checkpoint in {}, starting from the beginning: {}",
                    self.folder.display(),
                    reasons.join("; ")
                ));
                Ok(None)
            }
            Newest::Unfinished(_) => Ok(None),
        }
    }

    fn load_newest(&mut self, program: &Program, scope: &mut Scope) -> Result<Newest> {
        let mut skipped = Vec::new();
        let local = self.local(program).to_vec();
        let divided = divisions(program);
        let mut left = self.list()?;
        loop {
            let newest = left.last().map_or(-1.0, |(step, _)| *step as f64);
            let step = self.member.agree("checkpoints: newest", newest)?;
            if step < 0.0 {
                break;
            }
            let step = step as u64;
            left.retain(|(other, _)| *other < step);
            let path = self.path(step);
            let place = (self.member.rank, self.member.ranks);
            let names = persistables(program, |var| var.persistable);
            let (layers, divided) = (layer_ranks(program), &divided);
            let wanted = parts::Wanted { place, names: &names, local: &local, divided, layers };
            let loaded = parts::load(&*self.disk, &path, &wanted);
            self.check_permission(&path, loaded.as_ref().err())?;
            if !self.member.all("checkpoints: readable", loaded.is_ok())? {
                skipped.push(match loaded {
                    Err(error) => format!("{}: {error}", path.display()),
                    Ok(_) => format!("{}: not readable on another rank", path.display()),
                });
                continue;
            }
            let Loaded { mut tensors, step: runs, entries: all } = loaded?;
            if all.len() == 1 && self.member.ranks > 1 {
                init_multi_rank_vars(program, scope, &mut tensors)?;
            }
            let meta = Meta { step: runs, ..Meta::default() };
            let changed_constants = changed_constants(program, scope, &tensors);
            let checkpoint = Checkpoint { tensors, meta };
            self.check_fit(&path, program, &checkpoint)?;
            put_all(&path, program, scope, checkpoint)?;
            let own = if all.len() == self.member.ranks { self.member.rank } else { 0 };
            return Ok(Newest::Loaded(Resumed {
                step,
                entries: all.get(own).cloned().unwrap_or_default(),
                entries_of_ranks: all,
                path,
                skipped,
                changed_constants,
            }));
        }
        // A job that was stopped during its first save has no checkpoint to resume from.
        let mut all = self.list()?.into_iter();
        // A checkpoint that cannot be inspected may be whole.
        let begun = all.all(|(_, path)| parts::is_unfinished(&*self.disk, &path).unwrap_or(false));
        let nothing_yet = self.member.agree_if("checkpoints: none", begun)?;
        if skipped.is_empty() || nothing_yet {
            return Ok(Newest::Unfinished(skipped));
        }
        Err(Error::invalid("no readable checkpoint in the folder")
            .got(skipped.join("; "))
            .at(self.folder.display())
            .help("check that all ranks see the same folder; move it away to start from step 0"))
    }

    /// Rejects the checkpoint of another model on all ranks. A rank of a sharded job may read only
    /// variables that fit.
    fn check_fit(&self, path: &Path, program: &Program, checkpoint: &Checkpoint) -> Result<()> {
        let fits = check_fit(path, program, checkpoint);
        match (self.member.all("checkpoints: fits", fits.is_ok())?, fits) {
            (true, _) => Ok(()),
            (false, Err(error)) => Err(error),
            (false, Ok(())) => Err(Error::invalid("the checkpoint is not of this model")
                .got("variables that do not fit on another rank")
                .at(path.display())),
        }
    }

    /// Rejects a checkpoint that this user may not read, on any rank. It may be complete, so that
    /// skipping it would lose the steps since the one before.
    fn check_permission(&self, path: &Path, failed: Option<&Error>) -> Result<()> {
        let denied = failed.filter(|error| is_permission_denied(error));
        if self.member.all("checkpoints: permission", denied.is_none())? {
            return Ok(());
        }
        let error = match denied {
            Some(error) => error.clone(),
            None => Error::invalid(format!("another rank may not read {}", path.display())),
        };
        Err(error.help("give the user of the job permission to read it, or move it away"))
    }

    /// Saves if the policy requires it. Call it after each step with the number of completed steps.
    /// Also returns the error of an earlier save in the background.
    pub fn after_step(
        &mut self,
        step: u64,
        program: &Program,
        scope: &Scope,
        entries: impl FnOnce() -> BTreeMap<String, String>,
    ) -> Result<()> {
        // The first save may be minutes away.
        if !std::mem::replace(&mut self.is_writable, true) {
            check_writable(&*self.disk, &self.folder)?;
        }
        let by_steps = self.policy.every_steps.is_some_and(|every| step.is_multiple_of(every));
        if by_steps || self.is_time(by_steps)? {
            return self.save(step, program, scope, entries());
        }
        if self.writer.as_ref().is_some_and(JoinHandle::is_finished) {
            self.finish()?;
        }
        Ok(())
    }

    fn is_time(&self, due_anyway: bool) -> Result<bool> {
        match self.policy.every {
            Some(every) if !due_anyway => {
                self.member.agree_if("checkpoints: time", self.last_saved.elapsed() >= every)
            }
            _ => Ok(false),
        }
    }

    /// Saves now and returns once the variables are copied. First waits until an earlier save is
    /// written, so that at most one copy is held. In a job of several ranks, all must save the same
    /// step.
    pub fn save(
        &mut self,
        step: u64,
        program: &Program,
        scope: &Scope,
        entries: BTreeMap<String, String>,
    ) -> Result<()> {
        self.finish()?;
        if let Some(key) = entries.keys().find(|key| key.starts_with(parts::RESERVED)) {
            return Err(Error::invalid(format!("reserved name of a checkpoint entry: '{key}'"))
                .help("use a name that does not start with 'fleet.'"));
        }
        if self.member.rank == 0 && self.lock.is_none() {
            self.lock = lock(&*self.disk, &self.folder)?;
        }
        let part = self.part(step, program, scope, entries)?;
        let (folder, keep_last) = (self.folder.clone(), self.policy.keep_last);
        let (disk, path) = (self.disk.clone(), self.path(step));
        let write = move || {
            part.write(&disk, &path)?;
            if part.place.0 == 0 { remove_old(&*disk, &folder, step, keep_last) } else { Ok(()) }
        };
        let thread = std::thread::Builder::new().name("fleet-checkpoint".into());
        self.writer =
            Some(thread.spawn(write).map_err(|error| {
                Error::exhausted("cannot start the checkpoint thread").got(error)
            })?);
        self.last_saved = Instant::now();
        Ok(())
    }

    /// Copies the state that this rank writes.
    fn part(
        &mut self,
        job_step: u64,
        program: &Program,
        scope: &Scope,
        entries: BTreeMap<String, String>,
    ) -> Result<Part> {
        let local = self.local(program).to_vec();
        let Member { rank, ranks, run, .. } = &self.member;
        let is_own = |name: &str| local.iter().any(|var| var.name == name);
        let (own, common): (Vec<&str>, Vec<&str>) =
            persistables(program, |var| var.persistable).into_iter().partition(|name| is_own(name));
        Ok(Part {
            place: (*rank, *ranks),
            run: run.clone(),
            job_step,
            common: if *rank == 0 { collect_named(scope, &common)? } else { Vec::new() },
            own: collect_named(scope, &own)?,
            meta: Meta { step: scope.step(), entries },
            local,
            divided: divisions(program),
            layers: layer_ranks(program),
        })
    }

    /// Returns the variables that differ between ranks; none in a job of one rank.
    fn local(&mut self, program: &Program) -> &[LocalVar] {
        let key = program.fingerprint();
        if self.local.as_ref().is_none_or(|(held, _)| *held != key) {
            let found = if self.member.ranks > 1 { local_state(program) } else { Vec::new() };
            self.local = Some((key, found));
        }
        self.local.as_ref().map_or(&[], |(_, found)| found)
    }

    fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{PREFIX}{step:012}"))
    }

    /// Waits until everything that this rank saves is on disk. Call it at the end: dropping also
    /// waits, but cannot report an error.
    pub fn finish(&mut self) -> Result<()> {
        match self.writer.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(Error::internal("the checkpoint thread panicked")),
        }
    }

    /// Returns the checkpoints of the folder with their steps, oldest first.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # use fleet::{CheckpointPolicy, Checkpoints, Resumed};
    /// # let folder = std::env::temp_dir().join(format!("fleet-list-doc-{}", std::process::id()));
    /// # let net = Net::new();
    /// # net.data("x", [-1, 2], DType::F32).fc(1);
    /// # let mut session = Session::new(net.build()?, ExecOptions::default())?;
    /// let policy = CheckpointPolicy { keep_last: 2, ..CheckpointPolicy::default() };
    /// let mut checkpoints = Checkpoints::open(&folder, policy)?;
    /// let (main, scope) = (&session.programs.main, &mut session.scope);
    /// for step in 1..=3 {
    ///     checkpoints.save(step, main, scope, Default::default())?;
    /// }
    /// checkpoints.finish()?;
    /// let steps: Vec<u64> = checkpoints.list()?.into_iter().map(|(step, _)| step).collect();
    /// assert_eq!(steps, [2, 3]);
    /// let resumed: Option<Resumed> = checkpoints.resume(main, scope)?;
    /// assert!(resumed.is_some_and(|it| it.step == 3 && it.skipped.is_empty()));
    /// # std::fs::remove_dir_all(&folder).ok();
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>> {
        list(&*self.disk, &self.folder)
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Checks that this process can create files in the folder.
fn check_writable(disk: &dyn Disk, folder: &Path) -> Result<()> {
    let probe = folder.join(format!(".probe-{}", std::process::id()));
    let probed = disk.create(&probe).and_then(|_| disk.remove(&probe));
    probed.map_err(|error| {
        Error::io("write in the checkpoint folder", folder, &error)
            .help("give the user of the job permission to create files there")
    })
}

fn is_permission_denied(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Locks the folder: two jobs would remove each other's checkpoints, and resume from a mixture of
/// both.
fn lock(disk: &dyn Disk, folder: &Path) -> Result<Option<DiskLock>> {
    let path = folder.join("lock");
    match disk.lock(&path) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => Err(Error::invalid("another job is saving checkpoints to this folder")
            .at(folder.display())
            .help("wait until it ends, or use another folder")),
        // Not every network file system supports locks.
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => Ok(None),
        Err(error) => Err(Error::io("lock", &path, &error)),
    }
}

const PREFIX: &str = "step-";

/// Mask of the bits that an `f64` holds exactly.
const RUN_MASK: u64 = (1 << 53) - 1;

/// Parts of the names of variables that strategies keep only in jobs of several ranks.
const MULTI_RANK_VARS: [&str; 9] = [
    "@STEP_COUNTER@",
    "__dgc_counter__",
    "__dgc_u__",
    "__dgc_v__",
    "k_steps",
    "begin_step",
    "last_step",
    "lr_0",
    "loss_0",
];

/// Adapts a checkpoint of a job of one rank to several ranks. Variables that one rank did not need
/// get their initial values, and snapshots of parameters become copies of the loaded parameters.
fn init_multi_rank_vars(
    program: &Program,
    scope: &Scope,
    tensors: &mut parts::Named,
) -> Result<()> {
    for name in persistables(program, |var| var.persistable) {
        let held = |name: &str| tensors.iter().find(|(other, _)| other == name).map(|it| &it.1);
        if held(name).is_some() {
            continue;
        }
        let param = name.strip_suffix("@SNAPSHOT").and_then(held);
        let value = match param {
            Some(param) => param.try_clone()?,
            None if MULTI_RANK_VARS.iter().any(|part| name.contains(part)) => scope.tensor(name)?,
            None => continue,
        };
        tensors.push((name.to_string(), value));
    }
    Ok(())
}

/// Describes the program's constants whose value in the checkpoint differs.
fn changed_constants(program: &Program, scope: &Scope, tensors: &parts::Named) -> Vec<String> {
    let mut written = HashSet::new();
    program.root_ops().for_each(|(id, _)| program.writes_of(id, &mut written));
    // A user-defined schedule sets its rate from outside the program.
    let has_schedule = program.find_var(HostRate::COUNTER).is_some();
    let is_constant = |name: &&str| {
        let is_scheduled = has_schedule && name.starts_with("learning_rate");
        let found = program.find_var(name).filter(|_| !is_scheduled);
        found.is_some_and(|id| !program.var(id).is_parameter() && !written.contains(&id))
    };
    let names = persistables(program, |var| var.persistable).into_iter().filter(is_constant);
    let differs = |name: &str| {
        let (_, saved) = tensors.iter().find(|(other, _)| other == name)?;
        let (saved, held) = (number(saved)?, number(&scope.tensor(name).ok()?)?);
        (saved != held).then(|| {
            format!("'{name}' is {saved} from the checkpoint, not {held} as in the program")
        })
    };
    names.filter_map(differs).collect()
}

fn number(tensor: &Tensor) -> Option<f64> {
    match (tensor.shape().numel(), tensor.dtype()) {
        (Some(1), DType::F32) => tensor.item::<f32>().ok().map(decimal),
        (Some(1), DType::I32) => tensor.item::<i32>().ok().map(f64::from),
        (Some(1), DType::I64) => tensor.item::<i64>().ok().map(|value| value as f64),
        _ => None,
    }
}

/// Returns 0.1 for 0.1f32, not 0.10000000149011612.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn list(disk: &dyn Disk, folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let names = disk.list(folder).map_err(|error| Error::io("list", folder, &error))?;
    let mut found: Vec<(u64, PathBuf)> = names
        .iter()
        .filter_map(|name| Some((name.strip_prefix(PREFIX)?.parse().ok()?, folder.join(name))))
        .collect();
    found.sort();
    Ok(found)
}

/// Removes old checkpoints; called on rank 0. A rank that has written its part of a newer whole
/// checkpoint has finished writing older ones. Unfinished checkpoints do not count towards
/// `keep_last` and are removed with the old ones. Neither do checkpoints of a later step than
/// `saved` count: the job was not resumed from them, so they may be damaged.
fn remove_old(disk: &dyn Disk, folder: &Path, saved: u64, keep_last: usize) -> Result<()> {
    let mut all = list(disk, folder)?;
    all.retain(|(step, _)| *step <= saved);
    let newest_first = all.iter().rev();
    let kept: Vec<&(u64, PathBuf)> =
        newest_first.filter(|(_, path)| parts::is_whole(disk, path)).take(keep_last).collect();
    let Some((oldest, _)) = kept.last() else { return Ok(()) };
    let old: Vec<&PathBuf> =
        all.iter().filter(|(step, _)| step < oldest).map(|(_, path)| path).collect();
    if old.is_empty() {
        return Ok(());
    }
    for (_, path) in kept {
        parts::sync_names(disk, path)?;
    }
    for path in old {
        remove_folder_all(disk, path).map_err(|error| Error::io("remove", path, &error))?;
    }
    Ok(())
}
