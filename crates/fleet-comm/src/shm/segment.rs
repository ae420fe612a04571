//! The memory that the ranks of one host share: its mapping and its layout.
//!
//! One rank creates an anonymous file (`memfd`), and the others open it through `/proc/PID/fd`. The
//! file has no name, so it disappears however the processes end, and the size of `/dev/shm` does
//! not matter. If `/proc` of the other process is not readable, a file in `/dev/shm` is used
//! instead. Its name is removed as soon as every rank has opened it.
//!
//! ```text
//! head        magic, sizes, a random number that proves that the right file was opened, the fault
//! ranks       per rank: counters on cache lines of their own, signatures of its last calls
//! slots       per rank: SLOTS areas of `slot_bytes`, through which data goes
//! pairs       per ordered pair: counters and PAIR_SLOTS areas, for send and receive
//! ```
//!
//! Pages that are never touched use no memory.

use super::sys;
use crate::call::SIGNATURE_BYTES;
use fleet_base::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU32, Ordering};

/// The layout of a segment; equal on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub ranks: usize,
    pub slot_bytes: usize,
}

/// Number of slots per rank. A step may be written while earlier ones are still being read.
pub(crate) const SLOTS: usize = 6;
/// Number of signatures kept per rank. A root can be at most [`SLOTS`] calls ahead.
pub(crate) const SIGNATURES: usize = 8;
/// Number of areas per ordered pair of ranks.
pub(crate) const PAIR_SLOTS: usize = 4;
/// Maximum number of ranks in one segment: more than any host has cores.
pub(crate) const LOCAL_RANKS_MAX: usize = 256;

/// Two cache lines, because the hardware prefetches them in pairs.
const LINE: usize = 128;
const PAGE: usize = 4096;
const HEAD_BYTES: usize = PAGE;
const FAULT_TEXT_MAX: usize = 2048;
const FAULT_TEXT_AT: usize = 1024;
/// Offsets of the fault's kind, the length of its text, and the culprit's rank plus one.
const FAULT_KIND_AT: usize = FAULT_TEXT_AT - 8;
const FAULT_LEN_AT: usize = FAULT_TEXT_AT - 4;
const FAULT_CULPRIT_AT: usize = FAULT_TEXT_AT - 12;
/// Lines for `filled` and `consumed`, the waiters of each, and `left`.
const FLAG_LINES: usize = 5;
const RANK_BYTES: usize = (FLAG_LINES * LINE + SIGNATURES * SIGNATURE_BYTES).next_multiple_of(PAGE);
const PAIR_FLAG_LINES: usize = 4;
const PAIR_HEAD_BYTES: usize =
    (PAIR_FLAG_LINES * LINE + PAIR_SLOTS * SIGNATURE_BYTES).next_multiple_of(PAGE);

const MAGIC: u64 = u64::from_le_bytes(*b"fleetshm");
const VERSION: u32 = 2;

impl Layout {
    fn slots_at(&self) -> usize {
        HEAD_BYTES + self.ranks * RANK_BYTES
    }

    fn pairs_at(&self) -> usize {
        self.slots_at() + self.ranks * SLOTS * self.slot_bytes
    }

    /// Size of an area of a pair.
    pub fn pair_slot_bytes(&self) -> usize {
        if self.ranks <= 8 { 64 << 10 } else { 16 << 10 }
    }

    fn pair_bytes(&self) -> usize {
        PAIR_HEAD_BYTES + PAIR_SLOTS * self.pair_slot_bytes()
    }

    pub fn bytes(&self) -> usize {
        self.pairs_at() + self.ranks * self.ranks * self.pair_bytes()
    }
}

/// A counter that other ranks wait for, and the number of waiters that sleep.
#[derive(Clone, Copy)]
pub(crate) struct Flag<'s> {
    pub word: &'s AtomicU32,
    pub waiters: &'s AtomicU32,
}

impl Flag<'_> {
    /// Whether the counter has reached `target`. Counters wrap, and compared values are close.
    #[inline]
    pub fn reached(&self, target: u32) -> bool {
        is_reached(self.word.load(Ordering::Acquire), target)
    }

    /// Stores `value`. A rank that reads it also sees all earlier writes of this one.
    #[inline]
    pub fn publish(&self, value: u32) {
        // Sequentially consistent, like the waiter's increment: one of the two sees the other.
        self.word.swap(value, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            sys::futex_wake(self.word);
        }
    }
}

