//! A disk in memory that fails on request and loses unsynced writes, chosen by a seed.
//!
//! A write goes to the cache. At a power cut, unsynced state is kept in part:
//!
//! * Each sector written since the last sync of its file keeps any of its versions since then.
//! * A file keeps any of its lengths since then.
//! * A folder keeps any subset of its new names, renames and removals.
//!
//! A killed process ([`SimDisk::kill`]) loses nothing that it wrote. A failed sync drops the writes
//! that it should have made durable, as on Linux: later syncs succeed without them.

use super::{Access, Disk, DiskFile, DiskLock, PathKind};
use crate::rng::Sequence;
use crate::sync::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// Size of the unit that a disk writes completely or not at all.
const SECTOR_BYTES: usize = 512;
/// Stream of random numbers for the seed of a disk.
const STREAM: u64 = 0xD15C;

/// A kind of call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// Creating a file or a folder.
    Create,
    /// Opening a file, or asking for the kind of object at a path.
    Open,
    /// Reading from a file, or asking for its length or whether a path names it.
    Read,
    /// Writing to a file.
    Write,
    /// Changing the length of a file.
    SetLen,
    /// Syncing a file.
    Sync,
    /// Renaming a file.
    Rename,
    /// Removing a file or a folder.
    Remove,
    /// Listing a folder.
    List,
    /// Syncing a folder.
    SyncFolder,
    /// Locking a path.
    Lock,
}

/// Which calls fail, and how.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The kind of call that fails.
    pub call: Call,
    /// Index of the first call of this kind that fails, counted from 0 since the faults were set.
    pub first: u64,
    /// Number of calls that fail from there on.
    pub count: u64,
    /// Error number of the system: 5 is EIO, 28 is ENOSPC.
    pub errno: i32,
}

/// A simulated disk.
///
/// ```
/// use fleet_base::disk::{Access, Disk, SimDisk};
/// use std::io::IoSlice;
/// use std::path::Path;
/// let disk = SimDisk::new(3);
/// let path = Path::new("a");
/// let file = disk.create(path)?;
/// disk.sync_folder(Path::new(""))?;
/// file.write_at(0, &mut [IoSlice::new(b"kept")])?;
/// file.sync()?;
/// file.write_at(4, &mut [IoSlice::new(b" or lost")])?;
/// disk.power_cut();
/// let len = disk.open(path, Access::Read)?.len()?;
/// assert!(len == 4 || len == 12);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Mutex<State>>,
}

struct State {
    rng: Sequence,
    nodes: Vec<Node>,
    /// Names as processes see them. `kept_names` holds those that are durable.
    names: BTreeMap<PathBuf, usize>,
    kept_names: BTreeMap<PathBuf, usize>,
    folders: BTreeSet<PathBuf>,
    changes: Vec<Change>,
    locks: BTreeSet<PathBuf>,
    /// Number of process starts. Files opened before a power cut or a kill are dead.
    start: u64,
    boot: u64,
    faults: Vec<Fault>,
    counts: BTreeMap<Call, u64>,
    /// Number of changing calls that the process still completes before it dies.
    halt_after: Option<u64>,
    halted: bool,
}

/// A file's content.
#[derive(Default)]
struct Node {
    cached: Vec<u8>,
    kept: Vec<u8>,
    dirty: Vec<Dirty>,
}

/// An unsynced write: the touched sectors with their content after it, and the file length.
struct Dirty {
    sectors: Vec<(usize, Vec<u8>)>,
    len: usize,
}

/// An unsynced change of a folder.
enum Change {
    Link(PathBuf, usize),
    Rename(PathBuf, PathBuf, usize),
    Unlink(PathBuf),
}

struct SimFile {
    disk: SimDisk,
    node: usize,
    start: u64,
}

struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    start: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.start == self.start {
            state.locks.remove(&self.path);
        }
    }
}

