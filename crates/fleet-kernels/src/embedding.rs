//! Embedding tables: lookup by id, pooling over ragged rows, gradients as sparse rows, and the
//! updates that touch only the rows in use.
//!
//! A lookup is bound by cache misses, so rows are prefetched ahead. Duplicate ids are merged by a
//! radix sort of (id, position): unique ids come out in rising order, the rows of one id are summed
//! in the order of their positions, and the table is then walked front to back. Nothing is hashed,
//! and the result does not depend on the number of threads.
//!
//! Sketch for 53,248 ids of dimension 16 over 1e6 rows: 3.4 MB of rows in, 3.4 MB out, about 53,000
//! cache misses; merge: three radix passes over 0.4 MB. `examples/norm_bench.rs` has the measurement.
//!
//! It is not a parameter-server table: rows are addressed by index and all exist.

use crate::pool::{Pool, Shareable};
use crate::simd::Simd;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// An id that names no row of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadId {
    /// Index into the ids (of the slot, for [`lookup_slots`]); the lowest one that is wrong.
    pub position: usize,
    pub id: i64,
    /// Rows of the table.
    pub rows: usize,
}

impl From<BadId> for fleet_base::Error {
    fn from(bad: BadId) -> Self {
        fleet_base::Error::invalid(format!("id at position {} is out of range", bad.position))
            .expected(format_args!("0 to {}", bad.rows.saturating_sub(1)))
            .got(bad.id)
    }
}

/// Where the row of each position lies: `start + (i / group) * group_stride + (i % group) * stride`,
/// in floats.
///
/// Ids [batch, slots] whose rows go side by side into `[batch, width]` at column 13:
/// `Grid { start: 13, group: slots, group_stride: width, stride: dim }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub start: usize,
    pub group: usize,
    pub group_stride: usize,
    pub stride: usize,
}

impl Grid {
    /// Rows one after the other.
    pub fn packed(dim: usize) -> Self {
        Grid::columns(0, dim)
    }

    /// One row per `stride` floats, from column `start` on.
    pub fn columns(start: usize, stride: usize) -> Self {
        Grid { start, group: 1, group_stride: stride, stride: 0 }
    }

    #[inline(always)]
    fn offset(&self, position: usize) -> usize {
        if self.group == 1 {
            self.start + position * self.group_stride
        } else {
            self.start
                + position / self.group * self.group_stride
                + position % self.group * self.stride
        }
    }

    /// One past the last float of `count` rows of `dim`.
    fn end(&self, count: usize, dim: usize) -> usize {
        if count == 0 {
            return 0;
        }
        let groups = count.div_ceil(self.group);
        let inner = count.min(self.group);
        self.start + (groups - 1) * self.group_stride + (inner - 1) * self.stride + dim
    }

    /// Whether no two of `count` rows of `dim` share a float.
    fn is_disjoint(&self, count: usize, dim: usize) -> bool {
        let groups = count.div_ceil(self.group);
        let inner = count.min(self.group);
        let by_rows = inner <= 1 || self.stride >= dim;
        let by_groups = groups <= 1 || self.group_stride >= dim;
        let rows_inside =
            groups <= 1 || self.group_stride >= inner.saturating_sub(1) * self.stride + dim;
        let groups_inside =
            inner <= 1 || self.stride >= groups.saturating_sub(1) * self.group_stride + dim;
        by_rows && by_groups && (rows_inside || groups_inside)
    }
}

/// One column block of a multi-slot lookup.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    pub table: &'a [f32],
    pub ids: &'a [i64],
    /// First column of this slot in each row of the destination.
    pub column: usize,
}

/// How rows of one segment become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    Sum,
    /// Divided by the number of ids.
    Mean,
    /// Divided by the square root of the number of ids.
    SqrtN,
}

impl Pooling {
    #[inline]
    fn scale(self, count: usize) -> f32 {
        match self {
            Pooling::Sum => 1.0,
            _ if count == 0 => 0.0,
            Pooling::Mean => 1.0 / count as f32,
            Pooling::SqrtN => 1.0 / (count as f32).sqrt(),
        }
    }
}

/// Copies row `ids[i]` of `table` ([rows, dim]) to where `grid` puts row `i` of `out`; `padding_idx`
/// gives zeros.
///
/// ```
/// use fleet_kernels::{embedding::{Grid, lookup}, pool::Pool};
/// let table = [0.0, 0.1, 1.0, 1.1, 2.0, 2.1];
/// let mut out = [9.0; 6];
/// let pool = Pool::new(1);
/// lookup(&pool, &table, 2, &[2, 0, 1], Some(0), Grid::packed(2), &mut out).unwrap();
/// assert_eq!(out, [2.0, 2.1, 0.0, 0.0, 1.0, 1.1]);
/// let bad = lookup(&pool, &table, 2, &[2, 3, 9], None, Grid::packed(2), &mut out).unwrap_err();
/// assert_eq!((bad.position, bad.id), (1, 3));
/// ```
pub fn lookup(
    pool: &Pool,
    table: &[f32],
    dim: usize,
    ids: &[i64],
    padding_idx: Option<i64>,
    grid: Grid,
    out: &mut [f32],
) -> Result<(), BadId> {
    check_destination(&grid, ids.len(), dim, out.len());
    let bad = AtomicUsize::new(usize::MAX);
    let out = Shareable::new(out);
    pool.run_ranges(ids.len(), IDS_PER_TASK, |range| {
        copy_rows(table, dim, ids, padding_idx, grid, &out, range, &bad);
    });
    report(&bad, ids, table.len() / dim.max(1))
}

