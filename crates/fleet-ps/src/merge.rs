//! Merges equal ids of a batch into one and sums their rows.
//!
//! Workers merge before they send, and tables before they apply: a nonlinear rule must see the sum
//! of an id's gradients once, not each of them.

use crate::{Accessor, HashKey, Ids, Push, SparseConfig, UniqueIds};
use fleet_base::{Error, Result};
use fleet_kernels::rows::{add_rows, copy_rows};
use std::borrow::Cow;

/// Maps each id of a batch to its row of the merged batch. Its memory is reused from batch to
/// batch.
///
/// ```
/// use fleet_ps::Merger;
/// let mut merger = Merger::default();
/// merger.merge(&[7, 3, 7]);
/// assert_eq!(*merger.ids(), [7, 3]);
/// assert_eq!(merger.sum_rows(&[1.0, 1.0, 2.0, 2.0, 3.0, 3.0], 2)?, [4.0, 4.0, 2.0, 2.0]);
/// assert!(merger.sum_rows(&[1.0], 2).is_err());
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Merger {
    key: HashKey,
    ids: Vec<u64>,
    to_row: Vec<u32>,
    /// Open addressing: an index into `ids` plus one, or 0 for an empty slot.
    slots: Vec<u32>,
}

/// A push whose ids do not repeat.
pub(crate) struct UniquePush<'a> {
    pub ids: UniqueIds<'a>,
    pub grads: Cow<'a, [f32]>,
    pub extras: PushExtras<'a>,
}

/// Values that a push carries for its ids besides gradients, each id once.
pub(crate) struct PushExtras<'a> {
    pub shows: Option<Cow<'a, [f32]>>,
    pub clicks: Option<Cow<'a, [f32]>>,
    pub slots: Option<Cow<'a, [u32]>>,
}

/// Slots of the hash table per id: sparse enough that most ids are found at the first probe.
const SLOTS_PER_ID: usize = 2;

impl Default for Merger {
    /// Returns a merger with a random key.
    fn default() -> Merger {
        Merger::new(HashKey::random())
    }
}

impl Merger {
    /// Returns a merger whose hash table uses this key.
    pub fn new(key: HashKey) -> Merger {
        Merger { key, ids: Vec::new(), to_row: Vec::new(), slots: Vec::new() }
    }

    /// Merges the ids of a batch; returns whether any id repeats.
    pub fn merge(&mut self, ids: &[u64]) -> bool {
        let slot_count = (ids.len() * SLOTS_PER_ID).next_power_of_two();
        let (key, mask) = (self.key, slot_count - 1);
        self.slots.clear();
        self.slots.resize(slot_count, 0);
        self.ids.clear();
        self.to_row.clear();
        for id in ids {
            let mut slot = key.hash(*id) as usize & mask;
            let row = loop {
                match self.slots[slot] {
                    0 => {
                        self.ids.push(*id);
                        self.slots[slot] = self.ids.len() as u32;
                        break self.ids.len() as u32 - 1;
                    }
                    row if self.ids[row as usize - 1] == *id => break row - 1,
                    _ => slot = (slot + 1) & mask,
                }
            };
            self.to_row.push(row);
        }
        self.ids.len() < ids.len()
    }

