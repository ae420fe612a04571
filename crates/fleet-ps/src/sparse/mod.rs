//! Sparse tables: rows by id, made when an id is first seen.
//!
//! A table is divided into shards by a hash of the id, with one lock per shard. A shard is an
//! index, id -> slot, and slabs of rows of one width; a row holds weights, optimizer state and
//! counters (`shard.rs`, `index.rs`). A batch is grouped by shard, so that each lock is taken once,
//! and runs through three stages that overlap (`pull.rs`, `push.rs`).
//!
//! Performance sketch for dimension 16, 10 million rows and one core: a row is one to two cache
//! lines, plus half a line of index, at random addresses. A core keeps about 12 lines in flight at
//! 90 ns each, which limits it to some 60 million rows/s. The work for a row (hash, probe, copy)
//! adds about 25 ns. `cargo xtask bench ps` measures it.

mod arena;
mod group;
mod index;
pub(crate) mod layout;
mod pull;
mod push;
mod restore;
mod shard;
mod shrink;
mod snapshot;
#[cfg(test)]
mod tests;

pub use pull::PullMode;
pub(crate) use snapshot::Taken;
pub use snapshot::{Record, SaveMode, Snapshot};

use crate::row_rule::How;
use crate::{HashKey, Merger, Push, SparseConfig, TableStats, UniqueIds, finite};
use arena::Arena;
use fleet_base::sync::{lock, read};
use fleet_base::{Error, Result};
use group::Groups;
use layout::Layout;
use pull::{Refused, Target};
use push::Batch;
use shard::Shard;
use snapshot::Capture;
use std::borrow::Cow;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, RwLock};

/// A table of rows by id. Every method may be called from any thread.
///
/// ```
/// use fleet_ps::{Initializer, PullMode, Push, SparseConfig, SparseTable};
/// let initializer = Initializer::Constant(1.0);
/// let config = SparseConfig { initializer, ..SparseConfig::plain(0, 2) };
/// let table = SparseTable::new(config)?;
/// table.push(Push::new(&[u64::MAX, 5, 5], &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]))?;
/// let mut rows = [0.0; 4];
/// table.pull(&[5, u64::MAX], &mut rows, PullMode::Train)?;
/// assert_eq!(rows, [0.75, 0.75, 0.95, 0.95]); // sgd at its default rate of 0.05
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct SparseTable {
    core: Core,
    shards: Vec<Mutex<Shard>>,
    /// Held shared by pulls and pushes; exclusively where a snapshot begins or ends.
    gate: RwLock<Option<Capture>>,
    /// Held by a snapshot or a shrink: one runs at a time.
    maintenance: Mutex<()>,
    rate_scale: AtomicU32,
    counters: Counters,
    scratch: Mutex<Vec<Scratch>>,
    /// Determines the shard at which the next batch starts, so that threads do not queue at the
    /// same locks.
    turn: AtomicUsize,
}

/// State that the shards need of their table.
pub(crate) struct Core {
    config: SparseConfig,
    layout: Layout,
    /// Rows per slab, as a power of two.
    slab_shift: u32,
    index_arena: Arena,
    row_arena: Arena,
    mark: AtomicBool,
    row_count: AtomicU64,
    pending_count: AtomicU64,
}

#[derive(Default)]
struct Counters {
    pulled: AtomicU64,
    pushed: AtomicU64,
    dropped: AtomicU64,
    non_finite: AtomicU64,
    deleted: AtomicU64,
}

#[derive(Default)]
struct Scratch {
    groups: Groups,
    merger: Merger,
}

/// Limit on the ids of one call: positions have 32 bits, and such a batch should be split anyway.
const BATCH_IDS_MAX: usize = 1 << 26;
/// Limit on the sets of scratch memory kept for reuse.
const SCRATCH_COUNT_MAX: usize = 64;

impl SparseTable {
    /// Returns an empty table whose hash tables have a random key.
    pub fn new(config: SparseConfig) -> Result<SparseTable> {
        SparseTable::with_key(config, HashKey::random())
    }