/// Looks up several slots into one `[batch, stride]` destination, each at its column: the lookups
/// and the concat of a wide & deep model in one call. All slots have the same number of ids.
/// The error names the slot.
pub fn lookup_slots(
    pool: &Pool,
    slots: &[Slot<'_>],
    dim: usize,
    padding_idx: Option<i64>,
    stride: usize,
    out: &mut [f32],
) -> Result<(), (usize, BadId)> {
    let Some(first) = slots.first() else { return Ok(()) };
    let batch = first.ids.len();
    for (index, slot) in slots.iter().enumerate() {
        assert_eq!(slot.ids.len(), batch, "slots of one lookup have one batch size");
        assert!(slot.column + dim <= stride, "a slot lies outside the row");
        check_destination(&Grid::columns(slot.column, stride), batch, dim, out.len());
        assert!(
            slots[..index].iter().all(|other| other.column.abs_diff(slot.column) >= dim),
            "slots overlap"
        );
    }
    let bad = AtomicUsize::new(usize::MAX);
    let out = Shareable::new(out);
    // A task owns whole rows of the destination: two threads that write neighbouring columns would
    // fight for cache lines.
    pool.run_ranges(batch, IDS_PER_TASK.div_ceil(slots.len()).max(16), |range| {
        for (index, slot) in slots.iter().enumerate() {
            let failed = AtomicUsize::new(usize::MAX);
            let grid = Grid::columns(slot.column, stride);
            copy_rows(slot.table, dim, slot.ids, padding_idx, grid, &out, range.clone(), &failed);
            let position = failed.into_inner();
            if position != usize::MAX {
                bad.fetch_min(index * batch + position, Relaxed);
            }
        }
    });
    let first_bad = bad.into_inner();
    if first_bad == usize::MAX {
        return Ok(());
    }
    let (slot, position) = (first_bad / batch, first_bad % batch);
    let rows = slots[slot].table.len() / dim.max(1);
    Err((slot, BadId { position, id: slots[slot].ids[position], rows }))
}

/// Row `s` of `out` (at `start + s * stride`) becomes the pooled rows of
/// `ids[offsets[s]..offsets[s + 1]]`; an empty segment gives zeros.
pub fn lookup_pooled(
    pool: &Pool,
    table: &[f32],
    dim: usize,
    ids: &[i64],
    offsets: &[usize],
    pooling: Pooling,
    padding_idx: Option<i64>,
    (start, stride): (usize, usize),
    out: &mut [f32],
) -> Result<(), BadId> {
    check_offsets(offsets, ids.len());
    let segments = offsets.len() - 1;
    check_destination(&Grid::columns(start, stride), segments, dim, out.len());
    let bad = AtomicUsize::new(usize::MAX);
    let out = Shareable::new(out);
    pool.run_ranges(segments, SEGMENTS_PER_TASK, |range| {
        for segment in range {
            let span = offsets[segment]..offsets[segment + 1];
            // SAFETY: checked above: rows of different segments are disjoint and inside.
            let row = unsafe { out.slice(start + segment * stride, dim) };
            row.fill(0.0);
            let scale = pooling.scale(span.len());
            sum_rows_of_ids(table, ids, padding_idx, span, scale, row, &bad);
        }
    });
    report(&bad, ids, table.len() / dim.max(1))
}

/// Ids grouped: unique ids in rising order, and the positions of each.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    ids: &'a [i64],
    starts: &'a [u32],
    positions: &'a [u32],
}

impl<'a> Groups<'a> {
    /// Unique ids, rising (as unsigned numbers).
    pub fn ids(&self) -> &'a [i64] {
        self.ids
    }

    /// `starts[u]..starts[u + 1]` are the places of unique id `u` in [`Groups::positions`]; one
    /// longer than the ids.
    pub fn starts(&self) -> &'a [u32] {
        self.starts
    }

    /// Positions in the ungrouped ids, rising within a group.
    pub fn positions(&self) -> &'a [u32] {
        self.positions
    }
}

/// Words of scratch for [`group`] of up to `count` ids.
pub fn group_scratch_len(count: usize) -> usize {
    // Two buffers of 16-byte items; ids; positions and starts (two to a word); the counters.
    let (_, blocks) = blocks_of(count);
    let counters = (blocks + 2) * bucket_count(count);
    4 * count + count + (count + 1).div_ceil(2) + count.div_ceil(2) + counters.div_ceil(2)
}

/// Groups equal ids. Positions that hold `padding_idx` are left out. `rows` bounds the ids; without
/// it, any 64-bit pattern is an id. At most `u32::MAX` ids.
///
/// ```
/// use fleet_kernels::{embedding::{group, group_scratch_len}, pool::Pool};
/// let mut scratch = vec![0; group_scratch_len(5)];
/// let groups = group(&Pool::new(1), &[7, 3, 7, 9, 3], Some(10), None, &mut scratch).unwrap();
/// assert_eq!(groups.ids(), [3, 7, 9]);
/// assert_eq!((groups.starts(), groups.positions()), (&[0, 2, 4, 5][..], &[1, 4, 0, 2, 3][..]));
/// ```
pub fn group<'s>(
    pool: &Pool,
    ids: &[i64],
    rows: Option<usize>,
    padding_idx: Option<i64>,
    scratch: &'s mut [u64],
) -> Result<Groups<'s>, BadId> {
    let count = ids.len();
    assert!(u32::try_from(count).is_ok(), "more ids than positions can number");
    assert!(scratch.len() >= group_scratch_len(count), "scratch of group is too short");
    // Ids below a known bound need no pass that looks for the largest: counting checks them.
    let bound = rows.filter(|&rows| padding_idx.is_none_or(|id| (id as u64) < rows as u64));
    let id_max = match bound {
        Some(rows) => (rows as u64).saturating_sub(1),
        None => largest_id(pool, ids, rows, padding_idx)?,
    };
    let (items, scratch) = scratch.split_at_mut(4 * count);
    let (unique, scratch) = scratch.split_at_mut(count);
    let (starts, scratch) = scratch.split_at_mut((count + 1).div_ceil(2));
    let (positions, counters) = scratch.split_at_mut(count.div_ceil(2));
    let place = Sorting {
        ids,
        bound: bound.unwrap_or(usize::MAX),
        id_bits: 64 - id_max.leading_zeros(),
        unique: cast_mut(unique),
        starts: &mut cast_mut(starts)[..count + 1],
        positions: &mut cast_mut(positions)[..count],
        counters: cast_mut(counters),
    };
    let mut groups = if id_max <= u64::from(u32::MAX) {
        let (from, to) = items[..2 * count].split_at_mut(count);
        sort(pool, place, from, to, |id, position| id << 32 | position as u64)?
    } else {
        let (from, to) = items.split_at_mut(2 * count);
        let (from, to) = (cast_mut::<[u64; 2]>(from), cast_mut::<[u64; 2]>(to));
        sort(pool, place, from, to, |id, position| [position as u64, id])?
    };
    if let Some(padding) = padding_idx {
        groups = without(groups, padding);
    }
    let Spans { ids, starts, positions } = groups;
    Ok(Groups { ids, starts, positions })
}

/// Where the gradient row of each position comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The row that `grid` gives.
    Grid { data: &'a [f32], grid: Grid },
    /// Position `i` belongs to segment `segment_of[i]` ([`segments`]) of a pooled lookup, whose
    /// gradient row starts at `start + segment * stride`.
    Pooled {
        data: &'a [f32],
        start: usize,
        stride: usize,
        segment_of: &'a [u32],
        offsets: &'a [usize],
        pooling: Pooling,
    },
}

/// Writes the segment of every position: `out[i] = s` for `i` in `offsets[s]..offsets[s + 1]`.
pub fn segments(offsets: &[usize], out: &mut [u32]) {
    check_offsets(offsets, out.len());
    for (segment, span) in offsets.windows(2).enumerate() {
        out[span[0]..span[1]].fill(segment as u32);
    }
}

/// Row `u` of `out` becomes the sum of the gradient rows of unique id `u`.
pub fn merge_rows(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    out: &mut [f32],
) {
    assert!(out.len() >= groups.ids.len() * dim, "merged rows do not fit");
    for_each_sum(pool, groups, source, dim, &Store { out: Shareable::new(out), by_id: false });
}

