//! Sparse tables in files, and back.
//!
//! A save is a folder, `<dir>/<table, three digits>/`. Every server writes its rows there, a file a
//! shard, `part-<server>-<shard>`, and at last its manifest, `manifest-<server>`, which names these
//! files with sizes and checksums. A manifest appears whole or not at all, and what it names was
//! flushed before: a save that was cut off is the save that was there before, or none. Manifests carry
//! the same save number on all servers, so that parts of two saves are never mixed.
//!
//! Rows are saved as they are at one moment ([`SparseTable::snapshot`]); pulls and pushes go on
//! meanwhile. A load reads the parts of all servers, checks every byte before it touches the table,
//! and takes the ids that belong to its server: the number of servers may change.

mod binary;
mod load;
mod manifest;
mod text;

pub use load::load_sparse;

use crate::{Accessor, Record, SaveMode, SparseTable};
use fleet_base::file::AtomicFile;
use fleet_base::{Error, Result};
use manifest::{Manifest, Part};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveFormat {
    /// A line a row, for people and other programs. Numbers read back as the very same bits.
    Text,
    /// The bytes of memory: small and fast.
    Binary,
}

impl SaveFormat {
    fn name(self) -> &'static str {
        match self {
            SaveFormat::Text => "text",
            SaveFormat::Binary => "binary",
        }
    }
}

/// One server's part in a save.
#[derive(Clone, Copy, Debug)]
pub struct SaveOptions {
    pub mode: SaveMode,
    pub format: SaveFormat,
    pub server: u32,
    pub server_count: u32,
    /// The same on all servers, another one in every save.
    pub save_id: u64,
}

/// Servers of a job: what three digits number.
const SERVER_COUNT_MAX: u32 = 1000;

/// What a save wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    pub row_count: u64,
    pub bytes: u64,
}

/// Writes one server's rows of a table.
///
/// ```
/// use fleet_ps::{Push, SaveFormat, SaveMode, SaveOptions, SparseConfig, SparseTable};
/// # let dir = std::env::temp_dir().join(format!("fleet-ps-doc-{}", std::process::id()));
/// let table = SparseTable::new(SparseConfig::plain(0, 4))?;
/// table.push(Push::new(&[17], &[0.5; 4]))?;
/// let options = SaveOptions {
///     mode: SaveMode::All,
///     format: SaveFormat::Text,
///     server: 0,
///     server_count: 1,
///     save_id: 1,
/// };
/// let saved = fleet_ps::save_sparse(&table, &dir, &options)?;
/// let copy = SparseTable::new(SparseConfig::plain(0, 4))?;
/// let rows = fleet_ps::load_sparse(&copy, &dir, |_id| true)?;
/// assert_eq!((saved.row_count, rows), (1, 1));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn save_sparse(table: &SparseTable, dir: &Path, options: &SaveOptions) -> Result<Saved> {
    let SaveOptions { server, server_count, .. } = *options;
    if server >= server_count || server_count > SERVER_COUNT_MAX {
        return Err(Error::invalid("the server of a save is wrong")
            .expected(format!("a server below {server_count}, at most {SERVER_COUNT_MAX} of them"))
            .got(format!("server {server} of {server_count}")));
    }
    let folder = table_folder(dir, table.config().table_id);
    std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
    let path = folder.join(manifest::file_name(server));
    // Files of the save before stay until the new manifest stands.
    let before = if path.exists() { manifest::read(&path).ok() } else { None };
    let round = before.as_ref().map_or(0, |before| before.round + 1);
    let (mut parts, mut saved) = (Vec::new(), Saved::default());
    let (mut snapshot, ()) = table.snapshot(options.mode, || ());
    for shard in 0..table.config().shard_count {
        let name = part_name(server, shard, round);
        let (part, rows) = write_part(
            &folder.join(&name),
            name,
            options,
            |write| snapshot.next_shard(write).map(|_| ()),
            table,
        )?;
        saved.row_count += rows;
        saved.bytes += part.bytes;
        parts.push(part);
    }
    drop(snapshot);
    let manifest = Manifest {
        table_id: table.config().table_id,
        server,
        server_count,
        save_id: options.save_id,
        round,
        mode: options.mode as u8,
        format: options.format,
        layout: layout_name(table),
        parts,
    };
    manifest::write(&path, &manifest)?;
    for part in before.iter().flat_map(|before| &before.parts) {
        // The save stands; an old file that cannot be deleted harms nobody.
        let _ = std::fs::remove_file(folder.join(&part.name));
    }
    Ok(saved)
}

type Visit<'a> = &'a mut dyn FnMut(Record<'_>) -> Result<()>;

/// Writes what `rows` visits to a file.
fn write_part(
    path: &Path,
    name: String,
    options: &SaveOptions,
    rows: impl FnOnce(Visit<'_>) -> Result<()>,
    table: &SparseTable,
) -> Result<(Part, u64)> {
    let file = AtomicFile::create(path)?;
    let mut out = Summed {
        inner: BufWriter::with_capacity(1 << 18, file),
        sum: crc32fast::Hasher::new(),
        bytes: 0,
    };
    let mut count = 0;
    rows(&mut |record| {
        count += u64::from(matches!(record, Record::Row { .. }));
        let written = match options.format {
            SaveFormat::Text => text::write(&mut out, table, record),
            SaveFormat::Binary => binary::write(&mut out, record),
        };
        written.map_err(|error| Error::io("write", path, &error))
    })?;
    let Summed { inner, sum, bytes } = out;
    let file = inner.into_inner().map_err(|error| Error::io("write", path, error.error()))?;
    file.commit()?;
    Ok((Part { name, bytes, checksum: sum.finalize() }, count))
}

/// A writer that keeps a checksum.
struct Summed {
    inner: BufWriter<AtomicFile>,
    sum: crc32fast::Hasher,
    bytes: u64,
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.sum.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

fn table_folder(dir: &Path, table_id: u32) -> PathBuf {
    dir.join(format!("{table_id:03}"))
}

/// A save over an older one takes new names.
fn part_name(server: u32, shard: usize, round: u64) -> String {
    match round {
        0 => format!("part-{server:03}-{shard:05}"),
        _ => format!("part-{server:03}-{shard:05}.{round}"),
    }
}

/// What must be equal for rows of one table to fit another.
fn layout_name(table: &SparseTable) -> String {
    let config = table.config();
    match &config.accessor {
        Accessor::Plain => format!("plain dim={} rule={}", config.dim, config.rule.name()),
        Accessor::Ctr(ctr) => format!(
            "ctr dim={} rule={} embed_rule={}",
            config.dim,
            config.rule.name(),
            ctr.embed_rule.name()
        ),
    }
}

#[cfg(test)]
mod tests;
