//! All rows as of one moment, while pulls and pushes continue.
//!
//! A snapshot inverts the table's mark: rows with the old mark are still to be saved. Its reader
//! walks from segment to segment, copies such rows and gives them the new mark. A push to a row
//! with the old mark first leaves a copy for the reader. So no thread waits for more than a
//! segment, and extra memory is needed only for rows that were pushed to before the reader visited
//! them.

use super::Core;
use super::SparseTable;
use super::group::shard_of;
use super::index::Entry;
use super::layout::{CLICK, DELTA, Kind, SHOW};
use super::shard::Shard;
use crate::Accessor;
use fleet_base::sync::{lock, write};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

/// Which rows a save takes, and what it does to them. The numbers are those of `save_persistables`:
/// 1 is base and 2 is delta, as documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveMode {
    /// Every row.
    All = 0,
    /// The rows that serving needs: their score has reached `base_threshold`, and they were seen
    /// within `delta_keep_days`. All rows of a plain table. The count of changes restarts.
    Base = 1,
    /// Of these, the rows whose score grew by `delta_threshold` since the last base or delta; in a
    /// plain table, the rows that were pushed to. The count of changes restarts.
    Delta = 2,
    /// Every row. Afterwards all are a day older.
    AllAndAge = 3,
}

impl SaveMode {
    /// Returns the mode of a documented number, 0 to 3.
    pub fn parse(mode: i64) -> fleet_base::Result<SaveMode> {
        match mode {
            0 => Ok(SaveMode::All),
            1 => Ok(SaveMode::Base),
            2 => Ok(SaveMode::Delta),
            3 => Ok(SaveMode::AllAndAge),
            _ => Err(fleet_base::Error::invalid("unknown save mode")
                .expected("0 (all), 1 (base), 2 (delta) or 3 (all, and a day passes)")
                .got(mode)),
        }
    }
}

/// Changes that a base or a delta has saved, so that the next one saves them if this one fails. The
/// ages that a save of mode 3 has added stay.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Id, score since the last base or delta, whether it was pushed to.
    rows: Vec<(u64, f32, bool)>,
}

/// Settings of a running snapshot, for the treatment of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture {
    /// The mark of rows that are done.
    pub mark: bool,
    pub mode: SaveMode,
}

/// An id in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Record<'a> {
    /// A row.
    Row {
        /// The id of the row.
        id: u64,
        /// Days for which the id was not seen.
        unseen_days: u8,
        /// Whether it was pushed to since the last base or delta.
        changed: bool,
        /// All its numbers, in the table's own order.
        values: &'a [f32],
    },
    /// An id without a row.
    Pending {
        /// The id.
        id: u64,
        /// How often it was pulled.
        count: u32,
    },
}

impl Record<'_> {
    /// Returns the id.
    pub fn id(&self) -> u64 {
        match *self {
            Record::Row { id, .. } | Record::Pending { id, .. } => id,
        }
    }
}

/// Words of a captured row before its values: id, days and [`CHANGED`].
const HEAD: usize = 3;
const CHANGED: u32 = 1 << 8;

impl Capture {
    /// Processes a row with the old mark: copies it if the mode includes it.
    #[cold]
    pub fn entry(
        &self,
        core: &Core,
        id: u64,
        entry: &mut Entry,
        row: &mut [f32],
        captured: &mut Vec<u32>,
    ) {
        let days = entry.unseen_days();
        let changed = entry.place().dirty();
        let chosen = self.chooses(core, days, changed, row);
        if chosen {
            let flag = if changed { CHANGED } else { 0 };
            captured.extend([id as u32, (id >> 32) as u32, u32::from(days) | flag]);
            captured.extend(row.iter().map(|value| value.to_bits()));
        }
        match self.mode {
            SaveMode::All => {}
            SaveMode::AllAndAge => {
                entry.set_unseen_days((days + 1).min(super::index::UNSEEN_DAYS_MAX));
            }
            SaveMode::Base | SaveMode::Delta if chosen => {
                if let Kind::Ctr { .. } = core.layout.kind {
                    row[DELTA] = 0.0;
                }
                entry.set_place(entry.place().with_dirty(false));
            }
            SaveMode::Base | SaveMode::Delta => {}
        }
        entry.set_mark(self.mark);
    }

    fn chooses(&self, core: &Core, days: u8, dirty: bool, row: &[f32]) -> bool {
        match (self.mode, &core.config.accessor) {
            (SaveMode::All | SaveMode::AllAndAge, _) => true,
            (SaveMode::Base, Accessor::Plain) => true,
            (SaveMode::Delta, Accessor::Plain) => dirty,
            (mode, Accessor::Ctr(ctr)) => {
                let least = if mode == SaveMode::Delta { ctr.delta_threshold } else { 0.0 };
                ctr.score(row[SHOW], row[CLICK]) >= ctr.base_threshold
                    && row[DELTA] >= least
                    && days <= ctr.delta_keep_days
            }
        }
    }
}

/// A snapshot that is being read. If it is dropped without [`Snapshot::end`], the changes that a
/// base or a delta took count as unsaved again.
pub struct Snapshot<'a> {
    table: &'a SparseTable,
    capture: Capture,
    taken: Taken,
    /// The shard to read next.
    shard: usize,
    _alone: MutexGuard<'a, ()>,
}

