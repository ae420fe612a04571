//! Loads of saves made by any number of servers.

use super::manifest::{self, Manifest, Part, WHAT_TO_DO};
use super::{SaveFormat, binary, layout_name, table_folder, text};
use crate::SparseTable;
use crate::io_error::io_error;
use flate2::read::GzDecoder;
use fleet_base::disk::{Access, Disk, RealDisk, exists, read_exact_at};
use fleet_base::{Error, Result, text as words};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Loads the rows for which `mine` is true (those of this server), over the table's contents;
/// returns how many. Nothing is loaded if any file of any server is missing, truncated or changed,
/// or if the table's rows have another layout. Of several saves in a folder, the latest complete
/// one is loaded.
pub fn load_sparse(table: &SparseTable, dir: &Path, mine: impl Fn(u64) -> bool) -> Result<u64> {
    let (folder, disk) = (table_folder(dir, table.config().table_id), RealDisk::handle());
    let count_of = |folder: &Path, server, save_id| {
        let path = folder.join(manifest::file_name(server, save_id));
        Ok(manifest::read(&*disk, &path)?.server_count)
    };
    let latest = latest(&folder, manifest::numbered(&*disk, &folder, manifest::PREFIX)?, count_of)?;
    let (table_id, layout) = (table.config().table_id, layout_name(table));
    let checked = check(&disk, dir, table_id, latest.save_id, &layout)?;
    load_checked(table, &checked, mine)
}

/// A save of a table whose every byte was checked.
pub(crate) struct Checked {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    manifests: Vec<Manifest>,
}

/// Checks every byte of a table's part of a save; the table's layout is `wanted`.
pub(crate) fn check(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    table_id: u32,
    save_id: u64,
    wanted: &str,
) -> Result<Checked> {
    let folder = table_folder(dir, table_id);
    let manifests = read_manifests(&**disk, &folder, save_id)?;
    for manifest in &manifests {
        if manifest.layout != wanted || manifest.table_id != table_id {
            return Err(Error::invalid("save has another table")
                .expected(format!("table {table_id}, {wanted}"))
                .got(format!("table {}, {}", manifest.table_id, manifest.layout))
                .help("use the network, strategy and optimizer of the job that saved")
                .at(folder.display()));
        }
        for part in &manifest.parts {
            read_part(&**disk, &folder, part)?;
        }
    }
    Ok(Checked { disk: disk.clone(), folder, manifests })
}

/// Loads the rows of a checked save.
pub(crate) fn load_checked(
    table: &SparseTable,
    checked: &Checked,
    mine: impl Fn(u64) -> bool,
) -> Result<u64> {
    let mut count = 0;
    for manifest in &checked.manifests {
        for part in &manifest.parts {
            count += load_part(table, checked, manifest.format, part, &mine)?;
        }
    }
    Ok(count)
}

impl Checked {
    /// Reads each server's only part, in the order of servers.
    pub(super) fn each_part(&self) -> impl Iterator<Item = Result<(&Manifest, Vec<u8>)>> {
        self.manifests.iter().map(|manifest| match &manifest.parts[..] {
            [part] => Ok((manifest, read_part(&*self.disk, &self.folder, part)?)),
            parts => Err(Error::invalid("part of a save has several files")
                .got(format!("{} files", parts.len()))
                .at(self.folder.display())),
        })
    }
}

/// The latest complete save of a folder.
pub(super) struct Latest {
    pub save_id: u64,
    /// Why the newest one was passed over.
    pub passed_over: Option<Error>,
}

/// Returns the latest save in a folder that has the files of all its servers. `server_count` reads
/// their number from one of the files.
pub(super) fn latest(
    folder: &Path,
    files: Vec<(u32, u64)>,
    server_count: impl Fn(&Path, u32, u64) -> Result<u32>,
) -> Result<Latest> {
    let mut saves: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    files.into_iter().for_each(|(server, save)| saves.entry(save).or_default().push(server));
    let mut first = None;
    for (save, servers) in saves.iter_mut().rev() {
        servers.sort_unstable();
        let mut count = None;
        for server in &*servers {
            let found = server_count(folder, *server, *save)?;
            check_count(folder, *save, *count.get_or_insert(found), found)?;
        }
        let count = count.unwrap_or(0);
        let is_missing = |server: &u32| servers.binary_search(server).is_err();
        let missing: Vec<u32> = (0..count).filter(is_missing).take(MISSING_SHOWN).collect();
        if missing.is_empty() {
            return Ok(Latest { save_id: *save, passed_over: first });
        }
        first.get_or_insert_with(|| {
            Error::invalid(format!("incomplete save in {}", folder.display()))
                .expected(format!("the parts of {count} servers in save {save}"))
                .got(format!("no parts of servers {missing:?}"))
                .help("save again, or copy the whole folder")
        });
    }
    Err(first.unwrap_or_else(|| {
        Error::invalid(format!("no save in {}", folder.display()))
            .expected("a folder that save_persistables or save_sparse wrote")
    }))
}

