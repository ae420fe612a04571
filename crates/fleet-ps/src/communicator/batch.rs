//! The distinct ids of a step, computed when their rows are requested, and used again when their
//! gradients are sent.

use crate::{Merger, PullMode, TableAccess};
use fleet_base::Result;
use fleet_base::sync::lock;
use std::sync::{Arc, Mutex};

/// Ids that were looked up together, and which of them are equal.
pub(super) struct Batch {
    pub table: u32,
    pub ids: Arc<Vec<u64>>,
    pub merger: Merger,
}

/// The batches whose gradients may follow, and memory of earlier ones.
#[derive(Default)]
pub(super) struct Batches {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Oldest first.
    batches: Vec<Arc<Batch>>,
    mergers: Vec<Merger>,
    rows: Vec<Vec<f32>>,
}

/// Limit on the batches remembered for one table: the current step's, and one more.
const BATCHES_MAX: usize = 2;
/// Limit on the memory kept for later batches.
const SPARE_MAX: usize = 4;

impl Batches {
    /// Makes a batch of ids.
    pub fn make(&self, table: u32, ids: Arc<Vec<u64>>) -> Arc<Batch> {
        let mut merger = lock(&self.kept).mergers.pop().unwrap_or_default();
        merger.merge(&ids);
        Arc::new(Batch { table, ids, merger })
    }

    /// Pulls the rows of a batch, one for each distinct id.
    pub fn pull(&self, servers: &dyn TableAccess, batch: &Batch, width: usize) -> Result<Vec<f32>> {
        let ids = batch.merger.ids();
        let mut rows = lock(&self.kept).rows.pop().unwrap_or_default();
        rows.resize(ids.len() * width, 0.0);
        servers.pull_sparse(batch.table, ids.into(), &mut rows, PullMode::Train)?;
        Ok(rows)
    }

    /// Takes back used rows.
    pub fn recycle(&self, rows: Vec<f32>) {
        let mut kept = lock(&self.kept);
        if kept.rows.len() < SPARE_MAX {
            kept.rows.push(rows);
        }
    }

    /// Remembers a batch for its gradients.
    pub fn keep(&self, batch: Arc<Batch>) {
        let mut kept = lock(&self.kept);
        let of_table = |kept: &Batch| kept.table == batch.table;
        if kept.batches.iter().filter(|kept| of_table(kept)).count() >= BATCHES_MAX
            && let Some(at) = kept.batches.iter().position(|kept| of_table(kept))
        {
            let old = kept.batches.remove(at);
            if let Some(old) = Arc::into_inner(old)
                && kept.mergers.len() < SPARE_MAX
            {
                kept.mergers.push(old.merger);
            }
        }
        kept.batches.push(batch);
    }

    /// Returns the batch of these ids, which usually was looked up before.
    pub fn of(&self, table: u32, ids: &[u64]) -> Arc<Batch> {
        let same = |batch: &&Arc<Batch>| batch.table == table && batch.ids.as_slice() == ids;
        let found = lock(&self.kept).batches.iter().rev().find(same).cloned();
        found.unwrap_or_else(|| self.make(table, Arc::new(ids.to_vec())))
    }
}