#[inline]
pub(crate) fn is_reached(value: u32, target: u32) -> bool {
    value.wrapping_sub(target) as i32 >= 0
}

/// A mapped segment; unmapped when dropped.
pub(crate) struct Segment {
    map: sys::Map,
    pub layout: Layout,
}

impl Segment {
    /// Creates the memory. The file must be kept until every rank has opened it.
    pub fn create(
        layout: Layout,
        nonce: u64,
        fallback: bool,
    ) -> Result<(Segment, sys::SharedFile)> {
        let file = sys::SharedFile::create(layout.bytes(), fallback)?;
        let map = file.map(layout.bytes())?;
        let segment = Segment { map, layout };
        // SAFETY: the head is inside the map, which no other process has opened yet.
        unsafe {
            let head = segment.at(0);
            head.add(8).cast::<u64>().write(nonce);
            head.add(16).cast::<u32>().write(VERSION);
            head.add(20).cast::<u32>().write(layout.ranks as u32);
            head.add(24).cast::<u64>().write(layout.slot_bytes as u64);
            head.cast::<u64>().write(MAGIC);
        }
        Ok((segment, file))
    }

    /// Opens the memory that another rank created, and verifies it.
    pub fn open(layout: Layout, nonce: u64, path: &str) -> Result<Segment> {
        let map = sys::open_map(path, layout.bytes())?;
        let segment = Segment { map, layout };
        // SAFETY: the head is inside the map.
        let (magic, found, version, ranks, slot_bytes) = unsafe {
            let head = segment.at(0);
            (
                head.cast::<u64>().read(),
                head.add(8).cast::<u64>().read(),
                head.add(16).cast::<u32>().read(),
                head.add(20).cast::<u32>().read(),
                head.add(24).cast::<u64>().read(),
            )
        };
        if magic != MAGIC || found != nonce || version != VERSION {
            return Err(Error::unavailable(format!("{path} is not this group's shared memory")));
        }
        if (ranks as usize, slot_bytes as usize) != (layout.ranks, layout.slot_bytes) {
            return Err(Error::invalid("shared memory has another layout")
                .expected(format!("{} ranks, slots of {}", layout.ranks, layout.slot_bytes))
                .got(format!("{ranks} ranks, slots of {slot_bytes}")));
        }
        Ok(segment)
    }

