//! Statistics of a table.

/// Size of a table, and its activity since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Rows; 0 for a dense table.
    pub row_count: u64,
    /// Ids that were seen but have no row yet.
    pub pending_count: u64,
    /// Weights, optimizer state and counters of the rows.
    pub payload_bytes: u64,
    /// All memory of the table: payload, index, spare capacity.
    pub held_bytes: u64,
    /// Ids pulled, with repetitions; of a dense table, pulls.
    pub pulled: u64,
    /// Ids pushed, with repetitions; of a dense table, pushes; of a global step, steps.
    pub pushed: u64,
    /// Ids whose gradients were dropped because the entry policy gave them no row.
    pub dropped: u64,
    /// Gradients that were NaN or infinite.
    pub non_finite: u64,
    /// Rows deleted by shrinking.
    pub deleted: u64,
    /// Staleness of the pushes of a dense table: updates since the worker's last read. The sum over
    /// all pushes.
    pub staleness_sum: u64,
    /// Largest staleness of a push, on one server.
    pub staleness_max: u64,
}

impl TableStats {
    /// Returns the mean staleness: how many updates the parameters of a push lacked.
    ///
    /// ```
    /// use fleet_ps::TableStats;
    /// let stats = TableStats { pushed: 4, staleness_sum: 6, ..TableStats::default() };
    /// assert_eq!(stats.staleness_mean(), 1.5);
    /// ```
    pub fn staleness_mean(&self) -> f64 {
        self.staleness_sum as f64 / self.pushed.max(1) as f64
    }

    /// Adds the statistics of another server.
    pub(crate) fn add(&mut self, other: &TableStats) {
        let staleness_max = self.staleness_max.max(other.staleness_max);
        let sums = self.fields().into_iter().zip(other.numbers());
        sums.for_each(|(sum, number)| *sum += number);
        self.staleness_max = staleness_max;
    }

    pub(crate) const COUNT: usize = 11;

    /// Returns the numbers in the order of messages.
    pub(crate) fn numbers(mut self) -> [u64; Self::COUNT] {
        self.fields().map(|field| *field)
    }

    /// Reads the numbers in that order.
    pub(crate) fn from_numbers(numbers: &[u64]) -> TableStats {
        let mut stats = TableStats::default();
        stats.fields().into_iter().zip(numbers).for_each(|(field, number)| *field = *number);
        stats
    }

    fn fields(&mut self) -> [&mut u64; Self::COUNT] {
        [
            &mut self.row_count,
            &mut self.pending_count,
            &mut self.payload_bytes,
            &mut self.held_bytes,
            &mut self.pulled,
            &mut self.pushed,
            &mut self.dropped,
            &mut self.non_finite,
            &mut self.deleted,
            &mut self.staleness_sum,
            &mut self.staleness_max,
        ]
    }
}
