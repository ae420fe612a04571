//! A snapshot file: all that a server holds, with which a restarted server begins.
//!
//! Numbers and lists follow each other, little-endian, in blocks with checksums (`blocks.rs`); rows
//! are encoded as in a binary save. The file has a temporary name until it is complete.

use super::blocks::{BlockReader, BlockWriter};
use super::epochs::{Epoch, Epochs};
use super::folder::of_other_version;
use crate::dense::DenseRuntime;
use crate::message::{Number, bytes_of};
use crate::save::binary;
use crate::server::pending::{HeldPush, Pending};
use crate::server::progress_tracker::WorkerProgress;
use crate::server::sessions::{ClientSessionsImage, SessionImage};
use crate::server::{ServerTables, Table};
use crate::sparse::Snapshot;
use crate::sync::BarrierImage;
use crate::{Record, SaveMode, SparseTable};
use fleet_base::disk::Disk;
use fleet_base::file::AtomicFile;
use fleet_base::sync::lock;
use fleet_base::{Error, ErrorKind, Result};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// State of a server at one moment: small parts are copied, rows are read later.
pub(in crate::server) struct Image<'a> {
    barrier: BarrierImage,
    sessions: ClientSessionsImage,
    workers: Vec<WorkerProgress>,
    tables: Vec<(u32, TableImage<'a>)>,
}

enum TableImage<'a> {
    Dense(DenseRuntime),
    Sparse { rate_scale: f32, pending: Pending, rows: Snapshot<'a> },
    Geo { changed: Vec<Vec<u64>>, rows: Snapshot<'a> },
    GlobalStep(u64),
}

/// The last byte is the version, as a digit.
const MAGIC: &[u8; 8] = b"FLEETPS5";
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

impl ServerTables {
    /// Takes the image. No request may change anything meanwhile.
    pub(super) fn image(&self) -> Image<'_> {
        let rows = |table: &SparseTable| -> f32 { table.rate_scale() };
        let tables = self.tables.iter().map(|(id, table)| {
            let image = match table {
                Table::Dense(table) => TableImage::Dense(table.runtime()),
                Table::Sparse { rows: table, pending } => TableImage::Sparse {
                    rate_scale: rows(table),
                    pending: lock(pending).clone(),
                    rows: table.snapshot(SaveMode::All, || ()).0,
                },
                Table::Geo(geo) => TableImage::Geo {
                    changed: geo.changed(),
                    rows: geo.rows().snapshot(SaveMode::All, || ()).0,
                },
                Table::GlobalStep(steps) => TableImage::GlobalStep(steps.count()),
            };
            (*id, image)
        });
        let tables = tables.collect();
        let workers = (0..self.job.worker_count).map(|worker| self.progress.of(worker)).collect();
        Image { barrier: self.barrier.image(), sessions: self.sessions.image(), workers, tables }
    }

    /// Fills empty tables from a snapshot whose head was already read.
    pub(super) fn load_image(&self, head: &SnapshotHead, input: &mut SnapshotReader) -> Result<()> {
        if head.worker_count != self.job.worker_count as u64 {
            return Err(Error::invalid("snapshot has another number of workers")
                .expected(self.job.worker_count)
                .got(head.worker_count));
        }
        let progress = input.progress(head)?;
        self.barrier.restore(progress.barrier);
        self.sessions.restore(progress.sessions);
        for (worker, own) in progress.workers.into_iter().enumerate() {
            self.progress.restore(worker, own);
        }
        self.load_tables(input)?;
        input.end()
    }

    fn load_tables(&self, input: &mut SnapshotReader) -> Result<()> {
        for _ in 0..input.u64()? {
            let id = input.u64()? as u32;
            match self.table(id)? {
                Table::Dense(table) => table.set_runtime(DenseRuntime {
                    rate_scale: input.f32()?,
                    push_count: input.u64()?,
                    values: input.list()?,
                    state: input.list()?,
                    sum: input.list()?,
                    read: (0..input.u64()?).map(|_| input.list()).collect::<Result<_>>()?,
                    is_loaded: input.u64()? != 0,
                })?,
                Table::Sparse { rows, pending } => {
                    rows.set_rate_scale(input.f32()?)?;
                    let mut held = Pending::default();
                    for _ in 0..input.u64()? {
                        held.pushes.push(input.held()?);
                    }
                    *lock(pending) = held;
                    input.rows(rows)?;
                }
                Table::Geo(geo) => {
                    let changed = (0..input.u64()?).map(|_| input.list()).collect::<Result<_>>()?;
                    geo.set_changed(changed)?;
                    input.rows(geo.rows())?;
                }
                Table::GlobalStep(steps) => steps.restore(input.u64()?),
            }
        }
        Ok(())
    }
}

