//! Checkpoints: named tensors with the step at which they were saved.
//!
//! A path that ends in `.safetensors` or `.npz` is one file, as other programs write and read it. A
//! `.npz` file keeps neither the step nor the entries, and files of other programs have none: their
//! step is 0. Any other path is a folder:
//!
//! ```text
//! folder/
//!   checkpoint.json                   which files belong together, their sizes and checksums, step
//!   tensors-000003-000.safetensors    save number 3, part 0: see `safetensors.rs`
//!   program-000003.pb                 with `save_model`
//! ```
//!
//! A save writes new files under new names and replaces `checkpoint.json`; at that moment the
//! checkpoint changes. Then it removes the files of the previous save. A failure before the
//! replacement leaves the old checkpoint unchanged. Only one process at a time may save to a
//! folder.
//!
//! A checksum covers every byte of a folder, and of a `.safetensors` file that Fleet wrote.
//! `checkpoint.json` has its own (`crc32`, computed with eight zeros
//! in its place) and those of the other files. A part has one for its header and one for each
//! tensor.

use crate::npz;
use crate::safetensors::{self, FileSum, Reader};
use crate::source::{
    DAMAGED_FILE_HELP, NamedTensors, Source, TensorInfo, check_distinct, describe, finder,
    info_bytes,
};
use fleet_base::disk::{Disk, PathKind, RealDisk, exists, make_folder, read_file};
use fleet_base::file::{AtomicFile, TEMPORARY_SUFFIX};
use fleet_base::{Error, Result, text};
use fleet_tensor::Tensor;
use serde_json::{Map, Value};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Data stored beside the tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Number of completed training steps.
    pub step: u64,
    /// Any entries that the caller wants to store.
    pub entries: BTreeMap<String, String>,
}

/// A checkpoint, or some tensors of one.
#[derive(Debug)]
pub struct Checkpoint {
    /// The tensors, in the order of the files.
    pub tensors: NamedTensors,
    /// The data stored beside the tensors.
    pub meta: Meta,
}

/// Saves tensors. Replaces the checkpoint at `path` after all data is on disk.
pub fn save_tensors<'t>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'t str, &'t Tensor)>,
    meta: &Meta,
) -> Result<()> {
    save_tensors_on(&RealDisk::handle(), path, tensors, meta)
}

/// Like [`save_tensors`], on any disk.
pub fn save_tensors_on<'t>(
    disk: &Arc<dyn Disk>,
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'t str, &'t Tensor)>,
    meta: &Meta,
) -> Result<()> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    let path = path.as_ref();
    if has_extension(path, NPZ) {
        return npz::write(disk, path, &tensors);
    }
    if has_extension(path, SAFETENSORS) {
        let infos = describe(&tensors)?;
        return safetensors::write(disk, path, &infos, &file_meta(meta), finder(&tensors))
            .map(drop);
    }
    save_folder(disk, path, &tensors, None, meta, PART_BYTES_MAX)
}

/// Saves tensors that `read` returns, one at a time, in any of the forms of [`save_tensors`].
///
/// ```
/// # use fleet_base::disk::RealDisk;
/// # use fleet_tensor::{DType, Tensor};
/// # use fleet_format::{TensorInfo, save_streamed_on};
/// # let file = std::env::temp_dir().join(format!("fleet-{}.npz", std::process::id()));
/// let named = |name: &str| TensorInfo { name: name.into(), dtype: DType::F32, shape: [2].into() };
/// let infos = [named("a"), named("b")];
/// let read = |info: &TensorInfo| Tensor::zeros(info.dtype, info.shape);
/// save_streamed_on(&RealDisk::handle(), &file, &infos, &Default::default(), read)?;
/// assert_eq!(fleet_format::load_tensors(&file)?.tensors.len(), 2);
/// # std::fs::remove_file(&file).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn save_streamed_on(
    disk: &Arc<dyn Disk>,
    path: impl AsRef<Path>,
    infos: &[TensorInfo],
    meta: &Meta,
    read: impl FnMut(&TensorInfo) -> Result<Tensor>,
) -> Result<()> {
    let path = path.as_ref();
    if has_extension(path, NPZ) {
        return npz::write_streamed(disk, path, infos, read);
    }
    if has_extension(path, SAFETENSORS) {
        return safetensors::write(disk, path, infos, &file_meta(meta), read).map(drop);
    }
    save_parts(disk, path, infos, None, meta, PART_BYTES_MAX, read)
}