impl SparseTable {
    /// Starts a snapshot. Waits for a snapshot or a shrink in progress.
    pub fn snapshot(&self, mode: SaveMode) -> Snapshot<'_> {
        let alone = lock(&self.maintenance);
        let mut gate = write(&self.gate);
        let mark = !self.core.mark.load(Relaxed);
        self.core.mark.store(mark, Relaxed);
        let capture = Capture { mark, mode };
        *gate = Some(capture);
        drop(gate);
        Snapshot { table: self, capture, taken: Taken::default(), shard: 0, _alone: alone }
    }

    /// Marks the changes that a failed save took as unsaved.
    pub(crate) fn take_back(&self, taken: &Taken) {
        let core = &self.core;
        for (id, delta, changed) in &taken.rows {
            let shard = self.lock(shard_of(*id, self.shards.len()));
            // A row that was deleted meanwhile is not to be saved.
            let Some(mut found) = shard.find(core, *id) else { continue };
            if let Kind::Ctr { .. } = core.layout.kind {
                core.slice(found.row)[DELTA] += delta;
            }
            if *changed {
                found.entry.set_place(found.entry.place().with_dirty(true));
            }
        }
    }
}

impl Snapshot<'_> {
    /// Returns whether all shards are read.
    pub(crate) fn is_read(&self) -> bool {
        self.shard == self.table.shards.len()
    }

    /// Visits every id of the next shard; false when there is none. The shard is not locked while
    /// `visit` runs.
    pub fn next_shard<E>(
        &mut self,
        mut visit: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.is_read() {
            return Ok(false);
        }
        let mut batch = Batch::default();
        let mut segment = 0;
        while self.read(segment, &mut batch) {
            self.remember(&batch);
            batch.visit(self.table.core.layout.stride, &mut visit)?;
            segment += 1;
        }
        self.shard += 1;
        Ok(true)
    }

    /// Ends a snapshot whose rows are saved, so that the next save omits their changes. With the
    /// result, [`SparseTable::take_back`] can undo this.
    pub(crate) fn end_taking(mut self) -> Taken {
        std::mem::take(&mut self.taken)
    }

    /// Ends a snapshot whose rows are saved: the next base or delta omits their changes.
    pub fn end(self) {
        drop(self.end_taking());
    }

    fn remember(&mut self, batch: &Batch) {
        if !matches!(self.capture.mode, SaveMode::Base | SaveMode::Delta) {
            return;
        }
        let click = matches!(self.table.core.layout.kind, Kind::Ctr { .. });
        for record in batch.rows.chunks_exact(HEAD + self.table.core.layout.stride) {
            let id = u64::from(record[0]) | u64::from(record[1]) << 32;
            let delta = if click { f32::from_bits(record[HEAD + DELTA]) } else { 0.0 };
            self.taken.rows.push((id, delta, record[2] & CHANGED != 0));
        }
    }

    /// Copies the rows of a segment that are to be saved; false after the last one. Segments that
    /// are split in the meantime leave their halves here and at the end.
    fn read(&self, segment: usize, batch: &mut Batch) -> bool {
        let core = &self.table.core;
        let mut shard = self.table.lock(self.shard);
        batch.rows.clear();
        batch.waiting.clear();
        std::mem::swap(&mut batch.rows, &mut shard.captured);
        if segment >= shard.index.segment_count() {
            let more = !batch.rows.is_empty();
            shard.captured = Vec::new();
            return more;
        }
        let Shard { index, .. } = &*shard;
        for (id, mut entry) in index.sorted_segment(segment) {
            match entry.place().slot() {
                Some(slot) if entry.place().mark() != self.capture.mark => {
                    let row = core.slice(shard.row(core, slot));
                    self.capture.entry(core, id, &mut entry, row, &mut batch.rows);
                }
                Some(_) => {}
                None => {
                    if matches!(self.capture.mode, SaveMode::All | SaveMode::AllAndAge) {
                        batch.waiting.push((id, entry.place().count().unwrap_or(0)));
                    }
                    if self.capture.mode == SaveMode::AllAndAge {
                        let days = entry.unseen_days() + 1;
                        entry.set_unseen_days(days.min(super::index::UNSEEN_DAYS_MAX));
                    }
                }
            }
        }
        true
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // Every row must have the new mark before the next snapshot inverts it.
        while let Ok(true) = self.next_shard(|_| Ok::<(), std::convert::Infallible>(())) {}
        *write(&self.table.gate) = None;
        for shard in 0..self.table.shards.len() {
            self.table.lock(shard).captured = Vec::new();
        }
        // If the snapshot was ended, the list is empty.
        self.table.take_back(&self.taken);
    }
}

/// Copies of a segment's rows.
#[derive(Default)]
struct Batch {
    rows: Vec<u32>,
    waiting: Vec<(u64, u32)>,
}

impl Batch {
    fn visit<E>(
        &self,
        stride: usize,
        visit: &mut impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut values = vec![0.0f32; stride];
        for record in self.rows.chunks_exact(HEAD + stride) {
            let id = u64::from(record[0]) | u64::from(record[1]) << 32;
            for (value, bits) in values.iter_mut().zip(&record[HEAD..]) {
                *value = f32::from_bits(*bits);
            }
            visit(Record::Row {
                id,
                unseen_days: record[2] as u8,
                changed: record[2] & CHANGED != 0,
                values: &values,
            })?;
        }
        self.waiting
            .iter()
            .try_for_each(|(id, count)| visit(Record::Pending { id: *id, count: *count }))
    }
}