    /// Returns an empty table. No result or save of it depends on the key.
    pub fn with_key(config: SparseConfig, key: HashKey) -> Result<SparseTable> {
        config.check()?;
        let layout = Layout::new(&config);
        let slab_rows = shard::slab_rows(&layout);
        let shards = (0..config.shard_count).map(|_| Mutex::new(Shard::new(key))).collect();
        let core = Core {
            slab_shift: slab_rows.trailing_zeros(),
            index_arena: Arena::new(index::PAGE_BYTES),
            row_arena: Arena::new(slab_rows * layout.stride * size_of::<f32>()),
            config,
            layout,
            mark: AtomicBool::new(false),
            row_count: AtomicU64::new(0),
            pending_count: AtomicU64::new(0),
        };
        Ok(SparseTable {
            core,
            shards,
            gate: RwLock::new(None),
            maintenance: Mutex::new(()),
            rate_scale: AtomicU32::new(1.0f32.to_bits()),
            counters: Counters::default(),
            scratch: Mutex::default(),
            turn: AtomicUsize::new(0),
        })
    }

    /// Returns the rules and sizes of the table.
    pub fn config(&self) -> &SparseConfig {
        &self.core.config
    }

    /// Returns how many numbers a pull returns for an id.
    pub fn pull_width(&self) -> usize {
        self.core.config.pull_width()
    }

    /// Returns how many numbers a push carries for an id.
    pub fn push_width(&self) -> usize {
        self.core.config.push_width()
    }

    /// Returns how many numbers a row has as it is kept and saved: weights, state, counters.
    pub fn row_len(&self) -> usize {
        self.core.layout.stride
    }

    /// Returns the offset of a row's embedding part.
    pub(crate) fn embedx_at(&self) -> usize {
        match self.core.layout.kind {
            layout::Kind::Ctr { embedx } => embedx,
            layout::Kind::Plain => 0,
        }
    }

    /// Sets the factor on the learning rate of every rule. Schedules set it step by step.
    pub fn set_rate_scale(&self, scale: f32) -> Result<()> {
        finite::check_rate_scale(scale).map_err(|error| error.at(self.place()))?;
        self.rate_scale.store(scale.to_bits(), Relaxed);
        Ok(())
    }

    pub(crate) fn rate_scale(&self) -> f32 {
        f32::from_bits(self.rate_scale.load(Relaxed))
    }

    /// Reads the rows of `ids`, in their order, into `out`.
    pub fn pull(&self, ids: &[u64], out: &mut [f32], mode: PullMode) -> Result<()> {
        let width = self.pull_width();
        self.check_len("out", out.len(), ids.len(), width)?;
        let _open = read(&self.gate);
        let mut scratch = self.scratch();
        scratch.groups.sort(ids, self.shards.len());
        let (mut refused, target) = (Refused::default(), Target { out: out.as_mut_ptr(), width });
        self.each_group(&scratch.groups, |shard, group| {
            // SAFETY: positions are below `ids.len()` and `out` has a row for each; groups are
            // disjoint, and the borrow of `out` lasts for the whole call.
            unsafe { shard.pull(&self.core, mode, group, target, &mut refused) };
        });
        self.recycle(scratch);
        self.counters.pulled.fetch_add(ids.len() as u64, Relaxed);
        self.outcome(refused, "read as zeros")
    }

    /// Applies gradients.
    pub fn push(&self, push: Push<'_>) -> Result<()> {
        let grads = self.screen(&push)?;
        self.push_screened(push, &grads)
    }

