//! Restores rows from a snapshot.

use super::SparseTable;
use super::group::shard_of;
use super::index::{Place, UNSEEN_DAYS_MAX};
use super::shard::Found;
use super::snapshot::Record;
use fleet_base::sync::read;
use fleet_base::{Error, Result};
use std::sync::atomic::Ordering::Relaxed;

impl SparseTable {
    /// Restores a record of a [`Snapshot`](super::Snapshot), over an existing row.
    pub fn restore(&self, record: Record<'_>) -> Result<()> {
        match record {
            Record::Row { id, unseen_days, changed, values } => {
                self.restore_row(id, (unseen_days, changed), values)
            }
            Record::Pending { id, count } => self.restore_waiting(id, count),
        }
    }

    fn restore_row(&self, id: u64, seen: (u8, bool), values: &[f32]) -> Result<()> {
        let (core, (unseen_days, changed)) = (&self.core, seen);
        if values.len() != core.layout.stride || unseen_days > UNSEEN_DAYS_MAX {
            return Err(Error::invalid(format!("the row of id {id} does not fit the table"))
                .expected(format!("{} numbers, unseen for 0 to 63 days", core.layout.stride))
                .got(format!("{} numbers, {unseen_days} days", values.len()))
                .at(self.place()));
        }
        let _open = read(&self.gate);
        let mut shard = self.lock(shard_of(id, self.shards.len()));
        let mut found = match shard.index.find(id) {
            Some(entry) => match entry.place().slot() {
                Some(slot) => Found { entry, row: shard.row(core, slot) },
                None => shard.fill(core, id, entry)?,
            },
            None => shard.insert(core, id)?,
        };
        found.entry.set_unseen_days(unseen_days);
        found.entry.set_place(found.entry.place().with_dirty(changed));
        core.slice(found.row).copy_from_slice(values);
        Ok(())
    }

    fn restore_waiting(&self, id: u64, count: u32) -> Result<()> {
        let core = &self.core;
        let mut shard = self.lock(shard_of(id, self.shards.len()));
        match shard.index.find(id) {
            Some(mut entry) if entry.place().slot().is_none() => {
                entry.set_place(Place::pending(count));
            }
            Some(_) => {}
            None => {
                shard.index.insert(&core.index_arena, id, Place::pending(count))?;
                core.pending_count.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }
}
