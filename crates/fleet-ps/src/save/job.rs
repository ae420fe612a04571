//! Saves of all tables of a job. Each server writes a mark, `<dir>/saved-<server>.<save>`, after
//! all its tables. A save counts when the marks of all servers are present. All servers have the
//! same tables; the mark of server 0 lists them.

use super::index::{self, SavedTable, TableIndex};
use super::load::{Latest, latest};
use super::{SaveOptions, Saver, manifest};
use fleet_base::disk::Disk;
use fleet_base::sealed::{Kind, Read};
use fleet_base::{Error, Result};
use std::path::Path;

pub(super) const PREFIX: &str = "saved-";
const MARK: Kind = Kind {
    name: "fleet saved tables",
    version: 1,
    help: "load another save, or copy this file again",
};

pub(super) fn file_name(server: u32, save_id: u64) -> String {
    format!("{PREFIX}{server:03}.{save_id}")
}

/// Returns the number of the latest save in a folder, complete or not; 0 if there is none.
pub(crate) fn last_id(disk: &dyn Disk, dir: &Path) -> Result<u64> {
    Ok(manifest::numbered(disk, dir, PREFIX)?.into_iter().map(|(_, save)| save).max().unwrap_or(0))
}

/// Returns the latest save that all servers have finished, and why a newer one was passed over.
pub(crate) fn latest_complete(disk: &dyn Disk, dir: &Path) -> Result<(TableIndex, Option<Error>)> {
    let mark = |dir: &Path, server, save_id| {
        read_mark(disk, &dir.join(file_name(server, save_id)), server, save_id)
    };
    let Latest { save_id, passed_over } =
        latest(dir, manifest::numbered(disk, dir, PREFIX)?, |dir, server, save_id| {
            Ok(mark(dir, server, save_id)?.0)
        })?;
    let (_, tables) = mark(dir, 0, save_id)?;
    Ok((TableIndex { dir: dir.to_path_buf(), save_id, tables }, passed_over))
}

/// Reads from a mark how many servers made its save, and its tables.
fn read_mark(
    disk: &dyn Disk,
    path: &Path,
    server: u32,
    save_id: u64,
) -> Result<(u32, Vec<SavedTable>)> {
    let (content, text) = match MARK.read_on(disk, path)? {
        Read::Body(text) => (text.strip_prefix(&head(server, save_id)).and_then(content), text),
        // Earlier versions wrote no checksum. The number is checked later: manifests state the same
        // one.
        Read::Unsealed(text) => (content(&text).filter(|(_, tables)| tables.is_empty()), text),
    };
    content.ok_or_else(|| {
        MARK.damaged(path, "it is the mark of another server or save")
            .expected(
                format!("{}server_count and a number", head(server, save_id)).replace('\n', ", "),
            )
            .got(format!("{text:?}"))
    })
}

/// Returns the part of a mark that repeats its own name, so that a renamed mark is detected.
fn head(server: u32, save_id: u64) -> String {
    format!("server {server}\nsave_id {save_id}\n")
}

fn content(text: &str) -> Option<(u32, Vec<SavedTable>)> {
    let (number, tables) = text.strip_prefix("server_count ")?.split_once('\n')?;
    Some((number.parse().ok()?, index::parse(tables)?))
}

/// Starts a server's save: removes temporary files of a killed process.
pub(crate) fn begin(disk: &dyn Disk, dir: &Path, tables: &[u32], server: u32) {
    manifest::remove_temporary(disk, dir, server);
    for table in tables {
        manifest::remove_temporary(disk, &super::table_folder(dir, *table), server);
    }
}

impl Saver<'_> {
    /// Marks the save of this server, whose tables are all written.
    pub fn mark(&self, tables: &[SavedTable]) -> Result<()> {
        let SaveOptions { server, server_count, save_id, .. } = self.options;
        let mut text = format!("{}server_count {server_count}\n", head(server, save_id));
        if server == 0 {
            let tables = index::write(tables);
            manifest::put(self.disk, &self.dir.join(manifest::TABLES), tables.as_bytes())?;
            text += &tables;
        }
        MARK.write_on(self.disk, &self.dir.join(file_name(server, save_id)), &text)
    }
}

/// Deletes a server's older saves, after all servers have finished this one.
pub(crate) fn remove_others(
    disk: &dyn Disk,
    dir: &Path,
    tables: &[u32],
    server: u32,
    save_id: u64,
) {
    for (of, save) in manifest::numbered(disk, dir, PREFIX).unwrap_or_default() {
        if of == server && save != save_id {
            let _ = disk.remove(&dir.join(file_name(of, save)));
        }
    }
    for table in tables {
        manifest::remove_others(disk, &super::table_folder(dir, *table), server, save_id);
    }
}

/// Deletes a server's part of a save that failed on some server. The mark is deleted first and for
/// good: if a power cut could restore the mark, everything that it stands for stays.
pub(crate) fn remove(disk: &dyn Disk, dir: &Path, tables: &[u32], server: u32, save_id: u64) {
    let is_gone = match disk.remove(&dir.join(file_name(server, save_id))) {
        Ok(()) => disk.sync_folder(dir).is_ok(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if !is_gone {
        return;
    }
    for table in tables {
        manifest::remove(disk, &super::table_folder(dir, *table), server, save_id);
    }
}