    /// Applies `grads` instead of the push's own. They are what [`SparseTable::screen`] returned,
    /// or sums of that.
    pub(crate) fn push_screened(&self, push: Push<'_>, grads: &[f32]) -> Result<()> {
        let mut scratch = self.scratch();
        let Scratch { groups, merger } = &mut scratch;
        let unique = merger.unique_push(Push { grads, ..push }, self.config());
        let result = unique.and_then(|unique| {
            let batch = Batch {
                grads: &unique.grads,
                width: self.push_width(),
                shows: unique.extras.shows.as_deref(),
                clicks: unique.extras.clicks.as_deref(),
                slots: unique.extras.slots.as_deref(),
            };
            self.push_unique(groups, unique.ids, batch)
        });
        self.recycle(scratch);
        self.counters.pushed.fetch_add(push.ids.as_slice().len() as u64, Relaxed);
        result
    }

    /// Returns the gradients of a push to apply, or the error that rejects it.
    pub(crate) fn screen<'a>(&self, push: &Push<'a>) -> Result<Cow<'a, [f32]>> {
        let width = self.push_width();
        self.check_push(push, width)?;
        let ids = push.ids.as_slice();
        let name = |at: usize| format!("id {}, column {}", ids[at / width], at % width);
        let (grads, bad) = finite::screen(self.core.config.non_finite, push.grads, name)
            .inspect_err(|_| {
                let bad = push.grads.iter().filter(|value| !value.is_finite()).count();
                self.counters.non_finite.fetch_add(bad as u64, Relaxed);
            })
            .map_err(|error| error.at(self.place()))?;
        self.counters.non_finite.fetch_add(bad, Relaxed);
        Ok(grads)
    }

    fn push_unique(&self, groups: &mut Groups, ids: UniqueIds<'_>, batch: Batch<'_>) -> Result<()> {
        let gate = read(&self.gate);
        let how = How {
            rate_scale: self.rate_scale(),
            bounds: self.core.config.weight_bounds.unwrap_or([f32::NEG_INFINITY, f32::INFINITY]),
        };
        groups.sort(&ids, self.shards.len());
        let (mut refused, mut dropped) = (Refused::default(), 0);
        self.each_group(groups, |shard, group| {
            dropped += shard.push(&self.core, how, gate.as_ref(), group, batch, &mut refused);
        });
        self.counters.dropped.fetch_add((dropped - refused.count) as u64, Relaxed);
        self.outcome(refused, "not applied")
    }

    /// Returns the rows, the memory and the activity of the table.
    pub fn stats(&self) -> TableStats {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let lists: usize = (0..self.shards.len()).map(|at| self.lock(at).list_bytes()).sum();
        let arenas = self.core.index_arena.bytes() + self.core.row_arena.bytes();
        let shards = self.shards.capacity() * size_of::<Mutex<Shard>>();
        TableStats {
            row_count: count(&self.core.row_count),
            pending_count: count(&self.core.pending_count),
            payload_bytes: count(&self.core.row_count) * self.core.layout.stride as u64 * 4,
            held_bytes: (arenas + lists + shards) as u64,
            pulled: count(&self.counters.pulled),
            pushed: count(&self.counters.pushed),
            dropped: count(&self.counters.dropped),
            non_finite: count(&self.counters.non_finite),
            deleted: count(&self.counters.deleted),
            ..TableStats::default()
        }
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // A panic under the lock is a bug, but rows stay whole numbers of floats.
        lock(&self.shards[shard])
    }

    fn each_group(&self, groups: &Groups, mut visit: impl FnMut(&mut Shard, (&[u64], &[u32]))) {
        let first = self.turn.fetch_add(self.shards.len() / 3 + 1, Relaxed);
        for shard in 0..self.shards.len() {
            let shard = (first.wrapping_add(shard)) % self.shards.len();
            let group = groups.of(shard);
            if !group.0.is_empty() {
                visit(&mut self.lock(shard), group);
            }
        }
    }

    fn scratch(&self) -> Scratch {
        let mut kept = lock(&self.scratch);
        kept.pop().unwrap_or_default()
    }

    fn recycle(&self, scratch: Scratch) {
        let mut kept = lock(&self.scratch);
        if kept.len() < SCRATCH_COUNT_MAX {
            kept.push(scratch);
        }
    }

    fn check_push(&self, push: &Push<'_>, width: usize) -> Result<()> {
        let count = push.ids.as_slice().len();
        self.check_len("grads", push.grads.len(), count, width)?;
        for (what, len) in [
            ("shows", push.shows.map(<[f32]>::len)),
            ("clicks", push.clicks.map(<[f32]>::len)),
            ("slots", push.slots.map(<[u32]>::len)),
        ] {
            if let Some(len) = len {
                self.check_len(what, len, count, 1)?;
            }
        }
        for (what, values) in [("shows", push.shows), ("clicks", push.clicks)] {
            let wrong = values.unwrap_or(&[]).iter().find(|v| !(v.is_finite() && **v >= 0.0));
            if let Some(wrong) = wrong {
                return Err(Error::invalid(format!("invalid {what} in a push"))
                    .expected("finite numbers >= 0")
                    .got(wrong)
                    .at(self.place()));
            }
        }
        if let Some(slot) = push.slots.unwrap_or(&[]).iter().find(|s| **s > layout::SLOT_MAX) {
            return Err(Error::invalid("slot in a push is too large")
                .expected(format!("at most {}", layout::SLOT_MAX))
                .got(slot)
                .at(self.place()));
        }
        Ok(())
    }

    fn check_len(&self, what: &str, len: usize, ids: usize, width: usize) -> Result<()> {
        if ids > BATCH_IDS_MAX {
            return Err(Error::exhausted("too many ids in a batch")
                .expected(format!("at most {BATCH_IDS_MAX}"))
                .got(ids)
                .at(self.place()));
        }
        if len == ids * width {
            return Ok(());
        }
        Err(Error::invalid(format!("{what} has the wrong length"))
            .expected(format!("{} ({ids} ids x {width})", ids * width))
            .got(len)
            .at(self.place()))
    }

    fn outcome(&self, refused: Refused, what: &str) -> Result<()> {
        let Some(first) = refused.first else { return Ok(()) };
        let place = format!("{} ids were {what}; the others were served", refused.count);
        Err(first.at(place).at(self.place()))
    }

    fn place(&self) -> String {
        format!("sparse table {}", self.core.config.table_id)
    }
}

