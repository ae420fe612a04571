//! Saves and loads of sparse tables.
//!
//! A save is a folder, `<dir>/<table, three digits>/`. Every server writes its rows there, in files
//! `part-<server>-<number>` (with `.gz` if the table compresses saves of all rows). A file ends
//! with the shard that fills it. Last it writes its manifest, `manifest-<server>.<save>`, which
//! lists these files with sizes and checksums; for compressed files it also has the size of their
//! contents. A manifest appears whole or not at all, after the files that it lists were flushed.
//! Manifests of all servers carry the same number of the save, and a load takes the latest save
//! whose manifests are all present. So a save that was interrupted on any server leaves the
//! previous one in effect, if there is one. The saves of a job (`server/save.rs`) delete an older
//! one when all servers have written; so does [`save_sparse`], which one server calls for itself.
//!
//! Rows are saved as of one moment ([`SparseTable::snapshot`]), while pulls and pushes continue. A
//! load reads the parts of all servers, checks every byte before it changes the table, and takes
//! the ids that belong to its server. So the number of servers may change.

pub(crate) mod binary;
pub(crate) mod dense;
mod index;
pub(crate) mod job;
mod load;
mod manifest;
mod read;
pub(crate) mod remote;
mod rows;
mod text;

pub(crate) use index::{Found, FoundDense};
pub use index::{SavedTable, TableIndex};
pub use load::load_sparse;
pub(crate) use load::{Checked, check, load_checked};
pub use remote::{RemoteDir, SaveFs, SaveSource, numbered_name, remote_url};
pub use rows::SavedRows;

use crate::io_error::io_error;
use crate::sparse::Taken;
use crate::{Accessor, Record, SaveMode, Snapshot, SparseTable};
use flate2::Compression;
use flate2::write::GzEncoder;
use fleet_base::disk::{Disk, RealDisk, make_folder};
use fleet_base::file::AtomicFile;
use fleet_base::{Error, Result};
use manifest::{Manifest, Part};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Encoding of saved rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveFormat {
    /// One line per row, for people and other programs. Numbers read back bit for bit.
    Text,
    /// The bytes in memory: small and fast.
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
    /// Which rows are saved.
    pub mode: SaveMode,
    /// Format of the files.
    pub format: SaveFormat,
    /// Number of this server, from 0.
    pub server: u32,
    /// Number of servers of the job.
    pub server_count: u32,
    /// Number of the save: the same on all servers, and different for every save.
    pub save_id: u64,
}

/// Limit on the servers of a job: three digits number them.
const SERVER_COUNT_MAX: u32 = 1000;

/// Size of a save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Number of rows in the files.
    pub row_count: u64,
    /// Size of the files.
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
    let disk = RealDisk::handle();
    let (part_bytes, round_min) = (PART_BYTES, 0);
    let saver = Saver { disk: &disk, dir, options: *options, part_bytes, round_min };
    let (saved, _taken) = saver.sparse(table)?;
    let folder = table_folder(dir, table.config().table_id);
    manifest::remove_others(&*disk, &folder, options.server, options.save_id);
    Ok(saved)
}

/// Writes one server's part in a save, next to earlier saves.
pub(crate) struct Saver<'a> {
    pub disk: &'a Arc<dyn Disk>,
    pub dir: &'a Path,
    pub options: SaveOptions,
    /// Size from which a part of rows is complete, before compression.
    pub part_bytes: u64,
    /// Least number in the names of parts, if `dir` lacks the files of earlier saves.
    pub round_min: u64,
}

/// Usual [`Saver::part_bytes`]: a load holds a part in memory, and several may be read at once.
pub(crate) const PART_BYTES: u64 = 64 << 20;

