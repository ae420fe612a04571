//! Saves on a file system that a Hadoop client reaches (`hdfs://`, `afs://`).
//!
//! A server writes its part of a save to a temporary folder of this machine. It then uploads the
//! files in the order in which they complete the save: the parts of all tables, then their
//! manifests, last its mark. Until the marks of all servers are there, a load takes the save
//! before. Files have the names of a save in a folder, so a save may be copied in both directions.
//! A load downloads the marks, and then the tables that it needs of the newest complete save.

use super::index::TableIndex;
use super::manifest::{self, number};
use super::{TABLE_DIGITS, job, table_folder};
use fleet_base::fs::{FileSystem, is_remote, joined};
use fleet_base::temporary::TemporaryFolder;
use fleet_base::{Error, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file system of saves in remote folders, and the local folder for their temporary copies.
///
/// ```
/// use fleet_base::fs::CommandFs;
/// use fleet_ps::{
///     JobTables, LocalServers, SaveFormat, SaveFs, SaveMode, ServerTables, TableAdmin, Tables,
/// };
/// let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables: vec![] };
/// let tables = ServerTables::all(&job)?;
/// let fs = SaveFs::new(CommandFs::new("/no/hadoop"), std::env::temp_dir());
/// tables.iter().for_each(|server| server.set_save_fs(fs.clone()));
/// let servers = LocalServers::new(&tables, 0)?;
/// let dir = "hdfs://host:9000/save".as_ref();
/// let saved = servers.save(Tables::All, dir, SaveMode::All, SaveFormat::Binary);
/// assert!(saved.unwrap_err().to_string().contains("cannot start /no/hadoop"));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SaveFs {
    fs: Arc<dyn FileSystem>,
    temporary: PathBuf,
}

/// Returns a folder's URL, if a Hadoop client reaches it; `None` for a folder of this machine.
pub fn remote_url(dir: &Path) -> Result<Option<&str>> {
    let Some(text) = dir.to_str() else { return Ok(None) };
    Ok(is_remote(text)?.then_some(text))
}

impl SaveFs {
    /// Creates it from a file system and the folder for temporary folders.
    pub fn new(fs: impl FileSystem + 'static, temporary: impl Into<PathBuf>) -> SaveFs {
        SaveFs { fs: Arc::new(fs), temporary: temporary.into() }
    }

    /// Creates a temporary folder.
    pub fn staging(&self) -> Result<TemporaryFolder> {
        TemporaryFolder::new(&self.temporary, "fleet-save")
    }

    /// Lists a remote folder, which need not exist.
    pub fn list(&self, url: &str) -> Result<RemoteDir> {
        let files = match self.fs.walk(url) {
            Ok(entries) => entries.into_iter().map(|entry| entry.name).collect(),
            // A folder that does not exist has no files.
            Err(error) => match self.fs.exists(url)? {
                true => return Err(error),
                false => Vec::new(),
            },
        };
        Ok(RemoteDir { fs: self.fs.clone(), url: url.to_string(), files })
    }

    /// Opens a folder to load from it. For a remote folder, downloads the marks of its saves.
    pub fn source(&self, dir: &Path) -> Result<SaveSource> {
        let Some(url) = remote_url(dir)? else { return Ok(SaveSource::local(dir)) };
        let (listed, copy) = (self.list(url)?, self.staging()?);
        let is_index =
            |name: &&str| number(name, job::PREFIX).is_some() || *name == manifest::TABLES;
        let index: Vec<&str> = listed.files.iter().map(String::as_str).filter(is_index).collect();
        listed.download(&index, copy.path())?;
        Ok(SaveSource { dir: copy.path().to_path_buf(), remote: Some((listed, copy)) })
    }
}

/// A remote folder, with the files in it when it was listed.
#[derive(Debug)]
pub struct RemoteDir {
    fs: Arc<dyn FileSystem>,
    url: String,
    /// Paths within the folder.
    files: Vec<String>,
}

impl RemoteDir {
    /// Returns the file system of the folder.
    pub fn fs(&self) -> &dyn FileSystem {
        &*self.fs
    }

    /// Returns the URL of the folder.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the path of a file or folder in the folder.
    pub fn path(&self, name: &str) -> String {
        joined(&self.url, name)
    }