    /// # Safety
    /// `offset` is inside the layout.
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.layout.bytes());
        // SAFETY: guaranteed by the caller.
        unsafe { self.map.start().add(offset) }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: callers pass offsets of aligned words inside the layout. All processes access
        // these words as atomics only.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }

    fn flag(&self, offset: usize) -> Flag<'_> {
        Flag { word: self.word(offset), waiters: self.word(offset + LINE) }
    }

    fn rank_at(&self, rank: usize) -> usize {
        debug_assert!(rank < self.layout.ranks);
        HEAD_BYTES + rank * RANK_BYTES
    }

    /// Number of steps that `rank` has written.
    pub fn filled(&self, rank: usize) -> Flag<'_> {
        self.flag(self.rank_at(rank))
    }

    /// Number of steps that `rank` has read.
    pub fn consumed(&self, rank: usize) -> Flag<'_> {
        self.flag(self.rank_at(rank) + 2 * LINE)
    }

    /// Not 0 once `rank` has dropped its group.
    pub fn left(&self, rank: usize) -> &AtomicU32 {
        self.word(self.rank_at(rank) + 4 * LINE)
    }

    /// Place for the signature of call number `call` of `rank`.
    pub fn signature(&self, rank: usize, call: u32) -> *mut [u8; SIGNATURE_BYTES] {
        let index = call as usize % SIGNATURES;
        // SAFETY: inside the rank's area.
        unsafe { self.at(self.rank_at(rank) + FLAG_LINES * LINE + index * SIGNATURE_BYTES).cast() }
    }

    /// The slot of `rank` for `step`.
    pub fn slot(&self, rank: usize, step: u32) -> *mut u8 {
        let index = rank * SLOTS + step as usize % SLOTS;
        // SAFETY: inside the slots.
        unsafe { self.at(self.layout.slots_at() + index * self.layout.slot_bytes) }
    }

    fn pair_at(&self, from: usize, to: usize) -> usize {
        self.layout.pairs_at() + (from * self.layout.ranks + to) * self.layout.pair_bytes()
    }

    /// Number of areas that `from` has filled for `to`.
    pub fn pair_filled(&self, from: usize, to: usize) -> Flag<'_> {
        self.flag(self.pair_at(from, to))
    }

    pub fn pair_consumed(&self, from: usize, to: usize) -> Flag<'_> {
        self.flag(self.pair_at(from, to) + 2 * LINE)
    }

    pub fn pair_signature(&self, from: usize, to: usize, step: u32) -> *mut [u8; SIGNATURE_BYTES] {
        let index = step as usize % PAIR_SLOTS;
        let offset = PAIR_FLAG_LINES * LINE + index * SIGNATURE_BYTES;
        // SAFETY: inside the pair's area.
        unsafe { self.at(self.pair_at(from, to) + offset).cast() }
    }

    pub fn pair_slot(&self, from: usize, to: usize, step: u32) -> *mut u8 {
        let index = step as usize % PAIR_SLOTS;
        let offset = PAIR_HEAD_BYTES + index * self.layout.pair_slot_bytes();
        // SAFETY: inside the pair's area.
        unsafe { self.at(self.pair_at(from, to) + offset) }
    }

    fn fault_state(&self) -> &AtomicU32 {
        self.word(4 * LINE)
    }

    /// Stores the error that ends the group, for all ranks. The first error stays.
    pub fn set_fault(&self, error: &Error) {
        let state = self.fault_state();
        if state.compare_exchange(0, WRITING, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            let text = fault_text(error);
            // SAFETY: text and length fit in the head; only the one writer that won gets here.
            unsafe {
                self.at(FAULT_KIND_AT).cast::<u32>().write(kind_number(error.kind()));
                self.at(FAULT_LEN_AT).cast::<u32>().write(text.len() as u32);
                let culprit = error.culprit().map_or(0, |rank| rank as u32 + 1);
                self.at(FAULT_CULPRIT_AT).cast::<u32>().write(culprit);
                std::ptr::copy_nonoverlapping(text.as_ptr(), self.at(FAULT_TEXT_AT), text.len());
            }
            state.store(SET, Ordering::SeqCst);
        }
        self.wake_all();
    }

    /// The error that ended the group, if any.
    pub fn fault(&self) -> Option<Error> {
        if self.fault_state().load(Ordering::Acquire) != SET {
            return None;
        }
        // SAFETY: the state shows that text, kind, length and culprit are complete.
        let (kind, culprit, text) = unsafe {
            let len = self.at(FAULT_LEN_AT).cast::<u32>().read() as usize;
            let bytes = std::slice::from_raw_parts(self.at(FAULT_TEXT_AT), len.min(FAULT_TEXT_MAX));
            (
                self.at(FAULT_KIND_AT).cast::<u32>().read(),
                self.at(FAULT_CULPRIT_AT).cast::<u32>().read(),
                String::from_utf8_lossy(bytes).into_owned(),
            )
        };
        let fault = parse_fault(kind_from_number(kind), &text);
        Some(match culprit.checked_sub(1) {
            Some(rank) => fault.caused_by(rank as usize),
            None => fault,
        })
    }

    /// Wakes all sleeping ranks, so that they notice a fault at once.
    fn wake_all(&self) {
        let ranks = self.layout.ranks;
        for rank in 0..ranks {
            sys::futex_wake(self.filled(rank).word);
            sys::futex_wake(self.consumed(rank).word);
        }
        if ranks > WAKE_PAIRS_RANKS_MAX {
            return;
        }
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            sys::futex_wake(self.pair_filled(from, to).word);
            sys::futex_wake(self.pair_consumed(from, to).word);
        }
    }
}

/// Largest number of ranks for which a fault wakes sends and receives. Waking a pair allocates its
/// page, so 16 ranks cost 1 MiB. In larger groups, a send or receive notices the fault at its next
/// check.
const WAKE_PAIRS_RANKS_MAX: usize = 16;

const WRITING: u32 = 1;
const SET: u32 = 2;

