//! A shard: an index, and the rows that it refers to.

use super::Core;
use super::index::{Ahead, Entry, Index, Place, SLOT_COUNT_MAX};
use super::layout::Layout;
use crate::Entry as Policy;
use crate::HashKey;
use crate::init::RowSeed;
use fleet_base::{Error, Result};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

/// Rows under one lock. They are in slabs that never move, and numbered by slot.
pub(crate) struct Shard {
    pub index: Index,
    slabs: Vec<NonNull<f32>>,
    /// Number of slots ever handed out.
    used: u32,
    free: Vec<u32>,
    /// Rows to be saved that were pushed to first (`snapshot.rs`).
    pub captured: Vec<u32>,
}

// SAFETY: the slabs belong to the shard.
unsafe impl Send for Shard {}

/// A row that was found.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub entry: Entry,
    pub row: NonNull<f32>,
}

/// Returns how many rows a slab has: about 16 KiB of them, and a power of two.
pub(crate) fn slab_rows(layout: &Layout) -> usize {
    ((16 << 10) / (layout.stride * 4)).clamp(16, 256).next_power_of_two()
}

impl Shard {
    pub fn new(key: HashKey) -> Shard {
        Shard {
            index: Index::new(key),
            slabs: Vec::new(),
            used: 0,
            free: Vec::new(),
            captured: Vec::new(),
        }
    }

    pub fn list_bytes(&self) -> usize {
        self.index.list_bytes()
            + self.slabs.capacity() * size_of::<NonNull<f32>>()
            + (self.free.capacity() + self.captured.capacity()) * 4
    }

    /// Prefetches the lists that lead to buckets and rows, if a group is long enough to read most
    /// of them. One by one, each would be a cache miss.
    pub fn prefetch_lists(&self, ids: usize) {
        /// Pointers in a cache line.
        const STEP: usize = 8;
        if self.slabs.len() / STEP <= ids {
            self.slabs.iter().step_by(STEP).for_each(|slab| super::prefetch(slab));
            self.index.prefetch_lists();
        }
    }

    /// Returns the row of a slot.
    #[inline]
    pub fn row(&self, core: &Core, slot: u32) -> NonNull<f32> {
        let slab = self.slabs[slot as usize >> core.slab_shift];
        let row = slot as usize & ((1 << core.slab_shift) - 1);
        // SAFETY: the slab has that many rows.
        unsafe { slab.add(row * core.layout.stride) }
    }

    /// Returns the row of an id, if it has one.
    #[inline(always)]
    pub fn find(&self, core: &Core, id: u64) -> Option<Found> {
        let entry = self.index.find(id)?;
        let row = self.row(core, entry.place().slot()?);
        Some(Found { entry, row })
    }

    /// Returns the row of the next id of a group, if it has one.
    #[inline(always)]
    pub fn find_next(&self, core: &Core, ahead: &mut Ahead<'_>, at: usize) -> Option<Found> {
        let entry = ahead.find(&self.index, at)?;
        let row = self.row(core, entry.place().slot()?);
        Some(Found { entry, row })
    }

    /// Makes the row of an id without one, if the entry policy admits it. `pulled` counts towards
    /// that.
    #[cold]
    #[inline(never)]
    pub fn admit(&mut self, core: &Core, id: u64, pulled: bool) -> Result<Option<Found>> {
        match self.index.find(id) {
            Some(entry) => self.admit_pending(core, id, entry, pulled),
            None => self.admit_new(core, id, pulled),
        }
    }

    /// Admits an id that is pending.
    fn admit_pending(
        &mut self,
        core: &Core,
        id: u64,
        mut entry: Entry,
        pulled: bool,
    ) -> Result<Option<Found>> {
        let count = entry.place().count().unwrap_or(0) + u32::from(pulled);
        let admitted = match core.config.entry {
            Policy::CountFilter(wanted) => count >= wanted,
            _ => true,
        };
        if !admitted || !pulled {
            entry.set_place(Place::pending(count));
            entry.set_unseen_days(0);
            return Ok(None);
        }
        self.fill(core, id, entry).map(Some)
    }

    /// Admits an id that was never seen.
    fn admit_new(&mut self, core: &Core, id: u64, pulled: bool) -> Result<Option<Found>> {
        let admitted = match core.config.entry {
            Policy::None | Policy::ShowClick { .. } => true,
            Policy::CountFilter(wanted) => u32::from(pulled) >= wanted,
            Policy::Probability(least) => core.seed_of(id).admission_draw() >= least,
        };
        if !admitted {
            if pulled && matches!(core.config.entry, Policy::CountFilter(_)) {
                self.index.insert(&core.index_arena, id, Place::pending(1))?;
                core.pending_count.fetch_add(1, Relaxed);
            }
            return Ok(None);
        }
        self.insert(core, id).map(Some)
    }

    /// Makes the row of an id that the index does not have.
    pub fn insert(&mut self, core: &Core, id: u64) -> Result<Found> {
        let slot = self.create(core, id)?;
        let place = Place::row(slot, core.mark.load(Relaxed));
        match self.index.insert(&core.index_arena, id, place) {
            Ok(entry) => Ok(Found { entry, row: self.row(core, slot) }),
            Err(error) => {
                self.release(core, slot);
                Err(error)
            }
        }
    }

    /// Makes the row of an id that is pending.
    pub fn fill(&mut self, core: &Core, id: u64, mut entry: Entry) -> Result<Found> {
        let slot = self.create(core, id)?;
        entry.set_place(Place::row(slot, core.mark.load(Relaxed)));
        core.pending_count.fetch_sub(1, Relaxed);
        Ok(Found { entry, row: self.row(core, slot) })
    }

    /// Makes a row for an id without one. The caller enters it into the index.
    fn create(&mut self, core: &Core, id: u64) -> Result<u32> {
        if core.row_count.fetch_add(1, Relaxed) >= core.config.row_count_max {
            core.row_count.fetch_sub(1, Relaxed);
            return Err(Error::exhausted("the table is full")
                .expected(format!("at most {} rows", core.config.row_count_max))
                .help(
                    "raise row_count_max, reject rare ids with an entry policy, or shrink the \
                     table",
                ));
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.fresh_slot(core).inspect_err(|_| {
                core.row_count.fetch_sub(1, Relaxed);
            })?,
        };
        let row = self.row(core, slot);
        // SAFETY: the slot is in a slab of this shard and nothing else uses it; its floats may hold
        // anything.
        let row = unsafe {
            row.write_bytes(0, core.layout.stride);
            std::slice::from_raw_parts_mut(row.as_ptr(), core.layout.stride)
        };
        core.layout.init(&core.config, core.seed_of(id), row);
        Ok(slot)
    }

    fn fresh_slot(&mut self, core: &Core) -> Result<u32> {
        if self.used as usize == self.slabs.len() << core.slab_shift {
            if self.used >= SLOT_COUNT_MAX {
                return Err(Error::exhausted("too many rows in a shard")
                    .expected(format!("at most {SLOT_COUNT_MAX}"))
                    .help("raise shard_count"));
            }
            self.slabs.push(core.row_arena.take()?.cast());
        }
        self.used += 1;
        Ok(self.used - 1)
    }

    /// Takes back a row that the index does not refer to.
    pub fn release(&mut self, core: &Core, slot: u32) {
        self.free.push(slot);
        core.row_count.fetch_sub(1, Relaxed);
    }
}

impl Core {
    pub fn seed_of(&self, id: u64) -> RowSeed {
        RowSeed { seed: self.config.seed, table: self.config.table_id, id }
    }
}