    /// Returns the number of the latest save, complete or not; 0 if there is none.
    pub fn last_id(&self) -> u64 {
        let marks = self.files.iter().filter_map(|name| number(name, job::PREFIX));
        marks.map(|(_, save)| save).max().unwrap_or(0)
    }

    /// Returns the names of the files and folders in the folder.
    pub fn names(&self) -> BTreeSet<&str> {
        self.files.iter().filter_map(|name| name.split('/').next()).collect()
    }

    /// Returns the files in the folders of tables: number of the table, name, and path.
    fn table_files(&self) -> impl Iterator<Item = (u32, &str, &String)> {
        self.files.iter().filter_map(|path| {
            let (folder, name) = path.split_once('/')?;
            let is_table = folder.len() >= TABLE_DIGITS && !name.contains('/');
            Some((folder.parse().ok().filter(|_| is_table)?, name, path))
        })
    }

    /// Returns whether there are files of a table.
    pub(crate) fn has_table(&self, table_id: u32) -> bool {
        self.table_files().any(|(table, ..)| table == table_id)
    }

    /// Returns a number for the names of a server's new parts, unlike those of any existing ones.
    pub(crate) fn next_round(&self, server: u32) -> u64 {
        let rounds = self.table_files().filter_map(|(_, name, _)| manifest::round(name, server));
        rounds.max().map_or(0, |last| last.saturating_add(1))
    }

    fn download(&self, names: &[&str], to: &Path) -> Result<()> {
        let paths: Vec<String> = names.iter().map(|name| self.path(name)).collect();
        self.fs.download(&paths.iter().map(String::as_str).collect::<Vec<_>>(), to)
    }

