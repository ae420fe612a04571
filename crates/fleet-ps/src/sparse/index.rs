//! The index of a shard: id -> the slot of its row, and the days for which it was not seen.
//!
//! Ids are in buckets of one cache line, five to a bucket; a full bucket overflows into the next.
//! Buckets form pages, pages form segments, and a directory over bits of the hash gives the segment
//! of an id. A segment that fills up is rewritten with a few more pages, and a large one is split.
//! So no insertion moves more than a segment, whatever the size of the table, and the index stays
//! 85 to 92 % full. (A table that doubles is half empty after it has grown.)
//!
//! Memory: 64 / 5 bytes per entry at a fill of at least 0.85, which is at most 15 bytes per id.

use super::arena::Arena;
use crate::HashKey;
use fleet_base::Result;
use std::ptr::NonNull;

/// Entries in a bucket: as many as fit a cache line, with 8 bytes of id and 4 of place each.
const BUCKET_ENTRIES: usize = 5;
/// Buckets in a page.
const PAGE_BUCKETS: usize = 64;
pub(crate) const PAGE_BYTES: usize = PAGE_BUCKETS * size_of::<Bucket>();
/// Pages from which a segment is split, which bounds what one insertion moves (19 thousand ids).
const SEGMENT_PAGES_MAX: usize = 64;
/// A segment grows by its length divided by this (and by a page at least).
const GROWTH_DIVISOR: usize = 12;
/// Fill at which a segment grows, in percent of its capacity.
const FILL_MAX_PERCENT: usize = 92;
/// Limit on the bits of the hash that the directory uses.
const DEPTH_MAX: u32 = 16;
/// Limit of the count of days without a push: six bits.
pub(crate) const UNSEEN_DAYS_MAX: u8 = 63;

/// State of an id: absent, with a row, or pending with a count of its pulls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

const EMPTY: u32 = u32::MAX;
const PENDING: u32 = 1 << 31;
const MARK: u32 = 1 << 30;
const DIRTY: u32 = 1 << 29;
const SLOT_BITS: u32 = DIRTY - 1;
/// Rows that a shard can number.
pub(crate) const SLOT_COUNT_MAX: u32 = DIRTY;

impl Place {
    /// Returns the place of a clean row.
    #[inline]
    pub fn row(slot: u32, mark: bool) -> Place {
        debug_assert!(slot < SLOT_COUNT_MAX);
        Place(slot | if mark { MARK } else { 0 })
    }

    pub fn pending(count: u32) -> Place {
        Place(PENDING | count.min(SLOT_BITS))
    }

    /// Returns the slot of the row, if there is one.
    #[inline]
    pub fn slot(self) -> Option<u32> {
        (self.0 & PENDING == 0).then_some(self.0 & SLOT_BITS)
    }

    /// Returns how often the id was pulled, if it has no row yet.
    #[inline]
    pub fn count(self) -> Option<u32> {
        (self.0 & PENDING != 0).then_some(self.0 & SLOT_BITS)
    }

    /// Returns the snapshot mark of the row (`sparse/snapshot.rs`).
    #[inline]
    pub fn mark(self) -> bool {
        self.0 & MARK != 0
    }

    /// Returns whether the row was pushed to since it was last saved as base or delta.
    #[inline]
    pub fn dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    #[inline]
    pub fn with_dirty(self, dirty: bool) -> Place {
        Place(self.0 & !DIRTY | if dirty { DIRTY } else { 0 })
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    ids: [u64; BUCKET_ENTRIES],
    places: [u32; BUCKET_ENTRIES],
    /// Six bits per entry.
    unseen_days: u32,
}

const EMPTY_BUCKET: Bucket =
    Bucket { ids: [0; BUCKET_ENTRIES], places: [EMPTY; BUCKET_ENTRIES], unseen_days: 0 };

/// An entry that was found or made; valid until the next insertion.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    bucket: NonNull<Bucket>,
    position: usize,
}

