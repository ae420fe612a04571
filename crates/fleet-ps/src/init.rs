//! Initial values of a row: a function of (seed, table, id, column).
//!
//! Any server makes the same row for an id, in any run and with any number of servers. So rows that
//! no push has changed need neither a log nor a backup.

use fleet_base::rng::{Philox, normal_f32, unit_f32};
use fleet_table::Initializer;

/// Limit on the blocks drawn for one truncated number, each with two candidates; past it, the
/// number is the mean. A candidate is within two deviations with probability 0.954.
const TRUNCATED_DRAWS_MAX: u64 = 16;

/// Fills columns `first..first + out.len()` of a row's weights.
pub(crate) fn fill(initializer: Initializer, row: RowSeed, first: usize, out: &mut [f32]) {
    let rng = row.philox();
    match initializer {
        Initializer::Constant(value) => out.fill(value),
        Initializer::Uniform { low, high } => {
            let (mut block, mut number) = ([0; 4], u64::MAX);
            for (column, out) in (first as u64..).zip(out) {
                if column / 4 != number {
                    number = column / 4;
                    block = rng.block(number);
                }
                *out = low + (high - low) * unit_f32(block[(column % 4) as usize]);
            }
        }
        Initializer::Gaussian { mean, std } => {
            for (column, out) in (first as u64..).zip(out) {
                *out = mean + std * rng.normal(column);
            }
        }
        Initializer::TruncatedGaussian { mean, std } => {
            for (column, out) in (first as u64..).zip(out) {
                *out = mean + std * truncated(&rng, column);
            }
        }
    }
}

/// Returns a standard normal number of at most two deviations. Column c draws from blocks c, c +
/// 2^32, c + 2 * 2^32, ... until a candidate qualifies.
fn truncated(rng: &Philox, column: u64) -> f32 {
    for draw in 0..TRUNCATED_DRAWS_MAX {
        let block = rng.block(column + (draw << 32));
        for pair in [[block[0], block[1]], [block[2], block[3]]] {
            let z = normal_f32(pair[0], pair[1]);
            if z.abs() <= 2.0 {
                return z;
            }
        }
    }
    0.0
}

/// The arguments of a row's random numbers, besides the column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSeed {
    pub seed: u64,
    pub table: u32,
    pub id: u64,
}

impl RowSeed {
    fn philox(self) -> Philox {
        let key = self.seed.wrapping_add(u64::from(self.table).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Philox::new(key, self.id)
    }

    /// Returns a random number in [0, 1) of the row that no column uses.
    pub fn admission_draw(self) -> f32 {
        self.philox().unit(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: RowSeed = RowSeed { seed: 5, table: 1, id: 99 };

    #[test]
    fn a_column_is_the_same_however_it_is_asked_for() {
        for init in [
            Initializer::Constant(2.0),
            Initializer::Uniform { low: -1.0, high: 1.0 },
            Initializer::Gaussian { mean: 0.0, std: 1.0 },
            Initializer::TruncatedGaussian { mean: 0.0, std: 1.0 },
        ] {
            let mut whole = [0.0; 23];
            fill(init, ROW, 0, &mut whole);
            for first in 0..23 {
                let mut part = [0.0; 1];
                fill(init, ROW, first, &mut part);
                assert_eq!(part[0], whole[first]);
            }
            let mut other = [0.0; 23];
            fill(init, RowSeed { table: 2, ..ROW }, 0, &mut other);
            assert_eq!(init == Initializer::Constant(2.0), other == whole);
        }
    }

    #[test]
    fn numbers_have_the_spread_that_was_asked_for() {
        let mut values = vec![0.0; 40_000];
        let mut moments = |init: Initializer| {
            fill(init, ROW, 0, &mut values);
            let mean = values.iter().sum::<f32>() / 40_000.0;
            let var = values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 40_000.0;
            let largest = values.iter().fold(0.0f32, |a, v| a.max(v.abs()));
            (mean, var, largest)
        };
        let (mean, var, largest) = moments(Initializer::Uniform { low: -1.0, high: 1.0 });
        assert!(mean.abs() < 0.02 && (var - 1.0 / 3.0).abs() < 0.01 && largest <= 1.0);
        let (mean, var, _) = moments(Initializer::Gaussian { mean: 1.0, std: 2.0 });
        assert!((mean - 1.0).abs() < 0.05 && (var - 4.0).abs() < 0.1, "{mean} {var}");
        let (mean, var, largest) = moments(Initializer::TruncatedGaussian { mean: 0.0, std: 1.0 });
        assert!(mean.abs() < 0.02 && (var - 0.774).abs() < 0.02 && largest <= 2.0, "{var}");
    }
}
