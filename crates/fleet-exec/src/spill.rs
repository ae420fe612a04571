//! The file that stores offloaded values.
//!
//! The file is created at the first write and unlinked at once where the system allows it. Then
//! nothing is left behind, however the process ends. A slot keeps its place in the file until a
//! larger value is written to it, so a steady step allocates nothing. Writes go through the
//! system's page cache, which shrinks when memory is short. A folder in memory (tmpfs) saves no
//! memory.

use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_ops::Spill;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The offload file of one executor.
pub(crate) struct FileSpill {
    folder: PathBuf,
    offload: Mutex<OffloadFile>,
}

#[derive(Default)]
struct OffloadFile {
    file: Option<File>,
    /// Path of the file if it could not be unlinked while open.
    path: Option<PathBuf>,
    slots: HashMap<u64, Region>,
    end: u64,
}

/// The place of a slot in the file: its capacity, and the size of its value (`bytes`).
#[derive(Clone, Copy)]
struct Region {
    offset: u64,
    capacity: u64,
    bytes: u64,
}

impl FileSpill {
    /// Returns a store in `folder`, or in the system's folder for temporary files.
    pub fn new(folder: Option<&Path>) -> FileSpill {
        let folder = folder.map_or_else(std::env::temp_dir, Path::to_path_buf);
        FileSpill { folder, offload: Mutex::default() }
    }

    fn with<T>(&self, act: impl FnOnce(&mut OffloadFile) -> std::io::Result<T>) -> Result<T> {
        let mut offload = lock(&self.offload);
        if offload.file.is_none() {
            offload.open(&self.folder)?;
        }
        act(&mut offload).map_err(|error| {
            Error::io("use", &self.folder, &error).help(
                "set ExecOptions::offload_folder to another folder; recompute offload writes there",
            )
        })
    }
}

/// Number of the next file, to give the files of one process different names.
static FILES: AtomicU64 = AtomicU64::new(0);

impl OffloadFile {
    fn open(&mut self, folder: &Path) -> Result<()> {
        let number = FILES.fetch_add(1, Relaxed);
        let path = folder.join(format!(".fleet-offload-{}-{number}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        self.file = Some(file.map_err(|error| {
            Error::io("create", &path, &error)
                .help("set ExecOptions::offload_folder to another folder")
        })?);
        if fs::remove_file(&path).is_err() {
            self.path = Some(path);
        }
        Ok(())
    }

    fn seek(&mut self, offset: u64) -> std::io::Result<&mut File> {
        let file = self.file.as_mut().ok_or(std::io::ErrorKind::NotFound)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(file)
    }
}

impl Drop for OffloadFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            self.file = None;
            let _ = fs::remove_file(path);
        }
    }
}

impl Spill for FileSpill {
    fn write(&self, slot: u64, bytes: &[u8]) -> Result<()> {
        let size = bytes.len() as u64;
        self.with(|offload| {
            let held = offload.slots.get(&slot).copied().filter(|region| region.capacity >= size);
            let region = match held {
                Some(region) => Region { bytes: size, ..region },
                None => {
                    let offset = offload.end;
                    offload.end += size;
                    Region { offset, capacity: size, bytes: size }
                }
            };
            offload.slots.insert(slot, region);
            offload.seek(region.offset)?.write_all(bytes)
        })
    }

    fn read(&self, slot: u64, bytes: &mut [u8]) -> Result<()> {
        let region = self.with(|offload| Ok(offload.slots.get(&slot).copied()))?;
        let region =
            region.filter(|region| region.bytes == bytes.len() as u64).ok_or_else(|| {
                let held = region.map_or("nothing".into(), |it| format!("{} bytes", it.bytes));
                Error::invalid(format!("slot {slot} of the offload file has another size"))
                    .expected(format!("{} bytes", bytes.len()))
                    .got(held)
                    .help("store a value of that size in the slot before it is fetched")
            })?;
        self.with(|offload| offload.seek(region.offset)?.read_exact(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_what_was_written_last() {
        let spill = FileSpill::new(None);
        spill.write(0, &[1, 2, 3]).unwrap();
        spill.write(7, &[9; 10]).unwrap();
        spill.write(0, &[4, 5]).unwrap();
        let mut two = [0; 2];
        spill.read(0, &mut two).unwrap();
        assert_eq!(two, [4, 5]);
        spill.write(0, &[6; 20]).unwrap();
        let mut ten = [0; 10];
        spill.read(7, &mut ten).unwrap();
        assert_eq!(ten, [9; 10]);
        assert!(spill.read(0, &mut ten).is_err() && spill.read(3, &mut ten).is_err());
        let nowhere = FileSpill::new(Some(Path::new("/nonexistent")));
        let error = nowhere.write(0, &[1]).unwrap_err().to_string();
        assert!(error.contains("offload_folder"), "{error}");
    }
}
