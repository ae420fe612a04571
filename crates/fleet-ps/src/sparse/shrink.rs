//! Deletion of rows that are no longer used.

use super::SparseTable;
use super::layout::{CLICK, SHOW, SLOT, slot_number, slot_word};
use crate::Accessor;
use fleet_base::Result;
use fleet_base::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

/// Default of the unseen days after which a plain table drops a row, as in click tables.
const UNSEEN_DAYS_DEFAULT: u8 = 30;

/// Whether an id stays, given its unseen days and its row, if it has one.
type Keep<'k> = dyn Fn(u8, Option<&mut [f32]>) -> bool + 'k;

impl SparseTable {
    /// Deletes rows that were unseen for more than `unseen_days` days (by default the accessor's
    /// number, or 30). A click table first decays its shows and clicks, and also deletes rows whose
    /// score has fallen below `delete_threshold`. A row that stays with a score below
    /// `embedx_threshold` loses its embedding, which starts anew when the score is high enough
    /// again. Returns the number of rows deleted. Holds the lock of a shard for one segment at a
    /// time. The memory of the rows is reused.
    pub fn shrink(&self, unseen_days: Option<u8>) -> Result<u64> {
        let _alone = lock(&self.maintenance);
        let days_max = match (&self.core.config.accessor, unseen_days) {
            (_, Some(days)) => days,
            (Accessor::Ctr(ctr), None) => ctr.delete_after_unseen_days,
            (Accessor::Plain, None) => UNSEEN_DAYS_DEFAULT,
        };
        self.retain(&|unseen_days, row| {
            let keep = unseen_days <= days_max;
            let (Accessor::Ctr(ctr), Some(row)) = (&self.core.config.accessor, row) else {
                return keep;
            };
            row[SHOW] *= ctr.show_click_decay_rate;
            row[CLICK] *= ctr.show_click_decay_rate;
            let score = ctr.score(row[SHOW], row[CLICK]);
            if score < ctr.embedx_threshold {
                row[SLOT] = slot_word(slot_number(row[SLOT]), false);
                row[self.embedx_at()..].fill(0.0);
            }
            keep && score >= ctr.delete_threshold
        })
    }

    /// Deletes all rows, and forgets pending ids. Returns the number of rows deleted.
    pub fn clear(&self) -> Result<u64> {
        let _alone = lock(&self.maintenance);
        self.retain(&|_, _| false)
    }

    fn retain(&self, keep: &Keep<'_>) -> Result<u64> {
        let mut gone = 0;
        for shard in 0..self.shards.len() {
            let mut segment = 0;
            while let Some(count) = self.retain_segment(shard, segment, keep)? {
                gone += count;
                segment += 1;
            }
        }
        self.counters.deleted.fetch_add(gone, Relaxed);
        Ok(gone)
    }

    /// Filters one segment; none after the last segment. A segment that is split meanwhile may
    /// decay twice, because its upper half is visited again at the end. That takes 19 thousand new
    /// ids in a shard during one shrink.
    fn retain_segment(&self, shard: usize, segment: usize, keep: &Keep<'_>) -> Result<Option<u64>> {
        let core = &self.core;
        let mut shard = self.lock(shard);
        if segment >= shard.index.segment_count() {
            return Ok(None);
        }
        let (mut rows, mut waiting) = (Vec::new(), 0);
        let mut index = {
            let empty = shard.index.empty_like();
            std::mem::replace(&mut shard.index, empty)
        };
        let result = index.retain_segment(&core.index_arena, segment, |_, entry| {
            let Some(slot) = entry.place().slot() else {
                let stays = keep(entry.unseen_days(), None);
                waiting += usize::from(!stays);
                return stays;
            };
            let stays = keep(entry.unseen_days(), Some(core.slice(shard.row(core, slot))));
            if !stays {
                rows.push(slot);
            }
            stays
        });
        shard.index = index;
        result?;
        core.pending_count.fetch_sub(waiting as u64, Relaxed);
        let count = rows.len() as u64;
        rows.into_iter().for_each(|slot| shard.release(core, slot));
        Ok(Some(count))
    }
}
