//! Equal ids of a batch become one, and their rows are summed.
//!
//! Workers do it before they send, tables before they apply: a rule that is not linear must see the sum
//! of an id's gradients once, not each of them.

use fleet_base::{Error, Result};

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
#[derive(Clone, Debug, Default)]
pub struct Merger {
    ids: Vec<u64>,
    to_row: Vec<u32>,
    /// Open addressing: a row of `ids` plus one, or 0.
    slots: Vec<u32>,
}

/// Ids to a slot of the table: sparse enough that most ids are found at once.
const SLOTS_PER_ID: usize = 2;

impl Merger {
    /// Looks at a batch; returns whether any id comes twice.
    pub fn merge(&mut self, ids: &[u64]) -> bool {
        let slot_count = (ids.len() * SLOTS_PER_ID).next_power_of_two();
        let (mask, shift) = (slot_count - 1, 64 - slot_count.trailing_zeros().max(1));
        self.slots.clear();
        self.slots.resize(slot_count, 0);
        self.ids.clear();
        self.to_row.clear();
        for id in ids {
            let mut slot = (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> shift) as usize & mask;
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

    /// Adds up rows of `width` numbers, one for every id of the batch.
    pub fn sum_rows(&self, rows: &[f32], width: usize) -> Result<Vec<f32>> {
        self.expect_len("rows", rows.len(), self.to_row.len() * width)?;
        let mut sums = vec![0.0; self.ids.len() * width];
        if width == 0 {
            return Ok(sums);
        }
        for (row, to) in rows.chunks_exact(width).zip(&self.to_row) {
            let sum = &mut sums[*to as usize * width..][..width];
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        Ok(sums)
    }

    /// Copies rows, one for each of [`Merger::ids`], back to every id of the batch: the other
    /// direction of a merged pull.
    pub fn spread_rows(&self, rows: &[f32], width: usize, out: &mut [f32]) -> Result<()> {
        self.expect_len("rows", rows.len(), self.ids.len() * width)?;
        self.expect_len("the output", out.len(), self.to_row.len() * width)?;
        if width == 0 {
            return Ok(());
        }
        for (out, from) in out.chunks_exact_mut(width).zip(&self.to_row) {
            out.copy_from_slice(&rows[*from as usize * width..][..width]);
        }
        Ok(())
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
