//! Groups equal ids by a radix sort of (id, position).

use super::{BadId, report};
use crate::pool::{Pool, Shareable};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Number of ids that one task distributes to buckets.
const SORT_BLOCK: usize = 8192;

/// Maximum width of a digit inside a bucket: 256 counters fit in L1 with the items.
const DIGIT_BITS_MAX: u32 = 8;
const BUCKETS_MAX: usize = 512;
/// Limit on the blocks of the sort. More ids give longer blocks, so that there are few counters.
const SORT_BLOCKS_MAX: usize = 64;

/// Grouped ids: the unique ids in ascending order, and the positions of each.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    pub(super) ids: &'a [i64],
    pub(super) starts: &'a [u32],
    pub(super) positions: &'a [u32],
}

impl<'a> Groups<'a> {
    /// Returns the unique ids, ascending as unsigned numbers.
    pub fn ids(&self) -> &'a [i64] {
        self.ids
    }

    /// Returns the bounds of the groups: `starts[u]..starts[u + 1]` is the range of unique id `u`
    /// in [`Groups::positions`]. There is one more entry than ids.
    pub fn starts(&self) -> &'a [u32] {
        self.starts
    }

    /// Returns positions in the original ids, ascending within a group.
    pub fn positions(&self) -> &'a [u32] {
        self.positions
    }
}

/// Returns the length of the scratch memory for [`group`] of up to `count` ids, in words.
pub fn group_scratch_len(count: usize) -> usize {
    // Two buffers of 16-byte items; ids; starts and positions (two per word); the counters.
    let (_, blocks) = blocks_of(count);
    let counters = (blocks + 2) * bucket_count(count);
    4 * count + count + (count + 1).div_ceil(2) + count.div_ceil(2) + counters.div_ceil(2)
}

/// Groups equal ids. Positions that hold `padding_idx` are omitted. `rows` is the bound of the ids;
/// without it, any 64-bit pattern is an id. At most `u32::MAX` ids are supported.
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
    assert!(u32::try_from(count).is_ok(), "too many ids");
    assert!(scratch.len() >= group_scratch_len(count), "scratch is too short");
    // Ids with a known bound need no pass for the maximum, because the counting pass checks them.
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
        radix_sort(pool, place, from, to, |id, position| id << 32 | position as u64)?
    } else {
        let (from, to) = items.split_at_mut(2 * count);
        let (from, to) = (cast_mut::<[u64; 2]>(from), cast_mut::<[u64; 2]>(to));
        radix_sort(pool, place, from, to, |id, position| [position as u64, id])?
    };
    if let Some(padding) = padding_idx {
        groups = remove_padding_group(groups, padding);
    }
    let Spans { ids, starts, positions } = groups;
    Ok(Groups { ids, starts, positions })
}

/// Returns the largest id as an unsigned number, or an error with the first id out of range.
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

/// A sorted item: an id and its position.
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

/// Returns the number of buckets, of about a thousand ids each. This is small enough to sort in L1,
/// and large enough that two blocks rarely write to the same cache line.
fn bucket_count(count: usize) -> usize {
    count.div_ceil(1024).next_power_of_two().clamp(1, BUCKETS_MAX)
}

/// The input and output of [`sort`].
struct Sorting<'a, 's> {
    ids: &'a [i64],
    /// Exclusive bound of the ids; `usize::MAX` means no bound.
    bound: usize,
    /// Number of bits in the largest id.
    id_bits: u32,
    unique: &'s mut [i64],
    starts: &'s mut [u32],
    positions: &'s mut [u32],
    counters: &'s mut [u32],
}