/// Loads every tensor, or none on an error.
pub fn load_tensors(path: impl AsRef<Path>) -> Result<Checkpoint> {
    load_tensors_on(&RealDisk, path)
}

/// Like [`load_tensors`], on any disk.
pub fn load_tensors_on(disk: &dyn Disk, path: impl AsRef<Path>) -> Result<Checkpoint> {
    load_where_on(disk, path, |_| true)
}

/// Loads the tensors for whose names `which` returns true, without keeping the others.
///
/// ```
/// # use fleet_base::disk::RealDisk;
/// # use fleet_tensor::Tensor;
/// # let folder = std::env::temp_dir().join(format!("fleet-where-doc-{}", std::process::id()));
/// let tensor = Tensor::from_slice(&[1.0f32], [1])?;
/// fleet_format::save_tensors(&folder, [("a", &tensor), ("b", &tensor)], &Default::default())?;
/// let found = fleet_format::load_where_on(&RealDisk, &folder, |name| name == "b")?;
/// assert_eq!(found.tensors.len(), 1);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn load_where_on(
    disk: &dyn Disk,
    path: impl AsRef<Path>,
    which: impl Fn(&str) -> bool,
) -> Result<Checkpoint> {
    if is_npz(disk, path.as_ref())? {
        let mut tensors = npz::read(disk, path.as_ref())?;
        tensors.retain(|(name, _)| which(name));
        return Ok(Checkpoint { tensors, meta: Meta::default() });
    }
    OpenCheckpoint::new(disk, path.as_ref())?.read(which)
}

/// Loads the tensors of these names, in this order, without reading the others.
pub fn load_vars(path: impl AsRef<Path>, names: &[impl AsRef<str>]) -> Result<Checkpoint> {
    let path = path.as_ref();
    if is_npz(&RealDisk, path)? {
        let mut held: BTreeMap<String, Tensor> = npz::read(&RealDisk, path)?.into_iter().collect();
        check_distinct(names.iter().map(|name| name.as_ref()))?;
        let mut take = |name: &str| match held.remove(name) {
            Some(tensor) => Ok((name.to_string(), tensor)),
            None => Err(missing(path, name, held.keys())),
        };
        let tensors = names.iter().map(|name| take(name.as_ref())).collect::<Result<_>>()?;
        return Ok(Checkpoint { tensors, meta: Meta::default() });
    }
    let mut opened = OpenCheckpoint::new(&RealDisk, path)?;
    let mut places = BTreeMap::new();
    for (part, reader) in opened.parts.iter().enumerate() {
        for entry in &reader.entries {
            places.insert(entry.name.clone(), (part, entry.clone()));
        }
    }
    // Checks all names first: a wrong one is reported before gigabytes are read.
    let find = |name: &str| places.get(name).ok_or_else(|| missing(path, name, places.keys()));
    let found: Vec<_> = names.iter().map(|name| find(name.as_ref())).collect::<Result<_>>()?;
    let mut tensors = Vec::with_capacity(found.len());
    for (part, entry) in found {
        tensors.push((entry.name.clone(), opened.parts[*part].read(entry)?));
    }
    Ok(Checkpoint { tensors, meta: opened.meta })
}

fn missing<'n>(path: &Path, name: &str, held: impl Iterator<Item = &'n String>) -> Error {
    let hint = text::did_you_mean(name, held.map(String::as_str));
    Error::invalid(format!("the checkpoint has no tensor '{name}'{hint}")).at(path.display())
}

/// Lists the tensors of a checkpoint without reading them; those of a `.npz` file are read.
pub fn list_tensors(path: impl AsRef<Path>) -> Result<(Vec<TensorInfo>, Meta)> {
    list_tensors_on(&RealDisk, path)
}