/// The printed error, truncated.
fn fault_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut end = text.len().min(FAULT_TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// Rebuilds an error from its printed text.
fn parse_fault(kind: ErrorKind, text: &str) -> Error {
    const INTERNAL: &str = "internal error (please report it): ";
    let mut lines = text.split('\n');
    let first = lines.next().unwrap_or_default();
    let mut error = Error::new(kind, first.strip_prefix(INTERNAL).unwrap_or(first));
    for line in lines {
        let line = line.trim_start();
        error = match (line.strip_prefix("at "), line.strip_prefix("help: ")) {
            (Some(place), _) => error.at(place),
            (_, Some(help)) => error.help(help),
            _ => error.at(line),
        };
    }
    error
}

const KINDS: [ErrorKind; 6] = [
    ErrorKind::Invalid,
    ErrorKind::Unsupported,
    ErrorKind::Unavailable,
    ErrorKind::Exhausted,
    ErrorKind::Numeric,
    ErrorKind::Internal,
];

fn kind_number(kind: ErrorKind) -> u32 {
    KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u32
}

fn kind_from_number(number: u32) -> ErrorKind {
    KINDS.get(number as usize).copied().unwrap_or(ErrorKind::Unavailable)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { ranks: 3, slot_bytes: 64 << 10 };

    #[test]
    fn both_kinds_of_files_are_opened_and_leave_no_name() {
        for fallback in [false, true] {
            let (first, file) = Segment::create(LAYOUT, 7, fallback).expect("memory");
            let path = file.path();
            let second = Segment::open(LAYOUT, 7, &path).expect("the same memory");
            first.filled(2).publish(5);
            assert!(second.filled(2).reached(5) && !second.filled(2).reached(6));
            drop(file);
            assert!(Segment::open(LAYOUT, 7, &path).is_err(), "{path} still exists");
        }
    }

    #[test]
    fn other_memory_is_refused() {
        let (_segment, file) = Segment::create(LAYOUT, 7, false).expect("memory");
        assert!(Segment::open(LAYOUT, 8, &file.path()).is_err());
        let other = Layout { ranks: 2, ..LAYOUT };
        assert!(Segment::open(other, 7, &file.path()).is_err());
        assert!(Segment::open(LAYOUT, 7, "/proc/self/exe").is_err());
    }

    #[test]
    fn areas_do_not_overlap() {
        let (segment, _file) = Segment::create(LAYOUT, 7, false).expect("memory");
        let mut areas: Vec<(usize, usize)> = Vec::new();
        for rank in 0..LAYOUT.ranks {
            for step in 0..SLOTS as u32 {
                areas.push((segment.slot(rank, step) as usize, LAYOUT.slot_bytes));
            }
            for call in 0..SIGNATURES as u32 {
                areas.push((segment.signature(rank, call) as usize, SIGNATURE_BYTES));
            }
            for flag in [segment.filled(rank), segment.consumed(rank)] {
                areas.push((flag.word.as_ptr() as usize, 4));
                areas.push((flag.waiters.as_ptr() as usize, 4));
            }
            areas.push((segment.left(rank).as_ptr() as usize, 4));
            for to in 0..LAYOUT.ranks {
                for step in 0..PAIR_SLOTS as u32 {
                    let bytes = LAYOUT.pair_slot_bytes();
                    areas.push((segment.pair_slot(rank, to, step) as usize, bytes));
                    let place = segment.pair_signature(rank, to, step) as usize;
                    areas.push((place, SIGNATURE_BYTES));
                }
                for flag in [segment.pair_filled(rank, to), segment.pair_consumed(rank, to)] {
                    areas.push((flag.word.as_ptr() as usize, 4));
                    areas.push((flag.waiters.as_ptr() as usize, 4));
                }
            }
        }
        areas.sort_unstable();
        assert!(areas.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
        let (start, end) = (areas[0].0, areas[areas.len() - 1]);
        assert!(end.0 + end.1 - start <= LAYOUT.bytes());
    }

    #[test]
    fn the_first_fault_stays_and_is_told_whole() {
        let (segment, _file) = Segment::create(LAYOUT, 7, false).expect("memory");
        assert!(segment.fault().is_none());
        let error = Error::unavailable("rank 3 died").at("all_reduce").at("group").help("start it");
        let error = error.caused_by(3);
        segment.set_fault(&error);
        segment.set_fault(&Error::invalid("later"));
        assert_eq!(segment.fault(), Some(error));
    }

    #[test]
    fn a_fault_wakes_sends_and_receives() {
        use std::time::{Duration, Instant};
        const LIMIT: Duration = Duration::from_secs(60);
        let (segment, _file) = Segment::create(LAYOUT, 7, false).expect("memory");
        let error = Error::unavailable("rank 3 died");
        for flag in [segment.pair_filled(2, 1), segment.pair_consumed(0, 2)] {
            let begin = Instant::now();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| sys::futex_wait(flag.word, 0, LIMIT));
                // The thread may start to sleep after the first of these calls.
                while !waiter.is_finished() {
                    segment.set_fault(&error);
                    std::thread::yield_now();
                }
            });
            assert!(begin.elapsed() < LIMIT);
        }
    }
}