/// The dense gradient of a table: zero but for the rows in use.
pub fn dense_gradient(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    out: &mut [f32],
) -> Result<(), BadId> {
    let rows = out.len() / dim.max(1);
    check_groups(groups, rows)?;
    let shared = Shareable::new(out);
    pool.run_ranges(rows * dim, ZERO_FLOATS_PER_TASK, |range| {
        // SAFETY: ranges are disjoint and inside.
        unsafe { shared.slice(range.start, range.len()) }.fill(0.0);
    });
    for_each_sum(pool, groups, source, dim, &Store { out: shared, by_id: true });
    Ok(())
}

/// `table[id] -= lr * sum of its gradient rows`, each row once.
pub fn sgd_rows(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    lr: f32,
    table: &mut [f32],
) -> Result<(), BadId> {
    check_groups(groups, table.len() / dim.max(1))?;
    for_each_sum(pool, groups, source, dim, &Sgd { table: Shareable::new(table), lr });
    Ok(())
}

/// Adagrad on the touched rows: `moment += g * g; table -= lr * g / (sqrt(moment) + epsilon)`.
pub fn adagrad_rows(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    (lr, epsilon): (f32, f32),
    table: &mut [f32],
    moment: &mut [f32],
) -> Result<(), BadId> {
    check_groups(groups, table.len().min(moment.len()) / dim.max(1))?;
    let update =
        Adagrad { table: Shareable::new(table), moment: Shareable::new(moment), lr, epsilon };
    for_each_sum(pool, groups, source, dim, &update);
    Ok(())
}

/// The numbers of [`adam_rows`]; `lr` already holds the bias correction
/// `sqrt(1 - beta2^t) / (1 - beta1^t)`, `epsilon` is scaled by `sqrt(1 - beta2^t)`.
#[derive(Clone, Copy, Debug)]
pub struct AdamRows {
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
}

/// Lazy Adam: moments decay only on the touched rows.
/// `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; table -= lr * m / (sqrt(v) + epsilon)`.
pub fn adam_rows(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    numbers: AdamRows,
    table: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
) -> Result<(), BadId> {
    check_groups(groups, table.len().min(first.len()).min(second.len()) / dim.max(1))?;
    let update = Adam {
        table: Shareable::new(table),
        first: Shareable::new(first),
        second: Shareable::new(second),
        numbers,
    };
    for_each_sum(pool, groups, source, dim, &update);
    Ok(())
}

/// Applies `body(index of the unique id, summed row)` to every unique id, for updates that are not
/// named here. `dim` is at most [`DIM_MAX_FOR_EACH`]. Different calls may run side by side.
pub fn for_each_row(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    body: impl Fn(usize, &[f32]) + Sync,
) {
    assert!(dim <= DIM_MAX_FOR_EACH, "row too long for the stack");
    let source = Rows::new(source, groups, dim);
    pool.run_ranges(groups.positions.len(), POSITIONS_PER_TASK, |range| {
        let mut sum = [0.0f32; DIM_MAX_FOR_EACH];
        for unique in owned_groups(groups, range) {
            let sum = &mut sum[..dim];
            sum.fill(0.0);
            for &position in group_positions(groups, unique) {
                // SAFETY: `Rows::new` checked every position.
                let (row, scale) = unsafe { source.row(position as usize) };
                for (column, sum) in sum.iter_mut().enumerate() {
                    // SAFETY: a row has `dim` floats.
                    *sum += unsafe { *row.add(column) } * scale;
                }
            }
            body(unique, sum);
        }
    });
}

/// Longest row of [`for_each_row`]: 16 KB of stack.
pub const DIM_MAX_FOR_EACH: usize = 4096;

/// Ids copied by one task: some 10 us of cache misses.
const IDS_PER_TASK: usize = 1024;
const SEGMENTS_PER_TASK: usize = 256;
/// Positions whose groups one task sums.
const POSITIONS_PER_TASK: usize = 2048;
const ZERO_FLOATS_PER_TASK: usize = 1 << 16;
/// Rows asked for ahead of use; measured flat between 12 and 32.
const ROWS_AHEAD: usize = 16;
/// Ids spread over buckets by one task.
const SORT_BLOCK: usize = 8192;
/// Widest digit inside a bucket: 256 counters fit L1 beside the items.
const DIGIT_BITS_MAX: u32 = 8;
const BUCKETS_MAX: usize = 512;
/// Blocks of the sort; more ids make longer blocks, so that the counters stay few.
const SORT_BLOCKS_MAX: usize = 64;

fn check_destination(grid: &Grid, count: usize, dim: usize, len: usize) {
    assert!(grid.group > 0, "a group has at least one row");
    assert!(grid.end(count, dim) <= len, "rows do not fit the destination");
    assert!(grid.is_disjoint(count, dim), "rows of the destination overlap");
}

fn check_offsets(offsets: &[usize], count: usize) {
    assert!(
        offsets.first() == Some(&0)
            && offsets.last() == Some(&count)
            && offsets.windows(2).all(|pair| pair[0] <= pair[1]),
        "offsets rise from 0 to the number of ids"
    );
}

fn check_groups(groups: &Groups<'_>, rows: usize) -> Result<(), BadId> {
    // Ids rise as unsigned numbers, so the last one bounds all, negative ones included.
    match groups.ids.last() {
        Some(&id) if id as u64 >= rows as u64 => {
            let unique = groups.ids.partition_point(|&id| (id as u64) < rows as u64);
            let position = groups.positions[groups.starts[unique] as usize] as usize;
            Err(BadId { position, id: groups.ids[unique], rows })
        }
        _ => Ok(()),
    }
}

fn report(bad: &AtomicUsize, ids: &[i64], rows: usize) -> Result<(), BadId> {
    match bad.load(Relaxed) {
        usize::MAX => Ok(()),
        position => Err(BadId { position, id: ids[position], rows }),
    }
}

crate::kernel! {
    /// Copies the rows of a range of positions. The destination was checked.
    fn copy_rows<S>(
        s: S,
        table: &[f32],
        dim: usize,
        ids: &[i64],
        padding_idx: Option<i64>,
        grid: Grid,
        out: &Shareable<f32>,
        range: Range<usize>,
        bad: &AtomicUsize,
    ) {
        let rows = table.len() / dim.max(1);
        let mut column = range.start % grid.group;
        let mut target = grid.offset(range.start);
        for position in range.clone() {
            if position + ROWS_AHEAD < range.end {
                let ahead = ids[position + ROWS_AHEAD] as usize;
                prefetch_row(table.as_ptr().wrapping_add(ahead.wrapping_mul(dim)), dim);
            }
            let id = ids[position];
            // SAFETY: checked by the caller: rows lie inside and apart.
            let row = unsafe { out.ptr().add(target) };
            if padding_idx == Some(id) || id as u64 >= rows as u64 {
                // SAFETY: as above.
                unsafe { std::slice::from_raw_parts_mut(row, dim) }.fill(0.0);
                if padding_idx != Some(id) {
                    bad.fetch_min(position, Relaxed);
                }
            } else {
                // SAFETY: the id is below the number of rows.
                unsafe { copy_row(s, table.as_ptr().add(id as usize * dim), row, dim) };
            }
            column += 1;
            target += grid.stride;
            if column == grid.group {
                column = 0;
                target = grid.offset(position + 1);
            }
        }
    }
}