impl Image<'_> {
    /// Writes the file, while other threads change the rows; returns its size in bytes.
    pub fn write(self, disk: &Arc<dyn Disk>, path: &Path, head: &SnapshotHead) -> Result<u64> {
        let mut out = SnapshotWriter(BlockWriter::new(AtomicFile::create_on(disk, path)?));
        let written = out.head(head).and_then(|()| self.write_to(&mut out));
        written.map_err(|error| Error::io("write", path, &error))?;
        out.0.commit(path)
    }

    fn write_to(self, out: &mut SnapshotWriter) -> std::io::Result<()> {
        let BarrierImage { rounds, arrived, finished } = &self.barrier;
        rounds.iter().try_for_each(|round| out.u64(*round))?;
        arrived.iter().try_for_each(|list| out.list(list))?;
        out.list(finished)?;
        out.u64(self.sessions.sessions.len() as u64)?;
        for session in &self.sessions.sessions {
            out.u64(session.client)?;
            out.u64(session.done)?;
            out.u64(session.answers.len() as u64)?;
            for (seq, outcome) in &session.answers {
                out.u64(*seq)?;
                out.outcome(outcome)?;
            }
        }
        for worker in &self.workers {
            let numbers = [worker.owner, worker.client, worker.base, worker.complete];
            numbers.iter().try_for_each(|number| out.u64(*number))?;
            let pairs = worker.tables.iter().flat_map(|(table, step)| [u64::from(*table), *step]);
            out.list(&pairs.collect::<Vec<u64>>())?;
        }
        out.u64(self.tables.len() as u64)?;
        for (id, table) in self.tables {
            out.u64(u64::from(id))?;
            match table {
                TableImage::Dense(dense) => {
                    out.write_all(&dense.rate_scale.to_le_bytes())?;
                    out.u64(dense.push_count)?;
                    out.list(&dense.values)?;
                    out.list(&dense.state)?;
                    out.list(&dense.sum)?;
                    out.u64(dense.read.len() as u64)?;
                    dense.read.iter().try_for_each(|read| out.list(read))?;
                    out.u64(u64::from(dense.is_loaded))?;
                }
                TableImage::Sparse { rate_scale, pending, rows } => {
                    out.write_all(&rate_scale.to_le_bytes())?;
                    out.u64(pending.pushes.len() as u64)?;
                    pending.pushes.iter().try_for_each(|held| out.held(held))?;
                    out.rows(rows)?;
                }
                TableImage::Geo { changed, rows } => {
                    out.u64(changed.len() as u64)?;
                    changed.iter().try_for_each(|ids| out.list(ids))?;
                    out.rows(rows)?;
                }
                TableImage::GlobalStep(steps) => out.u64(steps)?,
            }
        }
        Ok(())
    }
}

struct SnapshotWriter(BlockWriter);

impl Write for SnapshotWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl SnapshotWriter {
    fn head(&mut self, head: &SnapshotHead) -> std::io::Result<()> {
        self.write_all(MAGIC)?;
        for number in [head.life, head.number, head.first, head.worker_count] {
            self.u64(number)?;
        }
        let epochs = head.epochs.list().iter();
        let numbers = epochs.flat_map(|it| [it.id, it.first, u64::from(it.accepts_loss)]);
        self.list(&numbers.collect::<Vec<u64>>())
    }

    fn u64(&mut self, number: u64) -> std::io::Result<()> {
        self.write_all(&number.to_le_bytes())
    }

    fn list<T: Number>(&mut self, list: &[T]) -> std::io::Result<()> {
        self.u64(list.len() as u64)?;
        self.write_all(&bytes_of(list))
    }

