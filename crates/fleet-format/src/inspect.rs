//! Checkpoints without loading them: where their tensors are, single tensors, and all damage.

use crate::Meta;
use crate::checkpoint::{MANIFEST, Manifest, ManifestEntry, OpenCheckpoint, check_sum};
use crate::safetensors::{Entry, FileSum, Reader, read_tensor};
use crate::source::{Source, TensorInfo};
use fleet_base::disk::Disk;
use fleet_base::{Error, Result};
use fleet_tensor::{Shape, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where the tensors of a checkpoint are. The headers of its files have been read and checked, the
/// tensors have not.
///
/// ```
/// # use fleet_base::disk::RealDisk;
/// # use fleet_format::CheckpointIndex;
/// # use fleet_tensor::{Shape, Tensor};
/// # let folder = std::env::temp_dir().join(format!("fleet-index-doc-{}", std::process::id()));
/// let w = Tensor::from_slice(&[1.0f32, 2.0], [2])?;
/// fleet_format::save_tensors(&folder, [("w", &w)], &Default::default())?;
/// let index = CheckpointIndex::open_on(&RealDisk, &folder)?;
/// assert_eq!((index.bytes() > 8, index.tensors().count()), (true, 1));
/// assert_eq!(index.read_on(&RealDisk, "w")?.to_vec::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct CheckpointIndex {
    path: PathBuf,
    meta: Meta,
    files: Vec<PathBuf>,
    bytes: u64,
    tensors: BTreeMap<String, (usize, Entry)>,
}

impl CheckpointIndex {
    /// Reads the headers of a checkpoint's files.
    pub fn open_on(disk: &dyn Disk, path: impl AsRef<Path>) -> Result<CheckpointIndex> {
        let path = path.as_ref();
        let OpenCheckpoint { parts, meta, .. } = OpenCheckpoint::new(disk, path)?;
        let (mut files, mut bytes, mut tensors) = (Vec::new(), 0u64, BTreeMap::new());
        for (at, Reader { source, entries, .. }) in parts.into_iter().enumerate() {
            bytes = bytes.saturating_add(source.bytes);
            files.push(source.path);
            tensors.extend(entries.into_iter().map(|entry| (entry.name.clone(), (at, entry))));
        }
        Ok(CheckpointIndex { path: path.to_path_buf(), meta, files, bytes, tensors })
    }

    /// Returns the data stored beside the tensors.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns the bytes of all files of tensors.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = SavedTensor<'_>> {
        self.tensors.values().map(|(file, entry)| SavedTensor { file: &self.files[*file], entry })
    }

    /// Returns one tensor.
    pub fn find(&self, name: &str) -> Option<SavedTensor<'_>> {
        let (file, entry) = self.tensors.get(name)?;
        Some(SavedTensor { file: &self.files[*file], entry })
    }

    /// Reads and checks one tensor.
    pub fn read_on(&self, disk: &dyn Disk, name: &str) -> Result<Tensor> {
        let Some(SavedTensor { file, entry }) = self.find(name) else {
            let what = format!("the checkpoint has no tensor '{name}'");
            return Err(Error::invalid(what).at(self.path.display()));
        };
        read_tensor(&mut Source::open_on(disk, file)?, entry)
    }
}

/// A tensor in a file of a checkpoint.
#[derive(Clone, Copy)]
pub struct SavedTensor<'i> {
    file: &'i Path,
    entry: &'i Entry,
}

impl<'i> SavedTensor<'i> {
    /// Returns its name.
    pub fn name(&self) -> &'i str {
        &self.entry.name
    }

    /// Returns its name, type and shape.
    pub fn info(&self) -> TensorInfo {
        let Entry { name, dtype, shape, .. } = self.entry;
        TensorInfo { name: name.clone(), dtype: *dtype, shape: *shape }
    }

    /// Returns its shape.
    pub fn shape(&self) -> &'i Shape {
        &self.entry.shape
    }

    /// Returns its file.
    pub fn file(&self) -> &'i Path {
        self.file
    }

    /// Returns its first byte in the file.
    pub fn offset(&self) -> u64 {
        self.entry.start
    }

    /// Returns the number of its bytes.
    pub fn bytes(&self) -> u64 {
        self.entry.bytes
    }

    /// Returns the checksum of its bytes, if the file has checksums.
    pub fn crc32(&self) -> Option<u32> {
        self.entry.sum
    }
}