/// Copies `dim` floats; a call of the library would cost more than a short row.
///
/// # Safety
/// `dim` floats at both places, which do not overlap.
#[inline(always)]
unsafe fn copy_row<S: Simd>(s: S, from: *const f32, to: *mut f32, dim: usize) {
    let mut column = 0;
    // SAFETY: whole registers lie inside the row, the rest is a part of one.
    unsafe {
        while column + S::LANES <= dim {
            s.store(to.add(column), s.load(from.add(column)));
            column += S::LANES;
        }
        if column < dim {
            s.store_part(to.add(column), s.load_part(from.add(column), dim - column), dim - column);
        }
    }
}

/// Asks for the cache line at `pointer`; any address may be given, nothing is read.
#[inline(always)]
pub(crate) fn prefetch<T>(pointer: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(pointer.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = pointer;
}

/// Asks for the first lines of a row, at most four: the rest of a longer one follows by itself.
#[inline(always)]
fn prefetch_row(row: *const f32, dim: usize) {
    let dim = dim.min(64);
    let mut column = 0;
    while column < dim {
        prefetch(row.wrapping_add(column));
        column += 16;
    }
    // A row that does not start on a line ends on one more.
    prefetch(row.wrapping_add(dim).wrapping_byte_sub(1));
}

crate::kernel! {
    /// `row += scale * table[id]` over a span of ids.
    fn sum_rows_of_ids<S>(
        _s: S,
        table: &[f32],
        ids: &[i64],
        padding_idx: Option<i64>,
        span: Range<usize>,
        scale: f32,
        row: &mut [f32],
        bad: &AtomicUsize,
    ) {
        let dim = row.len();
        let rows = table.len() / dim.max(1);
        for position in span {
            // Ahead across segments: short segments would else never prefetch.
            if position + ROWS_AHEAD < ids.len() {
                let ahead = ids[position + ROWS_AHEAD] as usize;
                prefetch_row(table.as_ptr().wrapping_add(ahead.wrapping_mul(dim)), dim);
            }
            let id = ids[position];
            if padding_idx == Some(id) {
                continue;
            }
            if id as u64 >= rows as u64 {
                bad.fetch_min(position, Relaxed);
                continue;
            }
            let value = &table[id as usize * dim..][..dim];
            for (sum, value) in row.iter_mut().zip(value) {
                *sum += value * scale;
            }
        }
    }
}

/// The largest id as an unsigned number, or the first id that is out of range.
fn largest_id(
    pool: &Pool,
    ids: &[i64],
    rows: Option<usize>,
    padding_idx: Option<i64>,
) -> Result<u64, BadId> {
    let bad = AtomicUsize::new(usize::MAX);
    let id_max = AtomicU64::new(0);
    let bound = rows.map_or(u64::MAX, |rows| rows as u64);
    pool.run_ranges(ids.len(), SORT_BLOCK, |range| {
        let part = &ids[range.clone()];
        let largest = part.iter().fold(0u64, |largest, &id| largest.max(id as u64));
        if rows.is_some() && largest >= bound {
            let wrong = |&id: &i64| id as u64 >= bound && padding_idx != Some(id);
            if let Some(index) = part.iter().position(wrong) {
                bad.fetch_min(range.start + index, Relaxed);
            }
        }
        id_max.fetch_max(largest, Relaxed);
    });
    report(&bad, ids, rows.unwrap_or(usize::MAX))?;
    Ok(id_max.into_inner())
}

/// What the sort moves: an id and its position.
trait Item: Copy + Send + Sync {
    fn id(self) -> u64;
    fn position(self) -> u32;
}

impl Item for u64 {
    #[inline(always)]
    fn id(self) -> u64 {
        self >> 32
    }

    #[inline(always)]
    fn position(self) -> u32 {
        self as u32
    }
}

impl Item for [u64; 2] {
    #[inline(always)]
    fn id(self) -> u64 {
        self[1]
    }

    #[inline(always)]
    fn position(self) -> u32 {
        self[0] as u32
    }
}

fn blocks_of(count: usize) -> (usize, usize) {
    let block = SORT_BLOCK.max(count.div_ceil(SORT_BLOCKS_MAX));
    (block, count.div_ceil(block).max(1))
}

/// Buckets of about a thousand ids: small enough to be sorted in L1, large enough that two blocks
/// seldom write into one cache line.
fn bucket_count(count: usize) -> usize {
    count.div_ceil(1024).next_power_of_two().clamp(1, BUCKETS_MAX)
}

/// What [`sort`] reads and writes.
struct Sorting<'a, 's> {
    ids: &'a [i64],
    /// Ids must be below this, unless it is `usize::MAX`.
    bound: usize,
    /// Bits of the largest id.
    id_bits: u32,
    unique: &'s mut [i64],
    starts: &'s mut [u32],
    positions: &'s mut [u32],
    counters: &'s mut [u32],
}

/// Spreads ids over buckets by their top bits, sorts each bucket, and finds where the id changes.
/// Every step is stable, so that the positions of one id rise.
fn sort<'s, T: Item>(
    pool: &Pool,
    sorting: Sorting<'_, 's>,
    from: &mut [T],
    to: &mut [T],
    make: impl Fn(u64, usize) -> T + Sync,
) -> Result<Spans<'s>, BadId> {
    let Sorting { ids, bound, id_bits, unique, starts, positions, counters } = sorting;
    let (block, blocks) = blocks_of(ids.len());
    let buckets = bucket_count(ids.len());
    let (counters, edges) = counters.split_at_mut(blocks * buckets);
    let (edges, heads) = edges.split_at_mut(buckets);
    let low_bits = id_bits.saturating_sub(buckets.trailing_zeros());
    let bucket_of = |id: i64| (id as u64 >> low_bits.min(63)) as usize & (buckets - 1);
    let span = |index: usize| index * block..((index + 1) * block).min(ids.len());
    let shared = Shareable::new(&mut *counters);
    let bad = AtomicUsize::new(usize::MAX);
    pool.run(blocks, |index| {
        // SAFETY: each block has its own counters.
        let counters = unsafe { shared.slice(index * buckets, buckets) };
        counters.fill(0);
        let mut largest = 0;
        for &id in &ids[span(index)] {
            counters[bucket_of(id)] += 1;
            largest = largest.max(id as u64);
        }
        if bound != usize::MAX && largest >= bound as u64 {
            let first = ids[span(index)].iter().position(|&id| id as u64 >= bound as u64);
            bad.fetch_min(index * block + first.unwrap_or(0), Relaxed);
        }
    });
    report(&bad, ids, bound)?;
    // Counts become first places: by bucket, then by block, which keeps the order.
    let mut place = 0;
    for bucket in 0..buckets {
        edges[bucket] = place;
        for block in 0..blocks {
            let counter = &mut counters[block * buckets + bucket];
            place += std::mem::replace(counter, place);
        }
    }
    let shared_from = Shareable::new(&mut *from);
    pool.run(blocks, |index| {
        // SAFETY: each block has its own counters.
        let places = unsafe { shared.slice(index * buckets, buckets) };
        for position in span(index) {
            let place = &mut places[bucket_of(ids[position])];
            // SAFETY: the places of all blocks and buckets are disjoint and below the count.
            unsafe {
                *shared_from.ptr().add(*place as usize) = make(ids[position] as u64, position)
            };
            *place += 1;
        }
    });
    let edges = &*edges;
    let bucket_span = |bucket: usize| {
        edges[bucket] as usize..edges.get(bucket + 1).map_or(ids.len(), |&end| end as usize)
    };
    let (shared_to, shared_positions) = (Shareable::new(to), Shareable::new(&mut *positions));
    let shared_heads = Shareable::new(&mut *heads);
    pool.run(buckets, |bucket| {
        let span = bucket_span(bucket);
        // SAFETY: buckets are disjoint and inside.
        let (from, to, positions) = unsafe {
            (
                shared_from.slice(span.start, span.len()),
                shared_to.slice(span.start, span.len()),
                shared_positions.slice(span.start, span.len()),
            )
        };
        sort_bucket(from, to, low_bits);
        let mut heads = 0;
        let mut last = None;
        for (item, position) in from.iter().zip(positions) {
            *position = item.position();
            heads += u32::from(last != Some(item.id()));
            last = Some(item.id());
        }
        // SAFETY: one counter a bucket.
        unsafe { *shared_heads.ptr().add(bucket) = heads };
    });
    let mut count = 0;
    for heads in &mut heads[..buckets] {
        count += std::mem::replace(heads, count);
    }
    let (shared_ids, shared_starts) = (Shareable::new(&mut *unique), Shareable::new(&mut *starts));
    let (heads, from) = (&*heads, &*from);
    pool.run(buckets, |bucket| {
        let mut place = heads[bucket] as usize;
        let mut last = None;
        // Equal ids share a bucket, so a change of id is seen inside it.
        for item in bucket_span(bucket) {
            let id = from[item].id();
            if last != Some(id) {
                // SAFETY: there are at most as many heads as items, each with its own place.
                unsafe {
                    *shared_ids.ptr().add(place) = id as i64;
                    *shared_starts.ptr().add(place) = item as u32;
                }
                place += 1;
                last = Some(id);
            }
        }
    });
    let count = count as usize;
    starts[count] = ids.len() as u32;
    Ok(Spans { ids: &mut unique[..count], starts: &mut starts[..count + 1], positions })
}

