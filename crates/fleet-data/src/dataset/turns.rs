//! The division of the batches of a dataset among its sources.

use std::ops::Range;

/// The batches of one source of several: source t of n has the batches t, t + n, ..
pub(super) struct Turns {
    rest: Range<usize>,
    batch_size: usize,
    /// Records from the start of one batch to the start of the next.
    stride: usize,
    drop_last: bool,
}

impl Turns {
    /// Divides the batches of `total` records among sources, at most one for each batch.
    pub fn divide(
        total: usize,
        batch_size: usize,
        drop_last: bool,
        sources_max: usize,
    ) -> impl Iterator<Item = Turns> {
        let count = sources_max.min(total.div_ceil(batch_size));
        let stride = count * batch_size;
        let turns =
            move |turn| Turns { rest: turn * batch_size..total, batch_size, stride, drop_last };
        (0..count).map(turns)
    }

    /// Returns the number of batches of all sources.
    pub fn batch_count(total: usize, batch_size: usize, drop_last: bool) -> u64 {
        let count = if drop_last { total / batch_size } else { total.div_ceil(batch_size) };
        count as u64
    }
}

/// The records of each batch, by their places in the order of the dataset.
impl Iterator for Turns {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let count = self.rest.len().min(self.batch_size);
        if count == 0 || (count < self.batch_size && self.drop_last) {
            return None;
        }
        let start = self.rest.start;
        self.rest.start = (start + self.stride).min(self.rest.end);
        Some(start..start + count)
    }
}
