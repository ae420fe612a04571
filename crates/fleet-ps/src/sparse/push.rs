//! Applies gradients to rows.
//!
//! Ids are found as in a pull, one after another; the rule is called once per block of them.

use super::index::Ahead;
use super::layout::{
    CLICK, DELTA, EMBED, Kind, SHOW, SLOT, has_embedx, init_embedx, slot_number, slot_word,
};
use super::pull::Refused;
use super::shard::{Found, Shard};
use super::snapshot::Capture;
use super::{Core, prefetch_row};
use crate::row_rule::{How, Row, update_rows};
use crate::{Accessor, CtrAccessor};
use std::ptr::NonNull;

/// Updates that a rule gets at once. The rows of the next block are fetched meanwhile.
const BLOCK: usize = 16;

/// Gradients by id, each id once.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub grads: &'a [f32],
    pub width: usize,
    pub shows: Option<&'a [f32]>,
    pub clicks: Option<&'a [f32]>,
    pub slots: Option<&'a [u32]>,
}

/// A row, and the position of its gradient.
#[derive(Clone, Copy)]
struct Update {
    row: NonNull<f32>,
    id: u64,
    position: u32,
}

impl Shard {
    /// Applies the gradients of a group; returns how many had no row.
    pub fn push(
        &mut self,
        core: &Core,
        how: How,
        capture: Option<&Capture>,
        (ids, positions): (&[u64], &[u32]),
        batch: Batch<'_>,
        refused: &mut Refused,
    ) -> usize {
        let mut updates: [Vec<Update>; 2] = [Vec::with_capacity(BLOCK), Vec::with_capacity(BLOCK)];
        let blocks = ids.len().div_ceil(BLOCK);
        let range = |block: usize| block * BLOCK..((block + 1) * BLOCK).min(ids.len());
        let mut dropped = 0;
        self.prefetch_lists(ids.len());
        let mut ahead = Ahead::new(&self.index, ids);
        for block in 0..=blocks {
            if block < blocks {
                let current = &mut updates[block % 2];
                current.clear();
                for at in range(block) {
                    let (id, position) = (&ids[at], &positions[at]);
                    let found = self.find_next(core, &mut ahead, at);
                    let found = found.or_else(|| refused.note(self.admit(core, *id, false)));
                    let Some(mut found) = found else {
                        dropped += 1;
                        continue;
                    };
                    prefetch_row(found.row.as_ptr(), core.layout.stride);
                    let grad = batch.grads.as_ptr();
                    super::prefetch(grad.wrapping_add(*position as usize * batch.width));
                    // An entry is valid until the next insertion, so it is used at once.
                    self.touch(core, capture, *id, &mut found);
                    current.push(Update { row: found.row, id: *id, position: *position });
                }
            }
            if block > 0 {
                core.apply(how, &updates[(block - 1) % 2], batch);
            }
        }
        dropped
    }

    /// Copies the row if a snapshot still waits for it; marks it as seen today and dirty.
    #[inline]
    fn touch(&mut self, core: &Core, capture: Option<&Capture>, id: u64, found: &mut Found) {
        let entry = &mut found.entry;
        if let Some(capture) = capture
            && entry.place().mark() != capture.mark
        {
            let row = core.slice(found.row);
            capture.entry(core, id, entry, row, &mut self.captured);
        }
        entry.set_unseen_days(0);
        entry.set_place(entry.place().with_dirty(true));
    }
}

impl Core {
    fn apply(&self, how: How, updates: &[Update], batch: Batch<'_>) {
        match (&self.layout.kind, &self.config.accessor) {
            (Kind::Ctr { embedx }, Accessor::Ctr(ctr)) => {
                self.apply_ctr(how, updates, batch, ctr, *embedx);
            }
            _ => self.apply_plain(how, updates, batch),
        }
    }

    fn apply_plain(&self, how: How, updates: &[Update], batch: Batch<'_>) {
        let dim = self.config.dim;
        let mut rows = [EMPTY_ROW; BLOCK];
        for (row, update) in rows.iter_mut().zip(updates) {
            let weights = update.row.as_ptr();
            let position = update.position as usize;
            *row = Row {
                weights,
                state: weights.wrapping_add(dim),
                grad: batch.grads[position * dim..].as_ptr(),
                shows: batch.shows.map_or(1.0, |shows| shows[position]),
            };
        }
        // SAFETY: rows are `dim + state_len` floats under the lock of their shard.
        unsafe { update_rows(&self.config.rule, &rows[..updates.len()], dim, how) };
    }

    fn apply_ctr(
        &self,
        how: How,
        updates: &[Update],
        batch: Batch<'_>,
        ctr: &CtrAccessor,
        embedx: usize,
    ) {
        let (mut embeds, mut embedxs) = ([EMPTY_ROW; BLOCK], [EMPTY_ROW; BLOCK]);
        let mut embedx_count = 0;
        for (at, update) in updates.iter().enumerate() {
            let position = update.position as usize;
            let shows = batch.shows.map_or(1.0, |shows| shows[position]);
            let clicks = batch.clicks.map_or(0.0, |clicks| clicks[position]);
            let start = update.row.as_ptr();
            // SAFETY: the lock gives exclusive access to the row, which is `stride` floats long.
            let row = unsafe { std::slice::from_raw_parts_mut(start, self.layout.stride) };
            row[SHOW] += shows;
            row[CLICK] += clicks;
            row[DELTA] += ctr.score(shows, clicks);
            let slot = batch.slots.map_or_else(|| slot_number(row[SLOT]), |slots| slots[position]);
            let mut made = has_embedx(row[SLOT]);
            if !made && ctr.score(row[SHOW], row[CLICK]) >= ctr.embedx_threshold {
                init_embedx(&self.config, self.seed_of(update.id), &mut row[embedx..]);
                made = true;
            }
            row[SLOT] = slot_word(slot, made);
            let grad = batch.grads[position * batch.width..][..batch.width].as_ptr();
            // Rules divide by shows: no shows count as one.
            let shows = if shows > 0.0 && ctr.show_scale { shows } else { 1.0 };
            let part = |at: usize, len: usize, grad: *const f32| Row {
                weights: start.wrapping_add(at),
                state: start.wrapping_add(at + len),
                grad,
                shows,
            };
            embeds[at] = part(EMBED, 1, grad);
            if made {
                embedxs[embedx_count] = part(embedx, self.config.dim, grad.wrapping_add(1));
                embedx_count += 1;
            }
        }
        let embed_how = How { bounds: ctr.embed_bounds.unwrap_or(how.bounds), ..how };
        // SAFETY: parts are inside rows under the lock of their shard.
        unsafe {
            update_rows(&ctr.embed_rule, &embeds[..updates.len()], 1, embed_how);
            update_rows(&self.config.rule, &embedxs[..embedx_count], self.config.dim, how);
        }
    }
}

const EMPTY_ROW: Row = Row {
    weights: std::ptr::null_mut(),
    state: std::ptr::null_mut(),
    grad: std::ptr::null(),
    shows: 1.0,
};
