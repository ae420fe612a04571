//! A snapshot file: all that a server holds, with which a restarted server begins.
//!
//! Values follow each other (`stored.rs`) in blocks with checksums (`blocks.rs`); rows are encoded
//! as in a binary save. The file has a temporary name until it is complete.

use super::blocks::{BlockReader, BlockWriter};
use super::epochs::Epochs;
use super::folder::of_other_version;
use super::stored::{Stored, stored_structs};
use crate::dense::DenseRuntime;
use crate::io_error::io_error;
use crate::save::binary;
use crate::server::pending::Pending;
use crate::server::progress_tracker::WorkerProgress;
use crate::server::sessions::SessionImage;
use crate::server::{ServerTables, Table};
use crate::sparse::Snapshot;
use crate::sync::BarrierImage;
use crate::{SaveMode, SparseTable};
use fleet_base::disk::Disk;
use fleet_base::file::AtomicFile;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use std::io::{Result as IoResult, Write};
use std::path::Path;
use std::sync::Arc;

/// State of a server at one moment: small parts are copied, rows are read later.
pub(in crate::server) struct Image<'a> {
    progress: ProgressImage,
    tables: Vec<(u32, TableImage<'a>)>,
}

/// The part of a snapshot before its tables.
pub(super) struct ProgressImage {
    pub barrier: BarrierImage,
    pub sessions: Vec<SessionImage>,
    /// As many as the head states.
    pub workers: Vec<WorkerProgress>,
}

enum TableImage<'a> {
    Dense(DenseRuntime),
    Sparse { rate_scale: f32, pending: Pending, rows: Snapshot<'a> },
    Geo { changed: Vec<Vec<u64>>, rows: Snapshot<'a> },
    GlobalStep(u64),
}

/// The last byte is the version, as a digit.
const MAGIC: &[u8; 8] = b"FLEETPS7";
/// Ends the rows of a table; no kind of record has this value.
const ROWS_END: u8 = 255;

/// The head of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SnapshotHead {
    pub life: u64,
    pub number: u64,
    /// Sequence number of the first record that the snapshot does not contain.
    pub first: u64,
    pub epochs: Epochs,
    pub worker_count: u64,
}
stored_structs! { SnapshotHead { life number first worker_count epochs } }

impl ServerTables {
    /// Takes the image. No request may change anything meanwhile.
    pub(super) fn image(&self) -> Image<'_> {
        let tables = self.tables.iter().map(|(id, table)| {
            let image = match table {
                Table::Dense(table) => TableImage::Dense(table.runtime()),
                Table::Sparse { rows, pending } => TableImage::Sparse {
                    rate_scale: rows.rate_scale(),
                    pending: lock(pending).clone(),
                    rows: rows.snapshot(SaveMode::All),
                },
                Table::Geo(geo) => TableImage::Geo {
                    changed: geo.changed(),
                    rows: geo.rows().snapshot(SaveMode::All),
                },
                Table::GlobalStep(steps) => TableImage::GlobalStep(steps.count()),
            };
            (*id, image)
        });
        let tables = tables.collect();
        let workers = (0..self.job.worker_count).map(|worker| self.progress.of(worker)).collect();
        let (barrier, sessions) = (self.barrier.image(), self.sessions.image());
        Image { progress: ProgressImage { barrier, sessions, workers }, tables }
    }

    /// Fills empty tables from a snapshot whose head was already read.
    pub(super) fn load_image(&self, head: &SnapshotHead, input: &mut BlockReader) -> Result<()> {
        if head.worker_count != self.job.worker_count as u64 {
            return Err(Error::invalid("snapshot has another number of workers")
                .expected(self.job.worker_count)
                .got(head.worker_count));
        }
        let progress = ProgressImage::load(head, input)?;
        self.barrier.restore(progress.barrier);
        self.sessions.restore(progress.sessions);
        for (worker, own) in progress.workers.into_iter().enumerate() {
            self.progress.restore(worker, own);
        }
        self.load_tables(input)?;
        input.end()
    }

    fn load_tables(&self, input: &mut BlockReader) -> Result<()> {
        for _ in 0..u64::load(input)? {
            let id = u64::load(input)? as u32;
            match self.table(id)? {
                Table::Dense(table) => table.set_runtime(Stored::load(input)?)?,
                Table::Sparse { rows, pending } => {
                    rows.set_rate_scale(Stored::load(input)?)?;
                    let held = Stored::load(input)?;
                    *lock(pending) = held;
                    load_rows(rows, input)?;
                }
                Table::Geo(geo) => {
                    geo.set_changed(Stored::load(input)?)?;
                    load_rows(geo.rows(), input)?;
                }
                Table::GlobalStep(steps) => steps.restore(Stored::load(input)?),
            }
        }
        Ok(())
    }
}