impl SimDisk {
    /// Returns an empty disk. `seed` decides which unsynced writes survive a power cut.
    pub fn new(seed: u64) -> SimDisk {
        let state = State {
            rng: Sequence::new(seed, STREAM),
            nodes: Vec::new(),
            names: BTreeMap::new(),
            kept_names: BTreeMap::new(),
            folders: BTreeSet::new(),
            changes: Vec::new(),
            locks: BTreeSet::new(),
            start: 0,
            boot: 1,
            faults: Vec::new(),
            counts: BTreeMap::new(),
            halt_after: None,
            halted: false,
        };
        SimDisk { shared: Arc::new(Mutex::new(state)) }
    }

    /// Returns the same disk as a shared [`Disk`].
    pub fn handle(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Replaces the calls that will fail. `None` clears them.
    pub fn set_faults(&self, faults: impl IntoIterator<Item = Fault>) {
        let mut state = self.state();
        state.faults = faults.into_iter().collect();
        state.counts.clear();
    }

    /// Number of calls since the faults were set.
    pub fn calls(&self, call: Call) -> u64 {
        self.state().counts.get(&call).copied().unwrap_or(0)
    }

    /// Makes the process die in the changing call that follows the next `calls` changing calls.
    pub fn halt_after(&self, calls: u64) {
        self.state().halt_after = Some(calls);
    }

    /// Returns whether the process has died as [`SimDisk::halt_after`] asked.
    pub fn is_halted(&self) -> bool {
        self.state().halted
    }

    /// Kills the process. Its writes stay; its open files and locks are gone.
    pub fn kill(&self) {
        self.state().restart();
    }

    /// Cuts the machine's power, which also kills the process.
    pub fn power_cut(&self) {
        let mut state = self.state();
        state.lose_unsynced();
        state.boot += 1;
        state.restart();
    }

    /// An independent disk with the same files, all synced.
    pub fn copy(&self, seed: u64) -> SimDisk {
        let state = self.state();
        let copy = SimDisk::new(seed);
        let mut new = copy.state();
        for (path, node) in &state.names {
            let content = state.nodes[*node].cached.clone();
            let at = new.nodes.len();
            new.nodes.push(Node { kept: content.clone(), cached: content, dirty: Vec::new() });
            new.names.insert(path.clone(), at);
        }
        new.kept_names = new.names.clone();
        new.folders = state.folders.clone();
        new.boot = state.boot;
        drop(new);
        copy
    }

    /// Changes a file's bytes in the cache and on disk, without a call that could fail or be lost.
    pub fn edit(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut state = self.state();
        let node = state.find(path)?;
        let node = &mut state.nodes[node];
        change(&mut node.cached);
        node.kept = node.cached.clone();
        node.dirty.clear();
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared)
    }

    /// Begins a call: counts it, and returns the state unless the call fails.
    fn enter(&self, call: Call) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.enter(call)?;
        Ok(state)
    }
}

impl State {
    fn restart(&mut self) {
        self.start += 1;
        self.locks.clear();
        (self.halted, self.halt_after) = (false, None);
    }

    /// Counts a call and returns the error of a fault that applies to it.
    fn enter(&mut self, call: Call) -> io::Result<()> {
        if self.halted {
            return Err(io::Error::other("the simulated process is dead"));
        }
        let at = *self.counts.entry(call).and_modify(|count| *count += 1).or_insert(1) - 1;
        let changes = !matches!(call, Call::Open | Call::Read | Call::List | Call::Lock);
        if changes && let Some(left) = &mut self.halt_after {
            self.halted = *left == 0;
            *left = left.saturating_sub(1);
        }
        let fails = |it: &&Fault| it.call == call && at >= it.first && at - it.first < it.count;
        match self.faults.iter().find(fails) {
            Some(fault) => Err(io::Error::from_raw_os_error(fault.errno)),
            None => Ok(()),
        }
    }