/// The buckets that hold most ids: the first one of a search, and the next one, which a third of
/// the ids are in.
#[derive(Clone, Copy)]
struct Home {
    first: Option<NonNull<Bucket>>,
    next: NonNull<Bucket>,
}

impl Home {
    const NONE: Home = Home { first: None, next: NonNull::dangling() };

    #[inline(always)]
    fn prefetch(self) {
        super::prefetch(self.first.map_or(std::ptr::null(), |first| first.as_ptr()));
        super::prefetch(self.next.as_ptr());
    }
}

/// Looks for an id in a bucket.
///
/// # Safety
/// The bucket belongs to an index, and nothing else accesses its shard.
#[inline(always)]
unsafe fn look(bucket: NonNull<Bucket>, id: u64) -> Option<Entry> {
    // SAFETY: promised by the caller.
    let line = unsafe { bucket.as_ref() };
    // Without branches: the position of an id in its bucket is unpredictable.
    let mut hits = 0;
    for position in 0..BUCKET_ENTRIES {
        hits |= u32::from(line.ids[position] == id) << position;
    }
    // Empty entries look like id 0; they follow the used ones.
    let position = (hits | 1 << (BUCKET_ENTRIES - 1)).trailing_zeros() as usize;
    let is_there = hits != 0 && line.places[position] != EMPTY;
    is_there.then_some(Entry { bucket, position })
}

/// Homes of the ids of a group, determined and prefetched some time before they are searched. Ids
/// are prefetched one after another instead of many at once, because a core can wait for few lines
/// only.
pub(crate) struct Ahead<'a> {
    ids: &'a [u64],
    homes: [Home; HOMES_AHEAD],
    moves: u64,
}

/// Ids between the prefetch of a bucket and the search in it: a core's work for an id takes less
/// time than a memory access.
const HOMES_AHEAD: usize = 16;

