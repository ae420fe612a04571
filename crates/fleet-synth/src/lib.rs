//! Generated data sets with known truth, for tests, demos and benchmarks.
//!
//! Each set is a function from (seed, sample index) to a sample: any thread or worker can generate
//! any sample alone, in any order, and a stream never ends. Each set knows the best score that any
//! model can reach on it, computed from the distribution that generates it. Logarithms and powers
//! come from the platform's mathematical library. Two platforms may therefore differ in the last
//! bit of a number, and very rarely in a sample.
//!
//! * [`Ctr`]: click logs (13 dense inputs, 26 slots of power-law ids), best AUC and log-loss.
//! * [`Digits`]: grey 28x28 images of handwritten-looking digits.
//! * [`Text`]: words with hidden classes; best skip-gram, next-token and masked-token losses.
//! * [`Blobs`]: Gaussian classes, Bayes accuracy.
//!
//! [`Make`] writes a set to files.
//!
//! Training and test sets are ranges of one stream that do not overlap:
//!
//! ```
//! use fleet_data::shard_range;
//! use fleet_synth::{Ctr, CtrConfig};
//! let clicks = Ctr::new(CtrConfig::tiny())?;
//! // The second of three workers fills a batch from its own part of a million samples.
//! let mine = shard_range(1_000_000, 1, 3)?;
//! let (mut dense, mut ids, mut labels) = (vec![0.0; 64 * 13], vec![0; 64 * 26], vec![0.0; 64]);
//! clicks.fill_batch(&mut dense, &mut ids, &mut labels, mine.start)?;
//! # Ok::<(), fleet_base::Error>(())
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod auc;
mod blobs;
mod ctr;
mod curve;
mod digits;
mod make;
mod power_law;
mod text;

use std::ops::Range;

use fleet_base::rng::Philox;
use fleet_base::{Error, Result};

pub use auc::{auc_exact, auc_expected};
pub use blobs::{Blobs, BlobsConfig};
pub use ctr::{BestScores, Ctr, CtrConfig, IdLayout, IdOrder, IdSpace};
pub use digits::{Digits, IMAGE_PIXELS, IMAGE_SIDE};
pub use make::{Made, Make, MakeFormat, MakeKind};
pub use power_law::PowerLaw;
pub use text::{IGNORED_TARGET, Text, TextConfig};

/// Returns a seed for one part of a data set, whose streams differ from those of all other parts.
fn part_seed(seed: u64, part: u64) -> u64 {
    Philox::new(seed, part).word64(0)
}

/// Maps a 64-bit word to [0, 1) with 53 random bits.
#[inline]
fn unit_f64(word: u64) -> f64 {
    (word >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Returns the number of samples in a buffer of `length` elements; fails if it is not an integer.
fn sample_count(what: &str, length: usize, per_sample: usize) -> Result<usize> {
    if per_sample == 0 || !length.is_multiple_of(per_sample) {
        return Err(Error::invalid(format!(
            "length of {what} is not a multiple of the sample size"
        ))
        .expected(format!("a multiple of {per_sample}"))
        .got(length));
    }
    Ok(length / per_sample)
}

/// Checks that a buffer's length matches the other buffers of the batch.
fn expect_length(what: &str, length: usize, expected: usize) -> Result<()> {
    if length == expected {
        return Ok(());
    }
    Err(Error::invalid(format!("length of {what} does not match the batch"))
        .expected(expected)
        .got(length))
}

/// Checks that a setting is within a range; the error names the setting.
fn expect_within(what: &str, value: f64, range: Range<f64>) -> Result<()> {
    if value >= range.start && value < range.end {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} is out of range"))
        .expected(format!("at least {} and less than {}", range.start, range.end))
        .got(value))
}
