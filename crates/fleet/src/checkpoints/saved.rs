//! Checkpoints without their program: their contents, whether they are intact, and conversions to
//! files of other programs and to another number of ranks.
//!
//! A conversion reads and writes one variable at a time. Of variables that every rank has its own
//! value of, the values of all ranks are in memory together.

use super::parts::{self, CommonMeta, LOCAL, Parts, RANKS, RUN, STEP, Wanted, kept_entries};
use super::survey::{Held, SavedVar, survey};
use super::{PREFIX, list};
use crate::slices::Divisions;
use fleet_base::disk::{Disk, PathKind, RealDisk, exists, remove_folder_all};
use fleet_base::{Error, Result};
use fleet_format::{
    Damage, Meta, SaveState, TensorInfo, find_damage_on, save_state_on, save_streamed_on,
};
use fleet_strategy::Spread;
use fleet_tensor::Tensor;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A checkpoint of a job, or a save of a model, whose variables are known and not loaded.
///
/// ```
/// # use fleet::prelude::*;
/// # use fleet::{CheckpointPolicy, Checkpoints, Held, SavedCheckpoint, VerifyState};
/// # let folder = std::env::temp_dir().join(format!("fleet-saved-doc-{}", std::process::id()));
/// # let net = Net::new();
/// # net.data("x", [-1, 2], DType::F32).fc(1);
/// # let session = Session::new(net.build()?, ExecOptions::default())?;
/// let mut checkpoints = Checkpoints::open(folder.join("job"), CheckpointPolicy::default())?;
/// checkpoints.save(5, &session.programs.main, &session.scope, Default::default())?;
/// checkpoints.finish()?;
///
/// let saved = SavedCheckpoint::open(folder.join("job"), None)?;
/// assert_eq!((saved.step(), saved.ranks()), (5, 1));
/// assert_eq!((&saved.vars()[1].name[..], &saved.vars()[1].held), ("fc_0.w_0", &Held::Common));
/// saved.convert_to_file(folder.join("model.npz"))?;
/// saved.convert_to_ranks(folder.join("two"), 2)?;
///
/// let found = fleet::verify_checkpoints(folder.join("two"))?;
/// assert!(matches!(found[0].state, VerifyState::Intact { variable_count: 2, .. }));
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct SavedCheckpoint {
    disk: Arc<dyn Disk>,
    parts: Parts,
    step: u64,
    vars: Vec<SavedVar>,
}

impl SavedCheckpoint {
    /// Opens the checkpoint in a folder. Of a job's folder, opens that of a step or, without one,
    /// the newest one that is complete.
    pub fn open(folder: impl AsRef<Path>, step: Option<u64>) -> Result<SavedCheckpoint> {
        SavedCheckpoint::open_on(RealDisk::handle(), folder.as_ref(), step)
    }

    pub(super) fn open_on(
        disk: Arc<dyn Disk>,
        folder: &Path,
        step: Option<u64>,
    ) -> Result<SavedCheckpoint> {
        let path = choose(&*disk, folder, step)?;
        if let Some(reason) = why_unfinished(&*disk, &path)? {
            return Err(unfinished(&path, &reason));
        }
        let parts = Parts::open(&*disk, &path)?;
        let (vars, faults) = survey(&parts);
        if let Some(Damage { file, tensor, error }) = faults.into_iter().next() {
            let error = tensor.iter().fold(error, |error, (name, ..)| error.at(name));
            return Err(error.at(file.display()));
        }
        let step = job_step(&parts);
        Ok(SavedCheckpoint { disk, parts, step, vars })
    }

    /// Returns its folder.
    pub fn path(&self) -> &Path {
        &self.parts.path
    }

    /// Returns the number of completed steps of the job.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns the number of ranks that saved.
    pub fn ranks(&self) -> usize {
        self.parts.head.ranks
    }

    /// Returns the number of neighbouring ranks that divide layers; 1 if each has whole layers.
    pub fn layer_ranks(&self) -> usize {
        self.parts.head.layers
    }

    /// Returns the bytes of all files of tensors.
    pub fn bytes(&self) -> u64 {
        let ranks = self.parts.ranks.iter().map(|part| part.index.bytes());
        ranks.fold(self.parts.common.bytes(), u64::saturating_add)
    }

    /// Returns the variables, by name.
    pub fn vars(&self) -> &[SavedVar] {
        &self.vars
    }

