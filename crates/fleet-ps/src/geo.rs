//! Geo tables: rows that workers train locally and exchange as differences.
//!
//! A worker pushes the changes of its rows. The server adds them and remembers, for every other
//! worker, which rows changed. A pull returns these rows to a worker and clears its list.

use crate::{Ids, PullMode, Push, Rule, SparseConfig, SparseTable, rule};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

/// A GEO table of one server: rows that workers train locally, and the changes that each worker has
/// yet to pull.
///
/// ```
/// use fleet_ps::{GeoTable, Initializer, SparseConfig};
/// let initializer = Initializer::Constant(0.0);
/// let config = SparseConfig { initializer, ..SparseConfig::plain(0, 1) };
/// let table = GeoTable::new(config, 2)?;
/// table.push(0, &[8, 9], &[0.5, 0.25])?;
/// assert_eq!(table.pull_changed(1)?, (vec![8, 9], vec![0.5, 0.25]));
/// assert_eq!(table.pull_changed(0)?, (vec![], vec![]), "a worker knows its own");
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct GeoTable {
    rows: SparseTable,
    /// For each worker, the ids that other workers changed since its last pull.
    changed: Vec<Mutex<HashSet<u64>>>,
}

/// Limit on the workers of a job.
const WORKER_COUNT_MAX: usize = 1 << 16;

impl GeoTable {
    /// Creates an empty table. The rule of `config` is ignored: the server only adds.
    pub fn new(config: SparseConfig, worker_count: usize) -> Result<GeoTable> {
        if !(1..=WORKER_COUNT_MAX).contains(&worker_count) {
            return Err(Error::invalid("invalid number of workers of a GEO table")
                .expected(format!("1 to {WORKER_COUNT_MAX}"))
                .got(worker_count));
        }
        // w -= 1 * (-difference) is an addition.
        let rule = Rule::Sgd(rule::Sgd { lr: 1.0 });
        let rows = SparseTable::new(SparseConfig { rule, ..config })?;
        let changed = (0..worker_count).map(|_| Mutex::default()).collect();
        Ok(GeoTable { rows, changed })
    }

    /// Returns the rows, for first pulls, saves, loads and statistics.
    pub fn rows(&self) -> &SparseTable {
        &self.rows
    }

    /// Adds the changes of a worker.
    pub fn push<'a>(
        &self,
        worker: usize,
        ids: impl Into<Ids<'a>>,
        differences: &[f32],
    ) -> Result<()> {
        let ids = ids.into();
        drop(self.of(worker)?); // an unknown worker is rejected before anything changes
        let grads: Vec<f32> = differences.iter().map(|difference| -difference).collect();
        self.rows.push(Push::new(ids, &grads))?;
        for other in (0..self.changed.len()).filter(|other| *other != worker) {
            self.of(other)?.extend(ids.as_slice());
        }
        Ok(())
    }

    /// Returns the ids that other workers changed since this worker's last pull, in ascending
    /// order, and their current rows.
    pub fn pull_changed(&self, worker: usize) -> Result<(Vec<u64>, Vec<f32>)> {
        let mut ids: Vec<u64> = self.of(worker)?.drain().collect();
        ids.sort_unstable();
        let mut rows = vec![0.0; ids.len() * self.rows.pull_width()];
        match self.rows.pull(&ids, &mut rows, PullMode::Infer) {
            Ok(()) => Ok((ids, rows)),
            Err(error) => {
                self.of(worker)?.extend(ids);
                Err(error)
            }
        }
    }

    /// Deletes all rows and all pending changes, without notice to the workers, which start anew.
    /// Returns the number of rows deleted.
    pub fn clear(&self) -> Result<u64> {
        for worker in 0..self.changed.len() {
            self.of(worker)?.clear();
        }
        self.rows.clear()
    }

    /// Returns the ids that each worker has yet to pull.
    pub(crate) fn changed(&self) -> Vec<Vec<u64>> {
        let list = |changed: &Mutex<HashSet<u64>>| {
            let ids = lock(changed);
            ids.iter().copied().collect()
        };
        self.changed.iter().map(list).collect()
    }

    pub(crate) fn set_changed(&self, changed: Vec<Vec<u64>>) -> Result<()> {
        for (worker, ids) in changed.into_iter().enumerate() {
            *self.of(worker)? = ids.into_iter().collect();
        }
        Ok(())
    }

    fn of(&self, worker: usize) -> Result<MutexGuard<'_, HashSet<u64>>> {
        match self.changed.get(worker) {
            Some(changed) => Ok(lock(changed)),
            None => Err(Error::invalid("unknown worker of a GEO table")
                .expected(format!("a number below {}", self.changed.len()))
                .got(worker)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Initializer;

    fn table(workers: usize) -> GeoTable {
        let initializer = Initializer::Constant(1.0);
        let config = SparseConfig { initializer, shard_count: 4, ..SparseConfig::plain(0, 2) };
        GeoTable::new(config, workers).unwrap()
    }

    /// Workers that push their changes and pull those of the others end with equal rows.
    #[test]
    fn all_workers_converge_to_the_same_rows() {
        let table = table(3);
        let mut local = vec![vec![[1.0f32; 2]; 5]; 3];
        for round in 0..4 {
            for worker in 0..3 {
                let id = (worker + round) % 5;
                let step = (worker * 10 + round) as f32;
                table.push(worker, &[id as u64], &[step, -step]).unwrap();
                local[worker][id][0] += step;
                local[worker][id][1] -= step;
            }
            for worker in 0..3 {
                let (ids, rows) = table.pull_changed(worker).unwrap();
                for (id, row) in ids.iter().zip(rows.chunks(2)) {
                    local[worker][*id as usize].copy_from_slice(row);
                }
            }
            assert!(local[0] == local[1] && local[1] == local[2], "round {round}");
        }
    }

    #[test]
    fn repeated_ids_are_added_and_strangers_refused() {
        let table = table(2);
        table.push(0, &[3, 3], &[1.0, 1.0, 2.0, 2.0]).unwrap();
        assert_eq!(table.pull_changed(1).unwrap(), (vec![3], vec![4.0, 4.0]));
        let error = table.push(2, &[1], &[0.0; 2]).unwrap_err().to_string();
        assert!(error.contains("expected a number below 2, got 2"), "{error}");
        assert!(table.push(0, &[1], &[f32::NAN; 2]).is_err());
        assert_eq!(table.pull_changed(1).unwrap().0, [0u64; 0], "a refused push changed nothing");
    }
}