/// Distributes ids to buckets by their top bits, sorts each bucket, and finds where the id changes.
/// Every step is stable, so that the positions of one id are ascending.
fn radix_sort<'s, T: Item>(
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
    let heads = &mut heads[..buckets];
    let low_bits = id_bits.saturating_sub(buckets.trailing_zeros());
    let bucket_of = |id: i64| (id as u64 >> low_bits.min(63)) as usize & (buckets - 1);
    count_ids(pool, ids, block, bound, counters, bucket_of)?;
    // Counts become start positions: by bucket, then by block, which preserves the order.
    let mut place = 0;
    for bucket in 0..buckets {
        edges[bucket] = place;
        for block in 0..blocks {
            let counter = &mut counters[block * buckets + bucket];
            place += std::mem::replace(counter, place);
        }
    }
    let shared_from = Shareable::new(&mut *from);
    pool.run_parts(counters, buckets, |start, places| {
        let first = start / buckets * block;
        for position in first..(first + block).min(ids.len()) {
            let place = &mut places[bucket_of(ids[position])];
            // SAFETY: the ranges of all blocks and buckets are disjoint and below the count.
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
    sort_buckets(pool, low_bits, &bucket_span, from, to, positions, heads);
    let mut count = 0;
    for heads in &mut *heads {
        count += std::mem::replace(heads, count);
    }
    write_heads(pool, &bucket_span, from, heads, unique, starts);
    let count = count as usize;
    starts[count] = ids.len() as u32;
    Ok(Spans { ids: &mut unique[..count], starts: &mut starts[..count + 1], positions })
}

/// Counts the ids of each block by bucket, and checks that they are below `bound`.
fn count_ids(
    pool: &Pool,
    ids: &[i64],
    block: usize,
    bound: usize,
    counters: &mut [u32],
    bucket_of: impl Fn(i64) -> usize + Sync,
) -> Result<(), BadId> {
    let bad = AtomicUsize::new(usize::MAX);
    let buckets = counters.len() / ids.len().div_ceil(block).max(1);
    pool.run_parts(counters, buckets, |start, counters| {
        let first = start / buckets * block;
        let part = &ids[first..(first + block).min(ids.len())];
        counters.fill(0);
        let mut largest = 0;
        for &id in part {
            counters[bucket_of(id)] += 1;
            largest = largest.max(id as u64);
        }
        if bound != usize::MAX
            && largest >= bound as u64
            && let Some(index) = part.iter().position(|&id| id as u64 >= bound as u64)
        {
            bad.fetch_min(first + index, Relaxed);
        }
    });
    report(&bad, ids, bound)
}

/// Sorts each bucket by id, and writes its positions and its number of different ids.
fn sort_buckets<T: Item>(
    pool: &Pool,
    low_bits: u32,
    bucket_span: &(impl Fn(usize) -> Range<usize> + Sync),
    from: &mut [T],
    to: &mut [T],
    positions: &mut [u32],
    heads: &mut [u32],
) {
    let (from, to, positions) =
        (Shareable::new(from), Shareable::new(to), Shareable::new(positions));
    pool.run_parts(heads, 1, |bucket, heads| {
        let span = bucket_span(bucket);
        // SAFETY: buckets are disjoint and inside the buffers.
        let (from, to, positions) = unsafe {
            (
                from.slice(span.start, span.len()),
                to.slice(span.start, span.len()),
                positions.slice(span.start, span.len()),
            )
        };
        sort_bucket(from, to, low_bits);
        let (mut count, mut last) = (0, None);
        for (item, position) in from.iter().zip(positions) {
            *position = item.position();
            count += u32::from(last != Some(item.id()));
            last = Some(item.id());
        }
        heads[0] = count;
    });
}

/// Writes the unique ids and the starts of their groups, from `heads[bucket]` on for each bucket.
fn write_heads<T: Item>(
    pool: &Pool,
    bucket_span: &(impl Fn(usize) -> Range<usize> + Sync),
    items: &[T],
    heads: &[u32],
    unique: &mut [i64],
    starts: &mut [u32],
) {
    let (unique, starts) = (Shareable::new(unique), Shareable::new(starts));
    pool.run(heads.len(), |bucket| {
        let mut place = heads[bucket] as usize;
        let mut last = None;
        // Equal ids share a bucket, so every change of id is visible within a bucket.
        for item in bucket_span(bucket) {
            let id = items[item].id();
            if last != Some(id) {
                // SAFETY: there are at most as many heads as items, each with its own position.
                unsafe {
                    *unique.ptr().add(place) = id as i64;
                    *starts.ptr().add(place) = item as u32;
                }
                place += 1;
                last = Some(id);
            }
        }
    });
}

/// Sorts `from` by the lowest `bits` of the id, least significant digit first.
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
        // All items have the same digit, as with ids that use few of their bits.
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

/// Returns the groups without that of `padding`.
fn remove_padding_group(groups: Spans<'_>, padding: i64) -> Spans<'_> {
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

/// Views scratch words as integers of another width.
fn cast_mut<T: Plain>(words: &mut [u64]) -> &mut [T] {
    const { assert!(align_of::<T>() <= align_of::<u64>()) };
    let len = size_of_val(words) / size_of::<T>();
    // SAFETY: both are plain integers, for which any bits are valid; length and alignment fit.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), len) }
}

/// Plain integers and arrays of them, for which any bits are valid.
trait Plain {}
impl Plain for i64 {}
impl Plain for u32 {}
impl Plain for [u64; 2] {}