    fn option<T: Number>(&mut self, list: &Option<Vec<T>>) -> std::io::Result<()> {
        self.u64(u64::from(list.is_some()))?;
        list.iter().try_for_each(|list| self.list(list))
    }

    fn bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.u64(bytes.len() as u64)?;
        self.write_all(bytes)
    }

    fn outcome(&mut self, outcome: &Result<Vec<u8>>) -> std::io::Result<()> {
        match outcome {
            Ok(answer) => {
                self.u64(0)?;
                self.bytes(answer)
            }
            Err(error) => {
                let kind = KINDS.iter().position(|kind| *kind == error.kind()).unwrap_or(0);
                self.u64(1 + kind as u64)?;
                self.bytes(error.to_string().as_bytes())
            }
        }
    }

    fn held(&mut self, held: &HeldPush) -> std::io::Result<()> {
        self.u64(held.worker)?;
        self.u64(held.seq)?;
        self.list(&held.ids)?;
        self.list(&held.grads)?;
        self.option(&held.shows)?;
        self.option(&held.clicks)?;
        self.option(&held.slots)
    }

    fn rows(&mut self, mut rows: Snapshot<'_>) -> std::io::Result<()> {
        while rows.next_shard(|record| binary::write(self, record))? {}
        rows.end();
        self.u64(0)?;
        self.write_all(&[ROWS_END, 0])
    }
}

const KINDS: [ErrorKind; 6] = [
    ErrorKind::Invalid,
    ErrorKind::Unsupported,
    ErrorKind::Unavailable,
    ErrorKind::Exhausted,
    ErrorKind::Numeric,
    ErrorKind::Internal,
];

/// Returns the version of a snapshot that another version of Fleet wrote.
fn other_version(magic: [u8; 8]) -> Option<String> {
    let (name, version) = (&magic[..7], char::from(magic[7]));
    let is_other = *name == MAGIC[..7] && magic[7] != MAGIC[7] && version.is_ascii_digit();
    is_other.then(|| version.to_string())
}

/// The part of a snapshot before its tables.
pub(super) struct ProgressImage {
    pub barrier: BarrierImage,
    pub sessions: ClientSessionsImage,
    pub workers: Vec<WorkerProgress>,
}

/// A snapshot that is being read.
pub(super) struct SnapshotReader(pub BlockReader);

impl SnapshotReader {
    /// Opens a snapshot and reads its head.
    pub fn open(reader: BlockReader) -> Result<(SnapshotReader, SnapshotHead)> {
        let there = reader.peek::<8>()?;
        let mut input = SnapshotReader(reader);
        let mut magic = [0; 8];
        let filled = input.fill(&mut magic);
        if let Some(version) = there.and_then(other_version) {
            // Another version may have other blocks. If the snapshot is intact except for its
            // version, it is one of this version with a changed byte.
            if filled.is_ok() || !input.0.is_whole_with(MAGIC) {
                let ours = char::from(MAGIC[7]).to_string();
                return Err(of_other_version(input.0.path(), &ours, &version));
            }
        }
        filled?;
        if magic != *MAGIC {
            return Err(input.0.damaged("not a snapshot of this version"));
        }
        let [life, number, first, worker_count] =
            [input.u64()?, input.u64()?, input.u64()?, input.u64()?];
        let mut epochs = Epochs::default();
        for epoch in input.list::<u64>()?.chunks_exact(3) {
            let accepts_loss = epoch[2] != 0;
            epochs.push(Epoch { id: epoch[0], first: epoch[1], accepts_loss });
        }
        Ok((input, SnapshotHead { life, number, first, epochs, worker_count }))
    }