/// Sorts `from` by the lowest `bits` of the id, lowest digit first.
fn sort_bucket<T: Item>(from: &mut [T], to: &mut [T], bits: u32) {
    let passes = bits.div_ceil(DIGIT_BITS_MAX);
    let digit_bits = bits.div_ceil(passes.max(1));
    let digits = 1usize << digit_bits;
    let (mut source, mut target) = (&mut *from, &mut *to);
    let mut is_swapped = false;
    for pass in 0..passes {
        let digit = |item: T| (item.id() >> (pass * digit_bits)) as usize & (digits - 1);
        let mut places = [0u32; 1 << DIGIT_BITS_MAX];
        for &item in &*source {
            places[digit(item)] += 1;
        }
        // All in one place, as with ids that use few of their bits.
        if source.first().is_none_or(|&item| places[digit(item)] as usize == source.len()) {
            continue;
        }
        let mut place = 0;
        for counter in &mut places[..digits] {
            place += std::mem::replace(counter, place);
        }
        for &item in &*source {
            let place = &mut places[digit(item)];
            target[*place as usize] = item;
            *place += 1;
        }
        std::mem::swap(&mut source, &mut target);
        is_swapped = !is_swapped;
    }
    if is_swapped {
        target.copy_from_slice(source);
    }
}

struct Spans<'s> {
    ids: &'s mut [i64],
    starts: &'s mut [u32],
    positions: &'s mut [u32],
}

/// The groups without that of `padding`.
fn without(groups: Spans<'_>, padding: i64) -> Spans<'_> {
    let Spans { ids, starts, positions } = groups;
    let Ok(index) = ids.binary_search_by_key(&(padding as u64), |&id| id as u64) else {
        return Spans { ids, starts, positions };
    };
    let unique = ids.len();
    let (first, last) = (starts[index] as usize, starts[index + 1] as usize);
    ids.copy_within(index + 1.., index);
    starts.copy_within(index + 1.., index);
    for start in &mut starts[index..unique] {
        *start -= (last - first) as u32;
    }
    positions.copy_within(last.., first);
    let left = positions.len() - (last - first);
    Spans {
        ids: &mut ids[..unique - 1],
        starts: &mut starts[..unique],
        positions: &mut positions[..left],
    }
}

/// Scratch words seen as integers of another width.
fn cast_mut<T: Plain>(words: &mut [u64]) -> &mut [T] {
    const { assert!(align_of::<T>() <= align_of::<u64>()) };
    let len = size_of_val(words) / size_of::<T>();
    // SAFETY: both are plain integers for which any bits are valid; length and alignment fit.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), len) }
}

/// Integers, and arrays of them.
trait Plain {}
impl Plain for i64 {}
impl Plain for u32 {}
impl Plain for [u64; 2] {}

/// A checked [`Source`]: every position of the groups has a row inside.
#[derive(Clone, Copy)]
enum Rows<'a> {
    Grid {
        data: *const f32,
        grid: Grid,
        group_inverse: u64,
    },
    Pooled {
        data: *const f32,
        stride: usize,
        segment_of: &'a [u32],
        offsets: &'a [usize],
        pooling: Pooling,
    },
}

// SAFETY: the pointers are those of shared slices.
unsafe impl Sync for Rows<'_> {}

impl<'a> Rows<'a> {
    fn new(source: &Source<'a>, groups: &Groups<'_>, dim: usize) -> Self {
        let positions = groups.positions;
        let count = positions.iter().max().map_or(0, |&last| last as usize + 1);
        match *source {
            Source::Grid { data, grid } => {
                assert!(grid.group > 0, "a group has at least one row");
                assert!(grid.end(count, dim) <= data.len(), "gradient rows lie outside");
                // ceil(2^64 / group): the product's high half is the quotient for every u32.
                let group_inverse = (u64::MAX / grid.group as u64).wrapping_add(1);
                Rows::Grid { data: data.as_ptr(), grid, group_inverse }
            }
            Source::Pooled { data, start, stride, segment_of, offsets, pooling } => {
                assert!(count <= segment_of.len(), "a position has no segment");
                let last = segment_of[..count].iter().max().map_or(0, |&last| last as usize);
                assert!(count == 0 || last + 1 < offsets.len(), "a segment has no offset");
                assert!(
                    count == 0 || start + last * stride + dim <= data.len(),
                    "rows lie outside"
                );
                let data = data.as_ptr().wrapping_add(start);
                Rows::Pooled { data, stride, segment_of, offsets, pooling }
            }
        }
    }

