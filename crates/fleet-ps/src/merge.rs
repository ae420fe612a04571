//! Equal ids of a batch become one, and their rows are summed.
//!
//! Workers do it before they send, tables before they apply: a rule that is not linear must see the
//! sum of an id's gradients once, not each of them.

use crate::{Accessor, HashKey, Push, SparseConfig};
use fleet_base::{Error, Result};
use fleet_kernels::kernel;
use std::borrow::Cow;

/// Which row of the merged batch each id goes to. Reused from batch to batch.
///
/// ```
/// use fleet_ps::Merger;
/// let mut merger = Merger::default();
/// merger.merge(&[7, 3, 7]);
/// assert_eq!(merger.ids(), [7, 3]);
/// assert_eq!(merger.sum_rows(&[1.0, 1.0, 2.0, 2.0, 3.0, 3.0], 2)?, [4.0, 4.0, 2.0, 2.0]);
/// assert!(merger.sum_rows(&[1.0], 2).is_err());
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Merger {
    key: HashKey,
    ids: Vec<u64>,
    to_row: Vec<u32>,
    /// Open addressing: a row of `ids` plus one, or 0.
    slots: Vec<u32>,
}

/// What a push says of its ids beside gradients, each id once.
pub(crate) struct Said<'a> {
    pub shows: Option<Cow<'a, [f32]>>,
    pub clicks: Option<Cow<'a, [f32]>>,
    pub slots: Option<Cow<'a, [u32]>>,
}

/// Ids to a slot of the table: sparse enough that most ids are found at once.
const SLOTS_PER_ID: usize = 2;

impl Default for Merger {
    /// A merger with a random key.
    fn default() -> Merger {
        Merger::new(HashKey::random())
    }
}

impl Merger {
    /// A merger whose hash table uses this key.
    pub fn new(key: HashKey) -> Merger {
        Merger { key, ids: Vec::new(), to_row: Vec::new(), slots: Vec::new() }
    }

    /// Looks at a batch; returns whether any id comes twice.
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

    /// Each id once, in the order of first sight.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// For each id of the batch its place in [`Merger::ids`].
    pub fn to_row(&self) -> &[u32] {
        &self.to_row
    }

    /// Whether any id of the batch came twice.
    pub fn has_equal_ids(&self) -> bool {
        self.ids.len() < self.to_row.len()
    }

    /// Adds up rows of `width` numbers, one for every id of the batch.
    pub fn sum_rows(&self, rows: &[f32], width: usize) -> Result<Vec<f32>> {
        let mut sums = Vec::new();
        self.sum_rows_into(rows, width, &mut sums)?;
        Ok(sums)
    }

    /// As [`Merger::sum_rows`], into memory that is used again.
    pub fn sum_rows_into(&self, rows: &[f32], width: usize, sums: &mut Vec<f32>) -> Result<()> {
        self.expect_len("rows", rows.len(), self.to_row.len() * width)?;
        sums.clear();
        sums.resize(self.ids.len() * width, 0.0);
        if width > 0 {
            add_rows(rows, width, &self.to_row, sums);
        }
        Ok(())
    }

    /// Copies rows, one for each of [`Merger::ids`], back to every id of the batch: the other
    /// direction of a merged pull.
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

    /// As [`Merger::sum_rows`], without a copy where every id comes once.
    pub(crate) fn merged<'a>(&self, rows: &'a [f32], width: usize) -> Result<Cow<'a, [f32]>> {
        match self.has_equal_ids() {
            true => self.sum_rows(rows, width).map(Cow::Owned),
            false => Ok(Cow::Borrowed(rows)),
        }
    }

    /// The counts of a push of this batch; a slot is the last one's.
    pub(crate) fn merge_said<'a>(
        &self,
        push: &Push<'a>,
        config: &SparseConfig,
    ) -> Result<Said<'a>> {
        // Each occurrence is a show, which only click tables and their rules look at.
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
        Ok(Said { shows, clicks, slots })
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

kernel! {
    /// Row `to[i]` of `sums` grows by row i.
    fn add_rows<S>(s: S, rows: &[f32], width: usize, to: &[u32], sums: &mut [f32]) {
        for (row, to) in rows.chunks_exact(width).zip(to) {
            let sum = &mut sums[*to as usize * width..][..width];
            // SAFETY: both are `width` long.
            unsafe {
                fleet_kernels::for_registers!(S, width, |i, n| {
                    let at = sum.as_mut_ptr().add(i);
                    s.store_n(at, s.add(s.load_n(at, n), s.load_n(row.as_ptr().add(i), n)), n);
                });
            }
        }
    }
}

kernel! {
    /// Row i of `out` is row `from[i]`.
    fn copy_rows<S>(s: S, rows: &[f32], width: usize, from: &[u32], out: &mut [f32]) {
        for (out, from) in out.chunks_exact_mut(width).zip(from) {
            let row = &rows[*from as usize * width..][..width];
            // SAFETY: both are `width` long.
            unsafe {
                fleet_kernels::for_registers!(S, width, |i, n| {
                    s.store_n(out.as_mut_ptr().add(i), s.load_n(row.as_ptr().add(i), n), n);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;
    use std::collections::HashMap;

    /// Ids that are chosen to meet under a hash without a key cost what random ids cost.
    #[test]
    fn crafted_ids_are_merged_as_soon_as_random_ones() {
        const COUNT: u64 = 50_000;
        /// Makes 1 of the constant that the hash once multiplied by.
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
