//! A server's part in saves and loads of the whole job.
//!
//! A save has two phases, so that all servers have it or none. First, each server writes its tables
//! beside earlier saves ([`ServerTables::save`]). If all have written, they delete the earlier
//! saves; if one failed, they delete the new save ([`ServerTables::end_save`]). A crash between the
//! phases leaves a complete save and an earlier one, or an incomplete save, which a load passes
//! over.

use super::{Caller, ServerTables, SignKind, Table};
use crate::save::remote::{RemoteDir, Upload, remote_url};
use crate::save::{
    self, Checked, Found, FoundDense, SaveFormat, SaveFs, SaveOptions, SaveSource, Saved,
    SavedTable, Saver, TableIndex, dense, job,
};
use crate::sparse::Taken;
use crate::{SaveMode, TableConfig};
use fleet_base::sync::lock;
use fleet_base::temporary::TemporaryFolder;
use fleet_base::{Error, Result};
use fleet_net::Time;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A save that is written but not ended.
pub(crate) struct Saving {
    dir: PathBuf,
    save_id: u64,
    taken: Vec<(u32, Taken)>,
    /// The part of this server, if the folder is remote.
    upload: Option<Upload>,
    by: Caller,
    /// Time when this server had written its part.
    written: Time,
}

/// How long an open save blocks others: other servers may be slower to write it. A new save of the
/// same worker replaces it at once.
const OPEN_SPAN_MAX: Duration = Duration::from_secs(600);

impl ServerTables {
    /// Loads this server's part of the latest complete save in `dir`, made by any number of
    /// servers, over the present contents: all tables, or the listed ones. Nothing is loaded unless
    /// every file of every server is intact. Tables and dense parameters are found by name, so
    /// their numbers and the division of parameters into tables may change. Returns the number of
    /// rows and dense numbers.
    pub fn load(&self, dir: &Path, tables: Option<&[u32]>) -> Result<u64> {
        let source = self.open_source(dir)?;
        let load = || {
            let index = self.latest_save(source.path())?;
            self.fetch(&source, &index, tables)?;
            self.load_save(&index, tables)
        };
        load().map_err(|error| source.naming(error))
    }

    /// Like [`ServerTables::load`], for the listed tables of rows: those that the save has by name.
    /// The others keep their rows; returns their names.
    pub fn load_present(&self, dir: &Path, tables: &[u32]) -> Result<Vec<String>> {
        let source = self.open_source(dir)?;
        let load = || {
            let index = self.latest_save(source.path())?;
            if index.tables.is_empty() {
                return Err(Error::invalid("the save does not name its tables")
                    .expected("a save of this version of Fleet")
                    .at(dir.display())
                    .help("load it whole (init_server_from), and save it again"));
            }
            let (mut present, mut missing) = (Vec::new(), Vec::new());
            for table_id in tables {
                let config = self.job.table(*table_id, &["sparse", "geo"])?;
                match index.has_rows(config.name()) {
                    true => present.push(*table_id),
                    false => missing.push(config.name().to_string()),
                }
            }
            self.fetch(&source, &index, Some(&present))?;
            self.load_save(&index, Some(&present))?;
            Ok(missing)
        };
        load().map_err(|error| source.naming(error))
    }

    /// Sets the file system of saves in remote folders.
    pub fn set_save_fs(&self, fs: SaveFs) {
        *lock(&self.save_fs) = Some(fs);
    }

    /// Returns the file system of a remote folder.
    fn save_fs(&self, url: &str) -> Result<SaveFs> {
        lock(&self.save_fs).clone().ok_or_else(|| {
            Error::invalid("this server has no client for remote folders")
                .expected("a folder of this machine")
                .got(url)
                .help("call ServerTables::set_save_fs")
        })
    }

    /// Lists a remote folder; `None` for one of this machine.
    fn remote(&self, dir: &Path) -> Result<Option<RemoteDir>> {
        remote_url(dir)?.map(|url| self.save_fs(url)?.list(url)).transpose()
    }

    /// Opens a folder to load from it.
    fn open_source(&self, dir: &Path) -> Result<SaveSource> {
        match remote_url(dir)? {
            Some(url) => self.save_fs(url)?.source(dir),
            None => Ok(SaveSource::local(dir)),
        }
    }

    /// Returns the number of the latest save in a folder, complete or not; 0 if there is none.
    pub(super) fn last_save(&self, dir: &Path) -> Result<u64> {
        match self.remote(dir)? {
            Some(remote) => Ok(remote.last_id()),
            None => job::last_id(&*self.disk, dir),
        }
    }