    /// The row of `position` and its factor.
    ///
    /// # Safety
    /// The position is one of the groups that the source was checked with.
    #[inline(always)]
    unsafe fn row(&self, position: usize) -> (*const f32, f32) {
        match *self {
            Rows::Grid { data, grid, group_inverse } => {
                let group = if grid.group == 1 {
                    position
                } else {
                    ((u128::from(group_inverse) * position as u128) >> 64) as usize
                };
                let inside = position - group * grid.group;
                let offset = grid.start + group * grid.group_stride + inside * grid.stride;
                // SAFETY: checked in `new`.
                (unsafe { data.add(offset) }, 1.0)
            }
            Rows::Pooled { data, stride, segment_of, offsets, pooling } => {
                // SAFETY: checked in `new`.
                let segment = unsafe { *segment_of.get_unchecked(position) } as usize;
                let scale = pooling.scale(offsets[segment + 1].wrapping_sub(offsets[segment]));
                // SAFETY: checked in `new`.
                (unsafe { data.add(segment * stride) }, scale)
            }
        }
    }
}

/// What happens to a summed row.
trait Update: Sync {
    /// Asks for the lines that [`Update::apply`] will touch.
    fn prefetch(&self, unique: usize, id: i64, dim: usize);

    /// Takes `sum`, the `n` columns from `column` on of the sum of unique id `unique`.
    ///
    /// # Safety
    /// The id is inside the tables, and no other task holds the same one; `column + n <= dim`.
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F);
}

/// Which floats an update is about.
#[derive(Clone, Copy)]
struct Place {
    unique: usize,
    id: i64,
    dim: usize,
    column: usize,
    /// Columns, at most a register.
    n: usize,
}

impl Place {
    #[inline(always)]
    fn in_table(&self) -> usize {
        self.id as usize * self.dim + self.column
    }
}

/// Part of a row in a register, and back.
///
/// # Safety
/// `n` floats at `start` belong to the caller.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, rows: &Shareable<f32>, start: usize, n: usize) -> S::F {
    // SAFETY: promised by the caller.
    unsafe {
        let from = rows.ptr().add(start);
        if n == S::LANES { s.load(from) } else { s.load_part(from, n) }
    }
}

/// # Safety
/// As [`load`].
#[inline(always)]
unsafe fn store<S: Simd>(s: S, rows: &Shareable<f32>, start: usize, n: usize, value: S::F) {
    // SAFETY: promised by the caller.
    unsafe {
        let to = rows.ptr().add(start);
        if n == S::LANES { s.store(to, value) } else { s.store_part(to, value, n) }
    }
}

struct Store {
    out: Shareable<f32>,
    by_id: bool,
}

impl Update for Store {
    #[inline(always)]
    fn prefetch(&self, _: usize, id: i64, dim: usize) {
        if self.by_id {
            prefetch_row(self.out.ptr().wrapping_add(id as usize * dim), dim);
        }
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F) {
        let start =
            if self.by_id { place.in_table() } else { place.unique * place.dim + place.column };
        // SAFETY: promised by the caller.
        unsafe { store(s, &self.out, start, place.n, sum) };
    }
}

struct Sgd {
    table: Shareable<f32>,
    lr: f32,
}

impl Update for Sgd {
    #[inline(always)]
    fn prefetch(&self, _: usize, id: i64, dim: usize) {
        prefetch_row(self.table.ptr().wrapping_add(id as usize * dim), dim);
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F) {
        let start = place.in_table();
        // SAFETY: promised by the caller.
        unsafe {
            let value = load(s, &self.table, start, place.n);
            store(s, &self.table, start, place.n, s.neg_fma(s.splat(self.lr), sum, value));
        }
    }
}

struct Adagrad {
    table: Shareable<f32>,
    moment: Shareable<f32>,
    lr: f32,
    epsilon: f32,
}

impl Update for Adagrad {
    #[inline(always)]
    fn prefetch(&self, _: usize, id: i64, dim: usize) {
        prefetch_row(self.table.ptr().wrapping_add(id as usize * dim), dim);
        prefetch_row(self.moment.ptr().wrapping_add(id as usize * dim), dim);
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F) {
        let start = place.in_table();
        // SAFETY: promised by the caller.
        unsafe {
            let moment = s.fma(sum, sum, load(s, &self.moment, start, place.n));
            store(s, &self.moment, start, place.n, moment);
            let size = s.add(s.sqrt(moment), s.splat(self.epsilon));
            // Lanes beyond the row may divide 0 by 0; they are not written.
            let step = s.div(s.mul(s.splat(self.lr), sum), size);
            let value = load(s, &self.table, start, place.n);
            store(s, &self.table, start, place.n, s.sub(value, step));
        }
    }
}

struct Adam {
    table: Shareable<f32>,
    first: Shareable<f32>,
    second: Shareable<f32>,
    numbers: AdamRows,
}

impl Update for Adam {
    #[inline(always)]
    fn prefetch(&self, _: usize, id: i64, dim: usize) {
        for rows in [&self.table, &self.first, &self.second] {
            prefetch_row(rows.ptr().wrapping_add(id as usize * dim), dim);
        }
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, place: Place, sum: S::F) {
        let (start, n) = (place.in_table(), place.n);
        let AdamRows { lr, beta1, beta2, epsilon } = self.numbers;
        // SAFETY: promised by the caller.
        unsafe {
            let first = s.mul(s.splat(beta1), load(s, &self.first, start, n));
            let first = s.fma(s.splat(1.0 - beta1), sum, first);
            let second = s.mul(s.splat(beta2), load(s, &self.second, start, n));
            let second = s.fma(s.splat(1.0 - beta2), s.mul(sum, sum), second);
            store(s, &self.first, start, n, first);
            store(s, &self.second, start, n, second);
            let size = s.add(s.sqrt(second), s.splat(epsilon));
            let step = s.div(s.mul(s.splat(lr), first), size);
            let value = load(s, &self.table, start, n);
            store(s, &self.table, start, n, s.sub(value, step));
        }
    }
}

/// Groups whose first position lies in `range`: every group has one owner.
fn owned_groups(groups: &Groups<'_>, range: Range<usize>) -> Range<usize> {
    let starts = &groups.starts[..groups.ids.len()];
    let first = starts.partition_point(|&start| (start as usize) < range.start);
    let last = starts.partition_point(|&start| (start as usize) < range.end);
    first..last
}

fn group_positions<'a>(groups: &Groups<'a>, unique: usize) -> &'a [u32] {
    &groups.positions[groups.starts[unique] as usize..groups.starts[unique + 1] as usize]
}

/// Sums the rows of every group and hands the sum to `update`. The ids were checked against it.
fn for_each_sum<U: Update>(
    pool: &Pool,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
    update: &U,
) {
    let rows = Rows::new(source, groups, dim);
    pool.run_ranges(groups.positions.len(), POSITIONS_PER_TASK, |range| {
        sum_groups(groups, owned_groups(groups, range), &rows, dim, update);
    });
}