/// Checks that the parts of a save agree on a valid number of servers.
fn check_count(folder: &Path, save: u64, first: u32, found: u32) -> Result<()> {
    if first == found && (1..=SERVERS_MAX).contains(&found) {
        return Ok(());
    }
    let what = format!("wrong number of servers in save {save} in {}", folder.display());
    Err(Error::invalid(what)
        .expected(match first == found {
            true => format!("1 to {SERVERS_MAX}"),
            false => format!("{first}, as in another part"),
        })
        .got(found)
        .help("load another save, or copy this one again"))
}

/// Limit on the servers of a save, far above those of a cluster: a number in a file makes no larger
/// list.
const SERVERS_MAX: u32 = 1 << 16;
/// Limit on the missing servers that an error names.
const MISSING_SHOWN: usize = 16;

/// Reads the manifests of all servers of one save.
fn read_manifests(disk: &dyn Disk, folder: &Path, save_id: u64) -> Result<Vec<Manifest>> {
    let mut manifests: Vec<Manifest> = Vec::new();
    let mut server_count = 1;
    while (manifests.len() as u32) < server_count {
        let server = manifests.len() as u32;
        let path = folder.join(manifest::file_name(server, save_id));
        if !exists(disk, &path).map_err(io_error("read", &path))? {
            return Err(Error::invalid(format!("{} is missing", path.display()))
                .expected(match server {
                    0 => "a save of this table".to_string(),
                    _ => format!("the parts of {server_count} servers"),
                })
                .help("save again, or copy the whole folder"));
        }
        let found = manifest::read(disk, &path)?;
        server_count = manifests.first().unwrap_or(&found).server_count;
        let got = (found.save_id, found.server, found.server_count);
        if got != (save_id, server, server_count) {
            return Err(Error::invalid("parts belong to different saves")
                .expected(format!("server {server} of {server_count} in save {save_id}"))
                .got(format!("server {} of {} in save {}", got.1, got.2, got.0))
                .at(path.display()));
        }
        manifests.push(found);
    }
    Ok(manifests)
}

/// Reads a part and checks that its bytes are those that were written.
fn read_part(disk: &dyn Disk, folder: &Path, part: &Part) -> Result<Vec<u8>> {
    let path = folder.join(&part.name);
    let failed = |error| Error::io("read a part of a save,", &path, &error).help(WHAT_TO_DO);
    let file = match disk.open(&path, Access::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::invalid(format!("{} is missing", path.display()))
                .expected(format!("a part of a save, of {}", words::bytes(part.bytes)))
                .help(WHAT_TO_DO));
        }
        Err(error) => return Err(failed(error)),
    };
    // The size is checked first, so that no memory is allocated for a wrong file.
    let size = file.len().map_err(failed)?;
    if size != part.bytes {
        return Err(Error::invalid(format!("{} has the wrong size", path.display()))
            .expected(words::bytes(part.bytes))
            .got(words::bytes(size))
            .help(WHAT_TO_DO));
    }
    let mut bytes = vec![0; size as usize];
    read_exact_at(&*file, 0, &mut bytes).map_err(failed)?;
    match crc32fast::hash(&bytes) == part.checksum {
        true => Ok(bytes),
        false => {
            Err(Error::invalid(format!("{} is damaged: its checksum is wrong", path.display()))
                .help(WHAT_TO_DO))
        }
    }
}

/// Decompresses a part, up to the size in its manifest: a small file may expand to a huge one.
pub(super) fn plain(path: &Path, bytes: Vec<u8>, plain_bytes: Option<u64>) -> Result<Vec<u8>> {
    let Some(wanted) = plain_bytes else { return Ok(bytes) };
    let mut plain = Vec::new();
    let unpacked =
        GzDecoder::new(&bytes[..]).take(wanted.saturating_add(1)).read_to_end(&mut plain);
    match unpacked.map(|count| count as u64) {
        Ok(count) if count == wanted => Ok(plain),
        Ok(count) => Err(Error::invalid(format!("{} differs from its manifest", path.display()))
            .expected(format!("{} of uncompressed data", words::bytes(wanted)))
            .got(match count > wanted {
                true => "more".to_string(),
                false => words::bytes(count),
            })
            .help(WHAT_TO_DO)),
        Err(error) => Err(Error::invalid(format!("{} is not a gzip file", path.display()))
            .got(error)
            .help(WHAT_TO_DO)),
    }
}

fn load_part(
    table: &SparseTable,
    checked: &Checked,
    format: SaveFormat,
    part: &Part,
    mine: &impl Fn(u64) -> bool,
) -> Result<u64> {
    let path = checked.folder.join(&part.name);
    let bytes = plain(&path, read_part(&*checked.disk, &checked.folder, part)?, part.plain_bytes)?;
    let mut count = 0;
    let mut visit = |record: crate::Record<'_>| {
        if mine(record.id()) {
            table.restore(record)?;
            count += u64::from(matches!(record, crate::Record::Row { .. }));
        }
        Ok(())
    };
    match format {
        SaveFormat::Binary => binary::read(&bytes, table.row_len(), &mut visit)
            .unwrap_or_else(|| Err(Error::invalid(format!("{} is malformed", path.display()))))?,
        SaveFormat::Text => {
            let text = std::str::from_utf8(&bytes)
                .map_err(|_| Error::invalid(format!("{} is not text", path.display())))?;
            text::read(text, table, &mut visit).map_err(|line| {
                Error::invalid(format!("line {line} of {} is malformed", path.display()))
            })??;
        }
    }
    Ok(count)
}