    fn latest_save(&self, dir: &Path) -> Result<TableIndex> {
        let (index, passed_over) = job::latest_complete(&*self.disk, dir)?;
        if let Some(error) = passed_over {
            let (server, save_id) = (self.server, index.save_id);
            let text = format!("server {server}: loading save {save_id} instead: {error}");
            fleet_net::Log::stderr().line(text);
        }
        Ok(index)
    }

    pub(super) fn load_save(&self, index: &TableIndex, tables: Option<&[u32]>) -> Result<u64> {
        let _alone = lock(&self.maintenance);
        for table_id in tables.unwrap_or_default() {
            self.table(*table_id)?;
        }
        let configs: Vec<&TableConfig> = self.wanted(tables).collect();
        // Every byte is checked before a table changes.
        let sources = configs.iter().map(|config| self.source(index, config));
        let sources = sources.collect::<Result<Vec<Source>>>()?;
        let (server, count) = (self.server, self.job.server_count);
        let mut loaded = 0;
        for (config, source) in configs.iter().zip(&sources) {
            let table_id = config.table_id();
            loaded += match (self.table(table_id)?, config, source) {
                (Table::Dense(table), TableConfig::Dense { options, .. }, Source::Dense(found)) => {
                    let own = options.cut.ranges(config.dense_len(), server, count);
                    dense::load_dense(table, &own, found)?
                }
                (Table::GlobalStep(steps), _, Source::Whole(checked)) => {
                    let all = dense::load_steps(checked)?;
                    // One server counts all steps (`client/mod.rs`).
                    steps.restore(if table_id as usize % count == server { all } else { 0 });
                    0
                }
                (table, _, Source::Whole(checked)) => {
                    let mine = |id: u64| id % count as u64 == server as u64;
                    table.rows().map_or(Ok(0), |rows| save::load_checked(rows, checked, mine))?
                }
                (_, _, Source::Dense(_)) => return Err(unlike_config()),
            };
        }
        Ok(loaded)
    }

    fn wanted(&self, tables: Option<&[u32]>) -> impl Iterator<Item = &TableConfig> {
        let wanted = move |config: &&TableConfig| {
            tables.is_none_or(|tables| tables.contains(&config.table_id()))
        };
        self.job.tables.iter().filter(wanted)
    }

    /// Downloads the tables of a save that a load needs.
    fn fetch(&self, source: &SaveSource, index: &TableIndex, tables: Option<&[u32]>) -> Result<()> {
        let mut ids = BTreeSet::new();
        for config in self.wanted(tables) {
            match index.find(config)? {
                Found::Whole(id) => drop(ids.insert(id)),
                Found::Dense(found) => ids.extend(found.iter().map(|table| table.id)),
            }
        }
        let folders: Vec<String> = ids.into_iter().map(save::folder_name).collect();
        source.fetch(folders.iter().map(String::as_str))
    }

    /// Finds a table in a save, and checks every byte of it.
    fn source(&self, index: &TableIndex, config: &TableConfig) -> Result<Source> {
        let TableIndex { dir, save_id, .. } = index;
        let check = |id, layout: &str| save::check(&self.disk, dir, id, *save_id, layout);
        match (index.find(config)?, self.table(config.table_id())?) {
            (Found::Whole(id), table) => {
                let layout = match table {
                    Table::GlobalStep(_) => dense::STEPS_LAYOUT.to_string(),
                    table => save::layout_name(table.rows().ok_or_else(unlike_config)?),
                };
                check(id, &layout).map(Source::Whole)
            }
            (Found::Dense(found), Table::Dense(table)) => {
                let checked = found.into_iter().map(|found| {
                    let checked = check(found.id, &dense::layout(table, found.len))?;
                    Ok((found, checked))
                });
                Ok(Source::Dense(checked.collect::<Result<_>>()?))
            }
            (Found::Dense(_), _) => Err(unlike_config()),
        }
    }