crate::kernel! {
    /// Sums the groups `owned`, a register of columns at a time: most ids come once or twice.
    fn sum_groups<S, U: Update>(
        s: S,
        groups: &Groups<'_>,
        owned: Range<usize>,
        rows: &Rows<'_>,
        dim: usize,
        update: &U,
    ) {
        for unique in owned.clone() {
            if unique + ROWS_AHEAD < owned.end {
                let ahead = unique + ROWS_AHEAD;
                update.prefetch(ahead, groups.ids[ahead], dim);
                let position = groups.positions[groups.starts[ahead] as usize] as usize;
                // SAFETY: a position of the groups.
                prefetch_row(unsafe { rows.row(position) }.0, dim);
            }
            let positions = group_positions(groups, unique);
            let id = groups.ids[unique];
            let mut column = 0;
            while column < dim {
                let n = S::LANES.min(dim - column);
                let mut sum = s.zero();
                for &position in positions {
                    // SAFETY: a position of the groups; a row has `dim` floats.
                    unsafe {
                        let (row, scale) = rows.row(position as usize);
                        let row = row.add(column);
                        let row = if n == S::LANES { s.load(row) } else { s.load_part(row, n) };
                        sum = s.fma(row, s.splat(scale), sum);
                    }
                }
                let place = Place { unique, id, dim, column, n };
                // SAFETY: the caller checked the ids; a group has one owner.
                unsafe { update.apply(s, place, sum) };
                column += n;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;
    use std::collections::BTreeMap;

    fn floats(count: usize, seed: u64) -> Vec<f32> {
        let mut random = Sequence::new(seed, 1);
        (0..count).map(|_| random.normal() as f32).collect()
    }

    fn ids(count: usize, rows: usize, seed: u64) -> Vec<i64> {
        let mut random = Sequence::new(seed, 2);
        (0..count)
            .map(|_| (random.below(rows as u64) * random.below(3)) as i64 % rows as i64)
            .collect()
    }

    #[test]
    fn lookup_copies_rows_to_their_places() {
        for (dim, count, rows) in
            [(1, 5, 3), (8, 100, 7), (16, 3000, 50), (19, 1030, 40), (64, 9, 2)]
        {
            let table = floats(rows * dim, 1);
            let ids = ids(count, rows, 2);
            for threads in [1, 3] {
                let pool = Pool::new(threads);
                // Three columns before, groups of five rows side by side, two columns after.
                let width = 3 + 5 * dim + 2;
                let grid = Grid { start: 3, group: 5, group_stride: width, stride: dim };
                let mut out = vec![7.0; count.div_ceil(5) * width];
                lookup(&pool, &table, dim, &ids, Some(0), grid, &mut out).unwrap();
                let mut expected = vec![7.0; out.len()];
                for (position, &id) in ids.iter().enumerate() {
                    for column in 0..dim {
                        let value = if id == 0 { 0.0 } else { table[id as usize * dim + column] };
                        expected[position / 5 * width + 3 + position % 5 * dim + column] = value;
                    }
                }
                assert_eq!(out, expected);
            }
        }
    }

    #[test]
    fn slots_are_written_side_by_side() {
        let pool = Pool::new(3);
        let (dim, batch, stride) = (16, 1500, 3 * 16 + 13);
        let tables = [floats(20 * dim, 1), floats(30 * dim, 2)];
        let columns = [ids(batch, 20, 1), ids(batch, 30, 2), ids(batch, 20, 3)];
        let slots: Vec<Slot<'_>> = (0..3)
            .map(|s| Slot { table: &tables[s % 2], ids: &columns[s], column: 13 + s * dim })
            .collect();
        let mut out = vec![5.0; batch * stride];
        lookup_slots(&pool, &slots, dim, None, stride, &mut out).unwrap();
        for row in 0..batch {
            assert!(out[row * stride..][..13].iter().all(|&v| v == 5.0));
            for (slot, ids) in columns.iter().enumerate() {
                let id = ids[row] as usize;
                let value = &out[row * stride + 13 + slot * dim..][..dim];
                assert_eq!(value, &tables[slot % 2][id * dim..][..dim]);
            }
        }
        let wrong = vec![0, 1, 99];
        let slots = [
            Slot { table: &tables[0], ids: &columns[0][..3], column: 0 },
            Slot { table: &tables[1], ids: &wrong, column: 16 },
        ];
        let error = lookup_slots(&pool, &slots, dim, None, stride, &mut out).unwrap_err();
        assert_eq!(error, (1, BadId { position: 2, id: 99, rows: 30 }));
    }

    #[test]
    fn a_wrong_id_is_reported_not_read() {
        let pool = Pool::new(3);
        let table = floats(10 * 4, 1);
        let mut list = ids(5000, 10, 3);
        list[4100] = 10;
        list[2077] = -1;
        list[4999] = i64::MIN;
        let mut out = vec![0.0; 5000 * 4];
        let expected = BadId { position: 2077, id: -1, rows: 10 };
        let error = lookup(&pool, &table, 4, &list, None, Grid::packed(4), &mut out).unwrap_err();
        assert_eq!(error, expected);
        let message = fleet_base::Error::from(error).to_string();
        assert_eq!(message, "id at position 2077 is out of range: expected 0 to 9, got -1");
        let mut scratch = vec![0; group_scratch_len(list.len())];
        assert_eq!(group(&pool, &list, Some(10), None, &mut scratch).unwrap_err(), expected);
        let offsets = [0, 5000];
        let pooled =
            lookup_pooled(&pool, &table, 4, &list, &offsets, Pooling::Sum, None, (0, 4), &mut out);
        assert_eq!(pooled.unwrap_err(), expected);
        // Groups made without a bound are checked by the update.
        let groups = group(&pool, &list, None, None, &mut scratch).unwrap();
        let source = Source::Grid { data: &vec![0.0; 5000 * 4], grid: Grid::packed(4) };
        let mut table = table;
        assert!(sgd_rows(&pool, &groups, &source, 4, 0.1, &mut table).is_err());
        // The padding index may lie outside the table, as -1 does.
        let padded = lookup(&pool, &table, 4, &[-1, 3], Some(-1), Grid::packed(4), &mut out);
        assert!(padded.is_ok() && out[..4] == [0.0; 4]);
    }

    fn check_group(list: &[i64], padding: Option<i64>) {
        let mut expected: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (position, &id) in list.iter().enumerate() {
            if padding != Some(id) {
                expected.entry(id as u64).or_default().push(position as u32);
            }
        }
        for threads in [1, 3] {
            let mut scratch = vec![!0; group_scratch_len(list.len())];
            let groups = group(&Pool::new(threads), list, None, padding, &mut scratch).unwrap();
            assert_eq!(groups.ids.len(), expected.len());
            assert_eq!(groups.starts.len(), expected.len() + 1);
            for (unique, (&id, positions)) in expected.iter().enumerate() {
                assert_eq!(groups.ids[unique] as u64, id);
                assert_eq!(group_positions(&groups, unique), positions);
            }
        }
    }

    #[test]
    fn groups_are_sorted_and_stable() {
        check_group(&[], None);
        check_group(&[0], None);
        check_group(&[5; 20_000], None);
        check_group(&[5; 9], Some(5));
        check_group(&ids(53_248, 1_000_000, 1), Some(0));
        check_group(&ids(30_000, 100, 2), Some(99));
        check_group(&ids(9000, 1 << 32, 3), None);
        let wide: Vec<i64> = {
            let mut random = Sequence::new(4, 4);
            (0..20_000).map(|_| random.next_u64() as i64 >> random.below(64)).collect()
        };
        check_group(&wide, Some(-1));
    }

    /// Sums per id in f64, by position.
    fn oracle(
        list: &[i64],
        dim: usize,
        row: impl Fn(usize, usize) -> f64,
    ) -> BTreeMap<i64, Vec<f64>> {
        let mut sums: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
        for (position, &id) in list.iter().enumerate() {
            let sum = sums.entry(id).or_insert_with(|| vec![0.0; dim]);
            for (column, sum) in sum.iter_mut().enumerate() {
                *sum += row(position, column);
            }
        }
        sums
    }

    fn close(ours: f32, theirs: f64) -> bool {
        (f64::from(ours) - theirs).abs() <= 1e-5 * (1.0 + theirs.abs())
    }

    #[test]
    fn merged_rows_and_updates_match_the_plain_sums() {
        for (dim, count, rows) in
            [(16, 5000, 300), (1, 40, 9), (8, 3000, 4), (70, 600, 50), (130, 77, 20)]
        {
            let list = ids(count, rows, 5);
            let stride = dim + 3;
            let data = floats(count * stride, 6);
            let grid = Grid::columns(2, stride);
            let source = Source::Grid { data: &data, grid };
            let sums = oracle(&list, dim, |i, c| f64::from(data[i * stride + 2 + c]));
            let start = floats(rows * dim, 7);
            let mut bits: Vec<Vec<f32>> = Vec::new();
            for threads in [1, 3] {
                let pool = Pool::new(threads);
                let mut scratch = vec![0; group_scratch_len(count)];
                let groups = group(&pool, &list, Some(rows), None, &mut scratch).unwrap();
                let mut merged = vec![0.0; groups.ids.len() * dim];
                merge_rows(&pool, &groups, &source, dim, &mut merged);
                let mut dense = vec![3.0; rows * dim];
                dense_gradient(&pool, &groups, &source, dim, &mut dense).unwrap();
                let (mut sgd, mut ada, mut adam) = (start.clone(), start.clone(), start.clone());
                let mut moments = [0.5, 0.1, 0.2].map(|value| vec![value; rows * dim]);
                sgd_rows(&pool, &groups, &source, dim, 0.1, &mut sgd).unwrap();
                let [moment, first, second] = &mut moments;
                adagrad_rows(&pool, &groups, &source, dim, (0.1, 1e-6), &mut ada, moment).unwrap();
                let numbers = AdamRows { lr: 0.01, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
                adam_rows(&pool, &groups, &source, dim, numbers, &mut adam, first, second).unwrap();
                for_each_row(&pool, &groups, &source, dim, |unique, sum| {
                    assert_eq!(sum, &merged[unique * dim..][..dim]);
                });
                for (unique, (&id, sum)) in sums.iter().enumerate() {
                    assert_eq!(groups.ids[unique], id);
                    for (column, &sum) in sum.iter().enumerate() {
                        let at = id as usize * dim + column;
                        let old = f64::from(start[at]);
                        assert!(close(merged[unique * dim + column], sum));
                        // The squares would enlarge the rounding of the sum.
                        let sum = f64::from(merged[unique * dim + column]);
                        assert!(close(dense[at], sum));
                        assert!(close(sgd[at], old - 0.1 * sum));
                        let moment = 0.5 + sum * sum;
                        assert!(close(moments[0][at], moment));
                        assert!(close(ada[at], old - 0.1 * sum / (moment.sqrt() + 1e-6)));
                        let m = 0.9 * 0.1 + 0.1 * sum;
                        let v = 0.99 * 0.2 + 0.01 * sum * sum;
                        assert!(close(adam[at], old - 0.01 * m / (v.sqrt() + 1e-8)));
                    }
                }
                for id in (0..rows).filter(|&id| !sums.contains_key(&(id as i64))) {
                    let row = id * dim..(id + 1) * dim;
                    assert!(dense[row.clone()].iter().all(|&v| v == 0.0));
                    assert_eq!(&sgd[row.clone()], &start[row.clone()]);
                    assert_eq!(&ada[row.clone()], &start[row.clone()]);
                    assert_eq!(&adam[row.clone()], &start[row]);
                }
                bits.push([merged, dense, sgd, ada, adam].concat());
            }
            assert!(bits[0].iter().zip(&bits[1]).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn pooled_lookup_and_its_gradient() {
        let (dim, rows) = (12, 30);
        let table = floats(rows * dim, 1);
        let offsets = [0, 3, 3, 4, 11, 700];
        let list = ids(700, rows, 2);
        for pooling in [Pooling::Sum, Pooling::Mean, Pooling::SqrtN] {
            let pool = Pool::new(3);
            let mut out = vec![1.0; 5 * (dim + 1)];
            let place = (1, dim + 1);
            lookup_pooled(&pool, &table, dim, &list, &offsets, pooling, Some(4), place, &mut out)
                .unwrap();
            let scale = |segment: usize| {
                let count = (offsets[segment + 1] - offsets[segment]).max(1) as f64;
                match pooling {
                    Pooling::Sum => 1.0,
                    Pooling::Mean => 1.0 / count,
                    Pooling::SqrtN => 1.0 / count.sqrt(),
                }
            };
            for segment in 0..5 {
                assert_eq!(out[segment * (dim + 1)], 1.0);
                for column in 0..dim {
                    let sum: f64 = list[offsets[segment]..offsets[segment + 1]]
                        .iter()
                        .filter(|&&id| id != 4)
                        .map(|&id| f64::from(table[id as usize * dim + column]))
                        .sum();
                    assert!(close(out[segment * (dim + 1) + 1 + column], sum * scale(segment)));
                }
            }
            let gradient = floats(out.len(), 3);
            let mut segment_of = vec![0; list.len()];
            segments(&offsets, &mut segment_of);
            let source = Source::Pooled {
                data: &gradient,
                start: 1,
                stride: dim + 1,
                segment_of: &segment_of,
                offsets: &offsets,
                pooling,
            };
            let mut scratch = vec![0; group_scratch_len(list.len())];
            let groups = group(&pool, &list, Some(rows), Some(4), &mut scratch).unwrap();
            let mut merged = vec![0.0; groups.ids.len() * dim];
            merge_rows(&pool, &groups, &source, dim, &mut merged);
            let sums = oracle(&list, dim, |i, c| {
                let segment = segment_of[i] as usize;
                f64::from(gradient[segment * (dim + 1) + 1 + c]) * scale(segment)
            });
            assert!(!groups.ids.contains(&4));
            for (unique, id) in groups.ids.iter().enumerate() {
                for column in 0..dim {
                    assert!(close(merged[unique * dim + column], sums[id][column]));
                }
            }
        }
    }
}