impl Image<'_> {
    /// Writes the file, while other threads change the rows; returns its size in bytes.
    pub fn write(self, disk: &Arc<dyn Disk>, path: &Path, head: &SnapshotHead) -> Result<u64> {
        let mut out = BlockWriter::new(AtomicFile::create_on(disk, path)?);
        let written = self.write_to(head, &mut out);
        written.map_err(io_error("write", path))?;
        out.commit(path)
    }

    fn write_to(self, head: &SnapshotHead, out: &mut BlockWriter) -> IoResult<()> {
        out.write_all(MAGIC)?;
        head.store(out)?;
        self.progress.barrier.store(out)?;
        self.progress.sessions.store(out)?;
        WorkerProgress::store_items(&self.progress.workers, out)?;
        (self.tables.len() as u64).store(out)?;
        for (id, table) in self.tables {
            u64::from(id).store(out)?;
            match table {
                TableImage::Dense(dense) => dense.store(out)?,
                TableImage::Sparse { rate_scale, pending, rows } => {
                    rate_scale.store(out)?;
                    pending.store(out)?;
                    store_rows(rows, out)?;
                }
                TableImage::Geo { changed, rows } => {
                    changed.store(out)?;
                    store_rows(rows, out)?;
                }
                TableImage::GlobalStep(steps) => steps.store(out)?,
            }
        }
        Ok(())
    }
}

fn store_rows(mut rows: Snapshot<'_>, out: &mut BlockWriter) -> IoResult<()> {
    while rows.next_shard(|record| binary::write(out, record))? {}
    rows.end();
    0u64.store(out)?;
    out.write_all(&[ROWS_END, 0])
}

fn load_rows(table: &SparseTable, input: &mut BlockReader) -> Result<()> {
    let mut values = vec![0.0f32; table.row_len()];
    loop {
        let mut head = [0; binary::HEAD_BYTES];
        input.fill(&mut head)?;
        if head[8] == ROWS_END {
            return Ok(());
        }
        let record = binary::read_record(head, &mut values, |bytes| input.fill(bytes))?;
        table.restore(record.ok_or_else(|| Error::invalid("unknown record in a snapshot"))?)?;
    }
}

/// Returns the version of a snapshot that another version of Fleet wrote.
fn other_version(magic: [u8; 8]) -> Option<String> {
    let (name, version) = (&magic[..7], char::from(magic[7]));
    let is_other = *name == MAGIC[..7] && magic[7] != MAGIC[7] && version.is_ascii_digit();
    is_other.then(|| version.to_string())
}

impl SnapshotHead {
    /// Reads the head of a file.
    pub fn of(disk: &dyn Disk, path: &Path) -> Result<SnapshotHead> {
        SnapshotHead::read(&mut BlockReader::open(disk, path)?)
    }

    /// Reads the head, with which a snapshot begins.
    pub fn read(input: &mut BlockReader) -> Result<SnapshotHead> {
        let there = input.peek::<8>()?;
        let mut magic = [0; 8];
        let filled = input.fill(&mut magic);
        if let Some(version) = there.and_then(other_version) {
            // Another version may have other blocks. If the snapshot is intact except for its
            // version, it is one of this version with a changed byte.
            if filled.is_ok() || !input.is_whole_with(MAGIC) {
                let ours = char::from(MAGIC[7]).to_string();
                return Err(of_other_version(input.path(), &ours, &version));
            }
        }
        filled?;
        match magic == *MAGIC {
            true => Stored::load(input),
            false => Err(input.damaged("not a snapshot of this version")),
        }
    }
}

impl ProgressImage {
    /// Reads the part between the head and the tables.
    pub fn load(head: &SnapshotHead, input: &mut BlockReader) -> Result<ProgressImage> {
        Ok(ProgressImage {
            barrier: Stored::load(input)?,
            sessions: Stored::load(input)?,
            workers: Stored::load_items(head.worker_count, input)?,
        })
    }
}