    /// Runs the first phase: writes all tables, or the named one. An earlier open save is given up.
    pub(super) fn save(
        &self,
        by: Caller,
        (dir, table): (&Path, Option<u32>),
        save_id: u64,
        mode: SaveMode,
        format: SaveFormat,
    ) -> Result<Saved> {
        let remote = self.remote(dir)?;
        self.keep_other_tables((dir, remote.as_ref()), table)?;
        let _alone = lock(&self.maintenance);
        if let Some(saving) = lock(&self.saving).as_ref().filter(|it| self.keeps_out(it, by)) {
            return Err(Error::unavailable("another save is in progress")
                .got(format!(
                    "save {} of {}, by {}",
                    saving.save_id,
                    saving.dir.display(),
                    saving.by
                ))
                .help("save again when it has ended"));
        }
        self.give_up(lock(&self.saving).take());
        let (server, server_count) = (self.server as u32, self.job.server_count as u32);
        let options = SaveOptions { mode, format, server, server_count, save_id };
        let (taken, written) = (Vec::new(), Time::now());
        let (dir, upload) = (dir.to_path_buf(), None);
        let mut saving = Saving { dir, save_id, taken, upload, by, written };
        let saved = match remote {
            None => self.write_here(options, table, &mut saving),
            Some(remote) => self.write_remote(remote, options, table, &mut saving),
        };
        match saved {
            Ok(saved) => {
                saving.written = Time::now();
                *lock(&self.saving) = Some(saving);
                Ok(saved)
            }
            Err(error) => {
                self.give_up(Some(saving));
                Err(error)
            }
        }
    }

    fn write_here(
        &self,
        options: SaveOptions,
        table: Option<u32>,
        saving: &mut Saving,
    ) -> Result<Saved> {
        let dir = saving.dir.clone();
        job::begin(&*self.disk, &dir, &self.table_ids(), options.server);
        let (part_bytes, round_min) = (save::PART_BYTES, 0);
        let saver = Saver { disk: &self.disk, dir: &dir, options, part_bytes, round_min };
        self.write_all(&saver, table, saving)
    }

    /// Writes all tables, or the named one, to a temporary folder, and uploads it.
    fn write_remote(
        &self,
        to: RemoteDir,
        options: SaveOptions,
        table: Option<u32>,
        saving: &mut Saving,
    ) -> Result<Saved> {
        let SaveOptions { server, save_id, .. } = options;
        let staged: TemporaryFolder = self.save_fs(to.url())?.staging()?;
        let (part_bytes, round_min) = (save::PART_BYTES, to.next_round(server));
        let dir = staged.path();
        let saver = Saver { disk: &self.disk, dir, options, part_bytes, round_min };
        let saved = self.write_all(&saver, table, saving)?;
        let upload = Upload::new(to, (server, save_id), &self.table_ids());
        saving.upload.insert(upload).send(&staged)?;
        Ok(saved)
    }

    /// Rejects a save of one table into a folder of several tables: its end would delete their
    /// saves.
    fn keep_other_tables(
        &self,
        (dir, remote): (&Path, Option<&RemoteDir>),
        table: Option<u32>,
    ) -> Result<()> {
        let Some(table) = table else { return Ok(()) };
        let has_table = |other: u32| match remote {
            Some(remote) => remote.has_table(other),
            None => self.disk.kind(&save::table_folder(dir, other)).is_ok(),
        };
        let is_there = |other: &u32| *other != table && has_table(*other);
        match self.tables.keys().find(|other| is_there(other)) {
            None => Ok(()),
            Some(other) => Err(Error::invalid("the folder has saves of other tables")
                .expected(format!("a folder for table {table} alone"))
                .got(format!("table {other} in {}", dir.display()))
                .help("save each table into its own folder: a save deletes the previous one")),
        }
    }

    /// Returns whether an open save belongs to another caller that is still present.
    fn keeps_out(&self, saving: &Saving, by: Caller) -> bool {
        let is_here = |worker| self.presence.sign(worker).kind == SignKind::Connected;
        saving.by.worker != by.worker
            && (saving.by.is_operator() || is_here(saving.by.worker))
            && Time::now().since(saving.written) < OPEN_SPAN_MAX
    }

    fn write_all(
        &self,
        saver: &Saver<'_>,
        table: Option<u32>,
        saving: &mut Saving,
    ) -> Result<Saved> {
        let mut sum = Saved::default();
        let wanted = |config: &&TableConfig| table.is_none_or(|table| table == config.table_id());
        let mut tables = Vec::new();
        for config in self.job.tables.iter().filter(wanted) {
            let table_id = config.table_id();
            tables.push(SavedTable::of(config));
            let saved = match (self.table(table_id)?, config) {
                (Table::Dense(table), TableConfig::Dense { options, .. }) => {
                    saver.dense(table, config.dense_len(), &options.cut)?
                }
                (Table::GlobalStep(steps), _) => saver.steps(steps, table_id)?,
                (table, _) => {
                    let Some(rows) = table.rows() else { continue };
                    let (saved, taken) = saver.sparse(rows)?;
                    saving.taken.push((table_id, taken));
                    saved
                }
            };
            sum.row_count += saved.row_count;
            sum.bytes += saved.bytes;
        }
        saver.mark(&tables).map(|()| sum)
    }