    /// Writes the whole model, as one process has it, to a file that does not exist yet: `.npz` or
    /// `.safetensors` by its name.
    pub fn convert_to_file(&self, out: impl AsRef<Path>) -> Result<()> {
        let out = out.as_ref();
        if !is_file_name(out) {
            return Err(Error::invalid("unknown form of the converted model")
                .expected("a name that ends in .npz or .safetensors")
                .got(out.display())
                .help("for a checkpoint, give the number of ranks"));
        }
        refuse_to_overwrite(&*self.disk, out)?;
        let meta = Meta { step: self.parts.common.meta().step, ..Meta::default() };
        self.write(out, self.vars.iter(), &meta, (0, 1))
    }

    /// Writes a checkpoint of a job of `ranks` ranks to a job's folder that does not exist yet.
    /// Variables of which ranks had parts become whole. Any layout of these ranks loads them.
    pub fn convert_to_ranks(&self, out: impl AsRef<Path>, ranks: usize) -> Result<()> {
        let out = out.as_ref();
        if !(1..=parts::RANKS_MAX).contains(&ranks) {
            return Err(Error::invalid("invalid number of ranks")
                .expected(format!("1 to {}", parts::RANKS_MAX))
                .got(ranks));
        }
        if is_file_name(out) {
            return Err(Error::invalid("a checkpoint of several ranks is a folder")
                .got(out.display())
                .help("use another name, or leave out the number of ranks"));
        }
        refuse_to_overwrite(&*self.disk, out)?;
        let written = self.write_ranks(out, ranks);
        if written.is_err() {
            // The first error counts. A part that remains is not a checkpoint.
            let _ = remove_folder_all(&*self.disk, out);
        }
        written
    }

    /// Writes the parts of all ranks, and last the common part, which makes them a checkpoint.
    fn write_ranks(&self, out: &Path, ranks: usize) -> Result<()> {
        let path = out.join(format!("{PREFIX}{:012}", self.step));
        let step = (STEP.to_string(), self.step.to_string());
        let meta = |entries: BTreeMap<String, String>| Meta {
            step: self.parts.common.meta().step,
            entries,
        };
        let mut entries = kept_entries(&self.parts.entries()?);
        entries.extend([step.clone()]);
        if ranks == 1 {
            return self.write(&path, self.vars.iter(), &meta(entries), (0, 1));
        }
        let owners = self.owners(ranks);
        let run = (RUN.to_string(), "converted".to_string());
        let is_common = |var: &&SavedVar| var.held == Held::Common;
        for rank in 0..ranks {
            let own = self.vars.iter().filter(|var| {
                let owner = owners.get(var.name.as_str());
                !is_common(var) && owner.is_none_or(|owner| *owner == rank)
            });
            let meta = meta([step.clone(), run.clone()].into());
            self.write(&parts::rank_folder(&path, rank), own, &meta, (rank, ranks))?;
        }
        let local = self.vars.iter().filter_map(|var| {
            let spread = spread(&var.held)?;
            Some(format!("{spread}\t{}", var.name))
        });
        let local = local.collect::<Vec<_>>().join("\n");
        let more = [(RANKS.to_string(), ranks.to_string()), (LOCAL.to_string(), local), run];
        entries.extend(more);
        self.write(&path, self.vars.iter().filter(is_common), &meta(entries), (0, ranks))
    }

