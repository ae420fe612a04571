//! Sparse pushes of a synchronous job, held until all workers have sent theirs.

use crate::{Accessor, Ids, Push, SparseTable, UniqueIds};
use fleet_base::{Error, Result};
use std::collections::BTreeSet;

/// Pushes that were not applied yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pending {
    pub pushes: Vec<HeldPush>,
}

/// One push of one worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HeldPush {
    pub worker: u64,
    pub seq: u64,
    pub ids: Vec<u64>,
    pub grads: Vec<f32>,
    pub shows: Option<Vec<f32>>,
    pub clicks: Option<Vec<f32>>,
    pub slots: Option<Vec<u32>>,
}

/// Limit on the numbers held for one step: 8 GiB. A job whose step pushes more needs more servers.
const NUMBERS_MAX: usize = 2 << 30;

impl Pending {
    /// Holds a push whose gradients the table has screened.
    pub fn hold(&mut self, worker: usize, seq: u64, push: Push<'_>, grads: &[f32]) -> Result<()> {
        let held: usize = self.pushes.iter().map(|held| held.grads.len()).sum();
        if held + grads.len() > NUMBERS_MAX {
            return Err(Error::exhausted("too many pending gradients")
                .expected(format!("up to {NUMBERS_MAX} numbers"))
                .got(held + grads.len())
                .help("arrive at the barrier more often, or use more servers"));
        }
        self.pushes.push(HeldPush {
            worker: worker as u64,
            seq,
            ids: push.ids.as_slice().to_vec(),
            grads: grads.to_vec(),
            shows: push.shows.map(<[f32]>::to_vec),
            clicks: push.clicks.map(<[f32]>::to_vec),
            slots: push.slots.map(<[u32]>::to_vec),
        });
        Ok(())
    }

    /// Returns the number of workers with held pushes.
    pub fn worker_count(&self) -> usize {
        let workers: BTreeSet<u64> = self.pushes.iter().map(|held| held.worker).collect();
        workers.len()
    }

    /// Applies the held pushes, each id once: sums over the pushes, divided by `workers` in a plain
    /// table. They are added in the order of workers, so that the result does not depend on the
    /// order of arrival. Workers with held pushes always count.
    pub fn apply(&mut self, table: &SparseTable, workers: u32) -> Result<()> {
        let workers = workers.max(self.worker_count() as u32);
        let mut pushes = std::mem::take(&mut self.pushes);
        pushes.sort_by_key(|held| (held.worker, held.seq));
        let mut pushes = pushes.into_iter();
        let Some(mut all) = pushes.next() else { return Ok(()) };
        let mut count = 1;
        for held in pushes {
            // Pushes with different optional fields are applied separately.
            if held.kind() != all.kind() {
                all.apply(count, table, workers)?;
                (all, count) = (held, 1);
                continue;
            }
            count += 1;
            all.ids.extend(&held.ids);
            all.grads.extend(&held.grads);
            all.shows.iter_mut().for_each(|all| all.extend(held.shows.iter().flatten()));
            all.clicks.iter_mut().for_each(|all| all.extend(held.clicks.iter().flatten()));
            all.slots.iter_mut().for_each(|all| all.extend(held.slots.iter().flatten()));
        }
        all.apply(count, table, workers)
    }
}

impl HeldPush {
    fn kind(&self) -> [bool; 3] {
        [self.shows.is_some(), self.clicks.is_some(), self.slots.is_some()]
    }

    /// Applies the sum of `count` pushes, each of which has every id once.
    fn apply(&mut self, count: usize, table: &SparseTable, workers: u32) -> Result<()> {
        let push = Push {
            ids: match count {
                1 => UniqueIds::assume(&self.ids).into(),
                _ => Ids::Any(&self.ids),
            },
            grads: &[],
            shows: self.shows.as_deref(),
            clicks: self.clicks.as_deref(),
            slots: self.slots.as_deref(),
        };
        if table.config().accessor == Accessor::Plain {
            self.grads.iter_mut().for_each(|grad| *grad /= workers as f32);
        }
        table.push_screened(push, &self.grads)
    }
}