    /// Runs the second phase.
    pub(super) fn end_save(&self, by: Caller, save_id: u64, good: bool) -> Result<()> {
        let own = |saving: &mut Saving| saving.by == by && saving.save_id == save_id;
        let saving = lock(&self.saving).take_if(own);
        match saving {
            Some(Saving { upload: Some(upload), .. }) if good => upload.remove_others(),
            Some(saving) if good => {
                let (tables, server) = (self.table_ids(), self.server as u32);
                job::remove_others(&*self.disk, &saving.dir, &tables, server, save_id);
            }
            None if good => {
                return Err(Error::unavailable("save was abandoned before it completed")
                    .got(format!("save {save_id}"))
                    .help("save again: another save began or this server restarted"));
            }
            saving => self.give_up(saving),
        }
        Ok(())
    }

    /// Deletes the files of a save, and marks the changes that it took as unsaved.
    fn give_up(&self, saving: Option<Saving>) {
        let Some(saving) = saving else { return };
        let (server, save_id) = (self.server as u32, saving.save_id);
        match (&saving.upload, remote_url(&saving.dir)) {
            (Some(upload), _) => upload.remove(),
            // Nothing was uploaded.
            (None, Ok(Some(_))) => {}
            (None, _) => {
                job::remove(&*self.disk, &saving.dir, &self.table_ids(), server, save_id);
            }
        }
        for (table_id, taken) in &saving.taken {
            if let Some(rows) = self.tables.get(table_id).and_then(Table::rows) {
                rows.take_back(taken);
            }
        }
    }

    fn table_ids(&self) -> Vec<u32> {
        self.tables.keys().copied().collect()
    }
}

/// Where the numbers of a table come from.
enum Source {
    Whole(Checked),
    Dense(Vec<(FoundDense, Checked)>),
}

fn unlike_config() -> Error {
    Error::internal("table kind differs from its config")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Change, Message, Read, Request, Stamp};
    use crate::server::OPERATOR;
    use crate::{JobTables, PullMode};
    use fleet_base::disk::RealDisk;

    /// A save is refused while another caller's save is open. The caller of a replaced save gets an
    /// error.
    #[test]
    fn a_save_is_its_own() {
        let folder = std::env::temp_dir().join(format!("fleet-ps-own-{}", std::process::id()));
        let tables = vec![TableConfig::Sparse(crate::SparseConfig::plain(0, 2))];
        let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables };
        let server = ServerTables::new(&job, 0).unwrap();
        let [worker, first, second] = [(0, 1), (OPERATOR, 2), (OPERATOR, 3)]
            .map(|(worker, client)| Caller { worker, client });
        let ask = |by: Caller, seq: u64, request: Request<'_>| {
            let bytes = Message::new(0, Stamp { seq, ..Stamp::default() }, &request).bytes();
            server.call(by, request.method() as u8, &bytes, &mut Vec::new())
        };
        let (mode, format) = (SaveMode::All, SaveFormat::Text);
        let save = |by, seq, dir: &str| {
            let dir = folder.join(dir).to_str().unwrap().to_string();
            ask(by, seq, Change::Save { id: 1, table: None, dir: &dir, mode, format }.into())
        };
        let end = |by, seq| ask(by, seq, Change::EndSave { id: 1, keep: true }.into());
        save(first, 0, "a").unwrap();
        let error = save(worker, 0, "b").unwrap_err().to_string();
        assert!(error.contains("another save is in progress: got save 1 of"), "{error}");
        assert!(error.contains("by an operator"), "{error}");
        // A new save of one operator replaces the open save of another.
        save(second, 0, "c").unwrap();
        let error = end(first, 1).unwrap_err().to_string();
        assert!(error.contains("abandoned before it completed: got save 1"), "{error}");
        end(second, 1).unwrap();
        assert!(
            job::latest_complete(&RealDisk, &folder.join("a")).is_err(),
            "its files are deleted"
        );
        assert_eq!(job::latest_complete(&RealDisk, &folder.join("c")).unwrap().0.save_id, 1);
        save(worker, 1, "b").unwrap();
        end(worker, 2).unwrap();

        let pull = Read::PullSparse { table: 0, mode: PullMode::Train, ids: vec![].into() };
        let error = ask(second, 2, pull.into()).unwrap_err().to_string();
        assert!(error.contains("got PullSparse") && error.contains("an operator"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