/// Like [`list_tensors`], on any disk.
pub fn list_tensors_on(disk: &dyn Disk, path: impl AsRef<Path>) -> Result<(Vec<TensorInfo>, Meta)> {
    if is_npz(disk, path.as_ref())? {
        let tensors = npz::read(disk, path.as_ref())?;
        let infos = tensors.into_iter().map(|(name, tensor)| TensorInfo {
            name,
            dtype: tensor.dtype(),
            shape: *tensor.shape(),
        });
        return Ok((infos.collect(), Meta::default()));
    }
    let opened = OpenCheckpoint::new(disk, path.as_ref())?;
    let entries = opened.parts.iter().flat_map(|part| &part.entries);
    let infos = entries.map(|entry| TensorInfo {
        name: entry.name.clone(),
        dtype: entry.dtype,
        shape: entry.shape,
    });
    Ok((infos.collect(), opened.meta))
}

/// The progress of saves to a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveState {
    /// No save has left any data.
    Empty,
    /// The first save has begun; its process has died or is still writing.
    Begun,
    /// A save was completed. It may be damaged, and its manifest may be missing.
    Finished,
}

/// Returns the progress of saves to a folder, which need not exist.
///
/// ```
/// use fleet_base::disk::RealDisk;
/// use fleet_format::{SaveState, save_state_on};
/// let folder = std::env::temp_dir().join(format!("fleet-begun-doc-{}", std::process::id()));
/// assert_eq!(save_state_on(&RealDisk, &folder)?, SaveState::Empty);
/// fleet_format::save_tensors(&folder, [], &Default::default())?;
/// assert_eq!(save_state_on(&RealDisk, &folder)?, SaveState::Finished);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn save_state_on(disk: &dyn Disk, path: impl AsRef<Path>) -> Result<SaveState> {
    let path = path.as_ref();
    let names = match disk.list(path) {
        Ok(names) => names,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(SaveState::Empty),
        Err(error) => return Err(Error::io("list", path, &error)),
    };
    let is_there = |check: &dyn Fn(&str) -> bool| names.iter().any(|name| check(name));
    let begun = format!(".{MANIFEST}.");
    Ok(if is_there(&|name| name == MANIFEST) {
        SaveState::Finished
    } else if is_there(&|name| name.starts_with(&begun) && name.ends_with(TEMPORARY_SUFFIX)) {
        SaveState::Begun
    } else if is_there(&|name| save_number(name).is_some()) {
        SaveState::Finished
    } else {
        SaveState::Empty
    })
}

/// Limit of the bytes of tensors in one file of a folder; a larger tensor gets its own file.
pub(crate) const PART_BYTES_MAX: u64 = 4 << 30;

/// Limit of the bytes of `checkpoint.json`.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;

pub(crate) const MANIFEST: &str = "checkpoint.json";

const MANIFEST_VERSION: &str = "{\n  \"fleet_checkpoint\": ";
/// Start of the manifest; its checksum follows.
const MANIFEST_START: &str = "{\n  \"fleet_checkpoint\": 1,\n  \"crc32\": \"";
const MANIFEST_ZEROS: &str = "00000000";

const NPZ: &str = "npz";
const SAFETENSORS: &str = "safetensors";

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// Returns whether the path is a `.npz` file. A folder may have such a name, too.
fn is_npz(disk: &dyn Disk, path: &Path) -> Result<bool> {
    let kind = || disk.kind(path).map_err(|error| Error::io("open", path, &error));
    Ok(has_extension(path, NPZ) && kind()? != PathKind::Folder)
}

// One file

/// Encodes step and entries for the metadata of a safetensors header.
fn file_meta(meta: &Meta) -> BTreeMap<String, String> {
    let entries = meta.entries.iter().map(|(key, value)| (format!("{ENTRY}{key}"), value.clone()));
    entries.chain([(STEP.to_string(), meta.step.to_string())]).collect()
}

const STEP: &str = "fleet.step";
const ENTRY: &str = "fleet.meta:";

/// Reads the metadata of a safetensors header. Files of other programs have no step.
fn read_file_meta(path: &Path, free: &BTreeMap<String, String>) -> Result<Meta> {
    let step = free.get(STEP).map_or(Ok(0), |step| step.parse()).map_err(|error| {
        Error::invalid(format!("the step of the safetensors file is not a number: {error}"))
            .at(path.display())
    })?;
    let entries = free
        .iter()
        .filter_map(|(key, value)| Some((key.strip_prefix(ENTRY)?.to_string(), value.clone())));
    Ok(Meta { step, entries: entries.collect() })
}

