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
}

impl TableStats {
    /// The numbers in their order.
    pub(crate) fn numbers(&self) -> [u64; 9] {
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
        ]
    }

    pub(crate) fn from_numbers(numbers: [u64; 9]) -> TableStats {
        let [row_count, waiting_count, payload_bytes, held_bytes, pulled, pushed, rest @ ..] =
            numbers;
        let [dropped, non_finite, deleted] = rest;
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
        }
    }
}