    /// Reads the part between the head and the tables.
    pub fn progress(&mut self, head: &SnapshotHead) -> Result<ProgressImage> {
        let barrier = BarrierImage {
            rounds: [self.u64()?, self.u64()?],
            arrived: [self.list()?, self.list()?],
            finished: self.list()?,
        };
        let mut sessions = ClientSessionsImage::default();
        for _ in 0..self.u64()? {
            let (client, done) = (self.u64()?, self.u64()?);
            let mut answers = Vec::new();
            for _ in 0..self.u64()? {
                answers.push((self.u64()?, self.outcome()?));
            }
            sessions.sessions.push(SessionImage { client, done, answers });
        }
        let mut workers = Vec::new();
        for _ in 0..head.worker_count {
            let [owner, client, base, complete] =
                [self.u64()?, self.u64()?, self.u64()?, self.u64()?];
            let pairs: Vec<u64> = self.list()?;
            let tables = pairs.chunks_exact(2).map(|pair| (pair[0] as u32, pair[1])).collect();
            workers.push(WorkerProgress { owner, client, base, complete, tables });
        }
        Ok(ProgressImage { barrier, sessions, workers })
    }

    /// Checks that the file ends here.
    pub fn end(&mut self) -> Result<()> {
        self.0.end()
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.0.fill(bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn f32(&mut self) -> Result<f32> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(f32::from_le_bytes(bytes))
    }

    fn bytes(&mut self, count: u64, width: usize) -> Result<Vec<u8>> {
        let bytes = count.saturating_mul(width as u64);
        if bytes > self.0.total() {
            return Err(self
                .0
                .damaged(format!("a list of {count} numbers is longer than the file")));
        }
        let mut list = vec![0; bytes as usize];
        self.fill(&mut list)?;
        Ok(list)
    }

    fn list<T: Number + FromBytes>(&mut self) -> Result<Vec<T>> {
        let count = self.u64()?;
        Ok(T::from_bytes(&self.bytes(count, size_of::<T>())?))
    }

    fn option<T: Number + FromBytes>(&mut self) -> Result<Option<Vec<T>>> {
        (self.u64()? != 0).then(|| self.list()).transpose()
    }

    fn outcome(&mut self) -> Result<Result<Vec<u8>>> {
        let kind = self.u64()?;
        let count = self.u64()?;
        let bytes = self.bytes(count, 1)?;
        Ok(match kind.checked_sub(1) {
            None => Ok(bytes),
            Some(kind) => {
                let kind = KINDS.get(kind as usize).copied().unwrap_or(ErrorKind::Internal);
                Err(Error::new(kind, String::from_utf8_lossy(&bytes)))
            }
        })
    }

    fn held(&mut self) -> Result<HeldPush> {
        Ok(HeldPush {
            worker: self.u64()?,
            seq: self.u64()?,
            ids: self.list()?,
            grads: self.list()?,
            shows: self.option()?,
            clicks: self.option()?,
            slots: self.option()?,
        })
    }

    fn rows(&mut self, table: &SparseTable) -> Result<()> {
        let mut values = vec![0.0f32; table.row_len()];
        let mut bytes = vec![0; values.len() * 4];
        loop {
            let mut head = [0; 10];
            self.fill(&mut head)?;
            let [a, b, c, d, e, f, g, h, kind, unseen_days] = head;
            let id = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            match kind {
                0 | 2 => {
                    self.fill(&mut bytes)?;
                    crate::message::copy_f32s(&bytes, &mut values);
                    let (changed, values) = (kind == 2, &values[..]);
                    table.restore(Record::Row { id, unseen_days, changed, values })?;
                }
                1 => {
                    let mut count = [0; 4];
                    self.fill(&mut count)?;
                    let count = u32::from_le_bytes(count);
                    table.restore(Record::Pending { id, count })?;
                }
                ROWS_END => return Ok(()),
                _ => return Err(Error::invalid("unknown record in a snapshot")),
            }
        }
    }
}

/// Reads numbers from little-endian bytes.
trait FromBytes: Sized {
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! from_bytes {
    ($($t:ty)*) => {$(
        impl FromBytes for $t {
            fn from_bytes(bytes: &[u8]) -> Vec<$t> {
                let number = |chunk: &[u8]| {
                    let mut bytes = [0; size_of::<$t>()];
                    bytes.copy_from_slice(chunk);
                    <$t>::from_le_bytes(bytes)
                };
                bytes.chunks_exact(size_of::<$t>()).map(number).collect()
            }
        }
    )*};
}
from_bytes!(u32 u64 f32);