// Folders

/// A checkpoint whose parts are open and belong together.
pub(crate) struct OpenCheckpoint {
    path: PathBuf,
    pub parts: Vec<Reader>,
    program: Option<ManifestEntry>,
    pub meta: Meta,
}

impl OpenCheckpoint {
    pub fn new(disk: &dyn Disk, path: &Path) -> Result<OpenCheckpoint> {
        if path.ends_with(MANIFEST) {
            return Err(Error::invalid(format!("{MANIFEST} is the manifest of a checkpoint"))
                .at(path.display())
                .help("pass the folder that contains it"));
        }
        let kind = disk.kind(path).map_err(|error| Error::io("open", path, &error))?;
        if kind != PathKind::Folder {
            let reader = Reader::open(disk, path)?;
            let meta = read_file_meta(path, &reader.meta)?;
            let path = path.to_path_buf();
            return Ok(OpenCheckpoint { path, parts: vec![reader], program: None, meta });
        }
        let Manifest { meta, program, parts: listed } = Manifest::read(disk, path)?;
        let mut parts = Vec::with_capacity(listed.len());
        for file in &listed {
            parts.push(file.open_tensors(disk, path)?);
        }
        let names = parts.iter().flat_map(|part| &part.entries).map(|entry| entry.name.as_str());
        check_distinct(names).map_err(|error| error.at(path.display()))?;
        Ok(OpenCheckpoint { path: path.to_path_buf(), parts, program, meta })
    }

    pub fn read_all(self) -> Result<Checkpoint> {
        self.read(|_| true)
    }

    /// Reads the tensors for whose names `which` returns true.
    fn read(mut self, which: impl Fn(&str) -> bool) -> Result<Checkpoint> {
        let mut tensors = Vec::new();
        for part in &mut self.parts {
            tensors.append(&mut part.read_where(&which)?);
        }
        Ok(Checkpoint { tensors, meta: self.meta })
    }

    /// Returns the bytes of the program that was saved with the tensors, and the path of its file.
    pub fn read_program(&self, disk: &dyn Disk, bytes_max: u64) -> Result<(Vec<u8>, PathBuf)> {
        let Some(file) = &self.program else {
            return Err(Error::invalid("the checkpoint has tensors but no program")
                .at(self.path.display())
                .help("save a program together with its tensors"));
        };
        let path = self.path.join(&file.name);
        let bytes = Source::open_on(disk, &path).and_then(|mut file| file.read_all(bytes_max));
        let bytes = bytes.map_err(|error| error.or_help(DAMAGED_FILE_HELP))?;
        let found = FileSum { bytes: bytes.len() as u64, crc32: crc32fast::hash(&bytes) };
        check_sum(&path, file.sum, Some(found))?;
        Ok((bytes, path))
    }
}

pub(crate) fn check_sum(path: &Path, expected: FileSum, found: Option<FileSum>) -> Result<()> {
    let Some(found) = found.filter(|found| *found != expected) else {
        return Ok(());
    };
    let shown = |sum: FileSum| format!("{} bytes, checksum {:08x}", sum.bytes, sum.crc32);
    Err(Error::invalid(format!("file does not match {MANIFEST}"))
        .expected(shown(expected))
        .got(shown(found))
        .at(path.display())
        .help(DAMAGED_FILE_HELP))
}

/// An entry of the manifest: a file of a checkpoint.
pub(crate) struct ManifestEntry {
    pub name: String,
    pub sum: FileSum,
}

impl ManifestEntry {
    /// Opens a file of tensors, and checks its header.
    pub fn open_tensors(&self, disk: &dyn Disk, folder: &Path) -> Result<Reader> {
        let path = folder.join(&self.name);
        let part = Reader::open(disk, &path).and_then(Reader::require_checksums);
        let part = part.map_err(|error| error.or_help(DAMAGED_FILE_HELP))?;
        check_sum(&path, self.sum, part.sum)?;
        Ok(part)
    }
}