impl Core {
    /// Returns the floats of a row, for the holder of its shard's lock.
    #[allow(clippy::mut_from_ref)] // Rows are reached through their shard, whose lock is exclusive.
    fn slice(&self, row: NonNull<f32>) -> &mut [f32] {
        // SAFETY: rows are `stride` floats of a slab that outlives the lock, and nothing else
        // accesses them.
        unsafe { std::slice::from_raw_parts_mut(row.as_ptr(), self.layout.stride) }
    }
}

/// Prefetches the line at an address; nothing is read.
#[inline(always)]
fn prefetch<T>(pointer: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(pointer.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = pointer;
}

/// Limit on the floats of a row that are prefetched; the hardware prefetches the rest of a longer
/// row.
const PREFETCH_FLOATS_MAX: usize = 128;

#[inline(always)]
fn prefetch_row(row: *const f32, len: usize) {
    let len = len.min(PREFETCH_FLOATS_MAX);
    for at in (0..len).step_by(16) {
        prefetch(row.wrapping_add(at));
    }
    // A row that does not start on a line ends on one more.
    prefetch(row.wrapping_add(len - 1));
}

/// # Safety
/// Both pointers are valid for `len` floats and do not overlap.
#[inline(always)]
unsafe fn copy_row(from: *const f32, to: *mut f32, len: usize) {
    // SAFETY: promised by the caller; the common widths are copied without a call.
    unsafe {
        match len {
            8 => to.cast::<[f32; 8]>().write_unaligned(from.cast::<[f32; 8]>().read_unaligned()),
            16 => to.cast::<[f32; 16]>().write_unaligned(from.cast::<[f32; 16]>().read_unaligned()),
            _ => from.copy_to_nonoverlapping(to, len),
        }
    }
}