    /// Returns the distinct ids, in the order of first sight.
    pub fn ids(&self) -> UniqueIds<'_> {
        UniqueIds::assume(&self.ids)
    }

    /// Returns, for each id of the batch, its index in [`Merger::ids`].
    pub fn to_row(&self) -> &[u32] {
        &self.to_row
    }

    /// Returns whether any id of the batch repeats.
    pub fn has_equal_ids(&self) -> bool {
        self.ids.len() < self.to_row.len()
    }

    /// Sums the rows of equal ids; `rows` has `width` numbers for every id of the batch.
    pub fn sum_rows(&self, rows: &[f32], width: usize) -> Result<Vec<f32>> {
        let mut sums = Vec::new();
        self.sum_rows_into(rows, width, &mut sums)?;
        Ok(sums)
    }

    /// Like [`Merger::sum_rows`], into a buffer that is reused.
    pub fn sum_rows_into(&self, rows: &[f32], width: usize, sums: &mut Vec<f32>) -> Result<()> {
        self.expect_len("rows", rows.len(), self.to_row.len() * width)?;
        sums.clear();
        sums.resize(self.ids.len() * width, 0.0);
        if width > 0 {
            add_rows(rows, width, &self.to_row, sums);
        }
        Ok(())
    }

    /// Copies rows, one for each of [`Merger::ids`], to every id of the batch: the reverse of a
    /// merge, for pulls.
    pub fn spread_rows(&self, rows: &[f32], width: usize, out: &mut [f32]) -> Result<()> {
        self.expect_len("rows", rows.len(), self.ids.len() * width)?;
        self.expect_len("the output", out.len(), self.to_row.len() * width)?;
        match self.has_equal_ids() {
            false => out.copy_from_slice(rows),
            true if width > 0 => copy_rows(rows, width, &self.to_row, out),
            true => {}
        }
        Ok(())
    }

    /// Merges ids, unless they are known not to repeat. Returns each once, and, if any repeats, the
    /// index of its first sight for each of `ids`.
    pub(crate) fn unique_ids<'a>(&'a mut self, ids: Ids<'a>) -> (UniqueIds<'a>, Option<&'a [u32]>) {
        match ids {
            Ids::Unique(ids) => (ids, None),
            Ids::Any(ids) => {
                let repeats = self.merge(ids);
                (self.ids(), repeats.then_some(&self.to_row[..]))
            }
        }
    }

    /// Merges the ids of a push, unless they are known not to repeat; returns the push with each id
    /// once.
    pub(crate) fn unique_push<'a>(
        &'a mut self,
        push: Push<'a>,
        config: &SparseConfig,
    ) -> Result<UniquePush<'a>> {
        let ids = match push.ids {
            Ids::Unique(ids) => {
                let borrowed = |values| Cow::Borrowed(values);
                let extras = PushExtras {
                    shows: push.shows.map(borrowed),
                    clicks: push.clicks.map(borrowed),
                    slots: push.slots.map(Cow::Borrowed),
                };
                return Ok(UniquePush { ids, grads: Cow::Borrowed(push.grads), extras });
            }
            Ids::Any(ids) => ids,
        };
        self.merge(ids);
        let grads = self.merged(push.grads, config.push_width())?;
        Ok(UniquePush { ids: self.ids(), grads, extras: self.merge_extras(&push, config)? })
    }

    /// Like [`Merger::sum_rows`], but without a copy if no id repeats.
    fn merged<'a>(&self, rows: &'a [f32], width: usize) -> Result<Cow<'a, [f32]>> {
        match self.has_equal_ids() {
            true => self.sum_rows(rows, width).map(Cow::Owned),
            false => Ok(Cow::Borrowed(rows)),
        }
    }

    /// Merges the counts and slots of a push of this batch. An id that repeats keeps its last slot.
    pub(crate) fn merge_extras<'a>(
        &self,
        push: &Push<'a>,
        config: &SparseConfig,
    ) -> Result<PushExtras<'a>> {
        // Each occurrence counts as a show. Only click tables and rules that divide by shows use
        // the count.
        let counted = config.accessor != Accessor::Plain || config.rule.divides_by_shows();
        let shows = match push.shows {
            Some(shows) => Some(self.merged(shows, 1)?),
            None if counted && self.has_equal_ids() => {
                Some(self.sum_rows(&vec![1.0; self.to_row.len()], 1)?.into())
            }
            None => None,
        };
        let slots = push.slots.map(|slots| match self.has_equal_ids() {
            true => {
                let mut last = vec![0; self.ids.len()];
                let rows = self.to_row.iter();
                rows.zip(slots).for_each(|(row, slot)| last[*row as usize] = *slot);
                Cow::Owned(last)
            }
            false => Cow::Borrowed(slots),
        });
        let clicks = push.clicks.map(|clicks| self.merged(clicks, 1)).transpose()?;
        Ok(PushExtras { shows, clicks, slots })
    }

    fn expect_len(&self, what: &str, got: usize, expected: usize) -> Result<()> {
        if got == expected {
            return Ok(());
        }
        Err(Error::invalid(format!("{what} and the ids of the batch differ in number"))
            .expected(format!("{expected} numbers"))
            .got(got))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;
    use std::collections::HashMap;

    /// Ids chosen to collide under a hash without a key cost as much as random ids.
    #[test]
    fn crafted_ids_are_merged_as_soon_as_random_ones() {
        const COUNT: u64 = 50_000;
        /// The inverse, modulo 2^64, of a common hash multiplier: products with it collide under
        /// that multiplier.
        const INVERSE: u64 = 0xF1DE_83E1_9937_733D;
        assert_eq!(INVERSE.wrapping_mul(0x9E37_79B9_7F4A_7C15), 1);
        let key = HashKey::new(0x0123_4567_89AB_CDEF, 0xD134_2543_DE82_EF95);
        let cost = |ids: Vec<u64>| {
            let mut merger = Merger::new(key);
            merger.merge(&ids);
            let mask = merger.slots.len() - 1;
            let probes = ids.iter().zip(1..).map(|(id, row)| {
                let home = key.hash(*id) as usize;
                1 + (0..=mask).find(|at| merger.slots[(home + at) & mask] == row).unwrap()
            });
            probes.sum::<usize>() as f64 / COUNT as f64
        };
        let random = cost((0..COUNT).map(|at| Sequence::new(1, at).next_u64()).collect());
        let crafted = cost((0..COUNT).map(|at| (5 << 47 | at).wrapping_mul(INVERSE)).collect());
        assert!(crafted < 1.5 * random, "{crafted} probes, random ids {random}");
    }

    #[test]
    fn sums_are_those_of_a_map() {
        let mut merger = Merger::default();
        let mut rng = Sequence::new(1, 9);
        for (count, range) in [(0, 1), (1, 1), (500, 40), (3000, 1 << 60), (1000, 1000)] {
            let ids: Vec<u64> = (0..count).map(|_| rng.below(range) << 3).collect();
            let rows: Vec<f32> = (0..count * 2).map(|_| rng.below(100) as f32).collect();
            let mut want: HashMap<u64, [f32; 2]> = HashMap::new();
            for (id, row) in ids.iter().zip(rows.chunks(2)) {
                let sum = want.entry(*id).or_default();
                (sum[0], sum[1]) = (sum[0] + row[0], sum[1] + row[1]);
            }
            assert_eq!(merger.merge(&ids), want.len() < ids.len());
            let sums = merger.sum_rows(&rows, 2).unwrap();
            assert_eq!(merger.ids().len(), want.len());
            for (id, sum) in merger.ids().iter().zip(sums.chunks(2)) {
                assert_eq!(want[id], sum);
            }
            let mut spread = vec![0.0; ids.len() * 2];
            merger.spread_rows(&sums, 2, &mut spread).unwrap();
            for (id, row) in ids.iter().zip(spread.chunks(2)) {
                assert_eq!(want[id], row);
            }
        }
    }
}