/// The content of `checkpoint.json`.
pub(crate) struct Manifest {
    pub meta: Meta,
    pub program: Option<ManifestEntry>,
    pub parts: Vec<ManifestEntry>,
}

pub(crate) fn save_folder(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    tensors: &[(&str, &Tensor)],
    program: Option<&[u8]>,
    meta: &Meta,
    part_bytes_max: u64,
) -> Result<()> {
    let (infos, read) = (describe(tensors)?, finder(tensors));
    save_parts(disk, folder, &infos, program, meta, part_bytes_max, read)
}

fn save_parts<T: Borrow<Tensor>>(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    infos: &[TensorInfo],
    program: Option<&[u8]>,
    meta: &Meta,
    part_bytes_max: u64,
    mut read: impl FnMut(&TensorInfo) -> Result<T>,
) -> Result<()> {
    let parts = cut(infos, part_bytes_max)?;
    make_folder(&**disk, folder)?;
    let save = next_save(&**disk, folder)?;
    // This temporary file marks that a save has begun. It exists before all other files, even after
    // a power failure.
    let path = folder.join(MANIFEST);
    let list = AtomicFile::create_on(disk, &path)?;
    disk.sync_folder(folder).map_err(|error| Error::io("flush", folder, &error))?;
    let mut manifest = Manifest { meta: meta.clone(), program: None, parts: Vec::new() };
    let mut written = UnfinishedSave { disk, folder, list, names: Vec::new(), keep: false };
    if let Some(bytes) = program {
        let name = format!("program-{save:06}.pb");
        written.names.push(name.clone());
        AtomicFile::write_on(disk, &folder.join(&name), bytes)?;
        let sum = FileSum { bytes: bytes.len() as u64, crc32: crc32fast::hash(bytes) };
        manifest.program = Some(ManifestEntry { name, sum });
    }
    for (index, part) in parts.iter().enumerate() {
        let name = format!("tensors-{save:06}-{index:03}.safetensors");
        written.names.push(name.clone());
        let sum = safetensors::write(disk, &folder.join(&name), part, &BTreeMap::new(), &mut read)?;
        manifest.parts.push(ManifestEntry { name, sum });
    }
    let text = manifest.to_text();
    let put = written.list.write_all(text.as_bytes());
    put.map_err(|error| written.list.error("write", &error))?;
    if let Err(error) = written.list.put() {
        written.keep = may_be_committed(&**disk, &path, &text);
        return Err(error);
    }
    written.keep = true;
    remove_old_files(&**disk, folder, &written.names);
    Ok(())
}

/// Divides the tensors among files. There is always at least one file, which distinguishes a lost
/// manifest from a save that never happened. Invalid tensors are rejected here, before anything is
/// written.
fn cut(infos: &[TensorInfo], part_bytes_max: u64) -> Result<Vec<&[TensorInfo]>> {
    check_distinct(infos.iter().map(|info| info.name.as_str()))?;
    let (mut parts, mut start, mut room) = (Vec::new(), 0, part_bytes_max);
    for (at, info) in infos.iter().enumerate() {
        let bytes = info_bytes(info)?;
        if at > start && bytes > room {
            parts.push(&infos[start..at]);
            (start, room) = (at, part_bytes_max);
        }
        room = room.saturating_sub(bytes);
    }
    parts.push(&infos[start..]);
    Ok(parts)
}

/// Returns whether a manifest whose commit failed may be in place nevertheless. The files that it
/// names must then stay.
fn may_be_committed(disk: &dyn Disk, path: &Path, text: &str) -> bool {
    match read_file(disk, path, MANIFEST_BYTES_MAX) {
        Ok(found) => found.is_some_and(|found| found == text.as_bytes()),
        Err(_) => true,
    }
}

/// Files of an unfinished save; dropping it removes them.
struct UnfinishedSave<'f> {
    disk: &'f Arc<dyn Disk>,
    folder: &'f Path,
    list: AtomicFile,
    names: Vec<String>,
    keep: bool,
}

