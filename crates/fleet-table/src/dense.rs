//! Placement of dense parameters on servers.
//!
//! Dense parameters are laid end to end in the order of their names. Every server has a block of
//! `total / servers + 1` numbers, in the order of servers; the last ones have the rest, which may
//! be empty.

use fleet_base::{Error, Result};
use std::ops::Range;

/// Returns the range of the flattened parameters that a server has.
///
/// ```
/// use fleet_table::dense_range;
/// assert_eq!((dense_range(858, 0, 2), dense_range(858, 1, 2)), (0..430, 430..858));
/// assert_eq!(dense_range(2, 2, 3), 2..2); // nothing left
/// ```
pub fn dense_range(total: usize, server: usize, server_count: usize) -> Range<usize> {
    let block = total / server_count.max(1) + 1;
    let start = server.saturating_mul(block).min(total);
    start..start.saturating_add(block).min(total)
}

/// How the numbers of a dense table are divided among servers.
///
/// ```
/// use fleet_table::{DenseBlock, DenseCut};
/// let block = |len, server| DenseBlock { len, server };
/// let cut = DenseCut::Blocks(vec![block(4, 1), block(2, 0), block(3, 1)]);
/// assert_eq!(cut.ranges(9, 1, 2), [0..4, 6..9]);
/// assert_eq!(DenseCut::Even.ranges(9, 1, 2), [5..9]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub enum DenseCut {
    /// Evenly, in the order of servers ([`dense_range`]).
    #[default]
    Even,
    /// Block by block, in the order of the table.
    Blocks(Vec<DenseBlock>),
}

/// A block of a dense table, on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseBlock {
    /// Number of elements.
    pub len: usize,
    /// Number of the server that has it.
    pub server: usize,
}

impl DenseCut {
    /// Returns a server's ranges of `total` numbers, in ascending order.
    pub fn ranges(&self, total: usize, server: usize, server_count: usize) -> Vec<Range<usize>> {
        let blocks = match self {
            DenseCut::Even => {
                let range = dense_range(total, server, server_count);
                return if range.is_empty() { Vec::new() } else { vec![range] };
            }
            DenseCut::Blocks(blocks) => blocks,
        };
        let mut start = 0;
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for block in blocks {
            let range = start..start + block.len;
            start = range.end;
            match ranges.last_mut() {
                _ if block.server != server || range.is_empty() => {}
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        ranges
    }

    /// Returns how many numbers a server has.
    pub fn count(&self, total: usize, server: usize, server_count: usize) -> usize {
        self.ranges(total, server, server_count).iter().map(ExactSizeIterator::len).sum()
    }

    /// Fails unless blocks add up to `total` numbers and are on servers of the job.
    pub fn check(&self, total: usize, server_count: usize) -> Result<()> {
        let DenseCut::Blocks(blocks) = self else { return Ok(()) };
        let sum = blocks.iter().try_fold(0usize, |sum, block| sum.checked_add(block.len));
        let wrong = blocks.iter().find(|block| block.server >= server_count);
        match (sum, wrong) {
            (Some(sum), None) if sum == total => Ok(()),
            (_, Some(block)) => Err(Error::invalid("block on an unknown server")
                .expected(format!("a server below {server_count}"))
                .got(block.server)),
            (sum, None) => Err(Error::invalid("blocks do not add up to the dense table")
                .expected(format!("{total} numbers"))
                .got(sum.map_or("too many".into(), |sum| sum.to_string()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_everything_once() {
        let blocks = [(3, 1), (0, 0), (2, 1), (4, 0), (1, 2)];
        let blocks = blocks.map(|(len, server)| DenseBlock { len, server });
        let cut = DenseCut::Blocks(blocks.to_vec());
        cut.check(10, 3).unwrap();
        assert_eq!(cut.ranges(10, 1, 3), std::slice::from_ref(&(0..5)));
        assert_eq!(cut.ranges(10, 0, 3), std::slice::from_ref(&(5..9)));
        assert!(cut.check(11, 3).is_err() && cut.check(10, 2).is_err());
    }

    #[test]
    fn servers_cover_everything_once() {
        assert_eq!((dense_range(5, 0, 2).len(), dense_range(5, 1, 2).len()), (3, 2));
        for total in [0, 1, 5, 100, 858] {
            for servers in 1..12 {
                let mut next = 0;
                for server in 0..servers {
                    let range = dense_range(total, server, servers);
                    assert_eq!(range.start, next);
                    next = range.end;
                }
                assert_eq!(next, total);
            }
        }
    }
}