impl Saver<'_> {
    /// Writes the rows of a sparse table.
    pub fn sparse(&self, table: &SparseTable) -> Result<(Saved, Taken)> {
        let SaveOptions { server, mode, .. } = self.options;
        let mut snapshot = table.snapshot(mode);
        let saved =
            self.table(table.config().table_id, layout_name(table), |folder, manifest| {
                let mut saved = Saved::default();
                while manifest.parts.is_empty() || !snapshot.is_read() {
                    let mut name = part_name(server, Some(manifest.parts.len()), manifest.round);
                    if is_compressed(table, mode) {
                        name += COMPRESSED;
                    }
                    let (part, rows) = self.part(folder, name, table, &mut snapshot)?;
                    saved.row_count += rows;
                    saved.bytes += part.bytes;
                    manifest.parts.push(part);
                }
                Ok(saved)
            })?;
        Ok((saved, snapshot.end_taking()))
    }

    /// Writes a table: `write` writes files and lists them in the manifest, which is written last.
    /// Deletes these files if anything fails.
    fn table(
        &self,
        table_id: u32,
        layout: String,
        write: impl FnOnce(&Path, &mut Manifest) -> Result<Saved>,
    ) -> Result<Saved> {
        let SaveOptions { server, server_count, save_id, mode, format } = self.options;
        if server >= server_count || server_count > SERVER_COUNT_MAX {
            return Err(Error::invalid("invalid server number in a save")
                .expected(format!(
                    "a number below {server_count}, of at most {SERVER_COUNT_MAX} servers"
                ))
                .got(format!("server {server} of {server_count}")));
        }
        let (disk, folder) = (&**self.disk, table_folder(self.dir, table_id));
        make_folder(disk, &folder)?;
        let mut manifest = Manifest {
            table_id,
            server,
            server_count,
            save_id,
            round: manifest::next_round(disk, &folder, server)?.max(self.round_min),
            mode: mode as u8,
            format,
            layout,
            numbers: None,
            parts: Vec::new(),
        };
        let written = write(&folder, &mut manifest)
            .and_then(|saved| manifest::write(self.disk, &folder, &manifest).map(|()| saved));
        // The error is returned; remaining files are harmless.
        written.inspect_err(|_| manifest::withdraw(disk, &folder, &manifest))
    }

    /// Writes the next shards of a snapshot to a file, until it is complete.
    fn part(
        &self,
        folder: &Path,
        name: String,
        table: &SparseTable,
        snapshot: &mut Snapshot<'_>,
    ) -> Result<(Part, u64)> {
        let SaveOptions { mode, format, .. } = self.options;
        let path = &folder.join(&name);
        let file = AtomicFile::replace_on(self.disk, path)?;
        let summed = Summed {
            inner: BufWriter::with_capacity(1 << 18, file),
            sum: crc32fast::Hasher::new(),
            bytes: 0,
        };
        let mut out = match is_compressed(table, mode) {
            true => Sink::Gzip(Box::new(GzEncoder::new(summed, Compression::fast())), 0),
            false => Sink::Plain(summed),
        };
        let mut count = 0;
        let mut has_more = true;
        while has_more && out.plain_bytes() < self.part_bytes {
            has_more = snapshot.next_shard(|mut record| {
                if let Record::Row { changed, .. } = &mut record {
                    count += 1;
                    // Later changes count from this base or delta.
                    *changed &= !matches!(mode, SaveMode::Base | SaveMode::Delta);
                }
                let written = match format {
                    SaveFormat::Text => text::write(&mut out, table, record),
                    SaveFormat::Binary => binary::write(&mut out, record),
                };
                written.map_err(io_error("write", path))
            })?;
        }
        let (ended, plain_bytes) = match out {
            Sink::Plain(summed) => (Ok(summed), None),
            Sink::Gzip(encoder, plain_bytes) => (encoder.finish(), Some(plain_bytes)),
        };
        let Summed { inner, sum, bytes } = ended.map_err(io_error("write", path))?;
        let file = inner.into_inner().map_err(|error| Error::io("write", path, error.error()))?;
        file.commit()?;
        Ok((Part { name, bytes, checksum: sum.finalize(), plain_bytes }, count))
    }
}

/// Suffix of a compressed part's name.
const COMPRESSED: &str = ".gz";

/// Returns whether a save is compressed. Saves of some rows are small, and other programs read
/// them.
fn is_compressed(table: &SparseTable, mode: SaveMode) -> bool {
    table.config().compress_in_save && matches!(mode, SaveMode::All | SaveMode::AllAndAge)
}

/// Where the rows of a part go; the checksum is that of the file.
enum Sink {
    Plain(Summed),
    /// With the number of bytes before compression.
    Gzip(Box<GzEncoder<Summed>>, u64),
}

impl Sink {
    /// Returns the number of bytes before compression.
    fn plain_bytes(&self) -> u64 {
        match self {
            Sink::Plain(out) => out.bytes,
            Sink::Gzip(_, plain_bytes) => *plain_bytes,
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Sink::Plain(out) => out.write(bytes),
            Sink::Gzip(out, plain_bytes) => {
                let count = out.write(bytes)?;
                *plain_bytes += count as u64;
                Ok(count)
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Sink::Plain(out) => out.flush(),
            Sink::Gzip(out, _) => out.flush(),
        }
    }
}

/// A writer that computes a checksum.
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

pub(crate) fn table_folder(dir: &Path, table_id: u32) -> PathBuf {
    dir.join(folder_name(table_id))
}

pub(crate) fn folder_name(table_id: u32) -> String {
    format!("{table_id:0TABLE_DIGITS$}")
}

/// Least number of digits in the name of a table's folder.
const TABLE_DIGITS: usize = 3;

/// Returns the name of a part, with its number if a server has several. A save over an older one
/// uses new names.
fn part_name(server: u32, number: Option<usize>, round: u64) -> String {
    let number = number.map_or(String::new(), |number| format!("-{number:05}"));
    let round = if round > 0 { format!(".{round}") } else { String::new() };
    format!("part-{server:03}{number}{round}")
}

/// Describes the layout of a table's rows, which must be equal for its rows to fit another table.
pub(crate) fn layout_name(table: &SparseTable) -> String {
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