impl Drop for UnfinishedSave<'_> {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        for name in &self.names {
            let _ = self.disk.remove(&self.folder.join(name));
        }
        // The manifest's temporary file marks that a save has begun, so it is removed only after
        // the removal of all other files is on disk.
        let is_empty = |names: Vec<String>| !names.iter().any(|name| self.names.contains(name));
        let is_gone = self.disk.list(self.folder).is_ok_and(is_empty);
        if !is_gone || self.disk.sync_folder(self.folder).is_err() {
            self.list.leave();
        }
    }
}

/// Returns a number above those of all files that saves have left in the folder.
fn next_save(disk: &dyn Disk, folder: &Path) -> Result<u64> {
    let names = disk.list(folder).map_err(|error| Error::io("list", folder, &error))?;
    let numbers = names.iter().filter_map(|name| save_number(name));
    Ok(numbers.max().map_or(1, |last| last.saturating_add(1)))
}

/// Returns the number of the save that a checkpoint's file belongs to; `None` for other files.
fn save_number(name: &str) -> Option<u64> {
    let rest = name
        .strip_prefix("tensors-")
        .filter(|_| name.ends_with(".safetensors"))
        .or_else(|| name.strip_prefix("program-").filter(|_| name.ends_with(".pb")))?;
    rest.split(['-', '.']).next()?.parse().ok()
}

/// Removes the files of earlier saves. A file that remains does no harm.
fn remove_old_files(disk: &dyn Disk, folder: &Path, keep: &[String]) {
    for name in disk.list(folder).unwrap_or_default() {
        let leftover = name.strip_prefix('.').filter(|name| name.ends_with(TEMPORARY_SUFFIX));
        let ours = match leftover {
            Some(name) => ["tensors-", "program-", MANIFEST].iter().any(|it| name.starts_with(it)),
            None => save_number(&name).is_some() && !keep.contains(&name),
        };
        if ours {
            let _ = disk.remove(&folder.join(name));
        }
    }
}

impl Manifest {
    fn to_text(&self) -> String {
        let listed = |file: &ManifestEntry| {
            let sum = format!("{:08x}", file.sum.crc32);
            serde_json::json!({"file": file.name, "bytes": file.sum.bytes, "crc32": sum})
        };
        let body = serde_json::json!({
            "step": self.meta.step,
            "meta": self.meta.entries,
            "program": self.program.as_ref().map(listed),
            "files": self.parts.iter().map(listed).collect::<Vec<_>>(),
        });
        let body = format!("{body:#}");
        let body = body.strip_prefix('{').unwrap_or(&body);
        let text = format!("{MANIFEST_START}{MANIFEST_ZEROS}\",{body}\n");
        let sum = format!("{:08x}", crc32fast::hash(text.as_bytes()));
        format!("{MANIFEST_START}{sum}\",{body}\n")
    }

    pub fn read(disk: &dyn Disk, folder: &Path) -> Result<Manifest> {
        let path = folder.join(MANIFEST);
        if save_state_on(disk, folder)? == SaveState::Begun {
            return Err(Error::invalid(
                "the folder has no checkpoint: its first save was not finished",
            )
            .at(folder.display())
            .help("load another save"));
        }
        let text = match Source::open_on(disk, &path) {
            Ok(mut file) => file.read_all(MANIFEST_BYTES_MAX)?,
            Err(error) => {
                let is_missing = !exists(disk, &path).unwrap_or(true);
                return Err(match is_missing {
                    true => {
                        Error::invalid(format!("the folder has no checkpoint: no {MANIFEST} in it"))
                            .at(folder.display())
                    }
                    false => error,
                }
                .or_help(DAMAGED_FILE_HELP));
            }
        };
        Manifest::parse(text).map_err(|error| error.at(path.display()).or_help(DAMAGED_FILE_HELP))
    }