    /// Writes some variables as rank `place.0` of `place.1` has them, each as a whole.
    fn write<'v>(
        &self,
        path: &Path,
        vars: impl Iterator<Item = &'v SavedVar>,
        meta: &Meta,
        place: (usize, usize),
    ) -> Result<()> {
        let info = |var: &SavedVar| {
            let SavedVar { name, dtype, shape, .. } = var;
            TensorInfo { name: name.clone(), dtype: *dtype, shape: *shape }
        };
        let infos: Vec<TensorInfo> = vars.map(info).collect();
        let read = |info: &TensorInfo| self.read(&info.name, place);
        save_streamed_on(&self.disk, path, &infos, meta, read)
    }

    /// Reads a whole variable as rank `place.0` of `place.1` has it.
    fn read(&self, name: &str, place: (usize, usize)) -> Result<Tensor> {
        let divided = &Divisions::new();
        let wanted = Wanted { place, names: &[name], local: &[], divided, layers: 1 };
        let found = self.parts.read(&*self.disk, &wanted)?.pop();
        found.map(|(_, tensor)| tensor).ok_or_else(|| {
            let what = format!("the checkpoint has no variable '{name}'");
            Error::internal(what).at(self.path().display())
        })
    }

    /// Chooses the ranks that get whole variables of which only some ranks have values, so that
    /// all have about the same number of bytes.
    fn owners(&self, ranks: usize) -> BTreeMap<&str, usize> {
        let bytes = |var: &SavedVar| {
            let count = var.shape.numel().unwrap_or(0) as u64;
            count.saturating_mul(var.dtype.size() as u64)
        };
        let is_owned = |var: &&SavedVar| spread(&var.held) == Some(Spread::Owner);
        let mut owned: Vec<&SavedVar> = self.vars.iter().filter(is_owned).collect();
        owned.sort_by_key(|var| Reverse(bytes(var)));
        let mut loads: BTreeSet<(u64, usize)> = (0..ranks).map(|rank| (0, rank)).collect();
        let mut owners = BTreeMap::new();
        for var in owned {
            let Some((load, rank)) = loads.pop_first() else { break };
            owners.insert(var.name.as_str(), rank);
            loads.insert((load.saturating_add(bytes(var)), rank));
        }
        owners
    }
}

/// Returns how the values of ranks pass to other ranks; `None` for common variables.
fn spread(held: &Held) -> Option<Spread> {
    match held {
        Held::Common => None,
        Held::Owners(_) | Held::Parts { spread: None, .. } => Some(Spread::Owner),
        Held::Each(spread) | Held::Parts { spread: Some(spread), .. } => Some(*spread),
    }
}

/// The result of a check of one checkpoint.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Folder of the checkpoint.
    pub path: PathBuf,
    /// Its state.
    pub state: VerifyState,
}

/// The state of a checkpoint.
#[derive(Clone, Debug)]
pub enum VerifyState {
    /// Every byte is as it was written, and the parts of the ranks make up every variable.
    Intact {
        /// Number of variables.
        variable_count: usize,
        /// Bytes of all files of tensors.
        bytes: u64,
    },
    /// A rank was stopped before it had saved, or is still saving: no job resumes from it.
    Unfinished(String),
    /// All faults.
    Damaged(Vec<Damage>),
}

/// Reads and checks every byte of a checkpoint, or of all checkpoints of a job, oldest first.
pub fn verify_checkpoints(folder: impl AsRef<Path>) -> Result<Vec<Verified>> {
    let (disk, folder) = (RealDisk::handle(), folder.as_ref());
    require_folder(&*disk, folder)?;
    let steps: Vec<PathBuf> = list(&*disk, folder)?.into_iter().map(|(_, path)| path).collect();
    let paths = if steps.is_empty() { vec![folder.to_path_buf()] } else { steps };
    let verify = |path: PathBuf| Ok(Verified { state: verify(&*disk, &path)?, path });
    paths.into_iter().map(verify).collect()
}

fn verify(disk: &dyn Disk, path: &Path) -> Result<VerifyState> {
    if let Some(reason) = why_unfinished(disk, path)? {
        return Ok(VerifyState::Unfinished(reason));
    }
    let mut found = find_damage_on(disk, path)?;
    for folder in parts::rank_folders(disk, path)? {
        match find_damage_on(disk, &folder) {
            Ok(mut more) => found.append(&mut more),
            Err(error) => found.push(Damage { file: folder, tensor: None, error }),
        }
    }
    if !found.is_empty() {
        return Ok(VerifyState::Damaged(found));
    }
    let parts = match Parts::open(disk, path) {
        Ok(parts) => parts,
        Err(error) => {
            let damage = Damage { file: path.to_path_buf(), tensor: None, error };
            return Ok(VerifyState::Damaged(vec![damage]));
        }
    };
    let (vars, faults) = survey(&parts);
    if !faults.is_empty() {
        return Ok(VerifyState::Damaged(faults));
    }
    let ranks = parts.ranks.iter().map(|part| part.index.bytes());
    let bytes = ranks.fold(parts.common.bytes(), u64::saturating_add);
    Ok(VerifyState::Intact { variable_count: vars.len(), bytes })
}

