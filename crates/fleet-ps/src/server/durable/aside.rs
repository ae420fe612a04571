//! The folder `aside`, which keeps data that was cut off or replaced.

use super::folder::ASIDE;
use super::reader::zeros;
use crate::io_error::io_error;
use fleet_base::Result;
use fleet_base::disk::{Disk, DiskFile, make_folder, own_folder, read_exact_at};
use fleet_base::file::AtomicFile;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes copied at a time.
pub(super) const COPY_BYTES: usize = 1 << 20;

/// Returns the folder, which is made if it is missing. A link in its place is rejected: files would
/// leave the server's folder.
pub(super) fn folder(disk: &dyn Disk, server: &Path) -> Result<PathBuf> {
    check(disk, server)?;
    let aside = server.join(ASIDE);
    make_folder(disk, &aside)?;
    Ok(aside)
}

pub(super) fn check(disk: &dyn Disk, server: &Path) -> Result<()> {
    let checked = own_folder(disk, &server.join(ASIDE));
    checked.map(drop).map_err(|error| error.help("remove it, or move it away"))
}

/// Copies a range of a file; blocks of zeros become holes.
pub(super) fn copy(
    disk: &Arc<dyn Disk>,
    (file, from): (&dyn DiskFile, &Path),
    range: Range<u64>,
    to: &Path,
) -> Result<()> {
    let mut out = AtomicFile::create_on(disk, to)?;
    let mut put = |at: u64, bytes: &[u8]| {
        let written =
            out.seek(SeekFrom::Start(at - range.start)).and_then(|_| out.write_all(bytes));
        written.map_err(|error| out.error("write", &error))
    };
    let (mut at, mut copied) = (range.start, range.start);
    let len = (range.end - range.start).min(COPY_BYTES as u64);
    let mut bytes = vec![0; len as usize];
    while at < range.end {
        let Some(data) = file.data_from(at).map_err(io_error("read", from))? else { break };
        at = at.max(data);
        let count = range.end.saturating_sub(at).min(COPY_BYTES as u64) as usize;
        let bytes = &mut bytes[..count];
        read_exact_at(file, at, bytes).map_err(io_error("read", from))?;
        if zeros(bytes) < count {
            put(at, bytes)?;
            copied = at + count as u64;
        }
        at += count as u64;
    }
    if copied < range.end {
        // The copy has the full length, even if it ends in zeros.
        put(range.end - 1, &[0])?;
    }
    out.commit()
}