    /// Fails half of the calls in which the process dies. The others take effect before the death.
    fn maybe_die(&mut self) -> io::Result<()> {
        match self.halted && self.rng.below(2) == 0 {
            true => Err(io::Error::other("the simulated process died")),
            false => Ok(()),
        }
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn lose_unsynced(&mut self) {
        // Some power cuts lose everything, some nothing, most lose a part.
        let chance = [0, 4, 4, 4, 7, 8][self.rng.below(6) as usize];
        for at in 0..self.nodes.len() {
            let mut node = std::mem::take(&mut self.nodes[at]);
            let mut len = node.kept.len();
            for dirty in std::mem::take(&mut node.dirty) {
                for (sector, bytes) in dirty.sectors {
                    if self.rng.below(8) < chance {
                        node.put(sector, &bytes);
                    }
                }
                if self.rng.below(8) < chance {
                    len = dirty.len;
                }
            }
            node.kept.resize(len, 0);
            node.cached = node.kept.clone();
            self.nodes[at] = node;
        }
        for change in std::mem::take(&mut self.changes) {
            if self.rng.below(8) < chance {
                self.keep(change);
            }
        }
        self.names = self.kept_names.clone();
        // A folder still exists if the removal of its files was lost.
        let folders = self.names.keys().flat_map(|path| path.ancestors().skip(1));
        let folders: Vec<PathBuf> = folders.map(Path::to_path_buf).collect();
        self.folders.extend(folders);
    }

    fn keep(&mut self, change: Change) {
        match change {
            Change::Link(path, node) => {
                self.kept_names.insert(path, node);
            }
            Change::Rename(from, to, node) => {
                self.kept_names.remove(&from);
                self.kept_names.insert(to, node);
            }
            Change::Unlink(path) => {
                self.kept_names.remove(&path);
            }
        }
    }
}

impl Node {
    /// Writes a sector to the durable content.
    fn put(&mut self, sector: usize, bytes: &[u8]) {
        let start = sector * SECTOR_BYTES;
        let end = start + bytes.len();
        if self.kept.len() < end {
            self.kept.resize(end, 0);
        }
        self.kept[start..end].copy_from_slice(bytes);
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.cached.len() < end {
            self.cached.resize(end, 0);
        }
        self.cached[offset..end].copy_from_slice(bytes);
        self.touch(offset..end);
    }

    fn touch(&mut self, range: std::ops::Range<usize>) {
        let sectors = range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES);
        let sector = |at: usize| {
            let end = ((at + 1) * SECTOR_BYTES).min(self.cached.len());
            (at, self.cached[at * SECTOR_BYTES..end].to_vec())
        };
        let sectors = sectors.map(sector).collect();
        self.dirty.push(Dirty { sectors, len: self.cached.len() });
    }

    fn sync(&mut self) {
        for dirty in std::mem::take(&mut self.dirty) {
            // Truncated bytes stay lost, even if the file grows again.
            for (sector, bytes) in dirty.sectors {
                self.put(sector, &bytes);
            }
            self.kept.resize(dirty.len, 0);
        }
    }
}

impl Change {
    fn is_in(&self, folder: &Path) -> bool {
        let (Change::Link(path, _) | Change::Rename(_, path, _) | Change::Unlink(path)) = self;
        path.parent() == Some(folder)
    }
}

impl SimFile {
    fn with<R>(
        &self,
        call: Call,
        run: impl FnOnce(&mut State, usize) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut state = self.disk.state();
        if state.start != self.start {
            return Err(io::Error::other("the file was opened by a process that is dead"));
        }
        state.enter(call)?;
        run(&mut state, self.node)
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.with(Call::Read, |state, node| Ok(state.nodes[node].cached.len() as u64))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.with(Call::Read, |state, node| {
            let content = &state.nodes[node].cached;
            let from = content.get(offset as usize..).unwrap_or_default();
            let count = from.len().min(bytes.len());
            bytes[..count].copy_from_slice(&from[..count]);
            Ok(count)
        })
    }