/// Returns the checkpoints in the folder of a job, oldest first, and for each of those that no job
/// can resume from the reason. Returns none for the folder of a single checkpoint. Reads no
/// tensors.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("fleet-in-doc-{}", std::process::id()));
/// fleet::Checkpoints::open(&folder, Default::default())?;
/// assert!(fleet::checkpoints_in(&folder)?.is_empty());
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn checkpoints_in(folder: impl AsRef<Path>) -> Result<Vec<(u64, Option<String>)>> {
    let (disk, folder) = (RealDisk::handle(), folder.as_ref());
    require_folder(&*disk, folder)?;
    let state = |(step, path): (u64, PathBuf)| Ok((step, why_unusable(&*disk, &path)?));
    list(&*disk, folder)?.into_iter().map(state).collect()
}

/// Returns the folder of the checkpoint to open.
fn choose(disk: &dyn Disk, folder: &Path, step: Option<u64>) -> Result<PathBuf> {
    require_folder(disk, folder)?;
    let found = list(disk, folder)?;
    let Some((newest, _)) = found.last() else {
        return match step {
            None => Ok(folder.to_path_buf()),
            Some(step) => Err(Error::invalid("not the folder of a job's checkpoints")
                .expected(format!("a folder {PREFIX}{step:012} in it"))
                .at(folder.display())),
        };
    };
    if let Some(step) = step {
        let path = found.iter().find(|(other, _)| *other == step).map(|(_, path)| path.clone());
        return path.ok_or_else(|| {
            let steps: Vec<String> = found.iter().map(|(step, _)| step.to_string()).collect();
            Error::invalid(format!("no checkpoint of step {step}"))
                .expected(format!("step {}", steps.join(", ")))
                .at(folder.display())
        });
    }
    let whole = found.iter().rev().find(|(_, path)| parts::is_whole(disk, path));
    if let Some((_, path)) = whole {
        return Ok(path.clone());
    }
    let mut reasons = Vec::new();
    for (step, path) in &found {
        let reason = why_unusable(disk, path)?.unwrap_or_default();
        reasons.push(format!("step {step}: {reason}"));
    }
    Err(Error::invalid("no complete checkpoint in the folder")
        .got(reasons.join("; "))
        .at(folder.display())
        .help(format!("--step {newest} and fleet checkpoint verify show the newest one")))
}

/// Returns why no job can resume from a checkpoint, without reading its tensors.
fn why_unusable(disk: &dyn Disk, path: &Path) -> Result<Option<String>> {
    if let Some(reason) = why_unfinished(disk, path)? {
        return Ok(Some(format!("unfinished: {reason}")));
    }
    Ok(Parts::open(disk, path).err().map(|error| format!("damaged: {error}")))
}

/// Returns why a checkpoint is unfinished. A folder that no save has written to is none.
fn why_unfinished(disk: &dyn Disk, path: &Path) -> Result<Option<String>> {
    let names = disk.list(path).map_err(|error| Error::io("list", path, &error))?;
    let has_parts = names.iter().any(|name| name.starts_with(parts::RANK_PREFIX));
    match save_state_on(disk, path)? {
        SaveState::Empty if !has_parts => Ok(None),
        _ => parts::why_unfinished(disk, path),
    }
}

fn unfinished(path: &Path, reason: &str) -> Error {
    Error::invalid(format!("the checkpoint is unfinished: {reason}"))
        .at(path.display())
        .help("use an earlier checkpoint of the job")
}

fn require_folder(disk: &dyn Disk, folder: &Path) -> Result<()> {
    match disk.kind(folder).map_err(|error| Error::io("open", folder, &error))? {
        PathKind::Folder => Ok(()),
        _ => Err(Error::invalid("not a checkpoint")
            .expected("the folder of a job's checkpoints, or of one checkpoint")
            .got("a file")
            .at(folder.display())),
    }
}

fn refuse_to_overwrite(disk: &dyn Disk, out: &Path) -> Result<()> {
    match exists(disk, out).map_err(|error| Error::io("open", out, &error))? {
        false => Ok(()),
        true => Err(Error::invalid("the output exists already")
            .at(out.display())
            .help("remove it, or use another name")),
    }
}

fn is_file_name(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "npz" || it == "safetensors")
}

/// Returns the number of completed steps of the job that saved.
fn job_step(parts: &Parts) -> u64 {
    let CommonMeta { step, .. } = &parts.head;
    let stated = step.as_ref().and_then(|step| step.parse().ok());
    let folder = parts.path.file_name().and_then(|name| name.to_str());
    let named = folder.and_then(|it| it.strip_prefix(PREFIX)).and_then(|it| it.parse().ok());
    stated.or(named).unwrap_or(parts.common.meta().step)
}