    fn delete_all(&self, names: &[String]) -> Result<()> {
        let paths: Vec<String> = names.iter().map(|name| self.path(name)).collect();
        self.fs.delete_all(&paths.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// A folder to load from: one of this machine, or a copy of a remote one. The copy has what was
/// fetched, and is removed with this value.
#[derive(Debug)]
pub struct SaveSource {
    dir: PathBuf,
    remote: Option<(RemoteDir, TemporaryFolder)>,
}

impl SaveSource {
    /// Opens a folder of this machine.
    pub fn local(dir: &Path) -> SaveSource {
        SaveSource { dir: dir.to_path_buf(), remote: None }
    }

    /// Returns the folder of this machine from which to load.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Copies these files and folders, if they exist and the folder is remote.
    pub fn fetch<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<()> {
        let Some((from, _)) = &self.remote else { return Ok(()) };
        let there = from.names();
        let names: Vec<&str> = names.into_iter().filter(|name| there.contains(name)).collect();
        from.download(&names, &self.dir)
    }

    /// Copies all files and folders.
    pub fn fetch_all(&self) -> Result<()> {
        let Some((from, _)) = &self.remote else { return Ok(()) };
        self.fetch(from.names())
    }

    /// Copies a folder of the newest complete save. A save that was interrupted just before its
    /// last step has it under the name of [`numbered_name`].
    pub fn fetch_numbered(&self, name: &str) -> Result<()> {
        let Some((from, _)) = &self.remote else { return Ok(()) };
        let save_id = TableIndex::read(&self.dir).map_err(|error| self.naming(error))?.save_id;
        let numbered = numbered_name(name, save_id);
        if !from.names().contains(&*numbered) {
            return self.fetch([name]);
        }
        self.fetch([&*numbered])?;
        let (copy, to) = (self.dir.join(numbered), self.dir.join(name));
        std::fs::rename(&copy, to).map_err(|error| Error::io("rename", &copy, &error))
    }

    /// Makes an error name the remote folder instead of the copy.
    pub fn naming(&self, error: Error) -> Error {
        match &self.remote {
            Some((from, copy)) => error.replacing(&copy.path().display().to_string(), &from.url),
            None => error,
        }
    }
}

/// Returns the name of a worker's folder in a save until the save is complete.
pub fn numbered_name(name: &str, save_id: u64) -> String {
    format!("{name}.{save_id}")
}

/// A server's part of a save in a remote folder, until the end of the save.
pub(crate) struct Upload {
    to: RemoteDir,
    tables: Vec<u32>,
    mark: String,
    /// Parts and manifests that were or may have been uploaded.
    files: Vec<String>,
    /// Marks of this server's other saves, and their other files.
    old_marks: Vec<String>,
    old_files: Vec<String>,
}

/// Suffix of a file that a client is writing. A client that is killed leaves it behind.
const COPYING_SUFFIX: &str = "._COPYING_";
/// Folder of manifests in a temporary folder: they are uploaded after all parts.
const MANIFESTS: &str = "manifests";

/// Returns the name that a file gets when it is written.
fn whole(name: &str) -> &str {
    name.strip_suffix(COPYING_SUFFIX).unwrap_or(name)
}

impl Upload {
    /// Plans a server's part of a save of the job's tables.
    pub fn new(to: RemoteDir, (server, save_id): (u32, u64), tables: &[u32]) -> Upload {
        let is_own = |name: &str, prefix: &str| {
            number(whole(name), prefix).is_some_and(|(of, _)| of == server)
        };
        let mark = job::file_name(server, save_id);
        let marks = to.files.iter().filter(|name| is_own(name, job::PREFIX) && **name != mark);
        let old_marks = marks.cloned().collect();
        let files = to.table_files().filter(|(table, name, _)| {
            let is_part = manifest::round(whole(name), server).is_some();
            tables.contains(table) && (is_part || is_own(name, manifest::PREFIX))
        });
        let old_files = files.map(|(_, _, path)| path.clone()).collect();
        let (tables, files) = (tables.to_vec(), Vec::new());
        Upload { to, tables, mark, files, old_marks, old_files }
    }

    /// Uploads what a server has written to `staged`, the mark last.
    pub fn send(&mut self, staged: &TemporaryFolder) -> Result<()> {
        let (mut parts, mut manifests) = (Vec::new(), Vec::new());
        for table in self.tables.clone() {
            let folder = table_folder(staged.path(), table);
            if folder.is_dir() {
                manifests.push(self.files_of(&folder, &staged.path().join(MANIFESTS))?);
                parts.push(folder);
            }
        }
        let list = staged.path().join(manifest::TABLES);
        manifests.extend(list.is_file().then_some(list));
        let (fs, url) = (&self.to.fs, &self.to.url);
        let upload = |paths: &[PathBuf]| {
            fs.upload(&paths.iter().map(PathBuf::as_path).collect::<Vec<_>>(), url)
        };
        fs.mkdirs(url)
            .and_then(|()| upload(&parts))
            .and_then(|()| upload(&manifests))
            .and_then(|()| upload(&[staged.path().join(&self.mark)]))
            .map_err(|error| error.at(format!("upload of {} to {url}", self.mark)))
    }

    /// Notes the files in the folder of a table, and moves its manifest to a folder of its own in
    /// `manifests`, which it returns.
    fn files_of(&mut self, folder: &Path, manifests: &Path) -> Result<PathBuf> {
        let failed = |error: std::io::Error| Error::io("move the manifest in", folder, &error);
        let table = folder.file_name().unwrap_or_default();
        let own = manifests.join(table);
        std::fs::create_dir_all(&own).map_err(failed)?;
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let text = name.to_string_lossy();
            self.files.push(format!("{}/{text}", table.to_string_lossy()));
            if number(&text, manifest::PREFIX).is_some() {
                std::fs::rename(folder.join(&name), own.join(&name)).map_err(failed)?;
            }
        }
        Ok(own)
    }

    /// Deletes this server's other saves, after all servers have finished this one. Files that
    /// cannot be deleted are harmless once their marks are gone.
    pub fn remove_others(&self) {
        if self.to.delete_all(&self.old_marks).is_ok() {
            let is_old = |name: &&String| !self.files.contains(name);
            let old: Vec<String> = self.old_files.iter().filter(is_old).cloned().collect();
            let _ = self.to.delete_all(&old);
        }
    }

    /// Deletes this server's part of a save that failed on some server. If the mark cannot be
    /// deleted, everything that it stands for stays.
    pub fn remove(&self) {
        if !self.files.is_empty() && self.to.fs.delete(&self.to.path(&self.mark)).is_ok() {
            let _ = self.to.delete_all(&self.files);
        }
    }
}
