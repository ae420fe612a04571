//! Reading a save of any number of servers.

use super::manifest::{self, Manifest, Part};
use super::{SaveFormat, binary, layout_name, table_folder, text};
use crate::SparseTable;
use fleet_base::{Error, Result, text as words};
use std::path::Path;

/// Loads the rows for which `mine` is true (those of this server), over what the table has; returns how
/// many. Nothing is loaded if any file of any server is missing, torn or changed, or if the table's rows
/// are of another form.
pub fn load_sparse(table: &SparseTable, dir: &Path, mine: impl Fn(u64) -> bool) -> Result<u64> {
    let folder = table_folder(dir, table.config().table_id);
    let manifests = read_manifests(&folder)?;
    let wanted = layout_name(table);
    for manifest in &manifests {
        if manifest.layout != wanted || manifest.table_id != table.config().table_id {
            return Err(Error::invalid("a save is of another table")
                .expected(format!("table {}, {wanted}", table.config().table_id))
                .got(format!("table {}, {}", manifest.table_id, manifest.layout))
                .at(folder.display()));
        }
        for part in &manifest.parts {
            read_part(&folder, part)?;
        }
    }
    let mut count = 0;
    for manifest in &manifests {
        for part in &manifest.parts {
            count += load_part(table, &folder, manifest.format, part, &mine)?;
        }
    }
    Ok(count)
}

/// The manifests of all servers of one save.
fn read_manifests(folder: &Path) -> Result<Vec<Manifest>> {
    let mut manifests: Vec<Manifest> = Vec::new();
    let mut server_count = 1;
    while (manifests.len() as u32) < server_count {
        let server = manifests.len() as u32;
        let path = folder.join(manifest::file_name(server));
        if !path.exists() {
            return Err(Error::invalid(format!("{} is missing", path.display()))
                .expected(match server {
                    0 => "a save of this table".to_string(),
                    _ => format!("the parts of {server_count} servers"),
                })
                .help("the save was not finished, or not all of it was copied here"));
        }
        let found = manifest::read(&path)?;
        let first = manifests.first().unwrap_or(&found);
        server_count = first.server_count;
        let (want, got) = (first.save_id, found.save_id);
        if want != got || found.server_count != server_count || found.server != server {
            return Err(Error::invalid("the parts of a save do not belong together")
                .expected(format!("server {server} of {server_count} in save {want}"))
                .got(format!("server {} of {} in save {got}", found.server, found.server_count))
                .at(path.display())
                .help("one server saved again and the others did not finish; load another save"));
        }
        manifests.push(found);
    }
    Ok(manifests)
}

/// The bytes of a part, if they are those that were written.
fn read_part(folder: &Path, part: &Part) -> Result<Vec<u8>> {
    let path = folder.join(&part.name);
    let bytes = match std::fs::metadata(&path) {
        // The size is looked at first: no memory is taken for a file that is wrong anyway.
        Ok(found) if found.len() != part.bytes => Err(found.len()),
        Ok(_) => Ok(std::fs::read(&path).map_err(|error| Error::io("read", &path, &error))?),
        Err(error) => return Err(Error::io("read a part of a save,", &path, &error)),
    };
    match bytes {
        Ok(bytes) if crc32fast::hash(&bytes) == part.checksum => Ok(bytes),
        Ok(_) => {
            Err(Error::invalid(format!("{} was changed: its checksum is wrong", path.display())))
        }
        Err(size) => Err(Error::invalid(format!("{} is torn", path.display()))
            .expected(words::bytes(part.bytes))
            .got(words::bytes(size))),
    }
}

fn load_part(
    table: &SparseTable,
    folder: &Path,
    format: SaveFormat,
    part: &Part,
    mine: &impl Fn(u64) -> bool,
) -> Result<u64> {
    let bytes = read_part(folder, part)?;
    let path = folder.join(&part.name);
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
