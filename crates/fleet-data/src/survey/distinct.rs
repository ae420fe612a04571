//! The number of distinct values of a column, estimated in 4 KB (HyperLogLog).

/// Registers, each with the longest run of zeros among the hashes of its share.
#[derive(Clone, Debug)]
pub(super) struct Distinct {
    registers: Vec<u8>,
}

impl Default for Distinct {
    fn default() -> Distinct {
        Distinct { registers: vec![0; REGISTERS] }
    }
}

impl Distinct {
    /// Adds the hash of a value.
    pub fn add(&mut self, hash: u64) {
        let register = (hash >> (64 - REGISTER_BITS)) as usize;
        let rank = (hash << REGISTER_BITS | 1).leading_zeros() as u8 + 1;
        self.registers[register] = self.registers[register].max(rank);
    }

    /// Returns the estimate, whose standard error is 1.6 %.
    pub fn count(&self) -> u64 {
        let count = REGISTERS as f64;
        let sum: f64 = self.registers.iter().map(|rank| 2f64.powi(-i32::from(*rank))).sum();
        let estimate = ALPHA * count * count / sum;
        let empty = self.registers.iter().filter(|rank| **rank == 0).count();
        // With many empty registers, their share is the better estimate.
        match estimate <= 2.5 * count && empty > 0 {
            true => (count * (count / empty as f64).ln()).round() as u64,
            false => estimate.round() as u64,
        }
    }
}

const REGISTER_BITS: u32 = 12;
const REGISTERS: usize = 1 << REGISTER_BITS;
/// Corrects the bias of the harmonic mean, for this number of registers.
const ALPHA: f64 = 0.7213 / (1.0 + 1.079 / REGISTERS as f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_close() {
        for count in [0u64, 1, 100, 5_000, 12_000, 300_000] {
            let mut distinct = Distinct::default();
            for number in (0..count).chain(0..count / 2) {
                distinct.add(crate::category_hash(number.to_string().as_bytes()));
            }
            let error = (distinct.count() as f64 - count as f64).abs();
            assert!(error <= 0.05 * count as f64, "{count}: {}", distinct.count());
        }
    }
}
