//! Reads rows.
//!
//! A row costs two cache misses: its bucket and the row itself. Ids are pipelined: while the row of
//! one is copied, the rows of the next ones and the buckets of those after them are being fetched.

use super::index::Ahead;
use super::layout::{CLICK, EMBED, Kind, SHOW, SLOT, has_embedx};
use super::shard::Shard;
use super::{Core, prefetch_row};
use crate::Accessor;
use fleet_base::Result;
use std::ptr::NonNull;

/// Ids between the prefetch of a row and its copy: a core's work for an id takes less time than a
/// memory access.
const ROWS_AHEAD: usize = 16;

/// Treatment of ids without a row in a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullMode {
    /// They get rows if the entry policy admits them.
    Train,
    /// They read as zeros, and nothing changes.
    Infer,
    /// They read as the initial values of their rows, and nothing changes.
    InferInitial,
}

/// The output rows of a batch, by position; groups are disjoint.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub out: *mut f32,
    pub width: usize,
}

/// How many rows could not be made, and the first error.
#[derive(Default)]
pub(crate) struct Refused {
    pub count: usize,
    pub first: Option<fleet_base::Error>,
}

impl Refused {
    #[inline(always)]
    pub fn note<T>(&mut self, result: Result<Option<T>>) -> Option<T> {
        result.unwrap_or_else(|error| {
            self.count += 1;
            self.first.get_or_insert(error);
            None
        })
    }
}

impl Shard {
    /// # Safety
    /// Every position is a row of the target, and nothing else writes these.
    pub unsafe fn pull(
        &mut self,
        core: &Core,
        mode: PullMode,
        (ids, positions): (&[u64], &[u32]),
        target: Target,
        refused: &mut Refused,
    ) {
        let mut rows = [None::<NonNull<f32>>; ROWS_AHEAD];
        let mut fresh = match mode {
            PullMode::InferInitial => vec![0.0; core.layout.stride],
            PullMode::Train | PullMode::Infer => Vec::new(),
        };
        self.prefetch_lists(ids.len());
        // A longer prefetch would fetch another row.
        let row_len = match core.layout.kind {
            Kind::Ctr { .. } => target.width + EMBED,
            Kind::Plain => target.width,
        };
        let mut ahead = Ahead::new(&self.index, ids);
        for at in 0..ids.len() + ROWS_AHEAD {
            let row = &mut rows[at % ROWS_AHEAD];
            if let Some(at) = at.checked_sub(ROWS_AHEAD) {
                if row.is_none() && mode == PullMode::InferInitial {
                    core.layout.init(&core.config, core.seed_of(ids[at]), &mut fresh);
                    *row = NonNull::new(fresh.as_mut_ptr());
                }
                // SAFETY: promised by the caller.
                unsafe {
                    let out = target.out.add(positions[at] as usize * target.width);
                    core.copy_out(*row, out, target.width);
                }
            }
            if at < ids.len() {
                let mut found = self.find_next(core, &mut ahead, at);
                if found.is_none() && mode == PullMode::Train {
                    found = refused.note(self.admit(core, ids[at], true));
                }
                *row = found.map(|found| found.row);
                if let Some(row) = *row {
                    prefetch_row(row.as_ptr(), row_len);
                }
            }
        }
    }
}

impl Core {
    /// Copies what a pull returns for a row; zeros if there is none.
    ///
    /// # Safety
    /// `out` is valid for `width` floats; the row belongs to this table and is locked.
    #[inline]
    unsafe fn copy_out(&self, row: Option<NonNull<f32>>, out: *mut f32, width: usize) {
        // SAFETY: promised by the caller.
        unsafe {
            let Some(row) = row else {
                out.write_bytes(0, width);
                return;
            };
            let row = row.as_ptr();
            match (&self.layout.kind, &self.config.accessor) {
                (Kind::Ctr { embedx }, Accessor::Ctr(ctr)) => {
                    let mut out = out;
                    if ctr.pull_show_click {
                        *out = *row.add(SHOW);
                        *out.add(1) = *row.add(CLICK);
                        out = out.add(2);
                    }
                    *out = *row.add(EMBED);
                    if has_embedx(*row.add(SLOT)) {
                        row.add(*embedx).copy_to_nonoverlapping(out.add(1), self.config.dim);
                    } else {
                        out.add(1).write_bytes(0, self.config.dim);
                    }
                }
                _ => super::copy_row(row, out, width),
            }
        }
    }
}