    fn parse(mut text: Vec<u8>) -> Result<Manifest> {
        let place = MANIFEST_START.len()..MANIFEST_START.len() + MANIFEST_ZEROS.len();
        if !text.starts_with(MANIFEST_START.as_bytes()) || text.len() < place.end {
            let version = text.strip_prefix(MANIFEST_VERSION.as_bytes()).unwrap_or_default();
            let version: String =
                version.iter().map_while(|it| it.is_ascii_digit().then_some(*it as char)).collect();
            let wrong =
                Error::invalid("not the manifest of a checkpoint").expected("fleet_checkpoint 1");
            return Err(match &version[..] {
                "" | "1" => wrong,
                version => wrong.got(format!("fleet_checkpoint {version}")).help(
                    "load it with the version of Fleet that wrote it, \
                         and save it as safetensors",
                ),
            });
        }
        let sum = String::from_utf8_lossy(&text[place.clone()]).into_owned();
        text[place].copy_from_slice(MANIFEST_ZEROS.as_bytes());
        let found = format!("{:08x}", crc32fast::hash(&text));
        if sum != found {
            return Err(Error::invalid("the checkpoint's manifest is damaged")
                .expected(format!("checksum {sum}"))
                .got(found));
        }
        let broken =
            |what: &str| Error::invalid(format!("the checkpoint's manifest has no {what}"));
        let json: Map<String, Value> = serde_json::from_slice(&text).map_err(|error| {
            Error::invalid(format!("the checkpoint's manifest is invalid: {error}"))
        })?;
        let step = json.get("step").and_then(Value::as_u64).ok_or_else(|| broken("step"))?;
        let entries = json.get("meta").and_then(Value::as_object).ok_or_else(|| broken("meta"))?;
        let entries = entries
            .iter()
            .map(|(key, value)| Some((key.clone(), value.as_str()?.to_string())))
            .collect::<Option<_>>()
            .ok_or_else(|| broken("meta with string values"))?;
        let program = match json.get("program") {
            None | Some(Value::Null) => None,
            Some(file) => Some(read_entry(file).ok_or_else(|| broken("valid program entry"))?),
        };
        let files = json.get("files").and_then(Value::as_array).ok_or_else(|| broken("files"))?;
        let parts = files.iter().map(read_entry).collect::<Option<_>>();
        let parts = parts.ok_or_else(|| broken("valid file entries"))?;
        Ok(Manifest { meta: Meta { step, entries }, program, parts })
    }
}

/// Reads an entry of the manifest. Only names that a save generates are valid, so an entry cannot
/// refer to a file outside the folder.
fn read_entry(value: &Value) -> Option<ManifestEntry> {
    let name = value.get("file")?.as_str()?;
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    save_number(name).filter(|_| plain)?;
    let bytes = value.get("bytes")?.as_u64()?;
    let crc32 = u32::from_str_radix(value.get("crc32")?.as_str()?, 16).ok()?;
    Some(ManifestEntry { name: name.to_string(), sum: FileSum { bytes, crc32 } })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part holds tensors up to its limit, a larger tensor has its own part, and a missing part
    /// is reported.
    #[test]
    fn large_checkpoints_have_several_parts() {
        let folder =
            std::env::temp_dir().join(format!("fleet-format-parts-{}", std::process::id()));
        let tensors: Vec<(String, Tensor)> = [10, 10, 30, 10, 0, 15]
            .iter()
            .enumerate()
            .map(|(index, len)| {
                let values = vec![index as u8; *len as usize];
                (format!("t{index}"), Tensor::from_slice(&values, [*len]).expect("it fits"))
            })
            .collect();
        let refs: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        save_folder(&RealDisk::handle(), &folder, &refs, None, &Meta::default(), 20)
            .expect("it can be saved");
        let manifest = Manifest::read(&RealDisk, &folder).expect("a manifest");
        assert_eq!(manifest.parts.len(), 4, "10 + 10, 30, 10 + 0, 15");
        let loaded = load_tensors(&folder).expect("it can be loaded");
        for ((name, tensor), (loaded_name, loaded)) in tensors.iter().zip(&loaded.tensors) {
            assert_eq!((name, tensor.as_bytes()), (loaded_name, loaded.as_bytes()));
        }
        let some = load_vars(&folder, &["t5", "t0"]).expect("both tensors exist");
        assert_eq!(some.tensors[0].1.as_bytes(), [5; 15]);
        std::fs::remove_file(folder.join(&manifest.parts[1].name)).expect("the part exists");
        let error = load_tensors(&folder).expect_err("a part is missing").to_string();
        assert!(error.contains("tensors-000001-001.safetensors"), "{error}");
        let _ = std::fs::remove_dir_all(&folder);
    }
}