/// A fault in a checkpoint.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The damaged file.
    pub file: PathBuf,
    /// The variable whose bytes are damaged, with the offset of its first byte in the file and the
    /// number of its bytes; `None` if more than one variable may be damaged.
    pub tensor: Option<(String, u64, u64)>,
    /// The fault.
    pub error: Error,
}

/// Reads all bytes of a checkpoint's folder, and returns all faults. A folder without a checkpoint
/// is an error.
///
/// ```
/// # use fleet_base::disk::RealDisk;
/// # use fleet_format::find_damage_on;
/// # use fleet_tensor::{Shape, Tensor};
/// # let folder = std::env::temp_dir().join(format!("fleet-damage-doc-{}", std::process::id()));
/// let w = Tensor::from_slice(&[1.0f32, 2.0], [2])?;
/// fleet_format::save_tensors(&folder, [("w", &w)], &Default::default())?;
/// assert!(find_damage_on(&RealDisk, &folder)?.is_empty());
/// let file = folder.join("tensors-000001-000.safetensors");
/// let mut bytes = std::fs::read(&file).unwrap();
/// *bytes.last_mut().unwrap() ^= 1;
/// std::fs::write(&file, bytes).unwrap();
/// let damage = &find_damage_on(&RealDisk, &folder)?[0];
/// assert_eq!((&damage.file, &damage.tensor.as_ref().unwrap().0[..]), (&file, "w"));
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn find_damage_on(disk: &dyn Disk, folder: impl AsRef<Path>) -> Result<Vec<Damage>> {
    let folder = folder.as_ref();
    let manifest = match Manifest::read(disk, folder) {
        Ok(manifest) => manifest,
        Err(error) if crate::save_state_on(disk, folder)? == crate::SaveState::Finished => {
            return Ok(vec![Damage { file: folder.join(MANIFEST), tensor: None, error }]);
        }
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for file in &manifest.parts {
        damage_of_tensors(disk, folder, file, &mut found);
    }
    if let Some(program) = &manifest.program {
        let file = folder.join(&program.name);
        if let Err(error) = check_bytes(disk, &file, program.sum) {
            found.push(Damage { file, tensor: None, error });
        }
    }
    Ok(found)
}

fn damage_of_tensors(
    disk: &dyn Disk,
    folder: &Path,
    listed: &ManifestEntry,
    found: &mut Vec<Damage>,
) {
    let file = folder.join(&listed.name);
    let mut reader = match listed.open_tensors(disk, folder) {
        Ok(reader) => reader,
        Err(error) => return found.push(Damage { file, tensor: None, error }),
    };
    for entry in reader.entries.clone() {
        if let Err(error) = reader.check(&entry) {
            let tensor = Some((entry.name, entry.start, entry.bytes));
            found.push(Damage { file: file.clone(), tensor, error });
        }
    }
}

/// Compares size and checksum of a file with the manifest.
fn check_bytes(disk: &dyn Disk, path: &Path, expected: FileSum) -> Result<()> {
    let mut source = Source::open_on(disk, path)?;
    let (mut hasher, mut left) = (crc32fast::Hasher::new(), source.bytes);
    let mut buffer = vec![0; CHUNK_BYTES];
    while left > 0 {
        let chunk = &mut buffer[..left.min(CHUNK_BYTES as u64) as usize];
        source.read_exact(chunk)?;
        hasher.update(chunk);
        left -= chunk.len() as u64;
    }
    let sum = FileSum { bytes: source.bytes, crc32: hasher.finalize() };
    check_sum(path, expected, Some(sum))
}

/// Bytes per read: a chunk stays in the cache until its checksum is computed.
const CHUNK_BYTES: usize = 256 << 10;
