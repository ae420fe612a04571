//! Division of a sequence of samples, files or rows among workers.

use fleet_base::{Error, Result};
use std::ops::Range;

/// Returns the samples of shard `shard` out of `shard_count`. Shards are contiguous; if the count
/// does not divide evenly, the first shards get one sample more, as with file shards.
///
/// ```
/// use fleet_data::shard_range;
/// assert_eq!(shard_range(10, 0, 3)?, 0..4);
/// assert_eq!(shard_range(10, 2, 3)?, 7..10);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn shard_range(sample_count: u64, shard: u64, shard_count: u64) -> Result<Range<u64>> {
    if shard >= shard_count {
        return Err(Error::invalid("shard index is out of range")
            .expected(format!("less than the shard count {shard_count}"))
            .got(shard));
    }
    let (size, rest) = (sample_count / shard_count, sample_count % shard_count);
    let start = shard * size + shard.min(rest);
    Ok(start..start + size + u64::from(shard < rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_disjoint_and_complete() {
        for (samples, shards) in [(0, 1), (1, 3), (10, 3), (12, 4), (1001, 7)] {
            let mut next = 0;
            for shard in 0..shards {
                let range = shard_range(samples, shard, shards).unwrap();
                assert_eq!(range.start, next);
                assert!(range.end - range.start <= samples.div_ceil(shards));
                next = range.end;
            }
            assert_eq!(next, samples);
        }
        let error = shard_range(10, 3, 3).unwrap_err().to_string();
        assert_eq!(
            error,
            "shard index is out of range: expected less than the shard count 3, got 3"
        );
        assert!(shard_range(10, 0, 0).is_err());
    }
}
