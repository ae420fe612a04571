//! Which server has which part of the dense parameters, and which has which sparse row.
//!
//! Dense parameters are laid end to end in the order of their names; server s has the block of
//! `total / servers + 1` numbers from `s` blocks on, the last ones what is left, which may be nothing.

use std::ops::Range;

/// The numbers of the flattened parameters that a server has.
///
/// ```
/// use fleet_ps::dense_range;
/// assert_eq!((dense_range(858, 0, 2), dense_range(858, 1, 2)), (0..430, 430..858));
/// assert_eq!(dense_range(2, 2, 3), 2..2); // nothing left
/// ```
pub fn dense_range(total: usize, server: usize, server_count: usize) -> Range<usize> {
    let block = total / server_count.max(1) + 1;
    let start = server.saturating_mul(block).min(total);
    start..start.saturating_add(block).min(total)
}

/// A parameter in the flattened row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseRange {
    pub name: String,
    pub range: Range<usize>,
}

/// Lays parameters (name, element count) end to end in the order of their names.
///
/// ```
/// let laid = fleet_ps::dense_ranges([("fc_1.w_0", 6), ("fc_0.b_0", 2)]);
/// assert_eq!((laid[0].name.as_str(), laid[1].range.clone()), ("fc_0.b_0", 2..8));
/// ```
pub fn dense_ranges<'a>(parameters: impl IntoIterator<Item = (&'a str, usize)>) -> Vec<DenseRange> {
    let mut parameters: Vec<(&str, usize)> = parameters.into_iter().collect();
    parameters.sort_unstable();
    let mut start = 0;
    let laid = parameters.into_iter().map(|(name, len)| {
        start += len;
        DenseRange { name: name.to_string(), range: start - len..start }
    });
    laid.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
