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
    /// Ids that were read and written, with repetitions.
    pub pulled: u64,
    pub pushed: u64,
    /// Ids whose gradients were dropped because they have no row (entry policy).
    pub dropped: u64,
    /// Gradients that were NaN or infinite.
    pub non_finite: u64,
    /// Rows that a shrink deleted.
    pub deleted: u64,
}
