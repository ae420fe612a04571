//! Numbers about a table.

/// What a table holds and did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    pub row_count: u64,
    /// Ids that were seen and have no row yet.
    pub waiting_count: u64,
    /// Weights, optimizer state and counters of the rows.
    pub payload_bytes: u64,
    /// All memory that the table holds: payload, index, room to grow.
    pub held_bytes: u64,
    /// Ids that were read and written, with repetitions; of a dense table, how often it was.
    pub pulled: u64,
    pub pushed: u64,
    /// Ids whose gradients were dropped because they have no row (entry policy).
    pub dropped: u64,
    /// Gradients that were NaN or infinite.
    pub non_finite: u64,
    /// Rows that a shrink deleted.
    pub deleted: u64,
    /// Of the pushes of a dense table: updates that were made since their worker last read. The
    /// sum, and the largest on one server.
    pub staleness_sum: u64,
    pub staleness_max: u64,
}

impl TableStats {
    /// Updates that the parameters of a push lacked, on average.
    ///
    /// ```
    /// use fleet_ps::TableStats;
    /// let stats = TableStats { pushed: 4, staleness_sum: 6, ..TableStats::default() };
    /// assert_eq!(stats.staleness_mean(), 1.5);
    /// ```
    pub fn staleness_mean(&self) -> f64 {
        self.staleness_sum as f64 / self.pushed.max(1) as f64
    }

    /// Adds those of another server.
    pub(crate) fn add(&mut self, other: &TableStats) {
        let mut sum = self.numbers();
        sum.iter_mut().zip(other.numbers()).for_each(|(sum, number)| *sum += number);
        let staleness_max = self.staleness_max.max(other.staleness_max);
        *self = TableStats { staleness_max, ..TableStats::from_numbers(sum) };
    }

    pub(crate) const COUNT: usize = 11;

    /// The numbers in their order.
    pub(crate) fn numbers(&self) -> [u64; Self::COUNT] {
        [
            self.row_count,
            self.waiting_count,
            self.payload_bytes,
            self.held_bytes,
            self.pulled,
            self.pushed,
            self.dropped,
            self.non_finite,
            self.deleted,
            self.staleness_sum,
            self.staleness_max,
        ]
    }

    pub(crate) fn from_numbers(numbers: [u64; Self::COUNT]) -> TableStats {
        let [row_count, waiting_count, payload_bytes, held_bytes, pulled, pushed, rest @ ..] =
            numbers;
        let [dropped, non_finite, deleted, staleness_sum, staleness_max] = rest;
        TableStats {
            row_count,
            waiting_count,
            payload_bytes,
            held_bytes,
            pulled,
            pushed,
            dropped,
            non_finite,
            deleted,
            staleness_sum,
            staleness_max,
        }
    }
}