impl<'a> Ahead<'a> {
    pub fn new(index: &Index, ids: &'a [u64]) -> Ahead<'a> {
        let mut ahead = Ahead { ids, homes: [Home::NONE; HOMES_AHEAD], moves: index.moves };
        ahead.renew(index, 0);
        ahead
    }

    #[inline(always)]
    fn ask(&mut self, index: &Index, at: usize) {
        let home = index.home(self.ids[at]);
        home.prefetch();
        self.homes[at % HOMES_AHEAD] = home;
    }

    /// Determines the homes again, from this id on, after buckets have moved.
    #[cold]
    fn renew(&mut self, index: &Index, at: usize) {
        let end = self.ids.len().min(at + HOMES_AHEAD);
        (at..end).for_each(|at| self.ask(index, at));
        self.moves = index.moves;
    }

    /// Returns the entry of the id at this position; positions come in order.
    #[inline(always)]
    pub fn find(&mut self, index: &Index, at: usize) -> Option<Entry> {
        if self.moves != index.moves {
            self.renew(index, at);
        }
        let home = self.homes[at % HOMES_AHEAD];
        if at + HOMES_AHEAD < self.ids.len() {
            self.ask(index, at + HOMES_AHEAD);
        }
        // SAFETY: homes are determined again after every move of buckets.
        unsafe { index.find_at(home, self.ids[at]) }
    }
}

/// Pages of buckets, and the number of hash bits that lead to them.
struct Segment {
    pages: Vec<NonNull<Bucket>>,
    len: usize,
    depth: u32,
}

pub(crate) struct Index {
    key: HashKey,
    directory: Vec<u32>,
    depth: u32,
    segments: Vec<Segment>,
    len: usize,
    /// How often buckets have moved.
    moves: u64,
}

// SAFETY: the pages belong to the index.
unsafe impl Send for Index {}

/// Hashes an id to 64 bits; different ids have different hashes. The upper half chooses shard (high
/// bits) and segment (low bits); [`HashKey::hash`] chooses the bucket in the segment.
#[inline]
pub(crate) fn hash(id: u64) -> u64 {
    let mut x = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 32;
    x = x.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

impl Index {
    pub fn new(key: HashKey) -> Index {
        let segment = Segment { pages: Vec::new(), len: 0, depth: 0 };
        Index { key, directory: vec![0], depth: 0, segments: vec![segment], len: 0, moves: 0 }
    }

    /// Returns an empty index with the same key.
    pub fn empty_like(&self) -> Index {
        Index::new(self.key)
    }

    /// Returns the number of ids, including those without a row.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Returns the bytes of the lists; pages belong to the arena.
    pub fn list_bytes(&self) -> usize {
        let pages: usize = self.segments.iter().map(|segment| segment.pages.capacity()).sum();
        self.directory.capacity() * 4
            + self.segments.capacity() * size_of::<Segment>()
            + pages * size_of::<NonNull<Bucket>>()
    }

    /// Returns the buckets where a search for the id begins.
    #[inline(always)]
    fn home(&self, id: u64) -> Home {
        let segment = self.segment(id);
        let count = segment.bucket_count();
        if count == 0 {
            return Home::NONE;
        }
        let at = segment.home(self.key, id);
        let first = segment.bucket(at);
        let is_last = at % PAGE_BUCKETS == PAGE_BUCKETS - 1;
        let next = match is_last {
            true => segment.bucket(if at + 1 == count { 0 } else { at + 1 }),
            // SAFETY: it is not the last bucket of its page.
            false => unsafe { first.add(1) },
        };
        Home { first: Some(first), next }
    }

    /// Returns the entry of an id whose home is known; buckets must not have moved since.
    ///
    /// # Safety
    /// `home` is the result of [`Index::home`] for this id, since the last change of `moves`.
    #[inline(always)]
    unsafe fn find_at(&self, home: Home, id: u64) -> Option<Entry> {
        let bucket = home.first?;
        // SAFETY: promised by the caller.
        if let Some(entry) = unsafe { look(bucket, id).or_else(|| look(home.next, id)) } {
            return Some(entry);
        }
        self.find_beyond(id)
    }

    #[cold]
    #[inline(never)]
    fn find_beyond(&self, id: u64) -> Option<Entry> {
        self.find(id)
    }

    /// Prefetches the lists of pages.
    pub fn prefetch_lists(&self) {
        const STEP: usize = 64 / size_of::<NonNull<Bucket>>();
        for segment in &self.segments {
            segment.pages.iter().step_by(STEP).for_each(|page| super::prefetch(page));
        }
    }

    #[inline]
    fn segment(&self, id: u64) -> &Segment {
        &self.segments[self.directory[directory_slot(id, self.depth)] as usize]
    }

    #[inline(always)]
    pub fn find(&self, id: u64) -> Option<Entry> {
        self.segment(id).find(self.key, id)
    }

    /// Adds an id, which must be absent.
    pub fn insert(&mut self, arena: &Arena, id: u64, place: Place) -> Result<Entry> {
        let mut at = self.directory[directory_slot(id, self.depth)] as usize;
        if self.segments[at].full() {
            self.moves += 1;
            if self.segments[at].pages.len() >= SEGMENT_PAGES_MAX
                && self.segments[at].depth < DEPTH_MAX
            {
                self.split(arena, at)?;
                at = self.directory[directory_slot(id, self.depth)] as usize;
            } else {
                self.segments[at].grow(arena, self.key)?;
            }
        }
        let entry = self.segments[at].put(self.key, id, place.0, 0);
        self.len += 1;
        Ok(entry)
    }

    /// Splits a segment in two by the next bit of the hash.
    fn split(&mut self, arena: &Arena, at: usize) -> Result<()> {
        let bit = self.segments[at].depth;
        let (pages, len) = (self.segments[at].pages.len(), self.segments[at].len);
        let half = Segment::capable(arena, len.div_ceil(2).max(1), pages)?;
        let mut halves = [half, Segment::capable(arena, len.div_ceil(2).max(1), pages)?];
        let mut result = Ok(());
        let key = self.key;
        self.segments[at].each_entry(|id, place, days| {
            let half = &mut halves[((hash(id) >> 32 >> bit) & 1) as usize];
            if half.full() && result.is_ok() {
                result = half.grow(arena, key);
            }
            if result.is_ok() {
                half.put(key, id, place, days);
            }
        });
        if let Err(error) = result {
            halves.into_iter().for_each(|half| half.free(arena));
            return Err(error);
        }
        let [mut low, mut high] = halves;
        (low.depth, high.depth) = (bit + 1, bit + 1);
        if bit == self.depth {
            self.directory.extend_from_within(..);
            self.depth += 1;
        }
        let new = self.segments.len() as u32;
        for (slot, segment) in self.directory.iter_mut().enumerate() {
            if *segment == at as u32 && (slot >> bit) & 1 == 1 {
                *segment = new;
            }
        }
        std::mem::replace(&mut self.segments[at], low).free(arena);
        self.segments.push(high);
        Ok(())
    }

    /// Returns the entries of a segment in ascending order of their ids, which is independent of
    /// the key.
    pub fn sorted_segment(&self, segment: usize) -> Vec<(u64, Entry)> {
        let mut entries = Vec::with_capacity(self.segments[segment].len);
        self.visit_segment(segment, |id, entry| entries.push((id, entry)));
        entries.sort_unstable_by_key(|(id, _)| *id);
        entries
    }

    /// Calls `visit` for every entry of a segment, in an order that depends on the key.
    fn visit_segment(&self, segment: usize, mut visit: impl FnMut(u64, Entry)) {
        let segment = &self.segments[segment];
        for bucket in segment.buckets() {
            // SAFETY: buckets of pages are initialised, and nothing else accesses this shard.
            let line = unsafe { bucket.as_ref() };
            for position in (0..BUCKET_ENTRIES).take_while(|&at| line.places[at] != EMPTY) {
                visit(line.ids[position], Entry { bucket, position });
            }
        }
    }

    /// Drops the entries of a segment for which `keep` is false.
    pub fn retain_segment(
        &mut self,
        arena: &Arena,
        segment: usize,
        mut keep: impl FnMut(u64, Entry) -> bool,
    ) -> Result<usize> {
        let mut kept = Vec::with_capacity(self.segments[segment].len);
        self.visit_segment(segment, |id, entry| {
            if keep(id, entry) {
                kept.push((id, entry.place().0, entry.unseen_days()));
            }
        });
        let before = self.segments[segment].len;
        let gone = before - kept.len();
        if gone == 0 {
            return Ok(0);
        }
        let mut fresh = match kept.len() {
            0 => Segment { pages: Vec::new(), len: 0, depth: 0 },
            len => Segment::capable(arena, len, SEGMENT_PAGES_MAX)?,
        };
        self.moves += 1;
        fresh.depth = self.segments[segment].depth;
        for (id, place, days) in kept {
            fresh.put(self.key, id, place, days);
        }
        std::mem::replace(&mut self.segments[segment], fresh).free(arena);
        self.len -= gone;
        Ok(gone)
    }
}

#[inline]
fn directory_slot(id: u64, depth: u32) -> usize {
    (hash(id) >> 32) as usize & ((1 << depth) - 1)
}

impl Segment {
    /// Returns a segment with room for `len` entries and a little growth; `pages_max` limits only
    /// the estimate.
    fn capable(arena: &Arena, len: usize, pages_max: usize) -> Result<Segment> {
        let buckets = (len * 100).div_ceil(FILL_MAX_PERCENT * BUCKET_ENTRIES) + 1;
        let pages = buckets.div_ceil(PAGE_BUCKETS).min(pages_max.max(1));
        let mut segment = Segment { pages: Vec::with_capacity(pages), len: 0, depth: 0 };
        segment.add_pages(arena, pages)?;
        while segment.capacity() < len {
            segment.add_pages(arena, 1)?;
        }
        Ok(segment)
    }

    fn add_pages(&mut self, arena: &Arena, count: usize) -> Result<()> {
        self.pages.reserve_exact(count);
        for _ in 0..count {
            let page = arena.take()?.cast::<Bucket>();
            for at in 0..PAGE_BUCKETS {
                // SAFETY: the arena's blocks are a page long and aligned to a line.
                unsafe { page.add(at).write(EMPTY_BUCKET) };
            }
            self.pages.push(page);
        }
        Ok(())
    }

    fn free(self, arena: &Arena) {
        self.pages.into_iter().for_each(|page| arena.give(page.cast()));
    }

    #[inline]
    fn bucket_count(&self) -> usize {
        self.pages.len() * PAGE_BUCKETS
    }

    fn capacity(&self) -> usize {
        self.bucket_count() * BUCKET_ENTRIES * FILL_MAX_PERCENT / 100
    }

    fn full(&self) -> bool {
        self.len >= self.capacity()
    }

    fn grow(&mut self, arena: &Arena, key: HashKey) -> Result<()> {
        let old = self.pages.len();
        let mut grown = Segment { pages: Vec::new(), len: 0, depth: self.depth };
        grown.add_pages(arena, old + (old / GROWTH_DIVISOR).max(1))?;
        self.each_entry(|id, place, days| {
            grown.put(key, id, place, days);
        });
        std::mem::replace(self, grown).free(arena);
        Ok(())
    }

    #[inline]
    fn home(&self, key: HashKey, id: u64) -> usize {
        (((key.hash(id) & 0xFFFF_FFFF) * self.bucket_count() as u64) >> 32) as usize
    }

    #[inline]
    fn bucket(&self, at: usize) -> NonNull<Bucket> {
        let page = self.pages[at / PAGE_BUCKETS];
        // SAFETY: the page has that many buckets.
        unsafe { page.add(at % PAGE_BUCKETS) }
    }

    fn buckets(&self) -> impl Iterator<Item = NonNull<Bucket>> + '_ {
        (0..self.bucket_count()).map(|at| self.bucket(at))
    }

    fn each_entry(&self, mut visit: impl FnMut(u64, u32, u8)) {
        for page in &self.pages {
            for at in 0..PAGE_BUCKETS {
                // SAFETY: buckets of pages are initialised, and nothing else accesses this shard.
                let line = unsafe { page.add(at).as_ref() };
                for at in (0..BUCKET_ENTRIES).take_while(|&at| line.places[at] != EMPTY) {
                    visit(line.ids[at], line.places[at], (line.unseen_days >> (6 * at)) as u8 & 63);
                }
            }
        }
    }

    /// Returns the entry of an id, if it has one.
    #[inline(always)]
    fn find(&self, key: HashKey, id: u64) -> Option<Entry> {
        let count = self.bucket_count();
        let mut at = self.home(key, id);
        // A segment is never full, so every search ends at a bucket with an empty entry.
        for _ in 0..count {
            let bucket = self.bucket(at);
            // SAFETY: buckets of pages are initialised, and nothing else accesses this shard.
            let (found, line) = unsafe { (look(bucket, id), bucket.as_ref()) };
            if found.is_some() {
                return found;
            }
            if line.places[BUCKET_ENTRIES - 1] == EMPTY {
                return None;
            }
            at = if at + 1 == count { 0 } else { at + 1 };
        }
        None
    }

    /// Writes an entry for an id that has none; there must be room.
    fn put(&mut self, key: HashKey, id: u64, place: u32, days: u8) -> Entry {
        let count = self.bucket_count();
        let mut at = self.home(key, id);
        let mut bucket = self.bucket(at);
        loop {
            // SAFETY: as above.
            let line = unsafe { bucket.as_mut() };
            if line.places[BUCKET_ENTRIES - 1] == EMPTY {
                let used: usize =
                    line.places.iter().map(|place| usize::from(*place != EMPTY)).sum();
                line.ids[used] = id;
                line.places[used] = place;
                line.unseen_days |= u32::from(days) << (6 * used);
                self.len += 1;
                return Entry { bucket, position: used };
            }
            at = if at + 1 == count { 0 } else { at + 1 };
            bucket = self.bucket(at);
        }
    }
}

impl Entry {
    #[inline]
    pub fn place(&self) -> Place {
        // SAFETY: entries are used under the lock of their shard, before the index changes.
        Place(unsafe { self.bucket.as_ref() }.places[self.position])
    }