    fn write_at(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let written = self.with(Call::Write, |state, node| {
            let count = match state.halted {
                true => state.rng.below(bytes.len() as u64 + 1) as usize,
                false => bytes.len(),
            };
            state.nodes[node].write(offset as usize, &bytes[..count]);
            Ok(count)
        });
        match written {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(io::Error::other("the simulated process died")),
            Err(error) => {
                // A failed write may have written a part.
                let mut state = self.disk.state();
                if state.start == self.start && !state.halted {
                    let count = state.rng.below(bytes.len() as u64 + 1) as usize;
                    state.nodes[self.node].write(offset as usize, &bytes[..count]);
                }
                Err(error)
            }
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(Call::SetLen, |state, node| {
            state.maybe_die()?;
            let node = &mut state.nodes[node];
            node.cached.resize(len as usize, 0);
            node.dirty.push(Dirty { sectors: Vec::new(), len: len as usize });
            Ok(())
        })
    }

    fn is_at(&self, path: &Path) -> io::Result<bool> {
        self.with(Call::Read, |state, node| Ok(state.names.get(path) == Some(&node)))
    }

    fn sync(&self) -> io::Result<()> {
        let synced = self.with(Call::Sync, |state, node| {
            state.maybe_die()?;
            state.nodes[node].sync();
            Ok(())
        });
        let mut state = self.disk.state();
        if synced.is_err() && state.start == self.start && !state.halted {
            state.nodes[self.node].dirty.clear();
        }
        synced
    }
}

impl Disk for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.enter(Call::Create)?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.maybe_die()?;
        let (node, start) = (state.nodes.len(), state.start);
        state.nodes.push(Node::default());
        state.names.insert(path.to_path_buf(), node);
        state.changes.push(Change::Link(path.to_path_buf(), node));
        Ok(Arc::new(SimFile { disk: self.clone(), node, start }))
    }

    fn open(&self, path: &Path, _access: Access) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.enter(Call::Open)?;
        let (node, start) = (state.find(path)?, state.start);
        Ok(Arc::new(SimFile { disk: self.clone(), node, start }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.enter(Call::Rename)?;
        let node = state.find(from)?;
        state.maybe_die()?;
        state.names.remove(from);
        state.names.insert(to.to_path_buf(), node);
        state.changes.push(Change::Rename(from.to_path_buf(), to.to_path_buf(), node));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.enter(Call::Remove)?;
        state.find(path)?;
        state.maybe_die()?;
        state.names.remove(path);
        state.changes.push(Change::Unlink(path.to_path_buf()));
        Ok(())
    }

    fn remove_folder(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.enter(Call::Remove)?;
        let is_in = |path: &PathBuf| path.parent() == Some(folder);
        if state.names.keys().chain(&state.folders).any(is_in) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.maybe_die()?;
        match state.folders.remove(folder) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn kind(&self, path: &Path) -> io::Result<PathKind> {
        let state = self.enter(Call::Open)?;
        match (state.names.contains_key(path), state.folders.contains(path)) {
            (true, _) => Ok(PathKind::File),
            (_, true) => Ok(PathKind::Folder),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let state = self.enter(Call::List)?;
        if !folder.as_os_str().is_empty() && !state.folders.contains(folder) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let paths = state.names.keys().chain(&state.folders);
        let inside = paths.filter(|path| path.parent() == Some(folder));
        let name = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_string());
        let mut names: Vec<String> = inside.filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.enter(Call::Create)?;
        state.maybe_die()?;
        let made = folder.ancestors().map(Path::to_path_buf);
        state.folders.extend(made);
        Ok(())
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.enter(Call::SyncFolder)?;
        state.maybe_die()?;
        let changes = std::mem::take(&mut state.changes);
        let (synced, left): (Vec<_>, _) = changes.into_iter().partition(|it| it.is_in(folder));
        state.changes = left;
        synced.into_iter().for_each(|change| state.keep(change));
        Ok(())
    }

    fn boot(&self) -> u64 {
        self.state().boot
    }

    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        let mut state = self.enter(Call::Lock)?;
        if !state.locks.insert(path.to_path_buf()) {
            return Ok(None);
        }
        let start = state.start;
        Ok(Some(DiskLock::new(SimLock { disk: self.clone(), path: path.to_path_buf(), start })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &Arc<dyn DiskFile>, offset: u64, bytes: &[u8]) {
        file.write_at(offset, &mut [IoSlice::new(bytes)]).unwrap();
    }

    fn read(disk: &SimDisk, path: &str) -> Option<Vec<u8>> {
        super::super::read_file(disk, Path::new(path), 1 << 20).unwrap()
    }

    /// Every combination of two unsynced sectors occurs, and synced bytes are never lost.
    #[test]
    fn a_power_cut_keeps_any_part_of_what_was_not_synced() {
        let mut met = BTreeSet::new();
        for seed in 0..200 {
            let disk = SimDisk::new(seed);
            let file = disk.create(Path::new("a")).unwrap();
            disk.sync_folder(Path::new("")).unwrap();
            write(&file, 0, &[1; 1024]);
            file.sync().unwrap();
            write(&file, 0, &[2; 1024]);
            disk.power_cut();
            assert!(file.len().is_err(), "its process is dead");
            let bytes = read(&disk, "a").unwrap();
            assert_eq!(bytes.len(), 1024);
            assert!(bytes[..512].iter().all(|byte| *byte == bytes[0]), "a sector is whole");
            met.insert((bytes[0], bytes[512]));
        }
        assert_eq!(met, BTreeSet::from([(1, 1), (1, 2), (2, 1), (2, 2)]));
    }

    #[test]
    fn names_last_when_their_folder_is_synced() {
        let (mut kept, mut lost) = (0, 0);
        for seed in 0..100 {
            let disk = SimDisk::new(seed);
            let file = disk.create(Path::new("a")).unwrap();
            write(&file, 0, b"x");
            file.sync().unwrap();
            disk.sync_folder(Path::new("")).unwrap();
            disk.rename(Path::new("a"), Path::new("b")).unwrap();
            disk.power_cut();
            let names = disk.list(Path::new("")).unwrap();
            assert!(names == ["a"] || names == ["b"], "{names:?}");
            assert_eq!(read(&disk, &names[0]).unwrap(), b"x");
            *(if names == ["b"] { &mut kept } else { &mut lost }) += 1;
        }
        assert!(kept > 10 && lost > 10, "{kept} {lost}");
    }

    #[test]
    fn a_list_of_files_and_folders_is_sorted() {
        let disk = SimDisk::new(1);
        disk.create_folder(Path::new("top/b")).unwrap();
        for name in ["top/c", "top/a"] {
            disk.create(Path::new(name)).unwrap();
        }
        assert_eq!(disk.list(Path::new("top")).unwrap(), ["a", "b", "c"]);
    }

    #[test]
    fn a_failed_sync_loses_what_it_should_have_written() {
        let disk = SimDisk::new(1);
        let file = disk.create(Path::new("a")).unwrap();
        disk.sync_folder(Path::new("")).unwrap();
        write(&file, 0, b"gone");
        disk.set_faults(Some(Fault { call: Call::Sync, first: 0, count: 1, errno: 5 }));
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
        file.sync().unwrap();
        assert_eq!(read(&disk, "a").unwrap(), b"gone", "it is in the cache");
        disk.power_cut();
        assert_eq!(read(&disk, "a").unwrap(), b"");
    }

    #[test]
    fn a_killed_process_loses_nothing_and_dies_within_a_call() {
        let disk = SimDisk::new(5);
        let file = disk.create(Path::new("a")).unwrap();
        write(&file, 0, b"one");
        disk.halt_after(0);
        let died = file.write_at(3, &mut [IoSlice::new(b"two")]);
        assert!(disk.is_halted() && file.sync().is_err());
        disk.kill();
        let bytes = read(&disk, "a").unwrap();
        assert!(b"onetwo".starts_with(&bytes) && bytes.len() >= 3);
        assert!(died.is_err() || bytes.len() == 6);
    }
}
