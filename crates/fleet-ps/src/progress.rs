//! Progress of a worker's earlier processes, from which a restarted worker resumes.

use crate::Step;
use crate::message::{Body, put};
use fleet_base::Result;
use std::collections::BTreeMap;

/// Progress of the processes that were a worker before the present one; see
/// [`RunControl::adopt`](crate::RunControl::adopt).
///
/// ```
/// use fleet_ps::{
///     Initializer, JobTables, LocalServers, PullMode, Push, RunControl, ServerTables,
///     SparseConfig, Step, TableAccess, TableConfig,
/// };
/// let initializer = Initializer::Constant(1.0);
/// let config = SparseConfig { initializer, ..SparseConfig::plain(0, 1) };
/// let tables = vec![TableConfig::Sparse(config)];
/// let job = JobTables { server_count: 2, worker_count: 1, sync: false, tables };
/// let servers = ServerTables::all(&job)?;
/// let first = LocalServers::new(&servers, 0)?;
/// first.completed(8); // earlier steps are complete
/// first.keep(8, &[1, 2, 3])?; // anything that its next process needs
/// first.push_sparse(0, Step::new(9), Push::new(&[4], &[1.0]))?; // then the process dies
///
/// let again = LocalServers::new(&servers, 0)?;
/// let progress = again.adopt()?;
/// assert_eq!((progress.complete, &progress.kept[..]), (8, &[1, 2, 3][..]));
/// again.resume(&progress)?;
/// // Server 0 has the gradient of step 9 for row 4; server 1 lacks that for row 5.
/// again.push_sparse(0, Step::new(9), Push::new(&[4, 5], &[1.0, 1.0]))?;
/// let mut rows = [0.0; 2];
/// again.pull_sparse(0, (&[4, 5]).into(), &mut rows, PullMode::Infer)?;
/// assert_eq!(rows, [0.95, 0.95]);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps made before this run of the job.
    pub base: u64,
    /// Steps whose gradients all servers have. Like `base`, counted from the first step of the job.
    pub complete: u64,
    /// By server and table, the newest step whose gradients are applied there.
    pub(crate) applied: Vec<BTreeMap<u32, u64>>,
    /// State that the worker has kept on the servers ([`RunControl::keep`](crate::RunControl));
    /// empty if none.
    pub kept: Vec<u64>,
    /// The step after which `kept` was the worker's state.
    pub kept_step: u64,
}

impl Progress {
    /// Returns the progress in a job whose servers all have the steps up to `complete` and no part
    /// of a later one.
    pub fn settled(self, complete: u64) -> Progress {
        Progress { complete, applied: Vec::new(), ..self }
    }

    /// Returns the newest step whose gradients any server has, at least in part.
    pub(crate) fn newest(&self) -> u64 {
        self.applied.iter().flat_map(BTreeMap::values).copied().max().unwrap_or(0)
    }

    /// Returns whether a server has the worker's gradients of a step.
    pub(crate) fn has(&self, server: usize, table: u32, step: Step) -> bool {
        let newest = self.applied.get(server).and_then(|tables| tables.get(&table));
        newest.is_some_and(|newest| step.number() <= *newest)
    }
}

/// Appends one server's answer.
pub(crate) fn write(
    (base, complete): (u64, u64),
    tables: &BTreeMap<u32, u64>,
    (kept_step, kept): (u64, &[u64]),
    answer: &mut Vec<u8>,
) {
    put(answer, &[base, complete, tables.len() as u64]);
    tables.iter().for_each(|(table, step)| put(answer, &[u64::from(*table), *step]));
    put(answer, &[kept_step, kept.len() as u64]);
    put(answer, kept);
}

/// Merges the answers of all servers, which are in the order of the servers.
pub(crate) fn merged(answers: &[Vec<u8>]) -> Result<Progress> {
    let mut all = Progress::default();
    for answer in answers {
        let mut body = Body(answer);
        all.base = all.base.max(body.u64()?);
        all.complete = all.complete.max(body.u64()?);
        let count = body.u64()?;
        let pairs = body.numbers::<u64>(count.saturating_mul(2))?;
        let (kept_step, count) = (body.u64()?, body.u64()?);
        let kept = body.numbers::<u64>(count)?;
        body.end()?;
        // A worker that died while it sent its state has left different ones.
        if !kept.is_empty() && kept_step >= all.kept_step {
            (all.kept_step, all.kept) = (kept_step, kept.into_owned());
        }
        all.applied.push(pairs.chunks_exact(2).map(|pair| (pair[0] as u32, pair[1])).collect());
    }
    Ok(all)
}