    /// Sets the snapshot mark of the row.
    pub fn set_mark(&mut self, mark: bool) {
        if let Some(slot) = self.place().slot() {
            self.set_place(Place::row(slot, mark).with_dirty(self.place().dirty()));
        }
    }

    /// Sets the place; writes nothing if it is unchanged.
    #[inline]
    pub fn set_place(&mut self, place: Place) {
        if self.place() != place {
            // SAFETY: as above.
            unsafe { self.bucket.as_mut() }.places[self.position] = place.0;
        }
    }

    #[inline]
    pub fn unseen_days(&self) -> u8 {
        // SAFETY: as above.
        (unsafe { self.bucket.as_ref() }.unseen_days >> (6 * self.position)) as u8 & 63
    }

    /// Sets the days; writes nothing if they are unchanged, so that a row seen every day costs no
    /// write of its line.
    #[inline]
    pub fn set_unseen_days(&mut self, days: u8) {
        if self.unseen_days() != days {
            let shift = 6 * self.position;
            // SAFETY: as above.
            let line = unsafe { self.bucket.as_mut() };
            let days = u32::from(days.min(UNSEEN_DAYS_MAX));
            line.unseen_days = line.unseen_days & !(63 << shift) | days << shift;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;
    use std::collections::HashMap;

    const KEY: HashKey = HashKey::new(0x0123_4567_89AB_CDEF, 0xD134_2543_DE82_EF95);

    /// Returns how many buckets a search for the id reads.
    fn probes(index: &Index, id: u64) -> usize {
        let segment = index.segment(id);
        let (home, count) = (segment.home(KEY, id), segment.bucket_count());
        // SAFETY: nothing else accesses the index.
        let holds = |at: usize| unsafe { look(segment.bucket((home + at) % count), id) }.is_some();
        1 + (0..count).find(|at| holds(*at)).unwrap()
    }

    /// Returns the id with this [`hash`], whose two steps are invertible.
    fn id_of(hash: u64) -> u64 {
        let inverse = |odd: u64| {
            (0..6).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))))
        };
        let mut x = hash ^ (hash >> 32);
        x = x.wrapping_mul(inverse(0xD6E8_FEB8_6659_FD93));
        x ^= x >> 32;
        x.wrapping_mul(inverse(0x9E37_79B9_7F4A_7C15))
    }

    /// Ids chosen to collide under a hash without a key cost as much as random ids.
    #[test]
    fn crafted_ids_are_found_as_soon_as_random_ones() {
        const COUNT: u64 = 60_000;
        assert_eq!(hash(id_of(0x1234_5678_0000_0007)), 0x1234_5678_0000_0007);
        let cost = |id: &dyn Fn(u64) -> u64| {
            let (arena, mut index) = (Arena::new(PAGE_BYTES), Index::new(KEY));
            for at in 0..COUNT {
                index.insert(&arena, id(at), Place::row(0, false)).unwrap();
            }
            (0..COUNT).map(|at| probes(&index, id(at))).sum::<usize>() as f64 / COUNT as f64
        };
        let random = cost(&|at| fleet_base::rng::Sequence::new(1, at).next_u64());
        for (name, shift) in [("one lower half", 32), ("one segment, too", 48)] {
            let crafted = cost(&|at| id_of(at << shift | 7));
            assert!(crafted < 1.5 * random, "{name}: {crafted} probes, random ids {random}");
        }
    }

    #[test]
    fn homes_hold_while_buckets_move() {
        let arena = Arena::new(PAGE_BYTES);
        let (mut index, mut known) = (Index::new(KEY), HashMap::new());
        let mut rng = Sequence::new(5, 6);
        let ids: Vec<u64> = (0..200_000).map(|_| rng.below(60_000) << 20).collect();
        let mut ahead = Ahead::new(&index, &ids);
        for (at, id) in ids.iter().enumerate() {
            let found = ahead.find(&index, at).map(|entry| entry.place().slot().unwrap());
            assert_eq!(found, known.get(id).copied(), "id {id} at {at}");
            if found.is_none() {
                let slot = at as u32;
                index.insert(&arena, *id, Place::row(slot, false)).unwrap();
                known.insert(*id, slot);
            }
        }
        assert!(index.moves > 50, "{} moves", index.moves);
    }

    #[test]
    fn agrees_with_a_hash_map() {
        let arena = Arena::new(PAGE_BYTES);
        let (mut index, mut known) = (Index::new(KEY), HashMap::new());
        let mut rng = Sequence::new(3, 4);
        for round in 0..300_000u32 {
            // Small ids, huge ids, and ids that differ in high bits only.
            let id = match rng.below(3) {
                0 => rng.below(100_000),
                1 => rng.next_u64(),
                _ => rng.below(50_000) << 44,
            };
            match index.find(id) {
                Some(mut entry) => {
                    let (slot, days) = known[&id];
                    assert_eq!((entry.place().slot(), entry.unseen_days()), (Some(slot), days));
                    let days = (round % 64) as u8;
                    entry.set_unseen_days(days);
                    known.insert(id, (slot, days));
                }
                None => {
                    assert!(!known.contains_key(&id));
                    let place = Place::row(round, round % 2 == 0);
                    index.insert(&arena, id, place).unwrap();
                    known.insert(id, (round, 0));
                }
            }
        }
        assert_eq!(index.len(), known.len());
        assert!(index.segment_count() > 1, "segments were split");
        for segment in 0..index.segment_count() {
            index.retain_segment(&arena, segment, |id, _| id % 3 == 0).unwrap();
        }
        known.retain(|id, _| id % 3 == 0);
        assert_eq!(index.len(), known.len());
        for (id, (slot, days)) in &known {
            let entry = index.find(*id).unwrap();
            assert_eq!((entry.place().slot(), entry.unseen_days()), (Some(*slot), *days));
        }
        assert!(index.find(1).is_none());
    }

    #[test]
    fn stays_full() {
        let arena = Arena::new(PAGE_BYTES);
        let mut index = Index::new(KEY);
        for id in 0..400_000u64 {
            index.insert(&arena, id, Place::row(0, false)).unwrap();
            if id > 40_000 && id % 4099 == 0 {
                let entries: usize =
                    index.segments.iter().map(|s| s.bucket_count() * BUCKET_ENTRIES).sum();
                let fill = index.len() as f64 / entries as f64;
                assert!((0.80..0.93).contains(&fill), "{fill} at {id}");
            }
        }
    }

    #[test]
    fn places_say_what_they_are() {
        assert_eq!(Place::row(7, true).slot(), Some(7));
        assert!(Place::row(7, true).mark() && !Place::row(7, false).mark());
        assert_eq!(Place::row(7, false).count(), None);
        assert_eq!((Place::pending(3).slot(), Place::pending(3).count()), (None, Some(3)));
        assert_ne!(Place::pending(u32::MAX).0, EMPTY);
    }
}
