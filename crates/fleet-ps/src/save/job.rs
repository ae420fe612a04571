//! All tables of a job in one save: a mark a server, `<dir>/saved-<server>.<save>`, written when all its
//! tables are. A save counts when the marks of all servers are there.

use super::load::latest;
use super::manifest;
use fleet_base::file::write_file;
use fleet_base::{Error, Result};
use std::path::Path;

const PREFIX: &str = "saved-";

fn file_name(server: u32, save_id: u64) -> String {
    format!("{PREFIX}{server:03}.{save_id}")
}

/// The number of the latest save in a folder, complete or not; 0 if there is none.
pub(crate) fn last_id(dir: &Path) -> Result<u64> {
    Ok(manifest::numbered(dir, PREFIX)?.into_iter().map(|(_, save)| save).max().unwrap_or(0))
}

/// The latest save that all servers have finished.
pub(crate) fn latest_complete(dir: &Path) -> Result<u64> {
    latest(dir, manifest::numbered(dir, PREFIX)?, |dir, server, save_id| {
        let path = dir.join(file_name(server, save_id));
        let text =
            std::fs::read_to_string(&path).map_err(|error| Error::io("read", &path, &error))?;
        let count = text.trim().strip_prefix("server_count ").and_then(|n| n.parse().ok());
        count.ok_or_else(|| {
            Error::invalid(format!("{} is malformed", path.display()))
                .expected("server_count and a number")
        })
    })
}

/// A server begins a save: temporary files of one that was killed go.
pub(crate) fn begin(dir: &Path, tables: &[u32], server: u32) {
    manifest::remove_temporary(dir, server);
    for table in tables {
        manifest::remove_temporary(&super::table_folder(dir, *table), server);
    }
}

/// All tables of a server are written.
pub(crate) fn mark(dir: &Path, server: u32, server_count: u32, save_id: u64) -> Result<()> {
    let text = format!("server_count {server_count}\n");
    write_file(&dir.join(file_name(server, save_id)), text.as_bytes())
}

/// All servers are done with a save: a server's older ones go.
pub(crate) fn remove_others(dir: &Path, tables: &[u32], server: u32, save_id: u64) {
    for (of, save) in manifest::numbered(dir, PREFIX).unwrap_or_default() {
        if of == server && save != save_id {
            let _ = std::fs::remove_file(dir.join(file_name(of, save)));
        }
    }
    for table in tables {
        manifest::remove_others(&super::table_folder(dir, *table), server, save_id);
    }
}

/// A save failed somewhere: a server's part in it goes.
pub(crate) fn remove(dir: &Path, tables: &[u32], server: u32, save_id: u64) {
    let _ = std::fs::remove_file(dir.join(file_name(server, save_id)));
    for table in tables {
        manifest::remove(&super::table_folder(dir, *table), server, save_id);
    }
}
